"""Java's DefaultMQPushConsumer in groups: rebalancing, locks, broadcasting, a reset while it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import OffsetNotFound
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients
from tests.java.push import PushConsumer, await_committed, await_shares

_BROKER = "broker-a"
_QUEUES = {0, 1, 2, 3}
_SETTINGS = SendSettings(producer_group="tests")


def put(client: BrokerClient, cluster: ClusterUnderTest, queue: MessageQueue, *bodies: str) -> None:
    """Store messages; they can be pulled when this returns."""
    address = cluster.broker_addresses[queue.broker_name]
    end = 0
    for body in bodies:
        message = Message(topic=queue.topic, body=body.encode(), properties={"KEYS": body})
        end = client.send(address, message, queue, _SETTINGS).queue_offset + 1
    await_readable(client, address, queue, end)


def offsets_by_queue(delivered: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return queue offsets in the order in which they were delivered."""
    offsets: dict[int, list[int]] = defaultdict(list)
    for message in delivered:
        offsets[message["queueId"]].append(message["queueOffset"])
    return dict(offsets)


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    """Return a new topic with four queues on one broker."""
    return cluster.create_topic(queues=len(_QUEUES), brokers=[_BROKER])


@pytest.fixture(scope="module")
def reset_story(java: JavaClients, backend: tuple[str, Backend]) -> Iterator[Future[list[dict[str, Any]]]]:
    """Yield a consumer whose offsets mqadmin resets while it runs.

    It begins with the module's first test: Java waits ten seconds before it executes a reset.
    """
    kind, running = backend
    cluster = ClusterUnderTest(running, kind)
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(_live_through_a_reset, java, cluster)


def _live_through_a_reset(java: JavaClients, cluster: ClusterUnderTest) -> list[dict[str, Any]]:
    queue = MessageQueue(cluster.create_topic(queues=1, brokers=[_BROKER]), _BROKER, 0)
    group = cluster.unique_name("reset")
    with ChannelPool(SystemClock()) as pool:
        client = BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)
        put(client, cluster, queue, "m0", "m1", "m2")
        consumer = PushConsumer(java, group, group, queue.topic, isOrderly=True)
        consumer.delivered(3)
        await_committed(consumer, client, cluster.broker_addresses[_BROKER], [queue], 3)
        java.mqadmin("resetOffsetByTime", "-g", group, "-t", queue.topic, "-s", "0")
        # A reset does not end a held pull (golden fact 11); a message does.
        put(client, cluster, queue, "m3")
        delivered = consumer.delivered(3 + 4, timeout_s=4 * ANSWER_S)
    consumer.stop().result(2 * ANSWER_S)
    return delivered


@pytest.mark.parametrize("is_orderly", [True, False], ids=["orderly", "concurrent"])
@pytest.mark.usefixtures("reset_story")
def test_members_share_the_queues_and_hand_them_over(
    is_orderly: bool, java: JavaClients, cluster: ClusterUnderTest, client: BrokerClient, topic: str
) -> None:
    """B1, B3, C1, C4: one joins, one leaves; every message is seen, in the order of its queue."""
    group = cluster.unique_name("group")
    address = cluster.broker_addresses[_BROKER]
    queues = [MessageQueue(topic, _BROKER, queue_id) for queue_id in sorted(_QUEUES)]
    for queue in queues:
        put(client, cluster, queue, "before")

    first = PushConsumer(java, f"{group}-1", group, topic, isOrderly=is_orderly)
    await_shares(topic, _QUEUES, first, is_orderly=is_orderly)
    first.delivered(4)
    second = PushConsumer(java, f"{group}-2", group, topic, isOrderly=is_orderly)
    await_shares(topic, _QUEUES, first, second, is_orderly=is_orderly)
    if is_orderly:
        assert client.lock_batch(address, group, "a-stranger", queues) == frozenset()
    for queue in queues:
        put(client, cluster, queue, "together")
    # An earlier message may come once more: its offset is sent oneway to the broker,
    # which answers nothing.
    wait_until(
        lambda: set(offsets_by_queue(second.delivered())) == set(second.queues(topic)),
        3 * ANSWER_S,
        reason="Messages of all queues of the second",
    )

    second.stop().result(2 * ANSWER_S)
    await_shares(topic, _QUEUES, first, is_orderly=is_orderly)
    for queue in queues:
        put(client, cluster, queue, "alone again")
    await_committed(first, client, address, queues, 3)
    first.stop().result(2 * ANSWER_S)

    by_first, by_second = offsets_by_queue(first.delivered()), offsets_by_queue(second.delivered())
    for queue_id in _QUEUES:
        seen = by_first.get(queue_id, []) + by_second.get(queue_id, [])
        assert set(seen) == {0, 1, 2}
        # An orderly member sees a queue's messages in their order; only messages in flight may come twice.
        for offsets in (by_first.get(queue_id, []), by_second.get(queue_id, [])):
            assert not is_orderly or offsets == sorted(offsets)
    if is_orderly:
        # A member that leaves in good order unlocks its queues.
        assert client.lock_batch(address, group, "a-stranger", queues) == frozenset(queues)


def test_members_of_a_broadcasting_group_each_see_everything(
    java: JavaClients, cluster: ClusterUnderTest, client: BrokerClient, topic: str
) -> None:
    """B7: every member has all queues; offsets stay with the member, the broker has none."""
    group = cluster.unique_name("group")
    queue = MessageQueue(topic, _BROKER, 1)
    members = [
        PushConsumer(java, f"{group}-{number}", group, topic, isBroadcasting=True) for number in (1, 2)
    ]
    for member in members:
        wait_until(partial(lambda one: set(one.queues(topic)) == _QUEUES, member), 3 * ANSWER_S)
    put(client, cluster, queue, "m0", "m1")

    for member in members:
        assert sorted(offsets_by_queue(member.delivered(2))[1]) == [0, 1]
    for stopped in [member.stop() for member in members]:
        stopped.result(2 * ANSWER_S)
    with pytest.raises(OffsetNotFound):
        client.query_consumer_offset(
            cluster.broker_addresses[_BROKER], group, queue, set_zero_if_not_found=False
        )


def test_a_running_member_goes_back_when_its_offsets_are_reset(
    reset_story: Future[list[dict[str, Any]]],
) -> None:
    """F4: code 21 at its next pull notifies it; it sees everything again and continues."""
    delivered = reset_story.result(8 * ANSWER_S)

    assert [message["queueOffset"] for message in delivered] == [0, 1, 2, 0, 1, 2, 3]
    assert {message["reconsumeTimes"] for message in delivered} == {0}
