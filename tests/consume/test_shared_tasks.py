"""Short ranges share tasks, no task lasts longer for it than the longest range,
and no more tasks are made than can run.
"""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.planning import READ_MS, WORTH_A_TASK_MS, Expected, read_together, shared_tasks

RANGES = st.lists(st.builds(Expected, st.integers(0, 500), st.none() | st.floats(0, 2)), max_size=40)


def lasting(*ms: float) -> list[Expected]:
    """Ranges that last so long; infinite: nobody knows."""
    return [Expected(1, None if each == inf else each - READ_MS) for each in ms]


@pytest.mark.parametrize(
    ("ms", "tasks"),
    [
        ([], []),
        ([1.0] * 8, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ([10.0] * 4, [[0, 1], [2, 3]]),
        ([inf, 1.0, inf, 1.0], [[0], [1, 3], [2]]),
        ([100.0, 100.0, 10.0, 100.0], [[0], [1], [2, 3]]),
    ],
)
def test_ranges_share_a_task_as_long_as_none_lasts_longer_for_it(
    ms: list[float], tasks: list[list[int]]
) -> None:
    """D1: a queue's range is in one task, however many others are."""
    assert shared_tasks(lasting(*ms)) == tasks


@pytest.mark.parametrize(
    ("ranges", "slots", "tasks"),
    [
        (lasting(inf, inf, inf), 2, [[0, 2], [1]]),
        (lasting(inf, inf, inf), 3, [[0], [1], [2]]),
        (lasting(100.0, 90.0, 80.0, 70.0), 2, [[0, 3], [1, 2]]),
        # What nothing is known of takes what the others take.
        ([Expected(10, 10.0), Expected(10, 10.0), Expected(20, None)], 2, [[0, 1], [2]]),
        ([Expected(30, None), Expected(10, None), Expected(20, None)], 2, [[0], [1, 2]]),
        ([Expected(0, None)] * 3, 1, [[0, 1, 2]]),
    ],
)
def test_there_are_no_more_tasks_than_can_run_at_the_same_time(
    ranges: list[Expected], slots: int, tasks: list[list[int]]
) -> None:
    """D3: a task that waited for a core could not be gone on with,
    and kept others from going on with theirs.
    """
    assert shared_tasks(ranges, slots) == tasks


@given(RANGES)
def test_each_range_is_in_one_task_and_no_task_is_too_long(ranges: list[Expected]) -> None:
    """D1: each range in one task, and the micro-batch as long as with a task for each,
    give or take a quarter.
    """
    tasks = shared_tasks(ranges)
    longest_ms = max([WORTH_A_TASK_MS, *(1.25 * each.ms for each in ranges if each.ms < inf)])

    assert sorted(index for task in tasks for index in task) == list(range(len(ranges)))
    for task in tasks:
        assert len(task) == 1 or sum(ranges[index].ms for index in task) <= longest_ms + 1e-6


@given(RANGES, st.integers(1, 9))
def test_the_work_is_spread_over_all_that_can_run(ranges: list[Expected], slots: int) -> None:
    """D1, D3: each range in one task, and no task longer than another one by more than one of its ranges."""
    tasks = shared_tasks(ranges, slots)

    assert sorted(index for task in tasks for index in task) == list(range(len(ranges)))
    assert len(tasks) <= slots
    assert len(tasks) == min(slots, len(shared_tasks(ranges)))
    if len(shared_tasks(ranges)) > slots and all(each.ms < inf for each in ranges):
        lasts_ms = [[ranges[index].ms for index in task] for task in tasks]
        least_ms = min(map(sum, lasts_ms))
        assert all(sum(each) - min(each, default=0.0) <= least_ms + 1e-6 for each in lasts_ms)


def test_the_time_of_a_range_is_reading_plus_listener() -> None:
    """A range of a listener that nothing is known of is not expected to be short."""
    assert Expected(100, 0.99).ms == pytest.approx(100.0)
    assert Expected(1, None).ms == inf


@pytest.mark.parametrize(
    ("ranges", "together"),
    [
        ([], []),
        (lasting(1.0, 2.0, 3.0), [[0, 1, 2]]),
        (lasting(10.0, 10.0, 10.0, 10.0), [[0, 1], [2, 3]]),
        (lasting(100.0, 1.0, 1.0, inf, 1.0), [[0], [1, 2], [3], [4]]),
        ([Expected(600, 0.0), Expected(400, 0.0), Expected(25, 0.0)], [[0, 1], [2]]),
        ([Expected(100, None)] * 2, [[0], [1]]),
    ],
)
def test_ranges_that_a_task_consumes_soon_are_read_at_once(
    ranges: list[Expected], together: list[list[int]]
) -> None:
    """D1: not what a slow listener would have begun long before it comes to it,
    nor more messages than fit into memory.
    """
    assert [list(each) for each in read_together(ranges)] == together


@given(RANGES)
def test_each_range_is_read_once_in_its_place(ranges: list[Expected]) -> None:
    """D1"""
    together = read_together(ranges)

    assert [index for each in together for index in each] == list(range(len(ranges)))
    for each in together:
        assert len(each) == 1 or sum(ranges[index].ms for index in each) <= WORTH_A_TASK_MS
