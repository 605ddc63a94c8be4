"""Connections to a hub: one thread that serves many, and the side that connects.

Everything about a connection is touched by that thread alone; whoever wants something of it from another
thread leaves a call with it. No socket is ever waited for alone, and each connection has a deadline: it must
have proved itself a few seconds after its beginning, must take what is sent to it, and must say something now
and then.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from pyspark_rocketmq.client.transport import renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import ConnectFailed, RemoteProtocolError
from pyspark_rocketmq.hub.session import (
    LONGEST_LINE,
    Greeting,
    HubAddress,
    Introduction,
    LineBuffer,
    Message,
    Session,
)

logger = logging.getLogger(__name__)

PROVE_WITHIN_S: Final = 5.0
"""How long whoever connects has to prove that it knows the key."""
PING_EVERY_S: Final = 3.0
SILENT_FOR_S: Final = 20.0
"""After which the other side is taken for dead."""
_MOST_STRANGERS: Final = 32
"""Connections that have proved nothing yet; the oldest goes for a new one."""
_MOST_UNSENT: Final = 4 * LONGEST_LINE
"""Bytes that the other side may leave unread."""
_RECEIVE_BYTES: Final = 1 << 18
_TICK_S: Final = 0.5
_PING: Final = "ping"


class Handler(Protocol):
    """What is done with connections; called by the loop's thread, and must not wait."""

    def opened(self, link: Link) -> None:
        """Both sides have proved themselves."""
        ...

    def received(self, link: Link, message: Message) -> None:
        """A message has come; a ``RemoteProtocolError`` ends the connection."""
        ...

    def lost(self, link: Link) -> None:
        """A connection is no more, one that never was opened included."""
        ...

    def tick(self, now_s: float) -> None:
        """Twice a second or so."""
        ...


