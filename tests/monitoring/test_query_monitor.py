"""Events in, metrics out: whatever fails on the way, and what Prometheus scrapes of it."""

from __future__ import annotations

import logging
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Never

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent, StreamingQueryProgress

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.monitoring import query_monitor as stored_times
from pyspark_rocketmq.monitoring.batch_metrics import BatchMetrics
from pyspark_rocketmq.monitoring.prometheus import PrometheusEndpoint
from pyspark_rocketmq.monitoring.query_monitor import QueryMonitor
from pyspark_rocketmq.source.ranges import plan_to_offset
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sending import patient_producer
from tests.helpers.wait import PATIENCE_S
from tests.monitoring.events import Q0, Q1, QUERY_ID, RUN_ID, ack, offset_row, planned, progress, report


def event(
    batch_id: int = 3,
    *,
    queue: MessageQueue = Q0,
    start: int = 0,
    end: int = 10,
    latest: int = 40,
    epoch: int = 1,
) -> QueryProgressEvent:
    plan = plan_to_offset(batch_id + 1, [planned(queue, start, end, epoch=epoch)])
    found = progress(end=plan, latest={queue: latest}, batch_id=batch_id)
    return QueryProgressEvent(StreamingQueryProgress.fromJson(found))


def finish(monitor: QueryMonitor) -> None:
    """Wait for what it has begun."""
    monitor._thread.submit(int).result(PATIENCE_S)


@pytest.fixture
def monitor(clock: FakeClock) -> Iterator[QueryMonitor]:
    with closing(QueryMonitor(clock=clock)) as made:
        yield made


@pytest.fixture
def told(monitor: QueryMonitor) -> list[BatchMetrics]:
    found: list[BatchMetrics] = []
    monitor.register_listener(found.append)
    return found


def test_a_batch_is_shown_with_what_its_consumer_reported(
    monitor: QueryMonitor, told: list[BatchMetrics]
) -> None:
    """B5: Spark reports it after the consumer did."""
    monitor.batch_committed(
        report(acks=[ack(Q0, next_offset=4, consumed=4, failed=1)], rows=[offset_row(Q0, 4)])
    )
    monitor.onQueryProgress(event())
    monitor.close()

    (metrics,) = told
    assert (metrics.batch_id, metrics.acknowledged, metrics.lag) == (3, 4, 36)


def test_a_batch_with_several_commits_is_shown_with_all_of_them(
    monitor: QueryMonitor, told: list[BatchMetrics]
) -> None:
    """B5, D11: with a commit interval, or when a queue was given up meanwhile."""
    first = [ack(Q0, next_offset=4, consumed=4, failed=1, read=4)]
    rest = [ack(Q0, start=4, next_offset=9, consumed=5, dead_letters=1, read=6), ack(Q1, next_offset=3)]
    monitor.batch_committed(report(acks=first, rows=[offset_row(Q0, 4)]))
    monitor.batch_committed(report(acks=rest, rows=[offset_row(Q0, 9), offset_row(Q1, 3)]))
    monitor.onQueryProgress(event())
    monitor.close()

    (metrics,) = told
    assert (metrics.rows, metrics.retried, metrics.dead_letters, metrics.lag) == (14, 1, 1, 31)
    (of_q0,) = (each for each in metrics.queues if each.queue == Q0)
    assert (of_q0.read, of_q0.acknowledged, of_q0.planned) == (10, 9, 10)


def test_a_report_belongs_to_its_own_batch_only(monitor: QueryMonitor, told: list[BatchMetrics]) -> None:
    monitor.batch_committed(report(acks=[ack(Q0, next_offset=4)], rows=[offset_row(Q0, 4)], batch_id=2))
    monitor.onQueryProgress(event(batch_id=3))
    monitor.close()

    assert [metrics.acknowledged for metrics in told] == [0]


def test_sums_grow_and_end_with_their_query(monitor: QueryMonitor, told: list[BatchMetrics]) -> None:
    for batch_id in (3, 4):
        rows, acks = [offset_row(Q0, 10)], [ack(Q0, next_offset=10, consumed=5, failed=1, dead_letters=1)]
        monitor.batch_committed(report(acks=acks, rows=rows, batch_id=batch_id))
        monitor.onQueryProgress(event(batch_id))
    seen = []
    monitor.register_listener(lambda metrics: seen.append(monitor.queries()[RUN_ID]))
    monitor.onQueryProgress(event(5))
    monitor.onQueryTerminated(QueryTerminatedEvent(uuid.UUID(QUERY_ID), uuid.UUID(RUN_ID), None, None))
    monitor.close()

    assert (seen[-1].batches, seen[-1].rows) == (3, 14)
    totals = seen[-1].queues[Q0]
    assert (totals.acknowledged, totals.retried, totals.dead_letters) == (10, 2, 2)
    assert monitor.queries() == {}


