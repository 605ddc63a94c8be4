"""The orderly engine: calls the listener for the messages of one range, and keeps the rows that it emits.

:mod:`pyspark_rocketmq.consume.orderly` decides what is delivered. The engine does not use Spark: it gets
messages and a clock, and returns rows and an ack.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from math import inf
from typing import NoReturn, Protocol

from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.orderly import (
    SUCCESSES,
    Effect,
    NoStatus,
    OrderlyConsumption,
    OrderlyFinish,
    OrderlySettings,
    Outcome,
    status_of,
)
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consume.suspension import LONGEST_SUSPEND_S, by_wall_clock
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, OPEN_PACE, QUEUE_PACE, RangeInstructions
from pyspark_rocketmq.consumer.engine.delivery_times import MARK_EVERY_S
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.range import RangeRun
from pyspark_rocketmq.errors import (
    DeadLetterRefused,
    OptionError,
    RocketMQError,
    SchemaRegistryDown,
    UndecodableMessage,
)
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener
from pyspark_rocketmq.listeners.context import (
    NO_HOOKS,
    ConsumeHooks,
    ConsumeOrderlyContext,
    MessageListenerOrderly,
)
from pyspark_rocketmq.listeners.errors import report_failure, report_problem
from pyspark_rocketmq.listeners.forms import Call, NotOpened, form_of
from pyspark_rocketmq.listeners.row_buffer import Emitted, RowBuffer, SpillFile
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import MessageExt, QueueRange
from pyspark_rocketmq.options.consumer import UNLIMITED
from pyspark_rocketmq.source.schema import Arrival, EndReason

logger = logging.getLogger(__name__)

DeadLetters = Callable[[MessageExt], None]
"""Sends a message to the group's dead letters; raises RocketMQError if no broker has stored it."""

# Tuples, because a set would compute an Enum member's hash at each delivery, which is a call in Python.
_COMMIT = Effect.COMMIT
GIVEN_BACK = (Effect.PUT_BACK, Effect.PUT_OFF, Effect.ROLL_BACK, Effect.SEND_BACK)
_COUNTED_OK = (Effect.COMMIT, Effect.ACCUMULATE)
_COUNTED_FAILED = (Effect.PUT_BACK, Effect.PUT_OFF, Effect.SEND_BACK)


def no_dead_letters(message: MessageExt) -> None:
    """Refuse a dead letter by raising a RocketMQError, so that the message waits for another attempt."""
    raise RocketMQError(
        f"{message.message_queue} queueOffset={message.queue_offset}: the message is to become a dead "
        "letter, but no SendBackSettings were given, so it is delivered again."
    )


def no_listener(*_: object) -> NoReturn:
    """Raise an error: the run's ``listener`` was not set before a delivery."""
    raise RuntimeError("The run has no listener. Borrow one and set the run's listener before it delivers.")


class RangeTurn(Protocol):
    """The deliveries of a range by one worker (thread), until it takes another range."""

    listener: MessageListenerOrderly
    """The listener to call; set before each turn."""
    ends_turn: bool
    """Whether this turn ends with the running delivery; set by another thread."""
    call_began_s: float
    """Monotonic time at which the newest call of the listener began."""
    answered_s: float
    """Monotonic time at which the newest call of the listener ended."""

    def consume(self, for_s: float = inf) -> object:
        """Deliver until nothing is left for this worker, ``for_s`` seconds are over, or ``ends_turn`` is set.

        A running call is not interrupted.
        """
        ...

    def call_lasts_s(self) -> float:
        """Return how many seconds ago the newest listener call began, even if the call has ended.

        Called by another thread.
        """
        ...


