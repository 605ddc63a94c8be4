"""Answers to pulls, decoded message by message and as columns: both results must agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import TIME_COLUMNS, MessageExt, MessageQueue
from pyspark_rocketmq.wire.columnar.columns import END_TIMESTAMP_MS, FIRST_TIMESTAMP_MS
from pyspark_rocketmq.wire.columnar.decode import Undecodable, decode_in_turn, row_of
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA
from pyspark_rocketmq.wire.messages import decode_messages
from tests.helpers.stored_messages import decode_columns

_BROKER = "broker-a"


def run_messages(data: bytes) -> None:
    """Decode both ways; a refusal must be a refusal of both."""
    columns = _columns(data)
    _check_in_turn(data, columns)
    try:
        messages = decode_messages(data, _BROKER)
    except RemoteProtocolError:
        assert columns is None, "the columns have what the plain decoder refuses"
        raise
    assert columns is not None, "the plain decoder has what the columns refuse"
    for name, found, expected in _both(columns, messages):
        assert found == expected, f"column {name} is {found!r:.300}, the plain decoder has {expected!r:.300}"


def _check_in_turn(data: bytes, columns: pa.RecordBatch | None) -> None:
    """Check decoding in turn: it gives the same as decoding at once, or finds what cannot be decoded."""
    parts = list(decode_in_turn([data], _BROKER))
    batches = [part for part in parts if not isinstance(part, Undecodable)]
    undecodable = [part for part in parts if isinstance(part, Undecodable)]
    if columns is None:
        assert undecodable, "decoded in turn it is whole"
    else:
        assert not undecodable, f"decoded in turn it is not whole: {undecodable[0].reason}"
        assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([columns])), (
            "decoded in turn it is another"
        )
    for batch in batches:
        batch.validate(full=True)
    for part in undecodable:
        row_of(part.shown(MessageQueue("T", _BROKER, 0), 7)).validate(full=True)
        part.queue_offsets(0, 100, is_filtered=False)


def _columns(data: bytes) -> pa.RecordBatch | None:
    try:
        columns = decode_columns(data, _BROKER)
    except RemoteProtocolError:
        return None
    columns.validate(full=True)
    return columns


def _both(columns: pa.RecordBatch, messages: list[MessageExt]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    plain = zip(*messages, strict=True) if messages else iter([()] * len(MESSAGE_SCHEMA))
    for field, values in zip(MESSAGE_SCHEMA, plain, strict=False):
        column = columns.column(field.name)
        if field.name in TIME_COLUMNS:
            yield field.name, column.cast(pa.int64()).to_pylist(), [_microseconds(each) for each in values]
        elif field.name == "properties":
            yield field.name, [dict(entries) for entries in column.to_pylist()], list(values)
        else:
            yield field.name, column.to_pylist(), list(values)


def _microseconds(milliseconds: int) -> int | None:
    return milliseconds * 1000 if FIRST_TIMESTAMP_MS <= milliseconds < END_TIMESTAMP_MS else None
