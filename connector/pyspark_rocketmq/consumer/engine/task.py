"""Runs in each task of a micro-batch: passes rows to the sink's writer, and sends acks to the driver.

A task's result has parts (:mod:`~pyspark_rocketmq.consumer.engine.parts`). Normally there is one, and the
driver gets it when the job ends. Other parts leave the task earlier
(:mod:`~pyspark_rocketmq.consumer.engine.cutting`). A task that cannot reach its driver, or is to end, leaves
out closed ranges (with a planned end) that it has not begun. Acks without progress report these ranges, in a
part that comes with the job.

Imports nothing that loads delta-rs: executors fork their workers, and delta-rs must not be in a process that
forks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
from pyspark import TaskContext

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import Part, QueueAck, continued, not_begun
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource, Source
from pyspark_rocketmq.consumer.engine.cutting import CutThread, OwnCommits, TaskCuts
from pyspark_rocketmq.consumer.engine.output import ACK_COLUMN, Consumed, CutTogether
from pyspark_rocketmq.consumer.engine.parts import GrowingPart, GrowingPlace, PartSender, undone_by_errors
from pyspark_rocketmq.errors import RocketMQError, without_frames
from pyspark_rocketmq.hub.task_end import ControlEndpoint, TaskControl, ask_driver, report_reset
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import CommitsInTask, RowWriter, sends_rows
from pyspark_rocketmq.source.fetcher import ResetFound
from pyspark_rocketmq.source.range_arrivals import RangeArrivals, closed_arrivals
from pyspark_rocketmq.source.ranges import QueuePartition, Ticket
from pyspark_rocketmq.source.reader import freeze_modules, tickets_in
from pyspark_rocketmq.source.schema import Arrival

_RESULT_SCHEMA = pa.schema([("parts", pa.string()), ("could_ask", pa.bool_())])
_MOST_ROW_BYTES: Final = 2 << 20
"""Size of rows inside parts, in bytes, at which a task with open ranges begins a cut by itself."""
_MOST_UNCOMMITTED_BYTES: Final = 8 << 20
"""Size of uncommitted rows, in bytes, at which a task that itself commits begins a commit, if its ranges are
open. It delivers nothing more until that commit has taken the rows."""
RESULT_COLUMNS: Final = "parts string, could_ask boolean"
"""Columns of the row that each task returns: its parts as JSON, and whether it could ask the driver."""


class TaskParts:
    """A task's result so far, as parts, which are written and committed separately.

    Normally there is one part, which comes with the job. Other parts are sent to the driver while the task
    runs.
    """

    def __init__(
        self, writer: RowWriter | None, instructions: TaskControl | None, clock: Clock | None = None
    ) -> None:
        clock = clock or SystemClock()
        self._commits = writer.begin_task() if isinstance(writer, CommitsInTask) else None
        """Makes the commits of this task into the sink; None if only the driver commits."""
        self._instructions = instructions
        self._place = GrowingPlace(lambda: GrowingPart(self._commits or writer, clock))
        self._cut_thread = CutThread(clock, failed=self._stop, over=self._release)
        self._sender: PartSender | None = None
        self._cuts: TaskCuts | None = None
        self._own: OwnCommits | None = None
        if instructions is not None:
            self._follow(instructions, clock, sends_rows=sends_rows(writer))

    def _follow(self, instructions: TaskControl, clock: Clock, *, sends_rows: bool) -> None:
        self._sender = PartSender(instructions)
        self._cuts = cuts = TaskCuts(self._place, self._sender, instructions, self._cut_thread)
        instructions.when_cut(cuts.begin)
        if sends_rows:
            instructions.limit_rows(_MOST_ROW_BYTES, cuts.begin_own)
        if self._commits is not None:
            self._own = own = OwnCommits(self._place, instructions, self._cut_thread, clock, cuts.send_ended)
            cuts.own = own
            instructions.limit_rows(_MOST_UNCOMMITTED_BYTES, own.begin)
            instructions.commit_when(own.settled, own.rests)
        instructions.taken_by(cuts.take)

    def add(self, consumed: Consumed) -> None:
        """Add the result of a range that has ended; if its queue was given up, send it to the driver."""
        if self._cuts is None or not self._cuts.take(consumed):
            self.add_rows(consumed.batches(), [consumed.ack])

    def add_cuts(self, cut: CutTogether) -> None:
        """Add rows and acks of ranges that go on."""
        self.add_rows(cut.batches(), cut.acks, is_end=False)

    def add_rows(
        self, data: Iterable[pa.RecordBatch], acks: Sequence[QueueAck], *, is_end: bool = True
    ) -> None:
        """Add rows of ranges, and the acks of these ranges.

        ``is_end``: the ranges end with these rows; otherwise the ranges go on.

        Raises:
            BaseException: The error of the cut thread, if it could not write an earlier part or hand it over.
        """
        self._check()
        if self._cuts is not None:
            self._cuts.note([ack.queue for ack in acks])
        with self._place.part() as part:
            part.add(data, acks, is_end=is_end)
        if self._instructions is None or self._cuts is None:
            return
        # If a queue was given up while its rows were written, its range was not yet noted as kept in the
        # task's result. So nobody has begun to hand the range over.
        if acks and is_end and self._instructions.kept([ack.queue for ack in acks]):
            self._cuts.begin(None)
        if any(ack.counts for ack in acks):
            self._instructions.settled()

    def finish(self, passed_over: Callable[[], Sequence[QueueAck]] = tuple) -> list[Part]:
        """Finish writing, wait until the driver has the parts sent to it, and return all other parts.

        The driver gets the returned parts with the job's result. ``passed_over`` returns the acks of ranges
        that the task has not begun; these acks get a part of their own.

        Raises:
            RocketMQError: If the driver has not confirmed a part that was handed over.
            BaseException: The error of the cut thread, if it could not write an earlier part or hand it over.
        """
        if self._own is not None:
            self._own.begin()
        # From here on nothing is cut any more: what is left is the last part.
        self._cut_thread.close()
        self._cut_thread.join()
        self._check()
        last = self._place.last
        assert last is not None
        apart = self._apart(passed_over())
        if self._instructions is None or self._sender is None:
            finished = last.finish()
            self._release()
            return [finished, *apart]
        return [*self._finish_for_driver(last, self._instructions, self._sender), *apart]

    def _apart(self, acks: Sequence[QueueAck]) -> list[Part]:
        """Return a part with only these acks, so that no consumed message is dropped with one of them."""
        if not acks:
            return []
        with undone_by_errors(self._place.new_part()) as part:
            part.add((), acks)
            return [part.finish()]

    def _finish_for_driver(
        self, last: GrowingPart, instructions: TaskControl, sender: PartSender
    ) -> list[Part]:
        if last.is_empty:
            last.abandon()
        elif instructions.is_cut:
            sender.hand_over(last, None)
        else:
            sender.keep(last)
        self._release()
        instructions.await_taken()
        is_copied = not (last.is_empty or instructions.is_cut)
        instructions.done(sender.kept_back[-1] if is_copied else None)
        if sender.kept_back and instructions.is_cut:
            return [continued(sender.kept_back)]
        return sender.kept_back

    def abandon(self, error: BaseException | None = None) -> None:
        """Undo everything that was not sent to the driver, because the task has failed with ``error``."""
        self._cut_thread.abandon()
        if self._instructions is not None:
            self._instructions.forget(error)
        if self._place.last is not None:
            self._place.last.abandon()
        if self._cut_thread.thread is None:
            self._release()

    def _check(self) -> None:
        """Raise the error of the cut thread, if it has failed."""
        if self._cut_thread.failure is not None:
            raise self._cut_thread.failure

    def _stop(self) -> None:
        assert self._instructions is not None
        self._instructions.stop()

    def _release(self) -> None:
        """Release what the calling thread holds for the task's own commits, such as a database connection."""
        if self._commits is not None:
            self._commits.close()


