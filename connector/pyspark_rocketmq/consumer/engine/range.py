"""A range as it reaches an engine: its messages, its reader's report on its end, and the state of its run.

State machines number a range's messages from 0; all other code uses queue offsets.

An engine in the reader's process gets the rows directly. Rows that have crossed Spark are checked first,
because the whole range is acknowledged: it has exactly one marker row, at its end, with the number of
messages that were read, and a range whose rows were shuffled, lost or doubled is refused before anything of
it is delivered. Spark cuts a range into batches of any size, and puts several ranges into one task if
partitions are coalesced; in both cases it keeps the rows' order.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.consume.generations import LastMessage
from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.not_now import REFUSED_PAUSE_S
from pyspark_rocketmq.consume.retry_counts import (
    from_offset,
    spans_from,
    spans_of,
    times_by_index,
    to_text,
)
from pyspark_rocketmq.consumer.engine.output import QUEUE_COLUMNS, QueueAck
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.messages import ArrivedMessages
from pyspark_rocketmq.listeners.row_buffer import RowBuffer, SpillFile
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import MessageExt, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.source.schema import EndReason, RangeEnd, ReadPiece


class RangeRun:
    """Base of both kinds of runs: keeps the rows and counts of the consumed range, and makes its ack."""

    def __init__(
        self, planned: QueueRange, messages: Sequence[MessageExt], output: OutputColumns, began_s: float
    ) -> None:
        self._planned = planned
        self._messages = messages
        self._output = output
        self._queue_offsets = (
            messages.queue_offsets
            if isinstance(messages, ArrivedMessages)
            else [message.queue_offset for message in messages]
        )
        self._retried = spans_from(planned.state)
        self._file = SpillFile()
        self._rows = RowBuffer(output.rows, self._file)
        """Rows of the range that may reach the sink."""
        self._started_s = began_s
        self._failed = 0
        self._last_error = ""
        self._refused_letter = ""
        """Why the last message that was to be given up or sent back was refused."""
        self._sent_back = 0
        self._messages_ok = 0
        self._messages_failed = 0
        self._calls = 0
        self._calls_s = 0.0

    def _offset_at(self, index: int) -> int:
        """Return a message's queue offset, or the range's end: offsets without a message are passed too."""
        return int(self._queue_offsets[index]) if index < len(self._queue_offsets) else self._planned.end

    def _earlier_retries(self) -> dict[int, int]:
        """Return how often messages were given back before this range, by index."""
        return times_by_index(self._retried, partial(bisect_left, self._queue_offsets))

    def _ack_of(
        self,
        done: int,
        retry_counts: Mapping[int, int],
        *,
        finished: object,
        suspended_until_s: float | None,
        dead_letters: int = 0,
        sent_back: int = 0,
    ) -> QueueAck:
        """Return the ack of a run that has passed the first ``done`` messages.

        ``retry_counts``, by ascending index, contains how often messages not passed have been given back.
        """
        next_offset, times = self._offset_at(done), retry_counts.get(done, 0)
        # A range that was cut short may end before messages that were given back.
        spans = spans_of(retry_counts, self._offset_at) + from_offset(self._retried, self._planned.end)
        state = QueueState(
            next_offset,
            self._planned.state.epoch,
            times,
            suspended_until_s,
            to_text(spans, next_offset, times),
            self._last_passed(done),
        )
        return QueueAck(
            queue=self._planned.queue,
            start=self._planned.start,
            state=state,
            dead_letters=dead_letters,
            sent_back=sent_back,
            read=len(self._messages),
            consumed=done,
            failed=self._failed,
            finished=str(finished),
            last_error=self._last_error,
            refused_letter=self._refused_letter,
            metrics=ConsumeMetrics(
                self._messages_ok, self._messages_failed, self._calls, self._calls_s * 1000
            ),
        )

    def _last_passed(self, done: int) -> str:
        if not done:
            return ""
        if isinstance(self._messages, ArrivedMessages):
            return self._messages.last_message(done - 1)
        message = self._messages[done - 1]
        return LastMessage(message.queue_offset, message.store_timestamp, message.commit_log_offset).to_text()

    def _stands_still(self, done: int) -> bool:
        return self._offset_at(done) == self._planned.start

    def _describe(self, messages: Sequence[MessageExt]) -> str:
        return (
            f"{self._planned.queue} queueOffset={messages[0].queue_offset} messages={len(messages)} "
            f"reconsumeTimes={messages[0].reconsume_times}"
        )


class ArrivedRange(NamedTuple):
    """One queue's range as it was read: its messages and its end."""

    end: RangeEnd
    messages: Sequence[MessageExt]
    """Its messages, in queue order."""
    nbytes: int = 0
    """Memory that its messages' columns take."""

    @property
    def planned(self) -> QueueRange:
        """The range, up to the end that was reached."""
        return self.end.planned


