"""Servers that misbehave: every caller gets its answer or its error by its deadline,
and nothing is left behind.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from fuzz.reconnects import Held, reconnect
from fuzz.simulator_reconnects import reconnect_to_simulator
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.tls import TlsConnector
from pyspark_rocketmq.client.transport import SendingTime, TcpTransport, open_socket
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.errors import (
    ChannelClosed,
    ConnectFailed,
    RemoteProtocolError,
    RequestTimeout,
    RocketMQError,
    TransportError,
)
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until

CLOCK = SystemClock()
QUESTION = RemotingCommand(code=30, ext_fields={"topic": "T", "queueId": "0"})
RECONNECTS = 1000
"""``make fuzz`` does ten thousand."""
RECONNECTS_TO_SIMULATOR = 300
CALLERS = 8
NEVER_S = 3600.0
"""Longer than a test may take: who waits so long has hung."""


def soon() -> Deadline:
    return Deadline.after(CLOCK, PATIENCE_S)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = Held.now()
    yield
    wait_until(lambda: Held.now().is_at_most(before), reason=f"going back to {before}")


def opened(address: str, clock: Clock = CLOCK) -> Channel:
    """A channel that nobody but a caller's deadline ends."""
    return Channel(TcpTransport(address, open_socket(address, PATIENCE_S), stall_s=NEVER_S), clock)


def outcomes_of(channel: Channel, callers: int = CALLERS) -> list[RocketMQError | RemotingCommand]:
    """What so many callers at the same time get."""

    def call(_: int) -> RocketMQError | RemotingCommand:
        try:
            return channel.request(QUESTION, soon())
        except RocketMQError as error:
            return error

    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(call, range(callers)))


def silent(peer: Peer, request: RemotingCommand) -> None:
    """Never answer."""


@pytest.mark.parametrize("sent", [0, 1, 4, 7, 8, 20, -1])
def test_an_answer_that_never_ends_is_a_timeout(sent: int) -> None:
    """A1: slow-loris and a peer that vanished look alike: some bytes, then nothing,
    and no end of the stream.
    """

    def begin(peer: Peer, request: RemotingCommand) -> None:
        peer.send_bytes(encode_frame(request.response(0, body=b"body"))[:sent])

    with ScriptedServer(begin) as server:
        channel = opened(server.address)
        with pytest.raises(RequestTimeout):
            channel.request(QUESTION, Deadline.after(CLOCK, 0.05))
        channel.close()


@pytest.mark.parametrize("sent", [0, 1, 4, 7, 8, 20, -1])
@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "end"])
def test_a_connection_that_ends_in_any_phase_fails_every_caller(sent: int, is_reset: bool) -> None:
    """A1: in the length, in the header, in the body; all who wait get it at once."""

    def begin(peer: Peer, request: RemotingCommand) -> None:
        requests.put(request)
        if requests.qsize() == CALLERS:
            peer.send_bytes(encode_frame(request.response(0, body=b"body"))[:sent])
            peer.reset() if is_reset else peer.close()

    requests: SimpleQueue[RemotingCommand] = SimpleQueue()
    with ScriptedServer(begin) as server:
        channel = opened(server.address)
        outcomes = outcomes_of(channel)
        channel.close()

    assert all(isinstance(outcome, ChannelClosed) for outcome in outcomes)
    assert all("GET_MAX_OFFSET topic=T queue=0" in str(outcome) for outcome in outcomes)


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "end"])
def test_a_connection_that_ends_right_after_it_began_fails_the_next_callers(is_reset: bool) -> None:
    """A1: accepted and dropped, as by a balancer without a server behind it."""
    with ScriptedServer() as server:
        channel = opened(server.address)
        peer = server.next_peer()
        peer.reset() if is_reset else peer.close()
        outcomes = outcomes_of(channel)
        channel.close()

    assert all(isinstance(outcome, ChannelClosed) for outcome in outcomes)


@pytest.mark.parametrize(
    "greeting",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x0a" * 3,
        bytes(64),
    ],
    ids=["ssh", "http", "tls alert", "zeros"],
)
def test_a_greeting_of_another_protocol_reaches_every_caller(greeting: bytes) -> None:
    """A1: sent before anything was asked."""
    with ScriptedServer(silent) as server:
        channel = opened(server.address)
        server.next_peer().send_bytes(greeting)
        outcomes = outcomes_of(channel)
        channel.close()

    assert all(isinstance(outcome, RemoteProtocolError) for outcome in outcomes)


def test_unexpected_and_second_answers_disturb_no_caller() -> None:
    """A1: every caller gets its own answer, once."""

    def too_much(peer: Peer, request: RemotingCommand) -> None:
        for opaque in (request.opaque, request.opaque, -1, 1 << 30, request.opaque):
            answer = request.response(0, body=str(opaque).encode())
            peer.send(RemotingCommand(code=0, flag=answer.flag, opaque=opaque, body=answer.body))

    counts: SimpleQueue[RemotingCommand | RocketMQError] = SimpleQueue()
    with ScriptedServer(too_much) as server:
        channel = opened(server.address)
        opaques = [channel.submit(QUESTION, counts.put, soon()) for _ in range(50)]
        bodies = sorted(int(counts.get(timeout=PATIENCE_S).body) for _ in opaques)  # type: ignore[union-attr]
        assert channel.request(QUESTION, soon()).code == 0
        channel.close()

    assert bodies == opaques
    assert counts.empty()


