"""A Delta table that equals a table of a database."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from pyspark_rocketmq.change_data.change import Change, Operation
from pyspark_rocketmq.change_data.effects import order_of
from pyspark_rocketmq.delta.commit import CommitNote
from pyspark_rocketmq.delta.compaction import compact
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS
from pyspark_rocketmq.errors import OptionError, RocketMQError, SchemaError, SinkConflict
from pyspark_rocketmq.model import MessageQueue, queue_columns
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.change_table import appender as appender_module
from pyspark_rocketmq.sinks.change_table.columns import BODY, PROBLEM, change_schema, value_column
from pyspark_rocketmq.sinks.change_table.compaction import DELETED, OLDER, OPERATION, POSITION
from pyspark_rocketmq.sinks.change_table.side_tables import Deletions
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable
from tests.change_data.model_database import TABLE, ModelDatabase, Sent, sent, shuffled
from tests.helpers.sink_rows import GROUP, Q0, Q1, files_of
from tests.sinks.change_rows import (
    MODEL_SCHEMA,
    Killed,
    NoEnvelope,
    apply,
    change_table,
    kill_at,
    rows_of,
    table_rows,
)
from tests.sinks.group_conformance import GroupConformance
from tests.sinks.sink_conformance import SCHEMA, Stored


def change(operation: Operation, key: int, position: int, **values: Any) -> Change:
    row = {"id": key, **values} if operation not in (Operation.DELETE, Operation.TRUNCATE) else {}
    absent = frozenset({"a", "b", "c"} - row.keys()) if operation is Operation.UPDATE else frozenset()
    keys = {} if operation is Operation.TRUNCATE else {"id": key}
    return Change(table=TABLE, operation=operation, key=keys, row=row, position=(position,), absent=absent)


def _database(seed: int, **settings: Any) -> ModelDatabase:
    by = random.Random(seed)
    database = ModelDatabase(by, keys=1 + seed % 4, **settings)
    database.run(by.randrange(4, 14))
    return database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rows_of_a_share", [None, 2], ids=["whole", "in shares"])
def test_the_table_equals_the_database_in_any_order(
    path: Path, seed: int, rows_of_a_share: int | None
) -> None:
    """K1: changes that are permuted, repeated and in any batches, also compacted share by share."""
    database = _database(seed)
    sink = change_table(path)
    if rows_of_a_share is not None:
        _use(sink, rows_of_a_share=rows_of_a_share)

    for batch in shuffled(database.random, database.log):
        apply(sink, batch)

    assert table_rows(path) == database.rows


def _use(sink: ChangeTable, **settings: Any) -> None:
    """Change the rules of a sink that is prepared."""
    handle = sink._table.newest()
    appender: Any = handle.appender
    object.__setattr__(appender, "rules", replace(appender.rules, **settings))


def test_a_table_that_only_spark_may_write_is_refused(path: Path) -> None:
    """K1: delta-rs merges the changes."""
    change_table(path)
    DeltaTable(path).alter.add_constraint({"known": "a > 0"})

    with pytest.raises(
        OptionError, match=r"CHECK constraint known.*a change table is never written by Spark"
    ):
        change_table(path)


def test_keys_may_be_texts(path: Path) -> None:
    """K1: files that delta-rs has merged have texts of a kind that Arrow does not compare."""
    columns = pa.schema([("id", pa.string()), *list(MODEL_SCHEMA)[1:]])
    sink = change_table(path, columns=columns)
    for place in range(1, 6):
        log = [
            (Operation.INSERT, "k"),
            (Operation.INSERT, "l"),
            (Operation.DELETE, "l"),
            (Operation.INSERT, "m"),
        ]
        changes = [
            replace(change(operation, 0, place * 10 + number, a=place, b=1, c=1), key={"id": key})
            for number, (operation, key) in enumerate(log)
        ]
        apply(sink, [Sent(each, place * 10 + number) for number, each in enumerate(changes)])
    late = replace(change(Operation.UPDATE, 0, 60, b=7), key={"id": "m"})
    apply(sink, [Sent(late, 60)])

    assert table_rows(path) == {"k": {"a": 5, "b": 1, "c": 1}, "m": {"a": 5, "b": 7, "c": 1}}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_schedules_into_delta(path: Path, seed: int) -> None:
    """K1: more schedules by seeds give the database's table."""
    test_the_table_equals_the_database_in_any_order(path, seed, None)


