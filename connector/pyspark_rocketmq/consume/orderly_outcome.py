"""What a listener's answer means: how its call ended, and what becomes of the messages.

The table is Java's ``ConsumeMessageOrderlyService.processConsumeResult`` (5.3.3) before it has counted anything.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple

from pyspark_rocketmq.model import ConsumeOrderlyStatus


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
    SEND_BACK = "SEND_BACK"
    """``dead_letters`` are to be sent first; what then happens is the outcome of ``sent_back``. Their rows are void."""


class Outcome(NamedTuple):
    """What a listener call led to."""

    return_type: ReturnType
    effect: Effect
    problem: str | None = None
    """A sentence for the user where the listener broke its contract; queue and offset are for the caller to add."""
    dead_letters: tuple[int, ...] = ()
    """Messages to send as dead letters, in this order; only with ``SEND_BACK``."""


class _NoStatus(Enum):
    """Ends of a listener call without a status."""

    RAISED = "RAISED"
    UNKNOWN = "UNKNOWN"


_ROLLBACK_IGNORED = (
    "The listener returned ROLLBACK with auto_commit=True, which commits the messages as in the Java client; "
    "set context.auto_commit = False to roll back, or return SUSPEND_CURRENT_QUEUE_A_MOMENT to retry."
)
_WANTED = (
    "return SUCCESS, SUSPEND_CURRENT_QUEUE_A_MOMENT, COMMIT or ROLLBACK. The messages are delivered again."
)
_RETURNED_NONE = f"The listener returned None, which is no ConsumeOrderlyStatus; {_WANTED}"

# fmt: off
_WITH_AUTO_COMMIT: dict[object, Outcome] = {
    ConsumeOrderlyStatus.SUCCESS:  Outcome(ReturnType.SUCCESS, Effect.COMMIT),
    ConsumeOrderlyStatus.COMMIT:   Outcome(ReturnType.SUCCESS, Effect.COMMIT),
    ConsumeOrderlyStatus.ROLLBACK: Outcome(ReturnType.SUCCESS, Effect.COMMIT, _ROLLBACK_IGNORED),
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: Outcome(ReturnType.FAILED, Effect.PUT_BACK),
    None:                          Outcome(ReturnType.RETURNNULL, Effect.PUT_BACK, _RETURNED_NONE),
    _NoStatus.RAISED:              Outcome(ReturnType.EXCEPTION, Effect.PUT_BACK),
    _NoStatus.UNKNOWN:             Outcome(ReturnType.FAILED, Effect.PUT_BACK),
}
_WITHOUT_AUTO_COMMIT: dict[object, Outcome] = {
    ConsumeOrderlyStatus.SUCCESS:  Outcome(ReturnType.SUCCESS, Effect.ACCUMULATE),
    ConsumeOrderlyStatus.COMMIT:   Outcome(ReturnType.SUCCESS, Effect.COMMIT),
    ConsumeOrderlyStatus.ROLLBACK: Outcome(ReturnType.SUCCESS, Effect.ROLL_BACK),
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: Outcome(ReturnType.FAILED, Effect.PUT_BACK),
    None:                          Outcome(ReturnType.RETURNNULL, Effect.PUT_BACK, _RETURNED_NONE),
    _NoStatus.RAISED:              Outcome(ReturnType.EXCEPTION, Effect.PUT_BACK),
    _NoStatus.UNKNOWN:             Outcome(ReturnType.FAILED, Effect.PUT_BACK),
}
# fmt: on


SUCCESSES = frozenset({ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT})
"""The answers that count as success for hooks."""
_STATUSES = {str(status): status for status in ConsumeOrderlyStatus}


def status_of(answer: object) -> ConsumeOrderlyStatus:
    """The status an answer counts as; what is none puts the messages back."""
    found = _STATUSES.get(answer) if isinstance(answer, str) else None
    return found or ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


def outcome_of(status: object, *, auto_commit: bool) -> Outcome:
    """The outcome of a call that returned ``status``; a string equal to a status is that status."""
    outcomes = _WITH_AUTO_COMMIT if auto_commit else _WITHOUT_AUTO_COMMIT
    # Only these two are looked up: a user's object may not be hashable.
    outcome = outcomes.get(status) if status is None or isinstance(status, str) else None
    if outcome is None:
        return outcomes[_NoStatus.UNKNOWN]._replace(problem=_no_status(status))
    return outcome


def outcome_of_exception(*, auto_commit: bool) -> Outcome:
    """The outcome of a call that raised."""
    return (_WITH_AUTO_COMMIT if auto_commit else _WITHOUT_AUTO_COMMIT)[_NoStatus.RAISED]


def _no_status(returned: object) -> str:
    shown = f"{returned!r:.80} " if isinstance(returned, str | int | float) else ""
    return f"The listener returned {shown}of type {type(returned).__name__}, which is no ConsumeOrderlyStatus; {_WANTED}"
