"""Commits that the sink makes itself on a local disk, beside delta-rs' and Spark's, however old the table is."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.delta import log as delta_log
from pyspark_rocketmq.delta.compaction import compact
from pyspark_rocketmq.delta.log import CommitFile, LogFiles
from pyspark_rocketmq.delta.paths import fsync_path
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.errors import OffsetError, RocketMQError, SinkConflict, SinkMoved, StorageNotShared
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.delta.appenders import FileAppender
from pyspark_rocketmq.sinks.delta.batch import DeltaBatch
from pyspark_rocketmq.sinks.delta.rules import SinkCommit
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.sink_log import log_of
from pyspark_rocketmq.sinks.delta.table import SinkTable
from tests.helpers.sink_rows import GROUP, Q0, Q1, files_of, run_batch
from tests.sinks.sink_conformance import SCHEMA, rows, steps_of

_TIMEOUT_S = 60.0
OTHERS = MessageQueue("orders", "broker-z", 9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def prepared(path: Path, **more: Any) -> DeltaSink:
    made = DeltaSink(path, sleep=lambda _: None, **more)
    made.prepare(SCHEMA)
    return made


def opened(path: Path, *, merges: bool = False) -> TableSnapshot:
    return TableSnapshot(DeltaTable(path), needs_delta_rs=merges)


def table_of(batch: DeltaBatch) -> TableSnapshot:
    table = batch.log.table
    assert isinstance(table, TableSnapshot)
    return table


def commit_path(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def commit_by_hand(path: Path, *actions: dict[str, Any]) -> int:
    """As Spark writes a commit; the version."""
    version = DeltaTable(path).version() + 1
    info = {"commitInfo": {"timestamp": 1, "operation": "by hand"}}
    commit_path(path, version).write_text("\n".join(map(json.dumps, [info, *actions])) + "\n")
    return version


@pytest.fixture
def no_delta_rs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on delta-rs opens, refreshes and writes nothing."""

    def forbid() -> None:
        for name in ("__init__", "update_incremental", "create_write_transaction"):
            monkeypatch.setattr(DeltaTable, name, lambda *_, **__: pytest.fail("delta-rs was asked"))

    return forbid


def test_batches_do_not_ask_delta_rs(path: Path, no_delta_rs: Callable[[], None]) -> None:
    """J3: it reads the longer the more commits and files there are."""
    one, other = prepared(path), prepared(path)
    no_delta_rs()

    for start in range(0, 8, 2):
        run_batch(one, {Q0: start + 1}, rows(Q0, start, start + 1))
        run_batch(other, {Q0: start + 2}, rows(Q0, start + 1, start + 2))
    begun = one.begin(GROUP, {Q0: 0})
    files = files_of(begun.task_writer(), iter([rows(Q0, 8, 9)]))
    for number in range(3):
        run_batch(other, {Q1: number + 1}, rows(Q1, number, number + 1))
    begun.commit(files, {Q0: 9})

    assert one.watermarks(GROUP) == other.watermarks(GROUP)
    assert one.begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 9, Q1: 3}


def test_an_open_sink_does_not_keep_the_names_of_a_tables_files(path: Path) -> None:
    """J3: delta-rs has 155 MiB of 200,000."""
    run_batch(prepared(path), {Q0: 1}, rows(Q0, 0, 1))

    assert opened(path)._table is None
    assert opened(path, merges=True)._table is not None


# ------------------------------------------------------------------------------------------ what a commit says

ODD = ["a b", "a/b", "ä€😀", "%", "a%20b", 'q"', "a=b", "a:b", "#?*[]{}|^`<>\\~!$&'()+,;@", "line\nend", None]


