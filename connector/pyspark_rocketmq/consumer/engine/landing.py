"""The landing engine: a task's messages become rows as they arrive, without a listener (row K7).

No message can fail, so a message is consumed when it has arrived. Pieces of a range (its next messages) go to
the sink's writer with an ack, and do not wait for the range's end; rows with such an ack are a *cut* of the
range. While the task's own thread writes some pieces, another thread reads and decodes the next ones.

The memory of a task is bounded: the reading thread waits while 8 MiB of messages wait for the writer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.latencies import NO_LATENCIES, StoreLatencies
from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.orderly import OrderlyFinish
from pyspark_rocketmq.consume.part import GOING_ON, QueueAck
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine.arrivals import (
    Arrivals,
    Source,
    end_did_not_come,
    report_stand,
    two_ranges,
)
from pyspark_rocketmq.consumer.engine.delivery_times import histogram_of, stored_ms
from pyspark_rocketmq.consumer.engine.output import Consumed, CutTogether
from pyspark_rocketmq.consumer.engine.range import RangeCuts, acknowledged, late_reset
from pyspark_rocketmq.consumer.message_columns import MessageColumns
from pyspark_rocketmq.listeners.messages import last_message
from pyspark_rocketmq.model import QUEUE_OFFSET, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.source.schema import NOTHING_READ, Arrival, RangeEnd
from pyspark_rocketmq.stored_values import NO_MESSAGES

_WAITING_BYTES: Final = 8 << 20
"""Memory of messages that wait for the writer, in bytes, at which no more are read."""
_TAKEN_BYTES: Final = 4 << 20
"""Memory of waiting messages of closed ranges, in bytes, at which they are written; fewer wait for more."""
_COUNTED_BYTES: Final = 512 << 10
"""Memory of messages, in bytes, of which rows are made together if the size of a part's rows is limited. So a
part exceeds the limit only a little."""
_LOOK_EVERY_S: Final = 0.5
"""How often a task that waits checks whether a queue is given up, and longest time for which messages of
closed ranges wait for more."""


class LandedRange:
    """The progress of one range. Every message counts as consumed when it has arrived."""

    def __init__(self, planned: QueueRange, columns: MessageColumns) -> None:
        self.planned = planned
        self.is_over = False
        self._columns = columns
        self._at = planned.start
        """Offset that the acks so far have reached."""
        self._reading = NOTHING_READ
        """The statistics of reading that the acks so far contain."""
        self._last: Consumed | None = None
        """The last result of a range that was given up."""

    def take(self, arrivals: Sequence[Arrival], now_s: float) -> tuple[Consumed | None, Consumed | None]:
        """Consume the next pieces; return their rows with an ack (a cut), and the range's last ack.

        The cut is None if the pieces bring neither rows nor progress. The last ack is None unless the pieces
        have the range's end. ``now_s`` is the time by the wall clock.
        """
        messages = [batch for each in arrivals for batch in _batches_of(each)]
        newest = arrivals[-1]
        cut = self._cut(messages, newest, now_s)
        if newest.end is None:
            return cut, None
        self.is_over = True
        ack = acknowledged(newest.end, self._ack([], self._reached(newest, []), now_s))
        # The end brings the statistics of the whole range: subtract what earlier acks contain.
        ack = replace(ack, metrics=ack.metrics.minus(self._reading), finished=str(OrderlyFinish.EXHAUSTED))
        return cut, Consumed([], ack, self._columns.row_columns)

    def give_up(self, end: RangeEnd | None = None) -> Consumed:
        """End the range where it is; return its last ack, without rows.

        ``end`` is the end of the range, if it has arrived.
        """
        self.is_over = True
        state = self.planned.state if self._at == self.planned.start else self._state_at(self._at)
        ack = QueueAck(
            queue=self.planned.queue,
            start=self._at,
            state=state,
            consumed=0,
            failed=0,
            finished=str(OrderlyFinish.GIVEN_UP),
            reset_to=None if end is None else end.reset_to,
        )
        self._last = Consumed([], ack, self._columns.row_columns)
        return self._last

    def late_reset(self, end: RangeEnd | None) -> Consumed | None:
        """Return a further result with the reset that ``end`` reports, after the range was given up.

        None if it reports no reset.
        """
        return None if self._last is None else late_reset(self._last, end)

    def _cut(self, messages: Sequence[pa.RecordBatch], newest: Arrival, now_s: float) -> Consumed | None:
        is_end = newest.end is not None
        if is_end and not messages:
            return None
        ack = self._ack(messages, _after(messages) if is_end else self._reached(newest, messages), now_s)
        if not ack.counts:
            return None
        if not is_end:
            read, self._reading = newest.reading.minus(self._reading), newest.reading
            ack = replace(ack, metrics=ack.metrics.plus(read))
        self._at = ack.state.next_offset
        return Consumed(list(map(self._columns.rows, messages)), ack, self._columns.row_columns)

    def _ack(self, messages: Sequence[pa.RecordBatch], reached: int, now_s: float) -> QueueAck:
        """Return the ack of a cut with these ``messages``, after which the range has reached ``reached``."""
        count = sum(batch.num_rows for batch in messages)
        return QueueAck(
            queue=self.planned.queue,
            start=self._at,
            state=self._state(reached, messages, now_s),
            read=count,
            consumed=count,
            failed=0,
            finished=GOING_ON,
            metrics=ConsumeMetrics(ok=count),
            latencies=latencies_of(messages, now_s),
        )

    def _reached(self, newest: Arrival, messages: Sequence[pa.RecordBatch]) -> int:
        if newest.end is not None:
            # Earlier pieces may have reached a higher offset than the end of a range that ends early: pieces
            # count offsets without a matching message, and such an end does not.
            return max(self._at, newest.end.planned.end)
        if newest.reached is not None:
            return newest.reached
        return _after(messages) if messages else self._at

    def _state(self, reached: int, messages: Sequence[pa.RecordBatch], now_s: float) -> QueueState:
        if reached == self.planned.start:
            # The broker may not have answered. The queue may continue immediately, as in the other engines.
            return self.planned.state._replace(suspended_until_s=now_s)
        newest = last_message(messages[-1], messages[-1].num_rows - 1) if messages else NO_MESSAGES
        return self._state_at(reached)._replace(last_message=newest)

    def _state_at(self, offset: int) -> QueueState:
        return QueueState(offset, self.planned.state.epoch)


def _after(messages: Sequence[pa.RecordBatch]) -> int:
    """Return the offset after that of the last message."""
    return int(messages[-1].column(QUEUE_OFFSET)[-1].as_py()) + 1


def _batches_of(arrival: Arrival) -> Iterator[pa.RecordBatch]:
    for batch in arrival.messages:
        assert isinstance(batch, pa.RecordBatch), "ranges of this engine are read in columns"
        if batch.num_rows:
            yield batch


def latencies_of(messages: Sequence[pa.RecordBatch], now_s: float) -> StoreLatencies:
    """Return how long ago messages were stored; each counts as delivered now, when its row is made."""
    now_ms = int(now_s * 1000)
    counted = NO_LATENCIES
    for batch in messages:
        stored = stored_ms(batch)
        known = stored[stored > 0]
        if len(known):
            ages = histogram_of(now_ms - known)
            counted = counted.plus(StoreLatencies(ages, ages, now_ms))
    return counted


def divided(arrival: Arrival, most_bytes: int) -> list[Arrival]:
    """Divide a piece of a range into smaller ones, each of about ``most_bytes`` or of one message."""
    if arrival.nbytes <= most_bytes:
        return [arrival]
    slices: list[pa.RecordBatch] = []
    for batch in _batches_of(arrival):
        step = max(1, batch.num_rows * most_bytes // max(1, batch.nbytes))
        slices += [batch.slice(start, step) for start in range(0, batch.num_rows, step)]
    if len(slices) < 2:
        return [arrival]
    *earlier, last = [arrival._replace(messages=[each], nbytes=each.nbytes) for each in slices]
    reading = arrival.reading if arrival.end is None else arrival.end.metrics
    return [*(each._replace(end=None, reached=None, reading=reading) for each in earlier), last]


class _Turn(NamedTuple):
    """Results that the task's own thread passes on together."""

    cuts: tuple[Consumed, ...]
    ended: tuple[Consumed, ...]

    @property
    def nbytes(self) -> int:
        """Memory of the rows, in bytes."""
        return sum(
            rows.nbytes for each in self.cuts for rows in each.rows if isinstance(rows, pa.RecordBatch)
        )


