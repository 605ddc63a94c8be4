"""Changes of the source's schema while a change table follows it."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_rocketmq.change_data.change import (
    Change,
    ChangeMessage,
    Decoded,
    Kind,
    Operation,
    SchemaChange,
    SourceType,
)
from pyspark_rocketmq.consumer.change_listener import ChangeListener
from pyspark_rocketmq.errors import SchemaError, SinkConflict
from pyspark_rocketmq.listeners.row_validation import RowColumns
from pyspark_rocketmq.model import MessageQueue, queue_columns
from pyspark_rocketmq.sinks.base import Span
from pyspark_rocketmq.sinks.change_table.appender import ChangeAppender
from pyspark_rocketmq.sinks.change_table.columns import change_schema
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable
from tests.change_data.model_database import TABLE, Row, Sent, sent, shuffled
from tests.helpers.sink_rows import GROUP, Q0, Q1, files_of
from tests.sinks.change_rows import MODEL_SCHEMA, table_rows

_LONG, _TEXT = SourceType("bigint(20)", Kind.LONG), SourceType("varchar(9)", Kind.STRING)
_NEW = ("d", "e", "f", "g", "h")
_TYPES = dict.fromkeys(("id", "a", "b", "c", *_NEW), _LONG) | {"e": _TEXT, "g": _TEXT}


@dataclass(frozen=True)
class _Statement:
    """A statement in a message, as ``Sent`` is for a change."""

    change: Any
    offset: int


class Query:
    """A sink and its listener, whose columns are those of the table at its start."""

    def __init__(self, path: Path, **settings: Any) -> None:
        given: dict[str, Any] = {"keys": ["id"], "columns": MODEL_SCHEMA} | settings
        self.sink = ChangeTable(path, envelope=self, **given)
        columns = self.sink.table_columns()
        self.sink.prepare(change_schema(columns))
        self._schema = change_schema(columns)
        self._listener = ChangeListener(self.sink)
        self._decoded: Sequence[Decoded] = ()

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        return self._decoded

    def rows(self, changes: Sequence[Sent | _Statement], queue: MessageQueue = Q0) -> pa.RecordBatch:
        found = []
        for each in changes:
            self._decoded = [each.change]
            message: Any = SimpleNamespace(
                body=b"x", keys="", properties={}, queue_offset=each.offset, store_timestamp=0
            )
            place = {**queue_columns(queue), "queueOffset": each.offset}
            found += [place | row for row in self._emitted(self._listener.rows(message))]
        return pa.RecordBatch.from_pylist(found, self._schema)

    def _emitted(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rows with their values as a task has them after it has converted them."""
        schema = self._listener.schema
        given = [{**dict.fromkeys(schema.fieldNames()), **row} for row in rows]
        columns = {name: [row[name] for row in given] for name in schema.fieldNames()}
        emitted: list[dict[str, Any]] = RowColumns(schema).to_batch(columns, len(given)).to_pylist()
        return emitted

    def apply(self, changes: Sequence[Sent | _Statement], queue: MessageQueue = Q0) -> int | None:
        batch = self.sink.begin(GROUP, {queue: 0})
        files = files_of(batch.task_writer(), iter([self.rows(changes, queue)]))
        return batch.commit(files, {queue: changes[-1].offset + 1})


def change(operation: Operation, position: int, types: Any = _TYPES, **row: Any) -> Change:
    key = {"id": row["id"]}
    given = {} if operation is Operation.DELETE else row
    return Change(table=TABLE, operation=operation, key=key, row=given, position=(position,), types=types)


