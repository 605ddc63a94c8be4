"""Sending, read back by pulling and decoding with the scalar codec."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.async_sends import AsyncSends
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.errors import (
    BrokerError,
    LocalProtocolError,
    NoPermission,
    TopicNotFound,
    TransportError,
)
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue, SendStatus
from pyspark_rocketmq.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from pyspark_rocketmq.wire.messages import MessageVersion, decode_messages, decode_stored_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import SendSettings, select_by_hash
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import REAL_ONLY, SIM_ONLY, ClusterUnderTest
from tests.helpers.wait import wait_until

SETTINGS = SendSettings(producer_group="tests", max_reconsume_times=16)
UNIQ_KEY = "7F000001ABCD18B4AAC2" + "0" * 12


@pytest.fixture
def producer(cluster: ClusterUnderTest, pool: ChannelPool) -> Iterator[Producer]:
    """A producer on this test's connections."""
    with Producer(cluster.name_servers, "tests", pool=pool, send_timeout_s=ANSWER_S) as producer:
        yield producer


def read_all(client: BrokerClient, address: str, queue: MessageQueue, end: int) -> list[MessageExt]:
    """The queue's messages up to ``end``, exclusive."""
    return decode_messages(read_raw(client, address, queue, end), queue.broker_name)


def read_raw(client: BrokerClient, address: str, queue: MessageQueue, end: int) -> bytes:
    """The same as stored bytes."""
    await_readable(client, address, queue, end)
    body, at = b"", 0
    while at < end:
        result = client.pull(address, PullRequest(consumer_group="readers", queue=queue, queue_offset=at))
        body, at = body + result.body, result.next_begin_offset
    return body


def test_a_message_comes_back_as_it_was_sent(client: BrokerClient, address: str, queue: MessageQueue) -> None:
    """G2: body, tag, keys, own properties and flag, in any script."""
    properties = {"TAGS": "Größe", "KEYS": "k1 k2", "UNIQ_KEY": UNIQ_KEY, "color": "红色", "empty?": " "}
    sent = Message(topic=queue.topic, body="payload \N{PARTY POPPER}".encode(), properties=properties, flag=7)
    before_ms = int(time.time() * 1000)

    result = client.send(address, sent, queue, SETTINGS)
    (read,) = read_all(client, address, queue, 1)

    assert (result.status, result.queue, result.queue_offset) == (SendStatus.SEND_OK, queue, 0)
    assert (read.topic, read.broker_name, read.queue_id, read.queue_offset) == (*queue, 0)
    assert (read.body, read.flag, read.tags, read.keys) == (sent.body, 7, "Größe", "k1 k2")
    assert (read.msg_id, result.msg_id) == (UNIQ_KEY, UNIQ_KEY)
    assert read.properties.items() >= properties.items()
    assert before_ms <= read.born_timestamp <= read.store_timestamp + 1000
    assert (read.store_host, read.reconsume_times, read.sys_flag) == (address, 0, 0)
    assert read.born_host.startswith("127.0.0.1:")


def test_the_broker_marks_what_it_stores(client: BrokerClient, address: str, queue: MessageQueue) -> None:
    """G2: properties that no producer sent."""
    client.send(address, Message(topic=queue.topic, body=b"x"), queue, SETTINGS)
    (read,) = read_all(client, address, queue, 1)

    assert read.properties["CLUSTER"] == "DefaultCluster"
    assert read.properties["MSG_REGION"] == "DefaultRegion"
    assert read.properties["TRACE_ON"] == "true"


def test_a_message_without_a_unique_key_is_given_one(
    client: BrokerClient, address: str, queue: MessageQueue
) -> None:
    """H6: the broker makes it up, so what is consumed always has one after an ordinary send."""
    client.send(address, Message(topic=queue.topic, body=b"x"), queue, SETTINGS)
    (read,) = read_all(client, address, queue, 1)

    assert read.msg_id == read.properties["UNIQ_KEY"]
    assert len(read.msg_id) in {32, 56}


