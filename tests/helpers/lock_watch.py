"""Records, in one file and in order, the calls of a listener and when others may have its queues."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerError, RocketMQError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue

CALL, FREE = "call", "free"
_EVERY_S = 0.02
_RIVAL = "somebody else"


def note(folder: Path, event: str) -> None:
    """Append an event; events of several processes are in order."""
    line = f"{event}\n".encode()
    file = os.open(folder / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def events(folder: Path) -> list[str]:
    """Return all events so far, in their order."""
    with suppress(FileNotFoundError):
        return (folder / "events").read_text().splitlines()
    return []


class NotedCalls:
    """A listener that keeps noting each call as long as it lasts."""

    def __init__(self, folder: Path, answer: object, *, call_s: float) -> None:
        """Make calls that take ``call_s`` and return ``answer``."""
        self._folder = folder
        self._answer = answer
        self._call_s = call_s

    def __call__(self, messages: Sequence[Any], context: object) -> object:
        (self._folder / f"pid-{os.getpid()}").touch()
        end_s = time.monotonic() + self._call_s
        while True:
            note(self._folder, CALL)
            time.sleep(_EVERY_S)
            if time.monotonic() >= end_s:
                return self._answer


def called_in(folder: Path) -> list[int]:
    """Return the processes in which the listener was called."""
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


class LockWatch:
    """Another client of the group, which keeps asking for queues of one broker, or for the members.

    ``needs_locks``: the queues are free when this client gets a lock; otherwise when nobody is in the list.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        group: str,
        queues: Sequence[MessageQueue],
        *,
        needs_locks: bool,
    ) -> None:
        self._folder = folder
        self._address = BrokerAddress(address)
        self._group = group
        self._queues = queues
        self._needs_locks = needs_locks
        clock = SystemClock()
        self._pool = ChannelPool(clock)
        self._brokers = BrokerClient(self._pool, clock, 60.0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LockWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._needs_locks:
            # A member that starts again would wait a minute for them.
            with suppress(RocketMQError):
                self._brokers.unlock_batch(self._address, self._group, _RIVAL, self._queues)
        self._pool.close()

    def _run(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            with suppress(RocketMQError):
                if self._is_free():
                    note(self._folder, FREE)
                    return

    def _is_free(self) -> bool:
        if self._needs_locks:
            return bool(self._brokers.lock_batch(self._address, self._group, _RIVAL, self._queues))
        try:
            return not self._brokers.consumer_list(self._address, self._group)
        except BrokerError:
            return True
