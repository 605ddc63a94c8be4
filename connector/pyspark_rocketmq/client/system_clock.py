"""The clock of production: the operating system's."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemClock:
    """Implements :class:`pyspark_rocketmq.clock.Clock` with the system's wall clock and monotonic clock."""

    # The functions themselves, because consumption asks for the time several times in each call of a listener.
    now_s = staticmethod(time.time)
    """Seconds since the epoch."""
    monotonic_s = staticmethod(time.monotonic)
    """Seconds from an arbitrary start that never go back."""
