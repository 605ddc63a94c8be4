"""Commits parts of a micro-batch on the driver: first data, then offsets, then their copy at the brokers.

The guarantee comes from this order. First the sink gets the written data and its watermarks, in one commit.
Only then the offset store gets the offsets, so they are never ahead of the data. If the driver is killed in
between, the batch runs again, and the sink leaves out the rows that it has.

Epochs keep former owners out. If a queue was claimed or reset since the plan, the parts that contain it are
dropped before data is committed; with ``keeps_others`` (see :class:`PartCommitter`) only the queue's rows are
removed from these parts. The offset store refuses commits under an older epoch.

A *part* is what one task did of some queues: written rows, and one ack per queue, which has the queue's next
offset. A *group* of parts gets one commit of data and one of offsets. Its offsets may *wait*: they are then
stored together with those of a later group of the batch (``consume.offset_pace``). The epochs are checked
with the offsets; until then only the sink can refuse the group's rows. All groups are committed in the same
way, whether at the end of a batch, or while its job runs, when tasks hand parts over. Only one group is
committed at a time. If a commit reports an error, it may have taken effect all the same. So the same group is
tried again, perhaps without some queues, before any other group. This module does not use Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final, NamedTuple, Protocol

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.latencies import NO_LATENCIES, NONE_COUNTED, LatencyHistogram, StoreLatencies
from pyspark_rocketmq.consume.metrics import MetricsSnapshot, RecentMetrics
from pyspark_rocketmq.consume.part import (
    NOT_BEGUN,
    Group,
    Part,
    QueueAck,
    check_chains,
    joined,
    parts_without,
)
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import RocketMQError, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.open import checked_rows
from pyspark_rocketmq.offsets.recorded_sinks import NO_SINKS, RecordedSinks
from pyspark_rocketmq.offsets.store import CommitResult, OffsetRow, OffsetStore, QueueCommit
from pyspark_rocketmq.sinks.against_offsets import SinkStanding, ahead_of, check_has_all, recorded_sinks
from pyspark_rocketmq.sinks.base import (
    CommitsGroups,
    CommitsInTask,
    LeavesOutQueues,
    RowWriter,
    Sink,
    SinkBatch,
    Span,
    note_newest,
)
from pyspark_rocketmq.stored_values import RememberedMessages

logger = masking_logger(__name__)

_NOTHING_STORED: Final = CommitResult(accepted=(), refused=())
_SHOWN_WITHIN_S: Final = 2.0
"""Maximum wait, in seconds, until brokers have the offsets of queues that other members may get next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Results of one commit of a micro-batch, given to batch listeners after the commit.

    Some commits add no rows: they store offsets whose rows an earlier commit has added. The report of such a
    commit has no acks, and is made only if the offset store has refused some of the offsets.
    """

    query_id: str
    batch_id: int
    acks: tuple[QueueAck, ...]
    rows: int
    """Number of output rows written; rows in ``left_out`` are not included."""
    left_out: int
    """Number of output rows that a sink left out because it has them: they are below its watermark."""
    sink_version: int | None
    """Table version of the data commit; None if nothing was written, or the sink has no versions."""
    refused: tuple[QueueCommit, ...]
    """Offsets that the store refused, because their queues now belong to another consumer or were reset while
    the batch ran. Offsets may be stored later than their rows: refused ones are then in a later report."""
    offsets: tuple[OffsetRow, ...] = ()
    """Positions of all queues of this consumer after the commit, sorted by queue.

    Queues of which the commit has nothing are included. Left out are refused queues, and those that have left
    the batch before this commit: their positions no longer follow this consumer.
    """
    is_ahead: bool = False
    """Whether the commit was made while the batch's job was running."""
    store_to_listener: LatencyHistogram = NONE_COUNTED
    """Times from a message's storage at its broker until its delivery began, for the committed messages."""
    store_to_commit: LatencyHistogram = NONE_COUNTED
    """Times from a message's storage at its broker until its commit, for the committed messages.

    If tasks commit by themselves, this is the commit of the message's task, otherwise the driver's.
    """

    def without_counts(self) -> BatchReport:
        """Return the report with all counts 0, for a caller that has already added the counts to a total."""
        acks = tuple(
            replace(ack, consumed=0, failed=0, read=0, dead_letters=0, sent_back=0) for ack in self.acks
        )
        nothing = NONE_COUNTED
        return replace(
            self, acks=acks, rows=0, left_out=0, store_to_listener=nothing, store_to_commit=nothing
        )

    def with_later(self, later: BatchReport) -> BatchReport:
        """Return one report for this commit and a later one of the same batch.

        Counts and latencies are added, and refused offsets are joined. Positions and the sink's version are
        those of ``later``, or of this report if ``later`` has none.
        """
        acks = {ack.queue: ack for ack in self.acks}
        for ack in later.acks:
            before = acks.get(ack.queue)
            acks[ack.queue] = ack if before is None else joined(before, ack)
        return BatchReport(
            query_id=later.query_id,
            batch_id=later.batch_id,
            acks=tuple(acks[queue] for queue in sorted(acks)),
            rows=self.rows + later.rows,
            left_out=self.left_out + later.left_out,
            sink_version=self.sink_version if later.sink_version is None else later.sink_version,
            refused=(*self.refused, *later.refused),
            offsets=later.offsets or self.offsets,
            is_ahead=later.is_ahead,
            store_to_listener=self.store_to_listener.plus(later.store_to_listener),
            store_to_commit=self.store_to_commit.plus(later.store_to_commit),
        )


