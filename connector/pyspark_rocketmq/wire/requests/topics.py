"""What servers tell of a topic: route, statistics and configuration; a group's configuration.

The configuration of topics and consumer groups on a broker, both ways; see ``bodies``.

Source: RocketMQ 5.3.3 ``common/TopicConfig``, ``remoting/protocol/subscription/SubscriptionGroupConfig``.

The route of a topic: which brokers have how many of its queues.

Servers write it in standard JSON for clients that show version 401 or higher, with bare broker ids as keys
for older ones; both are read. A route names numbers of queues only, so a short one could announce more queues
than fit into
memory: they are counted before any is made.

Source: RocketMQ 5.3.3 ``TopicRouteData``, namesrv ``ClientRequestProcessor.getRouteInfoByTopic``.

The statistics of a topic: what a broker holds of each of its queues, asked for at every plan.

A topic may have a thousand queues, so the body is written by hand, and read by one regular expression in the
form in which Java writes it. Whatever is written otherwise goes to the JSON reader: the two never differ.

Source: RocketMQ 5.3.3 ``remoting/protocol/admin/TopicStatsTable``, ``TopicOffset``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import (
    BrokerAddress,
    BrokerData,
    MessageQueue,
    QueueBounds,
    QueueData,
    TopicRoute,
    ordered_queues,
)
from pyspark_rocketmq.wire.fastjson import (
    JsonObject,
    brief,
    check_json_size,
    checked_int64,
    dumps_java,
    dumps_standard,
    read_object,
)
from pyspark_rocketmq.wire.requests.bodies import queue_from_json

_WHERE: Final = "TopicStatsTable.offsetTable"
_NAME: Final = r'"([^"\\\x00-\x1f\x7f-\U0010ffff]*)"'
# As many digits as every value of the type may have, so that no conversion needs a check.
_INT32: Final = r"(0|-?[1-9][0-9]{0,8})"
_INT64: Final = r"(0|-?[1-9][0-9]{0,17})"
_ENTRY: Final = re.compile(
    rf'\{{"brokerName":{_NAME},"queueId":{_INT32},"topic":{_NAME}\}}:'
    rf'\{{"lastUpdateTimestamp":{_INT64},"maxOffset":{_INT64},"minOffset":{_INT64}\}}'
)
_GROUPS: Final = _ENTRY.groups
_BEFORE: Final = '{"offsetTable":{'
_BEHIND: Final = re.compile(r'\},"topicPutTps":[0-9]+\.[0-9]+\}')


def encode_topic_stats(stats: Mapping[MessageQueue, QueueBounds]) -> bytes:
    """Write the body of the answer to 202 GET_TOPIC_STATS_INFO."""
    names = {name: dumps_java(name).decode() for queue in stats for name in queue[:2]}
    entries = (
        f'{{"brokerName":{names[broker_name]},"queueId":{queue_id:d},"topic":{names[topic]}}}:'
        f'{{"lastUpdateTimestamp":{bounds.last_update_timestamp:d},"maxOffset":{bounds.max_offset:d},'
        f'"minOffset":{bounds.min_offset:d}}}'
        for (topic, broker_name, queue_id), bounds in stats.items()
    )
    return f'{_BEFORE}{",".join(entries)}}},"topicPutTps":0.0}}'.encode()


def decode_topic_stats(body: bytes) -> dict[MessageQueue, QueueBounds]:
    """Read what a broker holds of each of a topic's queues.

    Raises:
        RemoteProtocolError: If the body is not a topic's statistics.
    """
    check_json_size(body)
    stats = _decode_as_java_writes(body)
    return _decode_any_form(body) if stats is None else stats


def _decode_as_java_writes(body: bytes) -> dict[MessageQueue, QueueBounds] | None:
    """The statistics, or None if anything but Java's own form is in the body."""
    if not body.isascii():
        return None
    # Text between the entries, then the groups of an entry, and so on; text at the end.
    parts = _ENTRY.split(body.decode())
    between = parts[:: _GROUPS + 1]
    is_expected = between[0] == _BEFORE and _BEHIND.fullmatch(between[-1]) and set(between[1:-1]) <= {","}
    if len(between) == 1 or not is_expected:
        return None
    broker_names, queue_ids, topics, updated, maximum, minimum = (
        parts[group :: _GROUPS + 1] for group in range(1, _GROUPS + 1)
    )
    queues = map(MessageQueue, topics, broker_names, map(int, queue_ids))
    bounds = map(QueueBounds, map(int, minimum), map(int, maximum), map(int, updated))
    return dict(zip(queues, bounds, strict=True))


def _decode_any_form(body: bytes) -> dict[MessageQueue, QueueBounds]:
    return {
        queue_from_json(key, _WHERE): _bounds_from_json(value)
        for key, value in read_object(body, "TopicStatsTable").pairs("offsetTable")
    }


def _bounds_from_json(value: Any) -> QueueBounds:
    try:
        minimum, maximum = value["minOffset"], value["maxOffset"]
        updated = value.get("lastUpdateTimestamp", 0)
    except (KeyError, TypeError, AttributeError) as exc:
        raise RemoteProtocolError(
            f"{_WHERE} holds something that is no TopicOffset: {brief(value)}."
        ) from exc
    return QueueBounds(
        min_offset=checked_int64(minimum, _WHERE),
        max_offset=checked_int64(maximum, _WHERE),
        last_update_timestamp=checked_int64(updated, _WHERE),
    )


