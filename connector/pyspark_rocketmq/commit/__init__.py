"""Commits a micro-batch's parts: data, then offsets; and reconciles the two when a query starts."""

from __future__ import annotations
