"""Headers and bodies of administrators' requests, and of requests that brokers pass on to their clients.

They are declared like those in ``headers`` and ``bodies``.

Source: RocketMQ 5.3.3 ``remoting/protocol/header/*``, ``remoting/protocol/body/*``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import BrokerData, ConsumeFromWhere, MessageModel
from pyspark_rocketmq.wire.fastjson import (
    JsonObject,
    as_object,
    dumps_java,
    list_of,
    member,
    one_of,
    read_object,
    short_repr,
    table_of,
)
from pyspark_rocketmq.wire.requests.bodies import CONSUME_TYPES, MESSAGE_MODELS, STARTS, ConsumeType
from pyspark_rocketmq.wire.requests.header_fields import (
    RequestFields,
    TopicRequestFields,
    bool_field,
    int_field,
    text_field,
)
from pyspark_rocketmq.wire.requests.topics import broker_from_json
from pyspark_rocketmq.wire.subscription import SubscriptionData

_OFFSET: Final = re.compile(rb'"?([0-9]{1,10})"?:(-?[0-9]{1,19})')


def offsets_of(body: bytes, topic: str, group: str) -> dict[int, int]:
    """Return the offsets that a broker has of ``group`` in the queues of ``topic``, by queue id.

    ``body`` is the answer to 43 GET_ALL_CONSUMER_OFFSET. Only the part that is wanted is read, since a broker
    keeps the offsets of groups that are gone, and all of them may be too many to parse.

    Raises:
        RemoteProtocolError: If the body ends within the wanted part.
    """
    _, found, rest = body.partition(f'"{topic}@{group}":{{'.encode())
    offsets, ended, _ = rest.partition(b"}")
    if found and not ended:
        raise RemoteProtocolError(
            f"A broker's list of all consumer offsets is cut off after {len(body)} bytes, within the offsets "
            f"of group {short_repr(group)} in topic {short_repr(topic)}."
        )
    return {int(queue_id): int(offset) for queue_id, offset in _OFFSET.findall(offsets)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatusRequestHeader(TopicRequestFields):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS, and 221 GET_CONSUMER_STATUS_FROM_CLIENT (from the broker)."""

    topic: str = text_field("topic")
    group: str = text_field("group")
    client_addr: str | None = text_field("clientAddr", None)
    """Client id (not an address) to ask; None for all clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerRunningInfoRequestHeader(RequestFields):
    """307 GET_CONSUMER_RUNNING_INFO, to the broker and from it to the client."""

    consumer_group: str = text_field("consumerGroup")
    client_id: str = text_field("clientId")
    jstack_enable: bool = bool_field("jstackEnable", False)
    """Whether the stacks of the client's threads are also wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyRequestHeader(TopicRequestFields):
    """309 CONSUME_MESSAGE_DIRECTLY, to the broker and, with the message as body, from it to the client.

    ``broker_name`` is sent as ``bname``, as in other headers; ``stored_on`` is this header's ``brokerName``.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """One client as a broker sees it."""

    client_id: str = member("clientId", JsonObject.text)
    client_addr: str = member("clientAddr", JsonObject.text)
    """``host:port`` of the client's end."""
    language: str = member("language", JsonObject.text, "OTHER")
    version: int = member("version", JsonObject.integer, 0)
    """Ordinal of the client's ``MQVersion``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection:
    """Body of the answer to 203 GET_CONSUMER_CONNECTION_LIST."""

    connections: tuple[ClientConnection, ...] = member("connectionSet", list_of(ClientConnection))
    consume_type: ConsumeType = member("consumeType", one_of(CONSUME_TYPES))
    message_model: MessageModel = member("messageModel", one_of(MESSAGE_MODELS))
    consume_from_where: ConsumeFromWhere = member("consumeFromWhere", one_of(STARTS))
    subscriptions: Mapping[str, SubscriptionData] = member(
        "subscriptionTable", table_of(SubscriptionData), dict
    )
    """Subscriptions of the latest heartbeats, by topic; members with different ones lose messages."""


def encode_client_config_check(client_id: str, group: str, subscription: SubscriptionData) -> bytes:
    """Write the body of 46 CHECK_CLIENT_CONFIG, which asks whether the broker accepts this subscription."""
    return dumps_java({"clientId": client_id, "group": group, "subscriptionData": subscription})


def decode_topic_attributes(body: bytes) -> dict[str, str]:
    """Read the attributes in the answer to 351 GET_TOPIC_CONFIG; brokers before 5 send none."""
    return read_object(body, "TopicConfig").text_map("attributes")


def decode_topic_list(body: bytes) -> tuple[str, ...]:
    """Read the topics' names from the answer to 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER.

    The names are in any order, and include those of system topics.
    """
    return tuple(read_object(body, "TopicList").texts("topicList"))


def decode_cluster_info(body: bytes) -> tuple[BrokerData, ...]:
    """Read the living brokers from the answer to 106 GET_BROKER_CLUSTER_INFO, sorted by name."""
    info = read_object(body, "ClusterInfo")
    where = f"{info.where}.brokerAddrTable"
    brokers = [broker_from_json(as_object(value, where)) for _, value in info.text_pairs("brokerAddrTable")]
    return tuple(sorted(brokers, key=lambda broker: broker.broker_name))
