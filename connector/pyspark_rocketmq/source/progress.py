"""Each queue's progress: from Spark's own offset, or from a group's offset store.

A *plain stream* is a query without a consumer group. Its progress is in Spark's checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, Protocol

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.generations import NO_WITNESSES, Witnesses, witnesses
from pyspark_rocketmq.consume.planning import (
    LONGEST_LEFT_OUT_S,
    Plan,
    StallCounter,
    StandstillPauses,
    StuckQueueDetector,
    UncommittedDelivery,
)
from pyspark_rocketmq.consume.suspension import suspended_until
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import BrokerOffsetUnavailable, RocketMQError
from pyspark_rocketmq.group.broker_offsets import BrokerOffsets, ResetWatch
from pyspark_rocketmq.group.member import QueueOwnership
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange, QueueState
from pyspark_rocketmq.offsets.open import checked_rows
from pyspark_rocketmq.offsets.store import NO_ROWS, OffsetRow, OffsetStore, is_at_brokers, new_owner
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.source.message_lookup import MessageLookup
from pyspark_rocketmq.source.queue_claims import LatelyArrived, QueueClaims, Starts, second_owner
from pyspark_rocketmq.source.queue_generations import QueueGenerations
from pyspark_rocketmq.stored_values import NO_MESSAGES, trial_of

logger = logging.getLogger(__name__)

_MOST_LOOKS = 3
"""Maximum number of looks at messages in one plan: a look may report a reset, which needs another look."""


class ProgressSource(Protocol):
    """The part of planning that differs between a plain stream and a consumer group."""

    begins_in_checkpoint: ClassVar[bool]
    """Whether Spark's offset before the first micro-batch contains every queue's start. If so, every broker
    must answer before this offset is written."""

    @property
    def waiting(self) -> Mapping[MessageQueue, RocketMQError]:
        """Queues that the last :meth:`read` left out for now, and why."""
        ...

    @property
    def has_worked(self) -> bool:
        """Whether the query's group has consumed messages, in this run or an earlier one.

        Always true for a plain stream. It decides after which errors a task tries again.
        """
        ...

    def stored(self) -> Collection[MessageQueue]:
        """Return the queues with progress outside Spark's checkpoint; none if that cannot be read."""
        ...

    def initial(self, snapshot: Snapshot) -> Sequence[QueueRange]:
        """Return the ranges of the offset before the first micro-batch: a plain stream's start positions.

        A group returns none, because its positions are in its offset store.
        """
        ...

    def await_ready(self, timeout_s: float) -> bool:
        """Wait until all queues of this consumer may be planned; return False if not within ``timeout_s``."""
        ...

    def await_held(self, timeout_s: float) -> bool:
        """Wait until at least one queue may be planned; return False if none may within ``timeout_s``."""
        ...

    def left_to_others(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        """Return those of ``queues`` that are known to be allocated to other consumers now."""
        ...

    @property
    def held(self) -> Collection[MessageQueue]:
        """Queues that this consumer held at the last :meth:`read`, even if they could not be planned."""
        ...

    def has_ends(self, queues: Collection[MessageQueue]) -> bool:
        """Return whether the log of one of these queues ends at a known offset, where another log begins.

        Such a queue is read up to that offset, so it needs a range with an end, even in real time.
        """
        ...

    def begin_reading(self) -> None:
        """Start to read from storage for :meth:`read`, while the caller looks at the cluster."""
        ...

    def read(self, previous: Sequence[QueueRange], snapshot: Snapshot) -> dict[MessageQueue, QueueState]:
        """Return the progress of every queue that may be planned now.

        ``snapshot.bounds_of`` has the bounds of each of these queues.
        """
        ...

    def uncommitted_deliveries(
        self, progress: Mapping[MessageQueue, QueueState]
    ) -> Mapping[MessageQueue, UncommittedDelivery]:
        """Return, by queue, how many messages the listener has had from the queue's next offset on.

        A queue is included only if the listener has had all messages of its planned range, and committed none
        of them.
        """
        ...

    def compose(self, previous: Sequence[QueueRange], plan: Plan) -> Sequence[QueueRange]:
        """Return the ranges of the next offset; empty if there is nothing to run.

        Queues with gaps in ``plan`` (next offsets that their brokers do not have) go on at corrected offsets,
        which must be stored immediately. An offset past the queue's end is corrected to that end; a later
        correction would be to a later end, and would skip the messages between the two.
        """
        ...

    def runnable(self, planned: Sequence[QueueRange]) -> Sequence[QueueRange]:
        """Return the ranges of a plan in Spark's log that may still be run.

        The plan may be old: for example, a queue may have been reset since.
        """
        ...

    def witnesses(self, planned: QueueRange, first: int) -> Witnesses:
        """Return consumed messages by which a task checks that the queue still has the log consumed so far.

        ``planned`` is a range that :meth:`runnable` returned, ``first`` the queue's smallest offset.
        """
        ...

    def position(self, queue: MessageQueue, previous: Sequence[QueueRange]) -> int | None:
        """Return a queue's next offset at the last look, even if its broker is away; None if never seen."""
        ...

    def listener_ms(self, queue: MessageQueue) -> float | None:
        """Return how long a listener lately took per message of a queue, in milliseconds; None if unknown."""
        ...


class CheckpointProgress:
    """Progress of a plain stream: every queue goes on where the previous plan ended.

    The offset contains the position of every queue; idle queues have empty ranges.
    """

    begins_in_checkpoint: ClassVar[bool] = True
    waiting: Mapping[MessageQueue, RocketMQError] = MappingProxyType({})
    has_worked: bool = True
    """Always true, so that even in the first batch a task tries again after every error that may pass."""

    def __init__(self, starts: Starts) -> None:
        self._starts = starts

    def stored(self) -> Collection[MessageQueue]:
        """Return nothing: all progress is in the checkpoint."""
        return ()

    def initial(self, snapshot: Snapshot) -> Sequence[QueueRange]:
        """Return empty ranges at the starting positions."""
        positions = self._starts(snapshot, snapshot.bounds.keys())
        return [QueueRange.between(queue, start, start) for queue, start in positions.items()]

    def await_ready(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Return True immediately: every queue belongs to this query."""
        return True

    def await_held(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Return True immediately: a plain stream may always plan its queues."""
        return True

    def left_to_others(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:  # noqa: ARG002
        """Return no queue: every queue belongs to this query."""
        return ()

    @property
    def held(self) -> Collection[MessageQueue]:
        """No queue: only real time uses this, and a plain stream is not read in real time."""
        return ()

    def has_ends(self, queues: Collection[MessageQueue]) -> bool:  # noqa: ARG002
        """Return False: where another log begins, a plain stream's position is corrected instead."""
        return False

    def begin_reading(self) -> None:
        """Do nothing: Spark passes the progress in."""

    def read(self, previous: Sequence[QueueRange], snapshot: Snapshot) -> dict[MessageQueue, QueueState]:
        """Return the ends of the previous plan; new queues begin at their earliest offset.

        See row A2 of ``docs/semantics.md``. While a master is down, its queues go on at the slave
        if the slave has the offset.
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

    def uncommitted_deliveries(
        self,
        progress: Mapping[MessageQueue, QueueState],  # noqa: ARG002
    ) -> Mapping[MessageQueue, UncommittedDelivery]:
        """Return nothing: without a listener, each plan goes on where the one before has ended."""
        return {}

    def compose(self, previous: Sequence[QueueRange], plan: Plan) -> Sequence[QueueRange]:
        """Return the new ranges, and the positions of all other queues as empty ranges.

        Return nothing if the plan has neither ranges nor gaps.
        """
        if not plan.ranges and not plan.gaps:
            return ()
        positions = {before.queue: before.end for before in previous}
        positions |= {gap.queue: gap.corrected for gap in plan.gaps}
        idle = {queue: QueueRange.between(queue, at, at) for queue, at in positions.items()}
        return tuple((idle | {new.queue: new for new in plan.ranges}).values())

    def runnable(self, planned: Sequence[QueueRange]) -> Sequence[QueueRange]:
        """Return all ranges of the plan; the planner checks whether their queues have the same logs."""
        return planned

    def witnesses(self, planned: QueueRange, first: int) -> Witnesses:  # noqa: ARG002
        """Return none: a checkpoint has no messages."""
        return NO_WITNESSES

    def position(self, queue: MessageQueue, previous: Sequence[QueueRange]) -> int | None:
        """Return the end of the queue's range in ``previous``; None if the queue has no range there."""
        return next((planned.end for planned in previous if planned.queue == queue), None)

    def listener_ms(self, queue: MessageQueue) -> None:
        """Return None: a plain stream has no listener."""


class GroupProgress:
    """Progress of a consumer group: the rows of its offset store, under the epochs this consumer claimed.

    A grant is a numbered period in which this member holds a queue. The queue is claimed once in each grant.
    Afterwards the row's owner shows whether somebody else has claimed it, be it another query with the same
    client id. Plans use the row's epoch, so that the next plan follows an operator's reset. See row F5 of
    ``docs/semantics.md``.
    """

    begins_in_checkpoint: ClassVar[bool] = False

    def __init__(
        self,
        *,
        consumer_group: str,
        client_id: str,
        store: OffsetStore,
        ownership: QueueOwnership,
        starts: Starts,
        clock: Clock,
        is_sole_owner: bool = False,
        broker_offsets: BrokerOffsets | None = None,
        lately_arrived: LatelyArrived | None = None,
        reset_watch: ResetWatch | None = None,
        message_lookup: MessageLookup | None = None,
        fail_on_data_loss: bool = True,
    ) -> None:
        """Prepare the progress of ``consumer_group``.

        Args:
            consumer_group: The name its progress is stored under.
            client_id: This member's client id.
            store: Where the progress is.
            ownership: Which queues are this member's.
            starts: Finds where queues without progress begin.
            clock: Measures how long queues are left out or blocked.
            is_sole_owner: Whether nobody else may ever claim these rows; true for a broadcasting instance.
            broker_offsets: The group's offsets at the brokers, which a group with Java members follows; None
                if there are none.
            lately_arrived: Asks the driver which offsets brokers have got lately; None if the query sends
                none to brokers.
            reset_watch: Finds resets made at the brokers; None if there are none to follow.
            message_lookup: Looks up single messages, which shows whether a queue's offsets began again; None
                to assume that they never do.
            fail_on_data_loss: Whether offsets that began again end the query, because messages may be lost.
        """
        self._group = consumer_group
        self._owner = new_owner(client_id)
        self._is_sole_owner = is_sole_owner
        self._store = store
        self._ownership = ownership
        self._claims = QueueClaims(
            consumer_group=consumer_group,
            owner=self._owner,
            store=store,
            starts=starts,
            broker_offsets=broker_offsets,
            outage_of=ownership.outage_of,
            lately_arrived=lately_arrived,
        )
        self.waiting: Mapping[MessageQueue, RocketMQError] = {}
        self._sees_part = RocketMQError(
            f"Progress {consumer_group} of a broadcasting group begins in a topic when the routes of its "
            "member have all the topic's brokers. The member looks them up again."
        )
        """Why queues wait while the member lacks other queues of their topics."""
        self._generations = (
            None
            if message_lookup is None
            else QueueGenerations(consumer_group, store, message_lookup, fail_on_data_loss=fail_on_data_loss)
        )
        self._reset_watch = reset_watch
        self._resets: dict[MessageQueue, int] = {}
        """Targets of resets not stored yet; brokers have reported them and forgotten them."""
        self._clock = clock
        self.held: Collection[MessageQueue] = ()
        self._grants: dict[MessageQueue, int] = {}
        """The grants of held queues in sight, for the plan being made."""
        self._claimed: dict[MessageQueue, int] = {}
        """The grant in which a queue was claimed last, by queue."""
        self._stuck = StuckQueueDetector()
        self._stalls = StallCounter()
        self._pauses = StandstillPauses() if is_at_brokers(store) else None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rocketmq-offset-store")
        self._reading: Future[dict[MessageQueue, OffsetRow]] | None = None
        self._rows: dict[MessageQueue, OffsetRow] = {}
        """The rows at the last look at the store."""
        self._bounds: Mapping[MessageQueue, QueueBounds] = {}
        """The queues' bounds at their masters for the newest plan."""
        self._first_offsets: dict[MessageQueue, int] = {}
        """The next offset of each queue when this process first saw it."""
        self._has_moved = False
        """Whether a queue has moved on from its ``_first_offsets``."""

        self._run_by: Mapping[MessageQueue, OffsetRow] = NO_ROWS
        """The rows read by the last :meth:`runnable`."""

    def stored(self) -> Collection[MessageQueue]:
        """Return the queues that have a row in the offset store; none if it cannot be read."""
        try:
            return self._read_store().keys()
        except RocketMQError as error:
            logger.warning("could not read known queues in the offset store group=%s: %s", self._group, error)
            return ()

    def initial(self, snapshot: Snapshot) -> Sequence[QueueRange]:  # noqa: ARG002 - the protocol's
        """Return nothing: a group's positions are in its offset store."""
        return ()

    def await_ready(self, timeout_s: float) -> bool:
        """Wait for the locks of the queues allocated to this member.

        Return False if it does not have them within ``timeout_s`` seconds.
        """
        return self._ownership.await_settled(timeout_s)

    def await_held(self, timeout_s: float) -> bool:
        """Wait until this member has the lock of at least one queue; return False if it has none in time."""
        return self._ownership.await_held(timeout_s)

    def left_to_others(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        """Return those of ``queues`` that are known to be allocated to other members now.

        If this member does not know one of them yet, it soon looks up the routes again.
        """
        self._ownership.note_seen(queues)
        return self._ownership.left_to_others(queues)

    def has_ends(self, queues: Collection[MessageQueue]) -> bool:
        """Return whether the log of one of these queues is known to end where another log begins."""
        generations = self._generations
        return generations is not None and any(generations.end_of(queue) is not None for queue in queues)

    def begin_reading(self) -> None:
        """Read the store's rows on another thread, to wait for storage and brokers at the same time."""
        self._reading = self._submit_read()

    def _submit_read(self) -> Future[dict[MessageQueue, OffsetRow]]:
        return self._reader.submit(self._store.read, self._group)

    def _read_store(self) -> dict[MessageQueue, OffsetRow]:
        """Return the store's rows, always read on the same thread: a store keeps memory for each thread."""
        return self._submit_read().result()

    def read(
        self,
        previous: Sequence[QueueRange],  # noqa: ARG002
        snapshot: Snapshot,
    ) -> dict[MessageQueue, QueueState]:
        """Claim new queues; return the progress of the queues that this member holds and has claimed.

        Suspended queues are included. A queue is left out if it is in :attr:`waiting`, if ``snapshot`` lacks
        it, or if its master is down and no slave can be read instead (:meth:`_at_slaves`).
        """
        held = self._ownership.begin_plan()
        self.held = frozenset(held)
        self._bounds = snapshot.bounds
        self._grants = {
            queue: grant
            for queue, grant in held.items()
            if queue in snapshot.bounds or queue in snapshot.slave_bounds
        }
        rows = self._reading.result() if self._reading is not None else self._read_store()
        self._reading = None
        rows = checked_rows(self._store, self._group, rows, seen=self._rows)
        self._check_sole_owner(rows)
        again, waiting = self._claim_unread(rows, snapshot)
        rows |= again
        rows |= self._follow_resets(held, snapshot)
        new = frozenset(
            queue
            for queue, grant in self._grants.items()
            if queue in snapshot.bounds and self._claimed.get(queue) != grant
        )
        if new:
            sees_part = self._seen_in_part(new, rows, snapshot)
            waiting |= sees_part
            new -= sees_part.keys()
            claimed, not_claimed = self._claims.claim(new, rows, snapshot, self._clock.monotonic_s())
            self._claimed |= {queue: self._grants[queue] for queue in claimed}
            rows |= claimed
            waiting |= not_claimed
        self._rows = rows = self._with_known(rows)
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
        waiting |= self._claims.write_resets(progress, snapshot.addresses, self._clock.monotonic_s())
        progress = _without(progress, waiting)
        self._report_waiting(waiting)
        self._look_for_resets(progress, snapshot)
        if not self._has_moved:
            self._has_moved = any(
                row.next_offset > self._first_offsets.setdefault(queue, row.next_offset)
                for queue, row in progress.items()
            )
        found = progress | self._at_slaves(rows, snapshot)
        states = {queue: row.state for queue, row in found.items()}
        if self._pauses is not None:
            states = self._pauses.suspended(states, self._clock.now_s())
        self._stuck.look({queue: states[queue] for queue in progress}, snapshot.bounds, self._clock.now_s())
        return states

    def _seen_in_part(
        self, new: Collection[MessageQueue], rows: Mapping[MessageQueue, OffsetRow], snapshot: Snapshot
    ) -> dict[MessageQueue, RocketMQError]:
        """Return those of ``new`` in topics of which a broadcasting instance does not have all queues yet.

        Each comes with the reason. Such a topic has not begun, and begins in all its queues at the same time:
        those found after that count as created later, and are read from their first messages. The planner
        has a route of its own, which may be younger than the member's. So the member looks again.
        """
        if not self._is_sole_owner:
            return {}
        begun = {queue.topic for queue in rows}
        lacking = {queue for queue in snapshot.bounds if queue.topic not in begun} - self._grants.keys()
        self._ownership.note_seen(lacking)
        topics = {queue.topic for queue in lacking}
        return {queue: self._sees_part for queue in new if queue.topic in topics}

    def _claim_unread(
        self, rows: Mapping[MessageQueue, OffsetRow], snapshot: Snapshot
    ) -> tuple[dict[MessageQueue, OffsetRow], dict[MessageQueue, RocketMQError]]:
        """Claim again the queues that this member has claimed but for which the brokers returned no offset.

        This happens only if the brokers are the store. A broker that answers but lacks the offset gets the
        last one known. Return the rows of the queues claimed again, and the errors of claims that failed. The
        other queues, whose brokers are away, are removed from ``_grants``, and so are those with an error.
        """
        if not is_at_brokers(self._store):
            return {}, {}
        unread = {
            queue: self._rows[queue].next_offset
            for queue, grant in self._grants.items()
            if queue not in rows and self._claimed.get(queue) == grant
        }
        answering = {queue: offset for queue, offset in unread.items() if queue in snapshot.bounds}
        claimed, waiting = self._claims.claim_again(answering)
        for queue in unread.keys() - claimed.keys():
            del self._grants[queue]
        return claimed, waiting

    def _with_known(self, rows: dict[MessageQueue, OffsetRow]) -> dict[MessageQueue, OffsetRow]:
        """Return ``rows``; if the brokers are the store, add the last known rows of queues that it lacks."""
        return {**self._rows, **rows} if is_at_brokers(self._store) else rows

    @property
    def has_worked(self) -> bool:
        """Whether the group has consumed a message, or seen one that it passed over.

        Brokers used as the store remember no messages, so a queue that has moved on in this process also
        counts.
        """
        return self._has_moved or any(row.state.last_message for row in self._rows.values())

    def _report_waiting(self, waiting: Mapping[MessageQueue, RocketMQError]) -> None:
        """Log each queue that is left out, unless the last plan left it out with the same error object."""
        for queue, error in sorted(waiting.items()):
            if self.waiting.get(queue) is not error:
                logger.warning("queue left out of this plan group=%s %s: %s", self._group, queue, error)
        self.waiting = waiting

    def _own(
        self, rows: Mapping[MessageQueue, OffsetRow], snapshot: Snapshot
    ) -> dict[MessageQueue, OffsetRow]:
        """Return the rows of queues that may be planned and whose masters answer."""
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
        """Return the rows of queues that were claimed before their masters went down and go on at slaves.

        Claiming a queue and writing a reset need the master, because only the master knows whether a Java
        member has consumed the queue meanwhile.
        """
        standing = {
            queue: rows[queue]
            for queue, bounds in snapshot.slave_bounds.items()
            if queue in self._grants
            and self._claimed.get(queue) == self._grants[queue]
            and queue in rows
            and rows[queue].owner == self._owner
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
        """Check whether queues still have the log that was consumed; return the rows that changed.

        Rows change if a queue's offsets began again with other messages, if a queue was reset at a broker,
        and if a message that the group skipped is noted. Without a message look-up nothing is checked.
        """
        if self._generations is None:
            return {}
        try:
            begun = self._generations.follow(own, snapshot, has_worked=self.has_worked)
        finally:
            # Stored even if this plan fails, which may end the query.
            self._take_in(self._generations.resets())
            moved = self._follow_resets(held, snapshot)
        return begun | moved

    def _check_sole_owner(self, rows: Mapping[MessageQueue, OffsetRow]) -> None:
        """Raise if another query has claimed a row of a broadcasting instance after this one.

        Only the instance itself may claim its rows; rows of other groups are not checked. The row's owner
        shows who claimed it last, and each query has its own name there. The epoch does not show this: it
        also grows with resets, with notes that a sink is ahead, and with this query's own claims, which the
        store may have although it reported an error.

        A row without owner was not claimed by another query. Rows that this query has not claimed yet are
        not checked: it claims them later, and then another query that had claimed them ends.

        Raises:
            OffsetError: If another query has claimed a row; it names that query's member.
        """
        if not self._is_sole_owner:
            return
        for queue, row in rows.items():
            if queue in self._claimed and row.owner not in {self._owner, ""}:
                raise second_owner(self._group, row.owner_id)

    def uncommitted_deliveries(
        self, progress: Mapping[MessageQueue, QueueState]
    ) -> Mapping[MessageQueue, UncommittedDelivery]:
        """Return, by queue, how many messages a listener without autoCommit has had and not committed.

        A queue is included only if the listener has had all messages of its planned range, and committed none
        of them. If the brokers are the store, no queue is included: such a group's listener is concurrent.
        """
        return (
            {} if self._pauses is not None else self._stalls.uncommitted(progress, self._clock.monotonic_s())
        )

    def compose(self, previous: Sequence[QueueRange], plan: Plan) -> Sequence[QueueRange]:  # noqa: ARG002
        """Return the new ranges, without queues that have gaps or that this member no longer holds.

        Queues with gaps are reset in the store to their corrected offsets, which raises their epochs. These
        queues are in a later plan.
        """
        gaps = {gap.queue: gap.corrected for gap in plan.gaps}
        if gaps:
            # Only under the planned epochs: a member that has claimed a queue meanwhile has moved on.
            self._store.reset(self._group, gaps, under={queue: self._rows[queue].epoch for queue in gaps})
        wanted = [self._within_generation(new) for new in plan.ranges if new.queue not in gaps]
        valid = self._ownership.planned({new.queue: self._grants[new.queue] for new in wanted})
        ranges = tuple(new for new in wanted if new.queue in valid)
        for queue in self._stuck.planned(valid | plan.at_rest, self._clock.monotonic_s()):
            logger.error(
                "queue not planned for %g s although it is held and has messages, claiming it again group=%s "
                "%s",
                LONGEST_LEFT_OUT_S,
                self._group,
                queue,
            )
            self._ownership.reclaim(queue)
        return ranges

    def _within_generation(self, new: QueueRange) -> QueueRange:
        """Return the range, cut at the offset where the queue's log ends and another one begins."""
        end = None if self._generations is None else self._generations.end_of(new.queue)
        return new if end is None or end >= new.end else replace(new, end=end)

    def runnable(self, planned: Sequence[QueueRange]) -> Sequence[QueueRange]:
        """Return the ranges whose queues are held and whose epochs are the stored ones.

        A plan in Spark's log is run again after a restart. By then a queue may belong to another member, and
        both would consume it at the same time. If a queue was claimed or reset meanwhile, the rows of its
        range must not reach the sink: the watermark would pass messages that are read again from the new
        position. The committed part of a range is not run again. If the queue is suspended, the rest of a
        range with an end is left to the next plan.
        """
        rows = self._run_by = self._with_known(self._read_store())
        kept = []
        for old in planned:
            row = rows.get(old.queue)
            if row is not None and row.epoch == old.state.epoch:
                if self._ownership.holds(old.queue):
                    kept += _uncommitted(old, row, self._clock.now_s())
                else:
                    logger.info(
                        "logged range not run again, its queue is not locked yet and is planned again later "
                        "group=%s %s",
                        self._group,
                        old.queue,
                    )
                continue
            logger.warning(
                "logged range not run again, its queue was claimed or reset since group=%s %s from=%d to=%s "
                "epoch=%d stored_epoch=%s",
                self._group,
                old.queue,
                old.start,
                "open" if old.has_open_end else old.end,
                old.state.epoch,
                row.epoch if row is not None else "none",
            )
            if old.has_open_end and self._still_ours(old.queue, rows):
                # In real time the batch lasts for minutes. A queue under a new grant ends it (PlanWatcher).
                self._ownership.reclaim(old.queue)
        if self._pauses is not None:
            self._pauses.planned([each for each in kept if not each.has_open_end or self._has_backlog(each)])
        # Open ranges cannot stall: their listener gets further messages until it commits.
        ending = [planned for planned in kept if not planned.has_open_end]
        self._stalls.planned(ending, self._clock.monotonic_s())
        return kept

    def _has_backlog(self, planned: QueueRange) -> bool:
        """Return whether a range had something to read at the last look at its queue's master."""
        bounds = self._bounds.get(planned.queue)
        return bounds is not None and planned.start < bounds.max_offset

    def witnesses(self, planned: QueueRange, first: int) -> Witnesses:
        """Return messages by which a task checks that the range is in the log consumed so far.

        The queue's row in the offset store remembers them; without a row there are none. ``first`` is the
        queue's smallest offset.
        """
        row = self._run_by.get(planned.queue)
        if row is None:
            return NO_WITNESSES
        end = None if self._generations is None else self._generations.end_of(planned.queue)
        return witnesses(row.state.last_message.messages, planned.start, first=first, end=end)

    def position(self, queue: MessageQueue, previous: Sequence[QueueRange]) -> int | None:  # noqa: ARG002
        """Return the queue's offset in the store at the last look; None if the store has no row of it."""
        row = self._rows.get(queue)
        return None if row is None else row.next_offset

    def listener_ms(self, queue: MessageQueue) -> float | None:
        """Return how long the listener lately took per message of a queue, in milliseconds; None if unknown.

        It is the average from the statistics in the queue's row, which include those of former owners.
        """
        row = self._rows.get(queue)
        if row is None:
            return None
        recent = row.statistics.as_of(self._clock.now_s())
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
        self._take_in(self._ownership.take_resets())
        for queue in self._resets.keys() - held:
            # A later reset may have been reported to the queue's new owner.
            logger.warning(
                "reset not followed, this member lost the queue before; reset it again if still wanted "
                "group=%s %s target=%d",
                self._group,
                queue,
                self._resets.pop(queue),
            )
        if self._reset_watch is not None:
            # Brokers have reported these just now, and have forgotten them. Take them after the member's: a
            # reset that comes in between then costs at most one more plan.
            self._take_in(self._reset_watch.found())
        # If brokers are the store, one that is away cannot store a reset: its queues wait, the others go on.
        due = {queue: target for queue, target in self._resets.items() if queue in snapshot.bounds}
        if not due:
            return {}
        moved = self._store.reset(self._group, due)
        for queue in due:
            del self._resets[queue]
        return moved

    def _look_for_resets(self, rows: Mapping[MessageQueue, OffsetRow], snapshot: Snapshot) -> None:
        """Ask brokers for resets of queues that have nothing to read."""
        if self._reset_watch is None:
            return
        idle = {
            queue: row.next_offset
            for queue, row in rows.items()
            if row.next_offset >= snapshot.bounds[queue].max_offset
        }
        self._reset_watch.look(idle, snapshot.addresses)

    def _still_ours(self, queue: MessageQueue, rows: Mapping[MessageQueue, OffsetRow]) -> bool:
        """Return whether this query claimed the queue last; otherwise give the queue up.

        Raises:
            OffsetError: If another query has claimed a row of a broadcasting instance.
        """
        row = rows.get(queue)
        if row is not None and row.owner == self._owner:
            return True
        if row is not None:
            self._check_sole_owner({queue: row})
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
        f"Group {consumer_group}, {queue}: the queue was reset again each time this plan looked at it. It "
        "waits for the next plan."
    )


def _uncommitted(old: QueueRange, row: OffsetRow, now_s: float) -> list[QueueRange]:
    """Return the uncommitted rest of a logged range, as a list of one range.

    The list is empty if all is committed. It is also empty if the range has an end, and its queue is
    suspended or was suspended after a committed message of the range.
    """
    is_begun = row.next_offset > old.start
    if row.next_offset < old.start or (old.has_open_end and not is_begun):
        return [old]
    # At the first message the row may have a suspension from before the plan, which is over.
    until_s = row.state.suspended_until_s if is_begun else suspended_until(row.state, now_s)
    is_waiting = until_s is not None and not old.has_open_end
    if row.next_offset >= old.end or is_waiting:
        # The next plan has the rest when it is due.
        return []
    state = row.state._replace(suspended_until_s=until_s, last_message=NO_MESSAGES)
    if not is_begun and old.state.retry_counts == trial_of(old.start):
        # A store at the brokers does not keep the mark of a queue that stands still.
        state = state._replace(retry_counts=old.state.retry_counts)
    return [replace(old, state=state)]


def _without(
    rows: dict[MessageQueue, OffsetRow], waiting: Collection[MessageQueue]
) -> dict[MessageQueue, OffsetRow]:
    return {queue: row for queue, row in rows.items() if queue not in waiting} if waiting else rows
