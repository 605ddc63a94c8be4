"""Ext fields of requests that only brokers read, one dataclass per Java header class.

Source: RocketMQ 5.3.3 ``remoting/protocol/header/*``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_rocketmq.wire.requests.header_fields import (
    RequestFields,
    RpcFields,
    TopicRequestFields,
    bool_field,
    int_field,
    long_field,
    text_field,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerGroupHeader:
    """Ext fields of 204 GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str = text_field("producerGroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAndGroupHeader:
    """Ext fields of 303 QUERY_CONSUME_TIME_SPAN and 345 QUERY_SUBSCRIPTION_BY_CONSUMER."""

    topic: str = text_field("topic")
    group: str = text_field("group")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicsByConsumerHeader:
    """Ext fields of 343 QUERY_TOPICS_BY_CONSUMER."""

    group: str = text_field("group")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallClientHeader:
    """Ext fields of 307 GET_CONSUMER_RUNNING_INFO and 309 CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str = text_field("consumerGroup")
    client_id: str | None = text_field("clientId", None)
    topic: str | None = text_field("topic", None)
    message_id: str | None = text_field("msgId", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneGroupOffsetHeader:
    """Ext fields of 314 CLONE_GROUP_OFFSET."""

    source_group: str = text_field("srcGroup")
    target_group: str = text_field("destGroup")
    topic: str | None = text_field("topic", None)
    offline: bool = bool_field("offline", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueueHeader:
    """Ext fields of 321 QUERY_CONSUME_QUEUE."""

    topic: str = text_field("topic")
    queue_id: int = int_field("queueId")
    index: int = long_field("index")
    count: int = int_field("count")
    consumer_group: str | None = text_field("consumerGroup", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageRequestHeader(TopicRequestFields):
    """Ext fields of 12 QUERY_MESSAGE, by business key or UNIQ_KEY; the answer's body is stored messages."""

    topic: str = text_field("topic")
    key: str = text_field("key")
    max_num: int = int_field("maxNum")
    begin_timestamp: int = long_field("beginTimestamp")
    """Lowest store time, in milliseconds since the epoch; inclusive, like ``end_timestamp``."""
    end_timestamp: int = long_field("endTimestamp")
    is_unique_key: bool | None = bool_field("_UNIQUE_KEY_QUERY", None)
    """Not in Java's header class: its client adds it to the ext fields. True: ``key`` is a UNIQ_KEY, and the
    broker returns at most 32 messages (``defaultQueryMaxNum``), whatever ``max_num`` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageRequestHeader(RpcFields):
    """Ext fields of 33 VIEW_MESSAGE_BY_ID; the answer's body is one stored message."""

    topic: str | None = text_field("topic", None)
    """Required with access control, because rights belong to topics."""
    offset: int = long_field("offset")
    """Offset in the commit log (not in a queue): the second half of an offset message id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroupRequestHeader(RequestFields):
    """Ext fields of 207 DELETE_SUBSCRIPTIONGROUP."""

    group_name: str = text_field("groupName")
    clean_offset: bool = bool_field("cleanOffset", False)
    """Whether the group's stored offsets are deleted too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsRequestHeader(TopicRequestFields):
    """Ext fields of 208 GET_CONSUME_STATS; the answer's body is a group's progress."""

    consumer_group: str = text_field("consumerGroup")
    topic: str | None = text_field("topic", None)
    """None: every topic of the group."""
    topic_list: str | None = text_field("topicList", None)
    """Names joined by semicolons, in place of ``topic``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequestHeader(TopicRequestFields):
    """Ext fields of 10 SEND_MESSAGE."""

    producer_group: str = text_field("producerGroup")
    topic: str = text_field("topic")
    default_topic: str = text_field("defaultTopic")
    """Template of a topic that does not exist yet, normally ``TBW102``."""
    default_topic_queue_nums: int = int_field("defaultTopicQueueNums")
    queue_id: int = int_field("queueId")
    """Negative: the broker picks one."""
    sys_flag: int = int_field("sysFlag")
    """Bits of ``MessageSysFlag``."""
    born_timestamp: int = long_field("bornTimestamp")
    """Milliseconds since the epoch."""
    flag: int = int_field("flag")
    properties: str | None = text_field("properties", None)
    reconsume_times: int | None = int_field("reconsumeTimes", None)
    unit_mode: bool | None = bool_field("unitMode", None)
    batch: bool | None = bool_field("batch", None)
    max_reconsume_times: int | None = int_field("maxReconsumeTimes", None)
