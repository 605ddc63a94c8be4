"""Decides which pulls to send next for several queue ranges, and what each answer means. No I/O.

A range is cut into *segments*, each with at most one pull in flight
(:mod:`~pyspark_rocketmq.consume.segments`). A *chunk* has the messages of one answer, not decoded yet. The
facts and rules behind this:

1. An answer may hold fewer messages than asked for (64 asked, 32 or 8 given) or none (a filter). Only
   ``nextBeginOffset`` shows how far the broker got; a short answer never means the end of the queue.
2. A filtered pull may scan far beyond the segment, and an inner batch may begin before the requested offset.
   Hence every chunk has a start and a limit: messages outside these offsets belong to a neighbouring chunk.
3. Answers arrive in any order; chunks leave in queue order.

All ranges share one connection and one worker's memory:

4. Fair: no range has more than its share of the pulls in flight. So a range that gets no answers does not
   hold up the others.
5. Bounded: each answer is expected to be as large as the largest one so far. No pull is sent whose answer
   would then exceed the bytes allowed for all ranges together. One pull is always allowed, so that reading
   goes on.
6. A failure ends only its own range. After an error that may pass, the pull is sent again for
   ``retry_timeout_s``, with growing pauses. A queue may end within the range because its broker is
   recovering. If the queue still does when that time is over, its log has lost its tail.

7. In a batch read, a range has a record of the message that was the queue's last one at the time of planning.
   When all other pulls of the range are answered, one more pull asks for this message. Its answer shows
   whether the queue still has the log that was planned. The last chunks are handed out meanwhile. If this
   pull fails, the range is over nevertheless, and the reader asks again.

In real time a range has an open end: it goes on while its queue grows. Every answer shows where the queue
ends:

8. At the queue's end one pull is sent that the broker holds until there are messages (long polling). This
   pull does not count as one of the pulls in flight. If it comes back without messages, it is sent again, and
   that counts as no error.
9. Messages that arrive at the queue's end are handed out immediately. While a range is behind, its messages
   are gathered as in any other range, to be decoded fast.
10. Retryable errors do not end such a range, however long they last; the task's other ranges go on meanwhile.
    If the connection to the master has broken, the range ends at the master's next answer: the broker may
    have lost the end of its log, and store other messages at offsets that were read. The tasks of the next
    plan pull the last consumed message again, and so notice if the log is another one.

:mod:`~pyspark_rocketmq.consume.slave_reads` decides which broker of a name is asked. Times are seconds of one
monotonic clock, passed in. Not thread-safe, except ``RangeWindow.stop``.

Source: ``PullMessageProcessor``, ``PullRequestHoldService``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from logging import INFO, WARNING
from typing import ClassVar, Final, NamedTuple

from pyspark_rocketmq.consume.not_now import is_pulled_again
from pyspark_rocketmq.consume.read_range import ReadRange
from pyspark_rocketmq.consume.segments import PullChunk, Segments
from pyspark_rocketmq.consume.slave_reads import MASTER_ID, ReplicaSelector
from pyspark_rocketmq.errors import (
    BrokerError,
    DataLoss,
    LogTailLost,
    MessagesExpired,
    OffsetError,
    QueueRemoved,
    RocketMQError,
    SystemBusy,
    TopicDeleted,
    TransportError,
)
from pyspark_rocketmq.model import PulledBody
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.requests.pull import PullResult, PullStatus
from pyspark_rocketmq.wire.requests.responses import lacks_queue

_BATCH_BYTES: Final = 4 << 20
"""Number of stored bytes, of all ranges together, at which they are handed out: enough to decode fast, and
small beside a worker's memory."""
_USUAL_ANSWER_BYTES: Final = 256 << 10
"""``maxTransferBytesOnMessageInMemory``: the expected size of an answer until a larger one has arrived."""
_AHEAD_BYTES: Final = 16 << 20
_FILTERED_SEGMENT: Final = 800
"""Minimum number of offsets per segment under a filter: a broker scans at least as many in one pull."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_FLOW_CONTROL_PAUSE_S: Final = 0.02
"""Pause after flow control, since a quota refills soon
(``DefaultMQPushConsumerImpl.PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL``)."""
_LEAST_HELD_S: Final = 0.5
"""Shortest time for which a broker holds a pull that brings nothing, in seconds.

A server that answers sooner does not hold pulls, so pauses between pulls to it grow. A broker with
``longPollingEnable=false`` holds a pull for 1 s (``shortPollingTimeMills``).
"""
_NO_SEGMENT: Final = -1
"""Segment id of a pull that belongs to no segment."""
_BEHIND: Final = 256
"""A range that lacks more offsets than this up to its queue's end counts as behind."""
_LOGGED_AGAIN_S: Final = 60.0
"""Pause between two log lines about errors that go on although ``retry_timeout_s`` is over, in seconds."""
_LONGEST_PATIENCE_OF_A_GROUP_S: Final = 10.0
"""Maximum time for which a group's task tries a pull again: a micro-batch ends with its slowest range, so a
broker in trouble delays the queues of other brokers."""


class TailLost(OffsetError):
    """The broker's queue ends before the range does. The next plan asks for the queue's bounds again."""


