"""A consumer of several topics, whose retry topic brings a message back, on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageQueue,
    retry_topic,
)
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.helpers.cluster import LONG_ON_REAL, ClusterUnderTest
from tests.helpers.sending import await_dispatched
from tests.helpers.wait import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

TIMEOUT_S = 240
_ON = "broker-a"


def tell_topics(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        context.emit(message, sent_to=message.topic, body=message.body.decode())
    return ConsumeOrderlyStatus.SUCCESS


@LONG_ON_REAL
def test_topics_of_one_consumer_and_what_comes_back_reach_one_table(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """A3, E3, H6: rows have the position in the retry queue,
    and the listener saw the topic of the first send.
    """
    orders, payments = cluster.create_topic(queues=1), cluster.create_topic(queues=2)
    group = cluster.unique_name("group")
    at, retry = cluster.broker_addresses[_ON], MessageQueue(retry_topic(group), _ON, 0)
    with ChannelPool(SystemClock()) as pool:
        client = BrokerClient(pool, SystemClock(), PATIENCE_S)
        for topic, tag in ((orders, "paid"), (payments, "paid"), (payments, "created")):
            message = Message(topic=topic, body=f"{topic}:{tag}".encode(), properties={"TAGS": tag})
            client.send(at, message, MessageQueue(topic, _ON, 0), SendSettings(producer_group="tests"))

        def drain() -> None:
            consumer = PushConsumer(
                consumer_group=group,
                name_servers=cluster.name_servers,
                offset_store=DeltaOffsetStore(str(tmp_path / "offsets")),
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                instance_name="etl",
            )
            consumer.subscribe(orders)
            consumer.subscribe(payments, "paid || refunded")
            consumer.register_message_listener(tell_topics, output_schema="sent_to string, body string")
            query = consumer.start(
                spark,
                sink=DeltaSink(tmp_path / "sink"),
                checkpoint=str(tmp_path / "checkpoint"),
                trigger={"availableNow": True},
            )
            assert query.awaitTermination(TIMEOUT_S), "the query did not drain"

        await_dispatched(cluster.name_servers)
        drain()
        first = PullRequest(consumer_group=group, queue=MessageQueue(payments, _ON, 0), queue_offset=0)
        given_back = decode_messages(client.pull(at, first).body, _ON)[0]
        name_servers = (cluster.name_servers,)
        settings = SendBackSettings(
            name_servers=name_servers, consumer_group=group, back_timeout_s=PATIENCE_S
        )
        back = SendBack(settings)
        back.send(given_back, delay_level=1, max_reconsume_times=16)
        wait_until(lambda: client.max_offset(at, retry) == 1, reason="the copy in the retry topic")
        drain()

    table = DeltaTable(str(tmp_path / "sink")).to_pyarrow_table()
    rows = [(row["topic"], row["queueOffset"], row["sent_to"], row["body"]) for row in table.to_pylist()]
    assert sorted(rows) == sorted(
        [
            (orders, 0, orders, f"{orders}:paid"),
            (payments, 0, payments, f"{payments}:paid"),
            (retry.topic, 0, payments, f"{payments}:paid"),
        ]
    )
    stored = DeltaOffsetStore(str(tmp_path / "offsets")).read(group)
    assert {queue: row.next_offset for queue, row in stored.items() if row.next_offset} == {
        MessageQueue(orders, _ON, 0): 1,
        MessageQueue(payments, _ON, 0): 2,
        retry: 1,
    }
