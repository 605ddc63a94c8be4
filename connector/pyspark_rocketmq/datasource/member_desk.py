"""What this member answers when a broker asks, on an administrator's behalf or its own.

Implements ``client.server_requests.GroupMember``. Everything is read from the offset store, which is the truth, and
from the running member; nothing here is on the way of a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.statistics import status_of
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.masked import masked
from pyspark_rocketmq.model import MessageExt, MessageModel, MessageQueue
from pyspark_rocketmq.offsets.store import OffsetRow, OffsetStore
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.wire.bodies import HeartbeatData
from pyspark_rocketmq.wire.client_info import (
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
)
from pyspark_rocketmq.wire.codes import CLIENT_VERSION

logger = logging.getLogger(__name__)


class MemberDesk:
    """Answers for one member of one group, once :meth:`serve` said for which."""

    def __init__(self, options: ReadOptions, store: OffsetStore, progress_name: str, clock: Clock) -> None:
        self._options = options
        self._store = store
        self._progress_name = progress_name
        self._clock = clock
        self._started_ms = int(clock.now_s() * 1000)
        self._member: RunningMember | None = None
        self._heartbeat: HeartbeatData | None = None
        self._consume_one: Callable[[MessageExt], ConsumeMessageDirectlyResult] | None = None
        self._was_reset: Callable[[], None] | None = None

    def serve(self, member: RunningMember, heartbeat: HeartbeatData) -> None:
        """Answer for ``member`` from now on."""
        self._member, self._heartbeat = member, heartbeat

    def tell_resets(self, was_reset: Callable[[], None]) -> None:
        """Call ``was_reset`` each time that an administrator's reset has been stored."""
        self._was_reset = was_reset

    def consumer_ids_changed(self, consumer_group: str) -> None:
        """Rebalance at once (B1)."""
        if self._member is not None and consumer_group == self._options.consumer_group:
            self._member.notified()

    def reset_offsets(
        self, consumer_group: str, topic: str, next_offsets: Mapping[MessageQueue, int]
    ) -> None:
        """Store the new positions; the next plan begins there, and the batch under way is fenced off (F5)."""
        if consumer_group != self._options.consumer_group or topic not in self._options.all_subscribed():
            return
        held = self._held()
        targets = {queue: offset for queue, offset in next_offsets.items() if queue in held and offset >= 0}
        logger.warning("offsets reset by an administrator group=%s targets=%s", consumer_group, targets)
        if targets:
            self._store.reset(self._progress_name, targets)
            if self._was_reset is not None:
                self._was_reset()

    def next_offsets(self, consumer_group: str, topic: str) -> Mapping[MessageQueue, int]:
        """Of the queues this member holds, from the offset store."""
        if consumer_group != self._options.consumer_group:
            return {}
        return {
            queue: row.next_offset for queue, row in self._rows(self._held()).items() if queue.topic == topic
        }

    def running_info(self, consumer_group: str) -> ConsumerRunningInfo | None:
        """What ``mqadmin consumerStatus`` shows: subscriptions, queues held, their locks and offsets, rates."""
        if consumer_group != self._options.consumer_group or self._heartbeat is None:
            return None
        (consumer,) = self._heartbeat.consumers
        locked_at_ms = self._held()
        is_shared = consumer.message_model is MessageModel.CLUSTERING
        has_locks = is_shared and self._options.consume_orderly
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
        """Call the listener here if it can be imported by its name (D12), else refuse in a sentence."""
        if consumer_group != self._options.consumer_group:
            return None
        is_orderly = self._options.consume_orderly
        if self._options.listener is not None:
            if self._consume_one is None:
                # What listeners run in is above this package, and costs imports that a planner seldom needs.
                above = import_module("pyspark_rocketmq.streaming.one_message")
                self._consume_one = above.OneMessageConsumer(
                    self._options.listener, consumer_group, orderly=is_orderly
                ).consume
            assert self._consume_one is not None
            return self._consume_one(message)
        return ConsumeMessageDirectlyResult(
            consume_result=ConsumeResult.CR_THROW_EXCEPTION,
            order=is_orderly,
            remark=f"Message {message.msg_id} was not consumed: this member is a Spark query, whose listener runs on "
            "executors only. Register the listener by name ('module:name') to have single messages consumed, or "
            "reset the group's offset to have the message consumed again.",
        )

    def _statuses(self, rows: Iterable[OffsetRow]) -> dict[str, ConsumeStatus]:
        """By topic; the figures of batches that this member's query has committed (D11)."""
        texts: dict[str, list[str]] = {topic: [] for topic in self._options.all_subscribed()}
        for row in rows:
            texts.setdefault(row.queue.topic, []).append(row.statistics)
        return {topic: status_of(written, self._clock.now_s()) for topic, written in texts.items()}

    def _held(self) -> dict[MessageQueue, int]:
        """Queues held, with the wall-clock millisecond of each lock's last renewal."""
        if self._member is None:
            return {}
        ago = self._clock.now_s() - self._clock.monotonic_s()
        return {queue: int((at_s + ago) * 1000) for queue, at_s in self._member.held().items()}

    def _rows(self, held: Iterable[MessageQueue]) -> dict[MessageQueue, OffsetRow]:
        rows = self._store.read(self._progress_name)
        return {queue: rows[queue] for queue in sorted(held) if queue in rows}


def _queue_info(row: OffsetRow, locked_at_ms: int | None) -> ProcessQueueInfo:
    updated_ms = int(row.updated_at_s * 1000)
    return ProcessQueueInfo(
        commit_offset=row.next_offset,
        locked=locked_at_ms is not None,
        last_lock_timestamp=locked_at_ms or 0,
        last_pull_timestamp=updated_ms,
        last_consume_timestamp=updated_ms,
    )
