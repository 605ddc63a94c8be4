"""Connections between a query's driver, whose server is called the *hub*, and its planner and tasks.

The hub has one thread for all its connections, and each client has one. Only this thread touches the
connections; other threads pass calls to it. The thread never waits for a single socket. It ends a connection
whose other side does not prove within seconds that it has the query's key, does not read, or is silent for
long.

After a break, a worker whose tasks have open ranges connects again: its thread tries this after 0.1 s, 0.2 s
and so on, later every two seconds, for ten seconds. The planner makes another client instead. Messages that
were on their way at the break are lost, and so are messages that are sent before there is a new connection.
"""

from __future__ import annotations

import errno
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
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import ConnectFailed, RemoteProtocolError, TlsFailed
from pyspark_rocketmq.hub.encryption import Encryption, HubCertificate
from pyspark_rocketmq.hub.messages import (
    JsonObject,
    Message,
    Ping,
    ToDriver,
    encode,
)
from pyspark_rocketmq.hub.session import LONGEST_LINE, HubAddress, Session

logger = masking_logger(__name__)

ReceivedT = TypeVar("ReceivedT")

PROVE_WITHIN_S: Final = 5.0
"""Time within which a peer that connects must prove that it has the key, in seconds."""
PING_EVERY_S: Final = 3.0
SILENT_FOR_S: Final = 20.0
"""Time without a received byte after which the other side counts as dead, in seconds."""
RECONNECT_S: Final = 10.0
"""Time after a break in which a new connection is tried, in seconds."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
"""Longest pause between two tries to connect again, and longest duration of a try, in seconds."""
_MOST_STRANGERS: Final = 256
"""Maximum number of connections whose other side has not proved that it has the key; one more replaces the
oldest. All workers of a cluster may connect at the same moment."""
_MOST_UNSENT: Final = 4 * LONGEST_LINE
"""Maximum number of bytes that the other side may leave unread."""
_RECEIVE_BYTES: Final = 1 << 18
_TICK_S: Final = 0.5


class Connection:
    """State of one connection and its bytes to send; used only by the thread of a :class:`ConnectionLoop`."""

    def __init__(
        self, sock: socket.socket, session: Session, encryption: Encryption | None, peer: str, now_s: float
    ) -> None:
        self.sock = sock
        self.session = session
        self.encryption = encryption
        """Encrypts sent bytes and decrypts received ones; None if the connection is not encrypted."""
        self.peer = peer
        self.unsent = bytearray()
        self.began_s = self.heard_s = self.pinged_s = now_s
        self.is_closed_by_peer = False
        """Whether the other side has closed or reset the connection, so that it has surely noticed the
        end."""
        self.has_received = False
        self.end_reason = ""
        """Reason why the connection has ended; empty while it is open."""

    @property
    def is_secured(self) -> bool:
        """Whether the TLS handshake is over, or none is needed."""
        return self.encryption is None or self.encryption.is_ready

    @property
    def why_not_open(self) -> str:
        """Likely reason, in words, why this connection did not open in time, for use if no error ended it."""
        if not self.is_secured:
            return "the other side has not finished the TLS handshake in time"
        if self.has_received:
            return "the other side has not proved in time that it has the query's key"
        return (
            "the other side has sent nothing in time. If Spark encrypts its network, driver and executors "
            "may have different releases of pyspark-rocketmq: install the same one on all machines"
        )

    @property
    def events(self) -> int:
        """Events of the socket to wait for, from ``selectors``: reading, and writing if bytes are unsent."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.unsent else 0)

    def put(self, data: bytes) -> None:
        """Add bytes to those that are to be sent; they are encrypted if the connection is."""
        self.unsent += data if self.encryption is None else self.encryption.encrypt(data)


