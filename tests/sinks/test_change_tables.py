"""Many tables of a source in one folder."""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import pyspark_rocketmq as rmq
from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Decoded,
    Kind,
    Operation,
    PassedOver,
    SchemaChange,
    SourceTable,
    SourceType,
)
from pyspark_rocketmq.cli.offsets.change import SinkWatermarks
from pyspark_rocketmq.consumer.tables_listener import TablesListener
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.errors import OptionError, SchemaError, SinkConflict
from pyspark_rocketmq.model import MessageQueue, queue_columns
from pyspark_rocketmq.sinks.against_offsets import recorded_sinks
from pyspark_rocketmq.sinks.change_table import tables as tables_module
from pyspark_rocketmq.sinks.change_table.columns import routed_columns
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable
from pyspark_rocketmq.sinks.change_table.split import split_by_target
from pyspark_rocketmq.sinks.change_table.tables import ChangeTables
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.table import MANY_COMMITS
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS
from tests.change_data.model_database import ModelDatabase, Sent, sent, shuffled
from tests.helpers.sink_rows import GROUP, Q0, Q1, files_of
from tests.sinks.change_rows import apply as apply_changes
from tests.sinks.change_rows import change_table, table_rows

_TYPES = {name: SourceType("bigint(20)", Kind.LONG) for name in ("id", "a", "b", "c", "d")}
_SCHEMA = pa.schema([*POSITION_FIELDS, *routed_columns()])
ORDERS = SourceTable("shop", None, "orders")


class Query:
    """A sink and its listener."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.sink = ChangeTables(folder, envelope=self, **settings)
        self.sink.prepare(_SCHEMA)
        self._listener = pickle.loads(pickle.dumps(TablesListener(_with_envelope(self.sink))))
        self._listener._envelope = self
        self._decoded: Sequence[Decoded] = ()

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        return self._decoded

    def rows(self, changes: Sequence[Any], queue: MessageQueue = Q0) -> pa.RecordBatch:
        found = []
        for each in changes:
            self._decoded = [each.change]
            message: Any = SimpleNamespace(
                body=b"x", keys="", properties={}, queue_offset=each.offset, store_timestamp=0
            )
            place = {**queue_columns(queue), "queueOffset": each.offset}
            found += [place | row for row in self._listener.rows(message)]
        return pa.RecordBatch.from_pylist(found, _SCHEMA)

    def apply(self, changes: Sequence[Any], queue: MessageQueue = Q0) -> int | None:
        batch = self.sink.begin(GROUP, {queue: 0})
        files = files_of(batch.task_writer(), iter([self.rows(changes, queue)]))
        return batch.commit(files, {queue: changes[-1].offset + 1})


class _NoEnvelope:
    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        raise AssertionError("the query gives the changes")


def _with_envelope(sink: ChangeTables) -> Any:
    return SimpleNamespace(envelope=_NoEnvelope(), router=sink.router, setting=sink.setting)


def change(operation: Operation, position: int, table: SourceTable = ORDERS, **row: Any) -> Change:
    key = {"id": row["id"]} if "id" in row else {}
    given = {} if operation in (Operation.DELETE, Operation.TRUNCATE) else row
    return Change(table=table, operation=operation, key=key, row=given, position=(position,), types=_TYPES)


def _log(by: random.Random) -> tuple[list[Change], dict[str, ModelDatabase]]:
    """The changes of three tables, and these."""
    databases = {}
    log: list[Change] = []
    for name in ("orders", "carts", "users"):
        database = databases[name] = ModelDatabase(by)
        database.insert()
        database.run(by.randrange(3, 9))
        log += [_renamed(each, SourceTable("shop", None, name)) for each in database.log]
    return log, databases


def _renamed(each: Change, table: SourceTable) -> Change:
    return Change(
        table=table,
        operation=each.operation,
        key=each.key,
        row=each.row,
        position=each.position,
        absent=each.absent,
        types=_TYPES,
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_tables_equal_the_database_in_any_order(tmp_path: Path, seed: int) -> None:
    """K2: changes that are permuted, repeated and in any batches, with restarts in between."""
    by = random.Random(seed)
    log, databases = _log(by)
    first = {each.table.name: each for each in log if each.operation is Operation.INSERT}
    query = Query(tmp_path)
    # A truncation that comes before every row is the subject of another test.
    query.apply(sent(list(first.values())))
    for batch in shuffled(by, log):
        query.apply([Sent(each.change, each.offset + 10) for each in batch])
        if by.random() < 0.4:
            query = Query(tmp_path)

    for name, database in databases.items():
        assert _rows(tmp_path / "shop" / name) == database.rows
    watermarks = query.sink.watermarks(GROUP)
    assert list(watermarks.values()) == [max(watermarks.values())]


def _rows(path: Path) -> dict[Any, Any]:
    return {key: {name: row.get(name) for name in "abc"} for key, row in table_rows(path).items()}


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("commits", range(1, 8))
def test_a_batch_that_was_killed_after_any_commit_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """K2: after a kill between any two commits of a batch the tables and the watermarks are consistent."""
    batch = sent(
        [
            change(Operation.INSERT, number, SourceTable("shop", None, name), id=number, a=number)
            for number, name in enumerate(["orders", "carts", "orders", "users"])
        ]
    )
    query = Query(tmp_path)
    with monkeypatch.context() as patches:
        _kill_after(commits, patches)
        try:
            query.apply(batch)
        except _Killed:
            assert query.sink.watermarks(GROUP) == {} or commits > 3

    Query(tmp_path).apply(batch)

    found = {name: table_rows(tmp_path / "shop" / name).keys() for name in ("orders", "carts", "users")}
    assert found == {"orders": {0, 2}, "carts": {1}, "users": {3}}
    assert list(query.sink.watermarks(GROUP).values()) == [4]


def _kill_after(commits: int, patches: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def killing(commit: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            result = commit(*given)
            made.append("")
            if len(made) == commits:
                raise _Killed
            return result

        return run

    for name in ("write_next", "append"):
        patches.setattr(TableSnapshot, name, killing(getattr(TableSnapshot, name)))


def test_two_members_write_the_same_tables(tmp_path: Path) -> None:
    """K2: both have begun; a deletion of one beats an older insert of the other, whoever commits first."""
    one, other = Query(tmp_path), Query(tmp_path)
    inserting, deleting = one.sink.begin(GROUP, {Q0: 0}), other.sink.begin(GROUP, {Q1: 0})
    old = sent([change(Operation.INSERT, 3, id=1, a=1), change(Operation.INSERT, 4, id=2, a=2)])
    inserted = files_of(inserting.task_writer(), iter([one.rows(old)]))
    deleted = files_of(
        deleting.task_writer(), iter([other.rows(sent([change(Operation.DELETE, 5, id=1)]), Q1)])
    )
    deleting.commit(deleted, {Q1: 1})
    inserting.commit(inserted, {Q0: 2})
    assert table_rows(tmp_path / "shop" / "orders").keys() == {2}


def test_a_table_is_made_with_the_source_s_types(tmp_path: Path) -> None:
    """K2: its key is kept, columns that come later are added, and the folder has nothing else."""
    types = _TYPES | {"at": SourceType("datetime", Kind.TIMESTAMP_NTZ)}
    query = Query(tmp_path)
    query.apply(sent([change(Operation.INSERT, 1, id=1, a=1)]))
    row = Change(
        table=ORDERS,
        operation=Operation.INSERT,
        key={"id": 2},
        row={"id": 2, "at": None, "note": "x"},
        position=(2,),
        types=types,
    )
    query.apply([Sent(row, 1)])

    made = DeltaTable(tmp_path / "shop" / "orders")
    schema = pa.schema(made.schema().to_arrow())
    types_of = {name: schema.field(name).type for name in ("id", "a", "at", "note")}
    assert types_of == {"id": pa.int64(), "a": pa.int64(), "at": pa.timestamp("us"), "note": pa.string()}
    assert made.metadata().configuration["rocketmq.keys"] == '["id"]'
    assert sorted(each.name for each in tmp_path.iterdir()) == ["_changes", "shop"]
    left = [each.name for each in (tmp_path / "_changes").iterdir()]
    assert left == ["_delta_log"]


@pytest.mark.parametrize("types", [_TYPES, {}], ids=["types", "no types"])
def test_a_value_that_an_update_left_out_comes_later(tmp_path: Path, types: Any) -> None:
    """K2: the table gets the column with the update, whose row notes that it lacks the value."""
    rows = {Operation.UPDATE: {"id": 1, "a": 2}, Operation.INSERT: {"id": 1, "a": 1, "b": 7}}
    query = Query(tmp_path)
    for number, (operation, row) in enumerate(rows.items()):
        given = Change(
            table=ORDERS,
            operation=operation,
            key={"id": 1},
            row=row,
            absent=frozenset("b") - row.keys(),
            position=(9 - number,),
            types=types,
        )
        query.apply([Sent(given, number)])

    [found] = table_rows(tmp_path / "shop" / "orders").values()
    assert found == ({"a": 2, "b": 7} if types else {"a": "2", "b": "7"})


def test_only_tables_with_changes_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K2: an idle table costs nothing, and a batch writes one file, whatever the number of tables."""
    tables = [SourceTable("shop", None, f"t{number}") for number in range(12)]
    query = Query(tmp_path)
    query.apply(sent([change(Operation.INSERT, 1, table, id=1, a=1) for table in tables]))
    opened: list[str] = []
    newest = ChangeTable.apply

    def noted(table: ChangeTable, changes: Any) -> None:
        opened.append(Path(table.path).name)
        newest(table, changes)

    monkeypatch.setattr(ChangeTable, "apply", noted)
    batch = query.sink.begin(GROUP, {Q0: 0})
    changes = [Sent(change(Operation.INSERT, 2, table, id=2, a=1), 100) for table in tables[3:5]]
    files = files_of(batch.task_writer(), iter([query.rows(changes)]))
    batch.commit(files, {Q0: 101})

    assert (sorted(opened), len(files)) == (["t3", "t4"], 1)


