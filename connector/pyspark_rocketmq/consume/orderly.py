"""Orderly consumption of one range, called a *run*: state machine, and what a listener's answer does.

The rules are those of Java's ``ConsumeMessageOrderlyService.processConsumeResult`` (5.3.3). Letters with
numbers, such as D1, name rows of ``docs/semantics.md``.

1. Messages are delivered in ascending order, one *delivery* (the messages of one listener call, also called a
   batch here) at a time. The next delivery is made only after the listener has answered (D1, D2).
2. An answer does one of four things. It commits the delivery. Or it accumulates it, for a later commit
   (autoCommit=false). Or it puts the delivery back, to be delivered again. Or it puts back everything that is
   not committed. The last two suspend the queue. At ``goes_on_at_s`` this run goes on, if its task still
   runs; otherwise the queue is planned again from ``committed`` (D3, D4).
3. An exception, None and any other value that is not a status also put the delivery back (D5). When a
   delivery is put back, each of its messages counts as reconsumed once more, with an exception in rule 4. A
   roll-back does not count, nor does a failure that has nothing to do with the message (K4).
4. A message of a failed delivery that has no reconsumption left is to be sent as a dead letter (D6). When a
   broker has stored it, its reconsumptions are no longer counted. If all messages of the delivery are such
   dead letters, the delivery counts as consumed, and the queue goes on immediately. If one message could not
   be sent, or may be tried again, the whole delivery is put back, its dead letters included. So these may be
   sent again when the delivery fails again (``checkReconsumeTimes``).
5. A run that has lasted 60 s ends after the running delivery; it makes at least one (D7). A run that goes on
   after a suspension begins those 60 s again, as a Java client's does. No run ends by time while the listener
   has had messages without a commit: the next run would begin before these messages, and might never get
   further.
   A run that is given up (its queue was taken away or reset, or the query stops) ends immediately, between
   two deliveries.
6. A range may arrive piece by piece. A run is *dry* when too few messages for a delivery are left and more is
   to arrive; the next messages begin its 60 s again, as they begin a new ``ConsumeRequest`` in Java.

A message is named by its index in the range, ``0 … count-1``, in queue order; the caller has the offsets.
Only messages that were put back have a counter, so the machine needs no memory for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from math import inf
from numbers import Real
from types import MappingProxyType, NoneType
from typing import Final, NamedTuple

from pyspark_rocketmq.consume.suspension import DEFAULT_SUSPEND, pause_s
from pyspark_rocketmq.model import ConsumeOrderlyStatus, ReturnType
from pyspark_rocketmq.options.consumer import CONSUMER_DEFAULTS, UNLIMITED, check_bounds

_ROLLBACK_IGNORED = (
    "The listener returned ROLLBACK with auto_commit=True, which commits the messages as in the Java client; "
    "set context.auto_commit = False to roll back, or return SUSPEND_CURRENT_QUEUE_A_MOMENT to retry."
)
_WANTED = (
    "return SUCCESS, SUSPEND_CURRENT_QUEUE_A_MOMENT, COMMIT or ROLLBACK. The messages are delivered again."
)
_RETURNED_NONE = f"The listener returned None, which is not a ConsumeOrderlyStatus; {_WANTED}"
SUCCESSES = frozenset({ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT})
"""The answers that count as success for hooks."""
_STATUSES = {str(status): status for status in ConsumeOrderlyStatus}


class Effect(Enum):
    """Effect of a listener's answer on the messages of its call and on accumulated ones.

    *Accumulated* messages were consumed in earlier calls and wait for a COMMIT (autoCommit=false).
    """

    COMMIT = "COMMIT"
    """The call's messages and all accumulated ones are done; their rows may go to the sink."""
    ACCUMULATE = "ACCUMULATE"
    """The call's messages and their rows wait for a COMMIT. The messages are delivered again if they are
    rolled back, or if the consumption of the range ends before the COMMIT."""
    PUT_BACK = "PUT_BACK"
    """The call's messages are delivered again after a pause, and count as reconsumed. Their rows are dropped;
    accumulated messages and their rows still wait."""
    PUT_OFF = "PUT_OFF"
    """Like ``PUT_BACK``, but the messages do not count as reconsumed."""
    ROLL_BACK = "ROLL_BACK"
    """The call's messages and all accumulated ones are delivered again after a pause, and do not count as
    reconsumed. Their rows are dropped."""
    SEND_BACK = "SEND_BACK"
    """The outcome's ``dead_letters`` are to be sent first; ``OrderlyConsumption.sent_back`` then decides what
    becomes of the call's messages. All rows of the call are dropped."""


