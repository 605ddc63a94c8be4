"""Inner batches, stored messages whose body is a batch of its own: a row for each member in place of them.

A member has flag, body and properties of its own and counts one queue offset; all else is that of its batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from pyspark_rocketmq.wire import properties as names
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.columnar_ranges import (
    IntArray,
    IrregularLayout,
    as_void,
    check_column_bytes,
    every_position,
    require_all,
)
from pyspark_rocketmq.wire.columnar_rows import Rows
from pyspark_rocketmq.wire.columnar_starts import follow
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.messages import BATCH_MEMBER_OVERHEAD, INNER_BATCH_FLAGS
from pyspark_rocketmq.wire.properties import MAX_PROPERTIES_BYTES, decode_properties

_FIXED: Final = np.dtype(
    {
        "names": ["total", "flag", "bodyLength"],
        "formats": [">i4", ">i4", ">i4"],
        "offsets": [0, 12, 16],
        "itemsize": 20,
    }
)
_U16 = np.dtype(">u2")
_COMPRESSED: Final = int(MessageSysFlag.COMPRESSED)
_MAX_QUEUE_OFFSET: Final = (1 << 63) - 1


def expand_inner_batches(rows: Rows, budget: ExpansionBudget) -> Rows:
    """Put the members of each inner batch in its place; ``rows`` itself where there is none.

    Raises:
        IrregularLayout: If a member is malformed, cut or left over, or their number is not the announced one.
        RemoteProtocolError: If a body cannot be decompressed, or is beyond the budget.
    """
    if rows.sys_flag_bits() & INNER_BATCH_FLAGS != INNER_BATCH_FLAGS:
        return rows
    batches = np.flatnonzero((rows.sys_flag & INNER_BATCH_FLAGS) == INNER_BATCH_FLAGS)
    if not len(batches):
        return rows
    data, body_at, body_length = _with_plain_bodies(rows, batches, budget)
    starts = [
        follow(data, at, at + length, BATCH_MEMBER_OVERHEAD)
        for at, length in zip(body_at.tolist(), body_length.tolist(), strict=True)
    ]
    members = np.fromiter(map(len, starts), np.int64, len(starts))
    _check_announced(rows, batches, members)
    counts = np.ones(len(rows), np.int64)
    counts[batches] = members
    parent = np.repeat(np.arange(len(rows)), counts)
    is_member = np.zeros(len(rows), np.bool_)
    is_member[batches] = True
    expanded = replace(rows, data=data).take(parent)
    if members.any():
        first = np.cumsum(counts) - counts
        at = np.flatnonzero(is_member[parent])
        ends = np.repeat(body_at + body_length, members)
        _place_members(expanded, at, at - first[parent[at]], np.concatenate(starts), ends)
    return expanded


def _with_plain_bodies(
    rows: Rows, batches: IntArray, budget: ExpansionBudget
) -> tuple[bytes | bytearray, IntArray, IntArray]:
    """The data with decompressed batch bodies behind it, and where each batch's body is there."""
    body_at, body_length = rows.body_at[batches], rows.body_length[batches]
    parts, size = [rows.data], len(rows.data)
    flags = rows.sys_flag[batches].tolist()
    for number, (at, length, flag) in enumerate(
        zip(body_at.tolist(), body_length.tolist(), flags, strict=True)
    ):
        stored = bytes(rows.data[at : at + length])
        body = budget.decompress(stored, flag)
        if body is not stored:
            body_at[number], body_length[number] = size, len(body)
            parts.append(body)
            size += len(body)
    check_column_bytes(size)
    return rows.data if len(parts) == 1 else b"".join(parts), body_at, body_length


def _check_announced(rows: Rows, batches: IntArray, members: IntArray) -> None:
    at, length = rows.properties_at[batches].tolist(), rows.properties_length[batches].tolist()
    for begin, size, count in zip(at, length, members.tolist(), strict=True):
        announced = decode_properties(bytes(rows.data[begin : begin + size])).get(names.INNER_NUM)
        if announced not in {None, str(count)}:
            raise IrregularLayout


def _place_members(rows: Rows, at: IntArray, number: IntArray, starts: IntArray, ends: IntArray) -> None:
    """Write into the rows ``at`` what is the members' own; ``number`` counts them within their batch.

    ``starts`` are those of all members, ``ends`` those of their batches.
    """
    # What is cut there fails the check that a member ends within its batch.
    within = np.minimum(starts, len(rows.data) - _FIXED.itemsize)
    fixed = every_position(rows.data, as_void(_FIXED))[within].view(_FIXED)
    total, body_length = fixed["total"].astype(np.int64), fixed["bodyLength"].astype(np.int64)
    member_ends = starts + total
    body_at = starts + _FIXED.itemsize
    require_all((total >= BATCH_MEMBER_OVERHEAD) & (body_length >= 0))
    properties_length_at = body_at + body_length
    require_all((properties_length_at + 2 <= member_ends) & (member_ends <= ends))
    properties_length = every_position(rows.data, _U16)[properties_length_at].astype(np.int64)
    properties_at = properties_length_at + 2
    require_all(properties_at + properties_length == member_ends)
    require_all(properties_length <= MAX_PROPERTIES_BYTES)
    require_all(rows.fixed["queueOffset"][at] <= _MAX_QUEUE_OFFSET - number)
    rows.fixed["queueOffset"][at] += number
    rows.fixed["flag"][at] = fixed["flag"]
    rows.fixed["reconsumeTimes"][at] = 0
    rows.sys_flag[at] &= ~_COMPRESSED
    rows.body_at[at], rows.body_length[at] = body_at, body_length
    rows.properties_at[at], rows.properties_length[at] = properties_at, properties_length
