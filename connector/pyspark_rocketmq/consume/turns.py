"""Decides which of a task's queues a worker takes next, and defines the driver's instructions to the task.

A task consumes the ranges of several queues, with threads that are called *workers* here. A *turn* is the
time for which a worker delivers messages of one queue before it takes another queue. Java has a thread for
each queue that has something to do. Here one worker does everything while listener calls are quick, and
several work when calls are slow (D1, D3):

1. A queue is with one worker at a time. If it is consumed by key (:mod:`~pyspark_rocketmq.consume.keyed`),
   further workers join while it has deliveries for them.
2. One worker does everything that is due, turn after turn. Another one begins only when each running call has
   lasted 0.1 s or, once there has been such a call, when a queue has waited for 0.1 s. Open ranges and
   queues that are consumed by key have shorter times (:class:`Pace`).
3. A turn goes on as long as nothing waits: no other queue, and no piece to read (rule 4). Otherwise the turn
   ends after 50 ms, or when another queue's suspension is over; the running delivery is finished first.
4. Ranges may arrive in pieces. A queue that has consumed what has arrived is *dry*: it waits for more, not
   for a worker. *Open* ranges (without a planned end) are read by a thread of their own. *Closed* ranges are
   read by the workers, one piece at a time: reading beside a listener that is busy would only slow both down.
   If what has arrived takes much memory, and calls are quick, the next piece is read only when there is
   nothing else to do. If what has arrived takes too much memory, the next piece is read only when no queue
   with messages is left; suspended queues then stop, and come again with the next micro-batch.
5. The queue that has been due longest comes first. A queue that had a turn already, and the next piece to
   read, count as due half a second later. So a queue whose suspension is over does not wait for all queues
   that had a turn.
6. A queue that was suspended is delivered again while others are at work, but does not prolong the task: when
   the others have ended, or are suspended too, it stops with the running delivery. The micro-batch ends as if
   the queue had waited for the next one. Only a suspended queue that *leads* prolongs the task: one consumed
   by key, in which finished messages wait for the suspended key.

Times are seconds of one monotonic clock, which is passed in. Not thread-safe; no method blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum, auto
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pyspark_rocketmq.model import MessageQueue

QueueT = TypeVar("QueueT", bound=Hashable)

TURN_S: Final = 0.05
"""How long a queue's turn lasts when others wait."""
HANDICAP_S: Final = 0.5
"""Time by which a queue that had a turn counts as due later than a queue whose suspension is over, in
seconds."""


class Pace(NamedTuple):
    """Durations that decide when one more of a task's threads (workers) begins to call the listener."""

    slow_s: float
    """Duration at which a listener call counts as slow, in seconds."""
    patience_s: float
    """Time for which a queue waits for a worker when calls are slow, in seconds."""
    remembers: bool = True
    """True: after one slow call, calls count as slow from then on. False: only while a slow call is running.
    """


QUEUE_PACE: Final = Pace(0.1, 0.1)
OPEN_PACE: Final = Pace(0.005, 0.002)
"""Pace in real time, where messages are to wait only for milliseconds."""
KEY_PACE: Final = Pace(0.002, 0.002, remembers=False)
"""Pace of queues that are consumed by key: their listener is expected to wait for other systems."""


