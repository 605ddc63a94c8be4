"""Bounded read: from the starting positions to what is stored when the query is planned."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.retry import call_with_retry
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.datasource.cluster_view import FIRST_CONTACT, ClusterView, Snapshot
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.queue_reader import partitions_of, read_queue
from pyspark_rocketmq.model import MessageQueue, QueueRange
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
        clock = SystemClock()
        view = ClusterView(self._options, process_pool(ConnectionSettings.of(self._options)), clock)
        snapshot, starts = call_with_retry(
            lambda: self._starts(view),
            FIRST_CONTACT,
            Deadline.after(clock, self._options.retry_timeout_ms / 1000),
            time.sleep,
        )
        ranges = [
            QueueRange(queue=queue, start=start, end=max(start, snapshot.bounds[queue].max_offset))
            for queue, start in sorted(starts.items())
        ]
        return partitions_of(ranges, self._options, snapshot.addresses, snapshot.replicas)

    def _starts(self, view: ClusterView) -> tuple[Snapshot, dict[MessageQueue, int]]:
        snapshot = view.snapshot()
        if snapshot.out_of_sight:
            raise next(iter(snapshot.out_of_sight.values()))
        return snapshot, view.starting_positions(snapshot, snapshot.bounds.keys(), StartingOffsets.earliest())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Messages of one range, on an executor."""
        if not isinstance(partition, QueuePartition):
            # What Spark makes of an empty list of partitions: a topic without messages.
            return iter(())
        return read_queue(partition)
