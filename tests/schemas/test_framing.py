from __future__ import annotations

import base64
import pickle
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import BadRecord, FrameDamaged
from pyspark_rocketmq.schemas.framing import BodyFormat, Frame, Framing, looks_like, split_frame
from tests.schemas.frames import GUID, expected_type, framed, indexes

AVRO, _, PROTOBUF = BodyFormat
GUIDS = {Framing.CONFLUENT, Framing.CONFLUENT_HEADERS}
PATHS = st.lists(st.integers(0, 2**20), min_size=1, max_size=6).map(tuple)


@pytest.mark.parametrize(("framing", "body_format"), list(product(Framing, BodyFormat)))
@settings(deadline=None, max_examples=25)
@given(schema_id=st.integers(1, 2**31 - 1), payload=st.binary(max_size=30), path=PATHS)
def test_what_a_serializer_wrote_is_split(
    framing: Framing, body_format: BodyFormat, schema_id: int, payload: bytes, path: tuple[int, ...]
) -> None:
    """K4: id, payload and message type of all framings."""
    body, properties = framed(framing, schema_id, payload, body_format, path)

    assert split_frame(framing, body, properties, body_format) == Frame(
        schema_id, payload, expected_type(framing, body_format, path)
    )


@pytest.mark.parametrize(("framing", "body_format"), list(product(sorted(GUIDS), BodyFormat)))
def test_a_guid_names_a_schema_of_confluents_second_version(
    framing: Framing, body_format: BodyFormat
) -> None:
    """K4: magic byte 01."""
    body, properties = framed(framing, GUID, b"datum", body_format, (2, 1))

    frame = split_frame(framing, body, properties, body_format)

    assert frame == Frame(GUID, b"datum", expected_type(framing, body_format, (2, 1)))
    assert isinstance(frame.schema_id, UUID)


@pytest.mark.parametrize("framing", [Framing.APICURIO_LEGACY, Framing.ROCKETMQ_AVRO, Framing.ROCKETMQ_JSON])
def test_ids_of_eight_bytes_are_whole(framing: Framing) -> None:
    """K4: a record's id in RocketMQ's registry is its schema's id shifted by 14 bits, and its version."""
    record = (4_000_000_000 << 14) | 3
    body, properties = framed(framing, record, b"datum", AVRO)

    assert split_frame(framing, body, properties).schema_id == record


@pytest.mark.parametrize(
    "text",
    [
        str(GUID),
        "01" + GUID.hex.upper(),
        base64.b64encode(b"\x01" + GUID.bytes).decode(),
    ],
)
def test_a_property_has_a_binary_header_in_any_form_of_text(text: str) -> None:
    """K4: Kafka's headers are bytes, RocketMQ's properties are text."""
    properties = {"__value_schema_id": text}

    assert split_frame(Framing.CONFLUENT_HEADERS, b"datum", properties) == Frame(GUID, b"datum")


def test_without_indexes_in_the_header_it_is_the_files_first_message() -> None:
    """K4: the shortest header of a protobuf message."""
    frame = split_frame(Framing.CONFLUENT_HEADERS, b"datum", {"__value_schema_id": str(GUID)}, PROTOBUF)

    assert frame == Frame(GUID, b"datum", (0,))


def test_apicurios_empty_ref_names_no_type() -> None:
    """K4: of Apicurio 3 with a type that the schema's only message has."""
    assert split_frame(Framing.APICURIO, b"\0\0\0\0\x05\0datum", {}, PROTOBUF) == Frame(5, b"datum", None)


