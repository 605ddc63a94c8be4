"""What one micro-batch reads: a range per queue, from stored progress, broker bounds and limits.

The rules, in the order in which they apply to a queue:

1. Not in ``caps`` although caps are given: it was not there when the drain began; left out.
2. Suspended: left out until due. Other queues never wait for it. No suspension is longer than half a minute, so one
   that ends later than that was written before the clock was stepped back: it is over.
3. Its next offset is outside the broker's bounds: a gap, reported. The range begins at the corrected offset if
   gaps are skipped, else the queue is left out.
4. It ends at the smallest of the broker's end, its cap and the flow-control threshold. A queue that was suspended at
   its first message is tried with one delivery's worth: it may well stop there again, and the more its backlog
   grows the less of the others' share is to go into reading what is not delivered.
5. The total limit is shared in proportion to what is left, at least one offset each; so is the one in bytes.
6. A queue whose listener has had messages and committed none (autoCommit=false) gets them all again, with at least as
   many new ones, up to the flow-control threshold; until there are new ones it is left out for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from math import ceil, inf
from typing import NamedTuple

from pyspark_rocketmq.consume.gaps import OffsetGap
from pyspark_rocketmq.consume.orderly import LONGEST_SUSPEND_MILLIS
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """What the offset store holds of one queue, as far as planning is concerned."""

    next_offset: int
    """Next queue offset to consume."""
    _: KW_ONLY
    epoch: int = 0
    reconsume_times: int = 0
    """How often the message at ``next_offset`` was given back so far."""
    suspended_until_s: float | None = None
    """Seconds since the epoch; from this moment on the queue may be planned again."""
    put_back: str = ""
    """How often messages from ``next_offset`` on were given back, where the first was not the only one."""

    @property
    def is_on_trial(self) -> bool:
        """Whether the queue was suspended because of the message at ``next_offset``."""
        return self.suspended_until_s is not None and self.reconsume_times > 0


class Had(NamedTuple):
    """What a queue's listener has had, from its next offset on, and committed nothing of."""

    offsets: int
    rests: bool
    """Whether it is not to get the same again so soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much one plan may take; None is no limit."""

    max_offsets_per_trigger: int | None = None
    """Over all queues, as in Spark's Kafka source."""
    max_bytes_per_trigger: int | None = None
    """Over all queues, by the sizes that are known; each queue gets at least one offset."""
    pull_threshold_for_queue: int | None = None
    """Per queue: RocketMQ's flow control (D13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to read now."""

    ranges: tuple[QueueRange, ...]
    """Sorted by queue; none is empty."""
    gaps: tuple[OffsetGap, ...]
    """Sorted by queue; the shell decides by failOnDataLoss."""
    readable: int
    """Offsets that could be read now if nothing were limited."""
    next_due_s: float | None
    """When the first suspended queue with something to read is due; None when none is suspended."""
    held_up: tuple[QueueRange, ...] = ()
    """What listeners have had in full and committed nothing of, although the threshold allows no more; sorted by queue."""


_LARGEST_DELIVERY = 1024
"""The most messages that ``consumeMessageBatchMaxSize`` may give a listener at once."""
_NONE_HAD: Mapping[MessageQueue, Had] = {}


def plan_ranges(
    bounds: Mapping[MessageQueue, QueueBounds],
    progress: Mapping[MessageQueue, QueueProgress],
    *,
    limits: ReadLimits,
    now_s: float,
    caps: Mapping[MessageQueue, int] | None = None,
    had: Mapping[MessageQueue, Had] | None = None,
    skip_gaps: bool = False,
    message_bytes: Callable[[MessageQueue], float] | None = None,
) -> Plan:
    """Plan every queue of ``bounds`` that has something to read and is not suspended.

    The sum of the ranges is at most ``max_offsets_per_trigger`` and uses it up when there is enough to read,
    with two exceptions: with more non-empty queues than the limit each still gets one offset (as in Spark's
    Kafka source, so that no queue starves), and a queue with messages had in vain gets more than its share.

    Args:
        bounds: The queues to plan (owned and locked) and what their brokers hold.
        progress: Stored progress; a queue without starts at its min offset (A2).
        limits: See :class:`ReadLimits`.
        now_s: Seconds since the epoch.
        caps: Exclusive ends not to go beyond (``availableNow``); queues missing here are left out.
        had: What queues' listeners have had in vain.
        skip_gaps: Plan a queue with a gap from the corrected offset (failOnDataLoss=false).
        message_bytes: How large a message of a queue is, about; needed for a limit in bytes.
    """
    planner = _Planner(
        limits=limits,
        now_s=now_s,
        had=had or _NONE_HAD,
        skip_gaps=skip_gaps,
        message_bytes=message_bytes,
    )
    for queue in sorted(bounds if caps is None else bounds.keys() & caps.keys()):
        planner.add(queue, bounds[queue], progress.get(queue), None if caps is None else caps[queue])
    return planner.plan()


