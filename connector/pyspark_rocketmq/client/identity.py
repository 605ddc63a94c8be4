"""Ask each server which broker it is, because an address does not identify a broker; and read its role.

A broker that restarts may get an address that another broker had. Routes are up to 30 s old then, and name
servers' data up to two minutes. So a connection asks for the server's name before the first request for a
broker that the caller names, and requests for another broker are not sent.

Some servers do not give their name: a RocketMQ 5 Proxy, which finds the broker by itself, a managed cluster's
gateway, and a broker that refuses the request. Such a server is assumed to be the broker that the route
names, and a warning is logged. Once a server has given a name, the connection keeps it, even if a later
answer has none. Two threads may ask at the same time: both get the same name.

Source: ``AdminBrokerProcessor.getBrokerConfig``, which every user may call.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import Final

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import RocketMQError, WrongBroker
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.responses import error_of

logger = logging.getLogger(__name__)

WHO: Final = RemotingCommand(code=RequestCode.GET_BROKER_CONFIG)
"""Request for a broker's configuration, which has its name, and perhaps secrets: never log the answer."""
UNKNOWN: Final = ""
"""Name (empty) of a server that does not give its name."""
_ASKED_AGAIN_S: Final = 60.0
"""Seconds after which a server that refused is asked again: the fault may pass, or rights may be granted."""
_NAME: Final = re.compile(rb"^brokerName=(.*?)\r?$", re.MULTILINE)

_NO_MASTER: Final = re.compile(rb"^(?:brokerRole=SLAVE|brokerId=-1)\r?$", re.MULTILINE)
"""Lines of a slave, and of a broker with DLedger that has no role yet (``BrokerStartup``)."""

_warned: set[str] = set()
"""Addresses for which this process has logged that their servers do not give their names."""


def name_in(answer: RemotingCommand, address: str) -> str:
    """Return the broker's name in its answer to :data:`WHO`, or :data:`UNKNOWN`.

    Raises:
        BrokerError: If the server is busy or shutting down, so that it must be asked again.
    """
    if answer.code != ResponseCode.SUCCESS:
        error = error_of(WHO, answer, address)
        if error.retryable:
            raise error
        return UNKNOWN
    found = _NAME.search(answer.body)
    return UNKNOWN if found is None else found[1].decode(errors="replace")


def is_slave_in(answer: RemotingCommand) -> bool:
    """Return whether the broker's answer to :data:`WHO` shows that it is a slave now.

    A broker with DLedger that has no role yet counts as a slave.
    """
    return _NO_MASTER.search(answer.body) is not None


def check_name(address: str, is_named: str, wanted: str) -> None:
    """Check that a server's name (``is_named``) is that of its route (``wanted``), or is :data:`UNKNOWN`.

    Raises:
        WrongBroker: If the server is another broker.
    """
    if is_named not in {wanted, UNKNOWN}:
        raise WrongBroker(address, f"it is {is_named}, and {wanted} was expected there")


def warn_of_unknown(address: str, wanted: str, answer: RemotingCommand) -> None:
    """Log once for each address that its server does not give its name, and what to do."""
    if address in _warned:
        return
    _warned.add(address)
    if answer.code in {ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}:
        remedy = (
            "This is normal for a RocketMQ 5 Proxy and for the gateway of a managed cluster, which find the "
            "broker themselves. Otherwise give each broker an address that no other broker gets."
        )
    else:
        remedy = (
            "Give this user the right to GET_BROKER_CONFIG (request code 26), which brokers answer to every "
            "user by default; or give each broker an address that no other broker gets."
        )
    logger.warning(
        "server does not report which broker it is, so it is taken for the broker that has this address in "
        "the topic's route. Brokers that exchange their addresses in a restart may be mixed up until the "
        "route is refreshed. broker=%s address=%s code=%d remark=%s. %s",
        peer_text(wanted),
        address,
        answer.code,
        peer_text(answer.remark or "none"),
        remedy,
    )


def confirm(channel: Channel, broker_name: str, deadline: Deadline) -> None:
    """Check that the server is broker ``broker_name``, or that it does not give its name.

    The server is asked once for each connection, and again if its name is not the wanted one. A server that
    refused is asked again after a minute.

    Raises:
        WrongBroker: If the server is another broker.
        TransportError, BrokerError: If it did not answer before ``deadline``, or is busy or shutting down.
    """
    if _is_confirmed(channel, broker_name, deadline):
        return
    # If the connection to another broker is silent, this request ends it, so that a new one can be opened.
    left_s = deadline.remaining_s()
    answer = channel.request(WHO, deadline)
    _take_in(channel, broker_name, answer, left_s, deadline)


def confirm_soon(
    channel: Channel,
    broker_name: str,
    deadline: Deadline,
    on_confirmed: Callable[[RocketMQError | None], object],
) -> None:
    """Check the server's name like :func:`confirm`, without waiting.

    ``on_confirmed`` is called exactly once, with None or the error; immediately if no request is necessary.
    """
    if _is_confirmed(channel, broker_name, deadline):
        on_confirmed(None)
        return
    left_s = deadline.remaining_s()

    def take_in(answer: RemotingCommand | RocketMQError) -> None:
        try:
            if isinstance(answer, RocketMQError):
                raise answer
            _take_in(channel, broker_name, answer, left_s, deadline)
        except RocketMQError as error:
            on_confirmed(error)
        else:
            on_confirmed(None)

    channel.submit(WHO, take_in, deadline)


def _is_confirmed(channel: Channel, broker_name: str, deadline: Deadline) -> bool:
    known = channel.broker_name
    if known == UNKNOWN:
        return deadline.clock.monotonic_s() < channel.is_asked_again_s
    return known == broker_name


def _take_in(
    channel: Channel, broker_name: str, answer: RemotingCommand, left_s: float, deadline: Deadline
) -> None:
    # After a slow answer the next request has little time left. Its time-out must not end the channel.
    channel.answered_after(left_s - deadline.remaining_s())
    name = name_in(answer, channel.address)
    if name != UNKNOWN:
        channel.broker_name = name
    elif channel.broker_name is None or channel.broker_name == UNKNOWN:
        is_refused = answer.code not in {ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
        again_s = deadline.clock.monotonic_s() + _ASKED_AGAIN_S
        channel.is_asked_again_s = again_s if is_refused else math.inf
        channel.broker_name = UNKNOWN
        warn_of_unknown(channel.address, broker_name, answer)
    check_name(channel.address, channel.broker_name, broker_name)
