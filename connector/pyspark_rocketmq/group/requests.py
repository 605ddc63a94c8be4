"""Decodes and answers the requests that brokers send to this member."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.metrics import MetricsSnapshot, status_of
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.model import MessageExt, MessageModel, MessageQueue, is_retry_topic
from pyspark_rocketmq.offsets.store import OffsetRow, OffsetStore, is_at_brokers
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.codes import CLIENT_VERSION, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.namespace import queue_with_namespace, queue_without_namespace, without_namespace
from pyspark_rocketmq.wire.properties import RETRY_TOPIC
from pyspark_rocketmq.wire.requests.admin import (
    ConsumeMessageDirectlyRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData, decode_offset_table
from pyspark_rocketmq.wire.requests.client_info import (
    PROP_CLIENT_VERSION,
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    PROP_NAMESERVER_ADDR,
    PROP_THREADPOOL_CORE_SIZE,
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
    encode_consumer_status,
)
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import (
    GroupRequestHeader,
    ResetOffsetRequestHeader,
)

logger = logging.getLogger(__name__)

ConsumeOne = Callable[[MessageExt], ConsumeMessageDirectlyResult]
"""Calls the listener with one message; returns its answer or its error."""
WasReset = Callable[[Collection[MessageQueue]], None]
"""Called after an administrator's reset. It gets the reset queues if the offset store has no epochs, and so
cannot refuse the running batch's commits. With any other store it gets an empty collection."""


