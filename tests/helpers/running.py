"""Servers of the tests as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

from tests.real_broker.errors import HarnessError

ServerT = TypeVar("ServerT")


def running(server: AbstractContextManager[ServerT]) -> Iterator[ServerT]:
    """Yield the server while it runs; if it does not start, its tests fail with only its error message."""
    try:
        with server as started:
            yield started
    except HarnessError as exc:
        raise pytest.fail.Exception(str(exc), pytrace=False) from None
