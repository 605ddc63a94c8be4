"""A Delta table with all versions of the rows of a database."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_rocketmq.change_data.change import Change, Operation
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.sinks.change_table.columns import change_schema
from pyspark_rocketmq.sinks.change_table.compaction import POSITION
from pyspark_rocketmq.sinks.change_table.side_tables import PastChanges
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable
from pyspark_rocketmq.sinks.change_table.version_merge import VersionMerge
from pyspark_rocketmq.sinks.change_table.versions import END_AT, HISTORY_FIELDS, PLACES, START_AT
from tests.change_data.model_database import TABLE, ModelDatabase, Sent, sent, shuffled
from tests.change_data.model_history import sorted_versions, timed
from tests.helpers.sink_rows import GROUP, Q0, Q1, files_of
from tests.sinks.change_rows import (
    MODEL_SCHEMA,
    Killed,
    NoEnvelope,
    apply,
    change_table,
    kill_at,
    rows_of,
    table_versions,
)

_BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def _at(second: int) -> datetime:
    return _BEGIN + timedelta(seconds=second)


def _change(operation: Operation, key: int, position: int, **values: Any) -> Change:
    has_row = operation not in (Operation.DELETE, Operation.TRUNCATE)
    row = {"id": key, **values} if has_row else {}
    return Change(
        table=TABLE,
        operation=operation,
        key={} if operation is Operation.TRUNCATE else {"id": key},
        row=row,
        position=(position,),
        absent=frozenset({"a", "b", "c"} - row.keys()) if operation is Operation.UPDATE else frozenset(),
        source_time=_at(position),
    )


def _schedule(seed: int) -> list[list[Sent]]:
    by = random.Random(seed)
    database = ModelDatabase(by, keys=1 + seed % 4)
    database.run(by.randrange(4, 14))
    return shuffled(by, timed(database.log, 2, random.Random(seed) if seed % 2 else None))


def _wanted(batches: Sequence[Sequence[Sent]], tracked: Sequence[str] = ("a", "b", "c")) -> Any:
    return sorted_versions((each for batch in batches for each in batch), tracked)


def _history(path: Path, **settings: Any) -> ChangeTable:
    return change_table(path, **({"stored_as_scd_type": 2} | settings))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("bytes_of_a_share", [None, 100], ids=["whole", "in shares"])
def test_the_table_has_the_versions_of_a_model_in_any_order(
    path: Path, seed: int, bytes_of_a_share: int | None
) -> None:
    """K5: changes that are permuted, repeated and in any batches, also share by share of the keys."""
    tracked = ["a"] if seed % 3 == 0 else None
    sink = _history(path, track_history_column_list=tracked)
    if bytes_of_a_share is not None:
        appender: Any = sink._table.newest().appender
        object.__setattr__(appender, "rules", replace(appender.rules, bytes_of_a_share=bytes_of_a_share))
    batches = _schedule(seed)

    for batch in batches:
        apply(sink, batch)

    assert table_versions(path) == _wanted(batches, tracked or ("a", "b", "c"))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_schedules_into_delta(path: Path, seed: int) -> None:
    """K5: more schedules by seeds."""
    test_the_table_has_the_versions_of_a_model_in_any_order(path, seed, None)


def test_versions_as_users_see_them(path: Path) -> None:
    """K5: a version ends when the next one begins or its row is deleted; the current one has no end."""
    sink = _history(path)
    apply(
        sink,
        sent(
            [
                _change(Operation.INSERT, 1, 1, a=1, b=1, c=1),
                _change(Operation.UPDATE, 1, 4, a=2),
                _change(Operation.UPDATE, 1, 5, a=2),
                _change(Operation.DELETE, 1, 6),
                _change(Operation.INSERT, 1, 8, a=2, b=1, c=1),
            ]
        ),
    )

    assert table_versions(path) == {
        1: [
            {"a": 1, "b": 1, "c": 1, START_AT: _at(1), END_AT: _at(4)},
            {"a": 2, "b": 1, "c": 1, START_AT: _at(4), END_AT: _at(6)},
            {"a": 2, "b": 1, "c": 1, START_AT: _at(8), END_AT: None},
        ]
    }
    assert DeltaTable(path).schema().to_arrow() is not None
    assert [field.name for field in DeltaTable(path).schema().fields][-2:] == [START_AT, END_AT]


@pytest.mark.parametrize("operation", [Operation.UPDATE, Operation.DELETE, Operation.TRUNCATE])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "late"])
def test_no_version_ends_before_it_starts(path: Path, operation: Operation, is_first: bool) -> None:
    """K5: a row of a later snapshot has the lowest position and a late time: its version ends as it starts."""
    sink = _history(path)
    snapshot = replace(_change(Operation.SNAPSHOT, 1, 0, a=9, b=9, c=9), source_time=_at(48))
    ending = _change(operation, 1, 4, **({"a": 2} if operation is Operation.UPDATE else {}))
    changes = [snapshot, ending] if is_first else [ending, snapshot]
    for each in sent(changes):
        apply(sink, [each])
        apply(sink, [each])
    later = [] if operation is not Operation.UPDATE else [(_at(4), None)]

    found = [(version[START_AT], version[END_AT]) for version in table_versions(path)[1]]
    assert found == [(_at(48), _at(48)), *later]


def test_a_late_change_splits_a_version_and_corrects_what_inherited(path: Path) -> None:
    """K5: the update at 9 lacked b, so it has the late value; the version before it ends at the late change."""
    sink = _history(path)
    apply(sink, sent([_change(Operation.INSERT, 1, 1, a=1, b=1, c=1), _change(Operation.UPDATE, 1, 9, a=2)]))

    apply(sink, [Sent(_change(Operation.UPDATE, 1, 5, b=7), 2)])

    assert table_versions(path)[1] == [
        {"a": 1, "b": 1, "c": 1, START_AT: _at(1), END_AT: _at(5)},
        {"a": 1, "b": 7, "c": 1, START_AT: _at(5), END_AT: _at(9)},
        {"a": 2, "b": 7, "c": 1, START_AT: _at(9), END_AT: None},
    ]


def test_columns_that_open_no_version_are_updated_in_place(path: Path) -> None:
    """K5: track_history_column_list: a late tracked change still gets the other columns as they were."""
    sink = _history(path, track_history_column_list=["a"])
    apply(
        sink,
        sent(
            [
                _change(Operation.INSERT, 1, 1, a=1, b=1, c=1),
                _change(Operation.UPDATE, 1, 3, b=3),
                _change(Operation.UPDATE, 1, 7, b=7),
            ]
        ),
    )
    assert table_versions(path)[1] == [{"a": 1, "b": 7, "c": 1, START_AT: _at(1), END_AT: None}]

    apply(sink, [Sent(_change(Operation.UPDATE, 1, 5, a=5), 3)])

    assert table_versions(path)[1] == [
        {"a": 1, "b": 3, "c": 1, START_AT: _at(1), END_AT: _at(5)},
        {"a": 5, "b": 7, "c": 1, START_AT: _at(5), END_AT: None},
    ]


def test_keys_may_be_texts(path: Path) -> None:
    """K5: files that delta-rs has merged have texts of a kind that Arrow does not compare."""
    columns = pa.schema([("id", pa.string()), *list(MODEL_SCHEMA)[1:]])
    sink = _history(path, columns=columns)
    for turn, place in enumerate((10, 20, 30, 25)):
        log = [
            replace(_change(Operation.INSERT, 0, place + number, a=place, b=1, c=1), key={"id": key})
            for number, key in enumerate("kl")
        ]
        truncations = [_change(Operation.TRUNCATE, 0, place + 3)] if place == 20 else []
        apply(sink, [Sent(each, turn * 5 + number) for number, each in enumerate([*log, *truncations])])

    times = {key: [version[START_AT] for version in found] for key, found in table_versions(path).items()}
    assert times == {"k": [_at(10), _at(20), _at(25), _at(30)], "l": [_at(11), _at(21), _at(26), _at(31)]}
    assert table_versions(path)["l"][1][END_AT] == _at(23)


def test_a_truncation_ends_the_versions_of_all_keys(path: Path) -> None:
    """K5: also of keys that the batch lacks; those that begin after it stay open."""
    sink = _history(path)
    first = [_change(Operation.INSERT, key, key, a=key, b=0, c=0) for key in range(1, 5)]
    apply(sink, sent(first))
    apply(sink, [Sent(_change(Operation.UPDATE, 4, 30, a=9), 4)])

    apply(sink, [Sent(_change(Operation.TRUNCATE, 0, 10), 5), Sent(_change(Operation.TRUNCATE, 0, 20), 6)])

    assert [version[-1][END_AT] for _, version in sorted(table_versions(path).items())] == [
        _at(10),
        _at(10),
        _at(10),
        None,
    ]
    assert table_versions(path)[4][-1] == {"a": 9, "b": None, "c": None, START_AT: _at(30), END_AT: None}


def test_deletions_that_are_ignored_leave_versions_open(path: Path) -> None:
    """K5: deletes='ignore' with versions is allowed; the listener passes deletions over."""
    sink = _history(path, deletes="ignore")
    apply(sink, sent([_change(Operation.INSERT, 1, 1, a=1, b=1, c=1)]))
    assert table_versions(path)[1][0][END_AT] is None
    assert sink.setting("deletes") == "ignore"


@pytest.mark.parametrize("step", ["before the record", "after the record", "after the merge"])
def test_a_batch_that_was_killed_at_any_step_is_repeated(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: a kill before or after each of the two commits, then the batch again, in every batch."""
    for seed in range(4):
        folder = path / str(seed)
        batches = _schedule(seed)
        for batch in batches:
            with monkeypatch.context() as patches:
                kill_at(step, patches, PastChanges)
                with pytest.raises(Killed):
                    apply(_history(folder), batch)
            apply(_history(folder), batch)
        assert table_versions(folder) == _wanted(batches)


