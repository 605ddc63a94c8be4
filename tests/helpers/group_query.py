"""A consumer group's query without Spark: it plans, reads and commits as a query in Spark does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.group.broker_offsets import RemoteBrokerOffsets
from pyspark_rocketmq.group.join import join_group
from pyspark_rocketmq.listeners.messages import messages_of
from pyspark_rocketmq.model import LISTENER_COLUMNS, MessageExt, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.positions import LATEST
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import ClusterView
from pyspark_rocketmq.source.message_lookup import MessageLookup
from pyspark_rocketmq.source.planner import MicroBatchPlanner
from pyspark_rocketmq.source.progress import GroupProgress
from pyspark_rocketmq.source.ranges import Offset, partitions_of
from pyspark_rocketmq.source.reader import read_queue
from pyspark_rocketmq.source.schema import EndReason, RangeEnd
from pyspark_rocketmq.source.start_positions import OptionPositions
from pyspark_rocketmq.stored_values import NO_MESSAGES, LastMessage, RememberedMessages
from tests.helpers.source_rows import end_of
from tests.helpers.wait import wait_until

SOON_S = 120.0
"""Time limit, longer than any step here needs, so that a slow machine fails no test."""


class GroupQuery:
    """One query of the group, as its planner sees the world."""

    def __init__(self, name: str, options: ReadOptions, store: MemoryOffsetStore, pool: ChannelPool) -> None:
        assert options.consumer_group is not None
        self.group = options.consumer_group
        self.options = options
        self.store = store
        self.member = join_group(options, name, store, SystemClock())
        view = ClusterView(options, pool, SystemClock())
        progress = GroupProgress(
            consumer_group=self.group,
            client_id=name,
            store=store,
            ownership=self.member,
            starts=OptionPositions.of(options, pool, SystemClock(), LATEST).starts,
            clock=SystemClock(),
            broker_offsets=RemoteBrokerOffsets.of(options, SystemClock(), pool=pool),
            message_lookup=MessageLookup(options, pool, SystemClock()),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        self.planner = MicroBatchPlanner(options, view, progress, SystemClock(), lambda _: None)
        self.offset: Offset = self.planner.initial()
        self.before_pulls: Callable[[], object] = lambda: None
        """Called between the next plans and their pulls."""
        self.member.start()

    def consumed(self) -> dict[MessageQueue, list[MessageExt]]:
        """Return what the next micro-batch reads, as its listener gets it, and commit it at once."""
        following = self.planner.latest(self.offset)
        if following == self.offset:
            return {}
        self.offset = following
        planned_ranges = self.planner.runnable(following)
        self.before_pulls()
        read = {planned.queue: self._read(planned) for planned in planned_ranges}
        commits = [
            QueueCommit(
                queue=queue,
                state=QueueState(
                    end.planned.end,
                    end.planned.state.epoch,
                    last_message=_remembered(messages[-1]) if messages else NO_MESSAGES,
                ),
                is_shown=True,
            )
            for queue, (messages, end) in read.items()
        ]
        assert not self.store.commit(self.group, commits, query_id="q", batch_id=following["seq"]).refused
        others = {
            queue: end.planned for queue, (_, end) in read.items() if end.reason is EndReason.ANOTHER_LOG
        }
        if others:
            # As the committer does it.
            self.store.reset(
                self.group,
                {queue: planned.end for queue, planned in others.items()},
                under={queue: planned.state.epoch for queue, planned in others.items()},
            )
        return {queue: messages for queue, (messages, _) in read.items()}

    def _read(self, planned: QueueRange) -> tuple[list[MessageExt], RangeEnd]:
        """Messages, and the range's end."""
        seen = self.planner.snapshot_for([planned], can_wait=True)
        (partition,) = partitions_of(
            [planned],
            self.options,
            seen.addresses,
            seen.replicas,
            seen.slaves,
            consumed=self.planner.witnesses([planned]),
        )
        *batches, marker = read_queue(partition)
        rows = [row for batch in batches for row in batch.to_pylist()]
        messages = messages_of([[row[name] for row in rows] for name in LISTENER_COLUMNS])
        return messages, end_of(marker)


def _remembered(message: MessageExt) -> RememberedMessages:
    # Spark's rows have times.
    stored: Any = message.store_timestamp
    stored_ms = round(stored.timestamp() * 1000)
    return RememberedMessages.of(LastMessage(message.queue_offset, stored_ms, message.commit_log_offset))


def await_consumed(query: GroupQuery, count: int) -> list[tuple[MessageQueue, MessageExt]]:
    """Consume until there were ``count`` messages."""
    seen: list[tuple[MessageQueue, MessageExt]] = []

    def has_enough() -> bool:
        for queue, messages in query.consumed().items():
            seen.extend((queue, message) for message in messages)
        return len(seen) >= count

    wait_until(has_enough, SOON_S, reason=f"{count} messages")
    assert len(seen) == count
    return seen
