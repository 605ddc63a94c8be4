"""Files that tasks write into a Delta table's folder, and the driver commits.

A file is invisible until the driver commits it. Files of failed or repeated attempts are never committed, and
VACUUM removes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from pyspark_rocketmq.delta.files import (
    GrowingFile,
    PartitionValues,
    WrittenFile,
    conform,
    split_by_partition,
)
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions, filesystem_of
from pyspark_rocketmq.display import masked, masking_logger
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import POSITION_COLUMNS, MessageQueue
from pyspark_rocketmq.sinks.base import drop_committed, rows_without
from pyspark_rocketmq.wire.columnar.schema import QUEUE_FIELDS

logger = masking_logger(__name__)

_GATHERED_BYTES = 64 << 20
"""Maximum size of the rows that a task gathers in memory for its open files, in bytes.

Above this size, the task writes the rows of the file for which it has gathered most.
"""
_OPEN_FILES = 64
"""Maximum number of files that a task has open; each is for another partition of the table.

Before it opens one more, the task finishes the file with the most rows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWriter:
    """All that a task needs to write its share of a batch; picklable."""

    table_uri: str
    """Folder that files are written to: a local path, or a storage URI that delta-rs supports."""
    schema: pa.Schema
    """Columns to which rows are converted: those of the table or, if Spark makes the commit, of the rows."""
    partition_by: tuple[str, ...]
    watermarks: Mapping[MessageQueue, int]
    """Next offset of every queue of the batch; rows below it are already in the table."""
    fills_missing: bool = False
    """Whether rows may lack nullable columns of ``schema``, which are then null."""
    max_file_bytes: int = 128 << 20
    """Size at which a file is finished, approximately."""
    max_file_rows: int = 1_000_000
    storage: StorageOptions = NO_OPTIONS
    """Storage options as of the batch's beginning."""

    def open(self) -> FileSet:
        """Start writing, in the task; return the set of files to which rows are added."""
        return FileSet(self)

    def written(self, facts: Mapping[str, Any]) -> WrittenFile:
        """Rebuild a finished file's facts from ``WrittenFile.to_dict``, on the driver."""
        return WrittenFile(**facts)


class FileSet:
    """The files that a task is writing, one per partition, and its finished ones; implements ``Writing``."""

    def __init__(self, writer: TaskWriter) -> None:
        self._writer = writer
        self._schema = pa.schema([f for f in writer.schema if f.name not in writer.partition_by])
        self._filesystem, self._folder = filesystem_of(writer.table_uri, writer.storage)
        self._open: dict[PartitionValues, GrowingFile] = {}
        self._finished: list[WrittenFile] = []

    def add(self, rows: pa.RecordBatch) -> int:
        """Add rows of the listener; return how many of them the table has already, which are left out.

        Within a partition of the table, the rows keep their order.

        Raises:
            SchemaError: If the rows do not fit the table's columns, or a row lacks its message's position.
            RocketMQError: If the storage cannot be written to.
        """
        new = drop_committed(
            conform(
                rows,
                self._writer.schema,
                fills_missing=self._writer.fills_missing,
                required=POSITION_COLUMNS,
            ),
            self._writer.watermarks,
        )
        with self._raising_write_error():
            for values, part in split_by_partition(new, self._writer.partition_by):
                self._add_part(values, part)
            while sum(file.gathered_bytes for file in self._open.values()) > _GATHERED_BYTES:
                max(self._open.values(), key=lambda file: file.gathered_bytes).write_row_group()
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
        """Finish all files and return them; they are not part of the table until the driver commits them.

        Raises:
            RocketMQError: If the storage cannot be written to.
        """
        with self._raising_write_error():
            for values in list(self._open):
                self._finish_one(values)
        return self._finished

    @contextmanager
    def _raising_write_error(self) -> Iterator[None]:
        """Raise RocketMQError in place of an OSError in the ``with`` block, which writes to the storage."""
        try:
            yield
        except OSError as error:
            raise RocketMQError(
                f"Rows could not be written to {masked(self._writer.table_uri)}: "
                f"{self._writer.storage.describe_error(error)} "
                "None of these rows is in the table. Check that the "
                "executors can reach the storage and may write there."
            ) from error

    def abandon(self) -> None:
        """Remove all files of this task as far as possible; any that stay are never committed."""
        for file in self._open.values():
            file.close_quietly()
        paths = [file.path for file in self._open.values()] + [file.path for file in self._finished]
        for path in paths:
            with suppress(OSError):
                self._filesystem.delete_file(f"{self._folder}/{path}")

    def _file_of(self, values: PartitionValues) -> GrowingFile:
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                self._finish_one(max(self._open, key=lambda key: self._open[key].num_records))
            by_column = dict(zip(self._writer.partition_by, values, strict=True))
            file = GrowingFile(self._filesystem, self._folder, self._schema, by_column)
            self._open[values] = file
        return file

    def _finish_one(self, values: PartitionValues) -> None:
        self._finished.append(self._open[values].finish())
        del self._open[values]


