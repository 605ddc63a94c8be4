"""The reader Spark talks to: a thin shell around the planner (source runner) and the queue reader (executors).

Spark pickles the reader to send ``read`` to the executors, so nothing that cannot be pickled is made before the
first call in the source runner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.connection_options import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.consume.duties import MembershipTiming
from pyspark_rocketmq.consume.split import split_ranges
from pyspark_rocketmq.datasource.broker_offsets import RemoteBrokerOffsets
from pyspark_rocketmq.datasource.cluster_view import ClusterView
from pyspark_rocketmq.datasource.driver_line import DriverLine
from pyspark_rocketmq.datasource.group_at_brokers import open_group_store
from pyspark_rocketmq.datasource.group_member import client_id, join_group, progress_name
from pyspark_rocketmq.datasource.life_watch import PullingLifeWatch
from pyspark_rocketmq.datasource.message_sizes import MessageSizes
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.plan_offset import Offset
from pyspark_rocketmq.datasource.planner import MicroBatchPlanner
from pyspark_rocketmq.datasource.progress import CheckpointProgress, GroupProgress, ProgressSource
from pyspark_rocketmq.datasource.queue_reader import partitions_of, read_queue
from pyspark_rocketmq.datasource.range_tickets import SharedTask, tasks_of, ticket_rows
from pyspark_rocketmq.datasource.reset_watch import PullingResetWatch
from pyspark_rocketmq.datasource.sole_owner import await_sole_owner, living_members, possible_owners
from pyspark_rocketmq.datasource.worker_memory import settled
from pyspark_rocketmq.group.leave import leave_at_the_end
from pyspark_rocketmq.hub.address import HubAddress
from pyspark_rocketmq.model import MessageModel
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.starting_offsets import StartingOffsets

_ANY_NUMBER: Final = 2**63 - 1


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of explicit queue ranges."""

    timing: ClassVar[MembershipTiming] = MembershipTiming()
    """How often a member of a group does what."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @cached_property
    def _line(self) -> DriverLine | None:
        """To the driver of a ``PushConsumer``; nobody else has one."""
        secret = self._options.hub_secret
        return None if secret is None else DriverLine(HubAddress.parse(secret), SystemClock())

    @cached_property
    def _planner(self) -> MicroBatchPlanner:
        clock = SystemClock()
        pool = process_pool(ConnectionSettings.of(self._options))
        view = ClusterView(self._options, pool, clock)
        progress = _progress(self._options, view, clock, self.timing, self._line)
        sizes = None
        if self._options.max_bytes_per_trigger is not None:
            timeout_s = self._options.request_timeout_ms / 1000
            brokers = BrokerClient(pool, clock, timeout_s, namespace=self._options.namespace or "")
            sizes = MessageSizes(brokers, PLAIN_SOURCE_GROUP)
        return MicroBatchPlanner(self._options, view, progress, clock, time.sleep, sizes=sizes)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Any but ``ReadAllAvailable``, with which Spark asks under ``trigger(once=True)`` alone.

        The source applies its own limits, which Spark's cannot express.
        """
        return ReadMaxRows(self._options.max_offsets_per_trigger or _ANY_NUMBER)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of an AvailableNow run."""
        self._planner.prepare_available_now()

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The offset before the first micro-batch."""
        return self._planner.initial()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The next plan; under ``trigger(once=True)`` one of all that is there now."""
        if isinstance(limit, ReadAllAvailable):
            return self._planner.all_at_once(start)
        return self._planner.latest(start)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Newest offset of every queue, for ``StreamingQueryProgress``; shape as in ``plan_offset``."""
        newest: dict[str, dict[str, dict[str, int]]] = {}
        for queue, bounds in sorted(self._planner.newest().items()):
            brokers = newest.setdefault(queue.topic, {})
            brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = bounds.max_offset
        return newest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:  # noqa: ARG002 - explicit ranges
        """One partition per range of ``end`` that may be run; more if asked for without a group, fewer if ranges are handed over."""
        planned = self._planner.runnable(end)
        if self._options.consumer_group is not None:
            # Ranges of a broker that is away are left out: their progress is in the store, and the others go on.
            addresses = self._planner.addresses(())
            planned = [new for new in planned if new.queue.broker_name in addresses]
        else:
            addresses = self._planner.addresses({new.queue.broker_name for new in planned})
            planned = split_ranges(
                planned,
                min_partitions=self._options.min_partitions,
                max_records=self._options.max_records_per_partition,
            )
        partitions = partitions_of(planned, self._options, addresses, self._planner.replicas())
        if not self._options.hand_over_ranges:
            return partitions
        slots = 0 if self._line is None else self._line.slots()
        return tasks_of(partitions, self._planner.listener_ms, slots)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Messages of one range, on an executor; or ranges themselves, for who reads them later."""
        if isinstance(partition, SharedTask):
            return settled(map(ticket_rows, partition.tickets))
        assert isinstance(partition, QueuePartition)
        return settled(read_queue(partition))

    def commit(self, end: Offset) -> None:
        """Nothing: this call comes one batch late and never for the last; offsets go with ``foreachBatch``."""


def _progress(
    options: ReadOptions,
    view: ClusterView,
    clock: SystemClock,
    timing: MembershipTiming,
    line: DriverLine | None,
) -> ProgressSource:
    default_start = StartingOffsets.latest()
    if options.consumer_group is None or options.offset_store is None:
        return CheckpointProgress(view, default_start)
    store = open_group_store(options)
    member_id = client_id(options)
    is_broadcast = options.message_model is MessageModel.BROADCASTING
    pool = process_pool(ConnectionSettings.of(options))
    if is_broadcast:
        owners = possible_owners(options, member_id, store)
        await_sole_owner(
            progress_name(options), owners, lambda: living_members(options, pool, clock), clock, time.sleep
        )
    member = join_group(options, member_id, store, clock, timing=timing, line=line)
    leave_at_the_end(member)
    member.start()
    return GroupProgress(
        consumer_group=progress_name(options),
        client_id=member_id,
        store=store,
        ownership=member,
        view=view,
        default_start=default_start,
        clock=clock,
        is_sole_owner=is_broadcast,
        broker_offsets=None if is_broadcast else RemoteBrokerOffsets.of(options, pool, clock),
        reset_watch=None if is_broadcast else PullingResetWatch(options, pool, clock),
        life_watch=PullingLifeWatch(options, pool, clock),
        fail_on_data_loss=options.fail_on_data_loss,
    )
