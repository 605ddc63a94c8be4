"""The interface of a sink, a place that gets a query's rows exactly once.

A replayed batch may differ from the first attempt: a listener may fail the second time, or get farther. So a
batch id does not show which rows a sink has; only an offset per queue does.  A sink stores this offset, the
*watermark*, in the same transaction as the rows.  The watermark is the next offset whose rows the sink does
not have. A micro-batch goes through a sink in three steps:

1. ``begin`` reads the watermarks;
2. tasks write the rows at or above their queue's watermark, since an earlier attempt wrote those below;
3. ``commit`` makes the rows visible and moves the watermarks that grow, in one transaction. If somebody else
   has moved one of these watermarks since ``begin``, ``commit`` does neither and raises ``SinkMoved``.

The sink then holds the rows of exactly the messages below its watermarks, whatever was killed, replayed or
run twice in between. Offsets are committed after that, so the offset store is never ahead of the sink.

A batch that implements :class:`CommitsGroups` takes step 3 several times while its tasks go on writing. Each
time it commits one *group*: the results that some of the tasks have finished by then.

A watermark belongs to one *generation* of its queue. When a topic is created again or a broker loses the end
of its log, offsets start again, and other messages get offsets that were used before. That is the next
generation, which begins without a watermark.

The tasks of some sinks, such as a database, commit rows and watermarks by themselves, in place of steps 2
and 3 (:class:`CommitsInTask`).

Tasks get a pickled :class:`RowWriter`. Its module must not import anything that loads delta-rs, which does
not survive a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.change_data.change import Envelope
from pyspark_rocketmq.change_data.routes import Router
from pyspark_rocketmq.errors import OffsetError, SchemaError, SinkMoved
from pyspark_rocketmq.model import QUEUE_COLUMNS, QUEUE_OFFSET, MessageQueue
from pyspark_rocketmq.sinks.against_offsets import SinkStanding


def drop_committed(batch: pa.RecordBatch, watermarks: Mapping[MessageQueue, int]) -> pa.RecordBatch:
    """Return the rows at or above their queue's watermark.

    Raises:
        SchemaError: If a row's queue is not in ``watermarks``: it is unknown whether the sink has the row.
    """
    # Threads would cost more than the grouping.
    by_queue = pa.table(batch).group_by(list(QUEUE_COLUMNS), use_threads=False)
    lowest = by_queue.aggregate([(QUEUE_OFFSET, "min")])
    for *queue_fields, lowest_offset in zip(
        *(lowest.column(name).to_pylist() for name in (*QUEUE_COLUMNS, f"{QUEUE_OFFSET}_min")), strict=True
    ):
        queue = MessageQueue(*queue_fields)
        if queue not in watermarks:
            raise SchemaError(
                f"A row of {queue} at offset {lowest_offset} cannot be written: the queue is not part of "
                "this batch. Give each output row the position of the message that produced it."
            )
        if lowest_offset < watermarks[queue]:
            is_below = pc.and_(pc.less(batch.column(QUEUE_OFFSET), watermarks[queue]), _is_of(queue, batch))
            batch = batch.filter(pc.invert(is_below))
    return batch


def rows_without(rows: pa.Table, queues: Iterable[MessageQueue]) -> pa.Table:
    """Return the rows whose queue is not in ``queues``."""
    for queue in queues:
        rows = rows.filter(pc.invert(_is_of(queue, rows)))
    return rows


def _is_of(queue: MessageQueue, rows: pa.Table | pa.RecordBatch) -> pa.ChunkedArray | pa.Array:
    topic, broker, number = (
        pc.equal(rows.column(name), value) for name, value in zip(QUEUE_COLUMNS, queue, strict=True)
    )
    return pc.and_(pc.and_(topic, broker), number)


class QueueGeneration(NamedTuple):
    """One generation of a queue: a period in which each offset stands for only one message."""

    queue: MessageQueue
    number: int
    """Number of the generation; the first one is 0."""


def generation_of(transaction_id: str, consumer_group: str) -> QueueGeneration | None:
    """Return the queue and generation whose watermark a Delta table stores under a transaction id.

    The id's form is ``rocketmq:GROUP:TOPIC:BROKER:QUEUE`` for the first generation, and for a later one
    ``rocketmq:GROUP:TOPIC:BROKER:QUEUE.NUMBER``. None if the id has another form or is of another group.
    """
    prefix = f"rocketmq:{consumer_group}:"
    topic, _, rest = transaction_id.removeprefix(prefix).partition(":")
    broker_name, _, last = rest.rpartition(":")
    queue_id, dot, generation = last.partition(".")
    is_first = not dot and queue_id.isdecimal()
    is_later = queue_id.isdecimal() and generation.isdecimal() and int(generation) > 0
    if not transaction_id.startswith(prefix) or not (topic and broker_name and (is_first or is_later)):
        return None
    return QueueGeneration(MessageQueue(topic, broker_name, int(queue_id)), int(generation or 0))


def newest_generations(watermarks: Mapping[QueueGeneration, int]) -> dict[QueueGeneration, int]:
    """Return only the watermark of each queue's newest generation."""
    newest: dict[MessageQueue, int] = {}
    for queue, generation in watermarks:
        newest[queue] = max(generation, newest.get(queue, 0))
    return {key: watermark for key, watermark in watermarks.items() if newest[key.queue] == key.number}


