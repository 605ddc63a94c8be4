"""Administrators' requests about clients: lists of connections, and requests passed on to members.

Consumers 203, producers 204 and 328 (``AdminBrokerProcessor``); 223, 307 and 309 are answered by the group's
members (``Broker2Client``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from broker_sim.bodies import encode_group_status
from broker_sim.groups import Client
from broker_sim.replies import ClientCall, NoAnswer, Outcome, Outgoing, Peer, Refused, reply
from broker_sim.request_headers import CallClientHeader, ProducerGroupHeader
from broker_sim.state import BrokerState, to_client
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import checked_int64, dumps_java, read_object
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from pyspark_rocketmq.wire.requests.admin import (
    ClientConnection,
    ConsumerConnection,
    GetConsumerStatusRequestHeader,
)
from pyspark_rocketmq.wire.requests.bodies import queue_from_json
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import GroupRequestHeader

CALL_TIMEOUT_S = 10.0
_STATUS_TIMEOUT_S = 5.0
_OLDEST_CALLABLE_CLIENT = 62
"""Lowest version of a client to which requests are forwarded (V3_1_8_SNAPSHOT)."""
_OLDEST_CLIENT_WITH_STATUS = 28
"""Lowest version of a client that can report its offsets, by request 221 (V3_0_7_SNAPSHOT)."""
OffsetTable = Mapping[MessageQueue, int]


def handle_consumer_connections(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 203 GET_CONSUMER_CONNECTION_LIST: the group's consumers and their settings.

    Raises:
        Refused: If the group has no members.
    """
    header = from_ext_fields(GroupRequestHeader, command.ext_fields)
    data = state.membership.consumer_data(header.consumer_group)
    if data is None:
        raise Refused(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
        )
    connection = ConsumerConnection(
        connections=tuple(map(_connection, state.membership.members(header.consumer_group))),
        consume_type=data.consume_type,
        message_model=data.message_model,
        consume_from_where=data.consume_from_where,
        subscriptions=state.membership.subscriptions(header.consumer_group),
    )
    return reply(command, body=dumps_java(connection))


def handle_producer_connections(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 204 GET_PRODUCER_CONNECTION_LIST: the group's producers.

    Raises:
        Refused: If the group has no members.
    """
    header = from_ext_fields(ProducerGroupHeader, command.ext_fields)
    members = state.producers.members(header.producer_group)
    if not members:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producer_group}] not exist")
    return reply(
        command,
        body=dumps_java({"connectionSet": list(map(_connection, members))}),
    )


def handle_all_producers(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 328 GET_ALL_PRODUCER_INFO: the members of every producer group."""
    table = {
        group: [
            {
                "clientId": each.client_id,
                "language": LanguageCode(each.language).name,
                "lastUpdateTimestamp": state.now_ms(),
                "remoteIP": str(each.peer.host),
                "version": each.version,
            }
            for each in members
        ]
        for group, members in state.producers.groups().items()
    }
    return reply(command, body=dumps_java({"data": table}))


def _connection(client: Client) -> ClientConnection:
    return ClientConnection(
        client_id=client.client_id,
        client_addr=str(client.peer.host),
        language=LanguageCode(client.language).name,
        version=client.version,
    )


def handle_running_info(state: BrokerState, peer: Peer, command: RemotingCommand) -> None:
    """Handle 307 GET_CONSUMER_RUNNING_INFO: forward it unchanged to the member that it names.

    The member's answer is passed on when it arrives.
    """
    _forward(state, peer, command, command.ext_fields, b"")


def handle_consume_directly(state: BrokerState, peer: Peer, command: RemotingCommand) -> None:
    """Handle 309 CONSUME_MESSAGE_DIRECTLY: have one member consume one message now.

    The request is forwarded with the message, and the member's answer is passed on when it arrives.
    """
    header = from_ext_fields(CallClientHeader, command.ext_fields)
    fields = {**command.ext_fields, "brokerName": state.name}
    topic = state.topics.find(header.topic or "")
    if topic is not None:
        fields["topicSysFlag"] = str(topic.topic_sys_flag)
    may_create = state.settings.auto_create_subscription_group
    group = state.groups.find_or_create(header.consumer_group, may_create=may_create)
    if group is not None:
        fields["groupSysFlag"] = str(group.group_sys_flag)
    _, commit_log_offset = decode_offset_message_id(header.message_id or "")
    message = state.store.message_at(commit_log_offset)
    if message is None:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: there is no message with this id"
        )
    _forward(state, peer, command, fields, message)


