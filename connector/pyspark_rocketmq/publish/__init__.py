"""Writing with Spark."""

from __future__ import annotations
