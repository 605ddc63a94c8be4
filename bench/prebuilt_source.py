"""The ceiling of the platform: a Python data source that passes existing RecordBatches to Spark.

Nothing is pulled or decoded, so only the cost of Spark itself remains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.source.schema import spark_schema
from pyspark_rocketmq.spark.version import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow


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
        return _repeated(partition)


class PrebuiltStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The same number of rows in each of a few micro-batches; the offset counts micro-batches."""

    def __init__(self, batch: PrebuiltReader, batches: int) -> None:
        self._batch = batch
        self._batches = batches

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit with which each call of ``latestOffset`` adds one micro-batch."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the end is fixed from the beginning."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset before the first micro-batch."""
        return {"given": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802, ARG002 - Spark's name
        """Return the next offset, up to the last."""
        return {"given": min(start["given"] + 1, self._batches)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:  # noqa: ARG002
        """Equal shares."""
        return self._batch.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The same batch again and again."""
        return self._batch.read(partition)


def _repeated(partition: PrebuiltPartition) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_file(Path(partition.path).read_bytes()) as file:
        batch = file.get_batch(0)
    left = partition.rows
    while left > 0:
        yield batch if batch.num_rows <= left else batch.slice(0, left)
        left -= batch.num_rows


class PrebuiltSource(DataSource):
    """Format ``prebuilt`` with options file, rows and partitions;
    rows of a micro-batch and ``batches`` if it is a stream.
    """

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

    def streamReader(self, schema: StructType) -> PrebuiltStreamReader:  # noqa: N802 - Spark's name
        """A few micro-batches of that size."""
        return PrebuiltStreamReader(self.reader(schema), int(self.options["batches"]))
