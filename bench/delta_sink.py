"""A micro-batch into a Delta sink and its offsets,
next to the same rows into Delta tables with no guarantee at all.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bench.measure import Result, Spread, Stopwatch, Target, Timed, load_average
from bench.session import CORES, bench_session
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.batch import BatchRunner
from pyspark_rocketmq.consumer.engine.arrivals import Source
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.listeners.row_buffer import Emitted
from pyspark_rocketmq.listeners.row_validation import RowColumns
from pyspark_rocketmq.model import QUEUE_COLUMNS, MessageQueue, QueueState
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS

GROUP = "bench"
_QUEUES = 8
_ARROW_ROWS = 16_384
"""Number of rows that the engines collect for one Arrow batch."""
_WARM_UP = 3
_OURS, _BARE, _SPARK = "ours", "delta-rs", 'format("delta")'
_BY_SPARK, _SPARK_ONCE = "ours, by Spark's writer", 'format("delta") with txnAppId'
_METHOD = """\
Each contestant is given the same function, which makes the rows of a micro-batch in Python workers, {small:,} or {large:,} rows of {queues} queues in {cores} tasks (position, an order id, a step, an
amount and a text of 64 characters), as an engine does; timed from there until they are committed. Contestants take turns, each with a table of its own: {small_rounds} rounds of the small
batch after {warm_up} for warming up, then {large_rounds} of the large one after one.

* *ours*: `BatchRunner` as in a query: watermarks looked up, files written by the tasks, one commit of files and watermarks, one of the
  offsets of {queues} queues. Exactly once.
* *delta-rs*: `write_deltalake(path, batch.toArrow(), mode="append")`, which knows nothing of a batch that runs again.
* *format("delta")*: `batch.write.format("delta").mode("append").save(path)`, with the Delta settings of `conf/spark-defaults.conf`.
* *ours, by Spark's writer* (small batches only): as ours, into a table with a CHECK constraint, which delta-rs must not write.
* *format("delta") with txnAppId* (small batches only): as *format("delta")*, with the options `txnAppId` and `txnVersion`, by which a batch that runs again
  is known and which ours by Spark's writer needs, too. To look one id up, Delta makes the whole state of the table again: one more job of three stages.

