"""When offsets are stored: with a group of parts, later, or without one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_rocketmq.consume.offset_pace import OffsetPace
from pyspark_rocketmq.consume.part import Group, Part, QueueAck
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.stored_values import RetryCounts, RetrySpan
from tests.helpers.parts import part_of

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))
NONE: frozenset[MessageQueue] = frozenset()
OF_A = Group((part_of("a", A),))
[ACK] = OF_A.acks
STATE = ACK.state


def waiting(now_s: float = 10.0, took_s: float = 0.0) -> OffsetPace:
    """Return a pace with offsets of A that wait since offsets were stored."""
    pace = OffsetPace(may_wait=True)
    pace.stored(now_s, took_s)
    pace.rows_committed({A})
    return pace


def test_the_first_group_after_a_pause_is_stored_with_its_offsets() -> None:
    """H1"""
    pace = OffsetPace(may_wait=True)

    assert pace.is_group_stored(OF_A, NONE, 10.0)
    pace.stored(10.0, 0.004)
    assert not pace.is_group_stored(OF_A, NONE, 10.999)
    assert pace.is_group_stored(OF_A, NONE, 11.0)


@pytest.mark.parametrize(
    ("took_s", "pause_s"),
    [(0.0, 1.0), (0.004, 1.0), (0.02, 1.0), (0.05, 2.5), (0.1, 5.0), (0.8, 5.0), (60.0, 5.0)],
)
def test_offsets_wait_for_a_second_or_up_to_five_if_they_take_long(took_s: float, pause_s: float) -> None:
    """H1: as Java's persistConsumerOffsetInterval."""
    assert waiting(10.0, took_s).due_s == pytest.approx(10.0 + pause_s)


def test_offsets_that_wait_have_their_time_and_others_none() -> None:
    pace = waiting()
    pace.rows_committed({A, B})
    assert pace.due_s == 11.0
    assert pace.behind == {A, B}


def test_what_is_stored_waits_no_longer() -> None:
    pace = waiting()
    pace.stored(11.2, 0.0)

    assert pace.due_s is None
    assert not pace.behind


def test_without_a_sink_no_offset_waits() -> None:
    """H1: the store is the only record."""
    pace = OffsetPace(may_wait=False)
    pace.stored(10.0, 1.0)

    assert pace.is_group_stored(OF_A, NONE, 10.0)


@pytest.mark.parametrize(("ended", "is_stored"), [({A}, True), ({B}, True), ({A, B}, True), (NONE, False)])
def test_a_queue_that_its_task_has_ended_does_not_wait(
    ended: frozenset[MessageQueue], is_stored: bool
) -> None:
    """B5: the next owner goes on exactly there; A's offset waits, B is in the group."""
    assert waiting().is_group_stored(Group((part_of("b", B),)), ended, 10.1) is is_stored


def test_a_queue_that_has_ended_without_anything_to_store_is_not_waited_for() -> None:
    assert not waiting().is_any_wanted({B})
    assert waiting().is_any_wanted({A, B})


@pytest.mark.parametrize(
    "given",
    [
        replace(ACK, state=STATE._replace(reconsume_times=1)),
        replace(ACK, state=STATE._replace(suspended_until_s=1_700_000_000.0)),
        replace(ACK, state=STATE._replace(retry_counts=RetryCounts.of((RetrySpan(3, 5, 2),), 1, 0))),
        replace(ACK, reset_to=0),
        replace(ACK, is_another_log=True),
    ],
    ids=["attempt", "suspension", "attempts further on", "reset", "another log"],
)
def test_what_no_sink_has_is_stored_immediately(given: QueueAck) -> None:
    """D6, F5"""
    group = Group((part_of("b", B), Part(id="a", acks=(given,))))

    assert waiting().is_group_stored(group, NONE, 10.1)
    assert not waiting().is_group_stored(Group((part_of("b", B),)), NONE, 10.1)
