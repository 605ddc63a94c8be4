"""Transactions of tasks in a user's database: a row is there milliseconds after its message was stored.

Each task has a connection of its own. Its transactions contain rows and watermarks, by the rules of
:mod:`~pyspark_rocketmq.sinks.database_batch`. The driver only gets acks, with the offsets up to which the
database has the rows. Other sinks have the driver check a commit; here the task makes these checks:

* Rule 1 (epochs): a queue is refused if it has another epoch than when the batch began, because its offsets
  may now stand for other messages. An *epoch* is a number that grows with each claim or reset of the queue.
* Rule 2 (database ahead): a queue is refused if the database was ahead of the offset store when the batch
  began. The planner must first look whether the broker still has the messages below the watermark. To have
  such a queue refused, the driver leaves it out of ``CommittingWriter.epochs``.
* Rule 3 (compare and set): a task begins at the watermarks that the table had when the batch began. It adds
  no row below them. If an earlier attempt of a task of the same batch has moved a watermark since, the task
  begins at the moved one instead. It recognizes such a watermark by the batch's *mark*, a random text with
  which the ids of all the batch's transactions begin. If somebody else has moved a watermark, the queue is
  refused. A queue is also refused if its first commit in this task begins above the watermark that the
  earlier attempt stored: the messages between them were not consumed.

If a queue is refused, the task commits the other queues all the same. The driver finds the refused queue in
the task's result, and drops that queue as if the sink had refused a commit of the driver.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from socket import gethostname
from typing import Any, Final, Self

import pyarrow as pa
from pyspark import cloudpickle

from pyspark_rocketmq.errors import OptionError, SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.retry import commit_with_retry
from pyspark_rocketmq.sinks.against_offsets import SinkStanding
from pyspark_rocketmq.sinks.base import (
    Progress,
    RowWriter,
    Span,
    TaskCommit,
    TaskCommits,
    Writing,
    drop_committed,
    rows_without,
)
from pyspark_rocketmq.sinks.database_batch import (
    START_AGAIN,
    Database,
    DatabaseBatch,
    RowCollector,
    WriteRows,
    committed_by_itself,
)
from pyspark_rocketmq.sinks.database_watermarks import (
    PAUSES_S,
    Connection,
    Stored,
    Watermark,
    WatermarkTable,
    shown_error,
)

_PAUSES_S: Final = (*PAUSES_S, *[5.0] * 11)
"""Seconds before each further try of a transaction: a minute in all, as long as the driver tries a commit."""
_MARK_LENGTH: Final = 12


def new_mark() -> str:
    """Return a new random text with which the ids of all transactions of one batch begin."""
    return f"{uuid.uuid4().hex[:_MARK_LENGTH]}-"


@dataclass(frozen=True, slots=True)
class DatabaseAccess:
    """A user's functions, pickled once for all tasks of a query, and the name of the table of watermarks."""

    pickled: bytes = field(repr=False)
    """The functions ``connect``, ``write`` and ``sleep``, which may contain a password."""
    table: str
    """Name of the table of watermarks."""
    placeholder: str
    """Mark for parameters in SQL: ``?`` or ``%s``."""

    @classmethod
    def of(
        cls,
        connect: Callable[[], Connection],
        write: WriteRows,
        sleep: Callable[[float], None],
        *,
        table: str,
        placeholder: str,
    ) -> Self:
        """Pickle the functions and return them with the table's name.

        Raises:
            OptionError: If one of the functions cannot be pickled.
        """
        problems = []
        for name, function in {"connect": connect, "write": write, "sleep": sleep}.items():
            try:
                cloudpickle.dumps(function)
            except Exception as error:  # noqa: BLE001 - any object may refuse in any way
                problems.append(
                    f"commit_in_task=True sends {name} to the tasks, and it cannot be pickled: "
                    f"{shown_error(error)}. Let it create what it needs when it is called: an open "
                    "connection, a pool or a lock cannot be sent"
                )
        if problems:
            raise OptionError(tuple(problems), where="database sink")
        return cls(cloudpickle.dumps((connect, write, sleep)), table, placeholder)

    def open(self) -> TaskDatabase:
        """Return the database, in a task; the first transaction connects."""
        connect, write, sleep = pickle.loads(self.pickled)  # noqa: S301 - the query's own
        kept = KeptConnection(connect)
        return TaskDatabase(WatermarkTable(kept, self.table, self.placeholder), write, sleep, kept)


