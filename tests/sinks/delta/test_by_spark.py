"""Tables that delta-rs must not write take rows by Spark's own writer, with the same promises."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.errors import SinkConflict, SinkMoved
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.spark_writer import NameTarget, PathTarget
from tests.helpers.sink_rows import GROUP, Q0, Q1, batch_of, run_batch
from tests.sinks.group_conformance import Batch, GroupConformance
from tests.sinks.sink_conformance import SCHEMA, Stored, rows, run, written_by

pytestmark = pytest.mark.spark

_COLUMNS = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, step STRING"
_TABLES = {
    "constraint": "({columns}) USING delta",
    "column mapping": (
        "({columns}) USING delta PARTITIONED BY (step) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    ),
    "row tracking and clustering": (
        "({columns}) USING delta CLUSTER BY (queueOffset) TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    ),
    "computed columns": (
        "({columns}, loud STRING GENERATED ALWAYS AS (upper(step)), number BIGINT GENERATED ALWAYS AS "
        "IDENTITY) USING delta"
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "the {orders}"


@pytest.mark.long
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_watermarks_are_found_in_checkpoints_of_the_second_form(
    spark: SparkSession, path: Path, form: str
) -> None:
    """H1: a new group's start reads those of all groups."""
    spark.conf.set("spark.databricks.delta.checkpointV2.topLevelFileFormat", form)
    try:
        spark.sql(
            f"CREATE TABLE delta.`{path}` ({_COLUMNS}) USING delta TBLPROPERTIES ('delta.checkpointPolicy' "
            f"= 'v2', "
            "'delta.checkpointInterval' = '3')"
        )
        sink = prepared(path)
        run(sink, {Q0: 3}, rows(Q0, 0, 3))
        run(sink, {Q1: 2}, rows(Q1, 0, 2))
        for step in range(4):
            spark.sql(f"INSERT INTO delta.`{path}` VALUES ('t', 'b', 1, {step}, 'x')")
    finally:
        spark.conf.unset("spark.databricks.delta.checkpointV2.topLevelFileFormat")

    found = [one.name for one in (path / "_delta_log").glob(f"*.checkpoint.*-*.{form}")]
    assert found, "Spark has written no such checkpoint"
    assert prepared(path).watermarks(GROUP) == {QueueGeneration(Q0, 0): 3, QueueGeneration(Q1, 0): 2}


@pytest.fixture(scope="module")
def constrained(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty table with a constraint, to be copied: making one takes as long as three commits."""
    made = tmp_path_factory.mktemp("constrained") / "orders"
    make_table(spark, made, "constraint")
    return made


def make_table(spark: SparkSession, path: Path, kind: str) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` {_TABLES[kind].format(columns=_COLUMNS)}")
    if kind == "constraint":
        spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT known CHECK (step != 'unknown')")


def prepared(path: Path, schema: pa.Schema = SCHEMA, **more: Any) -> DeltaSink:
    sink = DeltaSink(path, sleep=lambda _: None, **more)
    sink.prepare(schema)
    return sink


def stored_in(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    found = spark.read.format("delta").load(str(path)).select("queueId", "queueOffset", "step").collect()
    return sorted(map(tuple, found))


@pytest.mark.long
class TestBySpark(GroupConformance):
    @pytest.fixture
    def sink(self, constrained: Path, path: Path) -> DeltaSink:
        shutil.copytree(constrained, path)
        return prepared(path)

    @pytest.fixture
    def stored(self, spark: SparkSession, path: Path) -> Stored:
        return lambda: stored_in(spark, path)


@pytest.mark.parametrize(
    "kind",
    [
        "column mapping",
        pytest.param("row tracking and clustering", marks=pytest.mark.long),
        pytest.param("computed columns", marks=pytest.mark.long),
    ],
)
def test_tables_of_every_kind_take_rows(spark: SparkSession, path: Path, kind: str) -> None:
    """H1, H2: another query goes on where the first one was,
    and nothing of a batch is left beside the table.
    """
    make_table(spark, path, kind)
    run(prepared(path), {Q0: 2}, rows(Q0, 0, 2))

    assert run(prepared(path), {Q0: 4, Q1: 1}, rows(Q0, 0, 4, "paid"), rows(Q1, 0, 1)) == 3

    assert stored_in(spark, path) == [
        (0, 0, "created"), (0, 1, "created"), (0, 2, "paid"), (0, 3, "paid"), (1, 0, "created"),
    ]  # fmt: skip
    staged = {file.name for file in path.glob("part-*.parquet")}
    assert staged <= {Path(name).name for name in spark.read.format("delta").load(str(path)).inputFiles()}


def test_a_row_that_breaks_a_constraint_ends_the_batch_and_leaves_nothing(
    spark: SparkSession, constrained: Path, path: Path
) -> None:
    """H1: by Delta's own judgement."""
    shutil.copytree(constrained, path)
    sink = prepared(path)

    with pytest.raises(SinkConflict, match="known"):
        run(sink, {Q0: 2}, rows(Q0, 0, 1), rows(Q0, 1, 2, "unknown"))

    assert stored_in(spark, path) == []
    assert run(sink, {Q0: 1}, rows(Q0, 0, 1)) == 1


def test_a_table_may_change_its_kind_and_keeps_its_watermarks(spark: SparkSession, path: Path) -> None:
    """H1, H2: files by delta-rs, then a constraint, then none: each row once,
    of queues that stood still too.
    """
    sink = prepared(path)
    run(sink, {Q0: 2, Q1: 1}, rows(Q0, 0, 2), rows(Q1, 0, 1))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT known CHECK (step != 'unknown')")
    assert run(sink, {Q0: 3}, rows(Q0, 0, 3)) == 1
    spark.sql(f"ALTER TABLE delta.`{path}` DROP CONSTRAINT known")

    assert run(sink, {Q0: 4}, rows(Q0, 0, 4)) == 1
    assert run(sink, {Q1: 2}, rows(Q1, 0, 2)) == 1

    assert [row[:2] for row in stored_in(spark, path)] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]


