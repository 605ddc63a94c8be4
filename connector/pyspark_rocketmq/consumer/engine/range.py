"""A range in an engine: its messages, the reader's report on its end, and the progress of its consumption.

State machines number a range's messages from 0; all other code uses queue offsets.

The engine runs in the same process as the reader. For rows that go through Spark first, see
:mod:`~pyspark_rocketmq.consumer.engine.state`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.part import GOING_ON, QueueAck, reset_after
from pyspark_rocketmq.consume.retry_counts import (
    from_offset,
    spans_of,
    times_by_index,
)
from pyspark_rocketmq.consume.suspension import after_refusal
from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.consumer.engine.delivery_times import DeliveryTimes
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.listeners.messages import ArrivedMessages
from pyspark_rocketmq.listeners.row_buffer import Emitted, RowBuffer, SpillFile, size_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns, RowColumns
from pyspark_rocketmq.model import MessageExt, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.source.schema import NOTHING_READ, Arrival, EndReason, RangeEnd
from pyspark_rocketmq.stored_values import NO_MESSAGES, RememberedMessages, RetryCounts


class RangeRun(ABC):
    """Base of the orderly and the concurrent run: keeps rows and counts of a range, and makes its acks.

    A *run* consumes one range, which arrives as a whole or piece by piece. Any thread may add a piece by
    :meth:`extend`, even during a listener call; the run takes it in before its next delivery.

    A *cut* takes the rows and the progress since the previous cut, so that they can be committed while the
    range goes on. Any thread may cut at any time, even during a listener call. The acks of all cuts and of
    the range's end, joined, are equal to the ack of a range that was not cut.
    """

    def __init__(
        self,
        planned: QueueRange,
        messages: Sequence[MessageExt],
        output: OutputColumns,
        instructions: RangeInstructions,
        *,
        began_s: float,
        arrivals: deque[Arrival] | None,
    ) -> None:
        """Begin with ``messages``, which are the whole range if ``arrivals`` is None.

        Otherwise ``arrivals`` has further pieces, and any thread may add more to it.
        """
        self._planned = planned
        self._output = output
        self._instructions = instructions
        self._guard = threading.Lock()
        """Guards everything below; free while the listener or a broker is called."""
        self._arrivals: deque[Arrival] = deque() if arrivals is None else arrivals
        """Pieces that have arrived and that the run has not taken in."""
        self._messages = (
            messages
            if isinstance(messages, ArrivedMessages)
            else ArrivedMessages(planned.queue, [messages if isinstance(messages, list) else list(messages)])
        )
        self._reached = planned.end if arrivals is None else planned.start
        """Queue offset below which everything has arrived."""
        self._times = self._times_of(self._messages.pieces)
        self._end: RangeEnd | None = None
        """The end of a range that arrives piece by piece; None before it has arrived."""
        self._retried = planned.state.retry_spans
        self._file = SpillFile()
        self._rows = (
            _CountedRows(output.rows, self._file, instructions.rows_grew)
            if instructions.counts_rows()
            else RowBuffer(output.rows, self._file)
        )
        """Rows of the range that may reach the sink."""
        self._started_s = began_s
        self._is_over = False
        self._is_reported = False
        """Whether the run has reported since the last cut that there is something to commit."""
        self._cut_index = 0
        """Number of messages that cuts have taken."""
        self._cut_offset = planned.start
        # Since the last cut:
        self._read = len(self._messages)
        self._reading = self._reading_cut = NOTHING_READ
        """The statistics of reading what has arrived, now and as of the last cut."""
        self._failed = 0
        self._last_error = ""
        self._refused: dict[int, str] = {}
        """Why no broker has accepted messages that were sent to it (dead letters, or messages sent back), by
        queue offset. A message leaves when a broker accepts it."""
        self._sent_back = 0
        self._messages_ok = 0
        self._messages_failed = 0
        self._calls = 0
        self._calls_s = 0.0

    @property
    def queue(self) -> MessageQueue:
        """Queue of the range."""
        return self._planned.queue

    def extend(self, arrival: Arrival) -> None:
        """Add the next piece of the range; any thread may call this, it does not wait."""
        self._arrivals.append(arrival)

    def _take_in_arrivals(self, now_s: float) -> None:
        """Take in the pieces that have arrived; call between deliveries, with the run's lock held."""
        self._forget()
        while self._arrivals:
            self._take_in(self._arrivals.popleft(), now_s)

    def _take_in(self, arrival: Arrival, now_s: float) -> None:
        before = len(self._messages)
        self._add_messages(arrival)
        self._times.extend(arrival.messages)
        count = len(self._messages) - before
        self._read += count
        if arrival.end is None:
            self._reading = arrival.reading
        if arrival.end is not None:
            self._end, self._reached = arrival.end, arrival.end.planned.end
        elif arrival.reached is not None:
            self._reached = arrival.reached
        elif count:
            self._reached = self._messages.offset_at(before + count - 1) + 1
        retried = self._earlier_retries(before) if count else {}
        self._extend_machine(count, now_s, retried, is_last=arrival.is_end)
        if not count and arrival.end is None and not self._is_reported:
            # A filter may have passed over offsets.
            self._report_settled()

    def _add_messages(self, arrival: Arrival) -> None:
        self._messages.extend(arrival.messages, arrival.described_by_messages, arrival.nbytes)

    _times_of: type[DeliveryTimes] = DeliveryTimes

    @property
    @abstractmethod
    def _clocks(self) -> tuple[float, float]:
        """The monotonic and the wall clock, at this moment."""

    def _forget(self) -> None:
        """Release messages below the progress, except the last of them, which acks contain."""
        self._messages.forget(self._done - 1)

    @property
    def is_moved(self) -> bool:
        """Whether the end that was taken in forbids further deliveries: see :meth:`RangeEnd.moves`."""
        return self._end is not None and self._end.moves(self._planned)

    @property
    def passed(self) -> int:
        """Number of arrived messages below the range's progress; any thread may read this."""
        return self._done

    @property
    def freed_bytes(self) -> int:
        """Memory of messages that was released, in bytes; any thread may read this."""
        return self._messages.freed_bytes

    @abstractmethod
    def _extend_machine(self, count: int, now_s: float, retried: dict[int, int], *, is_last: bool) -> None:
        """Add messages to the run's state machine; ``is_last``: no more follow."""

    def cut(self) -> Consumed | None:
        """Take rows and progress since the last cut, to be committed now; the range goes on.

        Return None if there is nothing to commit, or after :meth:`last`, which has taken everything.
        """
        with self._guard:
            self._is_reported = False
            if self._is_over:
                return None
            ack = self._ack_so_far()
            if not ack.counts:
                return None
            self._cut_index, self._cut_offset = self._done, ack.state.next_offset
            self._read = self._failed = self._sent_back = 0
            self._messages_ok = self._messages_failed = self._calls = 0
            self._calls_s, self._last_error = 0.0, ""
            ack = replace(ack, metrics=ack.metrics.plus(self._reading.minus(self._reading_cut)))
            self._reading_cut = self._reading
            taken = Consumed(self._rows.take(), ack, self._output.rows)
            if self._file.is_used:
                self._spill_to(SpillFile())
            return taken

    def _spill_to(self, file: SpillFile) -> None:
        """Write further rows to a new file, so that a run of hours does not fill the disk.

        The old file disappears when its last row is released.
        """
        self._file = file
        self._rows.spill_to(file)

    def last(self, end: RangeEnd | None = None) -> Consumed:
        """Return everything that no cut has taken; call this once, after the last delivery of the range.

        ``end`` is needed if the range arrived as a whole. A range that arrives piece by piece may be ended
        before its end has arrived: it then ends after the last piece.
        """
        with self._guard:
            self._take_in_arrivals(self._started_s)
            end = end or self._end or self._ended_here()
            ack = acknowledged(end, self.ack())
            self._is_over = True
            # The end brings the statistics of the whole range: subtract what earlier cuts contain.
            ack = replace(ack, metrics=ack.metrics.minus(self._reading_cut))
            return Consumed(self._rows.take(), ack, self._output.rows)

    def _report_settled(self) -> None:
        """Report that there is something to commit, if there is; called with the guard held.

        Callers check ``_is_reported`` before, so that the run reports once per cut.
        """
        has_moved = self._done != self._cut_index or self._offset_at(self._done) != self._cut_offset
        if has_moved or self._failed or self._sent_back:
            self._is_reported = True
            self._instructions.settled()

    @abstractmethod
    def ack(self) -> QueueAck:
        """Return the progress since the last cut, for the end of the range."""

    @abstractmethod
    def _ack_so_far(self) -> QueueAck:
        """Return the progress since the last cut of a run that goes on."""

    @property
    @abstractmethod
    def _done(self) -> int:
        """Number of messages that the run has passed: they need no further delivery."""

    def _offset_at(self, index: int) -> int:
        """Return a message's queue offset.

        For the index after the last message, return the offset below which everything has arrived
        (``_reached``). It may be higher than the last message's offset + 1, because a filter leaves gaps.
        """
        return self._messages.offset_at(index) if index < len(self._messages) else self._reached

    def _ended_here(self) -> RangeEnd:
        planned = replace(self._planned, end=self._reached)
        return RangeEnd(
            planned=planned,
            rows=len(self._messages),
            reason=EndReason.EARLY,
            pulls=self._reading.pulls,
            pull_ms=self._reading.pull_ms,
        )

    def _earlier_retries(self, start: int = 0) -> dict[int, int]:
        """Return how often messages from index ``start`` on were given back in earlier ranges, by index."""
        if not self._retried:
            return {}
        index_from = self._messages.index_from
        return times_by_index(self._retried, lambda offset: max(start, index_from(offset)))

    def _ack_of(
        self,
        done: int,
        retry_counts: Mapping[int, int],
        *,
        finished: object | None,
        suspended_until_s: float | None,
        dead_letters: int = 0,
        sent_back: int = 0,
    ) -> QueueAck:
        """Return the ack, since the last cut, of a run that has passed the first ``done`` messages.

        ``finished`` is None if the run goes on. ``retry_counts``, by ascending index, contains how often
        messages not passed have been given back.
        """
        next_offset, times = self._offset_at(done), retry_counts.get(done, 0)
        # A range that ended early may lack messages that were given back earlier: keep their counts.
        spans = spans_of(retry_counts, self._offset_at) + from_offset(self._retried, self._reached)
        state = QueueState(
            next_offset,
            self._planned.state.epoch,
            times,
            suspended_until_s,
            RetryCounts.of(spans, next_offset, times),
            self._last_passed(done),
        )
        now_s, wall_s = self._clocks
        return QueueAck(
            queue=self._planned.queue,
            start=self._cut_offset,
            state=state,
            dead_letters=dead_letters,
            sent_back=sent_back,
            read=self._read,
            consumed=done - self._cut_index,
            failed=self._failed,
            finished=GOING_ON if finished is None else str(finished),
            last_error=self._last_error,
            refused_letter=self._refused_from(next_offset),
            metrics=ConsumeMetrics(
                self._messages_ok, self._messages_failed, self._calls, self._calls_s * 1000
            ),
            latencies=self._times.take(done, now_s=now_s, wall_s=wall_s),
        )

    def _refused_from(self, next_offset: int) -> str:
        """Return why no broker accepts a message at or after ``next_offset``; empty if no message is refused.

        If several messages are refused, this is the reason for the first one.
        """
        return min(
            ((at, why) for at, why in list(self._refused.items()) if at >= next_offset), default=(0, "")
        )[1]

    def _last_passed(self, done: int) -> RememberedMessages:
        if not done:
            return NO_MESSAGES
        return self._messages.last_message(done - 1)

    def _stands_still(self, done: int) -> bool:
        """Return whether the run has passed no offset of the range since its start, cuts included."""
        return self._offset_at(done) == self._planned.start

    def _describe(self, messages: Sequence[MessageExt]) -> str:
        return (
            f"{self._planned.queue} queueOffset={messages[0].queue_offset} messages={len(messages)} "
            f"reconsumeTimes={messages[0].reconsume_times}"
        )


