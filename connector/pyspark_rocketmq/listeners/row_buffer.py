"""Keeps the emitted rows of a range until a commit takes them: in memory, or many rows in a temporary file.

A listener may emit any number of rows for a message, and they must stay in the task until the message is
acknowledged. A range is a span of one queue's offsets, which a task consumes. Rows are kept in order: the
newest as tuples, older ones as record batches of about 1 MiB. Beyond 8 MiB they are written to the range's
own file. Rows of a call whose messages are given back are dropped. The file has no name and disappears with
the process at the latest.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from sys import getsizeof
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.row_validation import Row, RowColumns

IN_MEMORY_BYTES: Final = 8 << 20
"""Maximum memory, in bytes, for the batches of a range, and for those of each running call.

Beyond it, they are written to the range's file.
"""
_BATCH_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 64 << 10
"""Size of a batch, in bytes, below which it is joined with small ones beside it."""
_COLUMN_BYTES: Final = 700
"""Approximate memory, in bytes, that a column of a batch takes besides its values."""
_BATCH_ROWS: Final = 8192
"""Number of rows at which those of a running call are packed into a batch."""
LOOK_EVERY: Final = 64
"""Number of rows of a call between two checks of their size."""
_FEW_ROWS: Final = 1024
"""Number of rows at which those of a range's ended calls are packed into a batch."""
_WRITTEN_BYTES: Final = 4 << 20
_WRITTEN_ROWS: Final = 64 * 1024
"""Approximate number of rows that a sink's writer gets at a time."""
_VALUE_BYTES: Final = 50
"""Approximate memory of a value, in bytes, without the characters or bytes of a text."""
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")

Emitted: TypeAlias = "Row | pa.RecordBatch | SpilledRows"
"""A row as a tuple, or several rows: in a batch, or in the range's file."""


@dataclass(frozen=True, slots=True, eq=False)
class SpilledRows:
    """Rows in a range's temporary file: the bytes from ``begin`` to before ``end``."""

    file: SpillFile
    begin: int
    end: int

    def read(self) -> pa.RecordBatch:
        """Read the rows from the file, and return them as one batch."""
        with pa.ipc.open_stream(self.file.read(self.begin, self.end)) as reader:
            return reader.read_next_batch()


class SpillFile:
    """The temporary file of one range, made when first needed; thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._file: IO[bytes] | None = None
        self._end = 0

    @property
    def is_used(self) -> bool:
        """Whether any rows were written, even if they were dropped later."""
        return self._file is not None

    def write(self, rows: pa.RecordBatch) -> SpilledRows:
        """Append rows to the file; return where they are.

        Raises:
            RocketMQError: If there is no space for them.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as stream:
            stream.write_batch(rows)
        data = memoryview(sink.getvalue())
        with self._guard:
            begin, self._end = self._end, self._end + len(data)
        try:
            descriptor = self._opened().fileno()
            at = 0
            while at < len(data):
                at += os.pwrite(descriptor, data[at:], begin + at)
        except OSError as error:
            raise RocketMQError(
                "Output rows that wait for their commit could not be written to a temporary file in "
                f"{_folder()}: {error}. They take {len(data)} bytes, and the file has {begin} already. Give "
                "spark.local.dir more room, or let the listener emit fewer rows for a message."
            ) from error
        return SpilledRows(self, begin, begin + len(data))

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from ``begin`` to before ``end``."""
        descriptor = self._opened().fileno()
        parts: list[bytes] = []
        while begin < end:
            parts.append(os.pread(descriptor, end - begin, begin))
            begin += len(parts[-1])
        return b"".join(parts)

    def drop(self, rows: Sequence[Emitted]) -> None:
        """Let the next ``write`` reuse the space of ``rows`` if nothing was written after them."""
        for row in reversed(rows):
            if isinstance(row, SpilledRows) and row.file is self:
                with self._guard:
                    if row.end == self._end:
                        self._end = row.begin

    def _opened(self) -> IO[bytes]:
        if (file := self._file) is not None:
            return file
        # Without a name, so that a killed process leaves no file behind.
        opened = TemporaryFile(buffering=0, prefix="rocketmq-rows-", dir=_folder())  # noqa: SIM115
        with self._guard:
            file = self._file = self._file or opened
        if file is opened:
            weakref.finalize(self, opened.close)
        else:
            opened.close()
        return file


def _folder() -> str:
    """Return the first writable folder of ``SPARK_LOCAL_DIRS``, else the system's temporary folder."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next((folder for folder in folders if os.access(folder, os.W_OK)), gettempdir())


