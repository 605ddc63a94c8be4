"""The JSON bodies of requests and responses, both ways.

Written as fastjson writes them (fields in alphabetical order, message queues inline as map keys); read in
that form and in standard JSON.  Sets are written sorted, so equal values give equal bytes.

Source: RocketMQ 5.3.3 ``remoting/protocol/heartbeat/*``, ``remoting/protocol/body/*``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import ConsumeFromWhere, MessageModel, MessageQueue
from pyspark_rocketmq.wire.fastjson import (
    JsonObject,
    ObjectMap,
    as_text,
    checked_int64,
    dumps_java,
    loads,
    read_object,
    short_repr,
)
from pyspark_rocketmq.wire.subscription import TAG, SubscriptionData


class ConsumeType(StrEnum):
    """How a consumer gets its messages."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    """Pull and lite-pull consumers."""
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    """Push consumers."""
    CONSUME_POP = "CONSUME_POP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData:
    """One group of a client, as a heartbeat shows it."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[SubscriptionData, ...] = ()
    """All of them: the broker forgets a topic that is not in the latest heartbeat."""
    unit_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData:
    """Body of 34 HEART_BEAT."""

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producers: tuple[str, ...] = ()
    """Producer groups."""
    fingerprint: int = 0
    """Of the complete heartbeat, in version 2; 0 is version 1, which is always complete."""
    without_sub: bool = False
    """Version 2: the subscriptions are left out, because the broker knows the fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchRequest:
    """Body of 41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    queues: frozenset[MessageQueue]
    only_this_broker: bool = False


_INT32_END: Final = 1 << 31

# In the order of Java's enums, because a number stands for its place there.
CONSUME_TYPES: Final = {choice.name: choice for choice in ConsumeType}
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


# --- heartbeat ----------------------------------------------------------------------------------------------


def encode_heartbeat(heartbeat: HeartbeatData) -> bytes:
    """Write the body of 34 HEART_BEAT."""
    return dumps_java(
        {
            "clientID": heartbeat.client_id,
            "consumerDataSet": [_consumer_to_json(consumer) for consumer in heartbeat.consumers],
            "heartbeatFingerprint": heartbeat.fingerprint,
            "producerDataSet": [{"groupName": group} for group in heartbeat.producers],
            "withoutSub": heartbeat.without_sub,
        }
    )


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """Read the body of 34 HEART_BEAT.

    Raises:
        RemoteProtocolError: If the body is not a heartbeat.
    """
    heartbeat = read_object(body, "HeartbeatData")
    return HeartbeatData(
        client_id=heartbeat.text("clientID"),
        consumers=tuple(map(_consumer_from_json, heartbeat.objects("consumerDataSet"))),
        producers=tuple(producer.text("groupName") for producer in heartbeat.objects("producerDataSet")),
        fingerprint=heartbeat.integer("heartbeatFingerprint", 0),
        without_sub=heartbeat.flag("withoutSub", default=False),
    )


def _consumer_to_json(consumer: ConsumerData) -> dict[str, object]:
    return {
        "consumeFromWhere": consumer.consume_from_where.value,
        "consumeType": consumer.consume_type.value,
        "groupName": consumer.group_name,
        "messageModel": consumer.message_model.value,
        "subscriptionDataSet": [subscription_to_json(item) for item in consumer.subscriptions],
        "unitMode": consumer.unit_mode,
    }


def _consumer_from_json(consumer: JsonObject) -> ConsumerData:
    return ConsumerData(
        group_name=consumer.text("groupName"),
        consume_type=consumer.choice("consumeType", CONSUME_TYPES, ConsumeType.CONSUME_PASSIVELY),
        message_model=consumer.choice("messageModel", MESSAGE_MODELS, MessageModel.CLUSTERING),
        consume_from_where=consumer.choice(
            "consumeFromWhere", STARTS, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        ),
        subscriptions=tuple(map(subscription_from_json, consumer.objects("subscriptionDataSet"))),
        unit_mode=consumer.flag("unitMode", default=False),
    )


def subscription_to_json(subscription: SubscriptionData) -> dict[str, object]:
    """A subscription as it stands in heartbeats and in the answers to administrators."""
    return {
        "classFilterMode": False,
        "codeSet": sorted(subscription.code_set),
        "expressionType": subscription.expression_type,
        "subString": subscription.sub_string,
        "subVersion": subscription.sub_version,
        "tagsSet": sorted(subscription.tags_set),
        "topic": subscription.topic,
    }


def subscription_from_json(subscription: JsonObject) -> SubscriptionData:
    """Read a subscription.

    Raises:
        RemoteProtocolError: If a field is missing or of another type.
    """
    return SubscriptionData(
        topic=subscription.text("topic"),
        sub_string=subscription.text("subString"),
        tags_set=frozenset(subscription.texts("tagsSet")),
        code_set=frozenset(subscription.integers("codeSet")),
        sub_version=subscription.integer("subVersion", 0),
        expression_type=subscription.text("expressionType", TAG),
    )


