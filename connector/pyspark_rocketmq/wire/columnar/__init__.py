"""Decodes the bodies of pull answers into Arrow columns."""

from __future__ import annotations
