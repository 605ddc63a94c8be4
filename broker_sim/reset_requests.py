"""222 INVOKE_BROKER_TO_RESET_OFFSET: an operator moves a group (``AdminBrokerProcessor``, ``Broker2Client``).

By default the broker keeps the new offset until the group's next pull asks for it; it wakes no held pull (golden
fact 11). The older way, useServerSideResetOffset=false, tells all members at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_sim.peers import Outgoing
from broker_sim.replies import Refused, reply
from broker_sim.state import BrokerState, to_client
from broker_sim.topics import Topic
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import ONEWAY_FLAG, RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.bodies import encode_offset_table, queue_to_json
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import ResetOffsetRequestHeader

_OLDEST_RESETTABLE_CLIENT = 28
"""V3_0_7_SNAPSHOT."""


def handle_reset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer with the offset each queue is reset to."""
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
    """The body's form for C++ administrators: a list in place of a map with queues as keys."""
    return dumps_java(
        {"offsetTable": [{**queue_to_json(queue), "offset": offset} for queue, offset in targets.items()]}
    )


def _queues(state: BrokerState, topic: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, state.name, queue_id) for queue_id in range(count)]


def _offset_at(state: BrokerState, queue: MessageQueue, timestamp: int) -> int:
    if timestamp < 0:
        return state.store.max_offset(queue.topic, queue.queue_id)
    return state.store.first_at_or_after(queue.topic, queue.queue_id, timestamp)
