"""One range being pulled: what an answer means for it, and when it may ask again.

Between :mod:`~pyspark_rocketmq.consume.fetch_window`, which knows offsets only, and
:mod:`~pyspark_rocketmq.source.fetcher`, which knows connections only.  Does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.fetch_window import MASTER_ID, AnswerOutcome, PullFrom, PullStep, PullWindow
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
)
from pyspark_rocketmq.model import PulledBody
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.wire.codes import PullSysFlag, ResponseCode
from pyspark_rocketmq.wire.namespace import queue_with_namespace, with_namespace
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, PullSeries, PullStatus
from pyspark_rocketmq.wire.subscription import expression_type

logger = logging.getLogger(__name__)

_AHEAD_BYTES: Final = 16 << 20
_FILTERED_SEGMENT: Final = 800
"""Offsets per pull sequence under a tag filter: what a broker scans at least in one pull."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_FLOW_CONTROL_PAUSE_S: Final = 0.02
"""``DefaultMQPushConsumerImpl.PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL``; a quota is full again soon.
"""
_LONGEST_PATIENCE_OF_A_GROUP_S: Final = 10.0
"""A micro-batch ends when its slowest range does, so a broker in trouble keeps other brokers' queues waiting.
"""

_GONE: Final[Mapping[int, type[DataLoss]]] = {
    ResponseCode.TOPIC_NOT_EXIST: TopicDeleted,
    ResponseCode.INVALID_PARAMETER: QueueRemoved,
}
"""How a broker refuses to pull what it no longer has; the second for a queue id beyond the topic's
(``PullMessageProcessor.processRequest``)."""


class TailLost(OffsetError):
    """The broker's queue ends before the range does; a fresh look at its bounds tells where to go on."""


class EnoughRead(OffsetError):
    """What was read of the range is as large as it may be."""


class QueueReset(OffsetError):
    """An operator has moved the group to ``target`` in this queue, and the broker tells so once."""

    def __init__(self, text: str, target: int) -> None:
        super().__init__(text, target)
        self.target = target

    def __str__(self) -> str:
        return str(self.args[0])


