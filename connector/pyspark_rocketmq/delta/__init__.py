"""Delta tables for the offset store, the sinks and replay; contains nothing of RocketMQ."""

from __future__ import annotations
