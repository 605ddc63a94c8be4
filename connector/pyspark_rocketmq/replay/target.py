"""Looks up the target topic of a replay: its queues, their ends, and the replayed messages in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from pyspark_rocketmq.client.cluster import Cluster, PatientLookup
from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.read_range import ReadSettings
from pyspark_rocketmq.errors import TransportError
from pyspark_rocketmq.model import (
    QUEUE_OFFSET,
    BrokerAddress,
    MessageQueue,
    QueueBounds,
    QueueRange,
    TopicRoute,
)
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.subscription import EVERYTHING
from pyspark_rocketmq.replay.ranges import REPLAYED_BY, REPLAYED_FROM, Sending, target_queue
from pyspark_rocketmq.source.ranges import QueuePartition, brokers_of
from pyspark_rocketmq.source.reader import read_queue


class TargetTail(NamedTuple):
    """Messages of replayed ranges that were found at the end of a target queue."""

    bounds: QueueBounds
    highest: tuple[int | None, ...]
    """For each replayed range, the highest source offset found; None if none of its messages was found."""


def read_tail(how: QueuePartition, sendings: Sequence[Sending], from_offset: int) -> TargetTail:
    """Find the highest source offset of each of ``sendings`` in a target queue.

    The queue is read from ``from_offset`` to its present end. ``how`` specifies queue and broker; its range
    is ignored.

    Raises:
        TransportError: If a slave is listed as the queue's master, because it may lack messages.
        RocketMQError: If the queue cannot be read.
    """
    bounds, queue = master_bounds(how), how.planned.queue
    highest: list[int | None] = [None] * len(sendings)
    start = max(from_offset, bounds.min_offset)
    if start >= bounds.max_offset:
        return TargetTail(bounds, tuple(highest))
    tail = replace(
        how,
        planned=QueueRange.between(queue, start, bounds.max_offset),
        settings=how.settings._replace(
            columns=(QUEUE_OFFSET,), property_columns=(REPLAYED_BY, REPLAYED_FROM)
        ),
    )
    for rows in read_queue(tail):
        by, origins = (rows.column(name).to_pylist() for name in tail.settings.property_columns)
        for replayed_by, replayed_from in zip(by, origins, strict=True):
            if replayed_by is None:
                continue
            for at, sending in enumerate(sendings):
                offset = sending.offset_of(replayed_by, replayed_from)
                if offset is not None and offset >= (highest[at] or 0):
                    highest[at] = offset
    return TargetTail(bounds, tuple(highest))


def master_bounds(how: QueuePartition) -> QueueBounds:
    """Return the bounds of the queue of a partition, as its master has them.

    Raises:
        TransportError: If a slave is listed as the queue's master, because it may lack messages.
        RocketMQError: If the broker does not answer.
    """
    brokers, queue = brokers_of(how), how.planned.queue
    if brokers.is_slave(how.address, queue.broker_name):
        raise TransportError(
            how.address,
            f"the broker there is listed as master of {queue.broker_name}, but is a slave, which may lack "
            "messages that were sent. Run the replay again when the master is back.",
        )
    return QueueBounds(brokers.min_offset(how.address, queue), brokers.max_offset(how.address, queue))


class TargetTopic:
    """The target topic of a replay, for the driver: its queues, their ends and its route."""

    def __init__(self, options: ReadOptions, topic: str) -> None:
        """Look up the topic's queues, for up to ``retryTimeoutMs``; this object keeps using them.

        Raises:
            RocketMQError: If the topic has no queues to write to, or its route cannot be looked up.
        """
        self._options = options
        self._topic = topic
        clock = SystemClock()
        pool = process_pool(ConnectionSettings.of(options))
        self._producer = Producer(
            options.name_servers,
            PLAIN_SOURCE_GROUP,
            pool=pool,
            send_timeout_s=options.request_timeout_ms / 1000,
            namespace=options.namespace or "",
        )
        self._brokers = Cluster.of(options, clock, pool=pool).brokers()
        self._queues = PatientLookup(self._producer, clock, options.retry_timeout_ms / 1000).queues(topic)

    @property
    def queues(self) -> Collection[MessageQueue]:
        """The topic's queues that could be written to when it was looked up."""
        return self._queues

    def closed(self) -> set[MessageQueue]:
        """Return the topic's queues that cannot be written to: read-only, or at a broker without a master.

        Brokers of which no member is registered at the name server are not known.

        Raises:
            RocketMQError: If the route is not available.
        """
        known = {
            MessageQueue(self._topic, data.broker_name, queue_id)
            for data in self.route().queues
            for queue_id in range(data.write_queue_nums)
        }
        return known.difference(self._queues)

    def route(self) -> TopicRoute:
        """Return the topic's route for the tasks, whose name server may not have it just after a restart.

        Raises:
            RocketMQError: If the route is not available.
        """
        return self._producer.route(self._topic)

    def sendings(
        self,
        run: str,
        sources: Sequence[QueueRange],
        recorded: Mapping[MessageQueue, MessageQueue] = MappingProxyType({}),
    ) -> list[Sending]:
        """Return for each source range the target queue that gets its messages, and the queue's current end.

        ``recorded`` has the target queues that source queues have from earlier runs.

        Raises:
            RocketMQError: If a broker does not answer.
        """
        targets = [
            recorded.get(source.queue) or target_queue(source.queue, self._queues) for source in sources
        ]
        ends = {target: self._brokers.max_offset(self._address(target), target) for target in set(targets)}
        return [
            Sending(run=run, source=source, target=target, target_offset=ends[target])
            for source, target in zip(sources, targets, strict=True)
        ]

    def partition(self, target: MessageQueue) -> QueuePartition:
        """Return the partition with which a task reads a queue of the topic, with an empty range.

        Raises:
            ConnectFailed: If no route names a master of the queue's broker.
            RocketMQError: If the route is not available.
        """
        return QueuePartition(
            planned=QueueRange.between(target, 0, 0),
            address=self._address(target),
            subscription=EVERYTHING,
            settings=ReadSettings.of(self._options)._replace(
                columns=None,
                property_columns=(),
                # If messages expire meanwhile, they are older than the wanted ones; if not, stored_until
                # detects the loss.
                fail_on_data_loss=False,
                keeps_undecodable=True,
                prefers_replica=False,
                replaces_master=False,
            ),
            connection=ConnectionSettings.of(self._options),
        )

    def _address(self, target: MessageQueue) -> BrokerAddress:
        return BrokerAddress(self._producer.master_of(target))
