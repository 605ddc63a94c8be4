"""Where a claimed queue goes on, when both the offset store and the queue's broker know something of the group. Pure.

In a group of Spark queries alone the store is the whole truth, and the broker has its image.  But a Java consumer may have
had the queue meanwhile, or an operator may have moved the group at the broker while it was away: both know nothing of the
store.  So the row remembers what this side has shown the broker, or seen there.

Rule 1: what the broker has is one of these: nobody else was there, and the store's is the newer.
Rule 2: it is none of them: somebody else has put it there, later.  It is followed, back as well as forth.
Rule 3: an operator's reset in the store that no broker was told of yet stands, whatever an earlier member left there.

An offset is remembered in the commit that will show it, before it is sent; so there may be two or more, the last one
that is known to have arrived and those behind it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import Final

from pyspark_rocketmq.errors import DamagedOffsets
from pyspark_rocketmq.model import MessageQueue

MOST_SHOWN: Final = 16
"""Offsets remembered while none of them is known to have arrived."""

_FORGOTTEN_S: Final = 15.0
"""A broker that crashes forgets the offsets of so long at most: it stores them every 5 s (``flushConsumerOffsetInterval``)."""

Shown = tuple[int, ...]
"""Oldest first."""


def go_on_at(stored: int, shown: Shown | None, at_broker: int | None, *, was_reset: bool) -> int:
    """The next offset to consume.

    Args:
        stored: The offset store's.
        shown: What this side has shown, or seen, at the broker; None in a row of an earlier release.
        at_broker: The broker's; None when it has none. An error is not None: it must not come here.
        was_reset: Whether an operator moved the row last.
    """
    if at_broker is None or (was_reset and stored not in (shown or ())):
        return stored
    if shown is None:
        # As that release did: the larger is the later, whoever consumed it.
        return max(stored, at_broker)
    return stored if at_broker in shown else at_broker


def seen(shown: Shown | None, *offsets: int | None) -> Shown:
    """``shown`` and, behind it, what the broker has or is about to get."""
    known = list(shown or ())
    for offset in offsets:
        if offset is not None:
            known = [each for each in known if each != offset] + [offset]
    return tuple(known if len(known) <= MOST_SHOWN else [known[0], *known[1 - MOST_SHOWN :]])


def since(shown: Shown | None, arrived: int | None) -> Shown:
    """``shown`` without what the broker cannot have any more, once ``arrived`` has."""
    known = shown or ()
    return known[known.index(arrived) :] if arrived in known else known


def to_text(shown: Iterable[int] | None) -> str:
    """As an offset row keeps it; empty for None."""
    return "" if shown is None else json.dumps(list(shown), separators=(",", ":"))


def from_text(text: str) -> Shown | None:
    """The reverse of :func:`to_text`.

    Raises:
        DamagedOffsets: If it is no such text.
    """
    if not text:
        return None
    try:
        return tuple(map(int, json.loads(text)))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise DamagedOffsets("shown", text) from None


class PassedOffsets:
    """Where queues stood in the last seconds that this process has seen them.

    A broker that has crashed shows one of these again. That is nobody's reset: followed, it would have messages delivered
    once more after every crash. Who was not there, as a process started since, cannot know and follows it.
    """

    def __init__(self) -> None:
        self._passed: dict[MessageQueue, list[tuple[float, int]]] = {}
        """From when on (monotonic seconds) each offset was the queue's; oldest first."""
        self._away_at_s: dict[str, float] = {}
        """When a broker was seen to be away last, by its name."""

    def note(
        self, next_offsets: Mapping[MessageQueue, int], answering: Collection[str], now_s: float
    ) -> None:
        """Each queue stands there now, and of all brokers these answer."""
        away = {queue.broker_name for queue in self._passed}.difference(answering)
        self._away_at_s |= dict.fromkeys(away, now_s)
        for queue, offset in next_offsets.items():
            passed = self._passed.get(queue)
            if passed is None:
                self._passed[queue] = [(now_s, offset)]
            elif passed[-1][1] != offset:
                passed.append((now_s, offset))
                while passed[1][0] < now_s - _FORGOTTEN_S:
                    del passed[0]

    def has(self, queue: MessageQueue, offset: int) -> bool:
        """Whether the queue stood at ``offset`` shortly before it came to where it is, and its broker was away since."""
        passed = self._passed.get(queue)
        if not passed or self._away_at_s.get(queue.broker_name, -inf) < passed[-1][0]:
            return False
        return any(each == offset for _, each in passed)
