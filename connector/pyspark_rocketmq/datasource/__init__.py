"""The Spark data source ``rocketmq``."""

from __future__ import annotations
