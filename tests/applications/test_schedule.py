from __future__ import annotations

import pytest

from tests.applications.schedule import (
    _WEIGHTS,
    AWAY,
    FAULTS,
    GROUP,
    KILLS,
    NAME_SERVER,
    NETWORK,
    TOPIC,
    Event,
    Kind,
    counted,
    schedule,
    seconds_for,
    storage_schedule,
)

SLOTS, BROKERS = ("a", "b", "c"), ("broker-a", "broker-b")


def events_of(seed: int, seconds: float = 900.0) -> list[Event]:
    return schedule(seed, seconds, slots=SLOTS, brokers=BROKERS, forgetful_s=8.0)


def test_a_seed_always_gives_the_same_events() -> None:
    assert events_of(7) == events_of(7)
    assert events_of(7) != events_of(8)


def test_half_an_hour_has_nearly_everything_in_it() -> None:
    runs = [counted(events_of(seed, 1800.0)) for seed in range(20)]
    for kind in (kind for kind in Kind if "STORAGE" not in kind.name and kind not in AWAY):
        assert sum(kind in counts for counts in runs) >= 15, kind
    assert all(sum(counts.values()) > 100 for counts in runs)
    in_hours = [event for seed in range(4) for event in events_of(seed, 7200.0)]
    assert set(counted([*in_hours, *storage_schedule(0, 7200.0)])) == set(Kind)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_run_can_be_restricted_to_one_fault(name: str) -> None:
    events = [
        event
        for seed in range(20)
        for event in schedule(
            seed, 600.0, slots=SLOTS, brokers=BROKERS, forgetful_s=8.0, faults=frozenset({name})
        )
    ]
    ends = {
        Kind.JOIN,
        Kind.RESUME,
        Kind.RESUME_WORKER,
        Kind.BROKER_START,
        Kind.ALLOW_READING,
        Kind.READY,
        Kind.IN_REACH,
        Kind.REGISTERED,
        Kind.SWITCHED_ON,
    }
    assert {event.kind for event in events} - ends == FAULTS[name]


def test_every_fault_that_begins_has_a_name() -> None:
    assert {kind for kinds in FAULTS.values() for kind in kinds} == set(_WEIGHTS)


def test_addresses_are_registered_and_consumption_goes_on_in_the_end() -> None:
    pairs = {
        Kind.NOT_READY: Kind.READY,
        Kind.OUT_OF_REACH: Kind.IN_REACH,
        Kind.SWAPPED: Kind.REGISTERED,
        Kind.SWITCHED_OFF: Kind.SWITCHED_ON,
    }
    for seed in range(50):
        kinds = [event.kind for event in events_of(seed, 900.0)]
        for begin, end in pairs.items():
            mine = [kind for kind in kinds if kind in {begin, end}]
            assert mine == [begin, end] * (len(mine) // 2)


def test_every_fault_ends_and_one_application_always_works() -> None:
    for seed in range(50):
        up = dict.fromkeys((*SLOTS, *BROKERS, TOPIC), True)
        events = events_of(seed, 300.0)
        alone = {Kind.KILL_WORKER, Kind.TOPIC_AGAIN, Kind.TAIL_LOST}
        for event in (each for each in events if each.kind not in alone and each.target in up):
            is_begin = event.kind in {
                Kind.JOIN,
                Kind.RESUME,
                Kind.RESUME_WORKER,
                Kind.BROKER_START,
                Kind.ALLOW_READING,
            }
            assert up[event.target] is not is_begin, (seed, event)
            up[event.target] = is_begin
            assert any(up[slot] for slot in SLOTS)
            assert any(up[broker] for broker in BROKERS)
        assert all(up.values())
        assert max(event.at_s for event in events) <= 300.0


def test_every_fault_of_storage_ends() -> None:
    for seed in range(50):
        kinds = [event.kind for event in storage_schedule(seed, 300.0) if event.kind is not Kind.STORAGE_KEYS]
        for begin, end in ((Kind.STORAGE_STOP, Kind.STORAGE_START), (Kind.STORAGE_HOLD, Kind.STORAGE_GO_ON)):
            assert [at + 1 for at, kind in enumerate(kinds) if kind is begin] == [
                at for at, kind in enumerate(kinds) if kind is end
            ]


def test_so_many_kills_as_are_asked_for_and_a_worker_of_an_application_that_works() -> None:
    for seed in range(5):
        seconds = seconds_for(seed, 200, slots=SLOTS, brokers=BROKERS, forgetful_s=8.0)
        events = events_of(seed, seconds)
        assert sum(event.kind in KILLS for event in events) >= 200
        up = dict.fromkeys(SLOTS, True)
        for event in (each for each in events if each.target in SLOTS):
            if event.kind is Kind.KILL_WORKER:
                assert up[event.target], (seed, event)
            else:
                up[event.target] = event.kind in {Kind.JOIN, Kind.RESUME, Kind.RESUME_WORKER}


def test_all_are_sent_away_only_while_all_work_and_are_not_touched_meanwhile() -> None:
    for seed in range(50):
        events = events_of(seed, 1800.0)
        for away in (event for event in events if event.kind in AWAY):
            assert away.target == GROUP
            near = [event for event in events if away.at_s < event.at_s < away.at_s + 50.0]
            assert not {event.target for event in near} - {*BROKERS, NAME_SERVER, NETWORK, TOPIC} - {GROUP}
            up = dict.fromkeys(SLOTS, True)
            for event in events:
                if event.at_s < away.at_s and event.target in SLOTS and event.kind is not Kind.KILL_WORKER:
                    up[event.target] = event.kind in {Kind.JOIN, Kind.RESUME, Kind.RESUME_WORKER}
            assert all(up.values())
