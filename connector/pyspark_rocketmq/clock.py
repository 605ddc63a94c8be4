"""Time as an argument: clocks, deadlines, and the loops that try a failed call or commit again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import RocketMQError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SHORTEST_SLEEP_S: Final = 1.0
Errors = type[Exception] | tuple[type[Exception], ...]


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
    """A moment on a monotonic clock, handed down through calls so that they share one time budget."""

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


class SleepWatch:
    """Measures how long the machine has slept since this object was made, while other clocks went on.

    Not thread-safe.

    The monotonic clock stands still while a laptop is closed or a virtual machine is stopped. Afterwards the
    wall clock is ahead of it, at the latest once it has been corrected. So a wall clock that is set forward
    counts as a sleep, and one that is set back does not.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lead_s = self._lead()
        self._slept_s = 0.0

    def slept_s(self) -> float:
        """Return the seconds of all sleeps; they never decrease."""
        before_s, self._lead_s = self._lead_s, self._lead()
        # Ignore small differences: the process may be suspended between the two readings, and a wall clock is
        # always being corrected a little.
        if self._lead_s - before_s > _SHORTEST_SLEEP_S:
            self._slept_s += self._lead_s - before_s
        return self._slept_s

    def _lead(self) -> float:
        return self._clock.now_s() - self._clock.monotonic_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Pauses that double from ``first_pause_s`` up to ``max_pause_s``."""

    attempts: int
    """Calls in all, the first one included; at least 1."""
    first_pause_s: float
    max_pause_s: float

    def pause_s(self, failures: int) -> float:
        """Seconds to wait after the ``failures``-th failure, counted from 1."""
        # float ** large int overflows; beyond 64 doublings every sensible maximum is long reached.
        return min(self.max_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 64))


UNTIL_DEADLINE: Final = RetryPolicy(attempts=2**31, first_pause_s=0.1, max_pause_s=5.0)
"""Retries until the deadline."""


def call_with_retry(
    operation: Callable[[], T],
    policy: RetryPolicy,
    deadline: Deadline,
    sleep: Callable[[float], object],
    *,
    is_tried_again: Callable[[RocketMQError], bool] = attrgetter("retryable"),
) -> T:
    """Call ``operation`` until it succeeds, by ``policy`` and never beyond ``deadline``.

    It is called again after errors that ``is_tried_again`` allows, by default the retryable ones.  Any other
    error, and the last one, reaches the caller unchanged.  A pause is begun only if it ends before the
    deadline.
    """
    failures = 0
    while True:
        try:
            return operation()
        except RocketMQError as error:
            failures += 1
            pause_s = policy.pause_s(failures)
            if failures >= policy.attempts or pause_s >= deadline.remaining_s() or not is_tried_again(error):
                raise
            logger.debug("! retry attempt=%d pause_s=%.3g error=%s", failures + 1, pause_s, error)
        sleep(pause_s)


def commit_with_retry(
    what: str,
    attempt: Callable[[Exception | None], T],
    pauses_s: Iterable[float],
    sleep: Callable[[float], object],
    *,
    unknown: Errors,
    refused: Errors = (),
) -> T:
    """Attempt a commit until it is known to be stored.

    Args:
        what: Name of the commit, for the log.
        attempt: Makes the commit; gets the error of the previous attempt, or None.  After an error it is
            unknown whether the commit was stored (delta-rs#2279), so it must look for it before it commits
            again.
        pauses_s: Pauses before further attempts; when they are used up, the last error reaches the caller.
        sleep: Function that waits.
        unknown: Errors after which to try again; all others reach the caller at once.
        refused: Those of the ``unknown`` errors that mean that the commit was not stored and will not be.
    """
    pauses = iter(pauses_s)
    failure: Exception | None = None
    while True:
        try:
            return attempt(failure)
        except refused:
            raise
        except unknown as error:
            pause_s = next(pauses, None)
            if pause_s is None:
                raise
            logger.info("%s to be tried again: %s: %s", what, type(error).__name__, masked(str(error)))
            failure = error
        sleep(pause_s)
