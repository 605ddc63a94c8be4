"""Connections to a hub: one thread that serves many, and the side that connects.

Only the thread touches its connections; other threads pass calls to it. It never waits for a single socket,
and ends a connection whose peer does not prove itself within seconds, does not read, or is silent for long.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from pyspark_rocketmq.client.transport import renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import ConnectFailed, RemoteProtocolError
from pyspark_rocketmq.hub.messages import (
    JsonObject,
    Message,
    Ping,
    ToDriver,
    encode,
)
from pyspark_rocketmq.hub.session import LONGEST_LINE, HubAddress, Session

logger = logging.getLogger(__name__)

ReceivedT = TypeVar("ReceivedT")

PROVE_WITHIN_S: Final = 5.0
"""How long a peer that connects has to prove that it has the key."""
PING_EVERY_S: Final = 3.0
SILENT_FOR_S: Final = 20.0
"""Silence after which the other side counts as dead."""
_MOST_STRANGERS: Final = 32
"""Maximum number of connections that have proved nothing yet; the oldest is dropped for a new one."""
_MOST_UNSENT: Final = 4 * LONGEST_LINE
"""Maximum number of bytes that the other side may leave unread."""
_RECEIVE_BYTES: Final = 1 << 18
_TICK_S: Final = 0.5


class Connection:
    """Connection to one peer; only the loop's thread touches it."""

    def __init__(self, sock: socket.socket, session: Session, peer: str, now_s: float) -> None:
        self.sock = sock
        self.session = session
        self.peer = peer
        self.unsent = bytearray()
        self.began_s = self.heard_s = self.pinged_s = now_s


class ConnectionLoop(ABC):
    """Base class of both ends: the thread and its connections.

    A subclass overrides ``_opened``, ``_received``, ``_lost`` and ``_tick``, which the thread calls and which
    must not wait.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._connections: dict[socket.socket, Connection] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._wake, self._wakes = socket.socketpair()
        for end in (self._wake, self._wakes):
            end.setblocking(False)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._listening: socket.socket | None = None
        self._key = b""
        self._is_closing = False
        # A daemon, so that a process can end without waiting for it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        renew_in_children(self)

    def renew(self) -> None:
        """Close the sockets in a child of ``fork()`` without ending the parent's connections."""
        self._close_sockets()

    def close(self) -> None:
        """End all connections soon; callable from any thread."""
        self._is_closing = True
        self._call(lambda: None)

    def _call(self, do: Callable[[], None]) -> None:
        """Have the loop's thread call ``do`` soon; callable from any thread."""
        self._calls.append(do)
        # If the socket is full, the thread is awake.
        with suppress(OSError):
            self._wake.send(b"x")

    # --- overridden -----------------------------------------------------------------------------------------

    def _opened(self, connection: Connection) -> None:  # noqa: B027 - may be left as it is
        """Called when both sides have proved themselves."""

    @abstractmethod
    def _received(self, connection: Connection, facts: JsonObject) -> None:
        """Called with a message that has come; a ``RemoteProtocolError`` ends the connection."""

    @abstractmethod
    def _lost(self, connection: Connection) -> None:
        """Called when a connection has ended, whether it was ever opened or not."""

    def _tick(self, now_s: float) -> None:  # noqa: B027 - may be left as it is
        """Called about twice a second, and soon after each time that :meth:`_next_tick_s` has named."""

    def _next_tick_s(self) -> float | None:
        """Return the monotonic time of the next tick that must not be late, if there is one."""
        return None

    # --- the thread, or before it was started ---------------------------------------------------------------

    def _listen(self, listening: socket.socket, key: bytes) -> None:
        listening.setblocking(False)
        self._listening, self._key = listening, key
        self._selector.register(listening, selectors.EVENT_READ)

    def _add(self, sock: socket.socket, peer: str, key: bytes, *, is_hub: bool) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = Session(peer, key, is_hub=is_hub)
        connection = self._connections[sock] = Connection(sock, session, peer, self._clock.monotonic_s())
        self._selector.register(sock, selectors.EVENT_READ)
        if is_hub:
            self._write(connection, session.greeting())

    def _send(self, connection: Connection, message: Message) -> None:
        """Send a message as soon as the other side takes it; does nothing if the connection is not open."""
        if connection.session.is_open and connection.sock in self._connections:
            self._write(connection, connection.session.seal(encode(message)))

    def _drop(self, connection: Connection, why: str) -> None:
        if self._connections.pop(connection.sock, None) is None:
            return
        logger.info("connection within the query ended peer=%s: %s", connection.peer, why)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        self._lost(connection)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._turn()
                except Exception:
                    # Nobody watches this thread; without it tasks would never get a message again.
                    logger.exception("failure within the query's connections, going on")
        finally:
            for connection in list(self._connections.values()):
                self._drop(connection, "closed")
            self._close_sockets()

    def _close_sockets(self) -> None:
        for sock in (*self._connections, self._listening, self._wake, self._wakes):
            if sock is not None:
                sock.close()
        self._selector.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._pause_s()):
            if key.fileobj is self._wakes:
                with suppress(OSError):
                    self._wakes.recv(4096)
            elif key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._connections:
                self._serve(self._connections[key.fileobj], events)
        while self._calls:
            self._calls.popleft()()
        now_s = self._clock.monotonic_s()
        for connection in list(self._connections.values()):
            self._check(connection, now_s)
        self._tick(now_s)

    def _pause_s(self) -> float:
        at_s = self._next_tick_s()
        return _TICK_S if at_s is None else min(_TICK_S, max(0.0, at_s - self._clock.monotonic_s()))

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            sock, address = self._listening.accept()
        except OSError:
            return
        strangers = [each for each in self._connections.values() if not each.session.is_open]
        if len(strangers) >= _MOST_STRANGERS:
            self._drop(min(strangers, key=lambda each: each.began_s), "too many that prove nothing")
        self._add(sock, f"{address[0]}:{address[1]}", self._key, is_hub=True)

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._write(connection, b"")
            if events & selectors.EVENT_READ:
                self._read(connection)
        except BlockingIOError:
            return
        except (OSError, RemoteProtocolError) as error:
            self._drop(connection, str(error))

    def _read(self, connection: Connection) -> None:
        data = connection.sock.recv(_RECEIVE_BYTES)
        if not data:
            self._drop(connection, "the other side has closed it")
            return
        connection.heard_s = self._clock.monotonic_s()
        session = connection.session
        for line in session.lines(data):
            answer, facts = session.receive(line)
            if facts is None:
                self._write(connection, answer)
                if session.is_open:
                    self._opened(connection)
            elif facts.get("type") != Ping.kind:
                self._received(connection, facts)
            if connection.sock not in self._connections:
                return

    def _write(self, connection: Connection, data: bytes) -> None:
        connection.unsent += data
        try:
            while connection.unsent:
                sent = connection.sock.send(connection.unsent[:_RECEIVE_BYTES])
                del connection.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(connection, str(error))
            return
        if len(connection.unsent) > _MOST_UNSENT:
            self._drop(connection, "the other side does not read its messages")
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if self._selector.get_key(connection.sock).events != wanted:
            self._selector.modify(connection.sock, wanted)

    def _check(self, connection: Connection, now_s: float) -> None:
        if not connection.session.is_open:
            if now_s - connection.began_s > PROVE_WITHIN_S:
                self._drop(connection, "it has proved nothing in time")
        elif now_s - connection.heard_s > SILENT_FOR_S:
            self._drop(connection, f"nothing was heard for {SILENT_FOR_S:g} s")
        elif now_s - connection.pinged_s >= PING_EVERY_S:
            connection.pinged_s = now_s
            self._send(connection, Ping())


