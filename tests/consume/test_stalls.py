"""Counting plans that brought no progress."""

from __future__ import annotations

from pyspark_rocketmq.consume.plan import QueueProgress
from pyspark_rocketmq.consume.stalls import StallCounter
from pyspark_rocketmq.model import MessageQueue, QueueRange

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)


def planned_range(start: int, *, epoch: int = 1) -> QueueRange:
    return QueueRange(queue=QUEUE, start=start, end=start + 10, epoch=epoch)


def count_after(counter: StallCounter, progress: QueueProgress) -> int:
    return counter.counts({QUEUE: progress}).get(QUEUE, 0)


def stalled_twice() -> StallCounter:
    counter = StallCounter()
    for expected in (1, 2):
        counter.planned([planned_range(5)])
        assert count_after(counter, QueueProgress(5, epoch=1)) == expected
    return counter


def test_nothing_planned_yet_is_nothing_stalled():
    assert StallCounter().counts({QUEUE: QueueProgress(5)}) == {}


def test_each_plan_without_progress_counts():
    """D4: autoCommit=false accumulates."""
    stalled_twice()


def test_looking_again_without_planning_does_not_count():
    counter = stalled_twice()

    assert count_after(counter, QueueProgress(5, epoch=1)) == 2


def test_progress_forgets_the_count():
    counter = stalled_twice()
    counter.planned([planned_range(5)])

    assert count_after(counter, QueueProgress(6, epoch=1)) == 0


def test_a_suspension_neither_counts_nor_forgets():
    """D3, D4: what was accumulated before the suspension still stands in front of the next message."""
    counter = stalled_twice()
    counter.planned([planned_range(5)])

    assert count_after(counter, QueueProgress(5, epoch=1, suspended_until_s=9.0)) == 2


def test_a_new_epoch_forgets_the_count():
    """F5: after a reset or a change of owner nothing is accumulated."""
    counter = stalled_twice()
    counter.planned([planned_range(5)])

    assert count_after(counter, QueueProgress(5, epoch=2)) == 0


def test_a_queue_that_went_away_is_forgotten():
    """B5."""
    counter = stalled_twice()
    counter.planned([planned_range(5)])

    assert counter.counts({OTHER: QueueProgress(0)}) == {}
    counter.planned([planned_range(5)])
    assert count_after(counter, QueueProgress(5, epoch=1)) == 1
