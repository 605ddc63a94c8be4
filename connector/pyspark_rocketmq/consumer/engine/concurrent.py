"""The concurrent engine: one range through the listener, many calls at once.

One range of one queue: drives the concurrent machine, calls the listener many times at once, keeps emitted
rows.

Listener calls and send-backs run elsewhere and report through events to the thread that calls ``consume``.  A
call whose messages are all done reports itself: its thread, or the event loop, goes on with the next delivery
at once, since to wake another one first would cost a listener of some milliseconds a tenth of its rate.  The
machine, and everything else of a run, belongs to who holds the run's guard; nothing waits under it.  No Spark
here.

Rows leave only below the offset the run has reached.  A run normally ends with every message done or sent
back, so that these are all rows.  Where a message could be sent back nowhere the offset stays at it, and rows
of messages above are given up: their messages are delivered again with the next range, and emit again.  So a
row reaches the sink from exactly the run that passes its message, and the sink's watermark per queue, which
is that offset, fits as it is.

The concurrent engine: each task takes the planned ranges it reads through the user's listener, many calls at
once.

Runs where a range is read, without shuffle and state, as the direct engine does.  A range is gathered and
checked before anything of it is delivered, because the whole of it is acknowledged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Final

from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBackSettings, _Sender
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.concurrent import (
    EXPIRED_DELAY_LEVEL,
    SEND_BACK_PAUSE_S,
    ConcurrentConsumption,
    ConcurrentSettings,
    Delivery,
    Finish,
)
from pyspark_rocketmq.consume.turns import NO_ORDERS, RangeOrders
from pyspark_rocketmq.consumer.engine.output import Consumed, QueueAck
from pyspark_rocketmq.consumer.engine.range import ArrivedRange, RangeRun, arrived_ranges
from pyspark_rocketmq.errors import ListenerError, RocketMQError
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener
from pyspark_rocketmq.listeners.calls import (
    CallEnded,
    Event,
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
from pyspark_rocketmq.listeners.errors import tell_failure, tell_problem
from pyspark_rocketmq.listeners.event_loop import is_async
from pyspark_rocketmq.listeners.forms import Call, FailedListener, ListenerForm
from pyspark_rocketmq.listeners.messages import ArrivedMessages
from pyspark_rocketmq.listeners.row_buffer import (
    IN_MEMORY_BYTES,
    Emitted,
    in_queue_order,
    size_of,
    spill,
)
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import MessageExt, MessageModel, QueueRange
from pyspark_rocketmq.source.schema import ReadPiece

logger = logging.getLogger(__name__)

_EVENTS_AT_ONCE: Final = 64
"""Then it is looked for calls that take too long, too."""

SendBackCall = Callable[[MessageExt, int], None]
"""Sends a message back with a delay level; raises RocketMQError when no broker has stored it."""


class ConcurrentRun(RangeRun):
    """The consumption of one planned range."""

    def __init__(
        self,
        planned: QueueRange,
        messages: Sequence[MessageExt],
        *,
        listener: MessageListenerConcurrently,
        output: OutputColumns,
        settings: ConcurrentSettings,
        workers: ListenerWorkers,
        send_back: SendBackCall,
        clock: Clock,
        hooks: ConsumeHooks = NO_HOOKS,
        orders: RangeOrders = NO_ORDERS,
    ) -> None:
        """Prepare the run; in broadcasting ``send_back`` is never called."""
        super().__init__(planned, messages, output, clock.monotonic_s())
        self._listener = listener
        self._is_broadcast = settings.message_model is MessageModel.BROADCASTING
        self._workers = workers
        self._send = send_back
        self._clock = clock
        self._hooks = hooks
        self._orders = orders
        self._run_call = self._run_async if is_async(listener) else self._run
        self._in_arrow = messages.in_arrow if isinstance(messages, ArrivedMessages) else None
        self._guard = threading.Lock()
        self._wakes_s = inf
        """When ``consume`` looks at the machine again, if no event comes before."""
        self._is_over = False
        """From then on nobody touches the machine."""
        self._defect: BaseException | None = None
        """What went wrong elsewhere, for ``consume`` to raise."""
        self._out: dict[int, tuple[Delivery, ListenerCall]] = {}
        self._above: list[tuple[int, int, list[Emitted]]] = []
        """A heap of the rows above the offset that the run has reached, each call's: its first index, the
        memory they take, and the rows."""
        self._above_bytes = 0
        self._machine = ConcurrentConsumption(
            count=len(messages),
            settings=settings,
            started_s=self._started_s,
            failures=self._offsets.put_back(),
        )

    def consume(self) -> list[Emitted]:
        """Deliver until the range is settled or the run has to end; the rows that may leave, in queue order.

        Raises:
            ListenerError: If the listener raised what is no ``Exception``, such as SystemExit.
            SchemaError: If it emitted a row that breaks the output schema.
        """
        try:
            while not self._advance():
                self._take_in_events()
        finally:
            with self._guard:
                self._is_over = True
        if self._machine.calls_lost:
            logger.error(
                "%d listener calls have not returned and keep their threads; their messages were sent back "
                "%s "
                "consumeTimeout_s=%g",
                self._machine.calls_lost,
                self._planned.queue,
                self._machine.settings.consume_timeout_s,
            )
        self._pass_rows_on()
        return self._rows.rows

    def ack(self) -> QueueAck:
        """What is to be committed; call after :meth:`consume`."""
        machine = self._machine
        return self._ack_of(
            machine.done,
            machine.all_failures,
            finished=machine.finished,
            suspended_until_s=self._suspended_until_s(),
            sent_back=self._sent_back,
        )

    def _suspended_until_s(self) -> float | None:
        if self._machine.finished is Finish.SUSPENDED:
            return self._clock.now_s() + SEND_BACK_PAUSE_S
        # A queue that stands still without a suspension would be given longer ranges, or none until more
        # comes.
        return self._clock.now_s() if self._stands_still(self._machine.done) else None

    # --- deliveries -----------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Do what is due; whether the run is over."""
        with self._guard:
            if self._defect is not None:
                raise self._defect
            if self._machine.finished is None:
                self._deliver_all()
                self._send_expired()
            self._wakes_s = self._machine.wake_s()
            return self._machine.finished is not None

    def _deliver_all(self) -> None:
        is_given_up, queue = self._orders.is_given_up, self._planned.queue
        while not is_given_up(queue):
            delivery = self._machine.next_delivery(self._clock.monotonic_s())
            if delivery is None:
                return
            self._deliver(delivery)
        self._machine.give_up()

    def _deliver(self, delivery: Delivery) -> None:
        messages = self._delivered(delivery.indexes)
        context = ConsumeConcurrentlyContext(messages, self._output, self._file)
        call = ListenerCall(messages, context, timeout_s=self._machine.settings.consume_timeout_s)
        self._out[delivery.number] = (delivery, call)
        self._workers.call(delivery.number, partial(self._run_call, delivery.number, call))

    def _run(self, number: int, call: ListenerCall) -> bool:
        call.run(self._listener, self._hooks, self._clock)
        return self._settle_at_once(number, call)

    async def _run_async(self, number: int, call: ListenerCall) -> bool:
        await call.run_async(self._listener, self._hooks, self._clock)
        return self._settle_at_once(number, call)

    def _settle_at_once(self, number: int, call: ListenerCall) -> bool:
        """Settle a call where it has ended, and deliver what comes next; whether that was possible."""
        if not call.is_all_done or not self._guard.acquire(blocking=False):
            return False
        try:
            if self._is_over:
                return False
            self._settle(number, None)
            self._deliver_all()
            is_awaited = self._machine.finished is not None or self._machine.wake_s() < self._wakes_s
        except BaseException as error:  # noqa: BLE001 - not the listener's: ``consume`` raises it
            self._defect, is_awaited = error, True
        finally:
            self._guard.release()
        if is_awaited:
            self._workers.wake()
        return True

    def _delivered(self, indexes: Sequence[int]) -> Sequence[MessageExt]:
        first, last = indexes[0], indexes[-1]
        if self._in_arrow is not None and last - first == len(indexes) - 1:
            return self._in_arrow(first, last + 1, [self._machine.failures(index) for index in indexes])
        return [self._message(index) for index in indexes]

    def _message(self, index: int) -> MessageExt:
        message = self._messages[index]
        failures = self._machine.failures(index)
        if not failures:
            return message
        return message._replace(reconsume_times=message.reconsume_times + failures)

    def _take_in_events(self) -> None:
        """Wait for one, and take in what has come with it: calls that begin together often end together."""
        is_timed = self._wakes_s < inf
        event = self._workers.next_event(
            max(0.0, self._wakes_s - self._clock.monotonic_s()) if is_timed else None
        )
        for _ in range(_EVENTS_AT_ONCE):
            if event is None:
                return
            with self._guard:
                self._take_in(event)
                # Who is free now is not to wait until all others are looked at.
                self._deliver_all()
            event = self._workers.next_event(0.0)
        if event is not None:
            with self._guard:
                self._take_in(event)

    def _take_in(self, event: Event) -> None:
        match event:
            case CallEnded(number, failure):
                self._settle(number, failure)
            case SendBackEnded(index, failure):
                self._take_in_send_back(index, failure)

    def _settle(self, number: int, fatal: BaseException | None) -> None:
        delivery, call = self._out.pop(number)
        self._answered_s = self._clock.monotonic_s()
        if fatal is not None:
            raise ListenerError(
                f"The listener raised {type(fatal).__name__}, which ends its task "
                f"{self._describe(call.messages)}; "
                "the task's messages are delivered again."
            ) from fatal
        answer = call.answer
        assert answer is not None
        if call.context.broken is not None:
            raise call.context.broken_at(self._describe(call.messages)) from call.context.broken
        if call.failure is not None:
            self._last_error = tell_failure("listener failed", self._describe(call.messages), call.failure)
        self._messages_ok += answer.acknowledged
        self._messages_failed += len(call.messages) - answer.acknowledged
        self._calls += 1
        self._calls_s += call.lasted_s
        settled = self._machine.answered(number, answer)
        if settled.problem is not None:
            self._last_error = tell_problem(settled.problem, self._describe(call.messages))
        self._keep_rows(call.context.take_emitted(), settled.done, delivery.indexes)
        if settled.send_back or settled.dropped:
            self._failed += 1
        for index in settled.dropped:
            logger.warning(
                "message failed in broadcasting and is dropped %s", self._describe([self._messages[index]])
            )
        if settled.send_back:
            self._begin_send_back(settled.send_back, answer.delay_level)

    def _keep_rows(self, emitted: list[Emitted], done: Sequence[int], delivered: Sequence[int]) -> None:
        if not emitted and not self._above:
            return
        if len(delivered) == len(done) == 1 and not self._above and done[0] < self._machine.done:
            # As mostly.
            self._rows.add(emitted)
            return
        if emitted and isinstance(delivered, range) and len(done) == len(delivered):
            self._keep(done[0], emitted if len(done) == 1 else self._in_order(emitted, done))
        elif emitted:
            # Other calls' messages may be between them.
            for index in done:
                self._keep(index, self._in_order(emitted, [index]))
            self._file.drop(emitted)
        self._pass_rows_on()

    def _in_order(self, emitted: list[Emitted], done: Sequence[int]) -> list[Emitted]:
        offsets = list(map(self._offsets.offset_at, done))
        return in_queue_order(emitted, offsets, self._output.rows, self._file)

    def _pass_rows_on(self) -> None:
        """Take over the rows of messages that the run has passed meanwhile."""
        while self._above and self._above[0][0] < self._machine.done:
            _, nbytes, rows = heappop(self._above)
            self._above_bytes -= nbytes
            self._rows.add(rows)

    def _keep(self, index: int, rows: list[Emitted]) -> None:
        """Keep the rows of messages from ``index`` on, which follow each other."""
        if not self._above and index < self._machine.done:
            self._rows.add(rows)
            return
        nbytes = size_of(rows)
        self._above_bytes += nbytes
        heappush(self._above, (index, nbytes, rows))
        if self._above_bytes > IN_MEMORY_BYTES:
            columns = self._output.rows
            self._above = [(index, 0, spill(rows, columns, self._file)) for index, _, rows in self._above]
            self._above_bytes = 0

    # --- messages that go back ------------------------------------------------------------------------------

    def _send_expired(self) -> None:
        expired = self._machine.expired(self._clock.monotonic_s())
        if not expired:
            return
        for number, (delivery, call) in self._out.items():
            if not set(expired).isdisjoint(delivery.indexes):
                logger.error("listener call takes too long %s", self._describe(call.messages))
                self._workers.abandon(number)
        if not self._is_broadcast:
            self._begin_send_back(expired, EXPIRED_DELAY_LEVEL)
            return
        for index in expired:
            logger.warning(
                "message expired in broadcasting and is dropped %s", self._describe([self._messages[index]])
            )
            self._machine.sent_back(index, self._clock.monotonic_s(), is_stored=True)

    def _begin_send_back(self, indexes: Sequence[int], delay_level: int) -> None:
        messages = {index: self._message(index) for index in indexes}
        self._workers.send_back(indexes, lambda index: self._send(messages[index], delay_level))

    def _take_in_send_back(self, index: int, failure: BaseException | None) -> None:
        if failure is None:
            self._sent_back += 1
        elif isinstance(failure, RocketMQError):
            self._last_error = tell_failure(
                "message could not be sent back, the offset stays at it",
                self._describe([self._messages[index]]),
                failure,
            )
        else:
            raise failure
        self._machine.sent_back(index, self._clock.monotonic_s(), is_stored=failure is None)


