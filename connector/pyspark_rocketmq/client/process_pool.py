"""The channel pool that the code of one process shares, such as all tasks of a Spark Python worker."""

from __future__ import annotations

import atexit

from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock

_pools: dict[ConnectionSettings, ChannelPool] = {}
"""By settings. In a forked child they begin without connections."""


def process_pool(settings: ConnectionSettings | None = None) -> ChannelPool:
    """This process's pool for ``settings``, made at the first call.

    It stays open until the process ends; do not close it.
    """
    key = settings or ConnectionSettings()
    found = _pools.get(key)
    if found is not None:
        return found
    # No lock, which a fork could leave held for ever: setdefault is atomic, and a pool that loses has opened
    # nothing yet.
    made = key.open_pool(SystemClock())
    kept = _pools.setdefault(key, made)
    if kept is made:
        atexit.register(made.close)
    return kept
