"""Concurrent consumption of one range, called a *run*: state machine, and what a listener's answer does.

The rules are those of Java's ``ConsumeMessageConcurrentlyService`` and ``ProcessQueue`` (5.3.3). Ids such as
E1 name rows of ``docs/semantics.md``:

1. The range is divided into *deliveries*, each for one listener call, of at most consumeMessageBatchMaxSize
   messages. At most as many are with the listener as the pool has threads, so a full pool delays messages and
   drops none (E1, E9). The runs of a task's queues share the pool
   (:mod:`~pyspark_rocketmq.consume.call_slots`).
2. An answer decides about the messages of its delivery: those up to ackIndex are done, the others have failed
   (E2).
3. A failed message is to be sent back to a broker, and is done when a broker has stored it (E3). In
   broadcasting it is dropped (E5). If the failure has nothing to do with the message, the message waits
   instead: the run ends, and the queue is planned again, after 5 s, from the first message not done (K4).
4. A message that could not be sent back is consumed again after 5 s, together only with other such messages
   (E4); if its call still runs, it is to be sent back again instead. Java repeats this for ever. Here the
   second failure in a row ends the run: nothing new is delivered, and the queue is planned again, after 5 s,
   from the first message that is not done.
5. Messages whose call has lasted longer than consumeTimeout are to be sent back with level 3, at most 16 in
   one round. A message that a broker has stored is then done; the call's later answer does not count for it
   (E7).
6. ``done`` is the index of the first message that is not done, and never goes back (E6).
7. A run that has lasted 60 s delivers nothing new and waits for the running calls, so that the batch can end.
   A run that is given up (its queue was taken away or reset, or the query stops) does so immediately.
8. If an earlier run could not send back the first message of a range, the range begins with only that
   message. The others wait while it fails, because they would be delivered again. The range also begins in
   this way if the earlier run finished no message and its offset store keeps no failure counts (the brokers
   are such a store). The message then counts 0 failures. The message's first failure ends such a run.
9. A range may arrive piece by piece. A run is *dry* when it has nothing to deliver and no running call, while
   more is to arrive; the next messages begin its 60 s again.

A call that never returns keeps its thread. When all threads are kept in this way, the runs end with the
messages that are done.

A message is named by its index in the range, ``0 … count-1``, in queue order; the caller has the offsets. The
machine remembers only messages that are with the listener or above ``done``, so a run may last for hours.

Source: RocketMQ 5.3.3 ``ConsumeMessageConcurrentlyService.ConsumeRequest.run``, ``processConsumeResult``.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from math import inf
from numbers import Integral
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, MessageModel, ReturnType
from pyspark_rocketmq.options.consumer import CONSUMER_DEFAULTS, DEFAULT_MAX_RECONSUME_TIMES, check_bounds
from pyspark_rocketmq.options.read import READ_DEFAULTS

ACK_ALL: Final = sys.maxsize
"""Value of a context's ackIndex until the listener sets it: every message is done."""
BROKER_DECIDES: Final = 0
"""Delay level of a context whose listener has set none: the broker takes 3 + the message's reconsume times.
"""

# An Enum member costs a slow lookup at each use.
_CONSUME_SUCCESS: Final = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_STATUSES: Final = {str(status): status for status in ConsumeConcurrentlyStatus}
_SUCCESS: Final = ReturnType.SUCCESS

_WANTED = "return CONSUME_SUCCESS or RECONSUME_LATER. The messages are sent back."
_RETURNED_NONE = f"The listener returned None, which is not a ConsumeConcurrentlyStatus; {_WANTED}"
SEND_BACK_PAUSE_S: Final = 5.0
"""Pause before a message that could not be sent back is consumed again (``submitConsumeRequestLater``)."""
EXPIRED_DELAY_LEVEL: Final = 3
"""Delay level of messages whose call takes too long (``ProcessQueue.cleanExpiredMsg``)."""
EXPIRED_PER_ROUND: Final = 16
"""Maximum number of messages sent back in one round because their call takes too long
(``ProcessQueue.cleanExpiredMsg``)."""
_NONE: Final[frozenset[int]] = frozenset()