class Link:
    """A connection, of the loop's thread."""

    def __init__(
        self, sock: socket.socket, peer: str, now_s: float, opening: Greeting | Introduction
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.opening: Greeting | Introduction | None = opening
        self.session: Session | None = None
        self.lines = LineBuffer(peer)
        self.unsent = bytearray()
        self.began_s = self.heard_s = self.pinged_s = now_s


class LineLoop:
    """The thread; begins with :meth:`start`, ends with :meth:`close`."""

    def __init__(self, name: str, handler: Handler, clock: Clock) -> None:
        self._handler = handler
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._links: dict[socket.socket, Link] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._wake, self._wakes = socket.socketpair()
        for end in (self._wake, self._wakes):
            end.setblocking(False)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._listening: socket.socket | None = None
        self._key = b""
        self._is_closing = False
        # A daemon: nobody waits for it at the end of a process.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: give the connections back without ending them; they are the parent's."""
        self._close_sockets()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def call(self, what: Callable[[], None]) -> None:
        """Have ``what`` called by the loop's thread, soon; from any thread."""
        self._calls.append(what)
        with suppress(OSError):
            # Full means that it is awake.
            self._wake.send(b"x")

    def close(self) -> None:
        """End all connections; returns at once."""
        self._is_closing = True
        self.call(lambda: None)

    # --- by the loop's thread, or before it was started -----------------------------------------------------

    def listen(self, listening: socket.socket, key: bytes) -> None:
        """Take connections of those who know ``key``."""
        listening.setblocking(False)
        self._listening, self._key = listening, key
        self._selector.register(listening, selectors.EVENT_READ)

    def introduce(self, sock: socket.socket, peer: str, key: bytes) -> None:
        """Begin on a connection to a hub that knows ``key``."""
        self._add(sock, Link(sock, peer, self._clock.monotonic_s(), Introduction(peer, key)))

    def send(self, link: Link, message: Mapping[str, Any]) -> None:
        """Send a message on an opened connection, as soon as the other side takes it."""
        if link.session is not None and link.sock in self._links:
            self._write(link, link.session.seal(message))

    def drop(self, link: Link, why: str) -> None:
        """End a connection."""
        if self._links.pop(link.sock, None) is None:
            return
        logger.info("connection within the query ended peer=%s: %s", link.peer, why)
        self._selector.unregister(link.sock)
        link.sock.close()
        self._handler.lost(link)

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._turn()
                except Exception:
                    # Nobody watches this thread; without it tasks would never hear of anything again.
                    logger.exception("failure within the query's connections, going on")
        finally:
            for link in list(self._links.values()):
                self.drop(link, "closed")
            self._close_sockets()

    def _close_sockets(self) -> None:
        for sock in (*self._links, self._listening, self._wake, self._wakes):
            if sock is not None:
                sock.close()
        self._selector.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(_TICK_S):
            if key.fileobj is self._wakes:
                with suppress(OSError):
                    self._wakes.recv(4096)
            elif key.fileobj is self._listening:
                self._accept()
            elif (link := self._links.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                self._serve(link, events)
        while self._calls:
            self._calls.popleft()()
        now_s = self._clock.monotonic_s()
        for link in list(self._links.values()):
            self._look_at(link, now_s)
        self._handler.tick(now_s)

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            sock, address = self._listening.accept()
        except OSError:
            return
        strangers = [link for link in self._links.values() if link.session is None]
        if len(strangers) >= _MOST_STRANGERS:
            self.drop(min(strangers, key=lambda link: link.began_s), "too many that prove nothing")
        peer = f"{address[0]}:{address[1]}"
        greeting = Greeting(peer, self._key)
        link = Link(sock, peer, self._clock.monotonic_s(), greeting)
        self._add(sock, link)
        self._write(link, greeting.first_line())

    def _add(self, sock: socket.socket, link: Link) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links[sock] = link
        self._selector.register(sock, selectors.EVENT_READ)

    def _serve(self, link: Link, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._write(link, b"")
            if events & selectors.EVENT_READ:
                self._read(link)
        except BlockingIOError:
            return
        except (OSError, RemoteProtocolError) as error:
            self.drop(link, str(error))

    def _read(self, link: Link) -> None:
        data = link.sock.recv(_RECEIVE_BYTES)
        if not data:
            self.drop(link, "the other side has closed it")
            return
        link.heard_s = self._clock.monotonic_s()
        for line in link.lines.feed(data):
            self._take(link, line)
            if link.sock not in self._links:
                return

    def _take(self, link: Link, line: bytes) -> None:
        if link.session is not None:
            message = link.session.open(line)
            if message.get("is") != _PING:
                self._handler.received(link, message)
            return
        assert link.opening is not None
        answer, session = link.opening.receive(line)
        self._write(link, answer)
        if session is not None:
            link.session, link.opening = session, None
            link.lines.longest = LONGEST_LINE + 64
            self._handler.opened(link)

    def _write(self, link: Link, data: bytes) -> None:
        link.unsent += data
        try:
            while link.unsent:
                sent = link.sock.send(link.unsent[:_RECEIVE_BYTES])
                del link.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self.drop(link, str(error))
            return
        if len(link.unsent) > _MOST_UNSENT:
            self.drop(link, "the other side does not read what it is sent")
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
        if self._selector.get_key(link.sock).events != wanted:
            self._selector.modify(link.sock, wanted)

    def _look_at(self, link: Link, now_s: float) -> None:
        if link.session is None:
            if now_s - link.began_s > PROVE_WITHIN_S:
                self.drop(link, "it has proved nothing in time")
        elif now_s - link.heard_s > SILENT_FOR_S:
            self.drop(link, f"nothing was heard for {SILENT_FOR_S:g} s")
        elif now_s - link.pinged_s >= PING_EVERY_S:
            link.pinged_s = now_s
            self.send(link, {"is": _PING})


class HubClient:
    """One connection; a new one is made when it is lost."""

    def __init__(
        self,
        address: HubAddress,
        *,
        received: Callable[[Message], None],
        lost: Callable[[], None],
        clock: Clock,
        timeout_s: float,
    ) -> None:
        """Connect, and prove to each other that both know the key.

        Args:
            address: The hub's.
            received: Called with each message, by the connection's thread; must not wait.
            lost: Called by it once the connection is no more.
            clock: The system's, but in tests.
            timeout_s: How long all of that may take.

        Raises:
            ConnectFailed: If there is no connection then.
        """
        self._received = received
        self._lost = lost
        self._link: Link | None = None
        self._is_lost = False
        self._is_decided = threading.Event()
        deadline = Deadline.after(clock, timeout_s)
        place = f"{address.host}:{address.port}"
        try:
            sock = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise ConnectFailed(place, str(error)) from error
        self._loop = LineLoop("rocketmq-hub-line", self, clock)
        self._loop.introduce(sock, place, address.key)
        self._loop.start()
        self._is_decided.wait(deadline.remaining_s())
        if not self.is_open:
            self._loop.close()
            raise ConnectFailed(place, "whoever listens there did not prove to be the query's driver in time")

    @property
    def is_open(self) -> bool:
        """Whether the connection is there, as far as anybody knows."""
        return self._link is not None and not self._is_lost

    def send(self, message: Mapping[str, Any]) -> None:
        """Send; returns at once, and from any thread."""

        def send() -> None:
            if self._link is not None:
                self._loop.send(self._link, message)

        self._loop.call(send)

    def close(self) -> None:
        """End the connection, soon."""
        self._loop.close()

    # --- the connection's thread ----------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """See ``Handler``."""
        self._link = link
        self._is_decided.set()

    def received(self, link: Link, message: Message) -> None:  # noqa: ARG002 - there is one
        """See ``Handler``."""
        try:
            self._received(message)
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"The driver said {message.get('is')!r} and not all of it: {error!r}."
            ) from error

    def lost(self, link: Link) -> None:
        """See ``Handler``."""
        is_opened = link.session is not None
        self._is_lost = True
        self._is_decided.set()
        self._loop.close()
        if is_opened:
            self._lost()

    def tick(self, now_s: float) -> None:
        """See ``Handler``."""