# --- locks and members --------------------------------------------------------------------------------------


def encode_lock_request(request: LockBatchRequest) -> bytes:
    """Write the body of 41 LOCK_BATCH_MQ or 42 UNLOCK_BATCH_MQ."""
    return dumps_java(
        {
            "clientId": request.client_id,
            "consumerGroup": request.consumer_group,
            "mqSet": _queues_to_json(request.queues),
            "onlyThisBroker": request.only_this_broker,
        }
    )


def decode_lock_request(body: bytes) -> LockBatchRequest:
    """Read the body of 41 LOCK_BATCH_MQ or 42 UNLOCK_BATCH_MQ.

    Raises:
        RemoteProtocolError: If the body is not a lock request.
    """
    request = read_object(body, "LockBatchRequestBody")
    return LockBatchRequest(
        consumer_group=request.text("consumerGroup"),
        client_id=request.text("clientId"),
        queues=_queues_from_json(request, "mqSet"),
        only_this_broker=request.flag("onlyThisBroker", default=False),
    )


def encode_lock_response(queues: Iterable[MessageQueue]) -> bytes:
    """Write the body of the answer to 41 LOCK_BATCH_MQ."""
    return dumps_java({"lockOKMQSet": _queues_to_json(queues)})


def decode_lock_response(body: bytes) -> frozenset[MessageQueue]:
    """Read the queues that are now locked for this client; the refused ones are simply not among them.

    Raises:
        RemoteProtocolError: If the body is not a lock answer.
    """
    return _queues_from_json(read_object(body, "LockBatchResponseBody"), "lockOKMQSet")


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    """Write the body of the answer to 38 GET_CONSUMER_LIST_BY_GROUP."""
    return dumps_java({"consumerIdList": list(client_ids)})


def decode_consumer_list(body: bytes) -> tuple[str, ...]:
    """Read the client ids of a group as one broker knows them: in any order, an id perhaps twice.

    Raises:
        RemoteProtocolError: If the body is not a consumer list.
    """
    return tuple(read_object(body, "GetConsumerListByGroupResponseBody").texts("consumerIdList"))


# --- tables by message queue --------------------------------------------------------------------------------


def encode_offset_table(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Write the body of 220 RESET_CONSUMER_CLIENT_OFFSET and of the answer to 222."""
    return dumps_java({"offsetTable": offsets_to_json(offsets)})


def decode_offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Read the queue offsets of 220 RESET_CONSUMER_CLIENT_OFFSET and of the answer to 222.

    Besides the table also the list that a broker sends for C++ administrators:
    ``{"offsetTable":[{"brokerName":…,"offset":…,"queueId":…,"topic":…}]}``.

    Raises:
        RemoteProtocolError: If the body is neither.
    """
    where = "ResetOffsetBody.offsetTable"
    table = read_object(body, "ResetOffsetBody")
    if type(table.members.get("offsetTable")) is list:
        return {
            queue_from_json(item.members, where): item.integer("offset")
            for item in table.objects("offsetTable")
        }
    return offsets_from_json(table, "offsetTable")


def offsets_to_json(offsets: Mapping[MessageQueue, int]) -> ObjectMap:
    """Write a map of queue offsets, to be part of a body."""
    return ObjectMap((queue_to_json(queue), offset) for queue, offset in offsets.items())


def offsets_from_json(owner: JsonObject, name: str) -> dict[MessageQueue, int]:
    """Read a map of queue offsets, one field of ``owner``; empty when absent.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    where = f"{owner.where}.{name}"
    return {queue_from_json(key, where): checked_int64(offset, where) for key, offset in owner.pairs(name)}


def queue_to_json(queue: MessageQueue) -> dict[str, object]:
    """Write a message queue, inline as a map key or as a value."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _queues_to_json(queues: Iterable[MessageQueue]) -> list[dict[str, object]]:
    return [queue_to_json(queue) for queue in sorted(queues)]


def _queues_from_json(owner: JsonObject, name: str) -> frozenset[MessageQueue]:
    return frozenset(queue_from_json(item, f"{owner.where}.{name}") for item in owner.items(name))


def queue_from_json(value: Any, where: str) -> MessageQueue:
    """Read a message queue, an object or (a standard JSON key) the text of one; called very often.

    Raises:
        RemoteProtocolError: If it is neither.
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
            f"{where} holds something that is no message queue: {short_repr(value)}."
        ) from exc
    if not -_INT32_END <= queue.queue_id < _INT32_END:
        raise RemoteProtocolError(f"{where} holds something that is no message queue: {short_repr(value)}.")
    return queue
