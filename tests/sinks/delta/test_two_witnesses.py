"""How far a table is with a group: transaction ids and what commits record, and one of them is lost."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.errors import SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.delta.rules import NUMBER, REACHED, WATERMARKS, SinkCommit, app_id, own_metadata
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.sink_log import opened_log
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit
from tests.helpers.sink_rows import GROUP, Q0, Q1, files_of, run_batch
from tests.sinks.sink_conformance import SCHEMA, newest_in, rows, with_newest

ID0, ID1 = app_id(GROUP, Q0), app_id(GROUP, Q1)
RETENTION = {"delta.setTransactionRetentionDuration": "interval 1 days"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def prepared(path: Path, **more: Any) -> DeltaSink:
    sink = DeltaSink(path, compaction=False, sleep=lambda _: None, **more)
    sink.prepare(SCHEMA)
    return sink


def set_retention(path: Path) -> None:
    DeltaTable(path).alter.set_table_properties(RETENTION)


def forget_ids(path: Path, *names: str) -> None:
    """Make a checkpoint as Spark makes it when these ids are older than the table's retention; all by default."""
    table = DeltaTable(path)
    table.create_checkpoint()
    checkpoint = path / "_delta_log" / f"{table.version():020d}.checkpoint.parquet"
    stored = pq.read_table(checkpoint)
    kept = [not (txn and (not names or txn["appId"] in names)) for txn in stored["txn"].to_pylist()]
    pq.write_table(stored.filter(pa.array(kept)), checkpoint)


def clean_log(path: Path) -> None:
    """Remove what is older than a checkpoint of the newest version, as writers do after the log's retention."""
    table = DeltaTable(path)
    table.create_checkpoint()
    for file in (path / "_delta_log").glob("*.json"):
        if file.name[0].isdigit() and int(file.name[:20]) < table.version():
            file.unlink()


def add_foreign(path: Path) -> None:
    write_deltalake(path, pa.table(rows(Q1, 900, 901)), mode="append")


