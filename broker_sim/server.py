"""The sockets of one name server or broker: bytes to commands, commands to bytes, one timer.

What to answer is decided by the :class:`Endpoint`; this file only carries. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import Protocol

from broker_sim.faults import Cut, DropConnection, Fail, FaultScript
from broker_sim.layout import UNKNOWN_HOST, Host
from broker_sim.peers import Outgoing, Peer
from broker_sim.replies import reply
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder

_logger = logging.getLogger(__name__)

_IP = "127.0.0.1"
_SCAN_INTERVAL_S = 10.0  # ClientHousekeepingService


class Endpoint(Protocol):
    """What a server serves; called from the event loop only, never blocks."""

    @property
    def name(self) -> str:
        """Broker name or ``namesrv``."""
        ...

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Take a request; what is to be sent now, to whomever."""
        ...

    def connection_closed(self, peer: Peer) -> list[Outgoing]:
        """A connection ended; what is to be sent to others."""
        ...

    def look_at_clock(self) -> list[Outgoing]:
        """Time went on; what is to be sent."""
        ...

    def next_deadline_s(self) -> float | None:
        """Monotonic time of the next due work, None without any."""
        ...


class EndpointServer:
    """Listens on one port of the loopback interface; may be stopped and started again on the same port."""

    def __init__(self, endpoint: Endpoint, clock: Clock, faults: FaultScript) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._faults = faults
        self._connections: dict[int, _Connection] = {}
        self._connection_ids = count(1)
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline_s = 0.0
        self._scan: asyncio.TimerHandle | None = None

    async def start(self, port: int) -> Host:
        """Listen on ``port`` (0: any free one) and return the address."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: _Connection(self), _IP, port, start_serving=False)
        self._listener = listener  # before the first connection can come
        await listener.start_serving()
        self._scan = loop.call_later(_SCAN_INTERVAL_S, self._scan_members)
        self._arm_timer()
        return Host(_IP, int(listener.sockets[0].getsockname()[1]))

    async def stop(self) -> None:
        """Close the listener and every connection; does nothing when stopped already."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        listener.close()
        connections = list(self._connections.values())
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.lost for connection in connections))
        await listener.wait_closed()
        for timer in (self._timer, self._scan):
            if timer is not None:
                timer.cancel()
        self._timer = self._scan = None

    def look_at_clock(self) -> None:
        """Do what is due; needed by hand only after a fake clock was moved."""
        self._send(self._endpoint.look_at_clock())
        self._arm_timer()

    def opened(self, connection: _Connection) -> int:
        """Take a new connection and number it; too late after ``stop``, so it is closed again."""
        connection_id = next(self._connection_ids)
        self._connections[connection_id] = connection
        if self._listener is None:
            connection.abort()
        return connection_id

    def closed(self, peer: Peer) -> None:
        """Forget a connection."""
        self._connections.pop(peer.connection_id, None)
        self._send(self._endpoint.connection_closed(peer))

    def received(self, connection: _Connection, peer: Peer, command: RemotingCommand) -> None:
        """Serve one command, or do with it what the script says."""
        fault = None
        if self._faults.pending and not command.is_response:
            fault = self._faults.take_for_request(self._endpoint.name, command.code)
        if isinstance(fault, DropConnection):
            connection.abort()
        elif isinstance(fault, Fail):
            answer = reply(command, fault.response_code, "a scripted failure")
            if not command.is_oneway:
                self._send([Outgoing(peer, answer, command.code)])
        else:
            self._send(self._endpoint.handle(peer, command))
        self._arm_timer()

    def _send(self, outgoing: list[Outgoing]) -> None:
        for peer, command, request_code in outgoing:
            connection = self._connections.get(peer.connection_id)
            if connection is None:
                continue
            fault = None
            if self._faults.pending and command.is_response:
                fault = self._faults.take_for_response(self._endpoint.name, request_code)
            if fault is None:
                connection.send(encode_frame(command))
            elif isinstance(fault, Cut):
                connection.send(encode_frame(command)[: fault.keep_bytes])
                connection.close()

    def _arm_timer(self) -> None:
        deadline_s = self._endpoint.next_deadline_s()
        if deadline_s is None or self._listener is None:
            return
        if self._timer is not None:
            if self._timer_deadline_s <= deadline_s:
                return
            self._timer.cancel()
        self._timer_deadline_s = deadline_s
        wait_s = max(0.0, deadline_s - self._clock.monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.look_at_clock()

    def _scan_members(self) -> None:
        self._scan = asyncio.get_running_loop().call_later(_SCAN_INTERVAL_S, self._scan_members)
        self.look_at_clock()


class _Connection(asyncio.Protocol):
    """One accepted connection; bytes that are no protocol close it without an answer, as Netty does."""

    def __init__(self, server: EndpointServer) -> None:
        self._server = server
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._peer = Peer(0, UNKNOWN_HOST)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        ip, port = transport.get_extra_info("peername")[:2]
        self._peer = Peer(self._server.opened(self), Host(ip, port))

    def data_received(self, data: bytes) -> None:
        try:
            commands = self._decoder.feed(data)
        except RemoteProtocolError as error:
            _logger.warning("%s sent no remoting protocol and is disconnected: %s", self._peer.host, error)
            self.abort()
            return
        for command in commands:
            if self._transport is None or self._transport.is_closing():
                return
            self._server.received(self, self._peer, command)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._server.closed(self._peer)
        self.lost.set_result(None)

    def pause_writing(self) -> None:
        """The peer does not read its answers: take no more requests from it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Write, unless the connection is ending."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """End the connection after what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
