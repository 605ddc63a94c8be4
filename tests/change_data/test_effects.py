"""Changes in any order give the table of the database that made them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.change_data import effects
from pyspark_rocketmq.change_data.effects import (
    LOWEST,
    OTHERS,
    Fact,
    combine,
    compressed,
    older_of,
    older_text,
    order_of,
    parts_in,
)
from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.sinks.change_table import compaction
from tests.change_data import model_database
from tests.change_data.model_database import (
    COLUMNS,
    MODEL_COLUMNS,
    MemoryTable,
    ModelDatabase,
    sent,
    shuffled,
    without_positions,
)

_SCHEDULES = 1_500
_MANY_SCHEDULES = 40_000
_SEEDS_PER_MUTANT = 3_000
_SEEDS = st.integers(0, 2**32)
_POSITIONS = st.tuples(st.integers(0, 10**20), st.integers(0, 1200))
_SOFT = replace(MODEL_COLUMNS, keeps_deleted=True)


def _database(seed: int, **settings: Any) -> ModelDatabase:
    by = random.Random(seed)
    database = ModelDatabase(by, keys=1 + seed % 3, **settings)
    database.run(by.randrange(1, 14))
    return database


def _differs(seed: int, table: MemoryTable | None = None) -> bool:
    database = _database(seed)
    table = table or MemoryTable()
    for batch in shuffled(database.random, database.log):
        table.apply(batch)
    return table.visible != database.rows


@given(seed=_SEEDS)
@settings(max_examples=200)
def test_any_order_of_arrival_gives_the_table_of_the_database(seed: int) -> None:
    """K1: changes that are permuted, repeated and split into batches give the database's table."""
    assert not _differs(seed)


def test_thousands_of_schedules_give_the_table_of_the_database() -> None:
    """K1: schedules by seeds give the database's table."""
    assert [seed for seed in range(_SCHEDULES) if _differs(seed)] == []


@pytest.mark.long
def test_tens_of_thousands_of_schedules_give_the_table_of_the_database() -> None:
    """K1: more schedules by seeds give the database's table."""
    assert [seed for seed in range(_SCHEDULES, _MANY_SCHEDULES) if _differs(seed)] == []


def _depends_on_arrival(seed: int) -> bool:
    database = _database(seed)
    part = sent(change for change in database.log if database.random.random() < 0.7)
    stored = []
    for _ in range(2):
        database.random.shuffle(part)
        table = MemoryTable()
        for start in range(0, len(part), 3):
            table.apply(part[start : start + 3])
        stored.append(table.rows)
    return stored[0] != stored[1]


@given(seed=_SEEDS)
@settings(max_examples=200)
def test_what_is_stored_depends_on_the_set_of_changes_only(seed: int) -> None:
    """K1: after any part of the log, two orders of arrival leave equal rows, hidden columns included."""
    assert not _depends_on_arrival(seed)


@given(seed=_SEEDS)
@settings(max_examples=200)
def test_rows_that_are_marked_as_deleted_keep_their_last_values(seed: int) -> None:
    """K5: a table that keeps deleted rows keeps a deleted row with the values that it had, whatever the order of arrival."""
    database = _database(seed, truncates=False)
    table = MemoryTable(_SOFT)
    for batch in shuffled(database.random, database.log):
        table.apply(batch)
    assert table.visible == database.rows
    assert table.marked == database.deleted


@given(seed=_SEEDS)
def test_without_positions_the_order_is_that_of_the_queue(seed: int) -> None:
    """K1: changes without positions in the queue's order, in any batches, give the database's table."""
    database = _database(seed)
    log = sent(without_positions(database.log))
    table = MemoryTable()
    while log:
        size = database.random.randrange(1, len(log) + 1)
        table.apply(log[:size])
        log = log[size:]
    assert table.visible == database.rows


def test_a_batch_that_runs_again_changes_nothing() -> None:
    """K1: a batch that is applied twice, and one whose deletions were recorded before a kill, has one effect."""
    for seed in range(300):
        database = _database(seed)
        once, again = MemoryTable(), MemoryTable()
        for batch in shuffled(database.random, database.log):
            once.apply(batch)
            dying = MemoryTable(deletions=again.deletions, truncated_at=again.truncated_at)
            dying.apply(batch)
            again.truncated_at = dying.truncated_at
            again.apply(batch)
            again.apply(batch)
            assert again.rows == once.rows, seed


Combine = Callable[..., effects.RowState]


def _rows_only_as_a_whole(facts: Iterable[Fact], *given: Any, **named: Any) -> effects.RowState:
    return combine([fact._replace(older={}) for fact in facts], *given, **named)


def _keeps_what_a_deletion_made_void(facts: Iterable[Fact], *given: Any, **named: Any) -> effects.RowState:
    found = list(facts)
    state = combine(found, *given, **named)
    if state.is_deleted:
        return state
    living = combine(
        [fact._replace(deleted_at=LOWEST) for fact in found], *given, **(named | {"floor": LOWEST})
    )
    return living._replace(deleted_at=state.deleted_at)


def _forgets_floors(facts: Iterable[Fact], *given: Any, **named: Any) -> effects.RowState:
    return combine(facts, *given, **(named | {"floor": LOWEST}))


