"""The system calls of one TCP connection, and the renewal of connections in a child of ``fork()``.

Rule 1: every ``OSError`` is raised as a ``TransportError`` that names the address. Rule 2: no call blocks
without a bound. This module handles bytes only, neither frames nor requests; ``tls`` adds encryption.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import ChannelClosed, ConnectFailed

logger = masking_logger(__name__)

_renewed: Final[WeakSet[Renewed]] = WeakSet()
_ANY_REMOTE = ("192.0.2.1", 9)
"""A documentation address (RFC 5737): connecting a UDP socket to it sends nothing, but picks the outgoing
interface."""
SEND_STALL_S: Final = 5.0
"""Seconds after which a peer that has accepted no byte counts as stuck."""
SLOWEST_BYTES_PER_S: Final = 64 * 1024
"""Minimum speed, in bytes per second, at which a peer must accept data; a slower peer counts as stuck. The
peer gets ``SEND_STALL_S`` in addition. Without this bound, one byte every few seconds could hold a sender for
ever."""
RECEIVE_TICK_S: Final = 1.0
"""Seconds after which a silent ``recv_into`` returns, so that the caller can check its deadlines."""
_WAKE_BYTES: Final = 4096
_NO_LINGER: Final = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which a close resets the connection."""
# A peer that vanishes silently (loss of power, a firewall that forgot the connection) is noticed within a
# minute, by unanswered probes or by unacknowledged data; the system's defaults are hours.
_VANISHED_PEER: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 30_000),
)


class Closing:
    """Base of objects that are closed at the end of a ``with``."""

    def close(self) -> None:
        """Release all resources. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Renewed(Protocol):
    """Holds connections, locks, threads or counters that a child of ``fork()`` must not share."""

    def renew(self) -> None:
        """Replace what the child must not share.

        This runs in the child before anything else. Do not take an old lock: it may be held for ever.
        """
        ...


def renew_in_children(one: Renewed) -> None:
    """Call :meth:`Renewed.renew` in every child that this process forks while ``one`` exists."""
    _renewed.add(one)


def _renew_all() -> None:
    for connection in list(_renewed):
        try:
            connection.renew()
        except Exception:
            logger.exception("not renewed after a fork: %r", connection)


os.register_at_fork(after_in_child=_renew_all)


def local_ip() -> bytes:
    """Return the IPv4 address of the interface that leads to other machines, 4 bytes.

    Without a network, return the loopback address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_REMOTE)
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return socket.inet_aton("127.0.0.1")


class Transport(Protocol):
    """A connected byte stream; one thread may receive while others, one at a time, send."""

    address: str
    """``host:port`` of the peer."""

    def sendall(self, data: bytes, timeout_s: float = math.inf) -> None:
        """Send all of ``data``.

        Raises:
            ChannelClosed: If the peer is gone, or sending takes longer than :class:`SendingTime` allows. Part
                of the data may have been sent, so the connection cannot be used afterwards.
            TlsFailed: For the same reasons as ``recv_into``.
        """
        ...

    def recv_into(self, buffer: memoryview) -> int | None:
        """Receive some bytes; return their number, 0 at the end of the stream, None after a silent second.

        Raises:
            ChannelClosed: If the connection was reset or its encryption broken.
            TlsFailed: If the server refused this client's certificate, or required one and got none.
        """
        ...

    def await_bytes(self, count: int) -> bool:
        """Ask the system to report the connection readable only when ``count`` bytes have arrived.

        The system may report it earlier, and always does at the end of the stream. At first, ``count`` is 1.

        Returns:
            Whether the system may now wait for more than one byte; False if this transport cannot ask for it.
        """
        ...

    def fileno(self) -> int:
        """Return the socket's number; when the system reports it readable, ``recv_into`` has work to do."""
        ...

    def discard_unsent(self) -> None:
        """Have the system discard, when the connection is closed, what the peer has not received by then.

        Otherwise the system sends it on for up to 30 s after the connection's end: a request that was given
        up in a failure of the network could be carried out after later ones of the next connection.
        """
        ...

    def shutdown(self) -> None:
        """End the connection in both directions, which wakes a thread inside ``recv_into``. Idempotent."""
        ...

    def close(self) -> None:
        """Release the operating system's resources. Idempotent; no thread may be inside another call."""
        ...