class LandingTask:
    """Makes rows of the messages of one task's ranges, as they arrive; no listener is called."""

    def __init__(
        self, source: Source, columns: MessageColumns, instructions: RangeInstructions, clock: Clock
    ) -> None:
        self._arrivals = Arrivals(source)
        self._is_open = source.is_open
        self._columns = columns
        self._instructions = instructions
        self._counts_rows = instructions.counts_rows()
        self._clock = clock
        self._ranges: dict[MessageQueue, LandedRange] = {}
        """Ranges that have begun; only the task's own thread uses it."""
        self._whole: set[MessageQueue] = set()
        """Queues of which the end of the range has arrived."""
        self._changed = threading.Condition()
        """Guards the attributes below."""
        self._waiting: list[Arrival] = []
        self._waiting_bytes = 0
        self._since_s = 0.0
        """Monotonic time since when messages wait, if any do."""
        self._is_read = False
        """Whether nothing more arrives."""
        self._failure: BaseException | None = None
        self._is_closed = False

    def consumed(self) -> Iterator[Consumed | CutTogether]:
        """Yield cuts, which have rows and the acks of their messages, and the end of each range.

        Raises:
            RocketMQError: If a range cannot be read, or its queue had another range in this task.
        """
        instructions = self._instructions
        # A cut of this engine takes nothing: the growing part has the consumed messages already.
        instructions.cut_with(RangeCuts)
        instructions.notifies(self._look)
        self._arrivals.begin(self._arrived, self._reading_is_over)
        try:
            while (turn := self._next()) is not None:
                if turn.cuts:
                    yield CutTogether(turn.cuts)
                if self._counts_rows and turn.nbytes:
                    instructions.rows_grew(turn.nbytes)
                yield from turn.ended
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._arrivals.end()

    # --- the reading thread ---------------------------------------------------------------------------------

    def _arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Take pieces of ranges; return when less than 8 MiB of messages wait."""
        if self._counts_rows:
            arrivals = [each for arrival in arrivals for each in divided(arrival, _COUNTED_BYTES)]
        with self._changed:
            if not self._waiting:
                self._since_s = self._clock.monotonic_s()
            self._waiting += arrivals
            self._waiting_bytes += sum(each.nbytes for each in arrivals)
            self._changed.notify_all()
            while self._waiting_bytes >= _WAITING_BYTES and not self._is_closed:
                self._changed.wait()

    def _reading_is_over(self, error: BaseException | None) -> None:
        with self._changed:
            self._is_read, self._failure = True, error
            self._changed.notify_all()

    def _look(self) -> None:
        """Look at the instructions again; called by any thread."""
        with self._changed:
            self._changed.notify_all()

    # --- the task's own thread ------------------------------------------------------------------------------

    def _next(self) -> _Turn | None:
        """Wait for something to consume or to give up; return the results, or None when nothing is left.

        Raises:
            RocketMQError: If reading has failed, or has ended without the end of a range.
        """
        while True:
            with self._changed:
                given_up = self._given_up()
                if not given_up and self._failure is not None:
                    raise self._failure
                if not given_up and self._is_read and not self._waiting:
                    break
                if not given_up and self._must_wait():
                    self._changed.wait(_LOOK_EVERY_S)
                    continue
                arrived = [] if given_up else self._take_waiting()
            turn = _Turn((), tuple(one.give_up() for one in given_up)) if given_up else self._taken(arrived)
            if turn.cuts or turn.ended:
                return turn
        unfinished = [queue for queue, one in self._ranges.items() if not one.is_over]
        if unfinished:
            raise end_did_not_come(unfinished[0])
        return None

    def _given_up(self) -> list[LandedRange]:
        """Return the ranges whose queues are given up, and stop reading them."""
        is_given_up = self._instructions.is_given_up
        found = [one for queue, one in self._ranges.items() if not one.is_over and is_given_up(queue)]
        for one in found:
            self._arrivals.leave(one.planned.queue)
        return found

    def _must_wait(self) -> bool:
        if not self._waiting:
            self._instructions.rests()
            return True
        if not self._is_open:
            # Wait a little for more messages: many rows together cost the writer less.
            is_enough = self._is_read or self._waiting_bytes >= _TAKEN_BYTES
            return not is_enough and self._clock.monotonic_s() - self._since_s < _LOOK_EVERY_S
        # If all ranges are over, the waiting messages are only dropped, so do not wait for the pause's end.
        is_any_left = not self._ranges or any(not one.is_over for one in self._ranges.values())
        return is_any_left and self._instructions.is_paused()

    def _take_waiting(self) -> list[Arrival]:
        count = len(self._waiting)
        if self._counts_rows:
            sizes = accumulate(each.nbytes for each in self._waiting)
            count = max(1, sum(size <= _COUNTED_BYTES for size in sizes))
        arrived, self._waiting = self._waiting[:count], self._waiting[count:]
        self._waiting_bytes -= sum(each.nbytes for each in arrived)
        self._changed.notify_all()
        return arrived

    def _taken(self, arrived: Sequence[Arrival]) -> _Turn:
        by_queue: dict[MessageQueue, list[Arrival]] = {}
        for arrival in arrived:
            before = by_queue.setdefault(arrival.queue, [])
            if arrival.queue in self._whole or (before and before[-1].is_end):
                raise two_ranges(arrival.queue)
            before.append(arrival)
        self._whole |= {queue for queue, arrivals in by_queue.items() if arrivals[-1].is_end}
        taken = [self._taken_of(queue, arrivals) for queue, arrivals in by_queue.items()]
        return _Turn(
            tuple(cut for cut, _ in taken if cut is not None),
            tuple(end for _, end in taken if end is not None),
        )

    def _taken_of(
        self, queue: MessageQueue, arrivals: Sequence[Arrival]
    ) -> tuple[Consumed | None, Consumed | None]:
        one = self._ranges.get(queue)
        if one is None:
            one = self._ranges[queue] = LandedRange(arrivals[0].planned, self._columns)
            if self._instructions.is_given_up(queue):
                self._arrivals.leave(queue)
                return None, one.give_up(arrivals[-1].end)
        if one.is_over:
            # The range was given up, so drop what arrives late, except a reset.
            return None, one.late_reset(arrivals[-1].end)
        cut, end = one.take(arrivals, self._clock.now_s())
        if end is not None and self._is_open:
            report_stand(self._instructions, end.ack, arrivals[-1].end)
        return cut, end


class LandingEngine:
    """Makes rows of the messages of a task's ranges, without a listener; pickled to the executors."""

    def __init__(self, columns: MessageColumns) -> None:
        self._columns = columns

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """Columns of the source to read, always including those that show how far a range has been read."""
        return self._columns.needed

    def __call__(
        self, source: Source, instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> Iterator[Consumed | CutTogether]:
        """Make rows of the ranges of ``source`` as they arrive.

        Yield cuts, which have rows and acks of ranges that go on, and the end of each range. ``instructions``
        may end a range early.
        """
        yield from LandingTask(source, self._columns, instructions, SystemClock()).consumed()
