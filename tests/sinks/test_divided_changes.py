"""Changes whose keys need only their newest one, beside the others: both ways give the same source."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.change_data.change import Operation
from pyspark_rocketmq.change_data.effects import LOWEST
from pyspark_rocketmq.sinks.change_table.compaction import (
    ABSENT,
    DELETED,
    OLDER,
    OPERATION,
    POSITION,
    DividedChanges,
    KeyedChanges,
    TableColumns,
    merge_source,
    whole_source,
)

_KEYS: Final = pa.schema([("shop", pa.int64()), ("id", pa.string())])
_VALUES: Final = [("a", pa.int64()), ("b", pa.string())]
_CHANGES: Final = pa.schema(
    [*_KEYS, *_VALUES, (POSITION, pa.string()), (OPERATION, pa.string()), (ABSENT, pa.list_(pa.string()))]
)
_STORED: Final = pa.schema(
    [*_KEYS, *_VALUES, (POSITION, pa.string()), (OLDER, pa.string()), (DELETED, pa.bool_())]
)

_keys = st.tuples(st.integers(0, 2), st.sampled_from(["", "x", "y"]))
_places = st.integers(1, 9).map(lambda number: f"p{number}")
_absent: Final[st.SearchStrategy[list[str] | None]] = st.one_of(
    st.none(), st.just([]), st.sampled_from([["a"], ["b"], ["a", "b"]])
)
_operations = st.sampled_from(
    [Operation.INSERT, Operation.UPDATE, Operation.UPDATE, Operation.UPDATE, Operation.DELETE]
)


@st.composite
def _changes(draw: st.DrawFn) -> pa.Table:
    """Changes, some of them several times."""
    at = draw(st.dictionaries(_places, st.tuples(_keys, _operations, _absent), max_size=9))
    rows: list[dict[str, Any]] = []
    for place, (key, operation, absent) in at.items():
        values = dict(zip(_KEYS.names, key, strict=True))
        change: dict[str, Any] = {POSITION: place, OPERATION: str(operation)}
        if operation is not Operation.DELETE:
            change |= {"a": int(place[1:]), "b": place, ABSENT: absent}
        rows += [values | change] * draw(st.integers(1, 2))
    return pa.Table.from_pylist(draw(st.permutations(rows)), _CHANGES)


@st.composite
def _stored(draw: st.DrawFn, *, keeps_deleted: bool) -> pa.Table:
    """Rows of the table, with older values or without."""
    older = st.sampled_from([None, {"a": LOWEST}, {"b": "p0"}])
    rows = []
    for key, (place, old) in draw(st.dictionaries(_keys, st.tuples(_places, older), max_size=3)).items():
        row: dict[str, Any] = {**dict(zip(_KEYS.names, key, strict=True)), "a": -1, "b": "stored"}
        is_deleted = draw(st.booleans()) if keeps_deleted else None
        rows.append(row | {POSITION: place, OLDER: old and json.dumps(old), DELETED: is_deleted})
    return pa.Table.from_pylist(rows, _STORED)


def _set_of(source: pa.Table) -> list[str]:
    return sorted(map(repr, source.to_pylist()))


@settings(deadline=None)
@given(_changes(), st.data(), st.booleans())
def test_the_source_is_that_of_all_changes_together(
    changes: pa.Table, data: st.DataObject, keeps_deleted: bool
) -> None:
    """K1: with deletions, truncations, missing values, rows that were read, and repeated changes."""
    columns = TableColumns(keys=tuple(_KEYS.names), others=("a", "b"), keeps_deleted=keeps_deleted)
    stored = data.draw(_stored(keeps_deleted=keeps_deleted))
    if not keeps_deleted:
        stored = stored.drop_columns([DELETED])
    deletions = data.draw(st.dictionaries(_keys, _places, max_size=3))
    floor = data.draw(st.one_of(st.just(LOWEST), _places))
    deleted = pa.Table.from_pylist([dict(zip(_KEYS.names, key, strict=True)) for key in deletions], _KEYS)

    others = pa.concat_tables([stored.select(_KEYS.names), deleted])
    divided = DividedChanges.of(columns, changes, others, floor)
    parts = [
        merge_source(KeyedChanges(columns, divided.rows), stored, deletions, floor),
        whole_source(columns, divided.whole),
    ]
    together = merge_source(KeyedChanges(columns, changes), stored, deletions, floor)

    assert _set_of(pa.concat_tables(parts)) == _set_of(together)
    assert len(divided.rows) + len(divided.whole) == len(changes)


def test_changes_with_all_values_are_not_looked_at_one_by_one() -> None:
    """K1: unless something else of their keys is known."""
    columns = TableColumns(keys=("shop", "id"), others=("a", "b"))
    rows = [
        {"shop": shop, "id": "x", "a": 1, "b": "b", POSITION: f"p{shop}", OPERATION: str(operation)}
        for shop, operation in enumerate(
            [Operation.UPDATE, Operation.UPDATE, Operation.DELETE, Operation.UPDATE]
        )
    ]
    changes = pa.Table.from_pylist(rows, _CHANGES)
    others = pa.Table.from_pylist([{"shop": 1, "id": "x"}], _KEYS)

    divided = DividedChanges.of(columns, changes, others, "p0")

    assert divided.whole["shop"].to_pylist() == [3]
    assert sorted(divided.rows["shop"].to_pylist()) == [0, 1, 2]
