"""A query in real time: the listener gets messages when they arrive, and rows are committed as it goes."""

from __future__ import annotations

import io
import json
import logging
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from rich.console import Console

from pyspark_rocketmq.cli.offsets.lag import look_at_lag
from pyspark_rocketmq.cli.offsets.records import LagView
from pyspark_rocketmq.cli.offsets.show import show_offsets
from pyspark_rocketmq.cli.options import OffsetsLagSettings, OffsetsShowSettings
from pyspark_rocketmq.cli.output import OutputForm
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.latencies import LatencyHistogram
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
from pyspark_rocketmq.monitoring.prometheus import PrometheusEndpoint
from pyspark_rocketmq.monitoring.query_monitor import QueryMonitor
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.table import MANY_COMMITS
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.retries import rows_but_retries
from tests.helpers.wait import PATIENCE_S, wait_until

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
        monitor: QueryMonitor | None = None,
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
        self.calls_may_end = folder / "calls may end"
        self.reports: list[BatchReport] = []
        self.consumer.register_batch_listener(self.reports.append)
        self.consumer.subscribe(self.topic)
        log, may_end = self.log, self.calls_may_end

        def hold(message: MessageExt) -> None:
            gives_up_s = time.monotonic() + _PATIENCE_S
            while message.body == b"held" and not may_end.exists():
                assert time.monotonic() < gives_up_s
                time.sleep(0.01)

        def in_order(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            log.note(messages)
            if messages[0].body == b"later" and not messages[0].reconsume_times:
                context.suspend_current_queue_time_millis = 50
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            hold(messages[0])
            context.emit(body="x")
            return ConsumeOrderlyStatus.SUCCESS

        def any_order(
            messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
        ) -> ConsumeConcurrentlyStatus:
            log.note(messages)
            hold(messages[0])
            context.emit(body="x")
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        self.consumer.register_message_listener(
            in_order if orderly else any_order, orderly=orderly, output_schema="body string"
        )
        if monitor is not None:
            monitor.watch(spark, self.consumer)
        self.query = self.consumer.start(
            spark,
            sink=self.make_sink(),
            checkpoint=folder / "checkpoint",
            trigger={"realTime": lasts},
        )

    def make_sink(self) -> Sink:
        return DeltaSink(self.sink)

    def send(self, queue_id: int, body: bytes = b"x", count: int = 1) -> None:
        queue = MessageQueue(self.topic, "broker-a", queue_id)
        self.producer.send_batch([Message(topic=self.topic, body=body) for _ in range(count)], queue)
        self.sent[queue_id] += count

    def send_until(self, is_enough: Callable[[], bool]) -> None:
        """Send messages to both queues, one after the other, until it is enough."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not is_enough():
            assert self.query.exception() is None
            assert time.monotonic() < deadline_s, self.reports
            self.send(0)
            self.send(1)
            time.sleep(0.02)

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
    live.send_until(lambda: len(live.reports) >= 4)
    live.await_rows()

    # On a slow machine not all tasks begin in time, so that another batch follows.
    assert len({report.batch_id for report in live.reports}) <= 2
    assert DeltaTable(live.sink).metadata().configuration == dict(MANY_COMMITS)
    assert live.consumer.stop(live.query, _PATIENCE_S)
    assert live.query.exception() is None
    assert sorted(live.delivered()) == live.wanted()
    rows = rows_but_retries(live.store.read(live.group))
    stored = {queue.queue_id: row.next_offset for queue, row in rows.items()}
    assert [stored[queue_id] for queue_id in (0, 1)] == live.sent


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
    live.send_until(lambda: len({report.batch_id for report in live.reports}) >= 3)
    live.await_rows()

    assert sorted(live.delivered()) == live.wanted()
    live.close()


@SIM_ONLY
@pytest.mark.parametrize("orderly", [True, False], ids=["orderly", "concurrent"])
def test_a_long_call_at_the_end_of_a_batch_delays_no_other_queue(
    spark: SparkSession,
    cluster: ClusterUnderTest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    orderly: bool,
) -> None:
    """D3, I3: a Java client's other queues go on, whatever it has to do again at the same time."""
    caplog.set_level(logging.INFO, "pyspark_rocketmq.hub")
    live = LiveQuery(spark, cluster, tmp_path, orderly=orderly, lasts="5 seconds")
    live.send(0)
    live.await_rows()
    live.send(1, b"held")
    wait_until(lambda: (1, 0) in live.delivered(), _PATIENCE_S)
    ends = caplog.text.count("batch in real time ends")
    wait_until(lambda: caplog.text.count("batch in real time ends") > ends, _PATIENCE_S)
    live.send(0)
    wait_until(lambda: (0, 1) in live.delivered(), _PATIENCE_S)

    live.calls_may_end.touch()
    live.send(1)
    live.await_rows()
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


def test_everything_shown_follows_the_commits_of_a_batch_that_lasts(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """B5, D11, I1: Prometheus, the monitor, commands of offsets, and what an administrator asks a member."""
    with closing(QueryMonitor()) as monitor:
        live = LiveQuery(spark, cluster, tmp_path, orderly=True, monitor=monitor)
        with closing(PrometheusEndpoint(monitor, 0)) as endpoint, closing(live):
            for _ in range(20):
                live.send(0)
                live.send(1, count=2)
                time.sleep(0.02)
            live.await_rows()

            def passed() -> float:
                return sum(_scraped(endpoint, "acknowledged_messages_total"))

            wait_until(lambda: passed() == 60, _PATIENCE_S, reason="The newest commit's metrics")
            assert _scraped(endpoint, "batches_total") in ([0.0], [1.0])
            assert _scraped(endpoint, "rows_total") == [60.0]
            for name in ("store_to_listener", "store_to_commit"):
                assert _scraped(endpoint, f"{name}_seconds_count") == [60.0]
            [to_listener] = _scraped(endpoint, "store_to_listener_seconds_sum")
            assert to_listener <= _scraped(endpoint, "store_to_commit_seconds_sum")[0]
            assert set(_scraped(endpoint, "lag_messages")) <= {0.0}
            sums = reduce(LatencyHistogram.plus, (each.store_to_listener for each in live.reports))
            assert monitor.queries()[str(live.query.runId)].store_to_listener == sums

            settings = OffsetsLagSettings(
                offset_store=f"delta:{tmp_path / 'offsets'}",
                name_servers=(cluster.name_servers,),
                consumer_group=live.group,
                request_timeout_ms=int(PATIENCE_S * 1000),
            )

            def of_topic() -> list[LagView]:
                return [view for view in look_at_lag(settings) if view.row.queue.topic == live.topic]

            # Offsets may be stored a moment after the rows.
            wait_until(
                lambda: (
                    [(view.row.next_offset, view.lag, view.lag_s) for view in of_topic()]
                    == [(20, 0, 0), (40, 0, 0)]
                ),
                _PATIENCE_S,
                reason="The offsets",
            )
            output = io.StringIO()
            show_offsets(
                OffsetsShowSettings(offset_store=settings.offset_store, name_servers=settings.name_servers),
                Console(file=output, width=300),
                OutputForm.JSON,
            )
            shown = [each for each in json.loads(output.getvalue()) if each["topic"] == live.topic]
            assert [(each["nextOffset"], each["lag"]) for each in shown] == [(20, 0), (40, 0)]
            [member] = {view.holder.client_id for view in of_topic() if view.holder is not None}
            _check_running_info(live, member)
            assert len({report.batch_id for report in live.reports}) <= 2


def _scraped(endpoint: PrometheusEndpoint, name: str) -> list[float]:
    """Values of all series of a metric."""
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"pyspark_rocketmq_{name}"
    ]


def _check_running_info(live: LiveQuery, client_id: str) -> None:
    """Check what ``mqadmin consumerStatus`` shows of the member."""
    with ChannelPool(SystemClock()) as pool:
        admin = BrokerClient(pool, SystemClock(), PATIENCE_S)
        info = admin.running_info(live.cluster.broker_addresses["broker-a"], live.group, client_id)
    status = info.statuses[live.topic]
    assert status.consume_ok_tps > 0
    assert status.consume_rt > 0
    assert status.pull_tps > 0
    assert status.pull_rt > 0
    assert (status.consume_failed_tps, status.consume_failed_msgs) == (0, 0)
    consumed_ms = [queue.last_consume_timestamp for queue in info.queues.values()]
    assert all(abs(time.time() * 1000 - at) < _PATIENCE_S * 1000 for at in consumed_ms)
    assert {info.queues[queue].commit_offset for queue in live.queues} == {20, 40}
