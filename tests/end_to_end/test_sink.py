"""Rows written with ``format("rocketmq")``, read back from the cluster."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from pyspark_rocketmq.format import register
from pyspark_rocketmq.publish.keys import by_sharding_key
from pyspark_rocketmq.wire.requests.send import select_by_hash
from tests.end_to_end.test_source import read
from tests.helpers.cluster import LONG_ON_REAL, SIM_ONLY, ClusterUnderTest
from tests.helpers.sending import await_dispatched

pytestmark = pytest.mark.spark

TIMEOUT_S = 240


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


def write(rows: DataFrame, cluster: ClusterUnderTest, **options: Any) -> None:
    rows.write.format("rocketmq").options(nameServers=cluster.name_servers, **options).mode("append").save()


def failure(rows: DataFrame, cluster: ClusterUnderTest, **options: Any) -> str:
    """What a write that fails says, on one line."""
    with pytest.raises(PySparkException) as caught:
        write(rows, cluster, **options)
    return re.sub(r"\s+", " ", str(caught.value))


def stored(spark: SparkSession, cluster: ClusterUnderTest, topic: str) -> list[Row]:
    """All messages, by queue in their order."""
    await_dispatched(cluster.name_servers)
    return read(spark, cluster, topic).orderBy("brokerName", "queueId", "queueOffset").collect()


def steps(spark: SparkSession, orders: int, each: int, partitions: int) -> DataFrame:
    """``each`` steps of ``orders`` orders, interleaved, an order's steps in several partitions."""
    order = sf.concat(sf.lit("order-"), sf.col("id") % orders)
    step = sf.floor(sf.col("id") / orders).cast("string")
    return spark.range(0, orders * each, 1, partitions).select(
        order.alias("shardingKey"), order.alias("keys"), step.alias("body")
    )


def steps_by_order(rows: list[Row]) -> dict[str, list[int]]:
    """The steps of each order in the order in which they are stored."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        found[row.keys].append(int(row.body))
    return found


def test_a_row_becomes_a_message_with_all_its_columns(spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """G1, G2 ★: keys, tags and properties in any script; each message has a UNIQ_KEY of its own;
    Java's queue.
    """
    topic = cluster.create_topic(queues=4)
    columns = (
        "topic string, body binary, keys string, tags string, shardingKey string, properties map<string,"
        "string>"
    )
    rows = [
        (
            topic,
            f"größe {n}".encode(),
            f"k{n} 红",
            "paid",
            f"key-{n}",
            {"colour": "blau", "MIN_OFFSET": "7", "DELAY": "3"},
        )
        for n in range(20)
    ]

    write(spark.createDataFrame(rows, columns), cluster, properties='{"origin": "lake", "colour": "none"}')
    found = stored(spark, cluster, topic)

    queues = [(name, number) for name in ("broker-a", "broker-b") for number in range(4)]
    by_key = {row.keys: row for row in found}
    for _, body, keys, tags, sharding_key, _ in rows:
        row = by_key[keys]
        assert (bytes(row.body), row.tags) == (body, tags)
        assert (row.brokerName, row.queueId) == queues[select_by_hash(sharding_key, 8)]
        assert {name: row.properties.get(name) for name in ("colour", "origin", "DELAY")} == {
            "colour": "blau",
            "origin": "lake",
            "DELAY": None,
        }
        assert row.msgId == row.properties["UNIQ_KEY"]
    assert len(found) == len(by_key) == len({row.msgId for row in found}) == 20


@LONG_ON_REAL
def test_rows_of_a_key_keep_the_order_of_the_data_frame(
    spark: SparkSession, cluster: ClusterUnderTest
) -> None:
    """G1, G6 ★: several tasks, small batches; by_sharding_key brings the rows of a key into one task,
    in their order.
    """
    topic = cluster.create_topic(queues=2)
    rows = steps(spark, orders=50, each=60, partitions=5)

    write(by_sharding_key(rows, partitions=3), cluster, topic=topic, batchSize=7)

    found = stored(spark, cluster, topic)
    assert steps_by_order(found) == {f"order-{number}": list(range(60)) for number in range(50)}
    queues = [(name, number) for name in ("broker-a", "broker-b") for number in range(2)]
    assert {(row.brokerName, row.queueId) for row in found if row.keys == "order-7"} == {
        queues[select_by_hash("order-7", 4)]
    }


@SIM_ONLY
def test_a_key_in_two_tasks_fails_the_write(spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """G6: its order is then nobody's; the write fails, unless that does not matter."""
    topic = cluster.create_topic(queues=1)
    rows = steps(spark, orders=5, each=4, partitions=2)

    said = failure(rows, cluster, topic=topic)
    write(rows, cluster, topic=topic, checkShardingKeys="false")

    assert "several tasks sent rows with the same sharding key (for example 'order-0'" in said
    assert "write by_sharding_key(df)" in said
    assert len(stored(spark, cluster, topic)) == 2 * 20


