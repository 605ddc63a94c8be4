"""Notices an operator's reset of queues that nothing is read from.

A broker keeps a reset until the group's next pull of the queue, and answers that pull with it (F5, golden fact 11).  A
Java consumer always has a pull waiting; here a queue without new messages is in no plan, so nobody pulls.  Hence the
planner asks for the next message of such queues now and then: no answer is waited for, the next plan takes it in.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Protocol

from pyspark_rocketmq.client.broker import BrokerClient, PullRequest, PullResult
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.datasource.told_resets import ToldResets
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.wire.subscription import expression_type

logger = logging.getLogger(__name__)

_EVERY_S: Final = 15.0
"""``brokerSuspendMaxTimeMillis``: so long a waiting pull keeps a Java consumer from hearing of a reset."""


class ResetWatch(Protocol):
    """Asks brokers for resets in the background."""

    def found(self) -> dict[MessageQueue, int]:
        """Resets told since the last call; a broker tells each once."""
        ...

    def look(self, idle: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]) -> None:
        """Ask, if it is time, for resets of queues without new messages, given with their next offsets."""
        ...


class PullingResetWatch:
    """Implements :class:`ResetWatch` for one group's topics by a pull per queue. Does not wait."""

    def __init__(self, options: ReadOptions, pool: ChannelPool, clock: Clock) -> None:
        assert options.consumer_group is not None
        self._group = options.consumer_group
        self._subscription_of = options.subscription_of
        self._clock = clock
        self._brokers = BrokerClient(
            pool, clock, options.request_timeout_ms / 1000, namespace=options.namespace or ""
        )
        self._told = ToldResets()
        self._look_at_s = clock.monotonic_s() + _EVERY_S

    def found(self) -> dict[MessageQueue, int]:
        """See :class:`ResetWatch`."""
        return self._told.take()

    def look(self, idle: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]) -> None:
        """See :class:`ResetWatch`."""
        now_s = self._clock.monotonic_s()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _EVERY_S
        for queue, next_offset in idle.items():
            self._ask(queue, next_offset, addresses[queue.broker_name])

    def _ask(self, queue: MessageQueue, next_offset: int, address: BrokerAddress) -> None:
        wanted = self._subscription_of(queue.topic)
        request = PullRequest(
            consumer_group=self._group,
            queue=queue,
            queue_offset=next_offset,
            max_msg_nums=1,
            subscription=wanted.expression,
            expression_type=expression_type(is_sql92=wanted.is_sql92),
        )

        def take_in(outcome: PullResult | RocketMQError) -> None:
            if isinstance(outcome, RocketMQError):
                logger.info("no look for a reset group=%s %s: %s", self._group, queue, outcome)
            elif (target := outcome.reset_from(next_offset)) is not None:
                self._told.add(queue, target)

        self._brokers.pull_async(address, request, take_in)
