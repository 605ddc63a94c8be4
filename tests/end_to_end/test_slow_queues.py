"""Queues of one batch, of which one is suspended and another one has a listener that takes its time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import pyspark_rocketmq as rmq
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.consume.part import Group
from pyspark_rocketmq.consumer.batch import run_job
from pyspark_rocketmq.model import Message, OrderlyEngineKind
from tests.helpers.cluster import LONG_ON_REAL, SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.modes import BOTH_MODES, Mode, all_consumed, micro_batch_only
from tests.helpers.orders import produce_orders

pytestmark = pytest.mark.spark

_QUEUES = 4
_PATIENCE_S = 60.0


@micro_batch_only("the job of one batch, run by the test")
@LONG_ON_REAL
def test_a_suspended_queue_comes_again_in_its_task_while_another_one_is_with_a_slow_listener(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """D3: the slow call ends only when the suspended message has come again."""
    rmq.register(spark)
    topic = cluster.create_topic(queues=_QUEUES)
    options = {
        "nameServers": cluster.name_servers,
        "topic": topic,
        "consumerGroup": cluster.unique_name("group"),
        "offsetStore": str(tmp_path / "offsets"),
        "startingOffsets": "earliest",
    }
    produce_orders(cluster.name_servers, topic, 40)
    log, again = DeliveryLog(tmp_path / "deliveries"), tmp_path / "again"

    def listener(
        messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
    ) -> rmq.ConsumeOrderlyStatus:
        log.note(messages)
        [message] = messages
        if message.queue_offset == 0 and message.queue_id == 0:
            context.suspend_current_queue_time_millis = 10
            if not message.reconsume_times:
                return rmq.ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            again.touch()
        elif message.queue_offset == 0:
            gives_up_s = time.monotonic() + _PATIENCE_S
            while not again.exists():
                assert time.monotonic() < gives_up_s, "the suspended queue has not come again"
                time.sleep(0.01)
        return rmq.ConsumeOrderlyStatus.SUCCESS

    evaluated: list[Group] = []
    messages = spark.readStream.format("rocketmq").options(**options).load().coalesce(1)
    query = (
        rmq.consume_orderly(messages, listener, "step string", engine=OrderlyEngineKind.DIRECT)
        .writeStream.foreachBatch(lambda batch, _: evaluated.append(Group(tuple(run_job(batch, None).parts))))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(240), "the query did not end"
    finally:
        query.stop()

    acks = evaluated[0].acks
    assert sum(ack.failed for ack in acks) == len(
        {ack.queue.broker_name for ack in acks if ack.queue.queue_id == 0}
    )
    assert {ack.dead_letters for ack in acks} == {0}
    for deliveries in log.by_queue().values():
        offsets = [offset for delivery in deliveries for offset in delivery.queue_offsets]
        assert offsets == sorted(offsets)
    first = [each for each in log.deliveries() if each.queue_id == 0 and each.queue_offsets == (0,)]
    assert {each.reconsume_times for each in first} == {0, 1}


@SIM_ONLY
@BOTH_MODES
def test_a_suspended_queue_comes_again_while_another_task_is_with_a_slow_listener(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, mode: Mode
) -> None:
    """D3, I3: there are more queues than cores, and no task that could not begin before another one has ended."""
    topic = cluster.create_topic(queues=5, brokers=["broker-a"])
    with Producer(cluster.name_servers, "P", send_timeout_s=60.0) as producer:
        for queue in producer.queues(topic):
            producer.send_batch([Message(topic=topic, body=b"x")], queue)
    log, again = DeliveryLog(tmp_path / "deliveries"), tmp_path / "again"

    def listener(
        messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
    ) -> rmq.ConsumeOrderlyStatus:
        log.note(messages)
        [message] = messages
        if message.queue_id == 0:
            if not message.reconsume_times:
                context.suspend_current_queue_time_millis = 10
                return rmq.ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            again.touch()
        elif message.queue_id == 1:
            gives_up_s = time.monotonic() + _PATIENCE_S
            while not again.exists() and time.monotonic() < gives_up_s:
                time.sleep(0.01)
            context.emit(step="in time" if again.exists() else "too late")
        return rmq.ConsumeOrderlyStatus.SUCCESS

    group, store = cluster.unique_name("group"), rmq.DeltaOffsetStore(tmp_path / "offsets")
    # With its retry topic the group needs no second plan, which could end the batch before the slow call.
    cluster.create_topic(f"%RETRY%{group}", queues=1, brokers=["broker-a"])
    consumer = rmq.PushConsumer(
        consumer_group=group,
        name_servers=cluster.name_servers,
        offset_store=store,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        **mode.settings,
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(listener, orderly=True, output_schema="step string")
    mode.drain(
        consumer,
        spark,
        all_consumed(cluster, topic, store, group),
        sink=rmq.DeltaSink(tmp_path / "sink"),
        checkpoint=tmp_path / "checkpoint",
    )

    assert DeltaTable(tmp_path / "sink").to_pyarrow_table()["step"].to_pylist() == ["in time"]
    assert [each.reconsume_times for each in log.deliveries() if each.queue_id == 0] == [0, 1]
