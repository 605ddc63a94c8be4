"""Time as an argument: clocks, deadlines, and the loops that try a failed call or commit again.

Time as an argument: the protocol every clock fulfils, and deadlines made from it.

Nothing here reads a clock; :class:`pyspark_rocketmq.clock.SystemClock` does.

How often and how patiently a failed call is tried again, and the one loop that does it.

The clock of production: the operating system's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from pyspark_rocketmq.errors import RocketMQError


@dataclass(frozen=True, slots=True)
class SystemClock:
    """Implements :class:`pyspark_rocketmq.clock.Clock` with the system's wall clock and monotonic clock."""

    # The functions themselves, because consumption asks for the time several times in each call of a
    # listener.
    now_s = staticmethod(time.time)
    """Seconds since the epoch."""
    monotonic_s = staticmethod(time.monotonic)
    """Seconds from an arbitrary start that never go back."""


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
    """How long the machine has slept since this was made, for what others' clocks go on to count meanwhile.

    Not thread-safe.

    A laptop that is closed and a virtual machine that is stopped have a monotonic clock that stands still;
    the wall clock is ahead of it afterwards, at the latest when it was corrected. So a wall clock that is set
    forward counts as a sleep; one set back does not.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lead_s = self._lead()
        self._slept_s = 0.0

    def slept_s(self) -> float:
        """Seconds of all sleeps; never fewer than before."""
        before_s, self._lead_s = self._lead_s, self._lead()
        # Between two readings a process may wait for its turn, and a wall clock is corrected by little all
        # the time.
        if self._lead_s - before_s > _SHORTEST_SLEEP_S:
            self._slept_s += self._lead_s - before_s
        return self._slept_s

    def _lead(self) -> float:
        return self._clock.now_s() - self._clock.monotonic_s()


_SHORTEST_SLEEP_S: Final = 1.0


logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Pauses that grow by ``multiplier`` from ``first_pause_s`` up to ``max_pause_s``."""

    attempts: int
    """Calls in all, the first one included; at least 1."""
    first_pause_s: float
    max_pause_s: float
    multiplier: float = 2.0

    def pause_s(self, failures: int) -> float:
        """Seconds to wait after the ``failures``-th failure, counted from 1."""
        # float ** large int overflows; beyond 64 doublings every sensible maximum is long reached.
        return min(self.max_pause_s, self.first_pause_s * self.multiplier ** min(failures - 1, 64))


UNTIL_DEADLINE: Final = RetryPolicy(attempts=2**31, first_pause_s=0.1, max_pause_s=5.0)
"""As often as the time allows."""


def call_with_retry(
    operation: Callable[[], T], policy: RetryPolicy, deadline: Deadline, sleep: Callable[[float], object]
) -> T:
    """Call ``operation`` until it succeeds, by ``policy`` and never beyond ``deadline``.

    Only errors that say ``retryable`` are tried again; every other error, and the last one, reaches the
    caller unchanged.  A pause that would not end before the deadline is not begun.
    """
    failures = 0
    while True:
        try:
            return operation()
        except RocketMQError as error:
            failures += 1
            pause_s = policy.pause_s(failures)
            if not error.retryable or failures >= policy.attempts or pause_s >= deadline.remaining_s():
                raise
            logger.debug("! retry attempt=%d pause_s=%.3g error=%s", failures + 1, pause_s, error)
        sleep(pause_s)
