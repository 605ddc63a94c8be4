"""Effects of a claim, a commit and a reset on a group's rows: pure functions, and a base class of stores.

Rule 1: each function takes the stored rows and returns all rows to store. If these are equal, there is
nothing to write.
Rule 2: a change is applied as a whole; an error means that no row changes.
Rule 3: a change may be applied a second time; at most, this raises epochs again. So a store that cannot see
whether its write was stored reads the rows and applies the change again.

:mod:`pyspark_rocketmq.offsets.store` explains claims, epochs, generations and watermarks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.generations import NO_BOUNDARIES
from pyspark_rocketmq.consume.metrics import NO_METRICS
from pyspark_rocketmq.consume.positions import ShownOffsets, resolve_start_offset
from pyspark_rocketmq.errors import OffsetError, OffsetRegressed
from pyspark_rocketmq.model import OPEN_END, MessageQueue, QueueState
from pyspark_rocketmq.offsets.history import RESET_ACTION
from pyspark_rocketmq.offsets.recorded_sinks import NO_SINKS, RecordedSinks
from pyspark_rocketmq.offsets.store import (
    CLAIMED,
    FIRST_GENERATIONS,
    FOLLOWED,
    NO_ROWS,
    NOTED,
    RESET,
    SKIPPED,
    CommitResult,
    LastSkipped,
    NewGeneration,
    OffsetRow,
    QueueCommit,
    SinkRecord,
    client_id_of,
)
from pyspark_rocketmq.stored_values import NO_MESSAGES, LastMessage, RememberedMessages

Rows = Mapping[MessageQueue, OffsetRow]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Change(Generic[ResultT]):
    """Outcome of a change to one group's rows: the rows that the store must write, and its return value."""

    rows: dict[MessageQueue, OffsetRow]
    """All rows of the group after the change, also those that stay as they were."""
    result: ResultT
    """Value that the store returns to its caller."""


def apply_claim(
    before: Rows,
    consumer_group: str,
    owner: str,
    starts: Mapping[MessageQueue, int],
    *,
    now_s: float,
    generations: Mapping[MessageQueue, int] = FIRST_GENERATIONS,
    at_brokers: Mapping[MessageQueue, int] | None = None,
    rows_before: Rows = NO_ROWS,
) -> Change[dict[MessageQueue, OffsetRow]]:
    """Raise the epoch of every queue in ``starts`` and make ``owner`` its owner.

    A stored row moves to the offset at its queue's broker if somebody else has stored that offset there; see
    ``OffsetStore.claim``.

    Raises:
        OffsetError: If a start is negative, or above the highest one.
    """
    _check_offsets(consumer_group, starts)
    claimed = {}
    for queue, start in starts.items():
        row = before.get(queue)
        if row is None:
            row = new_row(consumer_group, queue, start)._replace(generation=generations.get(queue, 0))
            if at_brokers is not None:
                row = row._replace(shown=ShownOffsets(()).followed_by(at_brokers.get(queue), start))
        elif at_brokers is not None:
            row = _following(row, at_brokers.get(queue), rows_before.get(queue))
        claimed[queue] = _claimed(row, owner, now_s)
    return Change({**before, **claimed}, claimed)


def apply_commit(
    before: Rows,
    consumer_group: str,
    commits: Sequence[QueueCommit],
    *,
    query_id: str,
    batch_id: int,
    now_s: float,
) -> Change[CommitResult]:
    """Apply each commit whose epoch is still the stored one, and refuse the others.

    Raises:
        OffsetRegressed: If a batch would move back a row that another batch or change has written.
        OffsetError: If a value is negative, or above the highest one.
    """
    after = dict(before)
    accepted: list[QueueCommit] = []
    refused: list[QueueCommit] = []
    for commit in commits:
        _check_commit(consumer_group, commit)
        row = after.get(commit.queue)
        if row is None or row.epoch != commit.state.epoch:
            refused.append(commit)
            continue
        after[commit.queue] = _committed(row, commit, query_id, batch_id, now_s)
        accepted.append(commit)
    return Change(after, CommitResult(accepted=tuple(accepted), refused=tuple(refused)))


