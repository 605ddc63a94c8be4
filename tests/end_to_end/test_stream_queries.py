"""A stream in a query with state: event time and a watermark, several sources, one joined with itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from pyspark_rocketmq.format import register
from pyspark_rocketmq.model import Message, MessageQueue
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest

pytestmark = [pytest.mark.spark, SIM_ONLY]

TIMEOUT_S = 240


def topic_of(cluster: ClusterUnderTest, seconds: Iterable[int], queues: int) -> str:
    """A topic whose messages' bodies are moments of their own, in seconds, and take turns over its queues."""
    topic = cluster.create_topic(queues=queues, brokers=["broker-a"])
    for number, second in enumerate(seconds):
        message = Message(topic=topic, body=b"%d" % second)
        cluster.backend.put(MessageQueue(topic, "broker-a", number % queues), [message])  # type: ignore[attr-defined]
    return topic


def moments(spark: SparkSession, cluster: ClusterUnderTest, topic: str) -> DataFrame:
    """A stream of what :func:`topic_of` stored, each a moment."""
    given = {"nameServers": cluster.name_servers, "topic": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format("rocketmq").options(**given).load()
    return rows.select(sf.timestamp_seconds(sf.col("body").cast("string").cast("long")).alias("at"))


def test_a_stream_joined_with_itself_beside_another_is_counted_in_windows_up_to_the_watermark(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H3: as Kafka's "KafkaSource with watermark", "self-join generates
    only one offset in log and correct metrics".
    """
    register(spark)
    first = topic_of(cluster, [0, 1, 9, 12, 15, 25, 45], queues=2)
    second = topic_of(cluster, [3, 14, 48], queues=1)
    rows = moments(spark, cluster, first)
    both = rows.join(rows, "at").unionByName(moments(spark, cluster, second))
    counts = both.withWatermark("at", "10 seconds").groupBy(sf.window("at", "10 seconds")).count()

    query = (
        counts.select(sf.unix_timestamp("window.start").alias("start"), "count")
        .writeStream.format("memory")
        .queryName("windows")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)

    expected = spark.createDataFrame([(0, 4), (10, 3), (20, 1)], "start bigint, count bigint")
    assert_df_equality(spark.table("windows"), expected, ignore_row_order=True, ignore_nullable=True)
    progress = query.recentProgress[0]
    assert sorted(source.numInputRows for source in progress.sources) == [3, 7]
    # Spark writes the offset of a source down at each of its places in the query.
    logged = set((tmp_path / "offsets" / "0").read_text().splitlines()[2:])
    assert sorted(topic for line in logged for topic in json.loads(line)["plan"]) == sorted((first, second))


def test_a_query_of_one_micro_batch_reads_all_that_is_there(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H4: ``trigger(once=True)`` with a limit per micro-batch, which does not apply then."""
    register(spark)
    topic = topic_of(cluster, range(25), queues=2)
    options = {
        "nameServers": cluster.name_servers,
        "topic": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "10",
    }
    rows = spark.readStream.format("rocketmq").options(**options).load()

    query = (
        rows.writeStream.format("memory")
        .queryName("once")
        .option("checkpointLocation", str(tmp_path))
        .trigger(once=True)
        .start()
    )

    assert query.awaitTermination(TIMEOUT_S)
    assert spark.table("once").count() == 25
