"""The rows of the files that may have certain rows: as those of delta-rs' data set, from fewer statistics."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.delta.file_choice import (
    ANY_ROW,
    MayHave,
    has_counted,
    has_null,
    has_value,
    is_at_least,
    is_one_of,
    rows_of_files,
)

_TEXTS: Final = ["", "a", "b", "a b%/é=1", "k" * 40, "k" * 40 + "z", "\U0010ffff" * 40, "%20"]
_MOMENT: Final = datetime(2026, 1, 1, 1, 2, 3, 4567, tzinfo=UTC)
_VALUES: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "number": (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "small": (pa.int8(), [-128, 0, 127]),
    "text": (pa.string(), _TEXTS),
    "a.b": (pa.string(), _TEXTS),
    "day": (pa.date32(), [date(1, 1, 1), date(2026, 1, 2), date(9999, 12, 31)]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [_MOMENT, _MOMENT.replace(microsecond=4999), _MOMENT.replace(year=1)],
    ),
    "price": (pa.decimal128(10, 2), [Decimal("0.07"), Decimal("1.50")]),
    "bytes": (pa.binary(), [b"", b"\xff\x00"]),
    "flag": (pa.bool_(), [True, False]),
}
_PARTITIONS: Final = ["text", "small", "day", "moment", "price", "flag"]
_ORDERED: Final = ["number", "small", "text", "a.b", "day", "moment"]

Rows = list[dict[str, Any]]
"""Rows by name of column."""


def _schema(names: list[str]) -> pa.Schema:
    return pa.schema([("id", pa.int64()), *((name, _VALUES[name][0]) for name in names)])


@dataclass(frozen=True)
class _Condition:
    """A condition on rows in both forms, and whether a row meets it."""

    may_have: MayHave
    expression: ds.Expression


@st.composite
def _conditions(draw: st.DrawFn, names: list[str], depth: int = 2) -> _Condition:
    kind = draw(st.sampled_from(["leaf", "and", "or"] if depth else ["leaf"]))
    if kind == "leaf":
        return draw(_conditions_on(draw(st.sampled_from(names))))
    one, other = draw(_conditions(names, depth - 1)), draw(_conditions(names, depth - 1))
    if kind == "and":
        return _Condition(one.may_have & other.may_have, one.expression & other.expression)
    return _Condition(one.may_have | other.may_have, one.expression | other.expression)


@st.composite
def _conditions_on(draw: st.DrawFn, name: str) -> _Condition:
    """A condition on one column."""
    field, (type_, values) = ds.field((name,)), _VALUES[name]
    value = draw(st.sampled_from(values))
    chosen = pa.array(draw(st.lists(st.sampled_from(values), max_size=3)), type_)
    found = [
        _Condition(ANY_ROW, ds.scalar(True)),
        _Condition(has_null(name), field.is_null()),
        _Condition(has_value(name), field.is_valid()),
    ]
    if name in _ORDERED:
        found.append(_Condition(is_at_least(name, value), field >= pa.scalar(value, type_)))
        found.append(_Condition(is_one_of(name, chosen), field.isin(chosen)))
    return draw(st.sampled_from(found))


@dataclass(frozen=True)
class _Case:
    names: list[str]
    partition_by: list[str]
    writes: list[tuple[list[str], Rows]]
    conditions: list[_Condition]


@st.composite
def _cases(draw: st.DrawFn) -> _Case:
    """Writes of a table; the first ones lack the columns that were added later."""
    names = draw(st.lists(st.sampled_from(sorted(_VALUES)), min_size=1, unique=True))
    possible = [each for each in names if each in _PARTITIONS]
    partition_by = draw(st.lists(st.sampled_from(possible), max_size=2, unique=True)) if possible else []
    if len(partition_by) == len(names):
        names = [*names, next(each for each in _VALUES if each not in names)]
    writes = []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(names)))
        has = [each for each in names if each in partition_by or each in names[:first]]
        row = st.fixed_dictionaries({each: st.none() | st.sampled_from(_VALUES[each][1]) for each in has})
        writes.append((has, draw(st.lists(row, min_size=1, max_size=4))))
    writes.append((names, writes[-1][1]))
    return _Case(names, partition_by, writes, draw(st.lists(_conditions(names), min_size=4, max_size=8)))


def _partition_value(value: Any) -> Any:
    """The value, or one that the name of a folder can have: Delta has no empty one."""
    return value[:15] or None if isinstance(value, str) else value


@contextmanager
def _written(case: _Case) -> Iterator[DeltaTable]:
    with tempfile.TemporaryDirectory(prefix="a b é ") as folder:
        number = 0
        for names, rows in case.writes:
            schema = _schema(names)
            values = [
                {
                    name: _partition_value(value) if name in case.partition_by else value
                    for name, value in row.items()
                }
                for row in rows
            ]
            given = [{"id": number + place, **row} for place, row in enumerate(values)]
            number += len(rows)
            write_deltalake(
                folder,
                pa.Table.from_pylist(given, schema),
                mode="append",
                schema_mode="merge",
                partition_by=case.partition_by or None,
            )
        yield DeltaTable(folder)


def _by_delta_rs(dataset: ds.Dataset, columns: list[str], expression: ds.Expression) -> pa.Table:
    """All rows of the files that delta-rs' data set chooses."""
    found = [
        fragment.to_table(schema=dataset.schema, columns=columns)
        for fragment in dataset.get_fragments(filter=expression)
    ]
    return pa.concat_tables([dataset.schema.empty_table().select(columns), *found]).sort_by("id")


