"""What a member of a group gets of its queues."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_rocketmq.consume.allocation import AllocationStrategy, sorted_members, sorted_queues
from pyspark_rocketmq.model import MessageQueue


def allocate(
    strategy: AllocationStrategy, client_id: str, queues: Iterable[MessageQueue], members: Iterable[str]
) -> tuple[MessageQueue, ...]:
    """The queues of member ``client_id``, whatever the order of the lists."""
    return tuple(strategy.allocate(client_id, sorted_queues(queues), sorted_members(members)))
