"""Handlers of sends, replies, and messages that a consumer sends back.

SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (``SendMessageProcessor``); 36 CONSUMER_SEND_MSG_BACK,
retries and dead letters (``AbstractSendMessageProcessor``).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass, replace

from broker_sim.bodies import SubscriptionGroupConfig
from broker_sim.client_requests import CALL_TIMEOUT_S, call_client
from broker_sim.delay import Postponement, postponement
from broker_sim.layout import (
    MAX_PROPERTIES_LENGTH,
    Member,
    MessageRun,
    StoredParts,
    StoredRun,
    decode_batch_members,
    offset_message_id,
    read_stored,
)
from broker_sim.replies import SEE_FAQ, Outcome, Outgoing, Peer, Refused, reply
from broker_sim.request_headers import SendMessageRequestHeader
from broker_sim.state import CLUSTER_NAME, BrokerState, to_client
from broker_sim.storing import ADDED_TO_EVERY_MESSAGE, encode_properties, postpone, store_run
from broker_sim.topics import PERM_WRITE, Topic, is_closed_to_producers, name_problem
from broker_sim.transactions import half_properties, is_half, store_half
from pyspark_rocketmq.model import RETRY_TOPIC_PREFIX, dlq_topic, retry_topic
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.properties import decode_properties
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields, to_ext_fields
from pyspark_rocketmq.wire.requests.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
)

_OLDEST_WITH_MAX_RECONSUME_TIMES = 121  # V3_4_9

_FIRST_RETRY_LEVEL = 3
_LONGEST_STORED_NAME = 127
"""Maximum length of the name of a topic that is not a retry topic (``HookUtils.checkBeforePutMessage``)."""
SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2


def max_retries(group: SubscriptionGroupConfig, client_version: int, max_reconsume_times: int | None) -> int:
    """Return how often a message is delivered again before it becomes a dead letter.

    It is ``max_reconsume_times`` of the request if its client is new enough to send it, else the group's.
    """
    if max_reconsume_times is not None and client_version >= _OLDEST_WITH_MAX_RECONSUME_TIMES:
        return max_reconsume_times
    return group.retry_max_times


def handle_send_back(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 36 CONSUMER_SEND_MSG_BACK: store a copy of a message that a consumer gives back.

    The copy goes into the group's retry topic for a later delivery. After too many deliveries, or with a
    negative delay level, it goes to the group's dead letters. A group without retry queues drops the message;
    the answer is SUCCESS all the same.

    Raises:
        Refused: If the copy cannot be stored.
    """
    header = from_ext_fields(ConsumerSendMsgBackRequestHeader, command.ext_fields)
    group = state.groups.find_or_create(
        header.group, may_create=state.settings.auto_create_subscription_group
    )
    if group is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {header.group} {SEE_FAQ}",
        )
    if not state.settings.broker_permission & PERM_WRITE:
        raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{state.host.ip}] sending message is forbidden")
    if group.retry_queue_nums <= 0:
        return reply(command)  # nothing is kept, and the answer does not show it
    topic = state.topics.ensure(retry_topic(header.group), group.retry_queue_nums)
    if not topic.perm & PERM_WRITE:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden")
    stored = state.store.message_at(header.offset)
    if stored is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
    message = read_stored(stored)
    most = max_retries(group, command.version, header.max_reconsume_times)
    if message.run.reconsume_times >= most or header.delay_level < 0:
        dead_letters = state.topics.ensure(dlq_topic(header.group), 1)
        _store_copy(state, message, dead_letters.name, 0, delay_level=0)
    else:
        queue_id = next(state.numbers) % group.retry_queue_nums
        level = header.delay_level or _FIRST_RETRY_LEVEL + message.run.reconsume_times
        _store_copy(state, message, topic.name, queue_id, delay_level=level)
    return reply(command)


def _store_copy(
    state: BrokerState, message: StoredParts, topic: str, queue_id: int, *, delay_level: int
) -> None:
    if len(topic) > _LONGEST_STORED_NAME and not topic.startswith(RETRY_TOPIC_PREFIX):
        raise Refused(ResponseCode.SYSTEM_ERROR, "MESSAGE_ILLEGAL")
    origin = offset_message_id(message.store_host, message.commit_log_offset)
    first = {"RETRY_TOPIC": message.run.topic, "ORIGIN_MESSAGE_ID": origin}
    properties = {**first, **message.properties, "WAIT": "false", "DELAY": str(delay_level)}
    wait = postponement(topic, queue_id, properties, settings=state.settings, now_ms=state.now_ms())
    encoded = encode_properties(properties if wait is None else wait.properties)
    if len(encoded) > MAX_PROPERTIES_LENGTH:
        raise Refused(ResponseCode.SYSTEM_ERROR, "PROPERTIES_SIZE_EXCEEDED")
    copy = replace(
        message.run,
        topic=topic,
        queue_id=queue_id,
        members=(message.member._replace(properties=encoded),),
        reconsume_times=message.run.reconsume_times + 1,
    )
    if wait is None:
        store_run(state, copy)
    else:
        postpone(state, copy, wait)