class QueueReset(OffsetError):
    """An operator has moved the group to ``target`` in this queue; the broker reports it once."""

    def __init__(self, text: str, target: int) -> None:
        super().__init__(text, target)
        self.target = target

    def __str__(self) -> str:
        return str(self.args[0])


class OffsetNotThere(SystemBusy):
    """A broker does not return the message at an offset; advice against overload would not help."""

    advice: ClassVar[str] = ""


class PullTask(NamedTuple):
    """One pull to send now; report it once, with ``answered`` or ``lost``."""

    range_index: int
    segment_id: int
    queue_offset: int
    max_msg_nums: int
    broker_id: int
    """Id of the range's master, or of one of its replicas."""
    sent_at_s: float
    is_held: bool = False
    """Whether the broker is to hold the pull (long polling), and to answer when there are messages."""
    is_log_check: bool = False
    """Whether the pull asks for the message that was the last one when the read was planned (rule 7)."""


def reset_in(of: ReadRange, task: PullTask, outcome: PullResult | RocketMQError) -> int | None:
    """Return the offset to which an operator has reset the group, if the answer to a pull reports a reset.

    Return None if it reports none. ``of`` is the range of the pull. A slave has no resets, and a reader
    without a group follows none.
    """
    is_to_master = task.broker_id == MASTER_ID and not of.is_slave
    if not (isinstance(outcome, PullResult) and is_to_master and of.settings.is_group_read):
        return None
    return outcome.reset_from(task.queue_offset)


class FetchedChunks(NamedTuple):
    """The next chunks of one range; a chunk is one answer's messages, not decoded yet."""

    range_index: int
    """Index of the range among those that are read."""
    chunks: list[PullChunk]
    """Chunks in queue order; may be empty at the end of the range, or if a filter has left no messages."""
    is_last: bool
    """Whether the range is over: read to its end, stopped, or failed."""
    failure: RocketMQError | None
    """Error that ends the range, after all chunks before it in queue order; None if the range has not failed.
    """
    reached: int
    """Offset below which all messages are handed out; it grows even while a filter leaves no messages."""


