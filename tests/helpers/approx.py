"""Numbers that are near enough."""

from __future__ import annotations

from typing import Any

import pytest


def about(number: float) -> Any:
    """Return ``pytest.approx``, typed so that it can stand in the place of a number."""
    return pytest.approx(number)
