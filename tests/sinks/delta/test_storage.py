"""A sink's table whose files the driver cannot see, or that becomes another one under the query."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.errors import SchemaError, SinkMoved, StorageNotShared
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import GROUP, Q0, files_of, run_batch
from tests.sinks.delta.test_sink import offsets_in
from tests.sinks.sink_conformance import SCHEMA, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def sink_at(path: Path) -> DeltaSink:
    made = DeltaSink(path, sleep=lambda _: None)
    made.prepare(SCHEMA)
    return made


def written_in(folder: Path, path: Path) -> list[WrittenFile]:
    """What a task writes that runs on a machine where ``path`` is another folder."""
    there = sink_at(folder)
    [file] = files_of(there.begin(GROUP, {Q0: 0}).task_writer(), iter([rows(Q0, 0, 3)]))
    return [file]


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_file_that_the_driver_does_not_see_as_the_task_wrote_it_is_not_committed(
    path: Path, tmp_path: Path, is_cut: bool
) -> None:
    """H7: readers would fail on it, and its messages would count as consumed."""
    sink = sink_at(path)
    [file] = written_in(tmp_path / "disk of an executor", path)
    if is_cut:
        (path / file.path).write_bytes((tmp_path / "disk of an executor" / file.path).read_bytes()[:-1])

    found = f"{file.size - 1} bytes" if is_cut else "not there"
    with pytest.raises(
        StorageNotShared, match=rf"1 of 1 files .*{found} instead of {file.size} bytes"
    ) as refusal:
        sink.begin(GROUP, {Q0: 0}).commit([file], {Q0: 3})

    assert "Put the table on storage that all machines share" in str(refusal.value)
    assert DeltaTable(path).version() == 0


def test_a_file_that_a_mount_shows_late_is_waited_for(path: Path, tmp_path: Path) -> None:
    [file] = written_in(tmp_path / "elsewhere", path)

    def show_it(_: float) -> None:
        shutil.copy(tmp_path / "elsewhere" / file.path, path / file.path)

    sink = DeltaSink(path, sleep=show_it)
    sink.prepare(SCHEMA)

    sink.begin(GROUP, {Q0: 0}).commit([file], {Q0: 3})

    assert offsets_in(path) == [0, 1, 2]


@pytest.mark.parametrize("commits", [1, 3, 9], ids=["fewer", "as many", "more"])
def test_a_table_that_was_made_again_is_noticed_however_many_commits_it_has(
    path: Path, tmp_path: Path, commits: int
) -> None:
    """H7: a batch reads the new table's watermarks,
    and adds nothing to its log on top of the old one's state.
    """
    sink = sink_at(path)
    for end in (1, 2, 3):
        run_batch(sink, {Q0: end}, rows(Q0, end - 1, end))
    before = sink.begin(GROUP, {Q0: 0})
    files = files_of(before.task_writer(), iter([rows(Q0, 3, 4)]))
    shutil.rmtree(path)
    other = sink_at(path)
    for end in range(1, commits + 1):
        run_batch(other, {Q0: end}, rows(Q0, end - 1, end), group="another")
    for file in files:
        (path / file.path).touch()

    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 0}
    with pytest.raises(SinkMoved, match="was deleted, created again or put back"):
        before._commit(files, {Q0: 4}, "group")

    assert DeltaTable(path).version() == commits


@pytest.mark.parametrize("takes_commits", [True, False], ids=["own commits", "by delta-rs"])
def test_a_commit_that_another_writer_has_overwritten_is_noticed(
    path: Path, takes_commits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H7, J7: as Spark's default log store can on S3; the watermark of before tells that rows are gone."""
    monkeypatch.setattr(LogFiles, "takes_commits", takes_commits)
    sink = sink_at(path)
    for end in (1, 2, 3):
        run_batch(sink, {Q0: end}, rows(Q0, end - 1, end))
    overwritten = path / "_delta_log" / f"{3:020d}.json"
    overwritten.unlink()
    overwritten.write_text('{"commitInfo": {"operation": "OPTIMIZE"}}\n')

    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 2}


def test_a_table_that_is_deleted_is_not_made_again_by_a_batch(path: Path) -> None:
    """H7"""
    sink = sink_at(path)
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))
    shutil.rmtree(path)

    with pytest.raises(SchemaError, match=r"There is no Delta table .* Check the path"):
        sink.begin(GROUP, {Q0: 0})

    assert not path.exists()


def test_a_folder_that_was_put_back_to_an_earlier_state_is_noticed(path: Path, tmp_path: Path) -> None:
    """H7: by a backup or a snapshot of the storage, of which Delta's history knows nothing."""
    sink = sink_at(path)
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))
    shutil.copytree(path, tmp_path / "backup")
    run_batch(sink, {Q0: 2}, rows(Q0, 1, 2))
    shutil.rmtree(path)
    (tmp_path / "backup").rename(path)

    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 1}
