from __future__ import annotations

import datetime as dt

import pytest

from pyspark_rocketmq.clock import Deadline, SleepWatch, SystemClock, waits
from tests.helpers.fake_clock import FakeClock


def test_the_system_clock_shows_both_times() -> None:
    """A2: wall clock for what is stored, monotonic for deadlines."""
    clock = SystemClock()
    first = clock.monotonic_s()

    assert abs(clock.now_s() - dt.datetime.now(dt.UTC).timestamp()) < 60
    assert clock.monotonic_s() >= first
    assert Deadline.after(clock, 0.0).has_passed


def test_a_sleep_is_what_only_the_wall_clock_has_counted() -> None:
    """C2: time goes on for others while a machine sleeps; corrections of the wall clock, and setting it back,
    are no sleep.
    """
    clock = FakeClock()
    watch = SleepWatch(clock)

    clock.advance(100.0)
    clock.step(0.9)
    assert watch.slept_s() == 0.0
    clock.step(60.0)
    assert watch.slept_s() == pytest.approx(60.0)
    clock.step(-3600.0)
    clock.advance(5.0)
    assert watch.slept_s() == pytest.approx(60.0)
    clock.step(30.0)
    assert watch.slept_s() == pytest.approx(90.0)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.0, [0.0]), (0.3, [0.3]), (2.5, [1.0, 1.0, 0.5]), (3.0, [1.0, 1.0, 1.0])]
)
def test_a_long_wait_is_made_of_short_ones(seconds: float, expected: list[float]) -> None:
    """A process that is stopped for an hour loses only the present one."""
    assert list(waits(seconds)) == expected
