"""Pull lines that a process keeps between the tasks that use them, such as a Spark Python worker."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any, Final

from pyspark_rocketmq.client.pull_line import PullLine
from pyspark_rocketmq.client.transport import TcpTransport, Transport
from pyspark_rocketmq.clock import Clock

_CONNECT_TIMEOUT_S: Final = 3.0
_KEPT_S: Final = 60.0
"""A broker ends a connection that is silent for 120 s (``serverChannelMaxIdleTimeSeconds``)."""

_idle: dict[tuple[int, str], list[tuple[float, PullLine[Any]]]] = {}
"""By process id, because a forked child must not speak on its parent's connections, and by address; with the
monotonic second at which each was given back."""


def take_line(
    address: str, clock: Clock, *, connect: Callable[[str, float], Transport] = TcpTransport.connect
) -> PullLine[Any]:
    """A line to ``address`` that nobody else has: one that was given back lately, else a new connection.

    Raises:
        ConnectFailed: If no connection could be made within three seconds.
    """
    kept = _idle.get((os.getpid(), address), [])
    while kept:
        since_s, line = kept.pop()
        if clock.monotonic_s() - since_s < _KEPT_S:
            return line
        line.close()
    return PullLine(connect(address, _CONNECT_TIMEOUT_S), clock)


def give_back_line(line: PullLine[Any], clock: Clock) -> None:
    """Keep a line for the next taker; one with pulls in flight is closed."""
    if line.in_flight:
        line.close()
        return
    key = (os.getpid(), line.address)
    if not _idle:
        atexit.register(close_idle_lines)
    _idle.setdefault(key, []).append((clock.monotonic_s(), line))


def close_idle_lines() -> None:
    """Close the lines this process keeps."""
    for key in [key for key in _idle if key[0] == os.getpid()]:
        for _, line in _idle.pop(key):
            line.close()
