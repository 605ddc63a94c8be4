"""The direct engine: one task's ranges through an orderly listener, in the task that reads them.

One thread works while the listener's calls are quick, and several when they are slow; nothing moves between
tasks, and nothing is kept in Spark. :mod:`pyspark_rocketmq.consume.turns` decides what is next; this module
has the threads that do it. The task's own thread is one of the workers, and the only one that yields results.
One more worker sleeps as long as something waits that it may have to begin; when it begins, the next one is
started, up to ``consume_thread_max``.

One guard protects everything that workers share. Reading a range and delivering happen outside it: a worker
has its range to itself, and one worker at a time reads ranges. Threads are daemons: a call that never returns
must not keep its worker process from ending.

A task that has only suspended queues left continues them while the driver reports that other tasks of its
batch are at work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.orderly import OrderlyFinish
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, Memory, RangeInstructions, TaskTurns, Turn
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun, RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.range import (
    ArrivedRange,
    RangeCuts,
    arrived_ranges,
)
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source.schema import ReadPiece

SHORT_OF_MEMORY_BYTES: Final = 64 << 20
OUT_OF_MEMORY_BYTES: Final = 256 << 20
"""Memory of unfinished ranges at which it is short, or used up; a single range may take any amount."""

_LOOK_EVERY_S: Final = 0.5
_GOING_ON = (None, OrderlyFinish.SUSPENDED)


class OrderlyTask:
    """Consumes a task's ranges as they come; used once."""

    def __init__(
        self,
        ranges: Iterator[ArrivedRange],
        consumer: RangeConsumer,
        instructions: RangeInstructions,
        clock: Clock,
        *,
        give_away: Callable[[Consumed], bool] = lambda _: False,
    ) -> None:
        """Begin nothing yet.

        ``give_away`` takes, if it can, the result of a range that was given up, from the worker that
        consumed it: the task's own thread may be in a slow call by then.
        """
        self._ranges = ranges
        self._consumer = consumer
        self._instructions = instructions
        self._clock = clock
        self._give_away = give_away
        self._changed = threading.Condition()
        """The guard; notified when a waiting worker may have something to do."""
        self._turns: TaskTurns[MessageQueue] = TaskTurns(clock.monotonic_s())
        self._begun: dict[MessageQueue, _Range] = {}
        """Ranges that have begun and may go on."""
        self._ended: set[MessageQueue] = set()
        self._workers: list[_Worker] = []
        self._done: list[Consumed] = []
        """Results that are still to be yielded."""
        self._has_reported_idle = False
        self._failure: BaseException | None = None
        """Error of another worker; the task's own thread raises it."""
        self._is_closed = False

    def consumed(self) -> Iterator[Consumed]:
        """Yield the result of each range as soon as it has ended; suspended ones at the end.

        A result that a cut has taken is not yielded.

        Raises:
            RocketMQError: If a range cannot be read, or its queue had another one in this task.
        """
        self._instructions.cut_with(self._cut)
        worker = self._new_worker()
        try:
            while not self._has_ended():
                turn = self._next_turn(worker, gives_out=True)
                if turn is not None:
                    self._take(worker, turn)
                yield from self._taken_out()
            if self._failure is not None:
                raise self._failure
            yield from self._taken_out()
            for one in self._begun.values():
                yield self._stopped(one)
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()

    def _cut(self) -> RangeCuts:
        """Cut all ranges; called by another thread."""
        ended = self._taken_out()
        with self._changed:
            runs = [one.run for one in self._begun.values() if one.run is not None]
        # A run's guard may be taken for as long as rows are packed.
        cuts = [run.cut() for run in runs]
        return RangeCuts(ended, [each for each in cuts if each is not None])

    # --- workers --------------------------------------------------------------------------------------------

    def _help(self, worker: _Worker) -> None:
        """Do everything that is due until the task is over."""
        try:
            while (turn := self._next_turn(worker)) is not None:
                self._take(worker, turn)
        except BaseException as error:  # noqa: BLE001 - the task's own thread raises it
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _new_worker(self) -> _Worker:
        worker = _Worker(self._clock.monotonic_s())
        self._workers.append(worker)
        return worker

    def _engage_another(self) -> None:
        """Start a worker if something waits and no worker rests; called with the guard held."""
        if not self._turns.is_somebody_waiting or any(each.is_resting for each in self._workers):
            return
        if len(self._workers) < self._consumer.most_calls:
            name = f"rocketmq-listener-{len(self._workers)}"
            worker = self._new_worker()
            # It has no work until it has asked for a turn.
            worker.is_resting = True
            threading.Thread(target=self._help, args=[worker], name=name, daemon=True).start()

    def _next_turn(self, worker: _Worker, *, gives_out: bool = False) -> Turn[MessageQueue] | None:
        """Wait for something to do; return None when the task is over, or there is a result to yield."""
        with self._changed:
            while not self._is_over and not (gives_out and self._done):
                now_s = self._clock.monotonic_s()
                memory = self._memory()
                if self._end_suspended(all_of_them=memory is Memory.GONE and self._turns.is_range_left):
                    continue
                found = self._turns.next(
                    now_s,
                    calls_s=self._in_hand_s(worker, now_s),
                    is_batch_at_work=self._instructions.is_batch_at_work(),
                    memory=memory,
                )
                if isinstance(found, Turn):
                    worker.begin(None, now_s)
                    self._engage_another()
                    return found
                worker.is_resting = True
                # Nothing notifies that a queue is given up.
                self._changed.wait(min(found.until_s - now_s, _LOOK_EVERY_S))
                worker.begin(None, self._clock.monotonic_s())
            return None

    def _end_suspended(self, *, all_of_them: bool) -> bool:
        """End suspended queues that are given up, for their next owner; return whether there were any.

        ``all_of_them`` ends all suspended queues, to make room for ranges that are not read yet.
        """
        found = [
            (queue, one)
            for queue, one in self._begun.items()
            if self._turns.is_suspended(queue) and (all_of_them or self._instructions.is_given_up(queue))
        ]
        for queue, one in found:
            self._turns.withdrawn(queue)
            self._give_out(queue, self._stopped(one))
        return bool(found)

    def _give_out(self, queue: MessageQueue, consumed: Consumed) -> None:
        """Have the task's own thread yield a result after its current call; called with the guard held."""
        self._end(queue)
        self._done.append(consumed)
        if consumed.ack.counts:
            self._instructions.settled()
        self._workers[0].stop()
        self._changed.notify_all()

    def _end(self, queue: MessageQueue) -> None:
        del self._begun[queue]
        self._ended.add(queue)

    def _memory(self) -> Memory:
        held_bytes = sum(one.arrived.nbytes for one in self._begun.values())
        if held_bytes < SHORT_OF_MEMORY_BYTES:
            return Memory.PLENTY
        return Memory.SHORT if held_bytes < OUT_OF_MEMORY_BYTES else Memory.GONE

    def _in_hand_s(self, asking: _Worker, now_s: float) -> list[float]:
        return [each.lasts_s(now_s) for each in self._workers if each is not asking and not each.is_resting]

    def _has_ended(self) -> bool:
        with self._changed:
            return self._is_over

    @property
    def _is_over(self) -> bool:
        is_at_its_end = self._turns.is_idle and not (self._turns.is_somebody_waiting and self._goes_on)
        return is_at_its_end or self._is_closed or self._failure is not None

    @property
    def _goes_on(self) -> bool:
        """Whether suspended queues have something to wait for."""
        return self._turns.is_led or self._instructions.is_batch_at_work()

    def _check_lead(self) -> None:
        """Report that only suspended queues are left; stop them if that ends the task."""
        if self._turns.is_led:
            return
        if not self._has_reported_idle and self._begun:
            self._has_reported_idle = True
            self._instructions.idles(self._batch_changed)
        if not self._instructions.is_batch_at_work():
            for each in self._workers:
                each.stop()

    def _batch_changed(self) -> None:
        """Check again whether the task goes on; called by the thread that listens to the driver."""
        with self._changed:
            self._check_lead()
            self._changed.notify_all()

    def _taken_out(self) -> list[Consumed]:
        with self._changed:
            done, self._done = self._done, []
            return done

    # --- a turn ---------------------------------------------------------------------------------------------

    def _take(self, worker: _Worker, turn: Turn[MessageQueue]) -> None:
        if turn.queue is not None:
            self._deliver(worker, self._begun[turn.queue], turn.lasts_s)
            return
        arrived = next(self._ranges, None)
        with self._changed:
            if arrived is None:
                self._turns.none_arrived()
                self._check_lead()
                self._changed.notify_all()
                return
            queue = arrived.planned.queue
            if queue in self._begun or queue in self._ended:
                raise _two_ranges(queue)
            one = self._begun[queue] = _Range(arrived)
            turn = self._turns.arrived(queue, self._clock.monotonic_s())
            self._engage_another()
            self._changed.notify_all()
        self._deliver(worker, one, turn.lasts_s)

    def _deliver(self, worker: _Worker, one: _Range, lasts_s: float) -> None:
        with self._consumer.borrow() as listener:
            run = one.run or self._consumer.run_of(one.arrived, listener, self._instructions, self._clock)
            one.run, run.listener = run, listener
            run.ends_turn = False
            worker.begin(run, self._clock.monotonic_s())
            if not self._goes_on or (self._done and worker is self._workers[0]):
                worker.stop()
            run.consume(lasts_s)
        self._report(worker, one, run)

    def _stopped(self, one: _Range) -> Consumed:
        """Stop a range, at its end or where it is now; return its result."""
        assert one.run is not None
        one.run.stop()
        return one.run.last(one.arrived.end)

    def _report(self, worker: _Worker, one: _Range, run: OrderlyRun) -> None:
        """Report the end of a turn; the worker is busy until then, since it may have results to write."""
        queue = one.arrived.planned.queue
        is_given_up = self._instructions.is_given_up(queue)
        goes_on = run.finished in _GOING_ON and not is_given_up
        consumed = None if goes_on else self._stopped(one)
        is_gone = consumed is not None and is_given_up and self._give_away(consumed)
        with self._changed:
            now_s = self._clock.monotonic_s()
            worker.begin(None, now_s)
            if consumed is not None:
                self._turns.ended(queue)
                if is_gone:
                    self._end(queue)
                else:
                    self._give_out(queue, consumed)
            elif run.finished is None:
                self._turns.yielded(queue, now_s)
            else:
                self._turns.suspended(queue, now_s + run.pause_s())
            self._check_lead()
            self._changed.notify_all()


