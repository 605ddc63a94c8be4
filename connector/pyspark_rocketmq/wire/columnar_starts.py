"""Where each message of a pulled body begins.

Each message says only where the next one begins, so the way through a body is a chain, and a Python step for each
link would be the dearest part of the whole decoding. Hence a *guess*, which need not be right because its user
checks every link at once: all messages are as long as the first; or the body is entered at many places, wherever
the magic number of a message is seen, and all the chains from there are followed in lockstep, each until it meets
the next. What was a magic number inside a body shows in the check, and then the chain is followed link by link.
"""

from __future__ import annotations

import struct
from itertools import repeat
from math import isqrt
from typing import Final

import numpy as np

from pyspark_rocketmq.wire.columnar_ranges import IntArray, IrregularLayout, every_position

_SIZE = struct.Struct(">I")
_SIZES = np.dtype(">u4")
_SIZE_BYTES = np.dtype((np.void, _SIZES.itemsize))
_MAGIC_AT: Final = 4
_MIN_LOCKSTEP: Final = 256
"""Fewer messages are followed link by link as fast."""
_STEPS_BETWEEN_CHECKS: Final = 8


def guess_starts(data: bytes, min_bytes: int) -> IntArray | None:
    """Guess without a step for each message; None if there is nothing to go by.

    ``data`` holds at least ``min_bytes`` bytes, the least that a message takes.
    """
    (first,) = _SIZE.unpack_from(data)
    if not min_bytes <= first <= len(data):
        return None
    if len(data) % first == 0:
        sizes = np.ndarray((len(data) // first,), _SIZES, data, strides=(first,))
        if (sizes == first).all():
            return np.arange(0, len(data), first)
    if len(data) // first < _MIN_LOCKSTEP:
        return None
    return _in_lockstep(data, min_bytes, 4 * isqrt(len(data) // first))


def follow(data: bytes, start: int, end: int, min_bytes: int) -> IntArray:
    """Follow the total sizes from ``start`` to ``end``, link by link.

    Raises:
        IrregularLayout: If they do not lead exactly there.
    """
    positions: list[int] = []
    append, unpack = positions.append, _SIZE.unpack_from
    position = start
    try:
        for _ in repeat(None, (end - start) // min_bytes + 1):
            if position >= end:
                break
            append(position)
            position += unpack(data, position)[0]
    except struct.error as exc:
        raise IrregularLayout from exc
    if position != end:
        raise IrregularLayout
    return np.fromiter(positions, np.int64, len(positions))


def _in_lockstep(data: bytes, min_bytes: int, chains: int) -> IntArray | None:
    """Follow many chains at once, the last of them link by link since its end is the end of the data."""
    magic, stride = data[_MAGIC_AT : _MAGIC_AT + 4], len(data) // chains
    seen = (data.find(magic, at, at + stride) for at in range(_MAGIC_AT, len(data) - stride, stride))
    entries = np.array([at - _MAGIC_AT for at in seen if at >= 0])
    if len(entries) < 2:
        return None
    sizes = every_position(data, _SIZE_BYTES)
    position, ends = entries[:-1], entries[1:]
    steps = [position]
    while not (position == ends).all():
        if len(steps) > stride // min_bytes:
            return None
        for _ in range(_STEPS_BETWEEN_CHECKS):
            position = np.minimum(position + sizes[position].view(_SIZES), ends)
            steps.append(position)
    visited = np.stack(steps, axis=1)
    try:
        last = follow(data, int(entries[-1]), len(data), min_bytes)
    except IrregularLayout:
        return None
    return np.concatenate((visited[visited < ends[:, None]], last))
