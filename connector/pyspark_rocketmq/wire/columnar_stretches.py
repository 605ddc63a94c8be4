"""Where undecoded bodies are: as stretches of one buffer, the one they were received into if possible.

Bodies that were received one behind another, other frames and headers between them, are decoded where they are; to
copy them together would cost as much as a third of the decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.model import PulledBody
from pyspark_rocketmq.wire.columnar_ranges import IntArray


class Stretches(NamedTuple):
    """Parts of a buffer, none of them empty, in the order in which their messages are wanted."""

    data: bytes | bytearray
    begins: IntArray
    ends: IntArray

    @classmethod
    def whole(cls, data: bytes) -> Stretches:
        """All of ``data``."""
        return cls(data, np.array([0]), np.array([len(data)]))

    @classmethod
    def of(cls, bodies: Sequence[PulledBody]) -> Stretches:
        """The bodies, which are not empty; copied into one buffer only if they are not in one already."""
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        buffer = _common_buffer(bodies)
        if buffer is None:
            ends = np.cumsum(sizes)
            return cls(b"".join(bodies), ends - sizes, ends)
        address = pa.py_buffer(buffer).address
        begins = np.array([pa.py_buffer(body).address - address for body in bodies])
        return cls(buffer, begins, begins + sizes)


def _common_buffer(bodies: Sequence[PulledBody]) -> bytearray | None:
    buffers = {id(body.obj): body.obj for body in bodies if isinstance(body, memoryview)}
    if len(buffers) == 1 and all(isinstance(body, memoryview) for body in bodies):
        (buffer,) = buffers.values()
        if isinstance(buffer, bytearray):
            return buffer
    return None
