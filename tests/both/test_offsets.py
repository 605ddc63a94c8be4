"""Consumer offsets, bounds of queues and offsets by time."""

from __future__ import annotations

import time

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerError, OffsetNotFound, TopicNotFound, TransportError
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest
from tests.both.conftest import Put
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import wait_until


@pytest.fixture
def known_group(client: BrokerClient, address: str, group: str) -> str:
    """A group the broker has heard of: only for such one does it store offsets."""
    client.heartbeat(
        address, HeartbeatData(client_id="client-1", consumers=(ConsumerData(group_name=group),))
    )
    return group


def test_a_new_group_on_an_empty_queue_has_no_offset(
    client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """F2, F3: code 22 is a first start, and an error class of its own."""
    with pytest.raises(OffsetNotFound) as caught:
        client.query_consumer_offset(address, group, queue)

    assert caught.value.code == ResponseCode.QUERY_NOT_FOUND


def test_a_new_group_on_a_young_queue_gets_0_unless_it_asks_otherwise(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """F2: the broker makes up a 0 while message 0 is still there, which would turn "last" into "first"."""
    put(b"one", b"two")

    assert client.query_consumer_offset(address, group, queue) == 0
    with pytest.raises(OffsetNotFound):
        client.query_consumer_offset(address, group, queue, set_zero_if_not_found=False)


def test_a_queue_that_does_not_exist_has_no_offset_either(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """F3: the broker does not check the queue."""
    put(b"one")

    with pytest.raises(OffsetNotFound):
        client.query_consumer_offset(address, group, queue._replace(queue_id=5))


@pytest.mark.parametrize("committed", [0, 1, 2, 1000])
def test_any_offset_is_stored_as_it_is(
    client: BrokerClient, address: str, queue: MessageQueue, known_group: str, committed: int
) -> None:
    """F6: lower ones and ones beyond the end too (golden fact 13); keeping order is the client's duty."""
    client.update_consumer_offset(address, known_group, queue, 2)

    client.update_consumer_offset(address, known_group, queue, committed)

    assert client.query_consumer_offset(address, known_group, queue) == committed


def test_a_stored_minus_1_counts_as_none(
    client: BrokerClient, address: str, queue: MessageQueue, known_group: str, put: Put
) -> None:
    """F3: Java's mark of "not found", once committed by mistake, makes the group new again."""
    put(b"one", b"two")
    client.update_consumer_offset(address, known_group, queue, 2)

    client.update_consumer_offset(address, known_group, queue, -1)

    assert client.query_consumer_offset(address, known_group, queue) == 0
    with pytest.raises(OffsetNotFound):
        client.query_consumer_offset(address, known_group, queue, set_zero_if_not_found=False)


def test_offsets_are_kept_by_group_topic_and_queue(
    cluster: ClusterUnderTest, client: BrokerClient, address: str, known_group: str
) -> None:
    """F1: neither another queue nor another group sees them."""
    topic = cluster.create_topic(queues=2, brokers=["broker-a"])
    first, second = (MessageQueue(topic, "broker-a", queue_id) for queue_id in range(2))

    client.update_consumer_offset(address, known_group, first, 5)

    assert client.query_consumer_offset(address, known_group, first) == 5
    for group, queue in ((known_group, second), (cluster.unique_name("group"), first)):
        with pytest.raises(OffsetNotFound):
            client.query_consumer_offset(address, group, queue)


def test_a_group_no_broker_has_heard_of_cannot_commit(
    client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """F1: the group is made by a heartbeat or a pull, never by a commit (golden fact 13)."""
    with pytest.raises(BrokerError) as caught:
        client.update_consumer_offset(address, group, queue, 1)
    client.pull(address, PullRequest(consumer_group=group, queue=queue, queue_offset=0))
    client.update_consumer_offset(address, group, queue, 1)

    assert caught.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert client.query_consumer_offset(address, group, queue) == 1


def test_an_offset_of_an_unknown_topic_cannot_be_committed(
    client: BrokerClient, address: str, queue: MessageQueue, known_group: str
) -> None:
    """F1: code 17."""
    with pytest.raises(TopicNotFound):
        client.update_consumer_offset(address, known_group, queue._replace(topic="no-such-topic"), 1)


def test_a_broker_that_is_gone_is_no_first_start(
    cluster: ClusterUnderTest, queue: MessageQueue, group: str
) -> None:
    """F3: a failed query must never look like "not found"."""
    dead = "127.0.0.1:1"
    with ChannelPool(SystemClock()) as pool, pytest.raises(TransportError) as caught:
        BrokerClient(pool, SystemClock(), 1.0).query_consumer_offset(dead, group, queue)

    assert not isinstance(caught.value, BrokerError)
    assert dead in str(caught.value)


def test_bounds_of_a_queue_are_its_first_and_one_past_its_last_offset(
    client: BrokerClient, address: str, queue: MessageQueue, put: Put
) -> None:
    """F2: one by one and all at once."""
    empty = client.topic_stats(address, queue.topic)
    before_ms = int(time.time() * 1000)
    put(b"one", b"two", b"three")

    stats = client.topic_stats(address, queue.topic)

    assert empty == {queue: QueueBounds(min_offset=0, max_offset=0, last_update_timestamp=0)}
    assert (stats[queue].min_offset, stats[queue].max_offset) == (0, 3)
    assert before_ms <= stats[queue].last_update_timestamp <= time.time() * 1000
    assert (client.min_offset(address, queue), client.max_offset(address, queue)) == (0, 3)


def test_a_topic_s_statistics_name_every_queue_of_the_broker_asked(
    cluster: ClusterUnderTest, client: BrokerClient
) -> None:
    """F2: a broker speaks only for itself."""
    topic = cluster.create_topic(queues=3)

    for name, address in cluster.broker_addresses.items():
        assert set(client.topic_stats(address, topic)) == {
            MessageQueue(topic, name, queue_id) for queue_id in range(3)
        }


def test_an_unknown_topic_has_bounds_0_but_no_statistics(
    client: BrokerClient, address: str, queue: MessageQueue
) -> None:
    """F3: code 30 does not distinguish an unknown topic and an empty one; code 202 does."""
    unknown = queue._replace(topic="no-such-topic")

    assert client.max_offset(address, unknown) == 0
    with pytest.raises(TopicNotFound):
        client.topic_stats(address, unknown.topic)


def test_an_offset_by_time_is_that_of_the_first_message_stored_then_or_later(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """F2: CONSUME_FROM_TIMESTAMP; the time is the store's, in milliseconds, lower bound."""
    for body in (b"one", b"two", b"three"):
        put(body)
        _let_a_millisecond_pass()
    found = client.pull(address, PullRequest(consumer_group=group, queue=queue, queue_offset=0))
    stored_ms = [message.store_timestamp for message in decode_messages(found.body, "broker-a")]

    def search(timestamp_ms: int) -> int:
        return client.search_offset(address, queue, timestamp_ms)

    assert [search(at_ms) for at_ms in stored_ms] == [0, 1, 2]
    assert search(stored_ms[1] - 1) in {0, 1}  # 0 only if the first was stored in that very millisecond
    assert search(stored_ms[1] + 1) == 2
    assert search(0) == 0
    assert search(stored_ms[2] + 1) == 3


def test_an_offset_by_time_in_an_empty_queue_is_0(
    client: BrokerClient, address: str, queue: MessageQueue
) -> None:
    """F2: nothing stored."""
    assert client.search_offset(address, queue, int(time.time() * 1000)) == 0


def _let_a_millisecond_pass() -> None:
    begin_ms = int(time.time() * 1000)
    wait_until(lambda: int(time.time() * 1000) > begin_ms + 1)
