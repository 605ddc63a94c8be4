"""Ownership of a consumer group's queues while a query runs."""

from __future__ import annotations
