"""Layout of messages in a broker's commit log (``MessageExtEncoder``, V1 and V2): writer and reader.

The simulator has its own writer, separate from the connector's codec: one codec on both sides would hide its
mistakes. It writes whole runs of messages in one step, because batch sends must be cheap.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.properties import decode_properties
from pyspark_rocketmq.wire.subscription import java_string_hash

# total size, magic, body CRC, queue id, flag, queue offset, commit log offset
_HEAD = struct.Struct(">iIiiiqq")
# sys flag, born timestamp, born IPv4, born port, store timestamp, store IPv4, store port, reconsume times,
# prepared transaction offset
_SHARED = struct.Struct(">iqIIqIIiq")
_BODY_LENGTH = struct.Struct(">i")
_MEMBER_HEAD = struct.Struct(">iiiii")  # total size, magic, CRC, flag, body length
_SHORT = struct.Struct(">h")
_STORE_TIMESTAMP = struct.Struct(">q")
_STORE_TIMESTAMP_AT = 56
_MAGIC_V1 = 0xDAA320A7
_MAGIC_V2 = 0xDAA320AB
_LONGEST_V1_TOPIC = 127
_TAGS_KEY = b"TAGS\x01"
_SEPARATOR = b"\x02"

MAX_PROPERTIES_LENGTH = 32767

# queue id, flag, queue offset, commit log offset, sys flag, born timestamp, born IPv4, born port,
# store timestamp, store IPv4, store port, reconsume times, prepared offset, body length
_STORED_HEAD = struct.Struct(">4xI4xiiqqiqIIqIIiqi")


class Host(NamedTuple):
    """An IPv4 endpoint; the simulator listens on nothing else."""

    ip: str
    port: int

    @property
    def ip_number(self) -> int:
        """The IP address as the 32-bit number that is stored in messages."""
        return _ip_number(self.ip)

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}"


UNKNOWN_HOST = Host("127.0.0.1", 0)


class Member(NamedTuple):
    """One message of a :class:`MessageRun`; the run has the values that all its messages share."""

    flag: int
    body: bytes
    properties: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRun:
    """Messages for one queue that are stored together: a single message or a producer's batch."""

    topic: str
    queue_id: int
    members: tuple[Member, ...]
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = UNKNOWN_HOST
    reconsume_times: int = 0


class Placement(NamedTuple):
    """Offsets of the first message of a run, and time and broker address with which the run is stored."""

    commit_log_offset: int
    queue_offset: int
    store_timestamp: int
    store_host: Host


class EncodedRun(NamedTuple):
    """A run as bytes of the commit log, with the offset, size and tag hash of each message."""

    data: bytes
    commit_log_offsets: list[int]
    sizes: list[int]
    tag_hashes: list[int]


class StoredRun(NamedTuple):
    """Where a run was stored: queue offset of its first message, commit log offset and tag hash of each."""

    queue_offset: int
    commit_log_offsets: list[int]
    tag_hashes: list[int]


def encode_run(run: MessageRun, placement: Placement) -> EncodedRun:
    """Encode the messages of ``run`` as they are stored at ``placement``.

    The layout is V2 if the topic's name has more than 127 bytes, otherwise V1.
    """
    magic, topic_part = _topic_part(run.topic)
    fixed = _HEAD.size + _SHARED.size + _BODY_LENGTH.size + len(topic_part) + _SHORT.size
    sizes = [fixed + len(body) + len(properties) for _, body, properties in run.members]
    offsets = list(accumulate(sizes, initial=placement.commit_log_offset))
    offsets.pop()
    born, host = run.born_host, placement.store_host
    shared = _SHARED.pack(
        *(run.sys_flag, run.born_timestamp, born.ip_number, born.port),
        *(placement.store_timestamp, host.ip_number, host.port, run.reconsume_times, 0),
    )
    queue_id, queue_offset = run.queue_id, placement.queue_offset
    parts: list[bytes] = []
    for (flag, body, properties), size, offset in zip(run.members, sizes, offsets, strict=True):
        crc = crc32(body) & 0x7FFFFFFF
        parts += (
            _HEAD.pack(size, magic, crc, queue_id, flag, queue_offset, offset),
            shared,
            _BODY_LENGTH.pack(len(body)),
            body,
            topic_part,
            _SHORT.pack(len(properties)),
            properties,
        )
        queue_offset += 1
    tag_hashes = [tag_hash(properties) for _, _, properties in run.members]
    return EncodedRun(b"".join(parts), offsets, sizes, tag_hashes)


