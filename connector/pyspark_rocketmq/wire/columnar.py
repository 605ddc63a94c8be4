"""Pulled messages as Arrow columns, all messages of a buffer at once: the hot path of every read.

Regular input is decoded by numpy views on the pulled bytes, with no Python object per message but its start.
Whatever the vectorised decoder does not expect (malformed bytes, malformed UTF-8, odd properties, inner batches)
goes to the scalar codec of :mod:`~pyspark_rocketmq.wire.messages` as a whole, so the two never differ and errors
are worded in one place.

Each call costs about half a millisecond before the first message: join the bodies of many pulls into one call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.columnar_properties import MAP_TYPE, decode_property_columns
from pyspark_rocketmq.wire.columnar_ranges import (
    MAX_COLUMN_BYTES,
    BoolArray,
    IntArray,
    IrregularLayout,
    checked_text,
    every_position,
    take_ranges,
)
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES, decode_host
from pyspark_rocketmq.wire.message_id import offset_message_id
from pyspark_rocketmq.wire.messages import (
    INNER_BATCH_FLAGS,
    MAX_V1_TOPIC_BYTES,
    MIN_STORED_BYTES,
    MessageVersion,
    decode_messages,
)
from pyspark_rocketmq.wire.properties import MAX_PROPERTIES_BYTES

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MAX_TIMESTAMP_MS: Final = ((1 << 63) - 1) // 1000

MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("brokerName", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("queueOffset", pa.int64()),
        pa.field("commitLogOffset", pa.int64()),
        pa.field("msgId", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("properties", MAP_TYPE),
        pa.field("bornTimestamp", _TIMESTAMP),
        pa.field("bornHost", pa.string()),
        pa.field("storeTimestamp", _TIMESTAMP),
        pa.field("storeHost", pa.string()),
        pa.field("reconsumeTimes", pa.int32()),
        pa.field("sysFlag", pa.int32()),
        pa.field("flag", pa.int32()),
    ]
)
"""The fields of ``MessageExt`` in their order, in Spark's types; all nullable, as Spark writes them."""

