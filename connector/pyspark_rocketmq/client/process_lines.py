"""Pull lines that a process keeps between the tasks that use them, such as a Spark Python worker."""

from __future__ import annotations

import atexit
import os
from typing import Any, Final

from pyspark_rocketmq.client.pull_line import PullLine
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.transport import Connect
from pyspark_rocketmq.clock import Clock

_PLAIN: Final = ConnectionSettings()
_KEPT_S: Final = 60.0
"""A broker ends a connection that is silent for 120 s (``serverChannelMaxIdleTimeSeconds``)."""

_idle: dict[tuple[str, ConnectionSettings], list[tuple[float, PullLine[Any]]]] = {}
"""By address, and by settings, because a line speaks with one user's credentials; with the monotonic second at which each
was given back."""
# A child must not speak on its parent's connections.
os.register_at_fork(after_in_child=_idle.clear)


def take_line(
    address: str, clock: Clock, settings: ConnectionSettings = _PLAIN, *, connect: Connect | None = None
) -> PullLine[Any]:
    """A line to ``address`` that nobody else has: one that was given back lately, else a new connection.

    Raises:
        ConnectFailed: If no connection could be made within the settings' time-out.
        OptionError: If a certificate or key file cannot be used.
    """
    kept = _idle.get((address, settings), [])
    # Threads take and give back: who finds one here may find it gone.
    while (idle := _popped(kept)) is not None:
        since_s, line = idle
        if clock.monotonic_s() - since_s < _KEPT_S:
            return line
        line.close()
    transport = (connect or settings.connector())(address, settings.connect_timeout_s)
    return PullLine(transport, clock, signer=settings.signer())


def give_back_line(line: PullLine[Any], clock: Clock, settings: ConnectionSettings = _PLAIN) -> None:
    """Keep a line for the next taker with the same settings; one with pulls in flight is closed."""
    if line.in_flight:
        line.close()
        return
    key = (line.address, settings)
    if not _idle:
        atexit.register(close_idle_lines)
    _idle.setdefault(key, []).append((clock.monotonic_s(), line))


def _popped(kept: list[tuple[float, PullLine[Any]]]) -> tuple[float, PullLine[Any]] | None:
    try:
        return kept.pop()
    except IndexError:
        return None


def close_idle_lines() -> None:
    """Close the lines this process keeps."""
    for key in list(_idle):
        for _, line in _idle.pop(key):
            line.close()
