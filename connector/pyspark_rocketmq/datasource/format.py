"""The data source ``rocketmq``: options in, readers out."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_rocketmq.datasource.batch_reader import RocketMQBatchReader
from pyspark_rocketmq.datasource.range_tickets import TICKET_SCHEMA
from pyspark_rocketmq.datasource.schema import spark_schema
from pyspark_rocketmq.datasource.stream_reader import RocketMQStreamReader
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.store_spec import StoreKind, StoreSpec

_TABLE_OPTION = "option."
"""How the options of a table in Spark's catalog begin."""


class DefaultSource(DataSource):
    """``spark.read.format("rocketmq")`` and ``spark.readStream.format("rocketmq")``."""

    @classmethod
    def name(cls) -> str:
        """The short name of the format."""
        return "rocketmq"

    def schema(self) -> StructType:
        """The message columns; in consumer mode also the marker columns, or the ranges alone that are to be read.

        Raises:
            OptionError: With every problem of the options: this is the first moment Spark shows them to us.
        """
        options = self._read_options()
        if options.hand_over_ranges:
            return from_arrow_schema(TICKET_SCHEMA)
        return spark_schema(
            consumer_mode=options.consumer_group is not None,
            columns=options.columns(),
            property_columns=options.property_columns,
        )

    def reader(self, schema: StructType) -> RocketMQBatchReader:  # noqa: ARG002 - Spark's signature
        """A bounded read."""
        options = self._read_options()
        _refuse(options.problems_of_batch())
        return RocketMQBatchReader(options)

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802, ARG002 - Spark's signature
        """An unbounded read."""
        options = self._read_options()
        _refuse(options.problems_of_stream())
        if (
            options.offset_store is not None
            and StoreSpec.parse(options.offset_store).kind is StoreKind.MEMORY
        ):
            problem = (
                f"offsetStore={options.offset_store!r} keeps offsets in one process, but a query plans in one and commits "
                "in another. Use the path of a Delta table"
            )
            _refuse([problem])
        return RocketMQStreamReader(options)

    def _read_options(self) -> ReadOptions:
        if any(key.startswith(_TABLE_OPTION) for key in self.options):
            problem = (
                "rocketmq cannot be a table of Spark's catalog: Spark gives a Python data source none of the table's options "
                "when it is read. Use CREATE TEMPORARY VIEW … USING rocketmq OPTIONS (…)"
            )
            raise OptionError((problem,), where="CREATE TABLE … USING rocketmq")
        return ReadOptions.parse(dict(self.options))


def _refuse(problems: list[str]) -> None:
    if problems:
        raise OptionError(tuple(problems))


def register(spark: SparkSession) -> None:
    """Make ``format("rocketmq")`` known to ``spark``; harmless when it is known already."""
    spark.dataSource.register(DefaultSource)
