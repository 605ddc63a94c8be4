"""Rates of a slow orderly listener, in order of sharding keys and in order of the queue."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

from deltalake import DeltaTable

from bench.measure import Result, Spread, Target, load_average
from bench.streams import Backlog, await_end, real_backlog
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt, OrderlyBy
from pyspark_rocketmq.wire.properties import SHARDING_KEY

_TOPIC = "keyed"
_SLEEP_S = 0.02
_THREADS = 20
_KEYS = 50
_BODY = b"." * 1024
_TARGET = 10.0

_METHOD = """\
One queue of a real broker has {messages:,} messages of 1 KiB, with {keys} sharding keys in random order. An orderly listener gets
one message per call, waits for {sleep_ms:g} ms and emits one row; at most {threads} calls overlap. Everything is consumed in one
micro-batch (`availableNow`), with `DeltaSink` and Delta offset store: once in the order of the queue, once by sharding key.

The rate is the number of messages divided by the time from the begin of the first call to the end of the last one. The ceilings
are one and {threads} calls per {sleep_ms:g} ms. {rounds} rounds, in each both orders. A run counts only if every row is there
once, and if the calls for each key have begun in the order of its messages."""


def wait(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """Wait, like a call to a slow service."""
    context.emit(called_s=time.time(), key=messages[0].properties[SHARDING_KEY])
    time.sleep(_SLEEP_S)
    return ConsumeOrderlyStatus.SUCCESS


def run(*, per_trigger: int = 2_000, rounds: int = 5) -> Result:
    """Measure ``rounds`` pairs of runs."""
    before = load_average()
    draw = random.Random(7)
    keys = [f"order-{draw.randrange(_KEYS)}" for _ in range(per_trigger)]

    def message(number: int) -> Message:
        return Message(topic=_TOPIC, body=_BODY, properties={SHARDING_KEY: keys[number]})

    with real_backlog(_TOPIC, message, per_trigger=per_trigger, batches=1, queues=1) as backlog:
        contest = _Contest(backlog)
        figures = [contest.round() for _ in range(rounds)]
    ratio = Spread.of(each[OrderlyBy.SHARDING_KEY] / each[OrderlyBy.QUEUE] for each in figures)
    ceilings = {OrderlyBy.QUEUE: 1 / _SLEEP_S, OrderlyBy.SHARDING_KEY: _THREADS / _SLEEP_S}
    return Result(
        name="order_by_key",
        title="Order by sharding key",
        method=_METHOD.format(
            messages=per_trigger, keys=_KEYS, sleep_ms=_SLEEP_S * 1000, threads=_THREADS, rounds=rounds
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            *(
                (f"by {order}, messages/s", *Spread.of(each[order] for each in figures).cells(",.1f"))
                for order in OrderlyBy
            ),
            *(
                (
                    f"by {order}: rate / ceiling",
                    *Spread.of(each[order] / ceiling for each in figures).cells(".2f"),
                )
                for order, ceiling in ceilings.items()
            ),
        ),
        targets=(Target(what="by sharding_key / by queue", seen=ratio, bound=_TARGET, at_most=False),),
        load=(before, load_average()),
    )


class _Contest:
    """Both orders on one topic; every run has a new group, a new table and a new checkpoint."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._numbers = itertools.count()

    def round(self) -> dict[OrderlyBy, float]:
        """Return the rate by each order."""
        rates = {order: self._drain(order) for order in OrderlyBy}
        print("  " + "  ".join(f"{order} {rate:,.1f}/s" for order, rate in rates.items()), flush=True)
        return rates

    def _drain(self, order: OrderlyBy) -> float:
        folder = self._backlog.work / f"run-{next(self._numbers)}"
        consumer = self._backlog.consumer(folder, consume_thread_max=_THREADS, orderly_by=order)
        consumer.register_message_listener(wait, output_schema="called_s double, key string")
        await_end(self._backlog.start(consumer, folder, with_sink=True))
        rows = DeltaTable(str(folder / "sink")).to_pyarrow_table().to_pandas()
        offsets = rows["queueOffset"].sort_values().tolist()
        in_order = rows.sort_values("queueOffset").groupby("key")["called_s"]
        if offsets != list(range(self._backlog.per_trigger)) or not in_order.is_monotonic_increasing.all():
            raise RuntimeError(
                f"In order by {order} a row is missing or doubled, or calls were out of order."
            )
        called_s = rows["called_s"]
        return float(len(rows) / (called_s.max() - called_s.min() + _SLEEP_S))
