"""Writing to RocketMQ with Spark."""

from __future__ import annotations
