"""A sink that keeps one row of each business key."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_rocketmq.delta import snapshot
from pyspark_rocketmq.delta.ddl import columns_ddl
from pyspark_rocketmq.delta.merge import merge_rows, newest_rows
from pyspark_rocketmq.delta.paths import quoted_name
from pyspark_rocketmq.errors import OptionError, SchemaError, SinkConflict, SinkMoved
from pyspark_rocketmq.model import POSITION_COLUMNS, MessageQueue
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import GROUP, POSITION, Q0, Q1, batch_of, files_of, run_batch

SCHEMA = pa.schema([*POSITION, ("order-id", pa.string()), ("step", pa.string())])
KEYS = ("order-id",)


def run(
    sink: DeltaSink, acked: dict[MessageQueue, int], *rows: tuple[MessageQueue, int, str | None, str]
) -> int | None:
    """A micro-batch with rows of queue, offset, order and step."""
    return run_batch(sink, acked, *([batch_of(SCHEMA, rows)] if rows else []))


def steps(path: Path) -> list[tuple[str | None, str]]:
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(zip(table["order-id"].to_pylist(), table["step"].to_pylist(), strict=True), key=str)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "the orders"


@pytest.fixture(params=["plain", "partitioned", pytest.param("by Spark", marks=pytest.mark.spark)])
def sink(path: Path, request: pytest.FixtureRequest) -> DeltaSink:
    if request.param == "by Spark":
        make_for_spark(request.getfixturevalue("spark"), path, SCHEMA)
    sink = DeltaSink(path, merge_keys=KEYS, partition_by=["step"] if request.param == "partitioned" else [])
    sink.prepare(SCHEMA)
    return sink


def make_for_spark(
    spark: SparkSession, path: Path, schema: pa.Schema, partition_by: Sequence[str] = ()
) -> None:
    """Make a table that delta-rs can read, and that only Spark may write."""
    columns = columns_ddl(from_arrow_schema(schema).json())
    partitions = f"PARTITIONED BY ({', '.join(map(quoted_name, partition_by))})" if partition_by else ""
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta {partitions}")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT known CHECK (queueOffset >= 0)")


def test_a_key_has_one_row_and_it_is_the_newest(sink: DeltaSink, path: Path) -> None:
    """H6: within a batch and from batch to batch."""
    run(sink, {Q0: 3}, (Q0, 0, "a", "created"), (Q0, 1, "b", "created"), (Q0, 2, "a", "paid"))
    assert steps(path) == [("a", "paid"), ("b", "created")]

    run(sink, {Q0: 5, Q1: 1}, (Q0, 3, "b", "paid"), (Q0, 4, "b", "packed"), (Q1, 0, "c", "created"))
    assert steps(path) == [("a", "paid"), ("b", "packed"), ("c", "created")]


def test_the_two_zeros_are_one_key(tmp_path: Path) -> None:
    """H6: as for delta-rs, which refused to choose among rows of both."""
    schema = pa.schema([*POSITION, ("k", pa.float64()), ("step", pa.string())])
    sink = DeltaSink(tmp_path / "t", merge_keys=["k"])
    sink.prepare(schema)

    for at in (0, 2):
        run_batch(sink, {Q0: at + 2}, batch_of(schema, [(Q0, at, 0.0, "a"), (Q0, at + 1, -0.0, f"b{at}")]))

    table = DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert [(str(row["k"]), row["step"]) for row in table.to_pylist()] == [("0.0", "b2")]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.string()), pa.struct([("a", pa.string())]), pa.map_(pa.string(), pa.string())]
)
def test_a_key_of_several_values_is_refused_at_the_start(tmp_path: Path, kind: pa.DataType) -> None:
    """H6: not by the first batch."""
    sink = DeltaSink(tmp_path / "t", merge_keys=["k"])

    with pytest.raises(OptionError, match=r"merge key 'k' is .* cannot be a key"):
        sink.prepare(pa.schema([*POSITION, ("k", kind)]))
    assert not (tmp_path / "t").exists()


def test_a_partition_value_that_no_folder_can_have_is_reported(tmp_path: Path) -> None:
    """H6: delta-rs makes the folders of a merge."""
    schema = pa.schema([*POSITION, ("city", pa.string())])
    sink = DeltaSink(tmp_path / "t", merge_keys=["queueOffset"], partition_by=["city"])
    sink.prepare(schema)

    with pytest.raises(
        SchemaError, match=r"\(300 characters\) in partition column 'city', which is too long"
    ):
        run_batch(sink, {Q0: 1}, batch_of(schema, [(Q0, 0, "x" * 300)]))


def test_a_batch_that_runs_again_changes_nothing(sink: DeltaSink, path: Path) -> None:
    """H1, H6: rows below the watermark would bring back what newer ones have replaced."""
    run(sink, {Q0: 1}, (Q0, 0, "a", "created"))
    run(sink, {Q0: 2}, (Q0, 1, "a", "paid"))

    run(sink, {Q0: 2}, (Q0, 0, "a", "created"), (Q0, 1, "a", "paid"))

    assert steps(path) == [("a", "paid")]
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 2}


def test_a_writer_that_is_too_late_changes_nothing(sink: DeltaSink, path: Path) -> None:
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
    DeltaTable(path).delete("\"order-id\" = 'b'")

    batch.commit(files, {Q0: 3})

    assert steps(path) == [("a", "paid")]


BEATEN = 8
"""More often than a merge is tried after errors."""


def beaten(monkeypatch: pytest.MonkeyPatch, others: Callable[[int], object], times: int = BEATEN) -> None:
    """From now on each merge finds that ``others``, which gets 1, 2, …, was quicker, so many times."""
    left = iter(range(1, times + 1))

    def merge_second(*arguments: Any, **more: Any) -> None:
        number = next(left, None)
        if number is not None:
            with monkeypatch.context() as patched:
                patched.setattr(snapshot, "merge_rows", merge_rows)
                others(number)
        merge_rows(*arguments, **more)

    monkeypatch.setattr(snapshot, "merge_rows", merge_second)


def merging(path: Path) -> DeltaSink:
    sink = DeltaSink(path, merge_keys=KEYS, sleep=lambda _: pytest.fail("there was a pause"))
    sink.prepare(SCHEMA)
    return sink


def test_a_merge_goes_behind_all_merges_that_come_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H5, H6: another member of the group merges rows of the same keys without a pause."""
    sink, other = merging(path), merging(path)
    run(sink, {Q0: 1}, (Q0, 0, "a", "created"))
    beaten(monkeypatch, lambda end: run(other, {Q1: end}, (Q1, end - 1, "a", f"step {end}")))

    assert run(sink, {Q0: 2}, (Q0, 1, "a", "paid"), (Q0, 1, "b", "paid")) == BEATEN + 2

    assert steps(path) == [("a", "paid"), ("b", "paid")]
    assert sink.begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 2, Q1: BEATEN}