class KeptConnection:
    """Opens a connection, and keeps it for further transactions of a thread until one of them fails.

    If another thread asks for the connection, it is closed and a new one is opened: a connection of sqlite3
    serves only the thread that opened it.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._kept: Connection | None = None
        self._thread = 0

    def __call__(self) -> Connection:
        """Return the kept connection, or open one. The caller's ``close()`` after a commit leaves it open."""
        if self._kept is None or self._thread != threading.get_ident():
            self.close()
            self._kept, self._thread = self._connect(), threading.get_ident()
        return _Lent(self._kept, self)

    def close(self) -> None:
        """Close the connection, if there is one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            with suppress(Exception):
                kept.close()


class _Lent:
    """The task's connection, lent for one transaction: after a commit ``close`` leaves it open."""

    def __init__(self, connection: Connection, keeper: KeptConnection) -> None:
        self._connection = connection
        self._keeper = keeper
        self._is_committed = False

    def cursor(self) -> Any:
        return self._connection.cursor()

    def commit(self) -> None:
        self._connection.commit()
        self._is_committed = True

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        # After an error the connection may be broken, or its transaction may go on showing old data.
        if not self._is_committed:
            self._keeper.close()


@dataclass(slots=True)
class TaskDatabase(Database):
    """A user's database, opened by a task."""

    table: WatermarkTable
    write: WriteRows
    sleep: Callable[[float], None]
    connection: KeptConnection


@dataclass(frozen=True, slots=True)
class ReachDatabase:
    """A function with which a task checks that it reaches the driver's database; see ``ReachedByTasks``."""

    access: DatabaseAccess
    identity: str | None
    """Identity of the table of watermarks that the driver reaches; None only before ``prepare``."""
    within_s: float = 20.0
    """Time limit for all tries together, in seconds."""

    def __call__(self) -> str:
        """Return why the task cannot reach the database; an empty text if it can.

        The check runs in another thread, since the user's function may wait for a host that never answers.
        """
        found: list[str] = []
        thread = threading.Thread(
            target=lambda: found.append(self._problem()), name="rocketmq-reach-database", daemon=True
        )
        thread.start()
        thread.join(self.within_s)
        return found[0] if found else f"no answer within {self.within_s:g} s"

    def _problem(self) -> str:
        try:
            database = self.access.open()
            with closing(database.connection):
                found = self._identities(database)
        except Exception as error:  # noqa: BLE001 - of any driver, or of the user's functions
            return shown_error(error)
        if self.identity in found:
            return ""
        return "connect() opens another database there than on the driver"

    @staticmethod
    def _identities(database: TaskDatabase) -> Sequence[str]:
        for pause_s in PAUSES_S:
            try:
                return database.table.read("").open_attempts
            except Exception:  # noqa: BLE001 - the last one is reported
                database.sleep(pause_s)
        return database.table.read("").open_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedQueues:
    """A task's result: how many rows of refused queues it did not add. All its other rows are added."""

    rows: Mapping[MessageQueue, int]
    """Number of rows that were not added, by queue."""

    def to_dict(self) -> dict[str, Any]:
        """Return the queues and their numbers of rows in a form that JSON can hold."""
        return {"refused": [[*queue, count] for queue, count in sorted(self.rows.items())]}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """Rebuild a result of :meth:`to_dict`."""
        return cls(rows={MessageQueue(*queue): count for *queue, count in facts["refused"]})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittingWriter:
    """The writer with which tasks commit by themselves; picklable; implements ``CommitsInTask``."""

    access: DatabaseAccess
    consumer_group: str
    schema: pa.Schema
    mark: str
    """Text with which the ids of all transactions of the batch begin."""
    stored: Mapping[MessageQueue, Watermark]
    """The table's watermarks when the batch began."""
    watermarks: Mapping[MessageQueue, int]
    """Next offset of each queue when the batch began; 0 if there are no rows of its generation."""
    generations: Mapping[MessageQueue, int]
    epochs: Mapping[MessageQueue, int] | None = None
    """Epochs of the queues that may be committed. None: each queue may be, whatever its epoch is."""

    def open(self) -> Writing:
        """Begin the commits of a task, and return an object that takes and commits its rows."""
        return self.begin_task().open()

    def written(self, facts: Mapping[str, Any]) -> RefusedQueues:
        """Rebuild a task's result, on the driver, from the dict that the task sent."""
        return RefusedQueues.from_dict(facts)

    def fenced(self, epochs: Mapping[MessageQueue, int]) -> RowWriter:
        """Return a writer that commits a queue only if its messages have the epoch in ``epochs``."""
        return replace(self, epochs=dict(epochs))

    def begin_task(self) -> TaskCommits:
        """Begin the commits of a task, in the task. Only the first commit connects to the database."""
        return DatabaseTask(self, self.access.open())