class RangeWindow:
    """The pulls of one range: at most ``depth`` in flight, answers handed out in queue order.

    Guarantee: ``take()`` returns each message of the range that the broker returned, ascending and once, if
    each chunk is cut to its ``[start, limit)``.
    """

    def __init__(
        self,
        index: int,
        of: ReadRange,
        *,
        segment: int,
        depth: int,
        max_ahead_bytes: int = _AHEAD_BYTES,
        log: Callable[..., object],
    ) -> None:
        """Prepare to pull; ``tasks()`` returns the first pulls.

        A *segment* is a piece of the range with at most one pull in flight.

        Args:
            index: Index of the range among those that are read.
            of: The range; it is over immediately if its end is not past ``pulled_from``. Only a consumer
                group has ranges with an open end.
            segment: Offsets per segment, at least 1.
            depth: Maximum number of pulls in flight, at least 1.
            max_ahead_bytes: While this many bytes wait for ``take()``, only the first segment that is not
                complete is pulled. It must go on, because its messages leave first. Answers already in flight
                still add to the bytes.
            log: Called as ``Logger.log``, with events that an operator should see.
        """
        self.failure: RocketMQError | None = None
        """Why the range cannot be read to its end; None while it can."""
        self._has_open_end = of.planned.has_open_end
        self.segments = Segments(
            of.pulled_from,
            # Where the queue ends is known from the first answer.
            of.planned.start if self._has_open_end else of.planned.end,
            segment,
            has_open_end=self._has_open_end,
        )
        self.has_held_pull = False
        """Whether a pull is under way that the broker may hold."""
        self.is_on_hold = False
        """Whether to send no pull for now, because too many of the queue's messages wait for the listener."""
        self.skipped = range(0)
        """Offsets passed over, and logged, because the broker no longer has them; may be empty."""
        self.bounds: tuple[int, int] | None = None
        """The queue's smallest offset and its end, from the newest answer; None before the first one."""
        self.answers = 0
        """Number of pulls that brought messages."""
        self.answered_after_s = 0.0
        """Seconds from request to answer, summed over the pulls that brought messages."""
        self.newest_answer: PullResult | None = None
        """The answer to the pull of ``ReadRange.newest`` (rule 7); None before it, or if the pull failed."""
        self.index = index
        self._of = of
        self._must_check_log = of.newest is not None
        """Whether the pull of ``ReadRange.newest`` is still to be sent, or in flight."""
        self.is_checking_log = False
        """Whether the pull of ``ReadRange.newest`` is in flight."""
        self._settings, self._log = of.settings, log
        self._depth, self._max_ahead_bytes = depth, max_ahead_bytes
        self.is_stopped = False
        """Whether :meth:`stop` was called."""
        self._replica = ReplicaSelector(
            of.replicas,
            prefers_replica=of.settings.prefers_replica,
            replaces_master=of.settings.replaces_master,
        )
        self._troubles: list[RocketMQError] = []
        """Errors since the last ``settle``."""
        self._gives_up_at_s: float | None = None
        """When the range fails if errors go on; None if no pull has failed since the last success."""
        self._loss_at: int | None = None
        """The lowest offset that an answer has shown to be lost, since the last success there."""
        self._is_quiet_until_s = 0.0
        """Time until which an error is not logged if errors go on although ``retry_timeout_s`` is over."""
        self._handed_out = of.pulled_from
        """Offset below which all messages had been handed out at the last ``take()``."""
        self._pause_s = _FIRST_PAUSE_S
        self._resumes_at_s = 0.0
        self._has_met_reset = False
        """Whether the broker has reported a reset since the last success."""
        self._relies_on_master = of.looked_up is not None
        """Whether only the master has shown messages that were read or consumed; its replicas may lack them.

        This is so if an answer of the master, with or without messages, has brought the range forward. It is
        also so if the consumed message was looked up at the master, and no pull of the range shows it.
        """
        self._has_met_master = False
        """Whether the master has answered a pull."""
        self._broke: TransportError | None = None
        """Error with which the connection to the master broke after an answer to an open range (rule 10)."""

    @property
    def broker_id(self) -> int:
        """Id of the broker that the next pulls go to."""
        return self._replica.broker_id

    @property
    def replica_id(self) -> int | None:
        """Id of the replica that has sent messages last; None if all messages are the master's."""
        return self._replica.served_by

    @property
    def is_over(self) -> bool:
        """Whether no more pulls will be made."""
        is_read = self.segments.is_complete and not self._must_check_log
        return is_read or self.is_stopped or self.failure is not None

    @property
    def in_flight(self) -> int:
        """Number of the range's pulls in flight."""
        return self.segments.in_flight + self.is_checking_log

    def may_ask(self, now_s: float) -> bool:
        """Return whether pulls may be sent now."""
        return now_s >= self._resumes_at_s and not self.is_on_hold and not self.is_over

    @property
    def is_at_end(self) -> bool:
        """Whether the range has an open end and lacks at most 256 offsets up to the queue's end."""
        return self._has_open_end and self.segments.end - self.segments.reached <= _BEHIND

    @property
    def has_news(self) -> bool:
        """Whether ``take()`` would return chunks, or an open range has passed offsets without messages."""
        segments = self.segments
        return segments.takeable_bytes > 0 or (self._has_open_end and segments.reached > self._handed_out)

    def pause_left_s(self, now_s: float) -> float:
        """Return the seconds to wait before the next pull; 0 if the range does not pause.

        Return 0 also while the range is on hold (``is_on_hold``): no time ends that.
        """
        return 0.0 if self.is_on_hold else max(0.0, self._resumes_at_s - now_s)

    def stop(self) -> None:
        """Stop pulling; callable from any thread."""
        self.is_stopped = True

    # --- asking ---------------------------------------------------------------------------------------------

    def tasks(self, at_most: int, now_s: float, *, may_run_ahead: bool = True) -> list[PullTask]:
        """Return the pulls to send now, ascending by offset.

        A segment gets no further pull before the result of its last pull is reported. There are at most
        ``at_most`` pulls, and at most ``depth`` of the range in flight. If ``may_run_ahead`` is false, or too
        many bytes wait for ``take``, only the first incomplete segment is pulled.
        """
        segments, broker_id, at_once = self.segments, self.broker_id, self._settings.pull_batch_size
        if segments.is_complete:
            return self._log_check(now_s)
        has_room = may_run_ahead and segments.buffered_bytes < self._max_ahead_bytes
        return [
            PullTask(self.index, segment_id, start, min(end - start, at_once), broker_id, now_s)
            for segment_id, start, end in segments.pulls(at_most, most_open=self._depth, has_room=has_room)
        ]

    def _log_check(self, now_s: float) -> list[PullTask]:
        """Return the pull of ``ReadRange.newest`` (rule 7).

        The list is empty if the pull is in flight or not needed.
        """
        newest = self._of.newest
        if newest is None or not self._must_check_log or self.is_checking_log:
            return []
        self.is_checking_log = True
        # Only the master's log is the planned one.
        place = newest.queue_offset, 1, MASTER_ID
        return [PullTask(self.index, _NO_SEGMENT, *place, now_s, is_log_check=True)]

    def held_task(self, now_s: float) -> PullTask | None:
        """Return the pull that the broker is to hold until there are messages (long polling).

        Return None if the range has a planned end, has not reached its queue's end, or has a pull in flight.
        """
        pull = self.segments.pull_at_end()
        if pull is None:
            return None
        self.has_held_pull = True
        segment_id, start, end = pull
        count = min(end - start, self._settings.pull_batch_size)
        return PullTask(self.index, segment_id, start, count, self.broker_id, now_s, is_held=True)

    # --- judging answers ------------------------------------------------------------------------------------

    def answered(self, task: PullTask, outcome: PullResult | RocketMQError, now_s: float) -> None:
        """Apply the broker's answer to a pull, or the error in its place.

        Raises:
            ValueError: If the pull was reported already.
        """
        self.has_held_pull = False
        if isinstance(outcome, RocketMQError):
            self._refuse(task, outcome, now_s)
        elif self._is_to_be_compared(task, outcome):
            self.segments.lost(task.segment_id)
            self.failure = self._broke
        elif self._ends_before(task, outcome):
            available = f"{outcome.min_offset} (inclusive) to {outcome.max_offset} (exclusive)"
            self.lost(task, self._tail_lost(available), now_s)
        else:
            self._has_met_master |= self._is_to_master(task)
            self._judge(task, outcome, now_s)

    def _is_to_be_compared(self, task: PullTask, outcome: PullResult) -> bool:
        # A reset, which a broker reports only once, and a log that ends earlier are acted on as usual.
        is_first = self._broke is not None and self._is_to_master(task)
        return is_first and outcome.status is not PullStatus.OFFSET_ILLEGAL

    def _judge(self, task: PullTask, outcome: PullResult, now_s: float) -> None:
        asked = task.queue_offset
        if self._has_open_end and self._meets_end(task, outcome):
            self._wait_on(task, outcome, now_s)
        elif outcome.next_begin_offset > asked and (
            outcome.status is PullStatus.FOUND or self._passes_over(task, outcome)
        ):
            self._go_on(task, outcome, now_s)
        elif asked < self._of.planned.start and outcome.reset_from(asked) is None:
            # This pull asked for the message before the range. Pulls of the range show whether any is lost.
            # If they bring messages, the reader looks up the one before the range.
            self._advance(task, self._of.planned.start, b"")
        elif task.broker_id != MASTER_ID:
            self.lost(task, None, now_s)
        elif self._of.is_slave:
            self.lost(task, self._not_at_slave(asked, outcome), now_s)
        elif self._is_lost(asked, outcome, now_s):
            self._meet_gap(task, outcome, now_s)
        elif outcome.status is not PullStatus.OFFSET_ILLEGAL:
            self._note_loss(asked, outcome)
            self.lost(task, self._nothing_there(asked, outcome), now_s)
        else:
            self._offset_moved(task, outcome, now_s)

    def _ends_before(self, task: PullTask, outcome: PullResult) -> bool:
        """Return whether a group's queue ends before the offset that was pulled, at the planned master.

        A master that has become a slave answers so, and cuts the end of its log. By the time of another try,
        other messages may have the offsets of those that were read. The range ends, and the planner judges
        whether any is lost. OFFSET_ILLEGAL, the answer of a master, is acted on as usual, and so is an answer
        to the pull of the message before the range.
        """
        asked = task.queue_offset
        is_nothing = outcome.status in {PullStatus.NO_NEW_MSG, PullStatus.NO_MATCHED_MSG}
        is_shorter = outcome.max_offset < asked >= max(self._of.planned.start, outcome.next_begin_offset)
        return self._settings.is_group_read and is_nothing and is_shorter and self._is_to_master(task)

    def _is_lost(self, asked: int, outcome: PullResult, now_s: float) -> bool:
        """Return whether the message at ``asked`` is lost for good.

        It is if an earlier answer showed a loss, the time for repeated pulls is over (``settle``), and the
        present answer shows it again. One such answer is not enough: the time may have passed with other
        errors. One answer is enough if a file of the commit log is gone, which does not pass, or without any
        time for repeated pulls.
        """
        if outcome.reports_hole(asked):
            is_gone = outcome.status is PullStatus.NO_MATCHED_MSG
            if is_gone or not self._settings.retry_timeout_s:
                return True
        gives_up_at_s = self._gives_up_at_s
        is_over = self._loss_at is not None and gives_up_at_s is not None and now_s >= gives_up_at_s
        return is_over and self._shows_loss(asked, outcome)

    def _note_loss(self, asked: int, outcome: PullResult) -> None:
        if self._shows_loss(asked, outcome):
            self._loss_at = asked if self._loss_at is None else min(asked, self._loss_at)

    def _note_success(self, asked: int, next_offset: int) -> None:
        """End the time for repeated pulls, unless a loss was shown that these offsets do not include.

        Otherwise the time would never be over while other parts of the range, or new messages, are read.
        """
        if self._loss_at is None or asked <= self._loss_at < next_offset:
            self._gives_up_at_s, self._loss_at = None, None

    def _shows_loss(self, asked: int, outcome: PullResult) -> bool:
        """Return whether the queue has a hole at ``asked``, or ended there or before.

        A broker answers a pull at the end with NO_NEW_MSG, whatever the queue had before. For a group, an end
        within the range is no loss yet: the range fails, and the next plan finds the loss.
        """
        is_at_end = outcome.status is PullStatus.NO_NEW_MSG and asked >= outcome.max_offset
        return outcome.reports_hole(asked) or (is_at_end and not self._settings.is_group_read)

    def _passes_over(self, task: PullTask, outcome: PullResult) -> bool:
        """Return whether an answer without messages means that no message below its next offset matches.

        It does not if the broker reports a hole. Without a filter, the reader finds the gap, and checks
        whether the topic is a compacted one, which has gaps by design.
        """
        if self._of.is_filtered and outcome.reports_hole(task.queue_offset):
            return False
        return outcome.scanned_in_vain or (
            outcome.status is PullStatus.NO_MATCHED_MSG and self._is_to_master(task)
        )

    def _is_to_master(self, task: PullTask) -> bool:
        return task.broker_id == MASTER_ID and not self._of.is_slave

    def _meets_end(self, task: PullTask, outcome: PullResult) -> bool:
        """Note where the queue ends at the broker that answered; return whether the pull was at this end.

        A master answers "nothing new" to a pull at the end. A slave may also answer that nothing matched.
        """
        self.segments.end = outcome.max_offset
        if not outcome.max_offset <= task.queue_offset >= self._of.planned.start:
            return False
        is_at_end = task.broker_id != MASTER_ID or (
            self._of.is_slave and task.queue_offset == outcome.max_offset
        )
        if is_at_end and outcome.status is PullStatus.NO_MATCHED_MSG:
            # A slave does not hold a pull at its end, since 5.0 even if its master is dead
            # (``PullMessageProcessor``).
            return not outcome.scanned_in_vain
        return outcome.status is PullStatus.NO_NEW_MSG

    def _wait_on(self, task: PullTask, outcome: PullResult, now_s: float) -> None:
        self.segments.lost(task.segment_id)
        self.bounds = outcome.min_offset, outcome.max_offset
        self._note_success(task.queue_offset, task.queue_offset)
        if task.broker_id != MASTER_ID and self._replica.ended(now_s):
            return
        if task.is_held and now_s - task.sent_at_s < _LEAST_HELD_S:
            self._pause(now_s)
        else:
            self._pause_s = _FIRST_PAUSE_S

    def _refuse(self, task: PullTask, error: RocketMQError, now_s: float) -> None:
        loss = self._queue_is_gone(task.queue_offset, error) if self._is_to_master(task) else None
        if loss is None or self._settings.fail_on_data_loss:
            self.lost(task, loss or self._refused(error), now_s)
        else:
            self._skip(task, self._of.planned.end, str(error))

    def lost(self, task: PullTask, error: RocketMQError | None, now_s: float) -> None:
        """Note that a pull failed; decide where it is sent again.

        ``error`` is None if the answer only means "ask again": a replica lacks the offset, or a reset is
        ignored. The pull is sent again without a pause in three cases: ``error`` is None; the pull went to a
        replica, so that the master is asked now; or the master does not answer, and a replica may serve. In
        all other cases ``settle`` decides about the error.
        """
        self.has_held_pull = False
        self.segments.lost(task.segment_id)
        if isinstance(error, TransportError) and self._is_to_master(task) and self._compares_again:
            self._broke = error
        if self._replica.disappointed(task.broker_id, now_s):
            text = "replica %d did not serve, back to the master %s: %s"
            self._log(INFO, text, task.broker_id, self._of.planned.queue, error)
        elif isinstance(error, TransportError) and self._replica.master_failed(now_s):
            self._go_on_at_replica(error)
        elif error is not None:
            self._troubles.append(error)

    @property
    def _compares_again(self) -> bool:
        """Whether the range's log must be compared again when the connection to the master has broken."""
        return self._has_open_end and self._settings.is_group_read and self._has_met_master

    def _go_on_at_replica(self, error: TransportError) -> None:
        """Pull from a replica; but end a group's range if the replica may lack messages that were read.

        If such a replica becomes the master, it stores other messages at the offsets that it lacked. The
        tasks of the next plan pull the last consumed message again, and so notice this.
        """
        if self._settings.is_group_read and self._relies_on_master:
            self.failure = error
            return
        text = "the master does not answer, going on at its replica %d %s: %s"
        self._log(WARNING, text, self._replica.broker_id, self._of.planned.queue, error)

    def log_checked(self, answer: PullResult | None) -> None:
        """Keep the answer to the pull of ``ReadRange.newest``; None if the pull failed."""
        self._must_check_log = self.is_checking_log = False
        # Copied, because a body is a view of a receive buffer.
        self.newest_answer = None if answer is None else answer._replace(body=bytes(answer.body))

    def settle(self, now_s: float) -> None:
        """Act on the errors since the last call: pause and pull again, or fail the range.

        The range pauses if the errors may pass and its time for repeated pulls is not over. This time is
        ``retry_timeout_s`` from the first error after a success, in a group at most 10 s. After retryable
        errors, a range with an open end may repeat pulls for ever.
        """
        if not self._troubles:
            return
        trouble = min(self._troubles, key=self._rank)
        self._troubles.clear()
        if self._gives_up_at_s is None:
            patience_s = self._settings.retry_timeout_s
            if self._settings.is_group_read:
                patience_s = min(patience_s, _LONGEST_PATIENCE_OF_A_GROUP_S)
            self._gives_up_at_s = now_s + patience_s
        left_s = self._gives_up_at_s - now_s
        may_last = self._has_open_end and trouble.retryable
        if not self._is_pulled_again(trouble) or (left_s <= 0 and not may_last):
            self.failure = trouble
        elif now_s >= self._resumes_at_s:
            self._log_trouble(trouble, left_s, now_s)
            if isinstance(trouble, BrokerError) and trouble.code == ResponseCode.FLOW_CONTROL:
                self._resumes_at_s = now_s + _FLOW_CONTROL_PAUSE_S
            else:
                self._pause(now_s)
            if not may_last:
                self._resumes_at_s = min(self._resumes_at_s, self._gives_up_at_s)

    def _log_trouble(self, trouble: RocketMQError, left_s: float, now_s: float) -> None:
        if left_s > 0 or now_s >= self._is_quiet_until_s:
            self._is_quiet_until_s = now_s + _LOGGED_AGAIN_S
            self._log(WARNING, "pull failed, trying again %s: %s", self._of.planned.queue, trouble)

    def _pause(self, now_s: float) -> None:
        self._resumes_at_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def _is_pulled_again(self, trouble: RocketMQError) -> bool:
        return is_pulled_again(
            trouble,
            is_group_read=self._settings.is_group_read,
            has_worked=self._settings.has_worked or self.answers > 0,
        )

    def _rank(self, trouble: RocketMQError) -> tuple[int, int]:
        """Return a sort key for errors, the most important one first.

        First come losses of messages, by offset; then errors after which no pull is repeated; then others.
        """
        if isinstance(trouble, DataLoss):
            return 0, trouble.wanted
        return (2 if self._is_pulled_again(trouble) else 1), 0

    def stand_still(self) -> None:
        """Fail the range, which would otherwise wait for ever because of a defect.

        Call this if the range is not over, waits for nothing, and has no pull to send.
        """
        planned = self._of.planned
        self.failure = RocketMQError(
            f"{planned.queue}: reading {planned.extent} from {self._of.address} is blocked, with no pull in "
            "flight and none to send; this is a bug of pyspark-rocketmq. Please report it, and run the query "
            "again."
        )

    def _go_on(self, task: PullTask, result: PullResult, now_s: float) -> None:
        body = result.body
        self.segments.answered(task.segment_id, task.queue_offset, result.next_begin_offset, body)
        self._relies_on_master |= task.broker_id == MASTER_ID
        if body and task.broker_id != MASTER_ID:
            self._replica.served_by = task.broker_id
        if body:
            self.answers += 1
            self.answered_after_s += now_s - task.sent_at_s
        self.bounds = result.min_offset, result.max_offset
        self._note_success(task.queue_offset, result.next_begin_offset)
        self._pause_s, self._has_met_reset = _FIRST_PAUSE_S, False
        if result.suggest_which_broker_id != task.broker_id or self._settings.prefers_replica:
            self._replica.suggested(task.broker_id, result.suggest_which_broker_id, now_s)

    def _advance(self, task: PullTask, next_offset: int, body: PulledBody) -> None:
        self.segments.answered(task.segment_id, task.queue_offset, next_offset, body)

    def _offset_moved(self, task: PullTask, result: PullResult, now_s: float) -> None:
        target = result.reset_from(task.queue_offset)
        if target is not None:
            self.lost(task, self._meet_reset(task.queue_offset, target), now_s)
        else:
            self._meet_gap(task, result, now_s)

    def _meet_reset(self, asked: int, target: int) -> RocketMQError | None:
        """Return the error for an operator's reset, which the broker reports instead of sending messages.

        Return None if the pull is simply to be sent again.

        A broker that keeps resets itself (``useServerSideResetOffset``) answers so to the group's next pull
        of the queue, once (``ConsumerOffsetManager.queryThenEraseResetOffset``). A group's range ends with
        the error, and the queue is planned again from ``target``. A reader without a group ignores the first
        such answer; a second one before any success counts as an error.
        """
        queue = self._of.planned.queue
        if self._settings.is_group_read:
            return QueueReset(f"{queue}: an operator has reset the group's offset to {target}.", target)
        if self._has_met_reset:
            moved = (
                f"it has moved offset {asked} again and again, although the queue has it; somebody may be "
            )
            return self._busy(PullStatus.OFFSET_ILLEGAL, moved + "resetting the group's offsets all the time")
        self._has_met_reset = True
        text = "a reset stored at the broker is ignored, because this query has no consumerGroup group=%s %s"
        self._log(INFO, text, self._settings.consumer_group, queue)
        return None

    def _refused(self, error: RocketMQError) -> RocketMQError:
        """Return the error for a refused pull; if a slave replaces its master, this is one that may pass."""
        if self._of.is_slave and isinstance(error, BrokerError) and not error.retryable:
            return TransportError(self._of.address, f"the slave refuses, and its master is down: {error}")
        return error

    def _not_at_slave(self, asked: int, result: PullResult) -> SystemBusy:
        planned = self._of.planned
        return self._busy(
            result.status,
            f"the slave has offsets {result.min_offset} (inclusive) to {result.max_offset} (exclusive), and "
            f"offset {asked} of the planned {planned.extent} is not among them; start the master, which may "
            "have it",
        )

    def _nothing_there(self, asked: int, result: PullResult) -> SystemBusy:
        end = result.max_offset if self._has_open_end else self._of.planned.end
        reaches = f"reaches {end}" if self._has_open_end else f"reached {end} when the range was planned"
        return self._busy(
            PullStatus.NO_NEW_MSG,
            f"it has nothing at offset {asked}, although the queue {reaches}; the broker may be recovering. "
            "If this goes on, look at the broker's log",
        )

    def _busy(self, status: PullStatus, text: str) -> SystemBusy:
        request = f"PULL_MESSAGE {self._of.planned.queue}"
        return OffsetNotThere(int(status), text, request=request, address=self._of.address)

    def _queue_is_gone(self, asked: int, error: RocketMQError) -> DataLoss | None:
        """Return the data loss if the broker's ``error`` says that the topic or the queue no longer exists.

        None for other errors. If a group reads, the result is always None: its next plan finds the loss.
        ``asked`` is the offset that the pull asked for.
        """
        if self._settings.is_group_read or not isinstance(error, BrokerError):
            return None
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            loss: type[DataLoss] = TopicDeleted
        elif lacks_queue(error.code, error.remark):
            loss = QueueRemoved
        else:
            return None
        return loss(str(self._of.planned.queue), asked, str(error))

    def _meet_gap(self, task: PullTask, result: PullResult, now_s: float) -> None:
        """Handle offsets that have expired, or that a shorter log no longer has.

        If a group's queue has become shorter, the range ends, and the planner judges: the broker may have
        restarted, and not have its role yet. Otherwise the range fails with ``fail_on_data_loss``, and the
        offsets are passed over without it. See row F4 of ``docs/semantics.md``.
        """
        planned, asked, address = self._of.planned, task.queue_offset, self._of.address
        is_ahead = result.next_begin_offset > asked
        first = max(result.min_offset, result.next_begin_offset) if is_ahead else result.min_offset
        available = f"{first} (inclusive) to {result.max_offset} (exclusive)"
        fails, is_beyond = self._settings.fail_on_data_loss, asked > result.max_offset
        if self._settings.is_group_read and not is_ahead and (is_beyond or not fails):
            self.lost(task, self._tail_lost(available), now_s)
        elif fails:
            kind = MessagesExpired if asked < first else LogTailLost
            self.lost(task, kind(f"{planned.queue} at {address}", asked, available), now_s)
        elif is_ahead:
            self._skip(task, min(result.next_begin_offset, planned.end), available)
        else:
            # The log lost its tail, and the rest of the range with it.
            self._skip(task, planned.end, available)

    def _tail_lost(self, available: str) -> TailLost:
        planned = self._of.planned
        return TailLost(
            f"{planned.queue}: {self._of.address} has offsets {available}, so the range planned from "
            f"{planned.extent} has lost its tail."
        )

    def _skip(self, task: PullTask, continues_at: int, available: str) -> None:
        """Pass over a gap, and log it once for all the pulls into it that were in flight."""
        wanted = task.queue_offset
        if wanted not in self.skipped or continues_at > self.skipped.stop:
            text = "offset gap %s wanted=%d available=%s continuing_at=%d"
            self._log(WARNING, text, self._of.planned.queue, wanted, available, continues_at)
            known = self.skipped or range(wanted, continues_at)
            self.skipped = range(min(known.start, wanted), max(known.stop, continues_at))
        self._advance(task, continues_at, b"")

    # --- handing out ----------------------------------------------------------------------------------------

    def take(self) -> list[PullChunk]:
        """Return the next chunks in queue order.

        A segment's chunks are returned only if all earlier segments are complete.
        """
        self._handed_out = self.segments.reached
        return self.segments.take()