class OrderlyRun(RangeRun):
    """The consumption of one planned range in queue order, by one worker at a time.

    As there is only one worker at a time, the run also serves as its :class:`RangeTurn`. Messages that are
    not committed at the run's end are delivered again, whatever the listener has answered: their rows are
    dropped, and the next range begins with them.
    """

    def __init__(
        self,
        planned: QueueRange,
        messages: Sequence[MessageExt],
        *,
        listener: MessageListenerOrderly,
        output: OutputColumns,
        settings: OrderlySettings,
        ended: EndReason = EndReason.WHOLE,
        now_s: Callable[[], float],
        wall_s: Callable[[], float] | None = None,
        dead_letters: DeadLetters = no_dead_letters,
        hooks: ConsumeHooks = NO_HOOKS,
        instructions: RangeInstructions = NO_INSTRUCTIONS,
        arrivals: deque[Arrival] | None = None,
    ) -> None:
        """Prepare the run; :meth:`consume` begins.

        ``now_s``, a monotonic clock, measures durations. ``wall_s``, by default the same clock, provides the
        time in the ack until which the queue is suspended. ``messages`` are the whole range if ``arrivals``
        is None. Otherwise ``arrivals`` has further pieces, and any thread may add more to it. In a closed
        range (with a planned end) a listener call waits until it has as many messages as if the whole range
        had arrived; in an open range it has those that have arrived.
        """
        super().__init__(planned, messages, output, instructions, began_s=now_s(), arrivals=arrivals)
        self.listener = listener
        self.ends_turn = False
        self._now_s = now_s
        self._wall_s = wall_s or now_s
        self._dead_letters = dead_letters
        self._hooks = hooks
        self.call_began_s = self.answered_s = self._started_s
        self._ended = ended
        """Reason why the range ends, if it arrived as a whole."""
        self._pending = RowBuffer(output.rows, self._file)
        """Rows of messages consumed and not committed."""
        self._machine = OrderlyConsumption(
            count=len(self._messages),
            settings=settings,
            started_s=self._started_s,
            retry_counts=self._earlier_retries(),
            stored_times=lambda index: self._messages[index].reconsume_times,
            is_whole=arrivals is None,
            least=1 if planned.has_open_end else settings.consume_message_batch_max_size,
        )

    leads = False
    """Whether the task must go on for this run while the run is suspended, even if the task has nothing else
    to do. Only runs by key need this."""

    def turn(self) -> RangeTurn:
        """Begin the turn of a worker, which delivers messages of this range until it takes another range."""
        return self

    def due_s(self) -> float:
        """Return infinity: while a worker (thread) delivers this range, no further worker can join."""
        return inf

    @property
    def finished(self) -> OrderlyFinish | None:
        """Reason why nothing can be delivered, for good or during a suspension.

        None while the run goes on, even if it has to wait for more messages.
        """
        return self._machine.finished

    @property
    def is_dry(self) -> bool:
        """Whether nothing can be delivered until more messages arrive; only for the thread that consumes."""
        return self._machine.is_dry and not self._arrivals

    def consume(self, for_s: float = inf) -> list[Emitted]:
        """Deliver until the run is over, is suspended, waits for more messages, or its turn ends.

        The turn ends after ``for_s`` seconds, or with ``ends_turn``. Call this again to continue; after a
        suspension it continues with the messages that were put back. Each call makes at least one delivery,
        if there is one and ``ends_turn`` is not set. Returns the rows of all acknowledged messages, also
        those of earlier calls, except rows that :meth:`cut` has taken.

        Raises:
            SchemaError: If the listener emitted a row that breaks the output schema.
            RocketMQError: If there is no space for the rows.
        """
        with self._guard:
            self._consume(for_s)
            self._forget()
            return self._rows.rows

    def _consume(self, for_s: float) -> None:
        # Look these up only once: if a delivery has one message, look-ups are most of the loop's cost.
        machine, now_s, output, file = self._machine, self._now_s, self._output, self._file
        answered = machine.answered
        add, pending = self._rows.add, self._pending
        is_given_up, queue = self._instructions.is_given_up, self._planned.queue
        arrived, arrivals = self._messages, self._arrivals
        take = arrived.in_arrow if isinstance(self.listener, ArrowListener) else arrived.in_objects
        began_s = self.call_began_s = now_s()
        ends_s, mark_s = began_s + for_s, -inf
        self._go_on(began_s)
        while not self.ends_turn:
            if arrivals or is_given_up(queue):
                self._take_in_changes()
            at_s = now_s()
            if (delivery := machine.next_delivery(at_s)) is None:
                break
            start, stop, retry_counts = delivery
            if at_s >= mark_s:
                self._times.began(start, at_s)
                mark_s = at_s + MARK_EVERY_S
            messages = take(start, stop, retry_counts)
            context = ConsumeOrderlyContext(messages, output, machine.accumulated, file)
            outcome = self._deliver(self, messages, context, answered)
            emitted = context.take_emitted()
            if outcome.effect is _COMMIT and not pending.rows and self._is_reported:
                # The case of nearly every delivery.
                if emitted:
                    add(emitted)
            else:
                self._settle(start, messages, outcome, emitted)
            if self.answered_s >= ends_s:
                break

    def _go_on(self, now_s: float) -> None:
        if not self._instructions.is_given_up(self._planned.queue):
            self._machine.go_on(now_s)

    def _settle(
        self, start: int, messages: Sequence[MessageExt], outcome: Outcome, emitted: list[Emitted]
    ) -> None:
        """Apply a delivery's outcome: send dead letters, and pass rows on to the sink, keep or drop them."""
        if outcome.effect in GIVEN_BACK:
            self._failed += 1
            self._file.drop(emitted)
            emitted = []
            if outcome.dead_letters:
                outcome = self._send_back(start, messages, outcome)
        if outcome.effect is _COMMIT:
            self._rows.add(self._pending.take())
            self._rows.add(emitted)
        elif outcome.effect is Effect.ACCUMULATE:
            self._pending.add(emitted)
        elif outcome.effect is Effect.ROLL_BACK:
            self._file.drop(self._pending.take())
        if not self._is_reported:
            self._report_settled()

    def _spill_to(self, file: SpillFile) -> None:
        super()._spill_to(file)
        self._pending.spill_to(file)

    def _take_in_changes(self) -> None:
        """Take in the pieces that have arrived; give the run up if the driver or the range's end demands."""
        self._take_in_arrivals(self._now_s())
        if self.is_moved or self._instructions.is_given_up(self._planned.queue):
            self._machine.give_up()

    def _extend_machine(self, count: int, now_s: float, retried: dict[int, int], *, is_last: bool) -> None:
        self._machine.extend(count, now_s, retry_counts=retried, is_last=is_last)

    def call_lasts_s(self) -> float:
        """Return how many seconds ago the newest listener call began, even if the call has ended.

        Called by another thread.
        """
        return self._now_s() - self.call_began_s

    def pause_left_s(self) -> float:
        """Return for how many more seconds the queue stays suspended; 0 if it may go on."""
        until_s = self._machine.goes_on_at_s
        return 0.0 if until_s is None else max(0.0, until_s - self._now_s())

    def stop(self) -> None:
        """Deliver nothing more; ``finished`` then has the reason. A reason that it has already stays."""
        with self._guard:
            self._take_in_arrivals(self._started_s)
            if self._machine.is_dry and self._instructions.is_given_up(self._planned.queue):
                self._machine.give_up()
            self._machine.stop()

    @property
    def _done(self) -> int:
        return self._machine.committed

    @property
    def _clocks(self) -> tuple[float, float]:
        return self._now_s(), self._wall_s()

    def ack(self) -> QueueAck:
        """Return the progress since the last :meth:`cut` or, without one, the range's start.

        Call this after :meth:`consume`.

        Raises:
            UndecodableMessage: If the range ends at a message that cannot be decoded, and the listener waits
                for more messages before it commits.
        """
        return self._ack_until(self._suspended_until_s())

    def _ack_so_far(self) -> QueueAck:
        goes_on_at_s = self._machine.goes_on_at_s
        # Whether the listener waits for more messages before it commits is known only at the range's end.
        is_held = goes_on_at_s is None and self._stands_still(self._done)
        return self._ack_until(self._now_s() if is_held else goes_on_at_s)

    def _ack_until(self, suspended_until_s: float | None) -> QueueAck:
        machine = self._machine
        return self._ack_of(
            machine.committed,
            machine.retry_counts,
            finished=machine.finished,
            suspended_until_s=by_wall_clock(suspended_until_s, self._now_s(), self._wall_s()),
            dead_letters=self._sent_back,
        )

    def _suspended_until_s(self) -> float | None:
        machine = self._machine
        if machine.goes_on_at_s is not None or not self._stands_still(machine.committed):
            return machine.goes_on_at_s
        # For the planner, a queue that stands still without a suspension has a listener that received the
        # whole range and waits for more before it commits. Any other queue may go on immediately.
        has_had_all = machine.has_had_all
        ended = self._ended if self._end is None else self._end.reason
        if has_had_all and ended is EndReason.WHOLE:
            return None
        if has_had_all and ended is EndReason.UNDECODABLE:
            raise UndecodableMessage(
                str(self._planned.queue),
                self._reached,
                f"the task's log has the reason. The listener received the {machine.accumulated} messages "
                "before it without a COMMIT, and waits for more.",
                before=self._reached - self._offset_at(machine.committed),
            )
        if has_had_all and ended is EndReason.FULL:
            self._last_error = report_problem(
                f"The listener has had {machine.accumulated} messages without a COMMIT, and "
                "pullThresholdSizeForQueue allows no more: they are delivered again and again. COMMIT after "
                "fewer messages, or raise pullThresholdSizeForQueue.",
                self._describe(self._messages),
            )
            return self._now_s() + LONGEST_SUSPEND_S
        return self._now_s()

    def _deliver(
        self,
        turn: RangeTurn,
        messages: Sequence[MessageExt],
        context: ConsumeOrderlyContext,
        answered: Callable[..., Outcome],
    ) -> Outcome:
        """Call the listener of ``turn``, and apply its answer with ``answered``, the machine's method."""
        self._guard.release()
        try:
            seen = self._hooks.before(self._planned.queue, messages) if self._hooks else None
            began_s = turn.call_began_s = self._now_s()
            try:
                answer: object = turn.listener(context.follow(messages), context)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the machine decides
                is_not_now = isinstance(error, SchemaRegistryDown | NotOpened)
                answer = NoStatus.NOT_NOW if is_not_now else NoStatus.RAISED
                if context.broken is None:
                    self._last_error = report_failure("listener failed", self._describe(messages), error)
        finally:
            self._guard.acquire()
        if context.broken is not None:
            raise context.broken_at(self._describe(messages)) from context.broken
        turn.answered_s = self._now_s()
        outcome = answered(
            answer,
            auto_commit=context.auto_commit,
            suspend_millis=context.suspend_current_queue_time_millis,
            now_s=turn.answered_s,
        )
        if outcome.problem is not None:
            self._last_error = report_problem(outcome.problem, self._describe(messages))
        self._count(outcome, len(messages), turn.answered_s - began_s)
        if seen is not None:
            # Under the guard: hooks run before anything is committed, so no cut may come before them.
            status = status_of(answer)
            self._hooks.after(
                seen, status=status, is_success=status in SUCCESSES, return_type=str(outcome.return_type)
            )
        return outcome

    def _count(self, outcome: Outcome, messages: int, lasted_s: float) -> None:
        """Count a call and its messages; messages of a ROLLBACK count neither as consumed nor as failed.

        ``ConsumeMessageOrderlyService.processConsumeResult`` counts in the same way.
        """
        if outcome.effect in _COUNTED_OK:
            self._messages_ok += messages
        elif outcome.effect in _COUNTED_FAILED:
            self._messages_failed += messages
        self._calls += 1
        self._calls_s += lasted_s

    def _send_back(self, start: int, messages: Sequence[MessageExt], outcome: Outcome) -> Outcome:
        self._guard.release()
        try:
            stored = [
                index for index in outcome.dead_letters if self._is_dead_letter(messages[index - start])
            ]
        finally:
            self._guard.acquire()
        self._sent_back += len(stored)
        return self._machine.sent_back(stored, self._now_s())

    def _is_dead_letter(self, message: MessageExt) -> bool:
        try:
            self._dead_letters(message)
        except RocketMQError as error:
            self._last_error = report_failure(
                "dead letter not sent, its queue stays suspended", self._describe([message]), error
            )
            is_named = isinstance(error, DeadLetterRefused)
            reason = str(error) if is_named else f"{self._describe([message])}: {error}"
            self._refused[message.queue_offset] = reason
            return False
        self._refused.pop(message.queue_offset, None)
        logger.warning("dead letter sent %s", self._describe([message]))
        return True


