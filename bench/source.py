"""Reads of a real broker into the noop sink, in a batch and as a stream,
beside their ceilings and Java's pull consumer.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.cluster import QUEUES, fill, real_cluster
from bench.measure import Result, Spread, Target, load_average
from bench.prebuilt_source import PrebuiltSource
from bench.pull_peers import LitePull
from bench.raw_pull import pull_ranges
from bench.session import CORES, bench_session
from bench.streams import drain
from pyspark_rocketmq.format import register
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.readers import RocketMQBatchReader
from pyspark_rocketmq.wire.properties import KEYS, TAGS
from tests.helpers.cluster import ClusterUnderTest

_BODY_SIZES = {"1 KiB": 1024, "100 B": 100}
_CEILING_TARGET = 0.9
_THREE_TARGET = 1.3
_JAVA_TARGET = 2.0
_THREE = "queueOffset,tags,body"
_TRIGGERS = 5
"""Micro-batches of a stream's run; the first does not count."""
_METHOD = """\
One broker and {messages:,} messages in {queues} queues, per body size, sent in batches with KEYS and TAGS; all of it is
in the page cache. Broker, Spark and Python workers share the machine. Each of {rounds} rounds, after one for warming
up, runs in turn:

* *prebuilt*: the ceiling of the platform. A Python data source hands Spark the same number of rows as RecordBatches
  that are already there (real messages of the topic, decoded before; as large as the source makes them), into `noop`.
* *raw pull*: the ceiling of the broker. A bare socket loop pulls the same ranges, {cores} queues at a time, each by a
  connection of its own with {depth} pulls in flight as the source has; it splits frames, parses headers, decodes
  no message.
* *source*: `spark.read.format("rocketmq")` into `noop`, with default options on `local[{cores}]`.
* *three columns*: the same with `includeColumns={three}`.
* *DefaultLitePullConsumer*: Java's client, `pullBatchSize` 32, a new group in a new JVM (1 GiB heap); from its first message to its
  last.
* *stream*, *prebuilt stream*: the same two as `readStream` into `noop`, the topic in {triggers} micro-batches; rows of a micro-batch
  by the median of `triggerExecution` without the first one.

Ratios are taken round by round; the smaller ceiling is the lesser of *prebuilt* and *raw pull*. The source does what both of them do on
the same cores: *one after the other* is the rate at which that would be done by doing the one and then the other,
1 / (1 / prebuilt + 1 / raw pull)."""

_numbers = itertools.count()


def run(*, messages: int = 400_000, rounds: int = 5) -> Result:
    """Measure ``rounds`` rounds per body size."""
    before = load_average()
    rows: list[tuple[str, ...]] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, real_cluster() as cluster:
        work = Path(folder)
        for size in _BODY_SIZES.values():
            topic = cluster.create_topic(f"bench-{size}", QUEUES)
            fill(
                cluster.name_servers,
                topic,
                queues=QUEUES,
                per_queue=messages // QUEUES,
                message=partial(message_of, topic, bodies_of(size)),
            )
        with bench_session(work) as spark:
            for name, size in _BODY_SIZES.items():
                contest = Contest.prepare(spark, cluster, f"bench-{size}", work / f"{size}.arrow")
                figures = contest.run(rounds)
                rows += _rows(name, figures)
                targets += _targets(name, figures)
    return Result(
        name="source",
        title="Source",
        method=_METHOD.format(
            messages=messages,
            queues=QUEUES,
            rounds=rounds,
            cores=CORES,
            three=_THREE,
            triggers=_TRIGGERS,
            depth=_default_options("t", "h:1").pulls_in_flight,
        ),
        columns=("what", "min", "median", "max"),
        rows=tuple(rows),
        targets=tuple(targets),
        load=(before, load_average()),
    )


@dataclass(frozen=True, slots=True)
class Round:
    """Rows per second of each contestant in one round."""

    prebuilt: float
    raw_pull: float
    source: float
    three_columns: float
    java: float
    prebuilt_stream: float
    stream: float

    @property
    def ratio(self) -> float:
        """Ratio of the source to the smaller ceiling."""
        return self.source / min(self.prebuilt, self.raw_pull)

    @property
    def of_both(self) -> float:
        """Ratio of the source to both ceilings in sequence."""
        return self.source * (1 / self.prebuilt + 1 / self.raw_pull)


