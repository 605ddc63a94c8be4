"""Decides where a queue starts and ends: by options, by time, by offset store and broker; finds gaps. No I/O.

**A claimed queue** continues at the offset store's position, or at the group's position at the broker. In a
group of only Spark queries the store is the whole truth, and the broker has a copy of it. But a Java consumer
may have had the queue meanwhile, or an operator may have moved the group at the broker: neither uses the
store. So the queue's row in the store remembers which offsets Spark queries have sent to the broker, or found
at it.

1. If the broker has one of these offsets, nobody else has moved the group: the store's offset is the newer
   one.
2. If the broker has another one, somebody else has set it later. It is used, whether it is higher or lower.
3. An operator's reset in the store that no broker has received yet is kept, whatever offset the broker has.

A commit remembers its offset before the offset is sent to the broker. So the row may remember several: the
last one that is known to have arrived, and those after it. A reset forgets its target; the row remembers it
again when the broker has received it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark_rocketmq.errors import DataLoss, LogTailLost, MessagesExpired
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.options.positions import EARLIEST_OFFSET, LATEST_OFFSET, QueuePositions
from pyspark_rocketmq.stored_values import StoredValue, integers_text, read_json

StoredBy = Mapping[str, int]
"""Latest store time of a message at each broker when a plan was made, by broker name; in milliseconds of the
broker's clock. A broker whose time is not known has no entry.

A queue that waits, or is *out of sight* (its broker reported no bounds), was last planned earlier. So it has
an entry of its own with the time of that plan, if the time differs from its broker's. The key of such an
entry is topic, broker name and queue id, separated by spaces.
"""
Unread = Mapping[MessageQueue, int]
"""Number of messages from a range's end to the queue's end when the plan was made, by queue; queues without
such messages are left out."""
EVERY_BROKER: Final = ""
"""Name under which a checkpoint of an earlier release has one time for all brokers."""
MOST_SHOWN: Final = 16
"""Maximum number of offsets that a row of the offset store remembers while it is not known which of them the
broker has."""


class ShownOffsets(StoredValue[tuple[int, ...]]):
    """Offsets that Spark queries have sent to a queue's broker, or found at it.

    Text: a JSON list, oldest first; empty if the broker was never asked, as in a row of an earlier release.
    """

    __slots__ = ()

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets, oldest first.

        Raises:
            DamagedOffsets: If the stored text cannot be read.
        """
        return self._read()

    @property
    def is_known(self) -> bool:
        """Whether the broker was ever asked for the group's offset."""
        return bool(self)

    def __contains__(self, offset: int | None) -> bool:
        return offset in self.offsets

    def followed_by(self, *offsets: int | None) -> ShownOffsets:
        """Return a copy that ends with the ``offsets`` that the broker has or is about to get.

        None is left out, and no offset is contained twice. If there are more than ``MOST_SHOWN``, the oldest
        one and the newest ones remain.
        """
        known = list(self.offsets)
        for offset in offsets:
            if offset is not None:
                known = [each for each in known if each != offset] + [offset]
        return ShownOffsets(
            tuple(known if len(known) <= MOST_SHOWN else [known[0], *known[1 - MOST_SHOWN :]])
        )

    def since(self, arrived: int | None) -> ShownOffsets:
        """Return a copy without the offsets before ``arrived`` in the list, whether they are lower or higher.

        The broker has received ``arrived``, so it has none that was sent before. If ``arrived`` is None or is
        not among the offsets, all stay. In any case the broker now counts as asked, even if no offset is
        known.
        """
        known = self.offsets
        if arrived in known:
            return ShownOffsets(known[known.index(arrived) :])
        return self if self.is_known else ShownOffsets(())

    def found(self, at_broker: int | None) -> ShownOffsets:
        """Return a copy after a claim has found ``at_broker`` at the queue's broker.

        Offsets before it in the list are removed. If it is not in the list, somebody else has put it there:
        then the first offset is removed, which has arrived before; the others may still be on their way. A
        removed offset that is found at the broker later was put there on purpose, and is followed. None, for
        a broker that has no offset, removes none.
        """
        if at_broker is None or at_broker in self:
            return self.since(at_broker)
        return ShownOffsets(self.offsets[1:]).followed_by(at_broker)

    def without(self, offset: int) -> ShownOffsets:
        """Return a copy without ``offset``; whether the broker was ever asked stays the same."""
        known = tuple(each for each in self.offsets if each != offset)
        return ShownOffsets(known) if self.is_known else self

    @staticmethod
    def _encode(facts: tuple[int, ...]) -> str:
        return integers_text(facts)

    @staticmethod
    def _decode(text: str) -> tuple[int, ...]:
        return read_json(text, "shown", lambda found: tuple(map(int, found))) if text else ()


