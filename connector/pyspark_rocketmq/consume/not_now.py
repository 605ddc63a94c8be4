"""The meaning of an answer that is no success: "not now", or an error that the user must act on. Pure.

A Java consumer pulls again after 3 s whatever its broker answered (``PullCallback.onException``). Here a
query that the cluster has served before does the same, for the queue or the broker in question only; at
first contact it ends with the error. Which errors are final, ``RocketMQError.may_pass`` decides.

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
"""``DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException``."""


def waits(error: RocketMQError, *, has_worked: bool) -> bool:
    """Whether a group or a plain stream waits and asks again, in place of ending with ``error``.

    Reading that an operator has switched off is waited for at first contact, too.
    """
    return isinstance(error, ConsumptionForbidden) or error.may_pass(has_worked=has_worked)


def is_unexplained(error: RocketMQError) -> bool:
    """Whether a server gave a code that says nothing: SYSTEM_ERROR for whatever failed in it, or one unknown.

    A reader may meet one at any moment, so that it tries again a few times even at first contact.
    """
    return type(error) is BrokerError


def is_pulled_again(error: RocketMQError, *, is_group_read: bool, has_worked: bool) -> bool:
    """Whether a task that reads a range pulls again, after a pause and for as long as its patience lasts.

    The range of a group that has worked ends where it is instead: the queue rests, the others go on.

    Args:
        error: Of the pull.
        is_group_read: Whether a consumer group reads; any other reader needs the whole range.
        has_worked: Whether the query, or this task, has read a message before.
    """
    if error.retryable:
        return True
    if is_group_read:
        return not has_worked and is_unexplained(error)
    return is_unexplained(error) or error.may_pass(has_worked=has_worked)


def is_sent_again(error: RocketMQError, *, has_worked: bool) -> bool:
    """Whether a write sends a batch again to the queue that refused it, for as long as it has time.

    A code that says nothing, of those that Java's producer tries again, counts as "not now" once the queue's
    cluster has taken messages.
    """
    if error.retryable:
        return True
    is_java_s = isinstance(error, BrokerError) and error.code in RETRIED_BY_PRODUCERS
    return has_worked and is_java_s and is_unexplained(error)


def sorted_out(
    outcomes: Mapping[Key, T | RocketMQError], *, has_worked: bool
) -> tuple[dict[Key, T], dict[Key, RocketMQError]]:
    """The answers, and the errors that mean "not now".

    Raises:
        RocketMQError: The first one that is final.
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
    """Queues or brokers that refused a request a moment ago and are left alone for a while.

    Times are monotonic seconds. A server that did not answer at all has no rest: the time-out was one.
    """

    def __init__(self) -> None:
        self._until: dict[Key, tuple[float, RocketMQError]] = {}

    def among(self, keys: Collection[Key], now_s: float) -> dict[Key, RocketMQError]:
        """Return the ``keys`` that rest now, each with its refusal."""
        return {
            key: error for key, (until_s, error) in self._until.items() if key in keys and now_s < until_s
        }

    def note(self, outcomes: Mapping[Key, object], now_s: float) -> None:
        """Take in what was answered: a refusal begins a rest, and any other outcome ends it."""
        for key, outcome in outcomes.items():
            if isinstance(outcome, BrokerError):
                self._until[key] = now_s + REFUSED_PAUSE_S, outcome
            else:
                self._until.pop(key, None)
