"""Valid initial inputs: recordings of Java's programs (``tests/golden``), cut to the relevant parts."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from functools import cache
from typing import Final

from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire.compression import MAX_BODY_BYTES, CompressionType, compress
from pyspark_rocketmq.wire.messages import StoredMessage, body_crc, encode_batch
from tests.helpers.golden import golden, recorded_commands
from tests.helpers.stored_messages import encode_stored_message

_MAX_BYTES: Final = 1 << 15
"""Maximum size of a seed: larger recordings only slow down the search."""


@cache
def frames() -> tuple[bytes, ...]:
    """Whole frames, length word included, in both header forms."""
    recorded = {
        len(command.frame).to_bytes(4, "big") + command.frame
        for command in recorded_commands()
        if command.is_body_whole and len(command.frame) < _MAX_BYTES
    }
    return tuple(sorted(recorded | {bytes.fromhex(each["frame_hex"]) for each in _framed()}))


def _framed() -> Iterator[dict[str, str]]:
    yield from (each for each in golden("remoting.json")["frames"] if "frame_hex" in each)


@cache
def headers(*, is_binary: bool) -> tuple[bytes, ...]:
    """Headers of one form."""
    found = {command.header for command in recorded_commands() if command.is_binary == is_binary}
    return tuple(sorted(found))


@cache
def json_bodies() -> tuple[bytes, ...]:
    """Bodies of any request or answer that are JSON."""
    found = {
        command.body for command in recorded_commands() if command.body[:1] == b"{" and command.is_body_whole
    }
    return tuple(sorted(body for body in found if len(body) < _MAX_BYTES))


@cache
def pull_bodies() -> tuple[bytes, ...]:
    """Answers to pulls, and single messages of every layout; some of them malformed."""
    recorded = golden("messages.json")
    bodies = [pull["body_b64"] for pull in recorded["pulls"]]
    bodies += [each["bytes_b64"] for each in recorded["encoded_in_process"] if "bytes_b64" in each]
    return tuple(body for body in map(base64.b64decode, bodies) if len(body) < _MAX_BYTES) + tuple(
        _made_messages()
    )


def _made_messages() -> Iterator[bytes]:
    for compression_type in CompressionType:
        body, sys_flag = compress(b"0123456789" * 40, compression_type)
        yield encode_stored_message(_stored("T", body, sys_flag, "127.0.0.1:1"))
        yield encode_stored_message(_stored("%RETRY%" + "g" * 150, body, sys_flag, "[::1]:1"))


def _stored(topic: str, body: bytes, sys_flag: int, host: str) -> StoredMessage:
    return StoredMessage(
        topic=topic,
        queue_id=0,
        queue_offset=7,
        commit_log_offset=0,
        body=body,
        properties_data=b"KEYS\x01k\x02TAGS\x01t\x02",
        sys_flag=sys_flag,
        born_timestamp=1,
        born_host=host,
        store_timestamp=2,
        store_host=host,
        body_crc=body_crc(body),
    )


@cache
def properties() -> tuple[bytes, ...]:
    """Properties as stored."""
    return (
        b"",
        b"KEYS\x01k\x02TAGS\x01t\x02",
        "a\x01\u8ba2\u5355\x02a\x01b\x01c\x02".encode(),
        b"WAIT\x01true",
    )


@cache
def batches() -> tuple[bytes, ...]:
    """Bodies of batch sends."""
    members = [Message(topic="T", body=b"x" * n, properties={"KEYS": str(n)}) for n in range(3)]
    return encode_batch(members), encode_batch(members[:1])


@cache
def compressed() -> tuple[bytes, ...]:
    """The type's number and a compressed body, one frame or several; one of them, for it takes long, expands beyond any body."""
    plain = (b"", b"0123456789" * 40)
    small = [bytes([kind]) + compress(body, kind)[0] for body in plain for kind in CompressionType]
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    several = [each + skippable + each[1:] for each in small]
    bomb = compress(bytes(MAX_BODY_BYTES + 1), CompressionType.ZSTD)[0]
    return (*small, *several, bytes([CompressionType.ZSTD]) + bomb)