class Outcome(NamedTuple):
    """Outcome of a listener call: how the call counts, and its effect on the messages."""

    return_type: ReturnType
    effect: Effect
    problem: str | None = None
    """A sentence for the user, without queue or offset, if the listener broke its contract."""
    dead_letters: tuple[int, ...] = ()
    """Indexes, in the range, of messages to send as dead letters, in this order; only with ``SEND_BACK``."""


class NoStatus(Enum):
    """Reasons why a listener call has no status: it raised an exception, or returned an unknown value."""

    RAISED = "RAISED"
    NOT_NOW = "NOT_NOW"
    """The listener raised an exception which means that no message can be handled for now."""
    UNKNOWN = "UNKNOWN"


_IN_BOTH: dict[object, Outcome] = {
    ConsumeOrderlyStatus.COMMIT: Outcome(ReturnType.SUCCESS, Effect.COMMIT),
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: Outcome(ReturnType.FAILED, Effect.PUT_BACK),
    None: Outcome(ReturnType.RETURNNULL, Effect.PUT_BACK, _RETURNED_NONE),
    NoStatus.RAISED: Outcome(ReturnType.EXCEPTION, Effect.PUT_BACK),
    NoStatus.NOT_NOW: Outcome(ReturnType.EXCEPTION, Effect.PUT_OFF),
    NoStatus.UNKNOWN: Outcome(ReturnType.FAILED, Effect.PUT_BACK),
}
_WITH_AUTO_COMMIT: dict[object, Outcome] = _IN_BOTH | {
    ConsumeOrderlyStatus.SUCCESS: Outcome(ReturnType.SUCCESS, Effect.COMMIT),
    ConsumeOrderlyStatus.ROLLBACK: Outcome(ReturnType.SUCCESS, Effect.COMMIT, _ROLLBACK_IGNORED),
}
_WITHOUT_AUTO_COMMIT: dict[object, Outcome] = _IN_BOTH | {
    ConsumeOrderlyStatus.SUCCESS: Outcome(ReturnType.SUCCESS, Effect.ACCUMULATE),
    ConsumeOrderlyStatus.ROLLBACK: Outcome(ReturnType.SUCCESS, Effect.ROLL_BACK),
}
"""Outcomes as in ``ConsumeMessageOrderlyService.processConsumeResult`` (5.3.3), if autoCommit is off. Limits
of time and of reconsumptions are applied later."""


def status_of(answer: object) -> ConsumeOrderlyStatus:
    """Return the status that equals ``answer``, or SUSPEND_CURRENT_QUEUE_A_MOMENT if none does."""
    found = _STATUSES.get(answer) if isinstance(answer, str) else None
    return found or ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


_LOOKED_UP = (str, NoneType, NoStatus)
"""Types of the answers that are looked up; other objects may not be hashable."""


def outcome_of(answer: object, *, auto_commit: bool) -> Outcome:
    """Return the outcome of a call from its answer; a string equal to a status is that status.

    None and any value that is no status put the call's messages back. Limits of time and of reconsumptions
    are not applied here.
    """
    outcomes = _WITH_AUTO_COMMIT if auto_commit else _WITHOUT_AUTO_COMMIT
    outcome = outcomes.get(answer) if isinstance(answer, _LOOKED_UP) else None
    return outcome or outcomes[NoStatus.UNKNOWN]._replace(problem=_no_status(answer))


