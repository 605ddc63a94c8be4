from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire import columnar, columnar_ranges
from pyspark_rocketmq.wire.columnar import MESSAGE_SCHEMA, decode_columns
from pyspark_rocketmq.wire.columnar_ranges import IrregularLayout
from pyspark_rocketmq.wire.columnar_rows import locate
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.messages import (
    StoredMessage,
    body_crc,
    decode_messages,
    encode_batch,
    encode_stored_message,
)
from tests.wire.golden_messages import CORRUPT, ENCODED, PULLS, WHOLE_PULLS, pull_body

SPARK_SCHEMA = (
    StructType()
    .add("topic", StringType())
    .add("brokerName", StringType())
    .add("queueId", IntegerType())
    .add("queueOffset", LongType())
    .add("commitLogOffset", LongType())
    .add("msgId", StringType())
    .add("keys", StringType())
    .add("tags", StringType())
    .add("body", BinaryType())
    .add("properties", MapType(StringType(), StringType()))
    .add("bornTimestamp", TimestampType())
    .add("bornHost", StringType())
    .add("storeTimestamp", TimestampType())
    .add("storeHost", StringType())
    .add("reconsumeTimes", IntegerType())
    .add("sysFlag", IntegerType())
    .add("flag", IntegerType())
)
MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
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


def compressed_or_not(message_parts):
    body, compression_type = message_parts
    return (body, 0) if compression_type is None else compress(body, compression_type)


BODIES = st.tuples(st.binary(max_size=60), st.sampled_from([None, None, *CompressionType])).map(
    compressed_or_not
)


@st.composite
def stored_messages(draw, properties=PROPERTIES):
    body, flags = draw(BODIES)
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


def stored_message(**changes):
    values = {
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


def encoded(*messages):
    return b"".join(map(encode_stored_message, messages))


def rows(batch):
    """The rows of a batch as tuples like MessageExt, timestamps in milliseconds or None."""
    batch.validate(full=True)
    columns = []
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


def expected_rows(messages):
    return [
        tuple(
            message._replace(
                born_timestamp=shown_timestamp(message.born_timestamp),
                store_timestamp=shown_timestamp(message.store_timestamp),
            )
        )
        for message in messages
    ]


def shown_timestamp(milliseconds):
    return milliseconds if abs(milliseconds) <= MAX_TIMESTAMP_MS else None


def is_decoded_vectorised(data):
    return vectorised(data) is not None


def vectorised(data):
    """The batch of the vectorised decoder, or None if it has to leave anything to the scalar codec."""
    try:
        return columnar._Decoder("b", None, MESSAGE_SCHEMA)._vectorised(locate(data))
    except IrregularLayout:
        return None


def test_the_schema_is_what_spark_makes_of_the_same_columns():
    assert to_arrow_schema(SPARK_SCHEMA, timezone="UTC").equals(MESSAGE_SCHEMA, check_metadata=True)


@pytest.mark.parametrize("name", WHOLE_PULLS)
def test_the_columns_of_a_pulled_body_equal_its_decoded_messages(name):
    batch = decode_columns(pull_body(name), "broker-a")

    assert batch.schema.equals(MESSAGE_SCHEMA)
    assert rows(batch) == expected_rows(decode_messages(pull_body(name), "broker-a"))


@pytest.mark.parametrize("name", WHOLE_PULLS)
def test_what_brokers_really_store_takes_the_vectorised_path(name):
    assert is_decoded_vectorised(pull_body(name))


def test_several_pulled_bodies_decode_in_one_call():
    data = b"".join(pull_body(name) for name in WHOLE_PULLS)

    assert rows(decode_columns(data, "b")) == expected_rows(decode_messages(data, "b"))


@pytest.mark.parametrize("name", ENCODED)
def test_the_columns_of_a_message_encoded_by_java_equal_the_decoded_message(name):
    data = base64.b64decode(ENCODED[name]["bytes_b64"])

    assert is_decoded_vectorised(data)
    assert rows(decode_columns(data, "b")) == expected_rows(decode_messages(data, "b"))


@pytest.mark.parametrize(
    "data", [bytes.fromhex(entry["bytes_hex"]) for entry in CORRUPT.values()], ids=list(CORRUPT)
)
def test_corrupt_messages_meet_the_reaction_of_the_scalar_codec(data):
    assert_same_reaction(data)


def test_the_undecompressable_message_of_the_raw_pull_raises():
    (name,) = set(PULLS) - set(WHOLE_PULLS)

    with pytest.raises(RemoteProtocolError, match="queueOffset=8"):
        decode_columns(pull_body(name), "b")
    assert decode_columns(pull_body(name), "b", limit=8).num_rows == 8


def test_every_truncation_raises():
    first = encoded(stored_message())
    data = first + encoded(stored_message(properties_data=b"TAGS\x01TagA\x02"))

    for length in set(range(1, len(data))) - {len(first)}:
        with pytest.raises(RemoteProtocolError):
            decode_columns(data[:length], "b")


@settings(max_examples=300, deadline=None)
@given(st.lists(stored_messages(), max_size=6))
def test_the_columns_of_any_messages_equal_the_decoded_messages(messages):
    data = encoded(*messages)

    assert rows(decode_columns(data, "broker-a")) == expected_rows(decode_messages(data, "broker-a"))


@settings(deadline=None)
@given(st.lists(stored_messages(REGULAR_PROPERTIES), min_size=1, max_size=6))
def test_regular_messages_take_the_vectorised_path(messages):
    data = encoded(*messages)

    assert is_decoded_vectorised(data)
    assert rows(vectorised(data)) == expected_rows(decode_messages(data, "b"))


@settings(deadline=None)
@given(st.lists(stored_messages(), min_size=1, max_size=3), st.data())
def test_changed_bytes_meet_the_reaction_of_the_scalar_codec(messages, data):
    changed = bytearray(encoded(*messages))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))

    assert_same_reaction(bytes(changed))


