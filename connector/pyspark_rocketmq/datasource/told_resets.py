"""What brokers have told of operators' resets."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue

from pyspark_rocketmq.model import MessageQueue


class ToldResets:
    """Keeps resets until somebody takes them: a broker tells each once, with whatever pull of the group comes next.

    Threads may add while another takes.
    """

    def __init__(self) -> None:
        self._told: SimpleQueue[tuple[MessageQueue, int]] = SimpleQueue()

    def add(self, queue: MessageQueue, target: int) -> None:
        """Keep where an operator wants ``queue``; a later one replaces it."""
        self._told.put((queue, target))

    def take(self) -> dict[MessageQueue, int]:
        """All there are, which are the caller's from now on."""
        resets: dict[MessageQueue, int] = {}
        with suppress(Empty):
            while True:
                queue, target = self._told.get_nowait()
                resets[queue] = target
        return resets