def apply_reset(
    before: Rows,
    consumer_group: str,
    targets: Mapping[MessageQueue, int],
    now_s: float,
    *,
    under: Mapping[MessageQueue, int] | None = None,
    sinks: Mapping[MessageQueue, RecordedSinks] | None = None,
) -> Change[dict[MessageQueue, OffsetRow]]:
    """Move queues to their targets and raise their epochs; clear suspensions and counts of redeliveries.

    With ``under``, only queues that have the epoch given there are moved. The rows name the sinks in
    ``sinks``. See ``OffsetStore.reset``.

    Raises:
        OffsetError: If a target is negative, or above the highest one.
    """
    _check_offsets(consumer_group, targets)
    if under is not None:
        targets = {
            queue: target
            for queue, target in targets.items()
            if queue in before and before[queue].epoch == under.get(queue)
        }
    batch_id = RESET if under is None else SKIPPED
    moved = {
        queue: _reset(
            before.get(queue) or new_row(consumer_group, queue, target), target, now_s, batch_id
        )._replace(sinks=(sinks or {}).get(queue, NO_SINKS))
        for queue, target in targets.items()
    }
    return Change({**before, **moved}, moved)


def apply_begin_generations(
    before: Rows, consumer_group: str, generations: Mapping[MessageQueue, NewGeneration], now_s: float
) -> Change[dict[MessageQueue, OffsetRow]]:
    """Begin the next generation of each queue whose row still has the epoch that ``generations`` names.

    In one generation, a queue's offsets belong to the same messages; a generation ends when the offsets start
    again with other messages. The row moves to the new generation's ``next_offset``, and its epoch grows by
    one. Queues without a row are left out.

    Raises:
        OffsetError: If an offset is negative, or above the highest one.
    """
    _check_offsets(consumer_group, {queue: new.next_offset for queue, new in generations.items()})
    begun = {
        queue: _begun(before[queue], new, now_s)
        for queue, new in generations.items()
        if queue in before and before[queue].epoch == new.epoch
    }
    return Change({**before, **begun}, begun)


def _begun(row: OffsetRow, new: NewGeneration, now_s: float) -> OffsetRow:
    boundary = new.next_offset if new.boundary is None else new.boundary
    boundaries = row.boundaries.begun(boundary, row.state.last_message)
    # Drop the boundaries first: with them, the move could take the row back to an earlier generation.
    moved = _reset(row._replace(boundaries=NO_BOUNDARIES), new.next_offset, now_s, SKIPPED)
    moved = moved._replace(generation=row.generation + 1, boundaries=boundaries)
    return _with(moved, last_message=NO_MESSAGES)


def apply_arrivals(before: Rows, arrived: Mapping[MessageQueue, int]) -> Change[None]:
    """Record that brokers have stored the offsets ``arrived``; forget the offsets sent before these."""
    known = {
        queue: before[queue]._replace(shown=before[queue].shown.since(offset))
        for queue, offset in arrived.items()
        if queue in before and before[queue].shown
    }
    return Change({**before, **known}, None)


def apply_last_skipped(before: Rows, passed: Mapping[MessageQueue, LastSkipped]) -> Change[None]:
    """Remember a queue's messages in ``passed`` if its epoch is unchanged and no batch has moved the queue.

    If a batch has moved the queue, the messages are remembered only in two cases: the broker has lost one of
    them, or all are older than the newest message that the row remembers.
    """
    known = {
        queue: _with(row, last_message=row.state.last_message.with_passed(skipped.last_message))
        for queue, skipped in passed.items()
        if (row := before.get(queue)) is not None
        and row.epoch == skipped.epoch
        and (
            row.was_moved
            or skipped.last_message.has_loss
            or skipped.last_message.is_behind(row.state.last_message)
        )
    }
    return Change({**before, **known}, None)


def apply_sink_records(
    before: Rows, records: Mapping[MessageQueue, SinkRecord], now_s: float, *, is_fenced: bool = True
) -> Change[dict[MessageQueue, OffsetRow]]:
    """Note in each offset row that a sink is ahead of it: store the sink's newest message, raise the epoch.

    If the sink has a later generation of the queue, the row moves to that generation. With
    ``is_fenced=False`` only such a move raises the epoch, so that running batches can go on. The result has
    the changed rows. See ``OffsetStore.note_sinks``.
    """
    noted = {
        queue: row
        for queue, record in records.items()
        if queue in before
        and (row := _noted(before[queue], record, now_s, is_fenced=is_fenced)) is not before[queue]
    }
    return Change({**before, **noted}, noted)


