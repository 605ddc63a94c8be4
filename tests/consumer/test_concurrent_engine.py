"""The concurrent engine as Spark calls it: pickled, with record batches of the source."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, MessageExt, MessageQueue, QueueRange
from tests.helpers.scripted_cluster import ScriptedCluster
from tests.helpers.source_rows import pieces_of, rows_of

ORDERS = MessageQueue("orders", "broker-a", 3)
RETRY = MessageQueue("%RETRY%billing", "broker-a", 0)
OUTPUT = StructType().add("name", "string")


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        cluster.routes["orders"] = cluster.route({"broker-a": 4})
        cluster.routes["%RETRY%billing"] = cluster.route({"broker-a": 1})
        yield cluster


def fail_every_third(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
    (message,) = messages
    context.emit(name=f"{message.topic}:{message.queue_offset}")
    if message.queue_offset % 3 == 0:
        context.delay_level_when_next_consume = 2
        return ConsumeConcurrentlyStatus.RECONSUME_LATER
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


async def fail_every_third_later(
    messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
) -> object:
    await asyncio.sleep(0.001)
    return fail_every_third(messages, context)


def consume(
    cluster: ScriptedCluster, rows: Sequence[dict[str, Any]], listener: Any = fail_every_third
) -> list[Consumed]:
    engine = ConcurrentEngine(
        form_of(listener, orderly=False),
        OUTPUT,
        ConcurrentSettings(max_reconsume_times=7),
        SendBackSettings(
            name_servers=(cluster.name_server.address,),
            consumer_group="billing",
            # What is late is sent once more: not because the machine is busy.
            back_timeout_s=60.0,
        ),
    )
    return list(pickle.loads(pickle.dumps(engine))(iter(pieces_of(rows, 4))))


@pytest.mark.parametrize("listener", [fail_every_third, fail_every_third_later], ids=["threads", "loop"])
def test_a_range_becomes_its_rows_and_one_ack(cluster: ScriptedCluster, listener: Any) -> None:
    """E1-E3, E6: acknowledged messages' rows with their positions; the others are sent back from the task."""
    planned = QueueRange.between(ORDERS, 10, 16, epoch=4)

    (consumed,) = consume(cluster, rows_of(planned), listener)

    data = [row for rows in consumed.batches() for row in rows.to_pylist()]
    assert [(row["queueId"], row["queueOffset"], row["name"]) for row in data] == [
        (3, offset, f"orders:{offset}") for offset in (10, 11, 13, 14)
    ]
    ack = consumed.ack
    assert (ack.queue, ack.state.epoch, ack.start, ack.state.next_offset, ack.sent_back) == (
        ORDERS,
        4,
        10,
        16,
        2,
    )
    sent_back = [request.ext_fields for request in cluster.brokers["broker-a"].sent_back]
    assert sorted(fields["offset"] for fields in sent_back) == ["1200", "1500"]
    assert {(fields["delayLevel"], fields["maxReconsumeTimes"]) for fields in sent_back} == {("2", "7")}


def test_messages_of_the_retry_topic_come_under_their_own_topic(cluster: ScriptedCluster) -> None:
    """E3: rows and ack are the retry queue's, and what fails again goes back to the retry queue's broker."""
    planned = QueueRange.between(RETRY, 0, 3, epoch=1)

    (consumed,) = consume(cluster, rows_of(planned, originTopic="orders"))

    data = [row for rows in consumed.batches() for row in rows.to_pylist()]
    assert [(row["topic"], row["queueOffset"], row["name"]) for row in data] == [
        ("%RETRY%billing", offset, f"orders:{offset}") for offset in (1, 2)
    ]
    assert consumed.ack.queue == RETRY
    (request,) = cluster.brokers["broker-a"].sent_back
    assert request.ext_fields["originTopic"] == "orders"


def test_ranges_that_share_a_task_are_consumed_one_after_the_other(cluster: ScriptedCluster) -> None:
    """E6: as after coalesced partitions."""
    ranges = [
        QueueRange.between(ORDERS, 1, 3, epoch=1),
        QueueRange.between(ORDERS._replace(queue_id=0), 7, 9, epoch=1),
    ]

    brought = consume(cluster, [row for planned in ranges for row in rows_of(planned)])

    found = [[rows.column("queueOffset").to_pylist() for rows in each.batches()] for each in brought]
    assert (found, [each.ack.state.next_offset for each in brought]) == ([[[1, 2]], [[7, 8]]], [3, 9])


def test_a_range_that_lost_a_row_is_refused_before_anything_is_delivered(cluster: ScriptedCluster) -> None:
    """E6, H1: the whole range would be acknowledged."""
    rows = rows_of(QueueRange.between(ORDERS, 10, 16, epoch=4))

    with pytest.raises(RocketMQError, match="6 messages were read"):
        consume(cluster, rows[1:])
    assert not cluster.brokers["broker-a"].sent_back
