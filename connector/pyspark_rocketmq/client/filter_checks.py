"""Ask each server, once on each connection, whether it can filter by an SQL92 condition.

A broker that cannot compile the condition of a pull answers with all messages, and reports no error
(``ConsumerFilterManager.build`` returns null). Only the check request (CHECK_CLIENT_CONFIG) shows it. The
answer is valid for one connection: the server at an address may restart as an older version, and a slave may
be older than its master. So no pull with a condition is sent before its connection's server has accepted the
condition. A proxy accepts every condition.

Source: ``ClientManageProcessor.checkClientConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.responses import checked


def confirm_filter(channel: Channel, request: RemotingCommand, deadline: Deadline) -> None:
    """Send a check request, unless the server has accepted the same one on this connection.

    Raises:
        BrokerError: If the server refuses.
        TransportError: If it did not answer before ``deadline``.
    """
    if request.body not in channel.accepted_filters:
        checked(request, channel.request(request, deadline), channel.address)
        channel.accepted_filters.add(request.body)


@dataclass(frozen=True, slots=True)
class FilterCheck:
    """A check request that is not answered yet, and the pulls that wait for the answer."""

    request: RemotingCommand
    asked_s: float
    """When the request was sent, in seconds that the connection has waited for bytes."""
    frames: dict[int, bytes]
    """Frames of the waiting pulls, by number (``opaque``)."""


class FilterChecks:
    """The conditions that the server of one connection has accepted, and those that it was asked about."""

    def __init__(self) -> None:
        self._accepted: set[bytes] = set()
        """Bodies of the accepted check requests."""
        self._open: dict[int, FilterCheck] = {}
        """Unanswered checks, by number (``opaque``)."""

    def are_passed(self, request: RemotingCommand) -> bool:
        """Return whether the server has accepted the check request."""
        return request.body in self._accepted

    def hold(self, request: RemotingCommand, opaque: int, frame: bytes) -> bool:
        """Keep a pull's frame until ``request`` is answered; return False if that request was not sent yet.

        In that case the frame is not kept: the caller sends the request, and calls :meth:`asked`.
        """
        for check in self._open.values():
            if check.request.body == request.body:
                check.frames[opaque] = frame
                return True
        return False

    def asked(self, number: int, check: FilterCheck) -> None:
        """Note that a check request is sent with this ``number`` (``opaque``)."""
        self._open[number] = check

    def answered(self, number: int, *, is_accepted: bool) -> FilterCheck | None:
        """Note the answer with this number; return its check, or None if it answers another request."""
        check = self._open.pop(number, None)
        if check is not None and is_accepted:
            self._accepted.add(check.request.body)
        return check

    def asked_until(self, until_s: float) -> list[FilterCheck]:
        """Return the unanswered checks that were sent at ``until_s`` or before."""
        return [check for check in self._open.values() if check.asked_s <= until_s]

    def give_up(self, until_s: float) -> list[FilterCheck]:
        """Forget the unanswered checks that were sent at ``until_s`` or before, and return them."""
        numbers = [number for number, check in self._open.items() if check.asked_s <= until_s]
        return [self._open.pop(number) for number in numbers]
