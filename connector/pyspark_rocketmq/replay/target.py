"""The target topic: its queues, their ends, what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.cluster import Cluster, PatientLookup
from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds, QueueRange, TopicRoute
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.subscription import EVERYTHING
from pyspark_rocketmq.replay.ranges import REPLAYED_BY, REPLAYED_FROM, Sending, target_queue
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.reader import read_queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look at a target queue brought."""

    bounds: QueueBounds
    highest: tuple[int | None, ...]
    """The highest source offset of each sending that was asked for; None where no message of it is there."""


def brokers_of(how: QueuePartition) -> BrokerClient:
    """The brokers of the cluster that a range is read from."""
    pool = process_pool(how.connection)
    return Cluster((), pool, SystemClock(), how.request_timeout_s, how.namespace).brokers()


@dataclass(frozen=True, slots=True)
class TargetTail:
    """One target queue; pickled to the executors."""

    how: QueuePartition
    """How it is read: queue and broker, whatever the range."""

    @property
    def queue(self) -> MessageQueue:
        """Which."""
        return self.how.planned.queue

    def look(self, sendings: Sequence[Sending], from_offset: int) -> Found:
        """Read the queue from ``from_offset`` to its present end, other writers' messages included.

        Raises:
            RocketMQError: If the queue cannot be read.
        """
        brokers = brokers_of(self.how)
        address = self.how.address
        bounds = QueueBounds(brokers.min_offset(address, self.queue), brokers.max_offset(address, self.queue))
        highest: list[int | None] = [None] * len(sendings)
        start = max(from_offset, bounds.min_offset)
        if start >= bounds.max_offset:
            return Found(bounds=bounds, highest=tuple(highest))
        tail = replace(
            self.how,
            planned=QueueRange(queue=self.queue, start=start, end=bounds.max_offset),
            columns=("queueOffset",),
            property_columns=(REPLAYED_BY, REPLAYED_FROM),
            # What expires meanwhile is older than what is looked for, or missed by stored_until.
            fail_on_data_loss=False,
        )
        for rows in read_queue(tail):
            pairs = zip(
                rows.column(REPLAYED_BY).to_pylist(), rows.column(REPLAYED_FROM).to_pylist(), strict=True
            )
            for replayed_by, replayed_from in pairs:
                if replayed_by is None:
                    continue
                for at, sending in enumerate(sendings):
                    offset = sending.offset_of(replayed_by, replayed_from)
                    if offset is not None and offset >= (highest[at] or 0):
                        highest[at] = offset
        return Found(bounds=bounds, highest=tuple(highest))


class TargetTopic:
    """Asked by the driver."""

    def __init__(self, options: ReadOptions, topic: str) -> None:
        """Ask for the topic's queues; they stay the same from here on.

        Looks for them as long as ``retryTimeoutMs``.

        Raises:
            RocketMQError: If it has none.
        """
        self._options = options
        pool = process_pool(ConnectionSettings.of(options))
        timeout_s = options.request_timeout_ms / 1000
        namespace = options.namespace or ""
        self._producer = Producer(
            options.name_servers,
            PLAIN_SOURCE_GROUP,
            pool=pool,
            send_timeout_s=timeout_s,
            namespace=namespace,
        )
        clock = SystemClock()
        self._brokers = Cluster.of(options, clock, pool=pool).brokers()
        self._queues = PatientLookup(self._producer, clock, options.retry_timeout_ms / 1000).queues(topic)
        self._topic = topic

    def route(self) -> TopicRoute:
        """What tasks need to know of the topic to find its brokers when these have just restarted.

        Raises:
            RocketMQError: If it cannot be had.
        """
        return self._producer.route(self._topic)

    def sendings(self, run: str, sources: Sequence[QueueRange]) -> list[Sending]:
        """Where the ranges go, and where that ends now; nothing is sent yet.

        Raises:
            RocketMQError: If a broker does not answer.
        """
        targets = [target_queue(one.queue, self._queues) for one in sources]
        ends = {target: self._brokers.max_offset(self._address(target), target) for target in set(targets)}
        return [
            Sending(run=run, source=one, target=target, target_offset=ends[target])
            for one, target in zip(sources, targets, strict=True)
        ]

    def tail(self, target: MessageQueue) -> TargetTail:
        """How to look at a queue of the topic.

        Raises:
            RocketMQError: If no broker has it.
        """
        options = self._options
        return TargetTail(
            QueuePartition(
                planned=QueueRange(queue=target, start=0, end=0),
                address=self._address(target),
                subscription=EVERYTHING,
                consumer_group=PLAIN_SOURCE_GROUP,
                with_marker=False,
                fail_on_data_loss=False,
                keeps_undecodable=True,
                pull_batch_size=options.pull_batch_size,
                pulls_in_flight=options.pulls_in_flight,
                request_timeout_s=options.request_timeout_ms / 1000,
                retry_timeout_s=options.retry_timeout_ms / 1000,
                max_in_flight_bytes=options.max_in_flight_bytes,
                connection=ConnectionSettings.of(options),
                namespace=options.namespace or "",
            )
        )

    def _address(self, target: MessageQueue) -> BrokerAddress:
        return BrokerAddress(self._producer.master_of(target))
