"""Rows arranged for the sink: those of one sharding key in one partition, in the order they have in the DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from pyspark_rocketmq.datasource.sessions import check_speculation, is_classic
from pyspark_rocketmq.datasource.sink_schema import SHARDING_KEY
from pyspark_rocketmq.errors import SchemaError

_POSITION = "_rocketmqPosition"


def by_sharding_key(rows: DataFrame, *, partitions: int | None = None) -> DataFrame:
    """The same rows, those of one ``shardingKey`` in one partition, in the order of ``rows``.

    That order is the one in which ``rows.collect()`` gives them: to publish in the order of a column, sort by it first.
    Rows without a key are spread.  It costs one shuffle, and a sort within each partition.

    Args:
        rows: Not a stream; of a stream, arrange the DataFrame that ``foreachBatch`` gets.
        partitions: Tasks that will send; by default as many as Spark runs at once, or, through Spark Connect, which does not tell
            that, ``spark.sql.shuffle.partitions``, of which adaptive execution joins small ones.

    Raises:
        SchemaError: If ``rows`` is a stream, or has no column ``shardingKey``.
        OptionError: If ``spark.speculation`` is on: two copies of a task would send its rows, in no order.
    """
    if rows.isStreaming:
        raise SchemaError(
            "by_sharding_key() needs rows that are there already, and Spark sorts no stream: arrange and write the "
            "DataFrame that foreachBatch gets. A stream of queues of RocketMQ needs it only if it was shuffled."
        )
    if SHARDING_KEY.lower() not in map(str.lower, rows.columns):
        raise SchemaError(
            f"by_sharding_key() needs a column '{SHARDING_KEY}'; there are {', '.join(rows.columns)}."
        )
    check_speculation(rows.sparkSession)
    # Numbers partitions and their rows in ascending order.
    numbered = rows.withColumn(_POSITION, sf.monotonically_increasing_id())
    key = sf.coalesce(sf.col(SHARDING_KEY).cast("string"), sf.col(_POSITION).cast("string"))
    count = partitions or _cores(rows.sparkSession)
    arranged = numbered.repartition(key) if count is None else numbered.repartition(count, key)
    return arranged.sortWithinPartitions(_POSITION).drop(_POSITION)


def _cores(spark: object) -> int | None:
    """How many tasks run at once; None if the session does not tell."""
    return spark.sparkContext.defaultParallelism if is_classic(spark) else None
