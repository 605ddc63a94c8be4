"""Waiting for another thread or process without guessing how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""Time limit, longer than anything takes on a loaded machine;
an early result costs nothing.
"""
_POLL_S = 0.005


def wait_until(predicate: Callable[[], T | None], timeout_s: float = PATIENCE_S, *, reason: str = "") -> T:
    """Return the first truthy value of ``predicate``, which is called once more when the time is over.

    Raises:
        AssertionError: If none came within ``timeout_s``; its text carries ``reason`` and the last value.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        # Read before the value, so that a pause in between does not end the wait without a last look.
        is_late = time.monotonic() >= deadline_s
        value = predicate()
        if value:
            return value
        if is_late:
            raise AssertionError(
                f"{reason or 'The awaited condition'} did not come true within {timeout_s:g} s; "
                f"the last value was {value!r}."
            )
        time.sleep(_POLL_S)