def acknowledged(end: RangeEnd, ack: QueueAck) -> QueueAck:
    """Return ``ack`` completed with the facts that only the reader of its range has."""
    state = ack.state
    if end.reason is EndReason.REFUSED:
        until_s = max(state.suspended_until_s or 0.0, time.time() + REFUSED_PAUSE_S)
        state = state._replace(suspended_until_s=until_s)
    return replace(
        ack,
        state=state,
        reset_to=end.reset_to,
        is_another_log=end.reason is EndReason.ANOTHER_LOG,
        metrics=ack.metrics.plus(end.metrics),
    )


def arrived_ranges(pieces: Iterable[ReadPiece]) -> Iterator[ArrivedRange]:
    """Yield the ranges that a reader in this process reads, each as soon as its end has come."""
    read: list[pa.RecordBatch] = []
    for piece in pieces:
        if not isinstance(piece, RangeEnd):
            read.append(piece)
            continue
        offsets = [np.zeros(0, np.int64), *(rows.column("queueOffset").to_numpy() for rows in read)]
        messages = ArrivedMessages(
            read, piece.planned.queue, np.concatenate(offsets), piece.told_with_messages
        )
        yield ArrivedRange(piece, messages, sum(each.nbytes for each in read))
        read = []


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut ``batch`` after each marker row, so that only the last row of a piece can be one."""
    marked = np.flatnonzero(batch.column("kind").is_valid().to_numpy(zero_copy_only=False))
    for start, stop in pairwise((0, *(marked + 1).tolist(), batch.num_rows)):
        if start < stop:
            yield batch.slice(start, stop - start)


def check_crossed(end: RangeEnd, offsets: npt.NDArray[np.int64]) -> None:
    """Check that a range whose rows have crossed Spark is complete.

    Args:
        end: Content of its marker row.
        offsets: Its messages' queue offsets in the order in which they are to be delivered, and after them
            the marker row's.

    Raises:
        RocketMQError: If messages were lost, doubled or changed places.
    """
    planned, count = end.planned, len(offsets) - 1
    whole = f"the range {planned.start} to {planned.end}"
    late = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if count == end.rows and not len(late):
        return
    if count != end.rows:
        problem = (
            f"{end.rows} messages were read of {whole}, but {count} rows arrived, and the whole range is "
            "acknowledged"
        )
    else:
        before, after = offsets[late[0] : late[0] + 2].tolist()
        problem = f"offset {after} arrived behind offset {before} in {whole}"
        if before == after:
            problem = f"offset {after} arrived twice, so another row of {whole} is missing"
    raise RocketMQError(
        f"{planned.queue}: {problem}. Do not filter, copy, sample or shuffle the rows of format('rocketmq') "
        "before consume_orderly()."
    )


def wrong_markers(queue: MessageQueue, problem: str) -> RocketMQError:
    """Return the error for a range that did not arrive with exactly one marker row, at its end."""
    return RocketMQError(
        f"{queue}: a planned range must arrive with exactly one marker row, at its end, but {problem}. Read "
        "with format('rocketmq') and option 'consumerGroup', and do not filter, copy or shuffle its rows "
        "before consume_orderly()."
    )


def crossed_ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[ReadPiece]:
    """Yield the ranges in rows that have crossed Spark, each as soon as its marker row has come.

    Raises:
        RocketMQError: If rows of a range were lost, doubled, moved, or mixed with another queue's.
    """
    gathering: _Gathering | None = None
    for batch in batches:
        for rows in _cut(batch):
            gathering = gathering or _Gathering(_queue_of(rows))
            end = gathering.add(rows)
            if end is not None:
                yield from gathering.rows
                yield end
                gathering = None
    if gathering is not None:
        raise wrong_markers(gathering.queue, "a task's rows ended without one")


class _Gathering:
    """One range whose rows are still arriving."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.rows: list[pa.RecordBatch] = []
        self._offsets: list[npt.NDArray[np.int64]] = []

    def add(self, rows: pa.RecordBatch) -> RangeEnd | None:
        """Add rows, of which only the last may be a marker; return the range's end if it is one."""
        for name, value in zip(QUEUE_COLUMNS, self.queue, strict=True):
            if not pc.all(pc.equal(rows.column(name), value)).as_py():
                other = _queue_of(rows.filter(pc.not_equal(rows.column(name), value)))
                raise wrong_markers(self.queue, f"rows of {other} came before it")
        self._offsets.append(rows.column("queueOffset").to_numpy())
        is_whole = rows.column("kind")[-1].is_valid
        if rows.num_rows > is_whole:
            self.rows.append(rows.slice(0, rows.num_rows - is_whole))
        if not is_whole:
            return None
        end = RangeEnd.from_json(self.queue, rows.column("plannedRange")[-1].as_py())
        check_crossed(end, np.concatenate(self._offsets))
        return end


def _queue_of(rows: pa.RecordBatch) -> MessageQueue:
    return MessageQueue(*(rows.column(name)[0].as_py() for name in QUEUE_COLUMNS))
