"""When small files are worth being compacted, and what that does to a sink's table and its queries."""

from __future__ import annotations

import logging
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq import DeltaOffsetStore, DeltaSink
from pyspark_rocketmq.cli.main import main
from pyspark_rocketmq.delta import compaction
from pyspark_rocketmq.delta.commit import StoredFile, stored_files
from pyspark_rocketmq.delta.compaction import (
    MIN_SMALL_FILES,
    TARGETS,
    BackgroundThrottle,
    Throttle,
    bins_of,
    compact_if_worth_it,
    has_delta_rs_encoding,
    largest_target,
    target_of,
    targets_of,
)
from pyspark_rocketmq.delta.files import GrowingFile
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.sinks.delta import table as sink_table
from tests.helpers.driver_process import ENVIRONMENT
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import GROUP, Q0, batch_of, run_batch
from tests.sinks.sink_conformance import SCHEMA, rows

KIB, MIB = 1 << 10, 1 << 20
EVERY = 5
_TIMEOUT_S = 30.0


@pytest.mark.parametrize(
    ("sizes", "target"),
    [
        ([], None),
        ([10 * KIB] * (MIN_SMALL_FILES - 1), None),
        ([10 * KIB] * MIN_SMALL_FILES, TARGETS[0]),
        ([1] * MIN_SMALL_FILES, TARGETS[0]),
        ([TARGETS[0]] * (MIN_SMALL_FILES - 1) + [1], TARGETS[1]),
        ([MIB] * 64, TARGETS[2]),
        ([10 * KIB] * 200_000, TARGETS[2]),
        ([64 * MIB] * 1000, None),
        ([64 * MIB] * 1000 + [1] * (MIN_SMALL_FILES - 1), None),
    ],
)
def test_files_are_compacted_when_many_are_small_and_to_what_they_fill(
    sizes: list[int], target: int | None
) -> None:
    """J3."""
    assert target_of(sizes) == target


def packed(sizes: list[int], target: int) -> tuple[list[int], int]:
    """Sizes after a compaction, and the bytes it rewrote."""
    bins = bins_of([StoredFile(str(at), size, ()) for at, size in enumerate(sizes)], target)
    gone = {int(file.path) for each in bins for file in each}
    made = [sum(file.size for file in each) for each in bins]
    return [size for at, size in enumerate(sizes) if at not in gone] + made, sum(made)


@given(st.integers(0, 2**32), st.sampled_from([2 * KIB, 100 * KIB, 3 * MIB]))
def test_files_stay_few_and_no_row_is_rewritten_often(seed: int, usual: int) -> None:
    """J3: an hour of batches once a second, looked at every 100 commits."""
    chance = random.Random(seed)
    sizes: list[int] = []
    written = rewritten = most = 0
    for commit in range(1, 3_601):
        sizes.append(chance.randint(usual // 2, usual * 2))
        written += sizes[-1]
        most = max(most, len(sizes))
        if commit % 100 == 0 and (target := target_of(sizes)) is not None:
            sizes, again = packed(sizes, target)
            rewritten += again

    assert most <= 400
    assert rewritten <= 6 * written


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (None, TARGETS[-1]),
        ("1048576", MIB),
        ("16mb", 16 * MIB),
        ("1 GB", 1 << 30),
        ("0", TARGETS[-1]),
        ("much", TARGETS[-1]),
        ("5 furlongs", TARGETS[-1]),
    ],
)
def test_a_table_s_own_size_of_files_is_the_largest_target(text: str | None, size: int) -> None:
    configuration = {} if text is None else {"delta.targetFileSize": text}

    assert largest_target(configuration) == size
    assert targets_of(configuration)[-1] == size
    assert sorted(set(targets_of(configuration))) == list(targets_of(configuration))


def test_work_beside_batches_takes_a_fifth_of_a_core_and_ends_with_the_process() -> None:
    """J3."""
    clock, wanted = FakeClock(), [True]
    began_s, slept = clock.monotonic_s(), 0.0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        clock.advance(seconds)

    pace = BackgroundThrottle(clock.monotonic_s, sleep, lambda: wanted[0])
    for _ in range(1_000):
        clock.advance(0.003)
        assert pace.pause()

    worked = clock.monotonic_s() - began_s - slept
    assert worked / (worked + slept) == pytest.approx(0.2, abs=0.02)
    wanted[0] = False
    assert not pace.pause()


