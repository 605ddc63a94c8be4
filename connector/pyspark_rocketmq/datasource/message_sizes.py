"""How large the messages of a queue are, about: seen by pulling a few before a plan that is limited in bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pyspark_rocketmq.client.broker import BrokerClient, PullRequest, PullStatus
from pyspark_rocketmq.consume.plan import QueueProgress
from pyspark_rocketmq.datasource.cluster_view import Snapshot
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue

logger = logging.getLogger(__name__)

_UNKNOWN_BYTES: Final = 1024.0
_WEIGHT_OF_NEW: Final = 0.5


class MessageSizes:
    """One pull for each topic and broker at a look, where most waits to be read. Not for members of a group.

    A broker tells of an operator's reset of a group once, with whatever pull of the group comes next.
    """

    def __init__(self, brokers: BrokerClient, consumer_group: str) -> None:
        self._brokers = brokers
        self._group = consumer_group
        self._known: dict[tuple[str, str], float] = {}

    def look(self, progress: Mapping[MessageQueue, QueueProgress], snapshot: Snapshot) -> None:
        """See how large the next messages are; what cannot be seen stays as it was known."""
        longest: dict[tuple[str, str], tuple[int, MessageQueue]] = {}
        for queue, at in progress.items():
            backlog = snapshot.bounds[queue].max_offset - at.next_offset
            place = queue.topic, queue.broker_name
            if backlog > longest.get(place, (0, queue))[0]:
                longest[place] = backlog, queue
        for place, (_, queue) in longest.items():
            seen = self._seen(queue, progress[queue].next_offset, snapshot)
            if seen is not None:
                known = self._known.get(place, seen)
                self._known[place] = known + _WEIGHT_OF_NEW * (seen - known)

    def of(self, queue: MessageQueue) -> float:
        """Stored bytes of one of the queue's messages."""
        return self._known.get((queue.topic, queue.broker_name), _UNKNOWN_BYTES)

    def _seen(self, queue: MessageQueue, next_offset: int, snapshot: Snapshot) -> float | None:
        request = PullRequest(consumer_group=self._group, queue=queue, queue_offset=next_offset)
        try:
            pulled = self._brokers.pull(snapshot.addresses[queue.broker_name], request)
        except RocketMQError as error:
            logger.info("size of messages not seen %s: %s", queue, error)
            return None
        if pulled.status is not PullStatus.FOUND or pulled.next_begin_offset <= next_offset:
            return None
        return len(pulled.body) / (pulled.next_begin_offset - next_offset)