@SIM_ONLY
def test_a_row_that_is_no_message_fails_the_write_with_its_keys(
    spark: SparkSession, cluster: ClusterUnderTest
) -> None:
    """G2: which row it was is in the error that the driver gets;
    columns and options are looked at before any task.
    """
    topic = cluster.create_topic(queues=1)
    rows = spark.createDataFrame([("a", "k1"), (None, "k2")], "body string, keys string").coalesce(1)

    assert "row 1 of the task (keys='k2'): its column 'body' is null" in failure(rows, cluster, topic=topic)
    assert "there is neither a column 'topic' nor an option 'topic'" in failure(rows, cluster)
    assert "did you mean 'batchSize'" in failure(rows, cluster, topic=topic, batchsizes="7")
    assert stored(spark, cluster, topic) == []


@SIM_ONLY
def test_messages_are_appended_and_no_other_save_mode_is_taken(
    spark: SparkSession, cluster: ClusterUnderTest
) -> None:
    """Spark itself refuses its default, errorifexists, of every Python source;
    its advice to overwrite is answered by us.
    """
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    writer = (
        spark.sql("SELECT 'a' AS body")
        .write.format("rocketmq")
        .options(nameServers=cluster.name_servers, topic=topic)
    )

    for mode, said in (
        (None, 'cannot be written in the "ErrorIfExists" mode'),
        ("errorifexists", 'cannot be written in the "ErrorIfExists" mode'),
        ("ignore", 'cannot be written in the "Ignore" mode'),
        ("overwrite", r"mode 'overwrite' is not possible.* Use mode\('append'\)"),
    ):
        with pytest.raises(PySparkException, match=said):
            (writer if mode is None else writer.mode(mode)).save()
    writer.mode("append").save()
    assert [bytes(row.body) for row in stored(spark, cluster, topic)] == [b"a"]


@SIM_ONLY
def test_the_same_write_again_has_the_same_message_ids(
    spark: SparkSession, cluster: ClusterUnderTest
) -> None:
    """H6: with a writeId the reader recognises what it has; without one, each write is one of its own."""
    topic = cluster.create_topic(queues=2, brokers=["broker-a"])
    rows = spark.range(0, 40, 1, 2).select(sf.col("id").cast("string").alias("body"))

    for write_id in ("load-7", "load-7", None):
        write(rows, cluster, topic=topic, **({"writeId": write_id} if write_id else {}))

    bodies: dict[str, list[bytes]] = defaultdict(list)
    for row in stored(spark, cluster, topic):
        bodies[row.msgId].append(bytes(row.body))
    assert sorted(map(len, bodies.values())) == [1] * 40 + [2] * 40
    assert all(len(set(same)) == 1 for same in bodies.values())


@SIM_ONLY
def test_micro_batches_of_one_write_id_have_message_ids_of_their_own(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H6: written in foreachBatch; the same micro-batch again has the same ones."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_text(name)

    def keep(rows: DataFrame, batch_id: int) -> None:
        for _ in range(1 + (batch_id == 1)):
            write(rows, cluster, topic=topic, writeId="load")

    query = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(tmp_path / "in"))
        .selectExpr("value AS body")
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)

    found = stored(spark, cluster, topic)
    assert len(found) == 4
    assert len({row.msgId for row in found}) == len({bytes(row.body) for row in found}) == 3


@pytest.mark.every_spark
@SIM_ONLY
def test_a_stream_is_written_and_its_replayed_batch_has_the_same_message_ids(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """G2, H6 ★: rows pass from topic to topic and are counted;
    a batch whose commit was lost is sent again under its ids.
    """
    source, target = cluster.create_topic(queues=2), cluster.create_topic(queues=2)
    write(by_sharding_key(steps(spark, orders=10, each=20, partitions=2)), cluster, topic=source)

    def pass_on() -> list[int]:
        """Of each micro-batch, how many rows its progress says were written."""
        stream = (
            spark.readStream.format("rocketmq")
            .options(nameServers=cluster.name_servers, topic=source, startingOffsets="earliest")
            .load()
            .selectExpr("body", "keys", "keys AS shardingKey")
        )
        query = (
            stream.writeStream.format("rocketmq")
            .options(nameServers=cluster.name_servers, topic=target)
            .queryName("sink")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)
        return [progress.sink.numOutputRows for progress in query.recentProgress]

    written = pass_on()
    once = stored(spark, cluster, target)
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    pass_on()
    twice = stored(spark, cluster, target)

    assert written == [200]
    assert steps_by_order(once) == {f"order-{number}": list(range(20)) for number in range(10)}
    assert len(twice) == 2 * len(once)
    assert {row.msgId: bytes(row.body) for row in twice} == {row.msgId: bytes(row.body) for row in once}
