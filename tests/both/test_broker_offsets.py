"""A group's offsets at the brokers, as a claim reads them."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.datasource.broker_offsets import RemoteBrokerOffsets
from pyspark_rocketmq.errors import BrokerOffsetUnavailable
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.wire.bodies import ConsumerData, HeartbeatData


@pytest.fixture
def topic(cluster) -> str:
    """A topic with one queue on each of two brokers."""
    return cluster.create_topic(queues=1)


@pytest.fixture
def queues(topic) -> list[MessageQueue]:
    """Both of them."""
    return [MessageQueue(topic, name, 0) for name in ("broker-a", "broker-b")]


@pytest.fixture
def offsets(cluster, pool, topic, group) -> RemoteBrokerOffsets:
    """What the code under test is."""
    options = {
        "nameServers": cluster.name_servers,
        "topic": topic,
        "consumerGroup": group,
        "offsetStore": "delta:/unused",
    }
    return RemoteBrokerOffsets.of(ReadOptions.parse(options), pool, SystemClock())


def addresses(cluster) -> dict[str, BrokerAddress]:
    return {name: BrokerAddress(address) for name, address in cluster.broker_addresses.items()}


def test_offsets_are_read_from_and_written_to_the_broker_of_each_queue(
    cluster, client, queues, group, offsets
):
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


def test_a_group_that_a_broker_does_not_know_has_no_offset_to_be_overwritten(cluster, queues, offsets):
    """F5: golden fact 13; nothing can be taken for a later offset there."""
    offsets.write({queues[0]: 7}, addresses(cluster))

    assert offsets.read(queues, addresses(cluster)) == {}


def test_a_broker_that_does_not_answer_is_an_error_and_no_offset(cluster, queues, offsets):
    """F3: retryable, so that the plan waits."""
    nobody_there = addresses(cluster) | {"broker-b": BrokerAddress("127.0.0.1:1")}

    for ask in (
        lambda: offsets.read(queues, nobody_there),
        lambda: offsets.write(dict.fromkeys(queues, 1), nobody_there),
    ):
        with pytest.raises(BrokerOffsetUnavailable, match="broker-b") as caught:
            ask()
        assert caught.value.retryable
