"""Histograms of latencies: percentiles against the exact ones, sums, moves in time, and their form in JSON."""

from __future__ import annotations

import json
from functools import reduce
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.latencies import (
    LONGEST_MS,
    NO_LATENCIES,
    LatencyHistogram,
    StoreLatencies,
    bounds_of,
    bucket_of,
)

LATENCIES = st.lists(
    st.one_of(st.integers(-5, 40), st.integers(0, 5_000), st.integers(0, 2 * LONGEST_MS)), min_size=1
)


def exact(latencies: list[int], percent: float) -> int:
    return sorted(latencies)[max(1, ceil(len(latencies) * percent / 100)) - 1]


@given(LATENCIES, st.sampled_from([0.0, 1.0, 50.0, 95.0, 99.0, 99.9, 100.0]))
def test_a_percentile_is_in_the_bucket_of_the_exact_one(latencies: list[int], percent: float) -> None:
    """D11: never below it, and at most an eighth above it up to an hour."""
    found, wanted = LatencyHistogram.of(latencies).percentile(percent), max(0, exact(latencies, percent))

    assert bucket_of(found) == bucket_of(wanted)
    assert found >= wanted
    if wanted < LONGEST_MS * 15 // 16:
        assert found <= wanted * 9 / 8


@given(st.integers(0, LONGEST_MS))
def test_buckets_follow_each_other_without_a_gap(latency: int) -> None:
    """D11"""
    bucket = bucket_of(latency)
    least, most = bounds_of(bucket)

    assert least <= latency <= most
    assert bucket_of(most) == bucket
    assert most == LONGEST_MS or bucket_of(most + 1) > bucket
    assert latency >= 16 or least == most


@given(st.lists(LATENCIES, min_size=1, max_size=5))
def test_histograms_of_parts_are_together_that_of_all(parts: list[list[int]]) -> None:
    """D11: in any order; their form in JSON is exact."""
    histograms = [
        LatencyHistogram.from_facts(json.loads(json.dumps(LatencyHistogram.of(each).facts))) for each in parts
    ]
    whole = LatencyHistogram.of(each for part in parts for each in part)

    assert reduce(LatencyHistogram.plus, histograms) == whole
    assert reduce(LatencyHistogram.plus, reversed(histograms), LatencyHistogram()) == whole
    assert whole.messages == sum(map(len, parts))


@given(LATENCIES, st.integers(0, 10_000), st.sampled_from([50.0, 99.0, 100.0]))
def test_a_percentile_of_a_later_moment_is_at_most_one_bucket_away(
    latencies: list[int], delay: int, percent: float
) -> None:
    """D11: the time from the store to a commit is made of ages at the cut."""
    known = [max(0, each) for each in latencies]
    later = LatencyHistogram.of(known).later_by(delay)
    wanted = exact([each + delay for each in known], percent)

    assert later.longest_ms == max(known) + delay
    assert later.total_ms == sum(known) + delay * len(known)
    assert later.percentile(percent) >= wanted
    if wanted < LONGEST_MS * 7 // 8:
        assert later.percentile(percent) <= wanted * (9 / 8) ** 2


@given(LATENCIES)
def test_latencies_below_an_edge_are_counted_exactly(latencies: list[int]) -> None:
    """D11: edges are the beginnings of buckets, as those of Prometheus are."""
    edges = [1, 2, 3, 16, 24, 1024, 1 << 20]

    found = list(LatencyHistogram.of(latencies).below(edges))

    assert found == [sum(each < edge for each in latencies) for edge in edges]


@given(st.lists(st.tuples(LATENCIES, st.integers(1, 10_000)), min_size=1, max_size=4))
def test_latencies_of_acks_are_joined_at_the_latest_moment(acks: list[tuple[list[int], int]]) -> None:
    """D11, H1"""
    parts = [
        StoreLatencies(LatencyHistogram.of(of_ack), LatencyHistogram.of(of_ack), at) for of_ack, at in acks
    ]
    joined = reduce(StoreLatencies.plus, parts, NO_LATENCIES)
    newest = max(at for _, at in acks)

    assert joined.to_listener == LatencyHistogram.of(each for of_ack, _ in acks for each in of_ack)
    ages = [max(0, each) + newest - at for of_ack, at in acks for each in of_ack]
    assert (joined.at_ms, joined.ages.messages, joined.ages.total_ms) == (newest, len(ages), sum(ages))
    assert joined.to_commit(newest + 7).total_ms == sum(ages) + 7 * len(ages)
    assert joined.to_commit(newest - 7) == joined.ages
    assert StoreLatencies.from_facts(json.loads(json.dumps(joined.facts))) == joined


def test_what_a_task_has_committed_by_itself_grows_no_older() -> None:
    """D11, I6: its rows are there before the driver hears of them."""
    seen = LatencyHistogram.of([1, 2])
    by_task = StoreLatencies(seen, LatencyHistogram.of([3, 4]), 1_000).commit(1_002)
    other = StoreLatencies(seen, LatencyHistogram.of([3]), 1_001)
    both = StoreLatencies.from_facts(json.loads(json.dumps(by_task.facts))).plus(other)

    assert by_task.to_commit(9_000) == LatencyHistogram.of([5, 6])
    assert both.to_commit(1_004) == LatencyHistogram.of([5, 6, 6])
    assert both.commit(1_004).to_commit(9_000) == LatencyHistogram.of([5, 6, 6])
    assert both.to_listener.messages == 4


def test_percentiles_are_shown_in_one_line() -> None:
    """D11"""
    found = LatencyHistogram.of([*range(1, 1001), 5_000_000]).percentiles()

    assert str(found) == (
        "p50 511 ms · p95 959 ms · p99 1023 ms · p99.9 1023 ms · longest 5000000 ms (1001 messages)"
    )


@pytest.mark.parametrize("percent", [0, 50, 100])
def test_without_messages_percentiles_are_0(percent: float) -> None:
    """D11"""
    assert LatencyHistogram().percentile(percent) == 0
    assert LatencyHistogram().facts == []
    assert LatencyHistogram.from_facts([]) == LatencyHistogram()
    assert StoreLatencies.from_facts(NO_LATENCIES.facts) == NO_LATENCIES
