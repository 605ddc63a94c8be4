"""When small files are worth being compacted, and what that does to a sink's table and its queries."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from jobs.cli import main
from pyspark_rocketmq import DeltaOffsetStore, DeltaSink
from pyspark_rocketmq.delta import compaction
from pyspark_rocketmq.delta.compaction import TARGETS, WORTH_IT, largest_target, target_of, targets_of
from pyspark_rocketmq.sinks import delta_table
from tests.helpers.sink_rows import GROUP, Q0, run_batch
from tests.sinks.sink_conformance import SCHEMA, rows

KIB, MIB = 1 << 10, 1 << 20
EVERY = 5
_TIMEOUT_S = 30.0


@pytest.mark.parametrize(
    ("sizes", "target"),
    [
        ([], None),
        ([10 * KIB] * (WORTH_IT - 1), None),
        ([10 * KIB] * WORTH_IT, TARGETS[0]),
        ([1] * WORTH_IT, TARGETS[0]),
        ([TARGETS[0]] * (WORTH_IT - 1) + [1], TARGETS[1]),
        ([MIB] * 64, TARGETS[2]),
        ([10 * KIB] * 200_000, TARGETS[2]),
        ([64 * MIB] * 1000, None),
        ([64 * MIB] * 1000 + [1] * (WORTH_IT - 1), None),
    ],
)
def test_files_are_compacted_when_many_are_small_and_to_what_they_fill(
    sizes: list[int], target: int | None
) -> None:
    """J3."""
    assert target_of(np.array(sizes, dtype=np.int64)) == target


def packed(sizes: list[int], target: int) -> tuple[list[int], int]:
    """As delta-rs does: files in their order into bins of the target; the new sizes, and bytes rewritten."""
    kept = [size for size in sizes if size > target]
    bins: list[list[int]] = [[]]
    for size in (size for size in sizes if size <= target):
        if sum(bins[-1]) + size > target:
            bins.append([])
        bins[-1].append(size)
    rewritten = sum(sum(each) for each in bins if len(each) > 1)
    return kept + [sum(each) for each in bins if each], rewritten


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
        if commit % 100 == 0 and (target := target_of(np.array(sizes))) is not None:
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


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a table is whose files are many when they are ten, and looked at with each checkpoint."""
    monkeypatch.setattr(compaction, "WORTH_IT", 10)
    monkeypatch.setattr(delta_table, "_COMPACT_EVERY", EVERY)
    return tmp_path / "orders"


def sink_of(path: Path, **more: Any) -> DeltaSink:
    sink = DeltaSink(path, sleep=lambda _: None, **more)
    sink.prepare(SCHEMA)
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": str(EVERY)})
    return sink


def run(sink: DeltaSink, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        run_batch(sink, {Q0: number + 1}, rows(Q0, number, number + 1), queues=[Q0])
        sink._table.upkeep.wait(_TIMEOUT_S)


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


def test_rows_of_one_key_are_merged_beside_it(path: Path) -> None:
    """H6."""
    sink = sink_of(path, merge_keys=("queueOffset",))
    run(sink, 4 * EVERY)
    run_batch(sink, {Q0: 4 * EVERY + 1}, rows(Q0, 4 * EVERY, 4 * EVERY + 1), queues=[Q0])

    assert files_of(path) < 4 * EVERY
    assert offsets_of(path) == list(range(4 * EVERY + 1))


def before_compacting(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do ``act`` once, after the files were looked at and before they are compacted."""
    real, acts = compaction.compact, [act]

    def late(table: DeltaTable, target: int) -> Any:
        if acts:
            acts.pop()()
        return real(table, target)

    monkeypatch.setattr(compaction, "compact", late)


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


def test_files_that_somebody_else_rewrites_meanwhile_are_left_for_the_next_time(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """J3: DELETE wins, and no batch hears of it."""
    sink = sink_of(path)
    before_compacting(monkeypatch, lambda: DeltaTable(path).delete("queueOffset < 3"))
    with caplog.at_level(logging.WARNING):
        run(sink, 3 * EVERY)

    assert "sink table not looked after, to be done later" in caplog.text
    assert offsets_of(path) == list(range(3, 3 * EVERY))
    run(sink, EVERY, first=3 * EVERY)
    assert files_of(path) < EVERY
    assert offsets_of(path) == list(range(3, 4 * EVERY))


def job(*arguments: str) -> int:
    return main(["tables", "compact", *arguments])


def test_a_command_compacts_on_demand(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """J3."""
    run(sink_of(path, compaction=False), EVERY)

    assert job("--option", f"table={path}") == 0
    assert f"{EVERY} files are 1 now" in capsys.readouterr().out
    assert (files_of(path), offsets_of(path)) == (1, list(range(EVERY)))


def test_a_command_refuses_what_it_must_not_compact(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DeltaOffsetStore(tmp_path / "offsets").claim(GROUP, "me", {Q0: 7})
    run(sink_of(path), 1)
    DeltaTable(path).alter.add_constraint({"positive": "queueOffset >= 0"})

    for table, why in (
        (tmp_path / "none", f"there is no Delta table at {tmp_path}/none; check option 'table'"),
        (tmp_path / "offsets", "is an offset table, which looks after itself"),
        (path, "has what delta-rs must not write: CHECK constraint positive; run OPTIMIZE in Spark"),
    ):
        assert job("--option", f"table={table}") == 2
        assert why in capsys.readouterr().err


def test_a_file_of_the_table_that_is_gone_ends_the_command_with_a_sentence(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(sink_of(path, compaction=False), 2)
    next(path.glob("*.parquet")).unlink()

    assert job("--option", f"table={path}") == 1
    assert f"The table {path} could not be compacted: " in capsys.readouterr().err
