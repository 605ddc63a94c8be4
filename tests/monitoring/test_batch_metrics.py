"""What a micro-batch's metrics are, from Spark's progress and a consumer's report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyspark_rocketmq.consume.metrics import QueueLag
from pyspark_rocketmq.model import OPEN_END, MessageQueue
from pyspark_rocketmq.monitoring.batch_metrics import BatchMetrics, QueueMetrics, metrics_of
from pyspark_rocketmq.source.ranges import plan_to_offset
from tests.monitoring.events import NOW_S, Q0, Q1, ack, offset_row, planned, progress, report, told


def by_queue(metrics: BatchMetrics) -> dict[MessageQueue, QueueMetrics]:
    return {one.queue: one for one in metrics.queues}


def test_a_consumers_queue_is_behind_by_what_it_did_not_acknowledge() -> None:
    """B5, D2: not by what was planned and not by what was read."""
    metrics = told(
        progress(end=plan_to_offset(1, [planned(Q0, 0, 10, epoch=1)]), latest={Q0: 40}),
        report(
            acks=[ack(Q0, next_offset=4, read=9, consumed=4, failed=2, dead_letters=1)],
            rows=[offset_row(Q0, 4)],
        ),
        NOW_S,
    )

    (one,) = metrics.queues
    assert (one.planned, one.read, one.acknowledged, one.retried, one.dead_letters) == (10, 9, 4, 2, 1)
    assert one.lag == QueueLag(4, 40)
    assert (metrics.lag, metrics.lag_s, metrics.rows) == (36, None, 7)


def test_a_queue_without_a_part_in_the_batch_keeps_its_suspension_and_its_lag() -> None:
    """B5, D3: a suspended queue is not planned, and is what an operator wants to see."""
    metrics = told(
        progress(end=plan_to_offset(1, [planned(Q0, 0, 10, epoch=1)]), latest={Q0: 10, Q1: 50}),
        report(
            acks=[ack(Q0, next_offset=10)],
            rows=[offset_row(Q0, 10), offset_row(Q1, 20, suspended_until_s=NOW_S + 5, reconsume_times=3)],
        ),
        NOW_S,
    )

    waiting = by_queue(metrics)[Q1]
    assert (waiting.planned, waiting.acknowledged, waiting.reconsume_times) == (0, 0, 3)
    assert (waiting.is_suspended(NOW_S), waiting.is_suspended(NOW_S + 6)) == (True, False)
    assert (metrics.suspended, metrics.lag) == (1, 30)


def test_a_query_without_a_consumer_has_come_to_the_end_of_its_plan() -> None:
    metrics = told(
        progress(end=plan_to_offset(2, [planned(Q0, 5, 10), planned(Q1, 3, 3)]), latest={Q0: 10, Q1: 4}),
        None,
        NOW_S,
    )

    assert [(one.planned, one.acknowledged, one.lag) for one in metrics.queues] == [
        (5, 5, QueueLag(10, 10)),
        (0, 0, QueueLag(3, 4)),
    ]
    assert (metrics.read, metrics.rows, metrics.lag) == (10, None, 1)
    assert " read=10 " in metrics.line()


def test_a_trigger_that_planned_nothing_new_has_no_figures_of_the_batch_before() -> None:
    same = plan_to_offset(2, [planned(Q0, 5, 10)])

    metrics = told(progress(start=same, end=same, latest={Q0: 12}), None, NOW_S)

    assert (metrics.planned, metrics.acknowledged, metrics.lag) == (0, 0, 2)


def test_a_batch_that_was_dropped_says_nothing_of_where_its_consumer_is() -> None:
    """H5: it was dropped because a queue is somebody else's now."""
    metrics = told(
        progress(end=plan_to_offset(1, [planned(Q0, 0, 10, epoch=1)]), latest={Q0: 40}), None, NOW_S
    )

    assert (metrics.planned, metrics.read, metrics.acknowledged, metrics.lag) == (10, None, 0, None)


