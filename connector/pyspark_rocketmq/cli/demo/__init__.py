"""The demo: an order's life through RocketMQ into a Delta table, checked at the end."""

from __future__ import annotations