def _last_fact_wins(facts: Iterable[Fact], *given: Any, **named: Any) -> effects.RowState:
    *_, last = facts
    return combine([last], *given, **named)


def _deletes_whatever_comes_later(facts: Iterable[Fact], *given: Any, **named: Any) -> effects.RowState:
    found = list(facts)
    highest = max((fact.at for fact in found), default=LOWEST)
    return combine(
        [fact._replace(deleted_at=highest + "z") if fact.deleted_at else fact for fact in found],
        *given,
        **named,
    )


@pytest.mark.parametrize(
    "mutant",
    [
        _rows_only_as_a_whole,
        _keeps_what_a_deletion_made_void,
        _forgets_floors,
        _last_fact_wins,
        _deletes_whatever_comes_later,
    ],
)
def test_a_rule_of_states_that_is_left_out_is_seen(mutant: Combine, monkeypatch: pytest.MonkeyPatch) -> None:
    """K1: the schedules find each mutant, so they test what they are for."""
    monkeypatch.setattr(compaction, "combine", mutant)
    assert any(_differs(seed) or _depends_on_arrival(seed) for seed in range(_SEEDS_PER_MUTANT))


@pytest.mark.parametrize(
    "rule",
    [
        "compares",
        "keeps_deletions",
        "keeps_truncations",
        "truncates_below",
        "reads_older",
        "reads_unfinished",
    ],
)
def test_a_rule_of_the_merge_that_is_left_out_is_seen(rule: str) -> None:
    """K1: the schedules find each mutant, so they test what they are for."""
    left_out: dict[str, Any] = {rule: False}
    assert any(_differs(seed, MemoryTable(**left_out)) for seed in range(_SEEDS_PER_MUTANT))


@pytest.mark.parametrize("left_out", ["position", "is_snapshot", "digits"])
def test_a_rule_of_the_order_that_is_left_out_is_seen(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K1: the schedules find each mutant, so they test what they are for."""

    def order(position: Any, offset: int, number: int, *, is_snapshot: bool = False) -> str:
        if left_out == "digits":
            return f"{position[0]} {position[1]} {int(not is_snapshot)} {offset}"
        position = None if left_out == "position" else position
        return order_of(position, offset, number, is_snapshot=is_snapshot and left_out != "is_snapshot")

    monkeypatch.setattr(model_database, "order_of", order)
    assert any(_differs(seed) for seed in range(_SEEDS_PER_MUTANT))


@given(
    one=_POSITIONS, other=_POSITIONS, offsets=st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
)
def test_the_order_of_texts_is_that_of_positions(
    one: tuple[int, ...], other: tuple[int, ...], offsets: tuple[int, int]
) -> None:
    """K1: places compare as positions do, then as offsets."""
    texts = order_of(one, offsets[0], 0), order_of(other, offsets[1], 0)
    assert (texts[0] < texts[1]) == ((one, offsets[0]) < (other, offsets[1]))
    assert (texts[0] == texts[1]) == ((one, offsets[0]) == (other, offsets[1]))


@given(position=_POSITIONS, offset=st.integers(0, 10**18), number=st.integers(0, 1000))
def test_equal_positions(position: tuple[int, ...], offset: int, number: int) -> None:
    """K1: a snapshot's row is the lowest of equal positions, then offset and number decide."""
    at = order_of(position, offset, number)
    assert order_of(position, offset + 5, number, is_snapshot=True) < at
    assert at < order_of(position, offset, number + 1) < order_of(position, offset + 1, 0)
    assert order_of(position[:1], offset + 1, number) < at
    assert order_of(None, offset, 0, is_snapshot=True) > order_of(None, offset - 1, 5) if offset else True


@pytest.mark.parametrize("position", [(), (0,), (7, 12), (1, 2, 3, 4, 5, 6, 10**18)])
def test_the_number_of_a_position_s_parts_is_in_its_place(position: tuple[int, ...]) -> None:
    """K1: unless a table's statistics have cut the place off."""
    place = order_of(position, 5, 0)
    assert parts_in(place) == len(position)
    assert parts_in(place.partition(" ")[0]) is None


@pytest.mark.parametrize("part", [-1, 10**26])
def test_a_position_that_has_no_text_is_refused(part: int) -> None:
    """K1: a negative or endless part of a position is an error, not another order."""
    with pytest.raises(OffsetError, match="negative or longer than 26 digits"):
        order_of((part,), 0, 0)


@given(st.dictionaries(st.sampled_from([*COLUMNS, "d", "e"]), st.sampled_from(["", "x", "y", "z"])))
def test_places_are_stored_shorter_with_nothing_lost(places: dict[str, str]) -> None:
    """K1: a column's place can be read again from what a table stores of older values."""
    older = older_of(older_text(compressed(places, "z")))
    fact = Fact(0, "z", LOWEST, older)
    state = combine([fact, Fact(1, "a", LOWEST, {OTHERS: LOWEST})], list(places))
    found = {name: state.older.get(name, state.older.get(OTHERS, "z")) for name in places}
    assert found == places
    assert len(older) <= len(places)