def test_few_tables_are_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K2: those that had changes last; another one is opened again."""
    monkeypatch.setattr(tables_module, "_MOST_OPEN", 2)
    tables = [SourceTable("shop", None, f"t{number}") for number in range(4)]
    query = Query(tmp_path)
    for position in range(2):
        rows = [change(Operation.INSERT, position, table, id=position, a=1) for table in tables]
        query.apply([Sent(row, 4 * position + number) for number, row in enumerate(rows)])
    assert len(query.sink._opened) == 2
    assert all(table_rows(tmp_path / "shop" / table.name).keys() == {0, 1} for table in tables)


def test_sharded_tables_become_one(tmp_path: Path) -> None:
    """K2: the key has the table of the source, and a truncation of a part cannot be applied."""
    route = rmq.TableRoute(
        source=r"shop_\d\.(?P<name>\w+)_\d",
        target="all/{name}",
        merges=True,
        exclude=["b"],
        rename={"a": "x"},
    )
    query = Query(tmp_path, routes=[route])
    shards = [SourceTable("shop_1", None, "orders_1"), SourceTable("shop_2", None, "orders_2")]
    query.apply(sent([change(Operation.INSERT, 1, shard, id=1, a=5, b=6) for shard in shards]))
    rows = DeltaTable(tmp_path / "all" / "orders").to_pyarrow_table().to_pylist()
    found = sorted((row["__source_database"], row["__source_table"], row["id"], row["x"]) for row in rows)
    assert found == [("shop_1", "orders_1", 1, 5), ("shop_2", "orders_2", 1, 5)]
    assert "b" not in rows[0]
    query.apply([Sent(change(Operation.DELETE, 2, shards[0], id=1), 2)])
    [left] = DeltaTable(tmp_path / "all" / "orders").to_pyarrow_table().to_pylist()
    assert left["__source_database"] == "shop_2"

    with pytest.raises(SinkConflict, match="may have rows of other"):
        query.apply([Sent(change(Operation.TRUNCATE, 3, shards[0]), 3)])


def test_sources_of_merged_tables_have_positions_of_their_own_kinds(tmp_path: Path) -> None:
    """K2: such as one with global transaction ids, and one without; their rows have different keys."""
    query = Query(tmp_path, routes=[rmq.TableRoute(target="all/orders", merges=True)])
    shards = {(5, 9): SourceTable("shop_1", None, "orders"), (7,): SourceTable("shop_2", None, "orders")}
    for number, (position, shard) in enumerate([*shards.items(), *shards.items()]):
        operation = Operation.INSERT if number < len(shards) else Operation.UPDATE
        given = change(operation, 0, shard, id=1, a=number)
        query.apply([Sent(replace(given, position=(*position[:-1], position[-1] + number)), number)])
    rows = DeltaTable(tmp_path / "all" / "orders").to_pyarrow_table().to_pylist()
    assert {row["__source_database"]: row["a"] for row in rows} == {"shop_1": 2, "shop_2": 3}


@pytest.mark.parametrize(
    ("later", "operation"),
    [(None, Operation.UPDATE), ((1,), Operation.DELETE), ((0, 0, 1), Operation.UPDATE)],
)
def test_a_source_of_a_merged_table_keeps_the_kind_of_its_positions(
    tmp_path: Path, later: tuple[int, ...] | None, operation: Operation
) -> None:
    """K2: all its changes would be taken for older ones; those of a new source would not."""
    routes = [rmq.TableRoute(target="all/orders", merges=True)]

    def apply(operation: Operation, shard: str, position: tuple[int, ...] | None, offset: int) -> None:
        order = {"order": "queue", "truncates": "stop"} if position is None else {}
        query = Query(tmp_path, routes=routes, **order)
        given = change(operation, 0, SourceTable(shard, None, "orders"), id=1, a=offset)
        query.apply([Sent(replace(given, position=position), offset)])

    apply(Operation.INSERT, "shop_1", (5, 9), 0)
    apply(Operation.INSERT, "shop_2", (5, 9), 1)
    apply(Operation.INSERT, "shop_3", later, 2)
    with pytest.raises(SinkConflict, match=r"of shop_2\.orders .*all changes would count as older"):
        apply(operation, "shop_2", later, 3)
    apply(Operation.UPDATE, "shop_2", (5, 10), 3)
    apply(Operation.UPDATE, "shop_3", later, 4)
    rows = DeltaTable(tmp_path / "all" / "orders").to_pyarrow_table().to_pylist()
    assert {row["__source_database"]: row["a"] for row in rows} == {"shop_1": 0, "shop_2": 3, "shop_3": 4}


def test_tables_without_a_route_are_passed_over(tmp_path: Path) -> None:
    """K2: among them those of gh-ost, and messages without a change."""
    query = Query(tmp_path)
    shadow = SourceTable("shop", None, "_orders_gho")
    query.apply(
        [
            SimpleNamespace(change=change(Operation.INSERT, 1, shadow, id=1, a=1), offset=0),
            SimpleNamespace(change=PassedOver("heartbeat"), offset=1),
        ]
    )
    assert [each.name for each in tmp_path.iterdir()] == ["_changes"]
    assert list(query.sink.watermarks(GROUP).values()) == [2]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (BadChange("no JSON"), "no JSON"),
        (
            Change(table=ORDERS, operation=Operation.INSERT, row={"a": 1}, position=(1,)),
            "name no key",
        ),
        (
            Change(table=ORDERS, operation=Operation.DELETE, key={"id": None}, position=(1,)),
            "Key column id of table",
        ),
        (Change(table=ORDERS, operation=Operation.DELETE, key={"id": 1}), "no position"),
        (
            Change(
                table=ORDERS, operation=Operation.INSERT, key={"id": 1}, absent=frozenset("a"), position=(1,)
            ),
            "lacks the value of a",
        ),
        (
            Change(table=ORDERS, operation=Operation.INSERT, key={"id": 1}, row={"x y": 1}, position=(1,)),
            "Delta forbids the column",
        ),
    ],
)
def test_what_cannot_be_applied_is_put_aside(tmp_path: Path, given: Any, problem: str) -> None:
    """K2: into one table of the folder, or it ends the query."""
    batch = [SimpleNamespace(change=given, offset=0), Sent(change(Operation.INSERT, 1, id=2, a=1), 1)]
    with pytest.raises(SinkConflict, match=rf"queue=0 at offset 0: .*{problem}"):
        Query(tmp_path).apply(batch)

    Query(tmp_path, bad_changes="keep").apply(batch)

    [bad] = DeltaTable(tmp_path / "_bad_changes").to_pyarrow_table().to_pylist()
    assert problem in bad["problem"]
    assert (bad["body"], [*table_rows(tmp_path / "shop" / "orders")]) == (b"x", [2])


def test_a_key_that_changes_ends_the_query(tmp_path: Path) -> None:
    """K2: also after a restart, by the key that the table was made with."""
    Query(tmp_path).apply(sent([change(Operation.INSERT, 1, id=1, a=1)]))
    other = Change(
        table=ORDERS,
        operation=Operation.INSERT,
        key={"a": 1},
        row={"id": 1, "a": 1},
        position=(2,),
        types=_TYPES,
    )
    with pytest.raises(SinkConflict, match=r"is \('id',\), but changes have \('a',\)"):
        Query(tmp_path).apply([Sent(other, 1)])


def test_truncations(tmp_path: Path) -> None:
    """K2: one empties its own table; before the first row of a table the table.s key is not known."""
    query = Query(tmp_path)
    carts = SourceTable("shop", None, "carts")
    rows = [change(Operation.INSERT, 1, table, id=1, a=1) for table in (ORDERS, carts)]
    query.apply(sent(rows))
    query.apply([Sent(change(Operation.TRUNCATE, 2), 2)])
    assert (table_rows(tmp_path / "shop" / "orders"), len(table_rows(tmp_path / "shop" / "carts"))) == ({}, 1)

    unknown = change(Operation.TRUNCATE, 2, SourceTable("shop", None, "users"))
    with pytest.raises(SinkConflict, match="so the table's key is not known"):
        query.apply([Sent(unknown, 3)])
    with pytest.raises(SinkConflict, match="truncates='stop'"):
        Query(tmp_path, truncates="stop").apply([Sent(unknown, 3)])
    Query(tmp_path, truncates="ignore").apply([Sent(unknown, 3)])
    assert not (tmp_path / "shop" / "users").exists()


def test_masked_values(tmp_path: Path) -> None:
    """K2: a masked key is still a key, and the salt is shown nowhere."""
    route = rmq.TableRoute(mask=["id"])
    query = Query(tmp_path, routes=[route], mask_salt="hidden-salt")
    query.apply(sent([change(Operation.INSERT, 1, id=1, a=1), change(Operation.UPDATE, 2, id=1, a=2)]))
    [(key, row)] = table_rows(tmp_path / "shop" / "orders").items()
    assert (len(key), row["a"]) == (64, 2)
    assert "hidden-salt" not in repr(query.sink)


def _canal(**row: str) -> bytes:
    types = {"id": "bigint", "born": "date", "a (b)": "int"}
    return json.dumps(
        {
            "database": "shop",
            "table": "orders",
            "type": "INSERT",
            "mysqlType": {name: types[name] for name in row},
            "pkNames": ["id"],
            "data": [row],
        }
    ).encode()


@pytest.mark.parametrize(
    "route",
    [
        rmq.TableRoute(mask=["born", "a (b)"]),
        rmq.TableRoute(exclude=["born", "a (b)"]),
        rmq.TableRoute(include=["id"]),
    ],
    ids=["mask", "exclude", "include"],
)
def test_bad_changes_show_no_hidden_values(route: rmq.TableRoute) -> None:
    """K2: neither in the message's body, nor in the reason; the message is found by queue and offset."""
    plain = rmq.TableRoute()
    for row in ({"id": "1", "born": "7 secret"}, {"id": "1", "a (b)": "7 secret"}):
        for body, reason in (
            (_canal(**row), "has a value that cannot be read. It is not shown"),
            (_canal(**row).replace(b'"pkNames"', b'"keys"').replace(b"7 secret", b"7"), ""),
        ):
            hidden, shown = (_bad_row(body, each) for each in (route, plain))
            assert (hidden["__body"], shown["__body"]) == (None, body)
            assert reason in hidden["__problem"]
            assert "secret" not in hidden["__problem"]
            assert ("secret" in shown["__problem"]) is bool(reason)


