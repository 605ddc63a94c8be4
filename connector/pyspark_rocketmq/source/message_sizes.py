"""Estimates how large a queue's next messages are, for plans that are limited in bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullStatus

logger = logging.getLogger(__name__)

_UNKNOWN_BYTES: Final = 1024.0
"""Estimated size of a message that was not measured yet, in bytes."""
_WEIGHT_OF_NEW: Final = 0.5
"""Weight of a new measurement in the average."""


class MessageSizes:
    """Estimate the size of messages by a pull per topic and broker before each plan that is limited in bytes.

    Do not use this in the name of a group that consumes: a broker reports an operator's reset only once, in
    the answer to the group's next pull, and these pulls would lose it.
    """

    def __init__(self, brokers: BrokerClient, consumer_group: str) -> None:
        self._brokers = brokers
        self._group = consumer_group
        self._known: dict[tuple[str, str], float] = {}

    def look(self, progress: Mapping[MessageQueue, QueueState], snapshot: Snapshot) -> None:
        """Measure messages of each topic at each broker, by a pull from the queue with the longest backlog.

        If a broker does not answer, its estimates stay.
        """
        longest: dict[tuple[str, str], tuple[int, MessageQueue]] = {}
        for queue, at in progress.items():
            bounds = snapshot.bounds.get(queue)
            place = queue.topic, queue.broker_name
            if bounds is not None and bounds.max_offset - at.next_offset > longest.get(place, (0, queue))[0]:
                longest[place] = bounds.max_offset - at.next_offset, queue
        for place, (_, queue) in longest.items():
            seen = self._seen(queue, progress[queue].next_offset, snapshot)
            if seen is not None:
                known = self._known.get(place, seen)
                self._known[place] = known + _WEIGHT_OF_NEW * (seen - known)

    def of(self, queue: MessageQueue) -> float:
        """Return the estimated stored size of a message of the queue, in bytes; 1024 if none was measured."""
        return self._known.get((queue.topic, queue.broker_name), _UNKNOWN_BYTES)

    def _seen(self, queue: MessageQueue, next_offset: int, snapshot: Snapshot) -> float | None:
        request = PullRequest(consumer_group=self._group, queue=queue, queue_offset=next_offset)
        try:
            pulled = self._brokers.pull(snapshot.addresses[queue.broker_name], request)
        except RocketMQError as error:
            logger.info("could not measure the size of messages %s: %s", queue, error)
            return None
        if pulled.status is not PullStatus.FOUND or pulled.next_begin_offset <= next_offset:
            return None
        return len(pulled.body) / (pulled.next_begin_offset - next_offset)