class _Readable(Protocol):
    def fileno(self) -> int: ...


ReadableT = TypeVar("ReadableT", bound=_Readable)

Connect = Callable[[str, float], Transport]
"""Connects to ``host:port`` within so many seconds, or raises ``ConnectFailed``."""


class Poller(Generic[ReadableT]):
    """Waits until one of several connections can receive.

    The connections stay registered with the system, which saves time if the next wait is for the same ones.
    """

    def __init__(self) -> None:
        self._connected: list[ReadableT] = []
        self._by_number: dict[int, ReadableT] = {}
        self._poll = select.poll()

    def await_readable(self, connected: Sequence[ReadableT], timeout_s: float) -> list[ReadableT]:
        """Wait at most ``timeout_s`` until something can be received; return the connections that have it.

        A connection that was closed must not be passed again.
        """
        if self._connected != connected:
            self._poll = select.poll()
            self._by_number = {each.fileno(): each for each in connected}
            for number in self._by_number:
                self._poll.register(number, select.POLLIN)
            self._connected = list(connected)
        return [self._by_number[number] for number, _ in self._poll.poll(timeout_s * 1000)]


def await_readable(connected: Sequence[ReadableT], timeout_s: float) -> list[ReadableT]:
    """Wait at most ``timeout_s`` until something can be received; return the connections that have it."""
    return Poller[ReadableT]().await_readable(connected, timeout_s)


class Wake(Closing):
    """Lets one thread end another thread's wait in ``await_readable``.

    The waiting thread passes this object to ``await_readable`` together with its connections.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor of a socket that is readable after :meth:`set` until :meth:`clear`."""
        return self._receiver.fileno()

    def set(self) -> None:
        """End the running wait; if there is none, end the next one. Any thread may call this, at any time."""
        # Errors are harmless: if the buffer is full, the thread wakes anyway; if the sockets are closed, no
        # thread waits.
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def clear(self) -> None:
        """Let the next wait last until :meth:`set` is called again; only for the thread that waits."""
        with contextlib.suppress(BlockingIOError):
            while self._receiver.recv(_WAKE_BYTES):
                pass

    def close(self) -> None:
        """Release the sockets. Idempotent."""
        self._receiver.close()
        self._sender.close()


class SendingTime:
    """Limits the time for sending some bytes, which may take several calls of the socket's ``send``.

    Each call may last ``stall_s``. All calls together may last as long as the shorter of two times: the
    caller's time-out, and ``stall_s`` plus one second for each 64 KiB.
    """

    __slots__ = ("_began_s", "_bytes", "_limit_s", "_stall_s")

    def __init__(self, byte_count: int, timeout_s: float, stall_s: float) -> None:
        self._bytes = byte_count
        self._stall_s = stall_s
        self._limit_s = min(timeout_s, stall_s + byte_count / SLOWEST_BYTES_PER_S)
        self._began_s = time.monotonic()

    def next_s(self) -> float:
        """Return the time-out of the next send, in seconds.

        It is at least 1 ms. So even after the limit a socket gets the data that it can take immediately.
        """
        return max(0.001, min(self._stall_s, self._limit_s - (time.monotonic() - self._began_s)))

    def complaint(self, rest: int) -> str:
        """Describe a peer that did not take the last ``rest`` bytes, for an error."""
        waited_s = time.monotonic() - self._began_s
        return f"the peer accepted {self._bytes - rest} of {self._bytes} bytes within {waited_s:.3g} s"


def open_socket(address: str, timeout_s: float) -> socket.socket:
    """Connect to ``host:port`` within ``timeout_s`` seconds.

    Raises:
        ConnectFailed: If the address is malformed, or nobody accepts the connection in time.
    """
    host, port = split_address(address)
    try:
        connected = socket.create_connection((host, port), timeout=timeout_s)
    except TimeoutError as exc:
        raise ConnectFailed(address, f"no answer within {timeout_s:.3g} s") from exc
    except (OSError, UnicodeError) as exc:
        raise ConnectFailed(address, str(exc)) from exc
    # Small requests must not wait for the answer to the one before.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _VANISHED_PEER:
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connected