_BROKER_ID: Final = re.compile(r"-?[0-9]{1,19}")
_ORDER_CONF: Final = re.compile(r"([^:;]+:[0-9]{1,9}(;|$))*")
MAX_QUEUES: Final = 65_536
"""Queues of one topic to read, and to write, on all its brokers together; a list of them takes some ten
megabytes."""


def decode_route(body: bytes, topic: str = "") -> TopicRoute:
    """Read the body of the answer to 105 GET_ROUTEINFO_BY_TOPIC.

    Args:
        body: The answer's.
        topic: Whose route it is, for errors.

    Raises:
        RemoteProtocolError: If the body is not a route, or announces more than ``MAX_QUEUES``.
    """
    route = read_object(body, "TopicRouteData")
    order_topic_conf = route.optional_text("orderTopicConf") or None
    if order_topic_conf is not None and _ORDER_CONF.fullmatch(order_topic_conf) is None:
        raise RemoteProtocolError(
            f"TopicRouteData.orderTopicConf is no 'broker:queues;…': {brief(order_topic_conf)}."
        )
    queues = tuple(map(_queue, route.objects("queueDatas")))
    _check_count(topic, "readQueueNums", [(data.broker_name, data.read_queue_nums) for data in queues])
    _check_count(topic, "writeQueueNums", [(data.broker_name, data.write_queue_nums) for data in queues])
    _check_count(topic, "orderTopicConf", ordered_queues(order_topic_conf or ""))
    return TopicRoute(
        brokers=tuple(map(broker_from_json, route.objects("brokerDatas"))),
        queues=queues,
        order_topic_conf=order_topic_conf,
    )


def _check_count(topic: str, field: str, shares: Sequence[tuple[str, int]]) -> None:
    """Refuse more queues than a topic has; the broker named is the one with most of them."""
    total = sum(count for _, count in shares)
    if total > MAX_QUEUES:
        name, count = max(shares, key=lambda share: share[1])
        raise RemoteProtocolError(
            f"The route of topic {brief(topic)} announces {total} queues ({field}), {count} of them on "
            "broker "
            f"{brief(name)}; at most {MAX_QUEUES} queues of one topic are taken. Correct the topic's number "
            "of "
            "queues (mqadmin updateTopic) or its order configuration."
        )


def broker_from_json(data: JsonObject) -> BrokerData:
    """Read a broker's name, cluster and addresses.

    Raises:
        RemoteProtocolError: If a field is missing or of another type.
    """
    addresses: dict[int, BrokerAddress] = {}
    for broker_id, address in data.pairs("brokerAddrs"):
        if type(broker_id) is not str or _BROKER_ID.fullmatch(broker_id) is None or type(address) is not str:
            raise RemoteProtocolError(
                f"{data.where}.brokerAddrs maps no broker id to an address: {brief(broker_id)} to "
                f"{brief(address)}."
            )
        # No address has such characters in it, and log lines have addresses.
        addresses[int(broker_id)] = BrokerAddress(peer_text(address))
    return BrokerData(
        broker_name=data.text("brokerName"), cluster=data.text("cluster", ""), addresses=addresses
    )


def _queue(data: JsonObject) -> QueueData:
    # Servers before 4.9 misspell it.
    sys_flag = data.integer("topicSynFlag", 0)
    queue = QueueData(
        broker_name=data.text("brokerName"),
        read_queue_nums=data.integer("readQueueNums"),
        write_queue_nums=data.integer("writeQueueNums"),
        perm=data.integer("perm"),
        topic_sys_flag=data.integer("topicSysFlag", sys_flag),
    )
    if min(queue.read_queue_nums, queue.write_queue_nums) < 0:
        raise RemoteProtocolError(
            f"{data.where}: broker {brief(queue.broker_name)} has a negative number of queues."
        )
    return queue


def encode_route(route: TopicRoute, *, standard_json: bool) -> bytes:
    """Write the body of the answer to 105 GET_ROUTEINFO_BY_TOPIC.

    Args:
        route: What to write.
        standard_json: Quote the broker ids, as for clients of version 401 and higher.
    """
    fields: dict[str, object] = {
        "brokerDatas": [
            {
                "brokerAddrs": dict(sorted(broker.addresses.items())),
                "brokerName": broker.broker_name,
                "cluster": broker.cluster,
                "enableActingMaster": False,
            }
            for broker in route.brokers
        ],
        "filterServerTable": {},
    }
    if route.order_topic_conf is not None:
        fields["orderTopicConf"] = route.order_topic_conf
    fields["queueDatas"] = [
        {
            "brokerName": queue.broker_name,
            "perm": queue.perm,
            "readQueueNums": queue.read_queue_nums,
            "topicSysFlag": queue.topic_sys_flag,
            "writeQueueNums": queue.write_queue_nums,
        }
        for queue in route.queues
    ]
    return dumps_standard(fields) if standard_json else dumps_java(fields)


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


def decode_topic_config(body: bytes) -> TopicConfig:
    """Read the body of the answer to 351 GET_TOPIC_CONFIG.

    Raises:
        RemoteProtocolError: If the body is something else.
    """
    config = read_object(body, "TopicConfig")
    return TopicConfig(
        topic_name=config.text("topicName"),
        read_queue_nums=config.integer("readQueueNums"),
        write_queue_nums=config.integer("writeQueueNums"),
        perm=config.integer("perm"),
        topic_filter_type=config.text("topicFilterType", "SINGLE_TAG"),
        topic_sys_flag=config.integer("topicSysFlag", 0),
        order=config.flag("order", default=False),
        attributes=config.text_map("attributes"),
    )


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
