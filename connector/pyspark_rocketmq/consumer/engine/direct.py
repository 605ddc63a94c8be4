"""The direct engine: calls an orderly listener in the same task that reads the ranges.

No data moves between tasks, and Spark keeps none. The threads that call the listener are the *workers*: one
works while calls are quick, and several work when calls are slow. The task's own thread is one of them, and
only this one yields results. A *turn* is the time for which a worker delivers messages of one queue.
:mod:`pyspark_rocketmq.consume.turns` decides what a worker does next; this module has the workers. While
something waits, one more worker sleeps, ready to begin if calls turn out to be slow. When that worker begins,
another one is started, up to ``consume_thread_max`` of them.

One lock, the guard, protects everything that workers share. No worker holds it while it reads or calls the
listener. A range belongs to one worker at a time, unless it is consumed by key. Any thread may add pieces of
it (:mod:`~pyspark_rocketmq.consumer.engine.arrivals`). Threads are daemons: a call that never returns must
not keep its worker process from ending.

If a task has only suspended queues left, it waits for them and delivers them again, while the driver reports
that other tasks of its batch have work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Final, TypeAlias

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.orderly import OrderlyFinish
from pyspark_rocketmq.consume.suspension import suspended_for_s
from pyspark_rocketmq.consume.turns import (
    NO_INSTRUCTIONS,
    Memory,
    RangeInstructions,
    Rest,
    TaskTurns,
    Turn,
)
from pyspark_rocketmq.consumer.engine.arrivals import (
    PULL_THRESHOLD_FOR_QUEUE,
    Arrivals,
    ArrivingRange,
    Source,
    end_did_not_come,
    report_end,
    report_stand,
    two_ranges,
)
from pyspark_rocketmq.consumer.engine.keyed import KeyedRun
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun, RangeConsumer, RangeTurn
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source.schema import Arrival, RangeEnd

SHORT_OF_MEMORY_BYTES: Final = 64 << 20
OUT_OF_MEMORY_BYTES: Final = 256 << 20
"""Memory of arrived messages, in bytes, at which memory counts as used up (``Memory.GONE``).