@pytest.mark.parametrize("column", ["step", "the step"])
def test_a_commit_says_what_delta_rs_says(path: Path, column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """J3, H1: paths, partition values, statistics and transaction ids."""
    schema = pa.schema([*list(SCHEMA)[:4], (column, pa.string())])
    columns = zip(*((Q0.topic, Q0.broker_name, 0, at, value) for at, value in enumerate(ODD)), strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    # A name with a space is refused in new tables, and taken where it is there.
    DeltaTable.create(path, schema=schema, partition_by=[column])
    sink = DeltaSink(path, partition_by=[column])
    sink.prepare(schema)
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([pa.RecordBatch.from_arrays(arrays, schema=schema)]))
    assert batch.commit(files, {Q0: len(ODD)}) == 1
    found = DeltaTable(path).to_pyarrow_table()
    shutil.copytree(path, path.parent / "by delta-rs")
    commit_path(path.parent / "by delta-rs", 1).unlink()
    monkeypatch.setattr(LogFiles, "takes_commits", False)
    table = opened(path.parent / "by delta-rs")
    commit = SinkCommit.of(GROUP, batch.log.table.all_transactions())
    FileAppender(table).put(log_of(table), files, commit)

    ours, theirs = actions_of(path), actions_of(path.parent / "by delta-rs")
    assert dict(zip(found["queueOffset"].to_pylist(), found[column].to_pylist(), strict=True)) == dict(
        enumerate(ODD)
    )
    assert [action.keys() for action in ours] == [action.keys() for action in theirs]
    assert ids_in(ours) == ids_in(theirs)
    for our, their in zip(added(ours), added(theirs), strict=True):
        assert (our["path"], unquote(our["path"])) == (their["path"], unquote(their["path"]))
        assert {**our, "modificationTime": 0} == {
            name: 0 if name == "modificationTime" else value
            for name, value in their.items()
            if value is not None
        }
    [entry], [other] = DeltaTable(path).history(1), DeltaTable(path.parent / "by delta-rs").history(1)
    same = ("operation", "operationParameters")
    assert [entry[name] for name in same] == [other[name] for name in same]
    assert entry["isBlindAppend"]


def actions_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in commit_path(path, 1).read_text().splitlines()]


def ids_in(actions: list[dict[str, Any]]) -> list[tuple[str, int, bool]]:
    """Transaction ids with their versions, and whether they say when they were set."""
    found = [action["txn"] for action in actions if "txn" in action]
    return [(txn["appId"], txn["version"], txn["lastUpdated"] > 0) for txn in found]


def added(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [action["add"] for action in actions if "add" in action]


@pytest.mark.parametrize(
    ("action", "keeps"),
    [
        ({"add": {"path": "x", "partitionValues": {}, "size": 1, "dataChange": True}}, True),
        ({"remove": {"path": "x", "dataChange": True}}, True),
        ({"cdc": {"path": "x"}}, True),
        ({"txn": {"appId": "x", "version": 1}}, True),
        ({"metaData": {"id": "x"}}, False),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, False),
        ({"domainMetadata": {"domain": "x"}}, False),
        ({"somethingNew": {}}, False),
        ([], False),
    ],
)
def test_a_commit_that_may_have_changed_more_than_files_is_reported(
    path: Path, action: dict[str, Any], keeps: bool
) -> None:
    """J3: the table is opened again by delta-rs then."""
    prepared(path)
    version = commit_by_hand(path, action)

    assert LogFiles(str(path)).keeps_form(version) is keeps
    assert LogFiles(str(path)).keeps_form(version + 1) is None
    commit_path(path, version).write_text('{"add":{}}\n\nno JSON')
    assert LogFiles(str(path)).keeps_form(version) is False


def test_a_feature_that_a_commit_of_others_switches_on_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3, H7: a commit made here would leave out what the feature asks for."""
    # A session that other tests have left would let Spark write such a table.
    monkeypatch.setattr("pyspark_rocketmq.sinks.delta.spark_writer.living_session", lambda _: None)
    sink = prepared(path)
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 0, 1)]))
    features = ["appendOnly", "invariants", "inCommitTimestamp"]
    commit_by_hand(
        path, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}}
    )

    with pytest.raises(Exception, match="inCommitTimestamp"):
        batch.commit(files, {Q0: 1})
    assert DeltaTable(path).version() == 1


# ------------------------------------------------------------------------------------------ which is the newest


def test_a_handle_that_was_idle_for_long_opens_the_table_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: by then its log may have been cleaned up."""
    sink = prepared(path)
    batch = sink.begin(GROUP, {Q0: 0})
    table_of(batch)._refreshed_s -= 3_601.0
    again = counted(monkeypatch)

    batch.commit(files_of(batch.task_writer(), iter([rows(Q0, 0, 1)])), {Q0: 1})
    run_batch(sink, {Q0: 2}, rows(Q0, 1, 2))

    assert len(again) == 1
    assert steps_of(DeltaTable(path).to_pyarrow_table()) == [(0, 0, "created"), (0, 1, "created")]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What delta-rs opens from here on."""
    found: list[object] = []
    take = TableSnapshot._use

    def noted(snapshot: TableSnapshot, table: DeltaTable) -> int:
        found.append(table)
        return take(snapshot, table)

    monkeypatch.setattr(TableSnapshot, "_use", noted)
    return found


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_checkpoint_that_is_not_there_costs_one_look_of_delta_rs(
    path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: a file that names one says nothing."""
    sink = prepared(path)
    (path / "_delta_log" / "_last_checkpoint").write_text(text)
    again = counted(monkeypatch)

    for end in range(1, 4):
        run_batch(sink, {Q0: end}, rows(Q0, end - 1, end), queues=[Q0])

    assert len(again) == 1
    assert len(steps_of(DeltaTable(path).to_pyarrow_table())) == 3