class RangeInstructions:
    """Instructions of the driver to a task; this base class gives none, for a task without a driver.

    The task reads the instructions before every delivery, so each must cost no more than an attribute lookup.
    """

    def is_given_up(self, queue: MessageQueue) -> bool:  # noqa: ARG002 - a subclass's
        """Return whether the range of ``queue`` must make no further delivery; once true, it stays true.

        The result of the range still has the deliveries that the listener has answered before.
        """
        return False

    def idles(self, changed: Callable[[], None]) -> None:
        """Report that the task has only suspended queues left; call this only once; returns immediately.

        Args:
            changed: Called by another thread when ``is_batch_at_work`` may have become false; must not wait.
        """

    def is_batch_at_work(self) -> bool:
        """Return whether the task may wait for suspended queues.

        With closed ranges (with a planned end) the result is False before :meth:`idles`, and then True while
        other tasks of the batch have work. With open ranges it is True until the driver ends the task. Once
        the result is False after :meth:`idles`, or with open ranges, it stays False.
        """
        return False

    def is_paused(self) -> bool:
        """Return whether no delivery may begin now: the driver cannot be reached, or too many rows wait.

        The task reads this before every delivery. It can be true only in real time.
        """
        return False

    def must_wait(self, queue: MessageQueue) -> bool:  # noqa: ARG002 - a subclass's
        """Return whether no delivery of ``queue`` may begin now, while other queues go on.

        The task reads this before every delivery. It can be true only in real time.
        """
        return False

    def notifies(self, changed: Callable[[], None]) -> None:
        """Set the function to call when ``is_paused``, ``must_wait`` or ``is_given_up`` has changed.

        The function must not wait.

        Engines need it in real time: there a queue may have no messages for hours, so the task must be
        notified.
        """

    def shows_calls(self, calls: Callable[[], Mapping[MessageQueue, float]]) -> None:
        """Set the function that returns the listener calls that are running; engines need it in real time.

        For each queue with such calls, the function returns how many seconds its oldest call has lasted. Any
        thread may call it; it must not wait.
        """

    def stands(self, queue: MessageQueue, reason: str, *, is_reset: bool = False) -> None:
        """Report that an open range cannot go on: only another plan can continue its queue.

        ``reason`` is a phrase for the log; ``is_reset``: an operator has reset the queue.
        """

    def counts_rows(self) -> bool:
        """Return whether the size of rows is limited, so that it must be reported by :meth:`rows_grew`.

        The answer does not change during a task.
        """
        return False

    def rows_grew(self, nbytes: int) -> None:
        """Add the size of rows, in bytes, that wait for a commit; callable from any thread, does not wait."""

    def rests(self) -> None:
        """Note that the task has nothing to deliver until more arrives or a suspension is over.

        The method does not wait. Not all engines call it.
        """

    def settled(self) -> None:
        """Report that a range has new results to commit; returns immediately, callable from any thread.

        A *cut* collects such results. After each cut in which the range has taken part, call this at least
        once when there are new results.
        """

    def cut_with(self, cut: Callable[[], Any]) -> None:
        """Set the function that collects what all ranges have settled since its last call (a cut).

        The function is called by another thread than this method.
        """

    def take(self, brought: object) -> bool:  # noqa: ARG002 - a subclass's
        """Send the result of a range that was given up; any thread of the task may call this.

        Return whether the result is sent; otherwise the caller keeps it.
        """
        return False


NO_INSTRUCTIONS: Final = RangeInstructions()


class Memory(Enum):
    """Memory that is left for reading more messages.

    If it is SHORT, and calls are quick, the task reads on only when there is nothing else to do. If it is
    GONE, the task reads on only when it has no more messages to deliver.
    """

    PLENTY = auto()
    SHORT = auto()
    GONE = auto()


class Turn(NamedTuple, Generic[QueueT]):
    """Next work for a worker, which is a thread of the task."""

    queue: QueueT | None
    """Queue whose messages to deliver; None: read the next piece of the ranges instead."""
    lasts_s: float
    """Duration in seconds after which the turn ends, once the running delivery is answered."""


class Rest(NamedTuple):
    """There is nothing to do for a worker (a thread of the task) now."""

    until_s: float
    """Time at which to ask again if nothing happens before; may be infinite."""


class _Waiting(NamedTuple, Generic[QueueT]):
    """An entry in the order of work: a queue, due now or later, or (None) the next piece to read."""

    place_s: float
    """Place in the order, as a time: of those that are due, the smallest comes first."""
    due_s: float
    queue: QueueT | None


