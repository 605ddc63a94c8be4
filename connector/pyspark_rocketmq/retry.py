"""The loops that try a failed call or commit again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeVar

from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.process_end import native_call

logger = masking_logger(__name__)

T = TypeVar("T")

Errors = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a call is attempted, and how long to wait between two attempts.

    The pauses double from ``first_pause_s`` up to ``max_pause_s``.
    """

    attempts: int
    """Maximum number of calls, the first included; at least 1."""
    first_pause_s: float
    max_pause_s: float

    def pause_s(self, failures: int) -> float:
        """Return the seconds to wait after the ``failures``-th failure, counted from 1."""
        # float ** large int overflows; beyond 64 doublings every sensible maximum is long reached.
        return min(self.max_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 64))


UNTIL_DEADLINE: Final = RetryPolicy(attempts=2**31, first_pause_s=0.1, max_pause_s=5.0)
"""Policy for :func:`call_with_retry` that tries until the deadline, with pauses of at most 5 s."""


def call_with_retry(
    operation: Callable[[], T],
    policy: RetryPolicy,
    deadline: Deadline,
    sleep: Callable[[float], object],
    *,
    is_tried_again: Callable[[RocketMQError], bool] = attrgetter("retryable"),
) -> T:
    """Call ``operation`` until it succeeds, as far as ``policy`` and ``deadline`` allow.

    ``operation`` is called again after errors for which ``is_tried_again`` returns True, by default those
    whose ``retryable`` is True. Any other error, and the error of the last attempt, reaches the caller
    unchanged.  A pause is begun only if it ends before the deadline.
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
    """Attempt a commit until it is known to be stored, and return what the successful attempt returned.

    Args:
        what: Name of the commit, for logs and errors.
        attempt: Makes the commit. Its argument is the error of the previous attempt, or None at the first
            one.  After an error it is unknown whether the commit was stored (delta-rs#2279), so the next
            attempt must look for the commit before it makes it again.
        pauses_s: Pauses in seconds before further attempts, one for each. The error of the last attempt
            reaches the caller.
        sleep: Function that waits.
        unknown: Errors after which it is unknown whether the commit was stored, so it is attempted again. All
            other errors reach the caller immediately.
        refused: Subclasses of the ``unknown`` errors which prove that the commit was not stored and never
            will be. They reach the caller immediately, too.
    """
    pauses = iter(pauses_s)
    failure: Exception | None = None
    while True:
        try:
            with native_call(what):
                return attempt(failure)
        except refused:
            raise
        except unknown as error:
            pause_s = next(pauses, None)
            if pause_s is None:
                raise
            logger.info("retrying %s after %s: %s", what, type(error).__name__, error)
            failure = error
        sleep(pause_s)
