"""Commits by Spark's own writer, to Delta tables that delta-rs must not write.

It keeps constraints, generated and identity columns, column mapping, row tracking and clustering.

Spark's writer takes one transaction id for a commit, and a sink needs a watermark for each queue.  So a commit carries the
watermarks of the whole group in its ``userMetadata``, and under the id ``rocketmq:GROUP`` how many commits the group has
made: that number fences.  Of two that begin at the same one, the second conflicts or is skipped, which is looked for.

The newest commit of a group says where it is.  It is found in the log's history; where the log has been cleaned up since,
which takes 30 days without a batch, the number is still there and nothing tells the watermarks: that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_rocketmq.streaming.delta_files import WrittenFile
from pyspark_rocketmq.streaming.table_protocol import commit_metadata, own_metadata

_WATERMARKS = "watermarks"
_NUMBER = "commits"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """How far a table has come with a group."""

    watermarks: Mapping[str, int] = field(default_factory=dict)
    """By application id; of a queue that is not named the table has nothing, or its transaction id tells."""
    number: int = 0
    """How many commits Spark has made for the group."""
    is_by_spark: bool = False
    """Whether its newest commit was made by Spark: the watermarks are those of every queue the group ever wrote, and
    transaction ids say nothing."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> GroupCommit | None:
        """What a history entry says; None of a commit that was not made by Spark."""
        own = own_metadata(entry)
        if _WATERMARKS not in own:
            return None
        return cls(watermarks=own[_WATERMARKS], number=own[_NUMBER], is_by_spark=True)


def group_app_id(consumer_group: str) -> str:
    """The transaction id that counts a group's commits; no queue's has this form."""
    return f"rocketmq:{consumer_group}"


class SparkWriter:
    """Adds staged files to one table."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def append(
        self,
        files: Sequence[WrittenFile],
        schema: pa.Schema,
        before: GroupCommit,
        versions: Mapping[str, int],
        *,
        consumer_group: str,
        commit_id: str,
    ) -> None:
        """Add the rows of ``files`` and move watermarks to ``versions``, unless another commit came first.

        Whether it was made is for the caller to look up, by ``commit_id``.

        Raises:
            PySparkException: If the rows do not fit the table, or another commit of the group won.
        """
        metadata = commit_metadata(
            consumer_group,
            commit_id,
            **{_WATERMARKS: {**before.watermarks, **versions}, _NUMBER: before.number + 1},
        )
        rows_schema = from_arrow_schema(schema)
        rows = (
            self._spark.read.schema(rows_schema).parquet(
                *(_plain(f"{self._path}/{file.path}") for file in files)
            )
            if files
            else self._spark.createDataFrame([], rows_schema)
        )
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", group_app_id(consumer_group))
            .option("txnVersion", before.number + 1)
            .option("userMetadata", metadata["userMetadata"])
            .save(self._path)
        )


def writes_delta(spark: SparkSession | None) -> bool:
    """Whether a session can write Delta tables."""
    if spark is None:
        return False
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    return "io.delta.sql.DeltaSparkSessionExtension" in extensions


def add_columns(spark: SparkSession, path: str, schema: pa.Schema) -> None:
    """Add columns to a table."""
    columns = ", ".join(
        f"{_quoted(column.name)} {column.dataType.simpleString()}" for column in from_arrow_schema(schema)
    )
    spark.sql(f"ALTER TABLE delta.{_quoted(path)} ADD COLUMNS ({columns})")


def _plain(path: str) -> str:
    """A path that Spark does not take for a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
