"""Rows of consumer mode (option ``consumerGroup``) that pass through Spark, with a marker row for each range.

A *marker row* follows the messages of a range: ``kind`` is ``"end"``, ``queueOffset`` is the range's
exclusive end, and ``plannedRange`` has the range, and where and why it ended, as JSON. In a message's row
``kind`` and ``plannedRange`` are null. In a marker row, number columns without a meaning are 0, not null,
because pandas would turn a column with nulls into floats.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from typing import Final

import pyarrow as pa

from pyspark_rocketmq.model import QUEUE_OFFSET, TIME_COLUMNS, MessageQueue, queue_columns
from pyspark_rocketmq.source.schema import (
    CONSUMER_SCHEMA,
    KIND,
    PLANNED_RANGE,
    EndReason,
    RangeEnd,
    ReadPiece,
    range_from_json,
    range_to_json,
)

END_MARKER: Final = "end"
"""Value of column ``kind`` in a marker row."""


def spark_rows(piece: ReadPiece) -> pa.RecordBatch:
    """Return a piece of a range as rows for Spark: some of its messages, or the marker row of its end."""
    if isinstance(piece, RangeEnd):
        return marker_row(piece)
    nulls = pa.nulls(piece.num_rows, pa.string())
    missing = len(CONSUMER_SCHEMA) - piece.num_columns
    return pa.RecordBatch.from_arrays([*piece.columns, *[nulls] * missing], schema=CONSUMER_SCHEMA)


def marker_row(end: RangeEnd) -> pa.RecordBatch:
    """Return the marker row, which follows a range's messages and shows where and why it ended."""
    position = {**queue_columns(end.planned.queue), QUEUE_OFFSET: end.planned.end}
    values = position | {PLANNED_RANGE: end_to_json(end)}
    columns = _same_in_markers().columns
    for name, value in values.items():
        index = CONSUMER_SCHEMA.get_field_index(name)
        columns[index] = pa.array([value], CONSUMER_SCHEMA.field(index).type)
    return pa.RecordBatch.from_arrays(columns, schema=CONSUMER_SCHEMA)


@cache
def _same_in_markers() -> pa.RecordBatch:
    """Return a marker row with the values that all marker rows share, and placeholders for the others."""
    numbers = {field.name: 0 for field in CONSUMER_SCHEMA if pa.types.is_integer(field.type)}
    times = dict.fromkeys(TIME_COLUMNS, datetime.fromtimestamp(0, UTC))
    values = dict.fromkeys(CONSUMER_SCHEMA.names) | {**numbers, **times, KIND: END_MARKER}
    return pa.RecordBatch.from_pylist([values], schema=CONSUMER_SCHEMA)


def end_to_json(end: RangeEnd) -> str:
    """Return where and why reading a range ended, as JSON for column ``plannedRange`` of its marker row."""
    return json.dumps(
        {
            **range_to_json(end.planned),
            "rows": end.rows,
            "pulls": end.pulls,
            "pullMs": round(end.pull_ms, 1),
            **({} if end.reset_to is None else {"resetTo": end.reset_to}),
            **({} if end.bounds is None else {"bounds": end.bounds}),
            **({} if end.reason is EndReason.WHOLE else {"ended": str(end.reason)}),
        }
    )


def end_from_json(queue: MessageQueue, text: str) -> RangeEnd:
    """Return how reading a range of ``queue`` ended, from ``plannedRange`` of the range's marker row."""
    facts = json.loads(text)
    bounds = facts.get("bounds")
    return RangeEnd(
        planned=range_from_json(queue, facts),
        rows=facts["rows"],
        reason=EndReason(facts.get("ended", EndReason.WHOLE)),
        reset_to=facts.get("resetTo"),
        bounds=None if bounds is None else (bounds[0], bounds[1]),
        pulls=facts["pulls"],
        pull_ms=facts["pullMs"],
    )
