"""How a group begins in queues without an offset, and which of them wait."""

from __future__ import annotations

from typing import Any

from pyspark_rocketmq.consume.beginnings import begin_new_queues
from pyspark_rocketmq.errors import ConnectFailed, RocketMQError, SystemBusy
from pyspark_rocketmq.model import MessageQueue

A0, A1, B0 = (
    MessageQueue("orders", "broker-a", 0),
    MessageQueue("orders", "broker-a", 1),
    MessageQueue("orders", "broker-b", 0),
)
PAYMENTS = MessageQueue("payments", "broker-a", 0)
RETRY = MessageQueue("%RETRY%g", "broker-a", 0)
AWAY, BUSY = ConnectFailed("b:1", "refused"), SystemBusy(2, "busy")


Queues = set[MessageQueue]
NONE: Queues = set()


def begin(*queues: MessageQueue, **known: Any) -> tuple[Queues, Queues, dict[MessageQueue, RocketMQError]]:
    """Queues that begin with their first message, that begin by the options, and that wait."""
    none: dict[str, Any] = {"begun": (), "begun_in_part": (), "not_reported": {}, "away": None}
    at_first, by_option, waiting = begin_new_queues(queues, **(none | known))
    return {*at_first}, {*by_option}, {**waiting}


def test_a_topic_begins_where_the_options_say() -> None:
    """F2"""
    assert begin(A0, B0) == (NONE, {A0, B0}, {})


def test_queues_of_a_topic_that_has_begun_were_made_later() -> None:
    """A2: each topic by itself."""
    assert begin(A1, B0, PAYMENTS, begun={"orders"}) == ({A1, B0}, {PAYMENTS}, {})


def test_a_beginning_that_only_some_brokers_took_is_the_same_for_the_others() -> None:
    """A2, F2: though the topic has begun."""
    assert begin(A1, B0, begun={"orders"}, begun_in_part={B0}) == ({A1}, {B0}, {})


def test_a_retry_topic_begins_with_its_first_message_and_waits_for_nobody() -> None:
    """E3: each message in it has failed in this group."""
    assert begin(RETRY, away=AWAY) == ({RETRY}, NONE, {})


def test_a_topic_waits_while_a_broker_is_away() -> None:
    """A2: its queues would count as made later; those of a topic that has begun go on."""
    assert begin(A0, PAYMENTS, begun={"orders"}, away=AWAY) == ({A0}, NONE, {PAYMENTS: AWAY})


def test_a_topic_waits_while_a_broker_does_not_report_the_group_s_offset_in_it() -> None:
    """A2, A8: the group has perhaps begun there; other topics go on."""
    assert begin(A0, A1, PAYMENTS, not_reported={B0: BUSY}) == (NONE, {PAYMENTS}, {A0: BUSY, A1: BUSY})


def test_the_reason_is_that_of_the_topic_before_that_of_a_broker_that_is_away() -> None:
    """A8: what the log shows."""
    *_, waiting = begin(A0, PAYMENTS, not_reported={B0: BUSY}, away=AWAY)
    assert waiting == {A0: BUSY, PAYMENTS: AWAY}
