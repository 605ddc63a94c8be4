"""A loopback peer that answers frames exactly as a test scripts it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import TypeVar

from broker_sim.server import ReservedPort
from pyspark_rocketmq.client.transport import Closing
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder
from tests.helpers.wait import PATIENCE_S

T = TypeVar("T")

Wrap = Callable[[socket.socket], socket.socket]


class Peer:
    """The server's end of one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._send_lock = threading.Lock()
        self.has_ended = threading.Event()
        """Set when the client has closed its end."""

    def send(self, command: RemotingCommand) -> None:
        """Send a whole frame."""
        self.send_bytes(encode_frame(command))

    def answer(
        self,
        request: RemotingCommand,
        code: int = 0,
        *,
        remark: str | None = None,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer ``request``."""
        self.send(request.response(code, remark=remark, ext_fields=ext_fields or {}, body=body))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes: garbage, or the beginning of a frame."""
        with self._send_lock:
            self._socket.sendall(data)

    def close(self) -> None:
        """End the connection as a server that stops: the client sees the end of the stream."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End the connection as a server that crashes: the client sees a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def receive_from(self, on_request: Callable[[RemotingCommand], None]) -> None:
        """Decode what the client sends until it ends the connection or sends nonsense; closes this end."""
        decoder = FrameDecoder()
        with contextlib.suppress(OSError, RemoteProtocolError):
            while data := self._socket.recv(65536):
                for command in decoder.feed(data):
                    on_request(command)
        self._socket.close()
        self.has_ended.set()


Script = Callable[[Peer, RemotingCommand], object]
"""Called with every frame of a connection, one after another, on that connection's thread."""


class ScriptedServer(Closing):
    """Listens on a free loopback port and runs ``script`` on every frame that comes.

    ``script`` may be replaced at any time. Answers to our own requests
    go to ``answers`` instead of the script.
    """

    def __init__(
        self, script: Script | None = None, *, wrap: Wrap | None = None, broker_name: str | None = None
    ) -> None:
        """Answer clients that ask for the broker's name with ``broker_name``; None: refuse, as a proxy does.

        Neither the script nor ``requests`` sees that question.
        """
        self.broker_name = broker_name
        self.role = "ASYNC_MASTER"
        self.broker_id = 0
        self.introductions = 0
        """Number of requests for its name so far."""
        self.script: Script = script or (lambda peer, request: peer.answer(request))
        self.requests: SimpleQueue[RemotingCommand] = SimpleQueue()
        self.answers: SimpleQueue[RemotingCommand] = SimpleQueue()
        self._peers: SimpleQueue[Peer] = SimpleQueue()
        self._all_peers: list[Peer] = []
        self._wrap = wrap or (lambda connected: connected)
        port = ReservedPort("127.0.0.1")
        # A closed server must refuse its clients, so nobody else may get its port
        # as long as its address is known.
        weakref.finalize(self, port.release)
        self._listener = port.listener()
        self.address = f"127.0.0.1:{port.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def next_peer(self, timeout_s: float = PATIENCE_S) -> Peer:
        """Wait for the next connection, in the order in which clients connected."""
        return _next(self._peers, timeout_s, "connection")

    def next_request(self, timeout_s: float = PATIENCE_S) -> RemotingCommand:
        """Wait for the next request of any connection, in the order of arrival."""
        return _next(self.requests, timeout_s, "request")

    def next_answer(self, timeout_s: float = PATIENCE_S) -> RemotingCommand:
        """Wait for the next answer of a client to our own request."""
        return _next(self.answers, timeout_s, "answer")

    @property
    def connection_count(self) -> int:
        """Connections accepted so far."""
        return len(self._all_peers)

    def close(self) -> None:
        """Stop listening, close every connection, wait for the threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for peer in list(self._all_peers):
            peer.close()
        for thread in list(self._threads):
            thread.join(PATIENCE_S)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                try:
                    connected = self._wrap(accepted)
                except OSError:
                    accepted.close()
                    continue
                peer = Peer(connected)
                self._all_peers.append(peer)
                thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
                self._threads.append(thread)
                thread.start()
                self._peers.put(peer)

    def _serve(self, peer: Peer) -> None:
        def take_in(command: RemotingCommand) -> None:
            if command.is_response:
                self.answers.put(command)
            elif command.code == RequestCode.GET_BROKER_CONFIG:
                self._introduce(peer, command)
            else:
                self.requests.put(command)
                self.script(peer, command)

        peer.receive_from(take_in)

    def _introduce(self, peer: Peer, request: RemotingCommand) -> None:
        self.introductions += 1
        if self.broker_name is None:
            peer.answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not supported")
        else:
            shown = {"brokerName": self.broker_name, "brokerId": self.broker_id, "brokerRole": self.role}
            body = "".join(f"{name}={value}\n" for name, value in shown.items())
            peer.answer(request, body=body.encode())


def _next(queue: SimpleQueue[T], timeout_s: float, what: str) -> T:
    try:
        return queue.get(timeout=timeout_s)
    except Empty:
        raise AssertionError(f"No {what} came within {timeout_s:g} s.") from None
