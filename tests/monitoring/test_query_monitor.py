"""Events in, metrics out: whatever fails on the way, and what Prometheus scrapes of it."""

from __future__ import annotations

import logging
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Never

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.latencies import LatencyHistogram
from pyspark_rocketmq.consume.metrics import QueueLag
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.monitoring import query_monitor as stored_times
from pyspark_rocketmq.monitoring.batch_metrics import BatchMetrics
from pyspark_rocketmq.monitoring.prometheus import PrometheusEndpoint
from pyspark_rocketmq.monitoring.query_monitor import QueryMonitor, StoredTimes
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.options.read import ReadOptions
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


class _Session:
    """A session that takes listeners of streams."""

    def __init__(self) -> None:
        self.streams = self
        self.listening: list[object] = []

    def addListener(self, listener: object) -> None:  # noqa: N802 - Spark's name
        self.listening.append(listener)

    def removeListener(self, listener: object) -> None:  # noqa: N802 - Spark's name
        self.listening.remove(listener)


def test_a_consumer_is_watched_before_its_change_table_gives_it_a_listener(monitor: QueryMonitor) -> None:
    """A consumer is watched before ``start``, which registers the listener of a change table."""
    consumer = PushConsumer(consumer_group="g", name_servers="127.0.0.1:9", offset_store="unused")
    consumer.subscribe("shop")
    session: Any = _Session()

    monitor.watch(session, consumer)

    assert session.listening == [monitor]
    assert len(consumer._batch_listeners) == 1
    with pytest.raises(OptionError, match="no listener is registered"):
        consumer.start(session, checkpoint="unused")


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


def started(name: str | None = "etl") -> QueryStartedEvent:
    return QueryStartedEvent(uuid.UUID(QUERY_ID), uuid.UUID(RUN_ID), name, "2026-11-21T15:04:40.908Z", set())


def ahead(stop: int, *latencies_ms: int, rows: list[OffsetRow] | None = None) -> BatchReport:
    """A commit of four messages of a batch that goes on."""
    return report(
        acks=[ack(Q0, start=stop - 4, next_offset=stop, consumed=4, failed=1, read=5)],
        rows=rows or [offset_row(Q0, stop), offset_row(Q1, 7)],
        is_ahead=True,
        store_to_listener=LatencyHistogram.of(latencies_ms),
        store_to_commit=LatencyHistogram.of(latencies_ms).later_by(500),
    )