def test_brokers_that_could_not_be_asked_leave_the_lag_unknown() -> None:
    metrics = told(progress(end=plan_to_offset(1, [planned(Q0, 0, 10)]), latest=None), None, NOW_S)

    assert (metrics.planned, metrics.lag) == (10, None)
    assert " lag" not in metrics.line()


@pytest.mark.parametrize("end", [None, {"orders": {"0": 5}}, 17, {"v": 1, "logOffset": 3}])
def test_a_query_of_another_source_has_no_figures(end: dict[str, Any] | int | None) -> None:
    assert metrics_of(progress(end=end, latest=None), None, NOW_S) is None


def test_lag_in_seconds_is_that_of_the_message_that_waits_longest() -> None:
    """B5"""
    metrics = told(
        progress(end=plan_to_offset(1, [planned(Q0, 0, 3), planned(Q1, 0, 3)]), latest={Q0: 9, Q1: 9}),
        None,
        NOW_S,
    ).with_stored_times({Q0: NOW_S - 5, Q1: NOW_S - 12.5})

    assert metrics.lag_s == 12.5


def test_a_batch_is_logged_in_one_line() -> None:
    metrics = told(
        progress(end=plan_to_offset(1, [planned(Q0, 0, 10, epoch=1)]), latest={Q0: 40}),
        report(acks=[ack(Q0, next_offset=4, read=9, consumed=4, failed=2)], rows=[offset_row(Q0, 4)]),
        NOW_S,
    ).with_stored_times({Q0: NOW_S - 2})

    assert metrics.line() == (
        "query=etl batch=3 seconds=1.250 queues=1 planned=10 read=9 acknowledged=4 rows=7 retried=2 "
        "deadLetters=0 suspended=0 lag=36 lagSeconds=2.0"
    )


def test_retry_topics_are_queues_like_any_other() -> None:
    """E3"""
    retry = MessageQueue("%RETRY%g", "broker-a", 0)

    metrics = told(
        progress(end=plan_to_offset(1, [planned(retry, 0, 2, epoch=1)]), latest={retry: 2}),
        report(acks=[ack(retry, next_offset=2)], rows=[offset_row(retry, 2)]),
        NOW_S,
    )

    assert by_queue(metrics)[retry].lag == QueueLag(2, 2)


def test_a_plan_of_many_queues_is_shown_too() -> None:
    """H4: it is packed in Spark's offset."""
    queues = [MessageQueue("orders", "broker-a", number) for number in range(300)]
    plan = plan_to_offset(1, [planned(queue, 0, 2) for queue in queues])

    metrics = told(progress(end=plan, latest=dict.fromkeys(queues, 5)), None, NOW_S)

    assert (metrics.planned, metrics.lag) == (600, 900)


@pytest.mark.parametrize("count", [2, 300])
def test_an_open_range_was_planned_as_far_as_it_was_read(count: int) -> None:
    """D11: how much that will be, no plan says."""
    queues = [MessageQueue("orders", "broker-a", number) for number in range(count)]
    ranges = [replace(planned(queue, 0, 0, epoch=1), end=OPEN_END) for queue in queues]

    metrics = told(
        progress(end=plan_to_offset(1, ranges, open_for_s=300.0), latest=dict.fromkeys(queues, 9)),
        report(acks=[ack(queues[0], next_offset=4, read=6, consumed=4)], rows=[offset_row(queues[0], 4)]),
        NOW_S,
    )

    assert (metrics.planned, metrics.read, metrics.acknowledged, metrics.lag) == (6, 6, 4, 5)


@pytest.mark.parametrize("offset", [7, None, {"v": 1}, {"v": 1, "seq": 2}, {"shard": {"0": 5}}], ids=str)
def test_another_sources_offset_has_no_metrics(offset: Any) -> None:
    assert metrics_of(progress(end=offset, latest={Q0: 5}), None, NOW_S) is None