class RangePull:
    """The pulls of one range; survives trouble for ``retry_timeout_s``, in consumer mode 10 s at most.

    The caller reports every pull of ``steps()`` once, by ``take_in`` or ``lost``, and calls ``settle`` when
    all that came at once is reported.
    """

    def __init__(self, partition: QueuePartition, clock: Clock, *, depth: int) -> None:
        self.partition = partition
        self.skipped = range(0)
        """The offsets passed over, and told of, because the broker no longer has them; empty without such a
        gap."""
        self.failure: RocketMQError | None = None
        """Why the range cannot be read to its end."""
        self.in_flight = 0
        """Pulls given out and not reported."""
        self.window = PullWindow(
            partition.planned.start,
            partition.planned.end,
            segment=max(_FILTERED_SEGMENT if partition.is_filtered else 1, partition.pull_batch_size),
            depth=depth,
            max_msg_nums=partition.pull_batch_size,
            max_ahead_bytes=_AHEAD_BYTES,
        )
        self.series = PullSeries(_request(partition))
        """What the steps are sent as."""
        self._clock = clock
        self._from = PullFrom(partition.replicas, prefers_replica=partition.prefers_replica)
        self._troubles: list[RocketMQError] = []
        """Met since the last ``settle``."""
        self._patience: Deadline | None = None
        """Runs from the first failure to the next success."""
        self._pause_s = _FIRST_PAUSE_S
        self._resumes_at_s: float | None = None
        self._has_met_reset = False
        """Since the last success."""
        self.bounds: tuple[int, int] | None = None
        """The queue's smallest offset and its end, as the newest answer tells them; None before the first."""
        self.answers = 0
        """Pulls that brought messages."""
        self.answered_after_s = 0.0
        """From sending to answer, of all of them together."""

    @property
    def broker_id(self) -> int:
        """Id of the broker that the next pulls go to."""
        return self._from.broker_id

    @property
    def address(self) -> str:
        """Where that broker is."""
        broker_id = self._from.broker_id
        return self.partition.address if broker_id == MASTER_ID else self.partition.replicas[broker_id]

    @property
    def is_over(self) -> bool:
        """Whether no more pulls will be made."""
        return self.failure is not None or self.window.is_pulled

    @property
    def may_ask(self) -> bool:
        """Whether pulls may be sent now."""
        return not self.is_over and not self.pause_left_s()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way although pulls may be sent: others' slow answers are not to be waited for."""
        return not self.in_flight and self.may_ask

    def pause_left_s(self) -> float:
        """Seconds to wait before the next pull; 0 if there is no pause."""
        if self._resumes_at_s is None:
            return 0.0
        left_s = self._resumes_at_s - self._clock.monotonic_s()
        if left_s <= 0:
            self._resumes_at_s = None
        return max(0.0, left_s)

    def steps(self, at_most: int, *, may_run_ahead: bool = True) -> list[PullStep]:
        """Pulls to send to ``address`` now."""
        steps = self.window.requests(at_most, may_run_ahead=may_run_ahead)
        self.in_flight += len(steps)
        return steps

    def lost(self, step: PullStep, by: int, error: RocketMQError | None) -> None:
        """A pull brought nothing from broker ``by``; without an error, or from a replica, it is sent again at once."""
        self.in_flight -= 1
        self.window.failed(step.segment_id)
        if self._from.disappointed(by, self._clock.monotonic_s()):
            logger.info(
                "replica %d did not serve, back to the master %s: %s", by, self.partition.planned.queue, error
            )
        elif error is not None:
            self._troubles.append(error)

    def take_in(self, step: PullStep, by: int, outcome: PullResult | RocketMQError) -> None:
        """Take what broker ``by`` answered."""
        if isinstance(outcome, RocketMQError):
            loss = self._queue_is_gone(step, outcome) if by == MASTER_ID else None
            if loss is not None and not self.partition.fail_on_data_loss:
                self._tell_gap(step.queue_offset, self.partition.planned.end, str(outcome))
                self._advance(step, self.partition.planned.end, b"")
            else:
                self.lost(step, by, loss or outcome)
        elif outcome.status is PullStatus.FOUND or (
            by == MASTER_ID and outcome.status is PullStatus.NO_MATCHED_MSG
        ):
            self._go_on(step, by, outcome)
        elif by != MASTER_ID:
            self.lost(step, by, None)
        elif outcome.status is PullStatus.NO_NEW_MSG:
            self.lost(step, by, self._nothing_there(step))
        elif outcome.min_offset <= step.queue_offset <= outcome.max_offset:
            self.lost(step, by, self._meet_reset(step, outcome.next_begin_offset))
        else:
            self._skip_gap(step, outcome)

    def stop(self) -> None:
        """Pull no more: what was handed out is enough."""
        if self.failure is None:
            planned = self.partition.planned
            self.failure = EnoughRead(
                f"{planned.queue}: enough was read of {planned.start} to {planned.end}."
            )

    def settle(self) -> None:
        """Act on the troubles met at once: a pause after one that may pass; any other is final, or when patience is over."""
        if not self._troubles:
            return
        trouble = min(self._troubles, key=_rank)
        self._troubles.clear()
        if self._patience is None:
            self._patience = Deadline.after(self._clock, self._longest_trouble_s)
        if not trouble.retryable or self._patience.has_passed:
            self.failure = trouble
        elif not self.pause_left_s():
            self._pause(trouble, self._patience)

    def stands_still(self) -> RocketMQError:
        """The error of a range that is not over and has no pull to send."""
        planned = self.partition.planned
        return RocketMQError(
            f"{planned.queue}: reading {planned.start} to {planned.end} from {self.address} stands still "
            "with no pull under way and none to send; this is a bug of pyspark-rocketmq. Run the query again."
        )

    def _pause(self, trouble: RocketMQError, patience: Deadline) -> None:
        logger.warning("pull failed, trying again %s: %s", self.partition.planned.queue, trouble)
        if isinstance(trouble, BrokerError) and trouble.code == ResponseCode.FLOW_CONTROL:
            pause_s = _FLOW_CONTROL_PAUSE_S
        else:
            pause_s = self._pause_s
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        self._resumes_at_s = self._clock.monotonic_s() + min(pause_s, patience.remaining_s())

    @property
    def _longest_trouble_s(self) -> float:
        retry_timeout_s = self.partition.retry_timeout_s
        is_of_group = self.partition.with_marker
        return min(retry_timeout_s, _LONGEST_PATIENCE_OF_A_GROUP_S) if is_of_group else retry_timeout_s

    def _go_on(self, step: PullStep, by: int, result: PullResult) -> None:
        if result.next_begin_offset <= step.queue_offset:
            self.lost(step, by, self._nothing_there(step))
            return
        self._advance(step, result.next_begin_offset, result.body)
        self.bounds = result.min_offset, result.max_offset
        self._patience, self._pause_s, self._has_met_reset = None, _FIRST_PAUSE_S, False
        if result.suggest_which_broker_id != by or self._from.is_away:
            self._from.suggested(by, result.suggest_which_broker_id, self._clock.monotonic_s())

    def _advance(self, step: PullStep, next_begin_offset: int, body: PulledBody) -> AnswerOutcome:
        self.in_flight -= 1
        return self.window.answered(step.segment_id, next_begin_offset, body)

    def _meet_reset(self, step: PullStep, target: int) -> RocketMQError | None:
        """The broker says that the offset has moved, although it is there.

        A broker that keeps resets itself (``useServerSideResetOffset``) tells the group's next pull of the
        queue so, once (``ConsumerOffsetManager.queryThenEraseResetOffset``). A group's range ends here, to be
        planned anew from the target; who has no group passes it, but more than once is trouble.
        """
        queue = self.partition.planned.queue
        if self.partition.with_marker:
            return QueueReset(f"{queue}: an operator has reset the group's offset to {target}.", target)
        if self._has_met_reset:
            return SystemBusy(
                int(PullStatus.OFFSET_ILLEGAL),
                f"offset {step.queue_offset} moved, again and again, although the queue has it; somebody may "
                "be "
                "resetting the group's offsets all the time",
                request=f"PULL_MESSAGE {queue}",
                address=self.partition.address,
            )
        self._has_met_reset = True
        logger.info(
            "reset stored at the broker is not followed without a group of our own group=%s %s",
            self.partition.consumer_group,
            queue,
        )
        return None

    def _queue_is_gone(self, step: PullStep, error: RocketMQError) -> DataLoss | None:
        """The loss that a refusal stands for: the queue was there when the range was planned; a group plans anew."""
        if self.partition.with_marker or not isinstance(error, BrokerError) or error.code not in _GONE:
            return None
        return _GONE[error.code](str(self.partition.planned.queue), step.queue_offset, str(error))

    def _skip_gap(self, step: PullStep, result: PullResult) -> None:
        """Row F4: the offsets asked for are gone, or not there any more."""
        planned = self.partition.planned
        available = f"{result.min_offset} (inclusive) to {result.max_offset} (exclusive)"
        is_ahead = result.next_begin_offset > step.queue_offset
        if self.partition.fail_on_data_loss:
            where = f"{planned.queue} at {self.partition.address}"
            kind = MessagesExpired if step.queue_offset < result.min_offset else LogTailLost
            self.lost(step, MASTER_ID, kind(where, step.queue_offset, available))
        elif not is_ahead and self.partition.with_marker:
            lost_tail = TailLost(
                f"{planned.queue}: {self.partition.address} has offsets {available}, so the range that was "
                "planned "
                f"to {planned.end} has lost its tail."
            )
            self.lost(step, MASTER_ID, lost_tail)
        else:
            # A corrected offset before the one asked for: the log lost its tail, and the rest of the range
            # with it.
            goes_on = min(result.next_begin_offset, planned.end) if is_ahead else planned.end
            self._tell_gap(step.queue_offset, goes_on, available)
            self._advance(step, goes_on, b"")

    def _tell_gap(self, wanted: int, goes_on: int, available: str) -> None:
        """Once for all the pulls that were under way into the same gap."""
        if wanted in self.skipped and goes_on <= self.skipped.stop:
            return
        logger.warning(
            "offset gap %s wanted=%d available=%s continuing_at=%d",
            self.partition.planned.queue,
            wanted,
            available,
            goes_on,
        )
        known = self.skipped or range(wanted, goes_on)
        self.skipped = range(min(known.start, wanted), max(known.stop, goes_on))

    def _nothing_there(self, step: PullStep) -> SystemBusy:
        return SystemBusy(
            int(PullStatus.NO_NEW_MSG),
            f"nothing at offset {step.queue_offset} although the queue reached {self.partition.planned.end} "
            "when the range was planned; the broker may be recovering",
            request=f"PULL_MESSAGE {self.partition.planned.queue}",
            address=self.partition.address,
        )


def _request(partition: QueuePartition) -> PullRequest:
    return PullRequest(
        consumer_group=with_namespace(partition.namespace, partition.consumer_group),
        queue=queue_with_namespace(partition.namespace, partition.planned.queue),
        queue_offset=partition.planned.start,
        max_msg_nums=partition.pull_batch_size,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        subscription=partition.subscription,
        expression_type=expression_type(is_sql92=partition.is_sql92),
    )


def _rank(trouble: RocketMQError) -> tuple[int, int]:
    """Of lost messages the first is told, then any trouble that will not pass."""
    if isinstance(trouble, DataLoss):
        return 0, trouble.wanted
    return (2 if trouble.retryable else 1), 0