def test_a_commit_that_was_cleaned_up_is_not_made_again(path: Path) -> None:
    """J3, H1: of the log's files any may have gone first."""
    sink = prepared(path)
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 0, 1)]))
    other = prepared(path)
    for end in range(1, 4):
        run_batch(other, {Q1: end}, rows(Q1, end - 1, end))
    DeltaTable(path).create_checkpoint()
    commit_path(path, 1).unlink()

    assert batch.commit(files, {Q0: 1}) == 4
    assert len(steps_of(DeltaTable(path).to_pyarrow_table())) == 4


def test_after_very_many_commits_of_others_the_table_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_rocketmq.delta.snapshot._MAX_FOLLOWED", 3)
    sink, other = prepared(path), prepared(path)
    for end in range(1, 9):
        run_batch(other, {Q1: end}, rows(Q1, end - 1, end))

    assert sink.begin(GROUP, {Q1: 0}).watermarks == {Q1: 8}


def test_a_table_that_delta_rs_shows_as_it_was_a_moment_ago_is_followed_from_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: while delta-rs lists a large folder commits are made."""
    sink, other = prepared(path), prepared(path)
    table_of(sink.begin(GROUP, {Q1: 0}))._refreshed_s -= 3_601.0
    for end in range(1, 5):
        run_batch(other, {Q1: end}, rows(Q1, end - 1, end))
    monkeypatch.setattr(
        "pyspark_rocketmq.delta.snapshot.open_table", lambda uri, *_, **__: DeltaTable(uri, version=2)
    )

    assert sink.begin(GROUP, {Q1: 0}).watermarks == {Q1: 4}


BEATEN = 19


@pytest.fixture
def beaten(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on the next commits each find that another group was quicker, so many times."""
    other, put, left = prepared(path), LogFiles.put, iter(range(1, BEATEN + 1))

    def put_second(log: LogFiles, version: int, actions: Any) -> CommitFile:
        end = next(left, None)
        if end is not None:
            with monkeypatch.context() as patched:
                patched.setattr(LogFiles, "put", put)
                run_batch(other, {Q1: end}, rows(Q1, end - 1, end), group="another")
        return put(log, version, actions)

    return lambda: monkeypatch.setattr(LogFiles, "put", put_second)


@pytest.mark.parametrize(
    ("place", "pauses"),
    [("shop.orders", 5), ("main.shop.orders", 5), ("s3://shop/orders", 5), ("/shop/orders", 0)],
)
def test_what_does_not_answer_is_asked_again_unless_it_is_a_disk(
    monkeypatch: pytest.MonkeyPatch, place: str, pauses: int
) -> None:
    """J5, J1: a catalog is away for a while as an object store is."""
    slept: list[float] = []

    def away(_: SinkTable) -> None:
        raise DeltaError("the catalog does not answer")

    monkeypatch.setattr(SinkTable, "newest", away)
    sink = DeltaSink(place, sleep=slept.append)

    with pytest.raises(OffsetError, match="could not be read: the catalog does not answer"):
        sink.begin(GROUP, {Q0: 0})
    assert len(slept) == pauses


def test_a_batch_goes_behind_all_commits_that_come_first(path: Path, beaten: Callable[[], None]) -> None:
    """H5, J3: without a pause, for its own takes no time; more often than a commit is tried."""
    sink = DeltaSink(path, sleep=lambda _: pytest.fail("there was a pause"))
    sink.prepare(SCHEMA)
    beaten()

    assert run_batch(sink, {Q0: 2}, rows(Q0, 0, 2)) == BEATEN + 1
    assert len(steps_of(DeltaTable(path).to_pyarrow_table())) == BEATEN + 2


