"""The source and consumers beside Spark's source for Kafka: one session, the same columns, in turns."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from bench.cluster import QUEUES, real_cluster
from bench.kafka import fetch_spark_kafka_jars, kafka_broker
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES, bench_session
from bench.streams import await_end
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.format import register
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink

_TOPIC: Final = "side"
_BODY_BYTES: Final = 1024
_SEVEN: Final = "keys,body,topic,brokerName,queueId,queueOffset,storeTimestamp"
_LISTENER_BATCH: Final = 1024
_BATCH_READ, _MAPPED, _STREAM, _TO_DELTA = "batch read", "mapInArrow", "stream", "stream to Delta"
_ROWS, _ARROW = "row listener", "ArrowListener"
_TARGETS: Final = {_BATCH_READ: 2.5, _MAPPED: 2.0, _STREAM: 2.5, _TO_DELTA: 2.0, _ROWS: 1.5, _ARROW: 3.0}

_METHOD: Final = """\
{messages:,} messages of {size:,} bytes with a key, in {queues} queues of one RocketMQ broker and in {queues} partitions of one Kafka 3.9.1 broker (KRaft, 1 GiB
heap each); all of it in the page cache. One session on `local[{cores}]` reads both in turns, in {rounds} rounds after one for warming up. Rows a second, ratios round by round.

* *{batch}*: `spark.read` of the seven columns that Kafka's source has, or their counterparts (`includeColumns`), into `noop`. *{mapped}*: five of them
  through a `mapInArrow` that returns its input. *{stream}*, *{delta}*: the seven as a stream of one micro-batch (`availableNow`) into `noop` or a new Delta table.
* *{rows}*, *{arrow}*: an orderly `PushConsumer` with `DeltaSink`, exactly once, that writes key and body as text, {listener_batch:,} messages a call; beside
  Kafka's plain stream of key and value as text into a Delta table."""


def run(*, messages: int = 400_000, rounds: int = 5) -> Result:
    """Measure ``rounds`` rounds."""
    before = load_average()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        real_cluster() as cluster,
        kafka_broker(Path(folder) / "kafka", partitions=QUEUES) as kafka,
        bench_session(Path(folder), with_delta=True, jars=fetch_spark_kafka_jars()) as spark,
    ):
        cluster.create_topic(_TOPIC, QUEUES)
        sides = _Sides(spark, cluster.name_servers, kafka, Path(folder), messages)
        sides.fill()
        figures = sides.run(rounds)
    ratios = {work: Spread.of(theirs / ours for ours, theirs in seconds) for work, seconds in figures.items()}
    rates = [
        (f"{work}: {who}", *Spread.of(messages / each[place] for each in seconds).cells(",.0f"))
        for work, seconds in figures.items()
        for place, who in enumerate(("ours", "Kafka"))
    ]
    return Result(
        name="beside_kafka",
        title="Beside Spark's source for Kafka",
        method=_METHOD.format(
            messages=messages,
            size=_BODY_BYTES,
            queues=QUEUES,
            cores=CORES,
            rounds=rounds,
            batch=_BATCH_READ,
            mapped=_MAPPED,
            stream=_STREAM,
            delta=_TO_DELTA,
            rows=_ROWS,
            arrow=_ARROW,
            listener_batch=_LISTENER_BATCH,
        ),
        columns=("rows/s", "min", "median", "max"),
        rows=tuple(rates),
        targets=tuple(
            Target(what=f"{work} / Kafka", seen=ratio, bound=_TARGETS[work], at_most=False)
            for work, ratio in ratios.items()
        ),
        load=(before, load_average()),
    )


