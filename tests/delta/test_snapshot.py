"""Handles on a Delta table: when delta-rs looks for newer commits, and when the table is opened again."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from pyspark_rocketmq.delta import table as delta_table
from pyspark_rocketmq.delta.snapshot import HandlePerThread, TableSnapshot
from pyspark_rocketmq.delta.table import create_table, open_table
from tests.helpers.fake_clock import FakeClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    commit(tmp_path / "table", 3)
    return tmp_path / "table"


def commit(path: Path, times: int = 1) -> None:
    for _ in range(times):
        write_deltalake(path, pa.table({"number": [1]}), mode="append")


@pytest.mark.parametrize(
    ("age_s", "commits", "may"), [(3_599.0, 0, False), (1.0, 1, True), (3_601.0, 0, True)]
)
def test_a_newer_commit_is_looked_for_by_its_file(path: Path, age_s: float, commits: int, may: bool) -> None:
    """F1, J3: whoever learns that there is none does not read the log."""
    clock = FakeClock()
    handle = TableSnapshot(DeltaTable(path), clock=clock)
    commit(path, commits)
    clock.advance(age_s)

    assert handle.may_have_newer() is may


def test_a_newer_commit_that_was_cleaned_up_is_known_by_the_checkpoint_before_it(path: Path) -> None:
    """J3: what is left of the log looks as if nothing had followed."""
    handle = TableSnapshot(DeltaTable(path), clock=FakeClock())
    DeltaTable(path).create_checkpoint()
    assert not handle.may_have_newer()

    commit(path, 3)
    DeltaTable(path).create_checkpoint()
    for version in (3, 4):
        (path / "_delta_log" / f"{version:020d}.json").unlink()

    assert handle.is_still_there()
    assert handle.may_have_newer()


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "null"])
def test_an_unreadable_checkpoint_shows_nothing_of_newer_commits(path: Path, text: str) -> None:
    handle = TableSnapshot(DeltaTable(path), clock=FakeClock())
    (path / "_delta_log" / "_last_checkpoint").write_text(text)

    assert handle.may_have_newer()


def test_a_look_that_failed_is_made_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: what the handle needs of the log may have been cleaned up."""
    handle = TableSnapshot(DeltaTable(path), clock=FakeClock())
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "update_incremental", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            handle.refresh()
    assert handle.may_have_newer()

    handle.refresh()
    assert not handle.may_have_newer()


def handles_on(path: Path, opened: list[TableSnapshot]) -> HandlePerThread[TableSnapshot]:
    def open_handle() -> TableSnapshot:
        opened.append(TableSnapshot(DeltaTable(path), clock=FakeClock()))
        return opened[-1]

    return HandlePerThread(open_handle)


def test_a_handle_moves_to_the_newest_version(path: Path) -> None:
    opened: list[TableSnapshot] = []
    handles = handles_on(path, opened)

    assert handles.newest().version == 2
    commit(path, 2)
    assert handles.newest().version == 4
    assert len(opened) == 1


@pytest.mark.parametrize("commits", [1, 3, 9], ids=["fewer", "as many", "more"])
def test_a_table_that_was_made_again_is_opened_again(path: Path, commits: int) -> None:
    """H7: delta-rs would take its log for that of the table before."""
    opened: list[TableSnapshot] = []
    handles = handles_on(path, opened)
    handles.newest()
    shutil.rmtree(path)
    commit(path, commits)

    assert handles.newest().version == commits - 1
    assert len(opened) == 2


def test_a_handle_whose_log_was_cleaned_up_is_opened_again(path: Path) -> None:
    opened: list[TableSnapshot] = []
    handles = handles_on(path, opened)
    handles.newest()
    commit(path, 3)
    DeltaTable(path).create_checkpoint()
    for version in range(5):
        (path / "_delta_log" / f"{version:020d}.json").unlink()

    assert handles.newest().version == 5
    assert len(opened) == 2


def test_a_table_that_several_make_at_once_keeps_the_id_it_was_made_with(tmp_path: Path) -> None:
    """H2: a store or sink that saw another id would take it for another table."""
    schema = pa.schema([("number", pa.int64())])
    with ThreadPoolExecutor(4) as threads:
        for number in range(40):
            path = str(tmp_path / str(number))
            made = list(threads.map(lambda _, path=path: create_table(path, schema, ()), range(4)))

            assert len({table.metadata().id for table in made}) == 1
            assert DeltaTable(path).version() == 0


@pytest.mark.parametrize(("failures", "opens"), [(3, True), (99, False)])
def test_a_table_whose_log_grows_while_it_is_listed_is_opened(
    path: Path, failures: int, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: delta-rs sees version 5 and not yet version 4, which is there, in a folder that takes long to list."""
    left = iter(range(failures))

    def with_gap(uri: str, *_: object, **__: object) -> DeltaTable:
        if next(left, None) is not None:
            raise DeltaError("Expected contiguous commit files, but found gap")
        return DeltaTable(uri)

    monkeypatch.setattr(delta_table, "DeltaTable", with_gap)
    if opens:
        assert open_table(str(path)).version() == 2
    else:
        with pytest.raises(DeltaError, match="found gap"):
            open_table(str(path))


def test_a_table_that_is_not_there_is_looked_for_once(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        open_table(str(tmp_path / "nowhere"))
