"""The faults of a chaos run and their times: a pure function of the seed and the seconds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

_REST_S = 8.0
"""How long an application that continues unchanged is not disturbed."""
_START_S = 15.0
"""How long a new application is not disturbed, so that it is a member first."""
_MOST_DISTURBED = 2
"""Most applications disturbed at once, of three; one always works, unless all are sent away."""
_SERVERS = "servers"


class Kind(StrEnum):
    """Kinds of events: of an application, a server, or the group's tables and topics."""

    JOIN = "joins"
    STOP = "stops"
    KILL = "killed (-9)"
    KILL_DRIVER = "driver killed (-9)"
    KILL_JVM = "JVM killed (-9)"
    KILL_PLANNER = "planner killed (-9)"
    KILL_WORKER = "worker killed (-9)"
    PAUSE = "paused"
    RESUME = "goes on"
    PAUSE_WORKER = "worker paused"
    RESUME_WORKER = "worker goes on"
    BROKER_STOP = "broker stops"
    BROKER_START = "broker starts"
    NAME_SERVER_RESTART = "name server restarts"
    FORBID_READING = "reading forbidden"
    ALLOW_READING = "reading allowed"
    TOPIC_AGAIN = "topic made again"
    RESET_LIVE = "offsets reset live"
    RESET_AWAY = "offsets reset while all are away"
    SINK_RESTORED = "sink restored while all are away"
    STORE_DELETED = "offset store deleted while all are away"
    NOT_READY = "name server not ready"
    READY = "name server ready"
    OUT_OF_REACH = "name server out of reach"
    IN_REACH = "name server in reach"
    SILENT = "connections fall silent"
    SWAPPED = "brokers swap addresses"
    REGISTERED = "swapped brokers registered"
    SWITCHED_OFF = "consumption switched off"
    SWITCHED_ON = "consumption switched on"
    CODE_1 = "an answer with code 1"
    TAIL_LOST = "tail lost after a kill between sink and offsets"
    STORAGE_BUSY = "storage busy (503)"
    STORAGE_SILENT = "answers of storage lost"
    STORAGE_SLOW = "storage slow"
    STORAGE_KEYS = "keys of storage renewed"
    STORAGE_STOP = "storage stopped"
    STORAGE_START = "storage started"
    STORAGE_HOLD = "storage hangs"
    STORAGE_GO_ON = "storage goes on"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Event:
    """One thing that happens, ``at_s`` seconds after the beginning."""

    at_s: float
    kind: Kind
    target: str
    """Slot of an application, a broker's name, ``NAME_SERVER``, ``TOPIC``, ``GROUP``, ``NETWORK`` or ``STORAGE``."""
    same_name: bool = False
    """JOIN: under the instance name of the slot's last application, continuing from its checkpoint."""
    is_slow: bool = False
    """JOIN: with a micro-batch every few minutes only."""


NAME_SERVER, TOPIC, GROUP, STORAGE, NETWORK = "name server", "topic", "group", "storage", "network"
"""Targets other than applications and brokers."""
LOSING = "broker-a"
"""The broker that loses its tail: it stores only orders."""

