"""Keeps the pulls of one queue range going and hands the answers out in queue order.

The channel's reader thread takes each answer into the window and sends the next pulls at once, so the broker is
never idle while this task decodes or Spark takes rows; it stops ``_AHEAD_BYTES`` ahead.  Which pulls to make is
decided by ``consume.pull_window``; this is the shell around it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from pyspark_rocketmq.client.broker import BrokerClient, PullRequest, PullResult, PullStatus
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.consume.pull_window import AnswerOutcome, Piece, PullStep, PullWindow
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.errors import DataLoss, RocketMQError, SystemBusy, TransportError
from pyspark_rocketmq.wire.codes import PullSysFlag

logger = logging.getLogger(__name__)

_BATCH_BYTES = 4 << 20
"""Stored bytes handed out at once: large enough to decode fast, small beside a worker's memory."""
_AHEAD_BYTES = 16 << 20
_FILTERED_SEGMENT = 800
"""Offsets per pull sequence under a tag filter: what a broker scans at least in one pull."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class _OffsetMoved:
    """A pull was answered OFFSET_ILLEGAL: the broker does not have what was asked for."""

    step: PullStep
    result: PullResult


class _Ready:
    """There is something to take."""


_READY = _Ready()
_Event = _Ready | _OffsetMoved | RocketMQError


class QueuePuller:
    """The pulls of one range; survives broken connections for ``retry_timeout_s``."""

    def __init__(self, partition: QueuePartition) -> None:
        self._partition = partition
        self._clock = SystemClock()
        self._brokers = BrokerClient(process_pool(), self._clock, partition.request_timeout_s)
        is_filtered = partition.subscription.strip() != "*"
        self._window = PullWindow(
            partition.planned.start,
            partition.planned.end,
            segment=max(_FILTERED_SEGMENT if is_filtered else 1, partition.pull_batch_size),
            depth=partition.pulls_in_flight,
            max_msg_nums=partition.pull_batch_size,
            max_ahead_bytes=_AHEAD_BYTES,
        )
        self._lock = threading.Lock()
        """Guards the window and ``_in_flight``; never held while sending or waiting."""
        self._in_flight = 0
        self._is_abandoned = False
        self._events: SimpleQueue[_Event] = SimpleQueue()

    def pieces(self) -> Iterator[list[Piece]]:
        """Answers in queue order, gathered to about ``_BATCH_BYTES``.

        Raises:
            DataLoss: If the broker no longer has what was asked for and ``failOnDataLoss`` is true.
            RocketMQError: If the broker refuses, or does not answer for ``retry_timeout_s``.
        """
        gathered: list[Piece] = []
        size = 0
        try:
            while not self._window.is_done:
                self._send(self._next_steps())
                self._wait()
                with self._lock:
                    taken = self._window.take()
                gathered += taken
                size += sum(len(piece.body) for piece in taken)
                if size >= _BATCH_BYTES:
                    yield gathered
                    gathered, size = [], 0
            if gathered:
                yield gathered
        finally:
            # Whoever stops half way (a LIMIT, a killed task) must not leave pulls that start new ones.
            self._is_abandoned = True

    def _wait(self) -> None:
        """Until something can be taken; troubles on the way are borne as long as ``retry_timeout_s``."""
        patience = Deadline.after(self._clock, self._partition.retry_timeout_s)
        pause_s = _FIRST_PAUSE_S
        while True:
            trouble = self._settle(self._next_events())
            if trouble is None:
                return
            if not trouble.retryable or patience.has_passed:
                raise trouble
            logger.warning("pull failed, trying again %s: %s", self._partition.planned.queue, trouble)
            time.sleep(min(pause_s, patience.remaining_s()))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            self._send(self._next_steps())

    def _next_events(self) -> list[_Event]:
        """Everything that has happened, at least one event."""
        # Every pull has a deadline of its own and is called back once, so the bound here is for a bug only.
        bound_s = 2 * self._partition.request_timeout_s + 60
        try:
            events = [self._events.get(timeout=bound_s)]
        except Empty:
            raise TransportError(
                self._partition.address, f"no pull was answered within {bound_s:g} s"
            ) from None
        while True:
            try:
                events.append(self._events.get_nowait())
            except Empty:
                return events

    def _settle(self, events: list[_Event]) -> RocketMQError | None:
        """Deal with what happened; the first trouble to bear, if there is one."""
        trouble: RocketMQError | None = None
        for event in events:
            if isinstance(event, _OffsetMoved):
                self._skip_gap(event)
            elif isinstance(event, RocketMQError):
                trouble = trouble or event
        return trouble

    def _skip_gap(self, moved: _OffsetMoved) -> None:
        """Row F4: the offsets asked for are gone, or not there any more."""
        planned, result = self._partition.planned, moved.result
        available = f"{result.min_offset} (inclusive) to {result.max_offset} (exclusive)"
        if self._partition.fail_on_data_loss:
            raise DataLoss(
                f"{planned.queue} at {self._partition.address}", moved.step.queue_offset, available
            )
        # A corrected offset before the one asked for: the log lost its tail, and the rest of the range with it.
        is_ahead = result.next_begin_offset > moved.step.queue_offset
        goes_on = min(result.next_begin_offset, planned.end) if is_ahead else planned.end
        logger.warning(
            "offset gap %s wanted=%d available=%s continuing_at=%d",
            planned.queue,
            moved.step.queue_offset,
            available,
            goes_on,
        )
        with self._lock:
            self._window.answered(moved.step.segment_id, goes_on, b"")
        self._send(self._next_steps())
        self._events.put(_READY)

    def _next_steps(self) -> list[PullStep]:
        with self._lock:
            steps = self._window.requests()
            self._in_flight += len(steps)
        return steps

    def _send(self, steps: list[PullStep]) -> None:
        for step in steps:
            try:
                self._brokers.pull_async(
                    self._partition.address,
                    self._request(step),
                    lambda outcome, step=step: self._on_answer(step, outcome),  # type: ignore[misc]
                )
            except RocketMQError as error:
                self._on_answer(step, error)

    def _on_answer(self, step: PullStep, outcome: PullResult | RocketMQError) -> None:
        """On the channel's reader thread: take the answer in and keep the pulls going."""
        if self._is_abandoned:
            return
        steps: list[PullStep] = []
        event: _Event | None = None
        with self._lock:
            self._in_flight -= 1
            event = self._take_in(step, outcome)
            if event is None:
                steps = self._window.requests()
                self._in_flight += len(steps)
                if self._window.buffered_bytes >= _BATCH_BYTES or not self._in_flight:
                    event = _READY
        if event is not None:
            self._events.put(event)
        self._send(steps)

    def _take_in(self, step: PullStep, outcome: PullResult | RocketMQError) -> _Event | None:
        """What the other thread must hear of at once; None when all is well. Needs the lock."""
        if isinstance(outcome, RocketMQError):
            self._window.failed(step.segment_id)
            return outcome
        if outcome.status is PullStatus.OFFSET_ILLEGAL:
            return _OffsetMoved(step, outcome)
        if outcome.status is PullStatus.NO_NEW_MSG:
            self._window.failed(step.segment_id)
        elif (
            self._window.answered(step.segment_id, outcome.next_begin_offset, outcome.body)
            is not AnswerOutcome.NO_PROGRESS
        ):
            return None
        return SystemBusy(
            int(outcome.status),
            f"nothing at offset {step.queue_offset} although the queue reached {self._partition.planned.end} "
            "when the range was planned; the broker may be recovering",
            request=f"PULL_MESSAGE {self._partition.planned.queue}",
            address=self._partition.address,
        )

    def _request(self, step: PullStep) -> PullRequest:
        return PullRequest(
            consumer_group=self._partition.consumer_group,
            queue=self._partition.planned.queue,
            queue_offset=step.queue_offset,
            max_msg_nums=step.max_msg_nums,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            subscription=self._partition.subscription,
        )