def test_the_answer_s_message_id_says_where_the_message_is_stored(
    client: BrokerClient, address: str, queue: MessageQueue
) -> None:
    """E3: host and commit log offset, by which a message can be sent back."""
    result = client.send(address, Message(topic=queue.topic, body=b"x"), queue, SETTINGS)
    (read,) = read_all(client, address, queue, 1)

    assert decode_offset_message_id(result.offset_msg_id) == (address, read.commit_log_offset)


def test_messages_of_a_batch_follow_each_other_and_show_one_message_id(
    client: BrokerClient, address: str, queue: MessageQueue, producer: Producer
) -> None:
    """G2, H6: the broker appends the batch's properties to each,
    so all show the batch's key (golden fact 2).
    """
    batch = [
        Message(topic=queue.topic, body=b"%d" % n, properties={"TAGS": f"t{n}", "KEYS": f"k{n}"}, flag=n)
        for n in range(3)
    ]

    result = producer.send_batch(batch, queue)
    read = read_all(client, address, queue, 3)

    assert [(m.body, m.tags, m.keys, m.flag, m.queue_offset) for m in read] == [
        (b"%d" % n, f"t{n}", f"k{n}", n, n) for n in range(3)
    ]
    assert len({m.msg_id for m in read}) == 1
    assert len(set(result.msg_id.split(","))) == len(set(result.offset_msg_id.split(","))) == 3
    assert read[0].msg_id not in result.msg_id.split(",")
    assert result.queue_offset == 0


def test_a_large_body_travels_compressed_and_is_read_whole(
    client: BrokerClient, address: str, queue: MessageQueue, producer: Producer
) -> None:
    """G2: from 4 KiB on; after decoding the type bits stay, the compressed bit does not (golden fact 8)."""
    body = b"again and again " * 1000

    producer.send(Message(topic=queue.topic, body=body), queue=queue)
    producer.send(Message(topic=queue.topic, body=body[:4095]), queue=queue)
    (stored, small) = decode_stored_messages(read_raw(client, address, queue, 2))
    read = read_all(client, address, queue, 2)

    assert stored.sys_flag & MessageSysFlag.COMPRESSED
    assert len(stored.body) < 1000
    assert not small.sys_flag & MessageSysFlag.COMPRESSED
    assert [message.body for message in read] == [body, body[:4095]]
    assert [message.sys_flag for message in read] == [int(MessageSysFlag.COMPRESSION_ZLIB), 0]


@REAL_ONLY
def test_a_message_sent_back_comes_again_in_the_retry_topic(
    client: BrokerClient, address: str, queue: MessageQueue, cluster: ClusterUnderTest
) -> None:
    """E3: with its history; the topic of a long group is stored in the second layout (golden facts 3, 5)."""
    group = cluster.unique_name("g" * 125)
    client.heartbeat(
        address, HeartbeatData(client_id="client-1", consumers=(ConsumerData(group_name=group),))
    )
    client.send(address, Message(topic=queue.topic, body=b"again", properties={"TAGS": "t"}), queue, SETTINGS)
    (first,) = read_all(client, address, queue, 1)
    retry = MessageQueue(f"%RETRY%{group}", "broker-a", 0)

    client.send_message_back(address, first, group, 1, 16)
    raw = read_raw(client, address, retry, 1)
    (stored,), (second,) = decode_stored_messages(raw), decode_messages(raw, "broker-a")

    assert len(retry.topic) > 127
    magic_code = int.from_bytes(raw[4:8], "big", signed=True)
    assert (magic_code, stored.topic) == (MessageVersion.V2, retry.topic)
    assert (second.body, second.tags, second.reconsume_times) == (b"again", "t", 1)
    assert second.properties["RETRY_TOPIC"] == queue.topic
    assert decode_offset_message_id(second.properties["ORIGIN_MESSAGE_ID"]) == (
        address,
        first.commit_log_offset,
    )


