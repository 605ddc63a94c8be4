"""Which Spark session a sink uses: in plain threads, beside others, and after its own was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.consumer.engine.output import listener_schema
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.spark import session as sessions
from pyspark_rocketmq.spark.session import living_session
from tests.helpers.sink_rows import Q0
from tests.sinks.sink_conformance import SCHEMA, rows, run

T = TypeVar("T")

_COLUMNS = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, step STRING"
_CONSTRAINT = "TBLPROPERTIES ('delta.constraints.known' = 'step is not null')"


def in_plain_thread(work: Callable[[], T]) -> T:
    """Run ``work`` where no session is active, as a pool of a program's own does."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[SparkSession]:
    """Sessions that count as stopped: those of the tests share their context."""
    ended: list[SparkSession] = []
    monkeypatch.setattr(sessions, "_is_stopped", lambda spark: any(spark is each for each in ended))
    return ended


@pytest.fixture(params=["path", "name"])
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A table that Spark writes, made with a constraint."""
    if request.param == "path":
        spark.sql(f"CREATE TABLE delta.`{tmp_path}/orders` ({_COLUMNS}) USING delta {_CONSTRAINT}")
        yield f"{tmp_path}/orders"
        return
    spark.sql(f"CREATE TABLE orders_of_sessions ({_COLUMNS}) USING delta {_CONSTRAINT}")
    yield "default.orders_of_sessions"
    spark.sql("DROP TABLE orders_of_sessions")


def offsets_in(spark: SparkSession, table: str) -> list[int]:
    name = f"delta.`{table}`" if table.startswith("/") else table
    return sorted(row.queueOffset for row in spark.table(name).collect())


@pytest.mark.spark
@pytest.mark.parametrize("is_given", [True, False])
def test_a_sink_that_spark_writes_works_in_a_plain_thread(
    spark: SparkSession, table: str, is_given: bool
) -> None:
    """J5: with the session that start is given, and without one with the process's."""
    sink = DeltaSink(table, sleep=lambda _: None)
    if is_given:
        sink.use_session(spark)

    def work() -> int:
        sink.prepare(SCHEMA)
        return run(sink, {Q0: 2}, rows(Q0, 0, 2))

    assert in_plain_thread(work) == 2
    assert offsets_in(spark, table) == [0, 1]


@pytest.mark.spark
def test_a_sink_goes_on_with_the_session_that_runs_when_its_own_was_stopped(
    spark: SparkSession, table: str, stopped: list[SparkSession]
) -> None:
    """J5: a notebook stops Spark, makes a new session, and starts the same consumer."""
    first = spark.newSession()
    sink = DeltaSink(table, sleep=lambda _: None)
    sink.use_session(first)
    sink.prepare(SCHEMA)
    run(sink, {Q0: 1}, rows(Q0, 0, 1))

    stopped.append(first)
    run(sink, {Q0: 2}, rows(Q0, 1, 2))

    assert sink._table.home.session.spark is not first
    sink.use_session(spark)
    sink.prepare(SCHEMA)
    run(sink, {Q0: 3}, rows(Q0, 2, 3))
    assert offsets_in(spark, table) == [0, 1, 2]


@pytest.mark.spark
def test_a_schema_with_structs_is_read_in_a_plain_thread(spark: SparkSession) -> None:
    """D3: Spark's parser needs a session of the process, not one of the thread."""
    schema = in_plain_thread(
        lambda: listener_schema("v string NOT NULL, p struct<a: int, `b c`: decimal(10,2)>")
    )

    assert schema.simpleString() == "struct<v:string,p:struct<a:int,b c:decimal(10,2)>>"
    assert not schema["v"].nullable


def test_without_a_session_the_error_says_that_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3"""
    monkeypatch.setattr("pyspark_rocketmq.consumer.engine.output.spark_can_parse", lambda: False)

    assert listener_schema("v string, n bigint").simpleString() == "struct<v:string,n:bigint>"
    with pytest.raises(SchemaError, match=r"Without a Spark session only names with plain types.*StructType"):
        listener_schema("v string, p struct<a: int, b: int>")


@pytest.mark.spark
def test_the_given_session_comes_first_while_it_runs(
    spark: SparkSession, stopped: list[SparkSession]
) -> None:
    """J5"""
    other = spark.newSession()

    assert living_session(other) is other
    assert living_session(None) is not None
    stopped.append(other)
    assert living_session(other) not in (None, other)
    assert in_plain_thread(lambda: living_session(None)) is not None