def offsets_in(path: Path) -> list[tuple[int, int]]:
    found = DeltaTable(path).to_pyarrow_table()
    return sorted(zip(found["queueId"].to_pylist(), found["queueOffset"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("lost", "has_property"),
    [((), True), ((ID0,), True), ((ID1,), True), ((), False), ((ID0,), False), ((ID1,), False)],
    ids=["all", "of a queue", "of an idle queue", "all once", "of a queue once", "of an idle queue once"],
)
def test_ids_that_a_checkpoint_has_dropped_are_known_from_the_newest_commit(
    path: Path, lost: tuple[str, ...], has_property: bool
) -> None:
    """H2, H10: Spark drops them at once or after the retention; a replay adds no row twice.

    Without the property, it was there for a while: it was unset, or a RESTORE took it away.
    """
    sink = prepared(path)
    run_batch(sink, {Q0: 2, Q1: 3}, rows(Q0, 0, 2), rows(Q1, 0, 3))
    run_batch(sink, {Q0: 5}, rows(Q0, 2, 5))
    if has_property:
        set_retention(path)
    forget_ids(path, *lost)

    again = prepared(path)
    assert again.watermarks(GROUP) == {QueueGeneration(Q0, 0): 5, QueueGeneration(Q1, 0): 3}
    [standing] = again.standings(GROUP, {Q0: 0, Q1: 0})
    assert standing.watermarks == {Q0: 5, Q1: 3}
    run_batch(again, {Q0: 6}, rows(Q0, 0, 6))
    run_batch(prepared(path), {Q1: 4}, rows(Q1, 0, 4))

    assert offsets_in(path) == [(0, offset) for offset in range(6)] + [(1, offset) for offset in range(4)]
    stored = LogFiles(str(path)).transactions(DeltaTable(path).version()).by_app_id
    assert stored == {ID0: 6, ID1: 4}


def test_a_running_sink_goes_on_when_its_ids_are_dropped_meanwhile(path: Path) -> None:
    """H10: between its begin and its commit, and between two batches."""
    sink = prepared(path)
    run_batch(sink, {Q0: 2, Q1: 3}, rows(Q0, 0, 2), rows(Q1, 0, 3))
    batch = sink.begin(GROUP, {Q0: 0, Q1: 0})
    set_retention(path)
    forget_ids(path)

    batch.commit([], {Q0: 3})

    assert prepared(path).begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 3, Q1: 3}


@pytest.mark.parametrize("has_rows", [True, False])
@pytest.mark.parametrize("merge_keys", [(), ("step",)], ids=["files", "a merge"])
def test_a_commit_records_what_others_have_committed_since_its_batch_began(
    path: Path, merge_keys: tuple[str, ...], has_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H5, H10: delta-rs would put it behind theirs with the record that it had."""
    monkeypatch.setattr(LogFiles, "takes_commits", False)
    one, other = prepared(path, merge_keys=merge_keys), prepared(path, merge_keys=merge_keys)
    run_batch(one, {Q0: 2, Q1: 3}, rows(Q0, 0, 2), rows(Q1, 0, 3))
    set_retention(path)
    batch = one.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 2, 4, "paid")] if has_rows else []))
    for end in range(4, 12):
        run_batch(other, {Q1: end})

    batch.commit(files, {Q0: 4})

    forget_ids(path)
    assert prepared(path).watermarks(GROUP) == {QueueGeneration(Q0, 0): 4, QueueGeneration(Q1, 0): 11}


def test_ids_say_when_they_were_set(path: Path) -> None:
    """H10: without that a checkpoint of a table with the retention drops them at once, however new."""
    run_batch(prepared(path), {Q0: 1}, rows(Q0, 0, 1))

    text = (path / "_delta_log" / f"{1:020d}.json").read_text()
    [txn] = [action["txn"] for line in text.splitlines() if "txn" in (action := json.loads(line))]
    [info] = [
        action["commitInfo"] for line in text.splitlines() if "commitInfo" in (action := json.loads(line))
    ]

    assert txn == {"appId": ID0, "version": 1, "lastUpdated": info["timestamp"]}
    assert own_metadata(info)[REACHED] == {ID0: 1}


def test_neither_witness_is_left_and_a_group_is_refused_until_an_operator_says_where_it_is(
    path: Path,
) -> None:
    """H10, J7: taken for a new group it would have its rows twice."""
    sink = prepared(path)
    run_batch(sink, {Q0: 2, Q1: 3}, rows(Q0, 0, 2), rows(Q1, 0, 3))
    set_retention(path)
    add_foreign(path)
    clean_log(path)
    forget_ids(path)

    asked: list[Callable[[], object]] = [
        lambda: prepared(path).begin(GROUP, {Q0: 0}),
        lambda: prepared(path).standings(GROUP, {Q0: 0}),
        lambda: prepared(path).watermarks(GROUP),
    ]
    for ask in asked:
        with pytest.raises(
            SinkConflict, match=r"Cannot determine up to which.*DeltaSink\.rewind.*UNSET TBLPROPERTIES"
        ):
            ask()

    prepared(path).rewind(GROUP, {Q0: 2, Q1: 3})
    run_batch(prepared(path), {Q0: 3}, rows(Q0, 0, 3))
    assert offsets_in(path) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 900)]


def test_a_group_is_new_in_a_table_with_a_retention_whose_whole_log_is_there(path: Path) -> None:
    """H10: the log shows that it never wrote."""
    run_batch(prepared(path), {Q0: 2}, rows(Q0, 0, 2))
    set_retention(path)
    forget_ids(path)

    assert prepared(path).begin("another", {Q0: 0}).watermarks == {Q0: 0}


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole log", "cleaned log"])
def test_a_group_that_is_new_reads_the_log_of_others_once(
    path: Path, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H10, J3: no commit in it has a summary of those before."""
    sink = prepared(path)
    add_foreign(path)
    if not is_whole:
        clean_log(path)
    for _ in range(30):
        add_foreign(path)
    read: list[int] = []
    commit_info = LogFiles.commit_info

    def noted(log: LogFiles, version: int) -> dict[str, Any] | None:
        read.append(version)
        return commit_info(log, version)

    monkeypatch.setattr(LogFiles, "commit_info", noted)

    counts = []
    for _ in range(4):
        read.clear()
        assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 0}
        counts.append(len(read))
        add_foreign(path)
    assert counts[0] >= 30
    assert max(counts[1:]) <= 5


def test_a_commit_of_an_older_release_records_too_little_where_ids_are_dropped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H10: ids that it left without a time may be gone."""
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_rocketmq.sinks.delta.watermarks.REACHED", "of another release")
        run_batch(prepared(path), {Q0: 2, Q1: 3}, rows(Q0, 0, 2), rows(Q1, 0, 3))
    assert prepared(path).begin(GROUP, {Q0: 0}).watermarks == {Q0: 2}
    set_retention(path)

    with pytest.raises(SinkConflict, match="Cannot determine up to which offset"):
        prepared(path).begin(GROUP, {Q0: 0})


def test_only_named_ids_can_be_read_and_the_commit_knows_the_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H10: a log of a later form is read through delta-rs, id by id."""
    run_batch(prepared(path), {Q0: 2, Q1: 3}, rows(Q0, 0, 2), rows(Q1, 0, 3))

    def unreadable(_: TableSnapshot) -> dict[str, int]:
        raise KeyError("sidecars")

    monkeypatch.setattr(TableSnapshot, "all_transactions", unreadable)

    assert run_batch(prepared(path), {Q0: 3}, rows(Q0, 0, 3), queues=[Q0]) is not None
    monkeypatch.undo()
    newest = LogFiles(str(path)).commit_info(DeltaTable(path).version())
    assert newest is not None
    assert own_metadata(newest)[REACHED] == {ID0: 3, ID1: 3}


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({}, {"a": 5}),
        ({REACHED: {"a": 4, "b": 7}}, {"a": 5, "b": 7}),
        ({WATERMARKS: {"a": 4, "b": 7}, NUMBER: 2}, {"a": 4, "b": 7}),
    ],
    ids=["older release", "files", "Spark"],
)
def test_both_witnesses_are_judged(recorded: dict[str, object], expected: dict[str, int]) -> None:
    """H10: ids are newer than a commit of files, and older than one by Spark."""
    entry = {"userMetadata": json.dumps(recorded)}

    found = GroupCommit.combined({"a": 5}, entry, number=1)

    assert found.watermarks == expected
    assert found.number == (2 if NUMBER in recorded else 1)
    assert found.not_in_ids == {name: at for name, at in expected.items() if (name, at) != ("a", 5)}