def advance(stored: Mapping[MessageQueue, int], acked: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return the watermarks to commit: the next offsets in ``acked`` that are above the stored watermarks.

    A queue is left out if it stood still, or if a replayed batch got less far than the first attempt.
    """
    return {queue: next_offset for queue, next_offset in acked.items() if next_offset > stored.get(queue, 0)}


def moved_by(
    watermarks: Mapping[MessageQueue, int],
    acked: Mapping[MessageQueue, int],
    *,
    rows: int,
    consumer_group: str,
    place: str,
) -> dict[MessageQueue, int]:
    """Check a batch before its commit, and return the watermarks that it moves, as :func:`advance` does.

    ``watermarks`` are the stored ones, and ``acked`` has the next offsets after the batch. ``rows`` is the
    number of the batch's rows; ``place`` names the sink in errors.

    Raises:
        OffsetError: If a queue was not passed to ``begin``, or if there are rows although no watermark grows.
    """
    unknown = [str(queue) for queue in acked if queue not in watermarks]
    if unknown:
        raise OffsetError(
            f"Messages of {'; '.join(unknown)} were acknowledged, but these queues were not named when the "
            f"batch began, so it is unknown which of their rows {place} has already. Nothing was added. Pass "
            "every queue to the sink's begin(); if you do not call it, this is a bug of pyspark-rocketmq: "
            "please report it."
        )
    grown = advance(watermarks, acked)
    if rows and not grown:
        raise OffsetError(
            f"Group {consumer_group} has {rows} rows for {place}, but by its watermarks the sink already has "
            "the rows of all acknowledged messages. Nothing was added. Write only rows of messages that are "
            "acknowledged with them."
        )
    return grown


class Span(NamedTuple):
    """Offsets of one queue that a task has consumed: from ``start`` on, below ``next_offset``."""

    start: int
    """Offset at which consuming began; no row of these messages is below it."""
    next_offset: int
    """Next offset to consume."""


def check_follows(
    begun: Mapping[MessageQueue, int],
    reached: Mapping[MessageQueue, int],
    spans: Mapping[MessageQueue, Span],
    *,
    place: str,
) -> None:
    """Refuse rows of a queue that do not begin where the batch's last commit of this queue ended.

    Spark may run a task twice. Each attempt leaves out only the rows that the sink had when the batch began.
    If the batch has committed rows of one attempt since then, the other attempt may have written the same
    rows a second time.

    Args:
        begun: Watermarks when the batch began.
        reached: Watermarks after the batch's commits so far.
        spans: Offsets of the messages from which the rows come.
        place: Name of the sink's table, for the error.

    Raises:
        SinkMoved: If rows would be doubled or missing; it names the queues.
    """
    apart = []
    for queue, span in spans.items():
        at, first = reached.get(queue, 0), max(span.start, begun.get(queue, 0))
        if at > begun.get(queue, 0) and first != at and first < span.next_offset:
            apart.append((queue, f"{queue} from offset {first} on, after a commit up to {at}"))
    if apart:
        raise SinkMoved(
            f"Rows for {place} do not follow those that their batch has committed before: "
            f"{'; '.join(text for _, text in apart)}. Nothing was added. The rows come from another attempt "
            "of a task; their messages are consumed again.",
            (queue for queue, _ in apart),
        )


def check_includes(
    reached: Mapping[MessageQueue, int], spans: Mapping[MessageQueue, Span], *, place: str
) -> None:
    """Refuse queues that an earlier try of the same commit has left out.

    A commit leaves out the queues that the sink refuses. If a commit was made but its outcome is unknown, it
    is repeated. The repetition adds nothing, so the sink still lacks the rows of the queues left out.

    Args:
        reached: Watermarks after the commit that was made.
        spans: Offsets of the messages that the caller asks to commit now.
        place: Name of the sink's table, for the error.

    Raises:
        SinkMoved: If a span ends above the watermark of its queue; it names the queues.
    """
    apart = sorted(queue for queue, span in spans.items() if span.next_offset > reached.get(queue, 0))
    if apart:
        raise SinkMoved(
            f"An earlier try of this commit to {place} was made without the rows of "
            f"{'; '.join(map(str, apart))}, which had been refused. This try added nothing; the messages of "
            "these queues are consumed again.",
            apart,
        )


class Written(Protocol):
    """A task's result for a sink, such as the names of its files; the task sends it to the driver."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result in a form that JSON can hold."""
        ...


class Writing(Protocol):
    """Takes rows of one task for a sink; the rows stay invisible until the driver commits the results."""

    def add(self, rows: pa.RecordBatch) -> int:
        """Take rows in the listener's order, except those that the sink has; return how many it has."""
        ...

    def finish(self) -> Sequence[Written]:
        """Finish writing, and return the results for ``SinkBatch.commit``; rows stay invisible until then."""
        ...

    def abandon(self) -> None:
        """Give up the rows: remove written files as far as possible. Files that stay are not in the table."""
        ...


class RowWriter(Protocol):
    """Begins the writing of rows in a task, and rebuilds the task's results on the driver; picklable.

    If the results contain the rows themselves, the writer's attribute ``sends_rows`` is True.
    """

    def open(self) -> Writing:
        """Return an object that takes rows; called in the task."""
        ...

    def written(self, facts: Mapping[str, Any]) -> Written:
        """Rebuild a result from ``Written.to_dict``, on the driver."""
        ...


def sends_rows(writer: RowWriter | None) -> bool:
    """Return whether a writer's results contain the rows: its attribute ``sends_rows``, by default False."""
    return bool(getattr(writer, "sends_rows", False))


class Progress(NamedTuple):
    """Messages of one queue whose rows a task commits by :meth:`CommittingWriting.commit`."""

    span: Span
    """Offsets of the messages."""
    epoch: int
    """Epoch of the queue when these messages were planned; claims and resets raise a queue's epoch."""
    newest: str
    """The newest message of the span, as text of ``RememberedMessages``; empty if the span has no message."""


class TaskCommit(NamedTuple):
    """Result of :meth:`CommittingWriting.commit`, by which a task commits its rows itself."""

    refused: frozenset[MessageQueue]
    """Queues that this commit is the task's first to refuse. The task adds no more of their rows."""
    left_out: int
    """Number of rows that the commit found in the sink, in addition to those that ``Writing.add`` counted."""


@runtime_checkable
class CommittingWriting(Writing, Protocol):
    """Takes rows of one task, and commits them in the task.

    A task may have several such objects, of which only one commits at a time.
    """

    def commit(self, progress: Mapping[MessageQueue, Progress]) -> TaskCommit:
        """Add the rows taken since the last commit and move the watermarks, in one transaction.

        ``progress`` has the messages of each queue. If somebody else has moved a queue's watermark, this
        queue is refused, and the other queues are committed. ``finish`` later returns a result with all
        refused queues.

        Raises:
            SinkConflict: If the transaction kept failing, or if the user's function committed by itself. It
                is never the subclass SinkMoved.
            OffsetError: If there are rows although no watermark grows.
        """
        ...


class TaskCommits(Protocol):
    """The commits of one task, and what the task keeps for them, such as a database connection."""

    def open(self) -> Writing:
        """Return a ``CommittingWriting``, which takes and commits rows of the task."""
        ...

    def close(self) -> None:
        """Release what the calling thread holds for the commits, such as a database connection."""
        ...


@runtime_checkable
class CommitsInTask(RowWriter, Protocol):
    """A writer whose tasks commit rows and watermarks by themselves (row I6 of ``docs/semantics.md``).

    The driver gets only the acks, and stores their offsets. By then the sink has the rows, so its watermarks
    may be ahead of the stored offsets, as they are after a kill between the two commits.
    """

    def fenced(self, epochs: Mapping[MessageQueue, int]) -> RowWriter:
        """Return a writer that commits a queue only if its ``Progress.epoch`` is the one in ``epochs``."""
        ...

    def begin_task(self) -> TaskCommits:
        """Begin a task's commits; called in the task. Only the first commit connects to the database."""
        ...


def commits_in_task(sink: object) -> bool:
    """Return whether a sink's tasks commit by themselves: its attribute ``commits_in_task``, or False."""
    return bool(getattr(sink, "commits_in_task", False))


class SinkBatch(Protocol):
    """One micro-batch for a sink: tasks get a writer, and the driver commits the results that they return."""

    @property
    def standings(self) -> Sequence[SinkStanding]:
        """Progress of each sink when the batch began, as in ``Sink.standings``; ``newest`` may be empty."""
        ...

    def task_writer(self) -> RowWriter:
        """Return the writer that is sent to tasks, and with which they write the batch's rows."""
        ...

    def commit(self, written: Sequence[Any], acked: Mapping[MessageQueue, int]) -> int | None:
        """Make the written rows visible and move the watermarks to ``acked`` (next offsets).

        A single sink does both or neither. ``MultiSink`` does so in each of its sinks, one after the other.
        A batch may get several calls, each for other queues. After any error but ``SinkMoved`` the outcome
        counts as unknown: the query ends, and when the batch runs again, the watermarks show what was
        committed.

        Returns:
            The new version of the table; None for a sink without versions, or if there was nothing to do.

        Raises:
            SinkMoved: If another consumer moved one of the watermarks since the batch began, or if the table
                was replaced or altered. Nothing was added to the sink that raises this.
            SinkConflict: If the commit kept failing.
        """
        ...


@runtime_checkable
class CommitsGroups(Protocol):
    """A batch that can commit some tasks' results while other tasks go on writing.

    Such a batch makes several commits, one after the other, and a queue may be in any of them. Each commit is
    that of a *group*: the results that some of the tasks have finished by then. A batch without
    ``commit_group`` gets at most one commit of each queue.
    """

    def commit_group(
        self, written: Sequence[Any], spans: Mapping[MessageQueue, Span], group_id: str
    ) -> int | None:
        """Commit a group of task results: make rows visible and move watermarks to the ends of ``spans``.

        Either both are done or neither. The caller repeats the newest group if its commit raised an error. If
        that commit was made all the same, the repeated call adds nothing, and refuses those queues of
        ``spans`` that the commit had left out.

        Args:
            written: Results of the tasks.
            spans: Offsets of the messages from which the rows come. A queue's span begins where that of the
                last group with this queue ended.
            group_id: Unique id of the group. A group whose commit failed, or whose outcome is unknown, is
                committed again with the same id before any other one.

        Returns:
            The new version of the table; None for a sink without versions, or if there was nothing to do.

        Raises:
            SinkMoved: If another consumer moved one of the watermarks, or if spans do not begin where the
                last ones ended. Nothing was added. The error names the queues; the caller may commit the
                group without them, with the same id. If the table was replaced or altered, it names none.
            SinkConflict: If the commit kept failing.
        """
        ...


@runtime_checkable
class LeavesOutQueues(Protocol):
    """A batch that can take the rows of refused queues out of a task's result, and commit the rest.

    Any other batch drops a task's whole result if one of its queues is refused.
    """

    def without(self, written: Sequence[Any], queues: Collection[MessageQueue]) -> tuple[Sequence[Any], int]:
        """Return a task's result without rows of these queues, and the number of rows left out.

        ``written``, the task's result, is not changed.
        """
        ...


@runtime_checkable
class RemembersMessages(Protocol):
    """A batch that stores with each watermark the newest message below it.

    This shows whether a broker has lost messages. A query may be killed before it stores the offsets of
    messages that the sink has.  If a broker then loses these messages and gives their offsets to new ones,
    the message at the broker differs from the stored one.  A batch without ``note_newest`` stores no message.
    The loss is then noticed only while the queue ends below the watermark.
    """

    def note_newest(self, newest: Mapping[MessageQueue, str]) -> None:
        """Note the newest message of each queue, as text of ``RememberedMessages``, for the next commit."""
        ...


def note_newest(batch: SinkBatch, newest: Mapping[MessageQueue, str]) -> None:
    """Pass the newest messages to a batch that stores them; do nothing for other batches."""
    if isinstance(batch, RemembersMessages):
        batch.note_newest(newest)


@runtime_checkable
class CountsRows(Protocol):
    """A sink that can count the rows from messages at or above an offset, whatever its watermarks are.

    Before a group's progress is set back, the count shows how many rows the group would write a second time.
    """

    def count_rows(self, from_offsets: Mapping[MessageQueue, int]) -> int | None:
        """Count the rows in the sink's table from messages of these queues, from each queue's offset on.

        Return 0 if the sink cannot get rows twice. Return None if the rows cannot be counted; the caller then
        treats the sink as one without this method.
        """
        ...


@runtime_checkable
class WritesFolders(Protocol):
    """A sink whose tasks write files; a query checks that its machines share the folders."""

    @property
    def folders(self) -> Sequence[str]:
        """Paths and URIs that tasks write to; the query reads them before ``prepare``, and again after it."""
        ...


@runtime_checkable
class KeepsTablesBelow(Protocol):
    """A sink with tables at any places below a folder. A query checks that its other tables are elsewhere."""

    @property
    def tables_folder(self) -> str:
        """Path or URI of the folder that the tables are in."""
        ...


@runtime_checkable
class UsesSession(Protocol):
    """A sink that uses the query's SparkSession on the driver."""

    def use_session(self, spark: Any) -> None:
        """Take the session; called before every other method.

        Its type is ``SparkSession``; this module must not import Spark.
        """
        ...


@runtime_checkable
class ReachedByTasks(Protocol):
    """A sink whose tasks connect to the sink themselves; a query checks this connection when it starts.

    See row I7 of ``docs/semantics.md``.
    """

    def task_check(self) -> Callable[[], str] | None:
        """Return a picklable function that returns, in a task, why the task cannot reach the sink.

        The function returns an empty text if the task can reach the sink, and it ends within a time limit.
        Return None if there is nothing to check. This method is called after ``prepare``.
        """
        ...


@runtime_checkable
class TakesChanges(Protocol):
    """A sink for the changes of a database's table. A consumer with this sink gets no listener from the user.

    The consumer itself reads the changes from the messages, with the properties below.
    """

    @property
    def envelope(self) -> Envelope:
        """The envelope, which reads the changes in a message."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key's columns in the source's table."""
        ...

    @property
    def source_table(self) -> str | None:
        """Name of the source's table whose changes count; None if the messages are about only one table."""
        ...

    def setting(self, name: str) -> str:
        """Return the value of the setting ``order``, ``deletes``, ``truncates`` or ``schema_changes``."""
        ...

    def table_columns(self) -> pa.Schema:
        """Return the columns of the source's table."""
        ...


@runtime_checkable
class RoutesChanges(Protocol):
    """A sink for the changes of many tables. A consumer with this sink gets no listener from the user.

    The consumer itself reads the changes from the messages, with the properties below.
    """

    @property
    def envelope(self) -> Envelope:
        """The envelope, which reads the changes in a message."""
        ...

    @property
    def router(self) -> Router:
        """The router, which finds the table of a change."""
        ...

    def setting(self, name: str) -> str:
        """Return the value of the setting ``order``, ``deletes``, ``truncates`` or ``schema_changes``."""
        ...


@runtime_checkable
class PreparesForManyCommits(Protocol):
    """A sink whose ``prepare`` sets it up differently if it will get several commits a second."""

    def expect_many_commits(self) -> None:
        """Note that the sink will get several commits a second; called before ``prepare``."""
        ...


class Sink(Protocol):
    """A place that gets a query's rows exactly once; used by one thread of the driver at a time."""

    @property
    def place(self) -> Hashable:
        """A value that identifies where the sink stores its watermarks.

        Two sinks with the same place cannot serve one query. Before ``prepare``, the values of two sinks may
        differ although both store their watermarks in the same place.
        """
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Make the sink ready for rows of ``schema``: create what is missing, and check what can be checked.

        Called before the first ``begin``, when the query starts.

        Raises:
            SchemaError: If the rows do not fit.
            OptionError: If the place cannot be used as a sink.
            OffsetError: If its storage does not answer.
        """
        ...

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Sequence[SinkStanding]:
        """Return the group's progress in this sink, or in each one that it combines (``MultiSink``).

        ``queues`` has the generation of each queue, a number that grows when its offsets start again. May be
        called before ``prepare``.
        """
        ...

    def watermarks(self, consumer_group: str) -> Mapping[QueueGeneration, int]:
        """Return the group's watermark in each queue where the sink has one.

        All rows of messages below a watermark are in the sink. Each key is a queue and the newest generation
        for which the sink has a watermark.
        """
        ...

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkBatch:
        """Begin a micro-batch: read the watermark of each of its queues.

        ``queues`` has the generation of each queue, a number that grows when its offsets start again. The
        watermark is 0 if the sink has no rows of that generation, even if it has rows of an earlier one.

        Raises:
            SinkMoved: If the sink has rows of a later generation of a queue.
        """
        ...