class _CountedRows(RowBuffer):
    """Rows of a range in real time, whose size is reported to the task's instructions."""

    __slots__ = ("_grew",)

    def __init__(self, columns: RowColumns, file: SpillFile, grew: Callable[[int], None]) -> None:
        super().__init__(columns, file)
        self._grew = grew

    def add(self, emitted: Sequence[Emitted]) -> None:
        """Add rows, and report their size."""
        super().add(emitted)
        if emitted:
            self._grew(size_of(emitted))


class RangeCuts(NamedTuple):
    """Results that one cut has taken from all ranges of a task."""

    ended: Sequence[Consumed] = ()
    """Results of ranges that have ended; nobody else gets them."""
    going_on: Sequence[Consumed] = ()
    """Cuts of ranges that go on."""


def late_reset(last: Consumed, end: RangeEnd | None) -> Consumed | None:
    """Return a further result of a range, for a reset that arrived in ``end`` after the ``last`` result.

    Return None if ``end`` reports no reset, or ``last`` has it already. The result has no rows. The broker
    reports a reset only once, so the driver must get it although nothing more of the range is consumed.
    """
    if end is None or end.reset_to is None or last.ack.reset_to is not None:
        return None
    return last._replace(rows=[], ack=reset_after(last.ack, end.reset_to))


def acknowledged(end: RangeEnd, ack: QueueAck) -> QueueAck:
    """Return ``ack``, completed from ``end``, the report of the reader on the end of the range.

    Only the reader's report has an operator's reset, another log (of a topic that was created again, for
    example), and the statistics of reading. If the broker refused the pulls, the queue is also suspended for
    at least 3 s.
    """
    state = ack.state
    if end.reason is EndReason.REFUSED:
        until_s = after_refusal(state.suspended_until_s, time.time())
        state = state._replace(suspended_until_s=until_s)
    return replace(
        ack,
        state=state,
        reset_to=end.reset_to,
        is_another_log=end.reason is EndReason.ANOTHER_LOG,
        metrics=ack.metrics.plus(end.metrics),
    )
