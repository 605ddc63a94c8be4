"""The wall clock is set back while a group consumes."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.consume.suspension import CLOCKS_DIFFER_S, LONGEST_SUSPEND_MILLIS
from tests.source.test_planner import A0, A1, Planning

_AN_HOUR_S = 3600.0


def test_a_queue_suspended_before_the_clock_was_set_back_does_not_wait_for_it() -> None:
    """D3: no listener can wish for more than 30 s."""
    planning = Planning({A0: (0, 9), A1: (0, 9)}, group=True)
    planning.next()
    planning.commit(
        A0, 4, suspended_until_s=planning.clock.now_s() + LONGEST_SUSPEND_MILLIS / 1000, reconsume_times=1
    )
    planning.commit(A1, 9)
    assert planning.next() is None

    planning.clock.step(-_AN_HOUR_S)

    assert planning.next() == [(A0, 4, 9)]


@pytest.mark.parametrize("ahead_s", [0.5, CLOCKS_DIFFER_S])
def test_the_longest_suspension_lasts_if_the_workers_clock_is_ahead(ahead_s: float) -> None:
    """D3: half a second must not turn 16 pauses of 30 s into none, and its message into a dead letter."""
    planning = Planning({A0: (0, 9)}, group=True)
    planning.next()
    until_s = planning.clock.now_s() + ahead_s + LONGEST_SUSPEND_MILLIS / 1000
    planning.commit(A0, 4, suspended_until_s=until_s, reconsume_times=1)
    assert planning.next() is None
    planning.clock.advance(29.9)
    assert planning.next() is None

    planning.clock.advance(ahead_s + 0.2)

    assert planning.next() == [(A0, 4, 9)]


def test_offsets_go_on_from_where_they_are_whatever_the_clock_says() -> None:
    """F6: the epoch and the offset decide what is newer, not the time."""
    planning = Planning({A0: (0, 9)}, group=True)
    planning.next()
    planning.commit(A0, 4)

    planning.clock.step(-_AN_HOUR_S)

    assert planning.next() == [(A0, 4, 9)]
    assert planning.commit(A0, 9)
    assert planning.next() is None
