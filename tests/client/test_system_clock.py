from __future__ import annotations

import datetime as dt

from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Deadline


def test_the_system_clock_tells_both_times() -> None:
    """A2: wall clock for what is stored, monotonic for deadlines."""
    clock = SystemClock()
    first = clock.monotonic_s()

    assert abs(clock.now_s() - dt.datetime.now(dt.UTC).timestamp()) < 60
    assert clock.monotonic_s() >= first
    assert Deadline.after(clock, 0.0).has_passed
