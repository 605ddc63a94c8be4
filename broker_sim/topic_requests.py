"""Administrators' requests about topics, queues and single messages; each function names its request code.

Source: ``AdminBrokerProcessor``, ``QueryMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broker_sim.bodies import encode_topic_list, encode_topic_stats
from broker_sim.replies import SEE_FAQ, Refused, reply
from broker_sim.request_headers import (
    QueryConsumeQueueHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from broker_sim.state import BrokerState
from broker_sim.topics import MOST_QUEUES, Topic, is_system_topic, name_problem
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java, from_json, read_object
from pyspark_rocketmq.wire.namespace import SYSTEM_TOPICS
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import (
    CreateTopicRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    TopicRequestHeader,
)

_MOST_BY_UNIQUE_KEY = 32
"""Maximum number of messages that a query by UNIQ_KEY returns (defaultQueryMaxNum)."""


def data_version(state: BrokerState) -> dict[str, object]:
    """Return the version of a configuration table as JSON; it is always 0, as changes are not counted."""
    return {"counter": 0, "stateVersion": 0, "timestamp": state.now_ms()}


def handle_search_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 29 SEARCH_OFFSET_BY_TIMESTAMP: the queue offset of the first message at or after a store time.

    With boundary UPPER, answer with the last message at or before it.
    """
    header = from_ext_fields(SearchOffsetRequestHeader, command.ext_fields)
    is_upper = (header.boundary_type or "").upper() == "UPPER"
    search = state.store.last_at_or_before if is_upper else state.store.first_at_or_after
    return _offset(command, search(header.topic, header.queue_id, header.timestamp))


def handle_max_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 30 GET_MAX_OFFSET: last queue offset + 1; 0 for a queue that does not exist."""
    header = from_ext_fields(QueueRequestHeader, command.ext_fields)
    return _offset(command, state.store.max_offset(header.topic, header.queue_id))


def handle_min_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 31 GET_MIN_OFFSET: oldest queue offset still stored; 0 for a queue that does not exist."""
    header = from_ext_fields(QueueRequestHeader, command.ext_fields)
    return _offset(command, state.store.min_offset(header.topic, header.queue_id))


