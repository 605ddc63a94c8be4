"""Ports that were free a moment ago."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

# Below the range the kernel gives to outgoing connections: a port stays free while its broker is stopped.
_LOWEST, _HIGHEST = 20_000, 32_000
_ATTEMPTS = 200
_random = random.SystemRandom()


def free_ports(*distances: int) -> int:
    """A port ``p`` such that every ``p + distance`` can be bound on the loopback interface."""
    for _ in range(_ATTEMPTS):
        port = _random.randrange(_LOWEST, _HIGHEST)
        if _can_bind([port + distance for distance in distances]):
            return port
    raise OSError(f"No free ports were found between {_LOWEST} and {_HIGHEST} in {_ATTEMPTS} attempts.")


def _can_bind(ports: list[int]) -> bool:
    with ExitStack() as stack:
        for port in ports:
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
