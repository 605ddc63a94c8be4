"""Watches for queues that are held, have messages and are due, and are in no plan all the same (B6).

That should never be; if it is, something that this consumer remembers of the queue is wrong, and claiming it anew
clears that. A suspended queue waits by right and is not counted (alibaba/rocketmq#459).

Source: ``ProcessQueue.isPullExpired``, ``RebalanceImpl.updateProcessQueueTableInRebalance``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from pyspark_rocketmq.model import MessageQueue, QueueBounds

LONGEST_LEFT_OUT_S: Final = 120.0
"""``ProcessQueue.PULL_MAX_IDLE_TIME``."""


class _Row(Protocol):
    """What is needed of a row of the offset store."""

    @property
    def next_offset(self) -> int: ...
    @property
    def suspended_until_s(self) -> float | None: ...


class LeftOut:
    """Since when each queue that could be planned was not."""

    def __init__(self) -> None:
        self._ready: frozenset[MessageQueue] = frozenset()
        self._since_s: dict[MessageQueue, float] = {}

    def look(
        self, rows: Mapping[MessageQueue, _Row], bounds: Mapping[MessageQueue, QueueBounds], now_s: float
    ) -> None:
        """Take the queues a plan is about to be made of; ``now_s`` is the wall clock's, as suspensions are."""
        self._ready = frozenset(
            queue
            for queue, row in rows.items()
            if row.next_offset < bounds[queue].max_offset
            and (row.suspended_until_s is None or row.suspended_until_s <= now_s)
        )

    def planned(self, queues: Collection[MessageQueue], now_s: float) -> list[MessageQueue]:
        """Take what the plan holds; the queues left out for too long, each told once. ``now_s`` is monotonic: nobody sets that clock."""
        waiting = self._ready.difference(queues)
        self._since_s = {queue: self._since_s.get(queue, now_s) for queue in waiting}
        overdue = [queue for queue, since_s in self._since_s.items() if now_s - since_s >= LONGEST_LEFT_OUT_S]
        for queue in overdue:
            self._since_s[queue] = now_s
        return sorted(overdue)