class TaskFolder:
    """Lets the driver check, read and remove the files that tasks wrote to a folder."""

    def __init__(self, uri: str, storage: StorageOptions) -> None:
        self._uri = uri
        self._storage = storage
        self._opened: tuple[Mapping[str, str], fs.FileSystem, str] | None = None
        """Storage options, the file system that uses them, and the folder in it."""

    def _place(self) -> tuple[fs.FileSystem, str]:
        values = self._storage.values
        if self._opened is None or self._opened[0] is not values:
            self._opened = (values, *filesystem_of(self._uri, self._storage))
        return self._opened[1:]

    def unseen(self, files: Sequence[WrittenFile]) -> list[str]:
        """Return a description of each of ``files`` that is missing here, or that has another size."""
        filesystem, folder = self._place()
        found = filesystem.get_file_info([f"{folder}/{file.path}" for file in files])
        return [
            f"{file.path} ({'not there' if seen.size is None else f'{seen.size} bytes'} "
            f"instead of {file.size} bytes)"
            for file, seen in zip(files, found, strict=True)
            if seen.size != file.size
        ]

    def read(self, files: Sequence[WrittenFile], schema: pa.Schema) -> pa.Table:
        """Return the rows of ``files`` with the columns of ``schema``."""
        filesystem, folder = self._place()
        stored = (
            pq.read_table(f"{folder}/{file.path}", filesystem=filesystem, partitioning=None) for file in files
        )
        return pa.concat_tables(
            [schema.empty_table(), *(table.select(schema.names).cast(schema) for table in stored)]
        )

    def stream(self, files: Sequence[WrittenFile]) -> Iterator[pa.Table]:
        """Yield the rows of ``files`` in batches, of which one at a time is in memory."""
        filesystem, folder = self._place()
        for file in files:
            with filesystem.open_input_file(f"{folder}/{file.path}") as stored:
                for batch in _pieces(stored):
                    yield pa.Table.from_batches([batch])

    def without(
        self, file: WrittenFile, schema: pa.Schema, queues: Collection[MessageQueue]
    ) -> WrittenFile | None:
        """Return a file with the rows of ``file`` except those of ``queues``; None if no row remains.

        If all rows remain, return ``file`` itself, otherwise a new file. ``schema`` has the columns of
        ``file``.
        """
        filesystem, folder = self._place()
        rest = GrowingFile(filesystem, folder, schema, file.partition_values)
        try:
            with filesystem.open_input_file(f"{folder}/{file.path}") as stored:
                for batch in _pieces(stored):
                    for kept in _of_other_queues(batch, file.partition_values, schema, queues):
                        rest.add(kept)
            if 0 < rest.num_records < file.num_records:
                return rest.finish()
        except BaseException:
            self._discard(rest)
            raise
        self._discard(rest)
        return file if rest.num_records else None

    def _discard(self, file: GrowingFile) -> None:
        file.close_quietly()
        filesystem, folder = self._place()
        with suppress(OSError):
            filesystem.delete_file(f"{folder}/{file.path}")

    def remove(self, files: Sequence[WrittenFile]) -> None:
        """Remove files of tasks whose rows the table has in other files; VACUUM removes files that stay."""
        filesystem, folder = self._place()
        for file in files:
            try:
                filesystem.delete_file(f"{folder}/{file.path}")
            except OSError as error:
                self._storage.describe_error(error)
                logger.info("file of a merged batch left for VACUUM path=%s", file.path, exc_info=True)


def _pieces(stored: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that a task wrote, in pieces that are no larger than a row group.

    The task had each row group in memory. Without this limit a piece has 65,536 rows, whatever their size.
    """
    parquet = pq.ParquetFile(stored)
    for number in range(parquet.num_row_groups):
        yield from parquet.iter_batches(row_groups=[number])


def _of_other_queues(
    batch: pa.RecordBatch,
    partition_values: Mapping[str, str | None],
    schema: pa.Schema,
    queues: Collection[MessageQueue],
) -> list[pa.RecordBatch]:
    """Return the rows of ``batch``, read from a file, that are not of these queues.

    If the table is partitioned by topic, broker or queue id, that value comes from ``partition_values``.
    """
    rows = pa.Table.from_batches([batch])
    for column in QUEUE_FIELDS:
        if column.name in partition_values:
            value = pa.scalar(partition_values[column.name], pa.string()).cast(column.type)
            rows = rows.append_column(column.name, pa.repeat(value, len(rows)))
    kept: list[pa.RecordBatch] = rows_without(rows, queues).select(schema.names).cast(schema).to_batches()
    return kept
