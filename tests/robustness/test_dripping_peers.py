"""Peers that go on sending, a byte now and then: a deadline is a deadline, and nobody else waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue

import pytest

from broker_sim.cluster import SimCluster
from fuzz.reconnects import Held
from pyspark_rocketmq.client import channel as channels
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pull_connection import PullConnection, close_idle_connections
from pyspark_rocketmq.client.tls import TlsConnector
from pyspark_rocketmq.client.transport import TcpTransport
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import ConnectFailed, RequestTimeout, RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.source.reader import read_queue
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from pyspark_rocketmq.wire.requests.pull import PullRequest
from tests.broker_sim.exchange import TOPIC, send
from tests.broker_sim.raw_client import RawClient
from tests.helpers.partitions import partition_of
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until

CLOCK = SystemClock()
QUESTION = RemotingCommand(code=RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T", "queueId": "0"})
PULL = PullRequest(consumer_group="G", queue=MessageQueue("T", "b", 0), queue_offset=0)
DRIP_S = 0.004
WAIT_S = 0.2
"""How long they wait.

Whoever waits for what drips instead is still waiting when pytest's own time is over.
"""


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = Held.now()
    yield
    wait_until(lambda: Held.now().is_at_most(before), reason=f"going back to {before}")


def drip(send_bytes: Callable[[bytes], object], data: bytes, every_s: float = DRIP_S) -> None:
    """One byte after the other until the other side has gone."""
    pause = threading.Event()
    with suppress(OSError):
        for at in range(len(data)):
            send_bytes(data[at : at + 1])
            pause.wait(every_s)


def dripping(peer: Peer, request: RemotingCommand) -> None:
    """An answer as any other, in minutes."""
    drip(peer.send_bytes, encode_frame(request.response(0, body=bytes(100_000))))


def test_a_caller_of_a_dripping_server_waits_until_his_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: each byte is a sign of life, and none is an answer;
    whoever waits without a thread gets it as well.
    """
    monkeypatch.setattr(channels, "RECEIVE_TICK_S", WAIT_S / 4)
    outcomes: SimpleQueue[RemotingCommand | RocketMQError] = SimpleQueue()
    with ScriptedServer(dripping) as server:
        channel = Channel(TcpTransport.connect(server.address, PATIENCE_S), CLOCK)
        channel.submit(QUESTION, outcomes.put, Deadline.after(CLOCK, WAIT_S))
        with pytest.raises(RequestTimeout):
            channel.request(QUESTION, Deadline.after(CLOCK, WAIT_S))
        assert isinstance(outcomes.get(timeout=PATIENCE_S), RequestTimeout)
        assert channel.is_open
        channel.close()


def test_a_pull_from_a_dripping_broker_is_given_up_in_time() -> None:
    """A1: silence begins again with each byte, the pull's own time does not."""
    with ScriptedServer(dripping) as server:
        line: PullConnection[PullRequest] = PullConnection(
            TcpTransport.connect(server.address, PATIENCE_S), CLOCK
        )
        line.send([PULL])
        while not (answers := line.receive(WAIT_S)):
            pass
        line.close()

    assert [(pull, type(outcome)) for pull, outcome in answers] == [(PULL, RequestTimeout)]


def test_a_range_of_a_dripping_broker_fails_in_time() -> None:
    """A1: tried again, it drips again."""
    with ScriptedServer(dripping) as server:
        planned = QueueRange(MessageQueue("T", "b", 0), QueueState(0, epoch=1, reconsume_times=0), 100)
        partition = partition_of(planned, server.address, request_timeout_s=WAIT_S, retry_timeout_s=WAIT_S)
        with pytest.raises(RequestTimeout):
            list(read_queue(partition))
        close_idle_connections()


def test_a_handshake_that_drips_ends_in_time() -> None:
    """A5: the record's header is right, its 16 KiB would take a quarter of an hour."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connected, _ = listener.accept()
        with connected:
            drip(connected.sendall, b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb" + bytes(1 << 14), 0.05)

    server = threading.Thread(target=serve)
    server.start()
    with listener, pytest.raises(ConnectFailed, match="handshake"):
        TlsConnector(verify_certificate=False).connect(f"127.0.0.1:{listener.getsockname()[1]}", WAIT_S)
    server.join(PATIENCE_S)


def test_dripping_clients_of_a_broker_do_not_hold_up_the_others() -> None:
    """A1: as with Netty they may stay as long as they drip, each for what it has sent."""
    with SimCluster() as cluster:
        cluster.create_topic(TOPIC)
        address = cluster.broker_addresses["broker-a"]
        frame = encode_frame(send(bytes(1 << 20)))
        with RawClient(address) as slow, RawClient(address) as client:
            dripper = threading.Thread(target=drip, args=(slow.socket.sendall, frame))
            dripper.start()
            assert [client.call(send()).code for _ in range(100)] == [0] * 100
            assert dripper.is_alive()
            assert cluster.connections("broker-a") == 2
            slow.socket.shutdown(socket.SHUT_RDWR)
            dripper.join(PATIENCE_S)
