"""The clock of production: the operating system's."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemClock:
    """Implements :class:`pyspark_rocketmq.clock.Clock` with the system's wall clock and monotonic clock."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start that never go back."""
        return time.monotonic()
