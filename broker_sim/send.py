"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (``SendMessageProcessor``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from broker_sim.delay import SCHEDULE_TOPIC, delay_level
from broker_sim.layout import (
    MAX_PROPERTIES_LENGTH,
    Member,
    MessageRun,
    decode_batch_members,
    offset_message_id,
)
from broker_sim.peers import Peer
from broker_sim.pull import let_go
from broker_sim.replies import SEE_FAQ, Refused, reply
from broker_sim.state import CLUSTER_NAME, BrokerState
from broker_sim.topics import TopicConfig, is_closed_to_producers, name_problem
from pyspark_rocketmq.model import RETRY_TOPIC_PREFIX, Message, MessageQueue, dlq_topic
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    from_ext_fields,
)
from pyspark_rocketmq.wire.properties import decode_properties

_ALWAYS: Mapping[str, str] = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""In every answer of the processor, and among the properties of every stored message."""
_OLDEST_WITH_MAX_RECONSUME_TIMES = 121  # V3_4_9

SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a message really goes: a retry may end in the dead-letter topic."""

    topic: str
    queue_id: int
    properties: dict[str, str]


def handle_send(state: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Store one message or a batch, wake the pulls that wait for it, and tell where it lies."""
    if not command.body:  # golden fact 4: the real broker stumbles over its own null
        raise Refused(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: the message has no body")
    header = _header(command)
    try:
        topic = _find_or_create_topic(state, header)
        target = _target(state, command, header, topic)
        members = _members(state, command, header, target)
    except Refused as refused:
        raise Refused(refused.code, refused.remark, _ALWAYS) from None
    run = MessageRun(
        topic=target.topic,
        queue_id=target.queue_id,
        members=members,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=peer.host,
        reconsume_times=header.reconsume_times or 0,
    )
    queue_offset, offsets = _store(state, run, target, is_batch=bool(header.batch))
    return _answer(state, command, target, queue_offset, offsets)


def as_run(queue: MessageQueue, messages: Sequence[Message], *, born_timestamp: int) -> MessageRun:
    """Messages as they would be stored after being sent to ``queue`` one by one."""
    return MessageRun(
        topic=queue.topic,
        queue_id=queue.queue_id,
        members=tuple(
            Member(each.flag, each.body, _encode({**each.properties, **_ALWAYS, "CLUSTER": CLUSTER_NAME}))
            for each in messages
        ),
        born_timestamp=born_timestamp,
    )


def store_run(state: BrokerState, run: MessageRun) -> tuple[int, list[int]]:
    """Append ``run`` and let the pulls go that wait for it; its queue offset and commit log offsets."""
    stored = state.store.append(run, state.host)
    woken = state.held_pulls.arrived(run.topic, run.queue_id, stored.tag_hashes)
    state.outbox.extend(let_go(state, pull) for pull in woken)
    return stored.queue_offset, stored.commit_log_offsets


def deliver_delayed(state: BrokerState) -> None:
    """Store the delayed messages whose time is over in the queues they were sent to."""
    for run in state.delayed.take_due(state.clock.monotonic_s()):
        store_run(state, run)


def _store(state: BrokerState, run: MessageRun, target: _Target, *, is_batch: bool) -> tuple[int, list[int]]:
    """Store ``run`` now, or put it off: then it lies in the schedule topic until it is delivered."""
    levels = state.settings.delay_levels_s
    level = 0 if is_batch else delay_level(target.properties, len(levels))
    if not level:
        return store_run(state, run)
    state.topics.ensure(SCHEDULE_TOPIC, len(levels))
    state.delayed.put(state.clock.monotonic_s() + levels[level - 1], run)
    return store_run(state, replace(run, topic=SCHEDULE_TOPIC, queue_id=level - 1))


def _answer(
    state: BrokerState,
    command: RemotingCommand,
    target: _Target,
    queue_offset: int,
    commit_log_offsets: list[int],
) -> RemotingCommand:
    fields = {
        "queueId": str(target.queue_id),
        "queueOffset": str(queue_offset),
        "msgId": ",".join([offset_message_id(state.host, offset) for offset in commit_log_offsets]),
        **_ALWAYS,
    }
    unique_key = target.properties.get("UNIQ_KEY")
    if unique_key:
        fields["transactionId"] = unique_key
    return reply(command, ext_fields=fields)


def _header(command: RemotingCommand) -> SendHeader:
    if command.code == RequestCode.SEND_MESSAGE:
        return from_ext_fields(SendMessageRequestHeader, command.ext_fields)
    return from_ext_fields(SendMessageRequestHeaderV2, command.ext_fields)


def _find_or_create_topic(state: BrokerState, header: SendHeader) -> TopicConfig:
    problem = name_problem(header.topic)
    if problem:
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)
    if is_closed_to_producers(header.topic):
        raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden.")
    topic = state.topics.find(header.topic)
    if topic is None and state.settings.auto_create_topic_enable:
        topic = state.topics.create_for_send(
            header.topic, header.default_topic, header.default_topic_queue_nums
        )
    if topic is None and header.topic.startswith(RETRY_TOPIC_PREFIX):
        topic = state.topics.ensure(header.topic, 1)
    if topic is None:
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!{SEE_FAQ}"
        )
    return topic


def _target(state: BrokerState, command: RemotingCommand, header: SendHeader, topic: TopicConfig) -> _Target:
    if header.queue_id >= topic.queue_nums:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"request queueId[{header.queue_id}] is illegal, {topic}"
        )
    properties = decode_properties((header.properties or "").encode("utf-8", "replace"))
    if topic.name.startswith(RETRY_TOPIC_PREFIX) and _belongs_to_dead_letters(state, command, header):
        dead = state.topics.ensure(dlq_topic(topic.name.removeprefix(RETRY_TOPIC_PREFIX)), 1)
        return _Target(dead.name, 0, properties | {"DELAY": "-1"})
    queue_id = header.queue_id
    if queue_id < 0:
        queue_id = next(state.numbers) % max(1, topic.write_queue_nums)
    return _Target(topic.name, queue_id, properties)


def _belongs_to_dead_letters(state: BrokerState, command: RemotingCommand, header: SendHeader) -> bool:
    """Whether a retry was tried often enough, or comes from orderly consumption: its group holds a lock.

    Source: ``SendMessageProcessor.handleRetryAndDLQ`` of 5.1.1 and later.
    """
    name = header.topic.removeprefix(RETRY_TOPIC_PREFIX)
    group = state.groups.find_or_create(name, may_create=state.settings.auto_create_subscription_group)
    if group is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {SEE_FAQ}"
        )
    most = group.retry_max_times
    if header.max_reconsume_times is not None and command.version >= _OLDEST_WITH_MAX_RECONSUME_TIMES:
        most = header.max_reconsume_times
    return (header.reconsume_times or 0) > most or state.locks.has_live_lock(name)


def _members(
    state: BrokerState, command: RemotingCommand, header: SendHeader, target: _Target
) -> tuple[Member, ...]:
    """The messages of the request; ``target.properties`` and each message get what the broker adds."""
    properties = target.properties
    if not header.batch and "UNIQ_KEY" not in properties:
        properties["UNIQ_KEY"] = f"{next(state.numbers):032X}"
    if not header.batch and delay_level(properties, len(state.settings.delay_levels_s)):
        properties |= {"REAL_TOPIC": target.topic, "REAL_QID": str(target.queue_id)}
    appended = _encode({**properties, **_ALWAYS, "CLUSTER": CLUSTER_NAME})
    if header.batch:
        members = tuple(decode_batch_members(command.body, appended))
    else:
        members = (Member(header.flag, command.body, appended),)
    longest = max(len(member.properties) for member in members)
    if len(command.body) > state.settings.max_message_size or longest > MAX_PROPERTIES_LENGTH:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{state.settings.max_message_size}B, msg properties length limit 32KB.",
        )
    return members


def _encode(properties: Mapping[str, str]) -> bytes:
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode(
        "utf-8", "replace"
    )