class Answer(NamedTuple):
    """How one listener call ended."""

    return_type: ReturnType
    acknowledged: int
    """Number of messages that are done, from the delivery's first one on; the others have failed."""
    delay_level: int
    """Delay level of the failed messages: 0 lets the broker decide, -1 makes dead letters immediately."""
    problem: str | None = None
    """A sentence for the user if the listener broke its contract."""
    waits: bool = False
    """Whether the failed messages are delivered again by a later run instead of being sent back.

    True if the failure has nothing to do with the messages, for example if a schema registry is down.
    """

    def ended_after(self, lasted_s: float, timeout_s: float) -> ReturnType:
        """Return how a call that lasted ``lasted_s`` ended, for hooks.

        ``TIME_OUT`` if it lasted at least ``timeout_s`` and neither raised an error nor returned None;
        otherwise the answer's own ``return_type``.
        """
        may_be_slow = self.return_type not in {ReturnType.EXCEPTION, ReturnType.RETURNNULL}
        return ReturnType.TIME_OUT if lasted_s >= timeout_s and may_be_slow else self.return_type


def status_of(answer: object) -> ConsumeConcurrentlyStatus | None:
    """Return the status that equals ``answer``; None for any other value."""
    # Compare nothing but strings: a DataFrame, for example, cannot be compared.
    return _STATUSES.get(answer) if isinstance(answer, str) else None


def answer_of(status: object, *, ack_index: object, delay_level: object, count: int) -> Answer:
    """Interpret the value that a listener returned; a string equal to a status is that status.

    If the value is None, or no status, all messages of the delivery have failed.

    Args:
        status: Whatever the listener returned.
        ack_index: The context's index of the last message that is done; counts only with CONSUME_SUCCESS.
        delay_level: The context's delay level.
        count: Messages of the delivery.
    """
    if status is _CONSUME_SUCCESS and ack_index is ACK_ALL and delay_level is BROKER_DECIDES:
        return Answer(_SUCCESS, count, BROKER_DECIDES)
    level, level_problem = _whole(delay_level, "delay_level_when_next_consume", BROKER_DECIDES)
    if status is None:
        return Answer(ReturnType.RETURNNULL, 0, level, _RETURNED_NONE)
    meant = status_of(status)
    if meant is not _CONSUME_SUCCESS:
        return Answer(ReturnType.FAILED, 0, level, _no_status(status) if meant is None else level_problem)
    index, index_problem = _whole(ack_index, "ack_index", -1)
    return Answer(_SUCCESS, max(0, min(index + 1, count)), level, index_problem or level_problem)


def answer_of_failure(*, delay_level: object, waits: bool = False) -> Answer:
    """Return the answer of a call that raised an exception: every message has failed.

    With ``waits`` the messages are delivered again by a later run, instead of being sent back.
    """
    level, problem = _whole(delay_level, "delay_level_when_next_consume", BROKER_DECIDES)
    return Answer(ReturnType.EXCEPTION, 0, level, problem, waits)


def _whole(value: object, name: str, otherwise: int) -> tuple[int, str | None]:
    if isinstance(value, Integral):
        # Also a number of numpy, as calculations with a DataFrame return it.
        return int(value), None
    return otherwise, (
        f"The listener set context.{name} to a {type(value).__name__}; it must be a whole number. "
        f"{otherwise} is taken instead."
    )


def _no_status(returned: object) -> str:
    shown = f"{returned!r:.80} " if isinstance(returned, str | int | float) else ""
    return (
        f"The listener returned {shown}of type {type(returned).__name__}, which is not a "
        f"ConsumeConcurrentlyStatus; {_WANTED}"
    )


class ConcurrentFinish(StrEnum):
    """Why a run (the consumption of one range) makes no more deliveries.

    EXHAUSTED: the listener has had all messages. SLICE_USED: the run's 60 s are over.
    """

    EXHAUSTED = "EXHAUSTED"
    SUSPENDED = "SUSPENDED"
    """Sending a message back has failed twice in a row, or failed messages wait for a later run."""
    SLICE_USED = "SLICE_USED"
    THREADS_LOST = "THREADS_LOST"
    """Every thread is in a listener call that does not return."""
    GIVEN_UP = "GIVEN_UP"
    """The queue goes to another member or to another offset, or the query stops."""


