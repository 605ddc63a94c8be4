"""Queues read again into a table and into another topic: whole, in order, and nothing twice however often."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import process_pool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import OffsetNotFound, OptionError, RocketMQError, SchemaError
from pyspark_rocketmq.format import register
from pyspark_rocketmq.model import BrokerAddress, Message, MessageQueue
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.replay.ranges import REPLAYED_FROM, Sending
from pyspark_rocketmq.replay.record import ReplayRecord
from pyspark_rocketmq.replay.replay import Replay
from pyspark_rocketmq.spark.version import HAS_DELTA
from tests.helpers.cluster import LONG_ON_REAL, SIM_ONLY, ClusterUnderTest
from tests.helpers.sending import await_dispatched, patient_producer
from tests.helpers.wait import PATIENCE_S

pytestmark = pytest.mark.spark

PER_QUEUE = 30


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    """Two queues on broker-a with 30 messages each."""
    topic = cluster.create_topic(queues=2, brokers=["broker-a"])
    produce(cluster, topic, range(PER_QUEUE))
    return topic


def produce(cluster: ClusterUnderTest, topic: str, numbers: Sequence[int]) -> None:
    with patient_producer(cluster.name_servers) as producer:
        for queue in producer.queues(topic):
            producer.send_batch(
                [
                    Message(
                        topic=topic,
                        body=f"{queue.queue_id}:{number}".encode(),
                        properties={
                            "KEYS": f"k{number}",
                            "TAGS": "even" if number % 2 == 0 else "odd",
                            "colour": "blue",
                        },
                        flag=number,
                    )
                    for number in numbers
                ],
                queue,
            )


def options_of(cluster: ClusterUnderTest, topic: str, **more: str) -> dict[str, str]:
    return {"nameServers": cluster.name_servers, "topic": topic} | more


def only_first(topic: str, count: int) -> dict[str, str]:
    ends = f'{{"{topic}": {{"broker-a": {{"0": {count}, "1": {count}}}}}}}'
    return {"endingOffsets": ends}


@pytest.mark.long
@pytest.mark.every_spark
@SIM_ONLY
def test_a_table_gets_every_message_once_although_ranges_overlap(
    spark: SparkSession, cluster: ClusterUnderTest, topic: str, tmp_path: Path
) -> None:
    """H3: split over tasks; the second run adds what the first one has not,
    and no group's offset is there to be touched. J4: without Delta for this Spark it says so.
    """
    path = str(tmp_path / "table")
    told: list[tuple[int, int]] = []
    first = Replay(spark, options_of(cluster, topic, minPartitions="6", **only_first(topic, 20)))

    if not HAS_DELTA:
        with pytest.raises(RocketMQError, match=r"Delta Lake has no release for Spark .* Use Spark 4\.2"):
            first.to_table(path)
        return
    one = first.to_table(path, lambda done, total: told.append((done, total)))
    more = Replay(spark, options_of(cluster, topic)).to_table(path)

    assert (one.queues, one.planned, one.written, one.steps) == (2, 40, 40, 1)
    assert told == [(0, 40), (40, 40)]
    assert (more.planned, more.written) == (60, 20)
    rows = spark.read.format("delta").load(path).orderBy("queueId", "queueOffset").collect()
    assert [(row.queueId, row.queueOffset) for row in rows] == [
        (q, at) for q in (0, 1) for at in range(PER_QUEUE)
    ]
    assert {row.properties["colour"] for row in rows} == {"blue"}
    address = BrokerAddress(cluster.broker_addresses["broker-a"])
    brokers = BrokerClient(process_pool(), SystemClock(), PATIENCE_S)
    with pytest.raises(OffsetNotFound):
        brokers.query_consumer_offset(
            address, PLAIN_SOURCE_GROUP, MessageQueue(topic, "broker-a", 0), set_zero_if_not_found=False
        )


@SIM_ONLY
def test_a_table_of_a_catalog_gets_every_message_once(
    spark: SparkSession, cluster: ClusterUnderTest, topic: str
) -> None:
    """H3, J5."""
    spark.sql("CREATE DATABASE IF NOT EXISTS replayed")
    try:
        first = Replay(spark, options_of(cluster, topic, **only_first(topic, 20))).to_table("replayed.orders")
        more = Replay(spark, options_of(cluster, topic)).to_table("spark_catalog.replayed.`orders`")

        assert (first.written, more.planned, more.written) == (40, 60, 20)
        assert spark.table("replayed.orders").count() == 60
    finally:
        spark.sql("DROP DATABASE replayed CASCADE")


@pytest.mark.every_spark
@LONG_ON_REAL
def test_a_topic_gets_the_messages_in_order_with_all_they_had_and_once(
    spark: SparkSession, cluster: ClusterUnderTest, topic: str, tmp_path: Path
) -> None:
    """H3, G2: a second run sends only what came since."""
    copy = cluster.create_topic(queues=2, brokers=["broker-a", "broker-b"])
    record = str(tmp_path / "record")

    first = Replay(spark, options_of(cluster, topic), offsets_per_step=25).to_topic(copy, record)
    again = Replay(spark, options_of(cluster, topic)).to_topic(copy, record)
    produce(cluster, topic, range(PER_QUEUE, PER_QUEUE + 5))
    more = Replay(spark, options_of(cluster, topic)).to_topic(copy, record)

    assert (first.planned, first.recorded, first.written, first.steps) == (60, 0, 60, 3)
    assert (again.planned, again.recorded, again.written, again.steps) == (60, 60, 0, 0)
    assert (more.planned, more.recorded, more.written) == (70, 60, 10)
    await_dispatched(cluster.name_servers)
    register(spark)
    rows = spark.read.format("rocketmq").options(**options_of(cluster, copy)).load()
    found = rows.orderBy("brokerName", "queueId", "queueOffset").collect()
    assert [(row.brokerName, row.queueId, bytes(row.body).decode()) for row in found] == [
        ("broker-a", queue, f"{queue}:{number}") for queue in (0, 1) for number in range(35)
    ]
    seventh = found[7]
    assert (seventh["keys"], seventh.tags, seventh.flag, seventh.properties["colour"]) == (
        "k7",
        "odd",
        7,
        "blue",
    )
    assert seventh.properties[REPLAYED_FROM] == f"{topic}/broker-a/0/7"


@SIM_ONLY
def test_a_run_that_ends_between_sending_and_recording_is_taken_up_and_nothing_comes_twice(
    spark: SparkSession,
    cluster: ClusterUnderTest,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H3: the target shows what is stored of the step; where a step itself is cut short,
    see tests/both/test_resend_ranges.py.
    """
    copy = cluster.create_topic(queues=2, brokers=["broker-a"])
    record = str(tmp_path / "record")
    options = options_of(cluster, topic)
    finish, calls = ReplayRecord.finish, itertools.count(1)

    def die_at_the_second(self: ReplayRecord, sendings: Sequence[Sending]) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        finish(self, sendings)

    monkeypatch.setattr(ReplayRecord, "finish", die_at_the_second)
    # No task is left that could still send, so nothing is waited for.
    request_timeout_s = ReadOptions.parse(options).request_timeout_ms / 1000
    monkeypatch.setattr("pyspark_rocketmq.replay.replay._TASKS_END_S", -request_timeout_s)

    with pytest.raises(KeyboardInterrupt):
        Replay(spark, options, offsets_per_step=20).to_topic(copy, record)
    rest = Replay(spark, options | {"subscription": "*"}).to_topic(copy, record)

    assert (rest.recorded, rest.written) == (40, 20)
    register(spark)
    found = spark.read.format("rocketmq").options(**options_of(cluster, copy)).load()
    assert found.count() == found.select(f"properties.{REPLAYED_FROM}").distinct().count() == 60