@dataclass(frozen=True, slots=True)
class _Target:
    """Queue and properties with which a sent message is stored, which may differ from those of the request.

    For example, a retry may end in the dead-letter topic.
    """

    topic: str
    queue_id: int
    properties: dict[str, str]
    wait: Postponement | None = None
    """Where the message waits if it is delayed; otherwise None."""
    is_half: bool = False
    """Whether the message belongs to a transaction that has not ended."""


def handle_send(state: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Answer SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: store one message or a batch.

    Pulls that wait for it are answered, too. The answer has the queue, the first queue offset and the ids.

    Raises:
        Refused: If the message is not stored.
    """
    if not command.body:  # golden fact 4: the real broker fails with a null pointer
        raise Refused(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: the message has no body")
    header = _header(command)
    try:
        topic = _find_or_create_topic(state, header)
        target = _target(state, command, header, topic)
        members = _members(state, command, header, target)
    except Refused as refused:
        raise Refused(refused.code, refused.remark, ADDED_TO_EVERY_MESSAGE) from None
    run = MessageRun(
        topic=target.topic,
        queue_id=target.queue_id,
        members=members,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=peer.host,
        reconsume_times=header.reconsume_times or 0,
    )
    if target.is_half:
        stored = store_half(state, run, header.producer_group)
    else:
        stored = store_run(state, run) if target.wait is None else postpone(state, run, target.wait)
    return _answer(state, command, target, stored)


def handle_reply(state: BrokerState, peer: Peer, command: RemotingCommand) -> None:
    """Handle 324 and 325, SEND_REPLY_MESSAGE: push a reply to its requester, store it, then send the answer.

    The reply is stored even if it cannot be pushed; the answer is an error then.

    Raises:
        Refused: If its topic cannot be used, or lacks its queue; then the reply is neither pushed nor stored.

    Source: ``ReplyMessageProcessor``.
    """
    header = _header(command)
    try:
        topic = _find_or_create_topic(state, header)
        _check_queue(header, topic)
    except Refused as refused:
        raise Refused(refused.code, refused.remark, ADDED_TO_EVERY_MESSAGE) from None
    properties = decode_properties((header.properties or "").encode("utf-8", "replace"))
    properties |= ADDED_TO_EVERY_MESSAGE
    run = MessageRun(
        topic=topic.name,
        queue_id=_queue_of(state, header, topic),
        members=(Member(header.flag, command.body, encode_properties(properties)),),
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=peer.host,
        reconsume_times=header.reconsume_times or 0,
    )

    def finish(problem: str | None) -> None:
        stored = store_run(state, run)
        fields = {
            "queueId": str(run.queue_id),
            "queueOffset": str(stored.queue_offset),
            "msgId": offset_message_id(state.host, stored.commit_log_offsets[0]),
            **ADDED_TO_EVERY_MESSAGE,
        }
        code = ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR
        if not command.is_oneway:
            answer = reply(command, code, problem, ext_fields=fields)
            state.outbox.append(Outgoing(peer, answer, command.code))

    def answered(outcome: Outcome) -> None:
        is_taken = isinstance(outcome, RemotingCommand) and outcome.code == ResponseCode.SUCCESS
        finish(None if is_taken else f"push reply message to {client_id}fail.")

    client_id = properties.get("REPLY_TO_CLIENT")
    asker = state.producers.find(client_id) if client_id is not None else None
    if client_id is None:
        finish("reply message properties[REPLY_TO_CLIENT] is null")
    elif asker is None:
        finish(f"push reply message fail, channel of <{client_id}> not found.")
    else:
        now_ms = str(state.now_ms())
        pushed = encode_properties({**properties, "PUSH_REPLY_TIME": now_ms}).decode()
        place = {"bornHost": str(peer.host), "storeHost": str(state.host), "storeTimestamp": now_ms}
        fields = {**to_ext_fields(_as_v1(header)), **place, "properties": pushed}
        push = to_client(state, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, command.body)
        call_client(state, asker, push, CALL_TIMEOUT_S, answered)


def _as_v1(header: SendHeader) -> SendMessageRequestHeader:
    """Return a reply's header in the form of 10 SEND_MESSAGE, in which every reply is pushed.

    It lacks the reply's properties; the caller adds them.
    """
    return SendMessageRequestHeader(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        reconsume_times=header.reconsume_times,
        unit_mode=bool(header.unit_mode),
    )


def _answer(
    state: BrokerState, command: RemotingCommand, target: _Target, stored: StoredRun
) -> RemotingCommand:
    fields = {
        "queueId": str(target.queue_id),
        "queueOffset": str(stored.queue_offset),
        "msgId": ",".join([offset_message_id(state.host, offset) for offset in stored.commit_log_offsets]),
        **ADDED_TO_EVERY_MESSAGE,
    }
    unique_key = target.properties.get("UNIQ_KEY")
    if unique_key:
        fields["transactionId"] = unique_key
    if target.wait is not None and target.wait.timer_out_ms is not None:
        fields["recallHandle"] = _recall_handle(state, target, target.wait.timer_out_ms)
    return reply(command, ext_fields=fields)


def _recall_handle(state: BrokerState, target: _Target, timer_out_ms: int) -> str:
    """Return the handle with which a producer can recall a timer (``RecallMessageHandle.HandleV1``)."""
    parts = ("v1", target.topic, state.name, str(timer_out_ms + 1), target.properties["UNIQ_KEY"])
    return urlsafe_b64encode(" ".join(parts).encode()).decode()


def _header(command: RemotingCommand) -> SendHeader:
    if command.code in {RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE}:
        return from_ext_fields(SendMessageRequestHeader, command.ext_fields)
    return from_ext_fields(SendMessageRequestHeaderV2, command.ext_fields)


def _find_or_create_topic(state: BrokerState, header: SendHeader) -> Topic:
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


def _target(state: BrokerState, command: RemotingCommand, header: SendHeader, topic: Topic) -> _Target:
    _check_queue(header, topic)
    properties = decode_properties((header.properties or "").encode("utf-8", "replace"))
    if topic.name.startswith(RETRY_TOPIC_PREFIX) and _belongs_to_dead_letters(state, command, header):
        dead = state.topics.ensure(dlq_topic(topic.name.removeprefix(RETRY_TOPIC_PREFIX)), 1)
        return _Target(dead.name, 0, properties | {"DELAY": "-1"})
    queue_id = _queue_of(state, header, topic)
    if header.batch:
        return _Target(topic.name, queue_id, properties)
    if "UNIQ_KEY" not in properties:
        properties["UNIQ_KEY"] = f"{next(state.numbers):032X}"
    if is_half(properties):
        kept = half_properties(topic.name, queue_id, properties)
        return _Target(topic.name, queue_id, kept, is_half=True)
    wait = postponement(topic.name, queue_id, properties, settings=state.settings, now_ms=state.now_ms())
    return _Target(topic.name, queue_id, properties if wait is None else wait.properties, wait)


def _check_queue(header: SendHeader, topic: Topic) -> None:
    if header.queue_id >= topic.queue_nums:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"request queueId[{header.queue_id}] is illegal, {topic}"
        )


def _queue_of(state: BrokerState, header: SendHeader, topic: Topic) -> int:
    if header.queue_id >= 0:
        return header.queue_id
    return next(state.numbers) % max(1, topic.write_queue_nums)


def _belongs_to_dead_letters(state: BrokerState, command: RemotingCommand, header: SendHeader) -> bool:
    """Return whether a message to a retry topic is stored as a dead letter.

    That is so if it has no deliveries left, or if its group holds a lock of a queue, as orderly consumers do.

    Source: ``SendMessageProcessor.handleRetryAndDLQ`` of 5.1.1 and later.
    """
    name = header.topic.removeprefix(RETRY_TOPIC_PREFIX)
    group = state.groups.find_or_create(name, may_create=state.settings.auto_create_subscription_group)
    if group is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {SEE_FAQ}"
        )
    most = max_retries(group, command.version, header.max_reconsume_times)
    return (header.reconsume_times or 0) > most or state.locks.has_live_lock(name)


def _members(
    state: BrokerState, command: RemotingCommand, header: SendHeader, target: _Target
) -> tuple[Member, ...]:
    """Return the messages of a send, each with the properties that the broker adds.

    Source: RocketMQ 5.3.3 ``MessageExtEncoder.encode``.

    Raises:
        Refused: If a body or properties are too large. The code is SYSTEM_ERROR for a batch that is too
            large, because the real broker fails with an exception then, and for one whose members' properties
            are too large, which the real broker would store damaged; otherwise it is MESSAGE_ILLEGAL.
    """
    if header.batch and len(command.body) > state.settings.max_message_size:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "java.lang.RuntimeException: message body size exceeded, "
            "org.apache.rocketmq.store.MessageExtEncoder.encode(MessageExtEncoder.java)",
        )
    appended = encode_properties({**target.properties, **ADDED_TO_EVERY_MESSAGE, "CLUSTER": CLUSTER_NAME})
    if header.batch:
        members = tuple(decode_batch_members(command.body, appended))
    else:
        members = (Member(header.flag, command.body, appended),)
    longest = max(len(member.properties) for member in members)
    if header.batch and longest > MAX_PROPERTIES_LENGTH:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the simulator refuses a batch with a message of {longest} bytes of properties, those of the "
            "batch included: RocketMQ would accept it, and damage its log",
        )
    if len(command.body) > state.settings.max_message_size or longest > MAX_PROPERTIES_LENGTH:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{state.settings.max_message_size}B, msg properties length limit 32KB.",
        )
    return members
