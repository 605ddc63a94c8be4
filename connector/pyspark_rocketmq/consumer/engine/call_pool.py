"""The pool of listener calls shared by a task's ranges, and the ranges that are consumed side by side.

:mod:`pyspark_rocketmq.consume.call_slots` decides which range may begin a call; this module adds the lock and
the threads. Each range has its own thread, which begins its calls and settles them; a call runs on any thread
of the pool. The task's own thread reads ranges and yields results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sized
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from pyspark_rocketmq.consume.call_slots import CallSlots
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.range import ArrivedRange
from pyspark_rocketmq.listeners.calls import DaemonThreads

_OUT_OF_MEMORY_BYTES: Final = 128 << 20
"""Memory of unfinished ranges at which the task reads no further one; a single range may take any amount."""
_WAITING_RANGES: Final = 8
"""Maximum number of unfinished ranges beyond those that can have a call: they send messages back, or
pause."""
_LOOK_EVERY_S: Final = 0.05
"""How often the task checks for slow calls while a range is left to read."""


class PooledRun(Hashable, Protocol):
    """A range that takes slots of the pool."""

    def look_again(self) -> None:
        """Check again: there may be a slot, or the task ends; called by any thread, returns immediately."""
        ...

    def lets_next_begin(self) -> bool:
        """Return whether all its messages are delivered, or a call is slow; called by any thread."""
        ...


class CallPool:
    """The slots and threads of one task; shared by the threads of its ranges."""

    def __init__(self, most_calls: int) -> None:
        self.most_calls = most_calls
        """Number of slots."""
        self.last_out: Callable[[], None] = lambda: None
        """Called when a range has delivered its last message."""
        self.threads = DaemonThreads("rocketmq-listener", most_calls)
        """Threads for the calls that do not run on the event loop."""
        self.is_stopped = False
        """Whether no further call begins: the task has failed or was cancelled."""
        self._slots: CallSlots[PooledRun] = CallSlots(most_calls)
        self.waiting: Sized = self._slots.waiting
        """Ranges that found no slot; always current. An attribute, because every call reads it."""
        self._joined: set[PooledRun] = set()
        self._guard = threading.Lock()

    @property
    def are_lost(self) -> bool:
        """Whether every slot is held by a call that takes too long."""
        with self._guard:
            return self._slots.are_lost

    def join(self, run: PooledRun) -> None:
        """See ``CallSlots``."""
        with self._guard:
            self._slots.join(run)
            self._joined.add(run)

    def leave(self, run: PooledRun) -> None:
        """See ``CallSlots``."""
        with self._guard:
            self._slots.leave(run)
            self._joined.discard(run)
            is_last = self.is_stopped and not self._joined
        if is_last:
            self.threads.close()
        self.wake()

    def take(self, run: PooledRun) -> bool:
        """See ``CallSlots``."""
        with self._guard:
            return self._slots.take(run)

    def give(self, run: PooledRun, count: int = 1) -> None:
        """See ``CallSlots``."""
        with self._guard:
            self._slots.give(run, count)

    def may_keep(self, run: PooledRun) -> bool:
        """See ``CallSlots``."""
        with self._guard:
            return self._slots.may_keep(run)

    def rest(self, run: PooledRun) -> None:
        """See ``CallSlots``."""
        with self._guard:
            self._slots.rest(run)

    def hang(self, run: PooledRun, count: int) -> None:
        """See ``CallSlots``."""
        with self._guard:
            self._slots.hang(run, count)
        self.wake()

    def wake(self) -> None:
        """Wake the waiting ranges that are next, to check again."""
        while self.waiting:
            with self._guard:
                run = self._slots.wake()
            if run is None:
                return
            run.look_again()

    def lets_next_begin(self, ranges: int) -> bool:
        """Return whether another range may begin beside ``ranges`` unfinished ones.

        While calls are quick it would only get in their way.
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


class RangesAtOnce:
    """Consumes the ranges of a task side by side, as far as memory allows; used once."""

    def __init__(
        self,
        ranges: Iterator[ArrivedRange],
        consume: Callable[[ArrivedRange], Consumed],
        pool: CallPool,
        give_away: Callable[[Consumed], bool],
    ) -> None:
        """Begin nothing yet.

        Args:
            ranges: The ranges to consume, as they are read.
            consume: Consumes one range to its end; called on threads, for several ranges at the same time.
            pool: The pool in which calls take slots.
            give_away: Takes, if it can, the result of a range that was given up, on the thread that consumed
                it: the task's own thread may be reading.
        """
        self._ranges = ranges
        self._consume = consume
        self._pool = pool
        self._give_away = give_away
        self._ended: SimpleQueue[tuple[ArrivedRange, Consumed | BaseException | None] | None] = SimpleQueue()
        """Ranges that have ended, with their results or errors; None means that the next range may begin."""
        self._at_hand = 0
        self._held_bytes = 0
        pool.last_out = lambda: self._ended.put(None)

    def consumed(self) -> Iterator[Consumed]:
        """Yield the result of each range as soon as it has ended."""
        is_range_left = True
        while is_range_left or self._at_hand:
            if is_range_left and self._may_begin():
                is_range_left = self._begin_next()
            yield from self._results(is_range_left)

    def _may_begin(self) -> bool:
        if not self._at_hand:
            return True
        has_room = self._held_bytes < _OUT_OF_MEMORY_BYTES
        most = self._pool.most_calls + _WAITING_RANGES
        return has_room and self._at_hand < most and self._pool.lets_next_begin(self._at_hand)

    def _begin_next(self) -> bool:
        """Read the next range and begin to consume it; return whether there was one."""
        arrived = next(self._ranges, None)
        if arrived is None:
            return False
        self._at_hand += 1
        self._held_bytes += arrived.nbytes
        if len(arrived.messages):
            name = f"rocketmq-queue-{arrived.planned.queue.queue_id}"
            threading.Thread(target=self._run, args=[arrived], name=name, daemon=True).start()
        else:
            self._run(arrived)
        return True

    def _run(self, arrived: ArrivedRange) -> None:
        try:
            consumed = self._consume(arrived)
            self._ended.put((arrived, None if self._give_away(consumed) else consumed))
        except BaseException as error:  # noqa: BLE001 - the task's own thread raises it
            self._ended.put((arrived, error))

    def _results(self, is_range_left: bool) -> Iterator[Consumed]:
        """Wait for something to happen, and yield the available results."""
        timeout_s = _LOOK_EVERY_S if is_range_left else None
        while self._at_hand:
            try:
                found = self._ended.get(timeout_s != 0.0, timeout_s or None)
            except Empty:
                return
            timeout_s = 0.0
            if found is None:
                continue
            arrived, ended = found
            self._at_hand -= 1
            self._held_bytes -= arrived.nbytes
            if isinstance(ended, BaseException):
                raise ended
            if ended is not None:
                yield ended
            # Release them before waiting for the next one.
            del found, arrived, ended