def put_off(planned: QueueRange, read: int, clock: Clock, last_error: str) -> QueueAck:
    """What is to be committed of a range whose listener could not be opened: of ``read`` messages none is passed or sent back."""
    return QueueAck.of(
        planned,
        next_offset=planned.start,
        reconsume_times=planned.reconsume_times,
        put_back=planned.put_back,
        suspended_until_s=clock.now_s() + SEND_BACK_PAUSE_S,
        read=read,
        consumed=0,
        failed=1,
        finished=str(Finish.SUSPENDED),
        last_error=last_error,
        listener_s=0.0,
    )


class ConcurrentEngine:
    """Takes a task's ranges; pickled to the executors with the listener."""

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
            listener: The calls of an ``async def`` share the process's event loop.
            schema: Columns of the rows it emits.
            settings: The consumer's.
            send_back: How failed messages are sent back.
            hooks: Called before and after each call of the listener, where it is called.

        Raises:
            SchemaError: If a column of ``schema`` has a type that cannot be emitted.
        """
        self._listener = listener
        self._output = OutputColumns.of(schema)
        self._settings = settings
        self._sender = _Sender(send_back, settings.max_reconsume_times)
        self._hooks = hooks

    def __call__(self, pieces: Iterable[ReadPiece], orders: RangeOrders = NO_ORDERS) -> Iterator[Consumed]:
        """See :class:`~pyspark_rocketmq.consumer.engine.task.Engine`; one range after the other."""
        for arrived in arrived_ranges(pieces):
            yield self._consume(arrived, orders)

    def _consume(self, arrived: ArrivedRange, orders: RangeOrders) -> Consumed:
        with self._listener.lease() as listener:
            rows, ack = self._through(listener, arrived, orders)
        return Consumed(rows, arrived.acknowledged(ack), self._output.rows)

    def _through(
        self, listener: Call, arrived: ArrivedRange, orders: RangeOrders
    ) -> tuple[list[Emitted], QueueAck]:
        if isinstance(listener, FailedListener):
            # To fail its calls would send a whole backlog back, and drop it in broadcasting.
            last_error = tell_failure("listener not opened", str(arrived.planned.queue), listener.error())
            return [], put_off(arrived.planned, len(arrived.messages), SystemClock(), last_error)
        # Workers of its own, so that a call the range before has given up cannot answer into this one.
        with closing(workers_for(listener, self._settings.consume_thread_max)) as workers:
            run = ConcurrentRun(
                arrived.planned,
                arrived.messages if isinstance(listener, ArrowListener) else list(arrived.messages),
                listener=listener,
                output=self._output,
                settings=self._settings,
                workers=workers,
                send_back=self._sender,
                clock=SystemClock(),
                hooks=self._hooks,
                orders=orders,
            )
            return run.consume(), run.ack()
