from __future__ import annotations

import fcntl
import socket
import termios
from array import array

import pytest

from pyspark_rocketmq.client.transport import Poller, TcpTransport, open_socket, split_address
from pyspark_rocketmq.errors import ChannelClosed, ConnectFailed
from tests.helpers.refusing import refusing_address
from tests.helpers.scripted_server import ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until


@pytest.mark.parametrize(
    ("address", "expected"),
    [("broker:10911", ("broker", 10911)), ("[::1]:9876", ("::1", 9876)), ("10.0.0.1:0", ("10.0.0.1", 0))],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    """A1: IPv6 hosts are in brackets."""
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["broker", "broker:", ":9876", "broker:http", "broker:70000", ""])
def test_a_malformed_address_cannot_be_connected_to(address: str) -> None:
    """A1: reported as such, not as a failure of the name service."""
    with pytest.raises(ConnectFailed, match="must be HOST:PORT"):
        TcpTransport.connect(address, 1.0)


def test_a_refused_connection_names_the_address() -> None:
    """A1: the text reaches the user from a Spark worker, so it must say where."""
    with refusing_address() as address, pytest.raises(ConnectFailed, match=address) as caught:
        TcpTransport.connect(address, PATIENCE_S)
    assert caught.value.retryable


def test_sending_after_closing_is_a_closed_channel(server: ScriptedServer) -> None:
    """A1: every OSError leaves as an error of ours."""
    transport = TcpTransport.connect(server.address, PATIENCE_S)
    transport.shutdown()
    transport.close()
    transport.close()
    transport.shutdown()

    with pytest.raises(ChannelClosed):
        transport.sendall(b"x")
    with pytest.raises(ChannelClosed):
        transport.recv_into(memoryview(bytearray(8)))


def test_a_connection_is_reported_when_the_awaited_bytes_have_arrived() -> None:
    """A4: or the end of the stream."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        transport = TcpTransport.connect(f"127.0.0.1:{listener.getsockname()[1]}", PATIENCE_S)
        peer, _ = listener.accept()
    with peer:
        poller: Poller[TcpTransport] = Poller()
        assert transport.await_bytes(1000)
        peer.sendall(bytes(999))
        wait_until(lambda: arrived_bytes(transport) == 999)
        assert poller.await_readable([transport], 0.0) == []
        peer.sendall(b"x")
        assert poller.await_readable([transport], PATIENCE_S) == [transport]
        assert transport.recv_into(memoryview(bytearray(400))) == 400

        assert not transport.await_bytes(1)
        assert poller.await_readable([transport], PATIENCE_S) == [transport]
        assert transport.recv_into(memoryview(bytearray(1000))) == 600

        assert transport.await_bytes(1000)
    assert poller.await_readable([transport], PATIENCE_S) == [transport]
    assert transport.recv_into(memoryview(bytearray(8))) == 0
    transport.close()


def arrived_bytes(transport: TcpTransport) -> int:
    """Return how many bytes can be received."""
    count = array("i", [0])
    fcntl.ioctl(transport.fileno(), termios.FIONREAD, count)
    return count[0]


def test_a_poller_follows_connections_that_get_the_number_of_closed_ones() -> None:
    """A1: otherwise answers would wait until the caller's time-out."""
    poller: Poller[socket.socket] = Poller()
    numbers = []
    for _ in range(3):
        ours, peer = socket.socketpair()
        with ours, peer:
            numbers.append(ours.fileno())
            assert poller.await_readable([ours], 0.0) == []
            peer.send(b"x")
            assert poller.await_readable([ours], PATIENCE_S) == [ours]
            assert poller.await_readable([ours, peer], PATIENCE_S) == [ours]
    assert len(set(numbers)) == 1


def received(peer: socket.socket) -> tuple[int, bool]:
    """Number of bytes that come before the connection ends, and whether the other side resets it."""
    peer.settimeout(PATIENCE_S)
    count = 0
    try:
        while some := peer.recv(1 << 16):
            count += len(some)
    except ConnectionResetError:
        return count, True
    return count, False


@pytest.mark.parametrize("discards", [False, True])
def test_what_was_not_sent_is_discarded_only_if_asked_for(discards: bool) -> None:
    """A7: a request that was given up in a failure of the network must not arrive after later ones."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        transport = TcpTransport(address, open_socket(address, PATIENCE_S), stall_s=0.05)
        peer, _ = listener.accept()
    with peer:
        with pytest.raises(ChannelClosed):
            transport.sendall(bytes(64 << 20))
        waits = array("i", [0])
        fcntl.ioctl(transport.fileno(), termios.TIOCOUTQ, waits)
        fcntl.ioctl(peer.fileno(), termios.FIONREAD, arrived := array("i", [0]))
        if discards:
            transport.discard_unsent()
        transport.shutdown()
        transport.close()

        count, is_reset = received(peer)

    assert waits[0] > 0
    assert is_reset is discards
    assert count == arrived[0] + (0 if discards else waits[0])
