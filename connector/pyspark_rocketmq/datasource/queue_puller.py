"""Keeps the pulls of one queue range going and hands the answers out in queue order.

One thread does it all: it sends the next pulls in bursts, takes in what has come, and goes away to decode and to
hand rows to Spark while the broker works on the pulls that are out.  Which pulls to make is decided by
``consume.pull_window``, how they travel by ``client.pull_line``; this is the shell around both, and it decides
what a failure means.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator

from pyspark_rocketmq.client.process_lines import give_back_line, take_line
from pyspark_rocketmq.client.pull import PullRequest, PullResult, PullStatus
from pyspark_rocketmq.client.pull_line import PullLine
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.pull_window import AnswerOutcome, Piece, PullStep, PullWindow
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.errors import DataLoss, OffsetError, RocketMQError, SystemBusy
from pyspark_rocketmq.wire.codes import PullSysFlag

logger = logging.getLogger(__name__)

_BATCH_BYTES = 4 << 20
"""Stored bytes handed out at once: large enough to decode fast, small beside a worker's memory."""
_AHEAD_BYTES = 16 << 20
_FILTERED_SEGMENT = 800
"""Offsets per pull sequence under a tag filter: what a broker scans at least in one pull."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_LONGEST_PATIENCE_OF_A_GROUP_S = 10.0
"""A micro-batch ends when its slowest range does, so a broker in trouble keeps other brokers' queues waiting."""


class TailLost(OffsetError):
    """The broker's queue ends before the range does; a fresh look at its bounds tells where to go on."""


