"""A gate between a task and the hub: it breaks connections, or falls silent, at a message of a type.

Messages are lines of JSON behind a code, so a gate can read them, and could change none unnoticed.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import NamedTuple, Self

from pyspark_rocketmq.client.transport import Closing

_CHUNK = 1 << 16
_BODY = re.compile(rb"\{.*\}")


class Fault(Enum):
    """A fault at a message."""

    LOSE = "lose it, and end the connection"
    CUT = "pass it, and end the connection"
    RESET = "lose it, and reset the connection"
    STALL = "pass nothing any more on this connection, not even its end"


class At(NamedTuple):
    """A fault, and the type of the message at which it comes."""

    kind: str
    fault: Fault


class _Way:
    """One connection through the gate."""

    def __init__(self, task: socket.socket, hub: socket.socket) -> None:
        self.task, self.hub = task, hub
        self.is_silent = False

    def end(self, *, is_reset: bool = False) -> None:
        for each in (self.task, self.hub):
            with suppress(OSError):
                if is_reset:
                    # Linger for no time: the other side gets RST.
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                else:
                    each.shutdown(socket.SHUT_RDWR)
            each.close()


class HubGate(Closing):
    """A way to the hub at ``port``, with faults that come one after the other; open inside ``with``."""

    def __init__(self, port: int, faults: Iterable[At] = ()) -> None:
        self._hub_port = port
        self._guard = threading.Lock()
        self.faults = deque(faults)
        """Faults that are still to come."""
        self.connections = 0
        """Connections made so far."""
        self._ways: list[_Way] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="hub-gate", daemon=True).start()
        return self

    def close(self) -> None:
        """End all connections and refuse new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            for way in self._ways:
                way.end()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                task, _ = self._listener.accept()
                way = _Way(task, socket.create_connection(("127.0.0.1", self._hub_port)))
                with self._guard:
                    self._ways.append(way)
                    self.connections += 1
                for source, target in ((way.task, way.hub), (way.hub, way.task)):
                    arguments = (way, source, target)
                    threading.Thread(
                        target=self._pass_on, args=arguments, name="hub-gate", daemon=True
                    ).start()

    def _pass_on(self, way: _Way, source: socket.socket, target: socket.socket) -> None:
        rest = b""
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not self._pass_line(way, line + b"\n", target):
                        return
        if not way.is_silent:
            way.end()

    def _pass_line(self, way: _Way, line: bytes, target: socket.socket) -> bool:
        """Pass a line on; return False once the connection is ended."""
        fault = self._fault_at(line)
        if fault is Fault.STALL:
            way.is_silent = True
        if way.is_silent:
            return True
        if fault in {None, Fault.CUT}:
            target.sendall(line)
        if fault is not None:
            way.end(is_reset=fault is Fault.RESET)
        return fault is None

    def _fault_at(self, line: bytes) -> Fault | None:
        body = _BODY.search(line)
        kind = json.loads(body[0]).get("type") if body else None
        with self._guard:
            if self.faults and self.faults[0].kind == kind:
                return self.faults.popleft().fault
        return None
