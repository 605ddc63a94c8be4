"""Generated pull bodies, and how the columns of one compare with what the plain decoder makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.wire.columnar import decode as columnar
from pyspark_rocketmq.wire.columnar.arrays import IrregularLayout
from pyspark_rocketmq.wire.columnar.rows import BufferSlices, locate
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA
from pyspark_rocketmq.wire.compression import CompressionType, ExpansionBudget, compress
from pyspark_rocketmq.wire.messages import (
    INNER_BATCH_FLAGS,
    StoredMessage,
    batch_member,
    body_crc,
    decode_messages,
    decode_stored_messages,
)
from tests.helpers.stored_messages import decode_columns, encode_stored_message

Row = tuple[Any, ...]

FIRST_TIMESTAMP_MS, END_TIMESTAMP_MS = (
    int(datetime(*day, tzinfo=UTC).timestamp()) * 1000 for day in ((1, 1, 2), (9999, 12, 31))
)
"""Within a day of what Python's times can hold."""
SYS_FLAG_LOW_BYTE = 39
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
MILLISECONDS = st.one_of(st.integers(0, 2_000_000_000_000), I64)
HOSTS = st.sampled_from(
    ["127.0.0.1:10911", "10.1.2.3:0", "0.0.0.0:65535", "[2001:db8::1]:50000", "[127:0:0:1::]:0", "[::]:0"]
)
NAMES = st.sampled_from(
    ["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "user", "订单", "a", "a much longer name of a property"]
)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0\x01\x02"), max_size=12)
REGULAR_PROPERTIES = st.lists(st.tuples(NAMES, VALUES), max_size=8).map(
    lambda entries: "".join(f"{name}\x01{value}\x02" for name, value in entries).encode()
)
PROPERTIES = st.one_of(
    REGULAR_PROPERTIES,
    REGULAR_PROPERTIES.map(lambda data: data[:-1]),
    st.lists(st.sampled_from([b"a", b"KEYS", b"TAGS", b"\x01", b"\x02", b"\x00", b"\xff"]), max_size=8).map(
        b"".join
    ),
)


def compressed_or_not(message_parts: tuple[bytes, CompressionType | None]) -> tuple[bytes, int]:
    body, compression_type = message_parts
    return (body, 0) if compression_type is None else compress(body, compression_type)


BODIES = st.tuples(st.binary(max_size=60), st.sampled_from([None, None, *CompressionType])).map(
    compressed_or_not
)


MEMBER_PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=4).map(
    lambda found: "".join(f"{name}\x01{value}\x02" for name, value in found.items()).encode()
)
"""Empty values among them, as other clients may write them."""


@st.composite
def inner_batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """A body of members, perhaps compressed as a whole, with the flags that say so."""
    members = b"".join(
        piece
        for _ in range(draw(st.integers(0, 4)))
        for piece in batch_member(draw(st.binary(max_size=9)), draw(MEMBER_PROPERTIES), flag=draw(I32))
    )
    body, flags = compressed_or_not((members, draw(st.sampled_from([None, *CompressionType]))))
    return body, flags | INNER_BATCH_FLAGS


@st.composite
def stored_messages(
    draw: st.DrawFn,
    properties: st.SearchStrategy[bytes] = PROPERTIES,
    bodies: st.SearchStrategy[tuple[bytes, int]] = BODIES,
) -> StoredMessage:
    body, flags = draw(bodies)
    return StoredMessage(
        topic=draw(st.sampled_from(["T", "OrderTopic", "%RETRY%" + "g" * 150, "主题"])),
        queue_id=draw(I32),
        queue_offset=draw(st.integers(0, 20)),
        commit_log_offset=draw(I64),
        body=body,
        properties_data=draw(properties),
        flag=draw(I32),
        sys_flag=flags | draw(st.sampled_from([0, 2, 4, 8, 0x40, 0x80, 0x7FFFF800, -0x80000000])),
        born_timestamp=draw(MILLISECONDS),
        born_host=draw(HOSTS),
        store_timestamp=draw(MILLISECONDS),
        store_host=draw(HOSTS),
        reconsume_times=draw(I32),
        body_crc=body_crc(body),
    )


def stored_message(**changes: Any) -> StoredMessage:
    values: dict[str, Any] = {
        "topic": "T",
        "queue_id": 3,
        "queue_offset": 7,
        "commit_log_offset": 4096,
        "body": b"hello",
        "born_timestamp": 1700000000000,
        "born_host": "127.0.0.1:50000",
        "store_timestamp": 1700000000001,
        "store_host": "127.0.0.1:10911",
        "body_crc": body_crc(b"hello"),
    }
    return StoredMessage(**{**values, **changes})


