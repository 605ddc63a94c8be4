"""A query with several sinks, a database among them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import Route
from tests.end_to_end.test_orderly_consumer import Consumption
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.orders import check_sink, produce_orders

pytestmark = pytest.mark.spark


def paid_in(database: Path) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute("SELECT order_id FROM paid ORDER BY order_id").fetchall()
    finally:
        connection.close()


@SIM_ONLY
def test_rows_reach_a_table_and_a_database_once_each(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H1, H2: read again from the beginning without a checkpoint, nothing is there twice."""
    consumption = Consumption(spark, cluster, tmp_path, cluster.create_topic(queues=2), "direct")
    expected = produce_orders(cluster.name_servers, consumption.topic, 20)
    database = tmp_path / "shop.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE paid (order_id TEXT)")
    connection.close()

    def insert(cursor: sqlite3.Cursor, rows: pa.Table) -> None:
        cursor.executemany("INSERT INTO paid VALUES (?)", zip(rows["order_id"].to_pylist(), strict=True))

    paid = Route(
        sink=DatabaseSink(lambda: sqlite3.connect(database), insert), where=pc.field("step") == "paid"
    )
    sinks = [DeltaSink(consumption.sink), paid]

    consumption.drain(sink=sinks, max_offsets_per_trigger=50)
    first = paid_in(database)
    consumption.store.reset(consumption.group, dict.fromkeys(consumption.store.read(consumption.group), 0))
    consumption.drain(sink=sinks, checkpoint="another")

    assert first == [(order_id,) for order_id in sorted(expected)]
    assert paid_in(database) == first
    assert check_sink(consumption.sink, expected).rows == 100
    assert DeltaTable(consumption.sink).to_pyarrow_table().num_rows == 100
    again = [report for report in consumption.reports if report.left_out]
    assert sum(report.left_out for report in again) == 100
