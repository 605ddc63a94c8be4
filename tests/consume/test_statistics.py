from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.metrics import NO_METRICS, ConsumeMetrics, RecentMetrics, status_of
from pyspark_rocketmq.wire.requests.client_info import ConsumeStatus
from tests.helpers.approx import about

START_S = 1_700_000_000.0


def test_rates_are_those_of_the_last_minute_and_failures_those_of_the_last_hour() -> None:
    """D11: as ``ConsumerStatsManager.consumeStatus`` has them; 10 messages/s of one queue, 5/s of another."""
    recent: RecentMetrics[str] = RecentMetrics(START_S)
    snapshots = {}
    for second in range(1, 301):
        for queue, ok in (("a", 10), ("b", 5)):
            batch = ConsumeMetrics(ok, 1, 2, 8.0, 2 * ok, 1, 3.0)
            snapshots[queue] = recent.add(queue, batch, START_S + second)

    status = status_of(snapshots.values(), START_S + 300)

    # The last of these seconds begins a bucket, so that the window has 61 batches in 60 s.
    assert status == ConsumeStatus(
        pull_rt=3.0,
        pull_tps=about(30 * 61 / 60),
        consume_rt=4.0,
        consume_ok_tps=about(15 * 61 / 60),
        consume_failed_tps=about(2 * 61 / 60),
        consume_failed_msgs=600,
    )


def test_a_rate_of_a_consumer_that_began_a_moment_ago_is_over_ten_seconds_at_least() -> None:
    """D11: one batch of a backlog says nothing of a rate."""
    snapshot = RecentMetrics[str](START_S).add(
        "a", ConsumeMetrics(ok=1000, calls=10, call_ms=5.0), START_S + 0.1
    )

    assert status_of([snapshot], START_S + 0.1).consume_ok_tps == 100.0
    assert status_of([snapshot], START_S + 20.1).consume_ok_tps == about(1000 / 20.1)


def test_rates_end_after_a_minute_and_counts_after_an_hour() -> None:
    """D11: a consumer that stands still shows zeros, and how long its calls took."""
    snapshot = RecentMetrics[str](START_S).add("a", ConsumeMetrics(10, 2, 4, 40.0, 12, 3, 6.0), START_S + 30)

    later = status_of([snapshot], START_S + 30 + 61)
    assert (later.consume_ok_tps, later.pull_tps, later.pull_rt) == (0.0, 0.0, 0.0)
    assert (later.consume_rt, later.consume_failed_msgs) == (10.0, 2)
    assert status_of([snapshot], START_S + 30 + 3601) == ConsumeStatus()


def test_a_row_without_figures_is_a_consumer_that_did_nothing() -> None:
    """D11"""
    assert status_of([NO_METRICS, NO_METRICS], START_S) == ConsumeStatus()
    assert status_of([], START_S) == ConsumeStatus()


def test_a_clock_that_was_put_back_leaves_no_figures_of_the_future() -> None:
    """D11"""
    recent: RecentMetrics[str] = RecentMetrics(START_S)
    recent.add("a", ConsumeMetrics(ok=1_000_000), START_S + 7200)

    snapshot = recent.add("a", ConsumeMetrics(ok=5), START_S + 20)

    assert snapshot.as_of(START_S + 20).minute.ok == 5
    assert snapshot.as_of(START_S + 20).hour.ok == 5


def test_the_text_is_short() -> None:
    """D11, F1: every commit of the group writes it for each queue."""
    snapshot = RecentMetrics[str](START_S).add("a", ConsumeMetrics(10, 2, 4, 40.25, 12, 3, 6.0), START_S + 30)
    text = snapshot.to_text()

    assert json.loads(text) == {
        "at": START_S + 30,
        "seconds": [30.0, 30.0],
        "minute": [10, 2, 4, 40.2, 12, 3, 6.0],
        "hour": [10, 2, 4, 40.2, 12, 3, 6.0],
    }
    assert len(text) < 150


@given(seed=st.integers(0, 2**32))
def test_a_window_has_what_happened_in_it_and_nothing_older(seed: int) -> None:
    """D11: against a list of everything, whatever the times between."""
    draw = random.Random(seed)
    recent: RecentMetrics[int] = RecentMetrics(START_S)
    now_s, done = START_S, []
    for _ in range(draw.randint(1, 60)):
        now_s += draw.choice([0.0, 0.3, 4.0, 11.0, 70.0, 700.0]) * draw.random()
        done.append((now_s, draw.randint(0, 9)))
        found = recent.add(1, ConsumeMetrics(ok=done[-1][1]), now_s).as_of(now_s)
        for metrics, window_s, bucket_s in ((found.minute, 60, 10), (found.hour, 3600, 600)):
            surely = sum(ok for at_s, ok in done if now_s - at_s < window_s)
            at_most = sum(ok for at_s, ok in done if now_s - at_s <= window_s + bucket_s)
            assert surely <= metrics.ok <= at_most
