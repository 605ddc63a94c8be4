from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.consumer import push_consumer
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
)
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.applications.quick_source import source_with
from tests.end_to_end.test_orderly_consumer import emit_step
from tests.helpers.cluster import REAL_ONLY, ClusterUnderTest
from tests.helpers.orders import OUTPUT_SCHEMA, STEPS, check_sink, produce_orders
from tests.helpers.sending import patient_producer
from tests.helpers.wait import wait_until

pytestmark = pytest.mark.spark

TIMEOUT_S = 240
TIMING = MembershipTiming(rebalance_s=2.0, lock_renewal_s=1.0)
"""A broker that comes back knows no locks: RocketMQ's members ask for them again only every 20 s."""


@pytest.mark.long
@REAL_ONLY
def test_a_broker_that_stops_and_comes_back_costs_nothing_but_time(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2: the query goes on with the other broker's queues and picks the rest up afterwards."""
    source = source_with(TIMING)
    monkeypatch.setattr(push_consumer, "register", lambda session: session.dataSource.register(source))
    topic = cluster.create_topic(queues=2)
    expected = dict(produce_orders(cluster.name_servers, topic, 40))
    consumed: dict[str, int] = dict.fromkeys(cluster.broker_addresses, 0)

    def count(report: BatchReport) -> None:
        for ack in report.acks:
            consumed[ack.queue.broker_name] += ack.consumed

    consumer = push_consumer.PushConsumer(
        consumer_group=cluster.unique_name("group"),
        name_servers=cluster.name_servers,
        offset_store=DeltaOffsetStore(str(tmp_path / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(emit_step, output_schema=OUTPUT_SCHEMA)
    consumer.register_batch_listener(count)
    query = consumer.start(
        spark,
        sink=DeltaSink(tmp_path / "sink"),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"processingTime": "200 milliseconds"},
    )
    try:
        wait_until(lambda: sum(consumed.values()) == 200, TIMEOUT_S, reason="The first orders")
        expected |= produce_orders(cluster.name_servers, topic, 40, first=40)
        cluster.stop_broker("broker-b")
        on_a = consumed["broker-a"]
        expected |= produce_orders_on(cluster, topic, 20, first=80)
        wait_until(
            lambda: consumed["broker-a"] >= on_a + 100,
            TIMEOUT_S,
            reason="The orders sent to the broker that is up",
        )
        cluster.start_broker("broker-b")
        wait_until(
            lambda: sum(consumed.values()) == 500, TIMEOUT_S, reason="Everything after the broker came back"
        )
        assert query.isActive
    finally:
        query.stop()

    report = check_sink(tmp_path / "sink", expected)
    assert report.is_clean, str(report)


def produce_orders_on(
    cluster: ClusterUnderTest, topic: str, count: int, *, first: int
) -> dict[str, tuple[str, ...]]:
    """Orders for the one broker that is up."""
    queue = MessageQueue(topic, "broker-a", 0)
    order_ids = [f"order-{number}" for number in range(first, first + count)]
    with patient_producer(cluster.name_servers) as producer:
        for step in STEPS:
            batch = [
                Message(topic=topic, body=f"{order_id}:{step}".encode(), properties={"KEYS": order_id})
                for order_id in order_ids
            ]
            producer.send_batch(batch, queue)
    return dict.fromkeys(order_ids, STEPS)


def emit_offset(
    messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
) -> ConsumeConcurrentlyStatus:
    for message in messages:
        context.emit(number=message.queue_offset)
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def test_concurrent_consumers_go_on_at_the_slave_of_a_master_that_stops(
    spark: SparkSession, tmp_path: Path
) -> None:
    """L3: each message once in the sink, also those that the slave has not got before the master is back."""
    with SimCluster(brokers=1, replicas=1, settings=BrokerSettings(slave_read_enable=True)) as sim:
        queue = MessageQueue("orders", "broker-a", 0)
        sim.create_topic(queue.topic, queues=1)
        end = 0

        def put(count: int) -> None:
            nonlocal end
            sim.put(queue, [Message(topic=queue.topic, body=b"order") for _ in range(count)])
            end += count

        put(50)
        reached: list[int] = []
        consumer = push_consumer.PushConsumer(
            consumer_group="slave-readers",
            name_servers=sim.name_servers,
            offset_store=DeltaOffsetStore(str(tmp_path / "offsets")),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        consumer.subscribe(queue.topic)
        consumer.register_message_listener(emit_offset, orderly=False, output_schema="number long")
        consumer.register_batch_listener(
            lambda report: reached.extend(ack.state.next_offset for ack in report.acks)
        )
        query = consumer.start(
            spark,
            sink=DeltaSink(tmp_path / "sink"),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger={"processingTime": "200 milliseconds"},
        )

        def await_end(offset: int, what: str) -> None:
            wait_until(lambda: offset in reached, TIMEOUT_S, reason=what)

        try:
            await_end(50, "What came before")
            sim.set_replica_lag("broker-a", 20)
            put(100)
            sim.stop_broker("broker-a")
            await_end(130, "What the slave has")
            sim.start_broker("broker-a")
            put(1)
            await_end(end, "The rest")
            wait_until(
                lambda: sim.committed_offset("slave-readers", queue) == end,
                TIMEOUT_S,
                reason="The offset at the broker",
            )
            assert query.isActive
        finally:
            query.stop()

    numbers = DeltaTable(str(tmp_path / "sink")).to_pyarrow_table(columns=["number"])["number"].to_pylist()
    assert sorted(numbers) == list(range(end))
