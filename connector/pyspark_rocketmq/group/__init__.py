"""Membership in a consumer group while a query runs: its queues, brokers' requests, and brokers' offsets."""

from __future__ import annotations
