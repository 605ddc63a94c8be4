"""Where each queue stands: from Spark's own offset, or from a group's offset store."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, Protocol

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.generations import NO_WITNESSES, Witnesses, witnesses
from pyspark_rocketmq.consume.metrics import lately
from pyspark_rocketmq.consume.planning import (
    LONGEST_LEFT_OUT_S,
    Had,
    Plan,
    StallCounter,
    StuckQueueDetector,
)
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import BrokerOffsetUnavailable, RocketMQError
from pyspark_rocketmq.group.broker_offsets import BrokerOffsets, ResetWatch
from pyspark_rocketmq.group.member import QueueOwnership
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.offsets.open import checked_rows
from pyspark_rocketmq.offsets.store import NO_ROWS, NOTED, OffsetRow, OffsetStore
from pyspark_rocketmq.options.positions import QueuePositions
from pyspark_rocketmq.source.cluster_view import ClusterView, Snapshot
from pyspark_rocketmq.source.message_lookup import MessageLookup
from pyspark_rocketmq.source.queue_claims import QueueClaims, second_owner
from pyspark_rocketmq.source.queue_generations import QueueGenerations

logger = logging.getLogger(__name__)

_MOST_LOOKS = 3
"""In one plan: a look may bring a reset, and a queue that was reset is looked at."""


class ProgressSource(Protocol):
    """The side of planning that differs between a plain stream and a consumer group."""

    begins_in_checkpoint: ClassVar[bool]
    """Whether the offset before the first micro-batch says where each queue begins, so that all must be seen.
    """

    @property
    def waiting(self) -> Mapping[MessageQueue, RocketMQError]:
        """Queues that the last :meth:`read` left out for now, and why."""
        ...

    @property
    def has_worked(self) -> bool:
        """Whether messages of this query have been consumed before, in an earlier run perhaps."""
        ...

    def stored(self) -> Collection[MessageQueue]:
        """Return the queues with progress outside Spark's checkpoint; none where that cannot be read."""
        ...

    def initial(self, snapshot: Snapshot) -> Sequence[QueueRange]:
        """What the offset before the first micro-batch holds."""
        ...

    def await_ready(self, timeout_s: float) -> bool:
        """Wait until it is settled which queues may be planned; whether it is."""
        ...

    def begin_reading(self) -> None:
        """Start what :meth:`read` needs of storage; the cluster is looked at meanwhile."""
        ...

    def read(self, previous: Sequence[QueueRange], snapshot: Snapshot) -> dict[MessageQueue, QueueState]:
        """Progress of every queue that may be planned now; ``snapshot.bounds_of`` gives bounds."""
        ...

    def had_in_vain(self, progress: Mapping[MessageQueue, QueueState]) -> Mapping[MessageQueue, Had]:
        """What queues' listeners have had without a commit."""
        ...

    def compose(self, previous: Sequence[QueueRange], plan: Plan) -> Sequence[QueueRange]:
        """The ranges the next offset holds; empty when there is nothing to run.

        Gaps in ``plan`` are to be skipped, and their corrected offsets remembered at once: an offset past the
        end is measured against the end of this moment, and a later look would correct it past newer messages.
        """
        ...

    def runnable(self, planned: Sequence[QueueRange]) -> Sequence[QueueRange]:
        """The ranges of a logged plan that may still be run; a plan can be older than what happened since."""
        ...

    def witnesses(self, planned: QueueRange, first: int) -> Witnesses:
        """Messages by which a task sees that the log of a :meth:`runnable` range is the one consumed so far.

        ``first`` is the queue's smallest offset.
        """
        ...

    def position(self, queue: MessageQueue, previous: Sequence[QueueRange]) -> int | None:
        """Where a queue stood at the last look, reachable now or not; None if it was never seen."""
        ...

    def listener_ms(self, queue: MessageQueue) -> float | None:
        """How long a listener took per message of a queue lately, in milliseconds; None if unknown."""
        ...