_SIZE = struct.Struct(">I")
_HEAD = np.dtype(
    {
        "names": ["magic", "queueId", "flag", "queueOffset", "commitLogOffset", "sysFlag", "bornTimestamp"],
        "formats": [">i4", ">i4", ">i4", ">i8", ">i8", ">i4", ">i8"],
        "offsets": [4, 12, 16, 20, 28, 36, 40],
        "itemsize": 48,
    }
)
_TAIL = np.dtype([("reconsumeTimes", ">i4"), ("preparedTransactionOffset", ">i8"), ("bodyLength", ">i4")])
_I64 = np.dtype(">i8")
_U16 = np.dtype(">u2")
_IPV4_HOST = np.dtype("<i8")
_IPV6_HOST = np.dtype((np.void, IPV6_HOST_BYTES))
# Plain numbers: numpy is slow with enums.
_COMPRESSED = int(MessageSysFlag.COMPRESSED)
_BORNHOST_V6 = int(MessageSysFlag.BORNHOST_V6)
_STOREHOST_V6 = int(MessageSysFlag.STOREHOSTADDRESS_V6)
_V1, _V2 = int(MessageVersion.V1), int(MessageVersion.V2)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where the parts of each message are in the data, and its fixed fields (structured, big-endian)."""

    head: np.ndarray
    born_host_at: IntArray
    store_host_at: IntArray
    tail: np.ndarray
    body_at: IntArray
    topic_at: IntArray
    topic_end: IntArray
    properties_at: IntArray
    properties_length: IntArray

    def kept(self, keep: BoolArray) -> _Rows:
        return _Rows(*(getattr(self, name)[keep] for name in self.__slots__))


def decode_columns(
    data: bytes, broker_name: str, *, limit: int | None = None, tags: frozenset[str] | None = None
) -> pa.RecordBatch:
    """Decode the bodies of one or more pull responses, one behind the other, into ``MESSAGE_SCHEMA``.

    Rows are in stored order and equal to ``decode_messages``; a timestamp that microseconds cannot hold is null.

    Args:
        data: Stored messages; below 2 GiB, as must be their decompressed bodies together.
        broker_name: The broker they were pulled from.
        limit: Drop messages whose queue offset is not below it.
        tags: Keep only messages whose tag is one of these exactly; the broker filters by hash code alone.

    Raises:
        RemoteProtocolError: As ``decode_messages``.
        LocalProtocolError: If the data or the bodies exceed 2 GiB.
    """
    _check_column_bytes(len(data))
    try:
        batch = _decode_regular(data, broker_name, limit)
    except (IrregularLayout, RemoteProtocolError):
        batch = None
    if batch is None:  # not in the handler: there the error would keep alive what was decoded until it came
        batch = _from_messages(decode_messages(data, broker_name, limit=limit))
    if tags is None:
        return batch
    return batch.filter(pc.is_in(batch.column("tags"), value_set=pa.array(sorted(tags), pa.string())))


def _check_column_bytes(total: int) -> None:
    if total > MAX_COLUMN_BYTES:
        raise LocalProtocolError(
            f"{total} bytes do not fit into one column of {MAX_COLUMN_BYTES}; decode fewer messages at once."
        )


def _decode_regular(data: bytes, broker_name: str, limit: int | None) -> pa.RecordBatch:
    rows = _locate(data)
    if limit is not None:
        rows = rows.kept(rows.head["queueOffset"] < limit)
    sys_flag = rows.head["sysFlag"].astype(np.int32)
    if ((sys_flag & INNER_BATCH_FLAGS) == INNER_BATCH_FLAGS).any():
        raise IrregularLayout
    commit_log_offset = rows.head["commitLogOffset"].astype(np.int64)
    store_host = _hosts(data, rows.store_host_at, (sys_flag & _STOREHOST_V6) != 0)
    properties = decode_property_columns(data, rows.properties_at, rows.properties_length)
    topic = take_ranges(pa.py_buffer(data), rows.topic_at, rows.topic_end, pa.binary())
    store_timestamp = every_position(data, _I64)[rows.store_host_at - _I64.itemsize]
    columns = [
        checked_text(topic),
        pa.repeat(pa.scalar(broker_name), len(sys_flag)),
        _fixed(pa.int32(), rows.head["queueId"].astype(np.int32)),
        _fixed(pa.int64(), rows.head["queueOffset"].astype(np.int64)),
        _fixed(pa.int64(), commit_log_offset),
        _message_ids(properties.unique_keys, store_host, commit_log_offset),
        properties.keys,
        properties.tags,
        _bodies(data, rows, sys_flag),
        properties.properties,
        _timestamps(rows.head["bornTimestamp"].astype(np.int64)),
        _hosts(data, rows.born_host_at, (sys_flag & _BORNHOST_V6) != 0),
        _timestamps(store_timestamp.astype(np.int64)),
        store_host,
        _fixed(pa.int32(), rows.tail["reconsumeTimes"].astype(np.int32)),
        _fixed(pa.int32(), sys_flag & ~np.int32(_COMPRESSED)),
        _fixed(pa.int32(), rows.head["flag"].astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def _locate(data: bytes) -> _Rows:
    """Find every part of every message, and check that the parts of each are as long as it is."""
    starts, ends = _starts_and_ends(data)
    head = every_position(data, _as_void(_HEAD))[starts].view(_HEAD)
    is_v1 = head["magic"] == _V1
    _require(is_v1 | (head["magic"] == _V2))
    sys_flag = head["sysFlag"]
    born_host_at = starts + _HEAD.itemsize
    store_host_at = born_host_at + _host_bytes(sys_flag, _BORNHOST_V6) + _I64.itemsize
    tail_at = store_host_at + _host_bytes(sys_flag, _STOREHOST_V6)
    _require(tail_at + (_TAIL.itemsize + 3) <= ends)
    tail = every_position(data, _as_void(_TAIL))[tail_at].view(_TAIL)
    body_at = tail_at + _TAIL.itemsize
    body_length = tail["bodyLength"].astype(np.int64)
    topic_length_at = body_at + body_length
    _require((body_length >= 0) & (topic_length_at + 3 <= ends))
    u8, u16 = np.frombuffer(data, np.uint8), every_position(data, _U16)
    topic_length = np.where(is_v1, u8[topic_length_at], u16[topic_length_at]).astype(np.int64)
    topic_at = topic_length_at + np.where(is_v1, 1, 2)
    properties_length_at = topic_at + topic_length
    _require((properties_length_at + 2 <= ends) & ~(is_v1 & (topic_length > MAX_V1_TOPIC_BYTES)))
    properties_length = u16[properties_length_at].astype(np.int64)
    properties_at = properties_length_at + 2
    _require((properties_at + properties_length == ends) & (properties_length <= MAX_PROPERTIES_BYTES))
    return _Rows(
        head, born_host_at, store_host_at, tail, body_at, topic_at, properties_length_at, properties_at, properties_length
    )  # fmt: skip


def _starts_and_ends(data: bytes) -> tuple[IntArray, IntArray]:
    """Follow the total sizes through the data; the one loop over messages."""
    positions: list[int] = []
    append, unpack = positions.append, _SIZE.unpack_from
    position = 0
    try:
        for _ in repeat(None, len(data) // MIN_STORED_BYTES + 1):
            append(position)
            position += unpack(data, position)[0]
    except struct.error:  # behind the last message
        pass
    bounds = np.array(positions)
    starts, ends = bounds[:-1], bounds[1:]
    if not len(starts) or ends[-1] != len(data):
        raise IrregularLayout
    _require(ends - starts >= MIN_STORED_BYTES)
    return starts, ends


def _require(condition: BoolArray) -> None:
    if not condition.all():
        raise IrregularLayout


def _as_void(dtype: np.dtype) -> np.dtype:
    """The same bytes without fields: numpy gathers these thirty times faster."""
    return np.dtype((np.void, dtype.itemsize))


def _host_bytes(sys_flag: np.ndarray, ipv6_flag: int) -> IntArray:
    return np.where(sys_flag & ipv6_flag, IPV6_HOST_BYTES, IPV4_HOST_BYTES)


def _hosts(data: bytes, at: IntArray, is_ipv6: BoolArray) -> pa.Array:
    """Format each distinct host once."""
    if is_ipv6.any():
        distinct = _padded_hosts(data, at, is_ipv6).dictionary_encode()
        stored = [
            host[1:] if host[0] else host[1 : 1 + IPV4_HOST_BYTES] for host in distinct.dictionary.to_pylist()
        ]
    else:
        distinct = pa.array(every_position(data, _IPV4_HOST)[at]).dictionary_encode()
        numbers = distinct.dictionary.to_pylist()
        stored = [number.to_bytes(IPV4_HOST_BYTES, "little", signed=True) for number in numbers]
    texts = [decode_host(host) for host in stored]
    if len(texts) == 1:
        return pa.repeat(pa.scalar(texts[0]), len(at))
    return pa.array(texts, pa.string()).take(distinct.indices)


def _padded_hosts(data: bytes, at: IntArray, is_ipv6: BoolArray) -> pa.Array:
    """Each host as 21 bytes: whether it is IPv6, then its bytes, padded with zeros."""
    hosts = every_position(data, _IPV6_HOST)[at].view(np.uint8).reshape(-1, IPV6_HOST_BYTES)
    hosts[~is_ipv6, IPV4_HOST_BYTES:] = 0
    padded = np.column_stack((is_ipv6.astype(np.uint8), hosts))
    return pa.Array.from_buffers(pa.binary(padded.shape[1]), len(at), [None, pa.py_buffer(padded.tobytes())])


def _bodies(data: bytes, rows: _Rows, sys_flag: IntArray) -> pa.Array:
    """Copy the bodies; only the compressed ones are touched one by one."""
    lengths = rows.tail["bodyLength"].astype(np.int64)
    is_compressed = ((sys_flag & _COMPRESSED) != 0) & (lengths > 0)
    if not is_compressed.any():
        return take_ranges(pa.py_buffer(data), rows.body_at, rows.body_at + lengths, pa.binary())
    compressed = np.flatnonzero(is_compressed)
    stored = zip(rows.body_at[compressed].tolist(), lengths[compressed].tolist(), strict=True)
    budget = ExpansionBudget(len(data))
    bodies = [
        budget.decompress(data[at : at + length], flags)
        for (at, length), flags in zip(stored, sys_flag[compressed].tolist(), strict=True)
    ]
    lengths[compressed] = 0
    _check_column_bytes(int(lengths.sum()) + sum(map(len, bodies)))
    plain = take_ranges(pa.py_buffer(data), rows.body_at, rows.body_at + lengths, pa.binary())
    order = np.arange(len(lengths))
    order[compressed] = len(lengths) + np.arange(len(bodies))
    return pa.concat_arrays([plain, pa.array(bodies, pa.binary())]).take(pa.array(order))


def _message_ids(unique_keys: pa.Array, store_host: pa.Array, commit_log_offset: IntArray) -> pa.Array:
    """Put the offset message id where a message has no UNIQ_KEY; brokers add one to nearly all."""
    if not unique_keys.null_count:
        return unique_keys
    missing = unique_keys.is_null()
    places = zip(
        store_host.filter(missing).to_pylist(),
        commit_log_offset[missing.to_numpy(False)].tolist(),
        strict=True,
    )
    ids = pa.array([offset_message_id(host, position) for host, position in places], pa.string())
    return pc.replace_with_mask(unique_keys, missing, ids)


def _timestamps(milliseconds: npt.NDArray[np.int64]) -> pa.Array:
    fits = (milliseconds >= -_MAX_TIMESTAMP_MS) & (milliseconds <= _MAX_TIMESTAMP_MS)
    if fits.all():
        return _fixed(_TIMESTAMP, milliseconds * 1000)
    return pa.array(np.where(fits, milliseconds, 0) * 1000, pa.int64(), mask=~fits).view(_TIMESTAMP)


def _fixed(arrow_type: pa.DataType, values: IntArray) -> pa.Array:
    """A column on top of the values, which have its width and are contiguous."""
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(values)])


def _from_messages(messages: Sequence[MessageExt]) -> pa.RecordBatch:
    """Build the columns from decoded messages, one by one."""
    _check_column_bytes(sum(len(message.body) for message in messages))
    values = zip(*messages, strict=True) if messages else repeat((), len(MESSAGE_SCHEMA))
    columns = [_column(field.type, column) for field, column in zip(MESSAGE_SCHEMA, values, strict=False)]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def _column(arrow_type: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if arrow_type == _TIMESTAMP:
        return _timestamps(np.array(values, np.int64))
    if arrow_type == MAP_TYPE:
        return pa.array([list(properties.items()) for properties in values], arrow_type)
    return pa.array(values, arrow_type)