def test_a_merge_behind_a_change_of_the_table_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H5, H6: a column was added meanwhile."""
    sink = merging(path)
    run(sink, {Q0: 1}, (Q0, 0, "a", "created"))
    note = pa.schema([("note", pa.string())])
    beaten(monkeypatch, lambda _: snapshot.TableSnapshot(DeltaTable(path)).add_columns(note), times=1)

    with pytest.raises(SchemaError, match="only in the table: note string"):
        run(sink, {Q0: 2}, (Q0, 1, "a", "paid"))

    assert steps(path) == [("a", "created")]


def test_a_merge_that_nobody_was_quicker_than_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H6: delta-rs also refuses with this error what the table forbids."""
    paused_s: list[float] = []
    sink = DeltaSink(path, merge_keys=KEYS, sleep=paused_s.append)
    sink.prepare(SCHEMA)

    def forbidden(*_: object, **__: object) -> None:
        raise CommitFailedError("The table only takes new rows")

    monkeypatch.setattr(snapshot, "merge_rows", forbidden)

    with pytest.raises(SinkConflict, match=r"in 6 tries; the last error was: The table only takes new rows"):
        run(sink, {Q0: 1}, (Q0, 0, "a", "created"))
    assert len(paused_s) == 5


def test_progress_without_rows_is_kept(sink: DeltaSink, path: Path) -> None:
    """H1: a range whose messages emitted nothing."""
    run(sink, {Q0: 5})

    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 5}
    assert steps(path) == []


@pytest.mark.parametrize("is_one_batch", [True, False], ids=["one batch", "a batch each"])
def test_rows_without_a_whole_key_are_added(sink: DeltaSink, path: Path, *, is_one_batch: bool) -> None:
    """H6: null is equal to nothing, itself included."""
    made = [(Q0, 0, None, "created"), (Q0, 1, "a", "created"), (Q0, 2, None, "paid"), (Q0, 3, None, "paid")]
    if is_one_batch:
        run(sink, {Q0: 4}, *made)
    else:
        for row in made:
            run(sink, {Q0: row[1] + 1}, row)

    assert steps(path) == [("a", "created"), (None, "created"), (None, "paid"), (None, "paid")]


REGIONS = pa.schema([*POSITION, ("region", pa.string()), ("order-id", pa.string()), ("step", pa.string())])