@pytest.fixture(params=["itself", "delta-rs"])
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Where a table is whose files are many when they are ten, and looked at with each checkpoint."""
    if request.param == "delta-rs":
        # Then delta-rs makes the commits, as on storage of other machines.
        monkeypatch.setattr(LogFiles, "takes_commits", False)
    monkeypatch.setattr(compaction, "MIN_SMALL_FILES", 10)
    monkeypatch.setattr(sink_table, "_COMPACT_EVERY", EVERY)
    return tmp_path / "orders"


def sink_of(path: Path, **more: Any) -> DeltaSink:
    sink = DeltaSink(path, sleep=lambda _: None, **more)
    sink.prepare(SCHEMA)
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": str(EVERY)})
    return sink


def run(sink: DeltaSink, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        run_batch(sink, {Q0: number + 1}, rows(Q0, number, number + 1), queues=[Q0])
        sink._table.wait_for_upkeep(_TIMEOUT_S)


def files_of(path: Path) -> int:
    return len(DeltaTable(path).file_uris())


def offsets_of(path: Path) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["queueOffset"].to_pylist())


@pytest.mark.parametrize("partition_by", [(), ("step",)], ids=["plain", "partitioned"])
def test_a_sink_compacts_beside_its_batches_and_keeps_each_row_once(
    path: Path, partition_by: tuple[str, ...]
) -> None:
    """J3, H1."""
    run(sink_of(path, partition_by=partition_by), 12 * EVERY)

    assert files_of(path) < 25
    assert offsets_of(path) == list(range(12 * EVERY))
    again = DeltaSink(path)
    again.prepare(SCHEMA)
    assert again.begin(GROUP, {Q0: 0}).watermarks == {Q0: 12 * EVERY}


def test_a_sink_that_is_not_to_compact_does_not(path: Path) -> None:
    run(sink_of(path, compaction=False), 4 * EVERY)

    assert files_of(path) == 4 * EVERY


def test_a_table_with_a_feature_only_for_spark_s_writer_is_not_touched(path: Path) -> None:
    """J3, H1."""
    sink = sink_of(path)
    run(sink, EVERY - 2)
    for number in range(EVERY - 2, 12):
        other = DeltaSink(path, compaction=False)
        other.prepare(SCHEMA)
        run_batch(other, {Q0: number + 1}, rows(Q0, number, number + 1), queues=[Q0])
    DeltaTable(path).alter.add_constraint({"positive": "queueOffset >= 0"})

    sink._table._compact()

    assert files_of(path) == 12


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda table: table.delete(), "a DELETE by delta-rs"),
        (
            lambda table: write_deltalake(table, pa.Table.from_batches([rows(Q0, 90, 91)]), mode="overwrite"),
            "a WRITE by delta-rs",
        ),
    ],
    ids=["delete", "overwrite"],
)
def test_rows_that_delta_rs_has_not_removed_are_reported(
    path: Path, act: Callable[[DeltaTable], object], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """J3: it began before this compaction and ended after it."""
    sink = sink_of(path)
    run(sink, 3 * EVERY - 2)
    begun = DeltaTable(path)
    run(sink, 1, first=3 * EVERY - 2)
    act(begun)
    version = DeltaTable(path).version()
    assert offsets_of(path)[: 3 * EVERY - 1] == list(range(3 * EVERY - 1)), "delta-rs has learned to look"

    run(sink, EVERY, first=3 * EVERY - 1)

    assert f"ROWS STAY path={path}: version {version}, {told}, has removed 13 files" in caplog.text
    act(DeltaTable(path))
    run(sink, EVERY, first=4 * EVERY - 1)
    assert caplog.text.count("ROWS STAY") == 1
    assert set(offsets_of(path)) <= {90, *range(4 * EVERY - 1, 5 * EVERY - 1)}


def test_rows_of_one_key_are_merged_beside_it(path: Path) -> None:
    """H6."""
    sink = sink_of(path, merge_keys=("queueOffset",))
    run(sink, 4 * EVERY)
    run_batch(sink, {Q0: 4 * EVERY + 1}, rows(Q0, 4 * EVERY, 4 * EVERY + 1), queues=[Q0])

    assert files_of(path) < 4 * EVERY
    assert offsets_of(path) == list(range(4 * EVERY + 1))


def before_compacting(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do ``act`` once, after the files were rewritten and before that is committed."""
    real, acts = compaction._Rewriter._put, [act]

    def late(self: compaction._Rewriter, *files: Any) -> bool:
        if acts:
            acts.pop()()
        return real(self, *files)

    monkeypatch.setattr(compaction._Rewriter, "_put", late)