class DatabaseTask:
    """The transactions of one task; implements ``TaskCommits``."""

    def __init__(self, writer: CommittingWriter, database: TaskDatabase) -> None:
        self.writer: Final = writer
        """Settings of the task's transactions, and the watermarks when the batch began."""
        self._database = database
        self._batch: DatabaseBatch | None = None
        self._moved: set[MessageQueue] = set()
        """Queues whose watermark somebody else had moved before the task's first transaction."""
        self._earlier: dict[MessageQueue, int] = {}
        """Watermarks that an earlier attempt of a task stored, of queues that this task has not committed."""
        self._refused: set[MessageQueue] = set()

    def open(self) -> Writing:
        """Return an object that takes rows, and commits them through this task's connection."""
        return _Committing(self)

    def close(self) -> None:
        """Close the task's connection."""
        self._database.connection.close()

    def commit(self, rows: pa.Table, progress: Mapping[MessageQueue, Progress]) -> Outcome:
        """Add rows and move watermarks in one transaction, except those of refused queues.

        ``progress`` has, for each queue, the messages from which the rows come.

        Raises:
            SinkConflict: If the database cannot be reached or the transaction kept failing for a minute, or
                if the user's function commits by itself.
            OffsetError: If there are rows although no watermark grows.
        """
        batch = self._batch or self._begin()
        new = self._without_committed(rows, batch)
        outcome = Outcome(len(rows) - len(new))
        self._refuse(
            (queue for queue, each in progress.items() if not self._may_commit(queue, each.epoch)), outcome
        )
        self._refuse(
            (queue for queue, each in progress.items() if self._leaves_gap(queue, each.span)), outcome
        )
        batch.note_newest({queue: each.newest for queue, each in progress.items() if each.newest})
        spans = {queue: each.span for queue, each in progress.items()}
        self._commit(batch, new, spans, outcome)
        for queue in self._refused.intersection(progress):
            outcome.not_added[queue] = len(new) - len(rows_without(new, [queue]))
        return outcome

    def _commit(
        self, batch: DatabaseBatch, rows: pa.Table, spans: Mapping[MessageQueue, Span], outcome: Outcome
    ) -> None:
        group_id = str(uuid.uuid4())
        spans, rows = self._without_refused(spans, rows)
        # If rows are left but no spans, pass the rows on too: commit_rows raises an error for them.
        while spans or len(rows):
            try:
                batch.commit_rows(rows, spans, group_id)
            except SinkMoved as error:
                moved = {MessageQueue(*queue) for queue in error.queues} & spans.keys()
                self._refuse(moved or spans, outcome)
                spans, rows = self._without_refused(spans, rows)
            else:
                return

    def _without_refused(
        self, spans: Mapping[MessageQueue, Span], rows: pa.Table
    ) -> tuple[Mapping[MessageQueue, Span], pa.Table]:
        if self._refused.isdisjoint(spans):
            return spans, rows
        kept = {queue: span for queue, span in spans.items() if queue not in self._refused}
        return kept, rows_without(rows, self._refused)

    def _refuse(self, queues: Iterable[MessageQueue], outcome: Outcome) -> None:
        news = frozenset(queues) - self._refused
        self._refused |= news
        outcome.refused |= news

    def _may_commit(self, queue: MessageQueue, epoch: int) -> bool:
        epochs = self.writer.epochs
        return queue not in self._moved and (epochs is None or epochs.get(queue) == epoch)

    def _leaves_gap(self, queue: MessageQueue, span: Span) -> bool:
        """Return whether this span leaves a gap after the commit of an earlier attempt of the task.

        There is a gap if messages between that commit and the span were not consumed. Only the first span of
        a queue is compared. After that, the watermark of the earlier commit is forgotten.
        """
        return span.start > self._earlier.pop(queue, span.start)

    def _without_committed(self, rows: pa.Table, batch: DatabaseBatch) -> pa.Table:
        """Return ``rows`` without those that an earlier attempt of the task has added."""
        if batch.writer.watermarks == self.writer.watermarks:
            return rows
        new = [drop_committed(each, batch.writer.watermarks) for each in rows.to_batches()]
        return pa.Table.from_batches(new, rows.schema)

    def _begin(self) -> DatabaseBatch:
        writer = self.writer
        stored = self._read()
        if stored.open_attempts:
            raise committed_by_itself(writer.consumer_group, "an earlier attempt", START_AGAIN)
        begun = dict(writer.watermarks)
        for queue, generation in writer.generations.items():
            now = stored.watermarks.get(queue)
            if now == writer.stored.get(queue):
                continue
            if now is not None and now.attempt.startswith(writer.mark) and now.generation == generation:
                begun[queue] = self._earlier[queue] = now.next_offset
            else:
                self._moved.add(queue)
        self._batch = DatabaseBatch(
            sink=self._database,
            consumer_group=writer.consumer_group,
            writer=RowCollector(writer.schema, begun),
            stored=dict(stored.watermarks),
            generations=writer.generations,
            standings=(),
            mark=writer.mark,
            pauses_s=_PAUSES_S,
        )
        return self._batch

    def _read(self) -> Stored:
        table, group = self._database.table, self.writer.consumer_group
        try:
            return commit_with_retry(
                f"watermarks of group {group}",
                lambda _: table.read(group),
                _PAUSES_S,
                self._database.sleep,
                unknown=Exception,
            )
        except Exception as error:
            raise SinkConflict(
                f"A task on {gethostname()} cannot read the watermarks of group {group} in database table "
                f"{table.name}: {shown_error(error)}. With commit_in_task=True each executor connects to the "
                "database: let all of them reach it, or leave out commit_in_task."
            ) from error