@pytest.mark.parametrize("seed", range(6))
def test_deleted_rows_stay_marked(path: Path, seed: int) -> None:
    """K5: deletes='soft'"""
    database = _database(seed, truncates=False)
    sink = change_table(path, deletes="soft", truncates="ignore")

    for batch in shuffled(database.random, database.log):
        apply(sink, batch)

    assert table_rows(path) == database.rows
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    marked = {row["id"]: {name: row[name] for name in "abc"} for row in rows if row[DELETED]}
    assert marked == database.deleted


@pytest.mark.parametrize("step", ["before the record", "after the record", "after the merge"])
def test_a_batch_that_was_killed_at_any_step_is_repeated(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K1: a kill before or after each of the two commits, then the batch again, in every batch."""
    for seed in range(4):
        database = _database(seed)
        folder = path / str(seed)
        sink = change_table(folder)
        for batch in shuffled(database.random, database.log):
            with monkeypatch.context() as patches:
                kill_at(step, patches, Deletions)
                with pytest.raises(Killed):
                    apply(sink, batch)
            sink = change_table(folder)
            apply(sink, batch)
        assert table_rows(folder) == database.rows


def test_an_older_insert_of_another_member_loses_against_a_deletion_of_the_same_moment(path: Path) -> None:
    """K1: both members have begun, and whoever commits second sees what the first one did."""
    old = sent([change(Operation.INSERT, 1, 3, a=1, b=1, c=1)])
    deletion = sent([change(Operation.DELETE, 1, 5)])
    for insert_is_first in (True, False):
        folder = path / str(insert_is_first)
        one, other = change_table(folder), change_table(folder)
        inserting, deleting = one.begin(GROUP, {Q0: 0}), other.begin(GROUP, {Q1: 0})
        inserted = files_of(inserting.task_writer(), iter([rows_of(one, old, Q0)]))
        deleted = files_of(deleting.task_writer(), iter([rows_of(other, deletion, Q1)]))
        if insert_is_first:
            inserting.commit(inserted, {Q0: 1})
        deleting.commit(deleted, {Q1: 1})
        if not insert_is_first:
            inserting.commit(inserted, {Q0: 1})
        assert table_rows(folder) == {}


def test_a_deletion_that_another_member_records_during_a_commit_is_seen(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K1: the insert has read the deletions when the other member records and merges: its commit is repeated."""
    one, other = change_table(path), change_table(path)
    inserting = one.begin(GROUP, {Q0: 0})
    files = files_of(
        inserting.task_writer(),
        iter([rows_of(one, sent([change(Operation.INSERT, 1, 3, a=1)]), Q0)]),
    )
    merges: list[str] = []
    merge = appender_module.RowMerge.merge

    def late(*given: Any) -> None:
        if not merges:
            merges.append("insert")
            apply(other, sent([change(Operation.DELETE, 1, 5)]), Q1)
        merge(*given)

    monkeypatch.setattr(appender_module.RowMerge, "merge", late)
    inserting.commit(files, {Q0: 1})

    assert merges == ["insert"]
    assert table_rows(path) == {}
    assert {key.queue: at for key, at in one.watermarks(GROUP).items()} == {Q0: 1, Q1: 1}


def test_rows_that_the_table_had_before_are_the_lowest(path: Path) -> None:
    """K1: a table that was loaded by another job gets the hidden columns, and changes replace its rows."""
    write_deltalake(path, pa.table({"id": [1, 2, 3], "a": [1, 1, 1], "b": [1, 1, 1], "c": [1, 1, 1]}))
    sink = change_table(path, columns=None)

    apply(
        sink,
        sent(
            [
                change(Operation.UPDATE, 1, 7, a=5),
                change(Operation.DELETE, 2, 8),
                change(Operation.INSERT, 4, 9, a=4, b=4, c=4),
            ]
        ),
    )

    assert table_rows(path) == {
        1: {"a": 5, "b": 1, "c": 1},
        3: {"a": 1, "b": 1, "c": 1},
        4: {"a": 4, "b": 4, "c": 4},
    }


def test_a_missing_value_is_null_until_it_comes(path: Path) -> None:
    """K1: an update whose insert comes later leaves null, and the column names that it is missing."""
    sink = change_table(path)
    apply(sink, sent([change(Operation.UPDATE, 1, 7, a=5)]))
    assert table_rows(path) == {1: {"a": 5, "b": None, "c": None}}
    [older] = DeltaTable(path).to_pyarrow_table()[OLDER].to_pylist()
    assert older is not None

    apply(sink, [Sent(change(Operation.INSERT, 1, 2, a=1, b=2, c=3), 1)])

    assert table_rows(path) == {1: {"a": 5, "b": 2, "c": 3}}


def test_deletions_are_forgotten_after_some_days(path: Path) -> None:
    """K1: keep_deletions_days: whole days of the table of deletions go, and it stays a few files."""
    today = [date(2026, 11, 1)]
    sink = change_table(path, keep_deletions_days=7, today=lambda: today[0])
    for offset in range(60):
        apply(sink, [Sent(change(Operation.DELETE, offset, 5), offset)])
        if offset == 20:
            today[0] += timedelta(days=9)

    left = DeltaTable(path / "_deletions")
    assert left.to_pyarrow_table().num_rows < 45
    assert len(left.file_uris()) < 25
    apply(
        sink, [Sent(change(Operation.INSERT, 59, 3, a=1), 60), Sent(change(Operation.INSERT, 0, 3, a=1), 61)]
    )
    assert list(table_rows(path)) == [0]


def _bad_row(sink: ChangeTable) -> pa.RecordBatch:
    row = {**queue_columns(Q0), "queueOffset": 1, PROBLEM: "no key", BODY: b"{}", OPERATION: "bad"}
    return pa.RecordBatch.from_pylist([row], change_schema(sink.table_columns()))


def test_a_bad_change_ends_the_query(path: Path) -> None:
    """K5: bad_changes='stop': nothing of the batch is added, and the error names the message."""
    sink = change_table(path)
    batch = sink.begin(GROUP, {Q0: 0})
    good = rows_of(sink, sent([change(Operation.INSERT, 1, 1, a=1)]))
    files = files_of(batch.task_writer(), iter([good, _bad_row(sink)]))

    with pytest.raises(SinkConflict, match=r"1 change cannot be applied .*queue=0 at offset 1: no key"):
        batch.commit(files, {Q0: 2})

    assert table_rows(path) == {}
    assert sink.watermarks(GROUP) == {}


def test_a_bad_change_is_put_aside(path: Path) -> None:
    """K5: bad_changes='keep': the change is in the table beside, with its position, and the others are applied."""
    sink = change_table(path, bad_changes="keep")
    batch = sink.begin(GROUP, {Q0: 0})
    good = rows_of(sink, sent([change(Operation.INSERT, 1, 1, a=1)]))

    batch.commit(files_of(batch.task_writer(), iter([good, _bad_row(sink)])), {Q0: 2})

    assert list(table_rows(path)) == [1]
    [bad] = DeltaTable(path / "_bad_changes").to_pyarrow_table().to_pylist()
    assert bad == {**queue_columns(Q0), "queueOffset": 1, "problem": "no key", "body": b"{}"}


def test_a_column_that_is_given_later_is_added(path: Path) -> None:
    """K5: columns= may grow from start to start."""
    apply(change_table(path), sent([change(Operation.INSERT, 1, 1, a=1)]))
    sink = change_table(path, columns=pa.schema([*MODEL_SCHEMA, ("d", pa.string())]))

    apply(sink, [Sent(change(Operation.INSERT, 2, 2, a=2, d="new"), 1)])

    assert table_rows(path)[2] == {"a": 2, "b": None, "c": None, "d": "new"}
    assert table_rows(path)[1]["d"] is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"deletes": "never"}, "deletes='never' is none of 'delete', 'soft', 'ignore'"),
        ({"keys": []}, "names no columns"),
        ({"keys": "id"}, "names no columns"),
        ({"deletes": "soft"}, "deletes='soft' cannot keep the rows that a truncation removes"),
        ({"order": "queue"}, "order='queue' has no order between queues"),
        ({"path": "shop.orders"}, "needs a path"),
    ],
)
def test_settings_that_exclude_each_other(settings: dict[str, Any], problem: str) -> None:
    """K5: a start with them is refused, with what to change."""
    given: dict[str, Any] = {"path": "/lake/orders", "keys": ["id"], "envelope": NoEnvelope()} | settings
    with pytest.raises(OptionError, match=problem):
        ChangeTable(given.pop("path"), **given)