class TaskTurns(Generic[QueueT]):
    """The queues of one task, from their first messages to the end of the last queue.

    A *worker* is a thread of the task; a *turn* is the time for which it delivers messages of one queue.
    """

    def __init__(self, now_s: float, *, reads: bool = True, pace: Pace = QUEUE_PACE) -> None:
        """Begin without queues; ``arrived`` reports each.

        Args:
            now_s: Now.
            reads: Whether workers also read the ranges; otherwise another thread does.
            pace: Durations that decide when one more worker begins.
        """
        self._pace = pace
        self._waiting: dict[QueueT | None, _Waiting[QueueT]] = {}
        """Queues that wait for a worker; None stands for the next piece to read, unless a worker reads it."""
        if reads:
            self._waiting[None] = _Waiting(now_s, now_s, None)
        self._in_hand: dict[QueueT | None, int] = {}
        """Number of workers by queue."""
        self._reporting: set[QueueT | None] = set()
        """Queues whose last worker has left, and has not reported the queue's state yet."""
        self._dry: set[QueueT] = set()
        self._leading: set[QueueT] = set()
        """Queues that keep the task going: those not suspended, and suspended ones that ``lead``."""
        self._suspended: set[QueueT | None] = set()
        """Queues that were suspended and have had no worker since."""
        self._is_arriving = True
        self._has_been_slow = False

    @property
    def is_led(self) -> bool:
        """Whether the task goes on even if no other task of its batch has work.

        The task goes on while more may arrive, while a queue is left that is not suspended, and while a
        suspended queue is left for which the task waits (``leads``).
        """
        return self._is_arriving or bool(self._leading)

    @property
    def is_idle(self) -> bool:
        """Whether no worker has work."""
        return not self._in_hand

    @property
    def is_somebody_waiting(self) -> bool:
        """Whether a queue, or a piece to read, waits for a worker, even if the queue is still suspended."""
        return bool(self._waiting)

    @property
    def has_more(self) -> bool:
        """Whether a queue waits (for a worker, for messages, or suspended), or more may arrive."""
        return bool(self._waiting or self._dry) or self._is_arriving

    @property
    def is_arriving(self) -> bool:
        """Whether more may arrive."""
        return self._is_arriving

    def is_suspended(self, queue: QueueT) -> bool:
        """Return whether the queue has had no worker since it was suspended, in this task or before it."""
        return self.is_waiting(queue) and (queue in self._suspended or queue not in self._leading)

    def is_waiting(self, queue: QueueT) -> bool:
        """Return whether the queue has no worker, and waits for one or for the end of its suspension."""
        return queue in self._waiting and queue not in self._in_hand

    def is_dry(self, queue: QueueT) -> bool:
        """Return whether the queue has consumed all that has arrived, and waits for more messages."""
        return queue in self._dry

    def next(
        self,
        now_s: float,
        *,
        calls_s: Sequence[float] = (),
        is_batch_at_work: bool = False,
        memory: Memory = Memory.PLENTY,
        must_wait: Callable[[QueueT], bool] = lambda _: False,
    ) -> Turn[QueueT] | Rest:
        """Return the next work for a worker that has finished its work; if there is none, when to ask again.

        Args:
            now_s: Now.
            calls_s: For each other worker, how long its listener call, or its reading, has lasted so far.
            is_batch_at_work: Whether other tasks of the micro-batch have work, so that the micro-batch goes
                on even if this task ends.
            memory: Memory that is left for reading more.
            must_wait: Returns whether a queue gets no worker for now, although it is due.
        """
        is_slow = max(calls_s, default=0.0) >= self._pace.slow_s
        self._has_been_slow = is_slow or (self._has_been_slow and self._pace.remembers)
        if not self._waiting or not (self.is_led or is_batch_at_work):
            return Rest(inf)
        waiting = self._waiting_now(memory, must_wait)
        due = [each for each in waiting if each.due_s <= now_s]
        if not due:
            return Rest(min((each.due_s for each in waiting), default=inf))
        reads_last = memory is not Memory.PLENTY and not self._has_been_slow
        first = min(due, key=lambda each: (reads_last and each.queue is None, each.place_s))
        begins_s = now_s + self._waits_s(now_s - first.due_s, calls_s)
        if begins_s > now_s:
            return Rest(begins_s)
        del self._waiting[first.queue]
        self._suspended.discard(first.queue)
        self._in_hand[first.queue] = self._in_hand.get(first.queue, 0) + 1
        return Turn(first.queue, self._lasts_s(now_s))

    def _waiting_now(self, memory: Memory, must_wait: Callable[[QueueT], bool]) -> list[_Waiting[QueueT]]:
        """Return what may get a worker now, or when it is due."""
        reads = memory is not Memory.GONE or not (self._in_hand or len(self._waiting) > 1)
        return [
            each
            for each in self._waiting.values()
            if (reads if each.queue is None else not must_wait(each.queue))
        ]

    # --- arrivals -------------------------------------------------------------------------------------------

    def arrived(self, queues: Iterable[QueueT], now_s: float) -> None:
        """Note that messages of these queues, or the ends of their ranges, have arrived.

        Nothing changes for a queue that has a worker, or that waits for a worker or for the end of its
        suspension. If one more worker could deliver the new messages (of another key), call :meth:`offered`.
        """
        for queue in queues:
            if queue not in self._in_hand and queue not in self._waiting:
                self._dry.discard(queue)
                self._leading.add(queue)
                self._waiting[queue] = _Waiting(now_s, now_s, queue)

    def begins_suspended(self, queue: QueueT, due_s: float) -> None:
        """Note a new queue that is suspended until ``due_s``."""
        self._waiting[queue] = _Waiting(due_s, due_s, queue)

    def has_read(self, now_s: float) -> None:
        """Note that a worker has read a piece; the next piece counts as due half a second later."""
        self._release(None, now_s + HANDICAP_S, now_s)

    def all_arrived(self) -> None:
        """Note that nothing more arrives, so that no worker reads any more."""
        self._is_arriving = False
        self._waiting.pop(None, None)
        self._in_hand.pop(None, None)

    # --- ends of a turn -------------------------------------------------------------------------------------

    def dry(self, queue: QueueT) -> None:
        """Note that the queue has consumed what has arrived: its worker leaves it, and it waits for more."""
        self._has_no_worker(queue)
        self._leading.add(queue)
        self._dry.add(queue)

    def yielded(self, queue: QueueT, now_s: float) -> None:
        """Note that the queue's turn is over, and that it has more to deliver: it waits for its next turn."""
        self._release(queue, now_s + HANDICAP_S, now_s)

    def suspended(self, queue: QueueT, due_s: float, *, leads: bool = False) -> None:
        """Note that the queue is suspended until ``due_s``; ``leads``: the task waits for the queue."""
        (self._leading.add if leads else self._leading.discard)(queue)
        self._suspended.add(queue)
        self._release(queue, due_s, due_s)

    def ended(self, queue: QueueT) -> None:
        """Note that the queue has nothing more to deliver."""
        self._has_no_worker(queue)
        self._leading.discard(queue)

    def withdrawn(self, queue: QueueT) -> None:
        """Remove a queue that has no worker, and that this task does not continue."""
        self._waiting.pop(queue, None)
        self._dry.discard(queue)
        self._suspended.discard(queue)
        self._leading.discard(queue)

    def _release(self, queue: QueueT | None, place_s: float, due_s: float) -> None:
        self._has_no_worker(queue)
        self._waiting[queue] = _Waiting(place_s, due_s, queue)

    def _has_no_worker(self, queue: QueueT | None) -> None:
        del self._in_hand[queue]
        self._reporting.discard(queue)

    # --- queues with several workers ------------------------------------------------------------------------

    def offered(self, queue: QueueT, due_s: float, *, leads: bool = False) -> None:
        """Note that one more worker may join a queue from ``due_s`` on: the queue has a delivery for it.

        The queue has a worker already or is suspended. ``leads``: the delivery keeps the task going. If the
        queue's last worker is about to report the queue's state (:meth:`leaves`), no worker joins; the report
        must then include the delivery.
        """
        waiting = self._waiting.get(queue)
        if queue not in self._reporting and (waiting is None or due_s < waiting.due_s):
            self._waiting[queue] = _Waiting(due_s + HANDICAP_S, due_s, queue)
        if leads:
            self._suspended.discard(queue)
            self._leading.add(queue)

    def leaves(self, queue: QueueT) -> bool:
        """Note that a worker leaves a queue that has others; return False if it is the last one.

        The last worker must first report the queue's state: dry, yielded, suspended or ended. Until then no
        other worker joins.
        """
        if self._in_hand[queue] > 1:
            self._in_hand[queue] -= 1
            return True
        self._waiting.pop(queue, None)
        self._reporting.add(queue)
        return False

    # --- decisions ------------------------------------------------------------------------------------------

    def _waits_s(self, waited_s: float, calls_s: Sequence[float]) -> float:
        """Return how much longer the first queue has to wait for a worker; 0 or less means not at all."""
        until_all_slow_s = self._pace.slow_s - min(calls_s, default=inf)
        patience_s = self._pace.patience_s - waited_s
        return min(until_all_slow_s, patience_s) if self._has_been_slow else until_all_slow_s

    def _lasts_s(self, now_s: float) -> float:
        """Return how many seconds a turn lasts that begins now.

        It lasts until another queue, or the next piece to read, is due: 0.05 s if one is due already, and
        without an end if none waits.
        """
        due_s = min((each.due_s for each in self._waiting.values()), default=inf)
        return due_s - now_s if due_s > now_s else TURN_S
