"""Create Arrow columns of located messages; the members of an inner batch replace their message.

A member has its own flag, body and properties, and takes one queue offset. It has all other values from the
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.wire import properties as names
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.columnar.arrays import (
    IntArray,
    IrregularLayout,
    as_void,
    check_column_bytes,
    checked_text,
    every_position,
    fixed_column,
    pooled_bytes,
    repeated_texts,
    require_all,
    take_ranges,
)
from pyspark_rocketmq.wire.columnar.property_columns import PropertyColumns
from pyspark_rocketmq.wire.columnar.rows import BORNHOST_V6, STOREHOST_V6, Rows, follow
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA, TIMESTAMP_TYPE
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.message_ids import IPV4_HOST_BYTES, decode_host, offset_message_id
from pyspark_rocketmq.wire.messages import BATCH_MEMBER_OVERHEAD, INNER_BATCH_FLAGS
from pyspark_rocketmq.wire.properties import MAX_PROPERTIES_BYTES, decode_properties, decode_text

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

FIRST_TIMESTAMP_MS: Final = -62_135_510_400_000
"""0001-01-02 in UTC, a day after Python's times begin, because Spark shows times in any time zone."""
END_TIMESTAMP_MS: Final = 253_402_214_400_000
"""9999-12-31 in UTC, a day before Python's times end; a later time would make ``collect()`` fail."""
_NUMBERS: Final = {
    field.name: (field.type, np.dtype(field.type.to_pandas_dtype()))
    for field in MESSAGE_SCHEMA
    if pa.types.is_integer(field.type)
}


def expand_inner_batches(rows: Rows, budget: ExpansionBudget) -> Rows:
    """Replace each inner batch by its members; return ``rows`` itself if there is no batch.

    Raises:
        IrregularLayout: If a member is malformed, cut or left over, their number is not the announced one, or
            a queue offset would exceed 64 bits.
        RemoteProtocolError: If a body cannot be decompressed, or exceeds the budget.
        LocalProtocolError: If the data and the decompressed batches take 2 GiB.
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
    """Return three values: the data, where each batch's body begins in it, and how long the body is.

    Decompressed bodies are appended to the data.
    """
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
    """Write the members' own values into their rows, which have the values of the batches so far.

    Args:
        rows: All rows, which are changed.
        at: Indexes of the members' rows.
        number: Each member's index in its batch.
        starts: Where each member starts.
        ends: Where each member's batch ends.
    """
    # A start that is lowered here fails the check that a member ends within its batch.
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


class ColumnBuilder:
    """Creates columns from located messages, in which :func:`expand_inner_batches` has replaced batches."""

    def __init__(self, rows: Rows, broker_name: str, budget: ExpansionBudget) -> None:
        self._rows = rows
        self._broker_name = broker_name
        self._budget = budget
        self._buffer = pa.py_buffer(rows.data)

    def column(self, name: str) -> pa.Array:
        """Return the column of ``MESSAGE_SCHEMA`` with that name.

        Raises:
            IrregularLayout: If ``wire.messages`` must decode the messages, one by one.
            RemoteProtocolError: If a body cannot be decompressed, or exceeds the budget.
            LocalProtocolError: If the column takes 2 GiB.
        """
        make = self._MAKERS.get(name)
        if make is not None:
            return make(self)
        arrow_type, dtype = _NUMBERS[name]
        return fixed_column(arrow_type, self._rows.fixed[name].astype(dtype))

    def property(self, name: str) -> pa.StringArray:
        """Return the values of a property; null in rows without it."""
        return self._properties.column(name)

    @cached_property
    def _properties(self) -> PropertyColumns:
        rows = self._rows
        return PropertyColumns(rows.data, rows.properties_at, rows.properties_length)

    def _topics(self) -> pa.StringArray:
        rows = self._rows
        if rows.topic is not None:
            return repeated_texts([decode_text(rows.topic)], len(rows))
        return checked_text(take_ranges(self._buffer, rows.topic_at, rows.topic_end, pa.binary()))

    def _message_ids(self) -> pa.StringArray:
        """Return UNIQ_KEYs, or else offset message ids; brokers add a UNIQ_KEY to nearly all messages."""
        unique_keys = self.property(names.UNIQ_KEY)
        if not unique_keys.null_count:
            return unique_keys
        missing = unique_keys.is_null()
        places = zip(
            self.column("storeHost").filter(missing).to_pylist(),
            self.column("commitLogOffset").filter(missing).to_pylist(),
            strict=True,
        )
        ids = pa.array([offset_message_id(host, position) for host, position in places], pa.string())
        return pc.replace_with_mask(unique_keys, missing, ids)

    def _hosts(self, field: str, number: int, ipv6_flag: int) -> pa.StringArray:
        """Return the hosts as text; each distinct host is formatted once."""
        if self._rows.ipv6_hosts is None:
            hosts = self._rows.fixed[field].astype(np.int64)
            if len(hosts) and (hosts == hosts[0]).all():
                return repeated_texts([_ipv4_host(int(hosts[0]))], len(hosts))
            distinct = pa.array(hosts).dictionary_encode()
            texts = list(map(_ipv4_host, distinct.dictionary.to_pylist()))
        else:
            is_ipv6 = (self._rows.sys_flag & ipv6_flag) != 0
            distinct = _marked(self._rows.ipv6_hosts[:, number], is_ipv6).dictionary_encode()
            texts = [
                decode_host(host[1:] if host[0] else host[1 : 1 + IPV4_HOST_BYTES])
                for host in distinct.dictionary.to_pylist()
            ]
        return pa.array(texts, pa.string()).take(distinct.indices)

    def _bodies(self) -> pa.BinaryArray:
        """Return the bodies, decompressed; only compressed ones are processed one by one."""
        rows = self._rows
        starts, lengths = rows.body_at, rows.body_length
        if not rows.sys_flag_bits() & _COMPRESSED:
            return take_ranges(self._buffer, starts, starts + lengths, pa.binary())
        compressed = np.flatnonzero(((rows.sys_flag & _COMPRESSED) != 0) & (lengths > 0))
        stored = zip(
            starts[compressed].tolist(),
            lengths[compressed].tolist(),
            rows.sys_flag[compressed].tolist(),
            strict=True,
        )
        bodies = _binary(
            [self._budget.decompress(bytes(rows.data[at : at + size]), flags) for at, size, flags in stored]
        )
        if len(bodies) == len(rows):
            return bodies
        plain_lengths, order = lengths.copy(), np.arange(len(rows))
        plain_lengths[compressed] = 0
        order[compressed] = len(rows) + np.arange(len(bodies))
        check_column_bytes(int(plain_lengths.sum()) + bodies.nbytes)
        plain = take_ranges(self._buffer, starts, starts + plain_lengths, pa.binary())
        both = pa.concat_arrays([plain, bodies])
        # The bodies may take hundreds of megabytes: keep at most two copies.
        del plain, bodies
        return both.take(pa.array(order))

    _MAKERS: ClassVar[dict[str, Callable[[ColumnBuilder], pa.Array]]] = {
        "topic": _topics,
        "brokerName": lambda self: repeated_texts([self._broker_name], len(self._rows)),
        "msgId": _message_ids,
        "keys": lambda self: self.property(names.KEYS),
        "tags": lambda self: self.property(names.TAGS),
        "body": _bodies,
        "properties": lambda self: self._properties.maps(),
        "bornTimestamp": lambda self: timestamps(self._rows.fixed["bornTimestamp"].astype(np.int64)),
        "bornHost": lambda self: self._hosts("bornHost", 0, BORNHOST_V6),
        "storeTimestamp": lambda self: timestamps(self._rows.fixed["storeTimestamp"].astype(np.int64)),
        "storeHost": lambda self: self._hosts("storeHost", 1, STOREHOST_V6),
        # The bodies are decompressed, so the compressed bit is cleared.
        "sysFlag": lambda self: fixed_column(pa.int32(), self._rows.sys_flag & ~np.int32(_COMPRESSED)),
    }
    """Functions that create columns, by name. The other columns are numbers as the message stores them."""


def have_usual_times(messages: Sequence[MessageExt]) -> bool:
    """Return whether columns can hold each message's born and store time; see :func:`timestamps`."""
    times = [time for message in messages for time in (message.born_timestamp, message.store_timestamp)]
    return not times or (min(times) >= FIRST_TIMESTAMP_MS and max(times) < END_TIMESTAMP_MS)


