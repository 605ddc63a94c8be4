"""A log in which nothing was logged yet, for tests of listeners."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.listeners import errors as listener_errors
from pyspark_rocketmq.listeners.errors import RateLimiter


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start as in a new process, so that each error of a test is logged in full."""
    monkeypatch.setattr(listener_errors, "_limiter", RateLimiter())
