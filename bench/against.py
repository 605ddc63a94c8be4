"""``python -m bench.against OTHER``: this work tree beside another one, on one real broker,
as ratios of their speed.

Each tree has a Spark session of its own that stays; they take turns, and the order changes with each round.
What is run is described once, here, and both trees run it with their own ``bench`` and their own connector:
``OTHER`` must have the parts that are imported below.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import pyspark_rocketmq
from bench import latency, source
from bench.cluster import QUEUES, fill, real_cluster
from bench.consume import do_nothing
from bench.measure import load_average
from bench.prebuilt_source import PrebuiltSource
from bench.session import CORES, bench_session
from bench.streams import Backlog, drain
from pyspark_rocketmq import ConsumeOrderlyContext, by_sharding_key, register
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt, OrderlyEngineKind
from tests.helpers.cluster import ClusterUnderTest

WANTED: Final = 0.97
_BATCHES: Final = 5
_WITHOUT_TRIGGER: Final = ("4.0", "4.1")
"""Spark versions that pass no trigger to a Python source, so that a plain stream has one micro-batch."""
_LIVE_TOPIC: Final = "orders"
_BODY_BYTES: Final = {"1KiB": 1024, "100B": 100}
_ANSWER: Final = "@@"
"""Prefix of the lines that are answers; Spark writes other lines."""

Figures = dict[str, float]
"""Figures by name; larger is faster."""


# --- what is run, in each tree's own process ----------------------------------------------------------------


class Runs:
    """The runs that a tree offers."""

    def __init__(self, spark: SparkSession, name_servers: str, work: Path) -> None:
        self._spark = spark
        self._name_servers = name_servers
        self._work = work
        register(spark)

    def source(self, folder: Path, topic: str, messages: int, **options: str) -> Figures:  # noqa: ARG002
        """A batch read into ``noop``."""
        reader = self._spark.read.format("rocketmq").options(nameServers=self._name_servers, topic=topic)
        rows = reader.options(**options).load()
        return _rate(messages, lambda: _into_noop(rows))

    def prebuilt(self, folder: Path, topic: str, messages: int) -> Figures:
        """Rows that a Python source has ready and passes to Spark: the cost of Spark itself."""
        file = folder.with_suffix(".arrow")
        partitions = source.first_batch(topic, self._name_servers, file)
        self._spark.dataSource.register(PrebuiltSource)
        reader = self._spark.read.format("prebuilt")
        rows = reader.options(file=str(file), rows=messages, partitions=len(partitions)).load()
        return _rate(messages, lambda: _into_noop(rows))

    def stream(self, folder: Path, topic: str, messages: int) -> Figures:
        """A stream into ``noop``, with the total time of each micro-batch."""
        rows = (
            self._spark.readStream.format("rocketmq")
            .options(
                nameServers=self._name_servers,
                topic=topic,
                startingOffsets="earliest",
                maxOffsetsPerTrigger=messages // _BATCHES,
            )
            .load()
        )
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(folder))
        steady = drain(lambda: writer.trigger(availableNow=True).start(), batches=_BATCHES, skipped=1)
        return {"rate": 1 / steady["triggerExecution"]}

    def direct(self, folder: Path, topic: str, messages: int) -> Figures:
        """The direct engine with a listener that does nothing."""
        backlog = self._backlog(topic, messages // _BATCHES)
        consumer = backlog.consumer(
            folder, consume_message_batch_max_size=32, orderly_engine=OrderlyEngineKind.DIRECT
        )
        consumer.register_message_listener(do_nothing, orderly=True, output_schema="step string")
        steady = drain(lambda: backlog.start(consumer, folder), batches=_BATCHES, skipped=1)
        return {"rate": 1 / steady["triggerExecution"]}

    def arrow(self, folder: Path, topic: str, messages: int) -> Figures:
        """The direct engine with a row for each message: made in Arrow where the tree can,
        else emitted one by one.
        """
        backlog = self._backlog(topic, messages // _BATCHES)
        listener: Any = emit_each
        size = 32
        if hasattr(pyspark_rocketmq, "ArrowListener"):
            listener, size = pyspark_rocketmq.ArrowListener(row_each), 1024
        consumer = backlog.consumer(
            folder, consume_message_batch_max_size=size, orderly_engine=OrderlyEngineKind.DIRECT
        )
        consumer.register_message_listener(listener, orderly=True, output_schema="k string, n int")
        steady = drain(lambda: backlog.start(consumer, folder), batches=_BATCHES, skipped=1)
        return {"rate": 1 / steady["triggerExecution"]}

    def sink(self, folder: Path, topic: str, messages: int, *, keyed: bool) -> Figures:  # noqa: ARG002
        """A batch write."""
        body = sf.concat(sf.lpad(sf.col("id").cast("string"), 16, "0"), sf.lit("." * 1008))
        rows = self._spark.range(0, messages, 1, CORES).select(body.cast("binary").alias("body"))
        if keyed:
            number = sf.substring("body", 1, 16).cast("string").cast("long")
            rows = by_sharding_key(rows.withColumn("shardingKey", sf.concat(sf.lit("key-"), number % 10_000)))
        writer = rows.write.format("rocketmq").options(
            nameServers=self._name_servers, topic=topic, tags="T", batchSize="64"
        )
        return _rate(messages, lambda: writer.mode("append").save())

    def latency(self, folder: Path, topic: str, messages: int, *, with_sink: bool, seconds: float) -> Figures:
        """The latency of messages that are sent meanwhile; ``messages`` is the limit of a micro-batch."""
        contest = latency._Contest(self._backlog(topic, messages), seconds)  # noqa: SLF001 - the other tree has no other name
        seen = contest._ours(folder, with_sink=with_sink)  # noqa: SLF001
        stages = {
            f"1/{stage}": 1 / max(1.0, seen.stages[stage]) for stage in ("triggerExecution", "addBatch")
        }
        return {"1/p50": 1 / seen.percentile(50), "1/p99": 1 / seen.percentile(99), **stages}

    def _backlog(self, topic: str, per_trigger: int) -> Backlog:
        return Backlog(
            spark=self._spark,
            name_servers=self._name_servers,
            topic=topic,
            work=self._work,
            per_trigger=per_trigger,
            batches=_BATCHES,
        )


def emit_each(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """A plain listener."""
    for message in messages:
        context.emit(k=message.tags, n=len(message.body))
    return ConsumeOrderlyStatus.SUCCESS


def row_each(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:  # noqa: ARG001
    """The same rows."""
    columns = [batch.column("queueOffset"), batch.column("tags"), pc.binary_length(batch.column("body"))]
    return ConsumeOrderlyStatus.SUCCESS, pa.RecordBatch.from_arrays(columns, names=["queueOffset", "k", "n"])


def _rate(messages: int, run: Callable[[], object]) -> Figures:
    began_s = time.perf_counter()
    run()
    return {"rate": messages / (time.perf_counter() - began_s)}


def _into_noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _serve(name_servers: str, work: Path) -> None:
    """Perform the runs requested on standard input, one per line."""
    with bench_session(work) as spark:
        runs = Runs(spark, name_servers, work)
        print(_ANSWER, flush=True)
        for number, line in enumerate(sys.stdin):
            what, arguments = json.loads(line)
            figures: Figures = getattr(runs, what)(work / f"{what}-{os.getpid()}-{number}", **arguments)
            print(_ANSWER + json.dumps(figures), flush=True)


# --- who asks -----------------------------------------------------------------------------------------------


class Tree:
    """A work tree's process."""

    def __init__(self, path: Path, name_servers: str, work: Path, spark: str | None = None) -> None:
        work.mkdir()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path / "connector"), str(path)])}
        # Both trees must run the same code: this file, with the other tree's modules.
        python = [sys.executable]
        if spark is not None:
            python = [str(path / "scripts" / "with-env.sh"), f"spark-{spark}", "python"]
        command = [
            *python, "-c",
            (f"import runpy; runpy.run_path({__file__!r})['_serve']({name_servers!r}, "
            f"__import__('pathlib').Path({str(work)!r}))"),
        ]  # fmt: skip
        self._log = work / "log"
        self._process = subprocess.Popen(
            command,
            cwd=path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
        )
        self._answer()

    def run(self, what: str, arguments: dict[str, Any]) -> Figures:
        """Return the figures of one run."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, arguments]) + "\n")
        self._process.stdin.flush()
        figures: Figures = json.loads(self._answer())
        return figures

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                return line.removeprefix(_ANSWER)
        raise RuntimeError(self._log.read_text(encoding="utf-8")[-6000:])


class _Job(NamedTuple):
    label: str
    what: str
    """A method of :class:`Runs`."""
    topic: str | None
    """Topic; None for a new one in each run."""
    arguments: dict[str, Any]


def _jobs(messages: int, seconds: float) -> list[_Job]:
    jobs: list[_Job] = []
    for size in _BODY_BYTES:
        three = {"messages": messages, "includeColumns": "queueOffset,tags,body"}
        jobs += [
            _Job(f"source, {size}", "source", size, {"messages": messages}),
            _Job(f"source, three columns, {size}", "source", size, three),
            _Job(f"prebuilt rows, {size}", "prebuilt", size, {"messages": messages}),
            _Job(f"stream, {size}", "stream", size, {"messages": messages}),
        ]
    jobs.append(_Job("direct, 1KiB", "direct", "1KiB", {"messages": messages}))
    jobs.append(_Job("a row each, in Arrow / plain", "arrow", "1KiB", {"messages": messages}))
    for label, keyed in (("sink", False), ("sink by key", True)):
        jobs.append(_Job(label, "sink", None, {"messages": messages // 2, "keyed": keyed}))
    for label, with_sink in (("latency, Delta", True), ("latency, no sink", False)):
        given = {"messages": 100_000, "with_sink": with_sink, "seconds": seconds}
        jobs.append(_Job(label, "latency", _LIVE_TOPIC, given))
    return jobs


def _compare(
    trees: Sequence[Tree], cluster: ClusterUnderTest, job: _Job, rounds: int
) -> dict[str, list[float]]:
    """Ratios of the first tree's figures to the second's, round by round, after one for warming up."""
    ratios: dict[str, list[float]] = {}
    for number in range(-1, rounds):
        seen: dict[Tree, Figures] = {}
        for tree in trees if number % 2 else reversed(trees):
            topic = job.topic or cluster.create_topic(queues=QUEUES)
            seen[tree] = tree.run(job.what, {**job.arguments, "topic": topic})
        ours, others = (seen[tree] for tree in trees)
        if number >= 0:
            for figure, value in ours.items():
                ratios.setdefault(figure, []).append(value / others[figure])
    return ratios


@click.command()
@click.argument("other", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.option(
    "--other-spark", help="Run OTHER, which may be this tree, on another Spark, as 4.1; its figures divide."
)
@click.option(
    "--only", multiple=True, help="source, prebuilt, stream, direct, arrow, sink, latency; all by default."
)
@click.option("--rounds", default=5, show_default=True, help="Rounds that count.")
@click.option(
    "--messages",
    default=400_000,
    show_default=True,
    help="Of a topic that is read; half as many are written.",
)
@click.option("--seconds", default=12.0, show_default=True, help="Length of a run that measures latencies.")
def main(
    other: Path, *, other_spark: str | None, only: tuple[str, ...], rounds: int, messages: int, seconds: float
) -> None:
    """Compare this work tree with the one at OTHER."""
    this = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, real_cluster() as cluster:
        for size, size_bytes in _BODY_BYTES.items():
            cluster.create_topic(size, QUEUES)
            message = partial(source.message_of, size, source.bodies_of(size_bytes))
            fill(cluster.name_servers, size, queues=QUEUES, per_queue=messages // QUEUES, message=message)
        cluster.create_topic(_LIVE_TOPIC, QUEUES)
        trees = [
            Tree(path, cluster.name_servers, Path(folder) / name, spark)
            for name, path, spark in (("this", this, None), ("other", other, other_spark))
        ]
        try:
            for job in _jobs(messages, seconds):
                if only and job.what not in only:
                    continue
                if job.what == "stream" and other_spark in _WITHOUT_TRIGGER:
                    click.echo(f"{job.label:30} left out: it ends after one micro-batch there")
                    continue
                for figure, each in _compare(trees, cluster, job, rounds).items():
                    mark = "" if median(each) >= WANTED else f"   below {WANTED}"
                    click.echo(
                        f"{job.label:30} {figure:20} min {min(each):.3f}  median {median(each):.3f}  max "
                        f"{max(each):.3f}  load {load_average()}{mark}"
                    )
        finally:
            for tree in trees:
                tree.close()


if __name__ == "__main__":
    main()
