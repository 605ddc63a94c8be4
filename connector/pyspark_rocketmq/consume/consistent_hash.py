"""Allocation that moves few queues when members come and go, at the price of very uneven shares.

Each member stands at ten places of a ring of 2**32; a queue belongs to the next member at or behind its own place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import ClassVar

from pyspark_rocketmq.consume.allocation import is_member
from pyspark_rocketmq.model import MessageQueue


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """The ring, built anew for each allocation: the group may have changed."""

    places_per_member: int = 10
    """``virtualNodeCnt``; at least 1."""

    name: ClassVar[str] = "CONSISTENT_HASH"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The member's queues, perhaps none.

        Source: ``AllocateMessageQueueConsistentHash``, ``ConsistentHashRouter``.
        """
        if not is_member(client_id, queues, members):
            return ()
        ring = self._ring(members)
        places = sorted(ring)
        return tuple(
            queue
            for queue in queues
            if ring[places[bisect_left(places, _place(_queue_text(queue))) % len(places)]] == client_id
        )

    def _ring(self, members: Sequence[str]) -> dict[int, str]:
        ring: dict[int, str] = {}
        # Counted on the way: a broker's list may name a member as often as it likes.
        places: Counter[str] = Counter()
        for member in members:
            # A member named again gets ten places more, counted from those it still has.
            first = places[member]
            for number in range(first, first + self.places_per_member):
                place = _place(f"{member}-{number}")
                if place in ring:
                    places[ring[place]] -= 1
                ring[place] = member
                places[member] += 1
        return ring


def _place(text: str) -> int:
    digest = md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _queue_text(queue: MessageQueue) -> str:
    """What is hashed (``MessageQueue.toString``)."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
