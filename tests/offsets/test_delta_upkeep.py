"""What is done beside the commits: the log stays short, the past stays readable,
and no step may be the last one.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from pyarrow import fs

from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.offsets import delta_history as upkeep_module
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.delta_history import HistoryTable, Upkeep
from pyspark_rocketmq.offsets.history import StoredChange, change_at, change_of_version
from tests.helpers.fake_clock import FakeClock
from tests.helpers.wait import PATIENCE_S
from tests.offsets.conformance import GROUP, Q0, committed

EVERY, KEPT = 10, 20


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "EVERY", EVERY)
    monkeypatch.setattr(upkeep_module, "KEPT_COMMITS", KEPT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "off sets é"


def commits(store: DeltaOffsetStore, count: int, first: int = 1, group: str = GROUP) -> None:
    epoch = store.claim(group, "me", {Q0: 0})[Q0].epoch
    for number in range(first, first + count):
        store.commit(group, [committed(Q0, number, epoch=epoch)], query_id="q", batch_id=number)
        store.wait_for_upkeep(60)


def log_names(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "_delta_log").iterdir())


def upkeep(path: Path) -> Upkeep:
    return Upkeep(str(path), FakeClock(), lambda table, group: DeltaOffsetStore(path).read(group))


def test_the_log_stays_short_however_many_commits_there_are(path: Path) -> None:
    """F1: every commit and every read lists it."""
    store = DeltaOffsetStore(path)
    commits(store, 65)

    assert len([name for name in log_names(path) if name.endswith(".json")]) <= KEPT + 2 * EVERY
    assert len([name for name in log_names(path) if "checkpoint.parquet" in name]) <= 4
    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == 65


def test_a_table_named_by_a_uri_is_looked_after_too(path: Path) -> None:
    """F1: by delta-rs' own storage, as an object store's."""
    store = DeltaOffsetStore(path.as_uri())
    commits(store, 65)

    assert len([name for name in log_names(path) if name.endswith(".json")]) <= KEPT + 2 * EVERY
    assert store.rows_of(GROUP, store.changes(GROUP)[0])[Q0].next_offset < 45


def test_a_commit_does_not_wait_for_the_upkeep(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: what takes long is done beside it, once at a time."""
    begun, may_end = threading.Semaphore(0), threading.Event()

    def slow(self: Upkeep, *, removes_files: bool) -> None:
        begun.release()
        assert may_end.wait(PATIENCE_S)

    monkeypatch.setattr(Upkeep, "run", slow)
    store = DeltaOffsetStore(path)
    epoch = store.claim(GROUP, "me", {Q0: 0})[Q0].epoch
    for number in range(1, 3 * EVERY):
        store.commit(GROUP, [committed(Q0, number, epoch=epoch)], query_id="q", batch_id=number)

    # The thread was started, which is not to say that it has begun.
    assert begun.acquire(timeout=PATIENCE_S)
    assert not begun.acquire(blocking=False)
    may_end.set()
    store.wait_for_upkeep(60)
    assert store.read(GROUP)[Q0].next_offset == 3 * EVERY - 1


def test_versions_removed_from_the_log_are_in_the_history(path: Path) -> None:
    """F5: as-of reaches back for days, exactly as far as the log and by the minute before."""
    store = DeltaOffsetStore(path)
    commits(store, 45)

    changes = store.changes(GROUP)

    first_in_log = LogFiles(str(path)).readable_versions().start
    old = [change for change in changes if change.version < first_in_log]
    assert first_in_log > 0
    assert old
    assert [change.version for change in changes] == sorted({change.version for change in changes})
    # Two versions make the table, one claims.
    assert all(store.rows_of(GROUP, change)[Q0].next_offset == change.version - 2 for change in changes)
    assert old[0].action.endswith("of query q")
    assert change_at(changes, GROUP, old[-1].at_s) == old[-1]


def test_a_state_that_is_not_kept_is_refused_in_a_sentence(path: Path) -> None:
    store = DeltaOffsetStore(path)
    commits(store, 45)

    with pytest.raises(
        OffsetError, match=r"Version 3 of the offset table .* no longer kept for group order-etl"
    ):
        store.rows_of(GROUP, StoredChange(3, 0.0, GROUP, "commit"))


def test_the_history_may_be_read_as_a_table(path: Path) -> None:
    """F1: readable by anyone."""
    commits(DeltaOffsetStore(path), 25)

    history = DeltaTable(HistoryTable(str(path)).path)

    assert history.metadata().partition_columns == ["day"]
    assert history.schema().to_arrow().names[:6] == [
        "day",
        "version",
        "changed_at",
        "action",
        "consumer_group",
        "topic",
    ]


