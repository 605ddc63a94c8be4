"""Queues that begin no call for a while when the end of their batch is announced."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pyspark_rocketmq.hub.calls_in_hand import AnnouncedEnd, CallsInHand
from pyspark_rocketmq.model import MessageQueue

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
AT_S = 100.0


class Calls:
    """Queues whose listener calls follow each other without a pause, except while the queue must wait."""

    def __init__(self, lasts_s: Mapping[MessageQueue, float], first_s: Mapping[MessageQueue, float]) -> None:
        """Begin before the announcement: ``first_s`` has how long each queue's first call lasts by then."""
        self.lasts_s = dict(lasts_s)
        self.ended_s: dict[MessageQueue, list[float]] = {queue: [] for queue in lasts_s}
        """Seconds after the announcement at which calls have ended."""
        self.over_s: float | None = None
        self._began_s = {queue: AT_S - first_s[queue] for queue in lasts_s}
        self._announced = AnnouncedEnd(AT_S)

    def run(self, for_s: float) -> None:
        now_s = AT_S
        while now_s < AT_S + for_s and self.over_s is None:
            running = {queue: now_s - began_s for queue, began_s in self._began_s.items()}
            waiting = self._announced.look(running, now_s)
            if self._announced.is_over:
                self.over_s = now_s - AT_S
            now_s += self._announced.pause_s
            for queue, lasts_s in self.lasts_s.items():
                began_s = self._began_s.get(queue)
                if began_s is not None and now_s - began_s >= lasts_s:
                    del self._began_s[queue]
                    self.ended_s[queue].append(now_s - AT_S)
                if queue not in self._began_s and queue not in waiting:
                    self._began_s[queue] = now_s


def test_it_is_over_immediately_without_calls() -> None:
    end = AnnouncedEnd(AT_S)
    assert (end.look({}, AT_S), end.is_over) == (frozenset(), True)


def test_a_queue_with_a_long_call_waits_and_others_go_on() -> None:
    """D3, I3: in A a call of 2 s was in hand, in B a short one; C's call began later, however long it lasts."""
    end = AnnouncedEnd(100.0)
    assert end.look({A: 2.0, B: 0.001}, 100.0) == {A}
    assert end.look({A: 2.005, B: 0.006}, 100.005) == {A}
    assert end.look({A: 2.01, B: 0.001, C: 0.002}, 100.01) == {A}
    assert end.look({A: 52.0, C: 49.9}, 150.0) == {A}
    assert not end.is_over
    assert (end.look({C: 49.95}, 150.05), end.is_over) == (frozenset({A}), True)
    assert end.look({C: 101.8}, 201.9) == {A}
    assert (end.look({C: 101.9}, 202.0), end.is_over) == (frozenset(), True)


def test_a_call_that_has_just_begun_at_the_announcement_may_become_long() -> None:
    """I3"""
    end = AnnouncedEnd(100.0)
    assert (end.look({A: 0.0}, 100.0), end.is_over) == (frozenset(), False)
    assert (end.look({A: 0.09}, 100.09), end.is_over) == (frozenset(), False)
    assert (end.look({A: 0.1}, 100.1), end.is_over) == (frozenset({A}), False)


@pytest.mark.parametrize("first_s", [0.0, 1.0, 300.0])
def test_a_call_of_ten_minutes_stops_other_queues_only_for_moments(first_s: float) -> None:
    """D3, I3: a queue waits no longer than its call has lasted, however long the call in A began before."""
    calls = Calls({A: 600.0, B: 0.2, C: 5.0}, {A: first_s, B: 0.15, C: 2.0})
    calls.run(60.0)

    assert calls.over_s is None
    assert len(calls.ended_s[B]) > 0.9 * 60.0 / 0.2
    assert len(calls.ended_s[C]) == 11


@pytest.mark.parametrize("lasts_s", [0.05, 0.2, 30.0])
def test_queues_whose_calls_follow_each_other_end_with_their_calls_in_hand(lasts_s: float) -> None:
    """I3: the batch must be able to end although some queue always has a call."""
    calls = Calls({A: lasts_s, B: lasts_s, C: lasts_s}, {A: 0.0, B: lasts_s / 2, C: lasts_s * 0.9})
    calls.run(2 * lasts_s)

    assert calls.over_s == pytest.approx(lasts_s, abs=0.03)
    if lasts_s >= 0.2:
        assert [len(ended) for ended in calls.ended_s.values()] == [1, 1, 1]


def test_it_looks_often_at_first() -> None:
    end, pauses = AnnouncedEnd(100.0), []
    for at_s in (100.0, 100.004, 100.5):
        end.look({A: 60.0}, at_s)
        pauses.append(round(end.pause_s, 6))
    assert pauses == [0.001, 0.004, 0.01]


class Watched:
    """The calls of a task, looked at by a test instead of a thread."""

    def __init__(self) -> None:
        self.is_ended = False
        self.waiting: frozenset[MessageQueue] = frozenset()
        self.reports = 0
        self.calls = CallsInHand(lambda: self.is_ended, self._wait, self._over)
        self.end = AnnouncedEnd(AT_S)

    def look(self, after_s: float, lasting: Mapping[MessageQueue, float]) -> bool:
        self.calls.lasting = lambda: lasting
        return self.calls.look(self.end, AT_S + after_s)

    def _wait(self, queues: frozenset[MessageQueue]) -> None:
        self.waiting = queues

    def _over(self) -> None:
        self.reports += 1


def test_a_task_whose_calls_have_ended_goes_on_when_its_queue_has_waited_long_enough() -> None:
    """D3, I3: the long call is in another task, of which this one knows only that it has not been ended."""
    task = Watched()
    assert not task.look(0.0, {A: 0.15})
    assert not task.look(0.05, {A: 0.2})
    assert (task.waiting, task.reports) == (frozenset({A}), 0)
    assert not task.look(0.06, {})
    assert (task.waiting, task.reports) == (frozenset({A}), 1)
    assert task.look(0.25, {})
    assert (task.waiting, task.reports) == (frozenset(), 1)

    task.calls.watch()
    assert task.reports == 2


@pytest.mark.parametrize("is_ended", [True, False], ids=["ended", "left"])
def test_no_queue_waits_in_a_task_that_is_over(is_ended: bool) -> None:
    task = Watched()
    assert not task.look(0.0, {A: 60.0})
    if is_ended:
        task.is_ended = True
    else:
        task.calls.leave()
    assert task.calls.look(task.end, AT_S + 0.01)
    assert (task.waiting, task.reports) == (frozenset(), 1)
