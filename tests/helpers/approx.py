"""Numbers that are near enough."""

from __future__ import annotations

from typing import Any

import pytest


def about(number: float) -> Any:
    """``pytest.approx`` for where a number is to stand."""
    return pytest.approx(number)