def test_a_batch_that_is_committed_while_files_are_compacted_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: and so does one that had begun before."""
    sink, other = sink_of(path), DeltaSink(path)
    run(sink, 3 * EVERY - 2)
    other.prepare(SCHEMA)
    count = 3 * EVERY - 2
    early = other.begin("late group", {Q0: 0})
    before_compacting(
        monkeypatch, lambda: run_batch(other, {Q0: 2}, rows(Q0, 0, 2), queues=[Q0], group="early group")
    )
    run(sink, 1, first=count)
    early.commit([], {Q0: 7})

    assert files_of(path) <= 3
    assert offsets_of(path) == sorted([0, 1, *range(count + 1)])
    assert other.begin("late group", {Q0: 0}).watermarks == {Q0: 7}
    run(sink, 1, first=count + 1)


def test_a_commit_that_comes_at_the_last_moment_is_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3, H1: another compaction of the same files, after this one has looked and before it commits."""
    run(sink_of(path, compaction=False), 12)
    real, others = compaction._Rewriter._commit_next, [lambda: job("--option", f"table={path}")]

    def late(self: compaction._Rewriter, *arguments: Any) -> None:
        if others:
            others.pop()()
        real(self, *arguments)

    monkeypatch.setattr(compaction._Rewriter, "_commit_next", late)
    assert job("--option", f"table={path}") == 0

    assert (files_of(path), offsets_of(path)) == (1, list(range(12)))


def test_files_whose_paths_delta_rs_would_write_differently_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3, H1: it would remove others, and the rows would be there twice."""
    path = tmp_path / "orders"
    sink = DeltaSink(path, compaction=False, partition_by=["step"])
    sink.prepare(SCHEMA)
    for number in range(6):
        row = batch_of(SCHEMA, [(Q0, number, ("even", "odd")[number % 2])])
        run_batch(sink, {Q0: number + 1}, row, queues=[Q0])
    for commit in (path / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace('"step=odd/', '"step%3Dodd/'))
    monkeypatch.setattr(LogFiles, "takes_commits", False)

    assert job("--option", f"table={path}") == 0

    assert (files_of(path), offsets_of(path)) == (4, list(range(6)))


def job(*arguments: str) -> int:
    return main(["tables", "compact", *arguments])


def test_nothing_is_written_in_vain_once_the_table_has_another_form(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3."""
    run(sink_of(path, compaction=False), 12)
    monkeypatch.setattr(compaction, "_MAX_BIN_FILES", 3)
    monkeypatch.setattr(compaction, "_MAX_COMMIT_FILES", 3)
    before = set(path.glob("*.parquet"))
    before_compacting(
        monkeypatch, lambda: DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
    )

    assert job("--option", f"table={path}") == 0

    assert len(set(path.glob("*.parquet")) - before) == 1


