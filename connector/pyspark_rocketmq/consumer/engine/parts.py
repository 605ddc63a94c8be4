"""Parts of a task's result: the one that grows, and those that are finished.

A *part* is a piece of the result, with its own files of rows and its own acks, which have the progress of
queues. So the driver can commit one part before the others, or without them. A task adds its results to one
growing part, finishes it, and goes on with a new one.

Imports nothing that loads delta-rs: executors fork their workers, and delta-rs must not be in a process that
forks.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.part import NOT_BEGUN, Group, Part, QueueAck, check_chains
from pyspark_rocketmq.hub.task_end import TaskControl
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import (
    CommittingWriting,
    Progress,
    RowWriter,
    Span,
    TaskCommits,
    Writing,
)

logger = logging.getLogger(__name__)


class GrowingPart:
    """A part of a task's result, to which rows and acks are added until :meth:`finish` returns a ``Part``."""

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
        """Whether the part has no acks, so that there is nothing to commit."""
        return not (self._acks or self._uncommitted)

    def has(self, queue: MessageQueue) -> bool:
        """Return whether the part has an ack of the queue."""
        return any(ack.queue == queue for ack in (*self._acks, *self._uncommitted))

    def add(self, data: Iterable[pa.RecordBatch], acks: Sequence[QueueAck], *, is_end: bool = True) -> None:
        """Add rows of ranges, and the acks of these ranges.

        ``is_end``: the ranges end with these rows; otherwise the ranges go on.
        """
        (self._uncommitted if isinstance(self._writing, CommittingWriting) else self._acks).extend(acks)
        if is_end:
            self.ends.update(ack.queue for ack in acks)
        for rows in data:
            self._emitted += rows.num_rows
            if rows.num_rows and self._writing is not None:
                self._left_out += self._writing.add(rows)

    def commit(self) -> frozenset[MessageQueue]:
        """Commit the rows added since the last call, if the task itself commits into the sink.

        Return the queues that the sink now refuses. If only the driver commits into the sink, do nothing, and
        return no queues.
        """
        refused = frozenset[MessageQueue]()
        if self._uncommitted and isinstance(self._writing, CommittingWriting):
            acks = (*self._acks, *self._uncommitted)
            check_chains([Part(id=self.id, acks=acks)])
            # A sink that is new to the group has no rows below a range that was not begun.
            begun = [ack for ack in self._uncommitted if ack.finished != NOT_BEGUN]
            if begun:
                progress = {ack.queue: _progress(ack) for ack in _joined(begun)}
                refused, left_out = self._writing.commit(progress)
                self._left_out += left_out
            at_ms = int(self._clock.now_s() * 1000)
            committed = [replace(ack, latencies=ack.latencies.commit(at_ms)) for ack in self._uncommitted]
            self._acks = list(_joined([*self._acks, *committed]))
            self._uncommitted.clear()
        return refused

    def finish(self) -> Part:
        """Finish writing; return everything that the driver needs to commit the part.

        If the task itself commits, its rows are committed first.
        """
        self.commit()
        written = self._writing.finish() if self._writing is not None else ()
        return Part(
            id=self.id,
            written=tuple(each.to_dict() for each in written),
            acks=_joined_if_chained(self._acks),
            emitted=self._emitted,
            left_out=self._left_out,
        )

    def abandon(self) -> None:
        """Undo the part: remove what was written and not committed, as far as possible."""
        if self._writing is not None:
            self._writing.abandon()


def _joined(acks: Sequence[QueueAck]) -> tuple[QueueAck, ...]:
    return Group((Part(id="", acks=tuple(acks)),)).acks


