"""A partition's rows: followed from commit to commit, and replaced, without delta-rs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.delta.commit import CommitNote
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.partition import Files, Partition, rows_of_files
from pyspark_rocketmq.delta.snapshot import TableSnapshot

MARK = "consumerGroup"
A = Partition("grp", "a b/ü%")
B = Partition("grp", "b")
NOTE = CommitNote(metadata={MARK: "x"})


def rows(partition: Partition, *numbers: int) -> pa.Table:
    return pa.table({"grp": pa.array([partition.value] * len(numbers)), "n": pa.array(numbers, pa.int64())})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "table é"
    write_deltalake(path, pa.concat_tables([rows(A, 1, 2), rows(B, 3)]), partition_by=["grp"])
    return path


def files_of(path: Path, partition: Partition) -> Files:
    files = partition.files_in(DeltaTable(path))
    assert files is not None
    return files


def followed(path: Path, partition: Partition, files: Files, since: int) -> Files | None:
    versions = range(since + 1, DeltaTable(path).version() + 1)
    return partition.files_after(LogFiles(str(path)), files, versions, mark=MARK)


def numbers(path: Path, files: Files) -> list[int]:
    return sorted(rows_of_files(LogFiles(str(path)), files)["n"].to_pylist())


def replace_by_link(path: Path, partition: Partition, *values: int) -> None:
    snapshot = TableSnapshot(DeltaTable(path), needs_delta_rs=False)
    after = partition.replace(snapshot, rows(partition, *values), partition.files_in(snapshot.table), NOTE)
    assert after is not None
    assert {(file.path, file.size) for file in after} == {
        (file.path, file.size) for file in files_of(path, partition)
    }


def replace_by_delta_rs(path: Path, partition: Partition, *values: int) -> None:
    assert partition.replace(TableSnapshot(DeltaTable(path)), rows(partition, *values), None, NOTE) is None


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_delta_rs])
def test_a_partition_is_followed_over_commits_of_it_and_of_others(
    path: Path, replace: Callable[..., None]
) -> None:
    before = files_of(path, A)
    replace(path, A, 7)
    replace(path, B, 8, 9)
    replace(path, A, 10, 11, 12)

    files = followed(path, A, before, since=0)

    assert files is not None
    assert numbers(path, files) == [10, 11, 12]
    assert files == followed(path, A, files_of(path, A), since=3)
    assert sorted(A.rows_in(DeltaTable(path))["n"].to_pylist()) == [10, 11, 12]
    assert DeltaTable(path).to_pyarrow_table().num_rows == 5


def at_newest(path: Path, partition: Partition) -> Files | None:
    log = LogFiles(str(path))
    return partition.files_at(log, DeltaTable(path).version(), mark=MARK)


def replace_marked(path: Path, partition: Partition, *values: int) -> None:
    snapshot = TableSnapshot(DeltaTable(path), needs_delta_rs=False)
    note = CommitNote(metadata={MARK: partition.value})
    partition.replace(snapshot, rows(partition, *values), partition.files_in(snapshot.table), note)


def test_the_newest_commit_that_replaced_a_partition_shows_its_files(path: Path) -> None:
    """No earlier state is needed, and the log may begin with that commit."""
    assert at_newest(path, A) is None
    replace_marked(path, A, 7)
    replace_marked(path, A, 10, 11)
    replace_marked(path, B, 8)
    for version in (0, 1):
        (path / "_delta_log" / f"{version:020d}.json").unlink()

    files = A.files_at(LogFiles(str(path)), 3, mark=MARK)

    assert files is not None
    assert numbers(path, files) == [10, 11]
    assert B.files_at(LogFiles(str(path)), 2, mark=MARK) is None


def test_files_are_left_to_delta_rs_after_a_commit_without_the_mark(path: Path) -> None:
    replace_marked(path, A, 7)
    assert at_newest(path, A) == files_of(path, A)

    without_the_mark(path)

    assert at_newest(path, A) is None


def test_a_partition_without_rows_has_no_file(path: Path) -> None:
    before = files_of(path, A)
    replace_by_link(path, A)

    assert followed(path, A, before, since=0) == () == files_of(path, A)
    assert DeltaTable(path).to_pyarrow_table().num_rows == 1


def add_column(path: Path) -> None:
    LogFiles(str(path)).put(1, [{"commitInfo": {MARK: "x"}}, {"metaData": {"id": "other"}}])


def remove_of_a_file_that_is_not_known(path: Path) -> None:
    LogFiles(str(path)).put(1, [{"commitInfo": {MARK: "x"}}, {"remove": {"path": "grp=other/x.parquet"}}])


def add_with_a_deletion_vector(path: Path) -> None:
    add = {
        "path": "x",
        "partitionValues": {"grp": A.value},
        "size": 1,
        "deletionVector": {"storageType": "u"},
    }
    LogFiles(str(path)).put(1, [{"commitInfo": {MARK: "x"}}, {"add": add}])


def file_elsewhere(path: Path) -> None:
    add = {"path": "file:///x", "partitionValues": {"grp": A.value}, "size": 1}
    LogFiles(str(path)).put(1, [{"commitInfo": {MARK: "x"}}, {"add": add}])


def damaged(path: Path) -> None:
    (path / "_delta_log" / f"{1:020d}.json").write_text("{")


def cleaned_up(path: Path) -> None:
    LogFiles(str(path)).put(2, [{"commitInfo": {MARK: "x"}}])


def without_the_mark(path: Path) -> None:
    write_deltalake(
        path, rows(B, 4), mode="append", commit_properties=CommitProperties(custom_metadata={"a": "b"})
    )


@pytest.mark.parametrize(
    "change",
    [
        add_column,
        remove_of_a_file_that_is_not_known,
        add_with_a_deletion_vector,
        file_elsewhere,
        damaged,
        cleaned_up,
        without_the_mark,
    ],
)
def test_what_cannot_be_followed_is_left_to_delta_rs(path: Path, change: Callable[[Path], None]) -> None:
    before = files_of(path, A)

    change(path)

    assert A.files_after(LogFiles(str(path)), before, range(1, 2), mark=MARK) is None
    assert A.files_after(LogFiles(str(path)), before, range(1, 1), mark=MARK) == before


def test_a_damaged_file_is_an_error_of_the_table(path: Path) -> None:
    [file] = files = files_of(path, B)
    (path / file.path).write_bytes(b"PAR1 and nothing else")

    with pytest.raises(DeltaError, match=r"grp=b/.*\.parquet of the table is damaged"):
        rows_of_files(LogFiles(str(path)), files)


def test_the_commit_reads_as_an_overwrite(path: Path) -> None:
    replace_by_link(path, B, 4)

    [entry, *_] = DeltaTable(path).history()
    assert (entry["operation"], entry["isBlindAppend"], entry[MARK]) == ("WRITE", False, "x")
    parameters = entry["operationParameters"]
    assert parameters == {"mode": "Overwrite", "partitionBy": json.dumps(["grp"]), "predicate": "grp = 'b'"}
