"""Decides when a batch whose ranges are open is ended; no I/O, no clock.

Its tasks consume until they are ended. Whatever changes the plan ends the batch, as no message gives a queue
to a running task:

Rule 1 (time): it is over once it has lasted as long as its plan allows.
Rule 2 (slots): all tasks begin within five seconds, or the next plan has as many tasks as have begun. The
plan after it has all slots again.
Rule 3 (plan): the planner wants another plan, or a queue cannot go on. Both end the batch immediately, but
queues that cannot go on do so every five seconds at most, unless they were reset: what holds them up may hold
them up in the next batch too.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from pyspark_rocketmq.consume.cuts import EndReason

_BEGIN_WITHIN_S: Final = 5.0
"""How long a batch waits for all of its tasks."""
_REPLAN_EVERY_S: Final = 5.0
"""Shortest time between two batches that are ended because of queues that cannot go on."""


class Ending(NamedTuple):
    """End a batch."""

    reason: EndReason
    why: str
    """For the log."""
    slots: int | None = None
    """How many tasks have begun, if not all have."""


class OpenBatch:
    """The open batch under way, if there is one."""

    def __init__(self) -> None:
        self._last_s = -inf
        """When a queue that could not go on has ended a batch, this one or one before."""
        self.begin_batch()

    def begin_batch(self, why: str = "") -> None:
        """Begin a batch; it is open once a task with open ranges begins.

        ``why``: why the planner wants another plan already.
        """
        self.is_open = False
        """Whether the ranges of the batch under way are open."""
        self._begun: set[int] = set()
        self._tasks = 0
        self._began_s = self._ends_s = inf
        self._replan_s = -inf if why else inf
        self._why = why
        self._is_by_queue = False
        """Whether a queue that cannot go on is why another plan is needed."""

    @property
    def next_tick_s(self) -> float | None:
        """When :meth:`tick` has something to do; None if only another event can change anything."""
        at_s = min(self._ends_s, self._replan_s, self._begins_until_s) if self.is_open else inf
        return None if at_s == inf else at_s

    def begins(self, partition: int, *, tasks: int, lasts_s: float, now_s: float) -> None:
        """Note that a task begins, one of ``tasks``; the batch may last for ``lasts_s``."""
        if not self.is_open:
            self.is_open, self._tasks = True, tasks
            self._began_s, self._ends_s = now_s, now_s + lasts_s
        self._begun.add(partition)

    def wants_plan(self, why: str, now_s: float) -> None:
        """Note that the planner wants another plan."""
        self._replans_at(now_s, why, is_by_queue=False)

    def stands(self, why: str, now_s: float, *, at_once: bool) -> None:
        """Note that a queue cannot go on in this batch, ``at_once`` if it can in the next one."""
        at_s = now_s if at_once else max(now_s, self._last_s + _REPLAN_EVERY_S)
        self._replans_at(at_s, why, is_by_queue=True)

    def tick(self, now_s: float) -> Ending | None:
        """Return how to end the batch; None if it goes on. Once it is ended, nothing changes any more."""
        if not self.is_open:
            return None
        found: Ending | None = None
        if now_s >= self._replan_s:
            found = Ending(EndReason.PLAN, self._why)
            self._last_s = now_s if self._is_by_queue else self._last_s
        elif now_s >= self._begins_until_s:
            begun = len(self._begun)
            why = f"{begun} of {self._tasks} tasks have begun within {_BEGIN_WITHIN_S:g} s"
            found = Ending(EndReason.PLAN, why, slots=begun)
        elif now_s >= self._ends_s:
            found = Ending(EndReason.TIME, "its time is over")
        if found is not None:
            self._ends_s = self._replan_s = self._began_s = inf
        return found

    @property
    def _begins_until_s(self) -> float:
        return inf if len(self._begun) >= self._tasks else self._began_s + _BEGIN_WITHIN_S

    def _replans_at(self, at_s: float, why: str, *, is_by_queue: bool) -> None:
        if at_s < self._replan_s:
            self._replan_s, self._why, self._is_by_queue = at_s, why, is_by_queue