class ConnectionLoop(ABC):
    """Base class of the hub (the driver's server) and of its clients: one thread that serves connections.

    A subclass overrides ``_received`` and ``_lost``, and perhaps ``_opened``, ``_tick`` and ``_next_tick_s``.
    The thread calls these methods. They must not wait, because no connection is served meanwhile.
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
        self._certificate: HubCertificate | None = None
        self._is_closing = False
        self._prove_within_s = PROVE_WITHIN_S
        # A daemon, so that a process can end without waiting for it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        renew_in_children(self)

    def renew(self) -> None:
        """Close the sockets in a child of ``fork()``, which cannot use them; the parent's stay open."""
        self._close_sockets()

    def close(self) -> None:
        """End all connections and the thread soon; return immediately. Callable from any thread."""
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
        """Called when both sides have proved that they have the query's key."""

    @abstractmethod
    def _received(self, connection: Connection, facts: JsonObject) -> None:
        """Called with each received message, as its JSON object.

        If it raises ``RemoteProtocolError``, the connection is ended.
        """

    @abstractmethod
    def _lost(self, connection: Connection) -> None:
        """Called when a connection has ended, whether it was ever opened or not."""

    def _tick(self, now_s: float) -> None:  # noqa: B027 - may be left as it is
        """Called regularly, for work that is due at a time: at least twice a second, and after each event.

        It is also called soon after the time that :meth:`_next_tick_s` returns.
        """

    def _next_tick_s(self) -> float | None:
        """Return the monotonic time at which to call :meth:`_tick`; None if twice a second is enough."""
        return None

    # --- the thread, or before it was started ---------------------------------------------------------------

    def _listen(self, listening: socket.socket, key: bytes, certificate: HubCertificate | None) -> None:
        """Accept connections from now on; they are encrypted if there is a certificate."""
        listening.setblocking(False)
        self._listening, self._key, self._certificate = listening, key, certificate
        self._selector.register(listening, selectors.EVENT_READ)

    def _add(
        self, sock: socket.socket, peer: str, key: bytes, encryption: Encryption | None, *, is_hub: bool
    ) -> Connection:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = Session(peer, key, is_hub=is_hub)
        connection = Connection(sock, session, encryption, peer, self._clock.monotonic_s())
        self._connections[sock] = connection
        # The hub begins with its greeting. A client begins with the TLS handshake if it encrypts; its socket
        # may still be connecting, so the bytes are sent when it is ready.
        connection.put(session.greeting() if is_hub else b"")
        self._selector.register(sock, connection.events)
        return connection

    def _send(self, connection: Connection, message: Message) -> None:
        """Send a message as soon as the other side takes it; does nothing if the connection is not open."""
        if connection.session.is_open and connection.sock in self._connections:
            self._write(connection, connection.session.seal(encode(message)))

    def _drop(self, connection: Connection, why: str) -> None:
        if self._connections.pop(connection.sock, None) is None:
            return
        connection.end_reason = why = why.removeprefix(f"{connection.peer}: ")
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
            self._drop(
                min(strangers, key=lambda each: each.began_s),
                "too many processes connect without the query's key, and this was the oldest connection",
            )
        peer = f"{address[0]}:{address[1]}"
        encryption = None if self._certificate is None else Encryption.of_hub(peer, self._certificate)
        self._add(sock, peer, self._key, encryption, is_hub=True)

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._write(connection, b"")
            if events & selectors.EVENT_READ:
                self._read(connection)
        except BlockingIOError:
            return
        except (OSError, RemoteProtocolError) as error:
            connection.is_closed_by_peer = isinstance(error, ConnectionResetError | BrokenPipeError)
            self._drop(connection, str(error))

    def _read(self, connection: Connection) -> None:
        session = connection.session
        for line in session.lines(self._received_bytes(connection)):
            answer, facts = session.receive(line)
            if facts is None:
                self._write(connection, answer)
                if session.is_open:
                    self._opened(connection)
            elif facts.get("type") != Ping.kind:
                self._received(connection, facts)
            if connection.sock not in self._connections:
                return

    def _received_bytes(self, connection: Connection) -> bytes:
        """Return the next received bytes, decrypted; empty if more are needed or the connection has ended."""
        data = connection.sock.recv(_RECEIVE_BYTES)
        if not data:
            connection.is_closed_by_peer = True
            self._drop(connection, "the other side has closed the connection")
            return b""
        connection.heard_s = self._clock.monotonic_s()
        connection.has_received = True
        if connection.encryption is None:
            return data
        data = connection.encryption.decrypt(data)
        # Send the handshake's next bytes, if there are any.
        self._write(connection, b"")
        return data if connection.sock in self._connections else b""

    def _write(self, connection: Connection, data: bytes) -> None:
        connection.put(data)
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
        if self._selector.get_key(connection.sock).events != connection.events:
            self._selector.modify(connection.sock, connection.events)

    def _check(self, connection: Connection, now_s: float) -> None:
        if not connection.session.is_open:
            if now_s - connection.began_s > self._prove_within_s:
                self._drop(connection, connection.why_not_open)
        elif now_s - connection.heard_s > SILENT_FOR_S:
            self._drop(connection, f"nothing has arrived for {SILENT_FOR_S:g} s")
        elif now_s - connection.pinged_s >= PING_EVERY_S:
            connection.pinged_s = now_s
            self._send(connection, Ping())


class Reconnecting:
    """Decides when a client tries to connect again after its connection broke; no I/O, no clock.

    The first try comes after 0.1 s, later ones after growing pauses. Ten seconds after the break the client
    gives up.
    """

    def __init__(self, now_s: float) -> None:
        self._until_s = now_s + RECONNECT_S
        self._pause_s = _FIRST_PAUSE_S
        self._next_s: float | None = now_s + _FIRST_PAUSE_S
        """Monotonic time of the next try; None while a try is under way."""

    @property
    def next_tick_s(self) -> float:
        """Monotonic time at which the result of :meth:`tries` or :meth:`is_over` may change."""
        return self._until_s if self._next_s is None else min(self._next_s, self._until_s)

    def is_over(self, now_s: float) -> bool:
        """Return whether ten seconds have passed since the break, so that the client gives up."""
        return now_s >= self._until_s

    def tries(self, now_s: float) -> bool:
        """Return whether to try to connect now.

        After True the caller makes a try, and calls :meth:`failed` if the try fails. While the try is under
        way, the answer is False.
        """
        is_due = self._next_s is not None and now_s >= self._next_s
        if is_due:
            self._next_s = None
        return is_due

    def failed(self, now_s: float) -> None:
        """Note that a try has failed; the next pause is twice as long, but at most two seconds."""
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._next_s = now_s + self._pause_s


