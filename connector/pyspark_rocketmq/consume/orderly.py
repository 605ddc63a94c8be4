"""Orderly consumption of one queue in one micro-batch: what to deliver next, what an answer does.

The rules are those of Java's ``ConsumeMessageOrderlyService.processConsumeResult`` (5.3.3); rows D1-D5 and D7:

1. One delivery at a time, ascending; the next only after the listener answered (D1, D2).
2. An answer commits, accumulates (autoCommit=false), puts the current batch back, or puts everything not
   committed back. The two that put back suspend the queue: this run is over, and the queue is planned again
   from ``committed`` when ``suspended_until_s`` has come (D3, D4).
3. An exception, None and anything that is no status put back too (D5). Every put-back counts one
   reconsumption, a roll-back does not.
4. A run that has lasted 60 s yields after the delivery in hand; at least one is made (D7).

Messages are indexes ``0 … count-1`` in queue order, so that the machine costs nothing per message: whoever
drives it knows their offsets.

Java counts reconsumptions per message. Here one number per queue is kept, that of the next batch to deliver; it
differs where a roll-back brings back messages that had failed before they were accumulated (Java remembers,
here they begin at 0) and where a failed batch is delivered again with more messages than it had.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from math import inf
from typing import Final, NamedTuple

from pyspark_rocketmq.model import ConsumeOrderlyStatus

SHORTEST_SUSPEND_MILLIS: Final = 10
LONGEST_SUSPEND_MILLIS: Final = 30_000
DEFAULT_SUSPEND: Final = -1
"""A context's suspend time that means the consumer's own (``ConsumeOrderlyContext``)."""


class ReturnType(StrEnum):
    """How a listener call ended, for hooks and statistics (``ConsumeReturnType``)."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    RETURNNULL = "RETURNNULL"
    FAILED = "FAILED"


class Effect(Enum):
    """What an answer does to the messages consumed and not committed."""

    COMMIT = "COMMIT"
    """The batch and all accumulated ones are done; rows they emitted may leave."""
    ACCUMULATE = "ACCUMULATE"
    """The batch is not delivered again unless rolled back; it waits for a COMMIT, its rows too."""
    PUT_BACK = "PUT_BACK"
    """The batch is delivered again after a pause and counted; its rows are void, accumulated ones wait on."""
    ROLL_BACK = "ROLL_BACK"
    """The batch and all accumulated ones are delivered again after a pause, uncounted; their rows are void."""


class Finish(StrEnum):
    """Why a run makes no more deliveries."""

    EXHAUSTED = "EXHAUSTED"
    SUSPENDED = "SUSPENDED"
    SLICE_USED = "SLICE_USED"


class Delivery(NamedTuple):
    """Messages ``[start, stop)`` for one listener call."""

    start: int
    stop: int
    reconsume_times: int
    """How often this batch was put back before; the listener sees it added to what the broker stored."""


class Outcome(NamedTuple):
    """What a listener call led to."""

    return_type: ReturnType
    effect: Effect
    problem: str | None = None
    """A sentence for the user where the listener broke its contract; queue and offset are for the caller to add."""


class _NoStatus(Enum):
    """Ends of a listener call without a status."""

    RAISED = "RAISED"
    UNKNOWN = "UNKNOWN"


_ROLLBACK_IGNORED = (
    "The listener returned ROLLBACK with auto_commit=True, which commits the messages as in the Java client; "
    "set context.auto_commit = False to roll back, or return SUSPEND_CURRENT_QUEUE_A_MOMENT to retry."
)

