"""Who is at the other end of a connection, and what goes out to whom."""

from __future__ import annotations

from typing import NamedTuple

from broker_sim.layout import Host
from pyspark_rocketmq.wire.command import RemotingCommand


class Peer(NamedTuple):
    """One accepted connection."""

    connection_id: int
    """Unique within the server for all time."""
    host: Host


class Outgoing(NamedTuple):
    """A command for one connection."""

    peer: Peer
    command: RemotingCommand
    request_code: int
    """Of a response: what it answers; of a request: its own code."""
