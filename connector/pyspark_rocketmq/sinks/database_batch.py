"""A micro-batch's rows on their way into a user's database, one transaction after the other.

A *watermark* is the next offset of a queue whose rows the database does not have.

* Rule 1: a transaction moves a watermark only if the table still has the value that the batch found when it
  began, or that the batch's own last commit stored.  If two queries move the same watermark, for example
  because one was believed dead, the second waits for the first one's transaction.  Then the second no longer
  finds the old value, and is refused.
* Rule 2: after an error of a commit, its outcome is unknown.  Each transaction is an *attempt* with an id of
  its own, which it stores with the watermarks. So reading the watermarks shows the outcome.
* Rule 3: rows are written first, watermarks last.  So rows below a watermark are never missing, even if the
  user's function commits too early.  Such a commit leaves an *open attempt*, a row with the attempt's id, in
  the table of watermarks. It stops every batch until an operator has removed the rows written too early.
"""

from __future__ import annotations

import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa

from pyspark_rocketmq.errors import SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.retry import commit_with_retry
from pyspark_rocketmq.sinks.against_offsets import SinkStanding
from pyspark_rocketmq.sinks.base import (
    RowWriter,
    Span,
    Writing,
    check_follows,
    check_includes,
    drop_committed,
    moved_by,
    rows_without,
)
from pyspark_rocketmq.sinks.database_watermarks import PAUSES_S, Watermark, WatermarkTable, shown_error

WriteRows = Callable[[Any, pa.Table], None]
"""Function that writes rows through a cursor.

It must neither commit nor roll back, and may be called again after an error.
"""


_LONGEST_ATTEMPT: Final = 36
"""Maximum length of an attempt's id: the column that stores it has so many characters."""


class Database(Protocol):
    """A user's database with its table of watermarks."""

    table: WatermarkTable
    write: WriteRows
    sleep: Callable[[float], None]
    """Function that waits between the tries of a transaction."""


@dataclass(slots=True)
class _Tried:
    """The newest group (results that are committed together) whose transaction was tried."""

    group_id: str
    attempts: dict[str, Mapping[MessageQueue, Watermark]] = field(default_factory=dict)
    """The watermarks that each tried transaction moves, by the attempt's id.

    A later attempt may have fewer queues. At most one attempt is committed.
    """
    is_made: bool = False
    """Whether one of the attempts is known to be committed."""


