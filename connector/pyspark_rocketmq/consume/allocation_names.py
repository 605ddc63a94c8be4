"""From the text of option ``allocateMessageQueueStrategy`` to the strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final, cast

from pyspark_rocketmq.consume.allocation import AllocationStrategy, Averagely, AveragelyByCircle, ByConfig
from pyspark_rocketmq.consume.consistent_hash import ConsistentHash
from pyspark_rocketmq.consume.machine_rooms import ByMachineRoom, MachineRoomNearby
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageQueue

_FORMS: Final = (
    "averagely, averagelyByCircle, consistentHash[:places], byMachineRoom:ROOM,…, machineRoomNearby[:STRATEGY], "
    "byConfig:TOPIC/BROKER/QUEUE,… or module:Class"
)


def allocation_strategy(text: str) -> AllocationStrategy:
    """Return the strategy that ``text`` names; a class of the user's is imported and made without arguments.

    Raises:
        OptionError: If there is no such strategy, or the class cannot be imported or made or has no ``allocate``.
    """
    name, colon, argument = text.strip().partition(":")
    build = _BUILDERS.get(name)
    if build is not None:
        try:
            return build(argument)
        except ValueError as exc:
            raise _unusable(text, str(exc)) from exc
    if not colon or not name or not argument:
        raise _unusable(text, "names no strategy")
    return _imported(text, name, argument)


def _without_argument(make: Callable[[], AllocationStrategy]) -> Callable[[str], AllocationStrategy]:
    def build(argument: str) -> AllocationStrategy:
        if argument:
            raise ValueError(f"has {argument!r} behind a strategy that takes nothing")
        return make()

    return build


def _consistent_hash(argument: str) -> AllocationStrategy:
    if not argument:
        return ConsistentHash()
    if not (argument.isascii() and argument.isdecimal() and 0 < len(argument) < 5 and int(argument)):
        raise ValueError(f"has {argument!r} where a number of places from 1 to 9999 belongs")
    return ConsistentHash(int(argument))


def _by_machine_room(argument: str) -> AllocationStrategy:
    return ByMachineRoom(frozenset(_items(argument, "a machine room")))


def _machine_room_nearby(argument: str) -> AllocationStrategy:
    return MachineRoomNearby(allocation_strategy(argument)) if argument else MachineRoomNearby()


def _by_config(argument: str) -> AllocationStrategy:
    return ByConfig(tuple(map(_queue, _items(argument, "a queue as TOPIC/BROKER/QUEUE"))))


def _queue(text: str) -> MessageQueue:
    topic, _, rest = text.partition("/")
    broker_name, _, queue_id = rest.rpartition("/")
    if not (topic and broker_name and queue_id.isascii() and queue_id.isdecimal() and len(queue_id) < 10):
        raise ValueError(f"has {text!r} where a queue as TOPIC/BROKER/QUEUE belongs")
    return MessageQueue(topic, broker_name, int(queue_id))


def _items(argument: str, what: str) -> list[str]:
    items = [item.strip() for item in argument.split(",")]
    if not all(items):
        raise ValueError(f"lacks {what}")
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
        raise _unusable(text, f"cannot be made without arguments: {type(exc).__name__}: {exc}") from exc


def _unusable(text: str, why: str) -> OptionError:
    return OptionError((f"allocateMessageQueueStrategy={text!r} {why}. Use {_FORMS}.",))