@dataclass
class AlteredDatabase:
    """A table whose columns come and go, none of them twice."""

    random: random.Random
    columns: set[str] = field(default_factory=lambda: {"a", "b", "c"})
    new: list[str] = field(default_factory=lambda: list(_NEW))
    rows: dict[int, Row] = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)
    types: dict[str, SourceType] = field(default_factory=lambda: _TYPES)
    """Types that messages have."""

    def run(self, statements: int) -> None:
        for _ in range(statements):
            choices = [self.alter, self.insert, self.update, self.update, self.delete]
            self.random.choice(choices)()

    def alter(self) -> None:
        """Add, drop or rename a column; no row is written."""
        if self.new and self.random.random() < 0.7:
            self.columns.add(self.new.pop())
        if len(self.columns) > 1 and self.random.random() < 0.6:
            gone = self.random.choice(sorted(self.columns))
            self.columns.remove(gone)
            for row in self.rows.values():
                row.pop(gone, None)

    def insert(self) -> None:
        free = [key for key in range(3) if key not in self.rows]
        if free:
            key = self.random.choice(free)
            self.rows[key] = self._values(self.columns)
            self._log(Operation.INSERT, key, self.rows[key])

    def update(self) -> None:
        if self.rows:
            key = self.random.choice(list(self.rows))
            sent_ones = {name for name in self.columns if self.random.random() < 0.7}
            values = self._values(sent_ones)
            self.rows[key] |= values
            self._log(Operation.UPDATE, key, values, frozenset(self.columns - sent_ones))

    def delete(self) -> None:
        if self.rows:
            key = self.random.choice(list(self.rows))
            del self.rows[key]
            self._log(Operation.DELETE, key, None)

    def stored(self, key: int) -> dict[str, Any]:
        """Return the values of a row as the table has them: without types, those of new columns are text."""
        return {
            name: value if value is None or name in self.types or name not in _NEW else str(value)
            for name, value in self.rows[key].items()
        }

    def _values(self, names: set[str]) -> Row:
        return {
            name: self.random.choice([None, self.random.randrange(100) if _TYPES[name] is _LONG else "x"])
            for name in sorted(names)
        }

    def _log(
        self, operation: Operation, key: int, row: Row | None, absent: frozenset[str] = frozenset()
    ) -> None:
        self.log.append(
            Change(
                table=TABLE,
                operation=operation,
                key={"id": key},
                row={} if row is None else {"id": key, **row},
                position=(len(self.log),),
                absent=absent,
                types=self.types,
            )
        )


@pytest.mark.parametrize("seed", range(16))
def test_the_table_has_the_values_of_columns_that_come_and_go(tmp_path: Path, seed: int) -> None:
    """K3: old and new forms of rows in any order and any batches, with starts of the query in between; every
    second time messages have no types.
    """
    by = random.Random(seed)
    database = AlteredDatabase(by, types=_TYPES if seed % 2 == 0 else {})
    database.run(by.randrange(8, 30))
    database.insert()
    query = Query(tmp_path)

    for batch in shuffled(by, database.log):
        query.apply(batch)
        if by.random() < 0.3:
            query = Query(tmp_path)

    found = table_rows(tmp_path)
    assert found.keys() == database.rows.keys()
    for key, row in found.items():
        both = database.columns & row.keys()
        wanted = database.stored(key)
        assert {name: row[name] for name in both} == {name: wanted.get(name) for name in both}
        assert all(wanted[name] is None for name in wanted.keys() - row.keys())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_schemas(tmp_path: Path, seed: int) -> None:
    """K3: more schemas by seeds."""
    test_the_table_has_the_values_of_columns_that_come_and_go(tmp_path, seed)


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("types", [_TYPES, {}], ids=["types", "no types"])
def test_a_value_that_an_update_left_out_comes_later(tmp_path: Path, types: Any) -> None:
    """K3: the table gets the column with the update, whose row notes that it lacks the value."""
    query = Query(tmp_path)
    update = replace(change(Operation.UPDATE, 9, types, id=1, a=2), absent=frozenset("bce"))
    query.apply([Sent(update, 0)])
    query.apply([Sent(change(Operation.INSERT, 1, types, id=1, a=1, b=None, c=3, e="late"), 1)])

    assert table_rows(tmp_path) == {1: {"a": 2, "b": None, "c": 3, "e": "late"}}


