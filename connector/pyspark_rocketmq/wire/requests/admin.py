"""Headers and bodies of administrators' requests.

The bodies of what administrators ask brokers and name servers, both ways; see ``bodies``.

Source: RocketMQ 5.3.3 ``remoting/protocol/body/*``, ``remoting/protocol/admin/ConsumeStats``.

The ext fields of requests that administrators make, and of what brokers pass on to their clients for them.

As ``headers``: one frozen dataclass per Java header class; a field with no default is required.

Source: RocketMQ 5.3.3 ``remoting/protocol/header/*``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import BrokerData, ConsumeFromWhere, MessageModel, MessageQueue
from pyspark_rocketmq.wire.fastjson import JsonObject, ObjectMap, as_object, dumps_java, read_object
from pyspark_rocketmq.wire.requests.bodies import (
    CONSUME_TYPES,
    MESSAGE_MODELS,
    STARTS,
    ConsumeType,
    queue_from_json,
    queue_to_json,
    subscription_from_json,
    subscription_to_json,
)
from pyspark_rocketmq.wire.requests.header_fields import (
    RequestFields,
    RpcFields,
    TopicRequestFields,
    bool_field,
    int_field,
    long_field,
    text_field,
)
from pyspark_rocketmq.wire.requests.topics import broker_from_json
from pyspark_rocketmq.wire.subscription import SubscriptionData

# --- messages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageRequestHeader(TopicRequestFields):
    """12 QUERY_MESSAGE: by business key or by UNIQ_KEY; the answer's body is stored messages."""

    topic: str = text_field("topic")
    key: str = text_field("key")
    max_num: int = int_field("maxNum")
    begin_timestamp: int = long_field("beginTimestamp")
    """Store time in milliseconds, inclusive like the end."""
    end_timestamp: int = long_field("endTimestamp")
    is_unique_key: bool | None = bool_field("_UNIQUE_KEY_QUERY", None)
    """Not in Java's header class: its client adds it to the ext fields. True: ``key`` is a UNIQ_KEY, and the
    broker looks through the last messages only (``defaultQueryMaxNum``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponseHeader:
    """Of the answer to 12: how far the broker's index goes."""

    index_last_update_timestamp: int = long_field("indexLastUpdateTimestamp")
    index_last_update_phyoffset: int = long_field("indexLastUpdatePhyoffset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageRequestHeader(RpcFields):
    """33 VIEW_MESSAGE_BY_ID; the answer's body is one stored message."""

    topic: str | None = text_field("topic", None)
    """Needed where access control is on: rights are a topic's."""
    offset: int = long_field("offset")
    """COMMIT LOG offset, the second half of an offset message id."""


# --- topics -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicConfigRequestHeader(TopicRequestFields):
    """351 GET_TOPIC_CONFIG; the answer's body is a topic's configuration."""

    topic: str = text_field("topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicRequestHeader(TopicRequestFields):
    """215 DELETE_TOPIC_IN_BROKER."""

    topic: str = text_field("topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicFromNamesrvRequestHeader(TopicRequestFields):
    """216 DELETE_TOPIC_IN_NAMESRV."""

    topic: str = text_field("topic")
    cluster_name: str | None = text_field("clusterName", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicConsumeByWhoRequestHeader(TopicRequestFields):
    """300 QUERY_TOPIC_CONSUME_BY_WHO; the answer's body is a group list."""

    topic: str = text_field("topic")


# --- groups -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSubscriptionGroupConfigRequestHeader(RequestFields):
    """352 GET_SUBSCRIPTIONGROUP_CONFIG; the answer's body is a group's configuration."""

    group: str = text_field("group")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroupRequestHeader(RequestFields):
    """207 DELETE_SUBSCRIPTIONGROUP."""

    group_name: str = text_field("groupName")
    clean_offset: bool = bool_field("cleanOffset", False)
    """Whether the group's stored offsets go as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerConnectionListRequestHeader(RequestFields):
    """203 GET_CONSUMER_CONNECTION_LIST; the answer's body is a consumer connection."""

    consumer_group: str = text_field("consumerGroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsRequestHeader(TopicRequestFields):
    """208 GET_CONSUME_STATS; the answer's body is a group's progress."""

    consumer_group: str = text_field("consumerGroup")
    topic: str | None = text_field("topic", None)
    """None: every topic of the group."""
    topic_list: str | None = text_field("topicList", None)
    """Names joined by semicolons, in place of ``topic``."""


# --- passed on to the clients of a group --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatusRequestHeader(TopicRequestFields):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS, and 221 GET_CONSUMER_STATUS_FROM_CLIENT (from the broker)."""

    topic: str = text_field("topic")
    group: str = text_field("group")
    client_addr: str | None = text_field("clientAddr", None)
    """Client id to ask, not an address; None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerRunningInfoRequestHeader(RequestFields):
    """307 GET_CONSUMER_RUNNING_INFO, to the broker and from it to the client."""

    consumer_group: str = text_field("consumerGroup")
    client_id: str = text_field("clientId")
    jstack_enable: bool = bool_field("jstackEnable", False)
    """Whether the stacks of the client's threads are wanted too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyRequestHeader(TopicRequestFields):
    """309 CONSUME_MESSAGE_DIRECTLY, to the broker and, with the message as body, from it to the client.

    ``broker_name`` would be both ``bname`` and ``brokerName`` here; this header has the latter as its own.
    """

    consumer_group: str = text_field("consumerGroup")
    client_id: str | None = text_field("clientId", None)
    msg_id: str | None = text_field("msgId", None)
    """OFFSET message id."""
    stored_on: str | None = text_field("brokerName", None)
    """Name of the broker that has the message."""
    topic: str | None = text_field("topic", None)
    topic_sys_flag: int | None = int_field("topicSysFlag", None)
    group_sys_flag: int | None = int_field("groupSysFlag", None)


# --- who is there -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """One client as a broker sees it."""

    client_id: str
    client_addr: str
    """``host:port`` of the client's end."""
    language: str = "JAVA"
    version: int = 0
    """Ordinal of the client's ``MQVersion``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection:
    """Body of the answer to 203 GET_CONSUMER_CONNECTION_LIST."""

    connections: tuple[ClientConnection, ...]
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)
    """By topic, as of the latest heartbeats: members that differ here lose messages."""


def encode_consumer_connection(connection: ConsumerConnection) -> bytes:
    """Write the body of the answer to 203 GET_CONSUMER_CONNECTION_LIST."""
    return dumps_java(
        {
            "connectionSet": list(map(connection_to_json, connection.connections)),
            "consumeFromWhere": connection.consume_from_where.value,
            "consumeType": connection.consume_type.value,
            "messageModel": connection.message_model.value,
            "subscriptionTable": {
                topic: subscription_to_json(subscription)
                for topic, subscription in connection.subscriptions.items()
            },
        }
    )


def connection_to_json(client: ClientConnection) -> dict[str, object]:
    """One entry of a connection set."""
    return {
        "clientAddr": client.client_addr,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }


def decode_consumer_connection(body: bytes) -> ConsumerConnection:
    """Read the body of the answer to 203 GET_CONSUMER_CONNECTION_LIST.

    Raises:
        RemoteProtocolError: If the body is something else.
    """
    connection = read_object(body, "ConsumerConnection")
    return ConsumerConnection(
        connections=tuple(map(_client_from_json, connection.objects("connectionSet"))),
        consume_type=connection.choice("consumeType", CONSUME_TYPES),
        message_model=connection.choice("messageModel", MESSAGE_MODELS),
        consume_from_where=connection.choice("consumeFromWhere", STARTS),
        subscriptions={
            topic: subscription_from_json(as_object(value, f"{connection.where}.subscriptionTable"))
            for topic, value in connection.text_pairs("subscriptionTable")
        },
    )


def _client_from_json(client: JsonObject) -> ClientConnection:
    return ClientConnection(
        client_id=client.text("clientId"),
        client_addr=client.text("clientAddr"),
        language=client.text("language", "OTHER"),
        version=client.integer("version", 0),
    )


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Write the body of the answer to 300 QUERY_TOPIC_CONSUME_BY_WHO."""
    return dumps_java({"groupList": list(groups)})


def decode_group_list(body: bytes) -> tuple[str, ...]:
    """Read the body of the answer to 300 QUERY_TOPIC_CONSUME_BY_WHO; in any order.

    Raises:
        RemoteProtocolError: If the body is something else.
    """
    return tuple(read_object(body, "GroupList").texts("groupList"))


# --- progress -----------------------------------------------------------------------------------------------


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
    return dumps_java({"consumeTps": float(stats.consume_tps), "offsetTable": table})


def decode_consume_stats(body: bytes) -> ConsumeStats:
    """Read the body of the answer to 208 GET_CONSUME_STATS.

    Raises:
        RemoteProtocolError: If the body is something else.
    """
    stats = read_object(body, "ConsumeStats")
    where = f"{stats.where}.offsetTable"
    return ConsumeStats(
        offsets={
            queue_from_json(key, where): _offsets_from_json(as_object(value, where))
            for key, value in stats.pairs("offsetTable")
        },
        consume_tps=stats.number("consumeTps", 0.0),
    )


def _offsets_from_json(offsets: JsonObject) -> OffsetWrapper:
    return OffsetWrapper(
        broker_offset=offsets.integer("brokerOffset"),
        consumer_offset=offsets.integer("consumerOffset"),
        pull_offset=offsets.integer("pullOffset", 0),
        last_timestamp=offsets.integer("lastTimestamp", 0),
    )


# --- expressions --------------------------------------------------------------------------------------------


def encode_client_config_check(client_id: str, group: str, subscription: SubscriptionData) -> bytes:
    """Write the body of 46 CHECK_CLIENT_CONFIG: would the broker take this subscription?"""
    return dumps_java(
        {"clientId": client_id, "group": group, "subscriptionData": subscription_to_json(subscription)}
    )


def decode_client_config_check(body: bytes) -> tuple[str, str, SubscriptionData]:
    """Read the body of 46 CHECK_CLIENT_CONFIG: client id, group, subscription.

    Raises:
        RemoteProtocolError: If the body is something else.
    """
    check = read_object(body, "CheckClientRequestBody")
    subscription = as_object(check.members.get("subscriptionData"), f"{check.where}.subscriptionData")
    return check.text("clientId"), check.text("group"), subscription_from_json(subscription)


# --- the cluster --------------------------------------------------------------------------------------------


def encode_topic_list(topics: Iterable[str]) -> bytes:
    """Write the body of the answer to 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    return dumps_java({"topicList": list(topics)})


def decode_topic_list(body: bytes) -> tuple[str, ...]:
    """Read the body of the answer to 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER; in any order, system topics included.

    Raises:
        RemoteProtocolError: If the body is something else.
    """
    return tuple(read_object(body, "TopicList").texts("topicList"))


def encode_cluster_info(brokers: Iterable[BrokerData]) -> bytes:
    """Write the body of the answer to 106 GET_BROKER_CLUSTER_INFO."""
    by_name = {broker.broker_name: broker for broker in brokers}
    clusters: dict[str, list[str]] = {}
    for broker in by_name.values():
        clusters.setdefault(broker.cluster, []).append(broker.broker_name)
    return dumps_java(
        {
            "brokerAddrTable": {
                name: {
                    "brokerAddrs": ObjectMap(broker.addresses.items()),
                    "brokerName": name,
                    "cluster": broker.cluster,
                    "enableActingMaster": False,
                }
                for name, broker in by_name.items()
            },
            "clusterAddrTable": clusters,
        }
    )


def decode_cluster_info(body: bytes) -> tuple[BrokerData, ...]:
    """Read the living brokers of the answer to 106 GET_BROKER_CLUSTER_INFO, sorted by name.

    Raises:
        RemoteProtocolError: If the body is something else.
    """
    info = read_object(body, "ClusterInfo")
    where = f"{info.where}.brokerAddrTable"
    brokers = [broker_from_json(as_object(value, where)) for _, value in info.text_pairs("brokerAddrTable")]
    return tuple(sorted(brokers, key=lambda broker: broker.broker_name))


def decode_broker_config(body: bytes) -> dict[str, str]:
    """Read the body of the answer to 26 GET_BROKER_CONFIG: a line ``name=value`` per property.

    Raises:
        RemoteProtocolError: If the body is not UTF-8.
    """
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError(f"A broker's configuration is not UTF-8: {exc}.") from exc
    return dict(line.split("=", 1) for line in lines if "=" in line)
