"""Frames of schema registries: a frame or a bad record, which the same bytes in other framings do not change."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from pyspark_rocketmq.errors import FrameDamaged
from pyspark_rocketmq.schemas.framing import (
    APICURIO_PROPERTIES,
    CONFLUENT_PROPERTY,
    BodyFormat,
    Framing,
    split_frame,
)


def run_registry_frames(data: bytes) -> None:
    """The part before the first line feed is a property, the rest the body; all framings and formats get them."""
    header, _, body = data.partition(b"\n")
    text = header.decode("latin-1")
    properties = dict.fromkeys((CONFLUENT_PROPERTY, *APICURIO_PROPERTIES), text)
    for framing in Framing:
        for body_format in BodyFormat:
            with suppress(FrameDamaged):
                frame = split_frame(framing, body, properties, body_format)
                assert body.endswith(frame.payload)
                assert len(body) - len(frame.payload) < 20 or body_format is BodyFormat.PROTOBUF


def registry_frames() -> Iterable[bytes]:
    """One of each framing."""
    guid = bytes(range(16))
    for after_id in (b"datum", b"\x00datum", b"\x04\x02\x00datum", b"\x07\x0a\x05Orderdatum"):
        yield b"\n\0\0\0\0\x07" + after_id
        yield b"\n\0" + bytes(7) + b"\x07" + after_id
        yield b"\n\x01" + guid + after_id
    yield b"\n\x10" + bytes(7) + b"\x07datum"
    yield b"\n" + bytes(7) + b'\x07{"a":1}'
    yield b"7\ndatum"
    yield b"01" + guid.hex().encode() + b"0402\ndatum"
    yield b"AQABAgMEBQYHCAkKCwwNDg8=\ndatum"
