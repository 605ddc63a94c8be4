"""Bodies of administrators' requests and answers that nobody but a broker reads or writes.

Source: RocketMQ 5.3.3 ``remoting/protocol/body/*``, ``remoting/protocol/subscription/SubscriptionGroupConfig``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.fastjson import JsonObject, ObjectMap, dumps_java, read_object
from pyspark_rocketmq.wire.requests.bodies import offsets_to_json, queue_to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Body of the answer to 351 GET_TOPIC_CONFIG."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    """Bits: 2 write, 4 read, 1 inherit, 8 priority."""
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Such as ``message.type``, without the plus sign that sets it."""


def encode_topic_config(config: TopicConfig) -> bytes:
    """Write the body of the answer to 351 GET_TOPIC_CONFIG."""
    return dumps_java(topic_config_to_json(config))


def topic_config_to_json(config: TopicConfig) -> dict[str, object]:
    """The same as a part of a larger body."""
    return {
        "attributes": dict(config.attributes),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queue_nums,
        "topicFilterType": config.topic_filter_type,
        "topicName": config.topic_name,
        "topicSysFlag": config.topic_sys_flag,
        "writeQueueNums": config.write_queue_nums,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """Body of 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP and of the answer to 352 GET_SUBSCRIPTIONGROUP_CONFIG."""

    group_name: str
    consume_enable: bool = True
    """False: the group's pulls are answered with 16."""
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    """Deliveries again, after which a message goes to the dead-letter topic."""
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    """Id of the replica suggested to a consumer that reads from disk."""
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)


_GROUP_FLAGS: Final = {
    "consume_broadcast_enable": "consumeBroadcastEnable",
    "consume_enable": "consumeEnable",
    "consume_from_min_enable": "consumeFromMinEnable",
    "consume_message_orderly": "consumeMessageOrderly",
    "notify_consumer_ids_changed_enable": "notifyConsumerIdsChangedEnable",
}


_GROUP_NUMBERS: Final = {
    "broker_id": "brokerId",
    "consume_timeout_minute": "consumeTimeoutMinute",
    "group_sys_flag": "groupSysFlag",
    "retry_max_times": "retryMaxTimes",
    "retry_queue_nums": "retryQueueNums",
    "which_broker_when_consume_slowly": "whichBrokerWhenConsumeSlowly",
}


def encode_group_config(config: SubscriptionGroupConfig) -> bytes:
    """Write the body of 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP or of the answer to 352."""
    return dumps_java(group_config_to_json(config))


def group_config_to_json(config: SubscriptionGroupConfig) -> dict[str, object]:
    """The same as a part of a larger body."""
    fields: dict[str, object] = {
        java_name: getattr(config, name) for name, java_name in (_GROUP_FLAGS | _GROUP_NUMBERS).items()
    }
    fields |= {
        "attributes": dict(config.attributes),
        "groupName": config.group_name,
        # Java's default policy; this client never sets another.
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
    }
    return dict(sorted(fields.items()))


def decode_group_config(body: bytes) -> SubscriptionGroupConfig:
    """Read the body of 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP or of the answer to 352; absent means the default.

    Raises:
        RemoteProtocolError: If the body is something else.
    """
    return group_config_from_json(read_object(body, "SubscriptionGroupConfig"))


def group_config_from_json(config: JsonObject) -> SubscriptionGroupConfig:
    """The same as a part of a larger body.

    Raises:
        RemoteProtocolError: If a field is of another type, or there is no name.
    """
    default = SubscriptionGroupConfig(group_name=config.text("groupName"))
    flags = {
        name: config.flag(java_name, default=getattr(default, name))
        for name, java_name in _GROUP_FLAGS.items()
    }
    numbers = {
        name: config.integer(java_name, getattr(default, name)) for name, java_name in _GROUP_NUMBERS.items()
    }
    return SubscriptionGroupConfig(
        group_name=default.group_name,
        attributes=config.text_map("attributes"),
        **flags,
        **numbers,  # type: ignore[arg-type]
    )


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Write the body of the answer to 300 QUERY_TOPIC_CONSUME_BY_WHO."""
    return dumps_java({"groupList": list(groups)})


class OffsetWrapper(NamedTuple):
    """How far a group is with one queue."""

    broker_offset: int
    """The queue's maximum, exclusive."""
    consumer_offset: int
    """Next offset to consume, as stored."""
    pull_offset: int
    """Next offset to pull."""
    last_timestamp: int
    """Store time of the last message consumed, in milliseconds; 0 when none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStats:
    """Body of the answer to 208 GET_CONSUME_STATS."""

    offsets: Mapping[MessageQueue, OffsetWrapper]
    consume_tps: float = 0.0


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    """Write the body of the answer to 208 GET_CONSUME_STATS."""
    return dumps_java(consume_stats_to_json(stats))


def consume_stats_to_json(stats: ConsumeStats) -> dict[str, object]:
    """As answers to 208 and 317 have it."""
    table = ObjectMap(
        (
            queue_to_json(queue),
            {
                "brokerOffset": offsets.broker_offset,
                "consumerOffset": offsets.consumer_offset,
                "lastTimestamp": offsets.last_timestamp,
                "pullOffset": offsets.pull_offset,
            },
        )
        for queue, offsets in stats.offsets.items()
    )
    # An empty ObjectMap is written like an empty map.
    return {"consumeTps": float(stats.consume_tps), "offsetTable": table}


def encode_group_status(by_client: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """Write the body of a broker's answer to 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS: by client id."""
    table = {client_id: offsets_to_json(offsets) for client_id, offsets in by_client.items()}
    return dumps_java({"consumerTable": table, "messageQueueTable": {}})
