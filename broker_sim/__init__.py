"""A RocketMQ name server and brokers in one process, for tests and demonstrations."""

from __future__ import annotations
