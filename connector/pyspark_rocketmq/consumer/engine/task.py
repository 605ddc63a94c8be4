"""Runs in each task of a micro-batch: sends rows to the sink's writer, outcome and acks to the driver.

A task's result has parts, each with its own files and acks, so that the driver can commit one before the
others, or without them. Normally there is one part, and it reaches the driver when the job ends. Others leave
before:

* A queue that was given up leaves in its own part; a range that had ended before is handed over in the part
  that contains it.
* If the driver asks for cuts, each of them ends the part that has grown, together with what is settled of the
  ranges that go on, also while the listener is called. So a queue has several parts, which must reach the
  driver in order. A part that cannot be handed over, because the connection is lost or it is too long, comes
  with the job, and so does all that follows of its queues. Rows that cross Spark between the engine and the
  sink's writer (``orderlyEngine=state``) cannot be cut.

If the sink's writer is ``CommitsInTask``, the task commits by itself, as
:mod:`~pyspark_rocketmq.consume.task_commits` decides. The part that has grown then has acks of several such
commits, and goes to the driver as any other; a queue that is given up leaves with all of it.

One thread, ``rocketmq-cut``, writes and hands over everything that leaves before the end, one after the
other. It takes the growing part from its place when no other thread adds to it. No lock is held while files
are written.

Imports nothing that loads delta-rs: executors fork their workers, and delta-rs must not be in a process that
forks.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from math import inf
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark import TaskContext

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import Group, Part, QueueAck, check_chains, continued
from pyspark_rocketmq.consume.task_commits import TaskCommits as CommitTimes
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource, Source
from pyspark_rocketmq.consumer.engine.output import ACK_COLUMN, Consumed
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.errors import ListenerError, RocketMQError, without_frames
from pyspark_rocketmq.hub.task_end import ControlEndpoint, Fate, TaskControl, ask_driver
from pyspark_rocketmq.listeners.row_buffer import gathered
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import (
    CommitsInTask,
    CommittingWriting,
    Progress,
    RowWriter,
    Span,
    TaskCommits,
    Writing,
    sends_rows,
)
from pyspark_rocketmq.source.range_arrivals import RangeArrivals
from pyspark_rocketmq.source.ranges import QueuePartition, Ticket
from pyspark_rocketmq.source.reader import freeze_modules, read_arrivals, tickets_in
from pyspark_rocketmq.source.schema import Arrival

logger = logging.getLogger(__name__)

_RESULT_SCHEMA = pa.schema([("parts", pa.string()), ("could_ask", pa.bool_())])
_MOST_ROW_BYTES: Final = 2 << 20
"""Size of rows inside parts, in bytes, at which a task with open ranges begins a cut by itself."""
_MOST_UNCOMMITTED_BYTES: Final = 8 << 20
"""Size of rows that are in no commit of a task with open ranges at which it delivers nothing more."""
RESULT_COLUMNS: Final = "parts string, could_ask boolean"
"""Columns of the row that each task returns."""


class GrowingPart:
    """Rows that are written and acknowledged together, until they are a ``Part``."""

    def __init__(self, writer: RowWriter | TaskCommits | None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.id = uuid.uuid4().hex
        self.ends: set[MessageQueue] = set()
        """Queues whose ranges end with the part."""
        self._writing: Writing | None = writer.open() if writer is not None else None
        self._acks: list[QueueAck] = []
        self._uncommitted: list[QueueAck] = []
        """Acks of rows that the task itself is still to commit."""
        self._emitted = 0
        self._left_out = 0

    @property
    def is_empty(self) -> bool:
        """Whether no range has brought anything."""
        return not (self._acks or self._uncommitted)

    def has(self, queue: MessageQueue) -> bool:
        """Return whether there is progress of the queue in it."""
        return any(ack.queue == queue for ack in (*self._acks, *self._uncommitted))

    def add(self, data: Iterable[pa.RecordBatch], acks: Sequence[QueueAck], *, is_end: bool = True) -> None:
        """Add rows of one or more ranges, and acks of those that end with them, or are cut after them."""
        (self._uncommitted if isinstance(self._writing, CommittingWriting) else self._acks).extend(acks)
        if is_end:
            self.ends.update(ack.queue for ack in acks)
        for rows in data:
            self._emitted += rows.num_rows
            if rows.num_rows and self._writing is not None:
                self._left_out += self._writing.add(rows)

    def commit(self) -> frozenset[MessageQueue]:
        """Commit what was added, where tasks do that; return queues that are refused from now on."""
        refused = frozenset[MessageQueue]()
        if self._uncommitted and isinstance(self._writing, CommittingWriting):
            acks = (*self._acks, *self._uncommitted)
            check_chains([Part(id=self.id, acks=acks)])
            progress = {ack.queue: _progress(ack) for ack in _joined(self._uncommitted)}
            refused, left_out = self._writing.commit(progress)
            self._left_out += left_out
            at_ms = int(self._clock.now_s() * 1000)
            committed = [replace(ack, latencies=ack.latencies.commit(at_ms)) for ack in self._uncommitted]
            self._acks = list(_joined([*self._acks, *committed]))
            self._uncommitted.clear()
        return refused

    def finish(self) -> Part:
        """Finish writing; return everything that the driver needs to commit the part."""
        self.commit()
        written = self._writing.finish() if self._writing is not None else ()
        return Part(
            id=self.id,
            written=tuple(each.to_dict() for each in written),
            acks=tuple(self._acks),
            emitted=self._emitted,
            left_out=self._left_out,
        )

    def abandon(self) -> None:
        """Undo the part; see ``Writing.abandon``."""
        if self._writing is not None:
            self._writing.abandon()


def _joined(acks: Sequence[QueueAck]) -> tuple[QueueAck, ...]:
    return Group((Part(id="", acks=tuple(acks)),)).acks


def _progress(ack: QueueAck) -> Progress:
    span = Span(ack.start, ack.state.next_offset)
    return Progress(span, ack.state.epoch, ack.state.last_message.to_text())


class TaskParts:
    """The parts of a task's result so far."""

    def __init__(
        self, writer: RowWriter | None, instructions: TaskControl | None, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._commits = writer.begin_task() if isinstance(writer, CommitsInTask) else None
        """The task's own commits, if its sink has them."""
        self._writer = self._commits or writer
        self._instructions = instructions
        self._changed = threading.Condition()
        """Guards the attributes below; nothing is written or sent under it."""
        self._growing: GrowingPart | None = GrowingPart(self._writer, self._clock)
        """The part that grows; None while a thread adds to it."""
        self._thread: threading.Thread | None = None
        """Thread that hands parts over, from the first one on."""
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._times = CommitTimes()
        """When the task itself commits."""
        self._is_closed = False
        """Whether that thread gets no more work."""
        self._is_abandoned = False
        self._kept_back: list[Part] = []
        """Finished parts, which the driver gets with the job."""
        self._failure: BaseException | None = None
        if instructions is not None:
            instructions.when_cut(self._begin_cut)
            if sends_rows(writer):
                instructions.limit_rows(_MOST_ROW_BYTES, self._begin_own_cut)
            if self._commits is not None:
                instructions.limit_rows(_MOST_UNCOMMITTED_BYTES, self._begin_commit)
                instructions.commit_when(self._settled, self._rests)
            instructions.taken_by(self.take)

    def take(self, consumed: Consumed) -> bool:
        """Take the result of a range that was given up, unless it is kept; from any thread."""
        assert self._instructions is not None
        if self._instructions.fate(consumed.ack.queue) is Fate.KEPT:
            return False
        return self._begin(lambda: self._give_up(consumed))

    def add(self, consumed: Consumed) -> None:
        """Add the result of a range."""
        if self._instructions is None or not self.take(consumed):
            self.add_rows(consumed.batches(), [consumed.ack])

    def add_rows(self, data: Iterable[pa.RecordBatch], acks: Sequence[QueueAck]) -> None:
        """Add rows, and the acks of ranges that end with them.

        Raises:
            BaseException: If a part could not be handed over.
        """
        if self._failure is not None:
            raise self._failure
        part = self._take_growing(None)
        try:
            part.add(data, acks)
        finally:
            self._put_growing(part)
        if self._instructions is None:
            return
        # A queue given up while its rows were written was not yet among the kept ones.
        if acks and self._instructions.kept([ack.queue for ack in acks]):
            self._begin_cut(None)
        if any(ack.counts for ack in acks):
            self._instructions.settled()

    def finish(self) -> list[Part]:
        """Finish; return the parts that the driver gets with the job.

        Raises:
            RocketMQError: If it is not known whether the driver has the parts that were handed over.
        """
        if self._commits is not None and self._instructions is not None:
            self._begin_commit()
        # From here on nothing is cut any more: what is left is the last part.
        if (thread := self._close()) is not None:
            thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._growing is not None
        last = self._growing
        if self._instructions is None:
            finished = last.finish()
            self._release()
            return [finished]
        if last.is_empty:
            last.abandon()
        else:
            self._finish_last(last, self._instructions)
        self._release()
        self._instructions.await_taken()
        is_copied = not (last.is_empty or self._instructions.is_cut)
        self._instructions.done(self._kept_back[-1] if is_copied else None)
        if self._kept_back and self._instructions.is_cut:
            return [continued(self._kept_back)]
        return self._kept_back

    def abandon(self, error: BaseException | None = None) -> None:
        """Undo everything that was not sent to the driver; the task has failed with ``error``."""
        self._is_abandoned = True
        self._close()
        if self._instructions is not None:
            self._instructions.forget(error)
        if self._growing is not None:
            self._growing.abandon()
        if self._thread is None:
            self._release()

    def _release(self) -> None:
        """Release what the calling thread has of the task's own commits."""
        if self._commits is not None:
            self._commits.close()

    # --- the part that grows --------------------------------------------------------------------------------

    def _take_growing(self, other: GrowingPart | None) -> GrowingPart:
        """Take the part that grows, and put another one in its place, or none while the caller adds to it."""
        with self._changed:
            while self._growing is None:
                self._changed.wait()
            part, self._growing = self._growing, other
            return part

    def _put_growing(self, part: GrowingPart) -> None:
        with self._changed:
            self._growing = part
            self._changed.notify_all()

    def _finish_last(self, last: GrowingPart, instructions: TaskControl) -> None:
        if instructions.is_cut:
            self._hand_over(last, None)
        else:
            self._kept_back.append(last.finish())

    # --- parts that leave before the end --------------------------------------------------------------------

    def _begin(self, work: Callable[[], None]) -> bool:
        """Have the other thread do something, after what it was given before; return False at the end."""
        with self._changed:
            if self._is_closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rocketmq-cut", daemon=True)
                self._thread.start()
            self._work.put(work)
            return True

    def _close(self) -> threading.Thread | None:
        """Accept no more work; return the thread that does the rest, if there is one."""
        with self._changed:
            self._is_closed = True
            self._work.put(None)
            return self._thread

    def _run(self) -> None:
        try:
            while (work := self._next_work()) is not None and not self._is_abandoned:
                work()
        except BaseException as error:  # noqa: BLE001 - the task's own thread raises it
            self._failure = error
            assert self._instructions is not None
            self._instructions.stop()
        finally:
            self._release()

    def _next_work(self) -> Callable[[], None] | None:
        """Wait for work; a commit of the task's own is work when its time has come."""
        with self._changed:
            due_s = self._times.due_s
        try:
            return self._work.get(
                timeout=None if due_s == inf else max(0.0, due_s - self._clock.monotonic_s())
            )
        except Empty:
            return self._commit

    def _begin_cut(self, number: int | None) -> bool:
        """Begin to cut; called by the connection's thread, which must not wait for storage."""
        return self._begin(lambda: self._cut(number, is_whole=number is not None))

    def _begin_own_cut(self) -> bool:
        """Begin a cut that the driver has not asked for."""
        return self._begin(lambda: self._cut(None, is_whole=True))

    def _cut(self, number: int | None, *, is_whole: bool) -> None:
        """Send the results so far to the driver; only those of ranges that have ended unless ``is_whole``.

        ``number`` is the number of the driver's cut; None if the driver has not asked for it.
        """
        instructions = self._instructions
        assert instructions is not None
        if is_whole and (self._kept_back or not instructions.cut_begins()):
            # Parts of a queue must reach the driver in order, so the rest also comes with the job.
            if number is not None:
                instructions.nothing_to_cut(number)
            return
        if is_whole:
            self._commit_begins()
        # In this order: a range that ends meanwhile must not be in the part with its end before its cut.
        with self._leaving(self._take_growing(GrowingPart(self._writer, self._clock))) as part:
            if is_whole:
                self._add_cut(part, instructions.cut_ranges(), instructions)
            if not part.is_empty:
                self._hand_over(part, number)
                return
            part.abandon()
            if number is not None:
                instructions.nothing_to_cut(number)

    def _add_cut(self, part: GrowingPart, cut: RangeCuts, instructions: TaskControl) -> None:
        for consumed in cut.ended:
            self._add_ended(part, consumed, instructions)
        going_on = [each for each in cut.going_on if instructions.fate(each.ack.queue) is not Fate.DROPPED]
        # A writer's cost is that of a call, if there are few rows.
        rows = gathered(chain.from_iterable(each.batches() for each in going_on))
        part.add(rows, [each.ack for each in going_on], is_end=False)

    def _add_ended(self, part: GrowingPart, consumed: Consumed, instructions: TaskControl) -> None:
        """Add the result of a range that has ended, except if it stays for another part or does not count."""
        queue = consumed.ack.queue
        fate = instructions.fate(queue)
        is_rest = consumed.ack.counts or part.has(queue)
        if fate is Fate.DROPPED or (fate is Fate.HANDED_OVER and not is_rest):
            instructions.released(queue)
        else:
            part.add(consumed.batches(), [consumed.ack])

    def _give_up(self, consumed: Consumed) -> None:
        """Send the driver what was consumed of a range whose queue the task gives up."""
        assert self._instructions is not None
        # The growing part has what the task committed of the queue before; the driver must get that first.
        leaves = GrowingPart(self._writer, self._clock)
        with self._leaving(leaves if self._commits is None else self._take_growing(leaves)) as part:
            self._add_ended(part, consumed, self._instructions)
            if part.is_empty:
                part.abandon()
            else:
                self._hand_over(part, None)

    # --- the task's own commits -----------------------------------------------------------------------------

    def _settled(self) -> None:
        with self._changed:
            is_new = self._times.settled(self._clock.monotonic_s())
        if is_new:
            self._begin(_look_again)

    def _rests(self) -> None:
        with self._changed:
            is_new = self._times.rests(self._clock.monotonic_s())
        if is_new:
            self._begin(_look_again)

    def _begin_commit(self) -> bool:
        return self._begin(self._commit)

    def _commit_begins(self) -> None:
        with self._changed:
            self._times.begins()

    def _commit(self) -> None:
        """Commit everything that is settled; the driver gets its acks later."""
        instructions = self._instructions
        assert instructions is not None
        self._commit_begins()
        instructions.rows_taken()
        # Nobody adds to the part meanwhile: ranges seldom end, and a transaction takes milliseconds.
        part = self._take_growing(None)
        try:
            self._add_cut(part, instructions.cut_ranges(), instructions)
            refused = part.commit()
        finally:
            self._put_growing(part)
        if refused or any(instructions.fate(queue) is Fate.HANDED_OVER for queue in list(part.ends)):
            # The driver is to know it now.
            self._cut(None, is_whole=False)

    @contextmanager
    def _leaving(self, part: GrowingPart) -> Iterator[GrowingPart]:
        """Undo a part that cannot be handed over because of an error."""
        try:
            yield part
        except BaseException:
            part.abandon()
            raise

    def _hand_over(self, part: GrowingPart, number: int | None) -> None:
        assert self._instructions is not None
        finished, ends = part.finish(), frozenset(part.ends)
        is_first = all(each.queues.isdisjoint(finished.queues) for each in self._kept_back)
        if not (is_first and self._instructions.hand_over(finished, ends=ends, cut=number)):
            if self._instructions.counts_rows() and not self._instructions.is_cut_off:
                raise ListenerError(
                    f"The rows of one commit are too many for a task's connection to the driver: "
                    f"{len(str(finished.facts)) >> 20} MiB. They pass through the driver because the sink "
                    "does not take them from files. Let the listener emit fewer rows for a message, or use a "
                    "sink that writes files, such as DeltaSink."
                )
            if self._instructions.is_cut and not self._kept_back:
                logger.warning(
                    "a part could not be handed over, so the rest of its queues is committed at the batch's "
                    "end only queues=%d",
                    len(finished.queues),
                )
            self._kept_back.append(finished)
            if number is not None:
                self._instructions.nothing_to_cut(number)


def _look_again() -> None:
    """Do nothing: the thread has only to look when its next commit is due."""


class Engine(Protocol):
    """Consumes the ranges that a task reads."""

    def __call__(
        self, source: Source, instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> Iterator[Consumed]:
        """Consume the ranges of ``source`` as they arrive; yield the result of each range at its end.

        ``instructions`` may end a range early.
        """
        ...


class BatchTask:
    """The function given to ``mapInArrow``; :mod:`~pyspark_rocketmq.consumer.batch` starts its job.

    Without a writer only the listener's side effects are wanted. With an engine the batch holds planned
    ranges (:mod:`~pyspark_rocketmq.source.ranges`), which are also read and consumed here: a message stays in
    one Python process from the socket to the sink's file. With ``terms`` such a task asks the driver before
    it begins, and gives up the ranges that the driver names.
    """

    def __init__(
        self,
        writer: RowWriter | None,
        engine: Engine | None = None,
        terms: ControlEndpoint | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """Prepare; ``names`` are those of columns that have crossed Spark and arrive with other names."""
        self._writer = writer
        self._engine = engine
        self._terms = terms
        self._names = list(names)

    @without_frames
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row with the parts of the task's result."""
        could_ask: bool | None = None
        if self._engine is None:
            named = (each.rename_columns(self._names) for each in batches)
            finished = self._written(map(_split_acks, named), None)
        else:
            tickets = list(tickets_in(batches))
            instructions = self._ask(tickets)
            could_ask = instructions is not None if tickets and self._terms is not None else None
            is_held_back = could_ask is False and self._terms is not None and self._terms.must_ask
            source = _source_of(() if is_held_back else tickets, instructions)
            finished = self._written(self._engine(source, instructions or NO_INSTRUCTIONS), instructions)
        freeze_modules()
        result = {"parts": json.dumps([part.facts for part in finished]), "could_ask": could_ask}
        yield pa.RecordBatch.from_pylist([result], schema=_RESULT_SCHEMA)

    def _ask(self, tickets: Sequence[Ticket]) -> TaskControl | None:
        if self._terms is None or not tickets:
            return None
        context = TaskContext.get()
        partition, attempt = (
            (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
        )
        planned = [each.planned for ticket in tickets for each in ticket.partitions]
        places = {each.queue: Place(each.state.epoch, each.start) for each in planned}
        open_for_s = tickets[0].open_for_s
        asked = ask_driver(
            self._terms,
            partition,
            places,
            attempt=attempt,
            tasks=tickets[0].tasks,
            open_for_s=open_for_s,
        )
        if asked is None and open_for_s is not None:
            address = self._terms.address
            raise RocketMQError(
                f"An executor cannot reach the driver at {address.host}:{address.port}. A query in real time "
                "needs this, because only the driver can end its tasks. Nothing was delivered. Let executors "
                "reach that host (spark.driver.host)."
            )
        return asked

    def _written(
        self, brought: Iterable[Consumed | _RowsAndAcks], instructions: TaskControl | None
    ) -> list[Part]:
        parts = TaskParts(self._writer, instructions)
        try:
            for result in brought:
                if isinstance(result, Consumed):
                    parts.add(result)
                else:
                    parts.add_rows([result.data], result.acks)
                # Release it before the next range is consumed.
                del result
            return parts.finish()
        except BaseException as error:
            parts.abandon(error)
            raise


def _source_of(tickets: Sequence[Ticket], instructions: TaskControl | None) -> Source:
    """Return the source that reads the tickets' ranges, which are either all open or all closed."""
    if not any(ticket.open_for_s for ticket in tickets):
        return ClosedSource(_read(tickets, instructions))
    begun = list(chain.from_iterable(_begun(ticket, instructions) for ticket in tickets))
    # If all ranges were given up already, the engine gets an empty source and ends immediately.
    return RangeArrivals(begun) if begun else ClosedSource(())


def _begun(ticket: Ticket, instructions: TaskControl | None) -> list[QueuePartition]:
    """Return the ticket's ranges, except those that the driver has given up by now."""
    return [
        partition
        for partition in ticket.partitions
        if instructions is None or instructions.begins(partition.planned.queue)
    ]


def _read(tickets: Iterable[Ticket], instructions: TaskControl | None) -> Iterator[Sequence[Arrival]]:
    """Read the tickets' ranges in order, except those that the driver has given up when it is their turn."""
    for ticket in tickets:
        yield from read_arrivals(_begun(ticket, instructions))


class _RowsAndAcks(NamedTuple):
    """Rows and acks that have crossed Spark between the engine and the sink's writer."""

    data: pa.RecordBatch
    acks: list[QueueAck]


def _split_acks(batch: pa.RecordBatch) -> _RowsAndAcks:
    """Separate data rows and acks of an engine whose rows cross Spark."""
    acks = batch.column(ACK_COLUMN)
    data = batch.drop_columns([ACK_COLUMN])
    if acks.null_count == len(acks):
        return _RowsAndAcks(data, [])
    return _RowsAndAcks(
        data.filter(acks.is_null()), [QueueAck.from_json(text) for text in acks.drop_null().to_pylist()]
    )
