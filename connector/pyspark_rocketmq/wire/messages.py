"""Messages as bytes: the layout that brokers store and send in pull answers, and the body of a batch send.

Stored layout (big-endian; a host is 8 bytes, or 20 if sysFlag marks it as IPv6)::

    i32 total | i32 magic | i32 bodyCRC | i32 queueId | i32 flag | i64 queueOffset | i64 commitLogOffset
    i32 sysFlag | i64 bornTimestamp | bornHost | i64 storeTimestamp | storeHost | i32 reconsumeTimes
    i64 preparedTransactionOffset | i32 n, body | u8 (V1) or u16 (V2) n, topic | i16 n, properties

Rule 1: no message is lost silently. Where Java stops decoding and returns the messages so far, or reads past
a wrong total size, this module raises ``RemoteProtocolError``. Rule 2: this module accepts every message that
Java returns whole, even with a wrong CRC, malformed UTF-8 or odd properties.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.model import Message, MessageExt
from pyspark_rocketmq.wire import properties as names
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.message_ids import (
    IPV4_HOST_BYTES,
    IPV6_HOST_BYTES,
    decode_host,
    offset_message_id,
)
from pyspark_rocketmq.wire.properties import (
    MAX_MEMBER_PROPERTIES_BYTES,
    decode_properties,
    decode_text,
    encode_properties,
)

MIN_STORED_BYTES: Final = 91
"""Size of an IPv4 V1 message with empty body, topic and properties."""
MAX_V1_TOPIC_BYTES: Final = 127
"""Maximum length of a topic in V1, whose topic length is a signed byte."""
BATCH_MEMBER_OVERHEAD: Final = 22
"""Bytes of a message in a batch, besides its body and its properties."""

_HEAD = struct.Struct(">iiiiiqqiq")
_STORE_TIMESTAMP = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")
_USUAL_HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")
"""``_HEAD``, born host, ``_STORE_TIMESTAMP``, store host and ``_TAIL``, with both hosts as IPv4."""
_BATCH_HEAD = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")
_ABOVE_EVERY_OFFSET = 1 << 63
# Plain numbers, because the complement of an IntFlag would clear the bits that have no name.
_COMPRESSED = int(MessageSysFlag.COMPRESSED)
_BORNHOST_V6 = int(MessageSysFlag.BORNHOST_V6)
_STOREHOST_V6 = int(MessageSysFlag.STOREHOSTADDRESS_V6)
INNER_BATCH_FLAGS: Final = int(MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP)
"""Flags of sysFlag; a message with both has an inner batch as its body: several messages stored as one."""
_LEAST_TEXTS: Final = 3
"""Bytes of an empty topic and empty properties in V1."""
_UNUSUAL_FLAGS: Final = _COMPRESSED | _BORNHOST_V6 | _STOREHOST_V6 | INNER_BATCH_FLAGS


class MessageVersion(IntEnum):
    """Magic number of a stored message's layout (``MessageVersion``)."""

    V1 = -626843481
    V2 = -626843477


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One message exactly as stored: its body may be compressed, and its sysFlag is unchanged."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    body: bytes
    properties_data: bytes = b""
    """The properties string as stored, with its order and repeated names."""
    flag: int = 0
    sys_flag: int = 0
    """Bits of ``MessageSysFlag``; two of them mark hosts as IPv6."""
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int
    """:func:`body_crc` of the stored body; it is not checked on a pull."""
    store_size: int = 0
    """Total size of the stored message, in bytes."""

    @property
    def properties(self) -> dict[str, str]:
        """The properties that a consumer sees."""
        return decode_properties(self.properties_data)


@dataclass(frozen=True, slots=True)
class BatchMember:
    """One message inside a batch body; it has the topic, queue and times of the batch."""

    flag: int
    body: bytes
    properties_data: bytes

    @property
    def properties(self) -> dict[str, str]:
        """The member's own properties."""
        return decode_properties(self.properties_data)


def body_crc(body: bytes) -> int:
    """Return the CRC-32 of a stored body with the sign bit cleared (``UtilAll.crc32``)."""
    return zlib.crc32(body) & 0x7FFFFFFF


def decode_stored_messages(data: bytes | memoryview) -> list[StoredMessage]:
    """Decode the body of a pull response; leave bodies compressed and inner batches whole.

    Raises:
        RemoteProtocolError: If anything is malformed, cut or left over; it names the position in ``data``.
    """
    return list(_stored_messages(memoryview(data)))