class HubClient(ConnectionLoop, Generic[ReceivedT]):
    """A planner's or worker's connection to the driver.

    After a break it connects again if the function ``broken`` returns True. After the client has called the
    function ``lost``, it makes no further connection: make another client.
    """

    def __init__(
        self,
        address: HubAddress,
        *,
        decode: Callable[[JsonObject, str], ReceivedT | None],
        received: Callable[[ReceivedT], None],
        lost: Callable[[], None],
        clock: Clock,
        timeout_s: float,
        broken: Callable[[], bool] = lambda: False,
        opened_again: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect; both sides prove to each other that they have the key.

        Args:
            address: Address of the hub.
            decode: Reads a message from its JSON; returns None for a message to ignore. Its second argument
                is the hub's address, for errors.
            received: Called with each message, by the connection's thread; must not wait.
            lost: Called once by the connection's thread, when the connection has ended for good.
            clock: The system's clock, except in tests.
            timeout_s: Time for connecting, with both proofs, in seconds.
            broken: Called by the connection's thread at a break; returns whether to connect again.
            opened_again: Called by the connection's thread when it is connected again.

        Raises:
            ConnectFailed: If there is no connection in time, or the other side is not the query's hub.
        """
        self._decode = decode
        self._on_message = received
        self._on_loss = lost
        self._on_break = broken
        self._on_reopening = opened_again
        self._connection: Connection | None = None
        self._reconnecting: Reconnecting | None = None
        """Present from a break until the client is connected again or gives up."""
        self._is_loss_reported = False
        self.number = 0
        """Number of the newest connection, from 1; 0 before the first one."""
        self._is_decided = threading.Event()
        deadline = Deadline.after(clock, timeout_s)
        self._place = f"{address.host}:{address.port}"
        self._address = address
        try:
            sock = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise ConnectFailed(self._place, str(error)) from error
        self._family, self._hub_address = sock.family, sock.getpeername()
        super().__init__("rocketmq-hub-client", clock)
        connecting = self._add(sock, self._place, address.key, self._encryption(), is_hub=False)
        self._thread.start()
        self._is_decided.wait(deadline.remaining_s())
        if not self.is_open:
            # Read the reason before close(), which sets another one.
            reason = connecting.end_reason or connecting.why_not_open
            self.close()
            raise (ConnectFailed if connecting.is_secured else TlsFailed)(self._place, reason.rstrip("."))

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now; a break may not have been noticed yet."""
        return self._connection is not None

    def send(self, message: ToDriver) -> None:
        """Send a message on the open connection; without one the message is dropped.

        Returns immediately; callable from any thread.
        """
        if (connection := self._connection) is not None:
            self._call(lambda: self._send(connection, message))

    def _opened(self, connection: Connection) -> None:
        self._connection = connection
        self.number += 1
        self._is_decided.set()
        if self._reconnecting is not None:
            self._reconnecting = None
            self._prove_within_s = PROVE_WITHIN_S
            self._on_reopening()

    def _received(self, connection: Connection, facts: JsonObject) -> None:
        message = self._decode(facts, connection.peer)
        if message is not None:
            self._on_message(message)

    def _lost(self, connection: Connection) -> None:
        now_s = self._clock.monotonic_s()
        self._connection = None
        if self._reconnecting is not None:
            self._reconnecting.failed(now_s)
        elif connection.session.is_open and not self._is_closing and self._on_break():
            self._reconnecting = Reconnecting(now_s)
            self._prove_within_s = _LONGEST_PAUSE_S
        if self._reconnecting is None or self._is_closing:
            self._end()

    def _end(self) -> None:
        self._is_decided.set()
        self.close()
        if self.number and not self._is_loss_reported:
            self._is_loss_reported = True
            self._on_loss()

    def _tick(self, now_s: float) -> None:
        if self._reconnecting is None:
            return
        if self._reconnecting.is_over(now_s):
            self._reconnecting = None
            self._end()
        elif self._reconnecting.tries(now_s):
            self._try_again(self._reconnecting, now_s)

    def _next_tick_s(self) -> float | None:
        return None if self._reconnecting is None else self._reconnecting.next_tick_s

    def _encryption(self) -> Encryption | None:
        """Return the client's end of encryption for a new connection; None if this hub does not encrypt."""
        fingerprint = self._address.fingerprint
        return Encryption.of_client(self._place, fingerprint) if fingerprint else None

    def _try_again(self, reconnecting: Reconnecting, now_s: float) -> None:
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        sock.setblocking(False)
        # Do not wait here: the thread wakes up when the connection is there and bytes come or can be sent.
        if sock.connect_ex(self._hub_address) in {0, errno.EINPROGRESS}:
            self._add(sock, self._place, self._address.key, self._encryption(), is_hub=False)
        else:
            sock.close()
            reconnecting.failed(now_s)