class _Planner:
    """One plan in the making."""

    def __init__(
        self,
        *,
        limits: ReadLimits,
        now_s: float,
        had: Mapping[MessageQueue, Had],
        skip_gaps: bool,
        message_bytes: Callable[[MessageQueue], float] | None,
    ) -> None:
        self._message_bytes = message_bytes
        self._limits = limits
        self._now_s = now_s
        self._had = had
        self._skip_gaps = skip_gaps
        self._candidates: list[tuple[MessageQueue, QueueProgress, int]] = []
        """Queue, progress at the offset to read from, offsets that may be read."""
        self._gaps: list[OffsetGap] = []
        self._next_due_s: float | None = None

    def add(
        self, queue: MessageQueue, bounds: QueueBounds, progress: QueueProgress | None, cap: int | None
    ) -> None:
        if progress is None:
            progress = QueueProgress(bounds.min_offset)
        end = bounds.max_offset if cap is None else min(bounds.max_offset, cap)
        due_s = progress.suspended_until_s
        if due_s is not None and self._now_s < due_s <= self._now_s + LONGEST_SUSPEND_MILLIS / 1000:
            if progress.next_offset < end and (self._next_due_s is None or due_s < self._next_due_s):
                self._next_due_s = due_s
            return
        if not bounds.allow(progress.next_offset):
            corrected = self._report_gap(queue, bounds, progress)
            if corrected is None:
                return
            progress = corrected
        readable = end - progress.next_offset
        if readable > 0:
            self._candidates.append((queue, progress, readable))

    def plan(self) -> Plan:
        ranges: list[QueueRange] = []
        held_up: list[QueueRange] = []
        for (queue, progress, readable), length in zip(self._candidates, self._lengths(), strict=True):
            planned = QueueRange(
                queue=queue,
                start=progress.next_offset,
                end=progress.next_offset + length,
                epoch=progress.epoch,
                reconsume_times=progress.reconsume_times,
                put_back=progress.put_back,
            )
            had = self._had.get(queue)
            if had is None or length > had.offsets or not had.rests:
                ranges.append(planned)
            elif length < readable:
                held_up.append(planned)
        return Plan(
            ranges=tuple(ranges),
            gaps=tuple(self._gaps),
            readable=sum(length for _, _, length in self._candidates),
            next_due_s=self._next_due_s,
            held_up=tuple(held_up),
        )

    def _report_gap(
        self, queue: MessageQueue, bounds: QueueBounds, progress: QueueProgress
    ) -> QueueProgress | None:
        gap = OffsetGap.between(queue, progress.next_offset, bounds)
        if gap is None:
            return progress
        self._gaps.append(gap)
        # Counts belonged to what is gone.
        return QueueProgress(gap.corrected, epoch=progress.epoch) if self._skip_gaps else None

    def _lengths(self) -> list[int]:
        readable = [
            min(length, _LARGEST_DELIVERY) if progress.is_on_trial else length
            for _, progress, length in self._candidates
        ]
        threshold = self._limits.pull_threshold_for_queue
        wanted = readable if threshold is None else [min(length, threshold) for length in readable]
        limit = self._limits.max_offsets_per_trigger
        shares = wanted if limit is None else share_limit(wanted, limit)
        shares = self._within_bytes(shares)
        if not self._had:
            return shares
        most = inf if threshold is None else threshold
        return [
            share
            if queue not in self._had
            else int(min(max(share, 2 * self._had[queue].offsets), length, most))
            for (queue, _, length), share in zip(self._candidates, shares, strict=True)
        ]

    def _within_bytes(self, lengths: list[int]) -> list[int]:
        limit = self._limits.max_bytes_per_trigger
        if limit is None or self._message_bytes is None:
            return lengths
        sizes = [max(1.0, self._message_bytes(queue)) for queue, _, _ in self._candidates]
        wanted = [ceil(length * size) for length, size in zip(lengths, sizes, strict=True)]
        if sum(wanted) <= limit:
            return lengths
        return [
            min(length, max(1, int(share / size)))
            for length, share, size in zip(lengths, share_limit(wanted, limit), sizes, strict=True)
        ]


def share_limit(wanted: list[int], limit: int) -> list[int]:
    """Share ``limit`` among positive demands: one each, the rest in proportion to what they still want.

    The sum is ``min(limit, sum(wanted))``, or ``len(wanted)`` if that is more; no share exceeds its demand.
    Rounding leaves go to the largest remainders, the first of equals.
    """
    total = sum(wanted)
    count = len(wanted)
    if total <= limit:
        return wanted
    if limit <= count:
        return [1] * count
    spare = limit - count
    still_wanted = total - count
    scaled = [divmod(spare * (demand - 1), still_wanted) for demand in wanted]
    shares = [1 + quotient for quotient, _ in scaled]
    left = limit - sum(shares)
    if left:
        by_remainder = sorted(range(count), key=lambda index: -scaled[index][1])
        for index in by_remainder[:left]:
            shares[index] += 1
    return shares
