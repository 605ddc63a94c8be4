"""Create Arrow arrays of byte ranges and byte matrices, without a Python object per value.

All positions are in buffers below 2 GiB, Arrow's limit for 32-bit offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_rocketmq.errors import LocalProtocolError

IntArray = npt.NDArray[np.signedinteger]
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]

MAX_COLUMN_BYTES: Final = (1 << 31) - 1
_LEAST_REPEATED: Final = 4096
"""Minimum number of rows of a column of repeated values that is kept for several batches.

A batch with fewer rows uses a slice of the kept column.
"""
_MOST_SHARED_BYTES: Final = 1 << 20
"""Maximum size of such a column, in bytes; a larger one is created again for each batch."""
_OFFSET: Final = np.dtype(np.int32)

_PIECE: Final = 1 << 17
"""Bytes copied at a time, which stay in the processor's cache."""
_FEW_ROWS: Final = 16
"""Maximum number of rows for numpy's own reduction, which takes a step for each row."""


class IrregularLayout(Exception):
    """Raised for messages that the vectorised decoder does not handle; ``wire.messages`` decodes them."""


def require_all(condition: BoolArray) -> None:
    """Raise ``IrregularLayout`` unless every row meets the condition."""
    # Twice as fast as all() on few rows; on many rows the copy is negligible.
    if b"\0" in condition.tobytes():
        raise IrregularLayout


def check_column_bytes(total: int) -> None:
    """Raise ``LocalProtocolError`` if ``total`` bytes do not fit into one column."""
    if total > MAX_COLUMN_BYTES:
        raise LocalProtocolError(
            f"{total} bytes do not fit into one column, which has at most {MAX_COLUMN_BYTES} bytes; decode "
            "fewer messages at a time."
        )


def every_position(data: bytes | bytearray | ByteArray, dtype: np.dtype) -> npt.NDArray[Any]:
    """View the value of ``dtype`` that begins at each byte of ``data``; unaligned and without a copy.

    ``data`` must hold at least one such value.
    """
    return np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, strides=(1,))


def as_void(dtype: np.dtype) -> np.dtype:
    """Return a type of the same size without fields: numpy gathers it thirty times faster."""
    return np.dtype((np.void, dtype.itemsize))


def pooled_bytes(size: int) -> ByteArray:
    """Return uninitialised bytes from Arrow's pool, which keeps freed memory.

    Numpy returns large arrays to the system, and then every page of the next array causes a page fault.
    """
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


def take_ranges(buffer: pa.Buffer, starts: IntArray, ends: IntArray, arrow_type: pa.DataType) -> pa.Array:
    """Copy ``buffer[start:end]`` of each row into one binary or string column.

    The ranges and the gaps between them are the elements of one binary array over ``buffer``. Arrow's
    ``take`` of every second element is the fastest way to gather them. Text is not checked to be UTF-8.

    Raises:
        LocalProtocolError: If the rows take 2 GiB.
    """
    rows = len(starts)
    offsets = np.empty(2 * rows + 2, np.int32)
    offsets[1:-1:2] = starts
    offsets[2::2] = ends
    total = int(np.subtract(ends, starts).sum())
    check_column_bytes(total)
    # Arrow reserves memory by the mean length of all elements, and copies again if that is too little. So the
    # last gap, which is never read, is long enough to raise the mean to that of the rows.
    last = min(2 * total + 2 * (total // max(rows, 1) + 1), MAX_COLUMN_BYTES)
    if last > buffer.size:
        buffer = pa.foreign_buffer(buffer.address, last, buffer)
    offsets[0], offsets[-1] = 0, last
    with_gaps = pa.Array.from_buffers(arrow_type, 2 * rows + 1, [None, pa.py_buffer(offsets), buffer])
    return with_gaps.take(pa.array(np.arange(1, 2 * rows + 1, 2, dtype=np.int32)))


def repeated_texts(texts: Sequence[str], times: int) -> pa.StringArray:
    """Return a column of all ``texts`` in order, ``times`` times; equal columns up to 1 MiB share memory."""
    longest = _shared_rows(times)
    if longest * sum(map(len, texts)) > _MOST_SHARED_BYTES:
        return _repeated(tuple(texts), times)
    return _shared_texts(tuple(texts), longest).slice(0, times * len(texts))


def _repeated(texts: tuple[str, ...], times: int) -> pa.StringArray:
    parts = [text.encode() for text in texts]
    offsets = _repeated_offsets(tuple(accumulate(map(len, parts))), times)
    text = pa.py_buffer(b"".join(parts) * times)
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), text])


