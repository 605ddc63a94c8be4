"""Stored messages as a broker writes them, and as columns by the decoder of one buffer."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

from pyspark_rocketmq.errors import LocalProtocolError
from pyspark_rocketmq.wire import messages
from pyspark_rocketmq.wire.columnar import decode
from pyspark_rocketmq.wire.columnar.arrays import check_column_bytes
from pyspark_rocketmq.wire.message_ids import IPV6_HOST_BYTES, encode_host
from pyspark_rocketmq.wire.messages import MAX_V1_TOPIC_BYTES, MessageVersion, StoredMessage


def decode_columns(
    data: bytes,
    broker_name: str,
    *,
    tags: frozenset[str] | None = None,
    columns: Sequence[str] | None = None,
    properties: Sequence[str] = (),
) -> pa.RecordBatch:
    """Decode stored messages, one behind the other, as the source does with the bodies of one pull.

    Raises:
        RemoteProtocolError: As ``decode_messages``.
        LocalProtocolError: If the data or a column exceed 2 GiB, or a column has none of the schema's names.
    """
    check_column_bytes(len(data))
    decoder = decode._decoder(broker_name, tags, columns, properties)
    return decoder.filtered(decoder.decode(data))


def encode_stored_message(message: StoredMessage) -> bytes:
    """Write one message in the stored layout, V2 when its topic exceeds 127 bytes.

    Raises:
        LocalProtocolError: If a number or a length does not fit its field, or a host is not an IP address.

    Source: RocketMQ 5.3.3 ``store/MessageExtEncoder.encode``.
    """
    version, topic = _encode_topic(message.topic)
    born_host, store_host = encode_host(message.born_host), encode_host(message.store_host)
    sys_flag = _with_host_flags(message.sys_flag, born_host, store_host)
    fixed = messages._HEAD.size + messages._STORE_TIMESTAMP.size + messages._TAIL.size + messages._SHORT.size
    hosts = len(born_host) + len(store_host)
    texts = len(message.body) + len(topic) + len(message.properties_data)
    try:
        head = messages._HEAD.pack(
            fixed + hosts + texts, version, message.body_crc, message.queue_id, message.flag,
            message.queue_offset, message.commit_log_offset, sys_flag, message.born_timestamp,
        )  # fmt: skip
        store_timestamp = messages._STORE_TIMESTAMP.pack(message.store_timestamp)
        tail = messages._TAIL.pack(
            message.reconsume_times, message.prepared_transaction_offset, len(message.body)
        )
        properties_length = messages._SHORT.pack(len(message.properties_data))
    except struct.error as exc:
        raise LocalProtocolError(
            f"A message of topic {message.topic} does not fit its layout: {exc}."
        ) from exc
    parts = (head, born_host, store_timestamp, store_host, tail, message.body, topic)
    return b"".join((*parts, properties_length, message.properties_data))


def _encode_topic(topic: str) -> tuple[MessageVersion, bytes]:
    """Choose the layout and write the topic with its length."""
    try:
        data = topic.encode()
        version = MessageVersion.V1 if len(data) <= MAX_V1_TOPIC_BYTES else MessageVersion.V2
        return version, messages._TOPIC_LENGTHS[version].pack(len(data)) + data
    except (UnicodeEncodeError, struct.error) as exc:
        raise LocalProtocolError(f"The topic {topic[:100]!a} cannot be written: {exc}.") from exc


def _with_host_flags(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    flags = sys_flag & ~(messages._BORNHOST_V6 | messages._STOREHOST_V6)
    if len(born_host) == IPV6_HOST_BYTES:
        flags |= messages._BORNHOST_V6
    if len(store_host) == IPV6_HOST_BYTES:
        flags |= messages._STOREHOST_V6
    return flags
