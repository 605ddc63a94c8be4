"""Queries that drain a topic in micro-batches, for benchmarks that compare them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.datasource.schema import CONSUMER_SCHEMA
from pyspark_rocketmq.wire.columnar import MESSAGE_SCHEMA

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


def plain_rows(spark: SparkSession, name_servers: str, topic: str, per_trigger: int) -> DataFrame:
    """The topic as a plain stream, with the columns that consumer mode adds, empty."""
    added = [field.name for field in CONSUMER_SCHEMA if field.name not in MESSAGE_SCHEMA.names]
    return (
        spark.readStream.format("rocketmq")
        .options(
            nameServers=name_servers,
            topic=topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=per_trigger,
        )
        .load()
        .withColumns(dict.fromkeys(added, sf.lit(None).cast("string")))
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
    """Milliseconds by stage of a steady micro-batch: the median of a run's, without its first ``skipped``.

    Raises:
        RuntimeError: If the query did not drain its topic in time, or in another number of micro-batches.
    """
    query = start()
    if not query.awaitTermination(_TIMEOUT_S):
        raise RuntimeError("The query did not drain the topic in time.")
    progress = [each for each in query.recentProgress if each.numInputRows]
    if len(progress) != batches:
        raise RuntimeError(f"{len(progress)} micro-batches ran instead of {batches}.")
    steady = [each.durationMs for each in progress[skipped:]]
    return {stage: median(each.get(stage, 0) for each in steady) for stage in STAGES}


def _to_noop(batch: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark's signature
    batch.write.format("noop").mode("overwrite").save()
