from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from pyspark_rocketmq.format import register
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.spark.version import SPARK_PASSES_TRIGGER
from tests.helpers.cluster import LONG_ON_REAL, REAL_ONLY, SIM_ONLY, ClusterUnderTest
from tests.helpers.orders import STEPS, produce_orders
from tests.helpers.sending import patient_producer

pytestmark = pytest.mark.spark

TIMEOUT_S = 240


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


def read(spark: SparkSession, cluster: ClusterUnderTest, topic: str, **options: str) -> DataFrame:
    return (
        spark.read.format("rocketmq")
        .options(**{"nameServers": cluster.name_servers, "topic": topic} | options)
        .load()
    )


@pytest.mark.every_spark
def test_a_batch_reads_every_message_once_with_all_its_columns(
    spark: SparkSession, cluster: ClusterUnderTest
) -> None:
    """H3: a bounded read touches no group and leaves nothing out."""
    topic = cluster.create_topic(queues=4)
    before_ms = int(time.time() * 1000) - 60_000
    with patient_producer(cluster.name_servers) as producer:
        producer.send(
            Message(
                topic=topic,
                body="größe".encode(),
                properties={"KEYS": "k1 k2", "TAGS": "paid", "colour": "blue"},
                flag=7,
            ),
            sharding_key="k1",
        )

    (row,) = read(spark, cluster, topic).collect()

    assert row.topic == topic
    assert row.brokerName in cluster.broker_addresses
    assert (row.queueOffset, row.keys, row.tags, row.flag, row.reconsumeTimes) == (0, "k1 k2", "paid", 7, 0)
    assert bytes(row.body).decode() == "größe"
    assert row.properties["colour"] == "blue"
    assert row.msgId == row.properties["UNIQ_KEY"]
    assert row.storeHost == cluster.broker_addresses[row.brokerName]
    assert row.bornTimestamp.timestamp() * 1000 > before_ms
    assert (
        row.storeTimestamp >= row.bornTimestamp
        or (row.bornTimestamp - row.storeTimestamp).total_seconds() < 1
    )


@REAL_ONLY
def test_a_batch_of_many_messages_is_complete(spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """A4, H3: several pulls in flight per queue, none of them short-changed."""
    topic = cluster.create_topic(queues=4)
    orders = produce_orders(cluster.name_servers, topic, 2_000)

    rows = read(spark, cluster, topic)

    expected = spark.createDataFrame([(step, len(orders)) for step in STEPS], "tags string, count bigint")
    assert_df_equality(rows.groupBy("tags").count(), expected, ignore_row_order=True, ignore_nullable=True)
    assert rows.select("brokerName", "queueId", "queueOffset").distinct().count() == 10_000


@SIM_ONLY
def test_a_batch_of_a_topic_without_messages_is_empty(spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """H3: Spark reads one partition of its own where there is none."""
    topic = cluster.create_topic(queues=2)

    rows = spark.read.format("rocketmq").options(nameServers=cluster.name_servers, topic=topic).load()

    assert rows.collect() == []


@LONG_ON_REAL
def test_a_tag_subscription_gives_exactly_its_tags(spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """A4: the broker filters by hash code, the task again by exact tag: "AaAa" and "BBBB" have one hash."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    with patient_producer(cluster.name_servers) as producer:
        for tag in ("AaAa", "BBBB", "other") * 20:
            producer.send(Message(topic=topic, body=b"x", properties={"TAGS": tag}), sharding_key="k")

    rows = read(spark, cluster, topic, subscription="AaAa").select("tags").collect()

    assert [row.tags for row in rows] == ["AaAa"] * 20


@LONG_ON_REAL
def test_a_batch_can_begin_at_an_offset_or_a_time(spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """F2, H3"""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    with patient_producer(cluster.name_servers) as producer:
        for number in range(5):
            producer.send(Message(topic=topic, body=str(number).encode()), sharding_key="k")
    all_rows = read(spark, cluster, topic).orderBy("queueOffset").collect()
    at_ms = int(all_rows[3].storeTimestamp.timestamp() * 1000)

    by_offset = read(spark, cluster, topic, startingOffsets=json.dumps({topic: {"broker-a": {"0": 3}}}))
    by_time = read(spark, cluster, topic, startingTimestamp=str(at_ms))

    assert sorted(row.queueOffset for row in by_offset.collect()) == [3, 4]
    expected = [row.queueOffset for row in all_rows if row.storeTimestamp.timestamp() * 1000 >= at_ms]
    assert sorted(row.queueOffset for row in by_time.collect()) == expected


@pytest.mark.every_spark
@SIM_ONLY
def test_a_stream_goes_on_after_a_restart_where_it_stopped(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """A2, H4, J4: before Spark 4.2 a query of one micro-batch, which the limit bounds all the same."""
    topic = cluster.create_topic(queues=4)
    produce_orders(cluster.name_servers, topic, 40)

    def run() -> int:
        messages = (
            spark.readStream.format("rocketmq")
            .option("nameServers", cluster.name_servers)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "70")
            .load()
        )
        query = (
            messages.select("brokerName", "queueId", "queueOffset", sf.col("body").cast("string"))
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)
        rows = spark.read.parquet(str(tmp_path / "rows"))
        assert rows.select("brokerName", "queueId", "queueOffset").distinct().count() == rows.count()
        return rows.count()

    assert [run() for _ in range(1 if SPARK_PASSES_TRIGGER else 3)] == (
        [200] if SPARK_PASSES_TRIGGER else [70, 140, 200]
    )
    produce_orders(cluster.name_servers, topic, 10, first=40)
    assert run() == 250
