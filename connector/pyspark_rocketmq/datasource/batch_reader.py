"""Bounded read: from the starting positions to what is stored when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.datasource.cluster_view import ClusterView
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.queue_reader import partitions_of, read_queue
from pyspark_rocketmq.model import QueueRange
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.starting_offsets import StartingOffsets


class RocketMQBatchReader(DataSourceReader):
    """Every message between the starting positions and now, once; no group's offsets are touched."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One partition per queue with messages.

        Raises:
            RocketMQError: If a broker of the topic cannot be asked: a batch with queues missing would be wrong.
        """
        view = ClusterView(self._options, process_pool(), SystemClock())
        snapshot = view.snapshot()
        if snapshot.unreachable:
            raise next(iter(snapshot.unreachable.values()))
        starts = view.starting_positions(snapshot, snapshot.bounds.keys(), StartingOffsets.earliest())
        ranges = [
            QueueRange(queue=queue, start=start, end=max(start, snapshot.bounds[queue].max_offset))
            for queue, start in sorted(starts.items())
        ]
        return partitions_of(ranges, self._options, snapshot.addresses)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Messages of one range, on an executor."""
        assert isinstance(partition, QueuePartition)
        return read_queue(partition)
