"""Messages that are sent back, on real and simulated brokers: where they come again, where they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from broker_sim.bodies import SubscriptionGroupConfig
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import DeadLetterRefused
from pyspark_rocketmq.group.retry_queues import warn_of_dropped_retries
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue, dlq_topic, retry_topic
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import SendSettings
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.administrator import Administrator
from tests.helpers.cluster import ClusterUnderTest

SETTINGS = SendSettings(producer_group="tests")


@pytest.fixture
def settings(cluster: ClusterUnderTest, group: str) -> SendBackSettings:
    return SendBackSettings(
        name_servers=(cluster.name_servers,),
        consumer_group=group,
        back_timeout_s=ANSWER_S,
        send_timeout_s=ANSWER_S,
    )


@pytest.fixture
def send_back(
    settings: SendBackSettings, client: BrokerClient, address: str, queue: MessageQueue
) -> SendBack:
    """Of a group that has shown itself to broker-a, which then has its retry topic."""
    group = settings.consumer_group
    subscriptions = tuple(
        build_subscription(topic, "*", sub_version=1) for topic in (queue.topic, retry_topic(group))
    )
    consumer = ConsumerData(group_name=group, subscriptions=subscriptions)
    client.heartbeat(address, HeartbeatData(client_id="me", consumers=(consumer,)))
    return SendBack(settings)


@pytest.fixture
def failed(client: BrokerClient, address: str, queue: MessageQueue) -> MessageExt:
    """A message as a consumer gets it."""
    sent = Message(topic=queue.topic, body=b"again", properties={"KEYS": "k", "TAGS": "t"}, flag=7)
    client.send(address, sent, queue, SETTINGS)
    return first_of(client, address, queue)


def first_of(client: BrokerClient, address: str, queue: MessageQueue) -> MessageExt:
    await_readable(client, address, queue, 1)
    result = client.pull(address, PullRequest(consumer_group="readers", queue=queue, queue_offset=0))
    return decode_messages(result.body, queue.broker_name)[0]


@pytest.fixture
def arrived(client: BrokerClient, address: str) -> Callable[[str], MessageExt]:
    """Waits for the first message of a topic."""
    return lambda topic: first_of(client, address, MessageQueue(topic, "broker-a", 0))


def test_a_message_comes_again_in_the_retry_topic(
    send_back: SendBack, failed: MessageExt, arrived: Callable[[str], MessageExt], address: str, group: str
) -> None:
    """E3: whole, with one attempt more, the topic it belongs to and where the first copy lies."""
    send_back.send(failed, delay_level=1, max_reconsume_times=16)
    again = arrived(retry_topic(group))

    assert (again.body, again.keys, again.tags, again.flag) == (b"again", "k", "t", 7)
    assert (again.reconsume_times, again.msg_id) == (1, failed.msg_id)
    assert (again.properties["RETRY_TOPIC"], again.properties["DELAY"]) == (failed.topic, "1")
    origin = decode_offset_message_id(again.properties["ORIGIN_MESSAGE_ID"])
    assert origin == (address, failed.commit_log_offset)


@pytest.mark.parametrize("terms", [(-1, 16), (0, 0)], ids=["asked for", "tried too often"])
def test_a_message_ends_among_the_dead_letters(
    send_back: SendBack, failed: MessageExt, arrived: Callable[[str], MessageExt], terms: tuple[int, ...]
) -> None:
    """E3, E8: at once when the listener says so, else after the last attempt."""
    level, most = terms
    send_back.send(failed, delay_level=level, max_reconsume_times=most)
    dead = arrived(dlq_topic(send_back.consumer_group))

    assert (dead.body, dead.reconsume_times) == (b"again", 1)
    assert (dead.properties["RETRY_TOPIC"], dead.properties["DELAY"]) == (failed.topic, "0")


def test_a_message_its_broker_cannot_find_is_sent_again(
    send_back: SendBack, failed: MessageExt, arrived: Callable[[str], MessageExt], group: str
) -> None:
    """E3: by an ordinary send; here the last attempt,
    so that the broker keeps it as a dead letter at once.
    """
    lost = failed._replace(commit_log_offset=failed.commit_log_offset + 10**9)

    send_back.send(lost, delay_level=0, max_reconsume_times=0)
    dead = arrived(dlq_topic(group))

    assert (dead.body, dead.keys, dead.tags, dead.flag) == (b"again", "k", "t", 7)
    assert (dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (1, failed.topic)
    assert dead.properties["ORIGIN_MESSAGE_ID"] == failed.msg_id


def test_a_message_of_a_broker_that_is_away_is_kept_by_another(
    cluster: ClusterUnderTest, settings: SendBackSettings, client: BrokerClient, pool: ChannelPool, group: str
) -> None:
    """E3: nothing is lost with the broker that stored it."""
    topic = cluster.create_topic(queues=1)
    cluster.create_topic(retry_topic(group), queues=1)
    with Producer(cluster.name_servers, "tests", pool=pool, send_timeout_s=ANSWER_S) as producer:
        (queue,) = [one for one in producer.queues(topic) if one.broker_name == "broker-b"]
        producer.send(Message(topic=topic, body=b"again"), queue=queue)
    failed = first_of(client, cluster.broker_addresses["broker-b"], queue)
    subscription = build_subscription(retry_topic(group), "*", sub_version=1)
    member = ConsumerData(group_name=group, subscriptions=(subscription,))
    address = cluster.broker_addresses["broker-a"]
    client.heartbeat(address, HeartbeatData(client_id="me", consumers=(member,)))
    cluster.stop_broker("broker-b")

    send_back = SendBack(replace(settings, back_timeout_s=3.0))
    send_back.send(failed, delay_level=0, max_reconsume_times=0)

    first_of(client, address, MessageQueue(dlq_topic(group), "broker-a", 0))


@pytest.mark.parametrize("holds_lock", [True, False])
def test_an_orderly_consumer_s_message_is_a_dead_letter_by_an_ordinary_send(
    send_back: SendBack,
    failed: MessageExt,
    arrived: Callable[[str], MessageExt],
    client: BrokerClient,
    address: str,
    *,
    holds_lock: bool,
) -> None:
    """D6: one attempt more than there may be, so the broker keeps it;
    with a lock held it does so in any case.

    DELAY is "-1", other than that of a message sent back (golden fact 3).
    """
    if holds_lock:
        client.lock_batch(address, send_back.consumer_group, "me", [failed.message_queue])
    send_back.send_as_retry(failed._replace(reconsume_times=2), max_reconsume_times=9 if holds_lock else 2)
    dead = arrived(dlq_topic(send_back.consumer_group))

    assert (dead.body, dead.keys, dead.tags, dead.flag) == (b"again", "k", "t", 7)
    assert (dead.reconsume_times, dead.properties["RECONSUME_TIME"]) == (3, "3")
    assert (dead.properties["RETRY_TOPIC"], dead.properties["DELAY"]) == (failed.topic, "-1")
    assert dead.properties["ORIGIN_MESSAGE_ID"] == failed.msg_id


def test_a_dead_letter_whose_properties_grow_too_large_is_stored(
    send_back: SendBack,
    client: BrokerClient,
    address: str,
    queue: MessageQueue,
    arrived: Callable[[str], MessageExt],
) -> None:
    """D6: the broker that has the message copies it, and adds less."""
    client.send(
        address, Message(topic=queue.topic, body=b"wide", properties={"w": "x" * 32_450}), queue, SETTINGS
    )
    wide = first_of(client, address, queue)

    send_back.send_as_dead_letter(wide, max_reconsume_times=0)

    assert arrived(dlq_topic(send_back.consumer_group)).body == b"wide"


def test_a_dead_letter_is_not_given_to_a_broker_that_would_drop_it(
    settings: SendBackSettings, client: BrokerClient, pool: ChannelPool, address: str, queue: MessageQueue
) -> None:
    """D6, E3 ★: with retryQueueNums=0 it answers SUCCESS to the copy, too, and keeps nothing."""
    group = SubscriptionGroupConfig(group_name=settings.consumer_group, retry_queue_nums=0)
    Administrator(pool, SystemClock(), ANSWER_S).put_group(address, group)
    client.send(
        address, Message(topic=queue.topic, body=b"wide", properties={"w": "x" * 32_590}), queue, SETTINGS
    )

    with pytest.raises(DeadLetterRefused, match=r"drops messages that group .*retryQueueNums=0"):
        SendBack(settings).send_as_dead_letter(first_of(client, address, queue), max_reconsume_times=0)


@pytest.mark.parametrize("length", [121, 130])
def test_a_group_with_a_long_name_has_dead_letters_as_far_as_its_topic_can_be(
    settings: SendBackSettings, failed: MessageExt, arrived: Callable[[str], MessageExt], length: int
) -> None:
    """D6: up to 122 characters brokers copy the message; above it waits, and the error says why."""
    group = settings.consumer_group.ljust(length, "g")
    send_back = SendBack(replace(settings, consumer_group=group))

    if length > 122:
        with pytest.raises(DeadLetterRefused, match=r"longer than topic max length.*MESSAGE_ILLEGAL"):
            send_back.send_as_dead_letter(failed, max_reconsume_times=0)
        return
    send_back.send_as_dead_letter(failed, max_reconsume_times=0)
    assert arrived(dlq_topic(group)).body == b"again"


def test_a_namespace_s_message_comes_again_inside_it(
    cluster: ClusterUnderTest, settings: SendBackSettings, pool: ChannelPool, address: str, group: str
) -> None:
    """A6, E3: retry topic and RETRY_TOPIC have the namespace, as a Java consumer expects them."""
    namespace = cluster.unique_name("shop")
    inside = BrokerClient(pool, SystemClock(), ANSWER_S, namespace=namespace)
    queue = MessageQueue(cluster.unique_name(), "broker-a", 0)
    cluster.create_topic(f"{namespace}%{queue.topic}", queues=1, brokers=["broker-a"])
    member = ConsumerData(group_name=group, subscriptions=())
    inside.heartbeat(address, HeartbeatData(client_id="me", consumers=(member,)))
    inside.send(address, Message(topic=queue.topic, body=b"again"), queue, SETTINGS)
    failed = first_of(inside, address, queue)._replace(topic=queue.topic)

    SendBack(replace(settings, namespace=namespace)).send(failed, delay_level=1, max_reconsume_times=16)
    again = first_of(inside, address, MessageQueue(retry_topic(group), "broker-a", 0))

    assert again.topic == f"%RETRY%{namespace}%{group}"
    assert again.properties["RETRY_TOPIC"] == f"{namespace}%{queue.topic}"


def test_brokers_that_drop_what_a_group_sends_back_are_named_in_a_warning(
    cluster: ClusterUnderTest, pool: ChannelPool, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """E3 ★: with retryQueueNums=0 such a broker answers SUCCESS, so nothing else would show it."""
    topic = cluster.create_topic(queues=1)
    admin = Administrator(pool, SystemClock(), ANSWER_S)
    addresses = cluster.broker_addresses
    admin.put_group(addresses["broker-a"], SubscriptionGroupConfig(group_name=group))
    admin.put_group(addresses["broker-b"], SubscriptionGroupConfig(group_name=group, retry_queue_nums=0))
    given = {"nameServers": cluster.name_servers, "topic": topic, "offsetStore": "memory:retries"}

    def warnings(of_group: str) -> list[str]:
        caplog.clear()
        options = ReadOptions.parse({**given, "consumerGroup": of_group, "consumeOrderly": "false"})
        warn_of_dropped_retries(options, SystemClock())
        return caplog.messages

    [warning] = warnings(group)
    assert "messages that the listener fails on are lost" in warning
    assert f"updateSubGroup -n NAMESRV -c CLUSTER -g {group} -q 1" in warning
    assert warning.endswith("brokers=broker-b")
    assert warnings(f"{group}-unknown") == []