class Engine(Protocol):
    """Consumes the ranges that a task reads."""

    def __call__(
        self, source: Source, instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> Iterator[Consumed | CutTogether]:
        """Consume the ranges of ``source`` as they arrive; yield the result of each range at its end.

        ``instructions`` may end a range early, or take its result, which is then not yielded. Before the end
        of ranges, an engine may also yield results of them that may be committed (:class:`CutTogether`).
        """
        ...


@runtime_checkable
class ReadsColumns(Protocol):
    """An engine that takes messages only in columns, and needs only some of the source's columns."""

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """Columns of the source to read, always including those that show how far a range has been read."""
        ...


class BatchTask:
    """The function given to ``mapInArrow``; :mod:`~pyspark_rocketmq.consumer.batch` starts its job.

    With an engine, the batch holds planned ranges (:mod:`~pyspark_rocketmq.source.ranges`), and the task also
    reads and consumes them: a message stays in one Python process from the socket to the sink's file. Without
    an engine, the batch has the rows to write, and acks. Without a writer there is no sink: only the
    listener's side effects are wanted. With ``terms``, the driver's address and rules for asking, a task with
    an engine asks the driver before it begins, and gives up the ranges that the driver names.
    """

    def __init__(
        self,
        writer: RowWriter | None,
        engine: Engine | None = None,
        terms: ControlEndpoint | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """Prepare; ``names`` are the real names of the columns, if ``batch.run_job`` has renamed them."""
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
            columns = self._engine.needed_columns if isinstance(self._engine, ReadsColumns) else None
            reset_found = None if self._terms is None else partial(report_reset, self._terms)
            with _failure_reported(instructions):
                source = _source_of(() if is_held_back else tickets, instructions, columns, reset_found)
                brought = self._engine(source, instructions or NO_INSTRUCTIONS)
            passed_over = partial(_passed_over, tickets, instructions, is_held_back=is_held_back)
            finished = self._written(brought, instructions, passed_over)
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
            at_end=tickets[0].at_end,
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
        self,
        brought: Iterable[Consumed | CutTogether | _RowsAndAcks],
        instructions: TaskControl | None,
        passed_over: Callable[[], Sequence[QueueAck]] = tuple,
    ) -> list[Part]:
        with _failure_reported(instructions):
            parts = TaskParts(self._writer, instructions)
        try:
            for result in brought:
                match result:
                    case Consumed():
                        parts.add(result)
                    case CutTogether():
                        parts.add_cuts(result)
                    case _:
                        parts.add_rows([result.data], result.acks)
                # Release it before the next range is consumed.
                del result
            return parts.finish(passed_over)
        except BaseException as error:
            parts.abandon(error)
            raise


@contextmanager
def _failure_reported(instructions: TaskControl | None) -> Iterator[None]:
    """Report an error of the ``with`` block to the driver, as ``TaskParts.abandon`` does later."""
    try:
        yield
    except BaseException as error:
        if instructions is not None:
            instructions.forget(error)
        raise


def _source_of(
    tickets: Sequence[Ticket],
    instructions: TaskControl | None,
    columns: tuple[str, ...] | None,
    reset_found: ResetFound | None,
) -> Source:
    """Return the source that reads the tickets' ranges, which are either all open or all closed.

    ``columns`` are those of a :class:`ReadsColumns`; None for another engine. ``reset_found`` gets the resets
    that a broker has reported too late for the end of a range.
    """
    if not any(ticket.open_for_s for ticket in tickets):
        return ClosedSource(_read(tickets, instructions, columns, reset_found))
    begun = list(chain.from_iterable(_begun(ticket, instructions, columns) for ticket in tickets))
    # If all ranges were given up already, the engine gets an empty source and ends immediately.
    if not begun:
        return ClosedSource(())
    return RangeArrivals(begun, few_as_objects=columns is None, reset_found=reset_found)


def _begun(
    ticket: Ticket, instructions: TaskControl | None, columns: tuple[str, ...] | None
) -> list[QueuePartition]:
    """Return the ticket's ranges, except those that the driver has given up by now."""
    return [
        partition.with_columns(columns)
        for partition in ticket.partitions
        if instructions is None or instructions.begins(partition.planned.queue)
    ]


def _read(
    tickets: Iterable[Ticket],
    instructions: TaskControl | None,
    columns: tuple[str, ...] | None,
    reset_found: ResetFound | None,
) -> Iterator[Sequence[Arrival]]:
    """Read the tickets' ranges in order, except those that the driver has given up when it is their turn."""
    for ticket in tickets:
        yield from closed_arrivals(_begun(ticket, instructions, columns), reset_found=reset_found)


def _passed_over(
    tickets: Sequence[Ticket], instructions: TaskControl | None, *, is_held_back: bool
) -> list[QueueAck]:
    """Return acks of the tickets' closed ranges that the task has not begun and need not give up.

    ``is_held_back``: the task could not ask its driver, and must not begin any range.
    """
    passed_over = frozenset[MessageQueue]() if instructions is None else instructions.not_begun()
    now_s = SystemClock().now_s()
    return [
        not_begun(planned, now_s)
        for ticket in tickets
        for planned in (each.planned for each in ticket.partitions)
        if (is_held_back or planned.queue in passed_over) and not planned.has_open_end
    ]


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
