"""A sink that a catalog names, on every Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.errors import OptionError, SinkConflict
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.spark.version import HAS_DELTA
from tests.helpers.sink_rows import GROUP, Q0
from tests.sinks.sink_conformance import SCHEMA, rows, run

pytestmark = pytest.mark.spark


@pytest.mark.long
@pytest.mark.every_spark
def test_a_table_of_a_catalog_is_made_takes_each_row_once_and_is_refused_after_a_restore(
    spark: SparkSession,
) -> None:
    """J4, J5, J7: without Delta for this Spark it says so, and takes no table for one that is gone."""
    sink = DeltaSink("by_name.orders", sleep=lambda _: None)
    if not HAS_DELTA:
        for use in (lambda: sink.standings(GROUP, {Q0: 0}), lambda: sink.prepare(SCHEMA)):
            with pytest.raises(OptionError, match=r"no Delta Lake; Delta Lake has no release for this Spark"):
                use()
        return
    spark.sql("CREATE DATABASE by_name")
    try:
        sink.prepare(SCHEMA)
        assert run(sink, {Q0: 2}, rows(Q0, 0, 2)) == 2
        assert run(sink, {Q0: 3}, rows(Q0, 0, 3, "again")) == 1
        found = spark.table("by_name.orders").select("queueOffset", "step").collect()
        assert sorted(map(tuple, found)) == [(0, "created"), (1, "created"), (2, "again")]
        spark.sql("RESTORE TABLE by_name.orders TO VERSION AS OF 1")
        with pytest.raises(SinkConflict, match="was restored at version 3"):
            sink.begin(GROUP, {Q0: 0})
        sink.rewind(GROUP, {Q0: 2})
        assert run(sink, {Q0: 3}, rows(Q0, 0, 3, "again")) == 1
    finally:
        spark.sql("DROP DATABASE by_name CASCADE")