_WEIGHTS = {
    Kind.STOP: 3,
    Kind.KILL: 3,
    Kind.KILL_DRIVER: 2,
    Kind.KILL_JVM: 2,
    Kind.KILL_PLANNER: 2,
    Kind.KILL_WORKER: 7,
    Kind.PAUSE: 4,
    Kind.PAUSE_WORKER: 3,
    Kind.BROKER_STOP: 2,
    Kind.NAME_SERVER_RESTART: 2,
    Kind.FORBID_READING: 2,
    Kind.TOPIC_AGAIN: 1,
    Kind.RESET_LIVE: 2,
    Kind.RESET_AWAY: 1,
    Kind.SINK_RESTORED: 1,
    Kind.STORE_DELETED: 1,
    Kind.NOT_READY: 1,
    Kind.OUT_OF_REACH: 1,
    Kind.SILENT: 2,
    Kind.SWAPPED: 1,
    Kind.SWITCHED_OFF: 1,
    Kind.CODE_1: 3,
    Kind.TAIL_LOST: 1,
}
FAULTS = {
    "applications": frozenset(
        {
            Kind.STOP,
            Kind.KILL,
            Kind.KILL_DRIVER,
            Kind.KILL_JVM,
            Kind.KILL_PLANNER,
            Kind.KILL_WORKER,
            Kind.PAUSE,
            Kind.PAUSE_WORKER,
        }
    ),
    "servers": frozenset({Kind.BROKER_STOP, Kind.NAME_SERVER_RESTART}),
    "operators": frozenset(
        {
            Kind.FORBID_READING,
            Kind.TOPIC_AGAIN,
            Kind.RESET_LIVE,
            Kind.RESET_AWAY,
            Kind.SINK_RESTORED,
            Kind.STORE_DELETED,
        }
    ),
    "not-ready": frozenset({Kind.NOT_READY}),
    "out-of-reach": frozenset({Kind.OUT_OF_REACH}),
    "silent": frozenset({Kind.SILENT}),
    "swap": frozenset({Kind.SWAPPED}),
    "switched-off": frozenset({Kind.SWITCHED_OFF}),
    "code-1": frozenset({Kind.CODE_1}),
    "lost-tail": frozenset({Kind.TAIL_LOST}),
}
"""Names of faults to which a run can be restricted."""
ALL_FAULTS = frozenset(FAULTS)
AWAY = frozenset({Kind.RESET_AWAY, Kind.SINK_RESTORED, Kind.STORE_DELETED})
"""Events for which all applications stop first, and start again afterwards."""
_TARGETS = {
    Kind.NAME_SERVER_RESTART: NAME_SERVER,
    Kind.FORBID_READING: TOPIC,
    Kind.TOPIC_AGAIN: TOPIC,
    Kind.RESET_LIVE: GROUP,
    **dict.fromkeys(AWAY, GROUP),
    Kind.NOT_READY: NAME_SERVER,
    Kind.OUT_OF_REACH: NAME_SERVER,
    Kind.SILENT: NETWORK,
    Kind.SWAPPED: NETWORK,
    Kind.CODE_1: NETWORK,
    Kind.SWITCHED_OFF: GROUP,
    Kind.TAIL_LOST: LOSING,
}
DISTURBING = frozenset(_WEIGHTS) - {Kind.BROKER_STOP, *_TARGETS}
"""Events of an application that works."""
KILLS = frozenset(
    {Kind.KILL, Kind.KILL_DRIVER, Kind.KILL_JVM, Kind.KILL_PLANNER, Kind.KILL_WORKER, Kind.BROKER_STOP}
)
"""Events that kill a process; a real broker is stopped that way."""
_PAIRED = {
    Kind.PAUSE: Kind.RESUME,
    Kind.PAUSE_WORKER: Kind.RESUME_WORKER,
    Kind.BROKER_STOP: Kind.BROKER_START,
    Kind.FORBID_READING: Kind.ALLOW_READING,
    Kind.NOT_READY: Kind.READY,
    Kind.OUT_OF_REACH: Kind.IN_REACH,
    Kind.SWAPPED: Kind.REGISTERED,
    Kind.SWITCHED_OFF: Kind.SWITCHED_ON,
}
_ALONE = frozenset({Kind.KILL_WORKER, *_TARGETS}) - _PAIRED.keys()
"""Events without a counterpart that ends them."""
_GENTLE = frozenset({Kind.SILENT, Kind.CODE_1, Kind.SWITCHED_OFF})
"""Events during which all servers keep running."""
_OF_STORAGE = {
    Kind.STORAGE_BUSY: 4,
    Kind.STORAGE_SILENT: 5,
    Kind.STORAGE_SLOW: 3,
    Kind.STORAGE_STOP: 2,
    Kind.STORAGE_HOLD: 2,
}
_STORAGE_PAIRED = {Kind.STORAGE_STOP: Kind.STORAGE_START, Kind.STORAGE_HOLD: Kind.STORAGE_GO_ON}
_KEYS_EVERY_S = 60.0
"""Pause between two renewals of keys; a key is valid for twice as long."""
_LASTS_S = {
    **dict.fromkeys(AWAY, 50.0),
    Kind.TOPIC_AGAIN: 60.0,
    Kind.TAIL_LOST: 60.0,
    # Long enough for applications to start meanwhile, which must wait.
    Kind.OUT_OF_REACH: 40.0,
    **dict.fromkeys((Kind.KILL_WORKER, Kind.SILENT, Kind.CODE_1), 0.0),
}
"""Approximate longest durations."""