# fmt: off
_WITH_AUTO_COMMIT: dict[object, Outcome] = {
    ConsumeOrderlyStatus.SUCCESS:  Outcome(ReturnType.SUCCESS, Effect.COMMIT),
    ConsumeOrderlyStatus.COMMIT:   Outcome(ReturnType.SUCCESS, Effect.COMMIT),
    ConsumeOrderlyStatus.ROLLBACK: Outcome(ReturnType.SUCCESS, Effect.COMMIT, _ROLLBACK_IGNORED),
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: Outcome(ReturnType.FAILED, Effect.PUT_BACK),
    None:                          Outcome(ReturnType.RETURNNULL, Effect.PUT_BACK),
    _NoStatus.RAISED:              Outcome(ReturnType.EXCEPTION, Effect.PUT_BACK),
    _NoStatus.UNKNOWN:             Outcome(ReturnType.FAILED, Effect.PUT_BACK),
}
_WITHOUT_AUTO_COMMIT: dict[object, Outcome] = {
    ConsumeOrderlyStatus.SUCCESS:  Outcome(ReturnType.SUCCESS, Effect.ACCUMULATE),
    ConsumeOrderlyStatus.COMMIT:   Outcome(ReturnType.SUCCESS, Effect.COMMIT),
    ConsumeOrderlyStatus.ROLLBACK: Outcome(ReturnType.SUCCESS, Effect.ROLL_BACK),
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: Outcome(ReturnType.FAILED, Effect.PUT_BACK),
    None:                          Outcome(ReturnType.RETURNNULL, Effect.PUT_BACK),
    _NoStatus.RAISED:              Outcome(ReturnType.EXCEPTION, Effect.PUT_BACK),
    _NoStatus.UNKNOWN:             Outcome(ReturnType.FAILED, Effect.PUT_BACK),
}
# fmt: on

# An Enum member costs a slow lookup at each use.
_COMMIT: Final = Effect.COMMIT
_ACCUMULATE: Final = Effect.ACCUMULATE


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderlySettings:
    """The consumer's settings that matter to orderly consumption, with RocketMQ's defaults."""

    consume_message_batch_max_size: int = 1
    """Most messages of one delivery, 1..1024."""
    suspend_current_queue_time_millis: int = 1000
    """Pause of a suspended queue where the context names none."""
    max_time_consume_continuously_s: float = 60.0
    """``MAX_TIME_CONSUME_CONTINUOUSLY``."""
    consume_timeout_s: float = 900.0
    """From this duration on a listener call counts as TIME_OUT (D8)."""

    def __post_init__(self) -> None:
        if not 1 <= self.consume_message_batch_max_size <= 1024:
            raise ValueError(
                "consumeMessageBatchMaxSize must be from 1 to 1024, "
                f"not {self.consume_message_batch_max_size}."
            )

    def pause_s(self, suspend_millis: int) -> float:
        """Pause for a context's suspend time (``submitConsumeRequestLater``: default for -1, then clamped)."""
        if suspend_millis == DEFAULT_SUSPEND:
            suspend_millis = self.suspend_current_queue_time_millis
        return max(SHORTEST_SUSPEND_MILLIS, min(suspend_millis, LONGEST_SUSPEND_MILLIS)) / 1000


