"""Queries in both modes."""

from __future__ import annotations

import pytest

from tests.helpers.modes import Mode


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> Mode:
    """The mode that a test is marked with; without a mark, that of micro-batches."""
    return Mode(getattr(request, "param", Mode.MICRO_BATCH))
