"""The bodies of what administrators ask brokers and name servers, both ways; see ``bodies``.

Source: RocketMQ 5.3.3 ``remoting/protocol/body/*``, ``remoting/protocol/admin/ConsumeStats``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import (
    BrokerData,
    ConsumeFromWhere,
    MessageModel,
    MessageQueue,
)
from pyspark_rocketmq.wire.bodies import (
    CONSUME_TYPES,
    MESSAGE_MODELS,
    STARTS,
    ConsumeType,
    queue_from_json,
    queue_to_json,
    subscription_from_json,
    subscription_to_json,
)
from pyspark_rocketmq.wire.json_fields import JsonObject, as_object, read_object
from pyspark_rocketmq.wire.json_quirks import ObjectMap, dumps_java
from pyspark_rocketmq.wire.route import broker_from_json
from pyspark_rocketmq.wire.subscription import SubscriptionData

# --- who is there --------------------------------------------------------------------------------------------


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


# --- progress ------------------------------------------------------------------------------------------------


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


# --- expressions ---------------------------------------------------------------------------------------------


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


# --- the cluster ---------------------------------------------------------------------------------------------


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