def test_a_bad_change_of_an_unknown_table_shows_no_body_if_a_route_hides_columns() -> None:
    """K2: it may be one of that route's table. Values of columns that the route keeps are shown."""
    masking, plain = rmq.TableRoute(mask=["id"]), rmq.TableRoute()
    assert _bad_row(b"{", masking)["__body"] is None
    assert _bad_row(b"{", plain)["__body"] == b"{"
    assert "7 secret" in _bad_row(_canal(id="1", born="7 secret"), masking)["__problem"]


def test_the_body_is_in_the_first_bad_row_of_a_message_that_shows_it() -> None:
    """K2: a message of thousands of bad changes is not stored thousands of times."""
    routes = [rmq.TableRoute(source=r"shop\.masked", mask=["id"]), rmq.TableRoute()]
    bad = [BadChange("bad", SourceTable("shop", None, name)) for name in ("masked", "t", "masked", "t", "t")]
    sink = ChangeTables("/lake", envelope="canal", source_time_zone="UTC", routes=routes, mask_salt="s")
    listener = TablesListener(sink)
    given: Any = SimpleNamespace(decode=lambda _: bad)
    listener._envelope = given
    message: Any = SimpleNamespace(body=b"body", keys="", properties={}, queue_offset=0, store_timestamp=0)

    assert [row["__body"] for row in listener.rows(message)] == [None, b"body", None, None, None]