class FetchWindow:
    """Decides which pulls to send for all ranges that share one connection, and hands out their answers."""

    def __init__(
        self, ranges: Sequence[ReadRange], *, depth: int, max_bytes: int, log: Callable[..., object]
    ) -> None:
        """Prepare to pull; ``tasks()`` returns the first pulls.

        Args:
            ranges: Ranges to read.
            depth: Maximum number of pulls in flight.
            max_bytes: Maximum number of stored bytes that are requested, or received and not yet handed out.
            log: Called as ``Logger.log``, with events that an operator should see.
        """
        self.ranges: list[RangeWindow] = []
        """All ranges, in the order given."""
        self._has_open_ends = False
        self._open: deque[RangeWindow] = deque()
        """Ranges not completely handed out; the next one to get pulls comes first."""
        self._depth = depth
        self._log = log
        self._max_bytes = max_bytes
        self._batch_bytes = min(_BATCH_BYTES, max(1, max_bytes // 2))
        self._largest_answer = _USUAL_ANSWER_BYTES
        self.in_flight = 0
        """Number of pulls under way: also those of failed ranges, but none that a broker may hold."""
        for each in ranges:
            self.add(each)

    def add(self, of: ReadRange) -> RangeWindow:
        """Add a range to those that are read; return the object that decides about its pulls."""
        window = RangeWindow(
            len(self.ranges),
            of,
            segment=max(_FILTERED_SEGMENT if of.is_filtered else 1, of.settings.pull_batch_size),
            depth=self._depth,
            log=self._log,
        )
        self.ranges.append(window)
        self._open.append(window)
        self._has_open_ends |= of.planned.has_open_end
        return window

    @property
    def is_open(self) -> bool:
        """Whether ``take`` has not handed out the last chunks of all ranges yet."""
        return bool(self._open)

    @property
    def answers_to_next_burst(self) -> int:
        """Number of answers to await before ``tasks`` usually has new pulls; 1 if a range has an open end."""
        return 1 if self._has_open_ends else max(1, self.in_flight - self._depth // 2)

    def tasks(self, now_s: float) -> list[PullTask]:
        """Return the pulls to send now.

        Usually there are none while many pulls are in flight, and later several together: pulls that are sent
        one by one cost broker and client twice as much.
        """
        # Nearly always each range at its queue's end has a held pull, and there is nothing to send.
        may_ask = [each for each in self._open if not each.has_held_pull and each.may_ask(now_s)]
        if not self._has_open_ends:
            return self._planned(may_ask, now_s) if may_ask else []
        held = [task for each in may_ask if (task := each.held_task(now_s)) is not None]
        asking = [each for each in may_ask if not each.has_held_pull]
        return held + self._planned(asking, now_s) if asking else held

    def _planned(self, asking: Sequence[RangeWindow], now_s: float) -> list[PullTask]:
        if self.in_flight > self._depth // 2 and all(each.in_flight for each in asking):
            return []
        room = min(self._depth, self._bytes_left() // self._largest_answer) - self.in_flight
        tasks = self._fair_tasks(asking, room, now_s) if room > 0 else []
        if not tasks and not self.in_flight and not any(each.segments.takeable_bytes for each in self._open):
            # There is no room for any range: pull for the one that frees most memory.
            fullest = max(asking, key=lambda each: each.segments.buffered_bytes, default=None)
            tasks = [] if fullest is None else fullest.tasks(1, now_s, may_run_ahead=False)
        self.in_flight += len(tasks)
        return tasks

    def answered(self, task: PullTask, outcome: PullResult | RocketMQError, now_s: float) -> None:
        """Apply the answer or the error to the pull's range, unless the range has failed or is stopped."""
        self.in_flight -= not task.is_held
        window = self.ranges[task.range_index]
        if task.is_log_check:
            window.log_checked(outcome if isinstance(outcome, PullResult) else None)
            return
        if isinstance(outcome, PullResult) and len(outcome.body) > self._largest_answer:
            self._largest_answer = len(outcome.body)
        # A range read to its end has no pull in flight, so ``is_over`` need not be asked for each answer.
        if window.failure is None and not window.is_stopped:
            window.answered(task, outcome, now_s)

    def lost(self, task: PullTask, error: RocketMQError | None, now_s: float) -> None:
        """Note that a pull failed.

        :meth:`RangeWindow.lost` says when the pull is sent again. Nothing is sent again for a range that has
        failed or is stopped, nor a pull of rule 7.
        """
        self.in_flight -= not task.is_held
        window = self.ranges[task.range_index]
        if task.is_log_check:
            window.log_checked(None)
        elif window.failure is None and not window.is_stopped:
            window.lost(task, error, now_s)

    def settle(self, now_s: float) -> None:
        """Act on the errors since the last call: each range with an error pauses or fails.

        Call this once all answers that arrived together are reported.
        """
        for window in self._open:
            window.settle(now_s)

    def shortest_pause_s(self, now_s: float) -> float | None:
        """Return the seconds until the first pausing range goes on; None if none pauses."""
        return min(
            (pause_s for window in self._open if (pause_s := window.pause_left_s(now_s))), default=None
        )

    def stand_still(self) -> None:
        """Fail all ranges that are not handed out completely, except those on hold (``is_on_hold``).

        Call this if these ranges wait for nothing, and none has a pull to send.
        """
        for window in self._open:
            if not window.is_on_hold:
                window.stand_still()

    def is_ready(self) -> bool:
        """Return whether to call ``take`` now.

        Call it immediately if a range is over, or if a range at its queue's end has messages. Messages of
        other ranges wait until they are enough to decode fast, until no pull in flight can bring more, or
        until little memory is left for other pulls.
        """
        takeable = log_checks = 0
        for window in self._open:
            log_checks += window.is_checking_log
            takeable_bytes = window.segments.takeable_bytes
            if window.is_over or (takeable_bytes and self._has_open_ends and window.is_at_end):
                return True
            takeable += takeable_bytes
        return takeable > 0 and (
            takeable >= self._batch_bytes
            or self.in_flight == log_checks
            or self._bytes_left() < self._largest_answer * (self._depth // 2 + 1)
        )

    def take(self) -> list[FetchedChunks]:
        """Return the next chunks of all ranges that have some, and the last ones of ranges that are over.

        Decoding them together is cheapest and frees all buffers.
        """
        # Read ``is_over`` once for each range: another thread may stop a range at any moment, and its last
        # chunks must be marked as the last.
        asked = [(window, window.is_over) for window in self._open]
        ready = [(window, is_over) for window, is_over in asked if is_over or window.has_news]
        for window, is_over in ready:
            if is_over:
                self._open.remove(window)
        return [
            FetchedChunks(
                window.index,
                window.take(),
                is_over,
                window.failure if is_over else None,
                window.segments.reached,
            )
            for window, is_over in ready
        ]

    def move(self, keep: Callable[[PulledBody], PulledBody]) -> None:
        """Replace each buffered body by ``keep(body)``, which has the same bytes, perhaps in other memory."""
        for window in self._open:
            window.segments.move(keep)

    def _bytes_left(self) -> int:
        return self._max_bytes - sum([window.segments.buffered_bytes for window in self._open])

    def _fair_tasks(self, asking: Sequence[RangeWindow], room: int, now_s: float) -> list[PullTask]:
        share = max(1, self._depth // max(1, len(asking)))
        tasks: list[PullTask] = []
        for window in asking:
            at_most = min(share - window.in_flight, room - len(tasks))
            if at_most > 0:
                tasks += window.tasks(at_most, now_s)
        # Let each range come first at some time.
        self._open.rotate(-1)
        return tasks
