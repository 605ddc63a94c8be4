"""The sockets of one name server or broker: its connections, its sends, and one timer.

The :class:`Endpoint` decides what to answer. Everything runs on one event loop. A stopped server keeps its
port: connections are refused meanwhile, and no other process gets it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Protocol

from broker_sim.connection import PLAIN, Connection, ServerTls, is_welcome
from broker_sim.faults import (
    AnswerFault,
    Cut,
    Delay,
    DropConnection,
    Fail,
    FaultScript,
    GoAway,
    HalfOpen,
    RequestFault,
    Stall,
    spoiled,
)
from broker_sim.layout import Host
from broker_sim.replies import Outgoing, Peer, in_json, reply
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import LocalProtocolError
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame

_logger = logging.getLogger(__name__)

_IP = "127.0.0.1"
_BACKLOG = 1024  # NettyServerConfig.serverSocketBacklog
_MOST_CONNECTIONS = 1_000
"""Maximum number of connections of one server; a real server has no limit."""
_MOST_HELD_BYTES = 128 << 20
"""Maximum size of one server's incomplete frames."""
_SCAN_INTERVAL_S = 10.0  # ClientHousekeepingService
_MAX_IDLE_S = 120.0  # NettyServerConfig.serverChannelMaxIdleTimeSeconds


def frame_of(command: RemotingCommand) -> bytes:
    """Encode a command as the bytes to send.

    A lone surrogate in a text becomes ``?`` (``String.getBytes``). A command that still cannot be encoded is
    replaced by an error answer.
    """
    try:
        return encode_frame(command)
    except LocalProtocolError:
        pass
    readable = replace(
        command,
        remark=None if command.remark is None else _java_text(command.remark),
        ext_fields={_java_text(name): _java_text(text) for name, text in command.ext_fields.items()},
    )
    try:
        return encode_frame(readable)
    except LocalProtocolError as error:
        failure = replace(command, code=ResponseCode.SYSTEM_ERROR, remark=str(error), ext_fields={}, body=b"")
        return encode_frame(failure)


def _java_text(text: str) -> str:
    return text.encode(errors="replace").decode()


class ReservedPort:
    """A port of the loopback interface, held by a socket that is bound and never listens.

    A port that is only closed may be given to any other process, even to the connection of a client that
    tries to reconnect. Listeners can bind to a held port with ``SO_REUSEADDR``, as asyncio's and Java's do.
    """

    def __init__(self, ip: str, port: int = 0) -> None:
        """Take ``port``, or a free one for 0.

        Raises:
            OSError: If another process listens there.
        """
        self._holder = socket.socket()
        try:
            self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._holder.bind((ip, port))
        except OSError:
            self._holder.close()
            raise
        self.ip = ip
        self.port = int(self._holder.getsockname()[1])

    def listener(self, backlog: int = 128) -> socket.socket:
        """Return a socket that listens on the port."""
        return socket.create_server((self.ip, self.port), backlog=backlog)

    def release(self) -> None:
        """Release the port; further calls do nothing."""
        self._holder.close()


class Endpoint(Protocol):
    """A name server or broker without sockets, which a server calls for the commands to send.

    It is called only from the event loop, and never blocks.
    """

    @property
    def name(self) -> str:
        """Broker name, ``broker-a:1`` for a replica, or ``namesrv``."""
        ...

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Handle a request; return all commands to send now, to any connection."""
        ...

    def connection_closed(self, peer: Peer) -> list[Outgoing]:
        """Handle the end of a connection; return the commands to send to others."""
        ...

    def look_at_clock(self) -> list[Outgoing]:
        """Do the work whose time has come; return the commands to send."""
        ...

    def next_deadline_s(self) -> float | None:
        """Return the monotonic time at which work is due next; None if there is none."""
        ...


class Around:
    """Base of an endpoint that answers some requests itself and passes the others on to an inner endpoint."""

    def __init__(self, inner: Endpoint, *, mirror_header_form: bool = False) -> None:
        self._inner = inner
        self._mirror_header_form = mirror_header_form

    @property
    def name(self) -> str:
        """Name of the inner endpoint."""
        return self._inner.name

    def connection_closed(self, peer: Peer) -> list[Outgoing]:
        """Report the closed connection to the inner endpoint."""
        return self._inner.connection_closed(peer)

    def look_at_clock(self) -> list[Outgoing]:
        """Do the inner endpoint's work that is due."""
        return self._inner.look_at_clock()

    def next_deadline_s(self) -> float | None:
        """Return the monotonic time at which the inner endpoint has work next; None if there is none."""
        return self._inner.next_deadline_s()

    def _refuse(
        self, peer: Peer, command: RemotingCommand, code: ResponseCode, remark: str
    ) -> list[Outgoing]:
        if command.is_oneway:
            return []
        answer = reply(command, code, remark)
        return [Outgoing(peer, answer if self._mirror_header_form else in_json(answer), command.code)]


