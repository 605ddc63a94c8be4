"""Percentiles, and histograms with logarithmic bins."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.histogram import bar, bounds_for, counts, histogram, percentile


@pytest.mark.parametrize(
    ("percent", "expected"), [(0.1, 1), (50, 500), (95, 950), (99, 990), (99.9, 999), (100, 1000)]
)
def test_a_percentile_is_one_of_the_latencies(percent: float, expected: float) -> None:
    latencies = np.random.default_rng(1).permutation(np.arange(1.0, 1001.0))

    assert percentile(latencies, percent) == expected


def test_one_slow_message_in_a_thousand_is_the_maximum_but_not_the_99_9th_percentile() -> None:
    latencies = np.array([2.0] * 999 + [500.0])

    assert percentile(latencies, 99.9) == 2.0
    assert percentile(latencies, 100) == 500.0


def test_without_latencies_there_is_no_percentile() -> None:
    assert math.isnan(percentile(np.array([]), 50))


@pytest.mark.parametrize(
    ("longest", "bounds"),
    [
        (0.0, [1]),
        (1.0, [1]),
        (1.5, [1, 2]),
        (20.0, [1, 2, 5, 10, 20]),
        (21.0, [1, 2, 5, 10, 20, 50]),
        (999.0, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
    ],
)
def test_bins_end_at_the_first_bound_that_the_longest_does_not_exceed(
    longest: float, bounds: list[float]
) -> None:
    assert bounds_for(longest) == bounds


def test_a_bin_contains_its_upper_bound_and_all_latencies_are_counted() -> None:
    latencies = np.array([0.0, 1.0, 1.5, 2.0, 2.1, 5.0, 9.0])

    assert counts(latencies, [1, 2, 5, 10]) == [2, 2, 2, 1]


def test_a_latency_beyond_the_last_bin_is_refused() -> None:
    with pytest.raises(ValueError, match="longest latency is 11 ms"):
        counts(np.array([11.0]), [1, 2, 5, 10])


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, ""), (0.0001, "▏"), (0.5, "█" * 10), (0.025, "▌"), (1.0, "█" * 20)]
)
def test_a_bar_is_as_long_as_its_share_and_a_small_one_can_be_seen(share: float, expected: str) -> None:
    assert bar(share) == expected.ljust(20)


def test_histograms_beside_each_other_have_the_same_bins() -> None:
    drawn = histogram(
        "title", {"fast": np.array([2.0] * 3 + [3.0]), "slow": np.array([40.0]), "none": np.array([])}
    )

    lines = drawn.splitlines()
    assert [line[:10].strip() for line in lines] == [
        "title", "1 - 2 ms", "2 - 5 ms", "5 - 10 ms", "10 - 20 ms", "20 - 50 ms"
    ]  # fmt: skip
    assert "none" not in drawn
    assert lines[0].split() == ["title", "fast", "slow"]
    assert lines[1].split()[4:] == ["█" * 15, "75.00", "%"]
    assert lines[2].split()[4:] == ["█" * 5, "25.00", "%"]
    assert lines[3].split() == ["5", "-", "10", "ms"]
    assert lines[5].index("█") == lines[0].index("slow")
    assert lines[5].split()[4:] == ["█" * 20, "100.00", "%"]


def test_without_any_latency_there_is_no_histogram() -> None:
    assert histogram("title", {"java": np.array([])}) == ""