class RangeConsumer:
    """An orderly listener and its settings, with which ranges are consumed; pickled to the executors."""

    pace, open_pace = QUEUE_PACE, OPEN_PACE
    """Paces that decide when one more worker begins, with closed ranges and with open ones."""
    is_shared = False
    """Whether several workers may deliver one range at the same time."""
    _run = OrderlyRun

    def __init__(
        self,
        listener: object,
        output: OutputColumns,
        settings: OrderlySettings,
        send_back: SendBackSettings | None = None,
        hooks: ConsumeHooks | None = None,
    ) -> None:
        """Prepare for any number of ranges; ``listener`` has any of the forms of ``listeners.forms``.

        Raises:
            OptionError: If the listener has none of these forms. Also if ``max_reconsume_times`` is set and
                ``send_back`` is missing, which sends the messages that reach this limit.
        """
        self._listener = form_of(listener)
        self._hooks = hooks or NO_HOOKS
        self._output = output
        self._settings = settings
        self._dead_letters: DeadLetters = no_dead_letters
        if settings.max_reconsume_times != UNLIMITED:
            if send_back is None:
                problem = (
                    f"max_reconsume_times={settings.max_reconsume_times} needs send_back, the settings for "
                    "sending dead letters: SendBackSettings(name_servers=…, consumer_group=…)"
                )
                raise OptionError((problem,), where="orderly settings")
            self._dead_letters = partial(
                SendBack(send_back).send_as_dead_letter, max_reconsume_times=settings.max_reconsume_times
            )

    def consume(self, whole: Arrival) -> Consumed:
        """Consume a range that has arrived as a whole; return rows and ack."""
        with self.borrow() as listener:
            run = self.run_of(whole.planned, deque([whole]), NO_INSTRUCTIONS)
            run.listener = listener
            run.consume()
            return run.last()

    @property
    def most_calls(self) -> int:
        """Maximum number of listener calls at the same time, each for another queue or key."""
        return self._settings.consume_thread_max

    def borrow(self) -> AbstractContextManager[Call]:
        """Return a context manager that lends the listener, as a callable, to a ``with`` block."""
        return self._listener.borrow()

    def run_of(
        self,
        planned: QueueRange,
        arrivals: deque[Arrival],
        instructions: RangeInstructions,
        clock: Clock | None = None,
    ) -> OrderlyRun:
        """Return a run for a range. Borrow a listener and set the run's ``listener`` before it consumes.

        ``arrivals`` has the range's pieces; any thread may add more. The default clock is the system's.
        """
        clock = clock or SystemClock()
        settings = self._settings
        if planned.has_open_end:
            # An open range has no end, and its queue takes turns with the others.
            settings = replace(settings, max_time_consume_continuously_s=inf)
        return self._run(
            planned,
            (),
            listener=no_listener,
            output=self._output,
            settings=settings,
            arrivals=arrivals,
            now_s=clock.monotonic_s,
            wall_s=clock.now_s,
            dead_letters=self._dead_letters,
            hooks=self._hooks,
            instructions=instructions,
        )