def _bad_row(body: bytes, route: rmq.TableRoute) -> dict[str, Any]:
    sink = ChangeTables("/lake", envelope="canal", source_time_zone="UTC", routes=[route], mask_salt="s")
    message: Any = SimpleNamespace(body=body, keys="", properties={}, queue_offset=0, store_timestamp=0)
    [row] = TablesListener(sink).rows(message)
    return row


def test_a_sink_is_sent_to_a_server(tmp_path: Path) -> None:
    """K2: Spark Connect pickles it."""
    sink = ChangeTables(
        tmp_path,
        envelope="debezium",
        keys={"shop.orders": ["id"]},
        routes=[rmq.TableRoute(mask=["a"])],
        mask_salt="s",
        truncates="ignore",
    )
    again = pickle.loads(pickle.dumps(sink))
    assert repr(again) == repr(sink)
    routed = [each.router.route(ORDERS) for each in (sink, again)]
    one, other = (each.row({"a": 1}) for each in routed if each is not None)
    assert one == other


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"routes": []}, "routes is an empty list"),
        ({"ignored_tables": "("}, r"ignored_tables='\(' is not a regular expression"),
        ({"deletes": "never"}, "is none of"),
        ({"folder": "shop.orders"}, "need a folder"),
        ({"deletes": "soft"}, "cannot keep the rows that a truncation removes"),
        ({"keys": {"a.b": ["id"]}}, "are only for an envelope that is given by its name"),
    ],
)
def test_settings_that_exclude_each_other(settings: dict[str, Any], problem: str) -> None:
    """K2: a start with them is refused."""
    given: dict[str, Any] = {"folder": "/lake", "envelope": _NoEnvelope()} | settings
    with pytest.raises(OptionError, match=problem):
        ChangeTables(given.pop("folder"), **given)


def test_changes_are_split_by_table(tmp_path: Path) -> None:
    """K2: each table gets its own changes, in parts that are read one at a time."""
    rows = [
        {
            "__target": target,
            "__keys": json.dumps([key]),
            "__source": key,
            "__operation": "insert",
            "n": number,
        }
        for number, (target, key) in enumerate([("b", "x"), ("a", "x"), ("b", "y"), ("a", "x")])
    ]
    tables = [pa.Table.from_pylist(rows[:3]), pa.Table.from_pylist(rows[3:])]
    found = split_by_target(tables, str(tmp_path / "spool"))
    assert {
        target: sorted(n for part in own.tables() for n in part["n"].to_pylist())
        for target, own in found.items()
    } == {"a": [1, 3], "b": [0, 2]}
    assert (found["b"].keys, found["b"].sources, found["b"].count) == ([("x",), ("y",)], {"x", "y"}, 2)
    assert split_by_target([], str(tmp_path / "none")) == {}


_DROP = "ALTER TABLE shop.orders DROP COLUMN A"


def _statement(offset: int, text: str = _DROP, table: SourceTable = ORDERS) -> Any:
    return SimpleNamespace(change=SchemaChange(table=table, statement=text), offset=offset)