class ConcurrentDelivery(NamedTuple):
    """Messages for one listener call."""

    number: int
    """Number of the delivery, unique within a run."""
    indexes: Sequence[int]
    """Indexes of the messages in the planned range, ascending.

    A Python ``range``, except for messages that are consumed again (rule 4).
    """


class Settled(NamedTuple):
    """Consequences of a listener's answer for the messages of its delivery."""

    done: Sequence[int]
    """Indexes of the messages that the answer has acknowledged; rows emitted for them may be passed on."""
    send_back: Sequence[int] = ()
    """Indexes of the messages to send back with the answer's delay level; report each with ``sent_back``, or
    all with ``put_off``."""
    dropped: Sequence[int] = ()
    """Indexes of the messages that failed in broadcasting: they are done, without success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentSettings:
    """The consumer's settings that matter to concurrent consumption, with RocketMQ's defaults."""

    consume_message_batch_max_size: int = CONSUMER_DEFAULTS.consume_message_batch_max_size
    """Maximum number of messages of one delivery."""
    consume_thread_max: int = CONSUMER_DEFAULTS.consume_thread_max
    """Maximum number of listener calls at the same time in a task. Java's ``consumeThreadMin`` is the size of
    an idle pool; here a thread is started when there is work for it."""
    max_reconsume_times: int = DEFAULT_MAX_RECONSUME_TIMES
    """Attempts after the first one; then a message is a dead letter."""
    consume_timeout_s: float = CONSUMER_DEFAULTS.consume_timeout_s
    """How long a listener call may last before its messages are sent back."""
    max_time_consume_continuously_s: float = 60.0
    """How long a run delivers new messages; afterwards it only waits for its running calls."""
    message_model: MessageModel = READ_DEFAULTS.message_model

    def __post_init__(self) -> None:
        check_bounds(self, "consume_message_batch_max_size", "consume_thread_max")
        if self.max_reconsume_times < 0:
            raise ValueError(f"maxReconsumeTimes must be 0 or more, not {self.max_reconsume_times}.")


@dataclass(slots=True)
class _Out:
    """A delivery whose listener call still runs, or of which messages are on their way back to a broker."""

    indexes: Sequence[int]
    expires_s: float
    with_listener: int
    """Number of messages whose fate still depends on the call's answer; meaningless after the answer."""
    going_back: int = 0
    is_answered: bool = False
    gone: frozenset[int] = _NONE
    """Messages of the delivery that were sent back, are being sent back, or are to be consumed again."""

    @property
    def here(self) -> Sequence[int]:
        """Indexes of the delivery's messages that the listener still has: all except those in ``gone``."""
        gone = self.gone
        return [index for index in self.indexes if index not in gone] if gone else self.indexes

    @property
    def hangs(self) -> bool:
        """Whether the listener call still runs, although nothing depends on its answer any more."""
        return not (self.is_answered or self.with_listener or self.going_back)


