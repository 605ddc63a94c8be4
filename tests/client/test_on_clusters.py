"""The whole client on both kinds of cluster: what the scripted peers cannot prove."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from queue import SimpleQueue

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import OffsetNotFound, TopicNotFound, TransportError
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue
from pyspark_rocketmq.wire.codes import PullSysFlag
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, PullStatus
from pyspark_rocketmq.wire.requests.send import select_by_hash
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import PATIENCE_S, wait_until

GROUP = "client-tests"
TIMEOUT_S = PATIENCE_S


@pytest.fixture
def brokers(pool: ChannelPool) -> BrokerClient:
    return BrokerClient(pool, SystemClock(), TIMEOUT_S)


@pytest.fixture
def producer(cluster: ClusterUnderTest, pool: ChannelPool) -> Iterator[Producer]:
    with Producer(cluster.name_servers, "client-tests-producer", pool=pool, send_timeout_s=TIMEOUT_S) as made:
        yield made


def read_all(
    brokers: BrokerClient, cluster: ClusterUnderTest, queues: Iterable[MessageQueue], count: int
) -> list[MessageExt]:
    """All ``count`` messages of the queues, each queue pulled from its beginning to its end."""
    ends = {queue: cluster.broker_addresses[queue.broker_name] for queue in queues}
    # The real broker builds its queues a moment after it has answered a send.
    wait_until(lambda: sum(brokers.max_offset(address, queue) for queue, address in ends.items()) == count)
    return [message for queue, address in ends.items() for message in read_queue(brokers, address, queue)]


def read_queue(brokers: BrokerClient, address: str, queue: MessageQueue) -> list[MessageExt]:
    messages: list[MessageExt] = []
    while True:
        request = PullRequest(consumer_group=GROUP, queue=queue, queue_offset=len(messages))
        result = brokers.pull(address, request)
        if result.status is not PullStatus.FOUND:
            return messages
        messages += decode_messages(result.body, queue.broker_name)


def test_messages_of_one_key_are_stored_in_order_in_the_queue_java_would_choose(
    cluster: ClusterUnderTest, producer: Producer, brokers: BrokerClient
) -> None:
    """G1 ★: single sends and batches, over two brokers."""
    topic = cluster.create_topic(queues=2)
    steps = [(f"order-{number % 5}", number) for number in range(300)]
    for key, number in steps[:20]:
        producer.send(Message(topic=topic, body=b"%d" % number, properties={"KEYS": key}), sharding_key=key)
    producer.send_ordered(
        (key, Message(topic=topic, body=b"%d" % number, properties={"KEYS": key}))
        for key, number in steps[20:]
    )
    queues = producer.queues(topic)
    read = read_all(brokers, cluster, queues, 300)

    assert len(queues) == 4
    assert len(read) == 300
    for key in {key for key, _ in steps}:
        own = [message for message in read if message.keys == key]
        assert {message.message_queue for message in own} == {queues[select_by_hash(key, 4)]}
        assert [int(message.body) for message in own] == [number for name, number in steps if name == key]


def test_a_message_comes_back_as_it_was_sent(
    cluster: ClusterUnderTest, producer: Producer, brokers: BrokerClient
) -> None:
    """G2 ★: compressed or not, with its id, tags, keys and properties."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    queue = producer.queues(topic)[0]
    large = Message(
        topic=topic, body=b"paid " * 2000, properties={"TAGS": "paid", "KEYS": "k1", "note": "订单"}
    )
    result = producer.send(large, queue=queue)
    (message,) = read_all(brokers, cluster, [queue], 1)

    assert (message.body, message.tags, message.keys) == (large.body, "paid", "k1")
    assert message.properties["note"] == "订单"
    assert message.msg_id == result.msg_id
    assert (message.queue_offset, result.queue_offset) == (0, 0)


def test_a_missing_topic_is_created_by_the_first_send(cluster: ClusterUnderTest, producer: Producer) -> None:
    """G2 ★: through TBW102, four queues at most."""
    topic = cluster.unique_name("auto")
    expected = producer.queues(topic)
    result = producer.send(Message(topic=topic, body=b"first"), queue=expected[0])
    created = wait_until(
        lambda: [queue for queue in producer.queues(topic) if queue.broker_name == expected[0].broker_name]
    )

    assert result.queue == expected[0]
    assert len(created) == 4


