"""Find where each message begins and where its parts are, in one buffer or several.

Stored messages differ in four lengths (body, topic, properties, and hosts of IPv6), so a few numpy operations
on all messages find every part. This module checks the whole layout, so that columns created from the rows
never read a wrong byte.

Each message contains only where the next one begins, and a Python step for each message would be the most
expensive part of decoding. So starts are guessed, and all guesses are checked together. The first guess is
that all messages are as long as the first. For the second guess, chains of sizes are followed in lockstep,
from the beginning of each body and from places with a message's magic number, each until it meets the next.
If a magic number was inside a body, the check fails, and the sizes are followed one by one.

Bodies received one after another, with frame headers between them, are decoded in place: copying them
together would take up to a third of the decoding time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from math import isqrt
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.model import PulledBody
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.columnar.arrays import (
    BoolArray,
    IntArray,
    IrregularLayout,
    as_void,
    every_position,
    require_all,
)
from pyspark_rocketmq.wire.message_ids import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from pyspark_rocketmq.wire.messages import MAX_V1_TOPIC_BYTES, MIN_STORED_BYTES, MessageVersion
from pyspark_rocketmq.wire.properties import MAX_PROPERTIES_BYTES

_SIZE = struct.Struct(">I")
_SIZES = np.dtype(">u4")
_SIZE_BYTES = np.dtype((np.void, _SIZES.itemsize))
_MAGIC_AT: Final = 4
_MIN_LOCKSTEP: Final = 256
"""Minimum number of messages for which sizes are followed from several places at the same time; fewer
messages take no longer one by one."""
_STEPS_BETWEEN_CHECKS: Final = 8
FIXED: Final = np.dtype(
    {
        "names": [
            "total", "magic", "queueId", "flag", "queueOffset", "commitLogOffset", "sysFlag", "bornTimestamp",
            "bornHost", "bornPortHigh", "storeTimestamp", "storeHost", "storePortHigh", "reconsumeTimes",
            "bodyLength",
        ],
        "formats": [
            ">i4", ">i4", ">i4", ">i4", ">i8", ">i8", ">i4", ">i8",
            "<i8", "<u2", ">i8", "<i8", "<u2", ">i4", ">i4",
        ],
        "offsets": [0, 4, 12, 16, 20, 28, 36, 40, 48, 52, 56, 64, 68, 72, 84],
        "itemsize": 88,
    }
)  # fmt: skip
"""Layout of the bytes before the body of a message with IPv4 hosts; in other messages hosts are longer."""
BORNHOST_V6: Final = int(MessageSysFlag.BORNHOST_V6)
STOREHOST_V6: Final = int(MessageSysFlag.STOREHOSTADDRESS_V6)
_V1, _V2 = int(MessageVersion.V1), int(MessageVersion.V2)
_HEAD_BYTES, _BORN_HOST_AT, _STORE_TIMESTAMP_AT, _TAIL_AT, _TAIL_BYTES = 48, 48, 56, 72, 16
_STORE_TIMESTAMP_BYTES: Final = 8
_PORT_HIGH_FROM_END: Final = 4
_MAX_V2_TOPIC_BYTES: Final = 32767
"""Maximum length of a topic in V2, whose topic length is a signed short."""
_U16 = np.dtype(">u2")
_ARRAYS: Final = (
    *("starts", "ends", "fixed", "sys_flag", "topic_at", "topic_end", "body_at", "body_length"),
    *("properties_at", "properties_length"),
)


class BufferSlices(NamedTuple):
    """Non-empty slices ``[begin, end)`` of one buffer, each with whole messages one after another."""

    data: bytes | bytearray
    begins: IntArray
    ends: IntArray

    @classmethod
    def whole(cls, data: bytes) -> BufferSlices:
        """Return all of ``data`` as one slice."""
        return cls(data, np.array([0]), np.array([len(data)]))

    @classmethod
    def of(cls, bodies: Sequence[PulledBody]) -> BufferSlices:
        """Return a slice for each body; no body may be empty.

        If all bodies are views of one ``bytearray``, they stay where they are; otherwise they are copied.
        """
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


class Starts(NamedTuple):
    """Positions in the buffer where messages begin, slice by slice."""

    at: IntArray
    counts: IntArray
    """Number of messages in each slice."""


def guesses(slices: BufferSlices, min_bytes: int) -> Iterator[Starts]:
    """Yield guesses of where all messages begin, the likeliest one first; the caller must check each guess.

    A guess needs no Python step for each message. There may be no guess.

    Every slice has at least ``min_bytes`` bytes, the size of the smallest message.
    """
    data, begins, ends = slices
    (first,) = _SIZE.unpack_from(data, int(begins[0]))
    lengths = ends - begins
    if not min_bytes <= first <= lengths[0]:
        return
    if not (lengths % first).any():
        counts = lengths // first
        # Message n of all, in a slice after m messages, begins at begin + (n - m) x first.
        at_none = begins - (np.cumsum(counts) - counts) * first
        yield Starts(np.repeat(at_none, counts) + np.arange(int(counts.sum())) * first, counts)
    messages = int(lengths.sum()) // first
    if messages < _MIN_LOCKSTEP:
        return
    in_lockstep = _in_lockstep(slices, min_bytes, 4 * isqrt(messages))
    if in_lockstep is not None:
        yield in_lockstep


def _follow_slices(slices: BufferSlices, min_bytes: int) -> Starts:
    data, begins, ends = slices
    parts = [
        follow(data, begin, end, min_bytes) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    return Starts(np.concatenate(parts), np.fromiter(map(len, parts), np.int64, len(parts)))


def follow(data: bytes | bytearray, start: int, end: int, min_bytes: int) -> IntArray:
    """Return where each message from ``start`` on begins, by following the messages' total sizes.

    Raises:
        IrregularLayout: If the sizes do not lead exactly from ``start`` to ``end``.
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


