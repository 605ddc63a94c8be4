"""The command line ``pyspark-rocketmq``."""

from __future__ import annotations