def test_a_kill_after_the_columns_were_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: an added column is harmless, and the repeated batch finds it."""
    changes = sent([change(Operation.INSERT, 1, id=1, a=1, e="new")])

    def killed(*_: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patches:
        patches.setattr(ChangeAppender, "merge", killed)
        with pytest.raises(_Killed):
            Query(tmp_path).apply(changes)
    assert "e" in DeltaTable(tmp_path).schema().to_arrow().names

    Query(tmp_path).apply(changes)

    assert table_rows(tmp_path) == {1: {"a": 1, "b": None, "c": None, "e": "new"}}


def test_a_batch_commits_again_after_it_has_added_a_column(tmp_path: Path) -> None:
    """K3: also a time without a zone, for which the table gets a feature."""
    at = datetime(2026, 11, 27)  # noqa: DTZ001 - a time without a zone
    types = {"at": SourceType("datetime", Kind.TIMESTAMP_NTZ)}
    query = Query(tmp_path)
    batch = query.sink.begin(GROUP, {Q0: 0})
    for number in range(2):
        row = change(Operation.INSERT, number, types, id=number, a=1, at=at)
        files = files_of(batch.task_writer(), iter([query.rows([Sent(row, number)])]))
        batch.commit_group(files, {Q0: Span(number, number + 1)}, f"group {number}")

    assert {key: row["at"] for key, row in table_rows(tmp_path).items()} == {0: at, 1: at}


def test_two_members_add_one_column(tmp_path: Path) -> None:
    """K3: both have begun without it; whoever comes second finds it, with the type of the first one."""
    one, other = Query(tmp_path), Query(tmp_path)
    first, second = one.sink.begin(GROUP, {Q0: 0}), other.sink.begin(GROUP, {Q1: 0})
    small = change(Operation.INSERT, 1, {"n": SourceType("int", Kind.INT)}, id=1, n=1)
    large = change(Operation.INSERT, 2, {"n": SourceType("bigint", Kind.LONG)}, id=2, n=2)
    files = files_of(first.task_writer(), iter([one.rows(sent([small]))]))
    others = files_of(second.task_writer(), iter([other.rows(sent([large]), Q1)]))

    first.commit(files, {Q0: 1})
    second.commit(others, {Q1: 1})

    assert {key: row["n"] for key, row in table_rows(tmp_path).items()} == {1: 1, 2: 2}
    assert DeltaTable(tmp_path).schema().to_arrow().field("n").type == pa.int32()


def test_a_value_that_has_outgrown_its_column_is_a_bad_change(tmp_path: Path) -> None:
    """K3: delta-rs cannot widen a column, so the error has the way; also for a column added meanwhile."""
    columns = pa.schema([("id", pa.int64()), ("n", pa.int32())])
    query = Query(tmp_path, columns=columns)
    small = change(Operation.INSERT, 1, {"m": SourceType("int", Kind.INT)}, id=1, n=1, m=1)
    query.apply(sent([small]))
    types = {"n": SourceType("bigint", Kind.LONG), "m": SourceType("bigint", Kind.LONG)}
    for name in ("n", "m"):
        grown = change(Operation.INSERT, 2, types, id=2, **{name: 2**40})
        with pytest.raises(
            SinkConflict, match=rf"Column {name} is int and .*source's type is bigint.*rewrite"
        ):
            query.apply([Sent(grown, 1)])


def test_values_of_several_types_in_one_batch(tmp_path: Path) -> None:
    """K3: a new column gets the type that holds all of them."""
    rows = [
        change(Operation.INSERT, 1, {"n": SourceType("int", Kind.INT)}, id=1, n=1),
        change(Operation.INSERT, 2, {"n": SourceType("bigint", Kind.LONG)}, id=2, n=2**40),
        change(Operation.INSERT, 3, {}, id=3),
    ]
    Query(tmp_path).apply(sent(rows))
    assert {key: row["n"] for key, row in table_rows(tmp_path).items()} == {1: 1, 2: 2**40, 3: None}


def _drop(name: str) -> Any:
    return SchemaChange(table=TABLE, statement=f"ALTER TABLE orders DROP COLUMN {name}")


@pytest.mark.parametrize("mode", ["evolve", "exception"])
def test_a_dropped_column_ends_the_query_as_long_as_the_table_has_it(tmp_path: Path, mode: str) -> None:
    """K3: whatever becomes of bad changes; and a column that the table has not is no reason to stop."""
    query = Query(tmp_path, schema_changes=mode, bad_changes="keep")
    query.apply([_Statement(_drop("gone"), 0), Sent(change(Operation.INSERT, 1, id=1, a=1), 1)])
    assert list(table_rows(tmp_path)) == [1]

    for name in ("b", "B"):
        problem = rf"queue=0 at offset 2: The source has dropped or renamed {name} of"
        with pytest.raises(SinkConflict, match=problem):
            query.apply([_Statement(_drop(name), 2)])

    lenient = Query(tmp_path, schema_changes="lenient")
    lenient.apply([_Statement(_drop("b"), 2), Sent(change(Operation.INSERT, 2, id=2, a=2), 3)])
    assert sorted(table_rows(tmp_path)) == [1, 2]


def _without(path: Path, name: str) -> None:
    """Rewrite a table without a column, as the error for a dropped column has it."""
    rows = DeltaTable(path).to_pyarrow_table().drop_columns([name])
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")


def _evolving(path: Path) -> Query:
    return Query(path, schema_changes="evolve", columns=None)


def _with_a_drop(*after: Change) -> list[Sent | _Statement]:
    """A batch with a row from before the column b was dropped, the statement, and rows from after it."""
    before = Sent(change(Operation.UPDATE, 2, id=1, a=2, b=2, c=2), 1)
    return [before, _Statement(_drop("B"), 2), *(Sent(each, 3 + at) for at, each in enumerate(after))]


def _has_dropped_b(path: Path, batch: Sequence[Sent | _Statement]) -> None:
    """Apply a batch to a table with the column b, which the query refuses, and rewrite the table."""
    Query(path).apply([Sent(change(Operation.INSERT, 1, id=1, a=1, b=1, c=1), 0)])
    with pytest.raises(SinkConflict, match="dropped or renamed B of"):
        _evolving(path).apply(batch)
    _without(path, "b")


def test_the_remedy_for_a_dropped_column_is_one(tmp_path: Path) -> None:
    """K3: schema_changes='evolve': rows from before the statement, in its batch, bring the column back."""
    batch = _with_a_drop(change(Operation.UPDATE, 3, id=1, a=3, c=3), change(Operation.INSERT, 4, id=2, a=4))
    _has_dropped_b(tmp_path, batch)
    query = _evolving(tmp_path)
    query.apply(batch)
    query.apply([Sent(change(Operation.INSERT, 5, id=3, a=5), 9)])

    assert {key: row["a"] for key, row in table_rows(tmp_path).items()} == {1: 3, 2: 4, 3: 5}
    with pytest.raises(SinkConflict, match="dropped or renamed b of"):
        query.apply([_Statement(_drop("b"), 10)])


def test_a_column_that_is_dropped_and_added_again_has_its_values(tmp_path: Path) -> None:
    """K3: no statement decides how rows are read: these come after it, but no row's form shows that."""
    batch = _with_a_drop(change(Operation.INSERT, 3, id=2, a=3, b=3, c=3))
    _has_dropped_b(tmp_path, batch)
    _evolving(tmp_path).apply(batch)
    assert table_rows(tmp_path)[2] == {"a": 3, "b": 3, "c": 3}


