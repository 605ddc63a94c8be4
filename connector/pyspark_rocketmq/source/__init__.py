"""Reading with Spark: plan, fetch, decode."""

from __future__ import annotations