def _stored_messages(view: memoryview) -> Iterator[StoredMessage]:
    position = messages = 0
    while position < len(view):
        try:
            message = _decode_stored_message(_sized_part(view, position, MIN_STORED_BYTES))
        except (RemoteProtocolError, struct.error) as exc:
            raise RemoteProtocolError(
                f"Malformed message at byte {position} of a pull response of {len(view)} bytes, "
                f"after {messages} whole messages: {exc}"
            ) from exc
        yield message
        messages += 1
        position += message.store_size


def _sized_part(view: memoryview, position: int, minimum: int) -> memoryview:
    """Return the bytes of the message at ``position``, whose first four bytes are its size."""
    rest = len(view) - position
    if rest < 4:
        raise RemoteProtocolError(f"{rest} stray bytes are left where a message should begin.")
    total = int.from_bytes(view[position : position + 4], "big", signed=True)
    if not minimum <= total <= rest:
        raise RemoteProtocolError(f"Its total size is {total}, but {minimum} to {rest} bytes are possible.")
    return view[position : position + total]


def _decode_stored_message(view: memoryview) -> StoredMessage:
    total, magic, crc, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_timestamp = (
        _HEAD.unpack_from(view)
    )
    if magic not in _TOPIC_LENGTHS:
        raise RemoteProtocolError(f"Its magic number is {magic & 0xFFFFFFFF:#010x}, not that of a message.")
    born_host, at = _host_at(view, _HEAD.size, is_ipv6=bool(sys_flag & _BORNHOST_V6))
    (store_timestamp,) = _STORE_TIMESTAMP.unpack_from(view, at)
    is_ipv6 = bool(sys_flag & _STOREHOST_V6)
    store_host, at = _host_at(view, at + _STORE_TIMESTAMP.size, is_ipv6=is_ipv6)
    reconsume_times, prepared_transaction_offset, body_length = _TAIL.unpack_from(view, at)
    body, at = _bytes_at(view, at + _TAIL.size, body_length, "body")
    length = _TOPIC_LENGTHS[magic]
    topic, at = _bytes_at(view, at + length.size, length.unpack_from(view, at)[0], "topic")
    properties_data, at = _bytes_at(view, at + _SHORT.size, _SHORT.unpack_from(view, at)[0], "properties")
    _check_whole(at, total)
    return StoredMessage(
        topic=decode_text(topic),
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        body=body,
        properties_data=properties_data,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_crc=crc,
        store_size=total,
    )


_TOPIC_LENGTHS: Final[Mapping[int, struct.Struct]] = {
    MessageVersion.V1: struct.Struct(">b"),
    MessageVersion.V2: _SHORT,
}


def _host_at(view: memoryview, at: int, *, is_ipv6: bool) -> tuple[str, int]:
    data, end = _bytes_at(view, at, IPV6_HOST_BYTES if is_ipv6 else IPV4_HOST_BYTES, "host")
    return decode_host(data), end


def _bytes_at(view: memoryview, at: int, length: int, what: str) -> tuple[bytes, int]:
    end = at + length
    if length < 0 or end > len(view):
        raise RemoteProtocolError(f"Its {what} has {length} bytes, and the whole message {len(view)}.")
    return bytes(view[at:end]), end


def _check_whole(parsed: int, total: int) -> None:
    if parsed != total:
        raise RemoteProtocolError(f"Its parts take {parsed} bytes, but its total size says {total}.")


def decode_messages(data: bytes | memoryview, broker_name: str) -> list[MessageExt]:
    """Decode the body of a pull response into the messages that a listener sees, in stored order.

    Bodies are decompressed, and the compressed bit of sysFlag is cleared. An inner batch (several messages
    stored as one) becomes its members, each with its own queue offset. ``msg_id`` is the UNIQ_KEY or else the
    offset message id.

    Raises:
        RemoteProtocolError: For the same reasons as :func:`decode_stored_messages`, and if a body cannot be
            decompressed or expanded; then it names topic, queue and offset.

    Source: RocketMQ 5.3.3 ``MessageDecoder.decodesBatch``, ``PullAPIWrapper.processPullResult``.
    """
    usual = _usual_messages(bytes(data), broker_name)
    return list(iter_messages(data, broker_name, ExpansionBudget(len(data)))) if usual is None else usual


