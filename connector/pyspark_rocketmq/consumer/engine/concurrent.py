"""The concurrent engine: passes a task's messages to the listener, in many calls at the same time.

The ranges of a task share one pool of calls (:mod:`~pyspark_rocketmq.consumer.engine.call_pool`). A *run*
consumes one range, on the thread that calls its ``consume``. Listener calls and send-backs run on other
threads, and report to that thread by events. Then the run's thread *settles* the call: it records which
messages are done, and takes the rows. There is a shorter way for a call whose messages are all done: the
call's own thread, or the event loop, settles it and makes the next delivery. Waking the run's thread for this
would cost a listener whose calls take some milliseconds a tenth of its rate. All state of a run, also its
state machine (:mod:`~pyspark_rocketmq.consume.concurrent`), belongs to the thread that holds the run's lock,
its *guard*; nothing waits under the guard. Spark is not used.

Only rows of messages below the offset that the run has reached go to the sink. A run normally ends with every
message done or sent back, so these are all rows. If a message could not be sent back, the offset stays at
this message, and rows of later messages are dropped: those messages are delivered again with the next range,
and emit their rows again. So the sink gets a row only from the run that moves the offset past the row's
message, and this offset is the sink's watermark.

Failed messages of a call are sent back one after the other. If no broker answers for one of them, or the run
is to end, the others count as not sent back without being tried. So the run never waits for many time-outs.

Messages of a range are delivered as they arrive, and acknowledged up to the offset that was reached.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Final

from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.concurrent import (
    EXPIRED_DELAY_LEVEL,
    SEND_BACK_PAUSE_S,
    Answer,
    ConcurrentConsumption,
    ConcurrentDelivery,
    ConcurrentFinish,
    ConcurrentSettings,
)
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consume.suspension import suspended_for_s
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, QUEUE_PACE, RangeInstructions
from pyspark_rocketmq.consumer.engine.arrivals import Source
from pyspark_rocketmq.consumer.engine.call_pool import CallPool, PooledRange, RangesAtOnce
from pyspark_rocketmq.consumer.engine.delivery_times import MARK_EVERY_S
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.range import RangeCuts, RangeRun, acknowledged
from pyspark_rocketmq.errors import ListenerError, RocketMQError, TransportError
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener
from pyspark_rocketmq.listeners.calls import (
    CallEnded,
    ListenerCall,
    ListenerWorkers,
    SendBackEnded,
    workers_for,
)
from pyspark_rocketmq.listeners.context import (
    NO_HOOKS,
    ConsumeConcurrentlyContext,
    ConsumeHooks,
    MessageListenerConcurrently,
)
from pyspark_rocketmq.listeners.errors import report_failure, report_problem
from pyspark_rocketmq.listeners.event_loop import is_async
from pyspark_rocketmq.listeners.forms import FailedListener, ListenerForm
from pyspark_rocketmq.listeners.messages import ArrivedMessages
from pyspark_rocketmq.listeners.row_buffer import (
    IN_MEMORY_BYTES,
    Emitted,
    SpilledRows,
    in_queue_order,
    memory_of,
    spill,
)
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import MessageExt, MessageModel, MessageQueue, QueueRange
from pyspark_rocketmq.source.schema import Arrival

logger = logging.getLogger(__name__)

_EVENTS_AT_ONCE: Final = 64
"""Maximum number of events handled before the next check for calls that take too long."""

_LOOK_EVERY_S: Final = 0.5
"""Pause, in seconds, between two checks of a waiting run whether its queue is given up. A run waits for a
slot, or for the rest of a closed range."""

_SENDS_ON_S: Final = 2.0
"""How long a run that is given up still sends failed messages back, in seconds. Brokers that answer take
thousands in this time."""

SendBackCall = Callable[[MessageExt, int], None]
"""Sends a message back with a delay level, as :meth:`SendBack.send`; raises RocketMQError if no broker has
stored it."""


class _NotSent(Exception):
    """A message was not sent back, because its run is to end."""


class _Silence:
    """Notes that no broker has answered for a message of a run; used by any thread."""

    error: TransportError | None = None
    until_s: float = 0.0
    """Monotonic second until which no further message is tried."""


class _SendBackJob:
    """Sends failed messages of one call back, each when it is called with the message's index.

    If no broker has answered for a message of the run, further messages are not sent for some seconds; nor
    are they if the run is to end.
    """

    def __init__(
        self,
        messages: Mapping[int, MessageExt],
        delay_level: int,
        send: SendBackCall,
        is_to_end: Callable[[], bool],
        silence: _Silence,
        *,
        clock: Clock,
    ) -> None:
        self._messages = messages
        self._delay_level = delay_level
        self._send = send
        self._is_to_end = is_to_end
        self._clock = clock
        self._silence = silence
        self._goes_on_s: float | None = None
        """Monotonic time of the newest message to send while the run was not to end, or of the first one."""

    def __call__(self, index: int) -> None:
        """Send the message at ``index`` back.

        Raises:
            RocketMQError: If no broker has stored it.
            _NotSent: If it was not sent, because the run is to end.
        """
        now_s = self._clock.monotonic_s()
        if self._goes_on_s is None or not self._is_to_end():
            self._goes_on_s = now_s
        elif now_s - self._goes_on_s >= _SENDS_ON_S:
            raise _NotSent
        silence = self._silence
        if silence.error is not None and now_s < silence.until_s:
            raise RocketMQError(
                f"No broker answered for an earlier message of the queue: {silence.error}"
            ) from silence.error
        try:
            self._send(self._messages[index], self._delay_level)
        except TransportError as error:
            # The cause is the error of the first way. A broker that refused may take the next message.
            if error.__cause__ is None or isinstance(error.__cause__, TransportError):
                silence.error, silence.until_s = error, self._clock.monotonic_s() + SEND_BACK_PAUSE_S
            raise


class ConcurrentRun(RangeRun):
    """The consumption of one planned range by a concurrent listener, in many calls at the same time."""

    def __init__(
        self,
        planned: QueueRange,
        messages: Sequence[MessageExt],
        *,
        listener: MessageListenerConcurrently,
        output: OutputColumns,
        settings: ConcurrentSettings,
        workers: ListenerWorkers,
        pool: CallPool,
        send_back: SendBackCall,
        clock: Clock,
        hooks: ConsumeHooks = NO_HOOKS,
        instructions: RangeInstructions = NO_INSTRUCTIONS,
        arrivals: deque[Arrival] | None = None,
    ) -> None:
        """Prepare the run; in broadcasting ``send_back`` is never called.

        ``messages`` are the whole range if ``arrivals`` is None. Otherwise ``arrivals`` has further pieces,
        and any thread may add more to it.
        """
        super().__init__(
            planned, messages, output, instructions, began_s=clock.monotonic_s(), arrivals=arrivals
        )
        self._listener = listener
        self._is_broadcast = settings.message_model is MessageModel.BROADCASTING
        self._timeout_s = settings.consume_timeout_s
        self._workers = workers
        self._pool = pool
        self._send = send_back
        self._silence = _Silence()
        self._clock = clock
        self._hooks = hooks
        self._run_call = self._run_async if is_async(listener) else self._run
        self._is_in_arrow = isinstance(listener, ArrowListener)
        self._take: Callable[[int, int, Sequence[int]], Sequence[MessageExt]] = (
            self._messages.in_arrow if self._is_in_arrow else self._messages.in_objects
        )
        self._begins_s = -inf
        """Monotonic time before which nothing is delivered: an open range may begin with a suspension."""
        until_s = planned.state.suspended_until_s
        if planned.has_open_end and until_s is not None:
            self._begins_s = self._started_s + suspended_for_s(until_s, clock.now_s())
        self._wakes_s = inf
        """When ``consume`` checks the machine again, if no event comes before."""
        self._mark_s = -inf
        """Monotonic time from which on the moment of a delivery is noted again."""
        self._has_ended = False
        """Whether :meth:`consume` has ended; no call uses the machine after that."""
        self._defect: BaseException | None = None
        """Error on another thread, for ``consume`` to raise."""
        self._out: dict[int, tuple[Sequence[int], ListenerCall]] = {}
        """Running calls, by number of the delivery: its messages' indexes, and the call.

        Code that removes a call gives its slot back.
        """
        self._posted: set[int] = set()
        """Numbers of ended calls that the run's thread must settle; an event reports each, now or soon."""
        self._free = 0
        """Number of slots that ended calls have left, and that are not yet used again or given back."""
        self._was_last_out = False
        """Whether the pool has been informed that another range may begin."""
        self._needs_slot = False
        """Whether messages wait because the pool is full."""
        self._delivers = True
        """Whether the queue had no pause when messages were last to be delivered."""
        self._hanging = 0
        """Number of hanging calls, which still run although their messages were sent back or dropped, as last
        reported to the pool."""
        self._above: list[tuple[int, int, list[Emitted]]] = []
        """Heap of the rows above the offset reached, by call or message: its first index, bytes and rows."""
        self._above_bytes = 0
        if planned.has_open_end:
            # An open range lasts until the driver ends it.
            settings = replace(settings, max_time_consume_continuously_s=inf)
        self._machine = ConcurrentConsumption(
            count=len(self._messages),
            settings=settings,
            started_s=self._started_s,
            failures=self._earlier_retries(),
            is_whole=arrivals is None,
            least=1 if planned.has_open_end else settings.consume_message_batch_max_size,
        )

    def consume(self) -> list[Emitted]:
        """Deliver until each message is done or sent back, or the run has to end; return its rows.

        Rows that were taken during the run, by :meth:`cut`, are left out.

        Raises:
            ListenerError: If the listener raised something that is not an ``Exception``, such as SystemExit.
            SchemaError: If the listener emitted a row that breaks the output schema.
            RocketMQError: If there is no space for the rows.
        """
        self._pool.join(self)
        try:
            while not self._advance():
                self._take_in_events()
        finally:
            with self._guard:
                self._has_ended = True
                if self._free:
                    # Slots are left over only after an error.
                    self._pool.give(self, self._free)
            # Release the slots of calls that ended just now; calls that still run release their own.
            for number in list(self._posted):
                self._release(number)
            self._pool.leave(self)
        if self._machine.calls_lost:
            logger.error(
                "%d listener calls have not returned and keep their threads; their messages were sent back "
                "%s consumeTimeout_s=%g",
                self._machine.calls_lost,
                self._planned.queue,
                self._machine.settings.consume_timeout_s,
            )
        with self._guard:
            self._pass_rows_on()
            return self._rows.rows

    def extend(self, arrival: Arrival) -> None:
        """Add the next piece of the range, and wake the run; any thread may call this, it does not wait."""
        super().extend(arrival)
        self._workers.wake()

    def look_again(self) -> None:
        """Wake the run, to check whether there is a slot or it has to end; any thread may call this."""
        self._workers.wake()

    def ack(self) -> QueueAck:
        """Return the progress since the last :meth:`cut` or, without one, the range's start.

        Call this after :meth:`consume`.
        """
        return self._ack_until(self._suspended_until_s())

    @property
    def is_dry(self) -> bool:
        """Whether there is nothing to do until more messages arrive; any thread may read this."""
        return self._machine.is_dry and not self._arrivals

    @property
    def _done(self) -> int:
        return self._machine.done

    @property
    def _clocks(self) -> tuple[float, float]:
        return self._clock.monotonic_s(), self._clock.now_s()

    def _ack_so_far(self) -> QueueAck:
        # Add the rows of messages that the run has passed since the last answer of the listener.
        self._pass_rows_on()
        return self._ack_until(self._clock.now_s() if self._stands_still(self._done) else None)

    def _ack_until(self, suspended_until_s: float | None) -> QueueAck:
        machine = self._machine
        return self._ack_of(
            machine.done,
            machine.failures,
            finished=machine.finished,
            suspended_until_s=suspended_until_s,
            sent_back=self._sent_back,
        )

    def _suspended_until_s(self) -> float | None:
        if self._machine.finished is ConcurrentFinish.SUSPENDED:
            return self._clock.now_s() + SEND_BACK_PAUSE_S
        # Without a suspension, the planner would plan longer ranges of the blocked queue, or none until more
        # messages arrive.
        return self._clock.now_s() if self._stands_still(self._machine.done) else None

    # --- deliveries -----------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Do everything that is due; return whether the run is over."""
        with self._guard:
            if self._defect is not None:
                raise self._defect
            if self._arrivals:
                self._take_in_arrivals(self._clock.monotonic_s())
                if self.is_moved:
                    self._machine.give_up()
            elif not self._machine.is_whole:
                self._forget()
            if self._machine.finished is None:
                self._deliver_all()
                self._send_expired()
            self._wakes_s = self._next_wake_s()
            return self._machine.finished is not None

    def _next_wake_s(self) -> float:
        wakes_s = self._machine.wake_s(delivers=self._delivers)
        if self._begins_s > self._clock.monotonic_s():
            wakes_s = min(wakes_s, self._begins_s)
        # Nothing notifies that the queue of a closed range is given up.
        looks = self._needs_slot or not (self._machine.is_whole or self._planned.has_open_end)
        return min(wakes_s, self._clock.monotonic_s() + _LOOK_EVERY_S) if looks else wakes_s

    def _deliver_all(self) -> None:
        """Deliver messages as long as there are slots, and give back slots that are not needed."""
        pool = self._pool
        if pool.waiting and self._free and not pool.may_keep(self):
            pool.give(self)
            self._free -= 1
        self._delivers = not self._is_paused
        needs_slot = self._needs_slot = self._delivers and self._deliver_some()
        if self._free:
            pool.give(self, self._free)
            self._free = 0
        if pool.waiting:
            if not needs_slot:
                pool.rest(self)
            pool.wake()

    @property
    def _is_paused(self) -> bool:
        """Whether deliveries of the queue must wait: for the driver, or because of a suspension at the start.

        A run that is to end ignores a pause.
        """
        instructions, planned = self._instructions, self._planned
        if not planned.has_open_end:
            return False
        must_wait = instructions.is_paused() or instructions.must_wait(planned.queue)
        if not (must_wait or self._begins_s > self._clock.monotonic_s()):
            return False
        return not (self._pool.is_stopped or instructions.is_given_up(planned.queue))

    def _deliver_some(self) -> bool:
        """Deliver while there are slots; return whether messages wait for a slot."""
        machine, pool = self._machine, self._pool
        is_given_up, queue = self._instructions.is_given_up, self._planned.queue
        while not (is_given_up(queue) or pool.is_stopped):
            if self._free:
                self._free -= 1
            elif machine.is_all_out:
                break
            elif not self._takes_slot():
                return True
            at_s = self._clock.monotonic_s()
            delivery = machine.next_delivery(at_s)
            if delivery is None:
                self._free += 1
                break
            self._deliver(delivery, at_s)
            if not self._free and machine.is_all_out:
                break
        else:
            machine.give_up()
            return False
        if machine.is_last_out and not self._was_last_out:
            pool.last_out()
        self._was_last_out = machine.is_last_out
        return False

    def _takes_slot(self) -> bool:
        """Take a slot if one is free; return whether one was.

        If calls that take too long hold all slots, the run does not wait for a slot any more.
        """
        if self._pool.take(self):
            return True
        if self._pool.are_lost:
            self._machine.lose_threads()
        return False

    def lets_next_begin(self) -> bool:
        """Return whether this range lets another one begin beside it; called by any thread.

        It does if the messages that have arrived do not suffice for another delivery, or a call is slow.
        """
        if self._machine.is_last_out and not self._arrivals:
            return True
        return any(for_s >= QUEUE_PACE.slow_s for for_s in self._calls_s_so_far())

    def awaited_call_s(self) -> float | None:
        """Return the duration so far, in seconds, of the oldest call for which the run's end must wait.

        Return None if there is no such call: the run does not wait for a call that has lasted longer than
        ``consume_timeout``. Any thread may call this.
        """
        return max((for_s for for_s in self._calls_s_so_far() if for_s < self._timeout_s), default=None)

    def _calls_s_so_far(self) -> list[float]:
        now_s = self._clock.monotonic_s()
        calls = list(self._out.values())
        return [now_s - began_s for _, call in calls if (began_s := call.began_s) is not None]

    def _release(self, number: int) -> None:
        """Give back the slot of a call that ended after the run; a second time this does nothing."""
        if self._out.pop(number, None) is None:
            return
        if self._hanging:
            self._hanging -= 1
            self._pool.hang(self, self._hanging)
        self._pool.give(self)
        self._pool.wake()

    def _deliver(self, delivery: ConcurrentDelivery, at_s: float) -> None:
        number, indexes = delivery
        messages: Sequence[MessageExt]
        if isinstance(indexes, range):
            if at_s >= self._mark_s:
                self._times.began(indexes.start, at_s)
                self._mark_s = at_s + MARK_EVERY_S
            messages = self._take(indexes.start, indexes.stop, self._machine.failures_of(indexes))
        else:
            messages = [self._message(index) for index in indexes]
        context = ConsumeConcurrentlyContext(messages, self._output, self._file)
        call = ListenerCall(messages, context, timeout_s=self._timeout_s)
        self._out[number] = (indexes, call)
        self._workers.call(number, partial(self._run_call, number, call))

    def _run(self, number: int, call: ListenerCall) -> bool:
        call.run(self._listener, self._hooks, self._clock)
        return self._settle_at_once(number, call)

    async def _run_async(self, number: int, call: ListenerCall) -> bool:
        await call.run_async(self._listener, self._hooks, self._clock)
        return self._settle_at_once(number, call)

    def _settle_at_once(self, number: int, call: ListenerCall) -> bool:
        """Settle a call on its own thread, and deliver the next messages; return False if that is impossible.

        It is impossible if not all messages of the call are done, if the run has ended, or if another thread
        holds the guard. In these cases an event reports the call's end to the run's thread.
        """
        is_settled = call.is_all_done and self._guard.acquire(blocking=False)
        if not is_settled or self._has_ended:
            if is_settled:
                self._guard.release()
            self._posted.add(number)
            # Add to _posted, then read _has_ended: the thread that ends the run writes _has_ended, then reads
            # _posted. So at least one of the two releases the slot.
            if self._has_ended:
                self._release(number)
            return False
        try:
            self._settle(number, None)
            self._deliver_all()
            machine = self._machine
            wakes_s = self._next_wake_s() if self._needs_slot else machine.wake_s(delivers=self._delivers)
            is_awaited = wakes_s < self._wakes_s or machine.finished is not None
        except BaseException as error:  # noqa: BLE001 - not the listener's: ``consume`` raises it
            self._defect, is_awaited = error, True
        finally:
            self._guard.release()
        if is_awaited:
            self._workers.wake()
        return True

    def _add_messages(self, arrival: Arrival) -> None:
        if self._is_in_arrow:
            super()._add_messages(arrival)
            return
        # Calls end in any order, and those that fail need their messages again.
        extra = arrival.described_by_messages
        made = list(ArrivedMessages(self._planned.queue, arrival.messages, extra))
        self._messages.extend([made], nbytes=arrival.nbytes)

    def _extend_machine(self, count: int, now_s: float, retried: dict[int, int], *, is_last: bool) -> None:
        self._machine.extend(count, now_s, failures=retried, is_last=is_last)

    def _message(self, index: int) -> MessageExt:
        message = self._messages[index]
        failures = self._machine.failures_of([index])
        return (
            message._replace(reconsume_times=message.reconsume_times + failures[0]) if failures else message
        )

    def _take_in_events(self) -> None:
        """Wait for an event and handle all that came with it: calls begun together often end together."""
        timeout_s = None if self._wakes_s == inf else max(0.0, self._wakes_s - self._clock.monotonic_s())
        for _ in range(_EVENTS_AT_ONCE):
            event = self._workers.next_event(timeout_s)
            if event is None:
                return
            with self._guard:
                match event:
                    case CallEnded(number, failure):
                        self._posted.discard(number)
                        self._settle(number, failure)
                    case SendBackEnded(index, failure):
                        self._take_in_send_back(index, failure)
                # Start idle workers now instead of after draining the event queue.
                self._deliver_all()
            timeout_s = 0.0

    def _settle(self, number: int, fatal: BaseException | None) -> None:
        indexes, call = self._out.pop(number)
        self._free += 1
        messages, context = call.messages, call.context
        if fatal is not None:
            raise ListenerError(
                f"The listener raised {type(fatal).__name__}, which ends the Spark task. It was called with "
                f"{self._describe(messages)}. Messages of the task that are not committed are delivered "
                "again. To have messages tried again, raise an Exception or return RECONSUME_LATER."
            ) from fatal
        answer = call.answer
        assert answer is not None
        if context.broken is not None:
            raise context.broken_at(self._describe(messages)) from context.broken
        self._count(call, answer)
        done, send_back, dropped = self._machine.answered(number, answer)
        if self._hanging:
            self._note_hanging()
        emitted = context.take_emitted()
        if emitted:
            self._keep_rows(emitted, done, indexes)
        if self._above:
            self._pass_rows_on()
        if send_back or dropped:
            self._take_in_failed(send_back, dropped, answer)
        if not self._is_reported:
            self._report_settled()

    def _take_in_failed(self, send_back: Sequence[int], dropped: Sequence[int], answer: Answer) -> None:
        self._failed += 1
        for index in dropped:
            position = self._describe([self._messages[index]])
            logger.warning("message failed in broadcasting and is dropped %s", position)
        if answer.waits:
            self._machine.put_off(send_back)
        elif send_back:
            self._begin_send_back(send_back, answer.delay_level)

    def _count(self, call: ListenerCall, answer: Answer) -> None:
        self._messages_ok += answer.acknowledged
        self._messages_failed += len(call.messages) - answer.acknowledged
        self._calls += 1
        self._calls_s += call.lasted_s
        if call.failure is not None:
            self._last_error = report_failure("listener failed", self._describe(call.messages), call.failure)
        if answer.problem is not None:
            self._last_error = report_problem(answer.problem, self._describe(call.messages))

    def _keep_rows(self, emitted: list[Emitted], done: Sequence[int], delivered: Sequence[int]) -> None:
        if isinstance(delivered, range) and len(done) == len(delivered):
            self._keep(done[0], emitted if len(done) == 1 else self._in_order(emitted, done))
            return
        # Messages of other calls may lie between those of this call, so keep the rows of each one separately.
        stay: set[int] = set()
        for index in done:
            rows = self._in_order(emitted, [index])
            stay.update(id(each) for each in rows if isinstance(each, SpilledRows))
            self._keep(index, rows)
        # If all rows are one message's, they stay where they are in the file: nothing may be written there.
        self._file.drop([each for each in emitted if id(each) not in stay])

    def _in_order(self, emitted: list[Emitted], done: Sequence[int]) -> list[Emitted]:
        offsets = list(map(self._offset_at, done))
        return in_queue_order(emitted, offsets, self._output.rows, self._file)

    def _pass_rows_on(self) -> None:
        """Move waiting rows to the rows for the sink if the run has passed their messages meanwhile."""
        while self._above and self._above[0][0] < self._machine.done:
            _, nbytes, rows = heappop(self._above)
            self._above_bytes -= nbytes
            self._rows.add(rows)

    def _keep(self, index: int, rows: list[Emitted]) -> None:
        """Keep the rows of consecutive messages from ``index`` on until the run has passed the messages."""
        if not self._above and index < self._machine.done:
            self._rows.add(rows)
            return
        nbytes = memory_of(rows)
        self._above_bytes += nbytes
        heappush(self._above, (index, nbytes, rows))
        if self._above_bytes > IN_MEMORY_BYTES:
            columns = self._output.rows
            self._above = [(index, 0, spill(rows, columns, self._file)) for index, _, rows in self._above]
            self._above_bytes = 0

    # --- sending messages back ------------------------------------------------------------------------------

    def _send_expired(self) -> None:
        expired = self._machine.expired(self._clock.monotonic_s())
        if not expired:
            return
        for number, (indexes, call) in self._out.items():
            if not set(expired).isdisjoint(indexes):
                logger.error(
                    "listener call takes too long %s consumeTimeout_s=%g",
                    self._describe(call.messages),
                    self._machine.settings.consume_timeout_s,
                )
                self._workers.abandon(number)
        if not self._is_broadcast:
            self._begin_send_back(expired, EXPIRED_DELAY_LEVEL)
            return
        for index in expired:
            position = self._describe([self._messages[index]])
            logger.warning("dropping an expired message, because broadcasting sends none back %s", position)
            self._machine.sent_back(index, self._clock.monotonic_s(), is_stored=True)
        self._note_hanging()

    def _begin_send_back(self, indexes: Sequence[int], delay_level: int) -> None:
        messages = {index: self._message(index) for index in indexes}
        self._workers.send_back(
            indexes,
            _SendBackJob(
                messages, delay_level, self._send, self._is_to_end, self._silence, clock=self._clock
            ),
        )

    def _is_to_end(self) -> bool:
        """Return whether the run is given up, or its task ends; callable from any thread."""
        return self._pool.is_stopped or self.is_moved or self._instructions.is_given_up(self._planned.queue)

    def _take_in_send_back(self, index: int, failure: BaseException | None) -> None:
        if failure is None:
            self._sent_back += 1
            self._refused.pop(self._messages.offset_at(index), None)
        elif isinstance(failure, RocketMQError):
            position = self._describe([self._messages[index]])
            what = "message could not be sent back, the offset stays at it"
            self._last_error = report_failure(what, position, failure)
            self._refused[self._messages.offset_at(index)] = f"{position}: {failure}"
        elif not isinstance(failure, _NotSent):
            raise failure
        self._machine.sent_back(index, self._clock.monotonic_s(), is_stored=failure is None)
        self._note_hanging()
        if not self._is_reported:
            self._report_settled()

    def _note_hanging(self) -> None:
        if self._hanging != self._machine.calls_hanging:
            self._hanging = self._machine.calls_hanging
            self._pool.hang(self, self._hanging)