def _noted(row: OffsetRow, record: SinkRecord, now_s: float, *, is_fenced: bool) -> OffsetRow:
    newest = record.last_message or RememberedMessages.of(LastMessage.unknown(record.next_offset - 1))
    if record.generation < row.generation:
        return row
    if record.generation > row.generation and row.boundaries.ahead is not None:
        # The group was set back from that generation to an earlier one, and the sink already has the rows
        # that the group will consume again.
        again = row._replace(
            generation=record.generation, boundaries=NO_BOUNDARIES, updated_at_s=_round_to_us(now_s)
        )
        return _with(again, epoch=row.epoch + 1, last_message=newest)
    if record.generation > row.generation:
        moved = _moved(row._replace(boundaries=NO_BOUNDARIES), record.next_offset, NOTED)
        moved = moved._replace(generation=record.generation)
        return _with(moved, epoch=row.epoch + 1, last_message=newest)._replace(
            updated_at_s=_round_to_us(now_s)
        )
    if not row.state.last_message.is_behind(newest):
        return row
    merged = row.state.last_message.with_newest_of(newest)
    row = _consumed_in(row)
    if row.was_reset or row.was_followed:
        # The sink has later rows, so the group has consumed from the position to which it was moved. That
        # position can no longer be a sign of a replaced log.
        row = row._replace(batch_id=SKIPPED)
    elif row.batch_id == CLAIMED:
        row = row._replace(batch_id=NOTED)
    epoch = row.epoch + 1 if is_fenced else row.epoch
    return _with(row, epoch=epoch, last_message=merged)._replace(updated_at_s=_round_to_us(now_s))


def new_row(consumer_group: str, queue: MessageQueue, start: int) -> OffsetRow:
    """Return a row for a queue that has none yet, at ``start``, with epoch 0.

    A row is stored only after a claim or reset has raised the epoch.
    """
    return OffsetRow(
        consumer_group=consumer_group,
        queue=queue,
        state=QueueState(start),
        owner="",
        query_id="",
        batch_id=CLAIMED,
        updated_at_s=0.0,
    )


def _with(row: OffsetRow, **changes: Any) -> OffsetRow:
    return row._replace(state=row.state._replace(**changes))


def _following(row: OffsetRow, at_broker: int | None, before: OffsetRow | None) -> OffsetRow:
    """Return the row, moved to ``at_broker`` if somebody else has stored that offset at the queue's broker.

    An offset in ``row.shown`` was not stored by somebody else: Spark queries have sent it, or found it there.
    ``before`` is the row as it was before the broker was queried; None if it was not read. If only
    ``before.shown`` has the offset, the broker has got a later one since, and the row stays as it is.
    """
    if before is not None and at_broker in before.shown and at_broker not in row.shown:
        # The broker's answer is older than an offset of our own that has arrived there since.
        return row
    next_offset = resolve_start_offset(row.next_offset, row.shown, at_broker, was_reset=row.was_reset)
    # ``QueueClaims`` writes a reset to the broker before it plans anything, and has it remembered then: the
    # broker may refuse it, or this member may end before.
    is_to_be_sent = not (row.was_reset or row.shown.is_known)
    written = row.next_offset if is_to_be_sent else None
    row = row._replace(shown=row.shown.found(at_broker).followed_by(written))
    if next_offset == row.next_offset:
        return row
    return _moved(row, next_offset, FOLLOWED)


def _moved(row: OffsetRow, next_offset: int, batch_id: int) -> OffsetRow:
    """Return the row moved to ``next_offset``, without facts about the old offset.

    If ``next_offset`` is below the offset at which the row's generation began, the row goes back to an
    earlier generation.
    """
    count, boundaries, messages = row.boundaries.back_to(next_offset)
    state = QueueState(
        next_offset, row.epoch, last_message=row.state.last_message if messages is None else messages
    )
    if messages is not None and batch_id == FOLLOWED:
        # Somebody moved it on purpose to messages before the boundary: it is no offset of an old log.
        batch_id = SKIPPED
    return row._replace(
        state=state,
        query_id="",
        batch_id=batch_id,
        sinks=NO_SINKS,
        generation=row.generation - count,
        boundaries=boundaries,
    )


