"""A namespace on real and simulated brokers: full names there, short names everywhere else."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.model import Message, MessageQueue, retry_topic
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.readers import RocketMQBatchReader
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.support import ANSWER_S
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import wait_until

CLOCK = SystemClock()


@pytest.fixture
def namespace(cluster: ClusterUnderTest) -> str:
    """One that no other test uses."""
    return cluster.unique_name("shop")


@pytest.fixture
def topic(cluster: ClusterUnderTest, namespace: str) -> str:
    """A topic of the namespace, by its short name; there is one of that name outside too,
    with other messages.
    """
    short = cluster.create_topic(queues=1, brokers=["broker-a"])
    cluster.create_topic(f"{namespace}%{short}", queues=2, brokers=["broker-a"])
    return short


def test_what_is_sent_into_a_namespace_is_read_from_it(
    cluster: ClusterUnderTest, namespace: str, topic: str
) -> None:
    """A6: producer, planner and reader agree; the column has the short name;
    outside nothing is seen of it.
    """
    with (
        Producer(cluster.name_servers, "P", namespace=namespace, send_timeout_s=ANSWER_S) as inside,
        Producer(cluster.name_servers, "P", send_timeout_s=ANSWER_S) as outside,
    ):
        queues = inside.queues(topic)
        for queue in queues:
            inside.send_batch([Message(topic=topic, body=b"inside")] * 10, queue)
        outside.send(Message(topic=topic, body=b"outside"))

    def read(**more: str) -> list[tuple[str, bytes]]:
        options = {"nameServers": cluster.name_servers, "topic": topic} | more
        reader = RocketMQBatchReader(ReadOptions.parse(options))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return [
            (row["topic"], row["body"])
            for batch in batches
            for row in batch.select(["topic", "body"]).to_pylist()
        ]

    # The real broker builds its queues a moment after it has answered a send.
    wait_until(lambda: len(read(namespace=namespace)) == 20 and len(read()) == 1, ANSWER_S)
    assert queues == tuple(MessageQueue(topic, "broker-a", number) for number in (0, 1))
    assert set(read(namespace=namespace)) == {(topic, b"inside")}
    assert read() == [(topic, b"outside")]


def test_a_group_of_a_namespace_is_another_group_than_the_one_outside(
    cluster: ClusterUnderTest, pool: ChannelPool, namespace: str, topic: str
) -> None:
    """A6, A3: offsets, members, locks and the retry topic are the namespace's."""
    address, group = cluster.broker_addresses["broker-a"], cluster.unique_name("group")
    inside = BrokerClient(pool, CLOCK, ANSWER_S, namespace=namespace)
    outside = BrokerClient(pool, CLOCK, ANSWER_S)
    queue = MessageQueue(topic, "broker-a", 0)
    subscriptions = tuple(
        build_subscription(name, "*", sub_version=1) for name in (topic, retry_topic(group))
    )
    member = ConsumerData(group_name=group, subscriptions=subscriptions)
    inside.heartbeat(address, HeartbeatData(client_id="me", consumers=(member,)))
    inside.update_consumer_offset(address, group, queue, 7)

    assert inside.query_consumer_offset(address, group, queue) == 7
    assert outside.query_consumer_offset(address, f"{namespace}%{group}", _full(namespace, queue)) == 7
    assert inside.consumer_list(address, group) == ("me",)
    assert inside.lock_batch(address, group, "me", [queue]) == {queue}
    # Held by another client of the same group: only under its full name is it the same lock.
    assert (
        outside.lock_batch(address, f"{namespace}%{group}", "you", [_full(namespace, queue)]) == frozenset()
    )
    assert outside.lock_batch(address, group, "you", [queue]) == {queue}
    connection = BrokerClient(pool, CLOCK, ANSWER_S, namespace=namespace).consumer_connection(address, group)
    assert set(connection.subscriptions) == {topic, retry_topic(group)}
    names = NameServerClient((cluster.name_servers,), pool, CLOCK, ANSWER_S, namespace=namespace)
    wait_until(lambda: names.topics(Deadline.after(CLOCK, ANSWER_S)) == (retry_topic(group), topic), ANSWER_S)
    inside.unregister(address, "me", consumer_group=group)


def _full(namespace: str, queue: MessageQueue) -> MessageQueue:
    return queue._replace(topic=f"{namespace}%{queue.topic}")