def _in_lockstep(slices: BufferSlices, min_bytes: int, chains: int) -> Starts | None:
    """Follow the messages' sizes from about ``chains`` places at the same time, at least one in each slice.

    Return None if the sizes from one of these places do not lead to the next one.
    """
    data, begins, ends = slices
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
            # A chain that has arrived may be past the last size.
            size = sizes[np.minimum(position, last)].view(_SIZES)
            position = np.minimum(position + size, chain_ends)
            steps.append(position)
    visited = np.stack(steps, axis=1)
    is_start = visited < chain_ends[:, None]
    return Starts(visited[is_start], np.add.reduceat(is_start.sum(axis=1), first_chain))


def _entries(data: bytes | bytearray, begin: int, end: int, stride: int) -> Iterator[int]:
    """Yield ``begin``, then for each ``stride`` bytes the first place where a message may begin.

    A message may begin ``_MAGIC_AT`` bytes before each place that has the first message's magic number.
    """
    yield begin
    magic = bytes(data[begin + _MAGIC_AT : begin + 2 * _MAGIC_AT])
    for at in range(begin + _MAGIC_AT + stride, end - stride, stride):
        seen = data.find(magic, at, at + stride)
        if seen >= 0:
            yield seen - _MAGIC_AT


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Located messages as arrays of equal length; all positions are in ``data``."""

    data: bytes | bytearray
    starts: IntArray
    """Where the stored message of each row begins."""
    ends: IntArray
    fixed: np.ndarray
    """The fixed-size fields before the body of each row, an array of type ``FIXED`` (big-endian)."""
    sys_flag: IntArray
    ipv6_hosts: np.ndarray | None = None
    """Born host and store host, 20 bytes each, zeros after IPv4; None if ``fixed`` has all the hosts."""
    topic: bytes | None
    """The topic of all rows; None if they may differ."""
    topic_at: IntArray
    topic_end: IntArray
    body_at: IntArray
    body_length: IntArray
    properties_at: IntArray
    properties_length: IntArray
    in_slices: IntArray | None = None
    """Number of rows in each slice; None if these are only some of the located rows."""

    def __len__(self) -> int:
        return len(self.fixed)

    def sys_flag_bits(self) -> int:
        """Return the bits that are set in any row."""
        return int(np.bitwise_or.reduce(self.sys_flag))

    def take(self, which: IntArray | BoolArray | slice) -> Rows:
        """Return the rows that ``which`` selects, in that order."""
        taken = {name: getattr(self, name)[which] for name in _ARRAYS}
        hosts = None if self.ipv6_hosts is None else self.ipv6_hosts[which]
        return replace(self, **taken, ipv6_hosts=hosts, in_slices=None)


def locate(slices: BufferSlices) -> Rows:
    """Find each message in the slices, its body, topic and properties; return one row per message.

    Raises:
        IrregularLayout: If anything is malformed, cut or left over, or there is no message.
    """
    if not len(slices.begins) or (slices.ends - slices.begins < MIN_STORED_BYTES).any():
        raise IrregularLayout
    for guess in guesses(slices, MIN_STORED_BYTES):
        try:
            return _locate_from(slices, guess)
        except IrregularLayout:
            pass
    return _locate_from(slices, _follow_slices(slices, MIN_STORED_BYTES))


def _locate_from(slices: BufferSlices, guess: Starts) -> Rows:
    """Locate the parts of messages that may begin at the guessed starts, which ascend within a slice.

    Raises:
        IrregularLayout: If the guess is wrong or a message is malformed.
    """
    data, starts = slices.data, guess.at
    require_all(starts <= len(data) - MIN_STORED_BYTES)
    fixed = every_position(data, as_void(FIXED))[starts].view(FIXED)
    total = fixed["total"].astype(np.int64)
    ends = starts + total
    require_all(total >= MIN_STORED_BYTES)
    last = np.cumsum(guess.counts) - 1
    require_all((guess.counts > 0) & (starts[last - (guess.counts - 1)] == slices.begins))
    next_starts = np.append(starts[1:], 0)
    next_starts[last] = slices.ends
    require_all(ends == next_starts)
    sys_flag = fixed["sysFlag"].astype(np.int32)
    is_v1 = fixed["magic"] == _V1
    if not is_v1.all():
        require_all(is_v1 | (fixed["magic"] == _V2))
    if int(np.bitwise_or.reduce(sys_flag)) & (BORNHOST_V6 | STOREHOST_V6):
        body_at, ipv6_hosts = _read_ipv6(data, starts, ends, fixed)
    else:
        body_at, ipv6_hosts = starts + FIXED.itemsize, None
        # A port has four bytes, of which the high two must be 0.
        require_all((fixed["bornPortHigh"] | fixed["storePortHigh"]) == 0)
    body_length = fixed["bodyLength"].astype(np.int64)
    topic_length_at = body_at + body_length
    require_all((body_length >= 0) & (topic_length_at + 3 <= ends))
    topic, topic_at, topic_end = _find_topics(data, topic_length_at, ends, is_v1)
    require_all(topic_end + 2 <= ends)
    properties_at = topic_end + 2
    properties_length = every_position(data, _U16)[topic_end].astype(np.int64)
    require_all((properties_at + properties_length == ends) & (properties_length <= MAX_PROPERTIES_BYTES))
    return Rows(
        data=data,
        starts=starts,
        ends=ends,
        fixed=fixed,
        sys_flag=sys_flag,
        ipv6_hosts=ipv6_hosts,
        body_at=body_at,
        body_length=body_length,
        in_slices=guess.counts,
        topic=topic,
        topic_at=topic_at,
        topic_end=topic_end,
        properties_at=properties_at,
        properties_length=properties_length,
    )


def _find_topics(
    data: bytes | bytearray, length_at: IntArray, ends: IntArray, is_v1: BoolArray
) -> tuple[bytes | None, IntArray, IntArray]:
    """Find the topic of each message, which follows the topic's length at ``length_at``.

    If all messages are in V1, first try whether all topics are equal, which is the usual case.

    Returns:
        The topic of all messages, or None if they may differ; where each topic begins; where each ends.
    """
    first = data[length_at[0]]
    if is_v1.all() and first <= MAX_V1_TOPIC_BYTES and (length_at + (first + 3) <= ends).all():
        topics = every_position(data, np.dtype((np.void, first + 1)))[length_at].tobytes()
        if topics == topics[: first + 1] * len(length_at):
            topic_at = length_at + 1
            return topics[1 : first + 1], topic_at, topic_at + first
    u8, u16 = np.frombuffer(data, np.uint8), every_position(data, _U16)
    length = np.where(is_v1, u8[length_at], u16[length_at]).astype(np.int64)
    require_all(length <= np.where(is_v1, MAX_V1_TOPIC_BYTES, _MAX_V2_TOPIC_BYTES))
    topic_at = length_at + np.where(is_v1, 1, 2)
    return None, topic_at, topic_at + length


def _read_ipv6(
    data: bytes | bytearray, starts: IntArray, ends: IntArray, fixed: np.ndarray
) -> tuple[IntArray, np.ndarray]:
    """Move the fields that follow IPv6 hosts, which are longer, to their places in ``FIXED``.

    Return where each body begins, and the hosts.
    """
    is_born_ipv6 = (fixed["sysFlag"] & BORNHOST_V6) != 0
    is_store_ipv6 = (fixed["sysFlag"] & STOREHOST_V6) != 0
    born_host_at = starts + _BORN_HOST_AT
    store_timestamp_at = born_host_at + _host_bytes(is_born_ipv6)
    store_host_at = store_timestamp_at + _STORE_TIMESTAMP_BYTES
    tail_at = store_host_at + _host_bytes(is_store_ipv6)
    require_all(tail_at + (_TAIL_BYTES + 3) <= ends)
    as_bytes = fixed.view(np.uint8).reshape(-1, FIXED.itemsize)
    _move(data, store_timestamp_at, as_bytes[:, _STORE_TIMESTAMP_AT : _STORE_TIMESTAMP_AT + 8])
    _move(data, tail_at, as_bytes[:, _TAIL_AT : _TAIL_AT + _TAIL_BYTES])
    hosts = np.zeros((len(starts), 2, IPV6_HOST_BYTES), np.uint8)
    for column, at, is_ipv6 in ((0, born_host_at, is_born_ipv6), (1, store_host_at, is_store_ipv6)):
        _move(data, at, hosts[:, column])
        hosts[~is_ipv6, column, IPV4_HOST_BYTES:] = 0
        port_high = every_position(data, _U16)[at + _host_bytes(is_ipv6) - _PORT_HIGH_FROM_END]
        require_all(port_high == 0)
    return tail_at + _TAIL_BYTES, hosts


def _move(data: bytes | bytearray, at: IntArray, target: np.ndarray) -> None:
    width = target.shape[1]
    target[:] = every_position(data, np.dtype((np.void, width)))[at].view(np.uint8).reshape(-1, width)


def _host_bytes(is_ipv6: BoolArray) -> IntArray:
    return np.where(is_ipv6, IPV6_HOST_BYTES, IPV4_HOST_BYTES)