def test_a_retry_of_a_group_that_holds_a_lock_is_a_dead_letter_at_once(
    client: BrokerClient, address: str, queue: MessageQueue, cluster: ClusterUnderTest
) -> None:
    """D6: orderly consumption gives up by an ordinary send to the retry topic (golden fact 20)."""
    group = cluster.unique_name("group")
    client.heartbeat(
        address, HeartbeatData(client_id="client-1", consumers=(ConsumerData(group_name=group),))
    )
    client.lock_batch(address, group, "client-1", [queue])
    retry = MessageQueue(f"%RETRY%{group}", "broker-a", 0)
    given_up = Message(topic=retry.topic, body=b"poison", properties={"RETRY_TOPIC": queue.topic})
    settings = SendSettings(producer_group="tests", reconsume_times=1, max_reconsume_times=3)

    client.send(address, given_up, retry, settings)
    (dead,) = read_all(client, address, retry._replace(topic=f"%DLQ%{group}"), 1)

    assert (dead.body, dead.reconsume_times) == (b"poison", 1)
    assert (dead.properties["RETRY_TOPIC"], dead.properties["DELAY"]) == (queue.topic, "-1")
    assert client.max_offset(address, retry) == 0


def test_messages_of_one_key_go_to_one_queue_in_order(
    client: BrokerClient, cluster: ClusterUnderTest, producer: Producer
) -> None:
    """G1, G6: the queue is the key's Java hash modulo the number of queues, in route order."""
    topic = cluster.create_topic(queues=2)
    queues = producer.queues(topic)
    keys = [f"order-{number}" for number in range(6)]

    for step in range(3):
        for key in keys:
            message = Message(topic=topic, body=f"{key}:{step}".encode(), properties={"KEYS": key})
            assert producer.send(message, sharding_key=key).status is SendStatus.SEND_OK

    assert len(queues) == 4
    for index, queue in enumerate(queues):
        of_queue = [key for key in keys if select_by_hash(key, len(queues)) == index]
        read = read_all(client, cluster.broker_addresses[queue.broker_name], queue, 3 * len(of_queue))
        assert [m.body.decode() for m in read] == [f"{key}:{step}" for step in range(3) for key in of_queue]


def test_messages_without_a_key_take_turns_over_all_queues(
    client: BrokerClient, cluster: ClusterUnderTest, producer: Producer
) -> None:
    """G3: round robin."""
    topic = cluster.create_topic(queues=2)

    results = [producer.send(Message(topic=topic, body=b"x")) for _ in range(8)]

    counts = {queue: [result.queue for result in results].count(queue) for queue in producer.queues(topic)}
    assert list(counts.values()) == [2, 2, 2, 2]


def test_the_first_message_creates_its_topic(cluster: ClusterUnderTest, producer: Producer) -> None:
    """A2, G2: with four queues on the broker that took it, which then appears in the route."""
    topic = cluster.unique_name("auto")

    result = producer.send(Message(topic=topic, body=b"first"))

    taken = {result.queue.broker_name}
    wait_until(lambda: cluster.routed_brokers(topic) == taken, ANSWER_S, reason="the new topic's route")
    assert result.queue.queue_id in range(4)
    wait_until(lambda: len(_fresh_queues(cluster, topic)) == 4, ANSWER_S, reason="four queues")


def test_ordered_messages_create_their_topic_on_every_broker(
    client: BrokerClient, cluster: ClusterUnderTest, producer: Producer
) -> None:
    """G1, G2: each key in the queue that it would have in a topic that was there before."""
    topic = cluster.unique_name("auto")
    keys = [f"order-{number}" for number in range(16)]

    for step in range(3):
        # Of the second call on the first broker may have the topic, and the other not.
        part = keys[:1] if step == 0 else keys
        sent = producer.send_ordered(
            (key, Message(topic=topic, body=f"{key}:{step}".encode())) for key in part
        )
        assert sent == len(part)

    queues = [MessageQueue(topic, f"broker-{name}", queue_id) for name in "ab" for queue_id in range(4)]
    for index, queue in enumerate(queues):
        of_queue = [key for key in keys if select_by_hash(key, 8) == index]
        wanted = [f"{key}:{step}" for step in range(3) for key in of_queue if step or key == keys[0]]
        read = read_all(client, cluster.broker_addresses[queue.broker_name], queue, len(wanted))
        assert [m.body.decode() for m in read] == wanted