@dataclass(slots=True, kw_only=True)
class DatabaseBatch:
    """Commits of one micro-batch, or of one task of it, into the database, each in a transaction.

    The object is made by ``DatabaseSink.begin``, or by a task that commits by itself.
    """

    sink: Database
    consumer_group: str
    writer: RowCollector
    stored: dict[MessageQueue, Watermark]
    """The table's watermarks when the batch began, updated by each commit of the batch."""
    generations: Mapping[MessageQueue, int]
    standings: tuple[SinkStanding, ...]
    """Progress of the sink when the batch began; empty in a task."""
    newest: dict[MessageQueue, str] = field(default_factory=dict)
    """Newest message of each queue, as text, which a commit stores with the queue's watermark."""
    mark: str = ""
    """Text with which the ids of this batch's transactions begin; empty if the Spark driver commits."""
    pauses_s: Sequence[float] = PAUSES_S
    """Seconds before each further try of a transaction that failed."""
    _reached: dict[MessageQueue, int] = field(init=False)
    """Watermark of each queue of the batch after its commits so far; 0 without rows of its generation."""
    _tried: _Tried | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._reached = dict(self.writer.watermarks)

    def note_newest(self, newest: Mapping[MessageQueue, str]) -> None:
        """Keep the newest message of each queue, as text; commits store it with the queue's watermark."""
        self.newest.update(newest)

    def task_writer(self) -> RowWriter:
        """Return the writer with which tasks gather the batch's rows and send them to the driver."""
        return self.writer

    def commit(self, written: Sequence[CollectedRows], acked: Mapping[MessageQueue, int]) -> None:
        """Write the rows and move the watermarks to ``acked`` in one transaction.

        Raises the errors of :meth:`commit_rows`. A queue that an earlier commit of this batch has moved is
        refused with ``SinkMoved``.
        """
        begun = self.writer.watermarks
        spans = {queue: Span(begun.get(queue, 0), at) for queue, at in acked.items()}
        self.commit_group(written, spans, str(uuid.uuid4()))

    def commit_group(
        self, written: Sequence[CollectedRows], spans: Mapping[MessageQueue, Span], group_id: str
    ) -> None:
        """Write the rows of a group of task results, and move watermarks to the ends of ``spans``.

        Raises the errors of :meth:`commit_rows`.
        """
        self.commit_rows(self._rows(written), spans, group_id)

    def commit_rows(self, rows: pa.Table, spans: Mapping[MessageQueue, Span], group_id: str) -> None:
        """Write rows and move the watermarks to the ends of ``spans``, in one transaction.

        Do nothing if no watermark grows. A call with the ``group_id`` of the last call repeats it: if that
        commit was made after all, nothing is written again. ``spans`` are the offsets of the messages from
        which the rows come.

        Raises:
            SinkMoved: If another consumer moved one of the watermarks since the batch began, if rows do not
                follow those of the batch's earlier commits, or if an earlier try of the group was committed
                without one of these queues. This call added nothing.
            SinkConflict: If the transaction kept failing, for example due to errors of the user's function,
                or if that function committed by itself.
            OffsetError: If a queue was not passed to ``begin``, or if there are rows although no watermark
                grows.
        """
        place = f"database table {self.sink.table.name}"
        if self._tried is None or self._tried.group_id != group_id:
            self._tried = _Tried(group_id)
        tried = self._tried
        if tried.is_made:
            check_includes(self._reached, spans, place=place)
            return
        check_follows(self.writer.watermarks, self._reached, spans, place=place)
        grown = moved_by(
            self._reached,
            {queue: span.next_offset for queue, span in spans.items()},
            rows=len(rows),
            consumer_group=self.consumer_group,
            place=place,
        )
        if grown:
            self._commit(rows, grown, tried)
            check_includes(self._reached, spans, place=place)

    def without(
        self, written: Sequence[CollectedRows], queues: Collection[MessageQueue]
    ) -> tuple[list[CollectedRows], int]:
        """Return the rows of ``written`` without those of ``queues``, and the number of rows left out."""
        before = self._rows(written)
        kept = rows_without(before, queues)
        rest = [CollectedRows.of(kept.to_batches(), self.writer.schema)] if len(kept) else []
        return rest, len(before) - len(kept)

    def _rows(self, written: Sequence[CollectedRows]) -> pa.Table:
        return pa.concat_tables([self.writer.schema.empty_table(), *(each.table() for each in written)])

    def _commit(self, rows: pa.Table, grown: Mapping[MessageQueue, int], tried: _Tried) -> None:
        attempt_id = f"{self.mark}{uuid.uuid4()}"[:_LONGEST_ATTEMPT]
        moved_to = {queue: self._watermark(queue, offset, attempt_id) for queue, offset in grown.items()}

        def attempt(_: Exception | None) -> None:
            was_tried = bool(tried.attempts)
            if was_tried and self._is_made(grown, tried):
                return
            tried.attempts[attempt_id] = moved_to
            try:
                self._write(rows, moved_to, attempt_id)
            except SinkMoved:
                # The earlier try may have been committed after it was looked for.
                if not (was_tried and self._is_made(grown, tried)):
                    raise
            else:
                self._note_made(tried, attempt_id)

        try:
            commit_with_retry(
                f"database transaction of group {self.consumer_group}",
                attempt,
                self.pauses_s,
                self.sink.sleep,
                unknown=Exception,
                refused=SinkConflict,
            )
        except SinkConflict:
            raise
        except Exception as error:
            raise SinkConflict(
                f"{len(rows)} rows of group {self.consumer_group} could not be written into the database of "
                f"watermark table {self.sink.table.name} in {len(self.pauses_s) + 1} tries; the last error "
                f"was: {shown_error(error)}. Correct the cause and start the query again: it repeats the "
                "batch, and leaves out the rows that the database has by then."
            ) from error

    def _write(self, rows: pa.Table, moved_to: Mapping[MessageQueue, Watermark], attempt: str) -> None:
        table, group = self.sink.table, self.consumer_group
        with table.transaction() as cursor:
            if len(rows):
                with table.open_attempt(cursor, group, attempt):
                    self.sink.write(cursor, rows)
            moved = [
                queue
                for queue, new in sorted(moved_to.items())
                if not table.move(cursor, group, queue, self.stored.get(queue), new)
            ]
            if moved:
                raise self._moved(moved)

    def _watermark(self, queue: MessageQueue, next_offset: int, attempt: str) -> Watermark:
        generation, old = self.generations[queue], self.stored.get(queue)
        newest = self.newest.get(queue, "")
        if not newest and old is not None and old.generation == generation:
            newest = old.newest
        return Watermark.stored_by(attempt, next_offset, generation, newest)

    def _is_made(self, grown: Mapping[MessageQueue, int], tried: _Tried) -> bool:
        """Return whether one of the attempts was committed after all; if so, note its watermarks.

        Raises:
            SinkMoved: If another consumer has moved a watermark.
            SinkConflict: If the user's function committed one of the attempts before its end.
        """
        found = self.sink.table.read(self.consumer_group)
        still_open = [attempt_id for attempt_id in tried.attempts if attempt_id in found.open_attempts]
        if still_open:
            # The driver commits one group after the other, so only the queues of this group have such rows.
            queues = {queue for attempt_id in still_open for queue in tried.attempts[attempt_id]}
            advice = START_AGAIN
            if not self.mark:
                advice = removal_advice(
                    self.sink.table,
                    self.consumer_group,
                    still_open,
                    found.watermarks,
                    {queue: self.generations[queue] for queue in queues},
                )
            raise committed_by_itself(self.consumer_group, "this batch", advice)
        for attempt_id, moved_to in tried.attempts.items():
            now = (found.watermarks.get(queue) for queue in moved_to)
            if any(watermark is not None and watermark.attempt == attempt_id for watermark in now):
                self._note_made(tried, attempt_id)
                return True
        moved = [queue for queue in grown if found.watermarks.get(queue) != self.stored.get(queue)]
        if moved:
            raise self._moved(moved)
        return False

    def _note_made(self, tried: _Tried, attempt_id: str) -> None:
        moved_to = tried.attempts[attempt_id]
        tried.is_made = True
        self.stored.update(moved_to)
        self._reached.update({queue: watermark.next_offset for queue, watermark in moved_to.items()})

    def _moved(self, queues: Sequence[MessageQueue]) -> SinkMoved:
        return SinkMoved(
            f"Another consumer of group {self.consumer_group} wrote rows of {'; '.join(map(str, queues))} "
            "into the database while this batch ran. Nothing of this batch was added; its messages are "
            "consumed again. If this happens often, two queries consume the same queues: check that each "
            "queue is locked at the broker, or that the queries use different groups.",
            queues,
        )


