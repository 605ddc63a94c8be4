"""A consumer whose offset store and sink are on an object store, with keys that expire."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.delta.table import query_rows
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, Message, MessageExt, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.replay.replay import Replay
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sending import patient_producer
from tests.helpers.wait import wait_until
from tests.object_stores.server import KEY, SECRET, Bucket, RenewedKeys

pytestmark = [pytest.mark.spark, pytest.mark.sim, pytest.mark.timeout(170)]

GROUP, TOPIC, COPY = "on-s3", "OnS3", "OnS3Copy"
PATIENCE_S = 120.0


def on_order(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        context.emit(message, body=message.body.decode())
    return ConsumeOrderlyStatus.SUCCESS


def produce(name_servers: str, first: int, count: int) -> None:
    with patient_producer(name_servers) as producer:
        messages = [Message(topic=TOPIC, body=str(number).encode()) for number in range(first, first + count)]
        producer.send_batch(messages, MessageQueue(TOPIC, "broker-a", 0))


def test_a_consumer_goes_on_when_keys_expire(spark: SparkSession, s3: Bucket, tmp_path: Path) -> None:
    """J1, H1: in the planner, the tasks and the driver, each row once and in order; no secret is shown."""
    keys = RenewedKeys(s3)
    keys.expire()
    reports: list[BatchReport] = []
    with SimCluster(brokers=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        cluster.create_topic(COPY, 1)
        produce(cluster.name_servers, 0, 20)
        store = DeltaOffsetStore(s3.uri("offsets"), storage_options=keys)
        consumer = PushConsumer(
            consumer_group=GROUP,
            name_servers=cluster.name_servers,
            offset_store=store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        consumer.subscribe(TOPIC)
        consumer.register_message_listener(on_order, output_schema="body string")
        consumer.register_batch_listener(reports.append)
        query = consumer.start(
            spark,
            sink=DeltaSink(s3.uri("sink"), storage_options=keys),
            checkpoint=tmp_path / "checkpoint",
            trigger={"processingTime": "100 milliseconds"},
        )

        def consumed(count: int) -> bool:
            done = sum(ack.consumed for report in reports for ack in report.acks)
            assert query.exception() is None, query.exception()
            return done >= count

        try:
            wait_until(lambda: consumed(20), PATIENCE_S, reason="the first messages")
            keys.expire()
            produce(cluster.name_servers, 20, 20)
            wait_until(lambda: consumed(40), PATIENCE_S, reason="messages after the keys have expired")
        finally:
            query.stop()
        s3.behave()
        options = {"nameServers": cluster.name_servers, "topic": TOPIC}
        secrets = {"storageSecrets": json.dumps(s3.storage_options())}
        read = {**options, **secrets, "offsetStore": s3.uri("offsets"), "endingOffsets": "group"}
        rows = spark.read.format("rocketmq").options(**read, endingGroup=GROUP).load()
        assert rows.count() == 40
        replay = Replay(spark, {**options, **secrets})
        assert replay.to_topic(COPY, s3.uri("record")).written == 40
        assert replay.to_topic(COPY, s3.uri("record")).written == 0

    table = DeltaTable(s3.uri("sink"), storage_options=s3.storage_options())
    found = query_rows(table, 'SELECT "queueOffset", body FROM rows ORDER BY "queueOffset"').to_pylist()
    assert [tuple(row.values()) for row in found] == [(number, str(number)) for number in range(40)]
    assert store.read(GROUP)[MessageQueue(TOPIC, "broker-a", 0)].next_offset == 40
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (KEY, SECRET):
        assert secret.encode() not in left
        assert secret not in f"{consumer!r} {consumer.source_options()} {rows._jdf.queryExecution()}"


def test_what_the_driver_s_environment_says_reaches_planner_and_tasks(
    spark: SparkSession, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J1: which began before it said so."""
    for name, text in s3.patient_options().items():
        monkeypatch.setenv(f"AWS_{name.upper().removeprefix('AWS_')}", text)
    with SimCluster(brokers=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        produce(cluster.name_servers, 0, 20)
        store = DeltaOffsetStore(s3.uri("offsets"))
        consumer = PushConsumer(
            consumer_group=GROUP,
            name_servers=cluster.name_servers,
            offset_store=store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        consumer.subscribe(TOPIC)
        consumer.register_message_listener(on_order, output_schema="body string")
        query = consumer.start(
            spark,
            sink=DeltaSink(s3.uri("sink")),
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
        )
        assert query.awaitTermination(int(PATIENCE_S))

    assert query_rows(DeltaTable(s3.uri("sink")), "SELECT * FROM rows").num_rows == 20
    assert store.read(GROUP)[MessageQueue(TOPIC, "broker-a", 0)].next_offset == 20