@pytest.mark.long
def test_a_queue_that_spark_s_commits_did_not_know_keeps_its_watermark(
    spark: SparkSession, path: Path
) -> None:
    """H1: rows of it came by files, and while the table had a constraint no batch named it."""
    sink = prepared(path)
    run(sink, {Q1: 2}, rows(Q1, 0, 2))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT known CHECK (step != 'unknown')")
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1), queues=[Q0])

    assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 0): 1, QueueGeneration(Q1, 0): 2}
    assert run(sink, {Q1: 3}, rows(Q1, 0, 3)) == 1
    DeltaSink(path).rewind(GROUP, {Q1: 0})
    assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 0): 1, QueueGeneration(Q1, 0): 0}


@pytest.mark.long
def test_a_group_that_stands_still_does_not_read_what_another_one_commits(
    spark: SparkSession, constrained: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is, and that there was no RESTORE, another group's newest commit tells."""
    shutil.copytree(constrained, path)
    run_batch(prepared(path), {Q0: 1}, rows(Q0, 0, 1))
    busy = prepared(path)
    for end in range(1, 5):
        run_batch(busy, {Q0: end}, rows(Q0, end - 1, end), group="another")
    read: list[int] = []

    commit_info = LogFiles.commit_info

    def counted(log: LogFiles, version: int) -> dict[str, Any] | None:
        read.append(version)
        return commit_info(log, version)

    monkeypatch.setattr(LogFiles, "commit_info", counted)

    assert prepared(path).begin(GROUP, {Q0: 0}).watermarks == {Q0: 1}

    assert read == [6, 2]
    spark.sql(f"RESTORE delta.`{path}` TO VERSION AS OF 3")
    with pytest.raises(SinkConflict, match="restored at version 7"):
        prepared(path).begin(GROUP, {Q0: 0})


def test_groups_are_added_once_each_whatever_their_outcome(
    spark: SparkSession, constrained: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: Spark's id counts the group's commits, also those of one batch; a lost answer is looked up."""
    shutil.copytree(constrained, path)
    batch = Batch(prepared(path))
    batch.consume(Q0, 0, 2)
    shared = batch.write(rows(Q0, 2, 4), rows(Q1, 0, 1))
    with monkeypatch.context() as away:
        lose_answers(away, PathTarget)
        with pytest.raises(SinkConflict, match="could not be committed"):
            batch.commit("group", {Q0: (2, 4), Q1: (0, 1)}, shared)

    for _ in range(2):
        batch.commit("group", {Q0: (2, 4), Q1: (0, 1)}, shared)
    run(prepared(path), {Q1: 2}, rows(Q1, 1, 2, "other"))
    with pytest.raises(SinkMoved) as refused:
        batch.commit("late", {Q1: (1, 2)}, batch.write(rows(Q1, 1, 2, "late")))
    batch.consume(Q0, 4, 5)

    assert refused.value.queues == {Q1}
    assert [row[:2] for row in stored_in(spark, path)] == [(0, at) for at in range(5)] + [(1, 0), (1, 1)]


def lose_answers(patch: pytest.MonkeyPatch, target: type[PathTarget | NameTarget]) -> None:
    """Let Spark's next commit arrive and fail; the log cannot be read then."""
    append = target.append
    calls = itertools.count()

    def append_and_fail(*arguments: Any) -> None:
        if next(calls) == 0:
            append(*arguments)
        raise DeltaError("the connection was reset")

    def unreachable(*_: Any) -> Any:
        raise DeltaError("storage does not answer")

    patch.setattr(target, "append", append_and_fail)
    patch.setattr(SinkLog, "find_commit", unreachable)


@pytest.mark.long
def test_rewinding_and_a_new_column(spark: SparkSession, constrained: Path, path: Path) -> None:
    """H1: an operator has rows written again; the listener's next release emits a column more."""
    shutil.copytree(constrained, path)
    run(prepared(path), {Q0: 3}, rows(Q0, 0, 3))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE queueOffset >= 1")
    schema = SCHEMA.append(pa.field("amount", pa.float64()))
    sink = prepared(path, schema, schema_evolution=True)

    sink.rewind(GROUP, {Q0: 1})
    run_batch(sink, {Q0: 3}, batch_of(schema, [(Q0, offset, "again", 1.5) for offset in range(3)]))

    found = spark.read.format("delta").load(str(path)).select("queueOffset", "step", "amount")
    expected = [(0, "created", None), (1, "again", 1.5), (2, "again", 1.5)]
    assert_df_equality(found, spark.createDataFrame(expected, found.schema), ignore_row_order=True)


@pytest.mark.parametrize("is_late", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_restore_while_a_batch_runs_is_noticed(
    spark: SparkSession, constrained: Path, path: Path, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, H7: before its rows are added, or by the next batch if it came while Spark added them."""
    shutil.copytree(constrained, path)
    sink = prepared(path)
    made_at = run_batch(sink, {Q0: 2}, rows(Q0, 0, 2))
    assert made_at is not None
    batch = sink.begin(GROUP, {Q0: 0})
    written = written_by(batch, rows(Q0, 2, 3))

    def restore() -> None:
        spark.sql(f"RESTORE delta.`{path}` TO VERSION AS OF {made_at - 1}")

    if is_late:
        append = PathTarget.append

        def append_late(*arguments: Any) -> None:
            restore()
            append(*arguments)

        monkeypatch.setattr(PathTarget, "append", append_late)
        assert batch.commit(written, {Q0: 3}) == made_at + 2
    else:
        restore()
        with pytest.raises(SinkConflict, match=f"restored at version {made_at + 1}, after"):
            batch.commit(written, {Q0: 3})

    assert len(stored_in(spark, path)) == is_late
    for one in (sink, prepared(path)):
        with pytest.raises(SinkConflict, match=f"restored at version {made_at + 1}"):
            one.begin(GROUP, {Q0: 0})


def test_a_session_that_passes_over_unreadable_files_loses_no_row(
    spark: SparkSession, constrained: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: rows that Spark cannot read back are not reported as stored, whatever it is set to."""
    shutil.copytree(constrained, path)
    sink = prepared(path)
    append = PathTarget.append

    def append_unreadable(*arguments: Any) -> None:
        for file in written:
            staged = path / file.path
            staged.write_bytes(b"x" * staged.stat().st_size)
        append(*arguments)

    batch = sink.begin(GROUP, {Q0: 0})
    written = written_by(batch, rows(Q0, 0, 2))
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(PathTarget, "append", append_unreadable)
            with pytest.raises(SinkConflict, match="could not be committed"):
                batch.commit(written, {Q0: 2})
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")

    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 0}
    assert run(sink, {Q0: 2}, rows(Q0, 0, 2)) == 2