@dataclass(slots=True)
class Outcome:
    """Outcome of a task's transaction."""

    left_out: int
    """Number of rows that were not added, because an earlier attempt of a task has added them."""
    refused: frozenset[MessageQueue] = frozenset()
    """Queues that the task refuses from this transaction on."""
    not_added: dict[MessageQueue, int] = field(default_factory=dict)
    """Number of rows that were not added, by refused queue."""


class _Committing:
    """Takes and commits the rows that belong to one result of a task; implements ``CommittingWriting``."""

    def __init__(self, task: DatabaseTask) -> None:
        self._task = task
        self._batches: list[pa.RecordBatch] = []
        self._not_added: dict[MessageQueue, int] = {}

    def add(self, rows: pa.RecordBatch) -> int:
        writer = self._task.writer
        new = drop_committed(rows.select(writer.schema.names), writer.watermarks)
        if new.num_rows:
            self._batches.append(new.cast(writer.schema))
        return int(rows.num_rows - new.num_rows)

    def commit(self, progress: Mapping[MessageQueue, Progress]) -> TaskCommit:
        outcome = self._task.commit(pa.Table.from_batches(self._batches, self._task.writer.schema), progress)
        self._batches.clear()
        for queue, count in outcome.not_added.items():
            self._not_added[queue] = self._not_added.get(queue, 0) + count
        return TaskCommit(outcome.refused, outcome.left_out)

    def finish(self) -> list[RefusedQueues]:
        assert not self._batches, "commit() comes first: the driver gets no rows"
        return [RefusedQueues(rows=self._not_added)] if self._not_added else []

    def abandon(self) -> None:
        self._batches.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCommittedBatch:
    """A micro-batch whose tasks commit by themselves: the driver only checks which queues they refused."""

    writer: CommittingWriter
    standings: tuple[SinkStanding, ...]
    """Progress of the sink when the batch began."""

    def task_writer(self) -> RowWriter:
        """Return the writer with which tasks write and commit rows."""
        return self.writer

    def commit(self, written: Sequence[RefusedQueues], acked: Mapping[MessageQueue, int]) -> None:
        """Raise ``SinkMoved`` if a task has refused queues of ``acked``; all other rows are committed."""
        self._check(written, acked)

    def commit_group(
        self,
        written: Sequence[RefusedQueues],
        spans: Mapping[MessageQueue, Span],
        group_id: str,  # noqa: ARG002 - of the interface; a check may be made again
    ) -> None:
        """Check that no task has refused one of the queues in ``spans``; see ``CommitsGroups``.

        There is nothing to commit: the tasks have done it.

        Raises:
            SinkMoved: If a task has refused any of the queues; the error names them.
        """
        self._check(written, spans)

    def without(
        self, written: Sequence[RefusedQueues], queues: Collection[MessageQueue]
    ) -> tuple[list[RefusedQueues], int]:
        """Return the results without ``queues``, and how many rows of these queues tasks have not added.

        Rows of these queues that tasks have added stay in the database.
        """
        kept = [
            RefusedQueues(rows={queue: count for queue, count in each.rows.items() if queue not in queues})
            for each in written
        ]
        removed = sum(count for each in written for queue, count in each.rows.items() if queue in queues)
        return [each for each in kept if each.rows], removed

    def _check(self, written: Sequence[RefusedQueues], acked: Collection[MessageQueue]) -> None:
        refused = sorted({queue for each in written for queue in each.rows}.intersection(acked))
        if refused:
            named = "; ".join(map(str, refused))
            raise SinkMoved(
                f"Tasks of group {self.writer.consumer_group} refused to add more rows of {named} to the "
                "database. While this batch ran, another consumer wrote rows of these queues, or they were "
                "claimed or reset; or the database was ahead of the offsets when the batch began. Messages "
                "whose rows were not added are consumed again.",
                refused,
            )
