"""Record of which Java or Spark member consumed which message when, and a check of its order."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple, Self

from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.errors import SystemBusy
from pyspark_rocketmq.model import Message, MessageQueue

_PAUSE_S = 0.1
_SEND_TIMEOUT_S = 120.0
"""A send that was given up may be stored all the same, and the count would be wrong."""


class Consumed(NamedTuple):
    """One message at one member."""

    at_ms: float
    member: str
    queue_offset: int


class OrderlyProducer:
    """Sends rounds of one message per key, by sharding key, until :meth:`end` is called."""

    def __init__(self, name_servers: str, topic: str, keys: int) -> None:
        self.rounds = 0
        """Rounds sent and stored."""
        self._topic = topic
        self._keys = [f"order-{number}" for number in range(keys)]
        self._producer = Producer((name_servers,), "mixed-producer", send_timeout_s=_SEND_TIMEOUT_S)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orderly-producer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> int:
        """Stop sending, and return how many messages were sent."""
        self._has_ended.set()
        self._thread.join()
        self._producer.close()
        return self.rounds * len(self._keys)

    def _run(self) -> None:
        while not self._has_ended.wait(_PAUSE_S):
            for key in self._keys:
                self._send(key, Message(topic=self._topic, body=f"{key}:{self.rounds}".encode()))
            self.rounds += 1

    def _send(self, key: str, message: Message) -> None:
        while True:
            try:
                self._producer.send(message, sharding_key=key)
            except SystemBusy:
                # A broker on a busy machine drops requests after a wait of 200 ms, and stores nothing.
                continue
            return


def by_queue(
    consumed: Iterable[tuple[MessageQueue, Consumed]],
) -> Mapping[MessageQueue, list[Consumed]]:
    """Return each queue's deliveries at all members, in the order of their time."""
    queues: dict[MessageQueue, list[Consumed]] = defaultdict(list)
    for queue, one in consumed:
        queues[queue].append(one)
    # Only by time: deliveries of one member within a millisecond are in their order already.
    return {queue: sorted(each, key=lambda one: one.at_ms) for queue, each in queues.items()}


def disorder(queue: MessageQueue, story: Sequence[Consumed]) -> list[str]:
    """Describe what is wrong with the deliveries of a queue: a message passed over,
    or repeated other than at a handover.
    """
    problems = []
    if story[0].queue_offset != 0:
        problems.append(f"{queue} begins at {story[0]}")
    for before, after in pairwise(story):
        is_next = after.queue_offset == before.queue_offset + 1
        is_again = after.queue_offset <= before.queue_offset and after.member != before.member
        if not is_next and not is_again:
            problems.append(f"{queue}: {after} after {before}")
    return problems


def repeated(story: Sequence[Consumed]) -> int:
    """Return how many deliveries were not the first of their message."""
    return len(story) - len({one.queue_offset for one in story})