def _no_status(returned: object) -> str:
    shown = f"{returned!r:.80} " if isinstance(returned, str | int | float) else ""
    return (
        f"The listener returned {shown}of type {type(returned).__name__}, which is not a "
        f"ConsumeOrderlyStatus; {_WANTED}"
    )


class OrderlyFinish(StrEnum):
    """Why a run (the consumption of one range) makes no more deliveries.

    EXHAUSTED: the listener has had all messages. SUSPENDED: the queue is suspended. SLICE_USED: the run's
    time is used up.
    """

    EXHAUSTED = "EXHAUSTED"
    SUSPENDED = "SUSPENDED"
    SLICE_USED = "SLICE_USED"
    GIVEN_UP = "GIVEN_UP"
    """The queue goes to another member or to another offset, or the query stops."""


class OrderlyDelivery(NamedTuple):
    """Messages ``[start, stop)``, by index in the range, for one listener call."""

    start: int
    stop: int
    retry_counts: tuple[int, ...] = ()
    """How often each message was put back before; empty if none was. The listener sees the sum of this number
    and the reconsume times that the broker stored with the message."""


class _Failed(NamedTuple):
    """A failed delivery whose dead letters are being sent."""

    outcome: Outcome
    auto_commit: bool
    suspend_millis: float


# An Enum member costs a slow lookup at each use.
_COMMIT: Final = Effect.COMMIT
_ACCUMULATE: Final = Effect.ACCUMULATE
_PUT_BACK: Final = Effect.PUT_BACK


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderlySettings:
    """The consumer's settings that matter to orderly consumption, with RocketMQ's defaults."""

    consume_message_batch_max_size: int = CONSUMER_DEFAULTS.consume_message_batch_max_size
    """Maximum number of messages of one delivery."""
    suspend_current_queue_time_millis: int = CONSUMER_DEFAULTS.suspend_current_queue_time_millis
    """Pause of a suspended queue, in milliseconds, if the listener sets none in its context."""
    max_time_consume_continuously_s: float = 60.0
    """Seconds after which the consumption of a range ends with the running delivery; the next plan has the
    rest (``MAX_TIME_CONSUME_CONTINUOUSLY``)."""
    consume_timeout_s: float = CONSUMER_DEFAULTS.consume_timeout_s
    """Seconds after which a listener call, when it returns, counts as TIME_OUT; its effect is the same."""
    max_reconsume_times: int = CONSUMER_DEFAULTS.max_reconsume_times
    """A message put back as often as this becomes a dead letter when it fails again; -1: never."""
    consume_thread_max: int = CONSUMER_DEFAULTS.consume_thread_max
    """Maximum number of listener calls at the same time in one task, each for another queue or key."""

    def __post_init__(self) -> None:
        check_bounds(self, "consume_thread_max", "consume_message_batch_max_size")
        if self.max_reconsume_times < UNLIMITED:
            raise ValueError(
                f"maxReconsumeTimes must be -1 (no limit) or more, not {self.max_reconsume_times}."
            )


