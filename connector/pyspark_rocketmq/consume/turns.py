"""Decides which of a task's queues a worker takes next, and defines the driver's instructions to the task.

A task has the ranges of several queues. Java has a thread for each queue that has something to do. Here one
thread does everything as long as listener calls are quick, and several threads work when they are slow (D1,
D3):

1. A queue is with one worker at a time.
2. One worker does everything that is due, turn after turn. Another one begins only when each running call has
   lasted 0.1 s or, once there has been such a call, when a queue has waited for 0.1 s.
3. A turn goes on as long as no queue waits. Otherwise it ends with the running delivery, after 50 ms or when
   another queue's suspension is over.
4. If unfinished ranges take much memory, and calls are quick, the next range is read only when there is
   nothing else to do. If they take too much, it is read only when none is left; suspended queues then stop,
   and come again with the next micro-batch.
5. The queue that has been due longest comes first. A queue that had a turn already, and the next range to
   read, count as due half a second later, so that a queue whose suspension is over does not wait for all of
   them.
6. A queue that was suspended is delivered again while others are at work, but does not prolong the task: when
   the others have ended, or are suspended too, it stops with the running delivery. The micro-batch ends as if
   the queue had waited for the next one.

Times are seconds of one monotonic clock, which is passed in. Not thread-safe; no method blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from enum import Enum, auto
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pyspark_rocketmq.model import MessageQueue

QueueT = TypeVar("QueueT", bound=Hashable)

SLOW_S: Final = 0.1
"""Duration from which on a call is slow."""
PATIENCE_S: Final = 0.1
"""How long a queue waits for a worker if calls are slow."""
TURN_S: Final = 0.05
"""How long a queue's turn lasts when others wait."""
HANDICAP_S: Final = 0.5
"""How far a suspended queue is ahead of those that had a turn."""


class RangeInstructions:
    """Instructions of the driver to a task; this class is for a task without a driver, and gives up nothing.

    Read before every delivery, so an implementation must cost no more than an attribute lookup.
    """

    def is_given_up(self, queue: MessageQueue) -> bool:  # noqa: ARG002 - a subclass's
        """Return whether the range of ``queue`` makes no further delivery; once true, true to the task's end.

        Deliveries answered before still count, as when a range's time is used up (D7).
        """
        return False

    def idles(self, changed: Callable[[], None]) -> None:
        """Report, once, that the task has only suspended queues left; return immediately.

        Args:
            changed: Called by another thread when ``is_batch_at_work`` may have become false; must not wait.
        """

    def is_batch_at_work(self) -> bool:
        """Return whether other tasks go on, so an idle one prolongs nothing; once False, always False."""
        return False

    def is_paused(self) -> bool:
        """Return whether no delivery may begin for now: the driver cannot be reached, or too many rows wait.

        Like ``is_given_up`` it is read before every delivery. Open ranges only.
        """
        return False

    def pauses_with(self, changed: Callable[[], None]) -> None:
        """Take the function that another thread calls when ``is_paused`` has changed; it must not wait."""

    def counts_rows(self) -> bool:
        """Return whether :meth:`rows_grew` is to be called; the same for all of a task's life."""
        return False

    def rows_grew(self, nbytes: int) -> None:
        """Note the size of rows of settled messages that are in no cut; returns at once, on any thread."""

    def settled(self) -> None:
        """Note that a range has something to commit that is in no cut; return immediately.

        At least once after each cut; callable from any thread.
        """

    def cut_with(self, cut: Callable[[], Any]) -> None:
        """Take the function that cuts all ranges of the task; it is called by another thread."""

    def take(self, brought: object) -> bool:  # noqa: ARG002 - a subclass's
        """Take the result of a range that was given up, on any task thread; return whether it was taken."""
        return False


NO_INSTRUCTIONS: Final = RangeInstructions()


class Memory(Enum):
    """How much memory is free for reading another range."""

    PLENTY = auto()
    SHORT = auto()
    GONE = auto()


class Turn(NamedTuple, Generic[QueueT]):
    """Next work for a worker."""

    queue: QueueT | None
    """Queue whose messages to deliver; None to read the next range."""
    lasts_s: float
    """Duration after which the turn ends with the running delivery."""


class Rest(NamedTuple):
    """Nothing to do for a worker."""

    until_s: float
    """When to ask again if nothing has happened before; may be infinite."""


class _Waiting(NamedTuple, Generic[QueueT]):
    """A queue without a worker, or the next range, which is still to be read."""

    place_s: float
    """Place in the order: the smallest of those that are due comes first."""
    due_s: float
    queue: QueueT | None


