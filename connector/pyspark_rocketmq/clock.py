"""Time as an argument: the protocol every clock fulfils, and deadlines made from it.

Nothing here reads a clock; :class:`pyspark_rocketmq.client.system_clock.SystemClock` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol


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


class SleepWatch:
    """How long the machine has slept since this was made, for what others' clocks go on to count meanwhile. Not thread-safe.

    A laptop that is closed and a virtual machine that is stopped have a monotonic clock that stands still; the wall clock is ahead of it
    afterwards, at the latest when it was corrected. So a wall clock that is set forward counts as a sleep; one set back does not.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lead_s = self._lead()
        self._slept_s = 0.0

    def slept_s(self) -> float:
        """Seconds of all sleeps; never fewer than before."""
        before_s, self._lead_s = self._lead_s, self._lead()
        # Between two readings a process may wait for its turn, and a wall clock is corrected by little all the time.
        if self._lead_s - before_s > _SHORTEST_SLEEP_S:
            self._slept_s += self._lead_s - before_s
        return self._slept_s

    def _lead(self) -> float:
        return self._clock.now_s() - self._clock.monotonic_s()


_SHORTEST_SLEEP_S: Final = 1.0
