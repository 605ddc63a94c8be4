"""Pulling: outcomes, limits, filters and the long poll."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.errors import BrokerError, SubscriptionNotLatest, TopicNotFound
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue
from pyspark_rocketmq.wire.codes import PullSysFlag, ResponseCode
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, PullStatus
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.conftest import Put
from tests.both.support import ANSWER_S, TRIES_TO_BE_HELD
from tests.helpers.cluster import REAL_ONLY

KIB = 1024
_LONG_MILLIS = 180_000
"""More than it takes to store a message on a busy machine."""
_SCAN_S = 5.0
"""A real broker looks by itself into what it holds so often (``PullRequestHoldService``)."""


def request(group: str, queue: MessageQueue, queue_offset: int = 0, **changes: Any) -> PullRequest:
    return PullRequest(consumer_group=group, queue=queue, queue_offset=queue_offset, **changes)


def messages_of(result: PullResult) -> list[MessageExt]:
    return decode_messages(result.body, "broker-a")


def bodies_of(result: PullResult) -> list[bytes]:
    return [message.body for message in messages_of(result)]


def tagged(queue: MessageQueue, tag: str) -> Message:
    return Message(topic=queue.topic, body=tag.encode(), properties={"TAGS": tag})


def test_messages_come_in_queue_order_from_the_offset_asked_for(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """D1, F4: a found pull says where to go on and what there is."""
    put(b"one", b"two", b"three")

    result = client.pull(address, request(group, queue, 1))

    assert result.status is PullStatus.FOUND
    assert bodies_of(result) == [b"two", b"three"]
    assert [message.queue_offset for message in messages_of(result)] == [1, 2]
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (3, 0, 3)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param((2, PullStatus.NO_NEW_MSG, 2), id="at the end: nothing new"),
        pytest.param((3, PullStatus.OFFSET_ILLEGAL, 2), id="beyond the end: back to the end"),
        pytest.param((1000, PullStatus.OFFSET_ILLEGAL, 2), id="far beyond the end: back to the end"),
        pytest.param((-5, PullStatus.OFFSET_ILLEGAL, 0), id="below the beginning: on to the beginning"),
    ],
)
def test_an_offset_outside_the_queue_is_corrected(
    client: BrokerClient, address: str, queue: MessageQueue, put: Put, asked: tuple[int, PullStatus, int]
) -> None:
    """F4: code 21 carries the corrected offset; the end itself is no error (golden fact 12)."""
    put(b"one", b"two")
    queue_offset, *expected = asked

    result = client.pull(address, request("readers", queue, queue_offset))

    assert [result.status, result.next_begin_offset] == expected
    assert (result.min_offset, result.max_offset, result.body) == (0, 2, b"")


def test_an_empty_queue_has_nothing_new_at_0_and_no_other_offset(
    client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """F4: any offset of an empty queue is corrected to 0."""
    at_0 = client.pull(address, request(group, queue, 0))
    at_7 = client.pull(address, request(group, queue, 7))

    assert (at_0.status, at_0.next_begin_offset, at_0.max_offset) == (PullStatus.NO_NEW_MSG, 0, 0)
    assert (at_7.status, at_7.next_begin_offset, at_7.max_offset) == (PullStatus.OFFSET_ILLEGAL, 0, 0)


def test_one_pull_brings_at_most_32_messages(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """D13: the broker's own limit holds whatever is asked for."""
    put(*(b"%d" % number for number in range(40)))

    result = client.pull(address, request(group, queue, max_msg_nums=1000))

    assert len(messages_of(result)) == 32
    assert result.next_begin_offset == 32