class RowBuffer:
    """Rows in order; :meth:`look` and :meth:`pack` keep their memory bounded.

    Threads may append to ``rows`` while another thread runs one of these two methods.
    """

    __slots__ = (
        "_columns",
        "_file",
        "_guard",
        "_looked_at",
        "_nbytes",
        "_newest_bytes",
        "_packed",
        "rows",
    )

    def __init__(self, columns: RowColumns, file: SpillFile, rows: list[Emitted] | None = None) -> None:
        """Take over ``rows``, which have ``columns``; rows beyond 8 MiB go to ``file``."""
        self.rows: list[Emitted] = [] if rows is None else rows
        self._columns = columns
        self._file = file
        self._guard = threading.Lock()
        self._packed = 0
        """Number of items at the front that are packed into batches or in the file."""
        self._looked_at = 0
        """Number of items at the front that are packed or measured."""
        self._newest_bytes = 0
        """Size of the measured tuples."""
        self._nbytes = 0
        """Size of the batches in memory."""

    def look(self) -> int:
        """Pack the newest rows into a batch if they are large or many.

        Return the number of items in ``rows`` at which to call this again.
        """
        with self._guard:
            stop = len(self.rows)
            newest = self.rows[self._looked_at : stop]
            rows: Any = [each for each in newest if type(each) is tuple]
            batches = [each for each in newest if type(each) is not tuple]
            self._newest_bytes += _size_of_rows(rows, self._columns) + memory_of(batches)
            self._looked_at = stop
            if self._newest_bytes >= _BATCH_BYTES or stop - self._packed >= _BATCH_ROWS:
                self._pack(stop)
            return len(self.rows) + LOOK_EVERY

    def pack(self) -> int:
        """Pack all rows that are not packed yet.

        Return the length of ``rows`` at which to call :meth:`look`.
        """
        with self._guard:
            self._pack(len(self.rows))
            return len(self.rows) + LOOK_EVERY

    def add(self, emitted: Sequence[Emitted]) -> None:
        """Add the rows of a call; pack the newest rows into a batch if they are large or many."""
        rows = self.rows
        rows += emitted
        if len(rows) - self._packed >= _FEW_ROWS:
            self.pack()
        elif any(type(each) is not tuple for each in emitted):
            self.look()

    def spill_to(self, file: SpillFile) -> None:
        """Write rows to another file from now on; those written before stay in the old one."""
        self._file = file

    def take(self) -> list[Emitted]:
        """Remove and return all rows."""
        taken, self.rows = self.rows, []
        self._packed = self._looked_at = self._newest_bytes = self._nbytes = 0
        return taken

    def _pack(self, stop: int) -> None:
        start = self._packed
        batches = list(_joined(_in_batches(self.rows[start:stop], self._columns)))
        self.rows[start:stop] = batches
        self._looked_at = self._packed = start + len(batches)
        self._newest_bytes = 0
        self._nbytes += memory_of(batches)
        if self._nbytes > IN_MEMORY_BYTES:
            spilled = spill(self.rows[: self._packed], self._columns, self._file)
            self.rows[: self._packed] = spilled
            self._looked_at = self._packed = len(spilled)
            self._nbytes = 0


def spill(emitted: Sequence[Emitted], columns: RowColumns, file: SpillFile) -> list[Emitted]:
    """Write all rows that are in memory to the file; return all rows in their order."""
    spilled: list[Emitted] = []
    for batch in _joined(_in_batches(emitted, columns)):
        if isinstance(batch, pa.RecordBatch):
            spilled += map(file.write, _slices(batch))
        else:
            spilled.append(batch)
    return spilled


def size_of(emitted: Sequence[Emitted]) -> int:
    """Return the approximate size of a call's values, in bytes; rows in a file count as 0."""
    in_tuples = sum(sum(map(_size_of, rows)) for rows in emitted if isinstance(rows, tuple))
    in_batches: int = sum(rows.nbytes for rows in emitted if isinstance(rows, pa.RecordBatch))
    return in_tuples + in_batches


def memory_of(emitted: Sequence[Emitted]) -> int:
    """Return the approximate memory of a call's rows, in bytes: their values and the overhead of batches.

    A small batch takes many times the memory of its values.
    """
    columns: int = sum(rows.num_columns for rows in emitted if isinstance(rows, pa.RecordBatch))
    return size_of(emitted) + _COLUMN_BYTES * columns


