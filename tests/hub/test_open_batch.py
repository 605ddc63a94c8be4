"""When a batch with open ranges is ended: step by step, as tables of moment, event and ending."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_rocketmq.consume.cuts import EndReason
from pyspark_rocketmq.hub.open_batch import Ending, OpenBatch

Event = Callable[[OpenBatch, float], object]
_HELD_UP = Ending(EndReason.PLAN, "held up")
_GAINED = Ending(EndReason.PLAN, "gained")
_OVER = Ending(EndReason.TIME, "its time is over")


def begins(partition: int, tasks: int = 1, lasts_s: float = 300.0) -> Event:
    return lambda batch, now_s: batch.begins(partition, tasks=tasks, lasts_s=lasts_s, now_s=now_s)


def stands(*, at_once: bool = False) -> Event:
    return lambda batch, now_s: batch.stands("held up", now_s, at_once=at_once)


def wants_plan(batch: OpenBatch, now_s: float) -> None:
    batch.wants_plan("gained", now_s)


def next_batch(batch: OpenBatch, now_s: float) -> None:
    batch.begin_batch()
    batch.begins(0, tasks=1, lasts_s=300.0, now_s=now_s)


def passes(batch: OpenBatch, now_s: float) -> None:
    """Only time passes."""


def run(*steps: tuple[float, Event, Ending | None], batch: OpenBatch | None = None) -> OpenBatch:
    batch = batch or OpenBatch()
    for number, (now_s, event, expected) in enumerate(steps):
        event(batch, now_s)
        assert batch.tick(now_s) == expected, f"step {number} at {now_s}"
    return batch


def test_a_batch_lasts_as_long_as_its_plan_allows_and_is_ended_once() -> None:
    batch = run((100.0, begins(0), None), (399.9, passes, None))
    assert (batch.is_open, batch.next_tick_s) == (True, 400.0)
    run((400.0, passes, _OVER), (500.0, passes, None), batch=batch)
    assert batch.next_tick_s is None


def test_a_batch_of_which_no_task_has_begun_is_not_known_to_be_open() -> None:
    batch = run((100.0, passes, None), (1000.0, stands(), None))
    assert (batch.is_open, batch.next_tick_s) == (False, None)


def test_a_batch_is_ended_if_not_all_tasks_begin_in_time_and_the_next_plan_has_fewer() -> None:
    """D3: executors have gone."""
    too_few = Ending(EndReason.PLAN, "only 2 of 3 tasks have begun within 5 s", slots=2)
    batch = run((100.0, begins(0, 3), None), (104.0, begins(2, 3), None), (104.9, passes, None))
    assert batch.next_tick_s == 105.0
    run((105.0, passes, too_few), (106.0, begins(1, 3), None), batch=batch)


def test_a_batch_goes_on_once_all_tasks_have_begun() -> None:
    run((100.0, begins(0, 2), None), (104.0, begins(1, 2), None), (200.0, passes, None))


def test_the_wish_for_another_plan_ends_the_batch_at_once() -> None:
    run((100.0, begins(0), None), (100.1, wants_plan, _GAINED), (100.2, passes, None))


def test_a_wish_that_came_before_the_batch_ends_it_when_its_first_task_begins() -> None:
    batch = OpenBatch()
    batch.begin_batch("gained")
    run((100.0, begins(0), _GAINED), batch=batch)


def test_queues_that_cannot_go_on_end_a_batch_every_five_seconds_at_most() -> None:
    batch = run(
        (100.0, begins(0), None),
        (101.0, stands(), _HELD_UP),
        (101.3, next_batch, None),
        (101.4, stands(), None),
        (102.0, stands(), None),
    )
    assert batch.next_tick_s == 106.0
    run((106.0, passes, _HELD_UP), (106.3, next_batch, None), (112.0, stands(), _HELD_UP), batch=batch)


def test_a_queue_that_was_reset_ends_the_batch_at_once() -> None:
    """F5"""
    run(
        (100.0, begins(0), None),
        (101.0, stands(), _HELD_UP),
        (101.3, next_batch, None),
        (101.4, stands(), None),
        (101.5, stands(at_once=True), _HELD_UP),
    )


def test_wishes_of_the_planner_do_not_delay_queues_that_cannot_go_on() -> None:
    run(
        (100.0, begins(0), None),
        (101.0, wants_plan, _GAINED),
        (101.3, next_batch, None),
        (101.4, stands(), _HELD_UP),
    )


def test_what_a_batch_was_to_be_ended_for_is_forgotten_with_it() -> None:
    run(
        (100.0, begins(0), None),
        (101.0, stands(), _HELD_UP),
        (101.3, next_batch, None),
        (101.4, stands(), None),
        (102.0, next_batch, None),
        (107.0, passes, None),
    )
