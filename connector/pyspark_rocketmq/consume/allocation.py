"""Who of a group consumes which queue: every member computes it alone, and all come to the same result.

That holds only if all members use the same strategy on the same lists in the same order; nobody checks the first,
:func:`allocate` sees to the last. A member listed twice (one entry per connection) counts twice, as in Java: its
second share goes to nobody until the broker forgets the old connection.

Source: RocketMQ 5.3.3 ``client/consumer/rebalance/*``, ``RebalanceImpl.rebalanceByTopic``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pyspark_rocketmq.model import MessageQueue


class AllocationStrategy(Protocol):
    """Chooses one member's queues; pure, and the same for every member of the group."""

    @property
    def name(self) -> str:
        """What Java calls it (``AllocateMessageQueueStrategy.getName``)."""
        ...

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The queues of member ``client_id``, given all queues and all members, sorted."""
        ...


def allocate(
    strategy: AllocationStrategy, client_id: str, queues: Iterable[MessageQueue], members: Iterable[str]
) -> tuple[MessageQueue, ...]:
    """The queues of member ``client_id``, whatever the order in which queues and members are given.

    Raises:
        ValueError: If the client id is empty, or there are no queues or no members.
    """
    return tuple(strategy.allocate(client_id, sorted_queues(queues), sorted_members(members)))


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Topic, broker name, queue id; texts by their UTF-16 units (``MessageQueue.compareTo``)."""
    return sorted(queues, key=_queue_order)


def sorted_members(members: Iterable[str]) -> list[str]:
    """By UTF-16 units (``String.compareTo``)."""
    return sorted(members, key=java_order)


def java_order(text: str) -> bytes:
    """A key that sorts texts as Java does: Python would put U+FFFD before U+1F600."""
    return text.encode("utf-16-be", "surrogatepass")


def _queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    return java_order(queue.topic), java_order(queue.broker_name), queue.queue_id


def is_member(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> bool:
    """Whether there is anything to allocate: a consumer that the broker does not list gets nothing.

    Raises:
        ValueError: If the client id is empty, or there are no queues or no members.

    Source: ``AbstractAllocateMessageQueueStrategy.check``.
    """
    if not client_id:
        raise ValueError("Queues cannot be allocated to a client without an id.")
    if not queues:
        raise ValueError(
            f"There are no queues to allocate to {client_id}; ask again when the route is known."
        )
    if not members:
        raise ValueError(
            f"The group of {client_id} has no members, so its queues cannot be allocated; ask the broker again."
        )
    return client_id in members


@dataclass(frozen=True, slots=True)
class Averagely:
    """Neighbouring queues in equal shares, the first members one more where it does not come out even."""

    name: ClassVar[str] = "AVG"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The member's share.

        Source: ``AllocateMessageQueueAveragely``.
        """
        if not is_member(client_id, queues, members):
            return ()
        index = members.index(client_id)
        share, rest = divmod(len(queues), len(members))
        start = index * share + min(index, rest)
        return queues[start : start + share + (index < rest)]


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """Queue after queue dealt out like cards, so that each member gets queues of several brokers."""

    name: ClassVar[str] = "AVG_BY_CIRCLE"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The member's share.

        Source: ``AllocateMessageQueueAveragelyByCircle``.
        """
        if not is_member(client_id, queues, members):
            return ()
        return queues[members.index(client_id) :: len(members)]


@dataclass(frozen=True, slots=True)
class ByConfig:
    """Always the same queues, whoever else is in the group: the user says who gets what."""

    queues: tuple[MessageQueue, ...]

    name: ClassVar[str] = "CONFIG"

    def allocate(
        self,
        client_id: str,  # noqa: ARG002 - the list says it all
        queues: Sequence[MessageQueue],  # noqa: ARG002
        members: Sequence[str],  # noqa: ARG002
    ) -> Sequence[MessageQueue]:
        """The configured queues, also those that do not exist.

        Source: ``AllocateMessageQueueByConfig``.
        """
        return self.queues
