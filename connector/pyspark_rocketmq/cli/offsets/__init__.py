"""The commands ``pyspark-rocketmq offsets …``."""

from __future__ import annotations
