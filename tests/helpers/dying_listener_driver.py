"""Consumers, one by each engine, whose listener ends its worker in several ways, each once,
and then consumes the rest.

``python -m tests.helpers.dying_listener_driver CONFIG_JSON``;
a task may fail more often than the listener does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.orders import OUTPUT_SCHEMA
from tests.helpers.spark_session import make_session

CUTTING = "cutting"
"""The consumer, of engine ``direct``, that commits while its micro-batch runs."""
_CALL_S = 0.02
"""How long its listener takes for a call, so that a batch has several commits."""
DEATHS = ("exit", "SystemExit", "KeyboardInterrupt", "SIGKILL")


def die(how: str) -> None:
    """End this worker."""
    match how:
        case "exit":
            os._exit(3)
        case "SystemExit":
            sys.exit("enough")
        case "KeyboardInterrupt":
            raise KeyboardInterrupt
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingListener:
    """A listener that dies in the middle of each of its first four batches."""

    def __init__(self, folder: Path, call_s: float) -> None:
        self._folder = str(folder)
        self._call_s = call_s
        self._log = DeliveryLog(folder / "deliveries")

    def __call__(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        """Emit each message's order and step, and die at every twentieth message,
        as long as there are deaths.
        """
        self._log.note(messages)
        time.sleep(self._call_s)
        for message in messages:
            order_id, _, step = message.body.decode().partition(":")
            context.emit(order_id=order_id, step=step, delivered_ns=time.time_ns())
            if message.queue_offset % 20 == 19:
                self._die_if_it_is_time()
        return ConsumeOrderlyStatus.SUCCESS

    def _die_if_it_is_time(self) -> None:
        for death in DEATHS:
            mark = Path(self._folder, f"died-by-{death}")
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                continue
            die(death)


def main(config: Mapping[str, Any]) -> None:
    """Consume everything there is."""
    spark = make_session(Path(config["work"]), max_failures=len(DEATHS) + 1)
    for engine in config["engines"]:
        _consume(spark, Path(config["work"], engine), engine, config)
    spark.stop()


def _consume(spark: SparkSession, work: Path, engine: str, config: Mapping[str, Any]) -> None:
    work.mkdir()
    is_cutting = engine == CUTTING
    consumer = PushConsumer(
        consumer_group=f"{config['group']}-{engine}",
        name_servers=config["nameServers"],
        offset_store=DeltaOffsetStore(str(work / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_message_batch_max_size=7,
        orderly_engine="direct" if is_cutting else engine,
        commit_interval="50 milliseconds" if is_cutting else None,
    )
    consumer.subscribe(config["topic"])
    consumer.register_message_listener(
        DyingListener(work, _CALL_S if is_cutting else 0.0), output_schema=OUTPUT_SCHEMA
    )
    query = consumer.start(
        spark,
        sink=DeltaSink(str(work / "sink")),
        checkpoint=str(work / "checkpoint"),
        trigger={"availableNow": True},
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
