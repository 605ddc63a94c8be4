"""The columns of located messages; each is made when asked for, from nothing but the bytes it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.wire import properties as names
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.columnar_properties import PropertyColumns
from pyspark_rocketmq.wire.columnar_ranges import (
    check_column_bytes,
    checked_text,
    fixed_column,
    pooled_bytes,
    repeated_texts,
    take_ranges,
)
from pyspark_rocketmq.wire.columnar_rows import BORNHOST_V6, STOREHOST_V6, Rows
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.hosts import IPV4_HOST_BYTES, decode_host
from pyspark_rocketmq.wire.message_id import offset_message_id
from pyspark_rocketmq.wire.properties import decode_text

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
FIRST_TIMESTAMP_MS: Final = -62_135_510_400_000
"""0001-01-02 in UTC: Python's times begin a day before, and Spark shows them in any time zone."""
END_TIMESTAMP_MS: Final = 253_402_214_400_000
"""9999-12-31 in UTC, a day before Python's times end; one later would make ``collect()`` fail."""
_COMPRESSED: Final = int(MessageSysFlag.COMPRESSED)
_FEW_ROWS: Final = 256
"""What Arrow does for more of them at once has a cost before the first."""


class ColumnBuilder:
    """Makes columns of rows without inner batches."""

    def __init__(self, rows: Rows, broker_name: str, budget: ExpansionBudget) -> None:
        self._rows = rows
        self._broker_name = broker_name
        self._budget = budget
        self._buffer = pa.py_buffer(rows.data)

    def column(self, name: str) -> pa.Array:
        """The column of that name of ``MESSAGE_SCHEMA``.

        Raises:
            IrregularLayout: If the scalar codec has to do it.
            RemoteProtocolError: If a body cannot be decompressed, or is beyond the budget.
            LocalProtocolError: If it takes 2 GiB.
        """
        return _COLUMNS[name](self)

    def topic(self) -> pa.StringArray:
        """Where all are the same, as nearly always, it is written once and repeated."""
        rows = self._rows
        if rows.topic is not None:
            return repeated_texts([decode_text(rows.topic)], len(rows))
        return checked_text(take_ranges(self._buffer, rows.topic_at, rows.topic_end, pa.binary()))

    def broker_name(self) -> pa.StringArray:
        """The same for all."""
        return repeated_texts([self._broker_name], len(self._rows))

    def i32(self, field: str) -> pa.Int32Array:
        """A fixed field of four bytes."""
        return fixed_column(pa.int32(), self._rows.fixed[field].astype(np.int32))

    def i64(self, field: str) -> pa.Int64Array:
        """A fixed field of eight bytes."""
        return fixed_column(pa.int64(), self._rows.fixed[field].astype(np.int64))

    def timestamp(self, field: str) -> pa.TimestampArray:
        """A fixed field of milliseconds; null if microseconds cannot hold it."""
        return timestamps(self._rows.fixed[field].astype(np.int64))

    def sys_flag(self) -> pa.Int32Array:
        """Without the compressed bit, since the bodies are shown as they were."""
        return fixed_column(pa.int32(), self._rows.sys_flag & ~np.int32(_COMPRESSED))

    def property(self, name: str) -> pa.StringArray:
        """One of the properties; null where a row lacks it."""
        return self._properties.column(name)

    def properties(self) -> pa.MapArray:
        """All of them."""
        return self._properties.maps()

    @cached_property
    def _properties(self) -> PropertyColumns:
        rows = self._rows
        return PropertyColumns(rows.data, rows.properties_at, rows.properties_length, rows.properties)

    def message_id(self) -> pa.StringArray:
        """Put the offset message id where a message has no UNIQ_KEY; brokers add one to nearly all."""
        unique_keys = self.property(names.UNIQ_KEY)
        if not unique_keys.null_count:
            return unique_keys
        missing = unique_keys.is_null()
        places = zip(
            self.store_host().filter(missing).to_pylist(),
            self.i64("commitLogOffset").filter(missing).to_pylist(),
            strict=True,
        )
        ids = pa.array([offset_message_id(host, position) for host, position in places], pa.string())
        return pc.replace_with_mask(unique_keys, missing, ids)

    def born_host(self) -> pa.StringArray:
        """Of the producer."""
        return self._hosts("bornHost", 0, BORNHOST_V6)

    def store_host(self) -> pa.StringArray:
        """Of the broker."""
        return self._hosts("storeHost", 1, STOREHOST_V6)

    def _hosts(self, field: str, number: int, ipv6_flag: int) -> pa.StringArray:
        """Format each distinct host once."""
        if self._rows.ipv6_hosts is None:
            hosts = self._rows.fixed[field].astype(np.int64)
            if len(hosts) and (hosts == hosts[0]).all():
                return repeated_texts([_ipv4_host(int(hosts[0]))], len(hosts))
            if len(hosts) <= _FEW_ROWS:
                return pa.array(list(map(_ipv4_host, hosts.tolist())), pa.string())
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

    def body(self) -> pa.BinaryArray:
        """Copy the bodies; only the compressed ones are touched one by one."""
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
        # Hundreds of megabytes, perhaps: no more than two copies at a time.
        del plain, bodies
        return both.take(pa.array(order))


def timestamps(milliseconds: npt.NDArray[np.int64]) -> pa.TimestampArray:
    """Microseconds of Spark; null if Python's times cannot hold it in every time zone."""
    # As unsigned numbers those below zero are great too.
    if not len(milliseconds) or milliseconds.view(np.uint64).max() < END_TIMESTAMP_MS:
        return fixed_column(TIMESTAMP_TYPE, milliseconds * 1000)
    fits = (milliseconds >= FIRST_TIMESTAMP_MS) & (milliseconds < END_TIMESTAMP_MS)
    return pa.array(np.where(fits, milliseconds, 0) * 1000, pa.int64(), mask=~fits).view(TIMESTAMP_TYPE)


def _binary(bodies: list[bytes]) -> pa.BinaryArray:
    """The bodies copied once; Arrow's own conversion would copy while it grows."""
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
    """Each host as 21 bytes: whether it is IPv6, then its bytes."""
    marked = np.column_stack((is_ipv6.astype(np.uint8), hosts))
    return pa.Array.from_buffers(
        pa.binary(marked.shape[1]), len(marked), [None, pa.py_buffer(marked.tobytes())]
    )


_COLUMNS: Final[Mapping[str, Callable[[ColumnBuilder], pa.Array]]] = {
    "topic": ColumnBuilder.topic,
    "brokerName": ColumnBuilder.broker_name,
    "queueId": lambda rows: rows.i32("queueId"),
    "queueOffset": lambda rows: rows.i64("queueOffset"),
    "commitLogOffset": lambda rows: rows.i64("commitLogOffset"),
    "msgId": ColumnBuilder.message_id,
    "keys": lambda rows: rows.property(names.KEYS),
    "tags": lambda rows: rows.property(names.TAGS),
    "body": ColumnBuilder.body,
    "properties": ColumnBuilder.properties,
    "bornTimestamp": lambda rows: rows.timestamp("bornTimestamp"),
    "bornHost": ColumnBuilder.born_host,
    "storeTimestamp": lambda rows: rows.timestamp("storeTimestamp"),
    "storeHost": ColumnBuilder.store_host,
    "reconsumeTimes": lambda rows: rows.i32("reconsumeTimes"),
    "sysFlag": ColumnBuilder.sys_flag,
    "flag": lambda rows: rows.i32("flag"),
}