def _claimed(row: OffsetRow, owner: str, now_s: float) -> OffsetRow:
    return _with(row, epoch=row.epoch + 1)._replace(
        owner=owner, updated_at_s=_round_to_us(now_s), statistics=NO_METRICS
    )


def _reset(row: OffsetRow, target: int, now_s: float, batch_id: int = RESET) -> OffsetRow:
    if batch_id == RESET or target != row.next_offset:
        # No broker has received this reset, even if it was sent the same offset before.
        row = row._replace(shown=row.shown.without(target))
    # Forget the batch, too. Otherwise a replay of that batch could undo an operator's reset, since a replay
    # never moves a queue back.
    return _with(_moved(row, target, batch_id), epoch=row.epoch + 1)._replace(
        updated_at_s=_round_to_us(now_s)
    )


def _committed(row: OffsetRow, commit: QueueCommit, query_id: str, batch_id: int, now_s: float) -> OffsetRow:
    is_same_batch = (row.query_id, row.batch_id) == (query_id, batch_id)
    state = commit.state
    if state.next_offset < row.next_offset:
        if is_same_batch:
            return row._replace(shown=_shown_with(row, commit))
        raise OffsetRegressed(
            f"Group {row.consumer_group}, {row.queue}: batch {batch_id} of query {query_id} tried to set the "
            f"next offset to {state.next_offset}, but it is {row.next_offset} (batch {row.batch_id} of query "
            f"{row.query_id or 'none'}, the same epoch {row.epoch}). Nothing was stored. Only a reset may "
            "move an offset back. Check that only one query consumes this queue for the group; to go back, "
            "reset the group's offset."
        )
    last_message = row.state.last_message
    if state.suspended_until_s is not None:
        state = state._replace(suspended_until_s=_round_to_us(state.suspended_until_s))
    is_to_be_shown = commit.is_shown and state.next_offset not in row.shown
    if state._replace(last_message=last_message) == row.state and not is_to_be_shown:
        return row
    if state.next_offset > row.next_offset:
        row = _consumed_in(row)
    return row._replace(
        state=state._replace(last_message=last_message.with_newest_of(state.last_message)),
        query_id=query_id,
        batch_id=batch_id,
        updated_at_s=_round_to_us(now_s),
        statistics=commit.statistics,
        shown=_shown_with(row, commit),
        sinks=commit.sinks,
    )


def _consumed_in(row: OffsetRow) -> OffsetRow:
    """Return the row after a message of its generation was consumed.

    The offsets at which this generation and earlier ones began are no longer needed, and are removed.
    """
    return row._replace(boundaries=row.boundaries.consumed_in()) if row.boundaries.behind else row


def _shown_with(row: OffsetRow, commit: QueueCommit) -> ShownOffsets:
    if not commit.is_shown:
        return row.shown
    return row.shown.since(commit.arrived).followed_by(commit.state.next_offset)


def _check_commit(consumer_group: str, commit: QueueCommit) -> None:
    state = commit.state
    _check_offsets(consumer_group, {commit.queue: state.next_offset})
    if state.reconsume_times < 0:
        raise OffsetError(
            f"Group {consumer_group}, {commit.queue}: reconsumeTimes is {state.reconsume_times} at offset "
            f"{state.next_offset}, but must not be negative. Nothing was stored. Commit 0 for a message not "
            "yet tried."
        )


def _check_offsets(consumer_group: str, offsets: Mapping[MessageQueue, int]) -> None:
    for queue, next_offset in offsets.items():
        if next_offset < 0:
            raise OffsetError(
                f"Group {consumer_group}, {queue}: next offset {next_offset} is negative and was not stored. "
                "RocketMQ's -1 means that no offset was found: resolve it to a position in the queue first."
            )
        if next_offset > OPEN_END:
            raise OffsetError(
                f"Group {consumer_group}, {queue}: next offset {next_offset} is above {OPEN_END}, the "
                "highest that a queue can have, and was not stored. Name a position in the queue."
            )


def _round_to_us(seconds: float) -> float:
    """Return ``seconds`` rounded to microseconds, Delta's precision, so that all stores have equal values."""
    return round(seconds, 6)


