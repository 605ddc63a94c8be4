"""Rows of planned ranges as they leave the source in consumer mode."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource, whole_ranges
from pyspark_rocketmq.consumer.engine.state import ranges_from_rows
from pyspark_rocketmq.listeners.messages import ArrivedMessages
from pyspark_rocketmq.model import TIME_COLUMNS, MessageExt, MessageQueue, QueueRange
from pyspark_rocketmq.source.marker_rows import end_from_json, marker_row
from pyspark_rocketmq.source.schema import CONSUMER_SCHEMA, Arrival, RangeEnd, ReadPiece
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


def source_of(rows: Sequence[Row], size: int) -> ClosedSource:
    """Return the rows as an engine gets them, each range as a whole."""
    return ClosedSource(whole_ranges(pieces_of(rows, size)))


def source_in_pieces(draw: random.Random, ranges: Sequence[Arrival]) -> ClosedSource:
    """Return whole ranges as an engine gets them if they arrive together, in any pieces."""

    def made() -> Iterator[list[Arrival]]:
        left = [(whole, [message for piece in whole.messages for message in piece]) for whole in ranges]
        while left:
            together: list[Arrival] = []
            for whole, messages in draw.sample(left, draw.randint(1, len(left))):
                size = draw.randint(0, len(messages))
                piece, messages[:size] = messages[:size], []
                end = whole.end if not messages and draw.random() < 0.7 else None
                together.append(whole._replace(messages=[piece], end=end, nbytes=len(piece)))
            ended = {each.queue for each in together if each.is_end}
            left = [(whole, messages) for whole, messages in left if whole.queue not in ended]
            yield together

    return ClosedSource(made())


def messages_in(arrival: Arrival) -> list[MessageExt]:
    """Return the messages that a listener gets."""
    return list(ArrivedMessages(arrival.queue, arrival.messages, arrival.described_by_messages))


def end_of(marker: pa.RecordBatch) -> RangeEnd:
    """Return the content of a marker row."""
    (row,) = marker.to_pylist()
    assert row["kind"] == "end"
    queue = MessageQueue(row["topic"], row["brokerName"], row["queueId"])
    return end_from_json(queue, row["plannedRange"])
