"""Open ranges of a task, whose messages a test sends."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from queue import SimpleQueue

from pyspark_rocketmq.consume.read_range import PullThresholds
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source.schema import Arrival


class OpenSource:
    """Ranges without an end, whose messages a test sends."""

    is_open = True
    thresholds = PullThresholds()

    def __init__(self) -> None:
        self._coming: SimpleQueue[Sequence[Arrival] | None] = SimpleQueue()
        self.held: set[MessageQueue] = set()
        self.was_held = False
        self.left: list[MessageQueue] = []

    def send(self, *pieces: Arrival) -> None:
        self._coming.put(pieces)

    def arrivals(self) -> Generator[Sequence[Arrival]]:
        while (pieces := self._coming.get()) is not None:
            yield pieces

    def hold(self, queue: MessageQueue) -> None:
        self.held.add(queue)
        self.was_held = True

    def go_on(self, queue: MessageQueue) -> None:
        self.held.remove(queue)

    def leave(self, queue: MessageQueue) -> None:
        self.left.append(queue)

    def end(self) -> None:
        self._coming.put(None)
