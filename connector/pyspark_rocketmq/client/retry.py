"""How often and how patiently a failed call is tried again, and the one loop that does it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import RocketMQError

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

    Only errors that say ``retryable`` are tried again; every other error, and the last one, reaches the caller
    unchanged.  A pause that would not end before the deadline is not begun.
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
