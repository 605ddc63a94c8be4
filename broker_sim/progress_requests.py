"""Administrators' requests about the progress of consumer groups, including resets.

43, 208, 300, 303, 314, 343 and 345 (``AdminBrokerProcessor``); 222 INVOKE_BROKER_TO_RESET_OFFSET moves a
group (``Broker2Client``). By default the broker keeps the new offset until the group's next pull, and does
not end held pulls, as recorded from a real one (golden fact 11). With useServerSideResetOffset=false it
notifies all members immediately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from broker_sim.bodies import OffsetWrapper, consume_stats, encode_group_list, encode_offset_table
from broker_sim.replies import Outgoing, Refused, reply
from broker_sim.request_headers import (
    CloneGroupOffsetHeader,
    GetConsumeStatsRequestHeader,
    QueryTopicsByConsumerHeader,
    TopicAndGroupHeader,
)
from broker_sim.state import BrokerState, to_client
from broker_sim.topic_requests import data_version
from broker_sim.topics import Topic
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import ONEWAY_FLAG, RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java, queue_to_json
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import ResetOffsetRequestHeader, TopicRequestHeader

_OLDEST_RESETTABLE_CLIENT = 28
"""Lowest version of a client that can be notified of a reset (V3_0_7_SNAPSHOT)."""


def handle_reset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 222 INVOKE_BROKER_TO_RESET_OFFSET: move a group in a topic; return the new offset of each queue.

    By default the new offset waits for the group's next pull; otherwise the group's members are notified.
    """
    header = from_ext_fields(ResetOffsetRequestHeader, command.ext_fields)
    if state.settings.use_server_side_reset_offset:
        return _reset_here(state, command, header)
    return _reset_at_members(state, command, header)


def _reset_here(
    state: BrokerState, command: RemotingCommand, header: ResetOffsetRequestHeader
) -> RemotingCommand:
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
    if state.groups.find(header.group) is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
    targets = _targets(state, topic, header)
    if not targets:
        raise Refused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    for queue, target in targets.items():
        state.offsets.reset(header.group, queue.topic, queue.queue_id, target)
    return reply(command, body=encode_offset_table(targets))


def _targets(state: BrokerState, topic: Topic, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
    if header.queue_id is None or header.queue_id < 0:
        return {
            queue: _offset_at(state, queue, header.timestamp)
            for queue in _queues(state, topic.name, topic.read_queue_nums)
        }
    queue = MessageQueue(topic.name, state.name, header.queue_id)
    if header.offset is None or header.offset == -1:
        return {queue: _offset_at(state, queue, header.timestamp)}
    lowest = state.store.min_offset(topic.name, header.queue_id)
    highest = state.store.max_offset(topic.name, header.queue_id)
    if not lowest <= header.offset <= highest + 1:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"Target offset {header.offset} not in consume queue range [{lowest}-{highest}]",
        )
    return {queue: header.offset}


def _reset_at_members(
    state: BrokerState, command: RemotingCommand, header: ResetOffsetRequestHeader
) -> RemotingCommand:
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
        )
    targets: dict[MessageQueue, int] = {}
    for queue in _queues(state, topic.name, topic.write_queue_nums):
        consumed = state.offsets.query(header.group, queue.topic, queue.queue_id)
        if consumed is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
        target = _offset_at(state, queue, header.timestamp)
        targets[queue] = target if header.is_force else min(target, consumed)
    _tell_members(state, command, header, targets)
    return reply(command, remark="not set any response code", body=encode_offset_table(targets))


def _tell_members(
    state: BrokerState,
    command: RemotingCommand,
    header: ResetOffsetRequestHeader,
    targets: Mapping[MessageQueue, int],
) -> None:
    members = state.membership.members(header.group)
    if not members:
        raise Refused(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
            f"Timestamp: {header.timestamp}",
        )
    fields = {
        "group": header.group,
        "isForce": "false",
        "queueId": "-1",
        "timestamp": str(header.timestamp),
        "topic": header.topic,
    }
    is_cpp = command.language == LanguageCode.CPP
    body = _offset_list(targets) if is_cpp else encode_offset_table(targets)
    for member in members:
        if member.version < _OLDEST_RESETTABLE_CLIENT:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={member.version}",
            )
        push = to_client(state, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body, flag=ONEWAY_FLAG)
        state.outbox.append(Outgoing(member.peer, push, int(push.code)))


