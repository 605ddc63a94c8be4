"""Two clients on one broker, one with JSON headers and one with binary ones:
the broker cannot distinguish them.

Our client writes JSON, because a broker of version 5 answers in JSON whatever it was asked in.
Here everything it can ask for is put into the other form, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue, retry_topic
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import Batch, SendSettings
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.conftest import Put
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.wait import wait_until

_SETTINGS = SendSettings(producer_group="forms")
_DELAY_AT_ONCE = -1
"""Straight to the dead-letter topic."""
_OWN_PORT = re.compile(r"consumer:\[/127\.0\.0\.1:\d+\]")


@pytest.fixture
def binary(pushes: SimpleQueue[RemotingCommand]) -> Iterator[BrokerClient]:
    """A client all of whose headers are binary."""

    def in_binary(command: RemotingCommand) -> RemotingCommand:
        return replace(command, serialize_type=SerializeType.ROCKETMQ)

    with ChannelPool(SystemClock(), handler_for=lambda _: pushes.put, signer=in_binary) as pool:
        yield BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)


@pytest.fixture
def clients(client: BrokerClient, binary: BrokerClient) -> tuple[BrokerClient, BrokerClient]:
    """One with JSON headers, one with binary ones."""
    return client, binary


def _pulled(client: BrokerClient, address: str, queue: MessageQueue) -> tuple[list[MessageExt], int]:
    result = client.pull(address, PullRequest(consumer_group="forms-reader", queue=queue, queue_offset=0))
    return list(decode_messages(result.body, queue.broker_name)), result.next_begin_offset


def test_what_one_form_sends_the_other_pulls(
    clients: tuple[BrokerClient, BrokerClient], address: str, queue: MessageQueue
) -> None:
    """A1, G1, G2: single, batch and oneway sends; keys and properties beyond ASCII."""
    client, binary = clients
    for number, sender in enumerate(clients):
        message = Message(topic=queue.topic, body=b"one", properties={"KEYS": "schlüssel 订单", "a": "é"})
        start = 4 * number
        assert sender.send(address, message, queue, _SETTINGS).queue_offset == start
        pair = (Message(topic=queue.topic, body=b"two"), Message(topic=queue.topic, body=b"three"))
        assert (
            sender.send_batch(
                address, Batch(queue=queue, messages=pair, properties={}), _SETTINGS
            ).queue_offset
            == start + 1
        )
        sender.send_oneway(address, message, queue, _SETTINGS)
        await_readable(client, address, queue, start + 4)

    in_json, next_offset = _pulled(client, address, queue)
    assert (in_json, next_offset) == _pulled(binary, address, queue)
    assert [message.body for message in in_json] == [b"one", b"two", b"three", b"one"] * 2
    assert {in_json[at].properties["a"] for at in (0, 3, 4, 7)} == {"é"}


def test_offsets_are_the_same_in_both_forms(
    clients: tuple[BrokerClient, BrokerClient], address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """F1, F5: bounds, times, what is stored for a group."""
    client, binary = clients
    put(b"a", b"b", b"c")
    binary.heartbeat(address, _beat(group, "client-1", queue.topic))
    questions: dict[str, Callable[[BrokerClient], Any]] = {
        "first": lambda asked: asked.min_offset(address, queue),
        "end": lambda asked: asked.max_offset(address, queue),
        "at a time": lambda asked: asked.search_offset(address, queue, 0),
        "bounds": lambda asked: asked.topic_stats(address, queue.topic),
        "committed": lambda asked: asked.query_consumer_offset(address, group, queue),
    }
    for value, writer in ((1, binary), (2, client)):
        writer.update_consumer_offset(address, group, queue, value)
        wait_until(partial(lambda wanted: questions["committed"](client) == wanted, value), ANSWER_S)
        for question in questions.values():
            assert question(client) == question(binary)


def test_members_of_both_forms_are_one_group_and_lock_each_other_out(
    clients: tuple[BrokerClient, BrokerClient],
    address: str,
    queue: MessageQueue,
    group: str,
    pushes: SimpleQueue[RemotingCommand],
) -> None:
    """A3, B1, C1: heartbeats, member list, notifications, locks, goodbye."""
    client, binary = clients
    client.heartbeat(address, _beat(group, "in-json", queue.topic))
    binary.heartbeat(address, _beat(group, "in-binary", queue.topic))
    assert sorted(client.consumer_list(address, group)) == ["in-binary", "in-json"]
    assert sorted(binary.consumer_list(address, group)) == ["in-binary", "in-json"]
    assert pushes.get(timeout=ANSWER_S).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    assert binary.lock_batch(address, group, "in-binary", [queue]) == {queue}
    assert client.lock_batch(address, group, "in-json", [queue]) == frozenset()
    binary.unlock_batch(address, group, "in-binary", [queue])
    assert client.lock_batch(address, group, "in-json", [queue]) == {queue}
    assert binary.lock_batch(address, group, "in-binary", [queue]) == frozenset()

    binary.unregister(address, "in-binary", consumer_group=group)
    assert client.consumer_list(address, group) == ("in-json",)


def test_a_message_is_sent_back_in_binary(
    clients: tuple[BrokerClient, BrokerClient], address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """E1: the dead letter is the one that a JSON header makes."""
    client, _ = clients
    put(b"a", b"b")
    client.heartbeat(address, _beat(group, "client-1", queue.topic))
    messages, _ = _pulled(client, address, queue)
    for sender, message in zip(clients, messages, strict=True):
        sender.send_message_back(address, message, group, _DELAY_AT_ONCE, 16)
    dead = MessageQueue(retry_topic(group).replace("%RETRY%", "%DLQ%"), queue.broker_name, 0)
    await_readable(client, address, dead, 2)

    letters, _ = _pulled(client, address, dead)
    assert [letter.body for letter in letters] == [b"a", b"b"]
    assert letters[0].properties.keys() == letters[1].properties.keys()


@pytest.mark.parametrize(
    "question",
    [
        lambda asked, address, queue: asked.topic_stats(address, f"{queue.topic}-absent"),
        lambda asked, address, queue: asked.consumer_list(address, f"{queue.topic}-group"),
        lambda asked, address, queue: asked.query_consumer_offset(
            address, f"{queue.topic}-group", queue, set_zero_if_not_found=False
        ),
        lambda asked, address, queue: _pulled(asked, address, queue._replace(queue_id=99)),
    ],
    ids=["topic", "group", "offset", "queue"],
)
def test_an_error_is_the_same_in_both_forms(
    clients: tuple[BrokerClient, BrokerClient],
    address: str,
    queue: MessageQueue,
    question: Callable[..., Any],
) -> None:
    """A1: the same class with the same text."""
    errors = []
    for asked in clients:
        with pytest.raises(RocketMQError) as caught:
            question(asked, address, queue)
        errors.append((type(caught.value), _OWN_PORT.sub("", str(caught.value))))
    assert errors[0] == errors[1]


def _beat(group: str, client_id: str, topic: str) -> HeartbeatData:
    subscription = build_subscription(topic, "*", sub_version=1)
    consumer = ConsumerData(group_name=group, subscriptions=(subscription,))
    return HeartbeatData(client_id=client_id, consumers=(consumer,))