NEVER_SHOWN: Final = ShownOffsets()


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """A queue whose next offset lies outside its broker's range: a pull would get PULL_OFFSET_MOVED.

    To continue at ``corrected``, store it as the queue's progress immediately. For an offset beyond the
    queue's end, it is the end at this moment. If it is not stored, the next plan uses a later end, and
    messages that came meanwhile are skipped.
    """

    queue: MessageQueue
    wanted: int
    min_offset: int
    max_offset: int
    """The broker's end of the queue, exclusive."""
    corrected: int
    """The nearest offset the broker can serve: ``min_offset`` or ``max_offset``."""

    @classmethod
    def between(cls, queue: MessageQueue, wanted: int, bounds: QueueBounds) -> OffsetGap | None:
        """Return the gap if ``wanted`` is outside ``[min_offset, max_offset]``, or None if it is inside."""
        if bounds.allow(wanted):
            return None
        corrected = bounds.min_offset if wanted < bounds.min_offset else bounds.max_offset
        return cls(queue, wanted, bounds.min_offset, bounds.max_offset, corrected)

    def to_error(self) -> DataLoss:
        """Return the error for ``failOnDataLoss=true``, which describes how to go on.

        It is MessagesExpired if the wanted offset is below the broker's minimum, else LogTailLost.
        """
        kind = MessagesExpired if self.wanted < self.min_offset else LogTailLost
        return kind(str(self.queue), self.wanted, f"offsets {self.min_offset} to {self.max_offset}")

    def __str__(self) -> str:
        return (
            f"{self.queue}: offset {self.wanted} is outside the broker's {self.min_offset} to "
            f"{self.max_offset}; it continues at {self.corrected}."
        )


class StoredThen(NamedTuple):
    """Facts about the brokers' logs when a plain stream (a query without a group) made a plan.

    By comparison with them a later plan finds out whether a queue has another log.
    """

    times: StoredBy = MappingProxyType({})
    unread: Unread = MappingProxyType({})

    def newest_of(self, queue: MessageQueue, place: int) -> int:
        """Return the offset of a queue's last message at the time of the plan.

        ``place`` is the last offset of the queue's range in the plan.
        """
        return place + self.unread.get(queue, 0)


NOTHING_STORED: Final = StoredThen()


def unread_after(
    ranges: Iterable[QueueRange], bounds: Mapping[MessageQueue, QueueBounds], before: Unread
) -> Unread:
    """Return how many messages follow each of a plan's ``ranges``, up to the queue's end in ``bounds``.

    ``before`` is the result for the previous plan. A queue keeps its number from ``before`` if it has no
    ``bounds`` now, or if its broker lacks messages of the range: the queue's position has not moved since.
    """
    unread: dict[MessageQueue, int] = {}
    for each in ranges:
        known = bounds.get(each.queue)
        if known is None or known.max_offset < each.end:
            count = before.get(each.queue, 0)
        else:
            count = known.max_offset - each.end
        if count:
            unread[each.queue] = count
    return unread