def _usual_messages(data: bytes, broker_name: str) -> list[MessageExt] | None:
    """Return the messages if all of them are usual, in a third of the time of :func:`iter_messages`.

    A usual message is whole and uncompressed, is no inner batch, and has IPv4 hosts. If another message is
    among them, return None.
    """
    messages: list[MessageExt] = []
    begin, end = 0, len(data)
    while end - begin >= MIN_STORED_BYTES:
        (
            total, magic, _, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_timestamp,
            born_host, store_timestamp, store_host, reconsume_times, _, body_length,
        ) = _USUAL_HEAD.unpack_from(data, begin)  # fmt: skip
        stop = begin + total
        body_at = begin + _USUAL_HEAD.size
        length_at = body_at + body_length
        is_whole = body_at <= length_at <= stop - _LEAST_TEXTS <= end - _LEAST_TEXTS
        if sys_flag & _UNUSUAL_FLAGS or magic not in _TOPIC_LENGTHS or not is_whole:
            return None
        length = _TOPIC_LENGTHS[magic]
        topic_at = length_at + length.size
        properties_at = topic_at + length.unpack_from(data, length_at)[0] + _SHORT.size
        if not topic_at + _SHORT.size <= properties_at <= stop:
            return None
        if properties_at + _SHORT.unpack_from(data, properties_at - _SHORT.size)[0] != stop:
            return None
        try:
            properties = decode_properties(data[properties_at:stop])
            shown_born_host, shown_store_host = decode_host(born_host), decode_host(store_host)
        except RemoteProtocolError:
            return None
        shown = (
            decode_text(data[topic_at : properties_at - _SHORT.size]),
            broker_name,
            queue_id,
            queue_offset,
            commit_log_offset,
            properties.get(names.UNIQ_KEY) or offset_message_id(shown_store_host, commit_log_offset),
            properties.get(names.KEYS),
            properties.get(names.TAGS),
            data[body_at:length_at],
            properties,
            born_timestamp,
            shown_born_host,
            store_timestamp,
            shown_store_host,
            reconsume_times,
            sys_flag,
            flag,
            None,
        )
        # The same as MessageExt(…), without a Python call.
        messages.append(tuple.__new__(MessageExt, shown))
        begin = stop
    return messages if begin == end else None


def iter_messages(
    data: bytes | memoryview, broker_name: str, budget: ExpansionBudget
) -> Iterator[MessageExt]:
    """Yield the messages that :func:`decode_messages` returns, one by one, so that few exist at a time.

    The size of decompressed bodies is taken from ``budget``. Members of an inner batch whose offset would be
    2^63 or more are left out.

    Raises:
        RemoteProtocolError: When a bad message is reached, or bodies expand beyond the budget.
    """
    for stored in _stored_messages(memoryview(data)):
        for shown in _show(stored, broker_name, budget):
            # The members of an inner batch count up from its offset, perhaps beyond the greatest offset.
            if shown.queue_offset < _ABOVE_EVERY_OFFSET:
                yield shown


def _show(stored: StoredMessage, broker_name: str, budget: ExpansionBudget) -> Iterator[MessageExt]:
    try:
        expanded = expanded_body(stored, budget)
    except RemoteProtocolError as exc:
        raise type(exc)(
            f"Unreadable message at topic={stored.topic} broker={broker_name} queue={stored.queue_id} "
            f"queueOffset={stored.queue_offset} commitLogOffset={stored.commit_log_offset}: {exc}"
        ) from exc
    if isinstance(expanded, bytes):
        yield _message_ext(stored, broker_name, expanded, stored.properties)
        return
    for index, member in enumerate(expanded):
        # Java leaves a member's offset id null; here the batch's id replaces a missing UNIQ_KEY.
        shown = _message_ext(stored, broker_name, member.body, member.properties)
        yield shown._replace(queue_offset=stored.queue_offset + index, reconsume_times=0, flag=member.flag)


def expanded_body(stored: StoredMessage, budget: ExpansionBudget) -> bytes | list[BatchMember]:
    """Return the decompressed body, or the members of an inner batch.

    Raises:
        RemoteProtocolError: If it cannot be decompressed or expanded; the text does not name the message.
    """
    body = budget.decompress(stored.body, stored.sys_flag)
    if stored.sys_flag & INNER_BATCH_FLAGS != INNER_BATCH_FLAGS:
        return body
    members = decode_batch(body)
    announced = stored.properties.get(names.INNER_NUM, str(len(members)))
    if announced != str(len(members)):
        raise RemoteProtocolError(
            f"Its inner batch has {len(members)} messages, not the {announced} announced."
        )
    return members