def encoded(*messages: StoredMessage) -> bytes:
    return b"".join(map(encode_stored_message, messages))


def rows(batch: pa.RecordBatch) -> list[Row]:
    """The rows of a batch as tuples like MessageExt, timestamps in milliseconds or None."""
    batch.validate(full=True)
    columns: list[list[Any]] = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_timestamp(field.type):
            values = column.cast(pa.int64()).to_pylist()
            assert all(value is None or value % 1000 == 0 for value in values)
            columns.append([None if value is None else value // 1000 for value in values])
        elif pa.types.is_map(field.type):
            entries = column.to_pylist()
            columns.append([dict(row) for row in entries])
            assert [len(row) for row in entries] == [len(row) for row in columns[-1]]
        else:
            columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))


def expected_rows(messages: Iterable[MessageExt]) -> list[Row]:
    return [
        tuple(
            message._replace(
                born_timestamp=shown_timestamp(message.born_timestamp),
                store_timestamp=shown_timestamp(message.store_timestamp),
            )[: len(MESSAGE_SCHEMA)]
        )
        for message in messages
    ]


def shown_timestamp(milliseconds: int) -> Any:
    return milliseconds if FIRST_TIMESTAMP_MS <= milliseconds < END_TIMESTAMP_MS else None


def is_decoded_vectorised(data: bytes) -> bool:
    return vectorised(data) is not None


def vectorised(data: bytes) -> pa.RecordBatch | None:
    """The batch of the vectorised decoder, or None if it has to leave anything to the scalar codec."""
    try:
        return columnar._decoder("b", None, None, ()).columns_of(
            locate(BufferSlices.whole(data)), ExpansionBudget(len(data))
        )
    except IrregularLayout:
        return None


def assert_same_reaction(
    data: bytes,
    *,
    tags: frozenset[str] | None = None,
    columns: Sequence[str] | None = None,
    properties: Sequence[str] = (),
) -> None:
    """The plain decoder's rows in the columns asked for, or its error in its words.

    A body that nobody asked for need not be decompressed, and so may be damaged.
    """
    options = {"tags": tags, "columns": columns, "properties": properties}
    allowed = [reaction(plain_rows, data, options)]
    if columns is not None and "body" not in columns:
        allowed.append(reaction(plain_rows, without_compressed_bits(data), options))
    assert reaction(columnar_rows, data, options) in allowed


def reaction(decode: Callable[..., list[Row]], data: bytes, options: Mapping[str, Any]) -> list[Row] | str:
    """The rows, or the text of the error."""
    try:
        return decode(data, **options)
    except RemoteProtocolError as exc:
        return str(exc)


def columnar_rows(data: bytes, **options: Any) -> list[Row]:
    batch = decode_columns(data, "b", **options)
    names = MESSAGE_SCHEMA.names if options["columns"] is None else options["columns"]
    extra = [pa.field(name, pa.string()) for name in options.get("properties", ())]
    assert batch.schema.equals(pa.schema([MESSAGE_SCHEMA.field(name) for name in names] + extra))
    return rows(batch) if len(batch.schema) else [()] * len(batch)


def plain_rows(
    data: bytes,
    *,
    tags: frozenset[str] | None,
    columns: Sequence[str] | None,
    properties: Sequence[str] = (),
) -> list[Row]:
    messages = decode_messages(data, "b")
    kept = [message for message in messages if tags is None or message.tags in tags]
    names = MESSAGE_SCHEMA.names if columns is None else columns
    places = [MESSAGE_SCHEMA.get_field_index(name) for name in names]
    return [
        (*(row[place] for place in places), *(message.properties.get(name) for name in properties))
        for message, row in zip(kept, expected_rows(kept), strict=True)
    ]


def without_compressed_bits(data: bytes) -> bytes:
    """The same messages with bodies that are not compressed, whatever they say; inner batches as they are."""
    changed, at = bytearray(data), 0
    try:
        for stored in decode_stored_messages(data):
            if stored.sys_flag & INNER_BATCH_FLAGS != INNER_BATCH_FLAGS:
                changed[at + SYS_FLAG_LOW_BYTE] &= 0xFE
            at += stored.store_size
    except RemoteProtocolError:
        pass
    return bytes(changed)
