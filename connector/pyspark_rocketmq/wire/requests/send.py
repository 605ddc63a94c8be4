"""A send's bytes: requests, batches and results; splitting into batches; the queue of a sharding key."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark_rocketmq.errors import LocalProtocolError, RocketMQError
from pyspark_rocketmq.model import (
    MAX_MESSAGE_BYTES,
    RETRY_TOPIC_PREFIX,
    Message,
    MessageQueue,
    SendStatus,
)
from pyspark_rocketmq.wire.codes import MessageSysFlag, RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.messages import BATCH_MEMBER_OVERHEAD, encode_batch
from pyspark_rocketmq.wire.properties import (
    DELAY,
    MAX_MEMBER_PROPERTIES_BYTES,
    MAX_RECONSUME_TIMES,
    RECONSUME_TIME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    encode_properties,
)
from pyspark_rocketmq.wire.requests.header_fields import to_ext_fields
from pyspark_rocketmq.wire.requests.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from pyspark_rocketmq.wire.requests.responses import error_of, header_of
from pyspark_rocketmq.wire.subscription import _MASK, _SIGN, java_string_hash

_LONG_MASK: Final = 0xFFFFFFFFFFFFFFFF
_MOST: Final = 1 << 63

ShardingKey = str | int
"""Key whose hash chooses the queue: a String in Java, or a Long (a ``JavaInteger`` is an Integer)."""

AUTO_CREATE_TOPIC: Final = "TBW102"
"""Template of topics that are created by a first send (``TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC``)."""
DEFAULT_TOPIC_QUEUE_NUMS: Final = 4
"""Queues per broker of a topic created by a first send (``DefaultMQProducer.defaultTopicQueueNums``)."""
_SINGLE_ONLY: Final = frozenset({DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TRAN_MSG})
"""Properties that a broker reads only in single messages, and would ignore in a batch."""
_STATUSES: Final[Mapping[int, SendStatus]] = {int(status): status for status in SendStatus}


class JavaInteger(int):
    """A sharding key that Java's producers have as an Integer, Short or Byte, and not as a Long.

    A negative number has different hashes as an Integer and as a Long, so the type may decide its queue.
    """


def java_hash(sharding_key: ShardingKey) -> int:
    """Return Java's ``hashCode()`` of the key as a String, Long or Integer, a signed 32-bit number.

    Raises:
        LocalProtocolError: If the key is none of these.
    """
    if isinstance(sharding_key, str):
        return java_string_hash(sharding_key)
    try:
        number = operator.index(sharding_key)
    except TypeError:
        number = _MOST
    if isinstance(sharding_key, bool) or not -_MOST <= number < _MOST:
        raise LocalProtocolError(
            f"Sharding key {sharding_key!r:.80} is neither a string nor an integer of 64 bits; make it a "
            "string."
        )
    if not isinstance(sharding_key, JavaInteger):
        unsigned = number & _LONG_MASK
        number = unsigned ^ unsigned >> 32
    return (number & _MASK ^ _SIGN) - _SIGN


def select_by_hash(sharding_key: ShardingKey, queue_count: int) -> int:
    """Return the index of the key's queue among ``queue_count`` (at least 1) queues in route order.

    Source: ``SelectMessageQueueByHash.select``: Java's remainder (towards zero), then its absolute value.
    """
    return abs(java_hash(sharding_key)) % queue_count


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """Result of a send: where the broker stored the message, or the first message of a batch."""

    status: SendStatus
    """SEND_OK, or a status that means: stored, but not yet as durably as configured at the broker."""
    msg_id: str
    """UNIQ_KEY of the message; for a batch, those of its messages, joined by commas; empty for an encoded
    batch. Consumers see another key in messages of a batch: the broker gives each of them the batch's key."""
    offset_msg_id: str
    """Offset message id; for a batch, one per message, joined by commas."""
    queue: MessageQueue
    queue_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """The settings of a send that do not depend on the message."""

    producer_group: str
    sys_flag: int = 0
    """Bits of ``MessageSysFlag``: how the body is compressed."""
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    """Reconsume times above which the broker makes the message a dead letter; set only if a consumer sends to
    its group's retry topic."""
    default_topic: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Maximum number of bytes of a body, or of all members of a batch together."""


def settings_of(message: Message, settings: SendSettings) -> SendSettings:
    """Return ``settings`` for this message, completed from its properties.

    A half message of a transaction gets the flag TRANSACTION_PREPARED. A message for a retry topic gets its
    reconsume times and their maximum. The message keeps these properties.

    Source: RocketMQ 5.3.3 ``DefaultMQProducerImpl.sendKernelImpl``.
    """
    properties = message.properties
    if properties.get(TRAN_MSG) == "true":
        settings = replace(settings, sys_flag=settings.sys_flag | MessageSysFlag.TRANSACTION_PREPARED)
    tried = properties.get(RECONSUME_TIME)
    if not message.topic.startswith(RETRY_TOPIC_PREFIX) or tried is None:
        return settings
    most = properties.get(MAX_RECONSUME_TIMES)
    return replace(
        settings,
        reconsume_times=int(tried),
        max_reconsume_times=settings.max_reconsume_times if most is None else int(most),
    )


def send_command(
    message: Message, queue: MessageQueue, settings: SendSettings, born_timestamp_ms: int
) -> RemotingCommand:
    """Create the SEND_MESSAGE_V2 request for one message, which the caller has compressed and given ids.

    Raises:
        LocalProtocolError: If the body is empty or too large, or the properties or a number do not fit.

    Source: RocketMQ 5.3.3 ``DefaultMQProducerImpl.sendKernelImpl``, ``Validators.checkMessage``.
    """
    check_body(message.body, str(queue), settings.max_message_bytes)
    return RemotingCommand(
        code=RequestCode.SEND_MESSAGE_V2,
        ext_fields=_header(
            message.properties, message.flag, queue, settings, born_timestamp_ms, is_batch=False
        ),
        body=message.body,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Messages for one queue, which the broker stores one after another."""

    queue: MessageQueue
    messages: Sequence[Message]
    properties: Mapping[str, str]
    """Properties of the batch; the broker appends them to those of every message."""


