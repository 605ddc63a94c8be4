"""Tables with structs that Spark makes, alters and writes: types, comments, column mapping, lengths of text."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.errors import OptionError, SinkConflict
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import POSITION, Q0, batch_of, run_batch

pytestmark = pytest.mark.spark

_PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
SCHEMA = pa.schema([*POSITION, ("v", pa.string()), ("s", _PAIR), ("l", pa.list_(_PAIR))])
_POSITION_DDL = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT"
_COLUMNS = f"{_POSITION_DDL}, v STRING, s STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<a: INT, b: STRING>>"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def prepared(path: Path | str, schema: pa.Schema = SCHEMA, **more: Any) -> DeltaSink:
    sink = DeltaSink(path, compaction=False, sleep=lambda _: None, **more)
    sink.prepare(schema)
    return sink


def add_row(sink: DeltaSink, offset: int, *values: Any, schema: pa.Schema = SCHEMA) -> None:
    values = values or ("v", {"a": 1, "b": "x"}, [{"a": 2, "b": "y"}])
    run_batch(sink, {Q0: offset + 1}, batch_of(schema, [(Q0, offset, *values)]))


@pytest.mark.parametrize("mode", ["name", pytest.param("id", marks=pytest.mark.long)])
def test_a_mapped_table_with_structs_takes_rows_by_its_path(
    spark: SparkSession, path: Path, mode: str
) -> None:
    """J5: ids and physical names within structs are no part of a type."""
    properties = f"TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')"
    spark.sql(f"CREATE TABLE delta.`{path}` ({_COLUMNS}) USING delta {properties}")

    add_row(prepared(path), 0)
    add_row(prepared(path), 1)

    found = spark.read.format("delta").load(str(path)).selectExpr("s.a", "s.b", "l[0].a").collect()
    assert [tuple(row) for row in found] == [(1, "x", 2)] * 2


def test_a_running_sink_s_table_gets_column_mapping_and_comments(spark: SparkSession, path: Path) -> None:
    """H4, J5: a query goes on, and starts again, whatever is said of fields within its structs."""
    sink = prepared(path)
    add_row(sink, 0)
    offsets = itertools.count(1)
    mapped = (
        "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
    )
    for change in (
        "ALTER COLUMN s.a COMMENT 'an a'",
        "ALTER COLUMN l.element.b COMMENT 'a b'",
        f"SET TBLPROPERTIES ({mapped})",
    ):
        spark.sql(f"ALTER TABLE delta.`{path}` {change}")
        add_row(sink, next(offsets))
        add_row(prepared(path), next(offsets))

    found = spark.read.format("delta").load(str(path)).where("s.a = 1 AND l[0].b = 'y'").count()
    assert found == next(offsets)


def test_text_that_is_longer_than_its_column_is_refused_as_spark_refuses_it(
    spark: SparkSession, path: Path
) -> None:
    """H4, J5: files added to the log would hold what no other writer may add."""
    spark.sql(f"CREATE TABLE delta.`{path}` ({_COLUMNS.replace('v STRING', 'v VARCHAR(3)')}) USING delta")
    sink = prepared(path)
    add_row(sink, 0, "abc", None, None)

    with pytest.raises(SinkConflict, match="CHAR_VARCHAR_LIMIT"):
        add_row(sink, 1, "abcd", None, None)

    assert [row.v for row in spark.read.format("delta").load(str(path)).collect()] == ["abc"]


_ODD = pa.struct(
    [("order-id", pa.int32()), ("@type", pa.string()), ("p.q", pa.list_(pa.struct([("a`b", pa.int32())])))]
)
_ODD_ROW = {"order-id": 1, "@type": "t", "p.q": [{"a`b": 2}]}
_WITH_ODD = pa.schema([*POSITION, ("v", pa.string()), ("s", _ODD)])


def test_a_table_that_spark_makes_may_have_any_names_within_its_structs(spark: SparkSession) -> None:
    """J5: names as JSON has them are quoted in the statement."""
    sink = prepared("default.odd_names", _WITH_ODD)
    try:
        add_row(sink, 0, "x", _ODD_ROW, schema=_WITH_ODD)
        found = spark.table("odd_names").where("s.`order-id` = 1 AND s.`p.q`[0].`a``b` = 2").count()
    finally:
        spark.sql("DROP TABLE odd_names")
    assert found == 1


def test_a_table_that_spark_widens_may_get_any_names_within_a_struct(spark: SparkSession, path: Path) -> None:
    """J5, H4: and what is added may be null."""
    properties = "TBLPROPERTIES ('delta.constraints.known' = 'v is not null')"
    spark.sql(f"CREATE TABLE delta.`{path}` ({_POSITION_DDL}, v STRING) USING delta {properties}")
    add_row(prepared(path, _WITH_ODD.remove(5)), 0, "x", schema=_WITH_ODD.remove(5))
    required = _WITH_ODD.set(5, pa.field("s", _ODD, nullable=False))

    add_row(prepared(path, required, schema_evolution=True), 1, "y", _ODD_ROW, schema=required)

    found = spark.read.format("delta").load(str(path)).orderBy("queueOffset")
    assert [row[0] for row in found.select("s.`@type`").collect()] == [None, "t"]


def test_an_administrator_is_shown_a_statement_that_makes_the_table(spark: SparkSession) -> None:
    """J5: where the sink may not make it."""
    with pytest.raises(OptionError, match="for example: CREATE TABLE") as refusal:
        prepared("spark_catalog.no_such_schema.orders", _WITH_ODD)
    statement = str(refusal.value).rpartition("for example: ")[2].strip()

    spark.sql(statement.replace("`no_such_schema`.`orders`", "`default`.`by_hand`"))

    try:
        add_row(prepared("default.by_hand", _WITH_ODD), 0, "x", _ODD_ROW, schema=_WITH_ODD)
        assert spark.table("by_hand").count() == 1
    finally:
        spark.sql("DROP TABLE by_hand")
