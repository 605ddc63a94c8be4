"""Changes in any order give the versions of a model that sorts all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.change_data.change import Change
from pyspark_rocketmq.change_data.history import Event, History, StoredVersion, events_of, history
from pyspark_rocketmq.sinks.change_table import versions
from tests.change_data.model_database import COLUMNS, ModelDatabase, sent, shuffled
from tests.change_data.model_history import MemoryHistory, coarse, sorted_versions, timed

_SCHEDULES = 1_500
_MANY_SCHEDULES = 30_000
_SEEDS_PER_MUTANT = 2_000
_SEEDS = st.integers(0, 2**32)
_FEW = 2
_TRACKED: tuple[frozenset[str] | None, ...] = (None, frozenset("a"), frozenset("ab"), frozenset())


def _database(seed: int) -> tuple[ModelDatabase, list[Change]]:
    by = random.Random(seed)
    database = ModelDatabase(by, keys=1 + seed % 3)
    database.run(by.randrange(1, 14))
    return database, timed(database.log, _FEW, random.Random(seed) if seed % 2 else None)


def _tracked(seed: int) -> frozenset[str] | None:
    return _TRACKED[seed // 3 % len(_TRACKED)]


def _differs(seed: int, **left_out: Any) -> bool:
    database, log = _database(seed)
    tracked = _tracked(seed)
    table = MemoryHistory(tracked, **left_out)
    batches = shuffled(database.random, log)
    for batch in batches:
        table.apply(batch)
    wanted = sorted_versions((each for batch in batches for each in batch), _named(tracked))
    if table.visible != wanted:
        return True
    return table.current != {key: coarse(row, _FEW) for key, row in database.rows.items()}


def _named(tracked: frozenset[str] | None) -> Iterable[str]:
    return COLUMNS if tracked is None else tracked


@given(seed=_SEEDS)
@settings(max_examples=200)
def test_any_order_of_arrival_gives_the_versions_of_a_model_that_sorts(seed: int) -> None:
    """K5: changes that are permuted, repeated and split into batches give the same versions."""
    assert not _differs(seed)


def test_thousands_of_schedules_give_the_versions_of_a_model_that_sorts() -> None:
    """K5: schedules by seeds, with late changes, deletions, truncations, new keys, snapshots and absent values.

    In every second one the source's times go back now and then.
    """
    assert [seed for seed in range(_SCHEDULES) if _differs(seed)] == []


@pytest.mark.long
def test_tens_of_thousands_of_schedules_give_the_versions_of_a_model_that_sorts() -> None:
    """K5: more schedules by seeds."""
    assert [seed for seed in range(_SCHEDULES, _MANY_SCHEDULES) if _differs(seed)] == []


def test_a_late_end_of_a_version_shows_what_it_inherited() -> None:
    """K5: the value came from the version before, and a change after the late truncation has overwritten it."""
    assert not _differs(5583)


def _depends_on_arrival(seed: int) -> bool:
    database, log = _database(seed)
    part = sent(change for change in log if database.random.random() < 0.7)
    stored = []
    for size in (3, 2):
        database.random.shuffle(part)
        table = MemoryHistory(_tracked(seed))
        for start in range(0, len(part), size):
            table.apply(part[start : start + size])
        stored.append(table.rows)
    return stored[0] != stored[1]


@given(seed=_SEEDS)
@settings(max_examples=200)
def test_what_is_stored_depends_on_the_set_of_changes_only(seed: int) -> None:
    """K5: after any part of the log, two orders of arrival leave equal rows, hidden columns included."""
    assert not _depends_on_arrival(seed)


def test_a_batch_that_runs_again_changes_nothing() -> None:
    """K5: a batch that is applied twice, and one that was killed after it was recorded, has one effect."""
    for seed in range(300):
        database, log = _database(seed)
        once, again = MemoryHistory(_tracked(seed)), MemoryHistory(_tracked(seed))
        for batch in shuffled(database.random, log):
            once.apply(batch)
            again.record(batch)
            again.apply(batch)
            again.apply(batch)
            assert again.rows == once.rows, seed


def test_without_what_was_forgotten_changes_in_order_are_exact() -> None:
    """K5: a table that remembers nothing beside its versions goes on exactly with changes in their order."""
    for seed in range(600):
        database, log = _database(seed)
        tracked = _tracked(seed)
        messages = sent(log)
        table = MemoryHistory(tracked)
        place = 0
        while place < len(messages):
            size = database.random.randrange(1, 4)
            table.apply(messages[place : place + size])
            table.forget()
            place += size
        assert table.visible == sorted_versions(messages, _named(tracked)), seed


History_ = Callable[..., History]


def _arrival_order(events: Iterable[Event], *given: Any) -> History:
    *others, last = events
    return history([*others, last._replace(at=max(event.at for event in [*others, last]))], *given)


def _every_change_opens(events: Iterable[Event], tracked: Any, differ: Any, *given: Any) -> History:
    return history(events, lambda _: True, lambda *_: True, *given)


def _inherits_nothing_of_unread_versions(
    events: Iterable[Event], tracked: Any, differ: Any, _: Any
) -> History:
    return history(events, tracked, differ)


def _inherits_nothing(events: Iterable[Event], *given: Any) -> History:
    found = history(events, *given)
    for version in found.versions:
        version.values = {name: row for name, row in version.values.items() if version.places.get(name)}
    return found


def _only_the_highest_deletion(events: Iterable[Event], *given: Any) -> History:
    found = list(events)
    highest = max((event.at for event in found if event.values is None), default="")
    return history([event for event in found if event.values is not None or event.at == highest], *given)


def _forgets_what_is_lost(events: Iterable[Event], *given: Any) -> History:
    return history(events, *given)._replace(lost=[])


def _forgets_changes_that_open_nothing(events: Iterable[Event], *given: Any) -> History:
    found = history(events, *given)
    return found._replace(lost=[event for event in found.lost if event.values is None])


def _forgets_deletions_in_vain(events: Iterable[Event], *given: Any) -> History:
    found = history(events, *given)
    return found._replace(lost=[event for event in found.lost if event.values is not None])


@pytest.mark.parametrize(
    "mutant",
    [
        _arrival_order,
        _every_change_opens,
        _inherits_nothing,
        _inherits_nothing_of_unread_versions,
        _only_the_highest_deletion,
        _forgets_what_is_lost,
        _forgets_changes_that_open_nothing,
        _forgets_deletions_in_vain,
    ],
)
def test_a_rule_of_versions_that_is_left_out_is_seen(
    mutant: History_, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: the schedules find each mutant, so they test what they are for."""
    monkeypatch.setattr(versions, "history", mutant)
    assert any(_differs(seed) for seed in range(_SEEDS_PER_MUTANT))


