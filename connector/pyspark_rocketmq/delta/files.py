"""Parquet files of a Delta table with their statistics; the table's log is elsewhere.

This module does not use delta-rs: tasks import it, and the process that forks them must not load delta-rs.

Source: ``PROTOCOL.md``, "Per-file Statistics"; strings are truncated as by delta-spark's
``StatisticsCollection``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from pyspark_rocketmq.delta.paths import fsync_path
from pyspark_rocketmq.errors import SchemaError

_INDEXED_COLUMNS = 32
"""Delta's default of ``delta.dataSkippingNumIndexedCols``."""
_TEXT_LENGTH = 32
"""Number of characters that a string bound keeps."""
_GREATEST_CHARACTER = "\U0010ffff"
_US_PER_MS = 1_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - only ever added to; the zone is written as text
_ROW_GROUP_BYTES = 32 << 20
_ROW_GROUP_ROWS = 128 * 1024
_SAMPLED_ROWS = 1024
"""Number of rows whose values decide whether a Parquet column gets a dictionary."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Value in the name of the folder for rows whose partition value is null."""
_LONGEST_NAME = 255
"""Maximum length of a folder's name in file systems, in bytes."""
PartitionValues = tuple[str | None, ...]
"""Text of each partition column's value, in the columns' order; None for null."""


