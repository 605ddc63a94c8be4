"""Whether the messages under a queue's offsets are still those that were consumed. Pure.

A topic that is deleted and made anew, or a broker that lost the end of its log, has other messages under offsets that
were there before: the queue's next *life* (``consume.watermark``).  Bounds alone do not tell, for the new log may have
grown past the old offsets.  So the offset row remembers the newest message consumed: its queue offset, and two numbers that
masters and replicas share and that no other message at this offset has.

A group that begins, or is set, behind stored messages remembers the last one that it passed over, until it has consumed one.

Rule 1: the queue ends before what was consumed, or another message is in that place: a new life.
Rule 2: the same message is there, or it cannot be known because it has expired: the same life.
Rule 3: a new life begins with the first message stored after the newest one consumed, or where an operator has set it.
"""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import NamedTuple

from pyspark_rocketmq.errors import DamagedOffsets
from pyspark_rocketmq.model import QueueBounds


class LastMessage(NamedTuple):
    """The newest message consumed in a life, or the one that is in its place now."""

    queue_offset: int
    store_timestamp: int
    """Milliseconds since the epoch, by the broker that stored it."""
    commit_log_offset: int

    def to_text(self) -> str:
        """As an offset row keeps it."""
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> LastMessage | None:
        """The reverse of :meth:`to_text`; None for an empty text.

        Raises:
            DamagedOffsets: If it is none of these.
        """
        if not text:
            return None
        try:
            return cls(*map(int, json.loads(text)))
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise DamagedOffsets("last_message", text) from None


class Beginning(Enum):
    """Where a new life begins."""

    BEHIND_LAST = auto()
    """Behind the newest message consumed, which is still there: only what came after it was lost."""
    STORED_LATER = auto()
    """With the first message stored after it."""
    AT_NEXT_OFFSET = auto()
    """Where the row says, which an operator has set; the nearest offset that the broker has."""
    AT_END = auto()
    """Of what consumed messages were nothing is known."""


class Standing(NamedTuple):
    """How a queue stands by its offset row."""

    next_offset: int
    last: LastMessage | None
    """The newest message consumed in this life, or the last one passed over at its beginning; None when there was none."""
    was_reset: bool
    """Whether an operator moved the row last."""

    def place_to_look_at(self) -> int:
        """The offset whose message tells; of a life without one, that of the last message passed over."""
        return max(0, self.next_offset - 1) if self.last is None else self.last.queue_offset


def new_life(standing: Standing, bounds: QueueBounds, there: LastMessage | None) -> Beginning | None:
    """Where the queue's next life begins; None while this one goes on.

    Args:
        standing: The stored row's.
        bounds: What the broker has, as of the look at ``there``.
        there: The message in the place of ``standing.last``; None if none can be had.
    """
    last = standing.last
    is_past_end = standing.next_offset > bounds.max_offset and not standing.was_reset
    if last is None:
        return Beginning.AT_END if is_past_end else None
    is_other = there is not None and there != last
    if is_other or last.queue_offset >= bounds.max_offset:
        return Beginning.AT_NEXT_OFFSET if standing.was_reset else Beginning.STORED_LATER
    if is_past_end:
        return Beginning.BEHIND_LAST if there == last else Beginning.STORED_LATER
    return None


def newer(one: str, other: str) -> str:
    """Of two messages of one life, as text, the one that comes later; going back forgets nothing."""
    messages = LastMessage.from_text(one), LastMessage.from_text(other)
    if messages[0] is None or messages[1] is None:
        return one or other
    return other if messages[1].queue_offset >= messages[0].queue_offset else one