def test_each_commit_within_a_batch_is_shown_when_it_is_made(
    monitor: QueryMonitor, told: list[BatchMetrics], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B5, D11: what came after the last of them is shown with the batch's end; all is counted once."""
    caplog.set_level(logging.DEBUG, "pyspark_rocketmq.monitoring")
    monitor.onQueryStarted(started())
    for stop in (4, 8):
        clock.advance(0.5)
        monitor.batch_committed(ahead(stop, 3, 5))
        finish(monitor)
    state = monitor.queries()[RUN_ID]
    assert (state.batches, state.rows, state.queues[Q0].acknowledged) == (0, 14, 8)
    assert (state.latest.has_ended, state.latest.duration_s, state.batch_s) == (False, 0.5, None)
    assert [(each.queue, each.planned, each.read, each.acknowledged) for each in state.latest.queues] == [
        (Q0, 5, 5, 4),
        (Q1, 0, 0, 0),
    ]
    assert state.latest.queues[1].lag == QueueLag(7, None)
    assert caplog.messages[-1] == (
        "batch query=etl batch=3 seconds=0.500 queues=1 planned=5 read=5 acknowledged=4 rows=7 retried=1 "
        "deadLetters=0 suspended=0 toListenerMs=3/5 toCommitMs=505/505"
    )

    rest = report(acks=[ack(Q0, start=8, next_offset=9, consumed=1, read=1)], rows=[offset_row(Q0, 9)])
    monitor.batch_committed(rest)
    monitor.onQueryProgress(event())
    monitor.close()

    state = monitor.queries()[RUN_ID]
    assert (state.batches, state.rows, state.queues[Q0].acknowledged, state.batch_s) == (1, 21, 9, 1.25)
    assert [(each.acknowledged, each.retried, each.rows) for each in told] == [
        (4, 1, 7),
        (4, 1, 7),
        (1, 0, 7),
    ]
    assert (told[-1].lag, told[-1].has_ended) == (31, True)
    assert state.store_to_listener == LatencyHistogram.of([3, 5, 3, 5])


def test_a_batch_that_was_committed_before_its_end_still_shows_where_it_is(
    monitor: QueryMonitor, told: list[BatchMetrics]
) -> None:
    """B5, H5: it was not dropped."""
    monitor.onQueryStarted(started(None))
    monitor.batch_committed(ahead(4))
    monitor.onQueryProgress(event())
    monitor.close()

    assert [(each.query, each.acknowledged, each.read) for each in told] == [(QUERY_ID, 4, 5), ("etl", 0, 0)]
    assert told[-1].lag == 36


def test_commits_of_a_query_whose_start_nobody_saw_are_shown_with_the_batch(
    monitor: QueryMonitor, told: list[BatchMetrics]
) -> None:
    """B5"""
    monitor.onQueryStarted(started())
    monitor.onQueryTerminated(QueryTerminatedEvent(uuid.UUID(QUERY_ID), uuid.UUID(RUN_ID), None, None))
    monitor.batch_committed(ahead(4, 3))
    monitor.batch_committed(ahead(8, 9))
    monitor.onQueryProgress(event())
    monitor.close()

    (metrics,) = told
    assert (metrics.acknowledged, metrics.rows, metrics.store_to_listener.messages) == (8, 14, 2)


def test_brokers_are_asked_for_a_twentieth_of_the_time_within_a_batch(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch, told: list[BatchMetrics]
) -> None:
    """B5: what they answered before counts meanwhile, but no end is before what was consumed since."""
    monkeypatch.setattr(stored_times, "_TIMEOUT_S", PATIENCE_S)
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    queue = MessageQueue(topic, "broker-a", 0)
    with patient_producer(cluster.name_servers) as producer:
        producer.send_batch([Message(topic=topic, body=b"x")] * 3, queue)
    times = StoredTimes(ReadOptions.parse({"nameServers": cluster.name_servers, "topic": topic}))
    assert times.is_due
    assert times.ends({queue: 1}, asks=True) == {queue: 3}
    assert set(times.query({queue: 1})) == {queue}

    monkeypatch.setattr(stored_times, "run_concurrently", None)
    assert times.ends({queue: 2}, asks=False) == {queue: 3}
    assert times.ends({queue: 5}, asks=False) == {queue: 5}
    assert set(times.last_known({queue: 2})) == {queue}
    assert times.last_known({}) == {}


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


def scraped(monitor: QueryMonitor) -> list[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample."""
    with closing(PrometheusEndpoint(monitor, 0)) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
    return [
        (sample.name.removeprefix("pyspark_rocketmq_"), sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def test_prometheus_scrapes_a_batch_while_it_runs(monitor: QueryMonitor, clock: FakeClock) -> None:
    """B5, D11: latencies as histograms, whose buckets have exact counts."""
    monitor.onQueryStarted(started())
    clock.advance(2.0)
    monitor.batch_committed(ahead(4, 0, 1, 2, 15, 16, 4_000_000))
    monitor.batch_committed(ahead(8, 20))
    finish(monitor)

    samples = scraped(monitor)
    plain = {name: value for name, labels, value in samples if labels == {"query": "etl"}}
    assert plain["last_batch_timestamp_seconds"] == clock.now_s()
    assert (plain["batches_total"], plain["rows_total"]) == (0, 14)
    assert "batch_seconds" not in plain
    assert plain["store_to_listener_seconds_count"] == plain["store_to_commit_seconds_count"] == 7
    assert plain["store_to_listener_seconds_sum"] == pytest.approx(4_000.054)
    below = {
        labels["le"]: value for name, labels, value in samples if name == "store_to_listener_seconds_bucket"
    }
    assert [below[edge] for edge in ("0.001", "0.002", "0.016", "0.024", "3145.728", "+Inf")] == [
        1, 2, 4, 6, 6, 7,
    ]  # fmt: skip
    acknowledged = [value for name, _, value in samples if name == "acknowledged_messages_total"]
    assert acknowledged == [8, 0]


def test_prometheus_scrapes_what_is_known_now(monitor: QueryMonitor, clock: FakeClock) -> None:
    """B5, D3, E4: gauges of the last batch, sums of all; the wait of a message grows between batches."""
    acks = [ack(Q0, next_offset=4, read=9, consumed=4, failed=2, dead_letters=1)]
    rows = [offset_row(Q0, 4, suspended_until_s=clock.now_s() + 60, reconsume_times=3)]
    monitor.batch_committed(report(acks=acks, rows=rows))
    monitor.onQueryProgress(event())
    finish(monitor)

    samples = {name: (labels, value) for name, labels, value in scraped(monitor)}
    of_queue = {"query": "etl", "topic": "orders", "broker": "broker-a", "queue": "0"}
    assert samples["lag_messages"] == (of_queue, 36.0)
    assert {name: value for name, (_, value) in samples.items()} == {
        "lag_messages": 36, "suspended": 1, "reconsume_times": 3, "planned_messages": 10, "read_messages": 9,
        "acknowledged_messages_total": 4, "retried_deliveries_total": 2, "dead_letters_total": 1,
        "batches_total": 1,
        "rows_total": 7, "batch_seconds": 1.25, "last_batch_timestamp_seconds": clock.now_s(),
    }  # fmt: skip
