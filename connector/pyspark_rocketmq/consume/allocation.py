"""Allocation of queues to the members of a group: every member computes it for itself, with the same result.

The results agree only if all members use the same strategy on the same lists, sorted by
:func:`sorted_queues` and :func:`sorted_members`. A broker lists a member once for each of its connections.
So a member may be listed twice until the broker forgets an old connection, and then counts as two members,
as in Java. This module gives such a member both shares; a Java client takes only the first (``_entries``).

Source: RocketMQ 5.3.3 ``client/consumer/rebalance/*``, ``RebalanceImpl.rebalanceByTopic``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from importlib import import_module
from typing import ClassVar, Final, Protocol, TypeVar, cast

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageQueue

T = TypeVar("T")

_ROOM_MARK = "@"
_CLIENT_ROOM_MARK = "/"
_FORMS: Final = (
    "averagely, averagelyByCircle, consistentHash[:places], byMachineRoom:ROOM,…, "
    "machineRoomNearby[:STRATEGY], byConfig:TOPIC/BROKER/QUEUE,… or module:Class"
)


class AllocationStrategy(Protocol):
    """Chooses the queues of one member.

    ``allocate`` must be a pure function, and every member of the group must use the same strategy.
    """

    @property
    def name(self) -> str:
        """Java's name of the strategy (``AllocateMessageQueueStrategy.getName``)."""

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Return the queues of member ``client_id``.

        Args:
            client_id: The member's client id.
            queues: All readable queues of one topic, or those of one of its machine rooms
                (:class:`MachineRoomNearby`); sorted.
            members: Client ids of all members, sorted; an id comes once for each connection of its member.
        """


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues sorted by topic, broker name and queue id, as Java sorts them.

    Strings are compared by their UTF-16 units (``MessageQueue.compareTo``).
    """
    return sorted(queues, key=_queue_order)


def sorted_members(members: Iterable[str]) -> list[str]:
    """Return the client ids sorted by their UTF-16 units, as Java sorts strings (``String.compareTo``)."""
    return sorted(members, key=java_order)


def java_order(text: str) -> bytes:
    """Return a key that sorts strings as Java does, by UTF-16 units: U+1F600 comes before U+FFFD.

    Python compares code points, so for Python U+FFFD comes first.
    """
    return text.encode("utf-16-be", "surrogatepass")


def _queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    return java_order(queue.topic), java_order(queue.broker_name), queue.queue_id


