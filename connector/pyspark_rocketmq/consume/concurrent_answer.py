"""What a concurrent listener's answer means: which messages of its delivery are done, and what becomes of the others.

Source: RocketMQ 5.3.3 ``ConsumeMessageConcurrentlyService.ConsumeRequest.run``, ``processConsumeResult``.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from pyspark_rocketmq.consume.orderly_outcome import ReturnType
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus

ACK_ALL: Final = sys.maxsize
"""A context's ackIndex that no listener has touched: every message is done."""
BROKER_DECIDES: Final = 0
"""A context's delay level that no listener has touched: 3 + the message's reconsume times."""


class Answer(NamedTuple):
    """How one listener call ended."""

    return_type: ReturnType
    acknowledged: int
    """Messages done, counted from the delivery's first; the others have failed."""
    delay_level: int
    """For those that failed: 0 the broker decides, -1 a dead letter at once, else the level."""
    problem: str | None = None
    """A sentence for the user where the listener broke its contract."""

    def ended_after(self, lasted_s: float, timeout_s: float) -> ReturnType:
        """How a call that took so long ended, for hooks."""
        may_be_slow = self.return_type not in {ReturnType.EXCEPTION, ReturnType.RETURNNULL}
        return ReturnType.TIME_OUT if lasted_s >= timeout_s and may_be_slow else self.return_type


def answer_of(status: object, *, ack_index: object, delay_level: object, count: int) -> Answer:
    """The meaning of a returned value; a string equal to a status is that status.

    Args:
        status: Whatever the listener returned.
        ack_index: The context's: index of the last message that is done; counts with CONSUME_SUCCESS only.
        delay_level: The context's.
        count: Messages of the delivery.
    """
    level, level_problem = _whole(delay_level, "delay_level_when_next_consume", BROKER_DECIDES)
    if status is None:
        return Answer(ReturnType.RETURNNULL, 0, level, _RETURNED_NONE)
    if status == ConsumeConcurrentlyStatus.RECONSUME_LATER:
        return Answer(ReturnType.FAILED, 0, level, level_problem)
    if status != ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
        return Answer(ReturnType.FAILED, 0, level, _no_status(status))
    index, index_problem = _whole(ack_index, "ack_index", -1)
    return Answer(ReturnType.SUCCESS, max(0, min(index + 1, count)), level, index_problem or level_problem)


def answer_of_failure(*, delay_level: object) -> Answer:
    """The meaning of an exception: every message has failed."""
    level, problem = _whole(delay_level, "delay_level_when_next_consume", BROKER_DECIDES)
    return Answer(ReturnType.EXCEPTION, 0, level, problem)


def _whole(value: object, name: str, otherwise: int) -> tuple[int, str | None]:
    if isinstance(value, int):
        return int(value), None
    return otherwise, (
        f"The listener set context.{name} to a {type(value).__name__}; it must be a whole number. {otherwise} is "
        "taken instead."
    )


_WANTED = "return CONSUME_SUCCESS or RECONSUME_LATER. The messages are sent back."
_RETURNED_NONE = f"The listener returned None, which is no ConsumeConcurrentlyStatus; {_WANTED}"


def _no_status(returned: object) -> str:
    shown = f"{returned!r:.80} " if isinstance(returned, str | int | float) else ""
    return f"The listener returned {shown}of type {type(returned).__name__}, which is no ConsumeConcurrentlyStatus; {_WANTED}"
