"""Membership of consumer groups and locks on queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerError, ChannelClosed
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import GroupRequestHeader
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import SendSettings
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.wait import wait_until


@pytest.fixture
def other_pool() -> Iterator[ChannelPool]:
    """The connections of a second client."""
    with ChannelPool(SystemClock()) as pool:
        yield pool


@pytest.fixture
def other(other_pool: ChannelPool) -> BrokerClient:
    """A second client, which has its own connection as every member must."""
    return BrokerClient(other_pool, SystemClock(), request_timeout_s=ANSWER_S)


def beat(group: str, client_id: str, *topics: str) -> HeartbeatData:
    subscriptions = tuple(build_subscription(topic, "*", sub_version=1) for topic in topics)
    return HeartbeatData(
        client_id=client_id, consumers=(ConsumerData(group_name=group, subscriptions=subscriptions),)
    )


def members(client: BrokerClient, address: str, group: str) -> list[str]:
    """The group's client ids; none where the broker answers that there are none."""
    try:
        return sorted(client.consumer_list(address, group))
    except BrokerError:
        return []


# --- membership ---------------------------------------------------------------------------------------------


def test_a_group_without_members_is_an_error_that_says_so(
    client: BrokerClient, address: str, group: str
) -> None:
    """B4: not an empty list; the caller changes nothing then."""
    with pytest.raises(BrokerError, match=f"no consumer for this group, {group}") as caught:
        client.consumer_list(address, group)

    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_members_come_with_heartbeats_and_go_with_unregistration(
    client: BrokerClient, other: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """A3, B1, B7: all members see the same list at any time."""
    client.heartbeat(address, beat(group, "client-1", queue.topic))
    one = members(other, address, group)
    other.heartbeat(address, beat(group, "client-2", queue.topic))
    two = members(client, address, group)
    client.unregister(address, "client-1", consumer_group=group)
    rest = members(other, address, group)
    other.unregister(address, "client-2", consumer_group=group)

    assert (one, two, rest) == (["client-1"], ["client-1", "client-2"], ["client-2"])
    assert members(other, address, group) == []


def test_a_member_whose_connection_ends_is_gone_at_once(
    client: BrokerClient, other: BrokerClient, other_pool: ChannelPool, address: str, group: str
) -> None:
    """B7: killed, not unregistered."""
    client.heartbeat(address, beat(group, "client-1"))
    other.heartbeat(address, beat(group, "client-2"))

    other_pool.close()

    wait_until(lambda: members(client, address, group) == ["client-1"], ANSWER_S, reason="one member left")


def test_members_are_notified_of_every_change_and_of_nothing_else(
    client: BrokerClient, other: BrokerClient, address: str, group: str, pushes: SimpleQueue[RemotingCommand]
) -> None:
    """B1: code 40 at a member's coming and going; an unchanged heartbeat notifies nobody."""
    client.heartbeat(address, beat(group, "client-1"))
    own = pushes.get(timeout=ANSWER_S)
    client.heartbeat(address, beat(group, "client-1"))
    other.heartbeat(address, beat(group, "client-2"))
    joined = pushes.get(timeout=ANSWER_S)
    other.unregister(address, "client-2", consumer_group=group)
    left = pushes.get(timeout=ANSWER_S)

    for push in (own, joined, left):
        assert push.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert push.is_oneway
        header = from_ext_fields(GroupRequestHeader, push.ext_fields)
        assert header.consumer_group == group
    assert pushes.empty()


def test_a_heartbeat_makes_the_group_s_retry_topic(
    cluster: ClusterUnderTest, client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """A3, E3: one queue, so that a consumer can subscribe to it before anything failed."""
    client.heartbeat(address, beat(group, "client-1", queue.topic))

    wait_until(
        lambda: cluster.routed_brokers(f"%RETRY%{group}") == {"broker-a"}, ANSWER_S, reason="the retry topic"
    )
    assert len(client.topic_stats(address, f"%RETRY%{group}")) == 1


def test_the_latest_heartbeat_is_the_group_s_whole_subscription(
    cluster: ClusterUnderTest, client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """A3: a topic that is not in it is unsubscribed."""
    second = queue._replace(topic=cluster.create_topic(queues=1, brokers=["broker-a"]))
    client.heartbeat(address, beat(group, "client-1", queue.topic, second.topic))
    client.heartbeat(address, beat(group, "client-1", second.topic))
    by_heartbeat = PullRequest(consumer_group=group, queue=second, queue_offset=0, sys_flag=0, sub_version=1)

    client.pull(address, by_heartbeat)
    with pytest.raises(BrokerError) as caught:
        client.pull(
            address,
            PullRequest(consumer_group=group, queue=queue, queue_offset=0, sys_flag=0, sub_version=1),
        )

    assert caught.value.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


# --- locks --------------------------------------------------------------------------------------------------


def test_a_locked_queue_is_refused_to_others_and_renewed_for_its_holder(
    client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """C1, C2: refused queues are absent from the answer, the rest is granted."""
    free = queue._replace(queue_id=1)

    first = client.lock_batch(address, group, "client-1", [queue])
    second = client.lock_batch(address, group, "client-2", [queue, free])
    again = client.lock_batch(address, group, "client-1", [queue, free])

    assert first == {queue}
    assert second == {free}
    assert again == {queue}


def test_groups_do_not_lock_each_other_out(
    cluster: ClusterUnderTest, client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """C1: a lock is one group's."""
    client.lock_batch(address, group, "client-1", [queue])

    assert client.lock_batch(address, cluster.unique_name("group"), "client-2", [queue]) == {queue}


def test_only_its_holder_can_unlock_a_queue(
    client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """C1, B5: what the old owner does last and the new one waits for."""
    client.lock_batch(address, group, "client-1", [queue])
    client.unlock_batch(address, group, "client-2", [queue])
    refused = client.lock_batch(address, group, "client-2", [queue])
    client.unlock_batch(address, group, "client-1", [queue])

    assert refused == frozenset()
    assert wait_until(lambda: client.lock_batch(address, group, "client-2", [queue]), ANSWER_S) == {queue}


def test_locks_outlive_unregistration_and_connection(
    client: BrokerClient, other: BrokerClient, other_pool: ChannelPool, address: str, group: str
) -> None:
    """B7, C2: a member that was killed blocks its queues until the lock expires."""
    queue = MessageQueue("orders", "broker-a", 0)
    other.heartbeat(address, beat(group, "client-2"))
    other.lock_batch(address, group, "client-2", [queue])
    other.unregister(address, "client-2", consumer_group=group)
    other_pool.close()

    assert client.lock_batch(address, group, "client-1", [queue]) == frozenset()


def test_a_queue_that_does_not_exist_can_be_locked(client: BrokerClient, address: str, group: str) -> None:
    """C1: the broker checks nothing (golden fact 17)."""
    nowhere = MessageQueue("no-such-topic", "broker-a", 99)

    assert client.lock_batch(address, group, "client-1", [nowhere]) == {nowhere}


@pytest.mark.sim
def test_a_lock_expires_60_seconds_after_its_last_renewal(clock: FakeClock, client: BrokerClient) -> None:
    """C2, B7: time can be moved in the simulator only."""
    queue = MessageQueue("orders", "broker-a", 0)
    with SimCluster(clock=clock) as cluster:
        address = cluster.broker_addresses["broker-a"]
        client.lock_batch(address, "billing", "client-1", [queue])
        clock.advance(59)
        client.lock_batch(address, "billing", "client-1", [queue])
        clock.advance(60)
        refused = client.lock_batch(address, "billing", "client-2", [queue])
        clock.advance(0.1)

        assert refused == frozenset()
        assert client.lock_batch(address, "billing", "client-2", [queue]) == {queue}


def test_a_restarted_broker_has_its_messages_but_no_members_and_no_locks(
    cluster: ClusterUnderTest, client: BrokerClient, group: str
) -> None:
    """B7, C4: locks and memberships live in the broker's memory only."""
    address = cluster.broker_addresses["broker-b"]
    queue = MessageQueue(cluster.create_topic(queues=1, brokers=["broker-b"]), "broker-b", 0)
    client.send(
        address, Message(topic=queue.topic, body=b"kept"), queue, SendSettings(producer_group="tests")
    )
    client.heartbeat(address, beat(group, "client-1", queue.topic))
    client.lock_batch(address, group, "client-1", [queue])

    cluster.stop_broker("broker-b")
    cluster.start_broker("broker-b")

    # The client may learn only by this that its connection of before is gone.
    with suppress(ChannelClosed):
        client.max_offset(address, queue)
    await_readable(client, address, queue, 1)
    kept = client.pull(address, PullRequest(consumer_group=group, queue=queue, queue_offset=0))
    assert [message.body for message in decode_messages(kept.body, "broker-b")] == [b"kept"]
    assert members(client, address, group) == []
    assert client.lock_batch(address, group, "client-2", [queue]) == {queue}
