"""Latency from the broker's store to a committed row of an orderly consumer, compared with Spark's rate source."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from bench.cluster import QUEUES
from bench.live import emit_body_size, fed, live_topic
from bench.measure import Result, Spread, load_average
from bench.session import CORES
from bench.streams import Backlog
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.part import Group
from pyspark_rocketmq.consumer.batch import run_job
from pyspark_rocketmq.format import register
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import QUEUE_OFFSET, ConsumeOrderlyStatus, MessageExt, MessageQueue, queue_columns
from pyspark_rocketmq.sinks.base import SinkBatch
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS
from tests.helpers.wait import wait_until

_TOPIC = "orders"
_PER_SECOND = 1000
_EACH = 10
_WARM_UP_S = 5.0
_TIMEOUT_S = 120.0
_FIRST_BATCHES = 5
"""First micro-batches, which start processes and compile."""
_TRIGGER = {"processingTime": "0 seconds"}
_STAGES = ("triggerExecution", "latestOffset", "walCommit", "addBatch", "commitOffsets")
_RATE_GROUP = "rate"
_RATE_QUEUE = MessageQueue("rate", "spark", 0)
_RATE_SCHEMA = pa.schema(
    [
        *POSITION_FIELDS,
        ("stored", pa.timestamp("us", tz="UTC")),
    ]
)
_OURS = "ours, Delta"
_RATE = "rate source, Delta"
_OURS_ALONE = "ours, no sink"
_RATE_ALONE = "rate source, no sink"

_METHOD = """\
{per_second:,} messages of 1 KiB a second are sent to {queues} queues of one real broker, {each} at a time, until {seconds:g} s after
the first commit; what is stored in the first {warm_up:g} s of these does not count. Micro-batches follow each other without a pause (`processingTime` 0), `local[{cores}]`. The
latency of a message is the moment at which the driver learns that its batch is committed, less the message's store time. The
stages are Spark's `durationMs`, the median of a run's micro-batches: `triggerExecution` is all of one, `addBatch` the job with
whatever commits its data and offsets.

* *{ours}*: orderly `PushConsumer`, one row emitted for each message, `DeltaSink`, Delta offset store.
* *{rate}*: Spark's rate source at {per_second:,} rows a second; its rows go through the same writer of files in one `mapInArrow`
  and the same commit, without a listener and without offsets. Row time is the source's, which gives out whole seconds.
* *{ours_alone}*: the consumer with nothing emitted and no sink; the offsets are committed.
* *{rate_alone}*: only the rows' times, brought to the driver.