def test_a_dropped_column_of_a_batch_that_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: the first try has added the column again, so this is no column that the user has left there."""
    batch = _with_a_drop()
    _has_dropped_b(tmp_path, batch)
    merge, tries = ChangeAppender.merge, list[object]()

    def second(self: ChangeAppender, *given: Any) -> None:
        tries.append(given)
        if len(tries) == 1:
            raise FileExistsError
        merge(self, *given)

    monkeypatch.setattr(ChangeAppender, "merge", second)
    _evolving(tmp_path).apply(batch)
    assert len(tries) == 2
    assert table_rows(tmp_path)[1] == {"a": 2, "b": 2, "c": 2}


def test_an_unknown_column_ends_the_query(tmp_path: Path) -> None:
    """K3: schema_changes='exception'"""
    with pytest.raises(
        SinkConflict, match=r"queue=0 at offset 0: The source's table has the column e \(string\)"
    ):
        Query(tmp_path, schema_changes="exception", bad_changes="keep").apply(
            sent([change(Operation.INSERT, 1, id=1, e="x")])
        )


def test_unknown_columns_are_left_out(tmp_path: Path) -> None:
    """K3: schema_changes='ignore'"""
    Query(tmp_path, schema_changes="ignore").apply(sent([change(Operation.INSERT, 1, id=1, a=1, e="x")]))
    assert table_rows(tmp_path) == {1: {"a": 1, "b": None, "c": None}}


def test_names_that_differ_in_case_in_one_batch(tmp_path: Path) -> None:
    """K3: the table gets one of them, and the other one's change is put aside."""
    query = Query(tmp_path, bad_changes="keep")
    query.apply(
        sent([change(Operation.INSERT, 1, id=1, Note="x"), change(Operation.INSERT, 2, id=2, note="y")])
    )
    assert {key: row["Note"] for key, row in table_rows(tmp_path).items()} == {1: "x"}
    [bad] = DeltaTable(tmp_path / "_bad_changes").to_pyarrow_table().to_pylist()
    assert "differ only in case" in bad["problem"]


