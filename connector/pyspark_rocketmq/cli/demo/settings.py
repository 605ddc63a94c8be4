"""Options of command ``demo``."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_rocketmq.cli.settings import GROUP_DOC, like_consumer, like_source, parse_location
from pyspark_rocketmq.options.declare import OptionSet, option
from pyspark_rocketmq.options.parsers import boolean, int_between

_A_NEW_ONE = "a new one for each run"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DemoSettings(OptionSet):
    """Options of command ``demo``."""

    name_servers: tuple[str, ...] | None = like_source(
        "name_servers", default=None, default_text="an embedded cluster"
    )
    topic: str | None = like_source(
        "topic",
        default=None,
        default_text=_A_NEW_ONE,
        doc="The topic for the messages; created if missing, else it must be empty.",
    )
    consumer_group: str | None = like_source("consumer_group", default_text=_A_NEW_ONE, doc=GROUP_DOC)
    work_dir: str | None = option("workDir", parse_location, None, default_text="a new temporary one").doc(
        "Where the Delta tables and the checkpoint go; kept after the run."
    )
    brokers: int = option("brokers", int_between(1, 8), 2).doc("Number of brokers of the embedded cluster.")
    orders: int = option("orders", int_between(1, 10_000_000), 20_000).doc(
        "Number of orders; each has five messages, one for every step of its life."
    )
    real_time: bool = option("realTime", boolean, False).doc(
        "Consume in real time while the messages are sent, 2,000 a second, and show how long each took from "
        "the broker to the listener. On the command line also `--real-time`."
    )
    seed: int = option("seed", int_between(0, 2**31), 7).doc(
        "Seed of the random order in which the orders are mixed."
    )
    batch_size: int = like_consumer("consume_message_batch_max_size", default=32)
    max_offsets_per_trigger: int = like_consumer("max_offsets_per_trigger", default=20_000)