{rounds} rounds, all in turn."""

Latencies = npt.NDArray[np.float64]
"""Milliseconds."""


class _Figures(NamedTuple):
    """Figures of one run."""

    latencies: Latencies
    stages: Mapping[str, float]
    """Milliseconds of a micro-batch."""

    def percentile(self, percent: int) -> float:
        """Milliseconds."""
        return float(np.percentile(self.latencies, percent))


def run(*, seconds: float = 14.0, rounds: int = 3) -> Result:
    """Measure ``rounds`` rounds of ``seconds`` each."""
    before = load_average()
    with live_topic(_TOPIC) as backlog:
        contest = Contest(backlog, seconds)
        figures = [contest.round() for _ in range(rounds)]
    return Result(
        name="rate_source",
        title="End to end",
        method=_METHOD.format(
            per_second=_PER_SECOND,
            queues=QUEUES,
            each=_EACH,
            seconds=seconds,
            warm_up=_WARM_UP_S,
            cores=CORES,
            rounds=rounds,
            ours=_OURS,
            rate=_RATE,
            ours_alone=_OURS_ALONE,
            rate_alone=_RATE_ALONE,
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            *(
                (
                    f"{who}: p{percent}, ms",
                    *Spread.of(each[who].percentile(percent) for each in figures).cells(",.0f"),
                )
                for who in figures[0]
                for percent in (50, 99)
            ),
            *(
                (f"{who}: {stage}, ms", *Spread.of(each[who].stages[stage] for each in figures).cells(",.0f"))
                for who in figures[0]
                for stage in _STAGES
            ),
        ),
        targets=(),
        load=(before, load_average()),
    )


def emit_nothing(
    messages: Sequence[MessageExt],  # noqa: ARG001 - a listener's signature
    context: ConsumeOrderlyContext,  # noqa: ARG001
) -> ConsumeOrderlyStatus:
    """The trivial listener."""
    return ConsumeOrderlyStatus.SUCCESS


class Contest:
    """All contestants in one session; every run has a new group, a new table and a new checkpoint."""

    def __init__(self, backlog: Backlog, seconds: float) -> None:
        self._backlog = backlog
        self._seconds = seconds
        self._numbers = itertools.count()
        register(backlog.spark)

    def round(self) -> dict[str, _Figures]:
        """Return the figures of each contestant."""
        folder = self._backlog.work / f"round-{next(self._numbers)}"
        figures = {
            _OURS: self._ours(folder / "ours", with_sink=True),
            _RATE: self._rate(folder / "rate", with_sink=True),
            _OURS_ALONE: self._ours(folder / "alone", with_sink=False),
            _RATE_ALONE: self._rate(folder / "rate-alone", with_sink=False),
        }
        shown = "  ".join(
            f"{who} {each.percentile(50):,.0f}/{each.percentile(99):,.0f} ms" for who, each in figures.items()
        )
        print(f"  {shown}  load {load_average()}", flush=True)
        return figures

    def _ours(self, folder: Path, *, with_sink: bool) -> _Figures:
        committed: list[tuple[float, BatchReport]] = []
        consumer = self._backlog.consumer(folder, consume_message_batch_max_size=32)
        listener = emit_body_size if with_sink else emit_nothing
        consumer.register_message_listener(listener, orderly=True, output_schema="size bigint")
        consumer.register_batch_listener(lambda report: committed.append((time.time(), report)))
        query = consumer.start(
            self._backlog.spark,
            sink=DeltaSink(folder / "sink") if with_sink else None,
            checkpoint=str(folder / "checkpoint"),
            trigger=_TRIGGER,
        )
        with fed(self._backlog, per_second=_PER_SECOND, each=_EACH):
            stages = self._run(query, committed)
        return _Figures(self._of_messages(committed), stages)

    def _of_messages(self, committed: list[tuple[float, BatchReport]]) -> Latencies:
        """Return the latencies of the messages that count, from the batches that contain them."""
        stored = self._stored_ms()
        counts_from_ms = (committed[0][0] + _WARM_UP_S) * 1000
        latencies = []
        for at_s, report in committed:
            for ack in report.acks:
                times = stored[ack.queue.queue_id][ack.start : ack.state.next_offset]
                latencies.append(at_s * 1000 - times[times > counts_from_ms])
        return np.concatenate(latencies)

    def _stored_ms(self) -> dict[int, npt.NDArray[np.float64]]:
        """Store times of all messages by queue, at the index of their offset."""
        rows = (
            self._backlog.spark.read.format("rocketmq")
            .options(nameServers=self._backlog.name_servers, topic=_TOPIC)
            .load()
            .select("queueId", "queueOffset", sf.unix_millis("storeTimestamp").alias("stored"))
            .toPandas()
            .sort_values(["queueId", "queueOffset"])
        )
        ids, stored = rows["queueId"].to_numpy(), rows["stored"].to_numpy(dtype=np.float64)
        return {queue_id: stored[ids == queue_id] for queue_id in range(QUEUES)}

    def _rate(self, folder: Path, *, with_sink: bool) -> _Figures:
        sink = _RateSink(folder / "sink") if with_sink else _RateTimes()
        query = (
            _rate_rows(self._backlog.spark)
            .writeStream.foreachBatch(sink.take)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(**_TRIGGER)
            .start()
        )
        stages = self._run(query, sink.committed)
        stored_s, at_s = sink.times()
        counted = stored_s > sink.committed[0][0] + _WARM_UP_S
        return _Figures((at_s[counted] - stored_s[counted]) * 1000, stages)

    def _run(self, query: StreamingQuery, committed: Sequence[tuple[float, object]]) -> dict[str, float]:
        """Let the query run until enough was committed; milliseconds by stage of its micro-batches,
        the medians.

        Raises:
            RuntimeError: If the query fails.
        """
        try:
            wait_until(lambda: query.exception() is not None or self._is_over(committed), _TIMEOUT_S)
            if query.exception() is not None:
                raise RuntimeError(f"The query failed: {query.exception()}")
            steady = [each.durationMs for each in query.recentProgress[_FIRST_BATCHES:]]
        finally:
            query.stop()
        return {stage: median(each.get(stage, 0) for each in steady) for stage in _STAGES}

    def _is_over(self, committed: Sequence[tuple[float, object]]) -> bool:
        return bool(committed) and time.time() > committed[0][0] + self._seconds


def _rate_rows(spark: SparkSession) -> DataFrame:
    rows = (
        spark.readStream.format("rate")
        .options(rowsPerSecond=_PER_SECOND, numPartitions=QUEUES)
        .load()
        .select(
            *(sf.lit(value).alias(name) for name, value in queue_columns(_RATE_QUEUE).items()),
            sf.col("value").alias(QUEUE_OFFSET),
            sf.col("timestamp").alias("stored"),
            sf.lit(None).cast("string").alias("ack"),
        )
    )
    assert rows.schema.fieldNames()[:-1] == from_arrow_schema(_RATE_SCHEMA).fieldNames()
    return rows


class _RateSink:
    """Writes the rate source's rows into a table in the same way as a consumer's."""

    def __init__(self, path: Path) -> None:
        self._sink = DeltaSink(path)
        self._sink.prepare(_RATE_SCHEMA)
        self._table = path
        self._end = 0
        self.committed: list[tuple[float, int]] = []
        """Times at which rows were committed, and the rows' ends."""

    def take(self, batch: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark's signature
        """Write one micro-batch."""
        sink_batch: SinkBatch = self._sink.begin(_RATE_GROUP, {_RATE_QUEUE: 0})
        writer = sink_batch.task_writer()
        whole = Group(tuple(run_job(batch, writer).parts))
        self._end += whole.emitted
        sink_batch.commit(tuple(map(writer.written, whole.written)), {_RATE_QUEUE: self._end})
        self.committed.append((time.time(), self._end))

    def times(self) -> tuple[Latencies, Latencies]:
        """Return the rows' own times and their times of commit, in seconds."""
        rows = DeltaTable(self._table).to_pyarrow_table(columns=["queueOffset", "stored"])
        stored_s = rows.column("stored").cast(pa.int64()).to_numpy() / 1e6
        moments, ends = (np.array(column) for column in zip(*self.committed, strict=True))
        return stored_s, moments[np.searchsorted(ends, rows.column("queueOffset").to_numpy(), side="right")]


class _RateTimes:
    """Takes only the times of the rate source's rows."""

    def __init__(self) -> None:
        self.committed: list[tuple[float, Latencies]] = []

    def take(self, batch: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark's signature
        """Evaluate one micro-batch."""
        stored = batch.select("stored").toArrow().column(0).cast(pa.int64()).to_numpy() / 1e6
        self.committed.append((time.time(), stored))

    def times(self) -> tuple[Latencies, Latencies]:
        """Return the times in the form of :meth:`_RateSink.times`."""
        stored_s = np.concatenate([stored for _, stored in self.committed])
        return stored_s, np.concatenate([np.full(len(stored), at_s) for at_s, stored in self.committed])