def shown_as_stored(stored: StoredMessage, broker_name: str) -> MessageExt:
    """Return the message as a consumer gets it, except that body and sysFlag are as stored."""
    shown = _message_ext(stored, broker_name, stored.body, stored.properties)
    return shown._replace(sys_flag=stored.sys_flag)


def _message_ext(
    stored: StoredMessage, broker_name: str, body: bytes, properties: dict[str, str]
) -> MessageExt:
    unique_key = properties.get(names.UNIQ_KEY)
    return MessageExt(
        topic=stored.topic,
        broker_name=broker_name,
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        commit_log_offset=stored.commit_log_offset,
        msg_id=unique_key or offset_message_id(stored.store_host, stored.commit_log_offset),
        keys=properties.get(names.KEYS),
        tags=properties.get(names.TAGS),
        body=body,
        properties=properties,
        born_timestamp=stored.born_timestamp,
        born_host=stored.born_host,
        store_timestamp=stored.store_timestamp,
        store_host=stored.store_host,
        reconsume_times=stored.reconsume_times,
        sys_flag=stored.sys_flag & ~_COMPRESSED,
        flag=stored.flag,
    )


def encode_batch(messages: Sequence[Message]) -> bytes:
    """Write the body of a SEND_BATCH_MESSAGE request.

    Layout of each: ``i32 total | i32 0 | i32 0 | i32 flag | i32 n, body | i16 n, properties``.

    Raises:
        LocalProtocolError: If a flag or a body does not fit, if the properties have more than
            ``MAX_MEMBER_PROPERTIES_BYTES``, or if :func:`encode_properties` cannot write them.

    Source: RocketMQ 5.3.3 ``MessageDecoder.encodeMessages``.
    """
    parts: list[bytes] = []
    for message in messages:
        data = encode_properties(message.properties)
        if len(data) > MAX_MEMBER_PROPERTIES_BYTES:
            raise LocalProtocolError(
                f"A message of topic {message.topic} has {len(data)} bytes of properties, and a message in a "
                f"batch can have {MAX_MEMBER_PROPERTIES_BYTES}, because the broker adds those of the batch. "
                "Send it by itself, or move large values into the body."
            )
        try:
            parts += batch_member(message.body, data, flag=message.flag)
        except struct.error as exc:
            raise LocalProtocolError(
                f"A message of topic {message.topic} cannot be sent: its flag is {message.flag!r}, and must "
                "be an int of 32 bits. Correct Message.flag."
            ) from exc
    return b"".join(parts)


def batch_member(body: bytes, properties_data: bytes, *, flag: int = 0) -> tuple[bytes, bytes, bytes, bytes]:
    """Return one encoded message of a batch, in pieces to join: head, body, properties' length, properties.

    Raises:
        struct.error: If a number exceeds its field.
    """
    total = BATCH_MEMBER_OVERHEAD + len(body) + len(properties_data)
    head = _BATCH_HEAD.pack(total, 0, 0, flag, len(body))
    return head, body, _SHORT.pack(len(properties_data)), properties_data


def decode_batch(data: bytes | memoryview) -> list[BatchMember]:
    """Decode the body of a SEND_BATCH_MESSAGE request or of a stored inner batch.

    Raises:
        RemoteProtocolError: If anything is malformed, cut or left over.

    Source: RocketMQ 5.3.3 ``MessageDecoder.decodeMessages``.
    """
    view = memoryview(data)
    members: list[BatchMember] = []
    position = 0
    while position < len(view):
        try:
            part = _sized_part(view, position, BATCH_MEMBER_OVERHEAD)
            members.append(_decode_member(part))
        except (RemoteProtocolError, struct.error) as exc:
            raise RemoteProtocolError(
                f"Malformed batch member at byte {position} of {len(view)}: {exc}"
            ) from exc
        position += len(part)
    return members


def _decode_member(view: memoryview) -> BatchMember:
    total, _, _, flag, body_length = _BATCH_HEAD.unpack_from(view)
    body, at = _bytes_at(view, _BATCH_HEAD.size, body_length, "body")
    properties_data, at = _bytes_at(view, at + _SHORT.size, _SHORT.unpack_from(view, at)[0], "properties")
    _check_whole(at, total)
    return BatchMember(flag, body, properties_data)
