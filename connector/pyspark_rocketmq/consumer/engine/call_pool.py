"""The pool of listener calls shared by a task's ranges, and the ranges that are consumed side by side.

A running call holds a *slot* of the pool. :mod:`pyspark_rocketmq.consume.call_slots` decides which range may
begin a call; this module adds the lock and the threads. Each range with messages has its own thread, which
begins its calls and settles them, unless a call's thread does this when the call has ended. A call runs on
any thread of the pool, or on the event loop. The task's own thread begins ranges and yields results; another
one reads.

Closed ranges begin one after the other: the next one begins only when each range under way has delivered all
its messages, or has a slow call. Reading pauses when memory is short. Open ranges all begin with the task,
and a queue of which too many messages wait is not read for a while (it is *held*).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence, Sized
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Protocol

from pyspark_rocketmq.consume.call_slots import CallSlots
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine.arrivals import (
    PULL_THRESHOLD_FOR_QUEUE,
    Arrivals,
    ArrivingRange,
    Source,
    TakesArrivals,
    end_did_not_come,
    report_end,
    report_stand,
    two_ranges,
)
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.listeners.calls import DaemonThreads
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source.schema import Arrival

_OUT_OF_MEMORY_BYTES: Final = 128 << 20
"""Memory of arrived messages, in bytes, at which the task reads no more; one range may take any amount."""
_WAITING_RANGES: Final = 8
"""Maximum number of unfinished ranges beyond one for each slot: a range that sends messages back, or waits
after a failure, needs no slot."""
_LOOK_EVERY_S: Final = 0.05
"""How often the task checks for slow calls and memory while a range is to begin, reading pauses or a queue is
held."""


class PooledRun(Hashable, Protocol):
    """The consumption of a range, which takes a slot of the task's pool for each listener call."""

    def look_again(self) -> None:
        """Check again whether there is a slot, or the task ends; for any thread, returns immediately."""
        ...

    def lets_next_begin(self) -> bool:
        """Return whether this range lets another one begin beside it; called by any thread.

        It does if all its messages that have arrived are delivered, or if one of its calls is slow.
        """
        ...


class CallPool:
    """The slots and threads for the listener calls of one task; shared by the threads of its ranges.

    Each running call holds a slot. A *run* consumes one range.
    """

    def __init__(self, most_calls: int) -> None:
        self.most_calls = most_calls
        """Number of slots: the maximum number of listener calls at the same time."""
        self.last_out: Callable[[], None] = lambda: None
        """Called when a range has delivered its last message."""
        self.threads = DaemonThreads("rocketmq-listener", most_calls)
        """Threads for the calls that do not run on the event loop."""
        self.is_stopped = False
        """Whether no further call begins: the task is over, has failed or was cancelled."""
        self._slots: CallSlots[PooledRun] = CallSlots(most_calls)
        self.waiting: Sized = self._slots.waiting
        """Ranges that found no slot; always current. An attribute, because it is read at every call."""
        self._joined: set[PooledRun] = set()
        self._guard = threading.Lock()

    @property
    def are_lost(self) -> bool:
        """Whether each slot is held by a call that still runs although its messages were sent back."""
        with self._guard:
            return self._slots.are_lost

    def join(self, run: PooledRun) -> None:
        """Add a run (the consumption of one range), which has no calls yet."""
        with self._guard:
            self._slots.join(run)
            self._joined.add(run)

    def leave(self, run: PooledRun) -> None:
        """Remove a run that is over; its calls that still run keep their slots until they return.

        After :meth:`close` the last run to leave ends the threads.
        """
        with self._guard:
            self._slots.leave(run)
            self._joined.discard(run)
            is_last = self.is_stopped and not self._joined
        if is_last:
            self.threads.close()
        self.wake()

    def take(self, run: PooledRun) -> bool:
        """Take a slot for a call and return True; if none is free for the run, note that it waits for one."""
        with self._guard:
            return self._slots.take(run)

    def give(self, run: PooledRun, count: int = 1) -> None:
        """Free the slots of ``count`` calls of a run that have ended.

        Runs that wait for a slot only notice it when the caller then calls :meth:`wake`.
        """
        with self._guard:
            self._slots.give(run, count)

    def may_keep(self, run: PooledRun) -> bool:
        """Return whether a run may begin its next call in the slot of its call that has just ended.

        It may not if another run waits for a slot and has no call, or at least two calls fewer.
        """
        with self._guard:
            return self._slots.may_keep(run)

    def rest(self, run: PooledRun) -> None:
        """Note that a run no longer waits for a slot."""
        with self._guard:
            self._slots.rest(run)

    def hang(self, run: PooledRun, count: int) -> None:
        """Note how many calls of a run still run although their messages were sent back."""
        with self._guard:
            self._slots.hang(run, count)
        self.wake()

    def wake(self) -> None:
        """Wake the runs that wait for a slot and are next to get one, so that they try to take it."""
        while self.waiting:
            with self._guard:
                run = self._slots.wake()
            if run is None:
                return
            run.look_again()

    def lets_next_begin(self, ranges: int) -> bool:
        """Return whether one more range may begin beside this number of unfinished ``ranges``.

        Each unfinished range must let it begin: while calls are quick, one more range would slow the others.
        """
        with self._guard:
            joined = list(self._joined)
        return len(joined) >= ranges and all(run.lets_next_begin() for run in joined)

    def close(self) -> None:
        """Let no further call begin; return immediately.

        Each range ends when its running calls have returned, and the last one ends the threads.
        """
        with self._guard:
            self.is_stopped = True
            joined = list(self._joined)
        for run in joined:
            run.look_again()
        if not joined:
            self.threads.close()


