"""Topics and queues that are deleted under a stream, as real and simulated brokers do it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.errors import QueueRemoved, TopicDeleted
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.both.conftest import Put
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.stream_read import StreamUnderTest
from tests.helpers.wait import wait_until
from tests.real_broker import plain_remoting

SOON_S = 120.0


@pytest.fixture
def stream(cluster: ClusterUnderTest, queue: MessageQueue) -> Iterator[StreamUnderTest]:
    """A stream of the queue's topic that sees changes at once."""
    yield StreamUnderTest(
        nameServers=cluster.name_servers, topic=queue.topic, startingOffsets="earliest", routeRefreshMs="1"
    )
    close_idle_connections()


def test_a_topic_that_was_deleted_ends_the_query(
    cluster: ClusterUnderTest, queue: MessageQueue, put: Put, stream: StreamUnderTest
) -> None:
    """F4: the broker denies it; that the name server forgets it says nothing."""
    put(b"one")
    assert stream.next_offsets() == {queue: [0]}

    for address, code in (
        (cluster.broker_addresses["broker-a"], RequestCode.DELETE_TOPIC_IN_BROKER),
        (cluster.name_servers, RequestCode.DELETE_TOPIC_IN_NAMESRV),
    ):
        plain_remoting.call(address, code, {"topic": queue.topic})

    with pytest.raises(TopicDeleted, match=f"topic={queue.topic} .* offset 1 was to be read next"):
        wait_until(lambda: stream.plan() and False, SOON_S)


def test_a_topic_that_may_not_be_read_for_a_while_is_waited_for(
    cluster: ClusterUnderTest,
    queue: MessageQueue,
    put: Put,
    stream: StreamUnderTest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A2: write-only, with messages stored meanwhile, none of which is lost; it is said once,
    and that it is over.
    """
    caplog.set_level("INFO")
    put(b"one", b"two")
    assert stream.next_offsets() == {queue: [0, 1]}

    cluster.create_topic(queue.topic, queues=1, brokers=["broker-a"], perm=2)
    put(b"three")
    assert [stream.next_offsets() for _ in range(3)] == [None] * 3
    cluster.create_topic(queue.topic, queues=1, brokers=["broker-a"])

    assert wait_until(stream.next_offsets, SOON_S) == {queue: [2]}
    told = [text.partition(";")[0] for text in caplog.messages if "switched off" in text]
    assert told == [
        f"reading is switched off, its queues wait topic={queue.topic} broker=broker-a",
        f"reading is no longer switched off topic={queue.topic} broker=broker-a",
    ]


def test_a_queue_that_was_taken_away_unread_ends_the_query(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    address: str,
    queue: MessageQueue,
    stream: StreamUnderTest,
) -> None:
    """F4: a broker lets nobody pull from it, though its messages are there."""
    cluster.create_topic(queue.topic, queues=2, brokers=["broker-a"])
    second = queue._replace(queue_id=1)

    def send() -> None:
        sent = client.send(
            address, Message(topic=queue.topic, body=b"x"), second, SendSettings(producer_group="tests")
        )
        wait_until(lambda: client.max_offset(address, second) > sent.queue_offset, SOON_S)

    send()
    assert wait_until(stream.next_offsets, SOON_S) == {second: [0]}
    send()
    cluster.create_topic(queue.topic, queues=1, brokers=["broker-a"])

    with pytest.raises(QueueRemoved, match="queue=1: offset 1 was to be read next"):
        wait_until(lambda: stream.plan() and not stream.run().num_rows, SOON_S)