class ClientRemotingProcessor:
    """Answers the requests that brokers send to one member of one group.

    Give a pool a ``handler_for`` that returns this object. The object is called on the dispatcher threads of
    each channel, so on several threads at the same time. A slow listener delays only later messages that an
    administrator sends it on the same connection. After an exception the broker gets code 1 and the error's
    text. In requests, the names of groups and topics begin with the namespace; the public methods get the
    names without it.

    Source: RocketMQ 5.3.3 ``ClientRemotingProcessor``.
    """

    def __init__(
        self,
        options: ReadOptions,
        store: OffsetStore,
        offset_key: str,
        clock: Clock,
        open_listener: Callable[[], ConsumeOne] | None = None,
    ) -> None:
        """Prepare to answer; :meth:`serve` begins.

        ``open_listener`` opens the listener before the first message that an administrator sends. It is None
        if the listener runs on executors only.
        """
        self._options = options
        self._open_listener = open_listener
        self._namespace = options.namespace or ""
        self._store = store
        self._offset_key = offset_key
        self._clock = clock
        self._started_ms = int(clock.now_s() * 1000)
        self._member: RunningMember | None = None
        self._heartbeat: HeartbeatData | None = None
        self._guard = threading.Lock()
        """Guards the assignment of ``_consume_one``, which several channels' threads may make."""
        self._consume_one: ConsumeOne | None = None
        self._was_reset: WasReset | None = None
        self._handlers: Final[Mapping[int, Callable[[RemotingCommand], RemotingCommand]]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def serve(
        self, member: RunningMember, heartbeat: HeartbeatData, was_reset: WasReset | None = None
    ) -> None:
        """Answer on behalf of ``member`` from now on; call ``was_reset`` after each administrator's reset."""
        self._member, self._heartbeat, self._was_reset = member, heartbeat, was_reset

    # --- requests, decoded ----------------------------------------------------------------------------------

    def __call__(self, request: RemotingCommand) -> RemotingCommand | None:
        """Return the answer, which is not sent if the request is oneway; None if the code is unknown.

        Raises:
            RemoteProtocolError: If the request is malformed.
            RocketMQError: If the offset store cannot be read or written.
        """
        handler = self._handlers.get(request.code)
        return None if handler is None else handler(request)

    def _consumer_ids_changed(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(GroupRequestHeader, request.ext_fields)
        self.consumer_ids_changed(self._bare(header.consumer_group))
        return request.response(ResponseCode.SUCCESS)

    def _reset_offsets(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(ResetOffsetRequestHeader, request.ext_fields)
        offsets = {
            queue_without_namespace(self._namespace, queue): offset
            for queue, offset in decode_offset_table(request.body).items()
        }
        self.reset_offsets(self._bare(header.group), self._bare(header.topic), offsets)
        return request.response(ResponseCode.SUCCESS)

    def _consumer_status(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(GetConsumerStatusRequestHeader, request.ext_fields)
        offsets = self.next_offsets(self._bare(header.group), self._bare(header.topic))
        named = {queue_with_namespace(self._namespace, queue): offset for queue, offset in offsets.items()}
        return request.response(ResponseCode.SUCCESS, body=encode_consumer_status(named))

    def _running_info(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(GetConsumerRunningInfoRequestHeader, request.ext_fields)
        info = self.running_info(self._bare(header.consumer_group))
        if info is None:
            return _no_such_group(request, header.consumer_group)
        if header.jstack_enable:
            info = replace(info, jstack=_stacks())
        return request.response(ResponseCode.SUCCESS, body=dumps_java(info))

    def _consume_directly(self, request: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(ConsumeMessageDirectlyRequestHeader, request.ext_fields)
        message = self._message(request.body, header.stored_on or header.broker_name or "")
        result = self.consume_directly(self._bare(header.consumer_group), message)
        if result is None:
            return _no_such_group(request, header.consumer_group)
        return request.response(ResponseCode.SUCCESS, body=dumps_java(result))

    def _message(self, body: bytes, broker_name: str) -> MessageExt:
        messages = decode_messages(body, broker_name)
        if len(messages) != 1:
            raise RemoteProtocolError(
                f"Broker {broker_name} forwarded an operator's request to consume one message (mqadmin "
                f"queryMsgByUniqueKey -g -d), but with {len(messages)} messages; none was consumed."
            )
        message = messages[0]._replace(topic=self._bare(messages[0].topic))
        origin = message.properties.get(RETRY_TOPIC)
        return message.restored(self._bare(origin)) if origin and is_retry_topic(message.topic) else message

    def _bare(self, resource: str) -> str:
        return without_namespace(self._namespace, resource)

    # --- requests, answered ---------------------------------------------------------------------------------

    def consumer_ids_changed(self, consumer_group: str) -> None:
        """Rebalance soon, because the members of ``consumer_group`` have changed; ignore other groups.

        Such requests come often, and many within a short time. See row B1 of ``docs/semantics.md``.
        """
        if self._member is not None and consumer_group == self._options.consumer_group:
            self._member.notified()

    def reset_offsets(
        self, consumer_group: str, topic: str, next_offsets: Mapping[MessageQueue, int]
    ) -> None:
        """Store an administrator's reset: the next plan starts there, and the running batch cannot commit.

        Negative offsets, queues that this member does not hold, other groups and other topics are ignored.
        See row F5 of ``docs/semantics.md``. If the brokers are the store, a commit that is under way may
        replace the new offsets; so the next plan stores them again.
        """
        if consumer_group != self._options.consumer_group or topic not in self._options.all_subscribed():
            return
        held = self._held()
        targets = {queue: offset for queue, offset in next_offsets.items() if queue in held and offset >= 0}
        logger.warning("offsets reset by an administrator group=%s targets=%s", consumer_group, targets)
        if not targets:
            return
        self._store.reset(self._offset_key, targets)
        unfenced = targets if is_at_brokers(self._store) else {}
        for queue, target in unfenced.items():
            assert self._member is not None, "it holds the queue"
            self._member.reset_found(queue, target)
        if self._was_reset is not None:
            self._was_reset(unfenced.keys())

    def next_offsets(self, consumer_group: str, topic: str) -> Mapping[MessageQueue, int]:
        """Return the stored next offsets of the topic's queues held here; empty for another group."""
        if consumer_group != self._options.consumer_group:
            return {}
        return {
            queue: row.next_offset for queue, row in self._rows(self._held()).items() if queue.topic == topic
        }

    def running_info(self, consumer_group: str) -> ConsumerRunningInfo | None:
        """Return what ``mqadmin consumerStatus`` shows: subscriptions, held queues, locks, offsets, rates.

        Return None if this is not a member of the group.
        """
        if consumer_group != self._options.consumer_group or self._heartbeat is None:
            return None
        (consumer,) = self._heartbeat.consumers
        locked_at_ms = self._held()
        has_locks = consumer.message_model is MessageModel.CLUSTERING and self._options.consume_orderly
        rows = self._rows(locked_at_ms)
        return ConsumerRunningInfo(
            properties={
                PROP_NAMESERVER_ADDR: ";".join(self._options.name_servers),
                PROP_THREADPOOL_CORE_SIZE: "1",
                PROP_CONSUME_ORDERLY: str(self._options.consume_orderly).lower(),
                PROP_CONSUME_TYPE: consumer.consume_type.value,
                PROP_CLIENT_VERSION: str(CLIENT_VERSION),
                PROP_CONSUMER_START_TIMESTAMP: str(self._started_ms),
                "offsetStore": masked(self._store.spec),
            },
            subscriptions=consumer.subscriptions,
            queues={
                queue: _queue_info(row, locked_at_ms[queue] if has_locks else None)
                for queue, row in rows.items()
            },
            statuses=self._statuses(rows.values()),
        )

    def consume_directly(
        self, consumer_group: str, message: MessageExt
    ) -> ConsumeMessageDirectlyResult | None:
        """Call the listener with ``message`` in this process, and return its answer or error.

        If the listener was not registered by its name, return a refusal with the reason. If this is not a
        member of the group, return None. See row D12 of ``docs/semantics.md``.
        """
        if consumer_group != self._options.consumer_group:
            return None
        if self._open_listener is not None:
            return self._opened(self._open_listener)(message)
        return ConsumeMessageDirectlyResult(
            consume_result=ConsumeResult.CR_THROW_EXCEPTION,
            order=self._options.consume_orderly,
            remark=f"Message {message.msg_id} was not consumed: this member is a Spark query, whose listener "
            "runs on executors only. Register the listener by name ('module:name') to have single messages "
            "consumed, or reset the group's offset to have the message consumed again.",
        )

    def _opened(self, open_listener: Callable[[], ConsumeOne]) -> ConsumeOne:
        """Return the listener for an administrator's messages; open it at the first call.

        If several threads open it at the same time, all of them use the first one.
        """
        if self._consume_one is None:
            opened = open_listener()
            with self._guard:
                if self._consume_one is None:
                    self._consume_one = opened
        return self._consume_one

    def _statuses(self, rows: Iterable[OffsetRow]) -> dict[str, ConsumeStatus]:
        """Return statistics by topic, from the batches that this member's query has committed.

        See row D11 of ``docs/semantics.md``.
        """
        snapshots: dict[str, list[MetricsSnapshot]] = {topic: [] for topic in self._options.all_subscribed()}
        for row in rows:
            snapshots.setdefault(row.queue.topic, []).append(row.statistics)
        return {topic: status_of(found, self._clock.now_s()) for topic, found in snapshots.items()}

    def _held(self) -> dict[MessageQueue, int]:
        """Return the held queues, with the wall-clock millisecond of each lock's last renewal."""
        if self._member is None:
            return {}
        ago = self._clock.now_s() - self._clock.monotonic_s()
        return {queue: int((at_s + ago) * 1000) for queue, at_s in self._member.held().items()}

    def _rows(self, held: Iterable[MessageQueue]) -> dict[MessageQueue, OffsetRow]:
        rows = self._store.read(self._offset_key)
        return {queue: rows[queue] for queue in sorted(held) if queue in rows}


def _no_such_group(request: RemotingCommand, consumer_group: str) -> RemotingCommand:
    remark = f"The Consumer Group <{consumer_group}> not exist in this consumer"
    return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)


def _stacks() -> str:
    """Return the stack of every thread of this process, in place of Java's thread dump."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - documented, in spite of its name
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames.items()
    )


def _queue_info(row: OffsetRow, locked_at_ms: int | None) -> ProcessQueueInfo:
    updated_ms = int(row.updated_at_s * 1000)
    return ProcessQueueInfo(
        commit_offset=row.next_offset,
        locked=locked_at_ms is not None,
        last_lock_timestamp=locked_at_ms or 0,
        last_pull_timestamp=updated_ms,
        last_consume_timestamp=updated_ms,
    )