def _offset_list(targets: Mapping[MessageQueue, int]) -> bytes:
    """Encode the body for C++ administrators: a list instead of a map with queues as keys."""
    return dumps_java(
        {"offsetTable": [{**queue_to_json(queue), "offset": offset} for queue, offset in targets.items()]}
    )


def _queues(state: BrokerState, topic: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, state.name, queue_id) for queue_id in range(count)]


def _offset_at(state: BrokerState, queue: MessageQueue, timestamp: int) -> int:
    if timestamp < 0:
        return state.store.max_offset(queue.topic, queue.queue_id)
    return state.store.first_at_or_after(queue.topic, queue.queue_id, timestamp)


def handle_consume_stats(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 208 GET_CONSUME_STATS: a group's progress in each queue; 0 where it has committed no offset."""
    header = from_ext_fields(GetConsumeStatsRequestHeader, command.ext_fields)
    offsets = {
        MessageQueue(topic.name, state.name, queue_id): _wrapper(
            state, header.consumer_group, topic.name, queue_id
        )
        for name in _topics_of_interest(state, header)
        if (topic := state.topics.find(name)) is not None
        for queue_id in range(topic.read_queue_nums)
    }
    return reply(command, body=dumps_java(consume_stats(offsets)))


def handle_stats_of_broker(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 317 GET_BROKER_CONSUME_STATS: every group's progress; pull offsets are always 0, as in 5.3.3."""
    is_order = command.ext_fields.get("isOrder") == "true"
    groups, behind, in_flight = [], 0, 0
    for group in state.groups:
        header = GetConsumeStatsRequestHeader(consumer_group=group.group_name, topic="")
        listed = []
        for name in _topics_of_interest(state, header):
            topic = state.topics.find(name)
            if topic is None or (is_order and not topic.order):
                continue
            offsets = {
                queue: replace(_wrapper(state, group.group_name, name, queue.queue_id), pull_offset=0)
                for queue in _queues(state, name, topic.write_queue_nums)
            }
            behind += sum(each.broker_offset - each.consumer_offset for each in offsets.values())
            in_flight -= sum(each.consumer_offset for each in offsets.values())
            listed.append(consume_stats(offsets))
        groups.append({group.group_name: listed})
    body = {
        "brokerAddr": str(state.host),
        "consumeStatsList": groups,
        "totalDiff": behind,
        "totalInflightDiff": in_flight,
    }
    return reply(command, body=dumps_java(body))


def handle_groups_of_topic(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 300 QUERY_TOPIC_CONSUME_BY_WHO: groups that have committed offsets for the topic.

    If any group ever subscribed to the topic, the list also has the topic's name, as 5.3.3 adds by mistake.
    """
    topic = from_ext_fields(TopicRequestHeader, command.ext_fields).topic
    groups = set(state.offsets.groups_of(topic))
    if state.membership.was_subscribed(topic):
        groups.add(topic)
    return reply(command, body=encode_group_list(sorted(groups)))


def handle_topics_of_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 343 QUERY_TOPICS_BY_CONSUMER: topics for which the group has committed offsets."""
    group = from_ext_fields(QueryTopicsByConsumerHeader, command.ext_fields).group
    body = {"brokerAddr": str(state.host), "topicList": sorted(state.offsets.topics_of(group))}
    return reply(command, body=dumps_java(body))


def handle_subscription_of_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 345 QUERY_SUBSCRIPTION_BY_CONSUMER: the group's subscription to the topic, if it has one."""
    header = from_ext_fields(TopicAndGroupHeader, command.ext_fields)
    body: dict[str, object] = {"group": header.group, "topic": header.topic}
    subscription = state.membership.subscriptions(header.group).get(header.topic)
    if subscription is not None:
        body["subscriptionData"] = subscription
    return reply(command, body=dumps_java(body))


def handle_time_span(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 303 QUERY_CONSUME_TIME_SPAN: for each queue, the store times of three messages and the delay.

    The messages are the oldest one, the newest one and the last consumed one. The delay is the age of the
    next message to consume, in milliseconds; 0 if all are consumed.
    """
    header = from_ext_fields(TopicAndGroupHeader, command.ext_fields)
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    spans = [
        _time_span(state, header.group, MessageQueue(topic.name, state.name, queue_id))
        for queue_id in range(topic.write_queue_nums)
    ]
    return reply(command, body=dumps_java({"consumeTimeSpanSet": spans}))


def handle_all_offsets(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 43 GET_ALL_CONSUMER_OFFSET: every committed offset, by topic and group."""
    tables = {f"{topic}@{group}": table for group, topic, table in state.offsets.tables()}
    group_topics: dict[str, list[str]] = {}
    for group, topic, _ in state.offsets.tables():
        group_topics.setdefault(group, []).append(topic)
    body = {"dataVersion": data_version(state), "groupTopicMap": group_topics, "offsetTable": tables}
    return reply(command, body=dumps_java(body))


def handle_clone_offsets(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 314 CLONE_GROUP_OFFSET: copy one group's committed offsets for a topic to another group.

    Without a topic nothing is copied, as in Java. Nothing is copied either if the source group has members
    that do not subscribe to the topic, unless the request has ``offline``.
    """
    header = from_ext_fields(CloneGroupOffsetHeader, command.ext_fields)
    if header.topic and state.topics.find(header.topic) is not None:
        subscriptions = state.membership.subscriptions(header.source_group)
        if header.offline or not subscriptions or header.topic in subscriptions:
            state.offsets.clone(header.source_group, header.target_group, header.topic)
    return reply(command)


def _topics_of_interest(state: BrokerState, header: GetConsumeStatsRequestHeader) -> list[str]:
    """Return the topics that a request for a group's progress is about.

    If the request has a list of topics, this list is returned unchanged. Otherwise it is the request's topic
    or, without one, all topics for which the group has committed offsets; but if the group has members, only
    topics to which they subscribe.
    """
    if header.topic_list and header.topic_list.strip():
        return [name for name in header.topic_list.split(";") if name]
    group = header.consumer_group
    topics = [header.topic] if header.topic else state.offsets.topics_of(group)
    subscriptions = state.membership.subscriptions(group)
    return [topic for topic in topics if not subscriptions or topic in subscriptions]


def _wrapper(state: BrokerState, consumer_group: str, topic: str, queue_id: int) -> OffsetWrapper:
    consumed = state.offsets.query(consumer_group, topic, queue_id) or 0
    pulled = state.offsets.pulled(consumer_group, topic, queue_id) or 0
    return OffsetWrapper(
        broker_offset=state.store.max_offset(topic, queue_id),
        consumer_offset=consumed,
        pull_offset=max(consumed, pulled),
        last_timestamp=max(0, state.store.store_timestamp(topic, queue_id, consumed - 1)),
    )


def _time_span(state: BrokerState, consumer_group: str, queue: MessageQueue) -> dict[str, object]:
    store, topic, queue_id = state.store, queue.topic, queue.queue_id
    oldest = store.store_timestamp(topic, queue_id, store.min_offset(topic, queue_id))
    end = store.max_offset(topic, queue_id)
    consumed = state.offsets.query(consumer_group, topic, queue_id)
    consumed = -1 if consumed is None else consumed
    delay = state.now_ms() - store.store_timestamp(topic, queue_id, consumed) if consumed < end else 0
    times = {
        "consumeTimeStamp": store.store_timestamp(topic, queue_id, consumed - 1) if consumed > 0 else oldest,
        "maxTimeStamp": store.store_timestamp(topic, queue_id, end - 1),
        "minTimeStamp": oldest,
    }
    texts = {f"{name}Str": _moment(timestamp_ms) for name, timestamp_ms in times.items()}
    span = {**times, **texts, "delayTime": delay, "messageQueue": queue_to_json(queue)}
    return dict(sorted(span.items()))


def _moment(timestamp_ms: int) -> str:
    """Format a time, such as ``2026-11-20#10:00:00:000``, in the machine's time zone.

    Source: ``UtilAll.YYYY_MM_DD_HH_MM_SS_SSS``.
    """
    moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{timestamp_ms % 1000:03d}"
