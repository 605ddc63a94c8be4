"""Decisions of the proof without a database: columns, values, versions, differences, counts and times."""

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.change_data.real.differences import differing_rows, differing_versions, union
from tests.change_data.real.feeder import counted
from tests.change_data.real.lake import QUERIES, Lake
from tests.change_data.real.proof import alteration_times
from tests.change_data.real.source_tables import (
    DOCUMENTS,
    ITEMS,
    ORDERS,
    SHARDS,
    VISITS,
    Alter,
    SourceTable,
)
from tests.change_data.real.workload import Note, Version, versions_of

TABLES = [ORDERS, DOCUMENTS, *SHARDS, VISITS, ITEMS]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.full_name)
def test_after_each_alteration_a_table_has_values_for_the_columns_that_it_has(table: SourceTable) -> None:
    for altered in range(len(table.alterations) + 1):
        coming = {each.former for each in table.alterations[altered:]} - {None}
        values = table.values_after(altered, random.Random(7))
        there = {*table.column_names} - table.absent_after(altered)

        assert values.keys() == there - {*table.keys} | coming


def test_first_columns_lack_what_is_added_or_renamed_later() -> None:
    assert ORDERS.first_columns == ORDERS.columns.removesuffix(", extra bigint")
    assert SHARDS[0].first_columns == "id int, note string, quantity int, total decimal(12,2)"
    assert SHARDS[0].former_names == {"owner"}


def test_each_kind_of_table_and_alteration_is_there() -> None:
    tables = [table for query in QUERIES for table in query.tables]
    sources = {source for query in QUERIES for source in query.sources}

    assert sources == {*TABLES}
    assert {each.kind for source in sources for each in source.alterations} == {*Alter}
    assert {table.source.name for table in tables if table.has_history} == {"orders", "documents", "items"}
    assert [table.columns[:3] for table in tables if table.is_merged] == [
        ["__source_database", "__source_table", "id"]
    ]


def test_alterations_come_in_the_order_of_their_times_and_early_enough() -> None:
    times = alteration_times(7, 100.0, TABLES)

    assert times == alteration_times(7, 100.0, TABLES)
    assert [at_s for at_s, _ in times] == sorted(at_s for at_s, _ in times)
    assert all(10.0 <= at_s <= 80.0 for at_s, _ in times)
    assert len(times) == sum(len(table.alterations) for table in TABLES)


def test_a_row_has_a_version_for_each_value_and_none_for_an_update_that_alters_nothing() -> None:
    notes = [Note(1, "INSERT", (1, "a")), Note(2, "INSERT", (1, "a")), Note(3, "INSERT", (1, "b"))]

    assert versions_of(notes, keys=1, followed_from=0) == {
        (1,): [Version((1, "a"), is_current=False), Version((1, "b"), is_current=True)]
    }


def test_deletes_and_truncations_end_versions() -> None:
    notes = [
        Note(1, "INSERT", (1, "a")),
        Note(2, "DELETE", (1, "a")),
        Note(3, "INSERT", (1, "a")),
        Note(4, "INSERT", (2, "b")),
        Note(5, "TRUNCATE", (None, None)),
        Note(6, "INSERT", (2, "c")),
    ]
    found = versions_of(notes, keys=1, followed_from=2)

    assert found == {
        (1,): [
            Version((1, "a"), is_current=False, may_be_missing=True),
            Version((1, "a"), is_current=False),
        ],
        (2,): [Version((2, "b"), is_current=False), Version((2, "c"), is_current=True)],
    }


def test_a_union_has_the_rows_of_all_shards_with_their_names() -> None:
    rows = union({("db", "a"): {(1,): (1, "x")}, ("db", "b"): {(1,): (1, "y"), (2,): (2, "z")}})

    assert rows == {
        ("db", "a", 1): ("db", "a", 1, "x"),
        ("db", "b", 1): ("db", "b", 1, "y"),
        ("db", "b", 2): ("db", "b", 2, "z"),
    }


@pytest.mark.parametrize(
    ("here", "there", "difference"),
    [
        ({(1,): (1, "a")}, {}, "t (1,): missing"),
        ({}, {(1,): (1, "a")}, "t (1,): deleted, but there"),
        ({(1,): (1, "a")}, {(1,): (1, "b")}, "t (1,) x: 'b' instead of 'a'"),
        ({(1,): (1, 1)}, {(1,): (1, True)}, "t (1,) x: True instead of 1"),
        ({(1,): (1, 1)}, {(1,): (1, Decimal(1))}, "t (1,) x: Decimal('1') instead of 1"),
    ],
)
def test_a_value_of_another_type_differs_too(
    here: dict[tuple[object, ...], tuple[object, ...]],
    there: dict[tuple[object, ...], tuple[object, ...]],
    difference: str,
) -> None:
    assert differing_rows("t", ["id", "x"], here, there) == [difference]


def test_equal_rows_do_not_differ() -> None:
    rows = {(1,): (1, date(2024, 2, 29))}

    assert differing_rows("t", ["id", "x"], rows, dict(rows)) == []


def test_a_history_may_lack_only_first_versions_that_had_ended_early() -> None:
    old = Version((1, "a"), is_current=False, may_be_missing=True)
    ended, current = Version((1, "b"), is_current=False), Version((1, "c"), is_current=True)
    wanted = {(1,): [old, ended, current]}

    assert differing_versions("t", wanted, {(1,): [ended, current]}) == []
    assert differing_versions("t", wanted, {(1,): [current]}) == ["t (1,): 1 versions instead of 3"]
    assert differing_versions("t", wanted, {(1,): [old, old, ended, current]}) == [
        "t (1,): 4 versions instead of 3"
    ]
    assert len(differing_versions("t", wanted, {(1,): [ended, ended]})) == 1


def test_counts_of_all_batches_are_added() -> None:
    assert counted(["sends swapped=3", "sends repeated=1", "sends swapped=4"]) == {
        "sends swapped": 7,
        "sends repeated": 1,
    }


def test_a_table_is_truncated_once_its_tables_of_the_lake_are_there_and_never_if_it_is_merged(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path, QUERIES, "source", {})
    for folder in ("items", "items-history", "documents-history", "many/shop/visits", "many/all/carts"):
        write_deltalake(tmp_path / "source" / folder, pa.table({"id": [1]}))

    assert lake.truncatable() == {ITEMS, VISITS}
