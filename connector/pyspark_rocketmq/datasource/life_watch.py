"""Looks whether a queue's offsets began again: asks its broker for the message in the place of the newest one consumed.

Once at each claim and each reset, and where what the broker has went back or the queue was out of sight: never for a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pyspark_rocketmq.client.broker import BrokerClient, PullRequest, PullStatus
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.lives import LastMessage
from pyspark_rocketmq.datasource.brokers_at_once import at_queues
from pyspark_rocketmq.datasource.told_resets import ToldResets
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, PulledBody, QueueBounds
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.wire.messages import decode_stored_messages
from pyspark_rocketmq.wire.undecodable import offsets_of

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """What a broker has at one offset."""

    bounds: QueueBounds
    """Of this moment."""
    message: LastMessage | None
    """The one at the offset; None if there is none."""
    is_reset: bool = False
    """Whether a reset was told in place of the message."""


class LifeWatch(Protocol):
    """Sees single messages, and keeps the resets that brokers tell with them, whatever else fails then."""

    def resets(self) -> dict[MessageQueue, int]:
        """Where operators want queues: told since the last call, and to nobody again."""
        ...

    def look(
        self, places: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]
    ) -> dict[MessageQueue, Found]:
        """What is at these offsets.

        Raises:
            RocketMQError: If a broker does not answer, or refuses.
        """
        ...

    def stored_after(
        self, queue: MessageQueue, address: BrokerAddress, timestamp: int, bounds: QueueBounds
    ) -> int:
        """The offset of the first message stored later than a time (milliseconds), or the queue's end.

        Raises:
            RocketMQError: If the broker does not answer, or refuses.
        """
        ...


class PullingLifeWatch:
    """Implements :class:`LifeWatch` by a pull of one message as the group itself, which may read its topics.

    Brokers are asked at once.
    """

    def __init__(self, options: ReadOptions, pool: ChannelPool, clock: Clock) -> None:
        assert options.consumer_group is not None
        self._group = options.consumer_group
        timeout_s = options.request_timeout_ms / 1000
        self._brokers = BrokerClient(pool, clock, timeout_s, namespace=options.namespace or "")
        self._told = ToldResets()

    def resets(self) -> dict[MessageQueue, int]:
        """See :class:`LifeWatch`."""
        return self._told.take()

    def look(
        self, places: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]
    ) -> dict[MessageQueue, Found]:
        """See :class:`LifeWatch`."""
        return at_queues(places, lambda queue: self._at(queue, places[queue], addresses[queue.broker_name]))

    def stored_after(
        self, queue: MessageQueue, address: BrokerAddress, timestamp: int, bounds: QueueBounds
    ) -> int:
        """See :class:`LifeWatch`."""
        found = self._brokers.search_offset(address, queue, timestamp + 1)
        offset = min(max(found, bounds.min_offset), bounds.max_offset)
        seen = self._at(queue, offset, address)
        if seen.is_reset:
            # Told once, so that the next answer is the message.
            seen = self._at(queue, offset, address)
        there = seen.message
        # Brokers before 5 answer with the nearest message, which may be the one before.
        return offset + 1 if there is not None and there.store_timestamp <= timestamp else offset

    def _at(self, queue: MessageQueue, offset: int, address: BrokerAddress) -> Found:
        request = PullRequest(consumer_group=self._group, queue=queue, queue_offset=offset, max_msg_nums=1)
        pulled = self._brokers.pull(address, request)
        bounds = QueueBounds(pulled.min_offset, pulled.max_offset)
        if pulled.status is not PullStatus.FOUND:
            target = pulled.reset_from(offset)
            if target is not None:
                self._told.add(queue, target)
            return Found(bounds, None, is_reset=target is not None)
        return Found(bounds, _message_at(queue, offset, pulled.body))


def _message_at(queue: MessageQueue, offset: int, data: PulledBody) -> LastMessage | None:
    """Of the stored messages in ``data`` the one at an offset; None if its layout is broken, for which nothing can be told."""
    try:
        messages = decode_stored_messages(data)
    except RemoteProtocolError as error:
        logger.warning(
            "the message that tells whether offsets begin again cannot be decoded %s queueOffset=%d: %s",
            queue,
            offset,
            error,
        )
        return None
    # Bodies are left as they are: one that cannot be decompressed has its place, too.
    for one in messages:
        if offset in offsets_of(one):
            return LastMessage(offset, one.store_timestamp, one.commit_log_offset)
    return None
