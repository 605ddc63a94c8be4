"""Short ranges share tasks, and no task lasts longer for it than the longest range."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.shared_tasks import WORTH_A_TASK_MS, expected_ms, shared_tasks

DURATIONS = st.lists(st.floats(0, 200) | st.just(inf), max_size=40)


@pytest.mark.parametrize(
    ("expected", "tasks"),
    [
        ([], []),
        ([1.0] * 8, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ([10.0] * 4, [[0, 1], [2, 3]]),
        ([inf, 1.0, inf, 1.0], [[0], [1, 3], [2]]),
        ([100.0, 100.0, 10.0, 100.0], [[0], [1], [2, 3]]),
    ],
)
def test_ranges_share_a_task_as_long_as_none_lasts_longer_for_it(
    expected: list[float], tasks: list[list[int]]
) -> None:
    """D1: a queue's range is in one task, however many others are."""
    assert shared_tasks(expected) == tasks


@given(DURATIONS)
def test_each_range_is_in_one_task_and_no_task_is_too_long(expected: list[float]) -> None:
    """D1: each range in one task, and the micro-batch as long as with a task for each, give or take a quarter."""
    tasks = shared_tasks(expected)
    longest_ms = max([WORTH_A_TASK_MS, *(1.25 * each for each in expected if each < inf)])

    assert sorted(index for task in tasks for index in task) == list(range(len(expected)))
    for task in tasks:
        assert len(task) == 1 or sum(expected[index] for index in task) <= longest_ms + 1e-6


def test_what_a_range_takes_is_reading_and_the_listener() -> None:
    """A range of a listener that nothing is known of is not expected to be short."""
    assert expected_ms(100, 0.99) == pytest.approx(100.0)
    assert expected_ms(1, None) == inf
