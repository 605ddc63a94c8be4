"""Which queues of a topic this consumer may plan.

The planner asks before every micro-batch; a queue that is not in the answer is in no plan.  Claiming the epoch of
an owned queue in the offset store is the planner's work, and what fences: ownership alone fences nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pyspark_rocketmq.model import MessageQueue


class QueueOwnership(Protocol):
    """The share of the group's queues that belongs to this consumer at this moment."""

    def owned(self, queues: Collection[MessageQueue], now_s: float) -> frozenset[MessageQueue]:
        """The subset of ``queues`` this consumer owns; ``now_s`` is monotonic seconds. Must not block long."""
        ...

    def lost(self, queue: MessageQueue) -> None:
        """Be told that another consumer claimed ``queue`` in the offset store."""
        ...


class SoleOwnership:
    """One consumer that owns every queue, until another one claims it.

    A queue lost to another claimant stays lost: taking it back would make two consumers claim it from each other
    at every trigger.
    """

    def __init__(self) -> None:
        self._lost: set[MessageQueue] = set()

    def owned(self, queues: Collection[MessageQueue], now_s: float) -> frozenset[MessageQueue]:  # noqa: ARG002
        """Every queue that was not lost."""
        return frozenset(queues) - self._lost

    def lost(self, queue: MessageQueue) -> None:
        """Leave ``queue`` to its new owner for the rest of this run."""
        self._lost.add(queue)
