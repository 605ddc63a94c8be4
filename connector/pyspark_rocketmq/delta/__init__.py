"""What everybody needs of delta-rs; knows nothing of RocketMQ."""

from __future__ import annotations