class EndpointServer:
    """Listens on one port of the loopback interface; may be stopped and started again on the same port."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        faults: FaultScript,
        *,
        tls: ServerTls = PLAIN,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Prepare a server that does not listen yet.

        ``on_change`` is called after each request and after all work whose time has come.

        Raises:
            OSError: If a file of ``tls`` cannot be used.
        """
        self.clock = clock
        self._endpoint = endpoint
        self._faults = faults
        self._tls_mode = tls.mode
        self._tls_context = tls.context()
        self._on_change = on_change
        self._connections: dict[int, Connection] = {}
        self._forgotten: set[Connection] = set()
        self._connection_ids = count(1)
        self._held_bytes = 0
        self._listener: socket.socket | None = None
        self._accepted: set[asyncio.Task[object]] = set()
        """Connections that were accepted but not reported yet."""
        self._port: ReservedPort | None = None
        self._is_running = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline_s = 0.0
        self._scan: asyncio.TimerHandle | None = None
        self._delayed: list[tuple[float, int, Peer, bytes]] = []
        self._delayed_numbers = count()

    @property
    def connection_count(self) -> int:
        """Number of connections that are served now."""
        return len(self._connections)

    async def start(self, port: int) -> Host:
        """Listen on ``port`` (0: any free one) and return the address.

        A server that was started before listens on its former port again, whatever ``port`` is.
        """
        self._is_running = True
        if self._port is None:
            self._port = ReservedPort(_IP, port)
        self.listen()
        self._scan = asyncio.get_running_loop().call_later(_SCAN_INTERVAL_S, self._scan_members)
        self._arm_timer()
        return Host(_IP, self._port.port)

    async def stop(self) -> None:
        """Close the listener and every connection; does nothing when stopped already."""
        if not self._is_running:
            return
        self._is_running = False
        self.refuse()
        await asyncio.gather(*self._accepted)
        connections = [*self._connections.values(), *self._forgotten]
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.lost for connection in connections))
        for timer in (self._timer, self._scan):
            if timer is not None:
                timer.cancel()
        self._timer = self._scan = None
        self._delayed.clear()

    def listen(self) -> None:
        """Accept new connections from now on; do nothing if the server does so already."""
        if self._listener is not None:
            return
        assert self._port is not None, "started first"
        self._listener = self._port.listener(_BACKLOG)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def release_port(self) -> None:
        """Release the port after ``stop``; the server cannot be started again."""
        if self._port is not None:
            self._port.release()
            self._port = None

    def refuse(self) -> None:
        """Refuse new connections; existing ones stay."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def look_at_clock(self) -> None:
        """Do the work whose time has come, and close idle connections.

        The server does so itself, but not when a fake clock is moved: call this then.
        """
        self.do_due()
        self._close_silent()

    def _accept(self, listener: socket.socket) -> None:
        """Accept waiting connections.

        ``asyncio.Server`` is not used: if closed just when it accepts a connection, it leaks that
        connection's socket.
        """
        loop = asyncio.get_running_loop()
        for _ in range(_BACKLOG):
            try:
                connected, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            host = Host(*address)
            announced = loop.create_task(
                loop.connect_accepted_socket(partial(Connection, self, host), connected)
            )
            self._accepted.add(announced)
            announced.add_done_callback(self._accepted.discard)

    # --- called by connections -----------------------------------------------------------------------------

    def opened(self, connection: Connection) -> int:
        """Take a new connection; return its number.

        Close it immediately if the server is stopped, has 1,000 connections, or a scripted fault requires it.
        """
        connection_id = next(self._connection_ids)
        self._connections[connection_id] = connection
        fault = self._faults.take_for_connection(self._endpoint.name) if self._faults.pending else None
        is_one_too_many = len(self._connections) > _MOST_CONNECTIONS
        if is_one_too_many:
            _logger.warning("%s has %d connections and takes no more", self._endpoint.name, _MOST_CONNECTIONS)
        if not self._is_running or is_one_too_many or isinstance(fault, DropConnection):
            connection.abort()
        elif fault is not None:
            connection.stall()
        return connection_id

    def welcome(self, first_byte: int) -> bool:
        """Return whether a connection whose first byte is this one, TLS or plain, is served."""
        return is_welcome(first_byte, self._tls_mode, self._tls_context)

    def tls_context(self) -> ssl.SSLContext:
        """Return the context for the TLS handshake of a connection that is served."""
        assert self._tls_context is not None
        return self._tls_context

    def closed(self, connection: Connection, peer: Peer) -> None:
        """Forget a connection that has ended, and let the endpoint handle its end."""
        self._forgotten.discard(connection)
        if self._connections.pop(peer.connection_id, None) is not None:
            self._send(self._endpoint.connection_closed(peer))

    def may_hold(self, more: int) -> bool:
        """Add ``more`` to the bytes of unfinished frames of all connections; return whether that is allowed.

        Fewer bytes (a negative number) are always allowed.
        """
        self._held_bytes += more
        return more <= 0 or self._held_bytes <= _MOST_HELD_BYTES

    def received(self, connection: Connection, peer: Peer, command: RemotingCommand) -> None:
        """Let the endpoint handle one command, and send what it returns.

        If the script of faults has one for this request, that happens instead.
        """
        fault = None
        if self._faults.pending and not command.is_response:
            fault = self._faults.take_for_request(self._endpoint.name, command.code, command.version)
        if fault is None:
            self._send(self._endpoint.handle(peer, command))
            self._changed()
        else:
            self._fail(connection, peer, command, fault)
        self._arm_timer()

    # --- sending -------------------------------------------------------------------------------------------

    def _fail(
        self, connection: Connection, peer: Peer, command: RemotingCommand, fault: RequestFault
    ) -> None:
        match fault:
            case DropConnection():
                connection.abort()
            case Stall():
                connection.stall()
            case HalfOpen():
                connection.stall()
                self._forgotten.add(connection)
                del self._connections[peer.connection_id]
                self._send(self._endpoint.connection_closed(peer))
            case GoAway():
                self._answer_instead(connection, command, ResponseCode.GO_AWAY, "please go away")
            case Fail():
                self._answer_instead(connection, command, fault.response_code, fault.remark)

    def _answer_instead(
        self, connection: Connection, command: RemotingCommand, code: int, remark: str
    ) -> None:
        if not command.is_oneway:
            connection.send(encode_frame(reply(command, code, remark)))

    def _send(self, outgoing: list[Outgoing]) -> None:
        for peer, command, request_code in outgoing:
            connection = self._connections.get(peer.connection_id)
            if connection is None:
                continue
            fault = None
            if self._faults.pending and command.is_response:
                fault = self._faults.take_for_answer(self._endpoint.name, request_code)
            if fault is None:
                connection.send(frame_of(command))
            else:
                self._spoil(connection, peer, command, fault)

    def _spoil(
        self, connection: Connection, peer: Peer, command: RemotingCommand, fault: AnswerFault
    ) -> None:
        if isinstance(fault, Delay):
            due_s = self.clock.monotonic_s() + fault.seconds
            heapq.heappush(self._delayed, (due_s, next(self._delayed_numbers), peer, encode_frame(command)))
            return
        for piece in spoiled(fault, command):
            connection.send(piece)
        if isinstance(fault, Cut):
            connection.close()

    # --- time ----------------------------------------------------------------------------------------------

    def do_due(self) -> None:
        """Do the endpoint's work whose time has come, and send delayed answers; idle connections stay."""
        self._send(self._endpoint.look_at_clock())
        now_s = self.clock.monotonic_s()
        while self._delayed and self._delayed[0][0] <= now_s:
            _, _, peer, frame = heapq.heappop(self._delayed)
            connection = self._connections.get(peer.connection_id)
            if connection is not None:
                connection.send(frame)
        self._changed()
        self._arm_timer()

    def _close_silent(self) -> None:
        """Close connections without bytes in either direction for 120 s, even within a frame.

        Source: ``IdleStateHandler``.
        """
        oldest_s = self.clock.monotonic_s() - _MAX_IDLE_S
        for connection in [each for each in self._connections.values() if each.last_active_s <= oldest_s]:
            connection.abort()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _next_deadline_s(self) -> float | None:
        deadline_s = self._endpoint.next_deadline_s()
        if not self._delayed:
            return deadline_s
        return self._delayed[0][0] if deadline_s is None else min(deadline_s, self._delayed[0][0])

    def _arm_timer(self) -> None:
        deadline_s = self._next_deadline_s()
        if deadline_s is None or not self._is_running:
            return
        if self._timer is not None:
            if self._timer_deadline_s <= deadline_s:
                return
            self._timer.cancel()
        self._timer_deadline_s = deadline_s
        wait_s = max(0.0, deadline_s - self.clock.monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.do_due()

    def _scan_members(self) -> None:
        self._scan = asyncio.get_running_loop().call_later(_SCAN_INTERVAL_S, self._scan_members)
        self.look_at_clock()
