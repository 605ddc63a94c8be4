"""The channel pool that the code of one process shares, such as all tasks of a Spark Python worker."""

from __future__ import annotations

import atexit
import os

from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock

_pools: dict[tuple[int, ConnectionSettings], ChannelPool] = {}
"""By process id and settings. A forked child leaves its parent's pools alone: their threads do not exist in the
child, and their connections are the parent's."""


def process_pool(settings: ConnectionSettings | None = None) -> ChannelPool:
    """This process's pool for ``settings``, made at the first call and again after a fork.

    It stays open until the process ends; do not close it.
    """
    key = (os.getpid(), settings or ConnectionSettings())
    found = _pools.get(key)
    if found is not None:
        return found
    # No lock, which a fork could leave held for ever: setdefault is atomic, and a pool that loses has opened
    # nothing yet.
    made = key[1].open_pool(SystemClock())
    kept = _pools.setdefault(key, made)
    if kept is made:
        atexit.register(_close_own, key)
    return kept


def _close_own(key: tuple[int, ConnectionSettings]) -> None:
    # A child forked later inherits the parent's exit handlers.
    if key[0] == os.getpid():
        _pools[key].close()