class CheckpointProgress:
    """A plain stream: every queue goes on where the previous plan ended.

    The offset carries the position of every queue, idle ones as empty ranges.
    """

    begins_in_checkpoint: ClassVar[bool] = True
    waiting: Mapping[MessageQueue, RocketMQError] = MappingProxyType({})
    has_worked: bool = True
    """A plain stream's tasks fail when their patience is over."""

    def __init__(self, view: ClusterView, default_start: QueuePositions) -> None:
        self._view = view
        self._default_start = default_start

    def stored(self) -> Collection[MessageQueue]:
        """Return none: the checkpoint has all of it."""
        return ()

    def initial(self, snapshot: Snapshot) -> Sequence[QueueRange]:
        """Empty ranges at the starting positions."""
        positions = self._view.starting_positions(snapshot, snapshot.bounds.keys(), self._default_start)
        return [QueueRange.between(queue, start, start) for queue, start in positions.items()]

    def await_ready(self, timeout_s: float) -> bool:  # noqa: ARG002
        """At once: every queue is this query's."""
        return True

    def begin_reading(self) -> None:
        """Nothing: Spark hands the progress in."""

    def read(self, previous: Sequence[QueueRange], snapshot: Snapshot) -> dict[MessageQueue, QueueState]:
        """Ends of the previous plan; queues that appeared since begin at their earliest offset (row A2).

        While a master is down its queues go on at the slave where that has the offset.
        """
        ends = {planned.queue: planned.end for planned in previous}
        at_slaves = {
            queue: QueueState(ends[queue])
            for queue, bounds in snapshot.slave_bounds.items()
            if queue in ends and bounds.allow(ends[queue])
        }
        return at_slaves | {
            queue: QueueState(ends.get(queue, bounds.min_offset)) for queue, bounds in snapshot.bounds.items()
        }

    def had_in_vain(
        self,
        progress: Mapping[MessageQueue, QueueState],  # noqa: ARG002
    ) -> Mapping[MessageQueue, Had]:
        """None: every plan moves."""
        return {}

    def compose(self, previous: Sequence[QueueRange], plan: Plan) -> Sequence[QueueRange]:
        """The new ranges, and the positions of the queues that have none."""
        if not plan.ranges and not plan.gaps:
            return ()
        positions = {before.queue: before.end for before in previous}
        positions |= {gap.queue: gap.corrected for gap in plan.gaps}
        idle = {queue: QueueRange.between(queue, at, at) for queue, at in positions.items()}
        return tuple((idle | {new.queue: new for new in plan.ranges}).values())

    def runnable(self, planned: Sequence[QueueRange]) -> Sequence[QueueRange]:
        """All: the checkpoint is the truth."""
        return planned

    def witnesses(self, planned: QueueRange, first: int) -> Witnesses:  # noqa: ARG002
        """None: a checkpoint has no messages."""
        return NO_WITNESSES

    def position(self, queue: MessageQueue, previous: Sequence[QueueRange]) -> int | None:
        """The end of its last range."""
        return next((planned.end for planned in previous if planned.queue == queue), None)

    def listener_ms(self, queue: MessageQueue) -> None:
        """Nobody knows: a plain stream has no listener."""


