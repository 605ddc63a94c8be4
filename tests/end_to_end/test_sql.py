"""The source in SQL: what works, and the words of what does not, as docs/how-to/sql.md has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pyspark_rocketmq.format import register
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.orders import STEPS, produce_orders

pytestmark = pytest.mark.spark

TIMEOUT_S = 240


@SIM_ONLY
def test_a_temporary_view_reads_what_was_there_at_its_first_query(
    spark: SparkSession, cluster: ClusterUnderTest
) -> None:
    """H3: its options are those of a batch read; made again, it reads what has come since."""
    register(spark)
    topic = cluster.create_topic(queues=2, brokers=["broker-a"])
    produce_orders(cluster.name_servers, topic, 10)
    view = (
        f"CREATE OR REPLACE TEMPORARY VIEW sql_orders USING rocketmq OPTIONS (nameServers "
        f"'{cluster.name_servers}', topic '{topic}', startingOffsets 'earliest', subscription 'created || "
        f"paid')"
    )
    spark.sql(view)

    found = spark.sql(
        "SELECT tags, count(*) AS messages FROM sql_orders GROUP BY tags ORDER BY tags"
    ).collect()
    produce_orders(cluster.name_servers, topic, 10)

    assert [tuple(row) for row in found] == [
        (step, 10) for step in sorted(STEPS) if step in ("created", "paid")
    ]
    assert spark.table("sql_orders").count() == spark.read.table("sql_orders").count() == 20
    with pytest.raises(AnalysisException, match="is not a temp view of streaming logical plan"):
        spark.readStream.table("sql_orders")
    spark.sql(view)
    assert spark.table("sql_orders").count() == 40


@SIM_ONLY
def test_a_stream_can_be_a_view_too(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> None:
    register(spark)
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    produce_orders(cluster.name_servers, topic, 5)
    options = {"nameServers": cluster.name_servers, "topic": topic, "startingOffsets": "earliest"}
    spark.readStream.format("rocketmq").options(**options).load().createOrReplaceTempView("sql_stream")

    query = (
        spark.sql("SELECT tags FROM sql_stream WHERE tags = 'paid'")
        .writeStream.format("memory")
        .queryName("sql_paid")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )

    assert query.awaitTermination(TIMEOUT_S)
    assert spark.table("sql_paid").count() == 5


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "CREATE TABLE t USING rocketmq OPTIONS (nameServers 'n:1', topic 'orders')",
            "Use CREATE TEMPORARY VIEW",
        ),
        ("SELECT * FROM rocketmq.`orders`", "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"),
        ("CREATE TEMPORARY VIEW v USING rocketmq OPTIONS (nameServer 'n:1')", "did you mean 'nameServers'"),
    ],
)
def test_unsupported_statements_are_refused_at_once(spark: SparkSession, statement: str, words: str) -> None:
    register(spark)

    with pytest.raises(AnalysisException, match=words):
        spark.sql(statement)
