"""Memory of Spark's Python processes while a stream and a consumer run, minute by minute."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.cluster import QUEUES
from bench.live import emit_body_size, fed, live_topic
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES
from bench.streams import Backlog
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.processes import (
    descendants_of,
    is_planner,
    is_worker_daemon,
    parent_of,
    resident_bytes,
)
from tests.helpers.wait import wait_until

_TOPIC = "orders"
_PER_SECOND = 2_000
_EACH = 40
_SAMPLE_S = 1.0
_MINUTE_S = 60.0
_START_S = 300.0
_FIRST_BATCHES = 5
_MIB = 1024 * 1024
_FLAT_MIB = 50.0

_METHOD = """\
{per_second:,} messages of 1 KiB a second are sent to {queues} queues of one real broker for {seconds:g} s, while two queries run in one session, `local[{cores}]`: a plain
stream into a noop sink, and an orderly `PushConsumer` that emits a row for each message into a `DeltaSink`. Every second the resident memory (RSS) of Spark's Python
processes is read from `/proc`: *worker* is the largest of the Python workers, which read, decode, call the listener and write files; *planner* the
larger of the two processes that plan; *driver* this program. It begins when both queries have run {first} micro-batches; in the first minute workers still come to their size."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """MiB."""

    at_s: float
    worker: float
    planner: float
    driver: float


def run(*, seconds: float = 1_200.0) -> Result:
    """Watch for ``seconds``."""
    before = load_average()
    with live_topic(_TOPIC) as backlog:
        feeding = fed(backlog, per_second=_PER_SECOND, each=_EACH)
        with _queries(backlog) as queries, feeding:
            minutes = _by_minute(_watch(backlog.spark, queries, seconds))
    settled = minutes[1:] or minutes
    growth = [max(each.worker for each in minute) - settled[0][0].worker for minute in settled]
    return Result(
        name="memory",
        title="Memory",
        method=_METHOD.format(
            per_second=_PER_SECOND, queues=QUEUES, seconds=seconds, cores=CORES, first=_FIRST_BATCHES
        ),
        columns=(
            "minute",
            "worker at its start, MiB",
            "worker, median",
            "worker, max",
            "planner, max",
            "driver, max",
        ),
        rows=tuple(_row(number, minute) for number, minute in enumerate(minutes, start=1)),
        targets=(
            Target(
                what="growth of a worker after the first minute, by minute",
                seen=Spread.of(growth),
                bound=_FLAT_MIB,
                at_most=True,
                unit="MiB",
            ),
        ),
        load=(before, load_average()),
    )


@contextmanager
def _queries(backlog: Backlog) -> Iterator[Sequence[StreamingQuery]]:
    """The plain stream and the consumer; stopped at the end."""
    plain = (
        backlog.plain_rows()
        .writeStream.format("noop")
        .option("checkpointLocation", str(backlog.work / "plain"))
        .trigger(processingTime="1 second")
        .start()
    )
    # Spark waits 10 s for a planner process; two at a time may be too slow on two cores.
    wait_until(lambda: "Initializing" not in plain.status["message"], _MINUTE_S)
    consumer = backlog.consumer(backlog.work / "consumer", consume_message_batch_max_size=32)
    consumer.register_message_listener(emit_body_size, output_schema="size bigint")
    folder = backlog.work / "consumer"
    queries = [
        plain,
        consumer.start(backlog.spark, sink=DeltaSink(folder / "sink"), checkpoint=str(folder / "checkpoint")),
    ]
    try:
        yield queries
    finally:
        for query in queries:
            query.stop()


def _watch(spark: SparkSession, queries: Sequence[StreamingQuery], seconds: float) -> list[_Sample]:
    """Take a sample each second, after both queries have run a few micro-batches.

    Raises:
        RuntimeError: If a query ends.
    """
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - Spark has no public way
    assert gateway is not None
    jvm = gateway.proc.pid
    wait_until(
        lambda: all(_has_begun(query) for query in queries), _START_S, reason="A few micro-batches of each"
    )
    samples: list[_Sample] = []
    began_s = time.monotonic()
    pause = threading.Event()
    while not samples or samples[-1].at_s < seconds:
        for query in queries:
            _check(query)
        samples.append(_sample(jvm, time.monotonic() - began_s))
        pause.wait(_SAMPLE_S)
    return samples


def _has_begun(query: StreamingQuery) -> bool:
    _check(query)
    progress = query.lastProgress
    return progress is not None and progress.batchId >= _FIRST_BATCHES


def _check(query: StreamingQuery) -> None:
    if query.exception() is not None:
        raise RuntimeError(f"A query failed: {query.exception()}")


def _sample(jvm: int, at_s: float) -> _Sample:
    pids = descendants_of(jvm)
    daemons = set(filter(is_worker_daemon, pids))
    # Workers look like the daemon that forks them.
    workers = [pid for pid in daemons if parent_of(pid) in daemons]
    planners = list(filter(is_planner, pids))
    return _Sample(at_s, _largest(workers), _largest(planners), _largest([os.getpid()]))


def _largest(pids: Sequence[int]) -> float:
    """MiB."""
    return max(map(resident_bytes, pids), default=0) / _MIB


def _by_minute(samples: Sequence[_Sample]) -> list[list[_Sample]]:
    return [
        list(each) for _, each in itertools.groupby(samples, lambda sample: int(sample.at_s // _MINUTE_S))
    ]


def _row(number: int, minute: Sequence[_Sample]) -> tuple[str, ...]:
    workers = [each.worker for each in minute]
    figures = (
        workers[0],
        median(workers),
        max(workers),
        max(each.planner for each in minute),
        max(each.driver for each in minute),
    )
    return str(number), *(f"{figure:,.0f}" for figure in figures)