def test_an_answer_of_ours_that_cannot_be_sent_stops_no_other_answer() -> None:
    """A1: a server's request may hold texts that our answer must not repeat."""

    def repeat(request: RemotingCommand) -> RemotingCommand:
        return request.response(0, remark="\ud800" if request.opaque == 1 else "fine")

    with ScriptedServer(silent) as server:
        channel = Channel(TcpTransport.connect(server.address, PATIENCE_S), CLOCK, request_handler=repeat)
        peer = server.next_peer()
        for opaque in (1, 2):
            peer.send(RemotingCommand(code=307, opaque=opaque))
        answers = [server.next_answer(), server.next_answer()]
        channel.close()

    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 1), (2, 0)]


class DeafServer:
    """Accepts connections and never reads a byte, so that the sockets' buffers fill up."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> DeafServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


LARGE = RemotingCommand(code=310, body=bytes(15 * 1024 * 1024))


def test_a_server_that_does_not_read_costs_a_sender_no_more_than_his_deadline() -> None:
    """A1: part of the frame is out, so the channel ends with it."""
    with DeafServer() as server:
        # Not by the time in which the reader looks after deadlines: it may find out before the sender does.
        channel = opened(server.address, FakeClock())
        with pytest.raises(ChannelClosed, match=r"the peer accepted \d+ of \d+ bytes within [0-9.]+ s"):
            channel.request(LARGE, Deadline.after(CLOCK, 0.1))
        assert not channel.is_open
        channel.close()


def test_a_caller_behind_a_stuck_sender_gives_up_by_its_own_deadline() -> None:
    """A1: nothing of his request is out, so the channel is not his to end."""
    outcomes: SimpleQueue[RemotingCommand | RocketMQError] = SimpleQueue()
    with DeafServer() as server:
        channel = opened(server.address)
        stuck = threading.Thread(
            target=channel.submit, args=(LARGE, outcomes.put, Deadline.after(CLOCK, NEVER_S))
        )
        stuck.start()
        wait_until(channel._send_lock.locked)
        with pytest.raises(RequestTimeout):
            channel.request(QUESTION, Deadline.after(CLOCK, 0.05))
        assert channel.is_open
        assert outcomes.empty()
        channel.close()
        stuck.join(PATIENCE_S)

    assert isinstance(outcomes.get(timeout=PATIENCE_S), ChannelClosed)


def test_a_server_that_reads_single_bytes_holds_no_caller_beyond_its_deadline() -> None:
    """A1: with progress in each step the size decides: 64 KiB a second is the least."""
    time_left = SendingTime(0, float("inf"), stall_s=0.0)
    assert time_left.next_s() == 0.001
    assert SendingTime(64 * 1024 * 1000, float("inf"), stall_s=5.0).next_s() == 5.0
    assert SendingTime(64 * 1024, 0.5, stall_s=5.0).next_s() <= 0.5


def test_a_peer_that_vanished_is_noticed_by_the_system() -> None:
    """A1: half-open: no packet says that the peer is gone, so it must be asked."""
    with ScriptedServer() as server, open_socket(server.address, PATIENCE_S) as connected:
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        option = connected.getsockopt
        probes_s = option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + option(
            socket.IPPROTO_TCP, socket.TCP_KEEPINTVL
        ) * option(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert probes_s <= 60
        assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000


def test_a_handshake_with_a_plain_server_that_says_nothing_ends_in_time() -> None:
    """A5: TLS to a plain port whose server waits for the rest of a frame."""
    with DeafServer() as server:
        connector = TlsConnector(verify_certificate=False)
        with pytest.raises(ConnectFailed, match="handshake"):
            connector.connect(server.address, 0.1)


def test_a_pool_gives_every_caller_an_error_while_the_server_is_down_and_an_answer_afterwards() -> None:
    """A1: nobody waits for a connection that another caller failed to make."""
    with ScriptedServer() as server, ChannelPool(CLOCK) as pool:
        address = server.address

        def call(_: int) -> bool:
            try:
                return pool.get(address, soon()).request(QUESTION, soon()).code == 0
            except TransportError:
                return False

        server.script = lambda peer, _request: peer.reset()
        with ThreadPoolExecutor(CALLERS) as callers:
            assert not any(callers.map(call, range(40)))
            server.script = lambda peer, request: peer.answer(request)
            wait_until(lambda: call(0))
            assert all(callers.map(call, range(40)))


def test_a_thousand_reconnects_leave_no_thread_and_no_socket() -> None:
    """A1: answered, cut, reset, garbage, TLS to a plain port, closed unasked."""
    before, after = reconnect(RECONNECTS)
    assert after.is_at_most(before), (before, after)


def test_hundreds_of_broken_connections_leave_nothing_with_client_or_broker() -> None:
    """A1: no thread, socket, caller, connection, held pull or member; ``make fuzz`` does ten thousand."""
    before, after = reconnect_to_simulator(RECONNECTS_TO_SIMULATOR)
    assert after.is_at_most(before), (before, after)
