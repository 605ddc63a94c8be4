"""Frames as the serializers write them, each by another way than the code under test."""

from __future__ import annotations

import struct
from uuid import UUID

from pyspark_rocketmq.schemas.framing import BodyFormat, Framing, MessageType

GUID = UUID("0d1f2c3b-4a59-4867-8796-a5b4c3d2e1f0")


def zigzag(*numbers: int) -> bytes:
    """Numbers as Java's ``ByteUtils.writeVarint`` writes them."""
    out = bytearray()
    for number in numbers:
        rest = (number << 1) ^ (number >> 31)
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def indexes(*path: int) -> bytes:
    """Confluent's way to a message type."""
    return b"\x00" if path == (0,) else zigzag(len(path), *path)


def ref(name: str) -> bytes:
    """Apicurio's ``Ref``, delimited."""
    data = b"\x0a" + bytes([len(name.encode())]) + name.encode()
    return bytes([len(data)]) + data


def framed(
    framing: Framing,
    schema_id: int | UUID,
    payload: bytes,
    body_format: BodyFormat,
    path: tuple[int, ...] = (0,),
) -> tuple[bytes, dict[str, str]]:
    """A body and its properties."""
    is_protobuf = body_format is BodyFormat.PROTOBUF
    start = (
        b"\x01" + schema_id.bytes if isinstance(schema_id, UUID) else struct.pack(">BI", 0, schema_id % 2**32)
    )
    confluent = start + (indexes(*path) if is_protobuf else b"")
    if isinstance(schema_id, UUID):
        schema_id = 1
    name = ref("Order") if is_protobuf else b""
    return {
        Framing.CONFLUENT: (confluent + payload, {}),
        Framing.CONFLUENT_HEADERS: (payload, {"__value_schema_id": confluent.hex()}),
        Framing.APICURIO: (struct.pack(">BI", 0, schema_id % 2**32) + name + payload, {}),
        Framing.APICURIO_LEGACY: (struct.pack(">Bq", 0, schema_id) + name + payload, {}),
        Framing.APICURIO_HEADERS: (payload, {"apicurio.value.globalId": str(schema_id)}),
        Framing.ROCKETMQ_AVRO: (struct.pack(">Bq", 16, schema_id) + payload, {}),
        Framing.ROCKETMQ_JSON: (struct.pack(">q", schema_id) + payload, {}),
        Framing.ROCKETMQ_CONNECT: (struct.pack(">q", schema_id) + payload, {}),
    }[framing]


def expected_type(
    framing: Framing, body_format: BodyFormat, path: tuple[int, ...] = (0,)
) -> MessageType | None:
    """The message type that such a frame names."""
    if body_format is not BodyFormat.PROTOBUF:
        return None
    if framing in {Framing.CONFLUENT, Framing.CONFLUENT_HEADERS}:
        return path
    return "Order" if framing in {Framing.APICURIO, Framing.APICURIO_LEGACY} else None