class TaskTurns(Generic[QueueT]):
    """The queues of one task, from its first range to the end of its last queue."""

    def __init__(self, now_s: float) -> None:
        """Begin without queues: the first work is to read a range, and ``arrived`` adds its queue."""
        self._waiting: dict[QueueT | None, _Waiting[QueueT]] = {None: _Waiting(now_s, now_s, None)}
        self._in_hand: set[QueueT | None] = set()
        self._leading: set[QueueT | None] = {None}
        """Keep the task going: queues neither suspended nor ended, and None while ranges may be left."""
        self._has_been_slow = False

    @property
    def is_led(self) -> bool:
        """Whether a queue that was not suspended, or a range to read, is left: the task lasts that long."""
        return bool(self._leading)

    @property
    def is_idle(self) -> bool:
        """Whether no worker has work."""
        return not self._in_hand

    @property
    def is_somebody_waiting(self) -> bool:
        """Whether a queue, even a suspended one, or the next range to read has no worker."""
        return bool(self._waiting)

    @property
    def is_range_left(self) -> bool:
        """Whether there may be a range to read that no worker is reading."""
        return None in self._waiting

    def is_suspended(self, queue: QueueT) -> bool:
        """Return whether the queue waits and was suspended in this task."""
        return queue in self._waiting and queue not in self._leading

    def next(
        self,
        now_s: float,
        *,
        calls_s: Sequence[float] = (),
        is_batch_at_work: bool = False,
        memory: Memory = Memory.PLENTY,
    ) -> Turn[QueueT] | Rest:
        """Return the next work for a worker that has finished its work.

        Args:
            now_s: Now.
            calls_s: How long each other worker's listener call, or its reading of a range, has lasted.
            is_batch_at_work: Whether other tasks of the micro-batch have work, so that it goes on when this
                one is over.
            memory: How much is free for reading another range.
        """
        self._has_been_slow |= max(calls_s, default=0.0) >= SLOW_S
        if not self._waiting or not (self._leading or is_batch_at_work):
            return Rest(inf)
        waiting = list(self._waiting.values())
        if memory is Memory.GONE and (self._in_hand or len(waiting) > 1):
            waiting = [each for each in waiting if each.queue is not None]
        due = [each for each in waiting if each.due_s <= now_s]
        if not due:
            return Rest(min((each.due_s for each in waiting), default=inf))
        reads_last = memory is not Memory.PLENTY and not self._has_been_slow
        first = min(due, key=lambda each: (reads_last and each.queue is None, each.place_s))
        begins_s = now_s + self._waits_s(now_s - first.due_s, calls_s)
        if begins_s > now_s:
            return Rest(begins_s)
        del self._waiting[first.queue]
        self._in_hand.add(first.queue)
        return Turn(first.queue, self._lasts_s(now_s))

    # --- ends of a turn -------------------------------------------------------------------------------------

    def arrived(self, queue: QueueT, now_s: float) -> Turn[QueueT]:
        """Add the range just read; return its queue's first turn, for the worker that has read it."""
        self._release(None, now_s + HANDICAP_S, now_s)
        self._in_hand.add(queue)
        self._leading.add(queue)
        return Turn(queue, self._lasts_s(now_s))

    def none_arrived(self) -> None:
        """Note that there is no further range."""
        self._in_hand.remove(None)
        self._leading.remove(None)

    def yielded(self, queue: QueueT, now_s: float) -> None:
        """Note that the turn is over, and the queue has more to deliver."""
        self._release(queue, now_s + HANDICAP_S, now_s)

    def suspended(self, queue: QueueT, due_s: float) -> None:
        """Note that the queue is suspended until ``due_s``."""
        self._leading.discard(queue)
        self._release(queue, due_s, due_s)

    def ended(self, queue: QueueT) -> None:
        """Note that the queue has nothing more to deliver."""
        self._in_hand.remove(queue)
        self._leading.discard(queue)

    def withdrawn(self, queue: QueueT) -> None:
        """Remove a waiting queue, which does not go on."""
        del self._waiting[queue]
        self._leading.discard(queue)

    def _release(self, queue: QueueT | None, place_s: float, due_s: float) -> None:
        self._in_hand.remove(queue)
        self._waiting[queue] = _Waiting(place_s, due_s, queue)

    # --- decisions ------------------------------------------------------------------------------------------

    def _waits_s(self, waited_s: float, calls_s: Sequence[float]) -> float:
        """Return how much longer the first queue has to wait for a worker; 0 or less means not at all."""
        until_all_slow_s = SLOW_S - min(calls_s, default=inf)
        return min(until_all_slow_s, PATIENCE_S - waited_s) if self._has_been_slow else until_all_slow_s

    def _lasts_s(self, now_s: float) -> float:
        """Return how long a turn that begins now lasts."""
        due_s = min((each.due_s for each in self._waiting.values()), default=inf)
        return due_s - now_s if due_s > now_s else TURN_S