*Data* and *offsets* are the two commits of ours; the rest is its job. Ratios are taken round by round."""

ROWS = pa.schema(
    [
        *POSITION_FIELDS,
        ("order_id", pa.string()),
        ("step", pa.string()),
        ("amount", pa.float64()),
        ("note", pa.string()),
    ]
)
_SPARK_ROWS = from_arrow_schema(ROWS)


def run(*, rows: int = 1_000_000, rounds: int = 30, large_rounds: int = 5, small_rows: int = 100) -> Result:
    """Measure ``rounds`` batches of ``small_rows`` and ``large_rounds`` of ``rows`` rows."""
    before = load_average()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        bench_session(Path(folder), with_delta=True) as spark,
    ):
        small = _Contest(spark, Path(folder) / "small", small_rows, has_by_spark=True).rounds(
            rounds, warm_up=_WARM_UP
        )
        large = _Contest(spark, Path(folder) / "large", rows).rounds(large_rounds, warm_up=1)
    return Result(
        name="delta_sink",
        title="Delta sink",
        method=_METHOD.format(
            small=small_rows,
            large=rows,
            queues=_QUEUES,
            cores=CORES,
            small_rounds=rounds,
            large_rounds=large_rounds,
            warm_up=_WARM_UP,
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            *(
                (f"{small_rows} rows, {name}, ms", *_spread(small, name, 1000).cells(".1f"))
                for name in small[0]
            ),
            *((f"{rows:,} rows, {name}, s", *_spread(large, name).cells(".2f")) for name in large[0]),
        ),
        targets=(
            _ratio(small, f"{small_rows} rows: ours / delta-rs", _OURS, _BARE, at_most=1.3),
            _ratio(small, f'{small_rows} rows: ours / format("delta")', _OURS, _SPARK, at_most=0.5),
            # For rates, the other way round.
            _ratio(large, f'{rows:,} rows: rate of ours / of format("delta")', _SPARK, _OURS, at_least=0.9),
        ),
        load=(before, load_average()),
    )


def _spread(figures: list[Mapping[str, float]], name: str, factor: float = 1.0) -> Spread:
    return Spread.of(figure[name] * factor for figure in figures)


def _ratio(
    figures: list[Mapping[str, float]],
    what: str,
    one: str,
    other: str,
    *,
    at_most: float = 0.0,
    at_least: float = 0.0,
) -> Target:
    return Target(
        what=what,
        seen=Spread.of(figure[one] / figure[other] for figure in figures),
        bound=at_most or at_least,
        at_most=bool(at_most),
    )


class _Contest:
    """All contestants with batches of one size."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, *, has_by_spark: bool = False) -> None:
        self._rows = rows
        self._has_by_spark = has_by_spark
        self._spark = spark
        self._folder = folder
        self._ours = Ours(spark, folder / "ours", folder / "offsets")
        constrained = folder / "constrained"
        spark.sql(f"CREATE TABLE delta.`{constrained}` ({_SPARK_ROWS.toDDL()}) USING delta")
        spark.sql(f"ALTER TABLE delta.`{constrained}` ADD CONSTRAINT known CHECK (step != 'unknown')")
        self._by_spark = Ours(spark, constrained, folder / "constrained offsets")

    def rounds(self, count: int, *, warm_up: int) -> list[Mapping[str, float]]:
        """Seconds by name, for each round."""
        found = [self._round(number) for number in range(warm_up + count)]
        return found[warm_up:]

    def _round(self, number: int) -> Mapping[str, float]:
        batch = Batch(number, self._rows)
        bare, spark = str(self._folder / "bare"), str(self._folder / "spark")
        contestants: dict[str, Callable[[], object]] = {
            _OURS: lambda: self._ours.commit(batch),
            _BARE: lambda: write_deltalake(bare, self._frame(batch).toArrow(), mode="append"),
            _SPARK: lambda: self._frame(batch).write.format("delta").mode("append").save(spark),
        }
        if self._has_by_spark:
            contestants[_BY_SPARK] = lambda: self._by_spark.commit(batch)
            contestants[_SPARK_ONCE] = lambda: (
                self._frame(batch)
                .write.format("delta")
                .mode("append")
                .options(txnAppId=GROUP, txnVersion=number + 1)
                .save(str(self._folder / "spark once"))
            )
        # The first contestant of a round is the last of the next one.
        order = list(contestants)[:: 1 if number % 2 else -1]
        seconds = {name: _seconds(contestants[name]) for name in order}
        figures = {name: seconds[name] for name in contestants} | self._ours.parts()
        shown = "  ".join(f"{name} {took_s * 1000:,.0f} ms" for name, took_s in figures.items())
        print(f"  {self._rows:,} rows: {shown}  load {load_average()}", flush=True)
        return figures

    def _frame(self, batch: Batch) -> DataFrame:
        return _tasks(self._spark).mapInArrow(_Rows(batch), _SPARK_ROWS)


class Ours:
    """A committer with its own sink and store."""

    def __init__(self, spark: SparkSession, table: Path, offsets: Path, *, compaction: bool = True) -> None:
        self._spark = spark
        self._sink, self._store = DeltaSink(table, compaction=compaction), DeltaOffsetStore(offsets)
        self._sink.prepare(ROWS)
        claimed = self._store.claim(GROUP, "bench", dict.fromkeys(_all_queues(), 0))
        self._epochs = {queue: row.epoch for queue, row in claimed.items()}
        self._watch = Stopwatch()

    def commit(self, batch: Batch) -> None:
        """Make the rows, commit them and the offsets."""
        self._watch.seconds.clear()
        committer = BatchRunner(
            consumer_group=GROUP,
            store=Timed(self._store, self._watch, commit="offsets"),
            sink=_TimedSink(self._sink, self._watch),
            query_id=lambda: "bench",
            listeners=[],
            engine=_Engine(batch, self._epochs),
        )
        committer(_tasks(self._spark), batch.number)

    def timed_commit(self, batch: Batch) -> dict[str, float]:
        """Seconds of the whole batch, and of its data's commit."""
        batch_s = _seconds(lambda: self.commit(batch))
        return {"batch": batch_s, "data": self._watch.seconds["data"]}

    def parts(self) -> dict[str, float]:
        """Seconds of the last batch's two commits."""
        return {f"{_OURS}: {name}": took_s for name, took_s in sorted(self._watch.seconds.items())}


