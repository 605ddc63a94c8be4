"""Recognises a group's offset that a broker has again because it crashed. No I/O, no clock.

A broker that crashes loses the group's offsets of its last seconds, and reports an earlier one again. That is
not a reset: following it would repeat messages after every crash. Two witnesses must agree on this. The group
was at that offset in the seconds before the broker was away, and the broker *was* away. An offset to which an
operator sets a group back is followed, also if the group was there a moment ago, unless the broker was away.

The planner sees the group's offsets when it plans, and the brokers that answer. Within a batch, offsets are
committed and sent to the brokers without a plan; in real time a batch lasts for minutes or hours. So two
others are asked: the driver, for the offsets that have arrived at the broker lately, and the group's member,
for the last time at which the broker did not answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from pyspark_rocketmq.model import MessageQueue

_FORGOTTEN_S: Final = 15.0
"""Age in seconds up to which a broker may lose changes of offsets when it crashes. It stores offsets every
5 s (``flushConsumerOffsetInterval``)."""

_BRIEFLY_S: Final = 15.0
"""Longest time, in seconds, in which a broker that restarts answers some requests but not all."""


class PassedOffset(NamedTuple):
    """An offset that a queue's group has reached, and when."""

    at_s: float
    """Monotonic second at which the group reached it, or at which the broker got it."""
    offset: int


class AgedOffset(NamedTuple):
    """A :class:`PassedOffset` for another process, which has another clock."""

    age_s: float
    """Seconds since the group reached it, or since the broker got it."""
    offset: int


def pass_on(passed: list[PassedOffset], offset: int, now_s: float) -> None:
    """Add a queue's new ``offset`` to those ``passed``, oldest first, unless the last one is the same.

    Offsets that were replaced more than 15 s ago are removed.
    """
    if passed and passed[-1].offset == offset:
        return
    passed.append(PassedOffset(now_s, offset))
    while len(passed) > 1 and passed[1].at_s < now_s - _FORGOTTEN_S:
        del passed[0]


class Outage(NamedTuple):
    """A time in which a broker did not answer."""

    left_at_s: float
    """Monotonic second at which the broker last answered before; minus infinity if that is not known."""
    seen_at_s: float
    """Monotonic second at which it was last seen that the broker does not answer."""


class Outages:
    """The last outage of each broker, by the broker's name, as one observer sees it. Not thread-safe."""

    def __init__(self) -> None:
        self._answered_at_s: dict[str, float] = {}
        """When a broker last answered."""
        self._last: dict[str, Outage] = {}

    def answered(self, brokers: Iterable[str], now_s: float) -> None:
        """Note that ``brokers`` answer."""
        self._answered_at_s |= dict.fromkeys(brokers, now_s)

    def away(self, brokers: Iterable[str], now_s: float) -> None:
        """Note that ``brokers`` do not answer.

        If a broker has answered for less than 15 s since its last outage, this one continues the last: a
        broker that restarts may answer some requests before it answers all.
        """
        self._last |= {broker: Outage(self._left_at_s(broker), now_s) for broker in brokers}

    def _left_at_s(self, broker: str) -> float:
        """Return when the broker last answered before the outage that goes on or begins now."""
        answered_at_s, last = self._answered_at_s.get(broker, -inf), self._last.get(broker)
        if last is not None and answered_at_s < last.seen_at_s + _BRIEFLY_S:
            return last.left_at_s
        return answered_at_s

    def of(self, broker: str) -> Outage | None:
        """Return the broker's last outage; None if none was seen."""
        return self._last.get(broker)


class RecentOffsets:
    """A group's next offset in each queue during the last seconds, as far as this process knows it.

    A process that has started after the crash cannot recognise an offset from before, and follows it.
    """

    def __init__(self) -> None:
        self._passed: dict[MessageQueue, list[PassedOffset]] = {}
        """Offsets of a queue, oldest first."""
        self._seen = Outages()
        """The outages that the planner has seen."""
        self._reported: dict[str, Outage] = {}
        """The last outages that somebody else has seen, by the broker's name."""

    def note(
        self, next_offsets: Mapping[MessageQueue, int], answering: Collection[str], now_s: float
    ) -> None:
        """Note the group's next offset in each queue, and the names of all brokers that answer."""
        self._seen.away({queue.broker_name for queue in self._passed}.difference(answering), now_s)
        self._seen.answered(answering, now_s)
        for queue, offset in next_offsets.items():
            pass_on(self._passed.setdefault(queue, []), offset, now_s)

    def note_outage(self, broker: str, outage: Outage | None) -> None:
        """Note the last outage of a broker that somebody else has seen; None if there was none."""
        if outage is not None:
            self._reported[broker] = outage

    def note_arrivals(self, queue: MessageQueue, arrived: Iterable[PassedOffset], until_s: float) -> None:
        """Note offsets that have arrived at the queue's broker up to ``until_s``; later ones are ignored.

        ``until_s`` is a time before the broker was asked for its offset. What arrived later does not show
        that the broker had returned before it reported this offset.
        """
        known = [*self._passed.get(queue, ()), *(each for each in arrived if each.at_s <= until_s)]
        merged: list[PassedOffset] = []
        for at_s, offset in sorted(known):
            pass_on(merged, offset, at_s)
        if merged:
            self._passed[queue] = merged

    def was_away(self, broker: str) -> bool:
        """Return whether an outage of the broker is known, however long ago."""
        return self._outage_of(broker) is not None

    def has(self, queue: MessageQueue, offset: int) -> bool:
        """Return whether a crash may have put the group's offset at the queue's broker back to ``offset``.

        Two conditions must hold. The broker was away at some time after the group's newest offset was first
        noted. And ``offset`` is this newest offset, or a newer one replaced it at most 15 s before the broker
        last answered: a crash loses no older changes.
        """
        passed: Sequence[PassedOffset] = self._passed.get(queue, ())
        outage = self._outage_of(queue.broker_name)
        if not passed or outage is None or outage.seen_at_s < passed[-1].at_s:
            return False
        lost_since_s = outage.left_at_s - _FORGOTTEN_S
        return passed[-1].offset == offset or any(
            each.offset == offset and newer.at_s >= lost_since_s for each, newer in pairwise(passed)
        )

    def _outage_of(self, broker: str) -> Outage | None:
        """Return the broker's last outage, put together from all that was seen of it."""
        seen = [each for each in (self._seen.of(broker), self._reported.get(broker)) if each is not None]
        if not seen:
            return None
        return Outage(max(each.left_at_s for each in seen), max(each.seen_at_s for each in seen))