def test_an_operators_commit_goes_behind_all_that_come_first(path: Path, beaten: Callable[[], None]) -> None:
    """F5, J3: another group writes the same table without a pause."""
    sink = prepared(path)
    run_batch(sink, {Q0: 5}, rows(Q0, 0, 5))
    beaten()

    assert sink.rewind(GROUP, {Q0: 2}) == BEATEN + 2
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 2}


def test_a_commit_that_a_mount_says_was_made_by_another_is_looked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, J2: a server that was asked twice says that the name is taken, by this very commit."""
    sink, link = prepared(path), os.link

    def answered_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", answered_twice)

    assert run_batch(sink, {Q0: 3}, rows(Q0, 0, 3)) == 1
    assert [row[:2] for row in steps_of(DeltaTable(path).to_pyarrow_table())] == [(0, 0), (0, 1), (0, 2)]


def replace_commit(path: Path, version: int) -> None:
    """Replace a commit as Spark does that has looked for it before it was made: the log store renames."""
    unfinished = path / "_delta_log" / ".spark.tmp"
    unfinished.write_text('{"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE"}}\n')
    unfinished.replace(commit_path(path, version))


def test_a_commit_that_spark_replaces_while_it_is_made_is_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, J7: on disks and mounts Delta's log store looks for a commit, and then renames its own."""
    sink = prepared(path)
    run_batch(sink, {Q0: 10}, rows(Q0, 0, 10))

    def replaced_meanwhile(synced: Path) -> None:
        if synced.name == "_delta_log":
            monkeypatch.undo()
            replace_commit(path, 2)
        fsync_path(synced)

    monkeypatch.setattr(delta_log, "fsync_path", replaced_meanwhile)

    assert run_batch(sink, {Q0: 20}, rows(Q0, 10, 20)) == 3
    assert [row[1] for row in steps_of(DeltaTable(path).to_pyarrow_table())] == list(range(20))


@pytest.mark.parametrize("is_running", [True, False])
def test_a_commit_that_spark_replaces_when_it_is_made_is_noticed_by_the_next_one(
    path: Path, is_running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, J7: its rows are gone, so the sink is behind its group."""
    sink, put = prepared(path), LogFiles.put
    run_batch(sink, {Q0: 10}, rows(Q0, 0, 10))
    batch = sink.begin(GROUP, {Q0: 0, Q1: 0})

    def put_and_replaced(log: LogFiles, version: int, actions: Any) -> CommitFile:
        monkeypatch.undo()
        made = put(log, version, actions)
        replace_commit(path, version)
        return made

    monkeypatch.setattr(LogFiles, "put", put_and_replaced)
    batch.commit(files_of(batch.task_writer(), iter([rows(Q0, 10, 20)])), {Q0: 20})

    if is_running:
        with pytest.raises(SinkMoved, match="put back to an earlier state"):
            batch.commit(files_of(batch.task_writer(), iter([rows(Q1, 0, 1)])), {Q1: 1})
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 10}


@pytest.mark.parametrize("partition_by", [[], ["step"]])
def test_a_power_cut_finds_a_commit_and_its_files_on_the_disk(
    path: Path, partition_by: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: files first, then their commit under a name that nobody reads, then its own name."""
    sink, link, fsync = prepared(path, partition_by=partition_by), os.link, os.fsync
    done: list[str] = []

    def noted_fsync(file: int) -> None:
        fsync(file)
        done.append(str(Path(f"/proc/self/fd/{file}").readlink()))

    def noted_link(source: Path, target: Path) -> None:
        assert done[-1] == str(source)
        link(source, target)
        done.append(str(target))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)

    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))

    [file] = path.rglob("*.parquet")
    committed = done.index(str(commit_path(path, 1)))
    assert done[: committed - 1] == [str(file), str(file.parent)]
    assert done[committed + 1 :] == [str(path / "_delta_log")]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("step", ["write_text", "fsync", "link"])
