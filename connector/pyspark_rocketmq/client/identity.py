"""Which broker a server is, by its own words: an address is not a broker.

Brokers that restart may come back at each other's address, or at one that another broker had, while routes
are up to 30 s old and name servers up to two minutes. So each new connection begins with the question for the
broker's name, and what is meant for another broker is not sent. A server that does not say its name is taken
for what its route calls it: a RocketMQ 5 Proxy, which finds the broker by itself, and a managed cluster's
gateway. Source: ``AdminBrokerProcessor.getBrokerConfig``, which every user may ask for.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import WrongBroker
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.responses import error_of

WHO: Final = RemotingCommand(code=RequestCode.GET_BROKER_CONFIG)
"""The question. The answer may contain secrets of the broker: no log shows it."""
UNKNOWN: Final = ""
"""Name of a server that does not say it."""
_NAME: Final = re.compile(rb"^brokerName=(.*?)\r?$", re.MULTILINE)


def name_in(answer: RemotingCommand, address: str) -> str:
    """Return the broker's name in its answer to :data:`WHO`, or :data:`UNKNOWN`.

    Raises:
        BrokerError: If the server is busy or leaves, so that the question is to be asked again.
    """
    if answer.code != ResponseCode.SUCCESS:
        error = error_of(WHO, answer, address)
        if error.retryable:
            raise error
        return UNKNOWN
    found = _NAME.search(answer.body)
    return UNKNOWN if found is None else found[1].decode(errors="replace")


def check_name(address: str, is_named: str, wanted: str) -> None:
    """Compare a server's name with the one that its route gives it.

    Raises:
        WrongBroker: If it is another broker.
    """
    if is_named not in {wanted, UNKNOWN}:
        raise WrongBroker(address, f"it is {is_named}, and {wanted} was expected there")


def confirm(channel: Channel, broker_name: str, deadline: Deadline) -> None:
    """Ask a server for its name, once for each connection, and again where it is not the wanted one.

    Raises:
        WrongBroker: If it is another broker.
        TransportError, BrokerError: If it did not answer before ``deadline``.
    """
    if channel.broker_name not in {broker_name, UNKNOWN}:
        # A connection that has fallen silent to another broker must not stand in the way of a new one.
        left_s = deadline.remaining_s()
        answer = channel.request(WHO, deadline)
        # The rest of a slow server's time is too short for a second answer: that must not end the channel.
        channel.answered_after(left_s - deadline.remaining_s())
        channel.broker_name = name_in(answer, channel.address)
        check_name(channel.address, channel.broker_name, broker_name)
