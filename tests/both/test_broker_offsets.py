"""A group's offsets at the brokers, as a claim reads them."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerOffsetUnavailable
from pyspark_rocketmq.group.broker_offsets import RemoteBrokerOffsets, open_group_store
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueState
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from tests.both.support import ANSWER_S
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import PATIENCE_S, wait_until


def options_of(cluster: ClusterUnderTest, topic: str, group: str) -> ReadOptions:
    options = {
        "nameServers": cluster.name_servers, "topic": topic, "consumerGroup": group,
        "offsetStore": "broker:", "consumeOrderly": "false",
        "requestTimeoutMs": str(int(ANSWER_S * 1000)),
    }  # fmt: skip
    return ReadOptions.parse(options)


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    """A topic with one queue on each of two brokers."""
    return cluster.create_topic(queues=1)


@pytest.fixture
def queues(topic: str) -> list[MessageQueue]:
    """Both of them."""
    return [MessageQueue(topic, name, 0) for name in ("broker-a", "broker-b")]


@pytest.fixture
def offsets(cluster: ClusterUnderTest, pool: ChannelPool, topic: str, group: str) -> RemoteBrokerOffsets:
    """What the code under test is."""
    options = {
        "nameServers": cluster.name_servers,
        "topic": topic,
        "consumerGroup": group,
        "offsetStore": "delta:/unused",
        "requestTimeoutMs": str(int(ANSWER_S * 1000)),
    }
    return RemoteBrokerOffsets.of(ReadOptions.parse(options), SystemClock(), pool=pool)


def addresses(cluster: ClusterUnderTest) -> dict[str, BrokerAddress]:
    return {name: BrokerAddress(address) for name, address in cluster.broker_addresses.items()}


def test_offsets_are_read_from_and_written_to_the_broker_of_each_queue(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    queues: list[MessageQueue],
    group: str,
    offsets: RemoteBrokerOffsets,
) -> None:
    """F1, F3: none is none, even where the broker would make up a 0."""
    for address in cluster.broker_addresses.values():
        client.heartbeat(
            address, HeartbeatData(client_id="member", consumers=(ConsumerData(group_name=group),))
        )
    assert offsets.read(queues, addresses(cluster)) == {}

    offsets.write({queues[0]: 7, queues[1]: 5}, addresses(cluster))
    offsets.write({queues[1]: 3}, addresses(cluster))

    assert offsets.read(queues, addresses(cluster)) == {queues[0]: 7, queues[1]: 3}
    assert offsets.read(queues[:1], addresses(cluster)) == {queues[0]: 7}


def test_a_group_that_a_broker_does_not_know_has_no_offset_to_be_overwritten(
    cluster: ClusterUnderTest, queues: list[MessageQueue], offsets: RemoteBrokerOffsets
) -> None:
    """F5: golden fact 13; nothing can be taken for a later offset there."""
    offsets.write({queues[0]: 7}, addresses(cluster))

    assert offsets.read(queues, addresses(cluster)) == {}


def test_a_broker_that_does_not_answer_is_an_error_and_no_offset(
    cluster: ClusterUnderTest, queues: list[MessageQueue], offsets: RemoteBrokerOffsets
) -> None:
    """F3: retryable, so that the plan waits."""
    nobody_there = addresses(cluster) | {"broker-b": BrokerAddress("127.0.0.1:1")}

    for ask in (
        lambda: offsets.read(queues, nobody_there),
        lambda: offsets.write(dict.fromkeys(queues, 1), nobody_there),
    ):
        with pytest.raises(BrokerOffsetUnavailable, match="broker-b") as caught:
            ask()
        assert caught.value.retryable


def test_a_group_is_read_and_written_as_one_whatever_its_brokers(
    cluster: ClusterUnderTest, queues: list[MessageQueue], group: str, offsets: RemoteBrokerOffsets
) -> None:
    """F1: what the offset store ``broker:`` is made on; the retry topic need not be there."""
    for address in cluster.broker_addresses.values():
        offsets._brokers.heartbeat(
            address, HeartbeatData(client_id="member", consumers=(ConsumerData(group_name=group),))
        )
    store = open_group_store(options_of(cluster, queues[0].topic, group))

    claimed = store.claim(group, "me", dict.fromkeys(queues, 4))
    store.commit(
        group,
        [QueueCommit(queue=queues[1], state=QueueState(6, claimed[queues[1]].epoch))],
        query_id="q",
        batch_id=0,
    )

    assert offsets.read(queues, addresses(cluster)) == {queues[0]: 4, queues[1]: 6}
    assert {queue: row.next_offset for queue, row in store.read(group).items()} == {
        queues[0]: 4,
        queues[1]: 6,
    }
    assert store.groups() == (group,)


def test_a_queue_whose_broker_has_no_master_is_not_begun_again(
    cluster: ClusterUnderTest, queues: list[MessageQueue], group: str
) -> None:
    """F3: nothing is known of it, which is not the same as no offset."""
    store = open_group_store(options_of(cluster, queues[0].topic, group))

    with pytest.raises(
        BrokerOffsetUnavailable, match="cannot be reached at broker-z: no route names a master"
    ):
        store.claim(group, "me", {MessageQueue(queues[0].topic, "broker-z", 0): 0})


def test_a_broker_that_is_away_costs_only_its_own_queues_and_is_found_when_it_is_back(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    queues: list[MessageQueue],
    group: str,
) -> None:
    """A8, F1: also at another address; the routes known here are younger than 30 s."""
    store = open_group_store(options_of(cluster, queues[0].topic, group))
    member = HeartbeatData(client_id="member", consumers=(ConsumerData(group_name=group),))
    for address in cluster.broker_addresses.values():
        client.heartbeat(address, member)
    epoch = store.claim(group, "me", dict.fromkeys(queues, 4))[queues[0]].epoch

    cluster.stop_broker("broker-b")
    commits = [QueueCommit(queue=queue, state=QueueState(6, epoch)) for queue in queues]
    assert store.commit(group, commits, query_id="q", batch_id=0).accepted == tuple(commits)
    assert {queue: row.next_offset for queue, row in store.read(group).items()} == {queues[0]: 6}
    cluster.start_broker("broker-b")

    def are_back() -> bool:
        client.heartbeat(cluster.broker_addresses["broker-b"], member)
        store.commit(group, commits[:1], query_id="q", batch_id=1)
        return store.read(group).keys() == set(queues)

    wait_until(are_back, PATIENCE_S, reason="Both brokers' offsets")
    assert {row.next_offset for row in store.read(group).values()} == {6}
