from __future__ import annotations

from tests.groups.schedule import KILLS, Kind, counted, schedule, seconds_for

SLOTS, BROKERS = ("a", "b", "c"), ("broker-a", "broker-b")


def events_of(seed: int, seconds: float = 900.0):
    return schedule(seed, seconds, slots=SLOTS, brokers=BROKERS, forgetful_s=8.0)


def test_a_seed_always_gives_the_same_events():
    assert events_of(7) == events_of(7)
    assert events_of(7) != events_of(8)


def test_a_quarter_of_an_hour_has_everything_in_it_many_times():
    for seed in range(20):
        counts = counted(events_of(seed))
        assert set(counts) == set(Kind)
        assert sum(counts.values()) > 60


def test_what_begins_ends_and_one_application_always_works():
    for seed in range(50):
        up = dict.fromkeys((*SLOTS, *BROKERS), True)
        events = events_of(seed, 300.0)
        for event in (each for each in events if each.kind is not Kind.KILL_WORKER):
            is_begin = event.kind in {Kind.JOIN, Kind.RESUME, Kind.BROKER_START}
            assert up[event.target] is not is_begin, (seed, event)
            up[event.target] = is_begin
            assert any(up[slot] for slot in SLOTS)
            assert any(up[broker] for broker in BROKERS)
        assert all(up.values())
        assert max(event.at_s for event in events) <= 300.0


def test_so_many_kills_as_are_asked_for_and_a_worker_of_an_application_that_works():
    for seed in range(5):
        seconds = seconds_for(seed, 200, slots=SLOTS, brokers=BROKERS, forgetful_s=8.0)
        events = events_of(seed, seconds)
        assert sum(event.kind in KILLS for event in events) >= 200
        up = dict.fromkeys(SLOTS, True)
        for event in (each for each in events if each.target in SLOTS):
            if event.kind is Kind.KILL_WORKER:
                assert up[event.target], (seed, event)
            else:
                up[event.target] = event.kind in {Kind.JOIN, Kind.RESUME}