class _TimedSink:
    """Measures the time of a sink's commits."""

    def __init__(self, sink: DeltaSink, watch: Stopwatch) -> None:
        self._sink = sink
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def begin(self, *arguments: Any) -> Any:
        return Timed(self._sink.begin(*arguments), self._watch, commit="data")


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    rows: int

    def range_of(self, queue: int) -> tuple[int, int]:
        """Queue offsets, the end exclusive."""
        of_one, more = divmod(self.rows, _QUEUES)
        count = of_one + (queue < more)
        return self.number * count, (self.number + 1) * count


@dataclass(frozen=True, slots=True)
class _Rows:
    """Makes a task's rows of a batch, regardless of the task's input."""

    batch: Batch

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        deque(batches, maxlen=0)
        for queue in _queues_of_task():
            yield from _made_of(queue, self.batch)


@dataclass(frozen=True, slots=True)
class _Engine:
    """Returns the same rows as an engine, with the acks of their queues."""

    batch: Batch
    epochs: Mapping[MessageQueue, int]

    def __call__(
        self,
        source: Source,
        instructions: RangeInstructions = NO_INSTRUCTIONS,  # noqa: ARG002 - an engine's
    ) -> Iterator[Consumed]:
        deque(source.arrivals(), maxlen=0)
        names = ROWS.names[len(QUEUE_COLUMNS) :]
        columns = RowColumns(StructType([_SPARK_ROWS[name] for name in names]))
        for queue in _queues_of_task():
            rows: list[Emitted] = [made.select(names) for made in _made_of(queue, self.batch)]
            yield Consumed(
                rows, _ack(queue, self.epochs[queue], *self.batch.range_of(queue.queue_id)), columns
            )


def _queues_of_task() -> list[MessageQueue]:
    task = TaskContext.get()
    assert task is not None
    return _all_queues()[task.partitionId() :: CORES]


def _made_of(queue: MessageQueue, batch: Batch) -> Iterator[pa.RecordBatch]:
    start, end = batch.range_of(queue.queue_id)
    for first in range(start, end, _ARROW_ROWS):
        yield made(queue, np.arange(first, min(first + _ARROW_ROWS, end)))


def _tasks(spark: SparkSession) -> DataFrame:
    """Return one row per task, without the ticket of a range."""
    return spark.range(0, CORES, 1, CORES).select(sf.lit(None).cast("binary"))


def made(queue: MessageQueue, offsets: np.ndarray) -> pa.RecordBatch:
    """Make rows of one queue at these offsets."""
    count = len(offsets)
    ids = pa.array(offsets * 7_919 % 1_000_003)
    text = ids.cast(pa.string())
    columns = [
        pa.repeat(pa.scalar(queue.topic), count),
        pa.repeat(pa.scalar(queue.broker_name), count),
        pa.repeat(pa.scalar(queue.queue_id, pa.int32()), count),
        pa.array(offsets),
        pa.compute.binary_join_element_wise("order", text, "-"),
        pa.array(np.array(["created", "paid", "packed", "shipped"], dtype=object)[offsets % 4], pa.string()),
        pa.array((offsets % 10_000) / 100),
        pa.compute.utf8_lpad(text, width=64, padding="."),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def _ack(queue: MessageQueue, epoch: int, start: int, end: int) -> QueueAck:
    return QueueAck(
        queue=queue,
        start=start,
        state=QueueState(end, epoch),
        consumed=end - start,
        failed=0,
        finished="EXHAUSTED",
    )


def _all_queues() -> list[MessageQueue]:
    return [MessageQueue("orders", "broker-a", number) for number in range(_QUEUES)]


def _seconds(action: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    action()
    return time.perf_counter() - started_s