def test_a_deletion_that_another_member_records_during_a_commit_is_seen(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: the insert has been decided when the other member commits a later deletion: its commit is repeated."""
    one, other = _history(path), _history(path)
    inserting = one.begin(GROUP, {Q0: 0})
    inserted = sent([_change(Operation.INSERT, 1, 3, a=1, b=1, c=1)])
    files = files_of(inserting.task_writer(), iter([rows_of(one, inserted, Q0)]))
    merges: list[str] = []
    merge = VersionMerge.merge

    def late(*given: Any) -> None:
        if not merges:
            merges.append("insert")
            apply(other, sent([_change(Operation.DELETE, 1, 5)]), Q1)
        merge(*given)

    monkeypatch.setattr(VersionMerge, "merge", late)
    inserting.commit(files, {Q0: 1})

    assert merges == ["insert"]
    assert table_versions(path) == {1: [{"a": 1, "b": 1, "c": 1, START_AT: _at(3), END_AT: _at(5)}]}
    assert {key.queue: at for key, at in one.watermarks(GROUP).items()} == {Q0: 1, Q1: 1}


def test_rows_that_the_table_had_before_are_the_first_versions(path: Path) -> None:
    """K5: a table that was loaded by another job gets the columns; its rows begin at an unknown time."""
    write_deltalake(path, pa.table({"id": [1, 2, 3], "a": [1, 1, 1], "b": [1, 1, 1], "c": [1, 1, 1]}))
    sink = _history(path, columns=None)

    apply(sink, sent([_change(Operation.UPDATE, 1, 7, a=5), _change(Operation.DELETE, 2, 8)]))

    first = {"a": 1, "b": 1, "c": 1, START_AT: None}
    assert table_versions(path) == {
        1: [first | {END_AT: _at(7)}, {"a": 5, "b": 1, "c": 1, START_AT: _at(7), END_AT: None}],
        2: [first | {END_AT: _at(8)}],
        3: [first | {END_AT: None}],
    }


def test_past_changes_are_forgotten_after_some_days(path: Path) -> None:
    """K5: keep_deletions_days: a deletion whose older change comes later than that ends nothing."""
    today = [date(2026, 11, 1)]
    sink = _history(path, keep_deletions_days=7, today=lambda: today[0])
    for offset in range(60):
        apply(sink, [Sent(_change(Operation.DELETE, offset, 5), offset)])
        if offset == 20:
            today[0] += timedelta(days=9)

    left = DeltaTable(path / "_past_changes")
    assert left.to_pyarrow_table().num_rows < 45
    assert len(left.file_uris()) < 25
    late = [Sent(_change(Operation.INSERT, key, 3, a=1, b=1, c=1), 60 + key) for key in (0, 59)]
    apply(sink, late)
    ends = {key: version[0][END_AT] for key, version in table_versions(path).items()}
    assert ends == {0: None, 59: _at(5)}


def test_a_column_that_is_given_later_is_added(path: Path) -> None:
    """K5: also to what is remembered beside the table."""
    sink = _history(path)
    apply(sink, sent([_change(Operation.INSERT, 1, 1, a=1, b=1, c=1), _change(Operation.DELETE, 2, 4)]))
    sink = _history(path, columns=pa.schema([*MODEL_SCHEMA, ("d", pa.string())]))

    later = [
        Sent(_change(Operation.INSERT, 2, 2, a=2, b=2, c=2, d="new"), 2),
        Sent(_change(Operation.INSERT, 2, 3, a=2, b=2, c=2, d="new"), 3),
    ]
    apply(sink, later)

    assert table_versions(path) == {
        1: [{"a": 1, "b": 1, "c": 1, "d": None, START_AT: _at(1), END_AT: None}],
        2: [{"a": 2, "b": 2, "c": 2, "d": "new", START_AT: _at(2), END_AT: _at(4)}],
    }


def test_values_of_all_kinds_open_versions(path: Path) -> None:
    """K5: equal values of any type open none, and another one does."""
    types = pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.string())),
            ("raw", pa.binary()),
            ("rate", pa.float64()),
        ]
    )
    sink = _history(path, columns=types)
    values: dict[str, Any] = {"price": None, "tags": ["x"], "raw": b"1", "rate": float("nan")}
    others: dict[str, Any] = {"tags": ["x", "y"], "raw": b"", "rate": 0.5}
    log = [_change(Operation.INSERT, 1, 1, **values), _change(Operation.INSERT, 1, 2, **values)]
    for place, (name, value) in enumerate(others.items(), 3):
        values = values | {name: value}
        log.append(_change(Operation.INSERT, 1, place, **values))
    for each in sent(log):
        apply(sink, [each])

    assert [version[START_AT] for version in table_versions(path)[1]] == [_at(1), _at(3), _at(4), _at(5)]


def test_the_hidden_columns_have_statistics(path: Path) -> None:
    """K5: in a table of many columns, too."""
    wide = pa.schema([("id", pa.int64()), *((f"c{number}", pa.int64()) for number in range(40))])
    sink = _history(path, columns=wide)
    apply(sink, sent([_change(Operation.UPDATE, 1, 1, c0=5)]))

    stats = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    assert stats["max.__position"].to_pylist() == DeltaTable(path).to_pyarrow_table()[POSITION].to_pylist()
    assert stats[f"null_count.{PLACES}"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"stored_as_scd_type": 3}, "stored_as_scd_type=3 is neither 1 nor 2"),
        ({"stored_as_scd_type": 2, "deletes": "soft", "truncates": "stop"}, "a deletion ends its version"),
        ({"track_history_column_list": ["a"]}, "add stored_as_scd_type=2"),
        ({"stored_as_scd_type": "2", "track_history_column_list": []}, "names no columns"),
        ({"stored_as_scd_type": "2", "track_history_column_list": "a"}, "names no columns"),
    ],
)
def test_settings_that_exclude_each_other(settings: dict[str, Any], problem: str) -> None:
    """K5: a start with them is refused, with what to change."""
    with pytest.raises(OptionError, match=problem):
        ChangeTable("/lake/orders", keys=["id"], envelope=NoEnvelope(), **settings)


def test_tracked_columns_must_be_there(path: Path) -> None:
    """K5: track_history_column_list with a column that the table lacks is refused."""
    with pytest.raises(OptionError, match="names nr, but the table has id, a, b, c"):
        _history(path, track_history_column_list=["nr"])


@pytest.mark.parametrize(("made", "asked"), [(1, 2), (2, 1)])
def test_a_table_of_the_other_type_is_refused(path: Path, made: int, asked: int) -> None:
    """K5: neither type can be made of the other one."""
    change_table(path, stored_as_scd_type=made)
    with pytest.raises(
        OptionError, match=f"was written with stored_as_scd_type={made}, .*; give stored_as_scd_type={made}"
    ):
        change_table(path, stored_as_scd_type=asked)


def test_a_sink_is_sent_to_a_server(path: Path) -> None:
    """K5: Spark Connect pickles it; a type may be given as text, as in AUTO CDC."""
    sink = _history(path, stored_as_scd_type="2", track_history_column_list=["a"])
    again = pickle.loads(pickle.dumps(sink))
    again.prepare(change_schema(again.table_columns()))
    assert "stored_as_scd_type=2, track_history_column_list=('a',)" in repr(again)
    apply(again, sent([_change(Operation.INSERT, 1, 1, a=1, b=1, c=1)]))
    names = DeltaTable(path).to_pyarrow_table().column_names
    assert {field.name for field in HISTORY_FIELDS} <= set(names)
