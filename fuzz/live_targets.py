"""Conversations: foreign bytes for the simulator's servers, and foreign answers for our client's connections.

For every input, a server must continue to serve others without logging an exception, and a caller of the client
must get a value or an error of this package.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from broker_sim.cluster import SimCluster
from fuzz import seeds
from fuzz.target import MAX_MEMORY_BYTES, Target, with_frame_lengths
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pull_connection import PullConnection
from pyspark_rocketmq.client.transport import TcpTransport
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RESPONSE_FLAG, RemotingCommand, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder
from pyspark_rocketmq.wire.requests.pull import PullRequest

_CLOCK: Final = SystemClock()
_CONVERSATION_S: Final = 60.0
_TURNS_PER_SERVER: Final = 2000
"""Number of inputs after which a new simulator is started, because it keeps data from them."""
_THREADS_BYTES: Final = 4 * (8 << 20)
"""Stacks of the threads that a conversation starts, of which very little is used."""
_LINGER: Final = struct.pack("ii", 1, 0)


class _Errors(logging.Handler):
    """Keeps logged errors: no input from a peer may cause one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text, with the traceback."""
        self.records.append(logging.Formatter().format(record))

    def check(self) -> None:
        """Raise an error if any was kept."""
        records, self.records = self.records, []
        assert not records, records[0]


def _watch_log() -> _Errors:
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    return errors


class ServerTarget:
    """A simulated server on the loopback interface, whichever of a cluster ``address_of`` says."""

    def __init__(self, address_of: Callable[[SimCluster], str], probe: RemotingCommand) -> None:
        self._address_of = address_of
        self._probe = encode_frame(probe)
        self._cluster: SimCluster | None = None
        self._errors: _Errors | None = None
        self._turns = 0

    def run(self, data: bytes) -> None:
        """Send ``data``, read until the server has processed it, and query the server as another client."""
        server = self._server()
        with _connect(server) as connected, suppress(ConnectionError):  # it may refuse before it has read all
            connected.sendall(data)
            connected.shutdown(socket.SHUT_WR)
            while connected.recv(1 << 16):
                pass
        with _connect(server) as connected:
            connected.sendall(self._probe)
            decoder = FrameDecoder()
            while not decoder.feed(connected.recv(1 << 16)):
                pass
        assert self._errors is not None
        self._errors.check()

    def close(self) -> None:
        """Stop the cluster."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None

    def _server(self) -> str:
        if self._errors is None:
            self._errors = _watch_log()
        self._turns += 1
        if self._turns % _TURNS_PER_SERVER == 0:
            self.close()
        if self._cluster is None:
            self._cluster = SimCluster()
            self._cluster.start()
            self._cluster.create_topic("TopicTest", queues=4)
        return self._address_of(self._cluster)


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connected = socket.create_connection((host, int(port)), timeout=_CONVERSATION_S)
    # Avoid TIME_WAIT: thousands of connections per second would use up the ports.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    return connected


class ClientTarget:
    """A server that answers every request with the input; ``converse`` is the client's side."""

    def __init__(self, converse: Callable[[TcpTransport], None]) -> None:
        self._converse = converse
        self._listener: socket.socket | None = None
        self._errors: _Errors | None = None
        self._data = b""

    def run(self, data: bytes) -> None:
        """One connection, answered with ``data``, which the server then closes."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self._errors = _watch_log()
            threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()
        self._data = data
        with suppress(RocketMQError):
            self._converse(
                TcpTransport.connect(f"127.0.0.1:{self._listener.getsockname()[1]}", _CONVERSATION_S)
            )
        assert self._errors is not None
        self._errors.check()

    def close(self) -> None:
        """Stop listening, which ends the server's thread."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connected, _ = listener.accept()
                with connected, suppress(OSError):
                    connected.recv(1 << 16)
                    connected.sendall(self._data)
                    connected.shutdown(socket.SHUT_WR)
                    connected.settimeout(_CONVERSATION_S)
                    while connected.recv(1 << 16):
                        pass


_QUESTION: Final = RemotingCommand(
    code=RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "TopicTest", "queueId": "0"}
)
_PULL: Final = PullRequest(consumer_group="G", queue=MessageQueue("TopicTest", "broker-a", 0), queue_offset=0)


def _ask(transport: TcpTransport) -> None:
    channel = Channel(transport, _CLOCK)
    try:
        channel.request(_QUESTION, Deadline.after(_CLOCK, _CONVERSATION_S))
    finally:
        channel.close()


def _pull(transport: TcpTransport) -> None:
    line: PullConnection[PullRequest] = PullConnection(transport, _CLOCK)
    try:
        line.send([_PULL])
        while line.in_flight:
            line.receive(_CONVERSATION_S)
    finally:
        line.close()


def _request_seeds() -> Iterable[bytes]:
    return [frame for frame in seeds.frames() if not _is_response(frame)]


def _answer_seeds() -> Iterable[bytes]:
    """Answers to the first request of a connection, and requests of a server."""
    for frame in seeds.frames():
        for command in FrameDecoder().feed(frame):
            if command.is_response:
                yield encode_frame(_numbered(command))
            else:
                yield frame


def _numbered(command: RemotingCommand) -> RemotingCommand:
    return RemotingCommand(
        code=command.code,
        flag=RESPONSE_FLAG,
        opaque=0,
        remark=command.remark,
        ext_fields=command.ext_fields,
        body=command.body,
        serialize_type=command.serialize_type,
    )


def _is_response(frame: bytes) -> bool:
    return any(command.is_response for command in FrameDecoder().feed(frame))


def _server_target(name: str, address_of: Callable[[SimCluster], str], probe: RemotingCommand) -> Target:
    target = ServerTarget(address_of, probe)
    return _conversation(name, target.run, _request_seeds, target.close)


def _client_target(name: str, converse: Callable[[TcpTransport], None]) -> Target:
    target = ClientTarget(converse)
    return _conversation(name, target.run, _answer_seeds, target.close)


def _conversation(
    name: str, run: Callable[[bytes], None], inputs: Callable[[], Iterable[bytes]], close: Callable[[], None]
) -> Target:
    return Target(
        name=name,
        run=run,
        seeds=lambda: list(inputs()),
        repair=with_frame_lengths,
        max_memory_bytes=MAX_MEMORY_BYTES + _THREADS_BYTES,
        max_seconds=2 * _CONVERSATION_S,
        is_conversation=True,
        close=close,
    )


LIVE_TARGETS: Final = (
    _server_target("broker-server", lambda cluster: cluster.broker_addresses["broker-a"], _QUESTION),
    _server_target(
        "name-server",
        lambda cluster: cluster.name_servers,
        RemotingCommand(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "TopicTest"}),
    ),
    _client_target("channel", _ask),
    _client_target("pull-line", _pull),
)
