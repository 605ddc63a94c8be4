"""Peers that misbehave: nothing leaks, nobody else waits."""

from __future__ import annotations

import gc
import logging
import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_sim import server
from broker_sim.cluster import SimCluster
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH, encode_frame
from tests.broker_sim.exchange import GROUP, TOPIC, heartbeat, held_pull, pull, request, send
from tests.broker_sim.raw_client import RawClient
from tests.helpers.fake_clock import FakeClock
from tests.helpers.wait import wait_until

_IDLE_S = 120.0


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "broker_sim")


@pytest.fixture
def cluster(clock: FakeClock) -> Iterator[SimCluster]:
    with SimCluster(clock=clock) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@pytest.fixture
def address(cluster: SimCluster) -> str:
    return cluster.broker_addresses["broker-a"]


def _is_closed(client: RawClient) -> bool:
    return client.read_to_end() == b""


def test_a_frame_that_never_ends_is_dropped_after_two_minutes_of_silence(
    cluster: SimCluster, address: str, clock: FakeClock
) -> None:
    """A1: serverChannelMaxIdleTimeSeconds, by the cluster's clock; who speaks meanwhile stays."""
    half = encode_frame(send())[:-3]
    with RawClient(address) as slow, RawClient(address) as silent, RawClient(address) as lively:
        slow.socket.sendall(half)
        lively.call(send())
        clock.advance(_IDLE_S - 1)
        cluster.look_at_clock()
        assert lively.call(send()).code == ResponseCode.SUCCESS
        clock.advance(1)
        cluster.look_at_clock()
        assert _is_closed(slow)
        assert _is_closed(silent)
        assert lively.call(send()).code == ResponseCode.SUCCESS


def test_unfinished_frames_hold_a_bounded_amount_of_memory(
    cluster: SimCluster, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A1: who goes beyond it is disconnected; what is finished or closed counts no more."""
    monkeypatch.setattr(server, "_MOST_HELD_BYTES", 500_000)
    whole = send(bytes(400_000))
    with RawClient(address) as greedy, RawClient(address) as other:
        with suppress(OSError):
            greedy.socket.sendall(encode_frame(send(bytes(900_000)))[:-3])
        assert _is_closed(greedy)
        assert [other.call(whole).code for _ in range(3)] == 3 * [ResponseCode.SUCCESS]


def test_connections_are_bounded_in_number(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: the next one is closed at once; there is room again when one has gone."""
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 2)
    with RawClient(address) as first, RawClient(address) as second:
        assert first.call(send()).code == second.call(send()).code == ResponseCode.SUCCESS
        with RawClient(address) as third:
            assert _is_closed(third)
        assert second.call(send()).code == ResponseCode.SUCCESS


def test_an_answer_counts_against_silence_as_a_request_does(
    cluster: SimCluster, address: str, clock: FakeClock
) -> None:
    """A1: IdleStateHandler watches both directions at once."""
    cluster.faults.add("delay", on=RequestCode.SEND_MESSAGE_V2, seconds=100)
    with RawClient(address) as client:
        client.send(send())
        wait_until(lambda: cluster.faults.pending == 0)
        for _ in range(2):
            clock.advance(100)
            cluster.look_at_clock()
        assert client.receive().code == ResponseCode.SUCCESS
        assert client.call(send()).code == ResponseCode.SUCCESS
        clock.advance(_IDLE_S)
        cluster.look_at_clock()
        assert _is_closed(client)


def test_hundreds_of_frames_that_never_end_hinder_nobody(
    cluster: SimCluster, address: str, clock: FakeClock
) -> None:
    half = encode_frame(send(bytes(100)))[:-50]
    slow = [RawClient(address) for _ in range(300)]
    try:
        for client in slow:
            client.socket.sendall(half)
        with RawClient(address) as client:
            assert [client.call(send()).code for _ in range(50)] == [0] * 50
        clock.advance(_IDLE_S)
        cluster.look_at_clock()
        wait_until(lambda: cluster.connections("broker-a") == 0)
    finally:
        for client in slow:
            client.socket.close()


