"""A log that has told nothing yet: for tests of listeners."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.listeners import errors as listener_errors
from pyspark_rocketmq.listeners.errors import RateLimiter


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: each error of a test's is told in full."""
    monkeypatch.setattr(listener_errors, "_limiter", RateLimiter())
