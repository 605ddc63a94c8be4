"""What the offset store, the sinks and replay need of Delta tables; knows nothing of RocketMQ."""

from __future__ import annotations