@pytest.mark.parametrize("mode", ["lenient", "evolve", "try_evolve", "ignore", "exception"])
def test_a_column_that_a_table_lacks(tmp_path: Path, mode: str) -> None:
    """K3: is added, left out or ends the query; a table that a deletion has made gets those of its first row."""
    query = Query(tmp_path, schema_changes=mode, bad_changes="keep")
    query.apply(sent([change(Operation.DELETE, 1, id=1)]))
    query.apply([Sent(change(Operation.INSERT, 2, id=2, a=2), 1)])
    later = [Sent(change(Operation.UPDATE, 3, id=2, a=3, b=5), 2)]
    path = tmp_path / "shop" / "orders"
    if mode == "exception":
        with pytest.raises(SinkConflict, match=r"has the column b \(bigint\), which the change table lacks"):
            query.apply(later)
        assert table_rows(path) == {2: {"a": 2}}
        return
    query.apply(later)
    assert table_rows(path) == {2: {"a": 3} if mode == "ignore" else {"a": 3, "b": 5}}


@pytest.mark.parametrize("name", ["x y", "__time", "ID"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
def test_a_column_whose_name_a_table_cannot_have_is_left_out(
    tmp_path: Path, name: str, is_first: bool
) -> None:
    """K3: schema_changes='ignore', as any other column that the table lacks."""
    query = Query(tmp_path, schema_changes="ignore")
    first, row = sent([change(Operation.INSERT, 1, id=1, a=1)]), {"id": 2, "a": 2, name: 5}
    named = [Sent(replace(change(Operation.INSERT, 2, id=2), row=row), 1)]
    for batch in [named] if is_first else [first, named]:
        query.apply(batch)
    assert table_rows(tmp_path / "shop" / "orders")[2] == {"a": 2}


@pytest.mark.parametrize("bad_changes", ["stop", "keep"])
def test_a_column_whose_name_a_table_cannot_have_ends_the_query(tmp_path: Path, bad_changes: str) -> None:
    """K3: schema_changes='exception', whatever becomes of bad changes."""
    query = Query(tmp_path, schema_changes="exception", bad_changes=bad_changes)
    query.apply(sent([change(Operation.INSERT, 1, id=1, a=1)]))
    with pytest.raises(SinkConflict, match="Columns a and A differ only in case"):
        query.apply([Sent(change(Operation.INSERT, 2, id=2, a=2, A=5), 1)])


@pytest.mark.parametrize("mode", ["ignore", "exception"])
def test_a_key_whose_name_a_table_cannot_have(tmp_path: Path, mode: str) -> None:
    """K3: its changes cannot be applied, whatever becomes of other columns."""
    given = Change(
        table=ORDERS, operation=Operation.INSERT, key={"x y": 1}, row={"x y": 1, "a": 1}, position=(1,)
    )
    with pytest.raises(SinkConflict, match="Delta forbids the column"):
        Query(tmp_path, schema_changes=mode).apply(sent([given]))


def test_a_value_that_a_new_row_lacks_may_be_left_out(tmp_path: Path) -> None:
    """K3: it is of no account if the route leaves its column out."""
    given = replace(change(Operation.INSERT, 1, id=1, a=1), absent=frozenset({"big"}))
    query = Query(tmp_path, routes=[rmq.TableRoute(exclude=["big"])])
    query.apply(sent([given]))
    assert table_rows(tmp_path / "shop" / "orders") == {1: {"a": 1}}


@pytest.mark.parametrize("mode", ["ignore", "exception"])
@pytest.mark.parametrize("deletes_first", [False, True], ids=["row first", "deletion first"])
@pytest.mark.parametrize("deletes", ["delete", "soft"])
def test_a_table_that_has_only_its_key(tmp_path: Path, mode: str, deletes_first: bool, deletes: str) -> None:
    """K3: gets no columns after its first row, also if a deletion has made it and if it is empty again."""
    settings = {"schema_changes": mode, "deletes": deletes, "truncates": "ignore"}
    log = [change(Operation.INSERT, 2, id=1), change(Operation.DELETE, 3, id=1)]
    if deletes_first:
        log.insert(0, change(Operation.DELETE, 1, id=9))
    for number, each in enumerate(log):
        Query(tmp_path, **settings).apply([Sent(each, number)])
    later = [Sent(change(Operation.INSERT, 4, id=2, a=7), 5)]
    query = Query(tmp_path, **settings)
    if mode == "exception":
        with pytest.raises(SinkConflict, match="which the change table lacks"):
            query.apply(later)
    else:
        query.apply(later)
    names = DeltaTable(tmp_path / "shop" / "orders").schema().to_arrow().names
    assert "a" not in names


def test_a_value_that_has_outgrown_its_column_is_a_change_of_the_schema(tmp_path: Path) -> None:
    """K3: schema_changes='exception' ends the query there, whatever becomes of bad changes."""
    first = change(Operation.INSERT, 1, id=1, a=1)
    types = _TYPES | {"a": SourceType("varchar(9)", Kind.STRING)}
    outgrown = [
        Sent(replace(change(operation, 2, id=1, a="x"), types=types, absent=absent), 1)
        for operation, absent in (
            (Operation.INSERT, frozenset[str]()),
            (Operation.UPDATE, frozenset({"b"})),
        )
    ]
    query = Query(tmp_path, schema_changes="exception", bad_changes="keep")
    query.apply(sent([first]))
    for each in outgrown:
        with pytest.raises(SinkConflict, match="Column a is bigint and cannot hold 'x'"):
            query.apply([each])
    Query(tmp_path, schema_changes="ignore", bad_changes="keep").apply(outgrown[:1])
    assert table_rows(tmp_path / "shop" / "orders")[1] == {"a": 1}


@pytest.mark.parametrize("mode", ["lenient", "evolve", "try_evolve", "ignore", "exception"])
def test_a_statement_that_takes_a_column_away(tmp_path: Path, mode: str) -> None:
    """K3: ends the query if the table has the column, by the name that the route gives it."""
    routes = [rmq.TableRoute(rename={"a": "x", "b": "a"}, exclude=["C"])]
    query = Query(tmp_path, schema_changes=mode, routes=routes, bad_changes="keep")
    query.apply([_statement(0)])
    assert [each.name for each in tmp_path.iterdir()] == ["_changes"]
    query.apply([Sent(change(Operation.INSERT, 2, id=2, a=2, b=3), 1)])
    query.apply([_statement(2, "ALTER TABLE orders DROP c, DROP note"), _statement(3, "ALTER TABLE orders")])
    again = Query(tmp_path, schema_changes=mode, routes=routes, bad_changes="keep")
    later = [_statement(4), Sent(change(Operation.UPDATE, 3, id=2, b=4), 5)]
    path = tmp_path / "shop" / "orders"
    if mode in ("evolve", "exception"):
        for each in (query, again):
            with pytest.raises(SinkConflict, match=r"dropped or renamed x of shop\.orders"):
                each.apply(later)
        assert table_rows(path) == {2: {"x": 2, "a": 3}}
        return
    again.apply(later)
    assert table_rows(path) == {2: {"x": 2, "a": 4}}


def test_the_remedy_for_a_dropped_column_is_one(tmp_path: Path) -> None:
    """K3: schema_changes='evolve': rows from before the statement, in its batch, bring the column back."""
    path = tmp_path / "shop" / "orders"
    batch = [Sent(change(Operation.INSERT, 1, id=1, a=1, b=1), 0), _statement(1)]
    batch += [Sent(change(Operation.UPDATE, 2, id=1, b=2), 2)]
    with pytest.raises(SinkConflict, match="dropped or renamed A of"):
        Query(tmp_path, schema_changes="evolve").apply(batch)
    rows = DeltaTable(path).to_pyarrow_table().drop_columns(["a"])
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")

    Query(tmp_path, schema_changes="evolve").apply(batch)

    assert table_rows(path) == {1: {"a": 1, "b": 2}}


_ONE, _TWO = SourceTable("shop", None, "orders_1"), SourceTable("shop", None, "orders_2")


@pytest.mark.parametrize(
    ("target", "one", "two"),
    [
        ("all/orders", _ONE, _TWO),
        ("{table}", SourceTable("shop", None, "orders"), SourceTable("mall", None, "orders")),
        ("{database}_{table}", SourceTable("a_b", None, "c"), SourceTable("a", None, "b_c")),
        ("{database}/{table}", SourceTable("a", "x", "b"), SourceTable("a", "y", "b")),
    ],
)
@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.DELETE, Operation.TRUNCATE])
def test_a_table_has_one_source(
    tmp_path: Path, target: str, one: SourceTable, two: SourceTable, operation: Operation
) -> None:
    """K2: rows of another table do not replace its rows, nor does a truncation of another empty it."""
    row = {} if operation is Operation.TRUNCATE else {"id": 1, "a": 2}
    first = change(Operation.INSERT, 1, one, id=1, a=1)
    other = change(operation, 2, two, **row)
    routes = [rmq.TableRoute(target=target)]
    folder = tmp_path / "both"
    with pytest.raises(SinkConflict, match="have the same target"):
        Query(folder, routes=routes).apply(sent([first, other]))
    assert [each.name for each in folder.iterdir()] == ["_changes"]

    query = Query(tmp_path / "later", routes=routes)
    query.apply(sent([first]))
    for again in (query, Query(tmp_path / "later", routes=routes)):
        with pytest.raises(SinkConflict, match=r"has the rows of the source's table .* have the same target"):
            again.apply([Sent(other, 1)])
    [path] = (each.parent for each in (tmp_path / "later").rglob("_delta_log") if "_changes" not in str(each))
    assert {key: row["a"] for key, row in table_rows(path).items()} == {1: 1}


