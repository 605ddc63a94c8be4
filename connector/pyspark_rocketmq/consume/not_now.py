"""Interprets a server's refusal: either "not now", or an error that the user must act on. No I/O.

A Java consumer pulls again after 3 s whatever its broker answered (``PullCallback.onException``). A query
that the cluster has served before does the same, but only for the queue or the broker in question. At the
query's first contact with the cluster, most refusals end the query. ``RocketMQError.may_pass`` decides which
errors are final.

Source: ``DefaultMQPushConsumerImpl.pullMessage``, ``pullTimeDelayMillsWhenException``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic, TypeVar

from pyspark_rocketmq.errors import BrokerError, ConsumptionForbidden, RocketMQError
from pyspark_rocketmq.wire.codes import RETRIED_BY_PRODUCERS, ResponseCode

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

REFUSED_PAUSE_S: Final = 3.0
"""Pause after a refusal, in seconds (``DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException``)."""


def waits(error: RocketMQError, *, has_worked: bool) -> bool:
    """Return whether a query of a group or a plain stream waits and asks again after ``error``.

    The query always waits after a ``retryable`` error, and if an operator has switched off reading. If the
    cluster has served the query before (``has_worked``), it also waits after an error with ``passes_later``.
    Every other error ends the query.
    """
    return isinstance(error, ConsumptionForbidden) or error.may_pass(has_worked=has_worked)


def is_unexplained(error: RocketMQError) -> bool:
    """Return whether a server's error code explains nothing: SYSTEM_ERROR (any failure), or an unknown code.

    Such a code may come at any moment, so a reader tries again a few times even at first contact.
    """
    return type(error) is BrokerError


def reports_no_members(error: RocketMQError) -> bool:
    """Return whether a refused request for a group's members means that the server knows no member.

    Brokers and proxies then answer SYSTEM_ERROR, a broker with the remark "no consumer for this group" and a
    proxy with the text of an exception. Any other refusal says nothing about members.

    Source: ``ConsumerManageProcessor.getConsumerListByGroup``, ``ConsumerManagerActivity``.
    """
    return (
        isinstance(error, BrokerError) and is_unexplained(error) and error.code == ResponseCode.SYSTEM_ERROR
    )


def is_pulled_again(error: RocketMQError, *, is_group_read: bool, has_worked: bool) -> bool:
    """Return whether a task that reads a range repeats a failed pull after a pause.

    The task repeats pulls until its time is up: ``retryTimeoutMs``, in a group at most 10 s. Any reader
    repeats a pull after a ``retryable`` error. After another error:

    * A group repeats the pull only if the error is unexplained (:func:`is_unexplained`) and nothing has been
      read yet (``has_worked`` is false). Otherwise the range ends there, so that its queue rests and the
      other queues go on.
    * Any other reader repeats the pull if the error is unexplained or may pass.

    Args:
        error: The pull's error.
        is_group_read: Whether a consumer group reads; any other reader needs the whole range.
        has_worked: Whether the query has read a message before, or this task has read one of the range.
    """
    if error.retryable:
        return True
    if is_group_read:
        return not has_worked and is_unexplained(error)
    return is_unexplained(error) or error.may_pass(has_worked=has_worked)


def is_sent_again(error: RocketMQError, *, has_worked: bool) -> bool:
    """Return whether a write sends a batch again to the queue that refused it, while its time is not up.

    A write does so after a ``retryable`` error. After a code that explains nothing (:func:`is_unexplained`)
    it does so only if Java's producer retries this code, and the queue's cluster has accepted messages before
    (``has_worked``).
    """
    if error.retryable:
        return True
    is_java_s = isinstance(error, BrokerError) and error.code in RETRIED_BY_PRODUCERS
    return has_worked and is_java_s and is_unexplained(error)


def sorted_out(
    outcomes: Mapping[Key, T | RocketMQError], *, has_worked: bool
) -> tuple[dict[Key, T], dict[Key, RocketMQError]]:
    """Separate ``outcomes`` into the answers and the errors that mean "not now"; return both, by key.

    Raises:
        RocketMQError: The first error for which a query does not wait (see :func:`waits`).
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
    """Queues or brokers that refused a request, and get no further request for 3 s.

    Times are monotonic seconds. A server that did not answer at all needs no rest: waiting for its answer
    took long enough.
    """

    def __init__(self) -> None:
        self._until: dict[Key, tuple[float, RocketMQError]] = {}

    def among(self, keys: Collection[Key], now_s: float) -> dict[Key, RocketMQError]:
        """Return those of the ``keys`` that rest now, each with the error by which it refused."""
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
