"""Record of the messages that listeners were given, on any worker."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark_rocketmq.model import MessageExt

Place = tuple[str, int, int]
"""Broker name, queue id, queue offset."""


class Delivery(NamedTuple):
    """One call of a listener."""

    delivered_ns: int
    broker_name: str
    queue_id: int
    queue_offsets: tuple[int, ...]
    reconsume_times: int
    """Value of the first message."""

    @property
    def places(self) -> Iterator[Place]:
        """Where its messages are."""
        return ((self.broker_name, self.queue_id, offset) for offset in self.queue_offsets)


def whole_lines(file: Path) -> list[str]:
    """Return the complete lines of a file that others write; an unfinished last line is left out,
    for a write is seen page by page.
    """
    return file.read_text().rpartition("\n")[0].splitlines()


class DeliveryLog:
    """One file per process, a line per delivery; pickled with the listener that writes it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = str(folder)

    def note(self, messages: Sequence[MessageExt]) -> None:
        """Append one delivery; whole lines, since each is one write to a file opened for appending."""
        first = messages[0]
        offsets = [message.queue_offset for message in messages]
        line = [time.time_ns(), first.broker_name, first.queue_id, offsets, first.reconsume_times]
        file = os.open(
            Path(self._folder, f"deliveries-{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)

    def deliveries(self) -> list[Delivery]:
        """Return all deliveries so far, in the order in which they were made."""
        files = Path(self._folder).iterdir()
        notes = [json.loads(line) for file in files for line in whole_lines(file)]
        return sorted(Delivery(ns, broker, queue, tuple(at), times) for ns, broker, queue, at, times in notes)

    def times_delivered(self) -> Counter[Place]:
        """Return how often each message was delivered."""
        return Counter(place for delivery in self.deliveries() for place in delivery.places)

    def by_queue(self) -> Mapping[tuple[str, int], list[Delivery]]:
        """Return each queue's deliveries, in the order in which they were made."""
        queues: dict[tuple[str, int], list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries():
            queues[delivery.broker_name, delivery.queue_id].append(delivery)
        return queues
