"""``python -m bench.feeder``: sends messages of 1 KiB at a steady rate until its standard input ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple, Self

import numpy as np

from bench.histogram import percentile
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message, MessageQueue

BODY: Final = b"." * 1024
_LARGEST_SEND: Final = 50
_SENDS_PER_S: Final = 100
_JOIN_S: Final = 60.0


def each_send(per_second: int) -> int:
    """Return the number of messages per request: that of 100 requests a second, but at most 50."""
    return max(1, min(_LARGEST_SEND, per_second // _SENDS_PER_S))


class Sent(NamedTuple):
    """One feeder's work."""

    messages: int
    late_p50_ms: float
    """Median delay of requests after their planned time, in milliseconds."""
    late_p99_ms: float
    late_max_ms: float


class Feeder:
    """The process; one thread sends to each queue, so that a slow answer delays one queue's sends only."""

    def __init__(self, name_servers: str, topic: str, per_second: int) -> None:
        command = [sys.executable, "-m", "bench.feeder", name_servers, topic, str(per_second)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    @classmethod
    @contextmanager
    def running(cls, name_servers: str, topic: str, per_second: int) -> Iterator[Self]:
        """Send during the block, or until :meth:`end`."""
        feeder = cls(name_servers, topic, per_second)
        try:
            yield feeder
        finally:
            feeder._process.kill()
            feeder._process.wait(_JOIN_S)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def end(self) -> Sent:
        """Stop sending.

        Raises:
            RuntimeError: If a message could not be sent.
        """
        answer, _ = self._process.communicate(timeout=_JOIN_S)
        if self._process.returncode:
            raise RuntimeError("The feeder could not send.")
        return Sent(**json.loads(answer))


def _send(name_servers: str, topic: str, per_second: int) -> Sent:
    """Send until standard input ends."""
    is_over = threading.Event()
    each = each_send(per_second)
    batch = [Message(topic=topic, body=BODY)] * each
    with Producer(name_servers, producer_group="bench-feeder") as producer:
        queues = producer.queues(topic)
        began_s = time.monotonic()

        def send(index: int, queue: MessageQueue) -> list[float]:
            lateness: list[float] = []
            for due_s in due_times(began_s, index, len(queues), each / per_second):
                if is_over.wait(max(0.0, due_s - time.monotonic())):
                    break
                lateness.append((time.monotonic() - due_s) * 1000)
                producer.send_batch(batch, queue)
            return lateness

        with ThreadPoolExecutor(len(queues)) as pool:
            sending = [pool.submit(send, index, queue) for index, queue in enumerate(queues)]
            sys.stdin.read()
            is_over.set()
            lateness = np.concatenate([np.array(each.result()) for each in sending])
    return Sent(
        len(lateness) * each, percentile(lateness, 50), percentile(lateness, 99), percentile(lateness, 100)
    )


def due_times(began_s: float, index: int, threads: int, period_s: float) -> Iterator[float]:
    """Yield the times of one thread's sends, when ``threads`` take turns, one every ``period_s``."""
    number = index
    while True:
        yield began_s + number * period_s
        number += threads


if __name__ == "__main__":
    print(json.dumps(_send(sys.argv[1], sys.argv[2], int(sys.argv[3]))._asdict()))
