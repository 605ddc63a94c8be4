"""Reading queues again: to a Delta table or into another topic, without touching any group's offsets."""

from __future__ import annotations
