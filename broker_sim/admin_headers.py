"""Ext fields of the administrators' requests that nobody but a broker reads, one dataclass per Java header class.

Source: RocketMQ 5.3.3 ``remoting/protocol/header/*``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_rocketmq.wire.requests.header_fields import bool_field, int_field, long_field, text_field


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerGroupHeader:
    """204 GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str = text_field("producerGroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAndGroupHeader:
    """303 QUERY_CONSUME_TIME_SPAN and 345 QUERY_SUBSCRIPTION_BY_CONSUMER."""

    topic: str = text_field("topic")
    group: str = text_field("group")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicsByConsumerHeader:
    """343 QUERY_TOPICS_BY_CONSUMER."""

    group: str = text_field("group")


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