def test_other_groups_keep_their_past_too(path: Path) -> None:
    """F5: a group that is seldom written is not forgotten because of one that is written often."""
    store = DeltaOffsetStore(path)
    store.claim("seldom", "me", {Q0: 7})
    commits(store, 45)

    changes = store.changes("seldom")

    assert [change.action for change in changes] == ["claim by me"]
    assert store.rows_of("seldom", changes[0])[Q0].next_offset == 7


def test_a_reset_and_what_was_before_it_are_kept_among_the_commits_of_a_minute(path: Path) -> None:
    """F5: a mistake can be undone days later, in a group that commits all the time."""
    store = DeltaOffsetStore(path)
    commits(store, 3)
    store.reset(GROUP, {Q0: 1})
    commits(store, EVERY, first=2)
    history = HistoryTable(str(path))

    kept = history.changes(GROUP, before_version=10**9)

    [moved] = [change for change in kept if change.is_reset]
    rows = history.rows_of(GROUP, [moved.version - 1, moved.version])
    assert [(at, rows[at][Q0].next_offset) for at in sorted(rows)] == [
        (moved.version - 1, 3),
        (moved.version, 1),
    ]


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("step", ["record", "checkpoint", "first file", "some files", "forget"])
def test_an_upkeep_that_ends_anywhere_is_finished_by_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """H1: nothing is lost, nothing is there twice, and the table can be read and written at any time."""
    store = DeltaOffsetStore(path)
    monkeypatch.setattr(upkeep_module, "EVERY", 10**9)
    commits(store, 15)
    upkeep(path).run(removes_files=False)
    commits(store, 30, first=16)
    with monkeypatch.context() as patch:
        arm(patch, step)
        with pytest.raises(Killed):
            upkeep(path).run(removes_files=True)

    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == 45
    commits(DeltaOffsetStore(path), 1, first=46)
    upkeep(path).run(removes_files=True)
    commits(DeltaOffsetStore(path), 1, first=47)

    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == 47
    assert "00000000000000000010.json" not in log_names(path)
    changes = DeltaOffsetStore(path).changes(GROUP)
    assert [change.version for change in changes] == sorted({change.version for change in changes})


def arm(patch: pytest.MonkeyPatch, step: str) -> None:
    """Let the process end at ``step``."""

    def die(*args: Any, **kwargs: Any) -> Never:
        raise Killed

    if step == "record":
        patch.setattr(HistoryTable, "append", die)
    elif step == "checkpoint":
        patch.setattr(DeltaTable, "create_checkpoint", die)
    elif step == "forget":
        patch.setattr(DeltaTable, "vacuum", die)
    else:
        left = [0 if step == "first file" else 7]

        class Dying(fs.SubTreeFileSystem):  # type: ignore[misc]
            def delete_file(self, name: str) -> None:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                super().delete_file(name)

        patch.setattr(fs, "SubTreeFileSystem", Dying)


def test_unreferenced_files_are_removed_and_the_history_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: what the log can still open stays, and so does the history; what a killed writer left goes."""
    store = DeltaOffsetStore(path)
    commits(store, 45)
    first = LogFiles(str(path)).readable_versions().start
    folder = path / f"consumer_group={GROUP}"
    (folder / "part-00000-left-over.snappy.parquet").write_bytes(b"")
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    before = {change: store.rows_of(GROUP, change) for change in store.changes(GROUP)}
    monkeypatch.setattr(upkeep_module, "_FILES_KEPT_S", 0.0)
    monkeypatch.setattr(LogFiles, "row_change_info", lambda *_: None)
    removing = upkeep(path)

    removing._remove_files(DeltaTable(path), LogFiles(str(path)))

    monkeypatch.undo()
    assert len(list(folder.iterdir())) == 1
    after = {change: store.rows_of(GROUP, change) for change in before if change.version < first}
    assert after
    assert after == {change: rows for change, rows in before.items() if change.version < first}
    assert store.read(GROUP)[Q0].next_offset == 45


def test_what_writers_left_that_were_killed_in_a_commit_goes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: between the file and the link that gives it its name."""
    store = DeltaOffsetStore(path)
    commits(store, 2)
    monkeypatch.setattr(os, "link", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=OSError))
    with pytest.raises(KeyboardInterrupt):
        store.commit(GROUP, [committed(Q0, 3)], query_id="q", batch_id=3)
    monkeypatch.undo()
    [left] = path.glob("_delta_log/*.tmp")

    upkeep(path).run(removes_files=True)
    assert left.exists(), "it may be written just now"
    os.utime(left, (time.time() - 3_700, time.time() - 3_700))
    upkeep(path).run(removes_files=True)

    assert not left.exists()
    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == 2