@dataclass(slots=True)
class _Range:
    """One range in the task's hands."""

    arrived: ArrivedRange
    run: OrderlyRun | None = None
    """Its run, from the first turn on."""


class _Worker:
    """A thread with its current work and the time at which that began."""

    def __init__(self, now_s: float) -> None:
        self.is_resting = False
        self._run: OrderlyRun | None = None
        self._began_s = now_s

    def begin(self, run: OrderlyRun | None, now_s: float) -> None:
        """Note that the worker delivers a range from now on, or does something else (None)."""
        self.is_resting = False
        self._run, self._began_s = run, now_s

    def lasts_s(self, now_s: float) -> float:
        """Return how long the listener's current call, or other work, has lasted."""
        run, lasts_s = self._run, now_s - self._began_s
        # The run may still time the last call of an earlier turn.
        return lasts_s if run is None else min(lasts_s, run.call_lasts_s())

    def stop(self) -> None:
        """End the turn with the running delivery, if there is one."""
        if (run := self._run) is not None:
            run.ends_turn = True


def _two_ranges(queue: MessageQueue) -> RocketMQError:
    return RocketMQError(
        f"{queue}: two ranges of one batch came to one task; nothing of the batch is committed. Do not copy "
        "or union the rows of format('rocketmq') before they are consumed."
    )


class DirectEngine:
    """Consumes a task's ranges; pickled with the listener."""

    def __init__(self, consumer: RangeConsumer) -> None:
        self._consumer = consumer

    def __call__(
        self, pieces: Iterable[ReadPiece], instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> Iterator[Consumed]:
        """See :class:`~pyspark_rocketmq.consumer.engine.task.Engine`."""
        ranges = arrived_ranges(pieces)
        yield from OrderlyTask(
            ranges, self._consumer, instructions, SystemClock(), give_away=instructions.take
        ).consumed()
