"""The ext fields of requests that administrators make, and of what brokers pass on to their clients for them.

As ``headers``: one frozen dataclass per Java header class; a field with no default is required.

Source: RocketMQ 5.3.3 ``remoting/protocol/header/*``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_rocketmq.wire.header_fields import (
    RequestFields,
    RpcFields,
    TopicRequestFields,
    bool_field,
    int_field,
    long_field,
    text_field,
)

# --- messages ------------------------------------------------------------------------------------------------


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
    """Not in Java's header class: its client adds it to the ext fields. True: ``key`` is a UNIQ_KEY, and the broker
    looks through the last messages only (``defaultQueryMaxNum``)."""


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


# --- topics --------------------------------------------------------------------------------------------------


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


# --- groups --------------------------------------------------------------------------------------------------


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


# --- passed on to the clients of a group ---------------------------------------------------------------------


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