def test_files_that_the_log_can_still_open_are_kept_however_old(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: a group that commits seldom goes back as exactly as another."""
    store = DeltaOffsetStore(path)
    commits(store, 5)
    before = {change: store.rows_of(GROUP, change) for change in store.changes(GROUP)}
    monkeypatch.setattr(upkeep_module, "_FILES_KEPT_S", 0.0)
    hours = []
    monkeypatch.setattr(DeltaTable, "vacuum", lambda self, kept, **_: hours.append(kept))
    later = Upkeep(str(path), FakeClock(time.time() + 30 * 3600), lambda table, group: {})

    later._remove_files(DeltaTable(path), LogFiles(str(path)))

    assert hours == [31]
    assert {change: store.rows_of(GROUP, change) for change in store.changes(GROUP)} == before


def test_an_old_state_that_cannot_be_read_any_more_stops_no_upkeep(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F1, F5: as after a VACUUM, which nobody is to run there."""
    store = DeltaOffsetStore(path)
    commits(store, 3)
    store.reset(GROUP, {Q0: 1})
    commits(store, 1, first=2)
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)

    commits(store, 6 * EVERY, first=3)

    assert "an old state of offsets is not kept" in caplog.text
    assert "maintenance of" not in caplog.text
    assert len(LogFiles(str(path)).readable_versions()) < KEPT + 2 * EVERY
    assert store.read(GROUP)[Q0].next_offset == 6 * EVERY + 2


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(lambda info: {**info, "timestamp": None}, id="time is null"),
        pytest.param(lambda info: {"operation": info["operation"]}, id="no time"),
        pytest.param(lambda info: {}, id="empty"),
        pytest.param(lambda info: None, id="no information"),
    ],
)
def test_a_writer_that_leaves_out_when_it_wrote_stops_neither_history_nor_upkeep(
    path: Path, caplog: pytest.LogCaptureFixture, left: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> None:
    """F5: Delta's protocol leaves all of commitInfo to the writer; the file's time is then the commit's."""
    store = DeltaOffsetStore(path)
    commits(store, 3)
    DeltaTable(path).update({"next_offset": "1"})
    by_hand = DeltaTable(path).version()
    file = path / "_delta_log" / f"{by_hand:020d}.json"
    leave_out(file, left)
    os.utime(file, (1_000_000, 1_000_000))

    [change] = [change for change in store.changes(GROUP) if change.version == by_hand]
    assert (change.at_s, change.consumer_group) == (1_000_000, None)
    assert store.rows_of(GROUP, change)[Q0].next_offset == 1

    commits(store, 6 * EVERY, first=2)
    upkeep(path).run(removes_files=True)

    assert "maintenance of" not in caplog.text
    assert len(LogFiles(str(path)).readable_versions()) < KEPT + 2 * EVERY
    assert store.rows_of(GROUP, change_of_version(store.changes(GROUP), GROUP, by_hand))[Q0].next_offset == 1


def leave_out(file: Path, left: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Replace the ``commitInfo`` of a commit by what ``left`` returns; remove it for None."""
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    infos = ({"commitInfo": left(action["commitInfo"])} for action in actions if "commitInfo" in action)
    rest = [action for action in actions if "commitInfo" not in action]
    kept = [info for info in infos if info["commitInfo"] is not None]
    file.write_text("".join(f"{json.dumps(action)}\n" for action in [*kept, *rest]))


def test_two_upkeeps_at_once_record_the_past_once(path: Path) -> None:
    """C5: one of them fails, and says so."""
    store = DeltaOffsetStore(path)
    commits(store, 15)
    history = HistoryTable(str(path))
    several = [upkeep(path) for _ in range(3)]
    threads = [
        threading.Thread(
            target=one._thread._run_logged, args=(lambda _, one=one: one.run(removes_files=False), 1)
        )
        for one in several
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    rows = DeltaTable(history.path).to_pyarrow_table().select(["version", "consumer_group"])
    assert rows.num_rows == rows.group_by(["version", "consumer_group"]).aggregate([]).num_rows


def test_a_failed_upkeep_is_logged_and_does_not_disturb_commits(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> Never:
        raise OSError("no space left")

    monkeypatch.setattr(HistoryTable, "append", broken)

    commits(DeltaOffsetStore(path), 15)

    assert re.search("maintenance of offset table failed, .*no space left", caplog.text)
    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == 15


def test_days_that_are_too_old_are_forgotten_and_files_become_few(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_rocketmq.offsets.delta_history._COMPACT_ABOVE", 2)
    store = DeltaOffsetStore(path)
    commits(store, 45)
    history = HistoryTable(str(path))
    count = len(store.changes(GROUP))

    history.expire_and_compact(0)
    assert len(DeltaTable(history.path).file_uris()) == 1
    assert len(store.changes(GROUP)) == count

    commits(store, 45, first=46)
    history.expire_and_compact(4e9)
    assert DeltaTable(history.path).file_uris() == []
    assert store.changes(GROUP)[0].version == LogFiles(str(path)).readable_versions().start
