"""The ceiling of the broker: a bare socket loop that pulls ranges and decodes no message.

It has as many pulls in flight as the source: ``lanes`` queues at a time, each on its own connection with
``depth`` pulls of consecutive offsets; or all queues on one connection.
Frames are split and their headers parsed; bodies are dropped.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

_BUFFER_BYTES = 4 << 20
_TIMEOUT_S = 60.0
_SUCCESS = 0


class _Pull(NamedTuple):
    """The range of one request: exactly the offsets from ``start`` to ``end`` (exclusive)."""

    queue_id: int
    start: int
    end: int


class _Lane:
    """One connection and the queue it is busy with."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self.sock = socket.create_connection(address, timeout=_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._header = _header_template(topic)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._opaque = 0
        self._to_pull: deque[_Pull] = deque()
        self._in_flight: dict[int, _Pull] = {}

    @property
    def is_busy(self) -> bool:
        """Whether answers are still to come."""
        return bool(self._in_flight)

    def begin(self, pulls: Iterable[_Pull], depth: int) -> None:
        """Start on a queue's range with ``depth`` pulls in flight."""
        self._to_pull.extend(pulls)
        for _ in range(depth):
            self._send_next()

    def receive(self) -> int:
        """Read the available bytes and follow each complete frame with the next pull; return the messages received."""
        view = memoryview(self._buffer)
        count = self.sock.recv_into(view[self._filled :])
        if count == 0:
            raise ConnectionError("the broker closed the connection")
        self._filled += count
        position = messages = 0
        while self._filled - position >= 4:
            length = int.from_bytes(view[position : position + 4], "big")
            if self._filled - position < 4 + length:
                break
            messages += self._answered(view, position)
            position += 4 + length
        if position:
            view[: self._filled - position] = view[position : self._filled]
            self._filled -= position
        return messages

    def _answered(self, view: memoryview, position: int) -> int:
        header_length = int.from_bytes(view[position + 5 : position + 8], "big")
        header = json.loads(bytes(view[position + 8 : position + 8 + header_length]))
        asked = self._in_flight.pop(header["opaque"])
        reached = int(header["extFields"]["nextBeginOffset"])
        if header["code"] != _SUCCESS or reached <= asked.start:
            raise ConnectionError(f"the broker answered {header} to {asked}")
        if reached < asked.end:
            # An answer may hold less than requested (256 KiB at most):
            # the rest of this piece is next.
            self._to_pull.appendleft(asked._replace(start=reached))
        self._send_next()
        return min(reached, asked.end) - asked.start

    def _send_next(self) -> None:
        if not self._to_pull:
            return
        pull = self._to_pull.popleft()
        self._opaque += 1
        self._in_flight[self._opaque] = pull
        header = self._header % (pull.queue_id, pull.start, pull.end - pull.start, self._opaque)
        self.sock.sendall((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)


def pull_ranges(
    address: str,
    topic: str,
    ranges: Sequence[tuple[int, int, int]],
    *,
    lanes: int,
    depth: int,
    messages_per_pull: int = 32,
) -> tuple[int, float]:
    """Pull ``(queue id, start, end)`` ranges, ``lanes`` of them at a time; messages and seconds.

    Connections are made before the clock starts.
    """
    return _pull(address, topic, [_cut(*each, messages_per_pull) for each in ranges], lanes, depth)


def pull_together(
    address: str,
    topic: str,
    ranges: Sequence[tuple[int, int, int]],
    *,
    depth: int,
    messages_per_pull: int = 32,
) -> tuple[int, float]:
    """Pull all ``(queue id, start, end)`` ranges at once by one connection; messages and seconds.

    It is made before the clock starts. Queues take turns pull by pull.
    """
    turns = zip_longest(*(_cut(*each, messages_per_pull) for each in ranges))
    together = [pull for turn in turns for pull in turn if pull is not None]
    return _pull(address, topic, [together], 1, depth)


def _pull(address: str, topic: str, work: list[list[_Pull]], lanes: int, depth: int) -> tuple[int, float]:
    host, _, port = address.rpartition(":")
    waiting = deque(work)
    connections = [_Lane((host, int(port)), topic) for _ in range(lanes)]
    try:
        with selectors.DefaultSelector() as selector:
            for lane in connections:
                selector.register(lane.sock, selectors.EVENT_READ, lane)
            return _pull_all(selector, connections, waiting, depth)
    finally:
        for lane in connections:
            lane.sock.close()


def _pull_all(
    selector: selectors.BaseSelector, connections: list[_Lane], waiting: deque[list[_Pull]], depth: int
) -> tuple[int, float]:
    messages = 0
    started_s = time.perf_counter()
    for lane in connections:
        if waiting:
            lane.begin(waiting.popleft(), depth)
    while any(lane.is_busy for lane in connections):
        ready = selector.select(_TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"the broker gave nothing for {_TIMEOUT_S:g} s")
        for key, _ in ready:
            lane = key.data
            messages += lane.receive()
            if not lane.is_busy and waiting:
                lane.begin(waiting.popleft(), depth)
    return messages, time.perf_counter() - started_s


def _cut(queue_id: int, start: int, end: int, messages_per_pull: int) -> list[_Pull]:
    return [
        _Pull(queue_id, offset, min(offset + messages_per_pull, end))
        for offset in range(start, end, messages_per_pull)
    ]


def _header_template(topic: str) -> bytes:
    """A PULL_MESSAGE header with places for queue id, queue offset, number of messages and opaque."""
    fields = {
        "consumerGroup": "bench-raw",
        "topic": topic,
        "queueId": "%d",
        "queueOffset": "%d",
        "maxMsgNums": "%d",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "1",
        "subscription": "*",
        "expressionType": "TAG",
    }
    header = {
        "code": 11,
        "flag": 0,
        "language": "PYTHON",
        "version": 409,
        "extFields": fields,
        "opaque": "%d",
    }
    return json.dumps(header).replace('"opaque": "%d"', '"opaque": %d').encode()
