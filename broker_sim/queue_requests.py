"""Requests about queues: 29, 30, 31, 32 and 202 (``AdminBrokerProcessor``)."""

from __future__ import annotations

from broker_sim.replies import SEE_FAQ, Refused, reply
from broker_sim.state import BrokerState
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    GetTopicStatsInfoRequestHeader,
    SearchOffsetRequestHeader,
)
from pyspark_rocketmq.wire.requests.topics import encode_topic_stats


def handle_search_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """29: queue offset by store time."""
    header = from_ext_fields(SearchOffsetRequestHeader, command.ext_fields)
    is_upper = (header.boundary_type or "").upper() == "UPPER"
    search = state.store.last_at_or_before if is_upper else state.store.first_at_or_after
    return _offset(command, search(header.topic, header.queue_id, header.timestamp))


def handle_max_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """30: last queue offset + 1, 0 for what does not exist."""
    header = from_ext_fields(GetMaxOffsetRequestHeader, command.ext_fields)
    return _offset(command, state.store.max_offset(header.topic, header.queue_id))


def handle_min_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """31: oldest queue offset held, 0 for what does not exist."""
    header = from_ext_fields(GetMinOffsetRequestHeader, command.ext_fields)
    return _offset(command, state.store.min_offset(header.topic, header.queue_id))


def handle_earliest_store_time(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """32: store time of the oldest message held, -1 when there is none."""
    header = from_ext_fields(GetEarliestMsgStoretimeRequestHeader, command.ext_fields)
    oldest = state.store.min_offset(header.topic, header.queue_id)
    timestamp = state.store.store_timestamp(header.topic, header.queue_id, oldest)
    return reply(command, ext_fields={"timestamp": str(timestamp)})


def handle_topic_stats(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """202: bounds of every queue of the topic on this broker."""
    header = from_ext_fields(GetTopicStatsInfoRequestHeader, command.ext_fields)
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist{SEE_FAQ}")
    bounds = {
        MessageQueue(topic.name, state.name, queue_id): bounds_of(state, topic.name, queue_id)
        for queue_id in range(topic.queue_nums)
    }
    return reply(command, body=encode_topic_stats(bounds))


def bounds_of(state: BrokerState, topic: str, queue_id: int) -> QueueBounds:
    """What the broker holds of one queue now."""
    highest = state.store.max_offset(topic, queue_id)
    return QueueBounds(
        min_offset=state.store.min_offset(topic, queue_id),
        max_offset=highest,
        last_update_timestamp=max(0, state.store.store_timestamp(topic, queue_id, highest - 1)),
    )


def _offset(command: RemotingCommand, queue_offset: int) -> RemotingCommand:
    return reply(command, ext_fields={"offset": str(queue_offset)})
