from __future__ import annotations

import base64
from datetime import timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
from pyspark_rocketmq.spark.version import arrow_schema
from pyspark_rocketmq.wire.columnar import arrays as columnar_ranges
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.messages import StoredMessage, decode_messages
from tests.helpers.stored_messages import decode_columns
from tests.wire.columnar_cases import (
    END_TIMESTAMP_MS,
    FIRST_TIMESTAMP_MS,
    REGULAR_PROPERTIES,
    assert_same_reaction,
    encoded,
    expected_rows,
    is_decoded_vectorised,
    rows,
    stored_message,
    stored_messages,
    vectorised,
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


def test_the_schema_is_what_spark_makes_of_the_same_columns() -> None:
    assert arrow_schema(SPARK_SCHEMA).equals(MESSAGE_SCHEMA, check_metadata=True)


@pytest.mark.parametrize("name", WHOLE_PULLS)
def test_the_columns_of_a_pulled_body_equal_its_decoded_messages(name: str) -> None:
    batch = decode_columns(pull_body(name), "broker-a")

    assert batch.schema.equals(MESSAGE_SCHEMA)
    assert rows(batch) == expected_rows(decode_messages(pull_body(name), "broker-a"))


@pytest.mark.parametrize("name", WHOLE_PULLS)
def test_what_brokers_really_store_takes_the_vectorised_path(name: str) -> None:
    assert is_decoded_vectorised(pull_body(name))


def test_several_pulled_bodies_decode_in_one_call() -> None:
    data = b"".join(pull_body(name) for name in WHOLE_PULLS)

    assert rows(decode_columns(data, "b")) == expected_rows(decode_messages(data, "b"))


@pytest.mark.parametrize("name", ENCODED)
def test_the_columns_of_a_message_encoded_by_java_equal_the_decoded_message(name: str) -> None:
    data = base64.b64decode(ENCODED[name]["bytes_b64"])

    assert is_decoded_vectorised(data)
    assert rows(decode_columns(data, "b")) == expected_rows(decode_messages(data, "b"))


@pytest.mark.parametrize(
    "data", [bytes.fromhex(entry["bytes_hex"]) for entry in CORRUPT.values()], ids=list(CORRUPT)
)
def test_corrupt_messages_meet_the_reaction_of_the_scalar_codec(data: bytes) -> None:
    assert_same_reaction(data)


def test_the_undecompressable_message_of_the_raw_pull_raises() -> None:
    (name,) = set(PULLS) - set(WHOLE_PULLS)

    with pytest.raises(RemoteProtocolError, match="queueOffset=8"):
        decode_columns(pull_body(name), "b")


def test_every_truncation_raises() -> None:
    first = encoded(stored_message())
    data = first + encoded(stored_message(properties_data=b"TAGS\x01TagA\x02"))

    for length in set(range(1, len(data))) - {len(first)}:
        with pytest.raises(RemoteProtocolError):
            decode_columns(data[:length], "b")


@settings(deadline=None)
@given(st.lists(stored_messages(REGULAR_PROPERTIES), min_size=1, max_size=6))
def test_regular_messages_take_the_vectorised_path(messages: list[StoredMessage]) -> None:
    data = encoded(*messages)

    assert is_decoded_vectorised(data)
    assert rows(vectorised(data)) == expected_rows(decode_messages(data, "b"))


def test_tags_with_one_hash_code_are_distinguished() -> None:
    """A4: "Aa" and "BB" have the same Java hash code."""
    data = encoded(*(stored_message(properties_data=f"TAGS\x01{tag}\x02".encode()) for tag in ("Aa", "BB")))

    assert decode_columns(data, "b", tags=frozenset({"BB"})).column("tags").to_pylist() == ["BB"]


@pytest.mark.parametrize("options", [{}, {"tags": frozenset({"a"})}])
def test_nothing_pulled_gives_a_batch_without_rows(options: dict[str, Any]) -> None:
    batch = decode_columns(b"", "b", **options)

    assert batch.num_rows == 0
    assert batch.schema.equals(MESSAGE_SCHEMA)


def test_a_batch_member_with_the_header_properties_appended_shows_each_property_once_with_its_last_value() -> (
    None
):
    properties = b"UNIQ_KEY\x01own\x02WAIT\x01true\x02UNIQ_KEY\x01of the batch\x02WAIT\x01true\x02"

    (row,) = decode_columns(encoded(stored_message(properties_data=properties)), "b").to_pylist()

    assert row["msgId"] == "of the batch"
    assert row["properties"] == [("UNIQ_KEY", "of the batch"), ("WAIT", "true")]


def test_a_message_without_unique_key_shows_its_offset_message_id_among_others() -> None:
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
def test_properties_with_and_without_the_last_separator_take_the_vectorised_path(ending: bytes) -> None:
    data = encoded(*[stored_message(properties_data=b"TAGS\x01TagA\x02KEYS\x01k" + ending)] * 2)

    assert is_decoded_vectorised(data)
    assert decode_columns(data, "b").column("keys").to_pylist() == ["k", "k"]


@pytest.mark.parametrize("byte", [0, 1, 2, 3, ord("z"), 0xC3])
def test_rows_as_long_as_the_first_that_differ_from_it_in_any_byte_decode_as_by_the_scalar_codec(
    byte: int,
) -> None:
    text = b"KEYS\x01ab\x02TAGS\x01cd"

    for at in range(len(text)):
        other = text[:at] + bytes([byte]) + text[at + 1 :]
        for texts in ([text, other, text], [other, text, text], [other, other]):
            assert_same_reaction(encoded(*(stored_message(properties_data=each) for each in texts)))


@pytest.mark.parametrize(
    "texts",
    [
        (b"K\x01ab\x02TAGS\x01c", b"KEYS\x01a\x02T\x01bc"),
        (b"KEYS\x01ab\x02T\x01c", b"KEYS\x01a\x02T\x01bc"),
        (b"\x01ab\x02T\x01c", b"\x01xy\x02T\x01z"),
        (b"A\x01\x02T\x01c", b"A\x01\x02T\x01d"),
    ],
)
def test_rows_of_one_length_decode_as_by_the_scalar_codec(texts: tuple[bytes, ...]) -> None:
    data = encoded(*(stored_message(properties_data=text) for text in texts * 2))

    assert is_decoded_vectorised(data)
    assert_same_reaction(data)


@pytest.mark.parametrize(
    ("milliseconds", "is_shown"),
    [
        (FIRST_TIMESTAMP_MS, True),
        (FIRST_TIMESTAMP_MS - 1, False),
        (-(2**63), False),
        (END_TIMESTAMP_MS - 1, True),
        (END_TIMESTAMP_MS, False),
        (253_402_300_800_000, False),  # the year 10000
        (2**63 - 1, False),
    ],
)
def test_a_timestamp_that_python_cannot_hold_everywhere_is_null(milliseconds: int, is_shown: bool) -> None:
    """A producer chooses it: it must not have collect() fail, whatever the session's time zone is."""
    data = encoded(stored_message(born_timestamp=milliseconds))

    (shown,) = decode_columns(data, "b").column("bornTimestamp").to_pylist()

    assert (shown is not None) == is_shown
    if shown is not None:
        for hours in (-14, 14):
            shown.astimezone(timezone(timedelta(hours=hours)))


def test_very_many_distinct_property_names_take_the_vectorised_path() -> None:
    messages = [stored_message(properties_data=f"name-{at}\x01v\x02".encode()) for at in range(400)]
    data = encoded(*messages)

    assert is_decoded_vectorised(data)
    assert rows(decode_columns(data, "b")) == expected_rows(decode_messages(data, "b"))


def test_more_bytes_than_a_column_holds_are_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar_ranges, "MAX_COLUMN_BYTES", 200)
    body, flags = compress(bytes(1000), CompressionType.ZSTD)

    with pytest.raises(LocalProtocolError, match="decode fewer messages at a time"):
        decode_columns(bytes(201), "b")
    with pytest.raises(LocalProtocolError, match="decode fewer messages at a time"):
        decode_columns(encoded(stored_message(body=body, sys_flag=flags)), "b")


@pytest.mark.parametrize("messages", [256, 257])
def test_hosts_of_few_and_of_many_messages_are_shown_alike(messages: int) -> None:
    hosts = ["127.0.0.1:1", "10.1.2.3:65535", "0.0.0.0:0"]
    data = encoded(
        *(stored_message(born_host=hosts[at % 3], store_host=hosts[at % 2]) for at in range(messages))
    )

    assert is_decoded_vectorised(data)
    assert rows(decode_columns(data, "b")) == expected_rows(decode_messages(data, "b"))