class GroupProgress:
    """A consumer group: progress is what the offset store says, under the epoch this consumer claimed.

    A queue is claimed once under every grant; afterwards the row's owner tells whether it is
    still ours, and its epoch is the one to plan with, so that an operator's reset is picked up at the next
    plan (row F5).
    """

    begins_in_checkpoint: ClassVar[bool] = False

    def __init__(
        self,
        *,
        consumer_group: str,
        client_id: str,
        store: OffsetStore,
        ownership: QueueOwnership,
        view: ClusterView,
        default_start: QueuePositions,
        clock: Clock,
        is_sole_owner: bool = False,
        broker_offsets: BrokerOffsets | None = None,
        reset_watch: ResetWatch | None = None,
        message_lookup: MessageLookup | None = None,
        fail_on_data_loss: bool = True,
    ) -> None:
        """Prepare the progress of ``consumer_group``.

        Args:
            consumer_group: The name its progress is stored under.
            client_id: This member.
            store: Where the progress is.
            ownership: Which queues are this member's.
            view: Tells where queues without progress begin.
            default_start: Where they begin if the options do not say.
            clock: Measures what is left out or stands still.
            is_sole_owner: Whether nobody else may ever claim these rows, as those of a broadcasting instance.
            broker_offsets: The group's offsets at the brokers, which a mixed group goes by; None without
                such.
            reset_watch: Hears of resets made at the brokers; None if there are none to follow.
            message_lookup: Looks at single messages; without it nobody sees that offsets began again.
            fail_on_data_loss: Whether that ends the query.
        """
        self._group = consumer_group
        self._client_id = client_id
        self._is_sole_owner = is_sole_owner
        self._store = store
        self._ownership = ownership
        self._claims = QueueClaims(
            consumer_group=consumer_group,
            client_id=client_id,
            store=store,
            view=view,
            default_start=default_start,
            broker_offsets=broker_offsets,
        )
        self.waiting: Mapping[MessageQueue, RocketMQError] = {}
        self._generations = (
            None
            if message_lookup is None
            else QueueGenerations(consumer_group, store, message_lookup, fail_on_data_loss=fail_on_data_loss)
        )
        self._reset_watch = reset_watch
        self._resets: dict[MessageQueue, int] = {}
        """Told by brokers, which have forgotten them, and not stored yet."""
        self._clock = clock
        self._grants: Mapping[MessageQueue, int] = {}
        """Of the plan in the making."""
        self._claimed: dict[MessageQueue, int] = {}
        """The grant under which a queue was claimed."""
        self._claiming: dict[MessageQueue, int] = {}
        """The epoch of each queue before a claim of which it is not known whether it was stored."""
        self._stuck = StuckQueueDetector()
        self._stalls = StallCounter()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rocketmq-offset-store")
        self._reading: Future[dict[MessageQueue, OffsetRow]] | None = None
        self._rows: dict[MessageQueue, OffsetRow] = {}
        """As of the last look at the store."""
        self._first_offsets: dict[MessageQueue, int] = {}
        """Where queues were when this process saw them first."""
        self._has_moved = False
        """Whether one has gone on since."""

        self._run_by: Mapping[MessageQueue, OffsetRow] = NO_ROWS
        """As of the last :meth:`runnable`."""

    def stored(self) -> Collection[MessageQueue]:
        """Return the queues that have a row."""
        try:
            return self._store.read(self._group).keys()
        except RocketMQError as error:
            logger.warning("offset store not read for queues group=%s: %s", self._group, error)
            return ()

    def initial(self, snapshot: Snapshot) -> Sequence[QueueRange]:  # noqa: ARG002 - the protocol's
        """Nothing: a group's positions are in its offset store."""
        return ()

    def await_ready(self, timeout_s: float) -> bool:
        """Wait for the locks of the queues allocated to this member."""
        return self._ownership.await_settled(timeout_s)

    def begin_reading(self) -> None:
        """Read the store's rows on another thread: storage and brokers are waited for at the same time."""
        self._reading = self._reader.submit(self._store.read, self._group)

    def read(
        self,
        previous: Sequence[QueueRange],  # noqa: ARG002
        snapshot: Snapshot,
    ) -> dict[MessageQueue, QueueState]:
        """Rows of the queues owned and claimed, after claiming those that are new."""
        held = self._ownership.begin_plan()
        self._grants = {
            queue: grant
            for queue, grant in held.items()
            if queue in snapshot.bounds or queue in snapshot.slave_bounds
        }
        rows = self._reading.result() if self._reading is not None else self._store.read(self._group)
        self._reading = None
        rows = checked_rows(self._store, self._group, rows, seen=self._rows)
        self._check_sole_owner(rows)
        rows |= self._follow_resets(held, snapshot)
        new = frozenset(
            queue
            for queue, grant in self._grants.items()
            if queue in snapshot.bounds and self._claimed.get(queue) != grant
        )
        waiting: dict[MessageQueue, RocketMQError] = {}
        if new:
            self._claiming = {queue: rows[queue].epoch for queue in new if queue in rows}
            claimed, waiting = self._claims.claim(new, rows, snapshot)
            self._claiming = {}
            self._claimed |= {queue: self._grants[queue] for queue in claimed}
            rows |= claimed
        self._rows = rows
        progress = self._own(rows, snapshot)
        moved: Mapping[MessageQueue, OffsetRow] = {}
        for _ in range(_MOST_LOOKS):
            moved = self._follow_generations(progress, held, snapshot)
            if not moved:
                break
            rows |= moved
            progress = self._own(rows, snapshot)
        else:
            waiting |= {queue: _moves_on(self._group, queue) for queue in moved}
        if self._generations is not None:
            waiting |= self._generations.waiting
        progress = _without(progress, waiting)
        self._claims.note(progress, snapshot, self._clock.monotonic_s())
        waiting |= self._claims.write_resets(progress, snapshot.addresses)
        progress = _without(progress, waiting)
        self._report_waiting(waiting)
        self._look_for_resets(progress, snapshot)
        if not self._has_moved:
            self._has_moved = any(
                row.next_offset > self._first_offsets.setdefault(queue, row.next_offset)
                for queue, row in progress.items()
            )
        states = {queue: row.state for queue, row in progress.items()}
        self._stuck.look(states, snapshot.bounds, self._clock.now_s())
        return states | {queue: row.state for queue, row in self._at_slaves(rows, snapshot).items()}

    @property
    def has_worked(self) -> bool:
        """Whether the group has consumed a message, or seen one that it passed over.

        Brokers, as a store, remember none, so a queue that has gone on in this process shows it, too.
        """
        return self._has_moved or any(row.state.last_message for row in self._rows.values())

    def _report_waiting(self, waiting: Mapping[MessageQueue, RocketMQError]) -> None:
        """Log each queue that is left out, once for each error."""
        for queue, error in sorted(waiting.items()):
            if self.waiting.get(queue) is not error:
                logger.warning("queue left out of this plan group=%s %s: %s", self._group, queue, error)
        self.waiting = waiting

    def _own(
        self, rows: Mapping[MessageQueue, OffsetRow], snapshot: Snapshot
    ) -> dict[MessageQueue, OffsetRow]:
        """Those of the queues whose masters answer that may be planned."""
        return {
            queue: rows[queue]
            for queue, grant in self._grants.items()
            if queue in snapshot.bounds
            and self._claimed.get(queue) == grant
            and self._still_ours(queue, rows)
        }

    def _at_slaves(
        self, rows: Mapping[MessageQueue, OffsetRow], snapshot: Snapshot
    ) -> dict[MessageQueue, OffsetRow]:
        """Those of the queues claimed before their masters went down that go on at slaves.

        To claim a queue, or to tell of a reset, takes its master: only that knows whether a Java member has
        consumed the queue meanwhile.
        """
        standing = {
            queue: rows[queue]
            for queue, bounds in snapshot.slave_bounds.items()
            if queue in self._grants
            and self._claimed.get(queue) == self._grants[queue]
            and queue in rows
            and rows[queue].owner == self._client_id
            and not rows[queue].was_reset
            and queue not in self._resets
            and bounds.allow(rows[queue].next_offset)
        }
        if not standing or self._generations is None:
            return standing
        copied = self._generations.copied_at(standing, snapshot)
        return {queue: row for queue, row in standing.items() if queue in copied}

    def _follow_generations(
        self, own: Mapping[MessageQueue, OffsetRow], held: Collection[MessageQueue], snapshot: Snapshot
    ) -> dict[MessageQueue, OffsetRow]:
        """Rows of queues whose offsets began again, and of those that a broker says were reset."""
        if self._generations is None:
            return {}
        try:
            begun = self._generations.follow(own, snapshot, has_worked=self.has_worked)
        finally:
            # Stored even where this plan fails, which may end the query.
            self._take_in(self._generations.resets())
            moved = self._follow_resets(held, snapshot)
        return begun | moved

    def _check_sole_owner(self, rows: Mapping[MessageQueue, OffsetRow]) -> None:
        """Whether somebody else has claimed rows that must be this consumer's alone since the last look.

        This consumer's own claims are in what it saw last, except one that failed after it was stored. Resets
        raise epochs, too, and so does a sink that was ahead: an earlier run of this query, perhaps, was held
        up before its commit.
        """
        if not self._is_sole_owner:
            return
        for queue, row in rows.items():
            before = self._rows.get(queue)
            if before is None or row.was_reset or _is_sink_noted(before, row):
                continue
            own = 1 if self._claiming.get(queue) == before.epoch else 0
            if row.epoch > before.epoch + own:
                raise second_owner(self._group, row.owner)

    def had_in_vain(self, progress: Mapping[MessageQueue, QueueState]) -> Mapping[MessageQueue, Had]:
        """Of listeners without autoCommit that have consumed a whole range and committed nothing."""
        return self._stalls.had(progress, self._clock.monotonic_s())

    def compose(self, previous: Sequence[QueueRange], plan: Plan) -> Sequence[QueueRange]:  # noqa: ARG002
        """The new ranges; a queue with a gap is reset in the store and planned under its new epoch."""
        gaps = {gap.queue: gap.corrected for gap in plan.gaps}
        if gaps:
            # Under the epochs that were planned by: whoever has claimed a queue meanwhile has gone on.
            self._store.reset(self._group, gaps, under={queue: self._rows[queue].epoch for queue in gaps})
        wanted = [self._within_generation(new) for new in plan.ranges if new.queue not in gaps]
        valid = self._ownership.planned({new.queue: self._grants[new.queue] for new in wanted})
        ranges = tuple(new for new in wanted if new.queue in valid)
        for queue in self._stuck.planned(valid | plan.at_rest, self._clock.monotonic_s()):
            logger.error(
                "queue not planned for %g s although it is held and has messages, claiming it anew group=%s "
                "%s",
                LONGEST_LEFT_OUT_S,
                self._group,
                queue,
            )
            self._ownership.reclaim(queue)
        return ranges

    def _within_generation(self, new: QueueRange) -> QueueRange:
        """The range up to where its queue's next generation begins."""
        end = None if self._generations is None else self._generations.end_of(new.queue)
        return new if end is None or end >= new.end else replace(new, end=end)

    def runnable(self, planned: Sequence[QueueRange]) -> Sequence[QueueRange]:
        """Those whose queue is held, and whose epoch is the stored one.

        A plan in Spark's log is run again after a restart. By then the queue may belong to another member,
        who would consume it at the same time. If it was claimed or reset meanwhile, its data must not reach
        the sink either: the watermark would pass messages that the new position brings again.
        """
        rows = self._run_by = self._store.read(self._group)
        kept = []
        for old in planned:
            row = rows.get(old.queue)
            if row is not None and row.epoch == old.state.epoch:
                if self._ownership.holds(old.queue):
                    kept.append(old)
                else:
                    logger.info(
                        "logged range not run again before its queue is locked, to be planned anew group=%s "
                        "%s",
                        self._group,
                        old.queue,
                    )
                continue
            logger.warning(
                "logged range not run again, its queue was claimed or reset since group=%s %s from=%d to=%d "
                "epoch=%d stored_epoch=%s",
                self._group,
                old.queue,
                old.start,
                old.end,
                old.state.epoch,
                row.epoch if row is not None else "none",
            )
        self._stalls.planned(kept, self._clock.monotonic_s())
        return kept

    def witnesses(self, planned: QueueRange, first: int) -> Witnesses:
        """Those that its row remembers."""
        row = self._run_by.get(planned.queue)
        if row is None:
            return NO_WITNESSES
        found = witnesses(row.state.last_message, planned.start, first=first)
        # Where a generation is known to end, others have the places of the messages behind that.
        is_ending = self._generations is not None and self._generations.end_of(planned.queue) is not None
        return found._replace(ahead=None) if is_ending else found

    def position(self, queue: MessageQueue, previous: Sequence[QueueRange]) -> int | None:  # noqa: ARG002
        """What the store said at the last look."""
        row = self._rows.get(queue)
        return None if row is None else row.next_offset

    def listener_ms(self, queue: MessageQueue) -> float | None:
        """From the statistics in its row, those of former owners included."""
        row = self._rows.get(queue)
        if row is None:
            return None
        recent = lately(row.statistics, self._clock.now_s())
        metrics = recent.minute if recent.minute.calls else recent.hour
        messages = metrics.ok + metrics.failed
        return metrics.call_ms / messages if messages else None

    def _take_in(self, resets: Mapping[MessageQueue, int]) -> None:
        for queue, target in resets.items():
            logger.warning("offset reset by an operator group=%s %s target=%d", self._group, queue, target)
        self._resets |= resets

    def _follow_resets(
        self, held: Collection[MessageQueue], snapshot: Snapshot
    ) -> dict[MessageQueue, OffsetRow]:
        for queue in self._resets.keys() - held:
            # Its new owner may have been told of a later one.
            logger.warning(
                "reset not followed, the queue was lost before; reset it again if still wanted group=%s %s "
                "target=%d",
                self._group,
                queue,
                self._resets.pop(queue),
            )
        if self._reset_watch is not None:
            self._take_in(self._reset_watch.found())
        # A broker that is away may be the store, too: its queues wait, the others go on.
        due = {queue: target for queue, target in self._resets.items() if queue in snapshot.bounds}
        if not due:
            return {}
        moved = self._store.reset(self._group, due)
        for queue in due:
            del self._resets[queue]
        return moved

    def _look_for_resets(self, rows: Mapping[MessageQueue, OffsetRow], snapshot: Snapshot) -> None:
        """Of queues that are not read, since nothing new is in them."""
        if self._reset_watch is None:
            return
        idle = {
            queue: row.next_offset
            for queue, row in rows.items()
            if row.next_offset >= snapshot.bounds[queue].max_offset
        }
        self._reset_watch.look(idle, snapshot.addresses)

    def _still_ours(self, queue: MessageQueue, rows: Mapping[MessageQueue, OffsetRow]) -> bool:
        row = rows.get(queue)
        if row is not None and row.owner == self._client_id:
            return True
        logger.warning(
            "queue lost group=%s %s new_owner=%s",
            self._group,
            queue,
            peer_text(row.owner) if row is not None else "none",
        )
        self._claimed.pop(queue, None)
        self._ownership.claimed_by_other(queue)
        return False


def _moves_on(consumer_group: str, queue: MessageQueue) -> BrokerOffsetUnavailable:
    return BrokerOffsetUnavailable(
        f"Group {consumer_group}, {queue}: it was reset again each time it was looked at. It is planned with "
        "the next look."
    )


def _is_sink_noted(before: OffsetRow, row: OffsetRow) -> bool:
    """Whether all that has happened to a row is ``OffsetStore.note_sinks``."""
    state = before.state._replace(epoch=before.epoch + 1, last_message=row.state.last_message)
    batch_id = NOTED if row.batch_id == NOTED else before.batch_id
    noted = before._replace(state=state, batch_id=batch_id, updated_at_s=row.updated_at_s)
    return row == noted and row.state.last_message != before.state.last_message


def _without(
    rows: dict[MessageQueue, OffsetRow], waiting: Collection[MessageQueue]
) -> dict[MessageQueue, OffsetRow]:
    return {queue: row for queue, row in rows.items() if queue not in waiting} if waiting else rows
