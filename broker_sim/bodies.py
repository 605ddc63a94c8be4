"""JSON bodies that only servers write or only servers read: their answers, and their stored configuration.

Source: RocketMQ 5.3.3 ``remoting/protocol/body/*``, ``remoting/protocol/route/TopicRouteData``,
``remoting/protocol/subscription/SubscriptionGroupConfig``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_rocketmq.model import BrokerData, MessageQueue, QueueBounds, TopicRoute
from pyspark_rocketmq.wire.fastjson import JsonObject, dumps_java, member


def _text_map(owner: JsonObject, name: str, _: Any) -> dict[str, str]:
    return owner.text_map(name)


def _not_read(_owner: JsonObject, _name: str, default: Any) -> Any:
    return default


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Body of the answer to 351 GET_TOPIC_CONFIG."""

    topic_name: str = member("topicName", JsonObject.text)
    read_queue_nums: int = member("readQueueNums", JsonObject.integer, 16)
    write_queue_nums: int = member("writeQueueNums", JsonObject.integer, 16)
    perm: int = member("perm", JsonObject.integer, 6)
    """Bits: 2 write, 4 read, 1 inherit, 8 priority."""
    topic_filter_type: str = member("topicFilterType", JsonObject.text, "SINGLE_TAG")
    topic_sys_flag: int = member("topicSysFlag", JsonObject.integer, 0)
    order: bool = member("order", JsonObject.flag, False)
    attributes: Mapping[str, str] = member("attributes", _text_map, dict)
    """Attributes such as ``message.type``, without the plus sign that sets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """Body of 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP and the answer to 352 GET_SUBSCRIPTIONGROUP_CONFIG."""

    group_name: str = member("groupName", JsonObject.text)
    consume_enable: bool = member("consumeEnable", JsonObject.flag, True)
    """If False, the group's pulls are answered with code 16."""
    consume_from_min_enable: bool = member("consumeFromMinEnable", JsonObject.flag, True)
    consume_broadcast_enable: bool = member("consumeBroadcastEnable", JsonObject.flag, True)
    consume_message_orderly: bool = member("consumeMessageOrderly", JsonObject.flag, False)
    retry_queue_nums: int = member("retryQueueNums", JsonObject.integer, 1)
    retry_max_times: int = member("retryMaxTimes", JsonObject.integer, 16)
    """Redeliveries after which a message goes to the dead-letter topic."""
    broker_id: int = member("brokerId", JsonObject.integer, 0)
    which_broker_when_consume_slowly: int = member("whichBrokerWhenConsumeSlowly", JsonObject.integer, 1)
    """Id of the replica that is suggested to a consumer whose messages are no longer in memory."""
    notify_consumer_ids_changed_enable: bool = member("notifyConsumerIdsChangedEnable", JsonObject.flag, True)
    group_sys_flag: int = member("groupSysFlag", JsonObject.integer, 0)
    consume_timeout_minute: int = member("consumeTimeoutMinute", JsonObject.integer, 15)
    retry_policy: str = member(
        "groupRetryPolicy", _not_read, "CUSTOMIZED", write=lambda policy: {"type": policy}
    )
    """Java's default; no other policy is simulated."""
    attributes: Mapping[str, str] = member("attributes", _text_map, dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWrapper:
    """A group's progress in one queue."""

    broker_offset: int = member("brokerOffset", JsonObject.integer)
    """The queue's end: the offset that its next message gets."""
    consumer_offset: int = member("consumerOffset", JsonObject.integer)
    """Next offset to consume, as stored."""
    pull_offset: int = member("pullOffset", JsonObject.integer)
    """Next offset to pull."""
    last_timestamp: int = member("lastTimestamp", JsonObject.integer)
    """Store time of the last message consumed, in milliseconds; 0 if unknown."""


def consume_stats(offsets: Mapping[MessageQueue, OffsetWrapper], tps: float = 0.0) -> dict[str, object]:
    """Create the answer to 208 GET_CONSUME_STATS, which is also a part of the answer to 317."""
    return {"consumeTps": tps, "offsetTable": offsets}


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Write the body of the answer to 300 QUERY_TOPIC_CONSUME_BY_WHO."""
    return dumps_java({"groupList": list(groups)})


def encode_group_status(by_client: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """Write the body of the answer to 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS: offsets by client id."""
    return dumps_java({"consumerTable": by_client, "messageQueueTable": {}})


def encode_lock_response(queues: Iterable[MessageQueue]) -> bytes:
    """Write the body of the answer to 41 LOCK_BATCH_MQ."""
    return dumps_java({"lockOKMQSet": sorted(queues)})


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    """Write the body of the answer to 38 GET_CONSUMER_LIST_BY_GROUP."""
    return dumps_java({"consumerIdList": list(client_ids)})


def encode_offset_table(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Write the body of 220 RESET_CONSUMER_CLIENT_OFFSET and of the answer to 222."""
    return dumps_java({"offsetTable": offsets})


def encode_topic_list(topics: Iterable[str]) -> bytes:
    """Write the body of the answer to 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    return dumps_java({"topicList": list(topics)})


def encode_topic_stats(stats: Mapping[MessageQueue, QueueBounds]) -> bytes:
    """Write the body of the answer to 202 GET_TOPIC_STATS_INFO.

    It is formatted without a JSON encoder, because topics may have many queues.
    """
    names = {name: dumps_java(name).decode() for queue in stats for name in queue[:2]}
    entries = (
        f'{{"brokerName":{names[broker_name]},"queueId":{queue_id:d},"topic":{names[topic]}}}:'
        f'{{"lastUpdateTimestamp":{bounds.last_update_timestamp:d},'
        f'"maxOffset":{bounds.max_offset:d},"minOffset":{bounds.min_offset:d}}}'
        for (topic, broker_name, queue_id), bounds in stats.items()
    )
    return f'{{"offsetTable":{{{",".join(entries)}}},"topicPutTps":0.0}}'.encode()


def _broker_to_json(broker: BrokerData) -> dict[str, object]:
    return {
        "brokerAddrs": dict(sorted(broker.addresses.items())),
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
        "enableActingMaster": False,
    }


def encode_cluster_info(brokers: Iterable[BrokerData]) -> bytes:
    """Write the body of the answer to 106 GET_BROKER_CLUSTER_INFO."""
    by_name = {broker.broker_name: broker for broker in brokers}
    clusters: dict[str, list[str]] = {}
    for broker in by_name.values():
        clusters.setdefault(broker.cluster, []).append(broker.broker_name)
    table = {name: _broker_to_json(broker) for name, broker in by_name.items()}
    return dumps_java({"brokerAddrTable": table, "clusterAddrTable": clusters})


def dumps_standard(value: object) -> bytes:
    """Write standard JSON in ASCII, with every key quoted and sorted.

    Source: fastjson ``SerializerFeature.BrowserCompatible``, ``QuoteFieldNames``, ``MapSortField``.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def encode_route(route: TopicRoute, *, standard_json: bool) -> bytes:
    """Write the body of the answer to 105 GET_ROUTEINFO_BY_TOPIC.

    With ``standard_json`` broker ids are quoted, as for clients of version 401 and higher.
    """
    fields: dict[str, object] = {
        "brokerDatas": list(map(_broker_to_json, route.brokers)),
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