def decode_batch_members(batch: bytes, appended: bytes) -> Iterator[Member]:
    """Decode the members of a producer's batch; append to each the properties of the batch, ``appended``.

    Raises:
        RemoteProtocolError: the bytes do not contain whole members.

    Source: ``MessageDecoder.encodeMessages``, and recordings from a real broker (golden fact 2).
    """
    position, end = 0, len(batch)
    while position < end:
        try:
            _, _, _, flag, body_length = _MEMBER_HEAD.unpack_from(batch, position)
            body_end = position + _MEMBER_HEAD.size + body_length
            (properties_length,) = _SHORT.unpack_from(batch, body_end)
        except struct.error as error:
            raise RemoteProtocolError(
                f"The batch of {end} bytes ends inside a member at {position}."
            ) from error
        body_start, properties_start = position + _MEMBER_HEAD.size, body_end + _SHORT.size
        position = properties_start + properties_length
        if body_length < 0 or properties_length < 0 or position > end:
            raise RemoteProtocolError(f"A batch member's lengths reach to {position} of {end} bytes.")
        properties = join_properties(batch[properties_start:position], appended)
        yield Member(flag, batch[body_start:body_end], properties)


def join_properties(first: bytes, second: bytes) -> bytes:
    """Concatenate two property strings, with a separator if the first lacks its trailing one."""
    if first and not first.endswith(_SEPARATOR):
        return first + _SEPARATOR + second
    return first + second


def tag_hash(properties: bytes) -> int:
    """Return the hash code of the last TAGS in encoded properties; 0 if none (``tagsString2tagsCode``)."""
    at = properties.rfind(_TAGS_KEY)
    while at > 0 and properties[at - 1] != _SEPARATOR[0]:  # the end of a longer name, such as MYTAGS
        at = properties.rfind(_TAGS_KEY, 0, at)
    if at < 0:
        return 0
    start = at + len(_TAGS_KEY)
    end = properties.find(_SEPARATOR, start)
    return _hash_of_tag(properties[start:] if end < 0 else properties[start:end])


def store_timestamp_of(message: bytes) -> int:
    """Return the store timestamp, in milliseconds, of a message that :func:`encode_run` has written."""
    (timestamp,) = _STORE_TIMESTAMP.unpack_from(message, _STORE_TIMESTAMP_AT)
    return int(timestamp)


def offset_message_id(store_host: Host, commit_log_offset: int) -> str:
    """Return 32 hexadecimal digits that identify a stored message (``MessageDecoder.createMessageId``)."""
    return f"{_host_of_message_id(store_host)}{commit_log_offset:016X}"


@lru_cache(maxsize=64)
def _ip_number(ip: str) -> int:
    first, second, third, fourth = (int(part) for part in ip.split("."))
    return first << 24 | second << 16 | third << 8 | fourth


@lru_cache(maxsize=64)
def _host_of_message_id(host: Host) -> str:
    return f"{host.ip_number:08X}{host.port:08X}"


@lru_cache(maxsize=4096)
def _hash_of_tag(tag: bytes) -> int:
    return java_string_hash(tag.decode("utf-8", "replace")) if tag else 0


@lru_cache(maxsize=1024)
def _topic_part(topic: str) -> tuple[int, bytes]:
    name = topic.encode()
    if len(name) > _LONGEST_V1_TOPIC:
        return _MAGIC_V2, _SHORT.pack(len(name)) + name
    return _MAGIC_V1, bytes([len(name)]) + name


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParts:
    """One stored message taken apart."""

    run: MessageRun
    """The message as a run of one, which can be stored again, with or without changes."""
    queue_offset: int
    commit_log_offset: int
    store_timestamp: int
    store_host: Host

    @property
    def member(self) -> Member:
        """Flag, body and properties."""
        return self.run.members[0]

    @property
    def properties(self) -> dict[str, str]:
        """The decoded properties; of a name that occurs twice, the last value counts."""
        return decode_properties(self.member.properties)


def read_stored(message: bytes) -> StoredParts:
    """Decode a stored message that :func:`broker_sim.layout.encode_run` has written."""
    head = _STORED_HEAD.unpack_from(message)
    magic, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_timestamp = head[:7]
    born_ip, born_port, store_timestamp, store_ip, store_port, reconsume_times, _, body_length = head[7:]
    body_end = _STORED_HEAD.size + body_length
    topic_at = body_end + (2 if magic == _MAGIC_V2 else 1)
    topic_end = topic_at + int.from_bytes(message[body_end:topic_at], "big")
    (properties_length,) = _SHORT.unpack_from(message, topic_end)
    properties_at = topic_end + _SHORT.size
    run = MessageRun(
        topic=message[topic_at:topic_end].decode(),
        queue_id=queue_id,
        members=(
            Member(
                flag,
                message[_STORED_HEAD.size : body_end],
                message[properties_at : properties_at + properties_length],
            ),
        ),
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=Host(str(IPv4Address(born_ip)), born_port),
        reconsume_times=reconsume_times,
    )
    return StoredParts(
        run=run,
        queue_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        store_timestamp=store_timestamp,
        store_host=Host(str(IPv4Address(store_ip)), store_port),
    )
