"""Writes rows as Parquet files into a Delta table's folder; runs in tasks and knows nothing of the table's log.

Nobody sees a file before the driver commits it. Files of failed or repeated attempts are never committed and go
with VACUUM.

Rule 1: no delta-rs here. Task processes are forked, and delta-rs must not be in a process that forks.
Rule 2: rows below their queue's watermark are in the table already and are dropped before they are written: that is
what makes a replay harmless.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from pyspark_rocketmq.errors import OptionError, SchemaError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.streaming.delta_stats import FileStatistics
from pyspark_rocketmq.streaming.known_rows import drop_known_rows

_ROW_GROUP_BYTES = 32 << 20
_ROW_GROUP_ROWS = 128 * 1024
_OPEN_FILES = 64
"""At most this many partitions are written at once in a task; the fullest file is finished for a new one."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Names the folder of rows without a value."""
_LONGEST_NAME = 255
"""Bytes of a folder's name that file systems take."""
_POSITION_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset")

PartitionValues = tuple[str | None, ...]
"""Text of each partition column, in their order; None for null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A finished file on its way to the driver; plain values only, so that it travels as JSON."""

    path: str
    """Relative to the table's folder, as on disk: not URL-encoded."""
    size: int
    """Bytes."""
    num_records: int
    stats_json: str
    """The ``stats`` of a Delta add action."""
    partition_values: Mapping[str, str | None]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWriter:
    """What a task needs to write its share of a batch; picklable."""

    table_uri: str
    """Local path, or a storage URI that ``pyarrow.fs`` knows."""
    schema: pa.Schema
    """The table's columns."""
    partition_by: tuple[str, ...]
    watermarks: Mapping[MessageQueue, int]
    """Next offset by queue, for every queue of the batch: rows below are in the table already."""
    fills_missing: bool = False
    """Whether rows may lack columns that may be null."""
    max_file_bytes: int = 128 << 20
    """A file is finished when it has grown to about this size."""
    max_file_rows: int = 1_000_000

    def open(self) -> FileSet:
        """See ``RowWriter.open``; the files are removed again when it is abandoned."""
        return FileSet(self)

    def written(self, facts: Mapping[str, Any]) -> WrittenFile:
        """See ``RowWriter.written``."""
        return WrittenFile(**facts)


