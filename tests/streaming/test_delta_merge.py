"""A sink that keeps one row of each business key."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import OptionError, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.streaming.delta_merge import newest_rows
from pyspark_rocketmq.streaming.delta_sink import DeltaSink
from tests.helpers.sink_rows import GROUP, POSITION, Q0, Q1, batch_of, files_of, run_batch

SCHEMA = pa.schema([*POSITION, ("order id", pa.string()), ("step", pa.string())])
KEYS = ("order id",)


def run(
    sink: DeltaSink, acked: dict[MessageQueue, int], *rows: tuple[MessageQueue, int, str | None, str]
) -> int | None:
    """A micro-batch with rows of queue, offset, order and step."""
    return run_batch(sink, acked, *([batch_of(SCHEMA, rows)] if rows else []))


def steps(path: Path) -> list[tuple[str | None, str]]:
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(zip(table["order id"].to_pylist(), table["step"].to_pylist(), strict=True), key=str)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "the orders"


@pytest.fixture(params=[(), ("step",)], ids=["plain", "partitioned"])
def sink(path: Path, request: pytest.FixtureRequest) -> DeltaSink:
    sink = DeltaSink(path, merge_keys=KEYS, partition_by=request.param)
    sink.prepare(SCHEMA)
    return sink


def test_a_key_has_one_row_and_it_is_the_newest(sink: DeltaSink, path: Path) -> None:
    """H6: within a batch and from batch to batch."""
    run(sink, {Q0: 3}, (Q0, 0, "a", "created"), (Q0, 1, "b", "created"), (Q0, 2, "a", "paid"))
    assert steps(path) == [("a", "paid"), ("b", "created")]

    run(sink, {Q0: 5, Q1: 1}, (Q0, 3, "b", "paid"), (Q0, 4, "b", "packed"), (Q1, 0, "c", "created"))
    assert steps(path) == [("a", "paid"), ("b", "packed"), ("c", "created")]


def test_a_batch_that_runs_again_changes_nothing(sink: DeltaSink, path: Path) -> None:
    """H1, H6: rows below the watermark would bring back what newer ones have replaced."""
    run(sink, {Q0: 1}, (Q0, 0, "a", "created"))
    run(sink, {Q0: 2}, (Q0, 1, "a", "paid"))

    run(sink, {Q0: 2}, (Q0, 0, "a", "created"), (Q0, 1, "a", "paid"))

    assert steps(path) == [("a", "paid")]
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 2}


def test_who_comes_too_late_changes_nothing(sink: DeltaSink, path: Path) -> None:
    """H5: the watermarks of a merge fence as those of an append do."""
    other = pickle.loads(pickle.dumps(sink))
    other.prepare(SCHEMA)
    slow = sink.begin(GROUP, {Q0: 0})
    files = files_of(slow.task_writer(), iter([batch_of(SCHEMA, [(Q0, 0, "a", "slow")])]))
    run(other, {Q0: 1}, (Q0, 0, "a", "quick"))

    with pytest.raises(SinkMoved):
        slow.commit(files, {Q0: 1})

    assert steps(path) == [("a", "quick")]


def test_a_change_of_other_rows_in_between_does_no_harm(sink: DeltaSink, path: Path) -> None:
    """H2: a DELETE by somebody else."""
    run(sink, {Q0: 2}, (Q0, 0, "a", "created"), (Q0, 1, "b", "created"))
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([batch_of(SCHEMA, [(Q0, 2, "a", "paid")])]))
    DeltaTable(path).delete("\"order id\" = 'b'")

    batch.commit(files, {Q0: 3})

    assert steps(path) == [("a", "paid")]


def test_progress_without_rows_is_kept(sink: DeltaSink, path: Path) -> None:
    """H1: a range whose messages emitted nothing."""
    run(sink, {Q0: 5})

    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 5}
    assert steps(path) == []


def test_rows_without_a_whole_key_are_added(sink: DeltaSink, path: Path) -> None:
    """H6: null is equal to nothing; within one batch the newest of them stays."""
    run(sink, {Q0: 1}, (Q0, 0, None, "created"))
    run(sink, {Q0: 2}, (Q0, 1, None, "paid"))

    assert steps(path) == [(None, "created"), (None, "paid")]


def test_the_files_of_a_batch_are_gone_when_it_is_merged(sink: DeltaSink, path: Path) -> None:
    """H6: nothing is left for VACUUM."""
    run(sink, {Q0: 1}, (Q0, 0, "a", "created"))

    in_table = {Path(file).name for file in DeltaTable(path).file_uris()}
    assert {file.name for file in path.rglob("*.parquet")} == in_table


def test_a_key_that_is_no_column_is_refused_in_a_sentence(path: Path) -> None:
    with pytest.raises(
        OptionError, match="mergeKeys names order, which the rows do not have; they have topic"
    ):
        DeltaSink(path, merge_keys=["order"]).prepare(SCHEMA)


@given(
    st.lists(st.tuples(st.sampled_from([Q0, Q1]), st.integers(0, 20), st.sampled_from("abc")), max_size=40)
)
def test_the_newest_row_of_each_key(made: list[tuple[MessageQueue, int, str]]) -> None:
    """H6: whatever the order in which tasks bring them."""
    rows = [(queue, offset, key, f"{number}") for number, (queue, offset, key) in enumerate(made)]
    expected: dict[str, tuple[tuple[MessageQueue, int, int], str]] = {}
    for number, (queue, offset, key, step) in enumerate(rows):
        expected[key] = max(expected.get(key, ((Q0, -1, -1), "")), ((queue, offset, number), step))

    newest = newest_rows(pa.Table.from_batches([batch_of(SCHEMA, rows)], SCHEMA), KEYS)

    assert dict(zip(newest["order id"].to_pylist(), newest["step"].to_pylist(), strict=True)) == {
        key: step for key, (_, step) in expected.items()
    }
