"""What a server's answer means: success, or which error. One table for all requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_rocketmq.client.outgoing import describe_request
from pyspark_rocketmq.errors import (
    BrokerError,
    NoPermission,
    OffsetNotFound,
    SubscriptionNotLatest,
    SystemBusy,
    TopicNotFound,
)
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand

_ERRORS: Final[Mapping[int, type[BrokerError]]] = {
    ResponseCode.SYSTEM_BUSY: SystemBusy,
    ResponseCode.SERVICE_NOT_AVAILABLE: SystemBusy,
    ResponseCode.FLOW_CONTROL: SystemBusy,
    ResponseCode.NO_PERMISSION: NoPermission,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    # QUERY_NOT_FOUND: the requests of this package get it for consumer offsets only.
    ResponseCode.QUERY_NOT_FOUND: OffsetNotFound,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionNotLatest,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionNotLatest,
}
"""Every other code is a plain ``BrokerError``, which is not tried again."""


def error_of(request: RemotingCommand, answer: RemotingCommand, address: str) -> BrokerError:
    """The error that ``answer`` stands for; its text says what was asked of whom."""
    kind = _ERRORS.get(answer.code, BrokerError)
    remark = answer.remark or _name_of(answer.code)
    return kind(answer.code, remark, request=describe_request(request), address=address)


def checked(request: RemotingCommand, answer: RemotingCommand, address: str) -> RemotingCommand:
    """``answer`` itself if its code is SUCCESS.

    The remark says nothing: even a success may carry "not set any response code".

    Raises:
        BrokerError: If it is any other code; the subclass tells the common ones apart.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise error_of(request, answer, address)
    return answer


def _name_of(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return "no reason given"