class RowOffsetStore(ABC):
    """Implements the changes of ``OffsetStore`` by the rules; subclasses read and write the rows."""

    _clock: Clock

    @abstractmethod
    def _change(self, consumer_group: str, decide: Callable[[Rows], Change[ResultT]], action: str) -> ResultT:
        """Read the group's rows, let ``decide`` change them and store the outcome, all in one atomic step.

        Return the result of the change. ``decide`` may be called again with newer rows; ``action`` describes
        the change in the store's history, if it has one.
        """

    def claim(
        self,
        consumer_group: str,
        owner: str,
        starts: Mapping[MessageQueue, int],
        generations: Mapping[MessageQueue, int] = FIRST_GENERATIONS,
        *,
        at_brokers: Mapping[MessageQueue, int] | None = None,
        rows_before: Rows = NO_ROWS,
    ) -> dict[MessageQueue, OffsetRow]:
        """Take queues over for ``owner``: raise their epochs, and return their rows.

        See ``OffsetStore.claim``.
        """
        now_s = self._clock.now_s()
        return self._change(
            consumer_group,
            lambda rows: apply_claim(
                rows,
                consumer_group,
                owner,
                starts,
                now_s=now_s,
                generations=generations,
                at_brokers=at_brokers,
                rows_before=rows_before,
            ),
            f"claim by {client_id_of(owner)}",
        )

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Store the results of a batch for the queues whose stored epoch is the planned one.

        See ``OffsetStore.commit``.
        """
        now_s = self._clock.now_s()
        return self._change(
            consumer_group,
            lambda rows: apply_commit(
                rows, consumer_group, commits, query_id=query_id, batch_id=batch_id, now_s=now_s
            ),
            f"commit of batch {batch_id} of query {query_id}",
        )

    def note_arrivals(self, consumer_group: str, arrived: Mapping[MessageQueue, int]) -> None:
        """Remember which of the offsets sent to brokers have arrived there; move no queue.

        See ``OffsetStore.note_arrivals``.
        """
        self._change(
            consumer_group, lambda rows: apply_arrivals(rows, arrived), "offsets shown to the brokers"
        )

    def note_passed(self, consumer_group: str, passed: Mapping[MessageQueue, LastSkipped]) -> None:
        """Remember messages that a queue has skipped or lost, if its epoch is unchanged; move no queue.

        See ``OffsetStore.note_passed``.
        """
        self._change(consumer_group, lambda rows: apply_last_skipped(rows, passed), "messages passed over")

    def note_sinks(
        self, consumer_group: str, records: Mapping[MessageQueue, SinkRecord], *, is_fenced: bool = True
    ) -> dict[MessageQueue, OffsetRow]:
        """Remember the newest messages of sinks that are ahead of the rows; return the changed rows.

        Their epochs grow if ``is_fenced``. See ``OffsetStore.note_sinks``.
        """
        now_s = self._clock.now_s()
        return self._change(
            consumer_group,
            lambda rows: apply_sink_records(rows, records, now_s, is_fenced=is_fenced),
            "sink ahead of the offsets",
        )

    def begin_generations(
        self, consumer_group: str, generations: Mapping[MessageQueue, NewGeneration]
    ) -> dict[MessageQueue, OffsetRow]:
        """Begin the next generation of queues whose offsets started again; return the changed rows.

        Their epochs grow. See ``OffsetStore.begin_generations``.
        """
        now_s = self._clock.now_s()
        return self._change(
            consumer_group,
            lambda rows: apply_begin_generations(rows, consumer_group, generations, now_s),
            "offsets begin again",
        )

    def reset(
        self,
        consumer_group: str,
        targets: Mapping[MessageQueue, int],
        *,
        under: Mapping[MessageQueue, int] | None = None,
        sinks: Mapping[MessageQueue, RecordedSinks] | None = None,
    ) -> dict[MessageQueue, OffsetRow]:
        """Move queues to any offset, raise their epochs, and return their rows.

        With ``under``, only queues that have the epoch given there are moved. The rows name the sinks in
        ``sinks``. See ``OffsetStore.reset``.
        """
        now_s = self._clock.now_s()
        return self._change(
            consumer_group,
            lambda rows: apply_reset(rows, consumer_group, targets, now_s, under=under, sinks=sinks),
            RESET_ACTION,
        )