def test_columns_must_be_known(path: Path) -> None:
    """K5: without a table and without columns there is nothing to create."""
    with pytest.raises(SchemaError, match="the columns are unknown"):
        ChangeTable(path, keys=["id"], envelope=NoEnvelope()).table_columns()


@pytest.mark.parametrize(
    ("keys", "type_", "problem"),
    [(["nr"], pa.int64(), "keys names nr, but the table has id"), (["id"], pa.float64(), "not exact")],
)
def test_keys_that_cannot_be_used(path: Path, keys: list[str], type_: pa.DataType, problem: str) -> None:
    """K5: a key is a column of exact values."""
    with pytest.raises(OptionError, match=problem):
        change_table(path, keys=keys, columns=pa.schema([("id", type_)]))


def test_a_text_key_cannot_be_a_partition_column(path: Path) -> None:
    """K1: its empty value would be null there, and match nothing."""
    write_deltalake(path, pa.table({"id": ["a"], "a": [1]}), partition_by=["id"])
    sink = ChangeTable(path, keys=["id"], envelope=NoEnvelope())
    with pytest.raises(OptionError, match="key id is a partition column"):
        sink.prepare(change_schema(sink.table_columns()))


def test_queues_whose_offsets_begin_again_cannot_order_changes(path: Path) -> None:
    """K1: their changes would be taken for older ones."""
    sink = ChangeTable(
        path, keys=["id"], envelope=NoEnvelope(), columns=MODEL_SCHEMA, order="queue", truncates="ignore"
    )
    sink.prepare(change_schema(sink.table_columns()))
    sink.begin(GROUP, {Q0: 0})
    with pytest.raises(SinkConflict, match="have begun again, so with order"):
        sink.begin(GROUP, {Q0: 0, Q1: 1})


