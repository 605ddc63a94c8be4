"""Where a consumer's rows go."""

from __future__ import annotations
