"""Rows of planned ranges as they leave the source in consumer mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pyspark_rocketmq.consumer.engine.state import ranges_from_rows
from pyspark_rocketmq.model import TIME_COLUMNS, MessageExt, MessageQueue, QueueRange
from pyspark_rocketmq.source.marker_rows import end_from_json, marker_row
from pyspark_rocketmq.source.schema import CONSUMER_SCHEMA, RangeEnd, ReadPiece
from tests.helpers.messages import message_at

Row = dict[str, Any]


def row_of(message: MessageExt) -> Row:
    """Return a row of a message; its columns are in the order of MessageExt's fields."""
    row = dict(zip(CONSUMER_SCHEMA.names, (*message[:17], None, None, None), strict=True))
    instants = {name: datetime.fromtimestamp(row[name] / 1000, UTC) for name in TIME_COLUMNS}
    return row | instants


def rows_of(*planned: QueueRange, **changes: object) -> list[Row]:
    """Return all rows of ranges that follow each other, a message with ``changes`` at each offset,
    and the marker rows.
    """
    rows: list[Row] = []
    for each in planned:
        messages = [message_at(offset, queue=each.queue) for offset in range(each.start, each.end)]
        rows += [row_of(message) | changes for message in messages]
        rows += marker_row(RangeEnd(planned=each, rows=each.count)).to_pylist()
    return rows


def batches_of(rows: Sequence[Row], size: int) -> list[pa.RecordBatch]:
    """Return the rows as ``mapInArrow`` passes them."""
    return [
        pa.RecordBatch.from_pylist(list(rows[at : at + size]), schema=CONSUMER_SCHEMA)
        for at in range(0, len(rows), size)
    ]


def pieces_of(rows: Sequence[Row], size: int) -> Iterator[ReadPiece]:
    """Return the rows as an engine gets them."""
    return ranges_from_rows(batches_of(rows, size))


def end_of(marker: pa.RecordBatch) -> RangeEnd:
    """Return the content of a marker row."""
    (row,) = marker.to_pylist()
    assert row["kind"] == "end"
    queue = MessageQueue(row["topic"], row["brokerName"], row["queueId"])
    return end_from_json(queue, row["plannedRange"])