def _sent_at(operation: Operation, position: tuple[int, ...] | None, offset: int) -> Sent:
    return Sent(replace(change(operation, 1, 1, a=offset), position=position), offset)


@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize(("first", "later"), [((5, 1), None), ((5,), (0, 3, 7)), ((1, 2), (1,))])
def test_positions_of_another_kind_that_are_lower_end_the_query(
    path: Path, first: tuple[int, ...], later: tuple[int, ...] | None, scd_type: int
) -> None:
    """K1: after another order or envelope all changes would be taken for older ones."""
    sink = change_table(path, stored_as_scd_type=scd_type)
    apply(sink, [_sent_at(Operation.INSERT, first, 0)])
    for operation in (Operation.UPDATE, Operation.DELETE):
        with pytest.raises(SinkConflict, match="so all changes would count as older"):
            apply(sink, [_sent_at(operation, later, 1)])
    apply(sink, [_sent_at(Operation.UPDATE, first, 1)])
    assert max(row["a"] for row in DeltaTable(path).to_pyarrow_table().to_pylist()) == 1


@pytest.mark.parametrize(("first", "later"), [(None, (0, 1)), ((5,), (6, 0, 1)), ((0, 9), (4,))])
def test_positions_of_another_kind_that_are_higher_are_applied(
    path: Path, first: tuple[int, ...] | None, later: tuple[int, ...]
) -> None:
    """K1: such as those of global transaction ids in both forms of Canal; also below a snapshot without any."""
    sink = change_table(path)
    apply(sink, [_sent_at(Operation.INSERT, first, 0)])
    apply(sink, [_sent_at(Operation.UPDATE, later, 1)])
    apply(sink, [_sent_at(Operation.SNAPSHOT, None, 2)])
    assert table_rows(path)[1]["a"] == 1


