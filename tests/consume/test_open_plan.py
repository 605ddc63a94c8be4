"""Plans in real time: a range without an end for each queue, dealt to the tasks that can run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.planning import ReadLimits, deal, plan_open_ranges, plan_ranges
from pyspark_rocketmq.consume.positions import OffsetGap
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueState
from tests.helpers import stored_texts

NOW_S = 1000.0
QUEUES = st.builds(MessageQueue, st.sampled_from(["orders", "%RETRY%g"]), st.just("a"), st.integers(0, 9))
BOUNDS = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: QueueBounds(*sorted(pair)))
STATES = st.builds(
    QueueState,
    st.integers(0, 60),
    st.integers(0, 9),
    st.integers(0, 9),
    st.none() | st.floats(NOW_S - 90, NOW_S + 90),
    st.sampled_from(["", "[[5,9,1]]"]).map(stored_texts.retries),
    st.sampled_from(["", "[19,1,1]"]).map(stored_texts.messages),
)
CLUSTERS = st.dictionaries(QUEUES, st.tuples(BOUNDS, STATES), max_size=8)


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", queue_id)


def test_a_queue_without_messages_is_planned_too() -> None:
    made = plan_open_ranges({queue(0): QueueBounds(5, 20)}, {queue(0): QueueState(20, 3)}, now_s=NOW_S)

    (planned,) = made.ranges
    assert (planned.queue, planned.state, planned.has_open_end) == (queue(0), QueueState(20, 3), True)
    assert made.readable == 0


@pytest.mark.parametrize(
    ("until_s", "due_s"),
    [
        (None, None),
        (NOW_S - 1, None),
        (NOW_S, None),
        (NOW_S + 1, NOW_S + 1),
        (NOW_S + 60, NOW_S + 60),
        # Written before the clock was set back.
        (NOW_S + 61, None),
    ],
)
def test_a_suspended_queue_is_planned_with_its_due_time(until_s: float | None, due_s: float | None) -> None:
    """D3"""
    state = QueueState(7, 1, 2, suspended_until_s=until_s)
    made = plan_open_ranges({queue(0): QueueBounds(0, 9)}, {queue(0): state}, now_s=NOW_S)

    assert [planned.state for planned in made.ranges] == [state._replace(suspended_until_s=due_s)]


@pytest.mark.parametrize(("wanted", "corrected"), [(3, 5), (25, 20)])
def test_a_queue_with_a_gap_is_left_out_or_goes_on_behind_it(wanted: int, corrected: int) -> None:
    bounds, progress = {queue(0): QueueBounds(5, 20)}, {queue(0): QueueState(wanted, 2, 4)}
    gap = OffsetGap(queue(0), wanted, 5, 20, corrected)

    left_out = plan_open_ranges(bounds, progress, now_s=NOW_S)
    assert (left_out.ranges, left_out.gaps) == ((), (gap,))
    behind = plan_open_ranges(bounds, progress, now_s=NOW_S, skip_gaps=True)
    assert ([planned.state for planned in behind.ranges], behind.gaps) == ([QueueState(corrected, 2)], (gap,))


@given(cluster=CLUSTERS, skip_gaps=st.booleans())
def test_an_open_plan_begins_where_a_closed_one_does(
    cluster: dict[MessageQueue, tuple[QueueBounds, QueueState]], skip_gaps: bool
) -> None:
    """Closed plans are the oracle; they lack what is suspended or has nothing to read."""
    bounds = {each: known for each, (known, _) in cluster.items()}
    progress = {each: state for each, (_, state) in cluster.items()}
    made = plan_open_ranges(bounds, progress, now_s=NOW_S, skip_gaps=skip_gaps)
    closed = plan_ranges(bounds, progress, limits=ReadLimits(), now_s=NOW_S, skip_gaps=skip_gaps)

    starts = {planned.queue: planned.state for planned in made.ranges}
    assert all(starts[planned.queue] == planned.state for planned in closed.ranges)
    assert closed.readable <= made.readable
    assert set(closed.gaps) <= set(made.gaps)
    left_out = set() if skip_gaps else {gap.queue for gap in made.gaps}
    assert [planned.queue for planned in made.ranges] == sorted(cluster.keys() - left_out)
    assert all(planned.has_open_end for planned in made.ranges)
    assert not any(planned.has_open_end for planned in closed.ranges)


@pytest.mark.parametrize(
    ("backlogs", "slots", "tasks"),
    [
        ([], 2, []),
        ([0, 0, 0, 0, 0], 2, [[0, 2, 4], [1, 3]]),
        ([1, 500, 2, 400], 2, [[1, 2], [0, 3]]),
        ([5, 6], 8, [[1], [0]]),
        ([5, 6], 0, [[1], [0]]),
        ([5, 6, 7], 1, [[0, 1, 2]]),
    ],
)
def test_ranges_are_dealt_round_in_the_order_of_their_backlogs(
    backlogs: list[int], slots: int, tasks: list[list[int]]
) -> None:
    assert deal(backlogs, slots) == tasks


@given(backlogs=st.lists(st.integers(0, 99), max_size=40), slots=st.integers(0, 9))
def test_dealt_ranges_are_each_in_one_task_and_spread_evenly(backlogs: list[int], slots: int) -> None:
    """D1, D3: no task waits for a slot, and none has more than one range more than another."""
    tasks = deal(backlogs, slots)

    assert sorted(index for task in tasks for index in task) == list(range(len(backlogs)))
    assert len(tasks) == min(len(backlogs), slots or len(backlogs))
    assert len({len(task) for task in tasks}) <= 2
    assert max(map(len, tasks), default=0) - min(map(len, tasks), default=0) <= 1
    longest = sorted(backlogs, reverse=True)[: len(tasks)]
    assert sorted((max(backlogs[index] for index in task) for task in tasks), reverse=True) == longest