At ``SHORT_OF_MEMORY_BYTES`` it counts as ``Memory.SHORT``. A single range may take any amount.
"""
_Range: TypeAlias = ArrivingRange[OrderlyRun]
_LOOK_EVERY_S: Final = 0.5
_GOING_ON = (None, OrderlyFinish.SUSPENDED)


class OrderlyTask:
    """Consumes the ranges of one task, as they arrive."""

    def __init__(
        self,
        source: Source,
        consumer: RangeConsumer,
        instructions: RangeInstructions,
        clock: Clock,
        *,
        give_away: Callable[[Consumed], bool] = lambda _: False,
        most_held: int = PULL_THRESHOLD_FOR_QUEUE,
    ) -> None:
        """Prepare the task; :meth:`consumed` starts it.

        Args:
            source: Reads the ranges, which are either all open or all closed.
            consumer: The listener and its settings.
            instructions: The driver's instructions to the task.
            clock: Measures durations, and provides the times in acks.
            give_away: Sends the result of a range that was given up; returns False if it cannot. It is called
                on any thread, as the task's own thread may be in a slow call, and must not wait.
            most_held: Number of waiting messages at which no more are read from an open range's queue.
        """
        self._arrivals = Arrivals(source)
        self._consumer = consumer
        self._instructions = instructions
        self._clock = clock
        self._give_away = give_away
        self._changed = threading.Condition()
        """The guard; notified when a waiting worker may have something to do."""
        self._most_held = most_held
        self._is_open = source.is_open
        self._turns: TaskTurns[MessageQueue] = TaskTurns(
            clock.monotonic_s(),
            reads=not source.is_open,
            pace=consumer.open_pace if source.is_open else consumer.pace,
        )
        self._begun: dict[MessageQueue, _Range] = {}
        """Ranges that have begun and may go on."""
        self._ended: dict[MessageQueue, _Range] = {}
        self._arrived_bytes = 0
        """Memory of everything that has arrived of ranges that have begun, in bytes."""
        self._workers: list[_Worker] = []
        self._done: list[Consumed] = []
        """Results that are still to be yielded."""
        self._late: list[Consumed] = []
        """Resets that arrived after the results of their ranges. They are yielded at the task's end: a cut
        could commit such a reset before the result of its range."""
        self._has_reported_idle = False
        self._failure: BaseException | None = None
        """Error of another worker; the task's own thread raises it."""
        self._is_closed = False

    def consumed(self) -> Iterator[Consumed]:
        """Yield the result of each range as soon as it has ended; results of suspended ranges at the end.

        A result that ``give_away`` has sent, or a commit during the batch (a *cut*) has taken, is left out.

        Raises:
            RocketMQError: If a range cannot be read or consumed, or its queue had another range in this task.
        """
        self._instructions.cut_with(self._cut)
        self._instructions.shows_calls(self._calls)
        # The first worker is the task's own thread.
        worker = self._new_worker()
        if self._is_open:
            self._instructions.notifies(self._instructions_changed)
            self._arrivals.begin(self._arrived, self._reading_is_over)
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
                yield self._stopped(self._run_of(one))
            yield from self._late
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._arrivals.end()

    def _cut(self) -> RangeCuts:
        """Take all results since the last cut that may be committed; called by another thread."""
        ended = self._taken_out()
        with self._changed:
            runs = [one.run for one in self._begun.values() if one.run is not None]
        # Not under the guard of the task: a run may hold its own guard for a while, as long as it packs rows.
        cuts = [run.cut() for run in runs]
        return RangeCuts(ended, [each for each in cuts if each is not None])

    def _calls(self) -> dict[MessageQueue, float]:
        """Return how long each queue's oldest running call has lasted, in seconds; for any thread."""
        lasting: dict[MessageQueue, float] = {}
        now_s = self._clock.monotonic_s()
        with self._changed:
            for each in self._workers:
                if each.queue is not None:
                    lasting[each.queue] = max(each.lasts_s(now_s), lasting.get(each.queue, 0.0))
        return lasting

    # --- arrivals -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the next pieces of closed ranges."""
        arrivals = self._arrivals.read()
        if arrivals is None:
            self._reading_is_over(None)
            return
        self._arrived(arrivals)
        with self._changed:
            self._turns.has_read(self._clock.monotonic_s())

    def _arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Take pieces of ranges (messages or ends), so that their queues may go on, or end."""
        moved: list[RangeEnd] = []
        with self._changed:
            now_s = self._clock.monotonic_s()
            for arrival in arrivals:
                if (one := self._range_of(arrival)) is not None:
                    one.add(arrival)
                    self._arrived_bytes += arrival.nbytes
                    self._hold_if_full(one)
                    if arrival.end is not None and one.is_moved:
                        moved.append(arrival.end)
            self._turns.arrived([each.queue for each in arrivals if each.queue in self._begun], now_s)
            if self._consumer.is_shared:
                self._offer_arrived(arrivals, now_s)
            self._engage_another()
        for end in moved:
            report_end(self._instructions, end)

    def _offer_arrived(self, arrivals: Sequence[Arrival], now_s: float) -> None:
        """Let one more worker deliver each queue of ``arrivals`` that has workers already or is suspended."""
        for arrival in arrivals:
            one = self._begun.get(arrival.queue)
            # The first worker of a range makes its run.
            if one is not None and one.run is not None:
                self._turns.offered(arrival.queue, now_s, leads=True)

    def _range_of(self, arrival: Arrival) -> _Range | None:
        """Return the range of a piece; None if the engine has ended that range before all of it has arrived.

        Raises:
            RocketMQError: If all of the range has arrived before, so that this is a second one of its queue.
        """
        queue = arrival.queue
        one = self._begun.get(queue) or self._ended.get(queue)
        if one is None:
            one = self._begun[queue] = _Range(arrival.planned)
            until_s = arrival.planned.state.suspended_until_s
            if until_s is not None:
                due_s = self._clock.monotonic_s() + suspended_for_s(until_s, self._clock.now_s())
                self._turns.begins_suspended(queue, due_s)
        elif one.is_whole:
            raise two_ranges(queue)
        elif queue in self._ended:
            one.end, one.is_whole = arrival.end, arrival.is_end
            self._note_late_reset(one)
            return None
        return one

    def _note_late_reset(self, one: _Range) -> None:
        if (late := one.late_reset) is not None:
            self._late.append(late)

    def _reading_is_over(self, error: BaseException | None) -> None:
        with self._changed:
            unfinished = [queue for queue, one in self._begun.items() if not one.is_whole]
            if error is None and unfinished and not self._is_closed:
                error = end_did_not_come(unfinished[0])
            self._failure = self._failure or error
            self._turns.all_arrived()
            self._check_lead()
            self._changed.notify_all()

    def _hold_if_full(self, one: _Range, *, has_had_all: bool = False) -> None:
        if self._is_open:
            self._arrivals.hold_if_full(one, self._most_held, has_had_all=has_had_all)

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
        """If something waits, wake a resting worker for it, or start one; called with the guard held.

        One worker is sufficient: when it begins, it calls this method for the next one.
        """
        if not self._turns.is_somebody_waiting:
            return
        if any(each.is_resting for each in self._workers):
            self._changed.notify()
        elif len(self._workers) < self._consumer.most_calls:
            name = f"rocketmq-listener-{len(self._workers)}"
            worker = self._new_worker()
            # It has no work until it has asked for a turn.
            worker.is_resting = True
            threading.Thread(target=self._help, args=[worker], name=name, daemon=True).start()

    def _next_turn(self, worker: _Worker, *, gives_out: bool = False) -> Turn[MessageQueue] | None:
        """Wait for something to do; return None when the task is over.

        With ``gives_out``, for the task's own thread, return None also when there is a result to yield.
        """
        with self._changed:
            while not self._is_over and not (gives_out and self._done):
                now_s = self._clock.monotonic_s()
                if self._end_waiting():
                    continue
                found = self._turn_or_rest(worker, now_s)
                if isinstance(found, Turn):
                    worker.begin(None, now_s)
                    self._engage_another()
                    return found
                worker.is_resting = True
                if self._turns.is_idle:
                    self._instructions.rests()
                # Nothing notifies that a queue is given up.
                self._changed.wait(min(found.until_s - now_s, _LOOK_EVERY_S))
                worker.begin(None, self._clock.monotonic_s())
            # This worker takes no turn now, so let the others check what there is to do.
            self._changed.notify_all()
            return None

    def _turn_or_rest(self, worker: _Worker, now_s: float) -> Turn[MessageQueue] | Rest:
        if self._is_paused or not self._turns.is_somebody_waiting:
            return Rest(inf)
        return self._turns.next(
            now_s,
            calls_s=self._in_hand_s(worker, now_s),
            is_batch_at_work=self._instructions.is_batch_at_work(),
            memory=self._memory(),
            must_wait=self._instructions.must_wait,
        )

    def _end_waiting(self) -> bool:
        """End ranges that must end and have no worker that would end them; return whether there were any.

        A range must end if its queue is given up, or if its group continues at another offset (after a
        reset, for example). Such a range has no worker if it is suspended, has no messages to deliver, or
        must wait, for example during a pause. After its end, the next owner or plan can have the queue. If no
        memory is left for further reading, all suspended ranges end, too.
        """
        turns, is_paused, is_given_up = self._turns, self._is_paused, self._instructions.is_given_up
        must_wait = self._instructions.must_wait
        # Open ranges need no room: each of their queues is held by itself.
        makes_room = not self._is_open and turns.is_arriving and self._memory() is Memory.GONE
        found = [
            (queue, one)
            for queue, one in self._begun.items()
            if (makes_room and turns.is_suspended(queue))
            or (
                (one.is_moved or is_given_up(queue))
                and (
                    turns.is_suspended(queue)
                    or turns.is_dry(queue)
                    or ((is_paused or must_wait(queue)) and turns.is_waiting(queue))
                )
            )
        ]
        for queue, one in found:
            turns.withdrawn(queue)
            self._give_out(queue, self._stopped(self._run_of(one)))
        return bool(found)

    def _give_out(self, queue: MessageQueue, consumed: Consumed) -> None:
        """End a range, and hand its result over if the range is given up; called with the guard held.

        Any other result is yielded by the task's own thread after its current call.
        """
        one = self._begun[queue]
        one.last = consumed._replace(rows=[])
        self._end(queue)
        # The end may have arrived since the run made its result.
        self._note_late_reset(one)
        if self._is_given_away(consumed):
            return
        self._done.append(consumed)
        if consumed.ack.counts:
            self._instructions.settled()
        self._workers[0].stop()
        self._changed.notify_all()

    def _is_given_away(self, consumed: Consumed) -> bool:
        """Hand over the result of a range that is given up; return whether that was possible."""
        return self._instructions.is_given_up(consumed.ack.queue) and self._give_away(consumed)

    def _end(self, queue: MessageQueue) -> None:
        one = self._ended[queue] = self._begun.pop(queue)
        if not one.is_whole:
            self._arrivals.leave(queue)
        self._arrived_bytes -= one.arrived_bytes
        one.run = None

    def _memory(self) -> Memory:
        if self._arrived_bytes < SHORT_OF_MEMORY_BYTES:
            return Memory.PLENTY
        held_bytes = sum(one.held_bytes for one in self._begun.values())
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
        is_at_its_end = self._turns.is_idle and not (self._turns.has_more and self._goes_on)
        return is_at_its_end or self._is_closed or self._failure is not None

    @property
    def _is_paused(self) -> bool:
        return self._is_open and self._instructions.is_paused()

    @property
    def _goes_on(self) -> bool:
        """Whether the task goes on, so that suspended queues can wait to be delivered again."""
        return self._turns.is_led or self._instructions.is_batch_at_work()

    def _check_lead(self) -> None:
        """Check whether only suspended queues are left; if so, report it, and end turns if the task ends."""
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

    def _instructions_changed(self) -> None:
        """Follow new instructions of the driver; called by any thread.

        Hand over the results of ranges that are given up, end the turns of queues that must wait (in a pause:
        all turns), and wake the workers.
        """
        with self._changed:
            # The task's own thread, which would yield these results, may be in a slow call.
            self._done = [each for each in self._done if not self._is_given_away(each)]
            is_paused, must_wait = self._is_paused, self._instructions.must_wait
            for each in self._workers:
                if is_paused or (each.queue is not None and must_wait(each.queue)):
                    each.stop()
            self._check_lead()
            self._changed.notify_all()

    def _taken_out(self) -> list[Consumed]:
        with self._changed:
            done, self._done = self._done, []
            return done

    # --- a turn ---------------------------------------------------------------------------------------------

    def _take(self, worker: _Worker, turn: Turn[MessageQueue]) -> None:
        if turn.queue is None:
            self._read()
            return
        one = self._begun[turn.queue]
        with self._consumer.borrow() as listener:
            run = self._run_of(one)
            delivering = run.turn() if self._consumer.is_shared else run
            delivering.listener, delivering.ends_turn = listener, False
            worker.begin(delivering, self._clock.monotonic_s(), turn.queue)
            if self._must_end_turn(worker, turn.queue):
                worker.stop()
            delivering.consume(turn.lasts_s)
        self._report(worker, one, run)

    def _must_end_turn(self, worker: _Worker, queue: MessageQueue) -> bool:
        """Return whether a turn must end before its first delivery."""
        if not self._goes_on or self._is_paused or self._instructions.must_wait(queue):
            return True
        # The task's own thread has results to yield.
        return bool(self._done) and worker is self._workers[0]

    def _run_of(self, one: _Range) -> OrderlyRun:
        if one.run is None:
            run = self._consumer.run_of(one.planned, one.arrivals, self._instructions, self._clock)
            if isinstance(run, KeyedRun):
                run.offer = partial(self._offer, one.planned.queue)
            one.run = run
        return one.run

    def _offer(self, queue: MessageQueue, due_s: float) -> None:
        """Have one more worker deliver ``queue`` from ``due_s`` on; called by a worker of that queue."""
        with self._changed:
            self._turns.offered(queue, due_s)
            self._engage_another()
            self._changed.notify_all()

    def _leaves(self, worker: _Worker, one: _Range, run: OrderlyRun) -> bool:
        """Take a worker off a range that has several; return False if it is the last worker there."""
        queue, due_s = one.planned.queue, run.due_s()
        with self._changed:
            if not self._turns.leaves(queue):
                return False
            worker.begin(None, self._clock.monotonic_s())
            if due_s < inf:
                self._turns.offered(queue, due_s)
            self._hold_if_full(one)
            self._changed.notify_all()
            return True

    def _stopped(self, run: OrderlyRun) -> Consumed:
        """Stop a range, at its end or where it is now; return its result."""
        run.stop()
        return run.last()

    def _report(self, worker: _Worker, one: _Range, run: OrderlyRun) -> None:
        """Report the end of a worker's turn, and with it the state or the result of the range.

        The worker counts as busy until this method has reported: it may have to pack a result first.
        """
        if self._consumer.is_shared and self._leaves(worker, one, run):
            return
        queue = one.planned.queue
        ends_now = run.is_moved or self._instructions.is_given_up(queue)
        consumed = None if run.finished in _GOING_ON and not ends_now else self._stopped(run)
        # A move was reported when it arrived.
        if consumed is not None and self._is_open and not one.is_moved:
            report_stand(self._instructions, consumed.ack, one.end)
        with self._changed:
            now_s = self._clock.monotonic_s()
            worker.begin(None, now_s)
            if consumed is not None:
                self._turns.ended(queue)
                self._give_out(queue, consumed)
            else:
                self._end_turn(one, run, now_s)
            self._check_lead()

    def _end_turn(self, one: _Range, run: OrderlyRun, now_s: float) -> None:
        queue = one.planned.queue
        self._hold_if_full(one, has_had_all=run.is_dry)
        if self._consumer.is_shared and one.arrivals:
            # They arrived after the run's last check, and need not wait for a suspended key.
            self._turns.yielded(queue, now_s)
        elif run.finished is not None:
            self._turns.suspended(queue, now_s + run.pause_left_s(), leads=run.leads)
        elif run.is_dry:
            self._turns.dry(queue)
        else:
            self._turns.yielded(queue, now_s)


class _Worker:
    """A thread with its current work and the time at which that began."""

    def __init__(self, now_s: float) -> None:
        self.is_resting = False
        self.queue: MessageQueue | None = None
        """The queue that the worker delivers; None if it does something else."""
        self._turn: RangeTurn | None = None
        self._began_s = now_s

    def begin(self, turn: RangeTurn | None, now_s: float, queue: MessageQueue | None = None) -> None:
        """Note that the worker now delivers ``queue`` in ``turn``; both None: it does something else."""
        self.is_resting = False
        self._turn, self._began_s, self.queue = turn, now_s, queue

    def lasts_s(self, now_s: float) -> float:
        """Return how many seconds the listener's current call, or the worker's other work, has lasted."""
        turn, lasts_s = self._turn, now_s - self._began_s
        # Take the shorter time: the run may still return that of the last call of an earlier turn.
        return lasts_s if turn is None else min(lasts_s, turn.call_lasts_s())

    def stop(self) -> None:
        """End the turn with the running delivery, if there is one."""
        if (turn := self._turn) is not None:
            turn.ends_turn = True


class DirectEngine:
    """Consumes a task's ranges with an orderly listener, where they are read; pickled with the listener."""

    def __init__(self, consumer: RangeConsumer) -> None:
        self._consumer = consumer

    def __call__(
        self, source: Source, instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> Iterator[Consumed]:
        """Consume the ranges of ``source`` as they arrive; yield the result of each range when it has ended.

        ``instructions`` may end a range early, or take its result, which is then not yielded.
        """
        task = OrderlyTask(source, self._consumer, instructions, SystemClock(), give_away=instructions.take)
        yield from task.consumed()