def test_versions_get_a_column_that_comes_up(tmp_path: Path) -> None:
    """K3: stored_as_scd_type=2: a late change from before the column has null there."""
    query = Query(tmp_path, stored_as_scd_type=2)
    query.apply(sent([change(Operation.INSERT, 1, id=1, a=1)]))
    query.apply([Sent(change(Operation.UPDATE, 5, id=1, a=1, e="x"), 1)])
    query.apply([Sent(change(Operation.UPDATE, 3, id=1, a=2), 2)])

    rows = DeltaTable(tmp_path).to_pyarrow_table().sort_by("__position")
    assert (rows["a"].to_pylist(), rows["e"].to_pylist()) == ([1, 2, 1], [None, None, "x"])


@pytest.mark.parametrize(
    "name", ["__effect", "__time", "__operation", "__absent", "__day", "__Effect", "__OLDER", "*"]
)
def test_names_that_the_sink_uses(tmp_path: Path, name: str) -> None:
    """K3: a column of the source with one of these makes a bad change; a table with one is refused."""
    query = Query(tmp_path / "without", bad_changes="keep")
    query.apply(
        sent([change(Operation.INSERT, 1, id=1, **{name: 7}), change(Operation.INSERT, 2, id=2, a=1)])
    )
    assert table_rows(tmp_path / "without").keys() == {2}
    [bad] = DeltaTable(tmp_path / "without" / "_bad_changes").to_pyarrow_table().to_pylist()
    assert f"Column {name} has the name of a column" in bad["problem"]

    columns = pa.schema([("id", pa.int64()), (name, pa.int64())])
    with pytest.raises(SchemaError, match=rf"cannot have the column\(s\) {re.escape(name)} of the source"):
        Query(tmp_path / "given", columns=columns)
    write_deltalake(tmp_path / "stored", pa.table({"id": [1], name: [2]}))
    with pytest.raises(SchemaError, match=rf"cannot have the column\(s\) {re.escape(name)} of the source"):
        Query(tmp_path / "stored", columns=None)


@pytest.mark.parametrize("mode", ["lenient", "ignore", "exception"])
@pytest.mark.parametrize("scd_type", [1, 2])
def test_nan_stays_nan(tmp_path: Path, mode: str, scd_type: int) -> None:
    """K3: PostgreSQL's NaN is no null, also in arrays; as rows of a listener, a task's would make it null."""
    numbers = {"d": pa.float64(), "f": pa.float32(), "l": pa.list_(pa.float64())}
    columns = pa.schema([("id", pa.int64()), ("b", pa.int64()), *numbers.items()])
    given: dict[str, Any] = {"columns": columns, "schema_changes": mode, "stored_as_scd_type": scd_type}
    query = Query(tmp_path / "orders", **given)
    values = {"d": math.nan, "f": math.nan, "l": (1.5, math.nan, None)}
    changes = [
        change(Operation.INSERT, 1, {}, id=1, b=1, d=1.5, f=None, l=None),
        change(Operation.INSERT, 1, {}, id=2, b=2, **values),
        replace(change(Operation.UPDATE, 2, {}, id=1, **values), absent=frozenset("b")),
        replace(change(Operation.UPDATE, 3, {}, id=1, f=2.5), absent=frozenset("bdl")),
    ]
    for each in sent(changes):
        query.apply([each])

    rows = DeltaTable(tmp_path / "orders").to_pyarrow_table().sort_by("__position").to_pylist()
    found = {row["id"]: [str(row[name]) for name in "bdfl"] for row in rows}
    assert found == {1: ["1", "nan", "2.5", "[1.5, nan, None]"], 2: ["2", "nan", "nan", "[1.5, nan, None]"]}
