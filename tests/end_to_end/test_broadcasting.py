from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import OffsetNotFound
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageModel,
    MessageQueue,
)
from pyspark_rocketmq.offsets.file import FileOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.cluster import REAL_ONLY, ClusterUnderTest
from tests.helpers.modes import BOTH_MODES, TIMEOUT_S, Mode
from tests.helpers.orders import OUTPUT_SCHEMA, check_sink, produce_orders
from tests.helpers.wait import wait_until

pytestmark = pytest.mark.spark

ANSWER_S = 10.0


def emit_step(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        order_id, _, step = message.body.decode().partition(":")
        context.emit(order_id=order_id, step=step, delivered_ns=time.time_ns())
    return ConsumeOrderlyStatus.SUCCESS


class Broadcast:
    """Queries of one broadcasting group on one topic; each instance has a sink of its own,
    all one folder of offsets.
    """

    def __init__(
        self, spark: SparkSession, cluster: ClusterUnderTest, folder: Path, topic: str, mode: Mode
    ) -> None:
        self.mode = mode
        self.spark = spark
        self.cluster = cluster
        self.folder = folder
        self.topic = topic
        self.group = cluster.unique_name("group")
        self.store = FileOffsetStore(folder / "offsets")

    def start(self, instance: str, *, checkpoint: str) -> StreamingQuery:
        consumer = PushConsumer(
            consumer_group=self.group,
            name_servers=self.cluster.name_servers,
            offset_store=self.store,
            message_model=MessageModel.BROADCASTING,
            instance_name=instance,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consume_message_batch_max_size=32,
            **self.mode.settings,
        )
        consumer.subscribe(self.topic)
        consumer.register_message_listener(emit_step, output_schema=OUTPUT_SCHEMA)
        return consumer.start(
            self.spark,
            sink=DeltaSink(self.sink(instance)),
            checkpoint=str(self.folder / checkpoint),
            trigger=self.mode.trigger,
        )

    def sink(self, instance: str) -> Path:
        return self.folder / f"sink-{instance}"

    def consumed(self, instance: str) -> int:
        rows = self.store.read(f"{self.group}@{instance}").values()
        return sum(row.next_offset for row in rows)


@REAL_ONLY
@BOTH_MODES
def test_two_queries_of_a_broadcasting_group_each_have_everything_once_and_in_order(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, mode: Mode
) -> None:
    """B3, D9, F1, H1, H2: at the same time, in one session, except in real time, where the tasks of a query
    hold all slots; one starts again without its checkpoint.
    """
    broadcast = Broadcast(spark, cluster, tmp_path, cluster.create_topic(queues=2), mode)
    first = produce_orders(cluster.name_servers, broadcast.topic, 20)
    names = ["one", "two"] if mode is Mode.MICRO_BATCH else ["one"]
    queries = {name: broadcast.start(name, checkpoint=f"checkpoint-{name}") for name in names}
    try:
        wait_until(
            lambda: all(broadcast.consumed(name) == 100 for name in queries),
            TIMEOUT_S,
            reason="they have everything",
        )
        queries["one"].stop()
        if "two" not in queries:
            queries["two"] = broadcast.start("two", checkpoint="checkpoint-two")
        expected = {**first, **produce_orders(cluster.name_servers, broadcast.topic, 10, first=20)}
        wait_until(lambda: broadcast.consumed("two") == 150, TIMEOUT_S, reason="the other has the rest")
        assert broadcast.consumed("one") == 100
    finally:
        for query in queries.values():
            query.stop()
    again = broadcast.start("one", checkpoint="another checkpoint")
    try:
        wait_until(lambda: broadcast.consumed("one") == 150, TIMEOUT_S, reason="the first has the rest too")
    finally:
        again.stop()

    for name in ("one", "two"):
        report = check_sink(broadcast.sink(name), expected)
        assert report.is_clean, f"{name}: {report}"
    assert no_offset_is_stored(broadcast)


def no_offset_is_stored(broadcast: Broadcast) -> bool:
    with ChannelPool(SystemClock()) as pool:
        client = BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)
        for broker_name, address in broadcast.cluster.broker_addresses.items():
            with pytest.raises(OffsetNotFound):
                client.query_consumer_offset(
                    address,
                    broadcast.group,
                    MessageQueue(broadcast.topic, broker_name, 0),
                    set_zero_if_not_found=False,
                )
    return True
