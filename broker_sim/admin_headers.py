"""Ext fields of the administrators' requests that only the simulator reads, one dataclass per Java header class.

Source: RocketMQ 5.3.3 ``remoting/protocol/header/*``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_rocketmq.wire.header_fields import bool_field, int_field, long_field, text_field


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerGroupHeader:
    """204 GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str = text_field("producerGroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHeader:
    """300 QUERY_TOPIC_CONSUME_BY_WHO, 351 GET_TOPIC_CONFIG and 215 DELETE_TOPIC_IN_BROKER."""

    topic: str = text_field("topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHeader:
    """343 QUERY_TOPICS_BY_CONSUMER and 352 GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str = text_field("group")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAndGroupHeader:
    """303 QUERY_CONSUME_TIME_SPAN, 345 QUERY_SUBSCRIPTION_BY_CONSUMER and 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    topic: str = text_field("topic")
    group: str = text_field("group")
    client_addr: str | None = text_field("clientAddr", None)
    """223: a client id, in spite of the name; every member when absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroupHeader:
    """207 DELETE_SUBSCRIPTIONGROUP."""

    group_name: str = text_field("groupName")
    clean_offset: bool = bool_field("cleanOffset", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsHeader:
    """208 GET_CONSUME_STATS."""

    consumer_group: str = text_field("consumerGroup")
    topic: str | None = text_field("topic", None)
    topic_list: str | None = text_field("topicList", None)
    """Names joined by semicolons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallClientHeader:
    """307 GET_CONSUMER_RUNNING_INFO and 309 CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str = text_field("consumerGroup")
    client_id: str | None = text_field("clientId", None)
    topic: str | None = text_field("topic", None)
    message_id: str | None = text_field("msgId", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneGroupOffsetHeader:
    """314 CLONE_GROUP_OFFSET."""

    source_group: str = text_field("srcGroup")
    target_group: str = text_field("destGroup")
    topic: str | None = text_field("topic", None)
    offline: bool = bool_field("offline", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueueHeader:
    """321 QUERY_CONSUME_QUEUE."""

    topic: str = text_field("topic")
    queue_id: int = int_field("queueId")
    index: int = long_field("index")
    count: int = int_field("count")
    consumer_group: str | None = text_field("consumerGroup", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageHeader:
    """33 VIEW_MESSAGE_BY_ID."""

    offset: int = long_field("offset")
    """Commit log offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageHeader:
    """12 QUERY_MESSAGE."""

    topic: str = text_field("topic")
    key: str = text_field("key")
    max_num: int = int_field("maxNum")
    begin_timestamp: int = long_field("beginTimestamp")
    end_timestamp: int = long_field("endTimestamp")
    is_unique_key: str | None = text_field("_UNIQUE_KEY_QUERY", None)
    """``true`` to look for a UNIQ_KEY: then ``max_num`` is ignored."""
