"""Requests for single messages: 12 by key, 33 by offset id, 321 the entries of a queue.

Sources: ``QueryMessageProcessor``, ``AdminBrokerProcessor.queryConsumeQueue``.
"""

from __future__ import annotations

from broker_sim.admin_headers import QueryConsumeQueueHeader
from broker_sim.replies import Refused, reply
from broker_sim.state import BrokerState
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.admin import QueryMessageRequestHeader, ViewMessageRequestHeader
from pyspark_rocketmq.wire.requests.bodies import subscription_to_json
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields

_MOST_BY_UNIQUE_KEY = 32
"""defaultQueryMaxNum."""


def handle_query(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """12: messages of a topic by a word of KEYS or by UNIQ_KEY."""
    header = from_ext_fields(QueryMessageRequestHeader, command.ext_fields)
    most = _MOST_BY_UNIQUE_KEY if header.is_unique_key else header.max_num
    matches = state.store.find_by_key(
        header.topic, header.key, most, header.begin_timestamp, header.end_timestamp
    )
    if not matches.entries or matches.last_indexed is None:
        raise Refused(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
            {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0"},
        )
    fields = {
        "indexLastUpdatePhyoffset": str(matches.last_indexed.commit_log_offset),
        "indexLastUpdateTimestamp": str(matches.last_indexed.store_timestamp),
    }
    found = [state.store.message_at(entry.commit_log_offset) for entry in matches.entries]
    return reply(command, ext_fields=fields, body=b"".join(filter(None, found)))


def handle_view(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """33: the message at a commit log offset, which is the end of its offset id."""
    offset = from_ext_fields(ViewMessageRequestHeader, command.ext_fields).offset
    message = state.store.message_at(offset)
    if message is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return reply(command, body=message)


def handle_query_queue(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """321: what the broker notes of each message of a queue."""
    header = from_ext_fields(QueryConsumeQueueHeader, command.ext_fields)
    queue = state.store.queue(header.topic, header.queue_id)
    if queue is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic} is not exist!")
    body: dict[str, object] = {"maxQueueIndex": queue.max_offset, "minQueueIndex": queue.min_offset}
    if header.consumer_group is not None:
        body |= _subscription(state, header.consumer_group, header.topic)
    if not queue.min_offset <= header.index < queue.max_offset:
        remark = f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
        return reply(command, remark=remark)
    end = min(queue.max_offset, header.index + header.count)
    entries = [queue.entry(queue_offset) for queue_offset in range(header.index, end)]
    body["queueData"] = [
        {
            "eval": False,
            "physicOffset": entry.commit_log_offset,
            "physicSize": entry.size,
            "tagsCode": entry.tag_hash,
        }
        for entry in entries
    ]
    return reply(command, remark="not set any response code", body=dumps_java(dict(sorted(body.items()))))


def _subscription(state: BrokerState, consumer_group: str, topic: str) -> dict[str, object]:
    subscription = state.membership.subscriptions(consumer_group).get(topic)
    if subscription is None:
        return {"filterData": f"{consumer_group}@{topic} is not online!"}
    return {"filterData": "null", "subscriptionData": subscription_to_json(subscription)}