def test_what_was_before_a_batch_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """K5: remembered changes of versions that were not read make no versions."""
    monkeypatch.setattr(versions._Key, "begin", lambda *_: ("", {}))
    assert any(_differs(seed) for seed in range(_SEEDS_PER_MUTANT))


@pytest.mark.parametrize("rule", ["inherited", "first values", "ends"])
def test_a_rule_of_stored_versions_that_is_left_out_is_seen(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: the schedules find each mutant, so they test what they are for."""

    def mutant(stored: list[StoredVersion], columns: Any) -> Iterable[Event]:
        match rule:
            case "inherited":
                return events_of([each._replace(places={}) for each in stored], columns)
            case "first values":
                return (event for event in events_of(stored, columns) if not event.is_remembered)
            case _:
                return events_of([each._replace(ended_at=None) for each in stored], columns)

    monkeypatch.setattr(versions, "events_of", mutant)
    if rule == "first values":
        with pytest.raises(AssertionError):
            test_without_what_was_forgotten_changes_in_order_are_exact()
    else:
        assert any(_differs(seed) for seed in range(_SEEDS_PER_MUTANT))


@pytest.mark.parametrize(
    "rule",
    [
        "remembers",
        "keeps_truncations",
        "closes_below",
        "reads_after_truncations",
        "reads_ended",
        "reads_all_of_late_keys",
    ],
)
def test_a_rule_of_the_merge_that_is_left_out_is_seen(rule: str) -> None:
    """K5: the schedules find each mutant, so they test what they are for."""
    left_out: dict[str, Any] = {rule: False}
    assert any(_differs(seed, **left_out) for seed in range(_SEEDS_PER_MUTANT))
