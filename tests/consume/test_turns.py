"""Whose turn it is among a task's queues: each rule,
and whole tasks whose listener calls last as long as they like.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.consume.turns import (
    HANDICAP_S,
    KEY_PACE,
    OPEN_PACE,
    QUEUE_PACE,
    TURN_S,
    Memory,
    Rest,
    TaskTurns,
    Turn,
)
from tests.helpers.approx import about

SLOW_S, PATIENCE_S, _ = QUEUE_PACE
_EXAMPLES = int(os.environ.get("TURNS_EXAMPLES", "300"))


def task_with(*queues: str) -> TaskTurns[str]:
    """A task at second 0 whose ranges have all arrived; each queue is with a worker."""
    turns: TaskTurns[str] = TaskTurns(0.0, reads=False)
    turns.arrived(queues, 0.0)
    turns.all_arrived()
    for queue in queues:
        found = turns.next(0.0)
        assert isinstance(found, Turn)
        assert found.queue == queue
    return turns


def test_queues_are_delivered_one_after_the_other_where_that_is_quick() -> None:
    """D1"""
    turns: TaskTurns[str] = TaskTurns(0.0, reads=False)

    assert turns.next(0.0) == Rest(inf)
    turns.arrived(["a", "b"], 0.01)
    assert turns.next(0.01) == Turn("a", TURN_S)
    turns.ended("a")
    assert turns.next(0.02) == Turn("b", inf)
    turns.ended("b")
    assert (turns.is_led, turns.is_idle, turns.has_more) == (True, True, True)
    turns.all_arrived()

    assert (turns.is_led, turns.is_idle, turns.has_more) == (False, True, False)


def test_workers_read_closed_ranges_piece_by_piece() -> None:
    """D1, D3: the next piece has its place among the queues, half a second later."""
    turns: TaskTurns[str] = TaskTurns(0.0)

    assert turns.next(0.0) == Turn(None, inf)
    turns.arrived(["a", "b"], 0.01)
    turns.has_read(0.01)
    assert turns.next(0.01) == Turn("a", TURN_S)
    turns.yielded("a", 0.06)
    assert turns.next(0.06) == Turn("b", TURN_S)
    turns.dry("b")
    assert turns.next(0.1) == Turn(None, TURN_S)
    turns.has_read(0.2)
    assert turns.next(0.2) == Turn("a", TURN_S)
    turns.dry("a")
    assert turns.next(0.3) == Turn(None, inf)
    turns.all_arrived()

    assert (turns.is_led, turns.is_idle, turns.is_somebody_waiting) == (True, True, False)


def test_a_piece_is_read_beside_a_slow_call_only() -> None:
    """D3: another queue must not wait for it."""
    turns: TaskTurns[str] = TaskTurns(0.0)
    turns.next(0.0)
    turns.arrived(["a"], 0.0)
    turns.has_read(0.0)
    turns.next(0.0)

    assert turns.next(0.05, calls_s=[0.05]) == (about(SLOW_S),)
    assert turns.next(SLOW_S, calls_s=[SLOW_S]) == Turn(None, inf)


def test_a_piece_is_read_last_where_memory_is_short_and_calls_are_quick() -> None:
    """D3: a task may have any number of ranges, of which those in hand are held."""
    turns: TaskTurns[str] = TaskTurns(0.0)
    turns.next(0.0)
    turns.arrived(["a"], 0.0)
    turns.has_read(0.0)
    turns.next(0.0)
    turns.yielded("a", 1.0)

    assert turns.next(1.6, memory=Memory.SHORT) == Turn("a", TURN_S)
    turns.suspended("a", 3.0)
    assert turns.next(1.7, memory=Memory.SHORT) == Turn(None, 3.0 - 1.7)


def test_a_piece_is_read_beside_a_slow_call_though_memory_is_short() -> None:
    """D3: another queue does not wait for that of the slow call."""
    turns: TaskTurns[str] = TaskTurns(0.0)
    turns.next(0.0)
    turns.arrived(["a"], 0.0)
    turns.has_read(0.0)
    turns.next(0.0)

    assert turns.next(1.0, calls_s=[1.0], memory=Memory.SHORT) == Turn(None, inf)


def test_nothing_is_read_beside_others_where_memory_is_gone() -> None:
    """D3: not beside a slow call, and not while others wait, suspended ones too."""
    turns: TaskTurns[str] = TaskTurns(0.0)
    turns.next(0.0)
    turns.arrived(["a"], 0.0)
    turns.has_read(0.0)
    turns.next(0.0)

    assert turns.next(1.0, calls_s=[1.0], memory=Memory.GONE) == Rest(inf)
    turns.suspended("a", 3.0)
    assert turns.is_arriving
    assert turns.next(2.0, memory=Memory.GONE) == Rest(3.0)
    turns.withdrawn("a")
    assert turns.next(2.0, memory=Memory.GONE) == Turn(None, inf)


def test_the_next_piece_is_read_where_all_queues_are_dry_whatever_memory_they_take() -> None:
    """D13: a single range may take any amount, and the rest of it is needed."""
    turns: TaskTurns[str] = TaskTurns(0.0)
    turns.next(0.0)
    turns.arrived(["a"], 0.0)
    turns.has_read(0.0)
    turns.next(0.0)
    turns.dry("a")

    assert turns.next(1.0, memory=Memory.GONE) == Turn(None, inf)


def test_a_dry_queue_keeps_its_task_and_goes_on_when_more_arrives() -> None:
    turns: TaskTurns[str] = TaskTurns(0.0, reads=False)
    turns.arrived(["a"], 0.0)
    turns.next(0.0)
    turns.dry("a")

    assert turns.is_dry("a")
    assert (turns.next(1.0), turns.is_led, turns.has_more) == (Rest(inf), True, True)
    turns.arrived(["a"], 2.0)
    turns.all_arrived()
    assert not turns.is_dry("a")
    assert turns.next(2.0) == Turn("a", inf)
    turns.ended("a")
    assert not turns.is_led


def test_a_dry_queue_may_be_withdrawn() -> None:
    """D7: it is given up."""
    turns = task_with("a")
    turns.dry("a")
    turns.withdrawn("a")

    assert (turns.is_led, turns.has_more) == (False, False)


def test_messages_for_a_queue_that_is_busy_or_suspended_change_nothing() -> None:
    """D1, D3"""
    turns = task_with("a", "b", "c")
    turns.suspended("b", 3.0)
    turns.yielded("c", 1.0)
    turns.arrived(["a", "b", "c"], 2.0)

    assert turns.is_suspended("b")
    assert turns.next(2.0) == Turn("c", 1.0)
    assert turns.next(2.0, calls_s=[2.0, 0.1]) == Rest(3.0)


def test_a_dry_queue_that_was_suspended_before_leads_again() -> None:
    """D3: what is to come of its range is no repetition."""
    turns: TaskTurns[str] = TaskTurns(0.0, reads=False)
    turns.arrived(["a"], 0.0)
    turns.next(0.0)
    turns.suspended("a", 1.0)
    turns.next(1.0)
    turns.dry("a")
    turns.all_arrived()

    assert turns.is_led


def test_a_queue_may_begin_suspended() -> None:
    """D3: an open range of a queue that an earlier batch suspended."""
    turns: TaskTurns[str] = TaskTurns(0.0, reads=False)
    turns.begins_suspended("a", 5.0)
    turns.arrived(["a"], 1.0)

    assert turns.is_suspended("a")
    assert turns.next(1.0) == Rest(5.0)
    assert turns.next(5.0) == Turn("a", inf)


def test_an_open_task_has_shorter_times() -> None:
    """D3: its queues wait for milliseconds only."""
    turns: TaskTurns[str] = TaskTurns(0.0, reads=False, pace=OPEN_PACE)
    turns.arrived(["a", "b"], 0.0)
    turns.next(0.0)

    assert turns.next(0.001, calls_s=[0.001]) == (about(OPEN_PACE.slow_s),)
    assert turns.next(OPEN_PACE.slow_s, calls_s=[OPEN_PACE.slow_s]) == Turn("b", inf)
    turns.yielded("b", 1.0)
    assert turns.next(1.0, calls_s=[0.0]) == (about(1.0 + OPEN_PACE.patience_s),)


def test_a_queue_that_must_wait_gets_no_worker() -> None:
    """D3: however long it has waited, and whether or not it was suspended; other queues do."""
    turns: TaskTurns[str] = TaskTurns(0.0, reads=False, pace=OPEN_PACE)
    turns.arrived(["a", "b"], 0.0)
    turns.begins_suspended("c", 0.5)

    assert turns.next(1.0, must_wait={"a", "c"}.__contains__) == Turn("b", TURN_S)
    turns.ended("b")
    assert turns.next(2.0, must_wait={"a", "c"}.__contains__) == Rest(inf)
    assert turns.next(3.0, must_wait={"c"}.__contains__) == Turn("a", TURN_S)


def test_a_turn_lasts_while_no_other_range_waits() -> None:
    """D1: a task of one queue does nothing but deliver."""
    turns = task_with("a")
    turns.yielded("a", 1.0)

    assert turns.next(1.0) == Turn("a", inf)


def test_queues_that_wait_take_turns() -> None:
    """D3: a queue of many messages does not hold the others."""
    turns = task_with("a", "b")
    turns.yielded("a", 1.0)
    turns.yielded("b", 1.01)

    assert turns.next(1.01) == Turn("a", TURN_S)
    turns.yielded("a", 1.06)
    assert turns.next(1.06) == Turn("b", TURN_S)


def test_a_turn_ends_when_the_suspension_of_another_queue_is_over() -> None:
    """D3: with the delivery in hand."""
    turns = task_with("a", "b")
    turns.suspended("b", 2.0)
    turns.yielded("a", 1.5)

    assert turns.next(1.5) == Turn("a", 0.5)
    turns.yielded("a", 2.01)
    assert turns.next(2.01) == Turn("b", TURN_S)


def test_a_queue_whose_suspension_is_over_comes_before_those_that_had_a_turn_lately() -> None:
    """D3"""
    turns = task_with("a", "b", "suspended")
    turns.suspended("suspended", 1.3)
    turns.yielded("a", 1.0)
    turns.yielded("b", 1.1)

    assert turns.next(1.3) == Turn("suspended", TURN_S)


def test_a_queue_that_has_waited_half_a_second_comes_before_one_whose_suspension_is_over() -> None:
    """D3: nor does a queue wait for those that are suspended again and again."""
    turns = task_with("a", "suspended")
    turns.yielded("a", 1.0)
    turns.suspended("suspended", 1.0 + HANDICAP_S + 0.01)

    assert turns.next(1.6) == Turn("a", TURN_S)


def test_a_second_worker_begins_only_when_what_is_in_hand_is_slow() -> None:
    """D1: a listener whose calls are quick is called by one thread."""
    turns = task_with("a", "b")
    turns.yielded("b", 1.0)

    assert turns.next(1.25, calls_s=[0.03]) == (about(1.25 + SLOW_S - 0.03),)
    assert turns.next(1.35, calls_s=[SLOW_S]) == Turn("b", inf)


def test_a_queue_that_has_waited_gets_a_worker_where_calls_are_slow() -> None:
    """D3: several slow queues and one worker less would leave one of them waiting."""
    turns = task_with("a", "b", "c")
    turns.yielded("c", 1.0)

    assert turns.next(1.0, calls_s=[0.15, 0.02]) == (about(1.08),)
    turns.yielded("b", 1.02)
    assert turns.next(1.02, calls_s=[0.01]) == (about(1.0 + PATIENCE_S),)
    assert turns.next(1.0 + PATIENCE_S, calls_s=[0.05]) == Turn("c", TURN_S)


def test_a_free_worker_sleeps_until_the_first_suspension_is_over() -> None:
    """D3"""
    turns = task_with("a", "b", "c")
    turns.suspended("b", 3.0)
    turns.suspended("c", 2.0)

    assert turns.next(1.0, calls_s=[30.0]) == Rest(2.0)
    assert turns.next(2.0, calls_s=[31.0]) == Turn("c", 1.0)


def test_a_task_whose_queues_are_all_suspended_is_over_although_one_is_due() -> None:
    """D3: what the micro-batch has done is not to wait; the next one is planned when they are due."""
    turns = task_with("a", "b")
    turns.suspended("a", 1.0)
    turns.suspended("b", 2.0)

    assert not turns.is_led
    assert turns.is_idle
    assert turns.next(1.5) == Rest(inf)


def test_a_queue_that_was_suspended_does_not_prolong_its_task() -> None:
    """D3, D7: it goes on while another is at work, and no longer."""
    turns = task_with("a", "b")
    turns.suspended("a", 1.0)
    assert turns.next(1.0, calls_s=[1.0]) == Turn("a", inf)
    turns.ended("b")

    assert not turns.is_led
    assert not turns.is_idle
    turns.yielded("a", 2.0)
    assert turns.next(2.0) == Rest(inf)
    assert turns.is_idle


def test_a_suspended_queue_is_delivered_again_while_other_tasks_of_the_batch_are_at_work() -> None:
    """D3"""
    turns = task_with("a")
    turns.suspended("a", 1.0)

    assert turns.next(0.5, is_batch_at_work=True) == Rest(1.0)
    assert turns.next(1.0, is_batch_at_work=True) == Turn("a", inf)
    assert turns.next(1.0) == Rest(inf)


def test_a_suspended_queue_that_leads_has_its_task_wait_for_it() -> None:
    """I8: what it has finished above its suspended key would be delivered again."""
    turns = task_with("a")
    turns.suspended("a", 1.0, leads=True)

    assert turns.is_led
    assert turns.is_suspended("a")
    assert turns.next(0.5) == Rest(1.0)
    assert turns.next(1.0) == Turn("a", inf)
    assert not turns.is_suspended("a")
    turns.suspended("a", 2.0)
    assert not turns.is_led


def test_a_worker_joins_another_one_when_its_call_takes_two_milliseconds() -> None:
    """I8"""
    turns: TaskTurns[str] = TaskTurns(0.0, reads=False, pace=KEY_PACE)
    turns.arrived(["a"], 0.0)
    turns.next(0.0)
    turns.offered("a", 1.0)

    assert turns.next(1.0005, calls_s=[0.0005]) == (about(1.002),)
    assert turns.next(1.002, calls_s=[0.002]) == Turn("a", inf)
    turns.offered("a", 1.01)
    # A slow call that is over does not count any more.
    assert turns.next(1.02, calls_s=[0.001, 0.001]) == (about(1.021),)
    assert turns.next(1.02, calls_s=[0.001, 0.003]) == Turn("a", inf)


def test_a_queue_of_several_workers_is_over_when_the_last_one_leaves() -> None:
    """I8"""
    turns = task_with("a")
    turns.offered("a", 1.0)
    assert turns.next(1.0, calls_s=[1.0]) == Turn("a", inf)
    turns.offered("a", 1.0)

    assert turns.leaves("a")
    assert (turns.is_idle, turns.is_somebody_waiting, turns.is_suspended("a")) == (False, True, False)
    assert not turns.leaves("a")
    # Nobody joins a queue that is about to end.
    assert (turns.is_idle, turns.is_somebody_waiting) == (False, False)
    turns.ended("a")
    assert (turns.is_idle, turns.is_led) == (True, False)


def test_nobody_joins_a_queue_whose_last_worker_is_to_report_though_messages_arrive() -> None:
    """I8: that worker reports what came meanwhile; a report without a worker would fail the task."""
    turns = task_with("a")

    assert not turns.leaves("a")
    turns.arrived(["a"], 1.0)
    turns.offered("a", 1.0, leads=True)
    assert turns.next(1.0, calls_s=[1.0]) == Rest(inf)
    turns.yielded("a", 1.0)
    assert turns.next(1.0) == Turn("a", inf)
    turns.offered("a", 1.0)
    assert turns.next(1.0, calls_s=[1.0]) == Turn("a", inf)


@pytest.mark.parametrize("reports", [TaskTurns.dry, TaskTurns.ended])
def test_a_queue_may_have_several_workers_again_after_each_report(
    reports: Callable[[TaskTurns[str], str], None],
) -> None:
    """I8"""
    turns = task_with("a")
    turns.leaves("a")
    reports(turns, "a")
    turns.arrived(["a"], 1.0)
    assert turns.next(1.0) == Turn("a", inf)
    turns.offered("a", 1.0)

    assert turns.next(1.0, calls_s=[1.0]) == Turn("a", inf)


def test_a_queue_that_was_suspended_is_not_while_a_worker_has_it() -> None:
    """I8: though it waits for one more."""
    turns = task_with("a", "b")
    turns.suspended("a", 1.0)
    assert turns.next(1.0, calls_s=[1.0]) == Turn("a", inf)
    turns.offered("a", 2.0)

    assert not turns.is_suspended("a")
    assert not turns.is_waiting("a")


def test_a_key_that_is_due_later_gets_a_worker_then() -> None:
    """I8"""
    turns = task_with("a")
    turns.offered("a", 3.0)
    turns.offered("a", 4.0)

    assert turns.next(1.0, calls_s=[1.0]) == Rest(3.0)
    assert turns.next(3.0, calls_s=[3.0]) == Turn("a", inf)


def test_messages_of_another_key_than_the_suspended_one_wake_their_queue_and_keep_its_task() -> None:
    """D3, I8: they have not waited for that key before they arrived either."""
    turns = task_with("a")
    turns.suspended("a", 9.0)
    turns.offered("a", 1.0, leads=True)

    assert turns.is_led
    assert not turns.is_suspended("a")
    assert turns.next(1.0) == Turn("a", inf)
    turns.suspended("a", 9.0)
    assert not turns.is_led


@dataclass
class _Queue:
    """A queue of the world: its calls, each with what it takes and how long its queue is suspended for it,
    if it is.
    """

    name: str
    reading_s: float
    coming: list[tuple[float, float | None]]
    """Calls for messages that have not arrived."""
    calls: list[tuple[float, float | None]] = field(default_factory=list)
    is_whole: bool = False
    is_with_worker: bool = False
    due_s: float | None = None
    """Since when it could have a turn; None while it has one, or has nothing to deliver."""
    was_suspended: bool = False


class _Worker:
    def __init__(self) -> None:
        self.turn: Turn[str] | None = None
        self.turn_began_s = self.call_began_s = 0.0
        self.free_s = 0.0
        """When what it does has ended, or it is to ask again."""


class World:
    """A task with as many workers as it may want, whose calls last what is drawn;
    time passes from event to event.
    """

    def __init__(self, draw: random.Random) -> None:
        self.now_s = 0.0
        self.draw = draw
        self.memory = draw.choice([[Memory.PLENTY], [Memory.SHORT], [Memory.GONE], list(Memory)])
        self.unread = [self._queue(draw, number) for number in range(draw.randint(1, 6))]
        self.queues = {each.name: each for each in self.unread}
        self.arrives_s = inf
        """When the next piece arrives, if a thread of its own reads."""
        self.reads = draw.random() < 0.5
        """Whether the workers read."""
        self.turns: TaskTurns[str] = TaskTurns(0.0, reads=self.reads)
        self.workers = [_Worker() for _ in range(draw.choice([1, 2, len(self.queues) + 1]))]
        self.longest_wait_s = 0.0
        self.longest_call_s = max((each[0] for one in self.unread for each in one.coming), default=0.0)
        self.most_calls_at_once = 0

    def _queue(self, draw: random.Random, number: int) -> _Queue:
        longest_s = draw.choice([0.001, 0.09, 0.09, 0.3, 30.0])
        calls = [
            (longest_s * draw.random(), draw.choice([0.01, 1.0, 5.0]) if draw.random() < 0.3 else None)
            for _ in range(draw.randint(0, 30))
        ]
        return _Queue(f"q{number}", draw.choice([0.001, 0.02]), calls)

    def run(self) -> None:
        """To the end of the task."""
        while not (self.turns.is_idle and not self.turns.is_led):
            for worker in self.workers:
                if worker.turn is not None and worker.free_s <= self.now_s:
                    self._go_on(worker)
            self._read()
            for worker in self.workers:
                if worker.turn is None:
                    self._ask(worker)
            self.most_calls_at_once = max(self.most_calls_at_once, len(self._calls_s()))
            coming_s = min(self.arrives_s, *(worker.free_s for worker in self.workers))
            if coming_s == inf:
                assert self.turns.is_idle
                if self.turns.is_led:
                    # Only memory may be in the way, and there will be more.
                    assert self.unread
                    assert self.reads
                    coming_s = self.now_s + 0.01
            # A little later than asked, as it is with threads.
            self.now_s = max(self.now_s, coming_s) + 1e-6

    def _read(self) -> None:
        """Have a piece arrive that is due, and begin to read the next one, unless the workers read."""
        if self.reads:
            return
        if self.arrives_s <= self.now_s:
            self.arrives_s = inf
            self._arrive(self.draw.choice(self.unread))
        if not self.unread:
            self.turns.all_arrived()
        elif self.arrives_s == inf:
            self.arrives_s = self.now_s + self.unread[0].reading_s

    def _arrive(self, queue: _Queue) -> None:
        size = self.draw.randint(0, len(queue.coming))
        queue.calls += queue.coming[:size]
        del queue.coming[:size]
        queue.is_whole = not queue.coming
        if queue.is_whole:
            self.unread.remove(queue)
        if queue.due_s is None and not queue.is_with_worker:
            queue.due_s = self.now_s
        self.turns.arrived([queue.name], self.now_s)

    def _ask(self, worker: _Worker) -> None:
        found = self.turns.next(self.now_s, calls_s=self._calls_s(), memory=self.draw.choice(self.memory))
        if isinstance(found, Rest):
            assert found.until_s > self.now_s
            worker.free_s = found.until_s
        elif found.queue is None:
            assert all(one.turn is None or one.turn.queue is not None for one in self.workers)
            worker.turn, worker.call_began_s = found, self.now_s
            worker.free_s = self.now_s + (self.unread[0].reading_s if self.unread else 0.0)
        else:
            self._begin(worker, found.queue, found)

    def _calls_s(self) -> list[float]:
        return [self.now_s - one.call_began_s for one in self.workers if one.turn is not None]

    def _begin(self, worker: _Worker, name: str, turn: Turn[str]) -> None:
        queue = self.queues[name]
        assert not queue.is_with_worker, "two workers have one queue"
        queue.is_with_worker = True
        if queue.due_s is not None:
            assert self.now_s >= queue.due_s, "a suspended queue came early"
            self.longest_wait_s = max(self.longest_wait_s, self.now_s - queue.due_s)
            queue.due_s = None
        worker.turn, worker.turn_began_s = turn, self.now_s
        self._call(worker, queue)

    def _call(self, worker: _Worker, queue: _Queue) -> None:
        assert self.turns.is_led, "a delivery was begun although only suspended queues were left"
        worker.call_began_s = self.now_s
        worker.free_s = self.now_s + (queue.calls[0][0] if queue.calls else 0.0)

    def _go_on(self, worker: _Worker) -> None:
        turn = worker.turn
        assert turn is not None
        if turn.queue is None:
            worker.turn = None
            if self.unread:
                self._arrive(self.draw.choice(self.unread))
                self.turns.has_read(self.now_s)
            else:
                self.turns.all_arrived()
            return
        queue = self.queues[turn.queue]
        pause_s = queue.calls.pop(0)[1] if queue.calls else None
        if pause_s is not None:
            queue.due_s, queue.was_suspended = self.now_s + pause_s, True
            self.turns.suspended(queue.name, queue.due_s)
        elif not queue.calls and queue.is_whole:
            self.turns.ended(queue.name)
        elif not queue.calls:
            self.turns.dry(queue.name)
        elif self.now_s - worker.turn_began_s >= turn.lasts_s or not self.turns.is_led:
            queue.due_s = self.now_s
            self.turns.yielded(queue.name, self.now_s)
        else:
            self._call(worker, queue)
            return
        queue.is_with_worker, worker.turn = False, None


@settings(max_examples=_EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_calls_last_every_queue_has_its_turns(seed: int) -> None:
    """D1, D3: one worker for a queue, none begins early, none waits long where a worker is free,
    and the task ends.
    """
    world = World(random.Random(seed))
    world.run()

    assert not world.unread
    for queue in world.queues.values():
        assert not queue.calls or queue.was_suspended, "a queue was left without a suspension"
    if world.longest_call_s < SLOW_S:
        assert world.most_calls_at_once == 1
    rounds = len(world.queues) + 1
    if world.longest_call_s < SLOW_S or len(world.workers) > len(world.queues):
        assert world.longest_wait_s <= HANDICAP_S + PATIENCE_S + rounds * (TURN_S + SLOW_S)