def test_a_source_renamed_within_a_batch_goes_on_when_the_advice_is_followed(tmp_path: Path) -> None:
    """K2: other queues may still have changes of the old name, so the table accepts both."""
    routes = [rmq.TableRoute(source=r"shop\.(?P<name>orders)(_v\d)?", target="all/{name}")]
    old, new = SourceTable("shop", None, "orders"), SourceTable("shop", None, "orders_v2")
    Query(tmp_path, routes=routes).apply(sent([change(Operation.INSERT, 1, old, id=1, a=1)]))
    later = [
        Sent(change(Operation.INSERT, 2, old, id=2, a=2), 10),
        Sent(change(Operation.INSERT, 3, new, id=3, a=3), 11),
    ]

    with pytest.raises(SinkConflict, match=r"set the property rocketmq\.source of the table to '") as caught:
        Query(tmp_path, routes=routes).apply(later)
    [advised] = re.findall(r"of the table to '(.*)', or create", str(caught.value))
    path = tmp_path / "all" / "orders"
    DeltaTable(path).alter.set_table_properties({"rocketmq.source": advised}, raise_if_not_exists=False)

    Query(tmp_path, routes=routes).apply(later)
    assert {key: row["a"] for key, row in table_rows(path).items()} == {1: 1, 2: 2, 3: 3}


def test_a_truncation_in_a_merged_table_removes_what_came_before_when_the_advice_is_followed(
    tmp_path: Path,
) -> None:
    """K2: rows from before it may still come, also in the same batch."""
    routes = [rmq.TableRoute(target="all/orders", merges=True)]
    one, two = SourceTable("shop_1", None, "orders"), SourceTable("shop_2", None, "orders")
    first = [change(Operation.INSERT, 1, table, id=1, a=1) for table in (one, two)]
    Query(tmp_path, routes=routes).apply(sent(first))
    batch = [
        Sent(change(Operation.INSERT, 2, one, id=5, a=5), 10),
        Sent(change(Operation.TRUNCATE, 3, one), 11),
        Sent(change(Operation.INSERT, 4, one, id=6, a=6), 12),
    ]

    with pytest.raises(SinkConflict, match="Start the query with truncates='ignore'") as caught:
        Query(tmp_path, routes=routes).apply(batch)
    [below] = re.findall(r"whose __position is below '(.*)'", str(caught.value))
    Query(tmp_path, routes=routes, truncates="ignore").apply(batch)
    table = DeltaTable(tmp_path / "all" / "orders")
    table.delete(f"__source_database = 'shop_1' and __position < '{below}'")

    left = table.to_pyarrow_table().select(["__source_database", "id"]).to_pylist()
    assert sorted(tuple(row.values()) for row in left) == [("shop_1", 6), ("shop_2", 1)]


