"""Allocation by where brokers and consumers stand, to keep traffic out of the lines between machine rooms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from pyspark_rocketmq.consume.allocation import AllocationStrategy, Averagely, is_member, java_order
from pyspark_rocketmq.model import MessageQueue

T = TypeVar("T")

_ROOM_MARK = "@"
_CLIENT_ROOM_MARK = "/"


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Only queues of brokers named ``room@name`` with one of the rooms given, in equal shares.

    Queues elsewhere go to nobody of this configuration: consumers with other rooms must take them.
    """

    rooms: frozenset[str]

    name: ClassVar[str] = "MACHINE_ROOM"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The member's neighbouring queues, and one of those that do not come out even.

        Source: ``AllocateMessageQueueByMachineRoom``.
        """
        if not is_member(client_id, queues, members):
            return ()
        kept = [queue for queue in queues if _room_of_name(queue.broker_name) in self.rooms]
        index = members.index(client_id)
        share, rest = divmod(len(kept), len(members))
        extra = share * len(members) + index
        return [
            *kept[share * index : share * (index + 1)],
            *(kept[extra : extra + 1] if index < rest else ()),
        ]


def _room_of_name(broker_name: str) -> str | None:
    """The room in ``room@name``; None without exactly two parts, as ``String.split`` counts them."""
    parts = broker_name.rstrip(_ROOM_MARK).split(_ROOM_MARK)
    return parts[0] if len(parts) == 2 else None


def room_of_queue(queue: MessageQueue) -> str:
    """The broker name up to ``@``."""
    return queue.broker_name.partition(_ROOM_MARK)[0]


def room_of_client(client_id: str) -> str:
    """What stands before the first ``/``, behind the host: ``east`` of ``HOST@east/worker-1`` and of ``east/1@worker``.

    An id without ``/`` is a room of its own, which has no queues.
    """
    before, mark, _ = client_id.partition(_CLIENT_ROOM_MARK)
    return before.rpartition("@")[2] if mark else client_id


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """A room's queues for the consumers in it; everybody shares those of rooms without a consumer."""

    inner: AllocationStrategy = field(default_factory=Averagely)
    """How they are shared."""
    room_of_queue: Callable[[MessageQueue], str] = room_of_queue
    room_of_client: Callable[[str], str] = room_of_client
    """The two say where things stand (``MachineRoomResolver``); they must be the same at all members."""

    @property
    def name(self) -> str:
        """With the inner strategy's name."""
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Queues of the own room first, then shares of the rooms without a consumer, in the order of the rooms.

        Raises:
            ValueError: If a queue or a member has no room, besides what the inner strategy raises.

        Source: ``AllocateMachineRoomNearby``.
        """
        if not is_member(client_id, queues, members):
            return ()
        queues_by_room = _by_room(queues, self.room_of_queue, "queue")
        members_by_room = _by_room(members, self.room_of_client, "consumer")
        own = self.room_of_client(client_id)
        allocated = list(
            self.inner.allocate(client_id, queues_by_room[own], members_by_room[own])
            if own in queues_by_room
            else ()
        )
        for room in sorted(queues_by_room.keys() - members_by_room.keys(), key=java_order):
            allocated += self.inner.allocate(client_id, queues_by_room[room], members)
        return allocated


def _by_room(items: Iterable[T], room_of: Callable[[T], str], kind: str) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise ValueError(f"The {kind} {item} has no machine room; name it so that its room can be told.")
        rooms.setdefault(room, []).append(item)
    return rooms
