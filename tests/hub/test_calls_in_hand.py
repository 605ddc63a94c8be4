"""Queues that end first when the end of their batch is announced."""

from __future__ import annotations

from pyspark_rocketmq.hub.calls_in_hand import AnnouncedEnd
from pyspark_rocketmq.model import MessageQueue

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))


def test_it_is_over_immediately_without_calls() -> None:
    end = AnnouncedEnd(100.0)
    assert (end.look({}, 100.0), end.is_over) == (frozenset(), True)


def test_a_queue_with_a_long_call_ends_and_others_go_on() -> None:
    """D3, I3: in A a call of 2 s was in hand, in B a short one; C's call began later, however long it lasts."""
    end = AnnouncedEnd(100.0)
    assert end.look({A: 2.0, B: 0.001}, 100.0) == {A}
    assert end.look({A: 2.005, B: 0.006}, 100.005) == {A}
    assert end.look({A: 2.01, B: 0.001, C: 0.002}, 100.01) == {A}
    assert end.look({A: 52.0, C: 49.9}, 150.0) == {A}
    assert not end.is_over
    assert (end.look({C: 49.95}, 150.05), end.is_over) == (frozenset(), True)


def test_a_call_that_has_just_begun_at_the_announcement_may_become_long() -> None:
    """I3"""
    end = AnnouncedEnd(100.0)
    assert (end.look({A: 0.0}, 100.0), end.is_over) == (frozenset(), False)
    assert (end.look({A: 0.09}, 100.09), end.is_over) == (frozenset(), False)
    assert (end.look({A: 0.1}, 100.1), end.is_over) == (frozenset({A}), False)


def test_it_looks_often_at_first() -> None:
    end, pauses = AnnouncedEnd(100.0), []
    for at_s in (100.0, 100.004, 100.5):
        end.look({A: 60.0}, at_s)
        pauses.append(round(end.pause_s, 6))
    assert pauses == [0.001, 0.004, 0.01]
