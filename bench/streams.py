"""Queries that drain a topic in micro-batches, for benchmarks that compare them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from bench.cluster import QUEUES, fill, real_cluster
from bench.session import bench_session
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.format import register
from pyspark_rocketmq.model import ConsumeFromWhere, Message
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.source.schema import CONSUMER_SCHEMA
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA

_TIMEOUT_S = 600
STAGES = (
    "triggerExecution",
    "latestOffset",
    "getBatch",
    "queryPlanning",
    "walCommit",
    "addBatch",
    "commitOffsets",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """A topic that queries drain one after the other in one session, each with its own folder."""

    spark: SparkSession
    name_servers: str
    topic: str
    work: Path
    per_trigger: int
    """Messages of a micro-batch."""
    batches: int
    """Number of micro-batches that the topic's messages fill."""

    def plain_rows(self) -> DataFrame:
        """The topic as a plain stream, with the columns that consumer mode adds, empty."""
        register(self.spark)
        added = [field.name for field in CONSUMER_SCHEMA if field.name not in MESSAGE_SCHEMA.names]
        return (
            self.spark.readStream.format("rocketmq")
            .options(
                nameServers=self.name_servers,
                topic=self.topic,
                startingOffsets="earliest",
                maxOffsetsPerTrigger=self.per_trigger,
            )
            .load()
            .withColumns(dict.fromkeys(added, sf.lit(None).cast("string")))
        )

    def consumer(self, folder: Path, **settings: Any) -> PushConsumer:
        """Make a consumer of the topic, in a new group for its folder."""
        consumer = PushConsumer(
            consumer_group="-".join(folder.relative_to(self.work).parts),
            name_servers=self.name_servers,
            offset_store=DeltaOffsetStore(folder / "offsets"),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            max_offsets_per_trigger=self.per_trigger,
            **settings,
        )
        consumer.subscribe(self.topic)
        return consumer

    def start(self, consumer: PushConsumer, folder: Path, *, with_sink: bool = False) -> StreamingQuery:
        """Let ``consumer`` drain the topic, into its own table or nowhere."""
        return consumer.start(
            self.spark,
            sink=DeltaSink(folder / "sink") if with_sink else None,
            checkpoint=str(folder / "checkpoint"),
            trigger={"availableNow": True},
        )


@contextmanager
def real_backlog(
    topic: str,
    message: Callable[[int], Message],
    *,
    per_trigger: int,
    batches: int,
    queues: int = QUEUES,
    with_delta: bool = False,
) -> Iterator[Backlog]:
    """A real broker with ``message(n)`` for n = 0, 1 … in all queues of ``topic``, and a session."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, real_cluster() as cluster:
        work = Path(folder)
        cluster.create_topic(topic, queues)
        per_queue = per_trigger * batches // queues
        fill(cluster.name_servers, topic, queues=queues, per_queue=per_queue, message=message)
        with bench_session(work, with_delta=with_delta) as spark:
            yield Backlog(
                spark=spark,
                name_servers=cluster.name_servers,
                topic=topic,
                work=work,
                per_trigger=per_trigger,
                batches=batches,
            )


def start_into_noop(rows: DataFrame, checkpoint: Path) -> StreamingQuery:
    """Drain ``rows`` and drop them."""
    return (
        rows.writeStream.foreachBatch(_to_noop)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def drain(start: Callable[[], StreamingQuery], *, batches: int, skipped: int) -> dict[str, float]:
    """Return the milliseconds by stage of a steady micro-batch: the median of a run without its first ``skipped``.

    Raises:
        RuntimeError: If the query did not drain its topic in time, or in another number of micro-batches.
    """
    query = start()
    await_end(query)
    progress = [each for each in query.recentProgress if each.numInputRows]
    if len(progress) != batches:
        raise RuntimeError(f"{len(progress)} micro-batches ran instead of {batches}.")
    steady = [each.durationMs for each in progress[skipped:]]
    return {stage: median(each.get(stage, 0) for each in steady) for stage in STAGES}


def await_end(query: StreamingQuery) -> None:
    """Wait for a query that ends by itself.

    Raises:
        RuntimeError: If it takes too long.
    """
    if not query.awaitTermination(_TIMEOUT_S):
        raise RuntimeError("The query did not drain the topic in time.")


def _to_noop(batch: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark's signature
    batch.write.format("noop").mode("overwrite").save()
