"""What is read of a Delta table's log by hand."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from pyspark_rocketmq.delta.log import LogFiles, Transactions, read_ahead


def commit_path(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def test_a_commit_of_very_many_files_is_not_held_in_memory(tmp_path: Path) -> None:
    """Nor is one whose writer says what it did at the end."""
    commit_path(tmp_path, 7).parent.mkdir()
    adds = '{"add":{"path":"commitInfo","stats":"{\\"commitInfo\\": 1}"}}\n' * 50_000
    commit_path(tmp_path, 7).write_text(adds + '{"commitInfo":{"operation":"RESTORE"}}')
    log = LogFiles(str(tmp_path))
    tracemalloc.start()
    try:
        found = log.commit_info(7)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == {"operation": "RESTORE", "version": 7}
    assert most < len(adds) / 3

    commit_path(tmp_path, 7).write_text(adds)
    assert log.commit_info(7) == {"version": 7}
    assert log.commit_info(8) is None


def test_more_and_more_is_read_at_once_and_no_more_than_needed() -> None:
    """Where each read takes long."""
    asked: list[int] = []

    def read(version: int) -> int:
        asked.append(version)
        return -version

    found = read_ahead(read, range(1_000, -1, -1))

    assert (next(found), asked) == (-1_000, [1_000])
    assert (next(found), next(found)) == (-999, -998)
    assert sorted(asked) == [998, 999, 1_000]
    assert [-1_000, -999, -998, *found] == list(range(-1_000, 1))
    assert sorted(asked) == list(range(1_001))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Versions 0 to 29; in version N the id ``all`` is N, and an id of its own as well."""
    path = tmp_path / "table"
    for number in range(30):
        write_deltalake(
            path,
            pa.table({"number": [number]}),
            mode="append",
            commit_properties=CommitProperties(
                app_transactions=[Transaction("all", number), Transaction(f"id-{number}", number)]
            ),
        )
    return path


def expected(version: int) -> Transactions:
    return Transactions(version, {"all": version, **{f"id-{one}": one for one in range(version + 1)}})


@pytest.mark.parametrize("checkpoint", [None, 0, 20, 29])
@pytest.mark.parametrize("is_cleaned_up", [False, True])
@pytest.mark.parametrize("known", [None, 0, 8, 12, 28, 29])
def test_transaction_ids_are_those_of_the_checkpoint_and_the_commits_since(
    table: Path, checkpoint: int | None, is_cleaned_up: bool, known: int | None
) -> None:
    """H1: whatever was known before, and whatever was cleaned up."""
    if checkpoint is not None:
        DeltaTable(table, version=checkpoint).create_checkpoint()
        for version in range(checkpoint * is_cleaned_up):
            commit_path(table, version).unlink()
    before = None if known is None else expected(known)

    assert LogFiles(str(table)).transactions(29, before) == expected(29)


def test_transaction_ids_of_a_version_before_the_checkpoint_are_left_to_delta_rs(table: Path) -> None:
    DeltaTable(table).create_checkpoint()

    with pytest.raises(OSError, match="is of version 29, later than 12"):
        LogFiles(str(table)).transactions(12)


def test_what_is_known_stays_as_it_was(table: Path) -> None:
    """H1: another reader may still compare with it."""
    known = expected(20)

    LogFiles(str(table)).transactions(29, known)

    assert known == expected(20)


def test_a_commit_in_a_form_of_a_later_protocol_is_no_commit_without_ids(table: Path) -> None:
    commit_path(table, 29).write_text(json.dumps({"txn": {"application": "all"}}))

    with pytest.raises(KeyError):
        LogFiles(str(table)).transactions(29, expected(28))


def in_parts(table: Path, version: int, *, written: int, of: int) -> None:
    """Turn the checkpoint of ``version`` into one of several parts, of which only the first are written."""
    whole = table / "_delta_log" / f"{version:020d}.checkpoint.parquet"
    rows = pq.read_table(whole)
    whole.unlink()
    each = -(-rows.num_rows // of)
    for part in range(written):
        name = whole.with_name(f"{version:020d}.checkpoint.{part + 1:010d}.{of:010d}.parquet")
        pq.write_table(rows.slice(part * each, each), name)


@pytest.mark.parametrize(
    ("written", "of", "first"),
    [(1, 2, 10), (2, 3, 10), (2, 2, 20)],
    ids=["first of two", "two of three", "both"],
)
def test_only_a_complete_checkpoint_takes_the_place_of_earlier_files(
    table: Path, written: int, of: int, first: int
) -> None:
    """F5: Spark's was killed, or is being written."""
    for version in (10, 20, 29):
        DeltaTable(table, version=version).create_checkpoint()
    in_parts(table, 20, written=written, of=of)
    log = LogFiles(str(table))

    log.remove_before(25)

    assert log.readable_versions() == range(first, 30)
    for version in {first, 20, 28}:
        assert len(DeltaTable(table, version=version).file_uris()) == version + 1
    assert not commit_path(table, first - 1).exists()