def repeated_offsets(ends: tuple[int, ...], rows: int) -> IntArray:
    """Return Arrow's 32-bit offsets of values that end at the same places in each of ``rows`` rows.

    ``ends`` has the end of each value of a row, in bytes from the row's beginning. The array may be shared:
    do not write into it.
    """
    longest = _shared_rows(rows)
    if longest * len(ends) * _OFFSET.itemsize > _MOST_SHARED_BYTES:
        return _repeated_offsets(ends, rows)
    return _shared_offsets(ends, longest)[: rows * len(ends) + 1]


def _repeated_offsets(ends: tuple[int, ...], rows: int) -> IntArray:
    check_column_bytes(ends[-1] * rows)
    offsets = np.zeros(rows * len(ends) + 1, _OFFSET)
    row_at = np.arange(rows, dtype=_OFFSET) * _OFFSET.type(ends[-1])
    for number, end in enumerate(ends, 1):
        np.add(row_at, end, out=offsets[number :: len(ends)])
    return offsets


_shared_texts: Final = lru_cache(maxsize=32)(_repeated)
_shared_offsets: Final = lru_cache(maxsize=32)(_repeated_offsets)


def _shared_rows(rows: int) -> int:
    """Return a power of two that is at least ``rows``, so that the caches hold few arrays."""
    return max(_LEAST_REPEATED, 1 << (rows - 1).bit_length())


def checked_text(column: pa.Array) -> pa.Array:
    """Turn a binary column into a string column; raise ``IrregularLayout`` if a value is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as exc:
        raise IrregularLayout from exc


def fixed_column(arrow_type: pa.DataType, values: IntArray) -> pa.Array:
    """Return a column over the memory of the values, which must be contiguous and of the column's width."""
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(values)])


class ByteMatrix(NamedTuple):
    """One row of bytes for each message, and the lowest and the highest byte of each column.

    If these two are equal, the column is the same in all rows.
    """

    rows: ByteArray
    lowest: ByteArray
    """The lowest byte of each column."""
    highest: ByteArray

    @classmethod
    def gathered(cls, data: bytes | bytearray, at: IntArray, width: int) -> ByteMatrix:
        """Copy ``width`` bytes from each position of ``data``, in pieces that stay in the cache."""
        row = np.dtype((np.void, width))
        source, rows = every_position(data, row), pooled_bytes(len(at) * width).reshape(-1, width)
        extremes = []
        step = max(1, _PIECE // width)
        for first in range(0, len(at), step):
            piece = source[at[first : first + step]].view(np.uint8).reshape(-1, width)
            rows[first : first + step] = piece
            extremes.append((_folded(np.minimum, piece), _folded(np.maximum, piece)))
        lowest, highest = zip(*extremes, strict=True)
        return cls(rows, np.minimum.reduce(lowest), np.maximum.reduce(highest))

    def before(self, column: int) -> ByteMatrix:
        """Return the matrix of the columns before ``column``."""
        return ByteMatrix(self.rows[:, :column], self.lowest[:column], self.highest[:column])

    def is_same(self, begin: int, end: int) -> bool:
        """Return whether these columns are the same in all rows."""
        return bool((self.lowest[begin:end] == self.highest[begin:end]).all())

    def texts(self, ranges: Sequence[tuple[int, int]]) -> pa.StringArray:
        """Return the strings in these ranges of columns, row by row. All their bytes must be ASCII."""
        ends = tuple(accumulate(end - begin for begin, end in ranges))
        rows = len(self.rows)
        packed = pooled_bytes(rows * ends[-1]).reshape(rows, ends[-1])
        if len(ranges) > 1:
            # Write the bytes that are the same in all rows in one step.
            packed[:] = np.concatenate([self.rows[0, begin:end] for begin, end in ranges])
        for (begin, end), packed_end in zip(ranges, ends, strict=True):
            if len(ranges) == 1 or not self.is_same(begin, end):
                packed[:, packed_end - (end - begin) : packed_end] = self.rows[:, begin:end]
        offsets = repeated_offsets(ends, rows)
        return pa.Array.from_buffers(
            pa.string(), rows * len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
        )


def _folded(better: np.ufunc, rows: ByteArray) -> ByteArray:
    """Reduce each column by ``better`` (minimum or maximum): one half of the rows with the other, repeatedly.

    If the number of rows is odd, the halves share a row, which does no harm.
    """
    while len(rows) > _FEW_ROWS:
        half = (len(rows) + 1) // 2
        rows = better(rows[:half], rows[-half:])
    folded: ByteArray = better.reduce(rows)
    return folded