def schedule(
    seed: int,
    seconds: float,
    *,
    slots: Sequence[str],
    brokers: Sequence[str],
    forgetful_s: float,
    faults: Collection[str] = ALL_FAULTS,
) -> list[Event]:
    """Events in the order of their time; after the last one everything runs.

    Args:
        seed: The same seed and seconds give the same events.
        seconds: From start to the moment at which draining begins.
        slots: Places for applications, in each of which one works at the beginning.
        brokers: Names; one at a time is down.
        forgetful_s: Time after which brokers forget locks and members; pauses are longer.
        faults: Names of ``FAULTS`` that may happen.
    """
    possible = frozenset().union(*(FAULTS[name] for name in faults))
    weights = {kind: weight for kind, weight in _WEIGHTS.items() if kind in possible}
    rng = random.Random(seed)
    events: list[Event] = []
    free_at_s = dict.fromkeys(slots, 0.0)
    other_free_at_s: dict[str, float] = {}
    at_s = 0.0
    while True:
        at_s += rng.uniform(4.0, 14.0)
        kind = rng.choices(list(weights), list(weights.values()))[0]
        # Drawn in any case, so that later draws do not depend on what was possible now.
        target, broker = rng.choice(list(slots)), rng.choice(list(brokers))
        pause_s, rest_s = rng.uniform(1.2, 2.2) * forgetful_s, rng.uniform(0.5, 8.0)
        same_name, is_slow = rng.random() < 0.5, rng.random() < 0.2
        lasts_s = (_LASTS_S | {Kind.PAUSE: pause_s, Kind.PAUSE_WORKER: pause_s}).get(kind, rest_s)
        if at_s + lasts_s + _START_S > seconds:
            return sorted(events)
        disturbed = sum(at_s < free_s for free_s in free_at_s.values())
        if kind is Kind.BROKER_STOP or kind in _TARGETS:
            target = _TARGETS.get(kind, broker)
            # One server at a time, and each of the others after what came before it.
            taken = {*(() if kind in _GENTLE else (_SERVERS,)), *({target} - set(brokers))}
            is_possible = all(at_s >= other_free_at_s.get(each, 0.0) for each in taken)
            if not is_possible or (kind in AWAY and disturbed):
                continue
            other_free_at_s |= dict.fromkeys(taken, at_s + lasts_s + 10.0)
            if kind in AWAY:
                free_at_s = dict.fromkeys(slots, at_s + lasts_s + _START_S)
        else:
            if at_s < free_at_s[target] or disturbed >= _MOST_DISTURBED:
                continue
            goes_on = kind in {Kind.PAUSE, Kind.PAUSE_WORKER, Kind.KILL_WORKER}
            free_at_s[target] = at_s + lasts_s + (_REST_S if goes_on else _START_S)
        events.append(Event(at_s=at_s, kind=kind, target=target))
        if kind in _ALONE:
            continue
        after = _PAIRED.get(kind, Kind.JOIN)
        events.append(
            Event(at_s=at_s + lasts_s, kind=after, target=target, same_name=same_name, is_slow=is_slow)
        )


def storage_schedule(seed: int, seconds: float) -> list[Event]:
    """Faults of object storage, each of which passes; they go with every schedule."""
    rng = random.Random(seed)
    events = [
        Event(at_s=number * _KEYS_EVERY_S, kind=Kind.STORAGE_KEYS, target=STORAGE)
        for number in range(1, int(seconds / _KEYS_EVERY_S))
    ]
    at_s = 0.0
    while True:
        at_s += rng.uniform(4.0, 16.0)
        kind = rng.choices(list(_OF_STORAGE), list(_OF_STORAGE.values()))[0]
        lasts_s = rng.uniform(0.5, 8.0)
        if at_s + lasts_s > seconds:
            return sorted(events)
        events.append(Event(at_s=at_s, kind=kind, target=STORAGE))
        if kind in _STORAGE_PAIRED:
            at_s += lasts_s
            events.append(Event(at_s=at_s, kind=_STORAGE_PAIRED[kind], target=STORAGE))


def counted(events: Sequence[Event]) -> Counter[Kind]:
    """Count the events of each kind."""
    return Counter(event.kind for event in events)


def seconds_for(
    seed: int,
    kills: int,
    *,
    slots: Sequence[str],
    brokers: Sequence[str],
    forgetful_s: float,
    faults: Collection[str] = ALL_FAULTS,
) -> float:
    """Return the seconds for which the schedule of ``seed`` has at least so many kills."""
    seconds = 60.0
    while True:
        events = schedule(seed, seconds, slots=slots, brokers=brokers, forgetful_s=forgetful_s, faults=faults)
        if sum(event.kind in KILLS for event in events) >= kills:
            return seconds
        seconds += 60.0
