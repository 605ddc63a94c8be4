"""Shares one pool of listener calls among all queues of a task: decides which queue begins the next call.

Java's concurrent consumer has one pool of threads for all of its queues (``consumeExecutor``). Here each call
holds a slot from its beginning to its end, so that a slow call holds up none of the task's other queues (row
E1 of ``docs/semantics.md``). A *run* consumes one range of a queue:

1. All runs together have at most as many running calls as the pool has slots.
2. A run that finds no slot waits until it is woken to look again.
3. Among the waiting runs, the one with the fewest calls comes first; among equals, the one that has waited
   longest. No other run takes a slot before it. A run may begin its next call in the slot of a call that has
   ended, unless a waiting run has no call, or at least two calls fewer.
4. A call that takes so long that its messages were sent back keeps its slot until it returns. When such calls
   hold all slots, no run waits for a slot any more: each run ends, without the rest of its range, when none
   of its messages is with the listener.

Not thread-safe; no method blocks. A run may be any hashable object.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

RunT = TypeVar("RunT", bound=Hashable)


class CallSlots(Generic[RunT]):
    """The slots of one task's pool, each for one listener call.

    A *run* consumes one range of a queue; it takes a slot for each of its calls. A call *hangs* if its
    messages were sent back because it takes too long, and it still runs.
    """

    def __init__(self, most: int) -> None:
        """Begin with ``most`` free slots, at least one."""
        self._most = most
        self._taken = 0
        self._held: dict[RunT, int] = {}
        """Number of running calls of each run that has joined.

        A run that is over stays here while it has hanging calls.
        """
        self._over: set[RunT] = set()
        self._hanging: dict[RunT, int] = {}
        self.waiting: dict[RunT, bool] = {}
        """Runs that found no slot, in order of arrival, and whether each was woken."""

    @property
    def are_lost(self) -> bool:
        """Whether hanging calls hold all slots: they still run although their messages were sent back."""
        return sum(self._hanging.values()) >= self._most

    @property
    def is_somebody_waiting(self) -> bool:
        """Whether a run waits for a slot."""
        return bool(self.waiting)

    def join(self, run: RunT) -> None:
        """Add a run (the consumption of one range of a queue), which has no calls yet."""
        self._held[run] = 0

    def leave(self, run: RunT) -> None:
        """Remove a run that is over; its calls that still run keep their slots until ``give`` frees them."""
        self._over.add(run)
        self.rest(run)
        self._forget_if_gone(run)

    def take(self, run: RunT) -> bool:
        """Take a slot for a call and return True. If none is free for this run, let it wait; return False.

        A free slot is kept for the waiting run with the fewest calls, even if another run asks first.
        """
        held = self._held[run]
        if self._taken >= self._most or (self.waiting and self._is_another_first(run, held)):
            self.waiting[run] = False
            return False
        self.waiting.pop(run, None)
        self._taken += 1
        self._held[run] = held + 1
        return True

    def rest(self, run: RunT) -> None:
        """Note that a run needs no further slot for now: it waits no more."""
        self.waiting.pop(run, None)

    def give(self, run: RunT, count: int = 1) -> None:
        """Free ``count`` slots: the calls in them have ended, and the run begins no other calls in them."""
        self._taken -= count
        self._held[run] -= count
        self._forget_if_gone(run)

    def may_keep(self, run: RunT) -> bool:
        """Return whether a run may begin its next call in the slot of its call that has just ended.

        It may not if another run waits that has no call, or at least two calls fewer.
        """
        held = self._held[run]
        others = (self._held[each] for each in self.waiting if each != run)
        return not any(other == 0 or other <= held - 2 for other in others)

    def hang(self, run: RunT, count: int) -> None:
        """Note how many calls of a run still run although their messages were sent back."""
        self._hanging[run] = count

    def wake(self) -> RunT | None:
        """Return the next waiting run to wake; None if there is none. The run must call :meth:`take` again.

        If a slot is free, this is the waiting run with the fewest calls. If hanging calls hold all slots,
        every waiting run is returned, one after the other, so that it can end. A run that was woken already
        is not returned again. Call this method after each change, repeatedly until it returns None.
        """
        if self.are_lost:
            first = next((run for run, is_woken in self.waiting.items() if not is_woken), None)
        elif self.waiting and self._taken < self._most:
            first = min(self.waiting, key=lambda run: self._held[run])
        else:
            first = None
        if first is None or self.waiting[first]:
            return None
        self.waiting[first] = True
        return first

    def _is_another_first(self, run: RunT, held: int) -> bool:
        has_come_later = True
        for waiting in self.waiting:
            if waiting == run:
                has_come_later = False
            elif self._held[waiting] < held + has_come_later:
                return True
        return False

    def _forget_if_gone(self, run: RunT) -> None:
        if run in self._over and not self._held[run]:
            self._over.remove(run)
            del self._held[run]
            self._hanging.pop(run, None)