class FileStatistics:
    """Collects the row count, null counts and bounds of one file while its batches are written.

    Readers skip files by these bounds. So a bound may be loose, but no value may lie outside of it. If an
    exact bound cannot be written (NaN, infinity, long text, dates beyond year 9999), a looser one or none is
    written.
    """

    def __init__(self, schema: pa.Schema) -> None:
        indexed = [field for field in list(schema)[:_INDEXED_COLUMNS] if not pa.types.is_nested(field.type)]
        self._types = {field.name: field.type for field in indexed}
        self.num_records = 0
        """Number of rows added so far."""
        self._null_counts = dict.fromkeys(self._types, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._unbounded = {name for name, type_ in self._types.items() if not _has_bounds(type_)}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of one batch."""
        self.num_records += batch.num_rows
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
                "numRecords": self.num_records,
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
    types = pa.types
    kinds = (types.is_integer, types.is_floating, types.is_string, types.is_timestamp, types.is_date32)
    return any(is_kind(type_) for is_kind in kinds)


def _min_max(column: pa.Array) -> tuple[Any, Any]:
    """Return the least and the greatest value; times and dates as integers.

    Integers are used because Python's types cannot hold all times and dates.
    """
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    bounds = pc.min_max(column)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _bound_values(type_: pa.DataType, low: Any, high: Any) -> tuple[Any, Any]:
    """Return both bounds as JSON values; None for a bound that cannot be written.

    Strings are shortened and times rounded to milliseconds, always outwards.
    """
    if pa.types.is_string(type_):
        return low[:_TEXT_LENGTH], _text_above(high)
    if pa.types.is_timestamp(type_):
        zone = "" if type_.tz is None else "Z"
        return _time_text(low // _US_PER_MS, zone), _time_text(-(-high // _US_PER_MS), zone)
    if pa.types.is_date32(type_):
        return _date_text(low), _date_text(high)
    return low, high


def _text_above(text: str) -> str | None:
    """Return an upper bound of ``text``: the text itself if it is short.

    For a long text the bound is its beginning, followed by the greatest possible character. Return None if
    such a bound could be below ``text``.
    """
    if len(text) <= _TEXT_LENGTH:
        return text
    if text[_TEXT_LENGTH] == _GREATEST_CHARACTER:
        return None
    return text[:_TEXT_LENGTH] + _GREATEST_CHARACTER


def _time_text(milliseconds: int, zone: str) -> str | None:
    """Return a time, given in milliseconds since 1970, in the form of Delta's statistics.

    The form is ISO 8601 with three decimals, followed by ``zone``. Return None if ``datetime`` cannot hold
    the time.
    """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """Facts of a finished file, which a task sends to the driver; only plain values, for JSON."""

    path: str
    """Path below the table's folder, as on disk: not URL-encoded."""
    size: int
    """Size in bytes."""
    num_records: int
    stats_json: str
    """Text for ``stats`` of a Delta add action."""
    partition_values: Mapping[str, str | None]

    @property
    def log_path(self) -> str:
        """The path as the table's log has it: URL-encoded."""
        return quote(self.path, safe="/=")

    def null_count(self, column: str) -> int | None:
        """Return the number of nulls in a column; None if the statistics lack it."""
        found: int | None = json.loads(self.stats_json)["nullCount"].get(column)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def conform(
    batch: pa.RecordBatch, schema: pa.Schema, *, fills_missing: bool, required: Collection[str] = ()
) -> pa.RecordBatch:
    """Return the batch with exactly the table's columns, in the table's order and types.

    ``fills_missing`` adds nullable columns that the batch lacks, filled with nulls.  Columns that are
    ``required`` must have no nulls, even where the table allows them.

    Raises:
        SchemaError: If columns are missing or superfluous, have a type that cannot be converted, or have
            nulls that are not allowed.
    """
    if fills_missing:
        for field in schema:
            if field.name not in batch.schema.names and field.nullable:
                batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    missing = [name for name in schema.names if name not in batch.schema.names]
    superfluous = [name for name in batch.schema.names if name not in schema.names]
    if missing or superfluous:
        raise SchemaError(
            "The columns of the output rows differ from those of the sink's table. Only in the table: "
            f"{', '.join(missing) or 'none'}; only in the rows: {', '.join(superfluous) or 'none'}. Change "
            "the schema of the output rows, or the table's columns."
        )
    columns = [_cast(batch.column(field.name), field, required) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field, required: Collection[str]) -> pa.Array:
    if column.null_count and (not field.nullable or field.name in required):
        raise SchemaError(
            f"Column {field.name} of the output rows has {column.null_count} nulls, but must have a value in "
            "each row. Emit a value, or, if the table's column is NOT NULL, let it have nulls."
        )
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as exc:
        raise SchemaError(
            f"Column {field.name} of the output rows has type {column.type}, which does not fit the table's "
            f"{field.type}: {str(exc).removesuffix('.')}. Emit values of the table's type, or change the "
            "table's column."
        ) from exc


def split_by_partition(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield the values of each partition in the batch, and the partition's rows without these columns.

    Without partition columns, yield ``()`` and the whole batch.  Yield nothing for an empty batch.
    """
    if not batch.num_rows:
        return
    if not partition_by:
        yield (), batch
        return
    columns = {name: partition_text(batch.column(name)) for name in partition_by}
    data = batch.drop_columns(list(partition_by))
    combinations = pa.table(columns).group_by(list(partition_by)).aggregate([])
    for values in zip(*(column.to_pylist() for column in combinations.columns), strict=True):
        mask = None
        for name, value in zip(partition_by, values, strict=True):
            is_value = pc.is_null(columns[name]) if value is None else pc.equal(columns[name], value)
            mask = is_value if mask is None else pc.and_kleene(mask, is_value)
        yield values, data.filter(mask)


def partition_text(column: pa.Array) -> pa.Array:
    """Return partition values as Delta writes them; an empty string becomes null."""
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def folder_name(column: str, value: str | None) -> str:
    """Return the name of the folder for files with this partition value.

    A name that is too long for a file system is cut and gets a digest; readers take the value from the log.
    """
    whole = f"{column}={NULL_PARTITION if value is None else quote(value, safe='')}"
    if is_folder_name(whole):
        return whole
    digest = blake2b(whole.encode(), digest_size=16).hexdigest()
    return f"{whole.encode()[:100].decode(errors='ignore')}~{digest}"


def is_folder_name(name: str) -> bool:
    """Return whether file systems allow the name: at most 255 bytes."""
    return len(name.encode()) <= _LONGEST_NAME


class GrowingFile:
    """One Parquet file that is being written; rows are gathered into row groups of a useful size."""

    def __init__(
        self,
        filesystem: fs.FileSystem,
        folder: str,
        schema: pa.Schema,
        partition_values: Mapping[str, str | None],
    ) -> None:
        self._partition_values = partition_values
        self._statistics = FileStatistics(schema)
        self._schema = schema
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self.gathered_bytes = 0
        """Bytes of the rows that wait for their row group."""
        subfolders = [folder_name(name, value) for name, value in partition_values.items()]
        self.path = "/".join([*subfolders, f"part-{uuid.uuid4()}.parquet"])
        if subfolders:
            filesystem.create_dir("/".join([folder, *subfolders]), recursive=True)
        self._local_file = f"{folder}/{self.path}" if isinstance(filesystem, fs.LocalFileSystem) else None
        self._stream = filesystem.open_output_stream(f"{folder}/{self.path}")
        self._parquet: pq.ParquetWriter | None = None
        """Writer, made with the first row group, whose values show which columns need a dictionary."""

    @property
    def num_records(self) -> int:
        """Number of rows added so far."""
        return self._statistics.num_records

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._stream.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of the file's columns; write a row group when enough rows are gathered."""
        self._statistics.add(rows)
        self._gathered.append(rows)
        self._gathered_rows += rows.num_rows
        self.gathered_bytes += rows.nbytes
        if self._gathered_rows >= _ROW_GROUP_ROWS or self.gathered_bytes >= _ROW_GROUP_BYTES:
            self.write_row_group()

    def finish(self) -> WrittenFile:
        """Write the gathered rows, close the file and return its facts.

        A local file is on the disk when this returns, so it survives a power cut.
        """
        self.write_row_group()
        self._writer().close()
        size = self.size
        self._stream.close()
        if self._local_file is not None:
            fsync_path(self._local_file)
            fsync_path(Path(self._local_file).parent)
        return WrittenFile(
            path=self.path,
            size=size,
            num_records=self.num_records,
            stats_json=self._statistics.to_json(),
            partition_values=self._partition_values,
        )

    def close_quietly(self) -> None:
        """Close a file that nobody will read, without errors."""
        for closeable in (self._parquet, self._stream):
            if closeable is not None:
                with suppress(OSError, pa.ArrowException):
                    closeable.close()

    def write_row_group(self) -> None:
        """Write the gathered rows as one row group."""
        if self._gathered:
            self._writer().write_table(pa.Table.from_batches(self._gathered, self._schema))
        self._gathered = []
        self._gathered_rows = self.gathered_bytes = 0

    def _writer(self) -> pq.ParquetWriter:
        if self._parquet is None:
            repeated = repeated_columns(self._gathered[0]) if self._gathered else []
            self._parquet = pq.ParquetWriter(
                self._stream, self._schema, compression="zstd", use_dictionary=repeated
            )
        return self._parquet


def repeated_columns(rows: pa.RecordBatch) -> list[str]:
    """Return the paths, such as ``properties.key_value.key``, of the Parquet columns whose values repeat.

    Values repeat if at most half of them in the first 1,024 rows are distinct. If most differ, as those of
    bodies and keys do, a dictionary takes time and saves no space.
    """
    return [
        path
        for name in rows.schema.names
        for path, values in _leaves(name, rows.column(name)[:_SAMPLED_ROWS])
        if 2 * pc.count_distinct(values).as_py() <= len(values)
    ]


def _leaves(path: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield path and values of each Parquet column that stores a part of ``column``, except empty ones."""
    kind = column.type
    if pa.types.is_map(kind):
        # Even in a slice, the attributes ``keys`` and ``items`` are those of all rows.
        begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        keys, items = column.keys[begin:end], column.items[begin:end]
        yield from _leaves(f"{path}.key_value.key", keys)
        yield from _leaves(f"{path}.key_value.value", items)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", column.flatten())
    elif pa.types.is_struct(kind):
        for field, values in zip(kind, column.flatten(), strict=True):
            yield from _leaves(f"{path}.{field.name}", values)
    elif len(column):
        yield path, column
