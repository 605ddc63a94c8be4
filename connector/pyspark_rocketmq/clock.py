"""Time as an argument: the protocol every clock fulfils, and deadlines made from it.

Nothing here reads a clock; :class:`pyspark_rocketmq.client.system_clock.SystemClock` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Where time comes from: the system in production, a hand-moved value in tests."""

    def now_s(self) -> float:
        """Seconds since the epoch (wall clock), for values that are stored or sent."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start that never go back, for durations and deadlines."""
        ...


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a monotonic clock, handed down through calls so that they share one time budget."""

    clock: Clock
    at_s: float
    """Monotonic seconds."""

    @classmethod
    def after(cls, clock: Clock, timeout_s: float) -> Deadline:
        """The moment ``timeout_s`` seconds from now."""
        return cls(clock, clock.monotonic_s() + timeout_s)

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - self.clock.monotonic_s())

    @property
    def has_passed(self) -> bool:
        """Whether no time is left."""
        return self.clock.monotonic_s() >= self.at_s
