"""The parts of the latency benchmark that need no broker."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from bench.__main__ import main
from bench.contenders import Times
from bench.feeder import due_times, each_send
from bench.row_times import COMMITTED, rows_with_times


def test_a_row_has_the_time_of_the_commit_that_added_it(tmp_path: Path) -> None:
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"stored": [number, number], "other": ["a", "b"]}), mode="append")

    rows = rows_with_times(tmp_path, ["stored"])

    at_ms = {commit["version"]: commit["timestamp"] for commit in DeltaTable(tmp_path).history()}
    assert rows.column_names == ["stored", COMMITTED]
    assert rows["stored"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert rows[COMMITTED].to_pylist() == [at_ms[version] for version in (0, 0, 1, 1, 2, 2)]

    DeltaTable(tmp_path).optimize.compact()

    assert DeltaTable(tmp_path).version() == 3
    assert rows_with_times(tmp_path, ["stored"]).equals(rows)


def test_only_messages_stored_within_the_measured_time_count() -> None:
    times = Times(
        np.array([10.0, 20, 30, 40]), np.array([11.9, 23, 30.2, 41]), np.array([100.0, 101, 102, 103])
    )

    counted = times.between(20, 40)

    assert counted.to_listener().tolist() == [3, 0]
    assert counted.to_row().tolist() == [81, 72]
    assert Times(times.stored, times.heard, None).between(20, 40).to_row().tolist() == []


@pytest.mark.parametrize(("per_second", "each"), [(10, 1), (100, 1), (1000, 10), (10_000, 50)])
def test_a_send_has_as_many_messages_as_make_a_hundred_sends_a_second_at_most_fifty(
    per_second: int, each: int
) -> None:
    assert each_send(per_second) == each


def test_threads_take_turns_at_an_even_pace() -> None:
    threads = [list(itertools.islice(due_times(5.0, index, 4, 0.25), 3)) for index in range(4)]

    assert sorted(itertools.chain.from_iterable(threads)) == [5.0 + 0.25 * number for number in range(12)]
    assert threads[1] == [5.25, 6.25, 7.25]


def test_a_contender_that_is_unknown_is_refused() -> None:
    done = CliRunner().invoke(main, ["latency", "--only", "java,kafka"])

    assert done.exit_code == 2
    assert "unknown: kafka; choose from real-time, postgres, java" in done.output
