"""Decides which offsets one micro-batch reads, and how its ranges share tasks. No I/O.

**Offsets to read of a queue**, by rules in this order (:func:`plan_ranges`):

1. A query with ``availableNow`` (a *drain*) has caps: ends of the queues when it began, at which it stops. A
   queue that is not in ``caps`` did not exist then: leave it out.
2. A suspended queue is left out until it is due. Other queues never wait for it. A suspension lasts at most
   30 s. An end that is more than 60 s ahead (30 s more, because clocks differ) was written before the clock
   was set back, and counts as over.
3. If the next offset is outside the broker's bounds, a gap is reported. The range begins at the corrected
   offset if gaps are skipped; otherwise the queue is left out.
4. The range ends at the smallest of the broker's end, the queue's cap and the flow-control threshold. A queue
   that was suspended at the message with which its new range begins gets at most 1,024 offsets, the largest
   possible delivery. The listener may well stop there again, and offsets that are not delivered must not use
   up the other queues' share of the limit.
5. The total limit is shared among the queues in proportion to what each still has to read, at least one
   offset each. The limit in bytes is shared in the same way.
6. If a listener has committed none of the messages of a range (autoCommit=false), the next range of the queue
   has these messages and at least as many new ones, up to the flow-control threshold. If there are no new
   messages, the queue waits for a while.

In real time a plan has *open* ranges, which have no end, and no limits (:func:`plan_open_ranges`). It has a
range for every queue: also for a queue with nothing to read, and for a suspended queue, whose range begins
when the suspension is over. Only rule 3 applies. There are at most as many tasks as task slots, so a task may
get several ranges (:func:`deal`). A task that had to wait for a slot would wait for ever, since no other task
ends by itself.

**Which ranges share a task** (:func:`shared_tasks`). Every task costs some tens of milliseconds of a core:
Spark schedules it, and two Python processes handle it. A queue with a few messages takes less. So:

1. A task gets further ranges while its expected duration stays within 1.25 times that of the longest range,
   or 25 ms if that is more. So even with a core for every range the micro-batch takes at most that much
   longer; with few cores it takes less time.
2. A range of unknown duration has its own task, except by rule 3.
3. If it is known how many tasks can run at the same time, there are at most so many tasks, each with its
   share of the work. With more tasks, some would wait for a core and do nothing for their queues. And a
   running task with only suspended queues left would have to end, to free its core, instead of delivering
   them again.
4. Neighbours in a task that together take at most 25 ms and have at most 1,024 offsets are read together:
   their pulls are sent, and their messages decoded, together, which takes as long for a few short ranges as
   for one. A queue that another member should get meanwhile waits for about 25 ms at most, less than one call
   of a slow listener lasts (0.1 s).

:mod:`~pyspark_rocketmq.consume.turns` decides how a task takes turns with its ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace
from itertools import pairwise
from math import ceil, inf
from typing import Final, NamedTuple

from pyspark_rocketmq.consume.concurrent import SEND_BACK_PAUSE_S
from pyspark_rocketmq.consume.positions import OffsetGap
from pyspark_rocketmq.consume.suspension import suspended_until
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import OPEN_END, MessageQueue, QueueBounds, QueueRange, QueueState
from pyspark_rocketmq.stored_values import NO_MESSAGES, trial_of

LONGEST_LEFT_OUT_S: Final = 120.0
"""Maximum time, in seconds, that a queue with messages and without a suspension may be in no plan
(``ProcessQueue.PULL_MAX_IDLE_TIME``)."""

MAX_PARTS: Final = 100_000
"""Maximum number of tasks into which one read is split: a broker may report any offset, and Spark's driver
keeps each task in memory."""
READ_MS: Final = 0.01
"""Approximate time to pull and decode a message, in milliseconds."""
WORTH_A_TASK_MS: Final = 25.0
"""Expected duration of a task, in milliseconds, up to which ranges share it; the limit is higher if one range
is expected to last longer."""
_READ_TOGETHER: Final = 1024
"""Maximum number of offsets of several ranges that are read together: their messages are in memory
together."""
_LONGER: Final = 1.25
_LARGEST_DELIVERY = 1024
"""Maximum number of messages that a listener may get in one call (``consumeMessageBatchMaxSize``)."""
_FIRST_INCOMPLETE_S: Final = 5.0
_LONGEST_INCOMPLETE_S: Final = 30.0
REST_S: Final = 60.0
"""Pause, in seconds, before a listener gets uncommitted messages again if there are no new ones to add."""


class StuckQueueDetector:
    """Finds queues of this consumer that have messages and are not suspended, but are in no plan for 120 s.

    That should never happen. If it does, this consumer's memory of the queue is wrong, and the caller claims
    the queue again to correct it. A suspended queue is expected to wait, so it is not found
    (alibaba/rocketmq#459). See row B6 of ``docs/semantics.md``.

    Source: ``ProcessQueue.isPullExpired``, ``RebalanceImpl.updateProcessQueueTableInRebalance``.
    """

    def __init__(self) -> None:
        self._ready: frozenset[MessageQueue] = frozenset()
        self._since_s: dict[MessageQueue, float] = {}

    def look(
        self,
        progress: Mapping[MessageQueue, QueueState],
        bounds: Mapping[MessageQueue, QueueBounds],
        now_s: float,
    ) -> None:
        """Note the queues that the next plan could have: they have messages and are not suspended.

        ``now_s`` is wall-clock time, as the ends of suspensions are.
        """
        self._ready = frozenset(
            queue
            for queue, state in progress.items()
            if state.next_offset < bounds[queue].max_offset and suspended_until(state, now_s) is None
        )

    def planned(self, queues: Collection[MessageQueue], now_s: float) -> list[MessageQueue]:
        """Note the plan's queues; return those that plans have left out for ``LONGEST_LEFT_OUT_S``.

        Only queues that the last :meth:`look` has noted are returned. A queue that is still left out is
        returned again after the same time. ``now_s`` is monotonic.
        """
        waiting = self._ready.difference(queues)
        self._since_s = {queue: self._since_s.get(queue, now_s) for queue in waiting}
        overdue = [queue for queue, since_s in self._since_s.items() if now_s - since_s >= LONGEST_LEFT_OUT_S]
        for queue in overdue:
            self._since_s[queue] = now_s
        return sorted(overdue)


def split_ranges(
    ranges: Sequence[QueueRange], *, min_partitions: int | None, max_records: int | None
) -> list[QueueRange]:
    """Cut the non-empty ``ranges``, in their order, into consecutive parts of nearly equal length.

    Works like Spark's ``KafkaOffsetRangeCalculator.getRanges``, whose options have the same names.

    Args:
        ranges: One for each queue.
        min_partitions: Approximate number of parts in all; a longer range gets more of them. Ranges shorter
            than a fair part stay whole, and no part is empty, so there may be fewer parts. None: ranges are
            cut only because of ``max_records``.
        max_records: Maximum number of offsets of one part; None: no limit.

    Raises:
        OptionError: If ``max_records`` requires more than ``MAX_PARTS`` parts; none is created then.
    """
    wanted = [each for each in ranges if each.count > 0]
    if max_records is not None:
        if (count := sum(-(-each.count // max_records) for each in wanted)) > MAX_PARTS:
            largest = max(wanted, key=lambda each: each.count)
            problem = (
                f"option 'maxRecordsPerPartition={max_records}' would make {count} tasks, more than "
                f"{MAX_PARTS}: the largest range is {largest.queue} from {largest.start} to {largest.end}. "
                "Raise the option"
            )
            raise OptionError((problem,))
        wanted = [part for each in wanted for part in _cut(each, -(-each.count // max_records))]
    if min_partitions is None or len(wanted) >= min_partitions:
        return wanted
    total = sum(each.count for each in wanted)
    small = [each for each in wanted if each.count * min_partitions < total]
    left = max(1, min_partitions - len(small))
    total_left = total - sum(each.count for each in small)
    parts: list[QueueRange] = []
    for each in wanted:
        # Rounded as in Spark: the number of parts is only approximate.
        count = 1 if each.count * min_partitions < total else _rounded(each.count * left, total_left)
        parts += _cut(each, count)
    return parts


def _rounded(dividend: int, divisor: int) -> int:
    return (2 * dividend + divisor) // (2 * divisor)


def _cut(whole: QueueRange, count: int) -> list[QueueRange]:
    count = max(1, min(count, whole.count))
    bounds = [whole.start + whole.count * number // count for number in range(count + 1)]
    return [replace(whole.starting_at(start), end=end) for start, end in pairwise(bounds)]


class Expected(NamedTuple):
    """Expected work of a range."""

    offsets: int
    """Number of its offsets."""
    listener_ms: float | None
    """Time of the listener for one message; None if unknown."""

    @property
    def ms(self) -> float:
        """Time of reading and the listener together, in milliseconds; infinite if it is unknown."""
        return inf if self.listener_ms is None else self.offsets * (READ_MS + self.listener_ms)


def shared_tasks(ranges: Sequence[Expected], slots: int = 0) -> list[list[int]]:
    """Distribute ranges to tasks; return the indexes of each task's ranges, ascending.

    Short ranges share tasks, so that no task is expected to last much longer than the longest range. A range
    of unknown duration has its own task, unless there are more tasks than ``slots``: then at most so many
    tasks of about equal length are made.

    Args:
        ranges: The ranges of one micro-batch.
        slots: How many tasks can run at the same time; 0 if unknown.
    """
    tasks = _as_long_as_the_longest([each.ms for each in ranges])
    if 0 < slots < len(tasks):
        tasks = _spread(ranges, slots)
    return sorted(map(sorted, tasks))


def read_together(ranges: Sequence[Expected]) -> list[range]:
    """Group one task's ``ranges`` that are pulled and decoded together; return the indexes of each group.

    Neighbours are grouped while they together take at most 25 ms and have at most 1,024 offsets.
    """
    together: list[range] = []
    offsets, lasts_ms = 0, 0.0
    for index, each in enumerate(ranges):
        offsets, lasts_ms = offsets + each.offsets, lasts_ms + each.ms
        if together and offsets <= _READ_TOGETHER and lasts_ms <= WORTH_A_TASK_MS:
            together[-1] = range(together[-1].start, index + 1)
        else:
            together.append(range(index, index + 1))
            offsets, lasts_ms = each.offsets, each.ms
    return together


def _as_long_as_the_longest(expected_ms: Sequence[float]) -> list[list[int]]:
    longest_ms = max([WORTH_A_TASK_MS, *(each * _LONGER for each in expected_ms if each < inf)])
    tasks: list[list[int]] = []
    lasts_ms: list[float] = []
    for index in sorted(range(len(expected_ms)), key=lambda index: -expected_ms[index]):
        # Tasks before the last one are more than half full: ranges come from the longest to the shortest.
        if lasts_ms and lasts_ms[-1] + expected_ms[index] <= longest_ms:
            tasks[-1].append(index)
            lasts_ms[-1] += expected_ms[index]
        else:
            tasks.append([index])
            lasts_ms.append(expected_ms[index])
    return tasks


def _spread(ranges: Sequence[Expected], slots: int) -> list[list[int]]:
    """Return ``slots`` tasks of about equal length: the longest range first, each to the shortest task."""
    known = [each for each in ranges if each.listener_ms is not None]
    known_ms, messages = sum(each.ms for each in known), sum(each.offsets for each in known)
    # An unknown listener is expected to take as long as the others.
    message_ms = known_ms / messages if messages else READ_MS
    takes_ms = [each.offsets * message_ms if each.listener_ms is None else each.ms for each in ranges]
    tasks: list[tuple[float, int, list[int]]] = [(0.0, number, []) for number in range(slots)]
    heapify(tasks)
    for index in sorted(range(len(ranges)), key=lambda index: -takes_ms[index]):
        has_ms, number, task = tasks[0]
        task.append(index)
        heapreplace(tasks, (has_ms + takes_ms[index], number, task))
    return [task for _, _, task in tasks]


def deal(backlogs: Sequence[int], slots: int) -> list[list[int]]:
    """Distribute open ranges to tasks; return the indexes of each task's ranges, ascending.

    Ranges are dealt like cards, the one with the longest backlog first. So tasks get about equally many
    ranges, and the ranges with the longest backlogs go to different tasks.

    Args:
        backlogs: For each range, the number of messages that wait in its queue.
        slots: Number of tasks that can run at the same time; 0 if unknown: then each range has a task.
    """
    count = min(len(backlogs), slots or len(backlogs))
    in_order = sorted(range(len(backlogs)), key=lambda index: -backlogs[index])
    return [sorted(in_order[first::count]) for first in range(count)]


class OpenBatchLength:
    """Decides how long the next batch in real time may last.

    A plan lacks a queue that this member holds if, for example, the queue's broker is away; the queue then
    waits for the next plan. So a batch whose plan lacks queues is short: 5 s. Each further such batch lasts
    twice as long, up to 30 s. After a batch with a complete plan this begins again at 5 s. A complete plan's
    batch lasts ``most_s``, and no batch lasts longer.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._next_s = _FIRST_INCOMPLETE_S

    def of_next(self, *, is_complete: bool) -> float:
        """Return the length of the next batch in seconds.

        ``is_complete``: its plan has every queue that this member holds.
        """
        if is_complete:
            self._next_s = _FIRST_INCOMPLETE_S
            return self._most_s
        lasts_s = min(self._next_s, self._most_s)
        self._next_s = min(2 * self._next_s, _LONGEST_INCOMPLETE_S)
        return lasts_s


class UncommittedDelivery(NamedTuple):
    """Messages that a queue's listener received from the queue's next offset on, and did not commit."""

    offsets: int
    rests: bool
    """True while the listener must not get these messages again, unless new ones can be added to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much one plan may read; None means no limit."""

    max_offsets_per_trigger: int | None = None
    """Maximum number of offsets of all queues together, as in Spark's Kafka source."""
    max_bytes_per_trigger: int | None = None
    """Maximum number of bytes of all queues together, by known message sizes; each queue gets at least one
    offset."""
    pull_threshold_for_queue: int | None = None
    """Maximum number of offsets of each queue: RocketMQ's flow control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ranges to read now, and why other queues have none: gaps, suspensions, uncommitted messages."""

    ranges: tuple[QueueRange, ...]
    """Ranges to read, sorted by queue; none is empty. Either all of them are open or none is."""
    gaps: tuple[OffsetGap, ...]
    """Queues whose next offset is outside their broker's bounds, sorted; the caller reacts according to
    failOnDataLoss."""
    readable: int
    """Number of offsets that could be read now if there were no limits. Offsets of suspended queues count
    only in a plan of open ranges."""
    next_due_s: float | None
    """Wall-clock second at which the first suspended queue with something to read is due; None if there is
    none, and in a plan of open ranges."""
    held_up: tuple[QueueRange, ...] = ()
    """Ranges that listeners have received in full and not committed, and that cannot grow because of
    ``pull_threshold_for_queue``; sorted."""
    at_rest: frozenset[MessageQueue] = frozenset()
    """Queues with something to read that are rightly left out: a query with ``availableNow`` reads them no
    further, or their listener has committed nothing and gets its messages again later."""


def plan_ranges(
    bounds: Mapping[MessageQueue, QueueBounds],
    progress: Mapping[MessageQueue, QueueState],
    *,
    limits: ReadLimits,
    now_s: float,
    caps: Mapping[MessageQueue, int] | None = None,
    uncommitted: Mapping[MessageQueue, UncommittedDelivery] | None = None,
    skip_gaps: bool = False,
    message_bytes: Callable[[MessageQueue], float] | None = None,
) -> Plan:
    """Plan a range for each queue of ``bounds`` that has something to read and is not suspended.

    Rules 1 to 6 of the module apply. The sum of the ranges is at most ``max_offsets_per_trigger`` and uses it
    up if there is enough to read within the other limits. There are two exceptions: if there are more
    non-empty queues than the limit, each still gets one offset (as in Spark's Kafka source, so that no queue
    starves); and a queue with uncommitted deliveries may get more than its share, or be left out for a while
    (rule 6).

    Args:
        bounds: The queues to plan (owned and locked), with their brokers' bounds.
        progress: Stored progress; a queue without it starts at its min offset.
        limits: See :class:`ReadLimits`.
        now_s: Wall-clock time, in seconds since 1970.
        caps: Exclusive upper ends (``availableNow``); queues missing here are left out. None: no such ends.
        uncommitted: Messages that the queues' listeners received without a commit.
        skip_gaps: Whether to plan a queue whose next offset is outside its bounds (a gap) from the corrected
            offset (failOnDataLoss=false); otherwise it gets no range.
        message_bytes: Returns the approximate size, in bytes, of one message of a queue; needed for a limit
            in bytes.
    """
    planner = _Planner(limits, now_s, uncommitted or {}, skip_gaps, message_bytes)
    for queue in sorted(bounds if caps is None else bounds.keys() & caps.keys()):
        planner.add(queue, bounds[queue], progress.get(queue), None if caps is None else caps[queue])
    if caps is not None:
        planner.at_rest |= bounds.keys() - caps.keys()
    return planner.plan()


def plan_open_ranges(
    bounds: Mapping[MessageQueue, QueueBounds],
    progress: Mapping[MessageQueue, QueueState],
    *,
    now_s: float,
    skip_gaps: bool = False,
) -> Plan:
    """Plan an open range, without an end, for every queue of ``progress``, from its next offset on.

    A suspended queue gets a range, too, which begins when the suspension is over.

    Args:
        bounds: Bounds of these queues.
        progress: Stored progress of the queues to plan (owned and locked).
        now_s: Wall-clock time, in seconds since 1970.
        skip_gaps: Whether to plan a queue with a gap from the corrected offset; otherwise it gets no range.
    """
    ranges: list[QueueRange] = []
    gaps: list[OffsetGap] = []
    readable = 0
    for queue in sorted(progress):
        state = progress[queue]
        gap = OffsetGap.between(queue, state.next_offset, bounds[queue])
        if gap is not None:
            gaps.append(gap)
            if not skip_gaps:
                continue
            state = _after_gap(gap, state)
        begun = state._replace(suspended_until_s=suspended_until(state, now_s), last_message=NO_MESSAGES)
        ranges.append(QueueRange(queue, begun, OPEN_END))
        readable += bounds[queue].max_offset - state.next_offset
    return Plan(ranges=tuple(ranges), gaps=tuple(gaps), readable=readable, next_due_s=None)


def _after_gap(gap: OffsetGap, state: QueueState) -> QueueState:
    """Return the queue's state to go on with at the corrected offset: not suspended, without retry counts."""
    return QueueState(gap.corrected, state.epoch)


@dataclass(slots=True)
class _Planner:
    """A plan being made."""

    limits: ReadLimits
    now_s: float
    uncommitted: Mapping[MessageQueue, UncommittedDelivery]
    skip_gaps: bool
    message_bytes: Callable[[MessageQueue], float] | None
    candidates: list[tuple[MessageQueue, QueueState, int]] = field(default_factory=list)
    """Queue, its state at the offset to read from, and the number of offsets that may be read."""
    gaps: list[OffsetGap] = field(default_factory=list)
    next_due_s: float | None = None
    at_rest: set[MessageQueue] = field(default_factory=set)

    def add(
        self, queue: MessageQueue, bounds: QueueBounds, progress: QueueState | None, cap: int | None
    ) -> None:
        if progress is None:
            progress = QueueState(bounds.min_offset)
        end = bounds.max_offset if cap is None else min(bounds.max_offset, cap)
        if (due_s := suspended_until(progress, self.now_s)) is not None:
            if progress.next_offset < end and (self.next_due_s is None or due_s < self.next_due_s):
                self.next_due_s = due_s
            return
        gap = OffsetGap.between(queue, progress.next_offset, bounds)
        if gap is not None:
            self.gaps.append(gap)
            if not self.skip_gaps:
                return
            progress = _after_gap(gap, progress)
        readable = end - progress.next_offset
        if readable > 0:
            self.candidates.append((queue, progress, readable))
        elif progress.next_offset < bounds.max_offset:
            self.at_rest.add(queue)

    def plan(self) -> Plan:
        ranges: list[QueueRange] = []
        held_up: list[QueueRange] = []
        for (queue, progress, readable), length in zip(self.candidates, self._lengths(), strict=True):
            begun = progress._replace(suspended_until_s=None, last_message=NO_MESSAGES)
            planned = QueueRange(queue, begun, progress.next_offset + length)
            delivery = self.uncommitted.get(queue)
            if delivery is None or length > delivery.offsets or not delivery.rests:
                ranges.append(planned)
                continue
            self.at_rest.add(queue)
            if length < readable:
                held_up.append(planned)
        return Plan(
            ranges=tuple(ranges),
            gaps=tuple(self.gaps),
            readable=sum(length for _, _, length in self.candidates),
            next_due_s=self.next_due_s,
            held_up=tuple(held_up),
            at_rest=frozenset(self.at_rest),
        )

    def _lengths(self) -> list[int]:
        readable = [
            min(length, _LARGEST_DELIVERY) if progress.is_on_trial else length
            for _, progress, length in self.candidates
        ]
        threshold = self.limits.pull_threshold_for_queue
        wanted = readable if threshold is None else [min(length, threshold) for length in readable]
        limit = self.limits.max_offsets_per_trigger
        shares = wanted if limit is None else share_limit(wanted, limit)
        shares = self._within_bytes(shares)
        if not self.uncommitted:
            return shares
        most = inf if threshold is None else threshold
        return [
            share
            if queue not in self.uncommitted
            else int(min(max(share, 2 * self.uncommitted[queue].offsets), length, most))
            for (queue, _, length), share in zip(self.candidates, shares, strict=True)
        ]

    def _within_bytes(self, lengths: list[int]) -> list[int]:
        limit = self.limits.max_bytes_per_trigger
        if limit is None or self.message_bytes is None:
            return lengths
        sizes = [max(1.0, self.message_bytes(queue)) for queue, _, _ in self.candidates]
        wanted = [ceil(length * size) for length, size in zip(lengths, sizes, strict=True)]
        if sum(wanted) <= limit:
            return lengths
        return [
            min(length, max(1, int(share / size)))
            for length, share, size in zip(lengths, share_limit(wanted, limit), sizes, strict=True)
        ]


def share_limit(wanted: list[int], limit: int) -> list[int]:
    """Share ``limit`` among positive demands, ``wanted``; return a share for each demand.

    Each demand gets one; the rest is shared in proportion to the remaining demands. No share exceeds its
    demand. The sum is ``min(limit, sum(wanted))``, or ``len(wanted)`` if that is more. Units that rounding
    leaves over go to the demands with the largest remainders; among equals, to the first.
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


class StallCounter:
    """Remembers, per queue, the range that its listener received without a commit and without a suspension.

    With autoCommit=false a listener may answer SUCCESS for a whole range and commit nothing. The next plan
    then begins at the same offset, and only a longer range brings the messages after which it commits.

    Call ``uncommitted()`` with fresh progress before each plan and ``planned()`` with the ranges that are run
    after it. A suspension keeps the memory of a queue, since the listener still needs the messages; any move
    of the queue, or a new epoch, clears it. A range that its task did not begin counts as suspended until
    that moment (``part.not_begun``). Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._last_plan: dict[MessageQueue, QueueRange] = {}
        self._planned_at_s = 0.0
        self._had: dict[MessageQueue, tuple[QueueRange, float]] = {}
        """The range received in full, and when it was planned."""

    def uncommitted(
        self, progress: Mapping[MessageQueue, QueueState], now_s: float
    ) -> Mapping[MessageQueue, UncommittedDelivery]:
        """Return the uncommitted delivery of each queue that has one, from the queue's next offset on."""
        # If a queue was claimed or reset meanwhile, the whole batch is dropped, whatever listeners answered.
        is_dropped = any(
            queue not in progress or progress[queue].epoch != planned.state.epoch
            for queue, planned in self._last_plan.items()
        )
        for queue, planned in () if is_dropped else self._last_plan.items():
            if progress[queue].suspended_until_s is None:
                self._had[queue] = planned, self._planned_at_s
        self._last_plan = {}
        self._had = {
            queue: (planned, at_s)
            for queue, (planned, at_s) in self._had.items()
            if _stands_at(planned, progress.get(queue))
        }
        return {
            queue: UncommittedDelivery(planned.count, rests=now_s - at_s < REST_S)
            for queue, (planned, at_s) in self._had.items()
        }

    def planned(self, ranges: Iterable[QueueRange], now_s: float) -> None:
        """Remember the ranges that are run, to compare them with the progress they bring."""
        self._last_plan = {planned.queue: planned for planned in ranges}
        self._planned_at_s = now_s


class StandstillPauses:
    """Suspends queues whose last range brought no progress, if the offset store keeps no suspensions.

    Only the brokers are such a store; they keep no attempts, either. Their groups are concurrent, so a
    listener that has had a message has also committed it. A queue stands still because the listener could not
    be opened, no broker took a failed message back, or a pull was refused. The queue is due again after 5 s.
    Until the queue moves, each of its ranges begins with only the first message: if no broker takes this
    message back, the listener must not get the others again each time. After an open range, which has lasted
    long enough, the queue is due immediately.

    Call ``suspended()`` with fresh progress before each plan and ``planned()`` with the ranges that are run
    after it. Times are wall-clock seconds.

    Source: ``ConsumeMessageConcurrentlyService.submitConsumeRequestLater``.
    """

    def __init__(self) -> None:
        self._last_plan: dict[MessageQueue, tuple[int, float]] = {}
        """The start of each range that was run, and how long its queue is suspended if it stands still."""
        self._until: dict[MessageQueue, tuple[int, float]] = {}
        """The next offset at which a queue stands still, and until when it is suspended."""

    def suspended(
        self, progress: Mapping[MessageQueue, QueueState], now_s: float
    ) -> dict[MessageQueue, QueueState]:
        """Return ``progress`` with a suspension, which may be over, for each queue that stands still."""
        self._until |= {
            queue: (start, now_s + pause_s) for queue, (start, pause_s) in self._last_plan.items()
        }
        self._last_plan = {}
        self._until = {
            queue: (offset, until_s)
            for queue, (offset, until_s) in self._until.items()
            if queue in progress and progress[queue].next_offset == offset
        }
        return {
            queue: state._replace(
                suspended_until_s=self._until[queue][1], retry_counts=trial_of(state.next_offset)
            )
            if queue in self._until and state.suspended_until_s is None
            else state
            for queue, state in progress.items()
        }

    def planned(self, ranges: Iterable[QueueRange]) -> None:
        """Remember the ranges that are run, to compare them with the progress they bring.

        The caller leaves out open ranges that have nothing to read when they are planned: their queues do not
        move, and must not be suspended for it.
        """
        self._last_plan = {
            planned.queue: (planned.start, 0.0 if planned.has_open_end else SEND_BACK_PAUSE_S)
            for planned in ranges
        }


def _stands_at(planned: QueueRange, stored: QueueState | None) -> bool:
    return stored is not None and (stored.next_offset, stored.epoch) == (planned.start, planned.state.epoch)
