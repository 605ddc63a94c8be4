"""Interprets a refusal: either "not now", or an error that the user must act on. No I/O.

A Java consumer pulls again after 3 s whatever its broker answered (``PullCallback.onException``). Here a
query that the cluster has served before does the same, but only for the queue or the broker in question; at
first contact most refusals end it. ``RocketMQError.may_pass`` decides which errors are final.

Source: ``DefaultMQPushConsumerImpl.pullMessage``, ``pullTimeDelayMillsWhenException``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic, TypeVar

from pyspark_rocketmq.errors import BrokerError, ConsumptionForbidden, RocketMQError
from pyspark_rocketmq.wire.codes import RETRIED_BY_PRODUCERS

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

REFUSED_PAUSE_S: Final = 3.0
"""Pause after a refusal (``DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException``)."""


def waits(error: RocketMQError, *, has_worked: bool) -> bool:
    """Return whether a group or a plain stream waits and asks again instead of ending with ``error``.

    If an operator has switched off reading, they wait even at first contact.
    """
    return isinstance(error, ConsumptionForbidden) or error.may_pass(has_worked=has_worked)


def is_unexplained(error: RocketMQError) -> bool:
    """Return whether a server's code explains nothing: SYSTEM_ERROR (any failure in it), or an unknown one.

    Such a code may come at any moment, so a reader tries again a few times even at first contact.
    """
    return type(error) is BrokerError


def is_pulled_again(error: RocketMQError, *, is_group_read: bool, has_worked: bool) -> bool:
    """Return whether a task that reads a range pulls again after a pause, while its time is not up.

    That time is ``retryTimeoutMs``, in a group at most 10 s (``fetch_window``).
    After an error that is not ``retryable``, a group that has worked before ends the range where it is, so
    that the queue rests and the others go on.

    Args:
        error: The pull's error.
        is_group_read: Whether a consumer group reads; any other reader needs the whole range.
        has_worked: Whether the query has read a message before, or the task one of this range.
    """
    if error.retryable:
        return True
    if is_group_read:
        return not has_worked and is_unexplained(error)
    return is_unexplained(error) or error.may_pass(has_worked=has_worked)


def is_sent_again(error: RocketMQError, *, has_worked: bool) -> bool:
    """Return whether a write sends a batch again to the queue that refused it, while its time is not up.

    A code that explains nothing counts as "not now" if Java's producer retries it and the queue's cluster has
    accepted messages before.
    """
    if error.retryable:
        return True
    is_java_s = isinstance(error, BrokerError) and error.code in RETRIED_BY_PRODUCERS
    return has_worked and is_java_s and is_unexplained(error)


def sorted_out(
    outcomes: Mapping[Key, T | RocketMQError], *, has_worked: bool
) -> tuple[dict[Key, T], dict[Key, RocketMQError]]:
    """Return the answers, and the errors that mean "not now".

    Raises:
        RocketMQError: The first final error.
    """
    answers: dict[Key, T] = {}
    waiting: dict[Key, RocketMQError] = {}
    for key, outcome in outcomes.items():
        if not isinstance(outcome, RocketMQError):
            answers[key] = outcome
        elif waits(outcome, has_worked=has_worked):
            waiting[key] = outcome
        else:
            raise outcome
    return answers, waiting


class Rests(Generic[Key]):
    """Queues or brokers that refused a request a moment ago and get no other one for a while.

    Times are monotonic seconds. A server that did not answer at all needs no rest: the time-out was one.
    """

    def __init__(self) -> None:
        self._until: dict[Key, tuple[float, RocketMQError]] = {}

    def among(self, keys: Collection[Key], now_s: float) -> dict[Key, RocketMQError]:
        """Return the ``keys`` that rest now, each with its refusal."""
        return {
            key: error for key, (until_s, error) in self._until.items() if key in keys and now_s < until_s
        }

    def note(self, outcomes: Mapping[Key, object], now_s: float) -> None:
        """Note the outcomes: a refusal begins a rest, and any other outcome ends it."""
        for key, outcome in outcomes.items():
            if isinstance(outcome, BrokerError):
                self._until[key] = now_s + REFUSED_PAUSE_S, outcome
            else:
                self._until.pop(key, None)