# ------------------------------------------------------------------------ a RESTORE that the log has forgotten


def test_a_log_that_may_have_forgotten_a_restore_is_warned_of_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """J7: offsets and watermarks agree, and the rows are gone."""
    for end in (10, 20, 30):
        run_batch(prepared(path), {Q0: end}, rows(Q0, end - 10, end))
    DeltaTable(path).restore(1)
    add_foreign(path)
    clean_log(path)

    sink = prepared(path)
    with caplog.at_level(logging.WARNING):
        sink.begin(GROUP, {Q0: 0})
        sink.begin(GROUP, {Q0: 0})
        sink.begin("new", {Q0: 0})

    [warning] = [each for each in caplog.messages if "no longer reaches back" in each]
    assert f"last commit of group {GROUP}" in warning
    assert "delta.logRetentionDuration" in warning


def test_a_log_that_reaches_back_to_the_last_commit_warns_of_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """J7"""
    run_batch(prepared(path), {Q0: 10}, rows(Q0, 0, 10))
    run_batch(prepared(path), {Q0: 20}, rows(Q0, 10, 20))
    clean_log(path)
    add_foreign(path)

    with caplog.at_level(logging.WARNING):
        run_batch(prepared(path), {Q0: 21}, rows(Q0, 20, 21))

    # Threads that earlier tests have left may log what they miss.
    of_tables = ("pyspark_rocketmq.sinks", "pyspark_rocketmq.delta")
    assert [each.getMessage() for each in caplog.records if each.name.startswith(of_tables)] == []


