"""Writes rows as Parquet files into a Delta table's folder; runs in tasks and knows nothing of the table's log.

Nobody sees a file before the driver commits it. Files of failed or repeated attempts are never committed and go
with VACUUM.

Rule 1: no delta-rs here. Task processes are forked, and delta-rs must not be in a process that forks.
Rule 2: rows below their queue's watermark are in the table already and are dropped here, before they are
written: that is what makes a replay harmless.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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

_ROW_GROUP_BYTES = 32 << 20
_ROW_GROUP_ROWS = 128 * 1024
_OPEN_FILES = 64
"""At most this many partitions are written at once in a task; the fullest file is finished for a new one."""
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_QUEUE_COLUMNS = ("topic", "brokerName", "queueId")
_POSITION_COLUMNS = (*_QUEUE_COLUMNS, "queueOffset")

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
        """Return the fields by name; ``WrittenFile(**fields)`` is the reverse."""
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
    max_file_bytes: int = 128 << 20
    """A file is finished when it has grown to about this size."""
    max_file_rows: int = 1_000_000

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[WrittenFile]:
        """Write the rows that are not in the table yet; order within a partition is kept.

        Files are removed again when ``batches`` or the writing fails.

        Raises:
            SchemaError: If a batch does not fit the table's columns or a row lacks its message's position.
        """
        files = _FileSet(self)
        try:
            for batch in batches:
                rows = drop_known_rows(_conform(batch, self.schema), self.watermarks)
                for values, part in _split(rows, self.partition_by):
                    files.add(values, part)
            return files.finish()
        except BaseException:
            files.abandon()
            raise


def drop_known_rows(batch: pa.RecordBatch, watermarks: Mapping[MessageQueue, int]) -> pa.RecordBatch:
    """Return the rows at or above their queue's watermark.

    Raises:
        SchemaError: If a row's queue is not in ``watermarks``: whether it is in the table is not known.
    """
    lowest = pa.table(batch).group_by(list(_QUEUE_COLUMNS)).aggregate([("queueOffset", "min")])
    for *queue_fields, lowest_offset in zip(
        *(lowest.column(name).to_pylist() for name in (*_QUEUE_COLUMNS, "queueOffset_min")), strict=True
    ):
        queue = MessageQueue(*queue_fields)
        if queue not in watermarks:
            raise SchemaError(
                f"A row of {queue} at offset {lowest_offset} cannot be written: the queue is not part of this "
                "batch. Output rows must carry the position of the message that produced them."
            )
        if lowest_offset < watermarks[queue]:
            batch = batch.filter(pc.invert(_is_below(batch, queue, watermarks[queue])))
    return batch


def _is_below(batch: pa.RecordBatch, queue: MessageQueue, watermark: int) -> pa.Array:
    mask = pc.less(batch.column("queueOffset"), watermark)
    for name, value in zip(_QUEUE_COLUMNS, queue, strict=True):
        mask = pc.and_(mask, pc.equal(batch.column(name), value))
    return mask


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the table's columns, in the table's order and types."""
    missing = [name for name in schema.names if name not in batch.schema.names]
    superfluous = [name for name in batch.schema.names if name not in schema.names]
    if missing or superfluous:
        raise SchemaError(
            f"Output rows do not fit the sink's table: missing columns: {', '.join(missing) or 'none'}; "
            f"superfluous columns: {', '.join(superfluous) or 'none'}."
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
    columns = {
        name: pc.fill_null(_partition_text(batch.column(name)), _NULL_PARTITION) for name in partition_by
    }
    texts = pa.table(columns)
    data = batch.drop_columns(list(partition_by))
    for values in zip(
        *(c.to_pylist() for c in texts.group_by(list(partition_by)).aggregate([]).columns), strict=True
    ):
        mask = None
        for name, value in zip(partition_by, values, strict=True):
            is_value = pc.equal(columns[name], value)
            mask = is_value if mask is None else pc.and_(mask, is_value)
        yield tuple(None if value == _NULL_PARTITION else value for value in values), data.filter(mask)


def _partition_text(column: pa.Array) -> pa.Array:
    """Partition values as Delta writes them; an empty text means null there."""
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


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


class _FileSet:
    """The files a task is writing, one per partition, and those it has finished."""

    def __init__(self, writer: TaskWriter) -> None:
        self._writer = writer
        self._schema = pa.schema([f for f in writer.schema if f.name not in writer.partition_by])
        self._filesystem, self._folder = filesystem_of(writer.table_uri)
        self._open: dict[PartitionValues, _GrowingFile] = {}
        self._finished: list[WrittenFile] = []

    def add(self, values: PartitionValues, rows: pa.RecordBatch) -> None:
        while rows.num_rows:
            file = self._file_of(values)
            room = self._writer.max_file_rows - file.num_records
            file.add(rows.slice(0, room))
            rows = rows.slice(room)
            if file.num_records >= self._writer.max_file_rows or file.size >= self._writer.max_file_bytes:
                self._finish_one(values)

    def finish(self) -> list[WrittenFile]:
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
        subfolders = [
            f"{name}={_NULL_PARTITION if value is None else quote(value, safe='')}"
            for name, value in partition_values.items()
        ]
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