def test_files_that_cannot_be_read_keep_no_others_from_being_compacted(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """J3."""
    run(sink_of(path, compaction=False), 12)
    monkeypatch.setattr(compaction, "_MAX_BIN_FILES", 3)
    damaged = path / next(stored_files(DeltaTable(path))).path
    kept = damaged.read_bytes()
    damaged.write_bytes(b"PAR1" + b"x" * (len(kept) - 8) + b"PAR1")

    assert job("--option", f"table={path}") == 1

    assert f"Not all files of {path} could be compacted: " in capsys.readouterr().err
    damaged.write_bytes(kept)
    assert (files_of(path), offsets_of(path)) == (3 + 3, list(range(12)))


def test_old_timestamps_of_other_writers_stay(path: Path) -> None:
    """J3, H1: years that nanoseconds cannot say, in the form that Spark writes them by default."""
    wider = SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC")))
    sink = DeltaSink(path, compaction=False)
    sink.prepare(wider)
    years = (1, 1600, 2024, 9999)
    for number, year in enumerate(years):
        row = batch_of(wider, [(Q0, number, "created", datetime(year, 12, 31, tzinfo=UTC))])
        run_batch(sink, {Q0: number + 1}, row, queues=[Q0])
    before = DeltaTable(path).to_pyarrow_table().sort_by("queueOffset")
    for file in path.glob("*.parquet"):
        pq.write_table(pq.read_table(file), file, use_deprecated_int96_timestamps=True)

    assert job("--option", f"table={path}") == 0

    assert DeltaTable(path).to_pyarrow_table().sort_by("queueOffset") == before


def test_a_compaction_holds_few_bytes_of_large_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J3: whatever the size of a row."""
    run(sink_of(path, compaction=False), 1)
    other = DeltaSink(path, compaction=False)
    other.prepare(SCHEMA)
    large = [(Q0, number, f"{number:06d}" * 5_000) for number in range(1, 1_501)]
    for part in (large[:700], large[700:]):
        run_batch(other, {Q0: part[-1][1] + 1}, batch_of(SCHEMA, part), queues=[Q0])
    most: list[int] = []
    real = GrowingFile.add

    def noted(self: GrowingFile, added: pa.RecordBatch) -> None:
        most.append(added.nbytes)
        real(self, added)

    monkeypatch.setattr(GrowingFile, "add", noted)

    assert job("--option", f"table={path}") == 0

    assert max(most) <= 2 * compaction._BYTES_AT_ONCE < sum(most)
    assert offsets_of(path) == list(range(1_501))


def test_a_compaction_ends_with_its_process(tmp_path: Path) -> None:
    """J3: which does not wait until all is compacted."""
    program = """
import threading
from pyspark_rocketmq.delta.maintenance import Maintenance
from pyspark_rocketmq.delta.compaction import BackgroundThrottle

has_begun = threading.Event()

def work(_):
    pace = BackgroundThrottle()
    has_begun.set()
    while pace.pause():
        pass
    print("ended early", flush=True)

Maintenance("sink", "/nowhere", is_interruptible=True).after_commit(99, 100, work)
has_begun.wait()
print("the program is through", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split("\n") == ["the program is through", "ended early", ""]


def created_again(path: Path) -> None:
    run(sink_of(path.with_name("other"), compaction=False), 12)
    shutil.rmtree(path)
    path.with_name("other").rename(path)


@pytest.mark.parametrize(
    "act",
    [
        lambda path: DeltaTable(path).delete("queueOffset < 3"),
        lambda path: DeltaTable(path).optimize.compact(),
        lambda path: DeltaTable(path).restore(3),
        lambda path: job("--option", f"table={path}"),
        lambda path: DeltaTable(path).alter.add_columns([Field("more", PrimitiveType("string"))]),
        created_again,
    ],
    ids=["delete", "optimize", "restore", "this job", "alter", "another table"],
)
def test_files_that_somebody_else_changes_meanwhile_are_not_touched(
    path: Path,
    act: Callable[[Path], object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """J3, H1: each row that is there after the other change is there once."""
    run(sink_of(path, compaction=False), 12)
    after: list[list[int]] = []

    def change() -> None:
        act(path)
        after.append(offsets_of(path))

    before_compacting(monkeypatch, change)
    with caplog.at_level(logging.INFO):
        assert job("--option", f"table={path}") == 0

    assert offsets_of(path) == after[0]
    assert "files changed while they were compacted" in caplog.text
    assert (
        "Another writer changed 12 of the files meanwhile, so these were left as they are: run the command "
        "again." in capsys.readouterr().out
    )


def test_files_that_somebody_else_removes_by_another_spelling_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3, H1: Spark writes ``ü`` into the log, delta-rs its bytes in hexadecimal, for the same file."""
    path = tmp_path / "orders"
    run(sink_of(path, compaction=False, partition_by=["step"]), 2)
    (path / "step=created").rename(path / "step=ü")
    for commit in (path / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace("step=created/", "step=ü/"))

    def remove() -> None:
        table = DeltaTable(path)
        removed: list[AddAction | RemoveAction] = [
            RemoveAction(unquote(file.path), True, 1, size=file.size, partition_values=dict(file.partition))
            for file in stored_files(table)
        ]
        table.create_write_transaction(removed, mode="append", schema=table.schema(), partition_by=["step"])

    before_compacting(monkeypatch, remove)

    assert compaction.compact(DeltaTable(path), LogFiles(str(path))) == (0, 0, 2)


@pytest.mark.parametrize("told", [FileExistsError, DeltaError])
def test_a_commit_that_storage_reports_as_another_s_or_as_failed_is_known_as_own(
    path: Path, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sink_of(path, compaction=False), 12)
    real = compaction._Rewriter._commit_next

    def told_twice(self: compaction._Rewriter, *arguments: Any) -> None:
        real(self, *arguments)
        raise told

    with monkeypatch.context() as patched:
        patched.setattr(compaction._Rewriter, "_commit_next", told_twice)
        assert job("--option", f"table={path}") == 0

    assert (files_of(path), offsets_of(path)) == (1, list(range(12)))


def test_a_table_that_delta_rs_compacts_too_is_left_to_it(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """J3, H1: its OPTIMIZE (1.6.6) doubles the rows of files that another one has replaced meanwhile."""
    sink = sink_of(path)
    run(sink, 2 * EVERY - 3)
    DeltaTable(path).optimize.compact()
    run(sink, 5 * EVERY, first=2 * EVERY - 3)

    assert offsets_of(path) == list(range(7 * EVERY - 3))
    assert files_of(path) == 5 * EVERY + 1
    assert caplog.text.count("the sink no longer compacts small files") == 1
    assert "ROWS ARE DOUBLED" not in caplog.text


def test_rows_that_delta_rs_has_doubled_are_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """J3: it began before this compaction and ended after it."""
    sink = sink_of(path)
    run(sink, 3 * EVERY - 2)
    begun = DeltaTable(path)
    run(sink, 1, first=3 * EVERY - 2)
    begun.optimize.compact()
    version = DeltaTable(path).version()
    assert len(set(offsets_of(path))) < len(offsets_of(path)), "delta-rs has learned to look: allow it again"

    run(sink, EVERY, first=3 * EVERY - 1)

    told = f"ROWS ARE DOUBLED path={path}: version {version}, an OPTIMIZE by delta-rs, has compacted 13 files"
    assert told in caplog.text
    assert f"RESTORE the table to version {version - 1}, which" in caplog.text


def test_a_process_that_ends_keeps_what_was_compacted_and_nothing_half_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sink_of(path, compaction=False, partition_by=["step"]), 1)
    other = DeltaSink(path, compaction=False)
    other.prepare(SCHEMA)
    for number in range(1, 24):
        row = batch_of(SCHEMA, [(Q0, number, "even" if number % 2 else "odd")])
        run_batch(other, {Q0: number + 1}, row, queues=[Q0])
    looks = iter([True] * 15)

    class Ending(Throttle):
        def pause(self) -> bool:
            return next(looks, False)

    before = set(path.glob("step=*/*.parquet"))
    done = compact_if_worth_it(DeltaTable(path), LogFiles(str(path)), Ending())

    assert (done.files_removed, done.files_added) in {(11, 1), (12, 1)}
    assert offsets_of(path) == list(range(24))
    assert len(set(path.glob("step=*/*.parquet")) - before) == 1


def test_partitions_columns_and_values_stay_as_they_are(path: Path) -> None:
    """J3: odd values of partitions, a column that older files lack, and statistics."""
    sink = sink_of(path, compaction=False, partition_by=["step"])
    steps = ["a b/ü%=x", None, "plain"]
    for number in range(6):
        run_batch(sink, {Q0: number + 1}, batch_of(SCHEMA, [(Q0, number, steps[number % 3])]), queues=[Q0])
    wider = SCHEMA.append(pa.field("more", pa.float64()))
    evolved = DeltaSink(path, compaction=False, schema_evolution=True)
    evolved.prepare(wider)
    for number in range(6, 12):
        row = batch_of(wider, [(Q0, number, steps[number % 3], number / 2)])
        run_batch(evolved, {Q0: number + 1}, row, queues=[Q0])
    before = DeltaTable(path).to_pyarrow_table().sort_by("queueOffset")

    assert job("--option", f"table={path}") == 0

    assert files_of(path) == 3
    assert DeltaTable(path).to_pyarrow_table().sort_by("queueOffset") == before
    assert DeltaTable(path).history(1)[0]["operationParameters"]["auto"] == "true"
    found = DeltaTable(path).to_pyarrow_dataset().to_table(filter=pc.field("queueOffset") == 7)
    assert found["more"].to_pylist() == [3.5]


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=20, unique=True))
@settings(max_examples=20)
def test_a_path_is_compared_with_what_delta_rs_writes(names: list[str]) -> None:
    """J3, H1: the same for what it removes as for what it adds."""
    with TemporaryDirectory() as folder:
        write_deltalake(folder, pa.table({"a": [1]}))
        table = DeltaTable(folder)
        paths = [f"x{name}y" for name in names]
        table.create_write_transaction(
            [RemoveAction(path, False, 1, size=1, partition_values={}) for path in paths],
            mode="append",
            schema=table.schema(),
        )
        written = LogFiles(folder).removed_paths(1)

    assert {unquote(path) for path in written} == set(paths)
    assert all(map(has_delta_rs_encoding, written))


@pytest.mark.parametrize("path", ["day=a b/f", "day=a%3Ab/f", "day=ü/f", "day=a%2fb/f"])
def test_a_path_that_somebody_else_wrote_differently_is_not_touched(path: str) -> None:
    assert not has_delta_rs_encoding(path)


def test_a_command_compacts_on_demand(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """J3."""
    run(sink_of(path, compaction=False), EVERY)

    assert job("--option", f"table={path}") == 0
    assert f"rewrote {EVERY} files as 1." in capsys.readouterr().out
    assert (files_of(path), offsets_of(path)) == (1, list(range(EVERY)))

    assert job("--option", f"table={path}") == 0
    assert "there is nothing to do: no partition has two small files." in capsys.readouterr().out


def test_a_command_refuses_what_it_must_not_compact(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DeltaOffsetStore(tmp_path / "offsets").claim(GROUP, "me", {Q0: 7})
    run(sink_of(path), 1)
    DeltaTable(path).alter.add_constraint({"positive": "queueOffset >= 0"})

    times = pa.table({"at": pa.array([0], pa.timestamp("us", "UTC")), "a": [1]})
    write_deltalake(tmp_path / "times", times, partition_by=["at"])

    for table, why in (
        (tmp_path / "times", "which has partition column at of type timestamp; run OPTIMIZE"),
        (tmp_path / "none", f"there is no Delta table at {tmp_path}/none; check option 'table'"),
        (tmp_path / "offsets", "is an offset table, and the queries that write it also compact it"),
        (
            path,
            "which has CHECK constraint positive; run OPTIMIZE delta.`",
        ),
    ):
        assert job("--option", f"table={table}") == 2
        assert why in capsys.readouterr().err


def test_a_file_of_the_table_that_is_gone_ends_the_command_with_a_sentence(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(sink_of(path, compaction=False), 2)
    next(path.glob("*.parquet")).unlink()

    assert job("--option", f"table={path}") == 1
    assert f"Not all files of {path} could be compacted: " in capsys.readouterr().err


def test_a_table_that_is_named_is_left_to_spark(capsys: pytest.CaptureFixture[str]) -> None:
    """J3, J5."""
    assert job("--option", "table=main.shop.orders") == 2

    assert "run OPTIMIZE main.shop.orders in Spark" in " ".join(capsys.readouterr().err.split())