def stored_by(
    before: StoredBy, bounds: Mapping[MessageQueue, QueueBounds], known: Collection[MessageQueue]
) -> StoredBy:
    """Return, by broker, the latest store time of the messages up to the ends in ``bounds``.

    The next plan compares messages with this time. A message that was stored later, but has the offset of a
    passed message, belongs to another log: the topic was deleted and created again, or a slave without the
    log's end has become master. A broker whose time is not known is left out. Single queues have no entries.

    Args:
        before: Result of this function for the previous plan.
        bounds: Bounds that the plan is made from.
        known: Queues that have a position. If such a queue is not in ``bounds`` now, and ``before`` has no
            time of its broker, the result has none, either.
    """
    names = {queue.broker_name for queue in (*bounds, *known)}
    times = {name: [latest_at(before, name)] for name in names}
    unknown = {
        queue.broker_name for queue in known if queue not in bounds and not times[queue.broker_name][0]
    }
    for queue, each in bounds.items():
        if each.max_offset <= each.min_offset:
            continue
        times[queue.broker_name].append(each.last_update_timestamp)
        if each.last_update_timestamp <= 0:
            unknown.add(queue.broker_name)
    return {name: latest for name in sorted(names - unknown) if (latest := max(times[name])) > 0}


def times_of_waiting(times: StoredBy) -> dict[MessageQueue, int]:
    """Return the entries of ``times`` for single queues, which waited or had no bounds (:data:`StoredBy`)."""
    found: dict[MessageQueue, int] = {}
    for name, time in times.items():
        topic, _, rest = name.partition(" ")
        broker_name, _, queue_id = rest.rpartition(" ")
        if broker_name and queue_id.isdecimal():
            found[MessageQueue(topic, broker_name, int(queue_id))] = time
    return found


def with_times_of_waiting(times: StoredBy, of_waiting: Mapping[MessageQueue, int]) -> StoredBy:
    """Return ``times`` with an entry for each queue of ``of_waiting``.

    A queue gets no entry if its time is 0 (not known) or equals its broker's.
    """
    return {
        **times,
        **{
            " ".join(map(str, queue)): time
            for queue, time in sorted(of_waiting.items())
            if time and time != times.get(queue.broker_name)
        },
    }


def latest_at(times: StoredBy, broker_name: str) -> int:
    """Return a broker's latest store time in ``times``, or else the one under ``EVERY_BROKER``, or else 0."""
    return times.get(broker_name, times.get(EVERY_BROKER, 0))


def ending_positions(
    spec: QueuePositions, bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[dict[MessageQueue, int], tuple[str, ...]]:
    """Return the exclusive ends of all queues, and a sentence for each wanted end beyond the queue's own end.

    In place of such an end, the queue's own end is returned. A queue that is to end at EARLIEST_OFFSET ends
    at its first message, so nothing is read of it.
    """
    ends: dict[MessageQueue, int] = {}
    problems: list[str] = []
    for queue in sorted(bounds):
        wanted, available = spec.wanted(queue), bounds[queue].max_offset
        words = {LATEST_OFFSET: available, EARLIEST_OFFSET: bounds[queue].min_offset}
        ends[queue] = words.get(wanted, min(wanted, available))
        if wanted > available:
            problems.append(
                f"endingOffsets asks for offset {wanted} (exclusive) of {queue}, but the broker has only "
                f"{bounds[queue].min_offset} to {available}; use an offset in this range, or -1 (latest)."
            )
    return ends, tuple(problems)


def backward_problems(
    starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]
) -> tuple[str, ...]:
    """Return a sentence for each queue that would end before it begins."""
    return tuple(
        f"Reading {queue} would begin at offset {start} and end before it, at offset {ends[queue]} "
        "(exclusive): endingOffsets asks for messages that startingOffsets leaves out, or that are no longer "
        "stored. Correct one of these options."
        for queue, start in sorted(starts.items())
        if start > ends[queue]
    )