@pytest.mark.parametrize("is_one_batch", [True, False], ids=["one batch", "a batch each"])
@pytest.mark.parametrize("partition_by", [(), ("region",), ("region", "order-id")], ids="+".join)
@pytest.mark.parametrize("region", ["", "__HIVE_DEFAULT_PARTITION__", "eu/south é%20'\""])
def test_a_key_has_one_row_whatever_text_a_partition_column_has(
    path: Path, partition_by: tuple[str, ...], region: str, *, is_one_batch: bool
) -> None:
    """H6: Delta keeps "" there as null, and delta-rs the name of the folder of nulls."""
    sink = DeltaSink(path, merge_keys=["region", "order-id"], partition_by=partition_by)
    sink.prepare(REGIONS)
    made = [
        (Q0, number, place, order, step)
        for number, (place, order, step) in enumerate(
            (place, order, step)
            for step in ("created", "paid")
            for place, order in ((region, "1"), (region, "2"), ("asia", "1"))
        )
    ]
    for several in [made] if is_one_batch else [[row] for row in made]:
        run_batch(sink, {Q0: several[-1][1] + 1}, batch_of(REGIONS, several))

    table = DeltaTable(path).to_pyarrow_table()
    kept = region if not partition_by or region.startswith("eu") else None
    found = zip(*(table[name].to_pylist() for name in ("region", "order-id", "step")), strict=True)
    assert sorted(found, key=str) == sorted(
        [("asia", "1", "paid"), (kept, "1", "paid"), (kept, "2", "paid")], key=str
    )


def test_rows_without_a_whole_key_stay_where_the_null_is_in_a_partition_column(path: Path) -> None:
    """H6"""
    sink = DeltaSink(path, merge_keys=["region", "order-id"], partition_by=["region"])
    sink.prepare(REGIONS)
    for offset in range(3):
        rows = [(Q0, offset, None, "1", f"{offset}"), (Q0, offset, "eu", "1", f"{offset}")]
        run_batch(sink, {Q0: offset + 1}, batch_of(REGIONS, rows))

    assert [step for _, step in steps(path)] == ["0", "1", "2", "2"]


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
    st.lists(
        st.tuples(st.sampled_from([Q0, Q1]), st.integers(0, 20), st.sampled_from(["a", "b", "", None])),
        max_size=40,
    )
)
def test_the_newest_row_of_each_key(made: list[tuple[MessageQueue, int, str | None]]) -> None:
    """H6: whatever the order in which tasks bring them; a null is no key, so all of its rows stay."""
    rows = [(queue, offset, key, f"{number}") for number, (queue, offset, key) in enumerate(made)]
    newest: dict[str, tuple[tuple[MessageQueue, int, int], str]] = {}
    for number, (queue, offset, key, step) in enumerate(rows):
        if key is not None:
            newest[key] = max(newest.get(key, ((Q0, -1, -1), "")), ((queue, offset, number), step))

    found = newest_rows(pa.Table.from_batches([batch_of(SCHEMA, rows)], SCHEMA), KEYS, POSITION_COLUMNS)

    assert sorted(
        zip(found["order-id"].to_pylist(), found["step"].to_pylist(), strict=True), key=str
    ) == sorted(
        [
            *((key, step) for key, (_, step) in newest.items()),
            *((None, row[3]) for row in rows if row[2] is None),
        ],
        key=str,
    )


def test_the_newest_rows_may_have_more_than_two_gibibytes_of_text() -> None:
    """H6: Arrow's take() refuses such a column. The texts are the same memory, ten times."""
    keys, texts = pa.array([str(number) for number in range(900)]), pa.array(["x" * 240_000] * 900)
    offsets = pa.array(range(900))
    piece = pa.table({"order-id": keys, "queueOffset": offsets, "step": texts})

    found = newest_rows(pa.concat_tables([piece] * 10), ["order-id"], ["queueOffset"])

    assert sorted(found["queueOffset"].to_pylist()) == list(range(900))


@pytest.mark.spark
def test_spark_keeps_the_row_of_each_key_that_delta_rs_keeps(spark: SparkSession, tmp_path: Path) -> None:
    """H6, J5: in a partition column, too, where Delta keeps some texts as null; the two zeros are one key."""
    schema = pa.schema([*REGIONS, ("number", pa.float64())])
    keys = ["region", "order-id", "number"]
    make_for_spark(spark, tmp_path / "Spark", schema, ["region"])
    sinks = {
        by: DeltaSink(tmp_path / by, merge_keys=keys, partition_by=["region"]) for by in ("Spark", "delta-rs")
    }
    for sink in sinks.values():
        sink.prepare(schema)
    regions = ["", "__HIVE_DEFAULT_PARTITION__", "eu/south é%20'\"", None]
    draw = Random(7)
    for first in (0, 60):
        rows = [
            (
                draw.choice([Q0, Q1]),
                # A message may emit several rows, and tasks bring them in any order.
                first + draw.randrange(60),
                draw.choice(regions),
                draw.choice(["1", "2", None]),
                f"{number}",
                draw.choice([0.0, -0.0, 1.5]),
            )
            for number in range(first, first + 60)
        ]
        for sink in sinks.values():
            halves = [batch_of(schema, rows[:30]), batch_of(schema, rows[30:])]
            run_batch(sink, {Q0: first + 60, Q1: first + 60}, *halves)

    by_spark, by_delta_rs = (
        sorted(DeltaTable(tmp_path / by).to_pyarrow_table().to_pylist(), key=lambda row: int(row["step"]))
        for by in sinks
    )
    assert by_spark == by_delta_rs
    assert {row["region"] for row in by_spark} == {None, regions[2]}
