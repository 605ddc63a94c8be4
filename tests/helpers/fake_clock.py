"""A clock that moves only when a test moves it."""

from __future__ import annotations

import threading


class FakeClock:
    """Implements ``pyspark_rocketmq.clock.Clock``; wall clock and monotonic time advance together,
    unless it is stepped.

    Safe to read and advance from several threads.
    """

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._start_s = now_s
        self._elapsed_s = 0.0

    def now_s(self) -> float:
        """Return seconds since the epoch."""
        with self._lock:
            return self._start_s + self._elapsed_s

    def monotonic_s(self) -> float:
        """Return seconds since this clock was made."""
        with self._lock:
            return self._elapsed_s

    def advance(self, seconds: float) -> None:
        """Move both times forward.

        Raises:
            ValueError: If ``seconds`` is negative; monotonic time never goes back.
        """
        if seconds < 0:
            raise ValueError(f"A clock cannot advance by {seconds} seconds.")
        with self._lock:
            self._elapsed_s += seconds

    def step(self, seconds: float) -> None:
        """Set only the wall clock, forward or back, as an operator does."""
        with self._lock:
            self._start_s += seconds


class TickingClock(FakeClock):
    """A clock that moves on with each look at it, as it may on a busy machine."""

    def __init__(self, tick_s: float) -> None:
        super().__init__()
        self.tick_s = tick_s

    def monotonic_s(self) -> float:
        """Move forward by ``tick_s``; return seconds since this clock was made."""
        self.advance(self.tick_s)
        return super().monotonic_s()
