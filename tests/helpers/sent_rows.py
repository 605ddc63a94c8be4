"""Rows sent to RocketMQ as a task of the sink sends them, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.publish.rows import RowKeys
from pyspark_rocketmq.publish.writer import send_rows
from tests.helpers.wait import PATIENCE_S


def send_as_one_task(name_servers: str, rows: Sequence[dict[str, Any]], **options: Any) -> int:
    """Send rows of equal columns; the number of messages."""
    batch = pa.RecordBatch.from_pylist(list(rows))
    parsed = WriteOptions.parse(
        {"nameServers": name_servers, "requestTimeoutMs": f"{PATIENCE_S * 1000:.0f}"}
        | {name: str(value) for name, value in options.items()}
    )
    positions = {name: at for at, name in enumerate(batch.schema.names)}
    return send_rows(iter([batch]), parsed, positions, RowKeys("write", 0, 0))[0]