def test_a_disk_that_takes_no_commit_leaves_the_table_as_it_was(
    path: Path, step: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: and the batch may run again."""
    sink = prepared(path)
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 0, 3)]))

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(Path if step == "write_text" else os, step, fails)
        with pytest.raises(SinkConflict, match=re.escape(os.strerror(number))):
            batch.commit(files, {Q0: 3})
    assert (DeltaTable(path).version(), left_over(path)) == (0, [])

    assert batch.commit(files, {Q0: 3}) == 1
    assert [row[1] for row in steps_of(DeltaTable(path).to_pyarrow_table())] == [0, 1, 2]


def test_a_disk_that_takes_no_rows_ends_the_task_and_leaves_no_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: also where it says so only when asked to keep them, as a mount does."""
    batch = prepared(path).begin(GROUP, {Q0: 0})

    def fails(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fails)

    with pytest.raises(RocketMQError, match=r"Rows could not be written .*No space left on device"):
        files_of(batch.task_writer(), iter([rows(Q0, 0, 3)]))
    assert list(path.rglob("*.parquet")) == []


def test_a_mount_without_a_wait_for_its_disk_takes_commits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = prepared(path)

    def fails(_: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fails)

    assert run_batch(sink, {Q0: 3}, rows(Q0, 0, 3)) == 1


# ------------------------------------------------------------------------------------------ killed, and at once

_RUN = """
import os, sys
from pathlib import Path
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import run_batch
from tests.sinks.sink_conformance import SCHEMA, rows
"""
_APPENDS = """
path, number, batches = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sink, queue = DeltaSink(path), MessageQueue("orders", "broker-a", number)
sink.prepare(SCHEMA)
print("ready", flush=True)
sys.stdin.readline()
for end in range(1, batches + 1):
    run_batch(sink, {queue: end}, rows(queue, end - 1, end), queues=[queue])
"""
_KILLED = """
path, killed_at = Path(sys.argv[1]), sys.argv[2]
sink, queue = DeltaSink(path), MessageQueue("orders", "broker-a", 0)
sink.prepare(SCHEMA)
if killed_at == "before":
    os.link = lambda *_: os._exit(9)
else:
    Path.unlink = lambda *_, **__: os._exit(9)
run_batch(sink, {queue: 2}, rows(queue, 0, 2), queues=[queue])
"""


def process(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _RUN + code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_two_processes_add_to_one_table_at_once(path: Path) -> None:
    """J3, H5: each version once, each row once, while both compact files."""
    prepared(path)
    batches = 100
    writers = [process(_APPENDS, path, number, batches) for number in (0, 1)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=_TIMEOUT_S)
        assert writer.returncode == 0

    table = DeltaTable(path)
    newest, entries = table.version(), table.history()
    assert newest == 2 * batches + sum(entry["operation"] == "OPTIMIZE" for entry in entries)
    expected = [(number, at, "created") for number in (0, 1) for at in range(batches)]
    assert steps_of(table.to_pyarrow_table()) == expected
    assert [entry["version"] for entry in entries] == list(range(newest, -1, -1))
    assert left_over(path) == []


def left_over(path: Path) -> list[Path]:
    return [one for one in (path / "_delta_log").iterdir() if one.name.startswith(".")]


@pytest.mark.parametrize(("killed_at", "is_made"), [("before", False), ("after", True)])
def test_a_commit_whose_process_is_killed_is_made_or_not(path: Path, killed_at: str, is_made: bool) -> None:
    """J3, H1: what is left of it harms nobody, and goes when the log is cleaned up."""
    killed = process(_KILLED, path, killed_at)
    killed.communicate(timeout=_TIMEOUT_S)
    assert killed.returncode == 9
    [left] = left_over(path)

    sink = prepared(path)
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 2 * is_made}
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    assert len(DeltaTable(path).history()) == DeltaTable(path).version() + 1 == 2 + is_made
    DeltaTable(path).create_checkpoint()
    assert [row[1] for row in steps_of(DeltaTable(path).to_pyarrow_table())] == [0, 1, 2]

    log = LogFiles(str(path))
    log.remove_unfinished()
    assert left.exists(), "it may be written just now"
    os.utime(left, (time.time() - 3_700, time.time() - 3_700))
    log.remove_unfinished()
    assert not left.exists()
    assert [row[1] for row in steps_of(DeltaTable(path).to_pyarrow_table())] == [0, 1, 2]


# ------------------------------------------------------------------------------------------ beside all others


class World:
    """A table, two queries that write it, and everyone else; says after each step what must be in it."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._random = random.Random(seed)
        self._sinks = [prepared(path), prepared(path)]
        self._begun: dict[int, tuple[DeltaBatch, list[Any], MessageQueue, int]] = {}
        self._others = 0
        self._rows_at: dict[int, list[int]] = {0: []}
        """By version that can be restored: offsets of every row."""
        self.rows: list[int] = []
        self.watermarks = {Q0: 0, Q1: 0}

    def step(self) -> str:
        """Do something; what was done."""
        steps = [self.batch, self.batch, self.begin, self.begin, self.commit, self.commit]
        steps += [
            self.append,
            self.properties,
            self.optimize,
            self.compact,
            self.vacuum,
            self.checkpoint,
            self.clean_up,
        ]
        steps += [self.restore, self.replace, self.by_hand]
        done = self._random.choice(steps)
        done()
        self._rows_at.setdefault(DeltaTable(self._path).version(), list(self.rows))
        return done.__name__

    def begin(self) -> None:
        number = self._random.randrange(2)
        queue = self._random.choice([Q0, Q1])
        batch = self._begin(number, queue)
        start = batch.watermarks[queue]
        assert start == self.watermarks[queue]
        end = start + self._random.randint(1, 2)
        files = files_of(batch.task_writer(), iter([rows(queue, start, end)]))
        self._begun[number] = batch, list(files), queue, end

    def _begin(self, number: int, queue: MessageQueue) -> DeltaBatch:
        try:
            return self._sinks[number].begin(GROUP, {queue: 0})
        except SinkConflict as error:
            if "was restored at version" not in str(error):
                raise
            self._sinks[1 - number].rewind(GROUP, self.watermarks)
            return self._sinks[number].begin(GROUP, {queue: 0})

    def commit(self) -> None:
        for number in self._random.sample([*self._begun], min(1, len(self._begun))):
            batch, files, queue, end = self._begun.pop(number)
            is_current = batch.watermarks[queue] == self.watermarks[queue]
            try:
                version = batch.commit(files, {queue: end})
            except (SinkMoved, StorageNotShared):
                continue
            except SinkConflict as error:
                if "was restored at version" not in str(error):
                    raise
                continue
            assert is_current
            assert version == DeltaTable(self._path).version()
            self.rows += range(batch.watermarks[queue], end)
            self.watermarks[queue] = end

    def batch(self) -> None:
        self._begun.clear()
        self.begin()
        self.commit()

    def append(self) -> None:
        self._others += 1
        write_deltalake(
            self._path,
            pa.table(rows(OTHERS, -self._others, 1 - self._others)),
            mode="append",
            commit_properties=CommitProperties(custom_metadata={"userMetadata": "by others"}),
        )
        self.rows.append(-self._others)

    def properties(self) -> None:
        days = self._random.randint(20, 40)
        DeltaTable(self._path).alter.set_table_properties(
            {"delta.logRetentionDuration": f"interval {days} days"}
        )

    def by_hand(self) -> None:
        commit_by_hand(self._path, {"txn": {"appId": "a stream of Spark's", "version": self._others}})

    def compact(self) -> None:
        compact(DeltaTable(self._path), LogFiles(str(self._path)))

    def optimize(self) -> None:
        DeltaTable(self._path).optimize.compact()

    def vacuum(self) -> None:
        # Files of batches that are running are younger than any retention that Delta allows.
        self._begun.clear()
        DeltaTable(self._path).vacuum(
            retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
        )
        self._rows_at.clear()

    def checkpoint(self) -> None:
        DeltaTable(self._path).create_checkpoint()

    def clean_up(self) -> None:
        table = DeltaTable(self._path)
        table.create_checkpoint()
        for file in (self._path / "_delta_log").glob("*.json"):
            # It may have come to any of them when it was stopped.
            if int(file.stem) < table.version() and self._random.random() < 0.8:
                file.unlink()
        self._rows_at.clear()

    def restore(self) -> None:
        candidates = sorted(self._rows_at.keys() - {DeltaTable(self._path).version()})
        if candidates:
            version = self._random.choice(candidates)
            with suppress(DeltaError):
                DeltaTable(self._path).restore(version)
                self.rows = list(self._rows_at[version])

    def replace(self) -> None:
        if self._random.random() < 0.7:
            return
        shutil.rmtree(self._path)
        prepared(self._path)
        self.rows, self._rows_at, self.watermarks = [], {0: []}, {Q0: 0, Q1: 0}


@pytest.mark.parametrize("seed", range(int(os.environ.get("WORLDS", "12"))))
def test_batches_beside_all_that_others_do_to_a_table(path: Path, seed: int) -> None:
    """J3, H1, H5, H7: each row of a batch is there once or its batch was refused, and a new reader sees it."""
    world = World(path, seed)
    done = []
    for _ in range(25):
        done.append(world.step())
        found = DeltaTable(path).to_pyarrow_table()["queueOffset"].to_pylist()
        assert sorted(found) == sorted(world.rows), done
