"""Queries in both modes: in micro-batches, and in real time, where no test waits for the end of a batch.

A test of a listener's rows without ``BOTH_MODES`` is about micro-batches, and ``micro_batch_only`` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetStore
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import PATIENCE_S, wait_until

TIMEOUT_S = 240
_LOOK_EVERY_S: Any = 0.05
"""Spark takes a fraction, but its annotation wants whole seconds."""


class Mode(StrEnum):
    """How a query consumes."""

    MICRO_BATCH = "micro-batch"
    REAL_TIME = "real time"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a consumer."""
        return {"commit_interval": "100 milliseconds"} if self is Mode.REAL_TIME else {}

    @property
    def trigger(self) -> dict[str, Any]:
        """Trigger of a query that does not end by itself."""
        if self is Mode.REAL_TIME:
            return {"realTime": "5 minutes"}
        return {"processingTime": "200 milliseconds"}

    def drain(
        self, consumer: PushConsumer, spark: SparkSession, until: Callable[[], object], **start: Any
    ) -> None:
        """Consume everything: until there is nothing more, or in real time until ``until`` is true.

        Raises:
            StreamingQueryException: If the query fails.
        """
        if self is Mode.MICRO_BATCH:
            query = consumer.start(spark, trigger={"availableNow": True}, **start)
            assert query.awaitTermination(TIMEOUT_S), "the query did not drain"
            return
        query = consumer.start(spark, trigger=self.trigger, **start)
        try:
            wait_until(
                lambda: query.awaitTermination(_LOOK_EVERY_S) or until(), TIMEOUT_S, reason="All consumed"
            )
            assert consumer.stop(query, PATIENCE_S), "what was consumed last was not committed"
        finally:
            query.stop()


BOTH_MODES = pytest.mark.parametrize("mode", [Mode.MICRO_BATCH, Mode.REAL_TIME], indirect=True)
"""Marks a test whose scene takes another path in real time."""


def micro_batch_only(reason: str) -> pytest.MarkDecorator:
    """Mark a test that is only about micro-batches, for a reason."""
    return pytest.mark.micro_batch_only(reason=reason)


def all_consumed(cluster: ClusterUnderTest, topic: str, store: OffsetStore, group: str) -> Callable[[], bool]:
    """Return a condition: the group has committed all that the topic has when it is first asked."""

    @cache
    def ends() -> dict[MessageQueue, int]:
        clock = SystemClock()
        with Producer(cluster.name_servers, "ends") as producer, ChannelPool(clock) as pool:
            brokers = BrokerClient(pool, clock, PATIENCE_S)
            return {
                queue: brokers.max_offset(cluster.broker_addresses[queue.broker_name], queue)
                for queue in producer.queues(topic)
            }

    def is_so() -> bool:
        rows = store.read(group)
        return all(
            end == 0 or (queue in rows and rows[queue].next_offset >= end) for queue, end in ends().items()
        )

    return is_so
