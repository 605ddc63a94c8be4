"""An address that refuses connections for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from broker_sim.server import ReservedPort


@contextmanager
def refusing_address() -> Iterator[str]:
    """Yield a ``host:port`` that nobody listens on, or can listen on, until the block ends."""
    port = ReservedPort("127.0.0.1")
    try:
        yield f"{port.ip}:{port.port}"
    finally:
        port.release()