class ConsumingRun(PooledRun, TakesArrivals, Protocol):
    """The consumption of one range, which arrives piece by piece, with listener calls of the task's pool."""

    @property
    def is_dry(self) -> bool:
        """Whether there is nothing to do until more messages arrive; any thread may read this."""
        ...


@dataclass(slots=True, eq=False)
class PooledRange(ArrivingRange[ConsumingRun]):
    """One range that the task consumes."""

    is_begun: bool = False

    @property
    def needs_more(self) -> bool:
        """Whether the range can go on only when more messages arrive."""
        return self.run is not None and self.run.is_dry and not self.is_whole


class _Over(NamedTuple):
    """Event: reading has ended; ``error`` is None if everything has arrived."""

    error: BaseException | None


class _Ended(NamedTuple):
    """Event: the consumption of a range has ended."""

    one: PooledRange
    result: Consumed | BaseException | None
    """The result, or the error with which the range has failed; None if the result was sent already."""


class RangesAtOnce:
    """Consumes the ranges of a task; used once.

    Open ranges (without a planned end) all run at the same time. Of closed ranges, another begins only when
    each running one has delivered what has arrived, or has a slow call.
    """

    def __init__(
        self,
        source: Source,
        consume: Callable[[PooledRange], Consumed],
        pool: CallPool,
        give_away: Callable[[Consumed], bool],
        instructions: RangeInstructions = NO_INSTRUCTIONS,
        *,
        most_held: int = PULL_THRESHOLD_FOR_QUEUE,
    ) -> None:
        """Prepare to consume; :meth:`consumed` begins.

        Args:
            source: Reads the ranges.
            consume: Consumes one range to its end; called on threads, for several ranges at the same time.
            pool: The pool in which calls take slots.
            give_away: Sends the result of a range that was given up; returns False if it cannot. It is called
                on the thread that consumed the range, as the task's own thread may be writing.
            instructions: The driver's instructions to the task.
            most_held: Number of waiting messages at which no more are read from an open range's queue.
        """
        self._arrivals = Arrivals(source)
        self._is_open = source.is_open
        self._instructions = instructions
        self._most_held = most_held
        self._consume = consume
        self._pool = pool
        self._give_away = give_away
        self._events: SimpleQueue[Sequence[Arrival] | _Ended | _Over | None] = SimpleQueue()
        """Everything that happens in the task, in order; None means that another range may begin."""
        self._ranges: dict[MessageQueue, PooledRange] = {}
        """Ranges that have not ended, in the order of their first pieces."""
        self._early: dict[MessageQueue, PooledRange] = {}
        """Ranges that have ended, by queue; what still arrives of them is dropped, except a reset."""
        self._at_hand = 0
        """Number of ranges that have begun and have not ended."""
        self._is_arriving = True
        self._is_paused = False
        """Whether the reading thread has paused after the pieces that were taken last."""
        self._is_full = False
        """Whether reading stays paused because memory is short."""
        pool.last_out = lambda: self._events.put(None)

    def consumed(self) -> Iterator[Consumed]:
        """Yield the result of each range as soon as it has ended, except those that ``give_away`` has sent.

        Raises:
            RocketMQError: If a range cannot be read, or its queue had another range in this task.
            BaseException: Any error of the function that consumes a range.
        """
        if self._is_open:
            self._instructions.notifies(self._instructions_changed)
        self._arrivals.begin(self._arrived, lambda error: self._events.put(_Over(error)))
        try:
            while self._is_arriving or self._ranges:
                self._begin_some()
                yield from self._results()
        finally:
            self._arrivals.end()

    def _arrived(self, arrivals: Sequence[Arrival]) -> None:
        # The task's own thread decides whether to read on.
        self._arrivals.pause()
        self._events.put(arrivals)

    def _instructions_changed(self) -> None:
        """Let every range read the driver's instructions again; called by any thread."""
        for one in list(self._ranges.values()):
            if (run := one.run) is not None:
                run.look_again()

    def _begin_some(self) -> None:
        """Begin ranges in the order of their arrival, and read on as far as there is memory."""
        for one in [each for each in self._ranges.values() if not each.is_begun]:
            if not self._may_begin():
                break
            self._begin(one)
        if self._is_open:
            for one in self._ranges.values():
                self._arrivals.hold_if_full(one, self._most_held)
        else:
            held_bytes = sum(one.held_bytes for one in self._ranges.values())
            self._is_full = held_bytes >= _OUT_OF_MEMORY_BYTES and not self._can_only_read
        if self._is_paused and not self._is_full:
            self._is_paused = False
            self._arrivals.resume()

    def _may_begin(self) -> bool:
        if self._is_open or not self._at_hand:
            return True
        most = self._pool.most_calls + _WAITING_RANGES
        return self._at_hand < most and self._pool.lets_next_begin(self._at_hand)

    @property
    def _can_only_read(self) -> bool:
        """Whether no range that has begun can go on with the messages that have arrived."""
        return all(one.needs_more for one in self._ranges.values() if one.is_begun)

    def _begin(self, one: PooledRange) -> None:
        one.is_begun = True
        self._at_hand += 1
        if one.arrived or not one.is_whole:
            name = f"rocketmq-queue-{one.planned.queue.queue_id}"
            threading.Thread(target=self._run, args=[one], name=name, daemon=True).start()
        else:
            self._run(one)

    def _run(self, one: PooledRange) -> None:
        try:
            consumed = self._consume(one)
            if self._is_open and not one.is_moved:
                report_stand(self._instructions, consumed.ack, one.end)
            one.last = consumed._replace(rows=[])
            self._events.put(_Ended(one, None if self._give_away(consumed) else consumed))
        except BaseException as error:  # noqa: BLE001 - the task's own thread raises it
            self._events.put(_Ended(one, error))

    def _results(self) -> Iterator[Consumed]:
        """Wait for something to happen, and yield the available results."""
        looks = self._is_full or any(not one.is_begun or one.is_held for one in self._ranges.values())
        timeout_s = _LOOK_EVERY_S if looks else None
        while self._is_arriving or self._ranges:
            try:
                found = self._events.get(timeout_s != 0.0, timeout_s or None)
            except Empty:
                return
            timeout_s = 0.0
            if isinstance(found, _Ended):
                yield from self._result_of(found)
            elif isinstance(found, _Over):
                self._reading_is_over(found.error)
            elif found is not None:
                yield from self._take_in(found)
            # Release it before waiting for the next one.
            del found

    def _result_of(self, ended: _Ended) -> Iterator[Consumed]:
        self._at_hand -= 1
        queue = ended.one.planned.queue
        one = self._early[queue] = self._ranges.pop(queue)
        one.run, one.arrivals = None, deque()
        if not one.is_whole:
            self._arrivals.leave(queue)
        if isinstance(ended.result, BaseException):
            raise ended.result
        if ended.result is not None:
            yield ended.result
        if (late := one.late_reset) is not None:
            yield late

    def _reading_is_over(self, error: BaseException | None) -> None:
        self._is_arriving = False
        if error is not None:
            raise error
        for queue, one in self._ranges.items():
            if not one.is_whole:
                raise end_did_not_come(queue)

    def _take_in(self, arrivals: Sequence[Arrival]) -> Iterator[Consumed]:
        """Take pieces of ranges; yield the resets of those that have ended."""
        self._is_paused = True
        for arrival in arrivals:
            queue = arrival.queue
            one = self._ranges.get(queue) or self._early.get(queue)
            if one is None:
                one = self._ranges[queue] = PooledRange(arrival.planned)
            elif one.is_whole:
                raise two_ranges(queue)
            if queue in self._ranges:
                one.add(arrival)
                if one.run is not None:
                    one.run.look_again()
                if arrival.end is not None and one.is_moved:
                    report_end(self._instructions, arrival.end)
            else:
                one.end, one.is_whole = arrival.end, arrival.is_end
                if (late := one.late_reset) is not None:
                    yield late