def is_member(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> bool:
    """Check that no argument is empty; return whether ``client_id`` is among ``members``.

    A consumer that the broker does not list as a member gets no queues.

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
            f"The group of {client_id} has no members, so its queues cannot be allocated; ask the broker "
            "again."
        )
    return client_id in members


def _entries(client_id: str, members: Sequence[str]) -> dict[int, None]:
    """Return the indexes at which ``members`` has ``client_id``, as ascending keys of a dict.

    Each index brings the member one share. A broker lists a member once for each connection, so twice until
    the broker notices that one connection fell silent. The other members leave both shares to that member. A
    Java client takes only the first share, and nobody has the second until the broker closes the connection,
    after two minutes.
    """
    return {index: None for index, member in enumerate(members) if member == client_id}


@dataclass(frozen=True, slots=True)
class Averagely:
    """Gives each member a run of neighbouring queues, all equally long.

    If queues are left over, the first members get one queue more.
    """

    name: ClassVar[str] = "AVG"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Return this member's share, a run of neighbouring queues; empty if it is not in ``members``.

        Source: ``AllocateMessageQueueAveragely``.
        """
        if not is_member(client_id, queues, members):
            return ()
        share, rest = divmod(len(queues), len(members))
        starts = {index: index * share + min(index, rest) for index in _entries(client_id, members)}
        return [
            queue
            for index, start in starts.items()
            for queue in queues[start : start + share + (index < rest)]
        ]


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """Deals the queues out like cards, so that each member gets queues of several brokers."""

    name: ClassVar[str] = "AVG_BY_CIRCLE"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Return every n-th queue, where n is the number of members.

        The first queue is the one at the member's own index in ``members``. The result is empty if the member
        is not in ``members``.

        Source: ``AllocateMessageQueueAveragelyByCircle``.
        """
        if not is_member(client_id, queues, members):
            return ()
        entries = _entries(client_id, members)
        return [queue for at, queue in enumerate(queues) if at % len(members) in entries]


@dataclass(frozen=True, slots=True)
class ByConfig:
    """Gives this member the queues that its user has configured, whoever else is in the group."""

    queues: tuple[MessageQueue, ...]

    name: ClassVar[str] = "CONFIG"

    def allocate(
        self,
        client_id: str,  # noqa: ARG002 - only the configured queues count
        queues: Sequence[MessageQueue],  # noqa: ARG002
        members: Sequence[str],  # noqa: ARG002
    ) -> Sequence[MessageQueue]:
        """Return the configured queues, even those that do not exist (``AllocateMessageQueueByConfig``)."""
        return self.queues


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Moves few queues when members come and go, at the price of very uneven shares.

    Each member has ``places_per_member`` places on a ring with 2**32 positions, and each queue has one place.
    A queue belongs to the member whose place is the first one at or after the queue's place.
    """

    places_per_member: int = 10
    """Places of each member on the ring (``virtualNodeCnt``); at least 1."""

    name: ClassVar[str] = "CONSISTENT_HASH"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Return the member's queues by consistent hashing, as Java does.

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
        places: Counter[str] = Counter()
        for member in members:
            # A member listed again gets as many places again, numbered from the count of those it still has.
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
    """Return the text whose hash is a queue's place on the ring of :class:`ConsistentHash`.

    It is the same as that of ``MessageQueue.toString``.
    """
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Divides the queues of the machine rooms ``rooms`` into equal shares; other queues go to nobody.

    A queue is in the room ``room`` if its broker's name is ``room@name``.
    """

    rooms: frozenset[str]

    name: ClassVar[str] = "MACHINE_ROOM"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Return this member's share of the rooms' queues; empty if it is not in ``members``.

        The share is a run of neighbouring queues, equally long for all members. If queues are left over, the
        first members get one of them each.

        Source: ``AllocateMessageQueueByMachineRoom``.
        """
        if not is_member(client_id, queues, members):
            return ()
        kept = [queue for queue in queues if _room_of_name(queue.broker_name) in self.rooms]
        share, rest = divmod(len(kept), len(members))
        leftover = share * len(members)
        return [
            queue
            for index in _entries(client_id, members)
            for queue in (
                *kept[share * index : share * (index + 1)],
                *(kept[leftover + index : leftover + index + 1] if index < rest else ()),
            )
        ]


def _room_of_name(broker_name: str) -> str | None:
    """Return the room of a broker's name ``room@name``; None if the name does not have this form.

    Parts are counted as by Java's ``String.split``, which ignores each ``@`` at the end.
    """
    parts = broker_name.rstrip(_ROOM_MARK).split(_ROOM_MARK)
    return parts[0] if len(parts) == 2 else None


def room_of_queue(queue: MessageQueue) -> str:
    """Return the machine room of a queue: its broker's name up to the first ``@``, or the whole name."""
    return queue.broker_name.partition(_ROOM_MARK)[0]


def room_of_client(client_id: str) -> str:
    """Return the machine room of a client, such as ``east`` for ``HOST@east/worker-1``.

    It is the part of the id before the first ``/``, without the host and its ``@``. For an id without ``/``
    it is the whole id; no broker is in such a room.
    """
    before, mark, _ = client_id.partition(_CLIENT_ROOM_MARK)
    return before.rpartition("@")[2] if mark else client_id


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Gives each machine room's queues to the members in that room.

    All members share the queues of rooms that have no member.
    """

    inner: AllocationStrategy = field(default_factory=Averagely)
    """Strategy that divides the queues of one room among its members."""
    room_of_queue: Callable[[MessageQueue], str] = room_of_queue
    """Function that returns a queue's machine room; all members must use the same one."""
    room_of_client: Callable[[str], str] = room_of_client
    """Function that returns the machine room of a client id; all members must use the same one.

    Java's ``MachineRoomResolver`` has both functions.
    """

    @property
    def name(self) -> str:
        """Java's name of this strategy, followed by the name of the strategy that divides each room."""
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Return this member's share of its room's queues, and of the queues of each room without a member.

        The queues of its own room come first, then those of the other rooms in order of their names. A member
        that is not in ``members`` gets none.

        Raises:
            ValueError: If the client id, the queues or the members are empty, or a queue or a member has no
                room; also whatever the inner strategy raises.

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
            raise ValueError(
                f"The machine room of {kind} {item} cannot be recognised from its name. By default a broker "
                "is named ROOM@NAME, and a client id is HOST@ROOM/NAME. Correct the broker's name, or the "
                "consumer's instanceName."
            )
        rooms.setdefault(room, []).append(item)
    return rooms


def allocation_strategy(text: str) -> AllocationStrategy:
    """Return the strategy that the option ``allocateMessageQueueStrategy`` names by ``text``.

    ``text`` is a name, a name and its value such as ``consistentHash:20``, or a user's ``module:Class``. Such
    a class is imported and made without arguments.

    Raises:
        OptionError: If there is no such strategy, it does not take the value after the colon, or the class
            cannot be imported or made or has no ``allocate``.
    """
    name, colon, argument = text.strip().partition(":")
    build = _BUILDERS.get(name)
    if build is not None:
        try:
            return build(argument)
        except OptionError:
            # The error is about the inner strategy, and its text is complete.
            raise
        except ValueError as exc:
            raise _unusable(text, str(exc)) from exc
    if not colon or not name or not argument:
        raise _unusable(text, "names no strategy")
    return _imported(text, name, argument)


def _without_argument(make: Callable[[], AllocationStrategy]) -> Callable[[str], AllocationStrategy]:
    def build(argument: str) -> AllocationStrategy:
        if argument:
            raise ValueError(f"has {argument!r} after the colon, but this strategy takes no value")
        return make()

    return build


def _consistent_hash(argument: str) -> AllocationStrategy:
    if not argument:
        return ConsistentHash()
    if not (argument.isascii() and argument.isdecimal() and 0 < len(argument) < 5 and int(argument)):
        raise ValueError(f"has {argument!r} instead of a number of places from 1 to 9999")
    return ConsistentHash(int(argument))


def _by_machine_room(argument: str) -> AllocationStrategy:
    return ByMachineRoom(frozenset(_items(argument, "a machine room")))


def _machine_room_nearby(argument: str) -> AllocationStrategy:
    return MachineRoomNearby(allocation_strategy(argument)) if argument else MachineRoomNearby()


def _by_config(argument: str) -> AllocationStrategy:
    return ByConfig(tuple(map(_queue, _items(argument, "a queue (TOPIC/BROKER/QUEUE)"))))


def _queue(text: str) -> MessageQueue:
    topic, _, rest = text.partition("/")
    broker_name, _, queue_id = rest.rpartition("/")
    if not (topic and broker_name and queue_id.isascii() and queue_id.isdecimal() and len(queue_id) < 10):
        raise ValueError(f"has {text!r} instead of a queue (TOPIC/BROKER/QUEUE)")
    return MessageQueue(topic, broker_name, int(queue_id))


def _items(argument: str, what: str) -> list[str]:
    items = [item.strip() for item in argument.split(",")]
    if not all(items):
        raise ValueError(f"has an empty item instead of {what}")
    return items


_BUILDERS: Final[Mapping[str, Callable[[str], AllocationStrategy]]] = {
    "averagely": _without_argument(Averagely),
    "averagelyByCircle": _without_argument(AveragelyByCircle),
    "consistentHash": _consistent_hash,
    "byMachineRoom": _by_machine_room,
    "machineRoomNearby": _machine_room_nearby,
    "byConfig": _by_config,
}


def _imported(text: str, module_name: str, class_name: str) -> AllocationStrategy:
    try:
        module = import_module(module_name)
    except Exception as exc:
        raise _unusable(text, f"cannot be imported: {type(exc).__name__}: {exc}") from exc
    strategy_class = getattr(module, class_name, None)
    if not isinstance(strategy_class, type):
        raise _unusable(text, f"names no class {class_name!r} of module {module_name!r}")
    if not callable(getattr(strategy_class, "allocate", None)):
        raise _unusable(text, "names a class without the method allocate(client_id, queues, members)")
    try:
        return cast("AllocationStrategy", strategy_class())
    except Exception as exc:
        problem = f"names class {class_name}, but {class_name}() failed: {type(exc).__name__}: {exc}"
        raise _unusable(text, f"{problem}. Its constructor must need no arguments") from exc


def _unusable(text: str, why: str) -> OptionError:
    return OptionError((f"allocateMessageQueueStrategy={text!r} {why}. Use {_FORMS}.",))
