"""Keeps the pulls of one queue range going and hands the answers out in queue order.

One thread does it all: it sends the next pulls in bursts, takes in what has come, and goes away to decode and to
hand rows to Spark while the broker works on the pulls that are out.  Which pulls to make is decided by
``consume.pull_window``, how they travel by ``client.pull_line``; this is the shell around both, and it decides
what a failure means.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from pyspark_rocketmq.client.process_lines import give_back_line, take_line
from pyspark_rocketmq.client.pull import PullRequest, PullResult, PullStatus
from pyspark_rocketmq.client.pull_line import PullLine
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.pull_window import AnswerOutcome, Piece, PullStep, PullWindow
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.errors import DataLoss, RocketMQError, SystemBusy
from pyspark_rocketmq.wire.codes import PullSysFlag

logger = logging.getLogger(__name__)

_BATCH_BYTES = 4 << 20
"""Stored bytes handed out at once: large enough to decode fast, small beside a worker's memory."""
_AHEAD_BYTES = 16 << 20
_FILTERED_SEGMENT = 800
"""Offsets per pull sequence under a tag filter: what a broker scans at least in one pull."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class QueuePuller:
    """The pulls of one range; survives broken connections for ``retry_timeout_s``."""

    def __init__(
        self,
        partition: QueuePartition,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._partition = partition
        self._clock = clock or SystemClock()
        self._sleep = sleep
        is_filtered = partition.subscription.strip() != "*"
        self._window = PullWindow(
            partition.planned.start,
            partition.planned.end,
            segment=max(_FILTERED_SEGMENT if is_filtered else 1, partition.pull_batch_size),
            depth=partition.pulls_in_flight,
            max_msg_nums=partition.pull_batch_size,
            max_ahead_bytes=_AHEAD_BYTES,
        )
        self._line: PullLine[PullStep] | None = None
        self._patience: Deadline | None = None
        """Runs from the first failure to the next success."""
        self._pause_s = _FIRST_PAUSE_S

    def pieces(self) -> Iterator[list[Piece]]:
        """Answers in queue order, gathered to about ``_BATCH_BYTES``.

        Raises:
            DataLoss: If the broker no longer has what was asked for and ``failOnDataLoss`` is true.
            RocketMQError: If the broker refuses, or does not answer for ``retry_timeout_s``.
        """
        try:
            while not self._window.is_done:
                self._bear(self._exchange())
                if self._window.buffered_bytes >= _BATCH_BYTES or not self._in_flight:
                    taken = self._window.take()
                    if taken:
                        yield taken
        finally:
            # Whoever stops half way (a LIMIT, a killed task) leaves answers that nobody will read: the line is
            # closed then.
            if self._line is not None:
                give_back_line(self._line, self._clock)

    @property
    def _in_flight(self) -> int:
        return self._line.in_flight if self._line is not None else 0

    def _exchange(self) -> RocketMQError | None:
        """Take in what has come and send what may be sent; what went wrong, if anything did."""
        try:
            if self._line is None:
                self._line = take_line(self._partition.address, self._clock)
            answers = self._line.receive(self._partition.request_timeout_s) if self._line.in_flight else []
            troubles = [self._take_in(step, outcome) for step, outcome in answers]
            trouble = next((trouble for trouble in troubles if trouble is not None), None)
            if trouble is None:
                # Before the caller decodes: the broker is not idle meanwhile.
                self._top_up(self._line)
        except RocketMQError as error:
            self._drop_line()
            return error
        return trouble

    def _top_up(self, line: PullLine[PullStep]) -> None:
        """Send pulls in bursts: one by one they cost the broker and this process twice as much."""
        if line.in_flight <= self._partition.pulls_in_flight // 2:
            line.send((step, self._request(step)) for step in self._window.requests())

    def _drop_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            for step in line.close():
                self._window.failed(step.segment_id)

    def _bear(self, trouble: RocketMQError | None) -> None:
        """Wait a while after a failure that may pass; raise any other, and the first after ``retry_timeout_s``."""
        if trouble is None:
            return
        if self._patience is None:
            self._patience = Deadline.after(self._clock, self._partition.retry_timeout_s)
        if not trouble.retryable or self._patience.has_passed:
            raise trouble
        logger.warning("pull failed, trying again %s: %s", self._partition.planned.queue, trouble)
        self._sleep(min(self._pause_s, self._patience.remaining_s()))
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def _take_in(self, step: PullStep, outcome: PullResult | RocketMQError) -> RocketMQError | None:
        """Give an answer to the window; what is wrong with it, if anything is."""
        if isinstance(outcome, RocketMQError):
            self._window.failed(step.segment_id)
            return outcome
        if outcome.status is PullStatus.OFFSET_ILLEGAL:
            return self._skip_gap(step, outcome)
        if outcome.status is PullStatus.NO_NEW_MSG:
            self._window.failed(step.segment_id)
            return self._nothing_there(step)
        answered = self._window.answered(step.segment_id, outcome.next_begin_offset, outcome.body)
        if answered is AnswerOutcome.NO_PROGRESS:
            return self._nothing_there(step)
        self._patience, self._pause_s = None, _FIRST_PAUSE_S
        return None

    def _skip_gap(self, step: PullStep, result: PullResult) -> RocketMQError | None:
        """Row F4: the offsets asked for are gone, or not there any more."""
        planned = self._partition.planned
        available = f"{result.min_offset} (inclusive) to {result.max_offset} (exclusive)"
        if self._partition.fail_on_data_loss:
            return DataLoss(f"{planned.queue} at {self._partition.address}", step.queue_offset, available)
        # A corrected offset before the one asked for: the log lost its tail, and the rest of the range with it.
        is_ahead = result.next_begin_offset > step.queue_offset
        goes_on = min(result.next_begin_offset, planned.end) if is_ahead else planned.end
        logger.warning(
            "offset gap %s wanted=%d available=%s continuing_at=%d",
            planned.queue,
            step.queue_offset,
            available,
            goes_on,
        )
        self._window.answered(step.segment_id, goes_on, b"")
        return None

    def _nothing_there(self, step: PullStep) -> SystemBusy:
        return SystemBusy(
            int(PullStatus.NO_NEW_MSG),
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