def handle_consumer_status(state: BrokerState, peer: Peer, command: RemotingCommand) -> None:
    """Handle 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ask the members for their own offsets.

    All are asked at the same time. The answer is sent when each has answered, or 5 s later without those that
    have not.
    """
    header = from_ext_fields(GetConsumerStatusRequestHeader, command.ext_fields)
    members = state.membership.members(header.group)
    if not members:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
        )
    for member in members:
        if member.version < _OLDEST_CLIENT_WITH_STATUS:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={member.version}",
            )
    asked = [each for each in members if not header.client_addr or each.client_id == header.client_addr]
    survey = _Survey(state, peer, command, len(asked))
    fields = {"group": header.group, "topic": header.topic}
    for member in asked:
        request = to_client(state, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
        call_client(state, member, request, _STATUS_TIMEOUT_S, partial(survey.answered, member.client_id))
    survey.finish_if_complete()


class _Survey:
    """Collects the members' answers to one request, and answers the request when no more can arrive."""

    def __init__(self, state: BrokerState, peer: Peer, command: RemotingCommand, expected: int) -> None:
        self._state = state
        self._peer = peer
        self._command = command
        self._missing = expected
        self._tables: dict[str, OffsetTable] = {}

    def answered(self, client_id: str, outcome: Outcome) -> None:
        self._missing -= 1
        if isinstance(outcome, RemotingCommand) and outcome.code == ResponseCode.SUCCESS and outcome.body:
            try:
                self._tables[client_id] = _message_queue_table(outcome.body)
            except RemoteProtocolError:  # treat it as no answer
                self._tables.pop(client_id, None)
        self.finish_if_complete()

    def finish_if_complete(self) -> None:
        if self._missing:
            return
        answer = reply(
            self._command, remark="not set any response code", body=encode_group_status(self._tables)
        )
        self._state.outbox.append(Outgoing(self._peer, answer, self._command.code))


def _message_queue_table(body: bytes) -> OffsetTable:
    where = "GetConsumerStatusBody.messageQueueTable"
    table = read_object(body, "GetConsumerStatusBody")
    return {
        queue_from_json(key, where): checked_int64(offset, where)
        for key, offset in table.pairs("messageQueueTable")
    }


def _forward(
    state: BrokerState, peer: Peer, command: RemotingCommand, fields: Mapping[str, str], body: bytes
) -> None:
    """Forward the request to the member that it names, and later pass on its answer (``callConsumer``).

    If it does not answer within 10 s, or its connection closes, the answer is an error.

    Raises:
        Refused: If the member is not connected or too old.
    """
    header = from_ext_fields(CallClientHeader, command.ext_fields)
    group, client_id = header.consumer_group, header.client_id
    member = state.membership.find(group, client_id or "")
    if member is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    if member.version < _OLDEST_CALLABLE_CLIENT:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it to "
            "V3_1_8_SNAPSHOT",
        )

    def give_back(outcome: Outcome) -> None:
        if isinstance(outcome, RemotingCommand):
            answer = replace(outcome, opaque=command.opaque, serialize_type=command.serialize_type)
        elif outcome is NoAnswer.TIMEOUT:
            remark = f"consumer <{group}> <{client_id}> Timeout: no answer within {CALL_TIMEOUT_S:.0f} s"
            answer = reply(command, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        else:
            remark = f"invoke consumer <{group}> <{client_id}> Exception: the connection was closed"
            answer = reply(command, ResponseCode.SYSTEM_ERROR, remark)
        state.outbox.append(Outgoing(peer, answer, command.code))

    call_client(state, member, to_client(state, command.code, fields, body), CALL_TIMEOUT_S, give_back)


def call_client(
    state: BrokerState,
    member: Client,
    request: RemotingCommand,
    timeout_s: float,
    finish: Callable[[Outcome], None],
) -> None:
    """Send a request to a client; ``finish`` gets its answer, or the reason why there is none."""
    call = ClientCall(
        peer=member.peer,
        opaque=request.opaque,
        deadline_s=state.clock.monotonic_s() + timeout_s,
        finish=finish,
    )
    state.client_calls.add(call)
    state.outbox.append(Outgoing(member.peer, request, int(request.code)))
