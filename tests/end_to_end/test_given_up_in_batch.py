"""A queue is reset, or the query is to stop, while its listener is at work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer import push_consumer
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
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.modes import Mode
from tests.helpers.wait import wait_until

pytestmark = [pytest.mark.spark, SIM_ONLY]

_PATIENCE_S = 240.0
_CALL_S = 0.4
_INTERVAL = "200 milliseconds"
_EACH = 60
"""Messages of a queue: a micro-batch takes half a minute."""


class SlowQuery:
    """Consumes two queues, in two tasks."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: ClusterUnderTest,
        folder: Path,
        *,
        orderly: bool,
        mode: Mode = Mode.MICRO_BATCH,
        commit_interval: str | None = None,
    ) -> None:
        self.each = 30 if mode is Mode.REAL_TIME else _EACH
        topic = cluster.create_topic(queues=2, brokers=["broker-a"])
        self.queues = [MessageQueue(topic, "broker-a", number) for number in range(2)]
        self.commits_as_it_goes = commit_interval is not None
        self.store = DeltaOffsetStore(folder / "offsets")
        self.log = DeliveryLog(folder / "deliveries")
        self.sink = folder / "sink"
        with Producer(cluster.name_servers, "P", send_timeout_s=60.0) as producer:
            for queue in self.queues:
                producer.send_batch([Message(topic=topic, body=b"x") for _ in range(self.each)], queue)
        self.group = cluster.unique_name("given-up")
        self.consumer = PushConsumer(
            consumer_group=self.group,
            name_servers=cluster.name_servers,
            offset_store=self.store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consume_thread_max=2,
            commit_interval=commit_interval,
        )
        self.reports: list[BatchReport] = []
        self.consumer.register_batch_listener(self.reports.append)
        self.consumer.subscribe(topic)
        log = self.log

        def in_order(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            log.note(messages)
            time.sleep(_CALL_S)
            context.emit(body="x")
            return ConsumeOrderlyStatus.SUCCESS

        def at_once(
            messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
        ) -> ConsumeConcurrentlyStatus:
            log.note(messages)
            time.sleep(_CALL_S)
            context.emit(body="x")
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        self.consumer.register_message_listener(
            in_order if orderly else at_once, orderly=orderly, output_schema="body string"
        )
        self.query = self.consumer.start(
            spark,
            sink=DeltaSink(self.sink),
            checkpoint=folder / "checkpoint",
            trigger=mode.trigger,
        )

    def delivered(self) -> list[tuple[int, int]]:
        """Queue and offset of what the listener was given."""
        return [(each.queue_id, offset) for each in self.log.deliveries() for offset in each.queue_offsets]

    def await_begun(self) -> None:
        wait_until(lambda: len(self.delivered()) >= 4, _PATIENCE_S, reason="A batch under way")

    def offsets(self) -> dict[int, int]:
        """Next offset of each queue in the offset store."""
        rows = self.store.read(self.group)
        return {queue.queue_id: row.next_offset for queue, row in rows.items() if queue in self.queues}

    def rows(self) -> list[tuple[int, int]]:
        """Queue and offset of what is in the sink."""
        table = DeltaTable(self.sink).to_pyarrow_table(columns=["queueId", "queueOffset"])
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture(
    params=[
        pytest.param((True, Mode.MICRO_BATCH, None, False), id="orderly"),
        pytest.param((False, Mode.MICRO_BATCH, None, False), id="concurrent", marks=pytest.mark.long),
        pytest.param(
            (True, Mode.MICRO_BATCH, _INTERVAL, False), id="orderly-with-commits", marks=pytest.mark.long
        ),
        pytest.param((False, Mode.MICRO_BATCH, _INTERVAL, False), id="concurrent-with-commits"),
        pytest.param((True, Mode.REAL_TIME, _INTERVAL, False), id="orderly-in-real-time"),
        pytest.param((False, Mode.REAL_TIME, _INTERVAL, False), id="concurrent-in-real-time"),
        pytest.param((True, Mode.MICRO_BATCH, _INTERVAL, True), id="encrypted", marks=pytest.mark.long),
    ],
)
def slow(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    cluster: ClusterUnderTest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[SlowQuery]:
    orderly, mode, interval, is_encrypted = request.param
    # The session of the tests' run has its settings from its start.
    monkeypatch.setattr(push_consumer, "encrypts_network", lambda _: is_encrypted)
    running = SlowQuery(spark, cluster, tmp_path, orderly=orderly, mode=mode, commit_interval=interval)
    yield running
    running.query.stop()


def test_a_queue_that_is_reset_is_given_up_at_once_and_the_others_are_not(slow: SlowQuery) -> None:
    """F5, D7: nothing of it from before the reset is counted; what shares its batch is, once.

    Rows of it that were committed before the reset stay.
    """
    slow.await_begun()
    first = min(slow.delivered())[0]
    slow.store.reset(slow.group, {slow.queues[first]: slow.each - 2})
    expected = {
        (first, slow.each - 2),
        (first, slow.each - 1),
        *((1 - first, offset) for offset in range(slow.each)),
    }

    wait_until(
        lambda: DeltaTable.is_deltatable(str(slow.sink)) and set(slow.rows()) >= expected,
        _PATIENCE_S,
        reason="The rest of the messages",
    )
    delivered = slow.delivered()
    assert (first, slow.each - 3) not in delivered
    rows = slow.rows()
    assert len(rows) == len(set(rows))
    before = sorted(set(rows) - expected)
    assert before == [(first, offset) for offset in range(len(before))]
    assert set(before) <= set(delivered)
    assert not before or slow.commits_as_it_goes


def test_a_query_that_is_stopped_in_good_order_keeps_what_its_batch_has_done(slow: SlowQuery) -> None:
    """B7, D7: the calls in hand are waited for, and nothing is consumed again."""
    slow.await_begun()
    assert slow.consumer.stop(slow.query, _PATIENCE_S)

    delivered = slow.delivered()
    assert len(delivered) < 2 * slow.each
    assert slow.rows() == sorted(delivered)
    assert slow.query.exception() is None
    done = slow.offsets()
    assert done == {number: sum(queue_id == number for queue_id, _ in delivered) for number in done}
