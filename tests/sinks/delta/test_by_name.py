"""Tables that a catalog names: each row once, whatever features they have and whoever keeps their commits."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from pyspark_rocketmq.errors import (
    OffsetError,
    OptionError,
    SchemaError,
    SinkConflict,
    SinkMoved,
    SinkSetBack,
)
from pyspark_rocketmq.model import QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.sinks.against_offsets import check_has_all, recorded_sinks
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.delta import spark_writer
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.spark_merge import merge_rows
from pyspark_rocketmq.sinks.delta.spark_writer import NameTarget
from pyspark_rocketmq.sinks.multi import MultiSink
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import GROUP, Q0, Q1, batch_of, run_batch
from tests.sinks.delta.test_by_spark import lose_answers
from tests.sinks.group_conformance import Batch, GroupConformance
from tests.sinks.sink_conformance import SCHEMA, Stored, rows, run, written_by

pytestmark = pytest.mark.spark

_COLUMNS = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, step STRING"
_KINDS = {
    "nothing special": "",
    "column mapping": "PARTITIONED BY (step) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    "clustering and row tracking": (
        "CLUSTER BY (queueOffset) TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    ),
    "deletion vectors": "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "catalog-managed commits": "TBLPROPERTIES ('delta.feature.catalogManaged' = 'supported')",
}
_EACH_KIND = pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "catalog-managed commits" else pytest.param(kind, marks=pytest.mark.long)
        for kind in _KINDS
    ],
)
_COMPUTED = ", loud STRING GENERATED ALWAYS AS (upper(step)), number BIGINT GENERATED ALWAYS AS IDENTITY"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def schema_name(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE DATABASE IF NOT EXISTS shop")
    yield "shop"
    spark.sql("DROP DATABASE shop CASCADE")


@pytest.fixture
def name(schema_name: str) -> str:
    return f"`spark_catalog`.{schema_name}.orders_{next(_numbers)}"


def make_table(spark: SparkSession, name: str, kind: str = "nothing special", more: str = "") -> None:
    create = f"CREATE TABLE {name} ({_COLUMNS}{more}) USING delta {_KINDS[kind]}"
    if "catalogManaged" not in create:
        spark.sql(create)
        return
    # Delta's own coordinator of commits, in memory, for which it wants to be tested.
    jvm: Any = spark._jvm
    coordinators = jvm.org.apache.spark.sql.delta.coordinatedcommits
    provider = coordinators.CatalogOwnedCommitCoordinatorProvider
    if provider.getBuilder("spark_catalog").isEmpty():  # It is kept as long as the session's JVM.
        provider.registerBuilder("spark_catalog", coordinators.InMemoryCommitCoordinatorBuilder(3))
    jvm.java.lang.System.setProperty("spark.testing", "true")
    try:
        spark.sql(create)
    finally:
        jvm.java.lang.System.clearProperty("spark.testing")


def prepared(name: str, schema: pa.Schema = SCHEMA, **more: Any) -> DeltaSink:
    sink = DeltaSink(name, sleep=lambda _: None, **more)
    sink.prepare(schema)
    return sink


def stored_in(spark: SparkSession, name: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.table(name).select("queueId", "queueOffset", "step").collect()))


def location_of(spark: SparkSession, name: str) -> Path:
    [detail] = spark.sql(f"DESCRIBE DETAIL {name}").collect()
    return Path(detail["location"].removeprefix("file:"))


@pytest.mark.long
class TestByName(GroupConformance):
    @pytest.fixture
    def sink(self, name: str) -> DeltaSink:
        return prepared(name)

    @pytest.fixture
    def stored(self, spark: SparkSession, name: str) -> Stored:
        return lambda: stored_in(spark, name)


@_EACH_KIND
def test_tables_of_every_kind_take_rows_by_their_name(spark: SparkSession, name: str, kind: str) -> None:
    """J5, H1, H2: another query goes on where the first one was, beside a Spark that writes, too."""
    make_table(spark, name, kind)
    run(prepared(name), {Q0: 2}, rows(Q0, 0, 2))
    sink = prepared(name)
    batch = sink.begin(GROUP, {Q0: 0, Q1: 0})
    written = written_by(batch, rows(Q0, 2, 4, "paid"), rows(Q1, 0, 1))
    spark.sql(f"INSERT INTO {name} VALUES ('t', 'b', 9, 9, 'other')")

    batch.commit(written, {Q0: 4, Q1: 1})

    found = [
        (0, 0, "created"), (0, 1, "created"), (0, 2, "paid"), (0, 3, "paid"), (1, 0, "created"),
        (9, 9, "other"),
    ]  # fmt: skip
    assert stored_in(spark, name) == found
    assert run(prepared(name), {Q0: 4, Q1: 1}, rows(Q0, 0, 4, "again"), rows(Q1, 0, 1)) == 0
    assert stored_in(spark, name) == found
    spark.sql(f"DELETE FROM {name} WHERE queueId = 9")
    folder = location_of(spark, name)
    left = {file.name for file in folder.glob("*.parquet")}
    live = {Path(file).name for file in spark.table(name).inputFiles()}
    assert not [file for file in left - live if not file.startswith("part-0")], "staged rows are removed"


def test_groups_are_added_once_each_whatever_their_outcome(
    spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5, H1: the history shows whether a commit was made whose answer was lost."""
    batch = Batch(prepared(name))
    batch.consume(Q0, 0, 2)
    written = batch.write(rows(Q0, 2, 4), rows(Q1, 0, 1))
    with monkeypatch.context() as away:
        lose_answers(away, NameTarget)
        with pytest.raises(SinkConflict, match="could not be committed"):
            batch.commit("group", {Q0: (2, 4), Q1: (0, 1)}, written)

    for _ in range(2):
        batch.commit("group", {Q0: (2, 4), Q1: (0, 1)}, written)
    batch.consume(Q0, 4, 5)

    assert [row[:2] for row in stored_in(spark, name)] == [(0, at) for at in range(5)] + [(1, 0)]