def _rows(table: DeltaTable, columns: list[str], may_have: MayHave) -> pa.Table:
    found = [pa.schema(table.schema().to_arrow()).empty_table().select(columns)]
    return pa.concat_tables([*found, *rows_of_files(table, columns, may_have)]).sort_by("id")


def _ids(rows: pa.Table) -> set[int]:
    return set(rows["id"].to_pylist())


@settings(max_examples=20, deadline=None)
@given(_cases())
def test_rows_are_those_of_the_data_set_of_delta_rs(case: _Case) -> None:
    """K5: with values and nulls of any type, columns added later, partitions and any characters in paths.

    delta-rs' data set also leaves out files that lack a column where the condition holds for null.
    """
    has_all = all(set(names) == set(case.names) for names, _ in case.writes)
    with _written(case) as table:
        columns = ["id", *case.names]
        dataset = table.to_pyarrow_dataset()
        every = _by_delta_rs(dataset, columns, ds.scalar(True))
        for condition in case.conditions:
            found = _rows(table, columns, condition.may_have)
            assert found == every.filter(pc.is_in(every["id"], found["id"].combine_chunks()))
            assert _ids(every.filter(condition.expression)) <= _ids(found)
            if has_all:
                assert found == _by_delta_rs(dataset, columns, condition.expression)


def _write(path: Path, *numbers: int, names: tuple[str, ...] = ("n",)) -> None:
    rows = pa.table({name: pa.array(numbers, pa.int64()) for name in names})
    write_deltalake(path, rows, mode="append", schema_mode="merge")


def _numbers(path: Path, may_have: MayHave) -> list[int]:
    found = rows_of_files(DeltaTable(path), ["n"], may_have)
    return [value for rows in found for value in rows["n"].to_pylist()]


def test_files_without_such_rows_are_not_read(tmp_path: Path) -> None:
    """K5: they may even be missing."""
    for number in (1, 2, 3):
        _write(tmp_path, number)
    files = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).sort_by("min.n")["path"].to_pylist()
    for name in files[1:]:
        (tmp_path / name).unlink()

    assert _numbers(tmp_path, is_one_of("n", pa.array([1, 7]))) == [1]
    assert _numbers(tmp_path, is_at_least("n", 4)) == []
    with pytest.raises(FileNotFoundError):
        _numbers(tmp_path, ANY_ROW)


def test_files_older_than_a_counted_column_lack_it(tmp_path: Path) -> None:
    """K5: so they are not read for its values, though their statistics do not show it."""
    _write(tmp_path, 1)
    _write(tmp_path, 2, names=("n", "m"))

    assert sorted(_numbers(tmp_path, has_value("m"))) == [1, 2]
    assert _numbers(tmp_path, has_counted("m") & has_value("m")) == [2]
    assert _numbers(tmp_path, has_counted("m") & is_at_least("m", 1)) == [2]
    assert _numbers(tmp_path, has_null("m")) == [1]


def _change_log(table: Path, action: str, **changed: Any) -> None:
    """Change an action of the first commit."""
    commit = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for each in actions:
        if action in each:
            each[action].update(changed)
    commit.write_text("".join(f"{json.dumps(each)}\n" for each in actions))


def test_files_without_statistics_are_read(tmp_path: Path) -> None:
    """K5: whatever the condition is."""
    _write(tmp_path, 1)
    _change_log(tmp_path, "add", stats=None)
    _write(tmp_path, 2, names=("n", "m"))

    for condition in (
        is_one_of("n", pa.array([2])),
        is_at_least("n", 2),
        has_null("n") | is_at_least("n", 2),
    ):
        assert sorted(_numbers(tmp_path, condition)) == [1, 2]
    assert sorted(_numbers(tmp_path, has_counted("m") & has_value("m"))) == [1, 2]


def test_bounds_of_times_are_rounded_down(tmp_path: Path) -> None:
    """K5: an upper bound, too."""
    moment = pa.array([_MOMENT], pa.timestamp("us", "UTC"))
    write_deltalake(tmp_path, pa.table({"n": [1], "t": moment}))

    assert _numbers(tmp_path, is_one_of("t", moment)) == [1]
    assert _numbers(tmp_path, is_at_least("t", _MOMENT)) == [1]


@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping", "typeWidening"])
def test_tables_with_other_features_are_refused(tmp_path: Path, feature: str) -> None:
    """K5: delta-rs' data set refuses them; their rows are not those of their files."""
    _write(tmp_path, 1)
    _change_log(
        tmp_path,
        "protocol",
        minReaderVersion=3,
        minWriterVersion=7,
        readerFeatures=[feature],
        writerFeatures=[feature],
    )

    with pytest.raises(DeltaError, match=feature):
        _numbers(tmp_path, ANY_ROW)


def test_files_elsewhere_are_left_to_delta_rs(tmp_path: Path) -> None:
    """K5: a shallow clone has the files of another table, which delta-rs does not find."""
    path, elsewhere = tmp_path / "clone", tmp_path / "other.parquet"
    _write(path, 1)
    pq.write_table(pa.table({"n": [7]}), elsewhere)
    _change_log(path, "add", path=elsewhere.as_uri(), size=elsewhere.stat().st_size)

    with pytest.raises(FileNotFoundError):
        _numbers(path, ANY_ROW)
