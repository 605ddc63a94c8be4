"""Splits a body into the id of the schema with which it was written, and the payload. Pure.

A *frame* is what a serializer puts before the payload, or into the message's properties, to name the schema.
A *framing* is one serializer's form of frames. Here 00, 01 and 10 are single bytes in hexadecimal digits:

* ``confluent``: 00, int32 id, payload; or 01, 16 bytes of a GUID, payload
* ``confluent-headers``: payload; property ``__value_schema_id`` has the bytes before ``confluent``'s payload
* ``apicurio``: 00, int32 id, payload
* ``apicurio-legacy``: 00, int64 id, payload
* ``apicurio-headers``: payload; property ``apicurio.value.globalId`` or ``apicurio.value.contentId``
* ``rocketmq-avro``: 10, int64 id, payload
* ``rocketmq-json``, ``rocketmq-connect``: int64 id, payload

Before a protobuf payload, the frame also has the indexes of the message type in its file (Confluent), or the
type's name (Apicurio, except with headers).  A RocketMQ property is text, so it has a binary header as
hexadecimal digits, in base64, or as the text of a GUID.

The id in a frame of Apicurio is a globalId or a contentId, as its producer's ``apicurio.registry.use-id``
says; only the headers show which. Both are numbers from 1 on, so one may be taken for the other.

Source: ``schema_registry/serde.py`` of confluent-kafka-python; ``Default4ByteIdHandler``,
``Legacy8ByteIdHandler`` and ``DefaultHeadersHandler`` of Apicurio Registry; ``AvroSerializer``, whose id is
Avro bytes of length 8, and ``JsonSerializer`` of rocketmq-schema-registry; ``AvroConverter`` and
``JsonConverter`` of rocketmq-connect.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from pyspark_rocketmq.errors import FrameDamaged

CONFLUENT_PROPERTY: Final = "__value_schema_id"
GLOBAL_ID: Final = "apicurio.value.globalId"
CONTENT_ID: Final = "apicurio.value.contentId"
APICURIO_PROPERTIES: Final = (GLOBAL_ID, CONTENT_ID)
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
_MOST_SHOWN: Final = 24
"""Maximum number of bytes that an error shows."""
_MOST_ID: Final = 2**31
_LONGEST_VARINT: Final = 5
_JSON_STARTS: Final = (b"{", b"[")
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_HEX: Final = re.compile(r"0[01](?:[0-9A-Fa-f]{2})*")

SchemaId = int | UUID
"""The number or GUID of a schema in its registry."""


class Framing(StrEnum):
    """A way in which messages name the schema of their body: before the payload or in a property."""

    CONFLUENT = "confluent"
    CONFLUENT_HEADERS = "confluent-headers"
    APICURIO = "apicurio"
    APICURIO_LEGACY = "apicurio-legacy"
    APICURIO_HEADERS = "apicurio-headers"
    ROCKETMQ_AVRO = "rocketmq-avro"
    ROCKETMQ_JSON = "rocketmq-json"
    ROCKETMQ_CONNECT = "rocketmq-connect"


class BodyFormat(StrEnum):
    """The encoding of a payload."""

    AVRO = "avro"
    JSON = "json"
    PROTOBUF = "protobuf"


MessageType = tuple[int, ...] | str
"""A protobuf message type in its file: indexes from the outermost type inwards, or its name."""
FIRST_MESSAGE: Final = (0,)


class Frame(NamedTuple):
    """The parts of a body: id of its schema, payload, and perhaps the message type."""

    schema_id: SchemaId
    payload: bytes
    message_type: MessageType | None = None
    """Type of a protobuf payload; None if the frame does not name it."""


class _Reason(Exception):
    """The bytes are not a frame of the expected framing; the text is the reason."""


def split_frame(
    framing: Framing,
    body: bytes,
    properties: Mapping[str, str] = _NO_PROPERTIES,
    body_format: BodyFormat = BodyFormat.AVRO,
) -> Frame:
    """Split a body into the id of its schema, the payload, and the message type if the frame names it.

    Raises:
        FrameDamaged: If body and properties are not in this framing. If they look like another framing, the
            error names that one.
    """
    try:
        return _SPLITTERS[framing](body, properties, body_format)
    except _Reason as reason:
        raise FrameDamaged(str(framing), str(reason), _other(framing, body, properties)) from None


def looks_like(body: bytes, properties: Mapping[str, str] = _NO_PROPERTIES) -> str:
    """Return the framing that a body seems to have, as text for an error; empty if none fits.

    The text is a framing's name, ``confluent or apicurio``, or ``JSON without a frame``.
    """
    if CONFLUENT_PROPERTY in properties:
        return str(Framing.CONFLUENT_HEADERS)
    if any(name in properties for name in APICURIO_PROPERTIES):
        return str(Framing.APICURIO_HEADERS)
    if body[:1] in _JSON_STARTS:
        return "JSON without a frame"
    return next((name for name, fits in _LOOKS if fits(body)), "")


_LOOKS: Final[tuple[tuple[str, Callable[[bytes], bool]], ...]] = (
    ("apicurio-legacy", lambda body: len(body) > 8 and body[:5] == bytes(5)),
    ("confluent or apicurio", lambda body: len(body) > 4 and body[:1] == b"\x00" and body[1] < 0x80),
    ("confluent", lambda body: len(body) > 16 and body[:1] == b"\x01"),
    ("rocketmq-avro", lambda body: len(body) > 8 and body[:1] == b"\x10"),
    ("rocketmq-json", lambda body: body[8:9] in _JSON_STARTS),
)


def _other(framing: Framing, body: bytes, properties: Mapping[str, str]) -> str:
    """Return the framing that a body seems to have; empty if it is ``framing`` itself, or if none fits."""
    found = looks_like(body, properties)
    return "" if framing in found.split() else found


def _split_confluent(body: bytes, _: Mapping[str, str], body_format: BodyFormat) -> Frame:
    return _confluent(body, body_format, "the body")


def _confluent(data: bytes, body_format: BodyFormat, where: str) -> Frame:
    """Split bytes that begin with a magic byte and an id or a GUID; ``where`` names the bytes in errors."""
    match data[:1]:
        case b"\x00":
            schema_id: SchemaId = _small_id(data)
            end = 5
        case b"\x01" if len(data) >= 17:
            schema_id, end = UUID(bytes=data[1:17]), 17
        case b"\x01":
            raise _Reason(f"16 bytes of a GUID should follow magic byte 01, but {where} is {_shown(data)}")
        case _:
            raise _Reason(f"{where} should begin with magic byte 00 or 01, but is {_shown(data)}")
    if body_format is not BodyFormat.PROTOBUF:
        return Frame(schema_id, data[end:])
    indexes, end = _indexes(data, end)
    return Frame(schema_id, data[end:], indexes)


def _split_confluent_headers(body: bytes, properties: Mapping[str, str], body_format: BodyFormat) -> Frame:
    text = properties.get(CONFLUENT_PROPERTY)
    if text is None:
        raise _Reason(f"the message has no property {CONFLUENT_PROPERTY}")
    found = _header_bytes(text)
    if body_format is BodyFormat.PROTOBUF and len(found) == (17 if found[:1] == b"\x01" else 5):
        # If the header names no message type, the type is the first one of the file.
        found += b"\x00"
    schema_id, rest, message_type = _confluent(found, body_format, f"property {CONFLUENT_PROPERTY}")
    if rest:
        raise _Reason(f"property {CONFLUENT_PROPERTY} has {_shown(rest)} after the schema's id")
    return Frame(schema_id, body, message_type)


def _header_bytes(text: str) -> bytes:
    """Return Confluent's header as bytes, from the text of a property.

    The text is a GUID, or has the header in hexadecimal digits or in base64. For a GUID, byte 01 is added.

    Raises:
        _Reason: If the text is none of these.
    """
    try:
        guid = UUID(text) if len(text) == 36 else None
    except ValueError:
        guid = None
    if guid is not None:
        return b"\x01" + guid.bytes
    # Hexadecimal digits begin with 00 or 01; base64 of the same bytes begins with A.
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (ValueError, binascii.Error):
        raise _Reason(
            f"property {CONFLUENT_PROPERTY} should be the text of a GUID, or a header (00 and an id, or 01 "
            f"and a GUID) in hexadecimal or base64, but is {text[:60]!r}"
        ) from None


def _split_apicurio(body: bytes, _: Mapping[str, str], body_format: BodyFormat) -> Frame:
    _check_magic(body)
    return _apicurio(_small_id(body), body[5:], body_format)


def _split_apicurio_legacy(body: bytes, _: Mapping[str, str], body_format: BodyFormat) -> Frame:
    _check_magic(body)
    return _apicurio(_large_id(body, 1), body[9:], body_format)


def _apicurio(schema_id: int, rest: bytes, body_format: BodyFormat) -> Frame:
    if body_format is not BodyFormat.PROTOBUF:
        return Frame(schema_id, rest)
    name, end = _type_name(rest)
    return Frame(schema_id, rest[end:], name or None)


def _split_apicurio_headers(body: bytes, properties: Mapping[str, str], _: BodyFormat) -> Frame:
    name = next((name for name in APICURIO_PROPERTIES if name in properties), None)
    if name is None:
        raise _Reason(f"the message has none of the properties {', '.join(APICURIO_PROPERTIES)}")
    text = properties[name]
    if not _DECIMAL.fullmatch(text) or not 0 < int(text) < 2**63:
        raise _Reason(f"property {name} should be a schema's number, but is {text[:60]!r}")
    return Frame(int(text), body)


def _split_rocketmq_avro(body: bytes, _: Mapping[str, str], _format: BodyFormat) -> Frame:
    if body[:1] != b"\x10":
        raise _Reason(
            "the body should begin with 10 (hexadecimal: Avro's encoding of 8, the length of an id), but is "
            f"{_shown(body)}"
        )
    return Frame(_large_id(body, 1), body[9:])


def _split_plain_id(body: bytes, _: Mapping[str, str], _format: BodyFormat) -> Frame:
    return Frame(_large_id(body, 0), body[8:])


_SPLITTERS: Final[Mapping[Framing, Callable[[bytes, Mapping[str, str], BodyFormat], Frame]]] = {
    Framing.CONFLUENT: _split_confluent,
    Framing.CONFLUENT_HEADERS: _split_confluent_headers,
    Framing.APICURIO: _split_apicurio,
    Framing.APICURIO_LEGACY: _split_apicurio_legacy,
    Framing.APICURIO_HEADERS: _split_apicurio_headers,
    Framing.ROCKETMQ_AVRO: _split_rocketmq_avro,
    Framing.ROCKETMQ_JSON: _split_plain_id,
    Framing.ROCKETMQ_CONNECT: _split_plain_id,
}


def _check_magic(body: bytes) -> None:
    if body[:1] != b"\x00":
        raise _Reason(f"the body should begin with magic byte 00, but is {_shown(body)}")


def _small_id(data: bytes) -> int:
    """Return the schema's id: the int32 at byte 1, after a magic byte.

    Raises:
        _Reason: If the bytes are cut off, or the number is not above 0.
    """
    if len(data) < 5:
        raise _Reason(f"4 bytes of an id should follow magic byte 00, but there is only {_shown(data)}")
    number = int.from_bytes(data[1:5], "big")
    if not 0 < number < _MOST_ID:
        raise _Reason(f"id {number} in {_shown(data)} is not that of a schema: ids are 1 to {_MOST_ID - 1}")
    return number


def _large_id(data: bytes, start: int) -> int:
    """Return the schema's id: the int64 at ``start``.

    Raises:
        _Reason: If the bytes are cut off, or the number is not above 0.
    """
    if len(data) < start + 8:
        raise _Reason(f"an id of 8 bytes should be at byte {start}, but the body is {_shown(data)}")
    number = int.from_bytes(data[start : start + 8], "big", signed=True)
    if number <= 0:
        raise _Reason(f"id {number} in {_shown(data)} is not that of a schema: ids are above 0")
    return number


def _indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Read Confluent's indexes of a message type, which begin at ``at``; return them and where they end."""
    count, at = _zigzag(data, at)
    if count == 0:
        return FIRST_MESSAGE, at
    # Each index takes at least one byte.
    if not 0 < count <= len(data) - at:
        raise _Reason(
            f"the list of message type indexes claims {count} entries, but {len(data) - at} bytes are left "
            f"for it in {_shown(data)}"
        )
    found = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        if index < 0:
            raise _Reason(f"index {index} of a message type in {_shown(data)} is below 0")
        found.append(index)
    return tuple(found), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint (7 bits of the number in each byte); return it and the place after it."""
    number = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(data):
            raise _Reason(f"the protobuf message type after the schema's id is cut off in {_shown(data)}")
        byte = data[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise _Reason(
        "the protobuf message type after the schema's id has a number longer than "
        f"{_LONGEST_VARINT} bytes in {_shown(data)}"
    )


def _type_name(data: bytes) -> tuple[str, int]:
    """Read Apicurio's ``Ref``, a protobuf message with the name of the message type in field 1.

    Return the name, which is empty if the ``Ref`` is empty, and the place after the ``Ref``.
    """
    length, at = _varint(data, 0)
    end = at + length
    if end > len(data):
        raise _Reason(
            f"the part with the message type's name should have {length} bytes, but {len(data) - at} are "
            f"left in {_shown(data)}"
        )
    if not length:
        return "", end
    size, start = _varint(data, at + 1) if data[at] == 0x0A else (-1, at)
    if start + size != end:
        raise _Reason(f"the name of a message type should follow the schema's id in {_shown(data)}")
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError:
        raise _Reason(
            "the name of a message type, which follows the schema's id, is not UTF-8; the bytes after the id "
            f"are {_shown(data)} in hexadecimal"
        ) from None


def _shown(data: bytes) -> str:
    if not data:
        return "empty"
    return data[:_MOST_SHOWN].hex() + ("…" if len(data) > _MOST_SHOWN else "")
