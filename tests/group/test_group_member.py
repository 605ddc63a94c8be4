"""What a source's options make of a member."""

from __future__ import annotations

import re

import pytest

from pyspark_rocketmq.group.join import client_id, join_group, offset_key
from pyspark_rocketmq.model import ConsumeFromWhere, MessageModel, MessageQueue
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.requests.bodies import ConsumerData
from tests.helpers.fake_clock import FakeClock


def options(**given: str) -> ReadOptions:
    store = MemoryOffsetStore("options", clock=FakeClock())
    return ReadOptions.parse(
        {
            "nameServers": "127.0.0.1:9",
            "topic": "orders",
            "consumerGroup": "g",
            "offsetStore": store.spec,
            **given,
        }
    )


def consumer_data(**given: str) -> ConsumerData:
    """Return the data about a member that its heartbeats carry to the brokers."""
    clock = FakeClock()
    member = join_group(options(**given), "me", MemoryOffsetStore("told", clock=clock), clock)
    member.stop(0.0)
    (consumer,) = member._heartbeat.consumers
    return consumer


def test_without_a_name_no_two_starts_have_the_same_client_id() -> None:
    """B1: a client id used twice would take every share twice."""
    one, two = client_id(options()), client_id(options())

    assert one != two
    assert re.fullmatch(r"[^@]+@\d+#[0-9a-f]{12}", one)


def test_with_a_name_every_start_has_the_same_client_id() -> None:
    """B7: it has its locks back."""
    assert client_id(options(instanceName="nightly")) == client_id(options(instanceName="nightly"))
    assert client_id(options(instanceName="nightly")).endswith("@nightly")


def test_a_member_shows_all_that_a_java_consumer_would() -> None:
    """A3: a heartbeat replaces the group's whole table, so the retry topic must be in it."""
    consumer = consumer_data(subscription="paid || created")

    assert [(each.topic, each.sub_string) for each in consumer.subscriptions] == [
        ("orders", "paid || created"),
        ("%RETRY%g", "*"),
    ]
    assert consumer.message_model is MessageModel.CLUSTERING


def test_a_broadcasting_member_has_no_retry_topic_and_progress_of_its_own() -> None:
    """B3."""
    given = {"messageModel": "BROADCASTING", "instanceName": "west"}
    consumer = consumer_data(**given)

    assert [each.topic for each in consumer.subscriptions] == ["orders"]
    assert consumer.message_model is MessageModel.BROADCASTING
    assert offset_key(options(**given)) != offset_key(options())


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({}, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
        ({"startingOffsets": "earliest"}, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
        ({"startingTimestamp": "1700000000000"}, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP),
    ],
)
def test_where_a_group_begins_is_named_in_rocketmqs_words(
    given: dict[str, str], where: ConsumeFromWhere
) -> None:
    """A3, F2."""
    assert consumer_data(**given).consume_from_where is where


def test_a_member_gets_the_queues_its_strategy_gives_it() -> None:
    """allocateMessageQueueStrategy, B2"""
    clock = FakeClock()
    given = options(allocateMessageQueueStrategy="byConfig:orders/broker-a/1")
    member = join_group(given, "me", MemoryOffsetStore("strategy", clock=clock), clock)
    member.stop(0.0)
    queues = [MessageQueue("orders", "broker-a", number) for number in range(3)]

    share = member._machine._allocate("me", queues, ["me", "other"])
    assert share is not None
    assert list(share) == queues[1:2]


def test_a_member_never_waits_as_long_as_a_pull_may() -> None:
    """C2: while it waits, it renews no lock."""
    clock = FakeClock()
    member = join_group(
        options(requestTimeoutMs="600000"), "me", MemoryOffsetStore("waits", clock=clock), clock
    )
    member.stop(0.0)

    assert member._calls.brokers._calls.timeout_s == 3.0