class ConcurrentEngine:
    """Consumes a task's ranges with a concurrent listener; pickled to the executors with the listener."""

    def __init__(
        self,
        listener: ListenerForm,
        schema: StructType,
        settings: ConcurrentSettings,
        send_back: SendBackSettings,
        *,
        hooks: ConsumeHooks = NO_HOOKS,
    ) -> None:
        """Run ``listener`` over a task's ranges.

        Args:
            listener: The listener; calls of an ``async def`` share the process's event loop.
            schema: Columns of the rows that the listener emits.
            settings: The consumer's settings.
            send_back: Settings for sending failed messages back.
            hooks: Called before and after each call of the listener, in the same process.

        Raises:
            SchemaError: If a column of ``schema`` has a type that cannot be emitted.
        """
        self._listener = listener
        self._output = OutputColumns.of(schema)
        self._settings = settings
        self._sender = partial(SendBack(send_back).send, max_reconsume_times=settings.max_reconsume_times)
        self._hooks = hooks

    def __call__(
        self, source: Source, instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> Iterator[Consumed]:
        """Consume the ranges of ``source`` side by side; yield the result of each range when it has ended.

        ``instructions`` may end a range early, or take its result, which is then not yielded.
        """

        def give_away(consumed: Consumed) -> bool:
            return instructions.is_given_up(consumed.ack.queue) and instructions.take(consumed)

        runs: set[ConcurrentRun] = set()

        def cut() -> RangeCuts:
            cuts = [run.cut() for run in list(runs)]
            return RangeCuts(going_on=[each for each in cuts if each is not None])

        def calls() -> dict[MessageQueue, float]:
            return {run.queue: for_s for run in list(runs) if (for_s := run.awaited_call_s()) is not None}

        instructions.cut_with(cut)
        instructions.shows_calls(calls)
        with closing(CallPool(self._settings.consume_thread_max)) as pool:
            consume = partial(self._consume, pool=pool, instructions=instructions, runs=runs)
            yield from RangesAtOnce(source, consume, pool, give_away, instructions).consumed()

    def _consume(
        self,
        one: PooledRange,
        pool: CallPool,
        instructions: RangeInstructions,
        runs: set[ConcurrentRun],
    ) -> Consumed:
        with self._listener.borrow() as listener:
            if isinstance(listener, FailedListener):
                return Consumed([], _put_off(one, listener), self._output.rows)
            return self._run(one, listener, pool, instructions, runs)

    def _run(
        self,
        one: PooledRange,
        listener: MessageListenerConcurrently,
        pool: CallPool,
        instructions: RangeInstructions,
        runs: set[ConcurrentRun],
    ) -> Consumed:
        with closing(workers_for(listener, pool.threads)) as workers:
            one.run = run = ConcurrentRun(
                one.planned,
                (),
                listener=listener,
                output=self._output,
                settings=self._settings,
                workers=workers,
                pool=pool,
                send_back=self._sender,
                clock=SystemClock(),
                hooks=self._hooks,
                instructions=instructions,
                arrivals=one.arrivals,
            )
            runs.add(run)
            run.consume()
            consumed = run.last()
            runs.discard(run)
            return consumed


def _put_off(one: PooledRange, listener: FailedListener) -> QueueAck:
    """Return the ack that suspends a range whose listener could not be opened.

    The range's messages are not treated as failed: otherwise the whole backlog would be sent back or, in
    broadcasting, dropped.
    """
    planned = one.planned
    end = one.arrivals[-1].end
    ack = QueueAck(
        queue=planned.queue,
        start=planned.start,
        state=planned.state._replace(suspended_until_s=SystemClock().now_s() + SEND_BACK_PAUSE_S),
        read=one.arrived,
        consumed=0,
        failed=1,
        finished=str(ConcurrentFinish.SUSPENDED),
        last_error=report_failure("listener not opened", str(planned.queue), listener.error()),
    )
    return ack if end is None else acknowledged(end, ack)