def test_a_truncation_of_the_one_source_of_a_table(tmp_path: Path) -> None:
    """K2: counts, whatever the target's name is made of; also in a table that somebody else has made."""
    routes = [rmq.TableRoute(source=r"shop\.orders", target="lake/all")]
    path = tmp_path / "lake" / "all"
    DeltaTable.create(path, schema=pa.schema([("id", pa.int64()), ("a", pa.int64())]))
    query = Query(tmp_path, routes=routes)
    query.apply(sent([change(Operation.INSERT, 1, id=1, a=1)]))
    properties = DeltaTable(path).metadata().configuration
    assert (properties["rocketmq.keys"], properties["rocketmq.source"]) == (
        '["id"]',
        '["shop", null, "orders"]',
    )
    version = DeltaTable(path).version()
    Query(tmp_path, routes=routes).apply([Sent(change(Operation.TRUNCATE, 5), 5)])
    assert (table_rows(path), DeltaTable(path).version()) == ({}, version + 1)


def test_two_members_make_one_table_for_two_sources(tmp_path: Path) -> None:
    """K2: the table is that of the member which made it; the other one ends."""
    routes = [rmq.TableRoute(target="all")]
    members = [Query(tmp_path, routes=routes), Query(tmp_path, routes=routes)]
    opened = members[1].sink._table_with(f"{tmp_path}/all", ["id"])
    stored = ChangeTable.stored

    def late(table: ChangeTable) -> Any:
        found = stored(table)
        members[0].apply(sent([change(Operation.INSERT, 1, _ONE, id=1, a=1)]))
        return found

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(ChangeTable, "stored", _once(late, stored))
        with pytest.raises(SinkConflict, match="have the same target"):
            members[1].apply(sent([change(Operation.INSERT, 1, _TWO, id=1, a=2)]), Q1)
    assert opened.stored()[1]["rocketmq.source"] == '["shop", null, "orders_1"]'
    assert table_rows(tmp_path / "all")[1]["a"] == 1


def _once(first: Callable[..., Any], others: Callable[..., Any]) -> Callable[..., Any]:
    calls = [first]

    def run(*given: Any) -> Any:
        return (calls.pop() if calls else others)(*given)

    return run


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("later", [Operation.UPDATE, Operation.TRUNCATE])
def test_a_table_that_is_gone_is_not_made_again(tmp_path: Path, again: bool, later: Operation) -> None:
    """K2: its earlier rows would be missing; the error names how to go on without them."""
    path = tmp_path / "shop" / "orders"
    query = Query(tmp_path)
    query.apply(sent([change(Operation.INSERT, 1, id=1, a=1), change(Operation.INSERT, 2, id=2, a=2)]))
    shutil.rmtree(path)
    if again:
        DeltaTable.create(path, schema=pa.schema([("id", pa.int64()), ("a", pa.int64())]))
    row = {"id": 1, "a": 5} if later is Operation.UPDATE else {}
    late = [Sent(change(later, 3, ORDERS, **row), 3)]
    with pytest.raises(SinkConflict if again else SchemaError, match=r"Put the former|put it back"):
        query.apply(late)
    with pytest.raises(SinkConflict, match="Put the table back") as raised:
        Query(tmp_path).apply(late)
    assert path.exists() is again
    assert ("another table there" if again else "no table there") in str(raised.value)

    [name] = re.findall(r"property '(\S+)'", str(raised.value))
    DeltaTable(tmp_path / "_changes").alter.set_table_properties({name: ""}, raise_if_not_exists=False)
    loaded = [Sent(change(Operation.INSERT, 4, id=1, a=7), 4)]
    for _ in range(2):
        Query(tmp_path).apply(loaded)
    assert {key: row["a"] for key, row in table_rows(path).items()} == {1: 7}
    assert _stored_id(tmp_path, "shop/orders") == str(DeltaTable(path).metadata().id)


def _stored_id(folder: Path, target: str) -> str | None:
    return DeltaTable(folder / "_changes").metadata().configuration.get(f"rocketmq.table.{target}")


def test_a_kill_before_the_id_of_a_new_table_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2: the table has no changes yet, and is the one that the next start uses."""
    batch = sent([change(Operation.INSERT, 1, id=1, a=1)])
    create = ChangeTable.create

    def killed(table: ChangeTable, properties: Any) -> None:
        create(table, properties)
        raise _Killed

    with monkeypatch.context() as patches:
        patches.setattr(ChangeTable, "create", killed)
        with pytest.raises(_Killed):
            Query(tmp_path).apply(batch)
    made = str(DeltaTable(tmp_path / "shop" / "orders").metadata().id)
    assert _stored_id(tmp_path, "shop/orders") is None

    Query(tmp_path).apply(batch)
    assert table_rows(tmp_path / "shop" / "orders").keys() == {1}
    assert _stored_id(tmp_path, "shop/orders") == made


def test_a_kill_before_the_first_changes_of_a_new_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2: its id is stored already, so if it is deleted then, this is noticed, too."""
    with monkeypatch.context() as patches:
        patches.setattr(ChangeTable, "apply", _killed)
        with pytest.raises(_Killed):
            Query(tmp_path).apply(sent([change(Operation.INSERT, 1, id=1, a=1)]))
    path = tmp_path / "shop" / "orders"
    assert _stored_id(tmp_path, "shop/orders") == str(DeltaTable(path).metadata().id)
    Query(tmp_path).apply(sent([change(Operation.INSERT, 1, id=1, a=1)]))
    assert table_rows(path).keys() == {1}


def _killed(*_: Any) -> Any:
    raise _Killed


def test_the_ids_of_many_tables_are_stored_together(tmp_path: Path) -> None:
    """K2: in one commit of a batch, also those of tables of an earlier release; known ones need none."""
    tables = [SourceTable("shop", None, f"t{number}") for number in range(12)]
    batch = sent([change(Operation.INSERT, 1, table, id=1, a=1) for table in tables])
    query = Query(tmp_path)
    query.apply(batch)
    # Created, the depth of its folders, the ids, the watermarks.
    assert DeltaTable(tmp_path / "_changes").version() == 3
    unset = {f"rocketmq.table.shop/{table.name}": "" for table in tables}
    DeltaTable(tmp_path / "_changes").alter.set_table_properties(unset, raise_if_not_exists=False)
    for offset in (20, 40):
        Query(tmp_path).apply([Sent(each.change, each.offset + offset) for each in batch])
    assert DeltaTable(tmp_path / "_changes").version() == 4 + 2 + 1
    assert all(_stored_id(tmp_path, f"shop/{table.name}") for table in tables)