def _joined_if_chained(acks: Sequence[QueueAck]) -> tuple[QueueAck, ...]:
    """Join the acks of each queue to one ack, if each begins where the one before has ended.

    Otherwise return the acks unchanged: the driver finds the gap, and refuses them (``check_chains``).
    """
    reached: dict[MessageQueue, int] = {}
    for ack in acks:
        if reached.get(ack.queue, ack.start) != ack.start:
            return tuple(acks)
        reached[ack.queue] = ack.state.next_offset
    return tuple(acks) if len(reached) == len(acks) else _joined(acks)


def _progress(ack: QueueAck) -> Progress:
    span = Span(ack.start, ack.state.next_offset)
    return Progress(span, ack.state.epoch, ack.state.last_message.to_text())


class GrowingPlace:
    """Holds a task's growing part, and lends it to one thread at a time.

    The place is empty while a thread has the part.
    """

    def __init__(self, new: Callable[[], GrowingPart]) -> None:
        """Begin with a ``new`` part; each further one is made by the same function."""
        self._new = new
        self._changed = threading.Condition()
        self._part: GrowingPart | None = new()

    @contextmanager
    def part(self) -> Iterator[GrowingPart]:
        """Lend the part to a ``with`` block, for additions; wait first while another thread has the part."""
        part = self._taken(None)
        try:
            yield part
        finally:
            with self._changed:
                self._part = part
                self._changed.notify_all()

    @contextmanager
    def leaving(self) -> Iterator[GrowingPart]:
        """Give the part to a ``with`` block for good, and put a new one in its place.

        If the block raises an error, abandon the part that it got.
        """
        with undone_by_errors(self._taken(self._new())) as part:
            yield part

    def new_part(self) -> GrowingPart:
        """Make a part that is not in the place."""
        return self._new()

    @property
    def last(self) -> GrowingPart | None:
        """The part that grows. Read it only when no other thread uses this place any more.

        None if a thread failed while it had the part.
        """
        return self._part

    def _taken(self, other: GrowingPart | None) -> GrowingPart:
        with self._changed:
            while self._part is None:
                self._changed.wait()
            part, self._part = self._part, other
            return part


@contextmanager
def undone_by_errors(part: GrowingPart) -> Iterator[GrowingPart]:
    """Lend a part to a ``with`` block; abandon the part if the block raises an error."""
    try:
        yield part
    except BaseException:
        part.abandon()
        raise


class PartSender:
    """Hands finished parts over to the driver, and keeps those that come with the job."""

    def __init__(self, instructions: TaskControl) -> None:
        self._instructions = instructions
        self.kept_back: list[Part] = []
        """Finished parts that the driver gets only with the job's result."""

    def keeps(self, queue: MessageQueue) -> bool:
        """Return whether a part with an ack of the queue is kept back for the job's result."""
        return any(queue in part.queues for part in self.kept_back)

    def keep(self, part: GrowingPart) -> None:
        """Finish a part, and keep it for the job's result."""
        self.kept_back.append(part.finish())

    def hand_over(self, part: GrowingPart, number: int | None) -> None:
        """Finish a part and send it to the driver; if that is impossible, keep it for the job's result.

        ``number`` is that of the driver's request (cut) that the part answers; None without a request.

        Parts of a queue must reach the driver in order: if one is kept back, so are all later ones. If the
        ranges are open (without a planned end), the driver gets a report that these queues cannot go on, so
        that the batch ends soon.
        """
        instructions = self._instructions
        finished, ends = part.finish(), frozenset(part.ends)
        is_first = not any(map(self.keeps, finished.queues))
        if is_first and instructions.hand_over(finished, ends=ends, cut=number):
            return
        if instructions.is_open:
            for queue in sorted(finished.queues):
                if not self.keeps(queue):
                    instructions.stands(queue, "its results are too large for a connection to the driver")
        elif instructions.is_cut and not self.kept_back:
            logger.warning(
                "results could not be sent to the driver while the batch runs, so they and all later results "
                "of the same queues are committed at the batch's end queues=%d",
                len(finished.queues),
            )
        self.kept_back.append(finished)
        if number is not None:
            instructions.nothing_to_cut(number)
