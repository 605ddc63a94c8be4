"""Decides when a batch in real time ends; no I/O, no clock.

In real time the ranges of a batch are *open*: they have no end, and tasks consume them until the driver ends
the tasks. A running task cannot be given another queue. So the batch also ends when its plan is outdated, and
the next plan has the new queues. An end is announced before the tasks are ended
(:mod:`~pyspark_rocketmq.hub.calls_in_hand`).

Rule 1 (time): the batch ends when it has lasted as long as its plan allows.
Rule 2 (slots): the batch ends if not all tasks have begun within five seconds, because task slots are
missing. The next plan has only as many tasks as have begun, minus the slots that are to be left free for
other jobs. The plan after that uses all slots again.
Rule 3 (plan): the batch ends immediately if the planner wants another plan, if a queue was reset, or if a
task whose connection broke does not connect again: Spark may have no slot to run it again while the others
run. It also ends if a queue cannot go on for another reason, but at most every five seconds, because the
reason may still be there in the next batch.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from pyspark_rocketmq.consume.cuts import EndReason

_BEGIN_WITHIN_S: Final = 5.0
"""Time within which all tasks of a batch must begin, in seconds."""
_REPLAN_EVERY_S: Final = 5.0
"""Shortest time, in seconds, between two batches that end because of a queue that cannot go on."""


class Ending(NamedTuple):
    """The decision that a batch in real time ends."""

    reason: EndReason
    why: str
    """The cause in words, for the log."""
    slots: int | None = None
    """Number of tasks that have begun, if the batch ends because some have not; otherwise None."""


class OpenBatch:
    """The running batch, if its ranges are open (without an end, in real time): decides when it ends."""

    def __init__(self) -> None:
        self._last_s = -inf
        """Monotonic time at which a batch was last ended because of a queue that could not go on."""
        self.begin_batch()

    def begin_batch(self, why: str = "") -> None:
        """Begin a batch. It counts as open when the first task with open ranges begins.

        ``why``: the reason why the planner already wants another plan; empty if it does not.
        """
        self.is_open = False
        """Whether the ranges of the running batch are open; False until the first task begins."""
        self._begun: set[int] = set()
        self._tasks = 0
        self._began_s = self._ends_s = inf
        self._replan_s = -inf if why else inf
        self._why = why
        self._is_by_queue = False
        """Whether another plan is needed because a queue cannot go on."""

    @property
    def next_tick_s(self) -> float | None:
        """Monotonic time at which :meth:`tick` must be called; None if there is nothing to wait for."""
        at_s = min(self._ends_s, self._replan_s, self._begins_until_s) if self.is_open else inf
        return None if at_s == inf else at_s

    def begins(self, partition: int, *, tasks: int, lasts_s: float, now_s: float) -> None:
        """Note that the task with number ``partition`` begins; its ranges are open.

        The batch has ``tasks`` tasks, and may last for ``lasts_s`` seconds from its first task's begin.
        """
        if not self.is_open:
            self.is_open, self._tasks = True, tasks
            self._began_s, self._ends_s = now_s, now_s + lasts_s
        self._begun.add(partition)

    def wants_plan(self, why: str, now_s: float) -> None:
        """Note that another plan is needed, so that :meth:`tick` ends the batch from ``now_s`` on.

        ``why``: the cause in words.
        """
        self._replans_at(now_s, why, is_by_queue=False)

    def stands(self, why: str, now_s: float, *, at_once: bool) -> None:
        """Note that a queue cannot go on in this batch, so that :meth:`tick` ends the batch.

        Args:
            why: The cause in words, for the log.
            now_s: Monotonic time.
            at_once: Whether to end the batch now, because the queue was reset. If False, the batch ends at
                the earliest five seconds after the last batch that ended because of a queue.
        """
        at_s = now_s if at_once else max(now_s, self._last_s + _REPLAN_EVERY_S)
        self._replans_at(at_s, why, is_by_queue=True)

    def tick(self, now_s: float) -> Ending | None:
        """Return the decision to end the batch, if it is due.

        The decision is returned once; the result is None before and after that.
        """
        if not self.is_open:
            return None
        found: Ending | None = None
        if now_s >= self._replan_s:
            found = Ending(EndReason.PLAN, self._why)
            self._last_s = now_s if self._is_by_queue else self._last_s
        elif now_s >= self._begins_until_s:
            begun = len(self._begun)
            why = f"only {begun} of {self._tasks} tasks have begun within {_BEGIN_WITHIN_S:g} s"
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
