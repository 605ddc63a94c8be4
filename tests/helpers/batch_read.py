"""A batch read of ``format("rocketmq")`` without Spark: planned and read as Spark would, in this process."""

from __future__ import annotations

import pyarrow as pa

from pyspark_rocketmq.format import DefaultSource
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.spark.version import arrow_schema


def planned_batch(**options: str) -> list[QueuePartition]:
    """Return the tasks that a batch read is planned as."""
    source = DefaultSource(options)
    partitions = source.reader(source.schema()).partitions()
    return [each for each in partitions if isinstance(each, QueuePartition)]


def read_batch(**options: str) -> pa.Table:
    """Return the rows of a batch read, one task after another, in the columns promised to Spark."""
    source = DefaultSource(options)
    promised = source.schema()
    reader = source.reader(promised)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    schema = arrow_schema(promised)
    assert {batch.schema for batch in batches} <= {schema}
    return pa.Table.from_batches(batches, schema)
