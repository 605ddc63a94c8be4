"""The reaction of a query to each answer of a broker other than SUCCESS, for each kind of request. Pure.

The page docs/answers.md is generated from :func:`reaction`, and tests compare it with what planner, tasks and
writes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final

from pyspark_rocketmq.consume.not_now import is_pulled_again, is_sent_again, waits
from pyspark_rocketmq.errors import BrokerError, NoPermission, TopicNotFound
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.responses import error_of, lacks_queue

_SOME_OFFSET: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)


class Reaction(StrEnum):
    """Reaction of a query to an answer other than SUCCESS.

    If the broker keeps giving the answer, ``TRIES`` and ``FEW_TRIES`` end in an error. ``WAITS`` goes on,
    except that a drain (trigger ``availableNow``) fails after ``retryTimeoutMs``.
    """

    WAITS = "waits"
    """The queue or the broker is asked again, mostly after 3 s; other queues and brokers go on."""
    TRIES = "tries"
    """The request is sent again with growing pauses; an error after ``retryTimeoutMs``."""
    FEW_TRIES = "3 tries"
    """The request is tried three times within some seconds; an error if the third try fails."""
    ENDS = "error"
    """The query fails immediately."""
    LOSS = "loss"
    """Messages are lost; ``failOnDataLoss`` decides whether the query fails or goes on without them."""
    LEFT_OUT = "left out"
    """The broker does not have the topic: the plan leaves out the topic's queues at this broker."""
    SINGLY = "queue by queue"
    """The broker does not support the request; other requests replace it, one for each queue."""
    STORED = "stored"
    """The message is stored, less safely than the broker is set up for; an error with ``requireSendOk``."""
    NONE_STORED = "none stored"
    """The group has no offset at the broker."""
    NO_ERROR = "no error"
    """No failure: there is nothing to read at this offset yet, or the broker corrects the offset."""


class Use(Enum):
    """Purpose of a request to a broker.

    The same request may serve several purposes, and an answer may then have different consequences.
    """

    BOUNDS = RequestCode.GET_TOPIC_STATS_INFO, "a plan: where queues end"
    GROUP_OFFSETS = RequestCode.QUERY_CONSUMER_OFFSET, "a claim: the group's offsets"
    LOOK = RequestCode.PULL_MESSAGE, "a claim or a start: the newest message read"
    GROUP_TASK = RequestCode.PULL_MESSAGE, "a consumer's task"
    TASK = RequestCode.PULL_MESSAGE, "a task of a batch read or a plain stream"
    SEND = RequestCode.SEND_MESSAGE_V2, "a write to a given queue"

    @property
    def request(self) -> RequestCode:
        """The request's code."""
        return self.value[0]

    @property
    def title(self) -> str:
        """Sender and purpose of the request."""
        return self.value[1]


_SPECIAL: Final[Mapping[tuple[Use, int], Reaction]] = {
    (Use.BOUNDS, ResponseCode.TOPIC_NOT_EXIST): Reaction.LEFT_OUT,
    (Use.BOUNDS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED): Reaction.SINGLY,
    (Use.GROUP_OFFSETS, ResponseCode.QUERY_NOT_FOUND): Reaction.NONE_STORED,
    # The topic was there a moment ago: the route named the queue.
    (Use.SEND, ResponseCode.TOPIC_NOT_EXIST): Reaction.TRIES,
    (Use.SEND, ResponseCode.FLUSH_DISK_TIMEOUT): Reaction.STORED,
    (Use.SEND, ResponseCode.FLUSH_SLAVE_TIMEOUT): Reaction.STORED,
    (Use.SEND, ResponseCode.SLAVE_NOT_AVAILABLE): Reaction.STORED,
    (Use.TASK, ResponseCode.TOPIC_NOT_EXIST): Reaction.LOSS,
}


def reaction(use: Use, code: int, remark: str = "", *, has_worked: bool) -> Reaction:
    """Return the reaction of a query when a broker answers ``use`` with ``code``.

    Args:
        use: The request.
        code: Code of the answer, other than SUCCESS.
        remark: The server's text.
        has_worked: Whether the cluster has served the query before.
    """
    if use.request == RequestCode.PULL_MESSAGE and code in _SOME_OFFSET:
        return Reaction.NO_ERROR
    special = _SPECIAL.get((use, code))
    if special is not None:
        return special
    if use is Use.TASK and lacks_queue(code, remark):
        return Reaction.LOSS
    error = error_of(RemotingCommand(code=use.request), RemotingCommand(code=code, remark=remark), "")
    if use in {Use.BOUNDS, Use.LOOK}:
        return _of_a_plan(use, error, has_worked=has_worked)
    if use is Use.GROUP_OFFSETS:
        is_final = isinstance(error, NoPermission) and not waits(error, has_worked=True)
        return Reaction.ENDS if is_final else Reaction.WAITS
    return _of_a_task(use, error, has_worked=has_worked)


def _of_a_task(use: Use, error: BrokerError, *, has_worked: bool) -> Reaction:
    if use is Use.SEND:
        if is_sent_again(error, has_worked=has_worked):
            return Reaction.TRIES
        return Reaction.FEW_TRIES if is_sent_again(error, has_worked=True) else Reaction.ENDS
    is_group_read = use is Use.GROUP_TASK
    if is_group_read and waits(error, has_worked=has_worked):
        return Reaction.WAITS
    is_again = is_pulled_again(error, is_group_read=is_group_read, has_worked=has_worked)
    return Reaction.TRIES if is_again else Reaction.ENDS


def _of_a_plan(use: Use, error: BrokerError, *, has_worked: bool) -> Reaction:
    """Return the reaction to an error of ``Use.BOUNDS`` or ``Use.LOOK``: wait, try a few times, or end."""
    if isinstance(error, TopicNotFound):
        return Reaction.WAITS
    if (has_worked or use is Use.LOOK) and waits(error, has_worked=has_worked):
        return Reaction.WAITS
    return Reaction.FEW_TRIES if error.may_pass(has_worked=True) else Reaction.ENDS
