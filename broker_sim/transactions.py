"""Transactional messages: held until their producer commits or rolls back, and checked if it does neither.

A half message is in the broker's own topic. END_TRANSACTION stores it in the queue to which it was sent, or
forgets it. When it is ``transaction_timeout_s`` old, and then every ``transaction_check_interval_s``, a
member of its producer group is asked for its state. Each time the message is stored again, as by a real
broker, so that its place in the log changes. After ``transaction_check_max`` checks it is forgotten when it
is due again; a real broker moves it to ``TRANS_CHECK_MAX_TIME_TOPIC``.

A real broker looks for such messages every ``transactionCheckInterval``; here each is due at its own time.
The topic of finished ones (``RMQ_SYS_TRANS_OP_HALF_TOPIC``) is not written.

Source: RocketMQ 5.3.3 ``TransactionalMessageBridge``, ``EndTransactionProcessor``,
    ``TransactionalMessageServiceImpl.check``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker_sim.layout import (
    Member,
    MessageRun,
    Placement,
    StoredParts,
    StoredRun,
    encode_run,
    offset_message_id,
    read_stored,
)
from broker_sim.replies import Outgoing, Refused, reply
from broker_sim.state import BrokerState, HalfMessage, to_client
from broker_sim.storing import encode_properties, store_run
from pyspark_rocketmq.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import ONEWAY_FLAG, RemotingCommand
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import EndTransactionRequestHeader

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_TRANSACTION_BITS = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"


def is_half(properties: Mapping[str, str]) -> bool:
    """Whether a message belongs to a transaction, so that it is hidden until the transaction ends."""
    return properties.get("TRAN_MSG", "").lower() == "true"


def half_properties(topic: str, queue_id: int, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with which a message is stored until its transaction ends.

    ``topic`` and ``queue_id``, to which it was sent, are added.
    """
    own = {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
    return {**properties, "__transactionId__": properties["UNIQ_KEY"], **own}


def store_half(state: BrokerState, run: MessageRun, producer_group: str) -> StoredRun:
    """Store a message of an open transaction in the broker's own topic, and schedule its check.

    Its properties must be those of :func:`half_properties`.
    """
    return _keep(state, run, producer_group, checks=0, wait_s=state.settings.transaction_timeout_s)


def handle_end(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 37 END_TRANSACTION: commit a message or roll it back; any other state leaves it as it is.

    A commit stores the message in the queue to which it was sent; a rollback forgets it.

    Raises:
        Refused: If there is no such message, or the request does not match it.
    """
    header = from_ext_fields(EndTransactionRequestHeader, command.ext_fields)
    if header.commit_or_rollback not in (
        MessageSysFlag.TRANSACTION_COMMIT,
        MessageSysFlag.TRANSACTION_ROLLBACK,
    ):
        return reply(command)
    half = state.half_messages.get(header.commit_log_offset)
    stored = state.store.message_at(header.commit_log_offset)
    if half is None or stored is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    parts = read_stored(stored)
    if half.producer_group != header.producer_group:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if parts.queue_offset != header.tran_state_table_offset:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if header.commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT:
        store_run(state, _committed(parts))
    del state.half_messages[header.commit_log_offset]
    return reply(command)


def check_due(state: BrokerState) -> None:
    """Ask producers about the messages of open transactions that are due; forget those asked about too often.

    Each message is stored again, so that its place in the log changes.
    """
    now_s = state.clock.monotonic_s()
    for offset, half in list(state.half_messages.items()):
        if half.due_s > now_s:
            continue
        del state.half_messages[offset]
        stored = state.store.message_at(offset)
        if stored is None or half.checks >= state.settings.transaction_check_max:
            continue
        parts = read_stored(stored)
        checks = half.checks + 1
        properties = {**parts.properties, _CHECK_TIMES: str(checks)}
        # ``renewHalfMessageInner`` loses the flag, and sets WAIT=false in the message that is sent.
        again = _with(parts, 0, properties)
        shown = _with(parts, parts.member.flag, {**properties, "WAIT": "false"})
        interval_s = state.settings.transaction_check_interval_s
        placed = _keep(state, again, half.producer_group, checks=checks, wait_s=interval_s)
        _ask(state, shown, placed, half.producer_group)


@dataclass(frozen=True, slots=True)
class _Origin:
    topic: str
    queue_id: int


def _origin(parts: StoredParts) -> _Origin:
    properties = parts.properties
    return _Origin(properties["REAL_TOPIC"], int(properties["REAL_QID"]))


def _committed(parts: StoredParts) -> MessageRun:
    """Create the message that a commit stores in its queue.

    All properties stay, since the real broker (``endMessageTransaction``) removes some too late.
    """
    origin = _origin(parts)
    flags = parts.run.sys_flag & ~_TRANSACTION_BITS | int(MessageSysFlag.TRANSACTION_COMMIT)
    return replace(parts.run, topic=origin.topic, queue_id=origin.queue_id, sys_flag=flags)


def _keep(
    state: BrokerState, run: MessageRun, producer_group: str, *, checks: int, wait_s: float
) -> StoredRun:
    state.topics.ensure(HALF_TOPIC, 1)
    flags = run.sys_flag & ~_TRANSACTION_BITS
    stored = store_run(state, replace(run, topic=HALF_TOPIC, queue_id=0, sys_flag=flags))
    due_s = state.clock.monotonic_s() + wait_s
    state.half_messages[stored.commit_log_offsets[0]] = HalfMessage(producer_group, due_s, checks)
    return stored


def _ask(state: BrokerState, run: MessageRun, placed: StoredRun, producer_group: str) -> None:
    members = state.producers.members(producer_group)
    if not members:
        return
    offset = placed.commit_log_offsets[0]
    stored = state.store.message_at(offset)
    assert stored is not None
    parts = read_stored(stored)
    origin = _origin(parts)
    shown = replace(run, topic=origin.topic, queue_id=origin.queue_id, sys_flag=parts.run.sys_flag)
    place = Placement(offset, placed.queue_offset, parts.store_timestamp, parts.store_host)
    unique_key = parts.properties["UNIQ_KEY"]
    fields = {
        "topic": HALF_TOPIC,
        "commitLogOffset": str(offset),
        "tranStateTableOffset": str(placed.queue_offset),
        "msgId": unique_key,
        "transactionId": unique_key,
        "offsetMsgId": offset_message_id(state.host, offset),
        "bname": state.name,
    }
    code = RequestCode.CHECK_TRANSACTION_STATE
    request = to_client(state, code, fields, encode_run(shown, place).data, flag=ONEWAY_FLAG)
    asked = members[next(state.numbers) % len(members)]
    state.outbox.append(Outgoing(asked.peer, request, code))


def _with(parts: StoredParts, flag: int, properties: Mapping[str, str]) -> MessageRun:
    return replace(parts.run, members=(Member(flag, parts.member.body, encode_properties(properties)),))
