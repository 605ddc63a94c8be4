from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import OffsetRow
from tests.helpers.cluster import LONG_ON_REAL, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.orders import produce_orders
from tests.helpers.retries import rows_but_retries
from tests.helpers.wait import wait_until

pytestmark = pytest.mark.spark

TIMEOUT_S = 120


class Watched:
    """A consumer without a sink, which runs until the test ends; its deliveries are noted."""

    def __init__(self, cluster: ClusterUnderTest, folder: Path) -> None:
        self.cluster = cluster
        self.topic = cluster.create_topic(queues=2)
        self.group = cluster.unique_name("group")
        self.store = DeltaOffsetStore(str(folder / "offsets"))
        self.log = DeliveryLog(folder / "deliveries")
        self._checkpoint = str(folder / "checkpoint")

    @contextmanager
    def running(self, spark: SparkSession, **settings: Any) -> Iterator[None]:
        log = self.log

        def note(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            log.note(messages)
            return ConsumeOrderlyStatus.SUCCESS

        consumer = PushConsumer(
            consumer_group=self.group,
            name_servers=self.cluster.name_servers,
            offset_store=self.store,
            **settings,
        )
        consumer.subscribe(self.topic)
        consumer.register_message_listener(note, output_schema="unused string")
        query = consumer.start(
            spark, checkpoint=self._checkpoint, trigger={"processingTime": "200 milliseconds"}
        )
        try:
            yield
            assert query.isActive
        finally:
            query.stop()

    def rows(self) -> dict[MessageQueue, OffsetRow]:
        """The group's progress in its topic."""
        return rows_but_retries(self.store.read(self.group))

    def progress(self) -> int:
        """Sum of the group's next offsets."""
        return sum(row.next_offset for row in self.rows().values())


@pytest.fixture
def watched(cluster: ClusterUnderTest, tmp_path: Path) -> Watched:
    return Watched(cluster, tmp_path)


@LONG_ON_REAL
def test_an_operators_reset_reaches_a_running_query(spark: SparkSession, watched: Watched) -> None:
    """F5: live and fenced; every message comes again, each queue from its beginning and in order."""
    produce_orders(watched.cluster.name_servers, watched.topic, 20)

    with watched.running(spark, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET):
        wait_until(lambda: watched.progress() == 100, TIMEOUT_S, reason="The first time through")
        before = watched.rows()
        watched.store.reset(watched.group, dict.fromkeys(before, 0))
        wait_until(lambda: watched.log.times_delivered().total() == 200, TIMEOUT_S, reason="The second time")
        wait_until(lambda: watched.progress() == 100, TIMEOUT_S, reason="The commit after the reset")

    assert set(watched.log.times_delivered().values()) == {2}
    after = watched.rows()
    assert all(after[queue].epoch > row.epoch for queue, row in before.items())
    for queue, row in after.items():
        offsets = [
            delivery.queue_offsets[0]
            for delivery in watched.log.by_queue()[queue.broker_name, queue.queue_id]
        ]
        assert offsets == [*range(row.next_offset)] * 2


@LONG_ON_REAL
def test_a_new_group_that_begins_at_the_last_offset_skips_what_was_there(
    spark: SparkSession, watched: Watched
) -> None:
    """F2: CONSUME_FROM_LAST_OFFSET, the default."""
    produce_orders(watched.cluster.name_servers, watched.topic, 20)

    with watched.running(spark):
        wait_until(lambda: len(watched.rows()) == 4, TIMEOUT_S, reason="The group's start")
        starts = watched.rows()
        produce_orders(watched.cluster.name_servers, watched.topic, 10, first=20)
        wait_until(lambda: watched.progress() == 150, TIMEOUT_S, reason="What was sent after the start")

    assert sum(row.next_offset for row in starts.values()) == 100
    delivered = watched.log.times_delivered()
    assert delivered.total() == len(delivered) == 50
    assert all(
        offset >= row.next_offset
        for queue, row in starts.items()
        for broker, queue_id, offset in delivered
        if (broker, queue_id) == (queue.broker_name, queue.queue_id)
    )


@LONG_ON_REAL
def test_a_new_group_that_begins_at_a_time_skips_what_was_stored_before_it(
    spark: SparkSession, watched: Watched
) -> None:
    """F2: CONSUME_FROM_TIMESTAMP, whose consumeTimestamp has whole seconds."""
    produce_orders(watched.cluster.name_servers, watched.topic, 20)
    begin_s = int(time.time()) + 1
    wait_until(lambda: time.time() > begin_s, reason="The second in which the group begins")
    produce_orders(watched.cluster.name_servers, watched.topic, 10, first=20)

    with watched.running(
        spark,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        consume_timestamp=datetime.fromtimestamp(begin_s, UTC).strftime("%Y%m%d%H%M%SZ"),
    ):
        wait_until(lambda: watched.progress() == 150, TIMEOUT_S, reason="What was stored since then")

    delivered = watched.log.times_delivered()
    assert delivered.total() == len(delivered) == 50