def known_to(consumer_group: str, queue: MessageQueue, watermark: Watermark, generation: int) -> int:
    """Return a queue's watermark as it counts for a batch, whose messages are of this ``generation``.

    ``watermark`` is the stored one. If it is of an earlier generation, return 0.

    Raises:
        SinkMoved: If the table has a later generation.
    """
    if watermark.generation > generation:
        raise SinkMoved(
            f"The database has rows of {queue} from generation {watermark.generation}, but this batch of "
            f"group {consumer_group} has rows from generation {generation}: the queue's offsets began again "
            "with other messages, and another consumer already reads these. Nothing was added. Start the "
            "query again to consume the new messages, too."
        )
    return watermark.next_offset if watermark.generation == generation else 0


START_AGAIN: Final = "start the query again: its error names the rows to remove."
"""Advice in errors of tasks. A task cannot name the rows to remove, because other tasks go on committing."""


def removal_advice(
    table: WatermarkTable,
    consumer_group: str,
    attempts: Sequence[str],
    stored: Mapping[MessageQueue, Watermark],
    generations: Mapping[MessageQueue, int],
) -> str:
    """Return an operator's steps after too early commits: remove their rows, then the ids of the attempts.

    The rows to remove are those at or above their queue's watermark in ``stored``. ``generations`` has every
    queue that may have such rows, with its generation. Rows of an earlier generation of a queue stay.
    """
    return (
        f"remove the rows of {'; '.join(_uncounted_rows(stored, generations))}, and then run: "
        f"{table.forget_attempts_statement(consumer_group, attempts)}"
    )


