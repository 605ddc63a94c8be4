"""Differences between tables of the lake and those of a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.change_data.real.source_tables import Row
from tests.change_data.real.workload import Version


def union(tables: Mapping[Row, Mapping[Row, Row]]) -> dict[Row, Row]:
    """Return the rows of several tables as those of one, by key: each begins with the values of its table."""
    return {
        (*of_table, *key): (*of_table, *row) for of_table, rows in tables.items() for key, row in rows.items()
    }


def differing_rows(
    table: str, columns: Sequence[str], here: Mapping[Row, Row], there: Mapping[Row, Row]
) -> list[str]:
    """Return what a table of the lake (``there``) has otherwise than its source (``here``)."""
    found = [f"{table} {key}: missing" for key in here.keys() - there.keys()]
    found += [f"{table} {key}: deleted, but there" for key in there.keys() - here.keys()]
    for key in here.keys() & there.keys():
        for name, wanted, got in zip(columns, here[key], there[key], strict=True):
            if not _is_same(wanted, got):
                found.append(f"{table} {key} {name}: {_shown(got)} instead of {_shown(wanted)}")
    return found


def differing_versions(
    table: str, here: Mapping[Row, Sequence[Version]], there: Mapping[Row, Sequence[Version]]
) -> list[str]:
    """Return what a history of the lake (``there``) has otherwise than the database had it (``here``).

    It may lack the first versions of a row, if they had ended when Debezium read the table.
    """
    found = []
    for key in here.keys() | there.keys():
        wanted, got = here.get(key, ()), there.get(key, ())
        missing = len(wanted) - len(got)
        if missing < 0 or any(not each.may_be_missing for each in wanted[:missing]):
            found.append(f"{table} {key}: {len(got)} versions instead of {len(wanted)}")
            continue
        for number, (one, other) in enumerate(zip(wanted[missing:], got, strict=True)):
            if one.is_current != other.is_current or not all(map(_is_same, one.row, other.row)):
                found.append(f"{table} {key}: version {number} is {_shown(other)}, not {_shown(one)}")
    return found


def _is_same(wanted: Any, got: Any) -> bool:
    # True equals 1, and 1 equals Decimal(1).
    return type(wanted) is type(got) and bool(wanted == got)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}… ({len(text)} characters)"
