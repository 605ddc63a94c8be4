"""Rows that Spark merges into a Delta table by a key.

The rows pass through Spark's executors, which spill to disk, so a batch may have any number of rows. A merge
by delta-rs holds all rows in the driver's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

from pyspark_rocketmq.delta.files import NULL_PARTITION
from pyspark_rocketmq.delta.paths import quoted_name

_ROWS: Final = "rocketmq_rows"
"""Name of the temporary view of the rows to merge; only the :func:`merging_session` has it."""
_RANK: Final = "__rank"
_SETTINGS: Final[Mapping[str, str]] = {
    "userMetadata": "spark.databricks.delta.commitInfo.userMetadata",
    "txnAppId": "spark.databricks.delta.write.txnAppId",
    "txnVersion": "spark.databricks.delta.write.txnVersion",
}
"""Settings of a session that do for a MERGE what options do for other writes, by the option's name."""


def merging_session(spark: SparkSession, options: Mapping[str, Any]) -> SparkSession:
    """Return a copy of a session in which a MERGE has the metadata and transaction id of ``options``.

    A MERGE takes no options, and the session itself may have other users.
    """
    copied = spark._jsparkSession.cloneSession()  # noqa: SLF001 - Python has no name for it
    copy = SparkSession(spark.sparkContext, copied)
    for name, value in options.items():
        copy.conf.set(_SETTINGS[name], str(value))
    return copy


def merge_rows(
    rows: DataFrame,
    sql_name: str,
    keys: Sequence[str],
    *,
    partition_by: Sequence[str],
    order: Sequence[str],
    files: Sequence[str],
) -> None:
    """Merge the newest row of each key into a table, in one commit.

    If the table has a row with the key, update its columns that ``rows`` has; else add the new row. A key
    with a null in it equals no other key, so its rows are always added.

    Args:
        rows: Rows in Parquet files, read by a :func:`merging_session`.
        sql_name: The table's name in a statement.
        keys: Columns of the key.
        partition_by: Columns by which the table is partitioned.
        order: Columns that order the rows of a key from the oldest to the newest. Among rows that are equal
            in these, the last row in the last file is the newest.
        files: Names of the files, the oldest one first.

    Raises:
        PySparkException: If the rows do not fit the table, or another commit won.
    """
    columns = [quoted_name(name) for name in rows.columns]
    texts = {field.name for field in rows.schema if isinstance(field.dataType, StringType)}
    blank = [name for name in keys if name in partition_by and name in texts]
    newest_of(rows, keys, order, files, blank=blank).createOrReplaceTempView(_ROWS)
    matches = " AND ".join(_matches(quoted_name(name), may_be_blank=name in blank) for name in keys)
    updates = ", ".join(f"t.{name} = s.{name}" for name in columns)
    values = ", ".join(f"s.{name}" for name in columns)
    rows.sparkSession.sql(
        f"MERGE INTO {sql_name} t USING {_ROWS} s ON {matches} WHEN MATCHED THEN UPDATE SET {updates} "  # noqa: S608
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )


def _matches(name: str, *, may_be_blank: bool) -> str:
    """Return the SQL condition that table and merged rows have the same value in a column of the key.

    ``may_be_blank`` says whether the merged rows may have "" in the column, which the table stores as null.
    """
    return f"coalesce(t.{name}, '') = s.{name}" if may_be_blank else f"t.{name} = s.{name}"


def newest_of(
    rows: DataFrame, keys: Sequence[str], order: Sequence[str], files: Sequence[str], *, blank: Sequence[str]
) -> DataFrame:
    """Return the newest row of each key, and all rows whose key contains a null.

    ``blank`` names those text columns of the key that are also partition columns. There Delta stores both ""
    and ``__HIVE_DEFAULT_PARTITION__`` as null. So the two count as one value, and returned rows have "" for
    both. For the other arguments see :func:`merge_rows`.
    """
    file_number = sf.array_position(sf.lit(list(files)), sf.col("_metadata.file_name"))
    newest_first = [
        *(sf.col(quoted_name(name)).desc() for name in order),
        file_number.desc(),
        sf.col("_metadata.row_index").desc(),
    ]

    def value(name: str) -> Column:
        column = sf.col(quoted_name(name))
        return sf.when(column == NULL_PARTITION, "").otherwise(column) if name in blank else column

    rank = sf.row_number().over(Window.partitionBy(*map(value, keys)).orderBy(*newest_first))
    has_null = reduce(or_, (value(name).isNull() for name in keys))
    columns = [value(name).alias(name) for name in rows.columns]
    return rows.select(*columns, rank.alias(_RANK)).where((sf.col(_RANK) == 1) | has_null).drop(_RANK)
