"""Pulled bodies as Arrow columns."""

from __future__ import annotations