def test_a_log_without_its_own_newest_commit_is_an_error(path: Path) -> None:
    """J7: whether a RESTORE took rows away is then unknown."""
    run_batch(prepared(path), {Q0: 10}, rows(Q0, 0, 10))
    log = opened_log(DeltaTable(path))
    (path / "_delta_log" / f"{1:020d}.json").unlink()

    with pytest.raises(DeltaError, match="no longer has the commit of version 1"):
        log.shows_restores_since(GROUP)


# ------------------------------------------------------------------- what a commit records, and for how long


def own_of(path: Path) -> dict[str, Any]:
    """What the newest commit records."""
    entry = LogFiles(str(path)).commit_info(DeltaTable(path).version())
    assert entry is not None
    return dict(own_metadata(entry))


def test_a_commit_records_only_the_last_generation_of_each_queue(path: Path) -> None:
    """H10, J3: an id of each generation stays in the table, and commits do not grow with their number."""
    for generation in range(4):
        with_newest(prepared(path), {Q0: 2}, {Q0: f"[1,{generation},64]"}, {Q0: generation, Q1: 0})

    own = own_of(path)
    assert own[REACHED] == {app_id(GROUP, Q0, 3): 2}
    assert own["newest"] == {app_id(GROUP, Q0, 3): [1, 3, 64]}
    assert prepared(path).begin(GROUP, {Q0: 1, Q1: 0}).watermarks == {Q0: 2, Q1: 0}


def test_a_generation_that_is_recorded_nowhere_any_more_is_not_written_again(path: Path) -> None:
    """H10: an offset store that was put back; its messages are in the table, or were lost by the broker."""
    sink = prepared(path)
    run_batch(sink, {Q0: 5}, rows(Q0, 0, 5))
    sink.begin(GROUP, {Q0: 1, Q1: 0}).commit([], {Q0: 2})
    set_retention(path)
    forget_ids(path)

    with pytest.raises(SinkMoved, match=r"queue=0 began again with other messages"):
        prepared(path).begin(GROUP, {Q0: 0, Q1: 0})
    [standing] = prepared(path).standings(GROUP, {Q0: 0, Q1: 0})
    assert standing.later == {Q0}
    assert prepared(path).begin(GROUP, {Q0: 1, Q1: 0}).watermarks == {Q0: 2, Q1: 0}


MANY = [MessageQueue(f"of-day-{day}", "broker-a", 0) for day in range(300)]


def with_many(path: Path) -> None:
    """A sink of very many queues, of which two go on."""
    sink = prepared(path)
    newest = {queue: f"[{number},1000,64]" for number, queue in enumerate(MANY)}
    with_newest(
        sink, {queue: 1 + number for number, queue in enumerate(MANY)}, newest, dict.fromkeys(MANY, 0)
    )
    for end in range(1, 4):
        with_newest(prepared(path), {Q0: end, Q1: end}, {Q0: f"[{end - 1},{end},64]"}, {Q0: 0, Q1: 0})


def check_many(path: Path, end: int) -> None:
    now = prepared(path)
    expected = {queue: 1 + number for number, queue in enumerate(MANY)} | {Q0: end, Q1: end}
    assert now.watermarks(GROUP) == {QueueGeneration(queue, 0): at for queue, at in expected.items()}
    [standing] = now.standings(GROUP, dict.fromkeys((*MANY, Q0, Q1), 0))
    assert standing.watermarks == expected
    assert standing.newest == {
        **{queue: f"[{number},1000,64]" for number, queue in enumerate(MANY)},
        Q0: f"[{end - 1},{end},64]",
    }


