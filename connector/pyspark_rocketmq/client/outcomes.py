"""What became of sends, left in a queue by callbacks on other threads."""

from __future__ import annotations

import math
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

OutcomeT = TypeVar("OutcomeT")

_LATE_S: Final = 60.0
"""An outcome that comes so much later than a send may take does not come: a callback was lost, which is a bug."""
_WAIT_S: Final = 1.0


def next_outcome(outcomes: SimpleQueue[OutcomeT], send_timeout_s: float) -> OutcomeT:
    """Wait for the next outcome of sends that may take so long each.

    A process that stood still has not waited meanwhile: what is counted are waits of a second.

    Raises:
        AssertionError: If none comes, although each send has exactly one.
    """
    patience_s = send_timeout_s + _LATE_S
    for _ in range(math.ceil(patience_s / _WAIT_S)):
        with suppress(Empty):
            return outcomes.get(timeout=_WAIT_S)
    raise AssertionError(f"no outcome of a send came within {patience_s:g} s")
