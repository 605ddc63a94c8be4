"""What a target queue has from some offset on, as far as it tells how far ranges have come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.queue_reader import read_queue
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.replay.resent_message import REPLAYED_BY, REPLAYED_FROM
from pyspark_rocketmq.replay.sending import Sending


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look at a target queue brought."""

    bounds: QueueBounds
    highest: tuple[int | None, ...]
    """The highest source offset of each sending that was asked for; None where no message of it is there."""


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
        brokers = BrokerClient(
            process_pool(self.how.connection),
            SystemClock(),
            self.how.request_timeout_s,
            namespace=self.how.namespace,
        )
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