def handle_earliest_store_time(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 32 GET_EARLIEST_MSG_STORETIME: store time of the queue's oldest message; -1 if it has none."""
    header = from_ext_fields(QueueRequestHeader, command.ext_fields)
    oldest = state.store.min_offset(header.topic, header.queue_id)
    timestamp = state.store.store_timestamp(header.topic, header.queue_id, oldest)
    return reply(command, ext_fields={"timestamp": str(timestamp)})


def handle_topic_stats(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 202 GET_TOPIC_STATS_INFO: bounds of every queue of the topic on this broker.

    Raises:
        Refused: If the broker does not have the topic.
    """
    header = from_ext_fields(TopicRequestHeader, command.ext_fields)
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist{SEE_FAQ}")
    bounds = {
        MessageQueue(topic.name, state.name, queue_id): bounds_of(state, topic.name, queue_id)
        for queue_id in range(topic.queue_nums)
    }
    return reply(command, body=encode_topic_stats(bounds))


def bounds_of(state: BrokerState, topic: str, queue_id: int) -> QueueBounds:
    """Return minimum and maximum offset of a queue, and when its last message was stored; 0 without one."""
    highest = state.store.max_offset(topic, queue_id)
    return QueueBounds(
        min_offset=state.store.min_offset(topic, queue_id),
        max_offset=highest,
        last_update_timestamp=max(0, state.store.store_timestamp(topic, queue_id, highest - 1)),
    )


def _offset(command: RemotingCommand, queue_offset: int) -> RemotingCommand:
    return reply(command, ext_fields={"offset": str(queue_offset)})


def handle_query(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 12 QUERY_MESSAGE: messages of a topic by a word of KEYS or by UNIQ_KEY.

    Raises:
        Refused: If there are none (QUERY_NOT_FOUND).
    """
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
    """Answer 33 VIEW_MESSAGE_BY_ID: the message at a commit log offset, the second half of its offset id.

    Raises:
        Refused: If no message begins there.
    """
    offset = from_ext_fields(ViewMessageRequestHeader, command.ext_fields).offset
    message = state.store.message_at(offset)
    if message is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return reply(command, body=message)


def handle_query_queue(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 321 QUERY_CONSUME_QUEUE: commit log offset, size and tag hash of messages of one queue.

    Raises:
        Refused: If the queue does not exist.
    """
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
    return {"filterData": "null", "subscriptionData": subscription}


def handle_create_topic(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 17 UPDATE_AND_CREATE_TOPIC: create a topic, or change its configuration.

    Raises:
        Refused: If the name, a number of queues or the attributes are not valid.
    """
    header = from_ext_fields(CreateTopicRequestHeader, command.ext_fields)
    _check_name(header.topic)
    _check_queues(header.topic, header.read_queue_nums, header.write_queue_nums)
    state.topics.put(
        Topic(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=_attributes(state, header),
        )
    )
    return reply(command, remark="not set any response code")  # golden fact 25


def handle_create_topics(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 18 UPDATE_AND_CREATE_TOPIC_LIST: create or change several topics, or none if one is invalid."""
    body = read_object(command.body, "CreateTopicListRequestBody")
    configs = [replace(from_json(Topic, each), attributes={}) for each in body.objects("topicConfigList")]
    for config in configs:
        _check_name(config.name)
        _check_queues(config.name, config.read_queue_nums, config.write_queue_nums)
    for config in configs:
        state.topics.put(config)
    return reply(command)


def handle_all_topics(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 21 GET_ALL_TOPIC_CONFIG: the configuration of every topic."""
    body = {
        "dataVersion": data_version(state),
        "mappingDataVersion": data_version(state),
        "topicConfigTable": {topic.name: topic for topic in state.topics},
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    return reply(command, body=dumps_java(body))


def handle_system_topics(state: BrokerState, command: RemotingCommand) -> RemotingCommand:  # noqa: ARG001
    """Answer 305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER: the names of the broker's own topics."""
    return reply(command, body=encode_topic_list(sorted(SYSTEM_TOPICS)))


def handle_clean_queues(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 306 CLEAN_EXPIRED_CONSUMEQUEUE: delete the queues whose messages are all gone.

    They begin at offset 0 again, as in Java. Queues of the broker's own topics stay.
    """
    state.store.delete_emptied_queues(is_kept=is_system_topic)
    return reply(command)


def handle_clean_up(state: BrokerState, command: RemotingCommand) -> RemotingCommand:  # noqa: ARG001
    """Answer 316 CLEAN_UNUSED_TOPIC and 329 DELETE_EXPIRED_COMMITLOG with success; do nothing.

    Queues of deleted topics, and messages beyond their time, are always gone already.
    """
    return reply(command)


def handle_topic(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 351 GET_TOPIC_CONFIG: one topic's configuration.

    Raises:
        Refused: If the broker does not have the topic.
    """
    name = from_ext_fields(TopicRequestHeader, command.ext_fields).topic
    topic = state.topics.find(name)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
    return reply(command, body=dumps_java(topic))


def handle_delete_topic(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 215 DELETE_TOPIC_IN_BROKER: delete a topic, its queues and its committed offsets.

    An unknown topic is not an error.

    Raises:
        Refused: If the name is blank or that of one of the broker's own topics. If timers are switched off,
            the topic is deleted, and the answer is an error all the same, as from a real broker.
    """
    name = from_ext_fields(TopicRequestHeader, command.ext_fields).topic
    if not name.strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if is_system_topic(name):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
    state.topics.delete(name)
    state.offsets.forget_topic(name)
    state.store.delete_topic(name)
    if not state.settings.timer_wheel_enable:  # golden fact 26: it fails because it has no timers
        raise Refused(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: there are no timers")
    return reply(command)


def _check_name(topic: str) -> None:
    problem = name_problem(topic)
    if problem:
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)
    if is_system_topic(topic):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")


def _check_queues(topic: str, *counts: int) -> None:
    if max(counts) > MOST_QUEUES:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"The topic[{topic}] would have {max(counts)} queues; the simulator takes at most {MOST_QUEUES}.",
        )


def _attributes(state: BrokerState, header: CreateTopicRequestHeader) -> Mapping[str, str]:
    """Return the topic's attributes after the changes ``+name=value,-name`` of the request.

    Source: ``AttributeParser``, ``AttributeUtil``.

    Raises:
        Refused: If a change is malformed, or removes an attribute of a topic that does not exist yet.
    """
    known = state.topics.find(header.topic)
    attributes = dict(known.attributes) if known else {}
    for part in filter(None, (each.strip() for each in (header.attributes or "").split(","))):
        name, _, value = part[1:].partition("=")
        if part[0] == "+" and name and value:
            attributes[name] = value
        elif part[0] == "-" and name and known is not None:
            attributes.pop(name, None)
        else:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"only add attribute is supported while creating topic. key: {part}",
            )
    return attributes
