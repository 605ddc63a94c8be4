"""Java's DefaultLitePullConsumer on either kind of cluster."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.both.conftest import Put
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients

_BROKER = "broker-a"
_POLL_MILLIS = 60_000
_SETTINGS = SendSettings(producer_group="tests")


class Lite:
    """One consumer in a group of the same name."""

    def __init__(self, java: JavaClients, name: str) -> None:
        self.name = name
        self._is_started = False
        self._java = java

    def start(self, **how: object) -> None:
        self._java.call("lite.start", name=self.name, group=self.name, **how)
        self._is_started = True

    def stop(self) -> None:
        """Shut it down and wait for that."""
        self._is_started = False
        self.call("stop")

    def end(self) -> None:
        """Begin its shutdown unless it has begun; it takes seconds in which nothing of interest happens."""
        if self._is_started:
            self._java.submit("lite.stop", name=self.name)

    def call(self, what: str, **arguments: object) -> Any:
        return self._java.call(f"lite.{what}", name=self.name, **arguments)

    def poll(self, at_least: int, *, millis: int = _POLL_MILLIS) -> list[tuple[int, int, str]]:
        """Return queue id, queue offset and body of the new messages."""
        read = self.call("poll", count=at_least, timeoutMillis=millis)
        return [
            (each["queueId"], each["queueOffset"], base64.b64decode(each["body"]).decode()) for each in read
        ]


@pytest.fixture
def lite(java: JavaClients, cluster: ClusterUnderTest) -> Iterator[Lite]:
    """Yield a consumer that is stopped after the test."""
    consumer = Lite(java, cluster.unique_name("lite"))
    yield consumer
    consumer.end()


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    """Return a new topic with two queues on one broker."""
    return cluster.create_topic(queues=2, brokers=[_BROKER])


@pytest.fixture
def put(client: BrokerClient, cluster: ClusterUnderTest) -> Callable[..., None]:
    """Store bodies in a queue, each with properties if a pair."""
    address = cluster.broker_addresses[_BROKER]

    def put_bodies(topic: str, queue_id: int, *bodies: str, **properties: str) -> None:
        queue = MessageQueue(topic, _BROKER, queue_id)
        for body in bodies:
            message = Message(topic=topic, body=body.encode(), properties=properties)
            end = client.send(address, message, queue, _SETTINGS).queue_offset + 1
            await_readable(client, address, queue, end)

    return put_bodies


def java_queue(topic: str, queue_id: int) -> dict[str, object]:
    return {"topic": topic, "brokerName": _BROKER, "queueId": queue_id}


def await_committed(
    cluster: ClusterUnderTest, client: BrokerClient, group: str, topic: str, offsets: list[int]
) -> None:
    """Wait until these are the group's at the broker for queues 0 and on:
    they are sent without waiting for an answer.
    """

    def committed() -> list[int]:
        address = cluster.broker_addresses[_BROKER]
        queues = [MessageQueue(topic, _BROKER, queue_id) for queue_id in range(len(offsets))]
        return [client.query_consumer_offset(address, group, queue) for queue in queues]

    wait_until(lambda: committed() == offsets, ANSWER_S, reason=f"Offsets {offsets} of {group}")


def test_a_subscriber_polls_everything_and_its_commit_reaches_the_broker(
    lite: Lite, topic: str, put: Put, cluster: ClusterUnderTest, client: BrokerClient
) -> None:
    """A1, F6: all queues are assigned to the only member;
    shutdown sends the committed offset (golden fact 14).
    """
    put(topic, 0, "a0", "a1", "a2")
    put(topic, 1, "b0", "b1")
    lite.start(topic=topic, tags="*")

    read = lite.poll(5)
    lite.call("commit")

    assert sorted(read) == [(0, 0, "a0"), (0, 1, "a1"), (0, 2, "a2"), (1, 0, "b0"), (1, 1, "b1")]
    assert lite.call("assignment") == [java_queue(topic, 0), java_queue(topic, 1)]
    lite.stop()
    await_committed(cluster, client, lite.name, topic, [3, 2])


def test_assigned_queues_are_read_from_where_the_seek_went(lite: Lite, topic: str, put: Put) -> None:
    """A1: seek to an offset, the end and the beginning."""
    put(topic, 0, "a0", "a1", "a2")
    put(topic, 1, "b0")
    lite.start(assign=[java_queue(topic, 0)])
    assert lite.poll(3) == [(0, 0, "a0"), (0, 1, "a1"), (0, 2, "a2")]

    lite.call("seek", queue=java_queue(topic, 0), to="1")
    assert lite.poll(2) == [(0, 1, "a1"), (0, 2, "a2")]

    lite.call("seek", queue=java_queue(topic, 0), to="end")
    put(topic, 0, "a3")
    assert lite.poll(1) == [(0, 3, "a3")]

    lite.call("seek", queue=java_queue(topic, 0), to="begin")
    assert lite.poll(4) == [(0, 0, "a0"), (0, 1, "a1"), (0, 2, "a2"), (0, 3, "a3")]


def test_the_offset_of_a_timestamp_is_the_first_message_since(lite: Lite, topic: str, put: Put) -> None:
    """F5: searched by the broker."""
    put(topic, 0, "a0", "a1")
    lite.start(assign=[java_queue(topic, 0)])

    queue = java_queue(topic, 0)
    assert lite.call("offsetForTimestamp", queue=queue, timestamp=0) == 0
    assert lite.call("offsetForTimestamp", queue=queue, timestamp=9_999_999_999_999) == 2


def test_a_group_goes_on_where_it_committed(
    java: JavaClients, cluster: ClusterUnderTest, topic: str, put: Put, client: BrokerClient
) -> None:
    """F1, F6: a second consumer of the group reads the rest."""
    put(topic, 0, "a0", "a1")
    group = cluster.unique_name("lite")
    java.call("lite.start", name=group, group=group, topic=topic, tags="*")
    java.call("lite.poll", name=group, count=2, timeoutMillis=_POLL_MILLIS)
    java.call("lite.commit", name=group)
    java.call("lite.stop", name=group)
    await_committed(cluster, client, group, topic, [2])
    put(topic, 0, "a2")

    name = f"{group}-second"
    java.call("lite.start", name=name, group=group, topic=topic, tags="*")
    read = java.call("lite.poll", name=name, count=1, timeoutMillis=_POLL_MILLIS)

    assert [message["queueOffset"] for message in read] == [2]
    assert java.call("lite.committed", name=name, queue=java_queue(topic, 0)) == 2
    java.submit("lite.stop", name=name)


def test_only_messages_of_the_tags_arrive(lite: Lite, topic: str, put: Put) -> None:
    """A4: filtered by the hash of the tag at the broker, by the tag at the client:
    Aa and BB have one hash.
    """
    for number, tag in enumerate(("Aa", "BB", "C", "Aa")):
        put(topic, 0, f"{tag}-{number}", TAGS=tag)
    lite.start(topic=topic, tags="Aa || C")

    assert lite.poll(3) == [(0, 0, "Aa-0"), (0, 2, "C-2"), (0, 3, "Aa-3")]


def test_only_messages_the_sql_expression_accepts_arrive(lite: Lite, topic: str, put: Put) -> None:
    """A4: SQL92 over properties, TAGS among them."""
    put(topic, 0, "red-1", TAGS="T1", color="red", n="1")
    put(topic, 0, "blue-2", TAGS="T1", color="blue", n="2")
    put(topic, 0, "none-3", TAGS="T2")
    put(topic, 0, "red-9", TAGS="T2", color="red", n="9")
    put(topic, 0, "green-5", TAGS="T1", color="green", n="5")
    lite.start(topic=topic, sql="(color = 'red' AND n BETWEEN 5 AND 10) OR color IN ('green') OR n IS NULL")

    assert lite.poll(3) == [(0, 2, "none-3"), (0, 3, "red-9"), (0, 4, "green-5")]


def test_an_expression_that_is_no_sql_is_refused_when_the_consumer_starts(
    lite: Lite, topic: str, put: Put
) -> None:
    """A4: CHECK_CLIENT_CONFIG answers 23 (golden fact 9)."""
    put(topic, 0, "a0")
    with pytest.raises(AssertionError, match="CODE: 23"):
        lite.start(topic=topic, sql="color = = red")