@pytest.mark.parametrize("is_sent", [False, True], ids=["here", "on a server"])
def test_in_real_time_every_table_has_a_short_log(tmp_path: Path, is_sent: bool) -> None:
    """K2: each table gets up to two commits a second, and is made after the query's start."""
    query = Query(tmp_path)
    query.sink.expect_many_commits()
    if is_sent:
        query.sink = pickle.loads(pickle.dumps(query.sink))
        assert query.sink._table.properties == MANY_COMMITS
        query.sink.prepare(_SCHEMA)
    query.apply(sent([change(Operation.INSERT, 1, id=1, a=1)]))
    properties = DeltaTable(tmp_path / "shop" / "orders").metadata().configuration
    assert properties == {
        **MANY_COMMITS,
        "rocketmq.keys": '["id"]',
        "rocketmq.source": '["shop", null, "orders"]',
    }


def test_in_real_time_a_table_with_a_long_log_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2: by a warning when it is opened first."""
    monkeypatch.setattr(tables_module, "_MOST_OPEN", 1)
    users = SourceTable("shop", None, "users")
    rows = sent([change(Operation.INSERT, 1, id=1, a=1), change(Operation.INSERT, 1, users, id=1, a=1)])
    Query(tmp_path).apply(rows)
    query = Query(tmp_path)
    query.sink.expect_many_commits()
    for offset in (2, 4):
        query.apply([Sent(row.change, row.offset + offset) for row in rows])
    warnings = [each for each in caplog.messages if "SET TBLPROPERTIES" in each]
    assert len(warnings) == 2
    assert all(name in each for name in MANY_COMMITS for each in warnings)


@pytest.mark.parametrize("kind", ["one table", "versions", "several tables"])
def test_offsets_are_moved_back_to_and_before_a_change_table(tmp_path: Path, kind: str) -> None:
    """K2: its rows cannot be counted by offsets, and consuming them again doubles none."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    batch = sent([replace(change(Operation.INSERT, 1, id=1, a=1), source_time=moment)])
    path = tmp_path / ("_changes" if kind == "several tables" else "one")

    def made() -> ChangeTable | ChangeTables:
        if kind == "several tables":
            return Query(tmp_path).sink
        return change_table(path, stored_as_scd_type=2 if kind == "versions" else 1)

    sink = made()
    if isinstance(sink, ChangeTables):
        Query(tmp_path).apply(batch)
    else:
        apply_changes(sink, batch)
    watermarks = SinkWatermarks(str(path))
    move: Any = SimpleNamespace(queue=Q0, target=0, is_below_watermark=True, row=None)
    assert watermarks.problem(GROUP, [move]) is None
    watermarks.rewind(GROUP, {Q0: 0})
    assert watermarks.of(GROUP, {Q0: 0}) == {Q0: 0}

    store = rmq.DeltaOffsetStore(tmp_path / "_offsets")
    store.reset(GROUP, {Q0: 5})
    known = recorded_sinks(sink.standings(GROUP, {Q0: 0}))
    rows_by_queue = {Q0: store.read(GROUP)[Q0]._replace(sinks=known, batch_id=3)}
    shutil.rmtree(path)
    again = made()
    assert watermarks.lost(GROUP, rows_by_queue).targets == {Q0: 0}
    [standing] = again.standings(GROUP, {Q0: 0})
    assert standing.merges_changes
    assert DeltaSink(path).standings(GROUP, {Q0: 0}) == (standing,)


def test_two_keys_in_the_first_batch(tmp_path: Path) -> None:
    """K2: no table is made with one of them."""
    first = change(Operation.INSERT, 1, id=1, a=1)
    other = Change(
        table=ORDERS, operation=Operation.INSERT, key={"a": 2}, row={"id": 2, "a": 2}, position=(2,)
    )
    with pytest.raises(SinkConflict, match="Name one key"):
        Query(tmp_path).apply(sent([first, other]))
    assert [each.name for each in tmp_path.iterdir()] == ["_changes"]


def test_no_table_is_within_another(tmp_path: Path) -> None:
    """K2: all are as many folders deep, also those of earlier queries with other routes."""
    inner = change(Operation.INSERT, 1, SourceTable("shop", "audit", "log"), id=1, a=1)
    outer = change(Operation.INSERT, 1, SourceTable("shop", None, "audit"), id=1, a=1)
    for name, (first, second) in {"inner": (inner, outer), "outer": (outer, inner)}.items():
        query = Query(tmp_path / name)
        query.apply(sent([first]))
        for again in (query, Query(tmp_path / name)):
            with pytest.raises(SinkConflict, match="could then lie within another"):
                again.apply([Sent(second, 1)])
    both = tmp_path / "both"
    with pytest.raises(SinkConflict, match="could then lie within another"):
        Query(both).apply(sent([inner, outer]))
    with pytest.raises(SinkConflict, match="have the same target"):
        Query(both, routes=[rmq.TableRoute(target="a/b/c")]).apply(sent([inner, outer]))
    # Neither of these has made a table, so others may be as deep as they want.
    Query(both, routes=[rmq.TableRoute(target="{database}_{schema}_{table}")]).apply(sent([inner, outer]))
    assert len(list(both.rglob("_delta_log"))) == 3
    logs = [each.parent for each in tmp_path.rglob("_delta_log")]
    assert not [each for each in logs for other in logs if other in each.parents]


def test_changes_without_a_folder_or_with_one_name_twice(tmp_path: Path) -> None:
    """K2: are put aside, each with its reason."""
    routes = [
        rmq.TableRoute(source=r"shop\.(?P<name>a)?.*", target="all/{name}", rename={"a": "b"}),
    ]
    query = Query(tmp_path, routes=routes, bad_changes="keep")
    table = SourceTable("shop", None, "a")
    query.apply(
        sent(
            [
                change(Operation.INSERT, 1, id=1, a=1),
                change(Operation.INSERT, 1, table, id=1, a=1, b=2),
                change(Operation.INSERT, 1, table, id=2, a=1),
            ]
        )
    )
    bad = DeltaTable(tmp_path / "_bad_changes").to_pyarrow_table().to_pylist()
    nameless, twice = sorted(row["problem"] for row in bad)[::-1]
    assert "in which a name is empty" in nameless
    assert "Columns a and b of shop.a would both be b" in twice
    assert {key: row["b"] for key, row in table_rows(tmp_path / "all" / "a").items()} == {2: 1}
