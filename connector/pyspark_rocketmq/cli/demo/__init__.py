"""The demo: orders pass through RocketMQ into a Delta table, which is checked at the end."""

from __future__ import annotations
