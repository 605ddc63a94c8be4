"""A group's offsets at the brokers: what Java's members go by, and what a mixed group hands over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.datasource.brokers_at_once import at_queues
from pyspark_rocketmq.errors import (
    BrokerOffsetUnavailable,
    GroupNotFound,
    NoPermission,
    OffsetNotFound,
    RocketMQError,
)
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.options import ReadOptions

logger = logging.getLogger(__name__)

T = TypeVar("T")

Addresses = Mapping[str, BrokerAddress]
"""Where each broker's master is."""


class BrokerOffsets(Protocol):
    """Next offsets to consume of one group, as its brokers have them."""

    def read(self, queues: Iterable[MessageQueue], addresses: Addresses) -> dict[MessageQueue, int]:
        """Offsets of ``queues``; a queue without one is absent.

        Raises:
            BrokerOffsetUnavailable: If a broker did not tell; nothing is known then.
            NoPermission: If the group's offsets may not be read.
        """
        ...

    def write(self, next_offsets: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        """Store offsets, lower ones too.

        Raises:
            BrokerOffsetUnavailable: If a broker did not take one; others may be stored.
            NoPermission: If the group's offsets may not be written.
        """
        ...


class RemoteBrokerOffsets:
    """Implements :class:`BrokerOffsets` by a call per queue, one after another at each broker, brokers at once.

    Source: ``RemoteBrokerOffsetStore``.
    """

    def __init__(self, consumer_group: str, brokers: BrokerClient) -> None:
        self._group = consumer_group
        self._brokers = brokers

    @classmethod
    def of(cls, options: ReadOptions, pool: ChannelPool, clock: Clock) -> RemoteBrokerOffsets:
        """Those of the group that a query reads as."""
        assert options.consumer_group is not None
        namespace = options.namespace or ""
        return cls(
            options.consumer_group,
            BrokerClient(pool, clock, options.request_timeout_ms / 1000, namespace=namespace),
        )

    def read(self, queues: Iterable[MessageQueue], addresses: Addresses) -> dict[MessageQueue, int]:
        """See :class:`BrokerOffsets`."""
        found = self._each(queues, addresses, self._query)
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def write(self, next_offsets: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        """See :class:`BrokerOffsets`."""
        self._each(
            next_offsets, addresses, lambda address, queue: self._update(address, queue, next_offsets[queue])
        )

    def _query(self, address: BrokerAddress, queue: MessageQueue) -> int | None:
        try:
            # Never a 0 that the broker makes up: it would look like an offset somebody stored.
            return self._brokers.query_consumer_offset(
                address, self._group, queue, set_zero_if_not_found=False
            )
        except OffsetNotFound:
            return None

    def _update(self, address: BrokerAddress, queue: MessageQueue, next_offset: int) -> None:
        try:
            self._brokers.update_consumer_offset(address, self._group, queue, next_offset)
        except GroupNotFound:
            # Then it has no offset either that could be taken for a later one.
            logger.info("offset not stored, the broker has no such group group=%s %s", self._group, queue)

    def _each(
        self,
        queues: Iterable[MessageQueue],
        addresses: Addresses,
        ask: Callable[[BrokerAddress, MessageQueue], T],
    ) -> dict[MessageQueue, T]:
        return at_queues(queues, lambda queue: self._asked(ask, addresses[queue.broker_name], queue))

    def _asked(
        self, ask: Callable[[BrokerAddress, MessageQueue], T], address: BrokerAddress, queue: MessageQueue
    ) -> T:
        try:
            return ask(address, queue)
        except NoPermission:
            raise
        except RocketMQError as error:
            raise BrokerOffsetUnavailable(
                f"Group {self._group}, {queue}: {address} could not be asked about the group's offset: {error} "
                "The queue waits; look at the broker if this goes on."
            ) from error