class OrderlyConsumption:
    """One run over the messages of one planned queue range.

    Guarantee: deliveries are consecutive and ascending, never two at a time, and none follows a suspension.
    At every moment ``[0, committed)`` is done, ``accumulated`` messages after it are consumed and not committed.
    Not thread-safe; no method blocks.
    """

    __slots__ = (
        "_batch_size",
        "_committed",
        "_count",
        "_delivered_s",
        "_finished",
        "_next",
        "_reconsume_times",
        "_settings",
        "_slice_end_s",
        "_stop",
        "_suspended_until_s",
        "_yield_after_s",
    )

    def __init__(
        self,
        *,
        count: int,
        settings: OrderlySettings,
        started_s: float,
        accumulated: int = 0,
        reconsume_times: int = 0,
    ) -> None:
        """Begin a run.

        Args:
            count: Messages of the range.
            settings: The consumer's.
            started_s: Seconds of the clock that also gives every ``now_s``; the 60 s count from here.
            accumulated: Messages at the front that an earlier run consumed without commit; not delivered again
                unless rolled back. May exceed ``count``.
            reconsume_times: How often the first batch to deliver was put back before.
        """
        if count < 0 or accumulated < 0 or reconsume_times < 0:
            raise ValueError(
                f"count={count}, accumulated={accumulated} and reconsume_times={reconsume_times} "
                "must not be negative."
            )
        self._count = count
        self._settings = settings
        self._batch_size = settings.consume_message_batch_max_size
        self._committed = 0
        self._next = accumulated
        """First index not consumed; the start of the delivery in hand, if there is one."""
        self._stop = 0
        """End of the delivery in hand; 0 while there is none."""
        self._reconsume_times = reconsume_times
        self._delivered_s = started_s
        self._slice_end_s = started_s + settings.max_time_consume_continuously_s
        self._yield_after_s = inf
        """``_slice_end_s`` once a delivery was made: a late start must not mean no progress at all."""
        self._suspended_until_s: float | None = None
        self._finished: Finish | None = None

    @property
    def committed(self) -> int:
        """Messages done for good, counted from the first."""
        return self._committed

    @property
    def accumulated(self) -> int:
        """Messages after ``committed`` that were consumed without commit."""
        return self._next - self._committed

    @property
    def reconsume_times(self) -> int:
        """How often the next batch to deliver (at ``committed + accumulated``) was put back."""
        return self._reconsume_times

    @property
    def suspended_until_s(self) -> float | None:
        """When the queue may go on; None unless this run ended suspended."""
        return self._suspended_until_s

    @property
    def finished(self) -> Finish | None:
        """Why there is no more to deliver; None before ``next_delivery`` said so or a suspension."""
        return self._finished

    def next_delivery(self, now_s: float) -> Delivery | None:
        """The next messages for the listener, or None and ``finished`` says why.

        Raises:
            RuntimeError: If the delivery before was not answered.
        """
        if self._stop:
            raise RuntimeError(f"Messages {self._next} to {self._stop} are still with the listener.")
        if self._finished is not None:
            return None
        start = self._next
        if start >= self._count:
            self._finished = Finish.EXHAUSTED
            return None
        if now_s > self._yield_after_s:
            self._finished = Finish.SLICE_USED
            return None
        self._yield_after_s = self._slice_end_s
        self._delivered_s = now_s
        self._stop = stop = min(start + self._batch_size, self._count)
        return Delivery(start, stop, self._reconsume_times)

    def listener_returned(
        self, status: object, *, auto_commit: bool, suspend_millis: int, now_s: float
    ) -> Outcome:
        """Apply what the listener returned; a string equal to a status is that status.

        Args:
            status: Whatever came back.
            auto_commit: The context's value after the call.
            suspend_millis: The context's value after the call; -1 means the consumer's default.
            now_s: When the listener returned.

        Raises:
            RuntimeError: If no delivery is in hand.
        """
        outcomes = _WITH_AUTO_COMMIT if auto_commit else _WITHOUT_AUTO_COMMIT
        # Only these two are looked up: a user's object may not be hashable.
        outcome = outcomes.get(status) if status is None or isinstance(status, str) else None
        if outcome is None:
            outcome = outcomes[_NoStatus.UNKNOWN]._replace(problem=_no_status(status))
        return self._apply(outcome, suspend_millis, now_s)

    def listener_raised(
        self, now_s: float, *, auto_commit: bool = True, suspend_millis: int = DEFAULT_SUSPEND
    ) -> Outcome:
        """The listener raised: its batch is put back and counted. Arguments as in ``listener_returned``."""
        outcomes = _WITH_AUTO_COMMIT if auto_commit else _WITHOUT_AUTO_COMMIT
        return self._apply(outcomes[_NoStatus.RAISED], suspend_millis, now_s)

    def _apply(self, outcome: Outcome, suspend_millis: int, now_s: float) -> Outcome:
        stop = self._stop
        if not stop:
            raise RuntimeError("No messages are with the listener; next_delivery comes first.")
        self._stop = 0
        effect = outcome.effect
        if effect is _COMMIT:
            self._committed = self._next = stop
            self._reconsume_times = 0
        elif effect is _ACCUMULATE:
            self._next = stop
            self._reconsume_times = 0
        else:
            self._suspend(effect, now_s + self._settings.pause_s(suspend_millis))
        if now_s - self._delivered_s >= self._settings.consume_timeout_s and _may_time_out(outcome):
            return outcome._replace(return_type=ReturnType.TIME_OUT)
        return outcome

    def _suspend(self, effect: Effect, until_s: float) -> None:
        if effect is Effect.PUT_BACK:
            self._reconsume_times += 1
        elif self._next > self._committed:
            self._next = self._committed
            self._reconsume_times = 0
        self._suspended_until_s = until_s
        self._finished = Finish.SUSPENDED


def _may_time_out(outcome: Outcome) -> bool:
    """Without a status the call was not slow but wrong (``ConsumeRequest.run`` tests this first)."""
    return outcome.return_type not in {ReturnType.EXCEPTION, ReturnType.RETURNNULL}


def _no_status(returned: object) -> str:
    shown = f"{returned!r:.80} " if isinstance(returned, str | int | float) else ""
    return (
        f"The listener returned {shown}of type {type(returned).__name__}, which is no ConsumeOrderlyStatus; return "
        "SUCCESS, SUSPEND_CURRENT_QUEUE_A_MOMENT, COMMIT or ROLLBACK. The messages are delivered again."
    )