def batch_command(batch: Batch, settings: SendSettings, born_timestamp_ms: int) -> RemotingCommand:
    """Create the SEND_BATCH_MESSAGE request for a batch.

    Raises:
        LocalProtocolError: If there is no message. If a message is for another topic, is delayed or
            transactional, or has an empty body or properties that cannot be written. If a body, the
            properties of a message or the whole batch is too large.

    Source: RocketMQ 5.3.3 ``MessageBatch.generateFromList``, ``MessageDecoder.encodeMessages``.
    """
    queue = batch.queue
    if not batch.messages:
        raise LocalProtocolError(f"A batch for {queue} holds no message; add at least one.")
    for message in batch.messages:
        if message.topic != queue.topic:
            raise LocalProtocolError(
                f"A batch for {queue} holds a message for topic {message.topic}; send that one in a batch of "
                "its own topic."
            )
        check_body(message.body, str(queue), settings.max_message_bytes)
        if not _SINGLE_ONLY.isdisjoint(message.properties):
            raise LocalProtocolError(
                f"A batch for {queue} holds a message that is delayed or transactional; send such messages "
                "one by one."
            )
    header = _header(batch.properties, 0, queue, settings, born_timestamp_ms, is_batch=True)
    return _batch_request(encode_batch(batch.messages), header, queue, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """A batch whose members are already encoded, each with its own UNIQ_KEY.

    The batch itself has no properties: a broker would append them to those of each member, and consumers use
    the last of two properties with the same name.
    """

    queue: MessageQueue
    body: bytes
    sys_flag: int = 0
    """Bits of ``MessageSysFlag`` for every member: how its body is compressed."""


def encoded_batch_command(
    batch: EncodedBatch, settings: SendSettings, born_timestamp_ms: int
) -> RemotingCommand:
    """Create the SEND_BATCH_MESSAGE request for an encoded batch.

    Raises:
        LocalProtocolError: If the batch is too large.
    """
    settings = replace(settings, sys_flag=batch.sys_flag)
    header = _header({}, 0, batch.queue, settings, born_timestamp_ms, is_batch=True)
    return _batch_request(batch.body, header, batch.queue, settings)


def _batch_request(
    body: bytes, header: dict[str, str], queue: MessageQueue, settings: SendSettings
) -> RemotingCommand:
    if len(body) > settings.max_message_bytes:
        raise LocalProtocolError(
            f"A batch for {queue} has {len(body)} bytes; at most {settings.max_message_bytes} can be sent. "
            "Send smaller batches."
        )
    return RemotingCommand(code=RequestCode.SEND_BATCH_MESSAGE, ext_fields=header, body=body)


def send_result(
    request: RemotingCommand,
    outcome: RemotingCommand | RocketMQError,
    address: str,
    queue: MessageQueue,
    messages: Sequence[Message],
) -> SendResult | RocketMQError:
    """Return the result of a send, or its error, which is not raised because callers pass it to a callback.

    Source: RocketMQ 5.3.3 ``MQClientAPIImpl.processSendResponse``.
    """
    if isinstance(outcome, RocketMQError):
        return outcome
    status = _STATUSES.get(outcome.code)
    if status is None:
        return error_of(request, outcome, address)
    try:
        header = header_of(SendMessageResponseHeader, outcome, address)
    except RocketMQError as error:
        return error
    return SendResult(
        status=status,
        msg_id=",".join(message.properties.get(UNIQ_KEY, "") for message in messages),
        offset_msg_id=header.msg_id,
        queue=queue._replace(queue_id=header.queue_id),
        queue_offset=header.queue_offset,
    )


def _header(
    properties: Mapping[str, str],
    flag: int,
    queue: MessageQueue,
    settings: SendSettings,
    born_timestamp_ms: int,
    *,
    is_batch: bool,
) -> dict[str, str]:
    return to_ext_fields(
        SendMessageRequestHeaderV2(
            producer_group=settings.producer_group,
            topic=queue.topic,
            default_topic=settings.default_topic,
            default_topic_queue_nums=settings.default_topic_queue_nums,
            queue_id=queue.queue_id,
            sys_flag=settings.sys_flag,
            born_timestamp=born_timestamp_ms,
            flag=flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=settings.reconsume_times,
            unit_mode=False,
            max_reconsume_times=settings.max_reconsume_times,
            batch=is_batch,
            broker_name=queue.broker_name,
        )
    )


def check_body(body: bytes, where: str, most: int = MAX_MESSAGE_BYTES) -> None:
    """Check that a body has 1 to ``most`` bytes; errors name its destination, ``where``.

    Raises:
        LocalProtocolError: If the body is not bytes, empty or too large.

    Source: RocketMQ 5.3.3 ``Validators.checkMessage``.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise LocalProtocolError(
            f"A message for {where} has a body of type {type(body).__name__}; encode it to bytes."
        )
    if not body:
        raise LocalProtocolError(
            f"A message for {where} has an empty body, which consumers would get as null; send at least one "
            "byte."
        )
    if len(body) > most:
        raise LocalProtocolError(
            f"A message for {where} has a body of {len(body)} bytes; {most} can be sent, counted before it "
            "is compressed. Send smaller messages, or raise maxMessageSize here and at the brokers."
        )


def split_batch(
    messages: Sequence[Message], max_bytes: int = MAX_MESSAGE_BYTES, reserve_bytes: int = 128
) -> Iterator[Sequence[Message]]:
    """Split messages into batches of at most ``max_bytes`` when encoded, in order.

    ``reserve_bytes`` per message is room for the properties that a producer adds. A message that is too large
    by itself becomes a batch of one, which the producer then refuses. A message with more properties than a
    message in a batch can have also becomes a batch of one, which the producer sends as a plain message.

    Raises:
        LocalProtocolError: If the properties of a message cannot be written.
    """
    first, size = 0, 0
    for index, message in enumerate(messages):
        properties_bytes = len(encode_properties(message.properties)) + reserve_bytes
        own = len(message.body) + BATCH_MEMBER_OVERHEAD + properties_bytes
        if properties_bytes > MAX_MEMBER_PROPERTIES_BYTES:
            own = max(own, max_bytes)
        if index > first and size + own > max_bytes:
            yield messages[first:index]
            first, size = index, 0
        size += own
    if first < len(messages):
        yield messages[first:]
