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

from pyspark_rocketmq.model import BrokerData, ConsumeFromWhere, MessageModel
from pyspark_rocketmq.wire.fastjson import JsonObject, ObjectMap, as_object, dumps_java, read_object
from pyspark_rocketmq.wire.requests.bodies import (
    CONSUME_TYPES,
    MESSAGE_MODELS,
    STARTS,
    ConsumeType,
    subscription_from_json,
    subscription_to_json,
)
from pyspark_rocketmq.wire.requests.header_fields import (
    RequestFields,
    TopicRequestFields,
    bool_field,
    int_field,
    text_field,
)
from pyspark_rocketmq.wire.requests.topics import broker_from_json
from pyspark_rocketmq.wire.subscription import SubscriptionData

# --- messages -----------------------------------------------------------------------------------------------


# --- topics -------------------------------------------------------------------------------------------------


# --- groups -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerConnectionListRequestHeader(RequestFields):
    """203 GET_CONSUMER_CONNECTION_LIST; the answer's body is a consumer connection."""

    consumer_group: str = text_field("consumerGroup")


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


# --- progress -----------------------------------------------------------------------------------------------


# --- expressions --------------------------------------------------------------------------------------------


def encode_client_config_check(client_id: str, group: str, subscription: SubscriptionData) -> bytes:
    """Write the body of 46 CHECK_CLIENT_CONFIG: would the broker take this subscription?"""
    return dumps_java(
        {"clientId": client_id, "group": group, "subscriptionData": subscription_to_json(subscription)}
    )


# --- the cluster --------------------------------------------------------------------------------------------


def encode_topic_list(topics: Iterable[str]) -> bytes:
    """Write the body of the answer to 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    return dumps_java({"topicList": list(topics)})


def decode_topic_list(body: bytes) -> tuple[str, ...]:
    """Read the answer to 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER: any order, with system topics.

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
