"""Commits a micro-batch's parts: first data, then offsets. Compares the two when a query starts."""

from __future__ import annotations
