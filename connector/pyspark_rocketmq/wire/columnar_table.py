"""Byte ranges of one length as the rows of a table: what they have in common shows in its columns.

A column whose least byte is its greatest is the same in all rows. Two passes over the table, by the processor's vector
instructions, tell that of all columns at once, and which bytes occur nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.wire.columnar_ranges import (
    ByteArray,
    IntArray,
    every_position,
    pooled_bytes,
    repeated_offsets,
)

_PIECE: Final = 1 << 17
_FEW_ROWS: Final = 16
"""Numpy's own reduction takes a step for each row."""


class ByteTable(NamedTuple):
    """At least one row."""

    rows: ByteArray
    lowest: ByteArray
    """The least byte of each column."""
    highest: ByteArray

    @classmethod
    def gathered(cls, data: bytes | bytearray, at: IntArray, width: int) -> ByteTable:
        """Copy ``width`` bytes, more than none, from each position of ``data``; in pieces, which stay in the cache."""
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

    def behind(self, column: int) -> ByteTable:
        """The columns from this one on."""
        return ByteTable(self.rows[:, column:], self.lowest[column:], self.highest[column:])

    def before(self, column: int) -> ByteTable:
        """The columns before this one."""
        return ByteTable(self.rows[:, :column], self.lowest[:column], self.highest[:column])

    def is_same(self, begin: int, end: int) -> bool:
        """Whether these columns are the same in all rows."""
        return bool((self.lowest[begin:end] == self.highest[begin:end]).all())

    def texts(self, ranges: Sequence[tuple[int, int]]) -> pa.StringArray:
        """These columns of each row, ``(begin, end)`` by ``(begin, end)``, then those of the next row; must be ASCII."""
        ends = tuple(accumulate(end - begin for begin, end in ranges))
        rows = len(self.rows)
        packed = pooled_bytes(rows * ends[-1]).reshape(rows, ends[-1])
        if len(ranges) > 1:
            # What is the same everywhere is written once for all.
            packed[:] = np.concatenate([self.rows[0, begin:end] for begin, end in ranges])
        for (begin, end), packed_end in zip(ranges, ends, strict=True):
            if len(ranges) == 1 or not self.is_same(begin, end):
                packed[:, packed_end - (end - begin) : packed_end] = self.rows[:, begin:end]
        offsets = repeated_offsets(ends, rows)
        return pa.Array.from_buffers(
            pa.string(), rows * len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
        )


def _folded(better: np.ufunc, rows: ByteArray) -> ByteArray:
    """``better`` of all rows; by halves, which may overlap, since no row is the worse for being seen twice."""
    while len(rows) > _FEW_ROWS:
        half = (len(rows) + 1) // 2
        rows = better(rows[:half], rows[-half:])
    folded: ByteArray = better.reduce(rows)
    return folded
