"""A batch write to a real broker next to Java's producer,
which sends the same batches from as many threads.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from bench.cluster import QUEUES, real_cluster
from bench.measure import Result, Spread, Target, load_average
from bench.pull_peers import JVM, checked_output
from bench.session import CORES, bench_session
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.format import register
from pyspark_rocketmq.publish.keys import by_sharding_key
from tests.helpers.cluster import ClusterUnderTest
from tests.real_broker.artifacts import compile_java, fetch_jars
from tests.real_broker.java_process import java_command, java_environment

_BODY_BYTES = 1024
_BATCH = 64
_KEYS = 10_000
_TARGET = 0.8
_TIMEOUT_S = 600.0
_ANSWER_S = 10.0
_METHOD = """\
{messages:,} messages of 1 KiB to a new topic with {queues} queues of one real broker, {rounds} rounds after one for warming up. Broker,
JVM and Python workers share the machine. Each round runs in turn:

* *Java*: `DefaultMQProducer.send(list)`, batches of {batch}, {cores} threads, each batch to the next queue; timed from the first batch to
  the last answer, with the connection made and a message sent before.
* *sink*: `df.write.format("rocketmq")` with `batchSize={batch}` on `local[{cores}]`, {cores} tasks, rows that Spark makes on the way; timed
  from `save()` to its return, Spark's planning and start of tasks included.
* *sink, default batches*: the same with the default `batchSize`.
* *sink, by key*: the rows have one of {keys:,} sharding keys and go through `by_sharding_key`: one shuffle more.

Afterwards the broker must have as many messages as were sent. The ratio is taken round by round."""


def run(*, messages: int = 400_000, rounds: int = 5) -> Result:
    """Measure ``rounds`` rounds."""
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, real_cluster() as cluster:
        work = Path(folder)
        with bench_session(work) as spark:
            register(spark)
            contest = _Contest(spark, cluster, work, messages)
            contest.round()
            figures = [contest.round() for _ in range(rounds)]
    names = ("java", "sink", "sink, default batches", "sink, by key")
    rates = {name: Spread.of(figure[name] for figure in figures) for name in names}
    return Result(
        name="sink",
        title="Batch write",
        method=_METHOD.format(
            messages=messages, queues=QUEUES, rounds=rounds, batch=_BATCH, cores=CORES, keys=_KEYS
        ),
        columns=("what", "min", "median", "max"),
        rows=tuple((f"{name}, messages/s", *rate.cells(",.0f")) for name, rate in rates.items()),
        targets=tuple(
            Target(
                what=f"{name} / Java",
                seen=Spread.of(figure[name] / figure["java"] for figure in figures),
                bound=_TARGET,
                at_most=False,
            )
            for name in names[1:]
        ),
        load=(before, load_average()),
    )


@dataclass(frozen=True, slots=True)
class _Contest:
    """All contestants on one broker; each run has its own topic."""

    spark: SparkSession
    cluster: ClusterUnderTest
    work: Path
    messages: int

    def round(self) -> dict[str, float]:
        """Messages per second of each."""
        figures = {
            "java": self._java(),
            "sink": self._sink(self._rows(), batchSize=str(_BATCH)),
            "sink, default batches": self._sink(self._rows()),
            "sink, by key": self._sink(by_sharding_key(self._keyed_rows()), batchSize=str(_BATCH)),
        }
        shown = "  ".join(f"{name} {rate:,.0f}/s" for name, rate in figures.items())
        print(f"  {shown}  load {load_average()}", flush=True)
        return figures

    def _java(self) -> float:
        topic = self.cluster.create_topic(queues=QUEUES)
        lib = fetch_jars()
        arguments = [self.cluster.name_servers, topic, self.messages, _BODY_BYTES, _BATCH, CORES]
        command = java_command(self.work, "BatchSendSpeed", [str(each) for each in arguments], heap=JVM)
        printed = checked_output(command, java_environment([lib / "*", compile_java(lib)]), _TIMEOUT_S)
        facts = json.loads(printed.splitlines()[-1])
        self._check(topic, self.messages + 1)
        return self.messages / float(facts["seconds"])

    def _sink(self, rows: DataFrame, **options: str) -> float:
        topic = self.cluster.create_topic(queues=QUEUES)
        writer = rows.write.format("rocketmq").options(
            nameServers=self.cluster.name_servers, topic=topic, tags="T", **options
        )
        started_s = time.perf_counter()
        writer.mode("append").save()
        took_s = time.perf_counter() - started_s
        self._check(topic, self.messages)
        return self.messages / took_s

    def _rows(self) -> DataFrame:
        body = sf.concat(sf.lpad(sf.col("id").cast("string"), 16, "0"), sf.lit("." * (_BODY_BYTES - 16)))
        return self.spark.range(0, self.messages, 1, CORES).select(body.cast("binary").alias("body"))

    def _keyed_rows(self) -> DataFrame:
        key = sf.concat(sf.lit("key-"), sf.substring("body", 1, 16).cast("string").cast("long") % _KEYS)
        return self._rows().withColumn("shardingKey", key)

    def _check(self, topic: str, expected: int) -> None:
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + _ANSWER_S
        with ChannelPool(clock) as pool:
            client = BrokerClient(pool, clock, _ANSWER_S)
            while True:
                found = sum(
                    bounds.max_offset
                    for address in self.cluster.broker_addresses.values()
                    for bounds in client.topic_stats(address, topic).values()
                )
                if found == expected:
                    return
                if clock.monotonic_s() > deadline_s:
                    raise RuntimeError(f"{topic} has {found} messages instead of {expected}.")
                time.sleep(0.05)