@dataclass(frozen=True, slots=True)
class Contest:
    """The three contestants on one topic."""

    spark: SparkSession
    name_servers: str
    topic: str
    partitions: tuple[QueuePartition, ...]
    arrow_file: Path
    java: LitePull

    @classmethod
    def prepare(cls, spark: SparkSession, cluster: ClusterUnderTest, topic: str, arrow_file: Path) -> Contest:
        """Take the ranges to read, and one batch as the source yields it for the prebuilt rows."""
        register(spark)
        spark.dataSource.register(PrebuiltSource)
        partitions = first_batch(topic, cluster.name_servers, arrow_file)
        java = LitePull(arrow_file.parent)
        return cls(spark, cluster.name_servers, topic, partitions, arrow_file, java)

    @property
    def messages(self) -> int:
        """All messages of the topic."""
        return sum(each.planned.count for each in self.partitions)

    def run(self, rounds: int) -> list[Round]:
        """Run the rounds after one for warming up."""
        self._round()
        figures = []
        for number in range(rounds):
            figures.append(self._round())
            latest = figures[-1]
            print(
                f"  {self.topic} round {number + 1}: prebuilt {latest.prebuilt:,.0f}  raw pull "
                f"{latest.raw_pull:,.0f}  source {latest.source:,.0f}  three columns "
                f"{latest.three_columns:,.0f}  java {latest.java:,.0f}  prebuilt stream "
                f"{latest.prebuilt_stream:,.0f}  stream {latest.stream:,.0f} rows/s  ratio "
                f"{latest.ratio:.2f}  load {load_average()}",
                flush=True,
            )
        return figures

    def _round(self) -> Round:
        return Round(
            prebuilt=self.messages / _seconds_to_noop(self.prebuilt_rows()),
            raw_pull=self._raw_pull(),
            source=self.messages / _seconds_to_noop(self.source_rows()),
            three_columns=self.messages / _seconds_to_noop(self.source_rows(includeColumns=_THREE)),
            java=self._java(),
            prebuilt_stream=self._stream(
                self.spark.readStream.format("prebuilt")
                .options(
                    file=str(self.arrow_file),
                    rows=self.messages // _TRIGGERS,
                    partitions=len(self.partitions),
                    batches=_TRIGGERS,
                )
                .load()
            ),
            stream=self._stream(
                self.spark.readStream.format("rocketmq")
                .options(
                    **self._where, startingOffsets="earliest", maxOffsetsPerTrigger=self.messages // _TRIGGERS
                )
                .load()
            ),
        )

    @property
    def _where(self) -> dict[str, str]:
        return {"nameServers": self.name_servers, "topic": self.topic}

    def _java(self) -> float:
        read = self.java.read(self.name_servers, self.topic, self.messages)
        return read.messages / read.seconds_after_first

    def _stream(self, rows: DataFrame) -> float:
        checkpoint = self.arrow_file.parent / f"checkpoint-{self.topic}-{next(_numbers)}"
        steady = drain(
            lambda: (
                rows.writeStream.format("noop")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            ),
            batches=_TRIGGERS,
            skipped=1,
        )
        return self.messages / _TRIGGERS * 1000 / steady["triggerExecution"]

    def prebuilt_rows(self) -> DataFrame:
        """Return as many rows as the topic has, from an existing batch."""
        return (
            self.spark.read.format("prebuilt")
            .options(file=str(self.arrow_file), rows=self.messages, partitions=len(self.partitions))
            .load()
        )

    def source_rows(self, **options: str) -> DataFrame:
        """The topic."""
        return self.spark.read.format("rocketmq").options(**self._where, **options).load()

    def _raw_pull(self) -> float:
        first = self.partitions[0]
        ranges = [
            (each.planned.queue.queue_id, each.planned.start, each.planned.end) for each in self.partitions
        ]
        pulled, seconds = pull_ranges(
            first.address,
            self.topic,
            ranges,
            lanes=CORES,
            depth=first.settings.pulls_in_flight,
            messages_per_pull=first.settings.pull_batch_size,
        )
        if pulled != self.messages:
            raise RuntimeError(f"The raw pull got {pulled} messages instead of {self.messages}.")
        return pulled / seconds


def _seconds_to_noop(rows: DataFrame) -> float:
    started_s = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started_s


def first_batch(topic: str, name_servers: str, arrow_file: Path) -> tuple[QueuePartition, ...]:
    """Write one batch as the source yields it; return the partitions that the source would read."""
    reader = RocketMQBatchReader(_default_options(topic, name_servers))
    partitions = tuple(each for each in reader.partitions() if isinstance(each, QueuePartition))
    batch = next(reader.read(partitions[0]))
    with pa.OSFile(str(arrow_file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
    return partitions


def _default_options(topic: str, name_servers: str) -> ReadOptions:
    return ReadOptions.parse({"topic": topic, "nameServers": name_servers})


def bodies_of(size: int) -> list[bytes]:
    source = random.Random(7)
    return [source.randbytes(size) for _ in range(64)]


def message_of(topic: str, bodies: list[bytes], number: int) -> Message:
    properties = {KEYS: f"key-{number:08d}", TAGS: f"tag-{number % 5}"}
    return Message(topic=topic, body=bodies[number % len(bodies)], properties=properties)


def _rows(name: str, figures: list[Round]) -> list[tuple[str, ...]]:
    columns = {
        "prebuilt, rows/s": [each.prebuilt for each in figures],
        "raw pull, rows/s": [each.raw_pull for each in figures],
        "source, rows/s": [each.source for each in figures],
        "three columns, rows/s": [each.three_columns for each in figures],
        "DefaultLitePullConsumer, messages/s": [each.java for each in figures],
        "prebuilt stream, rows/s": [each.prebuilt_stream for each in figures],
        "stream, rows/s": [each.stream for each in figures],
    }
    rows = [(f"{name}: {what}", *Spread.of(values).cells(",.0f")) for what, values in columns.items()]
    of_both = Spread.of(each.of_both for each in figures)
    return [*rows, (f"{name}: source / both ceilings one after the other", *of_both.cells(".2f"))]


def _targets(name: str, figures: list[Round]) -> list[Target]:
    ratios = (
        ("source / smaller ceiling", _CEILING_TARGET, [each.ratio for each in figures]),
        ("three columns / source", _THREE_TARGET, [each.three_columns / each.source for each in figures]),
        ("source / DefaultLitePullConsumer", _JAVA_TARGET, [each.source / each.java for each in figures]),
        (
            "stream / prebuilt stream",
            _CEILING_TARGET,
            [each.stream / each.prebuilt_stream for each in figures],
        ),
    )
    return [
        Target(what=f"{what}, {name}", seen=Spread.of(values), bound=bound, at_most=False)
        for what, bound, values in ratios
    ]
