"""Routes of topics."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import NotANameServer, TopicNotFound
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import PATIENCE_S

DEAD = "127.0.0.1:1"


@pytest.fixture
def names(cluster: ClusterUnderTest, pool: ChannelPool) -> NameServerClient:
    """Asks a dead name server first."""
    return NameServerClient((DEAD, cluster.name_servers), pool, SystemClock(), PATIENCE_S, route_max_age_s=0)


def test_a_route_has_every_queue_of_every_broker(
    cluster: ClusterUnderTest, names: NameServerClient, soon: Deadline
) -> None:
    """A2: sorted by broker and queue."""
    topic = cluster.create_topic(queues=3)

    route = names.route(topic, soon)

    everything = [MessageQueue(topic, name, n) for name in ("broker-a", "broker-b") for n in range(3)]
    assert list(route.subscribe_queues(topic)) == list(route.publish_queues(topic)) == everything
    assert {name: route.address_of(name) for name in cluster.broker_addresses} == cluster.broker_addresses


def test_a_name_server_that_is_gone_is_passed_over(
    cluster: ClusterUnderTest, names: NameServerClient, soon: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """A2: and not asked first again while another one answers."""
    topic = cluster.create_topic(queues=1)

    names.route(topic, soon)
    names.route(topic, soon)

    assert len([text for text in caplog.messages if DEAD in text]) == 1


def test_a_broker_s_address_in_place_of_a_name_server_s_is_named(
    address: str, pool: ChannelPool, soon: Deadline
) -> None:
    """A2 ★."""
    names = NameServerClient((address,), pool, SystemClock(), PATIENCE_S)

    with pytest.raises(NotANameServer, match=rf"^{address} answered .* This is a broker. .*port is 9876"):
        names.route("orders", soon)


def test_an_unknown_topic_is_not_found(
    cluster: ClusterUnderTest, names: NameServerClient, soon: Deadline
) -> None:
    """A2: code 17, as an error of its own."""
    with pytest.raises(TopicNotFound, match="no-such-topic"):
        names.route("no-such-topic", soon)


def test_queues_added_to_a_topic_are_found(
    cluster: ClusterUnderTest, names: NameServerClient, soon: Deadline
) -> None:
    """A2: more queues and another broker, while a query runs."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    before = names.route(topic, soon).subscribe_queues(topic)

    cluster.create_topic(topic, queues=2, brokers=["broker-a", "broker-b"])

    after = names.route(topic, soon).subscribe_queues(topic)
    assert len(before) == 1
    assert set(after) == {MessageQueue(topic, name, n) for name in ("broker-a", "broker-b") for n in range(2)}


@pytest.mark.parametrize("perm", [6, 4, 2])
def test_a_topic_s_permission_decides_who_sees_its_queues(
    cluster: ClusterUnderTest, names: NameServerClient, soon: Deadline, perm: int
) -> None:
    """A2: 4 is readable, 2 is writable."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"], perm=perm)

    route = names.route(topic, soon)

    assert len(route.subscribe_queues(topic)) == bool(perm & 4)
    assert len(route.publish_queues(topic)) == bool(perm & 2)


def test_a_stopped_broker_leaves_the_route_and_comes_back(
    cluster: ClusterUnderTest, names: NameServerClient, soon: Deadline
) -> None:
    """A2: its queues are not there meanwhile."""
    topic = cluster.create_topic(queues=1)

    cluster.stop_broker("broker-b")
    without = names.route(topic, soon).subscribe_queues(topic)
    cluster.start_broker("broker-b")
    again = names.route(topic, soon).subscribe_queues(topic)

    assert [queue.broker_name for queue in without] == ["broker-a"]
    assert [queue.broker_name for queue in again] == ["broker-a", "broker-b"]
