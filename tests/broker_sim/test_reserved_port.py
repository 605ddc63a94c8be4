"""A stopped server's port stays its own."""

from __future__ import annotations

import socket

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.server import ReservedPort
from tests.broker_sim.raw_client import RawClient

_IP = "127.0.0.1"


def test_nobody_answers_at_a_reserved_port_until_we_listen_and_nobody_else_can() -> None:
    port = ReservedPort(_IP)
    address = f"{_IP}:{port.port}"
    with pytest.raises(ConnectionRefusedError):
        RawClient(address)
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind((_IP, port.port))
    for _ in range(2):
        with port.listener(), RawClient(address):
            pass
    port.release()
    port.release()


def test_a_port_where_somebody_listens_cannot_be_reserved() -> None:
    with socket.create_server((_IP, 0)) as listener, pytest.raises(OSError, match="in use"):
        ReservedPort(_IP, listener.getsockname()[1])


@pytest.mark.parametrize("how", ["stopped", "refusing"])
def test_the_port_of_a_broker_that_is_away_is_nobody_else_s(how: str) -> None:
    """A2: or it could not come back to where routes say it is."""
    with SimCluster() as cluster:
        address = cluster.broker_addresses["broker-a"]
        port = int(address.rpartition(":")[2])
        cluster.stop_broker("broker-a") if how == "stopped" else cluster.refuse_connections("broker-a")
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind((_IP, port))
        cluster.start_broker("broker-a") if how == "stopped" else cluster.accept_connections("broker-a")
        RawClient(address).socket.close()
