"""The Spark source: plans ranges of queue offsets, fetches their messages, and decodes them."""

from __future__ import annotations