def _uncounted_rows(
    stored: Mapping[MessageQueue, Watermark], generations: Mapping[MessageQueue, int]
) -> Iterator[str]:
    for queue, generation in sorted(generations.items()):
        watermark = stored.get(queue, Watermark(generation=generation))
        if watermark.generation < generation:
            yield f"{queue} from offset 0 on (only of messages stored since its offsets began again)"
        else:
            yield f"{queue} from offset {watermark.next_offset} on"


def committed_by_itself(consumer_group: str, attempt: str, advice: str) -> SinkConflict:
    """Return the error for a transaction that the user's function has committed too early.

    ``attempt`` says in the error's text who wrote the rows, such as ``this batch``; it is not an id.
    ``advice`` ends the text with the operator's steps.
    """
    return SinkConflict(
        f"The transaction in which {attempt} of group {consumer_group} wrote rows was committed too "
        "early: write(cursor, rows) commits by itself (commit(), `with connection:`, "
        "executescript(), or a statement that commits implicitly, as CREATE TABLE does in MySQL), or its "
        "connection does. Rows may be in the database without their watermarks, and would come a second "
        f"time. Have the function leave commits to the sink, and {advice}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedRows:
    """A task's rows on their way to the driver."""

    rows: str
    """An Arrow stream in base64."""

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> CollectedRows:
        """Encode the rows of ``batches``, all of which have ``schema``."""
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return cls(rows=b64encode(stream.getvalue()).decode("ascii"))

    def to_dict(self) -> dict[str, Any]:
        """Return the rows in a form that JSON can hold."""
        return {"rows": self.rows}

    def table(self) -> pa.Table:
        """Decode the rows and return them."""
        with pa.ipc.open_stream(b64decode(self.rows)) as reader:
            return reader.read_all()


@dataclass(frozen=True, slots=True)
class RowCollector:
    """Writer with which tasks send the Spark driver all rows that the database lacks; picklable."""

    sends_rows: ClassVar[bool] = True

    schema: pa.Schema
    watermarks: Mapping[MessageQueue, int]
    """Next offset of each queue of the batch; the database has the rows below it."""

    def open(self) -> Writing:
        """Return an object that gathers a task's rows; called in the task."""
        return _Collecting(self)

    def written(self, facts: Mapping[str, Any]) -> CollectedRows:
        """Rebuild a task's rows, on the driver, from the dict that the task sent."""
        return CollectedRows(**facts)


class _Collecting:
    def __init__(self, collector: RowCollector) -> None:
        self._collector = collector
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> int:
        new = drop_committed(rows.select(self._collector.schema.names), self._collector.watermarks)
        if new.num_rows:
            self._batches.append(new.cast(self._collector.schema))
        return int(rows.num_rows - new.num_rows)

    def finish(self) -> list[CollectedRows]:
        return [CollectedRows.of(self._batches, self._collector.schema)] if self._batches else []

    def abandon(self) -> None:
        self._batches.clear()
