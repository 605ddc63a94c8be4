"""Commits of a Delta table: their actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from deltalake.transaction import AddAction

from pyspark_rocketmq import __version__
from pyspark_rocketmq.delta.files import WrittenFile


def commit_info(
    now_ms: int, operation: str, parameters: Mapping[str, str], *, is_blind_append: bool, **more: str
) -> dict[str, Any]:
    """Return the ``commitInfo`` action of a commit by this package, with the fields of delta-rs and Spark."""
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": f"pyspark-rocketmq/{__version__}",
            "isBlindAppend": is_blind_append,
            **more,
        }
    }


def add_by_delta_rs(file: WrittenFile, now_ms: int, *, data_change: bool = True) -> AddAction:
    """Return the action by which delta-rs adds a file."""
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition_values,
        modification_time=now_ms,
        data_change=data_change,
        stats=file.stats_json,
    )


def add_action(file: WrittenFile, now_ms: int, *, data_change: bool = True) -> dict[str, Any]:
    """Return the action of a commit that adds a file."""
    return {
        "add": {
            "path": quote(file.path, safe="/="),
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            "modificationTime": now_ms,
            "dataChange": data_change,
            "stats": file.stats_json,
        }
    }
