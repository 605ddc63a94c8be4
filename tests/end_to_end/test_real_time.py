"""A query in real time: the listener gets messages when they arrive, and rows are committed as it goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageQueue,
)
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.table import MANY_COMMITS
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.wait import wait_until

pytestmark = [pytest.mark.spark]

_PATIENCE_S = 120.0


class LiveQuery:
    """Consumes the queues of a topic in real time."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: ClusterUnderTest,
        folder: Path,
        *,
        orderly: bool,
        lasts: str = "5 minutes",
    ) -> None:
        self.cluster = cluster
        self.is_orderly = orderly
        self.topic = cluster.create_topic(queues=2, brokers=["broker-a"])
        self.queues = [MessageQueue(self.topic, "broker-a", number) for number in range(2)]
        self.store = DeltaOffsetStore(folder / "offsets")
        self.log = DeliveryLog(folder / "deliveries")
        self.sink = folder / "sink"
        self.producer = Producer(cluster.name_servers, "P", send_timeout_s=60.0)
        self.sent = [0, 0]
        self.group = cluster.unique_name("real-time")
        self.consumer = PushConsumer(
            consumer_group=self.group,
            name_servers=cluster.name_servers,
            offset_store=self.store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            commit_interval="100 milliseconds",
        )
        self.reports: list[BatchReport] = []
        self.consumer.register_batch_listener(self.reports.append)
        self.consumer.subscribe(self.topic)
        log = self.log

        def in_order(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            log.note(messages)
            if messages[0].body == b"later" and not messages[0].reconsume_times:
                context.suspend_current_queue_time_millis = 50
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            context.emit(body="x")
            return ConsumeOrderlyStatus.SUCCESS

        def any_order(
            messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
        ) -> ConsumeConcurrentlyStatus:
            log.note(messages)
            context.emit(body="x")
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        self.consumer.register_message_listener(
            in_order if orderly else any_order, orderly=orderly, output_schema="body string"
        )
        self.query = self.consumer.start(
            spark,
            sink=DeltaSink(self.sink),
            checkpoint=folder / "checkpoint",
            trigger={"realTime": lasts},
        )

    def send(self, queue_id: int, body: bytes = b"x", count: int = 1) -> None:
        queue = MessageQueue(self.topic, "broker-a", queue_id)
        self.producer.send_batch([Message(topic=self.topic, body=body) for _ in range(count)], queue)
        self.sent[queue_id] += count

    def delivered(self) -> list[tuple[int, int]]:
        """Queue and offset of what the listener was given."""
        return [(each.queue_id, offset) for each in self.log.deliveries() for offset in each.queue_offsets]

    def rows(self) -> list[tuple[int, int]]:
        """Queue and offset of what is in the sink."""
        if not DeltaTable.is_deltatable(str(self.sink)):
            return []
        table = DeltaTable(self.sink).to_pyarrow_table(columns=["queueId", "queueOffset"])
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def wanted(self) -> list[tuple[int, int]]:
        return [(queue_id, at) for queue_id, end in enumerate(self.sent) for at in range(end)]

    def await_rows(self) -> None:
        def is_failed() -> Any:
            return self.query.exception()

        wait_until(
            lambda: is_failed() is not None or len(self.rows()) >= sum(self.sent),
            _PATIENCE_S,
            reason="Every message's row",
        )
        assert is_failed() is None
        assert self.rows() == self.wanted()

    def close(self) -> None:
        self.query.stop()
        self.producer.close()


@pytest.fixture(params=[True, False], ids=["orderly", "concurrent"])
def live(
    request: pytest.FixtureRequest, spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> Iterator[LiveQuery]:
    running = LiveQuery(spark, cluster, tmp_path, orderly=request.param)
    yield running
    running.close()


def test_messages_are_consumed_and_committed_while_one_batch_lasts(live: LiveQuery) -> None:
    """I1: nothing of it waits for the batch's end."""
    live.send(0, count=100)
    live.await_rows()
    for _ in range(10):
        live.send(0)
        live.send(1, count=2)
        time.sleep(0.05)
    live.await_rows()

    # The queue of the retry topic may come after the first plan.
    assert len({report.batch_id for report in live.reports}) <= 2
    assert len(live.reports) >= 4
    assert DeltaTable(live.sink).metadata().configuration == dict(MANY_COMMITS)
    assert live.consumer.stop(live.query, _PATIENCE_S)
    assert live.query.exception() is None
    assert sorted(live.delivered()) == live.wanted()
    stored = {queue.queue_id: row.next_offset for queue, row in live.store.read(live.group).items()}
    assert {queue_id: stored[queue_id] for queue_id in (0, 1)} == {0: 110, 1: 20}


def test_a_suspended_message_is_delivered_again_in_the_same_batch(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """D3, D4, I3: the other queue goes on meanwhile."""
    live = LiveQuery(spark, cluster, tmp_path, orderly=True)
    live.send(0, b"later")
    live.send(1)
    live.await_rows()
    live.send(0, b"later", count=2)
    live.await_rows()

    assert sorted(live.delivered()) == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (0, 2), (1, 0)]
    live.close()


def test_a_batch_that_is_over_is_followed_by_the_next_one(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """I4: nothing is lost or comes twice between them."""
    live = LiveQuery(spark, cluster, tmp_path, orderly=True, lasts="5 seconds")
    ends_s = time.monotonic() + 25.0
    while time.monotonic() < ends_s:
        live.send(0)
        live.send(1)
        time.sleep(0.02)
    live.await_rows()

    assert len({report.batch_id for report in live.reports}) >= 3
    assert sorted(live.delivered()) == live.wanted()
    live.close()


def test_a_queue_that_is_reset_is_planned_again_immediately(live: LiveQuery) -> None:
    """F5: the other one goes on from where it was."""
    live.send(0, count=20)
    live.send(1, count=20)
    live.await_rows()
    live.store.reset(live.group, {live.queues[0]: 15})
    # The sink takes no row twice, unless it is reset too.
    wait_until(lambda: live.delivered().count((0, 19)) == 2, _PATIENCE_S, reason="Deliveries after the reset")
    live.send(0)
    live.send(1)
    wait_until(lambda: (0, 20) in live.delivered() and (1, 20) in live.delivered(), _PATIENCE_S)

    assert [live.delivered().count((0, at)) for at in range(21)] == [1] * 15 + [2] * 5 + [1]
    assert [live.delivered().count((1, at)) for at in range(21)] == [1] * 21


def test_a_queue_that_is_created_is_consumed_soon(live: LiveQuery) -> None:
    """B1: a batch of hours does not make it wait."""
    live.send(0)
    live.await_rows()
    live.cluster.create_topic(live.topic, queues=3, brokers=["broker-a"])
    live.sent.append(0)
    live.send(2, count=5)
    live.await_rows()
