"""JSON bodies of heartbeats, locks, member lists and offset tables.

They are read in fastjson's form (message queues inline as map keys) and in standard JSON, and written in
fastjson's form. A malformed body raises ``RemoteProtocolError``.

Source: RocketMQ 5.3.3 ``remoting/protocol/heartbeat/*``, ``remoting/protocol/body/*``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import ConsumeFromWhere, MessageModel, MessageQueue
from pyspark_rocketmq.wire.fastjson import (
    JsonObject,
    as_text,
    checked_int64,
    list_of,
    loads,
    member,
    one_of,
    read_object,
    short_repr,
)
from pyspark_rocketmq.wire.subscription import SubscriptionData

_INT32_END: Final = 1 << 31

MESSAGE_MODELS: Final = {
    "BROADCASTING": MessageModel.BROADCASTING,
    "CLUSTERING": MessageModel.CLUSTERING,
}
STARTS: Final = {
    "CONSUME_FROM_LAST_OFFSET": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    # Deprecated names; Java's consumers treat them as the last offset
    # (RebalancePushImpl.computePullFromWhere).
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "CONSUME_FROM_MIN_OFFSET": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "CONSUME_FROM_MAX_OFFSET": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "CONSUME_FROM_FIRST_OFFSET": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "CONSUME_FROM_TIMESTAMP": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
}


class ConsumeType(StrEnum):
    """How a consumer gets its messages."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    """Pull and lite-pull consumers."""
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    """Push consumers."""
    CONSUME_POP = "CONSUME_POP"


# In the order of Java's enum, because a number in JSON stands for a place in it.
CONSUME_TYPES: Final = {choice.name: choice for choice in ConsumeType}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData:
    """One group of a client in a heartbeat."""

    group_name: str = member("groupName", JsonObject.text)
    consume_type: ConsumeType = member("consumeType", one_of(CONSUME_TYPES), ConsumeType.CONSUME_PASSIVELY)
    message_model: MessageModel = member("messageModel", one_of(MESSAGE_MODELS), MessageModel.CLUSTERING)
    consume_from_where: ConsumeFromWhere = member(
        "consumeFromWhere", one_of(STARTS), ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    )
    subscriptions: tuple[SubscriptionData, ...] = member("subscriptionDataSet", list_of(SubscriptionData), ())
    """All subscriptions: the broker forgets a topic that is not in the latest heartbeat."""
    unit_mode: bool = member("unitMode", JsonObject.flag, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData:
    """Body of 34 HEART_BEAT."""

    client_id: str = member("clientID", JsonObject.text)
    consumers: tuple[ConsumerData, ...] = member("consumerDataSet", list_of(ConsumerData), ())
    producers: tuple[str, ...] = member(
        "producerDataSet",
        lambda owner, name, _: tuple(producer.text("groupName") for producer in owner.objects(name)),
        (),
        write=lambda groups: [{"groupName": group} for group in groups],
    )
    """Producer groups."""
    fingerprint: int = member("heartbeatFingerprint", JsonObject.integer, 0)
    """Fingerprint of the heartbeat with its subscriptions, in version 2 of heartbeats. 0 marks version 1,
    which always has the subscriptions."""
    without_sub: bool = member("withoutSub", JsonObject.flag, False)
    """Whether the subscriptions are left out (only in version 2), because the broker has those of this
    fingerprint already."""


def _queues(owner: JsonObject, name: str, _: Any = None) -> frozenset[MessageQueue]:
    return frozenset(queue_from_json(item, f"{owner.where}.{name}") for item in owner.items(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchRequest:
    """Body of 41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ."""

    consumer_group: str = member("consumerGroup", JsonObject.text)
    client_id: str = member("clientId", JsonObject.text)
    queues: frozenset[MessageQueue] = member("mqSet", _queues)
    only_this_broker: bool = member("onlyThisBroker", JsonObject.flag, False)


def decode_lock_response(body: bytes) -> frozenset[MessageQueue]:
    """Read the queues that are now locked for this client; refused queues are not among them."""
    return _queues(read_object(body, "LockBatchResponseBody"), "lockOKMQSet")


def decode_consumer_list(body: bytes) -> tuple[str, ...]:
    """Read the client ids of a group at one broker, in any order; an id may occur twice."""
    return tuple(read_object(body, "GetConsumerListByGroupResponseBody").texts("consumerIdList"))


def decode_offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Read the queue offsets in 220 RESET_CONSUMER_CLIENT_OFFSET.

    The answer to 222 INVOKE_BROKER_TO_RESET_OFFSET has the same form. The offsets are a table, or a list that
    a broker sends for C++ administrators:
    ``{"offsetTable":[{"brokerName":…,"offset":…,"queueId":…,"topic":…}]}``.
    """
    where = "ResetOffsetBody.offsetTable"
    table = read_object(body, "ResetOffsetBody")
    if type(table.members.get("offsetTable")) is list:
        return {
            queue_from_json(item.members, where): item.integer("offset")
            for item in table.objects("offsetTable")
        }
    return offsets_from_json(table, "offsetTable")


def offsets_from_json(owner: JsonObject, name: str) -> dict[MessageQueue, int]:
    """Read a map of queue offsets, one field of ``owner``; empty if absent."""
    where = f"{owner.where}.{name}"
    return {queue_from_json(key, where): checked_int64(offset, where) for key, offset in owner.pairs(name)}


def queue_from_json(value: Any, where: str) -> MessageQueue:
    """Read a message queue from an object, or from an object's text: standard JSON has only texts as keys.

    This is called very often.
    """
    try:
        members = loads(value.encode(errors="surrogatepass")) if type(value) is str else value
        queue = MessageQueue(members["topic"], members["brokerName"], members["queueId"])
        if tuple(map(type, queue)) != (str, str, int):
            queue = MessageQueue(
                as_text(queue.topic, where),
                as_text(queue.broker_name, where),
                checked_int64(queue.queue_id, where),
            )
    except (KeyError, TypeError, RemoteProtocolError) as exc:
        raise RemoteProtocolError(
            f"{where} has an entry that is not a message queue: {short_repr(value)}."
        ) from exc
    if not -_INT32_END <= queue.queue_id < _INT32_END:
        raise RemoteProtocolError(f"{where} has an entry that is not a message queue: {short_repr(value)}.")
    return queue