@SIM_ONLY
def test_a_filter_is_part_of_what_is_replayed(
    spark: SparkSession, cluster: ClusterUnderTest, topic: str, tmp_path: Path
) -> None:
    """A4, H3"""
    copy = cluster.create_topic(queues=2, brokers=["broker-a"])

    summary = Replay(spark, options_of(cluster, topic, subscription="even")).to_topic(
        copy, str(tmp_path / "r")
    )

    assert (summary.planned, summary.written) == (60, 30)


@SIM_ONLY
def test_ranges_that_cannot_be_replayed_are_refused_before_anything_is_written(
    spark: SparkSession, cluster: ClusterUnderTest, topic: str, tmp_path: Path
) -> None:
    """H3"""
    replay = Replay(spark, options_of(cluster, topic))
    spark.range(1).write.format("delta").save(str(tmp_path / "other"))

    with pytest.raises(OptionError, match=r"topic 'no topic' is not a topic name: only letters"):
        replay.to_topic("no topic", str(tmp_path / "record"))
    with pytest.raises(OptionError, match="is read and cannot be written to"):
        replay.to_topic(topic, str(tmp_path / "record"))
    bare = cluster.unique_name()
    produce(cluster, cluster.create_topic(f"shop%{bare}", queues=1, brokers=["broker-a"]), [1])
    with pytest.raises(OptionError, match="is read and cannot be written to"):
        Replay(spark, options_of(cluster, bare, namespace="shop")).to_topic(
            f"shop%{bare}", str(tmp_path / "r")
        )
    with pytest.raises(OptionError, match="must name queueId"):
        Replay(spark, options_of(cluster, topic, includeColumns="topic,brokerName,queueOffset")).to_table("x")
    with pytest.raises(SchemaError, match=r"lacks body.* and also has id"):
        replay.to_table(str(tmp_path / "other"))
    with pytest.raises(OptionError, match="consumerGroup"):
        Replay(spark, options_of(cluster, topic, consumerGroup="g", offsetStore=str(tmp_path)))
    assert not (tmp_path / "record").exists()
