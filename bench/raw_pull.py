"""The ceiling of the broker: a bare socket loop that pulls ranges and decodes no message.

As many pulls in flight as the source makes: ``lanes`` queues at a time, each by a connection of its own with
``depth`` pulls of consecutive offsets under way.  Frames are split and their headers parsed; bodies are dropped.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_MESSAGES_PER_PULL = 32
_BUFFER_BYTES = 4 << 20


@dataclass
class _Lane:
    """One connection and the queue it is busy with."""

    address: tuple[str, int]
    topic: str
    sock: socket.socket = field(init=False)
    buffer: bytearray = field(default_factory=lambda: bytearray(_BUFFER_BYTES))
    filled: int = 0
    opaque: int = 0
    to_pull: deque[tuple[int, int]] = field(default_factory=deque)
    """Queue id and queue offset of pulls not sent yet."""
    in_flight: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sock = socket.create_connection(self.address, timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send_next(self) -> None:
        """Send one pull, if there is one to send."""
        if not self.to_pull:
            return
        queue_id, queue_offset = self.to_pull.popleft()
        self.opaque += 1
        self.in_flight[self.opaque] = (queue_id, queue_offset)
        fields = {
            "consumerGroup": "bench-raw",
            "topic": self.topic,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(_MESSAGES_PER_PULL),
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "1",
            "subscription": "*",
            "expressionType": "TAG",
        }
        header = json.dumps(
            {
                "code": 11,
                "extFields": fields,
                "flag": 0,
                "language": "PYTHON",
                "opaque": self.opaque,
                "version": 409,
            }
        ).encode()
        self.sock.sendall((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)

    def receive(self) -> int:
        """Read what is there and answer each whole frame with the next pull; messages received."""
        count = self.sock.recv_into(memoryview(self.buffer)[self.filled :])
        if count == 0:
            raise ConnectionError("the broker closed the connection")
        self.filled += count
        position = messages = 0
        while self.filled - position >= 4:
            length = int.from_bytes(self.buffer[position : position + 4], "big")
            if self.filled - position < 4 + length:
                break
            messages += self._answered(position)
            position += 4 + length
        if position:
            self.buffer[: self.filled - position] = self.buffer[position : self.filled]
            self.filled -= position
        return messages

    def _answered(self, position: int) -> int:
        header_length = int.from_bytes(self.buffer[position + 5 : position + 8], "big")
        header = json.loads(self.buffer[position + 8 : position + 8 + header_length])
        queue_id, queue_offset = self.in_flight.pop(header["opaque"])
        if header["code"] != 0:
            raise ConnectionError(f"the broker answered {header}")
        reached = int(header["extFields"]["nextBeginOffset"])
        if reached < queue_offset + _MESSAGES_PER_PULL and reached % _MESSAGES_PER_PULL:
            self.to_pull.appendleft((queue_id, reached))
        self.send_next()
        return reached - queue_offset


def pull_ranges(
    address: str, topic: str, ranges: Sequence[tuple[int, int, int]], *, lanes: int, depth: int
) -> tuple[int, float]:
    """Pull ``(queue id, start, end)`` ranges, ``lanes`` of them at a time; messages and seconds."""
    host, _, port = address.rpartition(":")
    waiting = deque(ranges)
    with selectors.DefaultSelector() as selector:
        connections = [_Lane((host, int(port)), topic) for _ in range(lanes)]
        for lane in connections:
            selector.register(lane.sock, selectors.EVENT_READ, lane)
        messages = 0
        started_s = time.perf_counter()
        try:
            for lane in connections:
                _begin(lane, waiting, depth)
            while any(lane.in_flight for lane in connections):
                for key, _ in selector.select(10):
                    messages += key.data.receive()
                    if not key.data.in_flight:
                        _begin(key.data, waiting, depth)
            return messages, time.perf_counter() - started_s
        finally:
            for lane in connections:
                lane.sock.close()


def _begin(lane: _Lane, waiting: deque[tuple[int, int, int]], depth: int) -> None:
    if not waiting:
        return
    queue_id, start, end = waiting.popleft()
    lane.to_pull.extend((queue_id, offset) for offset in range(start, end, _MESSAGES_PER_PULL))
    for _ in range(depth):
        lane.send_next()