@pytest.mark.parametrize(
    ("framing", "body", "properties", "found", "other"),
    [
        ("confluent", b"", {}, "magic byte 00 or 01, but is empty", ""),
        ("confluent", b'{"a":1}', {}, "7b2261", "JSON without a frame"),
        ("confluent", b"\0\0\0\0\0\0\0\0\x07datum", {}, "id 0", "apicurio-legacy"),
        ("confluent", b"\0\0\0\x01", {}, "4 bytes of an id", ""),
        ("confluent", b"\x01short", {}, "16 bytes of a GUID", ""),
        ("confluent", b"\x10" + bytes(7) + b"\x05datum", {}, "magic byte", "rocketmq-avro"),
        ("confluent", b"datum", {"__value_schema_id": str(GUID)}, "magic byte", "confluent-headers"),
        ("confluent", b"datum", {"apicurio.value.globalId": "1"}, "magic byte", "apicurio-headers"),
        ("confluent", b"\0\xff\xff\xff\xffdatum", {}, "id 4294967295", ""),
        ("confluent", b"\x02\0\0\0\0\0\0\0{}", {}, "magic byte", "rocketmq-json"),
        ("confluent-headers", b"\0\0\0\0\x07datum", {}, "no property", "confluent or apicurio"),
        ("confluent-headers", b"datum", {"__value_schema_id": "?"}, "hexadecimal or base64, but is '?'", ""),
        ("confluent-headers", b"datum", {"__value_schema_id": "?" * 36}, "???", ""),
        ("confluent-headers", b"d", {"__value_schema_id": "02" + GUID.hex}, "hexadecimal or base64", ""),
        ("confluent-headers", b"d", {"__value_schema_id": "01" + GUID.hex + "02"}, "02 after the schema's id", ""),
        ("apicurio", b"\x01" + GUID.bytes, {}, "magic byte 00", "confluent"),
        ("apicurio-legacy", b"\0\0\0\0\x07ab", {}, "8 bytes", "confluent or apicurio"),
        ("apicurio-legacy", b"\0\xff" + bytes(7) + b"a", {}, "ids are above 0", ""),
        ("apicurio-headers", b"datum", {}, "none of the properties", ""),
        ("apicurio-headers", b"datum", {"apicurio.value.contentId": "0007"}, "'0007'", ""),
        ("apicurio-headers", b"datum", {"apicurio.value.contentId": "9" * 19}, "'999", ""),
        ("rocketmq-avro", b"\0\0\0\0\x07datum", {}, "begin with 10", "confluent or apicurio"),
        ("rocketmq-json", b'{"a":', {}, "8 bytes should be at byte 0", "JSON without a frame"),
        ("rocketmq-connect", bytes(8) + b"datum", {}, "ids are above 0", "apicurio-legacy"),
    ],
)  # fmt: skip
def test_a_damaged_frame_is_described(
    framing: str, body: bytes, properties: dict[str, str], found: str, other: str
) -> None:
    """K4: what is there instead, and which framing that looks like."""
    with pytest.raises(FrameDamaged) as caught:
        split_frame(Framing(framing), body, properties)

    assert found in caught.value.found
    assert caught.value.looks_like == other
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert (f"It looks like {other}." in str(caught.value)) == bool(other)


@pytest.mark.parametrize(
    ("framing", "after_id", "found"),
    [
        ("confluent", b"", "cut off"),
        ("confluent", b"\x04\x02", "claims 2 entries, but 1 bytes are left"),
        ("confluent", b"\x03abc", "claims -2 entries"),
        ("confluent", b"\x02\x01", "index -1"),
        ("confluent", b"\x80\x80\x80\x80\x80\x01", "longer than 5 bytes"),
        ("confluent", indexes(1, 300)[:-1] + b"\xff", "cut off"),
        ("apicurio", b"", "cut off"),
        ("apicurio", b"\x09\x0a\x05Ord", "name should have 9 bytes, but 5 are left"),
        ("apicurio", b"\x05\x0a\x02Order", "name of a message type should follow"),
        ("apicurio", b"\x05\x12\x03Order", "name of a message type should follow"),
        ("apicurio", b"\x04\x0a\x02\xff\xfe", "not UTF-8"),
    ],
)
def test_a_damaged_message_type_is_described(framing: str, after_id: bytes, found: str) -> None:
    """K4: indexes and names come from foreign programs, too."""
    with pytest.raises(FrameDamaged, match=found):
        split_frame(Framing(framing), b"\0\0\0\0\x07" + after_id, {}, PROTOBUF)


@settings(deadline=None, max_examples=300)
@given(
    framing=st.sampled_from(Framing),
    body=st.binary(max_size=40),
    header=st.none() | st.text(max_size=60) | st.binary(max_size=30).map(bytes.hex),
    body_format=st.sampled_from(BodyFormat),
)
def test_no_bytes_end_in_another_error(
    framing: Framing, body: bytes, header: str | None, body_format: BodyFormat
) -> None:
    """K4: a frame or a bad record, and the payload is the body's end."""
    properties = {} if header is None else {"__value_schema_id": header, "apicurio.value.globalId": header}
    looks_like(body, properties)
    damage: BadRecord | None = None
    try:
        frame = split_frame(framing, body, properties, body_format)
    except BadRecord as error:
        damage = error
    else:
        assert body.endswith(frame.payload)
        assert isinstance(frame.schema_id, UUID) or frame.schema_id > 0

    assert damage is None or str(damage).isprintable()