def assert_same_reaction(data):
    assert reaction(decode_columns, rows, data) == reaction(decode_messages, expected_rows, data)


def reaction(decode, as_rows, data):
    """The rows, or the text of the error."""
    try:
        return as_rows(decode(data, "b"))
    except RemoteProtocolError as exc:
        return str(exc)


@settings(deadline=None)
@given(st.lists(stored_messages(), max_size=6), st.integers(0, 21))
def test_messages_from_the_limit_on_are_dropped(messages, limit):
    data = encoded(*messages)

    batch = decode_columns(data, "b", limit=limit)

    kept = [message for message in decode_messages(data, "b") if message.queue_offset < limit]
    assert rows(batch) == expected_rows(kept)


def test_members_of_an_inner_batch_from_the_limit_on_are_dropped():
    body = encode_batch([Message(topic="T", body=b"one"), Message(topic="T", body=b"two")])

    batch = decode_columns(encoded(stored_message(body=body, sys_flag=0xC0)), "b", limit=8)

    assert batch.column("queueOffset").to_pylist() == [7]
    assert batch.column("body").to_pylist() == [b"one"]


@settings(deadline=None)
@given(st.lists(stored_messages(), max_size=6), st.frozensets(st.sampled_from(["a", "TagB", ""])))
def test_only_messages_with_exactly_one_of_the_tags_are_kept(messages, tags):
    """A4: the broker filters tags by their hash code, the client by the tag itself."""
    messages += [stored_message(properties_data=f"TAGS\x01{tag}\x02".encode()) for tag in ("a", "A", "TagB")]
    data = encoded(*messages)

    batch = decode_columns(data, "b", tags=tags)

    assert rows(batch) == expected_rows(m for m in decode_messages(data, "b") if m.tags in tags)


def test_tags_with_one_hash_code_are_told_apart():
    """A4: "Aa" and "BB" have the same Java hash code."""
    data = encoded(*(stored_message(properties_data=f"TAGS\x01{tag}\x02".encode()) for tag in ("Aa", "BB")))

    assert decode_columns(data, "b", tags=frozenset({"BB"})).column("tags").to_pylist() == ["BB"]


@pytest.mark.parametrize("options", [{}, {"limit": 5}, {"tags": frozenset({"a"})}])
def test_nothing_pulled_gives_a_batch_without_rows(options):
    batch = decode_columns(b"", "b", **options)

    assert batch.num_rows == 0
    assert batch.schema.equals(MESSAGE_SCHEMA)


def test_a_batch_member_with_the_header_properties_appended_shows_each_property_once_with_its_last_value():
    properties = b"UNIQ_KEY\x01own\x02WAIT\x01true\x02UNIQ_KEY\x01of the batch\x02WAIT\x01true\x02"

    (row,) = decode_columns(encoded(stored_message(properties_data=properties)), "b").to_pylist()

    assert row["msgId"] == "of the batch"
    assert row["properties"] == [("UNIQ_KEY", "of the batch"), ("WAIT", "true")]


def test_a_message_without_unique_key_shows_its_offset_message_id_among_others():
    data = encoded(
        stored_message(properties_data=b"UNIQ_KEY\x01A\x02"),
        stored_message(),
        stored_message(store_host="[fd00::2]:10911", properties_data=b"TAGS\x01T\x02"),
        stored_message(properties_data=b"UNIQ_KEY\x01B\x02"),
    )

    assert is_decoded_vectorised(data)
    assert decode_columns(data, "b").column("msgId").to_pylist() == [
        "A",
        "7F00000100002A9F0000000000001000",
        "FD00000000000000000000000000000200002A9F0000000000001000",
        "B",
    ]


@pytest.mark.parametrize("ending", [b"", b"\x02"])
def test_properties_with_and_without_the_last_separator_take_the_vectorised_path(ending):
    data = encoded(*[stored_message(properties_data=b"TAGS\x01TagA\x02KEYS\x01k" + ending)] * 2)

    assert is_decoded_vectorised(data)
    assert decode_columns(data, "b").column("keys").to_pylist() == ["k", "k"]


def test_a_timestamp_beyond_microseconds_is_null():
    data = encoded(stored_message(born_timestamp=MAX_TIMESTAMP_MS + 1, store_timestamp=-MAX_TIMESTAMP_MS))

    batch = decode_columns(data, "b")

    assert batch.column("bornTimestamp").is_null().to_pylist() == [True]
    assert batch.column("storeTimestamp").is_null().to_pylist() == [False]


def test_very_many_distinct_property_names_take_the_vectorised_path():
    messages = [stored_message(properties_data=f"name-{at}\x01v\x02".encode()) for at in range(400)]
    data = encoded(*messages)

    assert is_decoded_vectorised(data)
    assert rows(decode_columns(data, "b")) == expected_rows(decode_messages(data, "b"))


def test_more_bytes_than_a_column_holds_are_refused_with_a_remedy(monkeypatch):
    monkeypatch.setattr(columnar_ranges, "MAX_COLUMN_BYTES", 200)
    body, flags = compress(bytes(1000), CompressionType.ZSTD)

    with pytest.raises(LocalProtocolError, match="decode fewer messages at once"):
        decode_columns(bytes(201), "b")
    with pytest.raises(LocalProtocolError, match="decode fewer messages at once"):
        decode_columns(encoded(stored_message(body=body, sys_flag=flags)), "b")
