"""Lists as Arrow arrays, without pandas.

``pyarrow.array(list)`` loads pandas, to see whether it is given a Series: half a second of a core and 30 MiB in every
process that plans, which needs pandas for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def to_strings(values: Sequence[str | None]) -> pa.StringArray:
    """An array of the texts; null where there is None."""
    encoded = [b"" if value is None else value.encode() for value in values]
    bounds = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(each) for each in encoded], out=bounds[1:])
    buffers = [_validity(values), pa.py_buffer(bounds), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def to_numbers(values: Sequence[int | None], arrow_type: pa.DataType) -> pa.Array:
    """An array of integers, or of what Arrow keeps in integers, such as timestamps; null where there is None.

    Raises:
        OverflowError: If a number does not fit into ``arrow_type``.
    """
    numbers = np.array([0 if value is None else value for value in values], f"i{arrow_type.bit_width // 8}")
    return pa.Array.from_buffers(arrow_type, len(values), [_validity(values), pa.py_buffer(numbers)])


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))