def test_a_failing_metrics_listener_does_not_disturb_the_others(
    monitor: QueryMonitor, told: list[BatchMetrics], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(metrics: BatchMetrics) -> Never:
        raise ValueError("no")

    monitor._listeners.insert(0, fail)
    monitor.onQueryProgress(event())
    monitor.close()

    assert len(told) == 1
    assert "a listener of metrics failed query=etl" in caplog.text


def test_events_that_arrive_while_the_monitor_closes_are_dropped(
    monitor: QueryMonitor, told: list[BatchMetrics]
) -> None:
    monitor.close()

    monitor.onQueryProgress(event())
    monitor.onQueryTerminated(QueryTerminatedEvent(uuid.UUID(QUERY_ID), uuid.UUID(RUN_ID), None, None))

    assert told == []


def test_every_batch_is_one_line_of_the_log(monitor: QueryMonitor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pyspark_rocketmq.monitoring")

    for batch_id in (3, 4):
        monitor.onQueryProgress(event(batch_id, epoch=0))
    monitor.close()

    assert [record.getMessage().split(" seconds")[0] for record in caplog.records] == [
        "batch query=etl batch=3",
        "batch query=etl batch=4",
    ]


def test_reports_without_a_progress_are_forgotten_some_time(monitor: QueryMonitor) -> None:
    """Spark drops events when its listeners are too slow."""
    for batch_id in range(1000):
        monitor.batch_committed(report(acks=[], rows=[], batch_id=batch_id))

    assert len(monitor._reports) == 100


def test_wrong_options_are_refused_before_anything_is_watched() -> None:
    with pytest.raises(OptionError, match="did you mean 'nameServers'"):
        QueryMonitor({"nameServer": "n:1", "topic": "orders"})


def test_how_long_the_next_message_has_waited_is_asked_of_its_broker(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: the same question as job ``offsets lag`` asks; a queue that is not behind costs none."""
    # Metrics do without what a broker reports late; here it is waited for.
    monkeypatch.setattr(stored_times, "_TIMEOUT_S", PATIENCE_S)
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    queue = MessageQueue(topic, "broker-a", 0)
    with patient_producer(cluster.name_servers) as producer:
        producer.send_batch([Message(topic=topic, body=b"x")] * 3, queue)
    told: list[BatchMetrics] = []
    with closing(QueryMonitor({"nameServers": cluster.name_servers, "topic": topic})) as monitor:
        monitor.register_listener(told.append)
        for end in (1, 3):
            monitor.onQueryProgress(event(queue=queue, end=end, latest=3, epoch=0))
            finish(monitor)

    behind, caught_up = told
    assert behind.lag == 2
    lag_s, lag = behind.lag_s, behind.queues[0].lag
    assert lag_s is not None
    assert 0 <= lag_s < 600
    assert lag is not None
    assert lag.next_stored_at_s is not None
    assert lag.next_stored_at_s > 1_600_000_000
    assert (caught_up.lag, caught_up.lag_s) == (0, 0.0)


@SIM_ONLY
def test_a_broker_that_is_away_costs_the_seconds_and_nothing_else(
    cluster: ClusterUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    """A2"""
    topic = cluster.create_topic(queues=2, brokers=["broker-b"])
    cluster.stop_broker("broker-b")
    told: list[BatchMetrics] = []
    with closing(QueryMonitor({"nameServers": cluster.name_servers, "topic": topic})) as monitor:
        monitor.register_listener(told.append)
        monitor.onQueryProgress(event(queue=MessageQueue(topic, "broker-b", 0), end=1, latest=3, epoch=0))

    (metrics,) = told
    assert (metrics.lag, metrics.lag_s) == (2, None)


def test_prometheus_scrapes_what_is_known_now(monitor: QueryMonitor, clock: FakeClock) -> None:
    """B5, D3, E4: gauges of the last batch, sums of all; the wait of a message grows between batches."""
    acks = [ack(Q0, next_offset=4, read=9, consumed=4, failed=2, dead_letters=1)]
    rows = [offset_row(Q0, 4, suspended_until_s=clock.now_s() + 60, reconsume_times=3)]
    monitor.batch_committed(report(acks=acks, rows=rows))
    monitor.onQueryProgress(event())
    finish(monitor)

    with closing(PrometheusEndpoint(monitor, 0)) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            text = answer.read().decode()

    samples: dict[str, tuple[dict[str, str], float]] = {
        sample.name.removeprefix("pyspark_rocketmq_"): (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    of_queue = {"query": "etl", "topic": "orders", "broker": "broker-a", "queue": "0"}
    assert samples["lag_messages"] == (of_queue, 36.0)
    assert {name: value for name, (_, value) in samples.items()} == {
        "lag_messages": 36, "suspended": 1, "reconsume_times": 3, "planned_messages": 10, "read_messages": 9,
        "acknowledged_messages_total": 4, "retried_deliveries_total": 2, "dead_letters_total": 1,
        "batches_total": 1,
        "rows_total": 7, "batch_seconds": 1.25, "last_batch_timestamp_seconds": clock.now_s(),
    }  # fmt: skip