def test_queues_that_stand_still_are_not_in_each_commit_and_are_known_from_one(path: Path) -> None:
    """J3, H10: also when all ids are dropped; topics of each day would make each commit longer for ever."""
    with_many(path)
    assert own_of(path)[REACHED] == {ID0: 3, ID1: 3}
    assert len((path / "_delta_log" / f"{4:020d}.json").read_text()) < 2_000

    check_many(path, 3)
    set_retention(path)
    forget_ids(path)
    check_many(path, 3)
    with_newest(prepared(path), {Q0: 4, Q1: 4}, {Q0: "[3,4,64]"}, {Q0: 0, Q1: 0})
    check_many(path, 4)


def test_all_queues_are_recorded_again_after_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H10: logs are cleaned up by age, so both commits are there or neither is."""
    with_many(path)
    later_ns = time.time_ns() + 16 * 60 * 10**9
    monkeypatch.setattr("pyspark_rocketmq.sinks.delta.sink.time.time_ns", lambda: later_ns)

    with_newest(prepared(path), {Q0: 4, Q1: 4}, {Q0: "[3,4,64]"}, {Q0: 0, Q1: 0})

    assert len(own_of(path)[REACHED]) == 302
    monkeypatch.undo()
    clean_log(path)
    check_many(path, 4)


def test_the_commit_with_all_queues_is_gone_and_ids_are_asked(path: Path) -> None:
    """H10: where writers keep them; where they drop them nothing shows how far the group is."""
    with_many(path)
    DeltaTable(path).create_checkpoint()
    (path / "_delta_log" / f"{1:020d}.json").unlink()

    assert len(prepared(path).watermarks(GROUP)) == 302
    set_retention(path)
    with pytest.raises(SinkConflict, match="Cannot determine up to which offset"):
        prepared(path).watermarks(GROUP)


@pytest.mark.parametrize("generation", [0, 1])
def test_a_commit_of_an_older_release_leaves_no_newest_message_of_before(
    path: Path, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H10: nor does the next commit of this one bring it back."""
    now = {Q0: generation, Q1: 0}
    with_newest(prepared(path), {Q0: 2, Q1: 5}, {Q0: "[1,1001,64]", Q1: "[4,1004,900]"})
    with monkeypatch.context() as patched:
        for name in ("REACHED", "NEWEST"):
            patched.setattr(f"pyspark_rocketmq.sinks.delta.watermarks.{name}", f"{name} of another release")
        prepared(path).begin(GROUP, now).commit([], {Q0: 9})

    assert Q0 not in newest_in(prepared(path), now)
    with_newest(prepared(path), {Q1: 6}, {Q1: "[5,1005,950]"}, now)
    assert newest_in(prepared(path), now) == {Q1: "[5,1005,950]"}


def test_a_message_is_the_newest_only_below_the_watermark_that_it_was_recorded_with() -> None:
    """H10: delta-rs put that commit behind one which its writer had not seen; the ids have both."""
    recorded = {REACHED: {"a": 4, "b": 7}, "newest": {"a": [3, 1003, 64], "b": [6, 1006, 900]}}
    entry = {"version": 9, "userMetadata": json.dumps(recorded)}

    behind = GroupCommit.combined({"a": 5, "b": 7}, entry)
    assert behind.newest == {"b": [6, 1006, 900]}
    record = behind.record_of_files(SinkCommit.of(GROUP, {"b": 8}, {"b": "[7,1007,950]"}), 0)
    assert record == {REACHED: {"a": 5, "b": 8}, "newest": {"b": [7, 1007, 950]}}


def test_an_operators_watermark_has_no_message_of_the_one_before(path: Path) -> None:
    """H10: beyond it, too: rows that another program has added."""
    with_newest(prepared(path), {Q0: 9, Q1: 1}, {Q0: "[8,1008,640]", Q1: "[0,1000,32]"})

    prepared(path).rewind(GROUP, {Q0: 20, Q1: 1})

    assert newest_in(prepared(path), {Q0: 0, Q1: 0}) == {Q1: "[0,1000,32]"}