class OrderlyConsumption:
    """State machine of one run: the orderly consumption of one planned range. Messages are named by index.

    Guarantee: deliveries are consecutive and ascending, one at a time, and after a suspension the next one
    needs ``go_on``. At every moment ``[0, committed)`` is done, and the ``accumulated`` messages after it are
    consumed and not committed. Not thread-safe; no method blocks.
    """

    def __init__(
        self,
        *,
        count: int,
        settings: OrderlySettings,
        started_s: float,
        retry_counts: Mapping[int, int] = MappingProxyType({}),
        stored_times: Callable[[int], int] = lambda _: 0,
        is_whole: bool = True,
        least: int = 1,
    ) -> None:
        """Begin a run.

        Args:
            count: Number of messages of the range that have arrived so far.
            settings: The consumer's settings.
            started_s: Now, by the clock that also gives every ``now_s``, in seconds. The run's time slice,
                ``max_time_consume_continuously_s``, begins here.
            retry_counts: How often messages were put back before, by index; 0 for missing ones.
            stored_times: Returns, for an index, the number of reconsumptions that the broker has stored with
                the message; called only if the message failed and there is a limit.
            is_whole: Whether these are all messages of the range; if not, ``extend`` adds the others.
            least: Minimum number of messages of a delivery while more are to arrive. If it equals the
                maximum, the deliveries do not depend on the pieces in which the range arrives.

        Raises:
            ValueError: If ``count`` or a retry count is negative.
        """
        if count < 0 or any(times < 0 for times in retry_counts.values()):
            raise ValueError(f"count={count} and retry_counts={dict(retry_counts)} must not be negative.")
        self._count = count
        self._settings = settings
        self._batch_size = settings.consume_message_batch_max_size
        self._is_whole = is_whole
        self._least = 1 if is_whole else least
        self._was_dry = count < self._least and not is_whole
        """Whether the run is dry (rule 6): too few messages for a delivery are left, and more will come."""
        self.committed = 0
        """Number of messages done for good, counted from the first."""
        self._next = 0
        """First index not consumed: the start of the running delivery, if there is one."""
        self._stop = 0
        """End of the running delivery; 0 while there is none."""
        self._retry_counts = dict(retry_counts)
        """How often messages were put back, by index; only those not committed."""
        self._stored_times = stored_times
        self._failed: _Failed | None = None
        self._delivered_s = started_s
        self._slice_end_s = started_s + settings.max_time_consume_continuously_s
        self._yield_after_s = inf
        """``_slice_end_s`` once a delivery was made; infinite before, so that a late start makes progress."""
        self.goes_on_at_s: float | None = None
        """When the queue may go on, by the monotonic clock; None unless this run is suspended. The run's ack
        has this moment by the wall clock (``QueueState.suspended_until_s``)."""
        self.finished: OrderlyFinish | None = None
        """Why the run makes no more deliveries; None while it goes on."""

    @property
    def accumulated(self) -> int:
        """Number of messages after ``committed`` that were consumed without a commit."""
        return self._next - self.committed

    @property
    def has_had_all(self) -> bool:
        """Whether the run ended because the listener has had all messages, the last ones without a commit."""
        return self.accumulated > 0 and self.finished is OrderlyFinish.EXHAUSTED

    @property
    def retry_counts(self) -> Mapping[int, int]:
        """How often each uncommitted message was put back, by ascending index; no entry means never."""
        return dict(sorted(self._retry_counts.items()))

    @property
    def is_dry(self) -> bool:
        """Whether the next delivery must wait for messages that have not arrived."""
        return not (self._is_whole or self._stop or self.finished or self._count - self._next >= self._least)

    def extend(
        self,
        count: int,
        now_s: float,
        *,
        retry_counts: Mapping[int, int] = MappingProxyType({}),
        is_last: bool = False,
    ) -> None:
        """Add the next ``count`` messages; possible also while others are with the listener.

        If the run had to wait for messages, its time slice begins again.

        Args:
            count: Number of messages that have arrived; may be 0.
            now_s: Time at which they arrived.
            retry_counts: How often these messages were put back before, by index in the range.
            is_last: Whether no more messages of the range follow.
        """
        self._count += count
        if retry_counts:
            self._retry_counts.update(retry_counts)
        if is_last:
            self._is_whole, self._least = True, 1
        if self._was_dry:
            self._was_dry = False
            self._begin_slice(now_s)

    def next_delivery(self, now_s: float) -> OrderlyDelivery | None:
        """Return the next messages for the listener.

        Return None in two cases: more messages must arrive first (``is_dry``), or the run makes no more
        deliveries (``finished`` contains the reason).

        Raises:
            RuntimeError: If the previous delivery was not answered, or its dead letters were not sent.
        """
        if self._stop:
            raise RuntimeError(f"Messages {self._next} to {self._stop} are still with the listener.")
        if self.finished is not None:
            return None
        start = self._next
        if self._count - start < self._least:
            if self._is_whole:
                self.finished = OrderlyFinish.EXHAUSTED
            self._was_dry = not self._is_whole
            return None
        if now_s > self._yield_after_s and start == self.committed:
            self.finished = OrderlyFinish.SLICE_USED
            return None
        self._yield_after_s = self._slice_end_s
        self._delivered_s = now_s
        self._stop = stop = min(start + self._batch_size, self._count)
        times = (
            tuple([self._retry_counts.get(index, 0) for index in range(start, stop)])
            if self._retry_counts
            else ()
        )
        return OrderlyDelivery(start, stop, times if any(times) else ())

    def go_on(self, now_s: float) -> None:
        """End the run's suspension, if it is suspended: messages put back are delivered again.

        The run's time slice begins again. The caller makes sure that the time of the suspension is over.
        """
        if self.finished is OrderlyFinish.SUSPENDED:
            self.finished = self.goes_on_at_s = None
            self._begin_slice(now_s)

    def give_up(self) -> None:
        """Make no further delivery; nothing changes for a run that is over or suspended.

        Raises:
            RuntimeError: If messages are with the listener.
        """
        self._end(OrderlyFinish.GIVEN_UP)

    def stop(self) -> None:
        """Make no further delivery; nothing changes for a run that is over or suspended.

        ``finished`` becomes EXHAUSTED if the listener has had the whole range, else SLICE_USED.

        Raises:
            RuntimeError: If messages are with the listener.
        """
        has_had_all = self._is_whole and self._next >= self._count
        self._end(OrderlyFinish.EXHAUSTED if has_had_all else OrderlyFinish.SLICE_USED)

    def answered(self, answer: object, *, auto_commit: bool, suspend_millis: object, now_s: float) -> Outcome:
        """Apply the listener's answer; return what it does to the messages.

        Args:
            answer: Whatever the listener returned; a string equal to a status is that status. If the listener
                raised an error: ``NoStatus.NOT_NOW`` if the error has nothing to do with the messages, else
                ``NoStatus.RAISED``.
            auto_commit: The context's value after the call.
            suspend_millis: The context's value after the call; if it is -1 or not a number, the consumer's
                own pause counts.
            now_s: When the listener returned.

        Raises:
            RuntimeError: If no delivery is running, or dead letters of the last answer are still to be sent.
        """
        stop = self._stop
        if not stop or self._failed is not None:
            raise RuntimeError("No messages are with the listener; next_delivery comes first.")
        outcome = outcome_of(answer, auto_commit=auto_commit)
        if now_s - self._delivered_s >= self._settings.consume_timeout_s and _may_time_out(outcome):
            outcome = outcome._replace(return_type=ReturnType.TIME_OUT)
        effect = outcome.effect
        if effect is _COMMIT:
            self._stop = 0
            self._commit(stop)
            return outcome
        if effect is _ACCUMULATE:
            self._stop = 0
            self._next = stop
            return outcome
        if not isinstance(suspend_millis, int | float | Real):
            outcome = outcome._replace(problem=outcome.problem or _no_time(suspend_millis))
            suspend_millis = DEFAULT_SUSPEND
        elif not isinstance(suspend_millis, int | float):
            # A number of numpy, as calculations with a DataFrame return it.
            suspend_millis = float(suspend_millis)
        if effect is _PUT_BACK and (dead_letters := self._used_up(stop)):
            outcome = outcome._replace(effect=Effect.SEND_BACK, dead_letters=dead_letters)
            self._failed = _Failed(outcome, auto_commit, suspend_millis)
            return outcome
        self._stop = 0
        self._go_back(effect, stop)
        self._suspend(now_s + pause_s(suspend_millis, self._settings.suspend_current_queue_time_millis))
        return outcome

    def sent_back(self, stored: Collection[int], now_s: float) -> Outcome:
        """Note that the last outcome's dead letters were sent; ``stored`` has the indexes of stored ones.

        If a broker has stored each message of the delivery, the delivery counts as consumed. Otherwise the
        whole delivery is put back and the queue is suspended; only messages that are not stored count as
        reconsumed.

        Returns:
            An outcome with the effect COMMIT (ACCUMULATE without autoCommit) if each message of the delivery
            is now stored as a dead letter, else PUT_BACK.

        Raises:
            RuntimeError: If there were no dead letters to send.
        """
        failed = self._failed
        if failed is None:
            raise RuntimeError(
                "There are no dead letters to send; answered() must return the effect SEND_BACK first."
            )
        self._failed = None
        passed = set(stored) & set(failed.outcome.dead_letters)
        stop, self._stop = self._stop, 0
        tried_again = [index for index in range(self._next, stop) if index not in passed]
        effect = Effect.PUT_BACK
        if tried_again:
            self._count_up(tried_again)
            self._suspend(
                now_s + pause_s(failed.suspend_millis, self._settings.suspend_current_queue_time_millis)
            )
        elif failed.auto_commit:
            effect = _COMMIT
            self._commit(stop)
        else:
            effect = _ACCUMULATE
            self._next = stop
        return failed.outcome._replace(effect=effect, dead_letters=())

    def _go_back(self, effect: Effect, stop: int) -> None:
        """Apply PUT_BACK or ROLL_BACK: count messages put back, or go back to the first uncommitted one."""
        if effect is _PUT_BACK:
            self._count_up(range(self._next, stop))
        elif effect is Effect.ROLL_BACK:
            self._next = self.committed

    def _begin_slice(self, now_s: float) -> None:
        self._slice_end_s = now_s + self._settings.max_time_consume_continuously_s
        self._yield_after_s = inf

    def _end(self, finish: OrderlyFinish) -> None:
        if self._stop:
            raise RuntimeError(f"Messages {self._next} to {self._stop} are still with the listener.")
        if self.finished is None:
            self.finished = finish

    def _used_up(self, stop: int) -> tuple[int, ...]:
        """Return the indexes of the running delivery's messages that must not be put back once more.

        They were put back as often as ``max_reconsume_times`` allows, so they become dead letters.
        """
        most = self._settings.max_reconsume_times
        if most == UNLIMITED:
            return ()
        return tuple(
            index
            for index in range(self._next, stop)
            if self._stored_times(index) + self._retry_counts.get(index, 0) >= most
        )

    def _count_up(self, indexes: Collection[int]) -> None:
        for index in indexes:
            self._retry_counts[index] = self._retry_counts.get(index, 0) + 1

    def _commit(self, stop: int) -> None:
        self.committed = self._next = stop
        if self._retry_counts:
            self._retry_counts = {
                index: times for index, times in self._retry_counts.items() if index >= stop
            }

    def _suspend(self, until_s: float) -> None:
        self.goes_on_at_s = until_s
        self.finished = OrderlyFinish.SUSPENDED


def _may_time_out(outcome: Outcome) -> bool:
    """Return whether a slow call counts as timed out; an exception or None does not.

    Source: ``ConsumeMessageOrderlyService.ConsumeRequest.run``.
    """
    return outcome.return_type not in {ReturnType.EXCEPTION, ReturnType.RETURNNULL}


def _no_time(value: object) -> str:
    return (
        f"The listener set context.suspend_current_queue_time_millis to a {type(value).__name__}; it must be "
        "a number of milliseconds. The consumer's own pause is taken instead."
    )
