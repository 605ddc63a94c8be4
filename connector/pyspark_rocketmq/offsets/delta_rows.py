"""Columns and versions of the offset table; rows to Arrow and back.

A table says its form in a property; one without it has the first.  Old tables are read as they are and
brought to the newest form by the first change; a table of a newer form is refused.

``pyarrow.array(list)`` loads pandas, to see whether it is given a Series: half a second of a core and 30 MiB
in every process that plans, which needs pandas for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import NO_BATCH, OffsetRow


def to_strings(values: Sequence[str | None]) -> pa.StringArray:
    """An array of the texts; null where there is None."""
    encoded = [b"" if value is None else value.encode() for value in values]
    bounds = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(each) for each in encoded], out=bounds[1:])
    buffers = [_validity(values), pa.py_buffer(bounds), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def to_numbers(values: Sequence[int | None], arrow_type: pa.DataType) -> pa.Array:
    """An array of integers, or of what Arrow keeps in integers, such as timestamps; null where there is None.

    Raises:
        OverflowError: If a number does not fit into ``arrow_type``.
    """
    numbers = np.array([0 if value is None else value for value in values], f"i{arrow_type.bit_width // 8}")
    return pa.Array.from_buffers(arrow_type, len(values), [_validity(values), pa.py_buffer(numbers)])


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


VERSION_PROPERTY: Final = "pyspark_rocketmq.offsetTableVersion"
NEWEST_VERSION: Final = 4
_ADDED = {"put_back": 3, "statistics": 3, "generation": 4, "last_message": 4, "shown": 4, "sinks": 4}
"""Column → the version it came with; all of them may be null."""
DROPPED: Final[Mapping[str, str]] = {"uncommitted": "string"}
"""Columns (name → type) of earlier versions: a table that has them keeps them, and they are null from now on.
"""


def check_version(path: str, configuration: Mapping[str, str]) -> int:
    """The version of the table at ``path``, whose properties are ``configuration``.

    Raises:
        SchemaError: If it is newer than this release, or no number.
    """
    text = configuration.get(VERSION_PROPERTY, "1")
    if text.isdecimal() and 1 <= int(text) <= NEWEST_VERSION:
        return int(text)
    raise SchemaError(
        f"The offset table at {path} has version {text!r} ({VERSION_PROPERTY}), this release knows versions "
        f"1 to {NEWEST_VERSION}. Use the release that wrote it, or name another path for the offset store."
    )


def columns_of_version(version: int, columns: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Which of the newest ``columns`` (name → type) a table of ``version`` with the columns ``found`` must have."""
    # One that was being upgraded has newer columns and still the old version.
    wanted = {
        name: type_ for name, type_ in columns.items() if _ADDED.get(name, 1) <= version or name in found
    }
    return wanted | {name: type_ for name, type_ in DROPPED.items() if name in found}


_TIMESTAMP = pa.timestamp("us", "UTC")
_COLUMNS = (
    ("consumer_group", pa.string(), "string"),
    ("topic", pa.string(), "string"),
    ("broker_name", pa.string(), "string"),
    ("queue_id", pa.int32(), "integer"),
    ("next_offset", pa.int64(), "long"),
    ("epoch", pa.int64(), "long"),
    ("owner", pa.string(), "string"),
    ("reconsume_times", pa.int32(), "integer"),
    ("suspended_until", _TIMESTAMP, "timestamp"),
    ("query_id", pa.string(), "string"),
    ("batch_id", pa.int64(), "long"),
    ("updated_at", _TIMESTAMP, "timestamp"),
    ("put_back", pa.string(), "string"),
    ("statistics", pa.string(), "string"),
    ("generation", pa.int32(), "integer"),
    ("last_message", pa.string(), "string"),
    ("shown", pa.string(), "string"),
    ("sinks", pa.string(), "string"),
)

SCHEMA = pa.schema([(name, arrow_type) for name, arrow_type, _ in _COLUMNS])
"""The offset table's columns; ``suspended_until`` and those behind ``updated_at`` may be null."""
COLUMN_TYPES = {name: delta_type for name, _, delta_type in _COLUMNS}
"""The same by Delta's type names."""

_US_PER_S = 1_000_000


def rows_to_table(rows: Iterable[OffsetRow]) -> pa.Table:
    """Make one table row of each offset row, sorted by queue so that equal rows make equal files."""
    ordered = sorted(rows, key=lambda row: row.queue)
    columns: dict[str, list[Any]] = {
        "consumer_group": [row.consumer_group for row in ordered],
        "topic": [row.queue.topic for row in ordered],
        "broker_name": [row.queue.broker_name for row in ordered],
        "queue_id": [row.queue.queue_id for row in ordered],
        "next_offset": [row.next_offset for row in ordered],
        "epoch": [row.epoch for row in ordered],
        "owner": [row.owner for row in ordered],
        "reconsume_times": [row.reconsume_times for row in ordered],
        "suspended_until": [_to_us(row.suspended_until_s) for row in ordered],
        "query_id": [row.query_id for row in ordered],
        "batch_id": [row.batch_id for row in ordered],
        "updated_at": [_to_us(row.updated_at_s) for row in ordered],
        "put_back": [row.put_back or None for row in ordered],
        "statistics": [row.statistics or None for row in ordered],
        "generation": [row.generation for row in ordered],
        "last_message": [row.last_message or None for row in ordered],
        "shown": [row.shown or None for row in ordered],
        "sinks": [row.sinks or None for row in ordered],
    }
    # pa.table() loads pandas, as pa.array() does.
    return pa.Table.from_arrays(
        [_to_array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA
    )


def rows_from_table(consumer_group: str, table: pa.Table) -> dict[MessageQueue, OffsetRow]:
    """Read the rows of one group back; ``table`` holds that group's rows only, perhaps without the newest columns."""
    # Column by column: a thousand rows take about a millisecond this way, Table.to_pylist several times that.
    known = frozenset(table.column_names)
    cells = [
        table.column(field.name).cast(_reading_type(field.type)).to_pylist()
        if field.name in known
        else [None] * table.num_rows
        for field in SCHEMA
    ]
    (
        _,
        topics,
        brokers,
        queue_ids,
        next_offsets,
        epochs,
        owners,
        times,
        suspended,
        queries,
        batches,
        updated,
        put_back,
        statistics,
        generations,
        last_messages,
        shown,
        sinks,
    ) = cells
    queues = list(map(MessageQueue, topics, brokers, queue_ids))
    rows = map(
        OffsetRow,
        repeat(consumer_group),
        queues,
        next_offsets,
        epochs,
        # Rows inserted by SQL may leave these out.
        _without_null(owners, ""),
        _without_null(times, 0),
        map(_to_s, suspended),
        _without_null(queries, ""),
        _without_null(batches, NO_BATCH),
        [0.0 if micros is None else micros / _US_PER_S for micros in updated],
        _without_null(put_back, ""),
        _without_null(statistics, ""),
        _without_null(generations, 0),
        _without_null(last_messages, ""),
        _without_null(shown, ""),
        _without_null(sinks, ""),
    )
    return dict(zip(queues, rows, strict=True))


def _to_array(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    return to_strings(values) if pa.types.is_string(arrow_type) else to_numbers(values, arrow_type)


def _without_null(values: list[Any], default: object) -> list[Any]:
    return [default if value is None else value for value in values] if None in values else values


def _reading_type(arrow_type: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(arrow_type) else arrow_type


def _to_us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * _US_PER_S)


def _to_s(micros: int | None) -> float | None:
    return None if micros is None else micros / _US_PER_S