class HubClient(ConnectionLoop, Generic[ReceivedT]):
    """The planner's or a worker's connection to the driver; when it is lost, make another one."""

    def __init__(
        self,
        address: HubAddress,
        *,
        decode: Callable[[JsonObject, str], ReceivedT | None],
        received: Callable[[ReceivedT], None],
        lost: Callable[[], None],
        clock: Clock,
        timeout_s: float,
    ) -> None:
        """Connect; both sides prove to each other that they have the key.

        Args:
            address: Address of the hub.
            decode: Reads a message from its JSON and the peer's name; returns None for one to ignore.
            received: Called with each message, by the connection's thread; must not wait.
            lost: Called by the same thread once the connection has ended.
            clock: The system's clock, except in tests.
            timeout_s: How long all of this may take.

        Raises:
            ConnectFailed: If there is no connection in time.
        """
        self._decode = decode
        self._on_message = received
        self._on_loss = lost
        self._connection: Connection | None = None
        self._is_lost = False
        self._is_decided = threading.Event()
        deadline = Deadline.after(clock, timeout_s)
        place = f"{address.host}:{address.port}"
        try:
            sock = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise ConnectFailed(place, str(error)) from error
        super().__init__("rocketmq-hub-client", clock)
        self._add(sock, place, address.key, is_hub=False)
        self._thread.start()
        self._is_decided.wait(deadline.remaining_s())
        if not self.is_open:
            self.close()
            raise ConnectFailed(place, "whoever listens there did not prove to be the query's driver in time")

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, and not known to be lost."""
        return self._connection is not None and not self._is_lost

    def send(self, message: ToDriver) -> None:
        """Send a message; return immediately. Callable from any thread."""
        assert self._connection is not None
        connection = self._connection
        self._call(lambda: self._send(connection, message))

    def _opened(self, connection: Connection) -> None:
        self._connection = connection
        self._is_decided.set()

    def _received(self, connection: Connection, facts: JsonObject) -> None:
        message = self._decode(facts, connection.peer)
        if message is not None:
            self._on_message(message)

    def _lost(self, connection: Connection) -> None:
        self._is_lost = True
        self._is_decided.set()
        self.close()
        if connection.session.is_open:
            self._on_loss()
