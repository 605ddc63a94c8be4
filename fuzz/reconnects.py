"""Ten thousand connections that open and end in every possible way: nothing may be left of them."""

from __future__ import annotations

import gc
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pull_connection import PullConnection
from pyspark_rocketmq.client.tls import TlsConnector
from pyspark_rocketmq.client.transport import TcpTransport
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from pyspark_rocketmq.wire.requests.pull import PullRequest

_CLOCK: Final = SystemClock()
SOON_S: Final = 60.0
_WAITING: Final = 4
_SETTLE_S: Final = 60.0
_RESET: Final = struct.pack("ii", 1, 0)
_ANSWER: Final = encode_frame(RemotingCommand(code=0, flag=1, ext_fields={"offset": "7"}, body=b"body"))
QUESTION: Final = RemotingCommand(code=RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T", "queueId": "0"})
_PULL: Final = PullRequest(consumer_group="G", queue=MessageQueue("T", "b", 0), queue_offset=0)


class Countable(Protocol):
    """Resources that may be left behind."""

    def is_at_most(self, before: Self) -> bool:
        """Whether nothing was added; some may be gone, for example if a broker closed an idle connection."""
        ...


_HeldT = TypeVar("_HeldT", bound=Countable)


class Held(NamedTuple):
    """Resources of a process that a connection may leave behind."""

    sockets: int
    threads: int

    @classmethod
    def now(cls) -> Held:
        """Count open sockets and living threads."""
        gc.collect()
        links = (_target(entry) for entry in Path("/proc/self/fd").iterdir())
        return cls(sum(link.startswith("socket:") for link in links), threading.active_count())

    def is_at_most(self, before: Held) -> bool:
        """Implement :meth:`Countable.is_at_most`."""
        return self.sockets <= before.sockets and self.threads <= before.threads


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except FileNotFoundError:  # closed meanwhile, by now or by a thread that ends
        return ""


class Calls:
    """Pending requests on one channel, each of which must be called back once, whatever happens to the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._outcomes: list[list[object]] = []

    def submit(self, request: RemotingCommand) -> None:
        """Send a request and do not wait."""
        self._outcomes.append([])
        self._channel.submit(request, self._outcomes[-1].append, Deadline.after(_CLOCK, SOON_S))

    def close(self) -> None:
        """End the channel.

        Raises:
            AssertionError: If a request was not called back by then, or more than once.
        """
        self._channel.close()
        called = [len(outcomes) for outcomes in self._outcomes]
        assert called == [1] * len(called), (
            f"requests of {self._channel.address} were called back {called} times"
        )


class _Server:
    """Ends each connection in the next of its ways."""

    _WAYS: Final[tuple[tuple[bytes, bool], ...]] = (
        (_ANSWER, False),
        (_ANSWER[:6], False),
        (_ANSWER[:-2], True),
        (b"", False),
        (b"", True),
        (b"SSH-2.0-OpenSSH_9.6\r\n", False),
        (_ANSWER * 3, True),
    )
    """Answers, each with whether a reset follows instead of a normal end."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        ways = cycle(self._WAYS)
        with suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                answer, is_reset = next(ways)
                with connected, suppress(OSError):
                    connected.settimeout(SOON_S)
                    connected.recv(1 << 16)
                    connected.sendall(answer)
                    if is_reset:
                        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def ask(address: str, *others: RemotingCommand) -> None:
    """Send a request, with other requests pending, and disconnect."""
    channel = Channel(TcpTransport.connect(address, SOON_S), _CLOCK)
    calls = Calls(channel)
    try:
        for request in (QUESTION, *others, QUESTION):
            calls.submit(request)
        channel.request(QUESTION, Deadline.after(_CLOCK, SOON_S))
    finally:
        calls.close()


def ask_from_threads(address: str) -> None:
    """Send requests from several threads on one connection."""
    channel = Channel(TcpTransport.connect(address, SOON_S), _CLOCK)
    outcomes: list[object] = []

    def wait() -> None:
        try:
            outcomes.append(channel.request(QUESTION, Deadline.after(_CLOCK, SOON_S)))
        except RocketMQError as error:
            outcomes.append(error)

    waiting = [threading.Thread(target=wait) for _ in range(_WAITING)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(2 * SOON_S)
    channel.close()
    assert len(outcomes) == _WAITING, (
        f"{_WAITING - len(outcomes)} of {_WAITING} threads still wait for {address}"
    )


def come_and_go(address: str) -> None:
    """Connect without sending a request."""
    Channel(TcpTransport.connect(address, SOON_S), _CLOCK).close()


def pull(address: str) -> None:
    """Pull once."""
    line: PullConnection[PullRequest] = PullConnection(TcpTransport.connect(address, SOON_S), _CLOCK)
    try:
        line.send([_PULL])
        line.receive(SOON_S)
    finally:
        line.close()


def reconnect(count: int) -> tuple[Held, Held]:
    """Connect ``count`` times with every kind of client, TLS to the plain port included; what was held before, after.

    Raises:
        AssertionError: If a client ended in anything but an answer or an error of ours.
    """
    clients: tuple[Callable[[str], object], ...] = (
        *(ask, pull, come_and_go) * 3,
        ask_from_threads,
        tls_to_plain(),
    )
    before = Held.now()
    server = _Server()
    try:
        for client in islice(cycle(clients), count):
            with suppress(RocketMQError):
                client(server.address)
    finally:
        server.close()
    return before, settled(Held.now, before)


def tls_to_plain() -> Callable[[str], object]:
    """Make a client that begins a handshake."""
    tls = TlsConnector(verify_certificate=False)
    return lambda address: tls.connect(address, SOON_S)


def settled(held: Callable[[], _HeldT], before: _HeldT) -> _HeldT:
    """Return the held resources after ending threads and connections are gone."""
    deadline = Deadline.after(_CLOCK, _SETTLE_S)
    pause = threading.Event()
    while not (now := held()).is_at_most(before) and not deadline.has_passed:
        pause.wait(0.02)
    return now