BatchListener = Callable[[BatchReport], None]
"""Called on the driver with the results of each commit, at a batch's end and while its job runs.

A report that is made while the job runs may come before its offsets are stored. If the listener raises, this
is only logged.
"""


class Mirror(Protocol):
    """The copy of a group's offsets at the brokers, where other members and tools look for them."""

    def show(self, accepted: Sequence[QueueCommit]) -> None:
        """Begin to send the brokers the offsets that the offset store has accepted; return immediately."""
        ...

    def await_shown(self, accepted: Sequence[QueueCommit], timeout_s: float) -> bool:
        """Wait until none of these offsets is left to send, for ``timeout_s`` seconds at most.

        Return False if some are left. An offset is left until its broker has it or a newer one, or until the
        attempt to send it is given up.
        """
        ...

    def arrived(self, queue: MessageQueue) -> int | None:
        """Return the last offset that this process has sent to the queue's broker and the broker has stored.

        Return None if there is none.
        """
        ...


class _SinkSide(NamedTuple):
    """The sink's side of a micro-batch: its batch on the driver, and the writer that the tasks use."""

    batch: SinkBatch
    writer: RowWriter


@dataclass(frozen=True, slots=True)
class BatchUnderCommit:
    """A micro-batch whose parts are being committed."""

    query_id: str
    batch_id: int
    sink: _SinkSide | None
    committed: set[MessageQueue] = field(default_factory=set)
    """Queues of which the batch has committed something."""
    waiting: dict[MessageQueue, QueueCommit] = field(default_factory=dict)
    """Offsets that wait: the sink has the rows, but the offset store does not have the offsets yet."""
    left: set[MessageQueue] = field(default_factory=set)
    """Queues that have left the batch: other members may have them, or they were claimed or reset."""

    @property
    def commits_groups(self) -> bool:
        """Whether several groups of the batch may have parts of the same queue."""
        return self.sink is None or isinstance(self.sink.batch, CommitsGroups)

    @property
    def writer(self) -> RowWriter | None:
        """Writer for the batch's tasks; None without a sink."""
        return None if self.sink is None else self.sink.writer

    @property
    def sinks(self) -> RecordedSinks:
        """The batch's sinks, in the form in which offset rows record them; empty without a sink."""
        return NO_SINKS if self.sink is None else recorded_sinks(self.sink.batch.standings)


