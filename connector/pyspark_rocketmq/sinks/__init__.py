"""Sinks: the places that a consumer's rows are written to."""

from __future__ import annotations