class ConcurrentConsumption:
    """One run over the messages of one planned range: chooses deliveries and applies their answers.

    Guarantee: a message is *out* (with the listener, or on its way back to a broker) at most once at a time,
    and ``done`` never passes one that is not acknowledged, stored by a broker, or dropped in broadcasting.
    Not thread-safe; no method blocks.
    """

    def __init__(
        self,
        *,
        count: int,
        settings: ConcurrentSettings,
        started_s: float,
        failures: Mapping[int, int] = MappingProxyType({}),
        is_whole: bool = True,
        least: int = 1,
    ) -> None:
        """Begin a run.

        Args:
            count: Number of messages of the range that have arrived so far.
            settings: The consumer's settings.
            started_s: Now, by the clock that also gives every ``now_s``, in seconds.
            failures: How often in a row earlier runs could not send messages back, by index.
            is_whole: Whether these are all messages of the range; if not, ``extend`` adds the others.
            least: Minimum number of messages of a delivery while more are to arrive. If it equals the
                maximum, the deliveries do not depend on the pieces in which the range arrives.
        """
        self._count = count
        self.is_whole = is_whole
        """Whether all messages have arrived."""
        self._least = 1 if is_whole else least
        self.settings = settings
        """The consumer's settings."""
        self._batch_size = settings.consume_message_batch_max_size
        self._most_calls = settings.consume_thread_max
        self.done = 0
        """Smallest index not done; ``count`` when all are done."""
        self._done_above: set[int] = set()
        """Indexes of finished messages above ``done``."""
        self._next = 0
        """First index never delivered in this run."""
        self.is_last_out = count < self._least
        """Whether too few messages for a delivery, or none, have arrived and were not delivered yet."""
        self._failures = dict(failures)
        """How often a message could not be sent back, by index; without those that are done."""
        self._again: deque[tuple[float, int]] = deque()
        """Messages to consume again, the earliest first: the time at which each is due, and its index."""
        self._out: dict[int, _Out] = {}
        self._delivery_of: dict[int, int] = {}
        """Number of the delivery, by index, of each message on its way back to a broker."""
        self._expiring: set[int] = set()
        """Indexes that ``expired`` returned last and that ``sent_back`` has not reported yet."""
        self._expiry: list[tuple[float, int]] = []
        """Heap of pairs: the time from which on a delivery's call takes too long, and the delivery's number.

        Outdated pairs are skipped.
        """
        self._awaited = 0
        """Number of messages with the listener or on their way back."""
        self._deliveries = 0
        self._is_probing = 0 in self._failures
        self._slice_end_s = started_s + settings.max_time_consume_continuously_s
        self._is_slice_over = False
        self._are_threads_lost = False
        self.calls_hanging = 0
        """Number of listener calls that still run although all their messages were sent back."""
        self._is_suspended = False
        self._is_given_up = False

    @property
    def finished(self) -> ConcurrentFinish | None:
        """Why the run is over; None while there is something to do or to wait for."""
        if self._awaited:
            return None
        if self._is_suspended:
            return ConcurrentFinish.SUSPENDED
        if self._is_given_up and not (self.is_whole and self.done >= self._count):
            return ConcurrentFinish.GIVEN_UP
        if not self._again:
            if self.is_whole and self._next >= self._count:
                return ConcurrentFinish.EXHAUSTED
            if self._is_slice_over:
                return ConcurrentFinish.SLICE_USED
        is_lost = self._are_threads_lost or len(self._out) >= self._most_calls
        return ConcurrentFinish.THREADS_LOST if is_lost else None

    @property
    def is_dry(self) -> bool:
        """Whether the run waits for messages: it has nothing to deliver and no running call (rule 9)."""
        is_idle = not (self._awaited or self._again) and self.is_last_out
        return is_idle and self.finished is None

    def extend(
        self,
        count: int,
        now_s: float,
        *,
        failures: Mapping[int, int] = MappingProxyType({}),
        is_last: bool = False,
    ) -> None:
        """Add the next ``count`` messages.

        Args:
            count: Number of messages that have arrived; may be 0.
            now_s: Time at which they arrived.
            failures: How often in a row earlier runs could not send them back, by index in the range.
            is_last: Whether no more messages of the range follow.
        """
        if self.is_dry:
            self._slice_end_s = now_s + self.settings.max_time_consume_continuously_s
        if failures:
            self._failures.update(failures)
            self._is_probing = self._is_probing or 0 in failures
        self._count += count
        if is_last:
            self.is_whole, self._least = True, 1
        self.is_last_out = self._count - self._next < self._least

    @property
    def is_all_out(self) -> bool:
        """Whether ``next_delivery`` certainly returns None now, however many of the pool's threads are free.

        ``next_delivery`` may return None although this is False: while messages wait to be consumed again
        (rule 4), while only the first message of the range is tried (rule 8), or when the 60 s of the run are
        over (rule 7).
        """
        return (
            len(self._out) >= self._most_calls
            or (self.is_last_out and not self._again)
            or self._is_suspended
            or self._is_given_up
        )

    @property
    def calls_lost(self) -> int:
        """Number of calls still running when the run is over.

        Their messages were sent back or, where this failed twice, are left to the next run.
        """
        return len(self._out)

    @property
    def failures(self) -> Mapping[int, int]:
        """How often in a row messages could not be sent back, by ascending index; without those at 0."""
        return {index: times for index, times in sorted(self._failures.items()) if times}

    def failures_of(self, indexes: Sequence[int]) -> Sequence[int]:
        """Return for each message how often in a row it could not be sent back.

        The caller adds this number to the message's reconsume times. The result may be empty if the
        number is 0 for all messages of the run.
        """
        return [self._failures.get(index, 0) for index in indexes] if self._failures else ()

    def next_delivery(self, now_s: float) -> ConcurrentDelivery | None:
        """Return the next messages for the listener.

        Return None if this run's own calls fill the pool, nothing is due, or the run is suspended or given
        up.
        """
        if len(self._out) >= self._most_calls or self._is_suspended or self._is_given_up:
            return None
        indexes: Sequence[int] = (self._again and self._due_again(now_s)) or self._fresh(now_s)
        if not indexes:
            return None
        number = self._deliveries
        self._deliveries += 1
        expires_s = now_s + self.settings.consume_timeout_s
        self._out[number] = _Out(indexes, expires_s, len(indexes))
        heappush(self._expiry, (expires_s, number))
        self._awaited += len(indexes)
        return ConcurrentDelivery(number, indexes)

    def give_up(self) -> None:
        """Make no further delivery; the run still waits for the deliveries that are out."""
        self._is_given_up = True

    def lose_threads(self) -> None:
        """Note that calls that do not return, of this run or others, hold all threads: no thread gets free.

        The run then ends instead of waiting for a thread.
        """
        self._are_threads_lost = True

    def answered(self, number: int, answer: Answer) -> Settled:
        """Apply the listener's answer to delivery ``number``; return what it means for the messages.

        The answer does not count for messages that were sent back earlier because the call took too long.

        Raises:
            KeyError: If the delivery is not out.
        """
        out = self._out[number]
        if self.calls_hanging:
            self.calls_hanging -= out.hangs
        out.is_answered = True
        indexes = out.indexes
        if answer.acknowledged == out.with_listener == len(indexes):
            # Nearly every delivery.
            del self._out[number]
            self._settle(indexes)
            return Settled(indexes)
        here = out.here
        last_done = indexes[answer.acknowledged - 1] if answer.acknowledged else -1
        done = [index for index in here if index <= last_done]
        failed = here[len(done) :]
        is_dropped = self.settings.message_model is MessageModel.BROADCASTING and not answer.waits
        self._settle(here if is_dropped else done)
        if not is_dropped:
            self._begin_back(failed, number)
        if not out.going_back:
            del self._out[number]
        return Settled(done, dropped=failed) if is_dropped else Settled(done, failed)

    def expired(self, now_s: float) -> Sequence[int]:
        """Return the indexes of up to 16 messages whose call takes too long, to send back with delay level 3.

        Report each message with ``sent_back``; until all are reported, this method returns no further ones.
        In broadcasting drop the messages instead, and report each in the same way.
        """
        if self._expiring:
            return ()
        found: list[int] = []
        while self._expiry and len(found) < EXPIRED_PER_ROUND:
            expires_s, number = self._expiry[0]
            here: Sequence[int] = ()
            if self._is_with_listener(expires_s, number):
                if expires_s > now_s:
                    break
                here = self._out[number].here
            taken = here[: EXPIRED_PER_ROUND - len(found)]
            if len(taken) == len(here):
                heappop(self._expiry)
            self._begin_back(taken, number)
            found += taken
        self._expiring.update(found)
        return tuple(found)

    def sent_back(self, index: int, now_s: float, *, is_stored: bool) -> None:
        """Apply the result of sending a message back.

        With ``is_stored`` the message is done: a broker has stored it, or it was dropped on purpose.
        Otherwise the message is due again in 5 s: to be consumed or, if its call still runs, to be sent back.
        After the message's second failure in a row the run delivers nothing more. If only this message is
        tried (rule 8), the first failure is enough.

        Raises:
            KeyError: If the message is not on its way back.
        """
        number = self._delivery_of.pop(index)
        out = self._out[number]
        out.going_back -= 1
        self._expiring.discard(index)
        if is_stored:
            self._settle([index])
        else:
            self._keep(index, number, now_s)
        self.calls_hanging += out.hangs
        if out.is_answered and not out.going_back:
            del self._out[number]

    def put_off(self, indexes: Sequence[int]) -> None:
        """Leave to the next run messages that were to be sent back; this run delivers nothing more.

        Raises:
            KeyError: If one of the messages is not on its way back.
        """
        self._is_suspended = True
        for index in indexes:
            number = self._delivery_of.pop(index)
            out = self._out[number]
            out.going_back -= 1
            self._awaited -= 1
            if not out.going_back:
                del self._out[number]

    def wake_s(self, *, delivers: bool = True) -> float:
        """Return the time at which to call ``next_delivery`` and ``expired`` again if nothing happens before.

        At that time a message is to be consumed again, or a call has lasted too long. The time is infinite if
        neither can happen. Without ``delivers`` only the second counts: the caller delivers nothing now.
        """
        while self._expiry and not self._is_with_listener(*self._expiry[0]):
            heappop(self._expiry)
        expires_s = self._expiry[0][0] if self._expiry and not self._expiring else inf
        is_due_again = delivers and self._again and self._may_deliver
        return min(expires_s, self._again[0][0]) if is_due_again else expires_s

    # --- choosing messages ----------------------------------------------------------------------------------

    @property
    def _may_deliver(self) -> bool:
        return len(self._out) < self._most_calls and not (self._is_suspended or self._is_given_up)

    def _fresh(self, now_s: float) -> Sequence[int]:
        start = self._next
        if self.is_last_out or (start and self._is_probing):
            return ()
        self._is_slice_over = bool(start) and now_s > self._slice_end_s
        if self._is_slice_over:
            return ()
        self._next = stop = 1 if self._is_probing else min(start + self._batch_size, self._count)
        self.is_last_out = self._count - stop < self._least
        return range(start, stop)

    def _due_again(self, now_s: float) -> Sequence[int]:
        due: list[int] = []
        while self._again and self._again[0][0] <= now_s and len(due) < self._batch_size:
            due.append(self._again.popleft()[1])
        return sorted(due)

    # --- settling messages ----------------------------------------------------------------------------------

    def _is_with_listener(self, expires_s: float, number: int) -> bool:
        """Return whether an entry of ``_expiry`` still counts.

        It counts while the call of delivery ``number`` runs and has messages, and ``expires_s`` is still the
        time from which on this call takes too long.
        """
        out = self._out.get(number)
        return (
            out is not None and not out.is_answered and out.expires_s == expires_s and out.with_listener > 0
        )

    def _begin_back(self, indexes: Sequence[int], number: int) -> None:
        if not indexes:
            return
        out = self._out[number]
        out.going_back += len(indexes)
        out.with_listener -= len(indexes)
        out.gone = out.gone.union(indexes)
        for index in indexes:
            self._delivery_of[index] = number

    def _keep(self, index: int, number: int, now_s: float) -> None:
        """Keep a message that could not be sent back, so that the offset does not pass it.

        After its first failure the message is due again in 5 s; after a second failure in a row the run is
        suspended. If only this message is tried (rule 8), its first failure suspends the run.
        """
        out, due_s = self._out[number], now_s + SEND_BACK_PAUSE_S
        failures = self._failures[index] = self._failures.get(index, 0) + 1
        is_last_try = failures > 1 or self._is_probing
        if not is_last_try and not out.is_answered:
            # Its call still runs, so it is sent back again instead of being consumed again.
            out.gone -= {index}
            out.with_listener += 1
            out.expires_s = due_s
            heappush(self._expiry, (due_s, number))
            return
        self._awaited -= 1
        if is_last_try:
            self._is_suspended = True
        else:
            self._again.append((due_s, index))

    def _settle(self, indexes: Sequence[int]) -> None:
        done, above = self.done, self._done_above
        for index in indexes:
            if index == done:
                done += 1
            else:
                above.add(index)
        while done in above:
            above.remove(done)
            done += 1
        self.done = done
        self._awaited -= len(indexes)
        if self._failures:
            for index in indexes:
                self._failures.pop(index, None)
            self._is_probing = self._is_probing and not done
