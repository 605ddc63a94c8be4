"""Byte ranges of one buffer as Arrow columns, without a Python object per value.

Everything here and in its two users counts positions in buffers below 2 GiB, Arrow's limit for 32-bit offsets.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

IntArray = npt.NDArray[np.signedinteger]
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]

MAX_COLUMN_BYTES: Final = (1 << 31) - 1


class IrregularLayout(Exception):
    """The vectorised decoder does not handle this input; the scalar codec decides what it means."""


def every_position(data: bytes | ByteArray, dtype: np.dtype) -> npt.NDArray[Any]:
    """View the value of ``dtype`` that begins at each byte of ``data``; unaligned, nothing is copied.

    ``data`` must hold at least one such value.
    """
    return np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, strides=(1,))


def take_ranges(buffer: pa.Buffer, starts: IntArray, ends: IntArray, arrow_type: pa.DataType) -> pa.Array:
    """Copy ``buffer[start:end]`` of each row into one binary or string column.

    The ranges and the gaps between them are the elements of one binary array over ``buffer``; Arrow's ``take``
    of every second element is the fastest gather there is. Text is not checked to be UTF-8.
    """
    rows = len(starts)
    offsets = np.empty(2 * rows + 2, np.int32)
    offsets[1:-1:2] = starts
    offsets[2::2] = ends
    # Arrow wants the first offset below the last and reserves memory by their mean distance.
    offsets[0], offsets[-1] = 0, min(buffer.size, 2 * int((ends - starts).sum()))
    with_gaps = pa.Array.from_buffers(arrow_type, 2 * rows + 1, [None, pa.py_buffer(offsets), buffer])
    return with_gaps.take(pa.array(np.arange(1, 2 * rows + 1, 2, dtype=np.int32)))


def checked_text(column: pa.Array) -> pa.Array:
    """Turn a binary column into a string column.

    Raises:
        IrregularLayout: If a value is not UTF-8; the scalar codec replaces what is malformed as Java does.
    """
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as exc:
        raise IrregularLayout from exc