def test_one_pull_brings_at_most_256_kib(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """D13: full before the message that would exceed the limit."""
    put(*[b"x" * (60 * KIB)] * 6)

    result = client.pull(address, request(group, queue))

    assert [len(body) for body in bodies_of(result)] == [60 * KIB] * 4
    assert result.next_begin_offset == 4


def test_a_message_larger_than_the_limit_comes_by_itself(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """D13: the first message is always returned."""
    put(b"y" * (300 * KIB), b"small")

    result = client.pull(address, request(group, queue))

    assert [len(body) for body in bodies_of(result)] == [300 * KIB]
    assert result.next_begin_offset == 1


def test_asking_for_no_message_brings_one(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """Golden fact 9."""
    put(b"one", b"two")

    assert bodies_of(client.pull(address, request(group, queue, max_msg_nums=0))) == [b"one"]


def test_a_tag_filter_passes_by_what_does_not_match(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """A4: the next offset counts every message looked at, delivered or not."""
    put(*(tagged(queue, tag) for tag in ("red", "blue", "red", "green")))

    red = client.pull(address, request(group, queue, subscription="red"))
    none = client.pull(address, request(group, queue, subscription="black || white"))
    two = client.pull(address, request(group, queue, subscription="green || blue", queue_offset=1))

    assert (red.status, bodies_of(red), red.next_begin_offset) == (PullStatus.FOUND, [b"red"] * 2, 4)
    assert (none.status, none.body, none.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, b"", 4)
    assert bodies_of(two) == [b"blue", b"green"]


def test_tags_of_equal_hash_code_are_distinguished_only_by_the_client(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """A4: the broker compares hash codes, and those of Aa and BB are equal."""
    put(tagged(queue, "Aa"), tagged(queue, "BB"))
    subscription = build_subscription(queue.topic, "BB", sub_version=1)

    delivered = messages_of(client.pull(address, request(group, queue, subscription="BB")))
    kept = [message for message in delivered if message.tags in subscription.tags_set]

    assert [message.body for message in delivered] == [b"Aa", b"BB"]
    assert [message.body for message in kept] == [b"BB"]


def test_a_filter_without_any_tag_is_refused(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """A4: the one expression a broker cannot parse (golden fact 9)."""
    put(b"one")

    with pytest.raises(BrokerError) as caught:
        client.pull(address, request(group, queue, subscription="||"))

    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@REAL_ONLY
def test_an_sql_filter_is_worked_out_by_the_broker(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """A4: SQL92 expressions over properties; the simulator of this run has enablePropertyFilter off."""
    put(*(Message(topic=queue.topic, body=b"%d" % n, properties={"amount": str(n)}) for n in range(6)))
    between = request(group, queue, subscription="amount BETWEEN 2 AND 4", expression_type="SQL92")

    result = client.pull(address, between)

    assert bodies_of(result) == [b"2", b"3", b"4"]
    assert result.next_begin_offset == 6


def test_without_an_own_filter_the_latest_heartbeat_counts(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """A3, A4: no heartbeat yet, or an older one than the pull speaks of: the broker asks for one."""
    put(tagged(queue, "red"), tagged(queue, "blue"))
    by_heartbeat = request(group, queue, sys_flag=0, sub_version=7)
    with pytest.raises(SubscriptionNotLatest):
        client.pull(address, by_heartbeat)
    client.heartbeat(address, _subscribing(group, queue, "blue", sub_version=6))
    with pytest.raises(SubscriptionNotLatest):
        client.pull(address, by_heartbeat)
    client.heartbeat(address, _subscribing(group, queue, "blue", sub_version=7))

    result = client.pull(address, by_heartbeat)

    assert (bodies_of(result), result.next_begin_offset) == ([b"blue"], 2)


def test_a_pull_can_commit_the_group_s_offset(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """F1: commitOffset counts only with its flag, and is what was processed, not what is pulled."""
    put(b"one", b"two")
    client.pull(address, request(group, queue, commit_offset=1))
    without_flag = client.query_consumer_offset(address, group, queue)

    client.pull(
        address,
        request(group, queue, commit_offset=1, sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.COMMIT_OFFSET),
    )

    assert (without_flag, client.query_consumer_offset(address, group, queue)) == (0, 1)


def test_an_unknown_topic_and_an_unknown_queue_are_different_errors(
    client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """A2: 17 asks for a new route, 29 is a mistake."""
    with pytest.raises(TopicNotFound):
        client.pull(address, request(group, queue._replace(topic="no-such-topic")))
    with pytest.raises(BrokerError) as caught:
        client.pull(address, request(group, queue._replace(queue_id=1)))

    assert caught.value.code == ResponseCode.INVALID_PARAMETER
    assert f"topic={queue.topic}" in str(caught.value)


def test_a_held_pull_is_answered_when_a_message_comes(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """A1: the broker holds the request and answers at once on arrival (golden fact 10).

    A broker that stores the message between its look into the queue and the holding wakes nobody:
    such a request is answered by the scan. So there must be more answers than there were scans.
    """
    begin_s = time.monotonic()
    for queue_offset in range(5 * TRIES_TO_BE_HELD):
        held = request(group, queue, queue_offset, sys_flag=_HELD, suspend_timeout_millis=_LONG_MILLIS)
        results: SimpleQueue[Any] = SimpleQueue()
        client.pull_async(address, held, results.put)

        put(b"news")
        assert bodies_of(results.get(timeout=2 * ANSWER_S)) == [b"news"]
        if queue_offset + 1 > 1 + (time.monotonic() - begin_s) / _SCAN_S:
            return
    pytest.fail(f"No held pull was woken by a message, or each took longer than the {_SCAN_S} s of a scan.")


def test_held_pulls_with_a_filter_bring_the_matching_message_only(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """A4: others do not wake a held pull; one that was not held yet reports them as passed by."""
    results: SimpleQueue[Any] = SimpleQueue()
    held = request(group, queue, subscription="red", sys_flag=_HELD, suspend_timeout_millis=_LONG_MILLIS)
    client.pull_async(address, held, results.put)

    put(tagged(queue, "blue"), tagged(queue, "red"))
    result = results.get(timeout=2 * ANSWER_S)
    while result.status is PullStatus.NO_MATCHED_MSG:
        result = client.pull(address, replace(held, queue_offset=result.next_begin_offset))

    assert (bodies_of(result), result.next_begin_offset) == ([b"red"], 2)


def test_other_requests_overtake_a_held_pull(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """A1: one connection carries all; a held pull blocks nothing."""
    results: SimpleQueue[Any] = SimpleQueue()
    held = request(group, queue, sys_flag=_HELD, suspend_timeout_millis=_LONG_MILLIS)
    client.pull_async(address, held, results.put)

    quick = client.pull(address, request(group, queue))

    assert quick.status is PullStatus.NO_NEW_MSG
    put(b"the end")
    assert bodies_of(results.get(timeout=2 * ANSWER_S)) == [b"the end"]


def test_pulls_of_one_queue_at_several_offsets_may_be_under_way_together(
    client: BrokerClient, address: str, queue: MessageQueue, group: str, put: Put
) -> None:
    """A1: each answer belongs to its own offset, in whatever order they come."""
    put(*(b"%d" % number for number in range(20)))
    results: SimpleQueue[Any] = SimpleQueue()

    for start in range(0, 20, 4):
        client.pull_async(
            address,
            request(group, queue, start, max_msg_nums=4),
            partial(lambda at, result: results.put((at, bodies_of(result))), start),
        )
    parts = dict(results.get(timeout=2 * ANSWER_S) for _ in range(5))

    assert [body for start in sorted(parts) for body in parts[start]] == [b"%d" % n for n in range(20)]


_HELD = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND


def _subscribing(group: str, queue: MessageQueue, expression: str, sub_version: int) -> HeartbeatData:
    subscription = build_subscription(queue.topic, expression, sub_version=sub_version)
    return HeartbeatData(
        client_id="client-1", consumers=(ConsumerData(group_name=group, subscriptions=(subscription,)),)
    )
