"""Whose turn it is among a task's queues: each rule,
and whole tasks whose listener calls last as long as they like.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.consume.turns import (
    HANDICAP_S,
    PATIENCE_S,
    SLOW_S,
    TURN_S,
    Memory,
    Rest,
    TaskTurns,
    Turn,
)
from tests.helpers.approx import about

_EXAMPLES = int(os.environ.get("TURNS_EXAMPLES", "300"))


def task_with(*queues: str) -> TaskTurns[str]:
    """A task at second 0 that has read its ranges; each queue is with a worker."""
    turns: TaskTurns[str] = TaskTurns(0.0)
    for queue in queues:
        assert turns.next(0.0) == Turn(None, inf)
        turns.arrived(queue, 0.0)
    turns.next(0.0)
    turns.none_arrived()
    return turns


def test_ranges_are_read_and_delivered_one_after_the_other_where_that_is_quick() -> None:
    """D1"""
    turns: TaskTurns[str] = TaskTurns(0.0)

    assert turns.next(0.0) == Turn(None, inf)
    assert turns.arrived("a", 0.01) == Turn("a", TURN_S)
    turns.ended("a")
    assert turns.next(0.02) == Turn(None, inf)
    assert turns.arrived("b", 0.03) == Turn("b", TURN_S)
    turns.ended("b")
    assert turns.next(0.04) == Turn(None, inf)
    turns.none_arrived()

    assert not turns.is_led
    assert turns.is_idle
    assert not turns.is_somebody_waiting


def test_a_range_is_read_last_where_memory_is_short_and_calls_are_quick() -> None:
    """D3: a task may have any number of ranges, of which those in hand are held."""
    turns: TaskTurns[str] = TaskTurns(0.0)
    turns.next(0.0)
    turns.arrived("a", 0.0)
    turns.yielded("a", 1.0)

    assert turns.next(1.6, memory=Memory.SHORT) == Turn("a", TURN_S)
    turns.suspended("a", 3.0)
    assert turns.next(1.7, memory=Memory.SHORT) == Turn(None, 3.0 - 1.7)


def test_a_range_is_read_beside_a_slow_call_though_memory_is_short() -> None:
    """D3: its queue does not wait for that of the slow call."""
    turns: TaskTurns[str] = TaskTurns(0.0)
    turns.next(0.0)
    turns.arrived("a", 0.0)

    assert turns.next(1.0, calls_s=[1.0], memory=Memory.SHORT) == Turn(None, inf)


def test_no_range_is_read_beside_others_where_memory_is_gone() -> None:
    """D3: not beside a slow call, and not while others wait."""
    turns: TaskTurns[str] = TaskTurns(0.0)
    turns.next(0.0)
    turns.arrived("a", 0.0)

    assert turns.next(1.0, calls_s=[1.0], memory=Memory.GONE) == Rest(inf)
    turns.suspended("a", 3.0)
    assert turns.is_range_left
    assert turns.next(2.0, memory=Memory.GONE) == Rest(3.0)
    turns.withdrawn("a")
    assert turns.next(2.0, memory=Memory.GONE) == Turn(None, inf)


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


@dataclass
class _Queue:
    """Of the world: the calls to come, each with what it takes and how long
    its queue is suspended for it, if it is.
    """

    name: str
    reading_s: float
    calls: list[tuple[float, float | None]]
    is_with_worker: bool = False
    due_s: float | None = None
    """Since when it could have a turn; None while it has one, or is not read yet."""
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
        self.turns: TaskTurns[str] = TaskTurns(0.0)
        self.workers = [_Worker() for _ in range(draw.choice([1, 2, len(self.queues) + 1]))]
        self.longest_wait_s = 0.0
        self.longest_call_s = max((each[0] for one in self.unread for each in one.calls), default=0.0)
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
            for worker in self.workers:
                if worker.turn is None:
                    self._ask(worker)
            self.most_calls_at_once = max(self.most_calls_at_once, len(self._calls_s()))
            coming_s = min(worker.free_s for worker in self.workers)
            if coming_s == inf:
                assert self.turns.is_idle
                assert not self.turns.is_led
                return
            # A little later than asked, as it is with threads.
            self.now_s = max(self.now_s, coming_s) + 1e-6

    def _ask(self, worker: _Worker) -> None:
        found = self.turns.next(self.now_s, calls_s=self._calls_s(), memory=self.draw.choice(self.memory))
        if isinstance(found, Rest):
            assert found.until_s > self.now_s
            worker.free_s = found.until_s
        elif found.queue is not None:
            self._begin(worker, found)
        else:
            worker.turn, worker.call_began_s = found, self.now_s
            worker.free_s = self.now_s + (self.unread[0].reading_s if self.unread else 0.0)

    def _calls_s(self) -> list[float]:
        return [self.now_s - one.call_began_s for one in self.workers if one.turn is not None]

    def _begin(self, worker: _Worker, turn: Turn[str]) -> None:
        queue = self.queues[turn.queue or ""]
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
            self._read(worker)
            return
        queue = self.queues[turn.queue]
        pause_s = queue.calls.pop(0)[1] if queue.calls else None
        if pause_s is not None:
            queue.due_s, queue.was_suspended = self.now_s + pause_s, True
            self.turns.suspended(queue.name, queue.due_s)
        elif not queue.calls:
            self.turns.ended(queue.name)
        elif self.now_s - worker.turn_began_s >= turn.lasts_s or not self.turns.is_led:
            queue.due_s = self.now_s
            self.turns.yielded(queue.name, self.now_s)
        else:
            self._call(worker, queue)
            return
        queue.is_with_worker, worker.turn = False, None

    def _read(self, worker: _Worker) -> None:
        worker.turn = None
        if not self.unread:
            self.turns.none_arrived()
            return
        queue = self.unread.pop(0)
        self._begin(worker, self.turns.arrived(queue.name, self.now_s))


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