def batch_ranges(starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """Return the ranges to read, sorted by queue; one is empty if its queue ends before it begins."""
    return [
        QueueRange.between(queue, start, max(start, ends[queue])) for queue, start in sorted(starts.items())
    ]


def starting_position(
    spec: QueuePositions, queue: MessageQueue, bounds: QueueBounds
) -> tuple[int, OffsetGap | None]:
    """Return the offset at which a queue starts, and the gap if ``spec`` wants one outside ``bounds``.

    After a gap the queue starts at the nearest offset within the bounds.
    """
    wanted = spec.wanted(queue)
    if wanted == EARLIEST_OFFSET:
        return bounds.min_offset, None
    if wanted == LATEST_OFFSET:
        return bounds.max_offset, None
    gap = OffsetGap.between(queue, wanted, bounds)
    return (wanted, None) if gap is None else (gap.corrected, gap)


def starting_positions(
    spec: QueuePositions, bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[dict[MessageQueue, int], tuple[str, ...]]:
    """Return where all queues of ``bounds`` start, and a sentence for each wanted offset outside its bounds.

    ``bounds`` may cover a part of the topic: :func:`unknown_queue_problems` finds queues that do not exist.
    """
    positions: dict[MessageQueue, int] = {}
    problems: list[str] = []
    for queue in sorted(bounds):
        positions[queue], gap = starting_position(spec, queue, bounds[queue])
        if gap is not None:
            problems.append(
                f"startingOffsets asks for offset {gap.wanted} of {queue}, but the broker has "
                f"{gap.min_offset} to {gap.max_offset}; use an offset in this range, -2 (earliest) or -1 "
                "(latest)."
            )
    return positions, tuple(problems)


def unknown_queue_problems(
    spec: QueuePositions, queues: Collection[MessageQueue], option: str = "startingOffsets"
) -> tuple[str, ...]:
    """Return a sentence for each queue that ``option`` names and that is not in the topic's ``queues``."""
    return tuple(
        f"{option} names {queue}, which does not exist; correct topic, broker name or queue id."
        for queue in sorted(spec.by_queue.keys() - set(queues))
    )


def timed_positions(
    found: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[dict[MessageQueue, int], tuple[MessageQueue, ...]]:
    """Return the queues' positions at a time, and the queues without a message at or after this time.

    ``found`` has the offsets that brokers answered for the time; they are moved into the queues' ``bounds``.
    For a time after a queue's last message, a broker answers the queue's end. For a time before the first
    message, it answers the first offset of a consume queue's file, which may be below the queue's smallest
    offset (``binarySearchInQueueByTime``).
    """
    positions = {
        queue: min(max(offset, bounds[queue].min_offset), bounds[queue].max_offset)
        for queue, offset in found.items()
    }
    return positions, tuple(
        queue for queue in sorted(positions) if positions[queue] == bounds[queue].max_offset
    )


def first_stored_at(
    time_ms: int, found: int, bounds: QueueBounds, stored_ms: Callable[[int], int | None]
) -> int:
    """Return the offset of a queue's first message stored at or after ``time_ms``, or else the queue's end.

    Brokers before 5.1.1 answer with the nearest message or, of several with that time, with any of them. So
    this function looks at the messages around the answer, and searches among the others if the answer is
    wrong.

    Args:
        time_ms: Milliseconds since the epoch.
        found: The broker's answer.
        bounds: The queue's bounds.
        stored_ms: Returns the store time of the message at an offset; None if it is not known, which leaves
            the answer as it is.

    Source: ``ConsumeQueue.getOffsetInQueueByTime``.
    """
    low, high = bounds.min_offset, bounds.max_offset
    answer = min(max(found, low), high)
    near = iter((answer, answer - 1, answer + 1))
    while low < high:
        place = next((each for each in near if low <= each < high), (low + high) // 2)
        at_ms = stored_ms(place)
        if at_ms is None:
            return min(max(answer, low), high)
        if at_ms < time_ms:
            low = place + 1
        else:
            high = place
    return low


def resolve_start_offset(stored: int, shown: ShownOffsets, at_broker: int | None, *, was_reset: bool) -> int:
    """Return the next offset to consume: the offset store's (``stored``) or the broker's (``at_broker``).

    It is ``stored`` if the broker has none or one of the ``shown`` offsets, and after a reset in the store
    that no broker has received. Otherwise somebody else has moved the group at the broker, so it is
    ``at_broker``, even if that is lower.

    Args:
        stored: The offset store's offset.
        shown: Offsets that Spark queries have sent to the broker, or found at it. If the broker was never
            asked before, the result is the larger one of ``stored`` and ``at_broker``.
        at_broker: The broker's offset; None if it has none. Do not pass None for an error.
        was_reset: Whether the row was last moved by an operator, a command or a member, and not by a batch.
    """
    if at_broker is None or (was_reset and stored not in shown):
        return stored
    if not shown.is_known:
        # Like an earlier release: the larger offset is the later one, whoever consumed it.
        return max(stored, at_broker)
    return stored if at_broker in shown else at_broker
