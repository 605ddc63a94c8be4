"""What brokers ask of their clients: decoded, handed to the member of a group, answered as Java's client answers.

Plug it in as ``handler_for`` of a pool (``ConnectionSettings.open_pool``).  It runs on the dispatcher's thread
of the channel that the request came from: a member that is slow delays the requests behind it on that connection,
never the answers to our own; one that raises is answered for with code 1 and its text.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import MessageExt, MessageQueue, is_retry_topic
from pyspark_rocketmq.wire.admin_headers import (
    ConsumeMessageDirectlyRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from pyspark_rocketmq.wire.bodies import decode_offset_table
from pyspark_rocketmq.wire.client_info import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    encode_consumer_status,
    encode_directly_result,
    encode_running_info,
)
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.headers import (
    NotifyConsumerIdsChangedRequestHeader,
    ResetOffsetRequestHeader,
    from_ext_fields,
)
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.namespace import queue_with_namespace, queue_without_namespace, without_namespace
from pyspark_rocketmq.wire.properties import RETRY_TOPIC


class GroupMember(Protocol):
    """A client that belongs to consumer groups; groups, topics and queues are named without their namespace.

    Called from the threads of several connections, also at the same time: once per broker that asks.
    """

    def consumer_ids_changed(self, consumer_group: str) -> None:
        """Members came or went, or one changed its subscription: rebalance soon. Comes often and in bursts."""
        ...

    def reset_offsets(
        self, consumer_group: str, topic: str, next_offsets: Mapping[MessageQueue, int]
    ) -> None:
        """An operator wants these queues consumed from here on: drop what is held of them, store, begin again."""
        ...

    def next_offsets(self, consumer_group: str, topic: str) -> Mapping[MessageQueue, int]:
        """Next offsets to consume of the queues this member has; empty if it is not of the group."""
        ...

    def running_info(self, consumer_group: str) -> ConsumerRunningInfo | None:
        """What an operator may know of this member; None if it is not of the group."""
        ...

    def consume_directly(
        self, consumer_group: str, message: MessageExt
    ) -> ConsumeMessageDirectlyResult | None:
        """Have the listener consume one message, whatever the offsets are; None if it is not of the group."""
        ...


class ServerRequests:
    """Answers for one member; implements :data:`pyspark_rocketmq.client.dispatcher.RequestHandler`.

    Source: RocketMQ 5.3.3 ``ClientRemotingProcessor``.
    """

    def __init__(self, member: GroupMember, *, namespace: str = "") -> None:
        self._member = member
        self._namespace = namespace
        self._handlers: Final[Mapping[int, Callable[[RemotingCommand], RemotingCommand]]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def __call__(self, request: RemotingCommand) -> RemotingCommand | None:
        """The answer, which the dispatcher does not send if the request is oneway; None if the code is not known.

        Raises:
            RemoteProtocolError: If the request makes no sense.
        """
        handler = self._handlers.get(request.code)
        return None if handler is None else handler(request)

    def _consumer_ids_changed(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(NotifyConsumerIdsChangedRequestHeader, request.ext_fields)
        self._member.consumer_ids_changed(self._bare(header.consumer_group))
        return request.response(ResponseCode.SUCCESS)

    def _reset_offsets(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(ResetOffsetRequestHeader, request.ext_fields)
        offsets = {
            queue_without_namespace(self._namespace, queue): offset
            for queue, offset in decode_offset_table(request.body).items()
        }
        self._member.reset_offsets(self._bare(header.group), self._bare(header.topic), offsets)
        return request.response(ResponseCode.SUCCESS)

    def _consumer_status(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(GetConsumerStatusRequestHeader, request.ext_fields)
        offsets = self._member.next_offsets(self._bare(header.group), self._bare(header.topic))
        named = {queue_with_namespace(self._namespace, queue): offset for queue, offset in offsets.items()}
        return request.response(ResponseCode.SUCCESS, body=encode_consumer_status(named))

    def _running_info(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(GetConsumerRunningInfoRequestHeader, request.ext_fields)
        info = self._member.running_info(self._bare(header.consumer_group))
        if info is None:
            return _no_such_group(request, header.consumer_group)
        if header.jstack_enable:
            info = replace(info, jstack=_stacks())
        return request.response(ResponseCode.SUCCESS, body=encode_running_info(info))

    def _consume_directly(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(ConsumeMessageDirectlyRequestHeader, request.ext_fields)
        message = self._message(request.body, header.stored_on or header.broker_name or "")
        result = self._member.consume_directly(self._bare(header.consumer_group), message)
        if result is None:
            return _no_such_group(request, header.consumer_group)
        return request.response(ResponseCode.SUCCESS, body=encode_directly_result(result))

    def _message(self, body: bytes, broker_name: str) -> MessageExt:
        messages = decode_messages(body, broker_name)
        if len(messages) != 1:
            raise RemoteProtocolError(
                f"{broker_name} wants {len(messages)} messages consumed at once, not one."
            )
        message = messages[0]._replace(topic=self._bare(messages[0].topic))
        origin = message.properties.get(RETRY_TOPIC)
        return message.restored(self._bare(origin)) if origin and is_retry_topic(message.topic) else message

    def _bare(self, resource: str) -> str:
        return without_namespace(self._namespace, resource)


def _no_such_group(request: RemotingCommand, consumer_group: str) -> RemotingCommand:
    remark = f"The Consumer Group <{consumer_group}> not exist in this consumer"
    return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)


def _stacks() -> str:
    """What every thread of this process is doing, in the place of Java's thread dump."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - documented, in spite of its name
    parts = (
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames.items()
    )
    return "\n".join(parts)