def test_a_half_closed_connection_is_closed_and_its_member_forgotten(
    cluster: SimCluster, address: str
) -> None:
    """B7: the end of the stream is the end of the member, in the middle of a frame too."""
    with RawClient(address) as client, RawClient(address) as other:
        client.call(heartbeat("c1"))
        client.socket.sendall(encode_frame(send())[:9])
        client.socket.shutdown(socket.SHUT_WR)
        client.read_to_end()
        wait_until(lambda: _member_count(other) == 0)


def test_a_reset_connection_is_forgotten(cluster: SimCluster, address: str) -> None:
    client = RawClient(address)
    client.call(heartbeat("c1"))
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    with RawClient(address) as other:
        wait_until(lambda: _member_count(other) == 0)
        wait_until(lambda: cluster.connections("broker-a") == 1)


def _member_count(client: RawClient) -> int:
    answer = client.call(request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}))
    return 0 if answer.code == ResponseCode.SYSTEM_ERROR else 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
        struct.pack(">I", MAX_FRAME_LENGTH - 3) + bytes(4),
        struct.pack(">I", 0xFFFFFFFF),
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\xff" * 64,
    ],
    ids=["tls", "too long", "negative", "http", "ff"],
)
def test_what_is_no_frame_ends_the_connection_without_an_answer(
    cluster: SimCluster, address: str, data: bytes
) -> None:
    """A1: as Netty's decoder; the limit counts the length word."""
    with RawClient(address) as client:
        client.socket.sendall(data)
        assert _is_closed(client)


def test_a_frame_of_exactly_the_limit_is_taken(cluster: SimCluster, address: str) -> None:
    empty = len(encode_frame(request(9999, opaque=7)))
    with RawClient(address) as client:
        answer = client.call(request(9999, opaque=7, body=bytes(MAX_FRAME_LENGTH - empty)))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@settings(max_examples=60)
@given(data=st.binary(min_size=1, max_size=200))
def test_any_bytes_close_a_connection_or_wait_for_more(data: bytes) -> None:
    """A1: the server survives; a whole request on another connection is answered."""
    cluster = _shared_cluster()
    address = cluster.broker_addresses["broker-a"]
    with RawClient(address) as client, RawClient(address) as other:
        client.socket.sendall(data)
        client.socket.shutdown(socket.SHUT_WR)
        client.read_to_end()
        assert other.call(pull()).code == ResponseCode.PULL_NOT_FOUND


_CLUSTERS: list[SimCluster] = []


def _shared_cluster() -> SimCluster:
    if not _CLUSTERS:
        cluster = SimCluster()
        cluster.start()
        cluster.create_topic(TOPIC)
        _CLUSTERS.append(cluster)
    return _CLUSTERS[0]


@pytest.fixture(scope="module", autouse=True)
def _stop_shared_cluster() -> Iterator[None]:
    yield
    while _CLUSTERS:
        _CLUSTERS.pop().stop()


def test_a_thousand_connections_that_come_and_go_leave_nothing(
    cluster: SimCluster, address: str, clock: FakeClock
) -> None:
    """No socket, thread, held pull or member stays behind."""

    def come_and_go(count: int) -> None:
        for number in range(count):
            with RawClient(address) as client:
                client.send(heartbeat(f"c{number}", group=f"g{number % 200}"))
                client.send(held_pull(timeout_ms=60000))
        with RawClient(address) as last:
            last.call(pull())  # those before it have been accepted by then
        wait_until(lambda: cluster.connections("broker-a") == 0)
        clock.advance(60)
        cluster.look_at_clock()

    come_and_go(200)
    gc.collect()
    # Only what is new counts: something of an earlier test may be ending just now.
    files, threads = _open_files(), set(threading.enumerate())
    tracemalloc.start()
    try:
        gc.collect()
        memory, _ = tracemalloc.get_traced_memory()
        come_and_go(800)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - memory
    finally:
        tracemalloc.stop()
    wait_until(lambda: _open_files() <= files, reason="No socket stays behind")
    assert set(threading.enumerate()) <= threads
    assert cluster.held_pulls() == 0
    assert grown < 800 * 200, "each connection left 200 bytes or more behind"


def _open_files() -> set[str]:
    """What they are, such as ``socket:[4711]``; never two with one name."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder itself, and what is closed just now
            found.add(str(entry.readlink()))
    return {name for name in found if not name.startswith("/proc/")}