def test_a_message_whose_properties_leave_a_batch_no_room_is_sent_by_itself(
    client: BrokerClient, address: str, queue: MessageQueue, producer: Producer
) -> None:
    """G2, H6: brokers do not check the sum, and damage their log if it is too long."""
    long = {"long": "x" * 32_300}
    messages = [
        Message(topic=queue.topic, body=b"%d" % n, properties=long if n == 2 else {}) for n in range(5)
    ]

    with pytest.raises(LocalProtocolError, match="Send it by itself"):
        producer.send_batch(messages, queue)
    assert producer.send_ordered(("key", message) for message in messages) == 5
    read = read_all(client, address, queue, 5)

    assert [message.body for message in read] == [b"0", b"1", b"2", b"3", b"4"]
    assert read[2].properties.items() >= long.items()
    # All messages of a batch show the batch's id.
    assert len({message.msg_id for message in read[:2]}) == len({message.msg_id for message in read[3:]}) == 1
    assert len({message.msg_id for message in read}) == 3


def test_a_send_to_a_queue_that_does_not_exist_is_refused(
    client: BrokerClient, address: str, queue: MessageQueue
) -> None:
    """G5: code 29; the message is not put elsewhere."""
    with pytest.raises(BrokerError) as caught:
        client.send(address, Message(topic=queue.topic, body=b"x"), queue._replace(queue_id=1), SETTINGS)

    assert caught.value.code == ResponseCode.INVALID_PARAMETER
    assert client.max_offset(address, queue) == 0


def test_a_topic_of_the_broker_s_own_is_closed_to_producers(
    client: BrokerClient, address: str, cluster: ClusterUnderTest
) -> None:
    """G2: code 16."""
    queue = MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 0)

    with pytest.raises(NoPermission):
        client.send(address, Message(topic=queue.topic, body=b"x"), queue, SETTINGS)


def test_an_unknown_topic_without_a_template_is_refused(
    client: BrokerClient, address: str, cluster: ClusterUnderTest
) -> None:
    """G2: code 17."""
    queue = MessageQueue(cluster.unique_name("absent"), "broker-a", 0)
    settings = SendSettings(producer_group="tests", default_topic="no-such-template")

    with pytest.raises(TopicNotFound):
        client.send(address, Message(topic=queue.topic, body=b"x"), queue, settings)


def test_ordinary_sends_go_on_while_a_broker_is_away_and_ordered_ones_fail(
    client: BrokerClient, cluster: ClusterUnderTest, producer: Producer
) -> None:
    """G3, G5: a key's message never goes to another queue than its own."""
    topic = cluster.create_topic(queues=1)
    key_of_b = next(key for key in map(str, range(10)) if select_by_hash(key, 2) == 1)
    assert (
        producer.send(Message(topic=topic, body=b"x"), sharding_key=key_of_b).queue.broker_name == "broker-b"
    )

    cluster.stop_broker("broker-b")
    with pytest.raises(TransportError):
        producer.send(Message(topic=topic, body=b"x"), queue=MessageQueue(topic, "broker-b", 0))
    results = [producer.send(Message(topic=topic, body=b"x")) for _ in range(4)]
    begun = [AsyncSends(producer).send(Message(topic=topic, body=b"x")) for _ in range(4)]
    results += [each.result(3 * ANSWER_S) for each in begun]

    assert {result.queue.broker_name for result in results} == {"broker-a"}


@SIM_ONLY
def test_an_asynchronous_send_that_is_cut_off_is_repeated_with_the_same_key(
    client: BrokerClient, cluster: ClusterUnderTest, producer: Producer
) -> None:
    """G3: cut off before it is stored, and after: then it is there twice."""
    topic = cluster.create_topic(queues=1)
    code = int(RequestCode.SEND_MESSAGE_V2)
    cluster.faults.add("drop-before", on=code)
    cluster.faults.add("cut", on=code)

    result = AsyncSends(producer).send(Message(topic=topic, body=b"x")).result(3 * ANSWER_S)
    queues = [MessageQueue(topic, name, 0) for name in ("broker-a", "broker-b")]
    stored = [
        m for one in queues for m in read_all(client, cluster.broker_addresses[one.broker_name], one, 1)
    ]

    assert {message.msg_id for message in stored} == {result.msg_id}
    assert len(stored) == 2


def _fresh_queues(cluster: ClusterUnderTest, topic: str) -> tuple[MessageQueue, ...]:
    with Producer(cluster.name_servers, "tests", send_timeout_s=ANSWER_S) as newcomer:
        return newcomer.queues(topic)
