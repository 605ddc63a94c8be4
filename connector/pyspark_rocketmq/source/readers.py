"""The batch and the stream reader that Spark calls; Spark pickles both for the executors, where they read.

The stream reader plans in the source runner, the batch reader in a Python worker that Spark starts for it.
The stream reader creates what cannot be pickled at its first call in the source runner, and leaves it out of
its pickle; the batch reader keeps only its options.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from pyspark_rocketmq.client.cluster import Cluster
from pyspark_rocketmq.client.pool import ChannelPool, ConnectionSettings, process_pool
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.consume.generations import NewestStored
from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.consume.planning import split_ranges
from pyspark_rocketmq.consume.positions import backward_problems, batch_ranges
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import OptionError, without_frames
from pyspark_rocketmq.group.broker_offsets import PullingResetWatch, RemoteBrokerOffsets, open_group_store
from pyspark_rocketmq.group.join import client_id, join_group, offset_key, unregister_at_exit
from pyspark_rocketmq.group.requests import ConsumeOne
from pyspark_rocketmq.hub.planner_end import PlannerControl
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.model import MessageModel, MessageQueue, QueueRange
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.positions import EARLIEST, LATEST
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import ClusterView, Snapshot
from pyspark_rocketmq.source.first_contact import at_first_contact
from pyspark_rocketmq.source.message_lookup import MessageLookup
from pyspark_rocketmq.source.message_sizes import MessageSizes
from pyspark_rocketmq.source.planner import MicroBatchPlanner
from pyspark_rocketmq.source.progress import CheckpointProgress, GroupProgress, ProgressSource
from pyspark_rocketmq.source.queue_claims import await_sole_owner, living_members, possible_owners
from pyspark_rocketmq.source.queue_generations import CheckpointGenerations
from pyspark_rocketmq.source.ranges import (
    Offset,
    QueuePartition,
    SharedTask,
    open_for_s_of,
    open_tasks_of,
    partitions_of,
    tasks_of,
    ticket_rows,
)
from pyspark_rocketmq.source.reader import freeze_gc_after, read_queue
from pyspark_rocketmq.source.start_positions import OptionPositions
from pyspark_rocketmq.spark.version import (
    SPARK_PASSES_TRIGGER,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

logger = logging.getLogger(__name__)

_ANY_NUMBER: Final = 2**63 - 1


class BatchPlan(NamedTuple):
    """Plan of a batch read."""

    starts: dict[MessageQueue, int]
    """Where each queue begins, including queues without messages to read."""
    partitions: Sequence[InputPartition]
    """One partition per queue with messages, or more if options ask for them."""


class RocketMQBatchReader(DataSourceReader):
    """Reads every message between the starting and the ending positions once; changes no group's offsets."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @without_frames
    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of :meth:`plan`."""
        return self.plan().partitions

    def plan(self) -> BatchPlan:
        """Return what is to be read, as the queues are now.

        Raises:
            OptionError: If positions in options cannot be used, or options ask for too many partitions.
            DataLoss: If ``failOnDataLoss`` is true and an option names a group whose messages are gone.
            RocketMQError: If a broker of the topic does not answer, because a batch must have all queues; a
                slave may answer for its master. With ``failOnDataLoss`` it is raised, too, if the topic or a
                broker of it has no read permission.
        """
        clock = SystemClock()
        pool = process_pool(ConnectionSettings.of(self._options))
        view = ClusterView(self._options, pool, clock)
        positions = OptionPositions.of(self._options, pool, clock, EARLIEST)
        patience = Deadline.after(clock, self._options.retry_timeout_ms / 1000)
        snapshot, ranges = at_first_contact(lambda: self._ranges(view, positions), patience, time.sleep)
        parts = split_ranges(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        for name, address in snapshot.slaves.items():
            logger.warning(
                "master is down, reading from its slave instead; messages not yet copied to the slave are "
                "missing broker=%s slave=%s",
                peer_text(name),
                address,
            )
        masters = {name: at for name, at in snapshot.addresses.items() if name not in snapshot.slaves}
        newest = {queue: NewestStored.of(bounds) for queue, bounds in snapshot.bounds.items()}
        return BatchPlan(
            {each.queue: each.start for each in ranges},
            partitions_of(parts, self._options, masters, snapshot.replicas, snapshot.slaves, newest=newest),
        )

    def _ranges(self, view: ClusterView, positions: OptionPositions) -> tuple[Snapshot, list[QueueRange]]:
        snapshot = view.whole_snapshot().with_slaves()
        if snapshot.out_of_sight:
            raise next(iter(snapshot.out_of_sight.values()))
        if self._options.fail_on_data_loss:
            snapshot.check_switched_on("the batch would lack its messages")
        starts = positions.starts(snapshot, snapshot.bounds.keys())
        ends = positions.ends(snapshot)
        ends_are_written = self._options.ending_offsets is not None and not self._options.ends_at_group()
        if ends_are_written and self._options.fail_on_data_loss:
            problems = backward_problems(starts, ends)
            if problems:
                raise OptionError(problems)
        return snapshot, batch_ranges(starts, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range, on an executor."""
        if not isinstance(partition, QueuePartition):
            # For an empty list (a topic without messages) Spark creates a partition by itself.
            return iter(())
        return freeze_gc_after(read_queue(partition))


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader that Spark calls: plans micro-batches as ranges of queue offsets, and reads them."""

    timing: ClassVar[MembershipTiming] = MembershipTiming()

    def __init__(self, options: ReadOptions, open_listener: Callable[[], ConsumeOne] | None = None) -> None:
        """Keep the options; nothing is connected before Spark asks for an offset.

        ``open_listener`` opens the listener for single messages that an administrator sends to this process.
        It is None if the listener runs on executors only.
        """
        self._options = options
        self._open_listener = open_listener
        self._newest: Offset | None = None
        """The newest offset that Spark is known to have: Spark before 4.2 does not pass the offset at which
        the next plan begins."""

    @cached_property
    def _driver(self) -> PlannerControl | None:
        """The connection to a ``PushConsumer``'s driver; None for other queries."""
        secret = self._options.hub_secret
        return None if secret is None else PlannerControl(HubAddress.parse(secret), SystemClock())

    @cached_property
    def _planner(self) -> MicroBatchPlanner:
        clock = SystemClock()
        pool = process_pool(ConnectionSettings.of(self._options))
        view = ClusterView(self._options, pool, clock)
        progress = self._progress(view, pool, clock)
        if not SPARK_PASSES_TRIGGER:
            _warn_of_limits(self._options)
        sizes = None
        if self._options.max_bytes_per_trigger is not None:
            brokers = Cluster.of(self._options, clock, pool=pool).brokers()
            sizes = MessageSizes(brokers, PLAIN_SOURCE_GROUP)
        generations = None
        if progress.begins_in_checkpoint:
            lookup = MessageLookup(self._options, pool, clock)
            fails = self._options.fail_on_data_loss
            generations = CheckpointGenerations(lookup, clock, fail_on_data_loss=fails)
        driver = self._driver
        return MicroBatchPlanner(
            self._options,
            view,
            progress,
            clock,
            time.sleep,
            sizes=sizes,
            generations=generations,
            held_up=lambda: "" if driver is None else driver.held_up,
        )

    def _progress(self, view: ClusterView, pool: ChannelPool, clock: Clock) -> ProgressSource:
        """Return the source of queues' positions: the checkpoint, or a group's offset store.

        For a group this joins it as a member.
        """
        options, driver = self._options, self._driver
        starts = OptionPositions.of(options, pool, clock, LATEST).starts
        if options.consumer_group is None or options.offset_store is None:
            return CheckpointProgress(starts)
        store = open_group_store(options, _storage(options, driver))
        member_id = client_id(options)
        is_broadcast = options.message_model is MessageModel.BROADCASTING
        if is_broadcast:
            view.note_restart()
            owners = possible_owners(options, member_id, store)
            await_sole_owner(
                offset_key(options), owners, lambda: living_members(options, pool, clock), clock, time.sleep
            )
        member = join_group(
            options,
            member_id,
            store,
            clock,
            timing=self.timing,
            driver=driver,
            open_listener=self._open_listener,
        )
        unregister_at_exit(member)
        member.start()
        return GroupProgress(
            consumer_group=offset_key(options),
            client_id=member_id,
            store=store,
            ownership=member,
            starts=starts,
            clock=clock,
            is_sole_owner=is_broadcast,
            broker_offsets=None if is_broadcast else RemoteBrokerOffsets.of(options, clock, pool=pool),
            lately_arrived=None if driver is None else driver.lately_arrived,
            reset_watch=(
                None if is_broadcast else PullingResetWatch(options, pool, clock, member.reset_is_due)
            ),
            message_lookup=MessageLookup(options, pool, clock),
            fail_on_data_loss=options.fail_on_data_loss,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_newest": None, "_open_listener": None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit that Spark passes with every trigger except ``once``, which passes another one.

        :meth:`latestOffset` recognises ``once`` by its limit, ``ReadAllAvailable``. So this one must be of
        another kind. Its number has no effect: options limit micro-batches.
        """
        return ReadMaxRows(self._options.max_offsets_per_trigger or _ANY_NUMBER)

    @without_frames
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the present ends of all queues as the end of an AvailableNow run."""
        self._planner.prepare_available_now()

    @without_frames
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return Spark's offset before the first micro-batch.

        It has the start positions of a plain stream's queues; for a group it has none.
        """
        return self._planner.initial()

    @without_frames
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """Return the next plan as Spark's offset, or ``start`` if there is nothing to do.

        With ``trigger(once=True)`` the plan has all present messages. Spark before 4.2 passes neither
        argument, and takes whatever is returned as its next micro-batch.
        """
        if start is None:
            self._newest = self._after(self._newest or self.initialOffset())
            return self._newest
        if isinstance(limit, ReadAllAvailable):
            return self._planner.all_at_once(start)
        return self._planner.latest(start)

    def _after(self, start: Offset) -> Offset:
        if not self._options.drains:
            return self._planner.latest(start)
        offset = self._planner.until_drained(start)
        if offset == start and self._driver is not None:
            self._driver.drained()
        return offset

    @without_frames
    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return queues' ends for ``StreamingQueryProgress``: ``{topic: {brokerName: {queueId: end}}}``."""
        newest: dict[str, dict[str, dict[str, int]]] = {}
        for queue, bounds in sorted(self._planner.newest().items()):
            brokers = newest.setdefault(queue.topic, {})
            brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = bounds.max_offset
        return newest

    @without_frames
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return one partition per non-empty range of ``end``, unless ranges are split or share tasks.

        A group leaves out ranges that it may no longer read, and ranges whose broker is away.
        """
        self._newest = end
        if start == end:
            # By this call Spark before 4.2 shows where a query that starts again goes on.
            return []
        planned = self._planner.runnable(end)
        is_group = self._options.consumer_group is not None
        snapshot = self._planner.snapshot_for(planned, can_wait=not is_group)
        addresses, slaves = snapshot.addresses, snapshot.slaves
        if is_group:
            # Leave out ranges at a broker that is away: the store keeps their progress for a later plan.
            readable = addresses.keys() | slaves.keys()
            planned = [new for new in planned if new.queue.broker_name in readable]
        else:
            planned = split_ranges(
                planned,
                min_partitions=self._options.min_partitions,
                max_records=self._options.max_records_per_partition,
            )
        partitions = partitions_of(
            planned,
            self._options,
            addresses,
            snapshot.replicas,
            slaves,
            has_worked=self._planner.has_worked,
            consumed=self._planner.witnesses(planned),
        )
        if not self._options.hand_over_ranges:
            return partitions
        slots = 0 if self._driver is None else self._driver.slots()
        open_for_s = open_for_s_of(end)
        if open_for_s is not None:
            bounds = self._planner.newest()
            return open_tasks_of(partitions, bounds, slots=slots, open_for_s=open_for_s)
        return tasks_of(partitions, self._planner.listener_ms, slots)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range, on an executor; or tickets: rows with ranges to be read later."""
        if isinstance(partition, SharedTask):
            return freeze_gc_after(map(ticket_rows, partition.tickets))
        assert isinstance(partition, QueuePartition)
        return freeze_gc_after(read_queue(partition))

    def commit(self, end: Offset) -> None:
        """Do nothing: Spark calls this a batch late, and not for the last batch; ``foreachBatch`` commits."""


def _warn_of_limits(options: ReadOptions) -> None:
    """Log that ``availableNow`` and ``once`` end after the first micro-batch with Spark before 4.2.

    Such a Spark does not pass the trigger, so this is logged for every plain stream with limits.
    """
    limits = {
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "maxBytesPerTrigger": options.max_bytes_per_trigger,
    }
    given = ", ".join(f"{name}={limit}" for name, limit in limits.items() if limit is not None)
    if given and options.consumer_group is None:
        logger.warning(
            "Spark before 4.2 does not pass the trigger to Python sources: with availableNow or once this "
            "stream ends after one micro-batch, limited by %s; leave that out to read all messages",
            given,
        )


def _storage(options: ReadOptions, driver: PlannerControl | None) -> StorageOptions:
    """Return the storage options that the driver gives, or those of ``storageSecrets`` if it gives none.

    The driver is asked only if the query has ``storageSecrets``.
    """
    first = StorageOptions.parse(options.storage_secrets)
    if driver is None or options.storage_secrets is None:
        return first

    def ask() -> Mapping[str, str]:
        found = driver.storage_options()
        return first.values if found is None else found

    return StorageOptions(ask)
