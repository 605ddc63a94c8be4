"""Which queues a consumer may plan, as its planner sees it.

The planner asks before every micro-batch; a queue that is not in the answer is in no plan.  A queue comes with a
*term*, a number that grows with every new grant: under a term not seen before it must be claimed in the offset
store first.  The claim is what fences; ownership alone fences nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark_rocketmq.model import MessageQueue


class QueueOwnership(Protocol):
    """The share of the group's queues that belongs to this consumer at this moment."""

    def begin_plan(self) -> Mapping[MessageQueue, int]:
        """The queues that may be planned now, and the term of each; the plan before this one is over.

        None of them is given up until :meth:`planned` was called. Does not wait.
        """
        ...

    def planned(self, terms: Mapping[MessageQueue, int]) -> frozenset[MessageQueue]:
        """Say which queues the plan holds; those of them that still may be run, the others must leave it."""
        ...

    def holds(self, queue: MessageQueue) -> bool:
        """Whether the queue is in the plan under way and may still be run."""
        ...

    def claimed_by_other(self, queue: MessageQueue) -> None:
        """Be told that another consumer claimed ``queue`` in the offset store."""
        ...

    def reclaim(self, queue: MessageQueue) -> None:
        """Begin a new term of a queue that was not planned for too long (B6)."""
        ...

    def await_settled(self, timeout_s: float) -> bool:
        """Wait until every queue allocated to this consumer may be planned; whether that is so now."""
        ...
