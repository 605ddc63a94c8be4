"""Clocks and deadlines, which code takes as arguments so that tests can set the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final, Protocol

_SHORTEST_SLEEP_S: Final = 1.0
_LONGEST_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The clock of production: the operating system's."""

    # These are the functions themselves, because consumption reads the time several times per call of a
    # listener.
    now_s = staticmethod(time.time)
    """Seconds since the epoch."""
    monotonic_s = staticmethod(time.monotonic)
    """Seconds from an arbitrary start that never go back."""


class Clock(Protocol):
    """Source of time: the system's in production, one set by hand in tests."""

    def now_s(self) -> float:
        """Seconds since the epoch (wall clock), for values that are stored or sent."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start that never go back, for durations and deadlines."""
        ...


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a monotonic clock by which work must end.

    A function passes its deadline on to the functions that it calls, so that all share one time budget.
    """

    clock: Clock
    at_s: float
    """Monotonic seconds."""

    @classmethod
    def after(cls, clock: Clock, timeout_s: float) -> Deadline:
        """Return the deadline ``timeout_s`` seconds from now."""
        return cls(clock, clock.monotonic_s() + timeout_s)

    def remaining_s(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self.at_s - self.clock.monotonic_s())

    @property
    def has_passed(self) -> bool:
        """Whether there is no time left."""
        return self.clock.monotonic_s() >= self.at_s


def waits(seconds: float) -> Iterator[float]:
    """Yield the time-outs of waits that take ``seconds`` together: at least one, and at most 1 s each.

    If the process is stopped for a while, or its machine is paused, this uses up only the present wait. So
    another thread that is to answer has time to do so afterwards.
    """
    yield min(max(0.0, seconds), _LONGEST_WAIT_S)
    while (seconds := seconds - _LONGEST_WAIT_S) > 0:
        yield min(seconds, _LONGEST_WAIT_S)


def is_done_within(answer: Future[Any], seconds: float) -> bool:
    """Wait for ``answer``, in :func:`waits`; return whether it has come, as a result or an error."""
    return any(wait([answer], timeout_s).done for timeout_s in waits(seconds))


class SleepWatch:
    """Measures how long the machine has slept since this object was created.

    The monotonic clock stops while a laptop is closed or a virtual machine is stopped. The wall clock goes
    on, or is corrected afterwards, so it gains on the monotonic clock: the gain is the sleep. A wall clock
    that is set forward counts as a sleep, too; one that is set back does not.

    Not thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lead_s = self._lead()
        self._slept_s = 0.0

    def slept_s(self) -> float:
        """Return for how many seconds the machine has slept since this object was created.

        The number never decreases. A sleep of at most 1 s between two calls is not counted.
        """
        before_s, self._lead_s = self._lead_s, self._lead()
        # Ignore small differences: the process may be suspended between the two readings, and a wall clock is
        # always being corrected a little.
        if self._lead_s - before_s > _SHORTEST_SLEEP_S:
            self._slept_s += self._lead_s - before_s
        return self._slept_s

    def _lead(self) -> float:
        """Return wall clock minus monotonic clock, in seconds; a machine's sleep makes this number grow."""
        return self._clock.now_s() - self._clock.monotonic_s()