def _conform(batch: pa.RecordBatch, schema: pa.Schema, *, fills_missing: bool) -> pa.RecordBatch:
    """The batch with exactly the table's columns, in the table's order and types."""
    if fills_missing:
        for field in schema:
            if field.name not in batch.schema.names and field.nullable:
                batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    missing = [name for name in schema.names if name not in batch.schema.names]
    superfluous = [name for name in batch.schema.names if name not in schema.names]
    if missing or superfluous:
        raise SchemaError(
            f"Output rows do not fit the sink's table: only in the table: {', '.join(missing) or 'none'}; "
            f"only in the rows: {', '.join(superfluous) or 'none'}."
        )
    columns = [_cast(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.null_count and (not field.nullable or field.name in _POSITION_COLUMNS):
        raise SchemaError(
            f"Column {field.name} of the output rows has {column.null_count} nulls and may have none."
        )
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as exc:
        raise SchemaError(
            f"Column {field.name} of the output rows has type {column.type}, which does not fit the table's "
            f"{field.type}: {exc}"
        ) from exc


def _split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Parts of the batch by partition, without the partition columns."""
    if not batch.num_rows:
        return
    if not partition_by:
        yield (), batch
        return
    columns = {name: _partition_text(batch.column(name)) for name in partition_by}
    texts = pa.table(columns)
    data = batch.drop_columns(list(partition_by))
    for values in zip(
        *(c.to_pylist() for c in texts.group_by(list(partition_by)).aggregate([]).columns), strict=True
    ):
        mask = None
        for name, value in zip(partition_by, values, strict=True):
            is_value = pc.is_null(columns[name]) if value is None else pc.equal(columns[name], value)
            mask = is_value if mask is None else pc.and_kleene(mask, is_value)
        yield values, data.filter(mask)


def _partition_text(column: pa.Array) -> pa.Array:
    """Partition values as Delta writes them; an empty text means null there."""
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def folder_name(column: str, value: str | None) -> str:
    """Of the files with this partition value.

    The log says which value a file has: where the name would be too long for a file system, a digest ends it.
    """
    whole = f"{column}={NULL_PARTITION if value is None else quote(value, safe='')}"
    if is_folder_name(whole):
        return whole
    digest = blake2b(whole.encode(), digest_size=16).hexdigest()
    return f"{whole.encode()[:100].decode(errors='ignore')}~{digest}"


def is_folder_name(name: str) -> bool:
    """Whether file systems take it: 255 bytes."""
    return len(name.encode()) <= _LONGEST_NAME


def filesystem_of(table_uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and folder of a table.

    Raises:
        OptionError: If ``pyarrow.fs`` does not know the URI's scheme.
    """
    if "://" not in table_uri:
        return fs.LocalFileSystem(), str(Path(table_uri).absolute())
    # Spark's name for S3; Arrow knows the plain one only.
    uri = "s3" + table_uri.removeprefix("s3a") if table_uri.startswith("s3a://") else table_uri
    try:
        filesystem, folder = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, ValueError) as exc:
        problem = f"Files cannot be written to {table_uri}: {exc} Use a path or a URI that pyarrow.fs knows."
        raise OptionError((problem,), where="Delta sink") from exc
    return filesystem, folder.rstrip("/")


class FileSet:
    """The files a task is writing, one per partition, and those it has finished; implements ``Writing``."""

    def __init__(self, writer: TaskWriter) -> None:
        self._writer = writer
        self._schema = pa.schema([f for f in writer.schema if f.name not in writer.partition_by])
        self._filesystem, self._folder = filesystem_of(writer.table_uri)
        self._open: dict[PartitionValues, _GrowingFile] = {}
        self._finished: list[WrittenFile] = []

    def add(self, rows: pa.RecordBatch) -> int:
        """Write the rows that are not in the table yet, in their order within a partition; how many are in it.

        Raises:
            SchemaError: If they do not fit the table's columns or a row lacks its message's position.
        """
        new = drop_known_rows(
            _conform(rows, self._writer.schema, fills_missing=self._writer.fills_missing),
            self._writer.watermarks,
        )
        for values, part in _split(new, self._writer.partition_by):
            self._add_part(values, part)
        return int(rows.num_rows - new.num_rows)

    def _add_part(self, values: PartitionValues, rows: pa.RecordBatch) -> None:
        while rows.num_rows:
            file = self._file_of(values)
            room = self._writer.max_file_rows - file.num_records
            file.add(rows.slice(0, room))
            rows = rows.slice(room)
            if file.num_records >= self._writer.max_file_rows or file.size >= self._writer.max_file_bytes:
                self._finish_one(values)

    def finish(self) -> list[WrittenFile]:
        """See ``Writing.finish``."""
        for values in list(self._open):
            self._finish_one(values)
        return self._finished

    def abandon(self) -> None:
        """Remove all files, as far as that is possible: what stays is no worse than after a kill."""
        for file in self._open.values():
            file.close_quietly()
        paths = [file.path for file in self._open.values()] + [file.path for file in self._finished]
        for path in paths:
            try:
                self._filesystem.delete_file(f"{self._folder}/{path}")
            except OSError:
                continue

    def _file_of(self, values: PartitionValues) -> _GrowingFile:
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                self._finish_one(max(self._open, key=lambda key: self._open[key].num_records))
            by_column = dict(zip(self._writer.partition_by, values, strict=True))
            file = _GrowingFile(self._filesystem, self._folder, self._schema, by_column)
            self._open[values] = file
        return file

    def _finish_one(self, values: PartitionValues) -> None:
        self._finished.append(self._open[values].finish())
        del self._open[values]


class _GrowingFile:
    """One Parquet file; rows are gathered into row groups that are worth having."""

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
        self._gathered_bytes = 0
        subfolders = [folder_name(name, value) for name, value in partition_values.items()]
        self.path = "/".join([*subfolders, f"part-{uuid.uuid4()}.parquet"])
        if subfolders:
            filesystem.create_dir("/".join([folder, *subfolders]), recursive=True)
        self._stream = filesystem.open_output_stream(f"{folder}/{self.path}")
        self._parquet = pq.ParquetWriter(self._stream, schema, compression="zstd")

    @property
    def num_records(self) -> int:
        return self._statistics.num_records

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._stream.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        self._statistics.add(rows)
        self._gathered.append(rows)
        self._gathered_rows += rows.num_rows
        self._gathered_bytes += rows.nbytes
        if self._gathered_rows >= _ROW_GROUP_ROWS or self._gathered_bytes >= _ROW_GROUP_BYTES:
            self._write_row_group()

    def finish(self) -> WrittenFile:
        self._write_row_group()
        self._parquet.close()
        size = self.size
        self._stream.close()
        return WrittenFile(
            path=self.path,
            size=size,
            num_records=self.num_records,
            stats_json=self._statistics.to_json(),
            partition_values=self._partition_values,
        )

    def close_quietly(self) -> None:
        """Let go of a file that nobody will read."""
        for closeable in (self._parquet, self._stream):
            try:
                closeable.close()
            except (OSError, pa.ArrowException):
                continue

    def _write_row_group(self) -> None:
        if self._gathered:
            self._parquet.write_table(pa.Table.from_batches(self._gathered, self._schema))
        self._gathered = []
        self._gathered_rows = self._gathered_bytes = 0
