"""Waiting for another thread or process without guessing how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.005


def wait_until(predicate: Callable[[], T], timeout_s: float = 5.0, *, reason: str = "") -> T:
    """Return the first truthy value of ``predicate``.

    Raises:
        AssertionError: If none came within ``timeout_s``; its text carries ``reason`` and the last value.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline_s:
            raise AssertionError(
                f"{reason or 'The awaited condition'} did not come true within {timeout_s:g} s; "
                f"the last value was {value!r}."
            )
        time.sleep(_POLL_S)