def timestamps(milliseconds: npt.NDArray[np.int64]) -> pa.TimestampArray:
    """Return milliseconds since the epoch as a timestamp column in microseconds and UTC.

    A time that Python cannot hold in every time zone is null: before 0001-01-02 or from 9999-12-31 on.
    """
    # Negative numbers are also large as unsigned ones.
    if not len(milliseconds) or milliseconds.view(np.uint64).max() < END_TIMESTAMP_MS:
        return fixed_column(TIMESTAMP_TYPE, milliseconds * 1000)
    fits = (milliseconds >= FIRST_TIMESTAMP_MS) & (milliseconds < END_TIMESTAMP_MS)
    return pa.array(np.where(fits, milliseconds, 0) * 1000, pa.int64(), mask=~fits).view(TIMESTAMP_TYPE)


def _binary(bodies: list[bytes]) -> pa.BinaryArray:
    """Return the bodies as a column, copied once; Arrow's conversion would copy again as its buffer grows."""
    ends = list(accumulate(map(len, bodies), initial=0))
    check_column_bytes(ends[-1])
    text = pooled_bytes(ends[-1])
    room = text.data
    for at, body in zip(ends, bodies, strict=False):
        room[at : at + len(body)] = body
    offsets = pa.py_buffer(np.array(ends, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(bodies), [None, offsets, pa.py_buffer(text)])


@lru_cache(maxsize=1024)
def _ipv4_host(stored: int) -> str:
    return decode_host(stored.to_bytes(IPV4_HOST_BYTES, "little", signed=True))


def _marked(hosts: np.ndarray, is_ipv6: np.ndarray) -> pa.Array:
    """Return each host as 21 bytes: whether it is IPv6, then its bytes."""
    marked = np.column_stack((is_ipv6.astype(np.uint8), hosts))
    return pa.Array.from_buffers(
        pa.binary(marked.shape[1]), len(marked), [None, pa.py_buffer(marked.tobytes())]
    )
