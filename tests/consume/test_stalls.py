"""Remembering what a listener has had and not committed."""

from __future__ import annotations

from pyspark_rocketmq.consume.planning import (
    REST_S,
    StallCounter,
    StandstillPauses,
    UncommittedDelivery,
)
from pyspark_rocketmq.consume.suspension import suspended_until
from pyspark_rocketmq.model import OPEN_END, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.stored_values import trial_of

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)
NOW_S = 100.0


def planned_range(start: int, *, count: int = 10, epoch: int = 1) -> QueueRange:
    return QueueRange.between(QUEUE, start, start + count, epoch=epoch)


def had_after(counter: StallCounter, progress: QueueState) -> int:
    return (
        counter.uncommitted({QUEUE: progress}, NOW_S).get(QUEUE, UncommittedDelivery(0, rests=True)).offsets
    )


def stalled() -> StallCounter:
    counter = StallCounter()
    for count in (10, 20):
        counter.planned([planned_range(5, count=count)], NOW_S)
        assert had_after(counter, QueueState(5, epoch=1)) == count
    return counter


def test_nothing_planned_yet_is_nothing_had() -> None:
    assert StallCounter().uncommitted({QUEUE: QueueState(5)}, NOW_S) == {}


def test_a_plan_without_progress_was_had_in_vain() -> None:
    """D4: autoCommit=false accumulates."""
    stalled()


def test_a_queue_that_is_not_planned_still_has_had_it() -> None:
    counter = stalled()

    assert had_after(counter, QueueState(5, epoch=1)) == 20
    counter.planned([], NOW_S)
    assert had_after(counter, QueueState(5, epoch=1)) == 20


def test_progress_forgets_it() -> None:
    counter = stalled()
    counter.planned([planned_range(5)], NOW_S)

    assert had_after(counter, QueueState(6, epoch=1)) == 0


def test_a_suspension_neither_adds_nor_forgets() -> None:
    """D3, D4: the listener still needs the messages behind those it has had."""
    counter = stalled()
    counter.planned([planned_range(5, count=40)], NOW_S)

    assert had_after(counter, QueueState(5, epoch=1, suspended_until_s=9.0)) == 20


def test_a_new_epoch_forgets_it() -> None:
    """F5: after a reset or a change of owner everything is new."""
    counter = stalled()
    counter.planned([planned_range(5)], NOW_S)

    assert had_after(counter, QueueState(5, epoch=2)) == 0


def test_a_reset_of_a_queue_that_was_not_planned_forgets_it_too() -> None:
    """F5: else the queue would wait for more messages than it has had elsewhere."""
    counter = stalled()

    assert had_after(counter, QueueState(0, epoch=2)) == 0
    assert had_after(counter, QueueState(5, epoch=3)) == 0


def test_a_queue_that_went_away_is_forgotten() -> None:
    """B5."""
    counter = stalled()
    counter.planned([planned_range(5)], NOW_S)

    assert counter.uncommitted({OTHER: QueueState(0)}, NOW_S) == {}
    counter.planned([planned_range(5)], NOW_S)
    assert had_after(counter, QueueState(5, epoch=1)) == 10


def test_a_batch_of_which_another_queue_was_claimed_says_nothing() -> None:
    """C5: it is dropped whole, and the other queues are to be delivered again at once."""
    counter = StallCounter()
    other = QueueRange.between(OTHER, 0, 3, epoch=1)
    counter.planned([planned_range(5), other], NOW_S)

    assert counter.uncommitted({QUEUE: QueueState(5, epoch=1), OTHER: QueueState(0, epoch=2)}, NOW_S) == {}


def test_a_queue_rests_for_a_minute() -> None:
    counter = stalled()
    progress = {QUEUE: QueueState(5, epoch=1)}

    assert counter.uncommitted(progress, NOW_S + REST_S - 1) == {QUEUE: UncommittedDelivery(20, rests=True)}
    assert counter.uncommitted(progress, NOW_S + REST_S) == {QUEUE: UncommittedDelivery(20, rests=False)}


# --- a store without suspensions ----------------------------------------------------------------------------


def until(pauses: StandstillPauses, next_offset: int, now_s: float) -> float | None:
    """End of the queue's suspension in the plan made at ``now_s``."""
    return suspended_until(pauses.suspended({QUEUE: QueueState(next_offset, 1)}, now_s)[QUEUE], now_s)


def paused() -> StandstillPauses:
    pauses = StandstillPauses()
    pauses.planned([planned_range(5)])
    assert until(pauses, 5, NOW_S) == NOW_S + 5
    return pauses


def test_a_queue_without_progress_is_suspended_for_five_seconds() -> None:
    """E4: ``submitConsumeRequestLater``."""
    pauses = paused()

    assert until(pauses, 5, NOW_S + 4.9) == NOW_S + 5
    assert until(pauses, 5, NOW_S + 5) is None
    pauses.planned([planned_range(5)])
    assert until(pauses, 5, NOW_S + 9) == NOW_S + 14


def test_a_queue_that_stands_still_is_on_trial_until_it_moves() -> None:
    """E4: or the listener would get the messages behind its first one again each time."""
    pauses = paused()
    trial = QueueState(5, 1, suspended_until_s=NOW_S + 5, retry_counts=trial_of(5))
    assert pauses.suspended({QUEUE: QueueState(5, 1)}, NOW_S + 60) == {QUEUE: trial}
    assert trial.is_on_trial
    assert pauses.suspended({QUEUE: QueueState(5, 1)}, NOW_S + 61) == {QUEUE: trial}

    assert pauses.suspended({QUEUE: QueueState(6, 1)}, NOW_S + 62) == {QUEUE: QueueState(6, 1)}
    assert pauses.suspended({QUEUE: QueueState(5, 1)}, NOW_S + 63) == {QUEUE: QueueState(5, 1)}


def test_a_queue_that_stands_still_in_real_time_is_on_trial_at_once() -> None:
    """E4, I3"""
    pauses = StandstillPauses()
    pauses.planned([QueueRange.between(QUEUE, 5, OPEN_END, epoch=1)])

    [state] = pauses.suspended({QUEUE: QueueState(5, 1)}, NOW_S).values()
    assert (suspended_until(state, NOW_S), state.is_on_trial) == (None, True)


def test_a_queue_that_was_not_run_or_has_moved_is_not_suspended() -> None:
    """E4"""
    assert until(StandstillPauses(), 5, NOW_S) is None
    pauses = StandstillPauses()
    pauses.planned([planned_range(5)])
    assert until(pauses, 6, NOW_S) is None
    for moved_to in (0, 6):
        pauses = paused()
        assert until(pauses, moved_to, NOW_S + 1) is None
        assert until(pauses, 5, NOW_S + 2) is None


def test_a_queue_that_is_out_of_sight_after_its_range_is_not_suspended() -> None:
    """A8: its broker was away, and may have taken a kept offset meanwhile."""
    pauses = StandstillPauses()
    pauses.planned([planned_range(5)])
    assert pauses.suspended({}, NOW_S) == {}

    assert until(pauses, 5, NOW_S + 1) is None


def test_a_suspension_that_the_store_has_stays() -> None:
    """D3"""
    pauses = StandstillPauses()
    pauses.planned([planned_range(5)])
    stored = {QUEUE: QueueState(5, 1, suspended_until_s=NOW_S + 1)}

    assert pauses.suspended(stored, NOW_S) == stored
