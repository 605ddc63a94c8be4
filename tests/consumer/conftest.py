"""What tests of listeners share."""

from __future__ import annotations

from tests.helpers.fresh_log import nothing_told

__all__ = ["nothing_told"]
