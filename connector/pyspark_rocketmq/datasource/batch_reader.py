"""Bounded read: from the starting positions to the ending ones, by default what is stored when the query is planned."""

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
from pyspark_rocketmq.consume.ending import backward_problems, batch_ranges
from pyspark_rocketmq.consume.split import split_ranges
from pyspark_rocketmq.datasource.cluster_view import FIRST_CONTACT, ClusterView, Snapshot
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.queue_reader import partitions_of, read_queue
from pyspark_rocketmq.datasource.worker_memory import settled
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import QueueRange
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.starting_offsets import StartingOffsets


class RocketMQBatchReader(DataSourceReader):
    """Every message between the starting and the ending positions, once; no group's offsets are touched."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One partition per queue with messages, or more if asked for.

        Raises:
            RocketMQError: If a broker of the topic cannot be asked: a batch with queues missing would be wrong.
        """
        clock = SystemClock()
        view = ClusterView(self._options, process_pool(ConnectionSettings.of(self._options)), clock)
        snapshot, ranges = call_with_retry(
            lambda: self._ranges(view),
            FIRST_CONTACT,
            Deadline.after(clock, self._options.retry_timeout_ms / 1000),
            time.sleep,
        )
        parts = split_ranges(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return partitions_of(parts, self._options, snapshot.addresses, snapshot.replicas)

    def _ranges(self, view: ClusterView) -> tuple[Snapshot, list[QueueRange]]:
        snapshot = view.snapshot()
        if snapshot.out_of_sight:
            raise next(iter(snapshot.out_of_sight.values()))
        starts = view.starting_positions(snapshot, snapshot.bounds.keys(), StartingOffsets.earliest())
        ends = view.ending_positions(snapshot)
        ends_are_written = self._options.ending_offsets is not None and not self._options.ends_at_group()
        if ends_are_written and self._options.fail_on_data_loss:
            problems = backward_problems(starts, ends)
            if problems:
                raise OptionError(problems)
        return snapshot, batch_ranges(starts, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Messages of one range, on an executor."""
        if not isinstance(partition, QueuePartition):
            # What Spark makes of an empty list of partitions: a topic without messages.
            return iter(())
        return settled(read_queue(partition))