def test_a_stored_offset_is_found_and_a_missing_one_raises(
    cluster: ClusterUnderTest, producer: Producer, brokers: BrokerClient
) -> None:
    """F3 ★: code 22 is the only "not found"; a topic that does not exist is none either."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    queue = producer.queues(topic)[0]
    address = cluster.broker_addresses["broker-a"]
    read_queue(brokers, address, queue)  # makes the group known to the broker
    with pytest.raises(OffsetNotFound):
        brokers.query_consumer_offset(address, GROUP, queue, set_zero_if_not_found=False)
    brokers.update_consumer_offset(address, GROUP, queue, 5)

    assert brokers.query_consumer_offset(address, GROUP, queue, set_zero_if_not_found=False) == 5
    with pytest.raises(TopicNotFound):
        brokers.update_consumer_offset(address, GROUP, MessageQueue("no-such-topic", "broker-a", 0), 5)


def test_a_held_pull_is_answered_when_a_message_comes(
    cluster: ClusterUnderTest, producer: Producer, brokers: BrokerClient
) -> None:
    """A1 ★: other requests go on over the same connection meanwhile."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    queue = producer.queues(topic)[0]
    address = cluster.broker_addresses["broker-a"]
    outcomes: SimpleQueue[object] = SimpleQueue()
    brokers.pull_async(
        address,
        PullRequest(
            consumer_group=GROUP,
            queue=queue,
            queue_offset=0,
            sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND,
            suspend_timeout_millis=120_000,
        ),
        outcomes.put,
    )
    assert brokers.max_offset(address, queue) == 0
    assert outcomes.empty()
    producer.send(Message(topic=topic, body=b"now"), queue=queue)
    outcome = outcomes.get(timeout=TIMEOUT_S)

    assert isinstance(outcome, PullResult)
    assert (outcome.status, outcome.next_begin_offset) == (PullStatus.FOUND, 1)


def test_the_bounds_of_all_queues_come_in_one_answer(
    cluster: ClusterUnderTest, producer: Producer, brokers: BrokerClient
) -> None:
    """A1 ★: the illegal JSON of a table keyed by queues is read."""
    topic = cluster.create_topic(queues=3, brokers=["broker-b"])
    queue = producer.queues(topic)[1]
    producer.send_batch([Message(topic=topic, body=b"x")] * 7, queue)
    address = cluster.broker_addresses["broker-b"]
    read_all(brokers, cluster, [queue], 7)
    stats = brokers.topic_stats(address, topic)

    assert {at.queue_id: bounds.max_offset for at, bounds in stats.items()} == {0: 0, 1: 7, 2: 0}
    assert brokers.min_offset(address, queue) == 0
    assert brokers.search_offset(address, queue, 1) == 0


def test_the_next_name_server_is_asked_when_the_first_is_gone(
    cluster: ClusterUnderTest, pool: ChannelPool
) -> None:
    """A2 ★: a dead address in the list does no harm."""
    topic = cluster.create_topic(queues=2)
    client = NameServerClient(("127.0.0.1:1", cluster.name_servers), pool, SystemClock(), TIMEOUT_S)

    assert len(client.route(topic, Deadline.after(SystemClock(), TIMEOUT_S)).subscribe_queues(topic)) == 4


def test_an_ordered_send_to_a_stopped_broker_fails_and_works_again_after_its_return(
    cluster: ClusterUnderTest, producer: Producer
) -> None:
    """G5, A2: the error surfaces, the connection is made again."""
    topic = cluster.create_topic(queues=1)
    queue = next(queue for queue in producer.queues(topic) if queue.broker_name == "broker-b")
    producer.send(Message(topic=topic, body=b"before"), queue=queue)
    cluster.stop_broker("broker-b")
    with pytest.raises(TransportError):
        producer.send(Message(topic=topic, body=b"meanwhile"), queue=queue)
    elsewhere = producer.send(Message(topic=topic, body=b"anywhere"))
    cluster.start_broker("broker-b")

    def is_back() -> bool:
        try:
            return producer.send(Message(topic=topic, body=b"after"), queue=queue).queue == queue
        except TransportError:
            return False

    assert elsewhere.queue.broker_name == "broker-a"
    assert wait_until(is_back)