class GroupResult(NamedTuple):
    """Outcome of a commit."""

    stored: tuple[QueueCommit, ...] = ()
    """The offsets that were stored."""
    refused: frozenset[MessageQueue] = frozenset()
    """Queues of which not everything was committed.

    Such a queue was claimed, reset or refused by the sink, or shares a part with such a queue. It is consumed
    again from its offset in the offset store, and this batch commits nothing more of it.
    """
    took_s: float = 0.0
    """Time that it took to store the offsets, in seconds; 0 if none were stored."""


class PartCommitter:
    """Commits the parts of one query's batches into its sink and its offset store.

    A *part* has written rows and acks of some of a task's queues; a *group* of parts is committed together.
    """

    def __init__(
        self,
        *,
        consumer_group: str,
        store: OffsetStore,
        sink: Sink | None,
        listeners: Sequence[BatchListener],
        mirror: Mirror | None,
        clock: Clock,
        keeps_others: bool = False,
    ) -> None:
        """Prepare to commit; without a sink only offsets are committed.

        ``keeps_others`` decides what happens to a part if one of its queues is refused: if it is True and the
        sink can separate the rows, those of the other queues are kept. Otherwise the part is dropped whole.
        """
        self._group = consumer_group
        self._store = store
        self._sink = sink
        self._listeners = listeners
        self._mirror = mirror
        self._clock = clock
        self._keeps_others = keeps_others
        self._recent: RecentMetrics[MessageQueue] = RecentMetrics(clock.now_s())
        self._rows: dict[MessageQueue, OffsetRow] = {}
        """Offset rows as they were when the newest batch began, updated by the commits since."""
        self._counted: tuple[str, dict[MessageQueue, MetricsSnapshot]] = ("", {})
        """Id of the newest group and, by queue, the statistics in which this group is counted already."""

    def begin(self, query_id: str, batch_id: int) -> BatchUnderCommit:
        """Begin a batch before its job: read the offset rows, begin the sink's batch, and compare the two.

        Raises:
            SinkSetBack: If the sink lacks rows of messages below the offsets, or is another table now. This
                batch has consumed nothing.
            OffsetError: If the offset store was restored to an older state, replaced or deleted.
            RocketMQError: If the sink or the offset store cannot be read, or if the sink has rows of a later
                generation of a queue.
        """
        rows = checked_rows(self._store, self._group, self._store.read(self._group), seen=self._rows)
        self._rows = dict(rows)
        sink = None
        if self._sink is not None:
            begun = self._begin(self._sink, rows)
            sink = _SinkSide(begun, _fenced(begun.task_writer(), rows, begun.standings))
        return BatchUnderCommit(query_id, batch_id, sink)

    def await_shown(self, accepted: Sequence[QueueCommit]) -> None:
        """Wait until the brokers have these offsets, for at most 2 s.

        The next owner of a queue may be a Java member, which begins at its broker's offset. If the brokers do
        not have the offsets in time, a warning is logged.
        """
        shown = [commit for commit in accepted if commit.is_shown]
        if self._mirror is not None and shown and not self._mirror.await_shown(shown, _SHOWN_WITHIN_S):
            logger.warning(
                "offsets of queues that may now change hands did not reach the brokers in time; a Java "
                "member may consume messages again group=%s queues=%d",
                self._group,
                len(shown),
            )

    def commit_group(
        self, group: Group, batch: BatchUnderCommit, *, stores_offsets: bool = True, is_ahead: bool = False
    ) -> GroupResult:
        """Commit a group's parts, except those with a queue that was claimed, reset or refused meanwhile.

        If ``keeps_others`` applies (see the constructor), such a part loses only the rows of that queue.
        After an error the same group may be committed again, also without some of its queues. If its data is
        already committed, only its offsets are stored.

        Args:
            group: The parts.
            batch: Their batch.
            stores_offsets: Whether to store the group's offsets, and those that wait, after the data. If
                False, the group's offsets wait, too. Epochs are then read only if the sink is ahead of an
                offset. So rows of a queue that has a new owner can be refused only by the sink, and only
                after the new owner has added rows. Without a sink this must be True.
            is_ahead: Whether the batch's job is still running; for the report.

        Raises:
            RocketMQError: If data or offsets could not be committed.
        """
        if not group.queues:
            return self.store_offsets(batch, is_ahead=is_ahead) if stores_offsets else GroupResult()
        try:
            return self._commit_group(group, batch, stores_offsets=stores_offsets, is_ahead=is_ahead)
        except BaseException:
            # A broker reports a reset only once, so the batch does not show it when it runs again.
            for ack in group.acks:
                if ack.reset_to is not None:
                    logger.warning(
                        "reset may not have been followed, the batch failed; reset it again if still wanted "
                        "group=%s %s target=%d",
                        self._group,
                        ack.queue,
                        ack.reset_to,
                    )
            raise

    def store_offsets(self, batch: BatchUnderCommit, *, is_ahead: bool = False) -> GroupResult:
        """Store the offsets that wait: their rows are committed already.

        ``is_ahead``: whether the batch's job is still running; for the report.

        Raises:
            RocketMQError: If the offsets cannot be stored; they go on waiting.
        """
        result, took_s = self._store_waiting(batch)
        self._report_refused(result, batch, is_ahead=is_ahead)
        return GroupResult(result.accepted, frozenset(each.queue for each in result.refused), took_s)

    def _begin(self, sink: Sink, rows: Mapping[MessageQueue, OffsetRow]) -> SinkBatch:
        queues = {queue: row.generation for queue, row in rows.items()}
        try:
            begun = sink.begin(self._group, queues)
        except RocketMQError as error:
            # If the table is gone or was replaced, check_has_all raises an error that names the remedies.
            try:
                standings = sink.standings(self._group, queues)
            except Exception:  # noqa: BLE001 - such as storage that is away
                raise error from None
            check_has_all(self._group, rows, standings, store=self._store.spec)
            raise
        check_has_all(self._group, rows, begun.standings, store=self._store.spec)
        return begun

    def _commit_group(
        self, group: Group, batch: BatchUnderCommit, *, stores_offsets: bool, is_ahead: bool
    ) -> GroupResult:
        check_chains(group.parts)
        version = None
        kept, refused = group, frozenset[MessageQueue]()
        if batch.sink is not None:
            kept, refused, version = self._add_to(
                batch.sink, group, batch.committed, reads_epochs=stores_offsets
            )
        acks = kept.acks
        self._add_waiting(group.id, acks, batch)
        if stores_offsets:
            result, took_s = self._store_waiting(batch)
        else:
            result, took_s = _NOTHING_STORED, 0.0
            self._remember(batch.waiting.values())
        lost = frozenset(refused.queue for refused in result.refused)
        self._follow_resets(acks, lost=lost)
        self._make_planners_check(acks, lost=lost)
        if not acks:
            self._report_refused(result, batch, is_ahead=is_ahead)
            return GroupResult(result.accepted, refused | lost, took_s)
        latencies = reduce(StoreLatencies.plus, (ack.latencies for ack in acks), NO_LATENCIES)
        report = BatchReport(
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            acks=acks,
            rows=kept.emitted - kept.left_out,
            left_out=kept.left_out,
            sink_version=version,
            refused=result.refused,
            offsets=self._own_rows([ack.queue for ack in acks], result, batch),
            is_ahead=is_ahead,
            store_to_listener=latencies.to_listener,
            store_to_commit=latencies.to_commit(int(self._clock.now_s() * 1000)),
        )
        self._log(report, result)
        self._notify(report)
        return GroupResult(result.accepted, refused | lost, took_s)

    def _add_waiting(self, group_id: str, acks: Sequence[QueueAck], batch: BatchUnderCommit) -> None:
        now_s, sinks = self._clock.now_s(), batch.sinks
        for ack in acks:
            commit = self._commit_of(group_id, ack, sinks, now_s)
            before = batch.waiting.get(ack.queue)
            if before is not None and not ack.state.last_message:
                state = commit.state._replace(last_message=before.state.last_message)
                commit = replace(commit, state=state)
            batch.waiting[ack.queue] = commit
            batch.committed.add(ack.queue)

    def _store_waiting(self, batch: BatchUnderCommit) -> tuple[CommitResult, float]:
        """Store the offsets that wait; return the result, and how long it took in seconds."""
        commits = [batch.waiting[queue] for queue in sorted(batch.waiting)]
        if not commits:
            return _NOTHING_STORED, 0.0
        began_s = self._clock.monotonic_s()
        result = self._store.commit(self._group, commits, query_id=batch.query_id, batch_id=batch.batch_id)
        took_s = self._clock.monotonic_s() - began_s
        batch.waiting.clear()
        self._remember(result.accepted)
        self._show([commit for commit in result.accepted if commit.is_shown])
        return result, took_s

    def _commit_of(self, group_id: str, ack: QueueAck, sinks: RecordedSinks, now_s: float) -> QueueCommit:
        if self._counted[0] != group_id:
            self._counted = group_id, {}
        counted = self._counted[1]
        if ack.queue not in counted:
            counted[ack.queue] = self._recent.add(ack.queue, ack.metrics, now_s)
        # A broker would take an offset in the queue's former log for one in its present log. A range that was
        # not begun adds nothing to show, and if its task could not ask, a Java member may have the queue now.
        is_begun = ack.finished != NOT_BEGUN
        is_to_show = ack.reset_to is None and not ack.is_another_log and is_begun
        if not is_begun and ack.queue in self._rows:
            # Nothing of it is written to the sinks: one that is new keeps its watermark (``_add``).
            sinks = self._rows[ack.queue].sinks
        return QueueCommit(
            queue=ack.queue,
            state=ack.state,
            statistics=counted[ack.queue],
            is_shown=self._mirror is not None and is_to_show,
            arrived=None if self._mirror is None else self._mirror.arrived(ack.queue),
            sinks=sinks,
        )

    def _remember(self, commits: Iterable[QueueCommit]) -> None:
        for commit in commits:
            row = self._rows.get(commit.queue)
            # A replayed batch may have reached a smaller offset; then the row stays as it is.
            if row is not None and commit.state.next_offset >= row.next_offset:
                self._rows[commit.queue] = row._replace(
                    state=commit.state._replace(
                        last_message=commit.state.last_message or row.state.last_message
                    )
                )

    def _own_rows(
        self, queues: Iterable[MessageQueue], result: CommitResult, batch: BatchUnderCommit
    ) -> tuple[OffsetRow, ...]:
        """Return the offset rows of all queues that belong to the owners of ``queues``.

        Queues that ``result`` reports as refused, or that have left the batch, are left out.
        """
        owners = {self._rows[queue].owner for queue in queues if queue in self._rows}
        gone = batch.left.union(refused.queue for refused in result.refused)
        return tuple(
            row for queue, row in sorted(self._rows.items()) if row.owner in owners and queue not in gone
        )

    def _add_to(
        self, sink: _SinkSide, group: Group, committed: Collection[MessageQueue], *, reads_epochs: bool
    ) -> tuple[Group, frozenset[MessageQueue], int | None]:
        """Commit the data of a group; drop queues that were claimed or reset, or that the sink refuses.

        The offset store is read for claims and resets only with ``reads_epochs``, or if the sink is ahead of
        an offset. Unless ``keeps_others`` applies (see the constructor), the other queues of a part with a
        dropped queue are dropped, too, and are consumed again.

        Returns:
            The rest of the group; the queues dropped here, so none of ``group.without``; and the table's
            version, None if nothing was written or the sink has no versions.
        """
        acks = [ack for part in group.parts for ack in part.acks if ack.queue not in group.without]
        # The other queues were checked when this batch first committed something of them.
        is_ahead = self._note_sink_ahead([ack for ack in acks if ack.queue not in committed], sink.batch)
        kept, dropped = self._without(sink, group.parts, group.without)
        moved = self._moved(acks) if reads_epochs or is_ahead else frozenset[MessageQueue]()
        if moved:
            kept, lost = self._without(sink, kept, moved)
            self._log_dropped(lost, moved, logging.INFO if is_ahead else logging.WARNING)
            self._follow_resets(lost, lost=moved)
            dropped += lost
        version = None
        while kept:
            try:
                version = self._add(sink, Group(kept), group.id)
                break
            except SinkMoved as error:
                # Since the epochs were read, somebody else has committed rows of a queue: a former owner that
                # was delayed, or the next owner while this query was delayed. In both cases the next plan
                # begins at the offset store's position.
                logger.warning("batch dropped group=%s: %s", self._group, error)
                queues = Group(kept).queues
                kept, lost = self._without(sink, kept, (queues & error.queues) or queues)
                self._follow_resets(lost, lost=self._moved(lost))
                # Without this the planner would assume that the batch was delivered but nothing committed.
                self._record_sink_ahead(lost)
                dropped += lost
        return Group(kept), frozenset(ack.queue for ack in dropped) - group.without, version

    def _add(self, sink: _SinkSide, group: Group, group_id: str) -> int | None:
        acks = [ack for ack in group.acks if ack.finished != NOT_BEGUN]
        if not acks:
            return None
        written = tuple(map(sink.writer.written, group.written))
        note_newest(sink.batch, {ack.queue: self._newest_message(ack).to_text() for ack in acks})
        if isinstance(sink.batch, CommitsGroups):
            spans = {ack.queue: Span(ack.start, ack.state.next_offset) for ack in acks}
            return sink.batch.commit_group(written, spans, group_id)
        return sink.batch.commit(written, {ack.queue: ack.state.next_offset for ack in acks})

    def _without(
        self, sink: _SinkSide, parts: tuple[Part, ...], queues: frozenset[MessageQueue]
    ) -> tuple[tuple[Part, ...], list[QueueAck]]:
        """Remove the rows of queues from parts; return the rest of the parts, and the removed acks.

        Unless ``keeps_others`` applies, the whole parts that contain one of the queues are removed.
        """
        if not queues:
            return parts, []
        if self._keeps_others and isinstance(sink.batch, LeavesOutQueues):
            separated = [_separated(part, queues, sink.writer, sink.batch) for part in parts]
            dropped = [ack for part in parts for ack in part.acks if ack.queue in queues]
            return tuple(part for part in separated if part.acks), dropped
        kept, others = parts_without(parts, queues)
        return kept, [ack for part in others for ack in part.acks]

    def _newest_message(self, ack: QueueAck) -> RememberedMessages:
        """Return the newest message before the ack's next offset; empty if there is none.

        If a filter left no message, so that the ack has none, return the newest one of the offset row.
        """
        row = self._rows.get(ack.queue)
        if ack.state.last_message or row is None:
            return ack.state.last_message
        remembered = row.state.last_message.messages
        below = (each for each in remembered if each.queue_offset < ack.state.next_offset)
        return RememberedMessages.of(next(below, None))

    def _log_dropped(self, dropped: Sequence[QueueAck], moved: frozenset[MessageQueue], level: int) -> None:
        for queue in sorted(moved.intersection(ack.queue for ack in dropped)):
            logger.log(
                level,
                "a queue was claimed or reset while its batch ran; dropped the parts of the batch that "
                "contain it group=%s %s queues=%d",
                self._group,
                queue,
                len(dropped),
            )

    def _note_sink_ahead(self, acks: Sequence[QueueAck], sink_batch: SinkBatch) -> bool:
        """Record in the offset store how far the sink is ahead of the offsets; return whether it is ahead.

        The sink is ahead of a queue's offset if another member was killed between its data commit and its
        offset commit. Since then nobody has checked that the broker still has the messages between the offset
        and the sink's watermark. The record raises the queue's epoch. So this batch drops the queue's parts,
        and the planner checks the queue again.
        """
        is_ahead = bool(ahead_of(self._planned_rows(acks), sink_batch.standings))
        if is_ahead:
            self._record_sink_ahead(acks)
        return is_ahead

    def _planned_rows(self, acks: Sequence[QueueAck]) -> dict[MessageQueue, OffsetRow]:
        """Return the offset rows of the acknowledged queues that still have the epoch of the plan."""
        return {
            ack.queue: row
            for ack in acks
            if (row := self._rows.get(ack.queue)) is not None and row.epoch == ack.state.epoch
        }

    def _record_sink_ahead(self, acks: Sequence[QueueAck]) -> None:
        """Store the sink's positions that are beyond the offset rows; see ``OffsetStore.note_sinks``."""
        assert self._sink is not None
        rows = self._planned_rows(acks)
        generations = {queue: row.generation for queue, row in rows.items()}
        records = ahead_of(rows, self._sink.standings(self._group, generations))
        for queue in self._store.note_sinks(self._group, records):
            logger.info(
                "the sink is ahead of the offsets: the planner checks the message below its watermark before "
                "anything is added group=%s %s watermark=%d",
                self._group,
                queue,
                records[queue].next_offset,
            )

    def _moved(self, acks: Sequence[QueueAck]) -> frozenset[MessageQueue]:
        """Return the queues of ``acks`` that were claimed or reset since the batch was planned."""
        rows = self._store.read(self._group)
        return frozenset(
            ack.queue for ack in acks if ack.queue not in rows or rows[ack.queue].epoch != ack.state.epoch
        )

    def _follow_resets(self, acks: Sequence[QueueAck], *, lost: frozenset[MessageQueue]) -> None:
        """Reset queues in the offset store that an operator has reset at their broker.

        A broker reports a reset only once. A queue in ``lost`` is not moved, since its new owner has begun at
        another offset. See row F5 of ``docs/semantics.md``.
        """
        wanted = {ack.queue: ack.reset_to for ack in acks if ack.reset_to is not None}
        targets = {queue: target for queue, target in wanted.items() if queue not in lost}
        if targets:
            self._store.reset(self._group, targets)
        for queue, target in wanted.items():
            logger.warning(
                "%s group=%s %s target=%d",
                "offset reset by an operator"
                if queue in targets
                else "reset not followed, the queue was claimed or reset meanwhile; reset it again if still "
                "wanted",
                self._group,
                queue,
                target,
            )

    def _make_planners_check(self, acks: Sequence[QueueAck], *, lost: frozenset[MessageQueue]) -> None:
        """Make planners check queues in which a task found another message at a consumed offset.

        Reset each of them to its own next offset. That does not move the queue but raises its epoch, and a
        planner checks a queue when it sees a new epoch. Queues in ``lost``, which have a new owner or were
        reset, are left out.
        """
        places = {ack.queue: ack.state for ack in acks if ack.is_another_log and ack.queue not in lost}
        if not places:
            return
        self._store.reset(
            self._group,
            {queue: state.next_offset for queue, state in places.items()},
            under={queue: state.epoch for queue, state in places.items()},
        )
        for queue, state in places.items():
            logger.warning(
                "the broker has another message at an offset that was consumed; the planner checks the queue "
                "before more of it is read group=%s %s next_offset=%d",
                self._group,
                queue,
                state.next_offset,
            )

    def _show(self, accepted: Sequence[QueueCommit]) -> None:
        if self._mirror is None:
            return
        try:
            self._mirror.show(accepted)
        except Exception:
            logger.exception(
                "offsets could not be sent to the brokers; the commit is valid all the same group=%s",
                self._group,
            )

    def _notify(self, report: BatchReport) -> None:
        for listener in self._listeners:
            try:
                listener(report)
            except Exception:
                # Data and offsets are committed, so an error now would end the query without need.
                logger.exception(
                    "batch listener failed, nothing is undone group=%s batch=%d", self._group, report.batch_id
                )

    def _report_refused(self, result: CommitResult, batch: BatchUnderCommit, *, is_ahead: bool) -> None:
        """Log the refused offsets of a commit that has added no rows, and report them to batch listeners."""
        self._log_refused(result)
        if result.refused:
            report = BatchReport(
                query_id=batch.query_id,
                batch_id=batch.batch_id,
                acks=(),
                rows=0,
                left_out=0,
                sink_version=None,
                refused=result.refused,
                offsets=self._own_rows([refused.queue for refused in result.refused], result, batch),
                is_ahead=is_ahead,
            )
            self._notify(report)

    def _log_refused(self, result: CommitResult) -> None:
        for refused in result.refused:
            logger.warning(
                "commit refused, the queue was claimed or reset by somebody else group=%s %s epoch=%d "
                "next_offset=%d",
                self._group,
                refused.queue,
                refused.state.epoch,
                refused.state.next_offset,
            )

    def _log(self, report: BatchReport, result: CommitResult) -> None:
        self._log_refused(result)
        if report.left_out:
            rows = (self._rows.get(ack.queue) for ack in report.acks)
            was_moved_back = any(row is not None and (row.was_reset or row.was_followed) for row in rows)
            logger.log(
                # After a kill the sink has such rows, which needs no warning.
                logging.WARNING if was_moved_back else logging.INFO,
                "rows left out, below the sink's watermark group=%s batch=%d rows=%d: the sink has them from "
                "an earlier run of this batch; if the group's offsets were moved back to have them written "
                "again, see DeltaSink.rewind",
                self._group,
                report.batch_id,
                report.left_out,
            )
        logger.log(
            # A batch in real time commits twice a second.
            logging.DEBUG if report.is_ahead else logging.INFO,
            "batch committed group=%s batch=%d queues=%d messages=%d rows=%d failed=%d version=%s",
            self._group,
            report.batch_id,
            len(report.acks),
            sum(ack.consumed for ack in report.acks),
            report.rows,
            sum(ack.failed for ack in report.acks),
            report.sink_version,
        )


def _fenced(
    writer: RowWriter, rows: Mapping[MessageQueue, OffsetRow], standings: Sequence[SinkStanding]
) -> RowWriter:
    """Return ``writer`` or, if its tasks commit by themselves, one whose tasks refuse some queues.

    Such tasks refuse queues that were claimed or reset between the plan and the reading of ``rows``, and
    queues of which the sink is ahead of the offset. These are the queues that ``_add_to`` would drop.
    """
    if not isinstance(writer, CommitsInTask):
        return writer
    ahead = ahead_of(rows, standings)
    return writer.fenced({queue: row.epoch for queue, row in rows.items() if queue not in ahead})


def _separated(
    part: Part, queues: frozenset[MessageQueue], writer: RowWriter, batch: LeavesOutQueues
) -> Part:
    """Return a part without these queues and their rows."""
    if part.queues.isdisjoint(queues):
        return part
    acks = tuple(ack for ack in part.acks if ack.queue not in queues)
    if not acks:
        return replace(part, acks=(), written=())
    written, removed = batch.without([writer.written(facts) for facts in part.written], queues)
    return replace(
        part,
        acks=acks,
        written=tuple(each.to_dict() for each in written),
        emitted=part.emitted - removed,
    )
