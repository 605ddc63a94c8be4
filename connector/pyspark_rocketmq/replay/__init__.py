"""Reads queues again, into a Delta table or another topic, without touching any group's offsets."""

from __future__ import annotations
