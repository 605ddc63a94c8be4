"""The ceiling of the platform: RecordBatches that are already there, handed to Spark by a Python data source.

Nothing is pulled and nothing decoded; what remains is what Spark itself costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.datasource.schema import spark_schema


@dataclass(frozen=True)
class PrebuiltPartition(InputPartition):
    """How many rows one task hands out, and the file with the batch to repeat."""

    path: str
    rows: int


class PrebuiltReader(DataSourceReader):
    """Repeats one batch until the number of rows is reached."""

    def __init__(self, path: str, rows: int, partitions: int) -> None:
        self._path = path
        self._rows = rows
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        """Equal shares."""
        share = self._rows // self._partitions
        return [PrebuiltPartition(self._path, share) for _ in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The same batch again and again."""
        assert isinstance(partition, PrebuiltPartition)
        with pa.ipc.open_file(Path(partition.path).read_bytes()) as file:
            batch = file.get_batch(0)
        left = partition.rows
        while left > 0:
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= batch.num_rows


class PrebuiltSource(DataSource):
    """Format ``prebuilt`` with options path, rows and partitions."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "prebuilt"

    def schema(self) -> StructType:
        """The same columns as format ``rocketmq``."""
        return spark_schema(consumer_mode=False)

    def reader(self, schema: StructType) -> PrebuiltReader:  # noqa: ARG002 - Spark's signature
        """A bounded read."""
        return PrebuiltReader(
            self.options["file"], int(self.options["rows"]), int(self.options["partitions"])
        )
