"""Runs in each task of a micro-batch: sends rows to the sink's writer, outcome and acks to the driver.

A task's result has parts, each with its own files and acks, so that the driver can commit one before the
others, or without them. Normally there is one part, and it reaches the driver when the job ends. A queue that
was given up leaves in its own part; a range that had ended before is handed over in the part that contains
it. One thread at a time adds to the growing part: it takes the part from its place, adds, and puts it back,
so that no thread waits for another.

Imports nothing that loads delta-rs: executors fork their workers, and delta-rs must not be in a process that
forks.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark import TaskContext

from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import Part, QueueAck
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine.output import ACK_COLUMN, Consumed
from pyspark_rocketmq.errors import without_frames
from pyspark_rocketmq.hub.task_end import ControlEndpoint, Fate, TaskControl, ask_driver
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import RowWriter, Writing
from pyspark_rocketmq.source.ranges import Ticket
from pyspark_rocketmq.source.reader import freeze_modules, read_ranges, tickets_in
from pyspark_rocketmq.source.schema import ReadPiece

_RESULT_SCHEMA = pa.schema([("parts", pa.string()), ("could_ask", pa.bool_())])
RESULT_COLUMNS: Final = "parts string, could_ask boolean"
"""Columns of the row that each task returns."""


class GrowingPart:
    """Rows that are written and acknowledged together, until they are a ``Part``."""

    def __init__(self, writer: RowWriter | None) -> None:
        self.id = uuid.uuid4().hex
        self.queues: set[MessageQueue] = set()
        self._writing: Writing | None = writer.open() if writer is not None else None
        self._acks: list[QueueAck] = []
        self._emitted = 0
        self._left_out = 0

    def add(self, data: Iterable[pa.RecordBatch], acks: Sequence[QueueAck]) -> None:
        """Add rows of one or more ranges, and the acks of those that end with them."""
        self._acks += acks
        self.queues.update(ack.queue for ack in acks)
        for rows in data:
            self._emitted += rows.num_rows
            if rows.num_rows and self._writing is not None:
                self._left_out += self._writing.add(rows)

    def finish(self) -> Part:
        """Finish writing; return everything that the driver needs to commit the part."""
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


class TaskParts:
    """The parts of a task's result so far."""

    def __init__(self, writer: RowWriter | None, instructions: TaskControl | None) -> None:
        self._writer = writer
        self._instructions = instructions
        self._guard = threading.Lock()
        """Guards the attributes below; nothing is written or sent under it."""
        self._growing: GrowingPart | None = GrowingPart(writer)
        """The part that grows; None while a thread adds to it."""
        self._is_cut_wanted = False
        self._cuts: list[threading.Thread] = []
        self._finished: list[Part] = []
        """Finished parts, which the driver gets with the job."""
        self._failure: BaseException | None = None
        if instructions is not None:
            instructions.when_cut(self._begin_cut)
            instructions.taken_by(self.take)

    def take(self, consumed: Consumed) -> bool:
        """Take the result of a range that was given up, unless it is kept; from any thread."""
        assert self._instructions is not None
        fate = self._instructions.fate(consumed.ack.queue)
        if fate is Fate.KEPT:
            return False
        self._give_up(consumed, fate)
        return True

    def add(self, consumed: Consumed) -> None:
        """Add the result of a range."""
        if self._instructions is None or not self.take(consumed):
            self.add_rows(consumed.batches(), [consumed.ack])

    def add_rows(self, data: Iterable[pa.RecordBatch], acks: Sequence[QueueAck]) -> None:
        """Add rows, and the acks of ranges that end with them."""
        with self._guard:
            part, self._growing = self._growing, None
        assert part is not None
        try:
            part.add(data, acks)
        finally:
            with self._guard:
                self._growing = part
                is_cut_wanted, self._is_cut_wanted = self._is_cut_wanted, False
        # A queue given up while its rows were written was not yet among the kept ones.
        queues = [ack.queue for ack in acks]
        is_given_up = bool(queues) and self._instructions is not None and self._instructions.kept(queues)
        if is_cut_wanted or is_given_up:
            self._cut()

    def finish(self) -> list[Part]:
        """Finish; return the parts that the driver gets with the job.

        Raises:
            RocketMQError: If it is not known whether the driver has the parts that were handed over.
        """
        if self._instructions is not None:
            # From here on the driver gets a copy of the last part; nothing is cut any more.
            self._instructions.when_cut(lambda: None)
        for cut in self._cuts:
            cut.join()
        if self._failure is not None:
            raise self._failure
        assert self._growing is not None
        last = self._growing
        if last.queues or self._instructions is None:
            self._finished.append(last.finish())
        else:
            last.abandon()
        if self._instructions is not None:
            self._instructions.await_taken()
            self._instructions.done(self._finished[-1] if last.queues else None)
        return self._finished

    def abandon(self) -> None:
        """Undo everything that was not handed over: the task has failed."""
        if self._instructions is not None:
            self._instructions.forget()
        if self._growing is not None:
            self._growing.abandon()

    # --- inside ---------------------------------------------------------------------------------------------

    def _give_up(self, consumed: Consumed, fate: Fate) -> None:
        assert self._instructions is not None
        if fate is Fate.DROPPED or not consumed.ack.counts:
            self._instructions.released(consumed.ack.queue)
            return
        part = GrowingPart(self._writer)
        try:
            part.add(consumed.batches(), [consumed.ack])
            self._hand_over(part)
        except BaseException:
            part.abandon()
            raise

    def _begin_cut(self) -> None:
        """Cut on another thread: this is called by the connection's, which must not wait for storage."""
        thread = threading.Thread(target=self._cut_beside, name="rocketmq-hand-over", daemon=True)
        self._cuts.append(thread)
        thread.start()

    def _cut_beside(self) -> None:
        try:
            self._cut()
        except BaseException as error:  # noqa: BLE001 - the task raises it
            self._failure = error

    def _cut(self) -> None:
        fresh = GrowingPart(self._writer)
        with self._guard:
            part = self._growing
            self._is_cut_wanted = part is None
            if part is not None and part.queues:
                self._growing = fresh
        if part is None or not part.queues:
            # A thread that is adding to the part cuts it afterwards; an empty part has nothing to hand over.
            fresh.abandon()
            return
        self._hand_over(part)

    def _hand_over(self, part: GrowingPart) -> None:
        assert self._instructions is not None
        finished = part.finish()
        if not self._instructions.hand_over(finished):
            self._finished.append(finished)


class Engine(Protocol):
    """Consumes the ranges that a task reads."""

    def __call__(
        self, pieces: Iterable[ReadPiece], instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> Iterator[Consumed]:
        """Consume a task's ranges, each until ``instructions`` end it; yield each result at its end."""
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
            pieces = _read(() if is_held_back else tickets, instructions)
            finished = self._written(self._engine(pieces, instructions or NO_INSTRUCTIONS), instructions)
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
        return ask_driver(self._terms, partition, places, attempt=attempt, tasks=tickets[0].tasks)

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
        except BaseException:
            parts.abandon()
            raise


def _read(tickets: Iterable[Ticket], instructions: TaskControl | None) -> Iterator[ReadPiece]:
    """Read the tickets' ranges in order, without those given up by then."""
    for ticket in tickets:
        begun = [
            partition
            for partition in ticket.partitions
            if instructions is None or instructions.begins(partition.planned.queue)
        ]
        yield from read_ranges(begun)


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