def batches_of(emitted: Sequence[Emitted], columns: RowColumns) -> Iterator[pa.RecordBatch]:
    """Yield the rows, which have ``columns``, in batches of a few MiB."""
    pieces = _in_batches(emitted, columns)
    whole = (each if isinstance(each, pa.RecordBatch) else each.read() for each in pieces)
    yield from gathered(chain.from_iterable(map(_slices, whole)))


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of small batches, all of one schema, in batches of a few MiB."""
    some: list[pa.RecordBatch] = []
    count = nbytes = 0
    for batch in batches:
        some.append(batch)
        count, nbytes = count + batch.num_rows, nbytes + batch.nbytes
        if count >= _WRITTEN_ROWS or nbytes >= _WRITTEN_BYTES:
            yield _as_one(some)
            some, count, nbytes = [], 0, 0
    if some:
        yield _as_one(some)


def tuples_of(emitted: Sequence[Emitted], columns: RowColumns) -> Iterator[list[Row]]:
    """Yield the rows as tuples, a batch at a time."""
    for kind, some in groupby(emitted, type):
        if kind is tuple:
            yield list(some)  # type: ignore[arg-type]
        else:
            yield from map(to_rows, batches_of(list(some), columns))


def to_rows(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of a batch as tuples."""
    return list(zip(*(column.to_pylist(maps_as_pydicts="strict") for column in batch.columns), strict=True))


def in_queue_order(
    emitted: Sequence[Emitted], queue_offsets: Sequence[int], columns: RowColumns, file: SpillFile
) -> list[Emitted]:
    """Return the rows of the messages at these ascending offsets, message by message; leave out other rows.

    ``file`` takes the sorted rows if there are too many for the memory.
    """
    wanted = set(queue_offsets)
    if all(type(each) is tuple for each in emitted):
        rows: Any = emitted
        return sorted((row for row in rows if row[0] in wanted), key=itemgetter(0))
    if not any(isinstance(each, SpilledRows) for each in emitted):
        batches = list(batches_of(emitted, columns))
        if not batches:
            return []
        batch = _rows_at(pa.concat_batches(batches), wanted)
        # Arrow's sort is not used, because it is not stable.
        return [batch.take(pa.array(np.argsort(batch.column(0).to_numpy(), kind="stable")))]
    if _are_in_order(emitted, wanted, columns):
        return list(emitted)
    found = RowBuffer(columns, file)
    for queue_offset in queue_offsets:
        for batch in batches_of(emitted, columns):
            found.add([_rows_at(batch, {queue_offset})])
    return found.take()


def _are_in_order(emitted: Sequence[Emitted], wanted: set[int], columns: RowColumns) -> bool:
    before = -1
    for batch in batches_of(emitted, columns):
        offsets = batch.column(0).to_numpy()
        is_ascending = offsets[0] >= before and bool((offsets[1:] >= offsets[:-1]).all())
        if not is_ascending or not wanted.issuperset(np.unique(offsets).tolist()):
            return False
        before = offsets[-1]
    return True


def _rows_at(batch: pa.RecordBatch, queue_offsets: Collection[int]) -> pa.RecordBatch:
    return batch.filter(pc.is_in(batch.column(0), pa.array(queue_offsets, pa.int64())))


def _in_batches(emitted: Sequence[Emitted], columns: RowColumns) -> Iterator[pa.RecordBatch | SpilledRows]:
    """Yield the rows in their order, with consecutive tuples as a batch; rows in a file are not read."""
    for kind, some in groupby(emitted, type):
        if kind is tuple:
            rows: Any = list(some)
            values = dict(zip(columns.schema.names, map(list, zip(*rows, strict=True)), strict=True))
            yield columns.to_batch(values, len(rows))
        else:
            yield from some


def _joined(pieces: Iterable[pa.RecordBatch | SpilledRows]) -> Iterator[pa.RecordBatch | SpilledRows]:
    """Yield the rows in their order, with consecutive small batches as one; rows in a file are not read."""
    for are_small, group in groupby(pieces, _is_small):
        some: Any = list(group)
        yield from gathered(some) if are_small else some


def _is_small(piece: pa.RecordBatch | SpilledRows) -> bool:
    return isinstance(piece, pa.RecordBatch) and piece.nbytes < _SMALL_BYTES


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = max(1, min(-(-batch.nbytes // _WRITTEN_BYTES), batch.num_rows))
    step = max(1, -(-batch.num_rows // count))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _as_one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _size_of_rows(rows: Sequence[Row], columns: RowColumns) -> int:
    """Return the approximate memory of rows, in bytes."""
    if not columns.is_plain:
        return sum(map(_size_of, chain.from_iterable(rows)))
    if not rows:
        # Another thread of the listener has just measured them, or its call has ended.
        return 0
    # Asking each value for its size would take a third of the time of an emit().
    values = list(zip(*rows, strict=True))
    texts = sum(sum(map(len, filter(None, values[at]))) for at in columns.texts)
    return texts + _VALUE_BYTES * len(rows) * len(values)


def _size_of(value: object) -> int:
    """Return ``sys.getsizeof`` of a value plus that of its items, at any depth of lists, tuples and dicts."""
    if isinstance(value, list | tuple):
        return getsizeof(value) + sum(map(_size_of, value))
    if isinstance(value, dict):
        return getsizeof(value) + sum(map(_size_of, chain(value, value.values())))
    return getsizeof(value)