class _Sides:
    """Both sides' work on the same messages."""

    def __init__(self, spark: SparkSession, name_servers: str, kafka: str, work: Path, messages: int) -> None:
        self._spark = spark
        self._ours = {"nameServers": name_servers, "topic": _TOPIC, "startingOffsets": "earliest"}
        self._theirs = {
            "kafka.bootstrap.servers": kafka,
            "subscribe": _TOPIC,
            "startingOffsets": "earliest",
        }
        self._work = work
        self._messages = messages
        self._numbers = itertools.count()
        register(spark)

    def fill(self) -> None:
        """Send the same messages to both brokers."""
        rows = self._spark.range(0, self._messages, 1, QUEUES)
        number = sf.col("id").cast("string")
        text = sf.rpad(number, _BODY_BYTES, "x")
        kafka = {name: value for name, value in self._theirs.items() if name.startswith("kafka.")}
        rows.select(number.alias("key"), text.alias("value")).write.format("kafka").options(
            **kafka, topic=_TOPIC
        ).save()
        rows.select(text.cast("binary").alias("body"), number.alias("keys")).write.format("rocketmq").options(
            nameServers=self._ours["nameServers"], topic=_TOPIC
        ).mode("append").save()
        counts = self._read("kafka").count(), self._read("rocketmq").count()
        if counts != (self._messages, self._messages):
            raise RuntimeError(f"The topics have {counts} messages instead of {self._messages:,} each.")

    def run(self, rounds: int) -> dict[str, list[tuple[float, float]]]:
        """Return the seconds of both sides by work, round by round."""
        figures: dict[str, list[tuple[float, float]]] = {}
        for work, (ours, theirs) in self._works().items():
            ours(), theirs()
            for _ in range(rounds):
                figures.setdefault(work, []).append((ours(), theirs()))
                print(
                    f"  {work}: {_shown(self._messages, figures[work][-1])}  load {load_average()}",
                    flush=True,
                )
        return figures

    def _works(self) -> dict[str, tuple[Callable[[], float], Callable[[], float]]]:
        of_kafka = sf.col("key").cast("string").alias("k"), sf.col("value").cast("string").alias("v")

        def texts_to_delta() -> float:
            return self._stream(self._read("kafka", is_stream=True).select(*of_kafka), "delta")

        return {
            _BATCH_READ: (
                lambda: _to_noop(self._read("rocketmq", includeColumns=_SEVEN)),
                lambda: _to_noop(self._read("kafka")),
            ),
            _MAPPED: (
                lambda: _mapped(self._read("rocketmq", includeColumns=_SEVEN), _FIVE_OF_OURS),
                lambda: _mapped(self._read("kafka"), _FIVE_OF_KAFKA),
            ),
            _STREAM: (
                lambda: self._stream(self._read("rocketmq", is_stream=True, includeColumns=_SEVEN), "noop"),
                lambda: self._stream(self._read("kafka", is_stream=True), "noop"),
            ),
            _TO_DELTA: (
                lambda: self._stream(self._read("rocketmq", is_stream=True, includeColumns=_SEVEN), "delta"),
                lambda: self._stream(self._read("kafka", is_stream=True), "delta"),
            ),
            _ROWS: (lambda: self._consume(_by_rows), texts_to_delta),
            _ARROW: (lambda: self._consume(ArrowListener(_by_columns)), texts_to_delta),
        }

    def _read(self, source: str, *, is_stream: bool = False, **options: str) -> DataFrame:
        reader = self._spark.readStream if is_stream else self._spark.read
        given = self._ours if source == "rocketmq" else self._theirs
        return reader.format(source).options(**given, **options).load()

    def _stream(self, rows: DataFrame, sink: str) -> float:
        """Return the seconds of the micro-batches of a stream that drains its topic."""
        folder = self._folder()
        writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        writer = writer.trigger(availableNow=True).format(sink)
        return _seconds_of(writer.start(None if sink == "noop" else str(folder / "table")))

    def _consume(self, listener: Callable[..., object] | ArrowListener) -> float:
        """Return the seconds of the micro-batches of a consumer that drains the topic into a Delta table.

        Raises:
            RuntimeError: If a row is missing or too many.
        """
        folder = self._folder()
        consumer = PushConsumer(
            consumer_group=folder.name,
            name_servers=self._ours["nameServers"],
            offset_store=DeltaOffsetStore(folder / "offsets"),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consume_message_batch_max_size=_LISTENER_BATCH,
            max_offsets_per_trigger=self._messages * 2,
        )
        consumer.subscribe(_TOPIC)
        consumer.register_message_listener(listener, output_schema="k string, v string")
        query = consumer.start(
            self._spark,
            sink=DeltaSink(folder / "table"),
            checkpoint=str(folder / "checkpoint"),
            trigger={"availableNow": True},
        )
        seconds = _seconds_of(query)
        rows = DeltaTable(folder / "table").to_pyarrow_dataset().count_rows()
        if rows != self._messages:
            raise RuntimeError(f"{rows:,} rows were written of {self._messages:,} messages.")
        return seconds

    def _folder(self) -> Path:
        return self._work / f"run-{next(self._numbers)}"


_FIVE_OF_OURS: Final = ("topic", "queueId", "queueOffset", "body", "storeTimestamp")
_FIVE_OF_KAFKA: Final = ("topic", "partition", "offset", "value", "timestamp")


def _to_noop(rows: DataFrame) -> float:
    began_s = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began_s


def _mapped(rows: DataFrame, columns: Sequence[str]) -> float:
    chosen = rows.select(*columns)
    return _to_noop(chosen.mapInArrow(_unchanged, chosen.schema))


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _seconds_of(query: StreamingQuery) -> float:
    await_end(query)
    return sum(each.durationMs.get("triggerExecution", 0) for each in query.recentProgress) / 1000


def _by_rows(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        context.emit(k=message.keys, v=message.body.decode())
    return ConsumeOrderlyStatus.SUCCESS


def _by_columns(
    batch: pa.RecordBatch,
    context: ConsumeOrderlyContext,  # noqa: ARG001 - a listener's signature
) -> tuple[ConsumeOrderlyStatus, pa.RecordBatch]:
    columns = {"queueOffset": batch["queueOffset"], "k": batch["keys"], "v": batch["body"].cast("string")}
    return ConsumeOrderlyStatus.SUCCESS, pa.RecordBatch.from_pydict(columns)


def _shown(messages: int, seconds: tuple[float, float]) -> str:
    ours, theirs = seconds
    return f"ours {messages / ours:,.0f}, Kafka {messages / theirs:,.0f} rows/s, ratio {theirs / ours:.2f}"
