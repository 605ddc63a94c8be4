"""Connections to either kind of cluster, and messages stored in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import ClusterUnderTest


@pytest.fixture
def soon() -> Deadline:
    """The time budget of one test's requests."""
    return Deadline.after(SystemClock(), 3 * ANSWER_S)


@pytest.fixture
def pushes() -> SimpleQueue[RemotingCommand]:
    """Requests that brokers sent to this test's connections."""
    return SimpleQueue()


@pytest.fixture
def pool(pushes: SimpleQueue[RemotingCommand]) -> Iterator[ChannelPool]:
    """This test's own connections."""
    with ChannelPool(SystemClock(), handler_for=lambda _: pushes.put) as pool:
        yield pool


@pytest.fixture
def client(pool: ChannelPool) -> BrokerClient:
    """Calls to any broker."""
    return BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)


@pytest.fixture
def address(cluster: ClusterUnderTest) -> str:
    """Where broker-a is."""
    return cluster.broker_addresses["broker-a"]


@pytest.fixture
def queue(cluster: ClusterUnderTest) -> MessageQueue:
    """The only queue of a new topic on broker-a."""
    return MessageQueue(cluster.create_topic(queues=1, brokers=["broker-a"]), "broker-a", 0)


@pytest.fixture
def group(cluster: ClusterUnderTest) -> str:
    """A consumer group no broker has heard of."""
    return cluster.unique_name("group")


Put = Callable[..., None]


@pytest.fixture
def put(client: BrokerClient, address: str, queue: MessageQueue) -> Put:
    """Store bodies or messages in ``queue`` one after another; they can be pulled when it returns."""

    def put_messages(*contents: bytes | Message) -> None:
        settings = SendSettings(producer_group="tests")
        end = 0
        for content in contents:
            message = content if isinstance(content, Message) else Message(topic=queue.topic, body=content)
            end = client.send(address, message, queue, settings).queue_offset + 1
        await_readable(client, address, queue, end)

    return put_messages


@pytest.fixture
def broker(cluster: ClusterUnderTest, pool: ChannelPool, soon: Deadline) -> Channel:
    """A channel to broker-a."""
    return pool.get(cluster.broker_addresses["broker-a"], soon)


@pytest.fixture
def name_server(cluster: ClusterUnderTest, pool: ChannelPool, soon: Deadline) -> Channel:
    """A channel to the name server."""
    return pool.get(cluster.name_servers, soon)
