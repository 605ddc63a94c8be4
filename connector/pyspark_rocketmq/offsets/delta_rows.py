"""Columns and versions of the offset table; conversion of rows to Arrow and back.

A table property holds the version; a table without the property has version 1. Old tables can be read as
they are, and the first change upgrades them to the newest version. A table of a newer version is refused.

This module avoids ``pyarrow.array(list)``, which loads pandas to check whether its argument is a Series. That
would cost half a second of CPU and 30 MiB in every planner process, which does not need pandas otherwise.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.store import STORED_FIELDS, OffsetRow, StoredKind
from pyspark_rocketmq.stored_values import StoredValue

VERSION_PROPERTY: Final = "pyspark_rocketmq.offsetTableVersion"
NEWEST_VERSION: Final = 5
"""Version of the offset table that this release writes.

Version 5 adds column ``boundaries``, and column ``last_message`` may have several messages
(``RememberedMessages``), or one of which only the offset is known. Earlier releases must refuse such a table:
they would take a row with several messages for damaged, and a message known only by its offset for another.
"""
DROPPED: Final[Mapping[str, str]] = {"uncommitted": "string"}
"""Columns (name → type) of earlier versions. A table that has them keeps them, and new rows have nulls."""
_QUEUE_COLUMNS = {
    "consumer_group": "consumer_group",
    "topic": "queue.topic",
    "broker_name": "queue.broker_name",
    "queue_id": "queue.queue_id",
}
"""Columns of group and queue, each with the attribute of an ``OffsetRow`` that it stores."""
_ARROW_TYPES = {
    "string": pa.string(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_ADDED_IN_VERSION = {field.column: field.since for field in STORED_FIELDS}
COLUMN_TYPES = dict.fromkeys(_QUEUE_COLUMNS, "string") | {
    "queue_id": "integer",
    **{field.column: field.type for field in STORED_FIELDS},
}
"""Columns of the offset table, with Delta's names for their types."""
_US_PER_S = 1_000_000


def to_strings(values: Sequence[str | None]) -> pa.StringArray:
    """Return an array of the strings, with null for None."""
    encoded = [b"" if value is None else value.encode() for value in values]
    bounds = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=bounds[1:])
    buffers = [_validity(values), pa.py_buffer(bounds), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def to_numbers(values: Sequence[int | None], arrow_type: pa.DataType) -> pa.Array:
    """Return an array of integers, or of a type stored as integers such as timestamps, with null for None.

    Raises:
        OverflowError: If a number does not fit into ``arrow_type``.
    """
    # Unlike an array of numpy before 2.0, this refuses values that do not fit.
    numbers = array({32: "i", 64: "q"}[arrow_type.bit_width], (value or 0 for value in values))
    return pa.Array.from_buffers(arrow_type, len(values), [_validity(values), pa.py_buffer(numbers)])


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


def check_version(path: str, configuration: Mapping[str, str]) -> int:
    """Return the version of the table at ``path``, whose properties are ``configuration``.

    Raises:
        SchemaError: If the version is newer than this release, or not a number.
    """
    text = configuration.get(VERSION_PROPERTY, "1")
    if text.isdecimal() and 1 <= int(text) <= NEWEST_VERSION:
        return int(text)
    raise SchemaError(
        f"The offset table at {path} has version {text!r} ({VERSION_PROPERTY}), but this release reads only "
        f"versions 1 to {NEWEST_VERSION}. Use the release that wrote it, or name another path for the offset "
        "store."
    )


def columns_of_version(version: int, columns: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Return the columns (name → type) that a table of ``version`` must have.

    ``columns`` are those of the newest version, and ``found`` those of the table.
    """
    # If an upgrade was interrupted, the table has newer columns and still the old version.
    wanted = {
        name: type_
        for name, type_ in columns.items()
        if _ADDED_IN_VERSION.get(name, 1) <= version or name in found
    }
    return wanted | {name: type_ for name, type_ in DROPPED.items() if name in found}


SCHEMA = pa.schema([(name, _ARROW_TYPES[type_]) for name, type_ in COLUMN_TYPES.items()])
"""Arrow schema of ``COLUMN_TYPES``; ``suspended_until`` and the columns after ``updated_at`` may be null."""


def rows_to_table(rows: Iterable[OffsetRow]) -> pa.Table:
    """Return a table of the offset rows, sorted by queue so that equal rows make equal files."""
    ordered = sorted(rows, key=attrgetter("queue"))
    columns = [list(map(attrgetter(path), ordered)) for path in _QUEUE_COLUMNS.values()]
    for field in STORED_FIELDS:
        path = f"state.{field.name}" if field.name in QueueState._fields else field.name
        values = list(map(attrgetter(path), ordered))
        if field.kind is not None:
            values = [value.to_text() for value in values]
        if field.type == "timestamp":
            values = list(map(_to_us, values))
        elif field.type == "string" and field.since > 1:
            values = [value or None for value in values]
        columns.append(values)
    # Not pa.table(): like pa.array(), it loads pandas.
    return pa.Table.from_arrays(list(map(_to_array, columns, SCHEMA.types)), schema=SCHEMA)


def rows_from_table(consumer_group: str, table: pa.Table) -> dict[MessageQueue, OffsetRow]:
    """Return the offset rows in ``table``, by queue.

    ``table`` has only rows of ``consumer_group``. It may lack columns and have nulls, which get defaults.
    """
    # Column by column, a thousand rows take about a millisecond; Table.to_pylist takes several times as long.
    known = frozenset(table.column_names)
    cells = {
        field.name: table.column(field.name).cast(_reading_type(field.type)).to_pylist()
        if field.name in known
        else [None] * table.num_rows
        for field in SCHEMA
    }
    queues = list(map(MessageQueue, *(cells[name] for name in MessageQueue._fields)))
    values: dict[str, Iterable[Any]] = {"consumer_group": repeat(consumer_group), "queue": queues}
    for field in STORED_FIELDS:
        found = cells[field.column]
        if field.type == "timestamp":
            found = list(map(_to_s, found))
        # Rows inserted by SQL may leave columns out.
        complete = _without_null(found, field.default)
        values[field.name] = complete if field.kind is None else _to_values(complete, field.kind)
    values["state"] = map(QueueState, *(values[name] for name in QueueState._fields))
    rows = map(OffsetRow, *(values[name] for name in OffsetRow._fields))
    return dict(zip(queues, rows, strict=True))


def _to_array(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    return to_strings(values) if pa.types.is_string(arrow_type) else to_numbers(values, arrow_type)


def _without_null(values: list[Any], default: object) -> list[Any]:
    return [default if value is None else value for value in values] if None in values else values


def _to_values(texts: list[str], kind: StoredKind) -> list[StoredValue[Any]]:
    """Return a value for each text; equal texts share one value."""
    values = {text: kind.from_text(text) for text in set(texts)}
    return [values[text] for text in texts]


def _reading_type(arrow_type: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(arrow_type) else arrow_type


def _to_us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * _US_PER_S)


def _to_s(micros: int | None) -> float | None:
    return None if micros is None else micros / _US_PER_S
