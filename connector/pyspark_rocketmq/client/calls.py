"""Send any request to one broker and return its answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.identity import confirm, confirm_soon
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.framing import Outgoing
from pyspark_rocketmq.wire.requests.header_fields import Header, to_ext_fields
from pyspark_rocketmq.wire.requests.headers import OffsetResponseHeader
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.responses import checked, header_of


def command_of(code: RequestCode, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    """Return a request with this code, the header's fields (none without a header) and the body."""
    return RemotingCommand(code=code, ext_fields={} if header is None else to_ext_fields(header), body=body)


class BrokerCalls:
    """Sends requests to brokers through a pool, each within a time-out.

    A request for a named broker is not sent to a server that gives another name.
    """

    def __init__(self, pool: ChannelPool, clock: Clock, timeout_s: float) -> None:
        self._pool = pool
        self._clock = clock
        self.timeout_s = timeout_s
        """Maximum seconds for connection and answer together."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds."""
        return int(self._clock.now_s() * 1000)

    def deadline(self) -> Deadline:
        """Return the deadline of a call that begins now."""
        return Deadline.after(self._clock, self.timeout_s)

    def pull_deadline(self, request: PullRequest) -> Deadline:
        """Return the deadline of a pull that begins now.

        If the broker may hold the pull, the hold time and the broker's delay in checking it (5 s) are added
        to the time-out.
        """
        return Deadline.after(self._clock, request.longest_hold_s + self.timeout_s)

    def channel(self, address: str, deadline: Deadline, broker_name: str) -> Channel:
        """Return this process's connection to the address, opened if there is none.

        If ``broker_name`` is not empty, first ask the server for its name, once for each connection. A server
        that does not give its name is accepted.

        Raises:
            WrongBroker: If the server gives another name.
            TransportError: If there is no connection, or no answer with the name, by ``deadline``.
            BrokerError: If the server is too busy to give its name, or is shutting down.
        """
        channel = self._pool.get(address, deadline)
        if broker_name:
            confirm(channel, broker_name, deadline)
        return channel

    def ask(self, address: str, code: RequestCode, header: Header, broker_name: str = "") -> RemotingCommand:
        """Send a request that has only a header; return its answer, or raise like :meth:`call`."""
        return self.call(address, command_of(code, header), broker_name=broker_name)

    def call(
        self,
        address: str,
        command: RemotingCommand,
        deadline: Deadline | None = None,
        *,
        broker_name: str = "",
    ) -> RemotingCommand:
        """Send a request and return its answer.

        Raises:
            TransportError: If no answer arrived by ``deadline`` (by default ``timeout_s`` from now), or if
                the server is another broker.
            BrokerError: If the broker refuses.
        """
        deadline = deadline or self.deadline()
        channel = self.channel(address, deadline, broker_name)
        return checked(command, channel.request(command, deadline), address)

    def oneway(self, address: str, command: RemotingCommand, broker_name: str) -> None:
        """Send a request that has no answer; wait only for a connection and the broker's name."""
        self.channel(address, self.deadline(), broker_name).oneway(command)

    def submit(
        self,
        address: str,
        request: Outgoing,
        broker_name: str,
        deadline: Deadline,
        on_outcome: Callable[[RemotingCommand | RocketMQError], object],
    ) -> None:
        """Begin to send a request, without waiting for a connection or an answer.

        First a connection is opened if there is none. If ``broker_name`` is not empty and the server has not
        given this name yet, the server is then asked for it. Another broker does not get the request.
        ``on_outcome`` is called exactly once, with the answer or the error.
        """

        def send(channel: Channel, refusal: RocketMQError | None) -> None:
            if refusal is None:
                channel.submit(request, on_outcome, deadline)
            else:
                on_outcome(refusal)

        def confirm_first(found: Channel | RocketMQError) -> None:
            if isinstance(found, RocketMQError):
                on_outcome(found)
            elif not broker_name:
                send(found, None)
            else:
                confirm_soon(found, broker_name, deadline, partial(send, found))

        self._pool.get_soon(address, deadline, confirm_first)

    def offset(self, address: str, code: RequestCode, header: Header, broker_name: str) -> int:
        """Send a request that has only a header; return the answer's offset, or raise like :meth:`call`."""
        answer = self.ask(address, code, header, broker_name)
        return header_of(OffsetResponseHeader, answer, address).offset
