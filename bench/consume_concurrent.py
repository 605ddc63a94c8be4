"""A concurrent listener that waits, next to what its threads could do if nothing else took time."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.cluster import QUEUES, fill, real_cluster
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES, bench_session
from pyspark_rocketmq.datasource.format import register
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeFromWhere, Message, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.streaming.committer import BatchReport
from pyspark_rocketmq.streaming.delta_sink import DeltaSink
from pyspark_rocketmq.streaming.listener import ConsumeConcurrentlyContext
from pyspark_rocketmq.streaming.push_consumer import PushConsumer

_TOPIC = "calls"
_SLEEP_S = 0.005
_THREADS = 20
_BODY = b"." * 1024
_TARGET = 0.9
_TIMEOUT_S = 600
_KINDS = ("threads", "async def")

_METHOD = """\
{messages:,} messages of 1 KiB in {queues} queues of one real broker, consumed one per call by a listener that waits for
{sleep_ms:g} ms and emits one row, {threads} calls at the same time in each task, {cores} tasks at once (`local[{cores}]`), in
micro-batches of {per_trigger:,} messages (`availableNow`), `DeltaSink`, Delta offset store. Once the listener is a
function that sleeps in a thread, once an `async def` that sleeps on the task's event loop.

*Rate of a task* is a range's messages divided by the time from the beginning of its consumption to the listener's last
answer, the median of a run's ranges without those of its first micro-batch; the ceiling is {threads} / {sleep_ms:g} ms. {rounds} rounds."""

Listener = Callable[[Sequence[MessageExt], ConsumeConcurrentlyContext], Any]


def wait_in_thread(
    messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
) -> ConsumeConcurrentlyStatus:
    """As a call to a service that answers after a while."""
    time.sleep(_SLEEP_S)
    context.emit(size=len(messages[0].body))
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


async def wait_on_loop(
    messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
) -> ConsumeConcurrentlyStatus:
    """The same with a client that awaits."""
    await asyncio.sleep(_SLEEP_S)
    context.emit(size=len(messages[0].body))
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def run(*, messages: int = 160_000, per_trigger: int = 40_000, rounds: int = 3) -> Result:
    """Measure ``rounds`` runs of each kind."""
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, real_cluster() as cluster:
        cluster.create_topic(_TOPIC, QUEUES)
        fill(
            cluster.name_servers,
            _TOPIC,
            queues=QUEUES,
            per_queue=messages // QUEUES,
            message=lambda _: Message(topic=_TOPIC, body=_BODY),
        )
        with bench_session(Path(folder)) as spark:
            contest = _Contest(spark, cluster.name_servers, Path(folder), per_trigger)
            figures = [contest.round() for _ in range(rounds)]
    ceiling = _THREADS / _SLEEP_S
    rates = {kind: Spread.of(figure[kind] for figure in figures) for kind in _KINDS}
    return Result(
        name="consume_concurrent",
        title="Concurrent listener that waits",
        method=_METHOD.format(
            messages=messages,
            queues=QUEUES,
            sleep_ms=_SLEEP_S * 1000,
            threads=_THREADS,
            cores=CORES,
            per_trigger=per_trigger,
            rounds=rounds,
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            ("ceiling of a task, messages/s", *Spread.of([ceiling]).cells(",.0f")),
            *((f"{kind}: rate of a task, messages/s", *rate.cells(",.0f")) for kind, rate in rates.items()),
        ),
        targets=tuple(
            Target(
                what=f"{kind}: task / ceiling",
                seen=Spread.of(figure[kind] / ceiling for figure in figures),
                bound=_TARGET,
                at_most=False,
            )
            for kind in _KINDS
        ),
        load=(before, load_average()),
    )


class _Contest:
    """Both kinds on one topic; every run is a new group, a new table and a new checkpoint."""

    def __init__(self, spark: SparkSession, name_servers: str, work: Path, per_trigger: int) -> None:
        self._spark = spark
        self._name_servers = name_servers
        self._work = work
        self._per_trigger = per_trigger
        self._numbers = itertools.count()
        register(spark)

    def round(self) -> dict[str, float]:
        """Rate of a task, by kind."""
        rates = dict(zip(_KINDS, map(self._drain, (wait_in_thread, wait_on_loop)), strict=True))
        print("  " + "  ".join(f"{kind} {rate:,.0f}/s" for kind, rate in rates.items()), flush=True)
        return rates

    def _drain(self, listener: Listener) -> float:
        folder = self._work / f"run-{next(self._numbers)}"
        reports: list[BatchReport] = []
        consumer = PushConsumer(
            consumer_group=folder.name,
            name_servers=self._name_servers,
            offset_store=DeltaOffsetStore(str(folder / "offsets")),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consume_thread_max=_THREADS,
            max_offsets_per_trigger=self._per_trigger,
        )
        consumer.subscribe(_TOPIC)
        consumer.register_message_listener(listener, orderly=False, output_schema="size bigint")
        consumer.register_batch_listener(reports.append)
        query = consumer.start(
            self._spark,
            sink=DeltaSink(folder / "sink"),
            checkpoint=str(folder / "checkpoint"),
            trigger={"availableNow": True},
        )
        if not query.awaitTermination(_TIMEOUT_S):
            raise RuntimeError(f"{folder.name} did not drain in {_TIMEOUT_S} s.")
        rates = [
            ack.consumed / ack.listener_s for report in reports[1:] for ack in report.acks if ack.consumed
        ]
        return Spread.of(rates).median