def test_a_merge_that_the_table_forbids_is_no_lost_race(path: Path) -> None:
    """H7: it is tried with pauses, and its error names the reason."""
    write_deltalake(path, pa.table({"id": [1], "a": [1]}), configuration={"delta.appendOnly": "true"})
    table = TableSnapshot(DeltaTable(path))
    note = CommitNote()
    with pytest.raises(CommitFailedError, match="append"):
        table.write_next(lambda opened, by: opened.delete("id = 1", commit_properties=by), note)


def test_a_sink_is_sent_to_a_server(path: Path) -> None:
    """K5: Spark Connect pickles it."""
    sink = change_table(path, deletes="soft", truncates="stop", source_table="shop.orders")
    again = pickle.loads(pickle.dumps(sink))
    assert repr(again).split("envelope")[0] == repr(sink).split("envelope")[0]
    assert again.setting("truncates") == "stop"
    assert again.table_columns() == sink.table_columns()


def test_an_envelope_by_its_name(path: Path) -> None:
    """K5: its options are those of the sink, which is sent to a server with them."""
    sink = ChangeTable(
        path, keys=["id"], envelope="canal", source_time_zone="Asia/Shanghai", columns=MODEL_SCHEMA
    )
    assert pickle.loads(pickle.dumps(sink)).envelope == sink.envelope

    with pytest.raises(OptionError, match="source_time_zone is missing"):
        ChangeTable(path, keys=["id"], envelope="canal")
    with pytest.raises(OptionError, match="did you mean 'canal'"):
        ChangeTable(path, keys=["id"], envelope="canale")
    with pytest.raises(OptionError, match="are only for an envelope that is given by its name"):
        ChangeTable(path, keys=["id"], envelope=NoEnvelope(), source_time_zone="UTC")


def test_side_tables_are_in_the_table_s_folder(path: Path) -> None:
    """K1: at a URI as at a path, and VACUUM of the table leaves them."""
    sink = change_table(path)
    apply(sink, sent([change(Operation.INSERT, 1, 1, a=1), change(Operation.DELETE, 2, 2)]))

    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)

    assert DeltaTable(path / "_deletions").to_pyarrow_table()["id"].to_pylist() == [2]
    apply(sink, [Sent(change(Operation.INSERT, 2, 1, a=1), 2)])
    assert list(table_rows(path)) == [1]


def test_the_hidden_columns_have_statistics(path: Path) -> None:
    """K1: in a table of many columns, too, so that files without older values are not read for them."""
    wide = pa.schema([("id", pa.int64()), *((f"c{number}", pa.int64()) for number in range(40))])
    sink = change_table(path, columns=wide)
    apply(sink, sent([change(Operation.INSERT, 1, 1, c0=5)]))

    [stats] = pa.table(DeltaTable(path).get_add_actions(flatten=True))["null_count.__older"].to_pylist()
    assert stats == 1
    assert table_rows(path)[1]["c0"] == 5


