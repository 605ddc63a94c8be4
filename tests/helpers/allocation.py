"""The share of a topic's queues that a member of a group gets."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_rocketmq.consume.allocation import AllocationStrategy, sorted_members, sorted_queues
from pyspark_rocketmq.model import MessageQueue


def allocate(
    strategy: AllocationStrategy, client_id: str, queues: Iterable[MessageQueue], members: Iterable[str]
) -> tuple[MessageQueue, ...]:
    """Return the queues of member ``client_id``; the order of the lists does not matter."""
    return tuple(strategy.allocate(client_id, sorted_queues(queues), sorted_members(members)))
