"""Producers: sending messages, giving consumed ones back, and transactions."""

from __future__ import annotations
