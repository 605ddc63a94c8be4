"""File statistics as Delta's log wants them: row count, null counts, least and greatest values by column.

Readers skip files by them, so a bound may be loose but never wrong: where an exact bound cannot be written
(NaN, infinity, cut-off text, dates beyond year 9999) a looser one or none is.

Source: ``PROTOCOL.md``, "Per-file Statistics"; string truncation as delta-spark's ``StatisticsCollection``.
"""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_INDEXED_COLUMNS = 32
"""Delta's default of ``delta.dataSkippingNumIndexedCols``."""
_TEXT_LENGTH = 32
"""Characters kept of a text bound."""
_GREATEST_CHARACTER = "\U0010ffff"
_US_PER_MS = 1_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - only ever added to; the zone is written as text


class FileStatistics:
    """Collects the statistics of one file while its batches are written."""

    def __init__(self, schema: pa.Schema) -> None:
        indexed = [field for field in list(schema)[:_INDEXED_COLUMNS] if not pa.types.is_nested(field.type)]
        self._types = {field.name: field.type for field in indexed}
        self._num_records = 0
        self._null_counts = dict.fromkeys(self._types, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._unbounded = {name for name, type_ in self._types.items() if not _has_bounds(type_)}

    @property
    def num_records(self) -> int:
        """Rows seen so far."""
        return self._num_records

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of one batch into account."""
        self._num_records += batch.num_rows
        for name in self._types:
            column = batch.column(name)
            self._null_counts[name] += column.null_count
            if name not in self._unbounded and column.null_count < len(column):
                self._widen(name, column)

    def to_json(self) -> str:
        """Return the ``stats`` text of an add action."""
        texts = {name: _bound_values(self._types[name], *bounds) for name, bounds in self._bounds.items()}
        return json.dumps(
            {
                "numRecords": self._num_records,
                "minValues": {name: low for name, (low, _) in texts.items() if low is not None},
                "maxValues": {name: high for name, (_, high) in texts.items() if high is not None},
                "nullCount": self._null_counts,
            }
        )

    def _widen(self, name: str, column: pa.Array) -> None:
        type_ = self._types[name]
        if pa.types.is_floating(type_) and not pc.all(pc.is_finite(column.drop_null())).as_py():
            # JSON has no NaN or infinity, and a bound that ignores them would let readers skip such rows.
            self._unbounded.add(name)
            self._bounds.pop(name, None)
            return
        low, high = _min_max(column)
        if name in self._bounds:
            low, high = min(low, self._bounds[name][0]), max(high, self._bounds[name][1])
        self._bounds[name] = (low, high)


def _has_bounds(type_: pa.DataType) -> bool:
    is_kind = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_string,
        pa.types.is_timestamp,
        pa.types.is_date32,
    )
    return any(is_this(type_) for is_this in is_kind)


def _min_max(column: pa.Array) -> tuple[Any, Any]:
    """Least and greatest value; times and dates as their integers, which Python's own types may not hold."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    bounds = pc.min_max(column)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _bound_values(type_: pa.DataType, low: Any, high: Any) -> tuple[Any, Any]:
    """Both bounds as JSON values; None where none can be written."""
    if pa.types.is_string(type_):
        return low[:_TEXT_LENGTH], _text_above(high)
    if pa.types.is_timestamp(type_):
        zone = "" if type_.tz is None else "Z"
        return _time_text(low // _US_PER_MS, zone), _time_text(-(-high // _US_PER_MS), zone)
    if pa.types.is_date32(type_):
        return _date_text(low), _date_text(high)
    return low, high


def _text_above(text: str) -> str | None:
    """A short text not below ``text``: its beginning and the greatest character there is."""
    if len(text) <= _TEXT_LENGTH:
        return text
    if text[_TEXT_LENGTH] == _GREATEST_CHARACTER:
        return None
    return text[:_TEXT_LENGTH] + _GREATEST_CHARACTER


def _time_text(milliseconds: int, zone: str) -> str | None:
    """Milliseconds are all that Delta's statistics keep of a time."""
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds") + zone


def _date_text(days: int) -> str | None:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return None