class QueuePuller:
    """The pulls of one range; survives broken connections for ``retry_timeout_s``, in consumer mode 10 s at most."""

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
        self._has_met_reset = False
        """Since the last success."""
        self._skipped = range(0)

    @property
    def skipped(self) -> range:
        """The offsets passed over, and told of, because the broker no longer has them; empty without such a gap."""
        return self._skipped

    def pieces(self) -> Iterator[list[Piece]]:
        """Answers in queue order, gathered to about ``_BATCH_BYTES``.

        Before an error that another reader may survive, everything that is next in queue order is given out.

        Raises:
            DataLoss: If the broker no longer has what was asked for and ``failOnDataLoss`` is true.
            TailLost: In consumer mode, if the broker's queue ends before the range and ``failOnDataLoss`` is false.
            RocketMQError: If the broker refuses, or does not answer for ``retry_timeout_s``.
        """
        try:
            while not self._window.is_done:
                trouble = self._exchange()
                final = self._bear(trouble)
                taken = self._take(is_last=final is not None)
                if taken:
                    yield taken
                if final is not None:
                    raise final
                if trouble is None and not taken and not self._in_flight and not self._window.is_done:
                    raise self._stands_still()
        finally:
            # Whoever stops half way (a LIMIT, a killed task) leaves answers that nobody will read: the line is
            # closed then.
            if self._line is not None:
                give_back_line(self._line, self._clock, self._partition.connection)

    @property
    def _in_flight(self) -> int:
        return self._line.in_flight if self._line is not None else 0

    def _take(self, *, is_last: bool) -> list[Piece]:
        if is_last or self._window.buffered_bytes >= _BATCH_BYTES or not self._in_flight:
            return self._window.take()
        return []

    def _exchange(self) -> RocketMQError | None:
        """Take in what has come and send what may be sent; what went wrong, if anything did."""
        try:
            if self._line is None:
                self._line = take_line(self._partition.address, self._clock, self._partition.connection)
            answers = self._line.receive(self._partition.request_timeout_s) if self._line.in_flight else []
            troubles = [self._take_in(step, outcome) for step, outcome in answers]
            trouble = _worst(trouble for trouble in troubles if trouble is not None)
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

    def _bear(self, trouble: RocketMQError | None) -> RocketMQError | None:
        """Wait a while after a failure that may pass; any other, and the first when patience is over, is final."""
        if trouble is None:
            return None
        if self._patience is None:
            self._patience = Deadline.after(self._clock, self._longest_trouble_s)
        if not trouble.retryable or self._patience.has_passed:
            return trouble
        logger.warning("pull failed, trying again %s: %s", self._partition.planned.queue, trouble)
        self._sleep(min(self._pause_s, self._patience.remaining_s()))
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return None

    @property
    def _longest_trouble_s(self) -> float:
        retry_timeout_s = self._partition.retry_timeout_s
        is_of_group = self._partition.with_marker
        return min(retry_timeout_s, _LONGEST_PATIENCE_OF_A_GROUP_S) if is_of_group else retry_timeout_s

    def _take_in(self, step: PullStep, outcome: PullResult | RocketMQError) -> RocketMQError | None:
        """Give an answer to the window; what is wrong with it, if anything is."""
        if isinstance(outcome, RocketMQError):
            self._window.failed(step.segment_id)
            return outcome
        if outcome.status is PullStatus.OFFSET_ILLEGAL:
            if outcome.min_offset <= step.queue_offset <= outcome.max_offset:
                return self._pass_reset(step)
            return self._skip_gap(step, outcome)
        if outcome.status is PullStatus.NO_NEW_MSG:
            self._window.failed(step.segment_id)
            return self._nothing_there(step)
        answered = self._window.answered(step.segment_id, outcome.next_begin_offset, outcome.body)
        if answered is AnswerOutcome.NO_PROGRESS:
            return self._nothing_there(step)
        self._patience, self._pause_s, self._has_met_reset = None, _FIRST_PAUSE_S, False
        return None

    def _pass_reset(self, step: PullStep) -> RocketMQError | None:
        """Pull again what is there although the broker says that the offset has moved.

        A broker that keeps resets itself (``useServerSideResetOffset``) tells the next pull of the group so, once
        (``ConsumerOffsetManager.queryThenEraseResetOffset``). More than that is trouble.
        """
        self._window.failed(step.segment_id)
        if self._has_met_reset:
            return SystemBusy(
                int(PullStatus.OFFSET_ILLEGAL),
                f"offset {step.queue_offset} moved, again and again, although the queue has it; somebody may be "
                "resetting the group's offsets all the time",
                request=f"PULL_MESSAGE {self._partition.planned.queue}",
                address=self._partition.address,
            )
        self._has_met_reset = True
        logger.info(
            "reset stored at the broker is not followed: the group's offsets are in its offset store group=%s %s",
            self._partition.consumer_group,
            self._partition.planned.queue,
        )
        return None

    def _skip_gap(self, step: PullStep, result: PullResult) -> RocketMQError | None:
        """Row F4: the offsets asked for are gone, or not there any more."""
        planned = self._partition.planned
        available = f"{result.min_offset} (inclusive) to {result.max_offset} (exclusive)"
        if self._partition.fail_on_data_loss:
            self._window.failed(step.segment_id)
            return DataLoss(f"{planned.queue} at {self._partition.address}", step.queue_offset, available)
        is_ahead = result.next_begin_offset > step.queue_offset
        if not is_ahead and self._partition.with_marker:
            self._window.failed(step.segment_id)
            return TailLost(
                f"{planned.queue}: {self._partition.address} has offsets {available}, so the range that was planned "
                f"to {planned.end} has lost its tail."
            )
        # A corrected offset before the one asked for: the log lost its tail, and the rest of the range with it.
        goes_on = min(result.next_begin_offset, planned.end) if is_ahead else planned.end
        self._tell_gap(step.queue_offset, goes_on, available)
        self._window.answered(step.segment_id, goes_on, b"")
        return None

    def _tell_gap(self, wanted: int, goes_on: int, available: str) -> None:
        """Once for all the pulls that were under way into the same gap."""
        if wanted in self._skipped and goes_on <= self._skipped.stop:
            return
        logger.warning(
            "offset gap %s wanted=%d available=%s continuing_at=%d",
            self._partition.planned.queue,
            wanted,
            available,
            goes_on,
        )
        known = self._skipped or range(wanted, goes_on)
        self._skipped = range(min(known.start, wanted), max(known.stop, goes_on))

    def _stands_still(self) -> RocketMQError:
        planned = self._partition.planned
        return RocketMQError(
            f"{planned.queue}: reading {planned.start} to {planned.end} from {self._partition.address} stands still "
            "with no pull under way and none to send; this is a bug of pyspark-rocketmq. Run the query again."
        )

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


def _worst(troubles: Iterable[RocketMQError]) -> RocketMQError | None:
    """Of the troubles met at once, the one to act on: of lost messages the first, then any that will not pass."""
    return min(troubles, key=_rank, default=None)


def _rank(trouble: RocketMQError) -> tuple[int, int]:
    if isinstance(trouble, DataLoss):
        return 0, trouble.wanted
    return (2 if trouble.retryable else 1), 0
