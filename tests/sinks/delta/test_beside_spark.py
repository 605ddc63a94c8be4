"""The sink's table as Spark's Delta sees it, and other writers of it between our commits."""

from __future__ import annotations

from pathlib import Path

import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_rocketmq.cli.main import main
from pyspark_rocketmq.delta import compaction
from pyspark_rocketmq.delta.compaction import compact
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.table import query_rows
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import Q0, Q1, run_batch
from tests.sinks.sink_conformance import SCHEMA, rows, steps_of, written_by

pytestmark = pytest.mark.spark

PAYMENTS = MessageQueue("payments", "broker-b", 7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "the orders"


@pytest.fixture
def partitioned(path: Path) -> Path:
    DeltaSink(path, partition_by=["step"]).prepare(SCHEMA)
    return path


def prepared(path: Path) -> DeltaSink:
    sink = DeltaSink(path, sleep=lambda _: None)
    sink.prepare(SCHEMA)
    return sink


def parquet_files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*.parquet") if "_delta_log" not in file.parts}


def test_other_writers_in_between_cost_no_row_and_double_none(spark: SparkSession, partitioned: Path) -> None:
    """H1, H5: OPTIMIZE, DELETE, an append of Spark's, and a second query of another group and topic."""
    path, table = partitioned, f"delta.`{partitioned}`"
    sink, second = prepared(path), prepared(path)
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    begun = sink.begin("order-etl", {Q0: 0, Q1: 0})
    written = written_by(begun, rows(Q0, 3, 5), rows(Q1, 0, 2, "paid"))

    spark.sql(f"OPTIMIZE {table}")
    spark.sql(f"DELETE FROM {table} WHERE queueId = 0 AND queueOffset = 1")
    foreign = spark.createDataFrame([("other", "x", 9, 99, "foreign")], spark.table(table).schema)
    foreign.write.format("delta").mode("append").save(str(path))
    run_batch(second, {PAYMENTS: 4}, rows(PAYMENTS, 3, 4, "paid"), queues=[PAYMENTS], group="payments-etl")

    begun.commit(written, {Q0: 5, Q1: 2})
    run_batch(sink, {Q0: 6}, rows(Q0, 0, 6))

    expected = [
        *[(0, offset, "created") for offset in (0, 2, 3, 4, 5)],
        *[(1, offset, "paid") for offset in (0, 1)],
        (7, 3, "paid"),
        (9, 99, "foreign"),
    ]
    found = spark.table(table).select("queueId", "queueOffset", "step")
    assert_df_equality(found, spark.createDataFrame(expected, found.schema), ignore_row_order=True)
    assert steps_of(DeltaTable(path).to_pyarrow_table()) == expected


def test_spark_reads_what_our_commits_say_of_themselves(spark: SparkSession, partitioned: Path) -> None:
    """J3: beside Spark's own, where a table has every feature that our commits may be made in."""
    path, table = partitioned, f"delta.`{partitioned}`"
    properties = {
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": "true",
        "delta.checkpointPolicy": "v2",
        "delta.checkpointInterval": "3",
        "delta.appendOnly": "false",
    }
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({listed})")
    sink = prepared(path)
    run_batch(sink, {Q0: 4}, rows(Q0, 0, 4, "a b/ä%20"))
    spark.sql(f"DELETE FROM {table} WHERE queueOffset = 1")
    run_batch(sink, {Q0: 6}, rows(Q0, 4, 6))

    history = spark.sql(f"DESCRIBE HISTORY {table}").orderBy("version").collect()
    ours = [entry for entry in history if str(entry.engineInfo).startswith("pyspark-rocketmq/")]
    assert [(entry.version, entry.operation) for entry in ours] == [(2, "WRITE"), (4, "WRITE")]
    assert all(entry.isBlindAppend and "rocketmqCommit" in entry.userMetadata for entry in ours)
    assert ours[0].operationParameters == {"mode": "Append", "partitionBy": '["step"]'}
    changes = spark.sql(f"SELECT * FROM table_changes('{table}', 2)")
    assert sorted(map(tuple, changes.select("queueOffset", "_change_type", "_commit_version").collect())) == [
        (0, "insert", 2), (1, "delete", 3), (1, "insert", 2), (2, "insert", 2), (3, "insert", 2),
        (4, "insert", 4), (5, "insert", 4),
    ]  # fmt: skip
    found = spark.table(table).orderBy("queueOffset").select("queueOffset", "step").collect()
    assert [tuple(row) for row in found] == [
        *((at, "a b/ä%20") for at in (0, 2, 3)), (4, "created"), (5, "created"),
    ]  # fmt: skip


def test_rows_that_spark_has_deleted_beside_their_files_stay_deleted(
    spark: SparkSession, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """J3, H1: compaction leaves a table with deletion vectors to Spark's OPTIMIZE."""
    monkeypatch.setattr(compaction, "MIN_SMALL_FILES", 2)
    sink, table = prepared(path), f"delta.`{path}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    for number in range(4):
        run_batch(sink, {Q0: 3 * number + 3}, rows(Q0, 3 * number, 3 * number + 3))
    spark.sql(f"DELETE FROM {table} WHERE queueOffset IN (1, 5)")
    left = [0, 2, 3, 4, *range(6, 12)]

    sink._table._compact()
    assert main(["tables", "compact", "--option", f"table={path}"]) == 2

    assert ", which has deletionVectors; run OPTIMIZE delta.`" in capsys.readouterr().err
    for _ in range(2):
        assert [row.queueOffset for row in spark.table(table).orderBy("queueOffset").collect()] == left
        found = query_rows(DeltaTable(path), 'SELECT "queueOffset" FROM rows ORDER BY "queueOffset"')
        assert found.column(0).to_pylist() == left
        spark.sql(f"OPTIMIZE {table}")


def test_files_of_a_batch_that_was_killed_go_with_vacuum_and_no_others(
    spark: SparkSession, partitioned: Path
) -> None:
    """H1: by Spark's VACUUM, as of the retention it is given."""
    path = partitioned
    sink = prepared(path)
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    kept = parquet_files(path)
    written_by(sink.begin("order-etl", {Q0: 0}), rows(Q0, 3, 5), rows(Q0, 5, 6, "paid"))
    assert parquet_files(path) > kept

    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # VACUUM lists the folder in this many tasks, 10,000 by default.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    finally:
        for name in settings:
            spark.conf.unset(name)

    assert parquet_files(path) == kept
    run_batch(sink, {Q0: 6}, rows(Q0, 3, 6))
    assert len(steps_of(DeltaTable(path).to_pyarrow_table())) == 6


def test_spark_skips_files_by_the_statistics(spark: SparkSession, path: Path) -> None:
    """H1: of ten commits one has the offset asked for; also by text, and by what is not null."""
    sink = prepared(path)
    for at in range(10):
        run_batch(sink, {Q0: 10 * at + 10}, rows(Q0, 10 * at, 10 * at + 10, f"step-{at}"))
    frame = spark.read.format("delta").load(str(path))

    def files(condition: str) -> int:
        return len(frame.where(condition).inputFiles())

    assert files("queueOffset = 42") == 1
    assert files("queueOffset >= 85") == 2
    assert files("step = 'step-3'") == 1
    assert files("step IS NULL") == 0
    assert files("queueId = 0") == 10
    assert frame.where("queueOffset = 42").count() == 1


def test_spark_reads_and_optimizes_what_was_compacted(spark: SparkSession, path: Path) -> None:
    """J3: now, as of an earlier version, and by statistics."""
    sink = prepared(path)
    for at in range(10):
        run_batch(sink, {Q0: 10 * at + 10}, rows(Q0, 10 * at, 10 * at + 10, f"step-{at}"))
    compact(DeltaTable(path), LogFiles(str(path)))
    run_batch(sink, {Q0: 110}, rows(Q0, 100, 110, "last"))

    frame = spark.read.format("delta").load(str(path))
    assert (frame.count(), frame.where("queueOffset = 42").count()) == (110, 1)
    assert len(frame.inputFiles()) == 2
    assert len(frame.where("queueOffset >= 100").inputFiles()) == 1
    assert spark.read.format("delta").option("versionAsOf", 9).load(str(path)).count() == 90
    spark.sql(f"OPTIMIZE delta.`{path}`")
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").orderBy("version").collect()
    assert [entry.operation for entry in history[-3:]] == ["OPTIMIZE", "WRITE", "OPTIMIZE"]
    assert spark.read.format("delta").load(str(path)).count() == 110