@pytest.mark.parametrize("chosen", ["dataSkippingNumIndexedCols", "dataSkippingStatsColumns"])
def test_missing_values_are_found_in_files_with_fewer_statistics(path: Path, chosen: str) -> None:
    """K1: not every writer has the statistics that a property of the table asks for."""
    wide = pa.schema([("id", pa.int64()), *((f"c{number}", pa.int64()) for number in range(40))])
    columns = {"dataSkippingNumIndexedCols": "-1", "dataSkippingStatsColumns": "id,__older"}
    DeltaTable.create(path, schema=wide, configuration={f"delta.{chosen}": columns[chosen]})
    sink = change_table(path, columns=wide)
    values = {f"c{number}": 1 for number in range(40)}
    lacking = frozenset(values) - {"c0"}
    for at, key in enumerate((1, 2)):
        apply(sink, [Sent(replace(change(Operation.UPDATE, key, 5, c0=5), absent=lacking), at)])
    compact(DeltaTable(path), LogFiles(str(path), NO_OPTIONS))
    apply(sink, [Sent(replace(change(Operation.UPDATE, 3, 5, c0=5), absent=lacking), 2)])

    apply(sink, [Sent(change(Operation.INSERT, 1, 3, **values), 3)])

    assert table_rows(path)[1] == values | {"c0": 5}


def test_a_creation_that_failed_leaves_no_properties_behind(tmp_path: Path) -> None:
    """K2: a table that is made later has only the properties that are asked for then."""
    blocked = tmp_path / "tables"
    sink = change_table(blocked / "orders", columns=MODEL_SCHEMA)
    rmtree(blocked)
    blocked.write_text("not a folder")
    with pytest.raises((RocketMQError, DeltaError, OSError)):
        sink.create({"rocketmq.test": "first"})
    blocked.unlink()

    sink.prepare(change_schema(sink.table_columns()))

    assert "rocketmq.test" not in DeltaTable(blocked / "orders").metadata().configuration


class _RowsAsChanges:
    """A change table for rows with their position and a step, each the insert of a key of its own."""

    def __init__(self, path: Path) -> None:
        columns = pa.schema([("queue", pa.int64()), ("at", pa.int64()), ("step", pa.string())])
        self._sink = ChangeTable(path, keys=["queue", "at", "step"], envelope=NoEnvelope(), columns=columns)

    def prepare(self, schema: pa.Schema) -> None:
        self._sink.prepare(change_schema(self._sink.table_columns()))

    def begin(self, group: str, queues: Mapping[MessageQueue, int]) -> Any:
        return _BatchOfRows(self._sink.begin(group, queues))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


class _BatchOfRows:
    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def task_writer(self) -> Any:
        return _WriterOfRows(self._batch.task_writer())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


class _WriterOfRows:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def open(self) -> Any:
        return _WritingOfRows(self._writer)

    def written(self, facts: Mapping[str, Any]) -> Any:
        return self._writer.written(facts)


class _WritingOfRows:
    def __init__(self, writer: Any) -> None:
        self._writing = writer.open()
        self._schema = writer.schema

    def add(self, rows: pa.RecordBatch) -> int:
        left_out: int = self._writing.add(
            pa.RecordBatch.from_pylist(list(map(self._change, rows.to_pylist())), self._schema)
        )
        return left_out

    def _change(self, row: dict[str, Any]) -> dict[str, Any]:
        at = row["queueOffset"]
        values = {"queue": row["queueId"], "at": at, "step": row.pop("step")}
        place = None if at is None else order_of((at,), at, 0)
        changed = {value_column(name): value for name, value in values.items()}
        return row | changed | {POSITION: place, OPERATION: "insert"}

    def finish(self) -> Any:
        return self._writing.finish()

    def abandon(self) -> None:
        self._writing.abandon()


class TestChangeTable(GroupConformance):
    """The promises of every sink."""

    @pytest.fixture
    def sink(self, path: Path) -> Sink:
        rows = _RowsAsChanges(path)
        rows.prepare(SCHEMA)
        sink: Sink = cast("Any", rows)
        return sink

    @pytest.fixture
    def stored(self, path: Path) -> Stored:
        def read() -> list[tuple[Any, ...]]:
            rows = DeltaTable(path).to_pyarrow_table().to_pylist()
            return sorted((row["queue"], row["at"], row["step"]) for row in rows)

        return read
