"""Bounds of a group's retry queues for members that may read them, but may not ask for a topic's statistics.

To a broker with access control a retry topic is its group, and statistics need the right ``Get`` where consuming needs
``Sub`` alone.  Every answer to a pull tells the queue's bounds, so a pull from the end asks for them; what it brings when
something has come since is the price.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyspark_rocketmq.client.broker import BrokerClient, PullRequest
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds

logger = logging.getLogger(__name__)


class RetryBounds:
    """Remembers where each queue ended, which is where the next pull asks."""

    def __init__(self, consumer_group: str, brokers: BrokerClient) -> None:
        self._group = consumer_group
        self._brokers = brokers
        self._ends: dict[MessageQueue, int] = {}

    def ask(self, address: BrokerAddress, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
        """Bounds of ``queues``, all of them at ``address``.

        Raises:
            RocketMQError: If the broker refuses or does not answer.
        """
        return {queue: self._ask_one(address, queue) for queue in queues}

    def _ask_one(self, address: BrokerAddress, queue: MessageQueue) -> QueueBounds:
        end = self._ends.get(queue, 0)
        request = PullRequest(consumer_group=self._group, queue=queue, queue_offset=end, max_msg_nums=1)
        pulled = self._brokers.pull(address, request)
        target = pulled.reset_from(end)
        if target is not None:
            # The broker has forgotten it with this answer.
            logger.warning(
                "reset of a retry queue not followed, reset it again with the right Get on the group group=%s %s "
                "target=%d",
                self._group,
                queue,
                target,
            )
        self._ends[queue] = pulled.max_offset
        return QueueBounds(min_offset=pulled.min_offset, max_offset=pulled.max_offset)
