"""Where each message of pulled bodies begins.

Each message says only where the next one begins, so the way through a body is a chain, and a Python step for each
link would be the dearest part of the whole decoding. Hence a *guess*, which need not be right because its user
checks every link at once: all messages are as long as the first; or the bodies are entered at many places, at their
beginnings and wherever the magic number of a message is seen, and all the chains from there are followed in lockstep,
each until it meets the next. What was a magic number inside a body shows in the check, and then the chains are
followed link by link.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import repeat
from math import isqrt
from typing import Final, NamedTuple

import numpy as np

from pyspark_rocketmq.wire.columnar_ranges import IntArray, IrregularLayout, every_position
from pyspark_rocketmq.wire.columnar_stretches import Stretches

_SIZE = struct.Struct(">I")
_SIZES = np.dtype(">u4")
_SIZE_BYTES = np.dtype((np.void, _SIZES.itemsize))
_MAGIC_AT: Final = 4
_MIN_LOCKSTEP: Final = 256
"""Fewer messages are followed link by link as fast."""
_STEPS_BETWEEN_CHECKS: Final = 8


class Starts(NamedTuple):
    """Where messages begin, stretch by stretch."""

    at: IntArray
    counts: IntArray
    """Messages of each stretch."""


def guesses(stretches: Stretches, min_bytes: int) -> Iterator[Starts]:
    """Guess without a step for each message, the likeliest first; nothing if there is nothing to go by.

    Every stretch holds at least ``min_bytes`` bytes, the least that a message takes. What is guessed is within the stretches.
    """
    data, begins, ends = stretches
    (first,) = _SIZE.unpack_from(data, int(begins[0]))
    lengths = ends - begins
    if not min_bytes <= first <= lengths[0]:
        return
    if not (lengths % first).any():
        counts = lengths // first
        # Of message n of all, in a stretch before which there are m: begin + (n - m) x first.
        at_none = begins - (np.cumsum(counts) - counts) * first
        yield Starts(np.repeat(at_none, counts) + np.arange(int(counts.sum())) * first, counts)
    messages = int(lengths.sum()) // first
    if messages < _MIN_LOCKSTEP:
        return
    in_lockstep = _in_lockstep(stretches, min_bytes, 4 * isqrt(messages))
    if in_lockstep is not None:
        yield in_lockstep


def follow_stretches(stretches: Stretches, min_bytes: int) -> Starts:
    """Follow the total sizes link by link.

    Raises:
        IrregularLayout: If they do not lead exactly to each stretch's end.
    """
    data, begins, ends = stretches
    parts = [
        follow(data, begin, end, min_bytes) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    return Starts(np.concatenate(parts), np.fromiter(map(len, parts), np.int64, len(parts)))


def follow(data: bytes | bytearray, start: int, end: int, min_bytes: int) -> IntArray:
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


def _in_lockstep(stretches: Stretches, min_bytes: int, chains: int) -> Starts | None:
    """Follow about so many chains at once, at least one in each stretch."""
    data, begins, ends = stretches
    stride = max(1, int((ends - begins).sum()) // chains)
    entries_of = [
        list(_entries(data, *bounds, stride)) for bounds in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    chains_of = np.fromiter(map(len, entries_of), np.int64, len(entries_of))
    first_chain = np.cumsum(chains_of) - chains_of
    position = np.array([entry for entries in entries_of for entry in entries])
    chain_ends = np.append(position[1:], 0)
    chain_ends[first_chain + chains_of - 1] = ends
    sizes, last = every_position(data, _SIZE_BYTES), len(data) - _SIZES.itemsize
    steps = [position]
    while not (position == chain_ends).all():
        if len(steps) > 2 * stride // min_bytes + _STEPS_BETWEEN_CHECKS:
            return None
        for _ in range(_STEPS_BETWEEN_CHECKS):
            # One that has arrived may stand behind the last size there is.
            size = sizes[np.minimum(position, last)].view(_SIZES)
            position = np.minimum(position + size, chain_ends)
            steps.append(position)
    visited = np.stack(steps, axis=1)
    is_start = visited < chain_ends[:, None]
    return Starts(visited[is_start], np.add.reduceat(is_start.sum(axis=1), first_chain))


def _entries(data: bytes | bytearray, begin: int, end: int, stride: int) -> Iterator[int]:
    """The beginning, and then wherever a magic number is seen first from each stride on."""
    yield begin
    magic = bytes(data[begin + _MAGIC_AT : begin + 2 * _MAGIC_AT])
    for at in range(begin + _MAGIC_AT + stride, end - stride, stride):
        seen = data.find(magic, at, at + stride)
        if seen >= 0:
            yield seen - _MAGIC_AT