@_EACH_KIND
def test_rows_are_merged_by_their_key(spark: SparkSession, name: str, kind: str) -> None:
    """H6, J5: within a batch and from batch to batch; settings of the session stay as they are."""
    make_table(spark, name, kind)
    sink = prepared(name, merge_keys=["step"])
    before = spark.conf.getAll

    run_batch(sink, {Q0: 3}, batch_of(SCHEMA, [(Q0, 0, "a"), (Q0, 1, "b"), (Q0, 2, "a")]))
    run_batch(sink, {Q0: 4, Q1: 1}, batch_of(SCHEMA, [(Q0, 3, "b"), (Q1, 0, "c")]))
    run_batch(sink, {Q0: 4, Q1: 1}, batch_of(SCHEMA, [(Q0, 0, "a"), (Q1, 0, "c")]))

    assert stored_in(spark, name) == [(0, 2, "a"), (0, 3, "b"), (1, 0, "c")]
    assert prepared(name).begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 4, Q1: 1}
    assert spark.conf.getAll == before
    assert not spark.catalog.tableExists("rocketmq_rows")


def test_a_merge_whose_answer_is_lost_is_made_once(
    spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, J5."""
    make_table(spark, name)
    merges: list[str] = []

    def merge_and_fail(*arguments: Any, **more: Any) -> None:
        merge_rows(*arguments, **more)
        merges.append(name)
        raise DeltaError("the connection was reset")

    monkeypatch.setattr(spark_writer, "merge_rows", merge_and_fail)

    run_batch(prepared(name, merge_keys=["step"]), {Q0: 2}, batch_of(SCHEMA, [(Q0, 0, "a"), (Q0, 1, "a")]))

    assert len(merges) == 1
    assert stored_in(spark, name) == [(0, 1, "a")]


@pytest.mark.long
def test_computed_columns_are_left_to_delta(spark: SparkSession, name: str) -> None:
    """J5: Spark does not tell which they are; a watermark without rows names none of them."""
    make_table(spark, name, more=_COMPUTED)
    sink = prepared(name)
    run(sink, {Q0: 2}, rows(Q0, 0, 2))
    sink.rewind(GROUP, {Q0: 1})
    run(sink, {Q0: 2}, rows(Q0, 1, 2, "again"))

    found = spark.table(name).select("queueOffset", "loud").collect()
    assert sorted(map(tuple, found)) == [(0, "CREATED"), (1, "AGAIN"), (1, "CREATED")]


def test_a_missing_table_is_made_and_belongs_to_the_catalog(
    spark: SparkSession, name: str, schema_name: str
) -> None:
    """J5: with the rows' columns, not null where they are; a name of two parts is of the current catalog."""
    schema = SCHEMA.set(4, pa.field("step", pa.string(), nullable=False))
    short = name.removeprefix("`spark_catalog`.")
    sink = prepared(short, schema, partition_by=["step"])

    run_batch(sink, {Q0: 1}, batch_of(schema, [(Q0, 0, "created")]))

    [detail] = spark.sql(f"DESCRIBE DETAIL {name}").collect()
    assert detail["partitionColumns"] == ["step"]
    assert not spark.table(name).schema["step"].nullable
    assert stored_in(spark, name) == [(0, 0, "created")]
    assert detail["id"] == sink.place
    with pytest.raises(OptionError, match="name each Delta table once"):
        MultiSink([DeltaSink(short), DeltaSink(name)]).prepare(schema)
    with pytest.raises(OptionError, match=r"there is no table .*SCHEMA_NOT_FOUND.*Create the schema"):
        prepared("spark_catalog.nowhere.orders")


def test_a_restore_is_noticed_and_followed(spark: SparkSession, name: str) -> None:
    """J7, H7: only by the name."""
    make_table(spark, name)
    sink = prepared(name)
    for end in (1, 2, 3):
        run(sink, {Q0: end}, rows(Q0, end - 1, end))
    store = MemoryOffsetStore("restored by name", clock=FakeClock())
    store.claim(GROUP, "me", {Q0: 0})
    store.reset(GROUP, {Q0: 3})
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 2")

    with pytest.raises(SinkConflict, match=r"was restored at version 4.*follow_restore"):
        prepared(name).begin(GROUP, {Q0: 0})
    assert prepared(name).follow_restore(GROUP, store) == {Q0: 2}

    assert store.read(GROUP)[Q0].next_offset == 2
    assert run(prepared(name), {Q0: 3}, rows(Q0, 0, 3, "again")) == 1
    assert [step for *_, step in stored_in(spark, name)] == ["created", "created", "again"]


@pytest.mark.long
@pytest.mark.parametrize("is_late", [False, True])
def test_a_restore_while_a_batch_runs_is_noticed(
    spark: SparkSession, name: str, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, H7: before its rows are added, or by the next batch if it came while Spark added them; each row is
    there once when it is followed.
    """
    make_table(spark, name)
    sink = prepared(name)
    run(sink, {Q0: 2}, rows(Q0, 0, 2))
    store = MemoryOffsetStore(f"restored {name}", clock=FakeClock())
    batch = sink.begin(GROUP, {Q0: 0})
    written = written_by(batch, rows(Q0, 2, 3))

    def restore(version: int) -> None:
        spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {version}")

    if is_late:
        append = NameTarget.append

        def append_late(*arguments: Any) -> None:
            restore(0)
            append(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(NameTarget, "append", append_late)
            assert batch.commit(written, {Q0: 3}) == 3
        with pytest.raises(OffsetError, match="Restore version 2 first"):
            sink.follow_restore(GROUP, store)
    else:
        restore(0)
        with pytest.raises(SinkConflict, match="restored at version 2, after"):
            batch.commit(written, {Q0: 3})

    for one in (sink, prepared(name)):
        with pytest.raises(SinkConflict, match="restored at version 2"):
            one.begin(GROUP, {Q0: 0})
    if is_late:
        restore(2)
    assert sink.follow_restore(GROUP, store) == {Q0: 0}
    run(sink, {Q0: 3}, rows(Q0, 0, 3))
    assert [offset for _, offset, _ in stored_in(spark, name)] == [0, 1, 2]


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param("DROP TABLE {name}; CREATE TABLE {name} ({columns}) USING delta", id="dropped"),
        pytest.param("REPLACE TABLE {name} ({columns}) USING delta", id="replaced", marks=pytest.mark.long),
    ],
)
def test_a_table_made_again_under_its_name_is_noticed(
    spark: SparkSession, name: str, statements: str
) -> None:
    """J7: in the middle of a batch, by the query that runs, and by the next one."""
    make_table(spark, name)
    sink = prepared(name)
    run(sink, {Q0: 2}, rows(Q0, 0, 2))
    batch = sink.begin(GROUP, {Q0: 0, Q1: 0})
    store = MemoryOffsetStore(f"again {name}", clock=FakeClock())
    [row] = store.claim(GROUP, "me", {Q0: 0}).values()
    state = QueueState(2, row.epoch)
    passed = QueueCommit(queue=Q0, state=state, sinks=recorded_sinks(batch.standings))
    store.commit(GROUP, [passed], query_id="q", batch_id=1)
    written = written_by(batch, rows(Q0, 2, 3))
    for statement in statements.format(name=name, columns=_COLUMNS).split(";"):
        spark.sql(statement)

    with pytest.raises(SinkMoved, match="was deleted, created again or put back"):
        batch.commit(written, {Q0: 3})
    after = DeltaSink(name).standings(GROUP, {Q0: 0})
    with pytest.raises(SinkSetBack, match=r"the sink is now another table .*pyspark_rocketmq\.reset_to_sink"):
        check_has_all(GROUP, store.read(GROUP), after, store="memory:again")
    if "REPLACE" not in statements:
        assert sink.begin(GROUP, {Q0: 0}).standings == after
    assert stored_in(spark, name) == []
    spark.sql(f"DROP TABLE {name}")
    with pytest.raises(SchemaError, match="There is no Delta table at spark_catalog"):
        sink.begin(GROUP, {Q0: 0})
    with pytest.raises(SinkSetBack, match="the sink is not there any more"):
        check_has_all(
            GROUP, store.read(GROUP), DeltaSink(name).standings(GROUP, {Q0: 0}), store="memory:again"
        )


def test_a_table_that_was_replaced_gets_its_rows_again(spark: SparkSession, name: str) -> None:
    """J5, H1: its history still has the watermarks of rows that are gone."""
    make_table(spark, name)
    sink = prepared(name)
    run(sink, {Q0: 2}, rows(Q0, 0, 2))
    store = MemoryOffsetStore(f"replaced {name}", clock=FakeClock())
    store.claim(GROUP, "me", {Q0: 0})
    store.reset(GROUP, {Q0: 2})
    spark.sql(f"CREATE OR REPLACE TABLE {name} USING delta AS SELECT * FROM {name} WHERE queueOffset > 1")

    for one in (sink, prepared(name)):
        with pytest.raises(SinkConflict, match=r"was replaced at version 2, after .*follow_restore"):
            one.begin(GROUP, {Q0: 0})
    assert sink.follow_restore(GROUP, store) == {Q0: 0}

    run(prepared(name), {Q0: 3}, rows(Q0, 0, 3))
    assert store.read(GROUP)[Q0].next_offset == 0
    assert [offset for _, offset, _ in stored_in(spark, name)] == [0, 1, 2]


@pytest.mark.long
def test_one_table_may_be_written_by_its_path_and_by_its_name(spark: SparkSession, name: str) -> None:
    """J5, H1: rows that came by files are known by their transaction ids, of queues that stood still, too."""
    make_table(spark, name)
    by_path = prepared(str(location_of(spark, name)))
    run(by_path, {Q0: 2, Q1: 1}, rows(Q0, 0, 2), rows(Q1, 0, 1))

    assert run(prepared(name), {Q0: 3}, rows(Q0, 0, 3, "named")) == 1
    assert prepared(name).watermarks(GROUP) == {QueueGeneration(Q0, 0): 3, QueueGeneration(Q1, 0): 1}
    assert run(prepared(str(location_of(spark, name))), {Q1: 2}, rows(Q1, 0, 2, "by path")) == 1
    assert run(prepared(name), {Q0: 4, Q1: 2}, rows(Q0, 0, 4, "named"), rows(Q1, 0, 2)) == 1
    assert [step for *_, step in stored_in(spark, name)] == [
        "created", "created", "named", "named", "created", "by path",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("is_readable", [True, False])
def test_where_the_history_has_forgotten_the_group_nothing_is_written_twice(
    spark: SparkSession, name: str, is_readable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5, H1: the table's own count fences, until an operator says how far the rows go."""
    make_table(spark, name)
    run(prepared(name), {Q0: 2}, rows(Q0, 0, 2))
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    log = location_of(spark, name) / "_delta_log"
    for number in range(4):
        spark.sql(f"INSERT INTO {name} VALUES ('t', 'b', 9, {number}, 'other')")
    checkpointed = max(int(file.name[:20]) for file in log.glob("*.checkpoint*.parquet"))
    for file in log.glob("*.json"):
        if int(file.name[:20]) < checkpointed:
            file.unlink()
    if not is_readable:
        monkeypatch.setattr("pyspark_rocketmq.sinks.delta.watermarks._ids_by_path", lambda *_: None)
    said = "has been cleaned up" if is_readable else "Spark skips a commit"

    with pytest.raises(SinkConflict, match=rf"{said}.*DeltaSink\.rewind"):
        run(prepared(name), {Q0: 3}, rows(Q0, 0, 3, "again"))

    assert len(stored_in(spark, name)) == 6
    DeltaSink(name).rewind(GROUP, {Q0: 2})
    assert run(prepared(name), {Q0: 3}, rows(Q0, 0, 3, "again")) == 1
    assert len(stored_in(spark, name)) == 7


@pytest.mark.long
def test_a_column_more_and_one_that_does_not_fit(spark: SparkSession, name: str) -> None:
    """J5, H1."""
    make_table(spark, name, more=", note STRING")
    with pytest.raises(SchemaError, match="only in the table: note"):
        prepared(name)
    schema = SCHEMA.append(pa.field("amount", pa.float64()))
    with pytest.raises(SchemaError, match="missing in the table: amount"):
        prepared(name, schema)
    sink = prepared(name, schema, schema_evolution=True)

    run_batch(sink, {Q0: 1}, batch_of(schema, [(Q0, 0, "created", 1.5)]))

    assert spark.table(name).select("note", "amount").collect() == [(None, 1.5)]


def test_rows_wait_in_a_folder_for_staging(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """J5: where tasks may not write beside the table; what was left there by killed tasks goes in a week."""
    make_table(spark, name)
    folder = tmp_path / "volume {1}"
    sink = prepared(name, staging=folder)
    staged = folder / "rocketmq-staged"
    batch = sink.begin(GROUP, {Q0: 0})
    written = written_by(batch, rows(Q0, 0, 2))
    assert len(list(staged.iterdir())) == 1
    assert sink.folders == (str(staged),)

    batch.commit(written, {Q0: 2})

    assert not list(staged.iterdir())
    assert [row[:2] for row in stored_in(spark, name)] == [(0, 0), (0, 1)]
    for left, age_s in (("old.parquet", 8 * 86_400), ("new.parquet", 86_400)):
        (staged / left).touch()
        then = time.time() - age_s
        os.utime(staged / left, (then, then))
    prepared(name, staging=folder)
    assert [file.name for file in staged.iterdir()] == ["new.parquet"]


def test_what_cannot_be_a_sink_is_reported(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """J5."""
    spark.sql(f"CREATE TABLE {name} (a INT) USING parquet")
    with pytest.raises(OptionError, match="a table of format parquet, not of Delta"):
        prepared(name)
    spark.sql(f"CREATE VIEW {name}_view AS SELECT 1 AS a")
    with pytest.raises(OptionError, match="is a view"):
        prepared(f"{name}_view")
    with pytest.raises(OptionError, match="staging is only for a table that is named"):
        DeltaSink(tmp_path, staging=tmp_path)
    (tmp_path / "file").touch()
    make_table(spark, f"{name}_delta")
    with pytest.raises(OptionError, match=r"cannot put rows for .*file/rocketmq-staged.*sinkStaging"):
        prepared(f"{name}_delta", staging=tmp_path / "file")