def split_address(address: str) -> tuple[str, int]:
    """Take ``host:port`` apart; an IPv6 host is written in brackets.

    Raises:
        ConnectFailed: If the address does not have that form.
    """
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or int(port) > 65535:
        raise ConnectFailed(
            address, "the address must be HOST:PORT with a port up to 65535 ([HOST]:PORT for IPv6)"
        )
    return bare, int(port)


def reset_at_close(connected: socket.socket) -> None:
    """Have the system reset the connection at its close, and discard what the peer has not received."""
    with contextlib.suppress(OSError):  # it may be closed
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


class TcpTransport:
    """A plain TCP connection.

    Receiving and sending have different time-outs, hence two socket objects on one connection.
    """

    def __init__(self, address: str, connected: socket.socket, *, stall_s: float = SEND_STALL_S) -> None:
        self.address = address
        self._receiver = connected
        self._sender = connected.dup()
        self._receiver.settimeout(RECEIVE_TICK_S)
        self._stall_s = stall_s
        self._awaited_bytes = 1

    @classmethod
    def connect(cls, address: str, timeout_s: float) -> TcpTransport:
        """Connect to ``host:port`` within ``timeout_s`` seconds; errors are those of :func:`open_socket`."""
        return cls(address, open_socket(address, timeout_s))

    def sendall(self, data: bytes, timeout_s: float = math.inf) -> None:
        """Send all of ``data``; time limits and errors are those of :class:`Transport`."""
        try:
            # The system mostly takes everything without a wait; send() waits first, and takes Python's lock
            # once more.
            try:
                sent = os.write(self._sender.fileno(), data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self._send_rest(data, sent, timeout_s)
        except OSError as exc:
            raise ChannelClosed(self.address, f"sending failed: {exc}") from exc

    def _send_rest(self, data: bytes, sent: int, timeout_s: float) -> None:
        rest = memoryview(data)[sent:]
        time_left = SendingTime(len(data), timeout_s, self._stall_s)
        try:
            # Not sendall(): the time-out of send() counts from the last progress, so a large frame on a slow
            # line does not look like a stuck peer.
            while rest:
                self._sender.settimeout(time_left.next_s())
                rest = rest[self._sender.send(rest) :]
        except TimeoutError as exc:
            raise ChannelClosed(self.address, time_left.complaint(len(rest))) from exc

    def recv_into(self, buffer: memoryview) -> int | None:
        """Receive some bytes; return their number, 0 at the end of the stream, None after a silent second.

        Errors are those of :class:`Transport`.
        """
        try:
            # Mostly bytes are there; recv_into() waits first, and takes Python's lock once more.
            try:
                return os.readv(self._receiver.fileno(), [buffer])
            except BlockingIOError:
                return self._receiver.recv_into(buffer)
        except TimeoutError:
            return None
        except OSError as exc:
            raise ChannelClosed(self.address, f"receiving failed: {exc}") from exc

    def await_bytes(self, count: int) -> bool:
        """Ask the system to report the connection readable only when ``count`` bytes have arrived.

        Return whether it may now wait for more than one byte; see :class:`Transport`.
        """
        if count != self._awaited_bytes:
            # The next receive reports a connection that is gone.
            with contextlib.suppress(OSError):
                self._receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
                self._awaited_bytes = count
        return self._awaited_bytes > 1

    def fileno(self) -> int:
        """Return the number of the socket that receives; it is readable when bytes have arrived."""
        return self._receiver.fileno()

    def discard_unsent(self) -> None:
        """Have the system discard, when the connection is closed, what the peer has not received by then."""
        reset_at_close(self._sender)

    def shutdown(self) -> None:
        """End the connection in both directions, which wakes a thread inside ``recv_into``. Idempotent."""
        with contextlib.suppress(OSError):  # the peer may have ended it already
            self._sender.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the operating system's resources. Idempotent; no thread may be inside another call."""
        self._sender.close()
        self._receiver.close()
