"""A gate between a task and the hub: it breaks connections, or falls silent, at a message of a type.

Messages are lines of JSON behind a code, so a gate can read them, and could change none unnoticed. Where they
are encrypted, a gate has a certificate of its own, whose fingerprint a test gives to tasks.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from typing import NamedTuple, Self

from pyspark_rocketmq.client.transport import Closing
from pyspark_rocketmq.hub.encryption import Encryption, HubCertificate
from pyspark_rocketmq.hub.session import HubAddress

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


class _End:
    """The gate's end of a connection, with the task or with the hub."""

    def __init__(self, sock: socket.socket, encryption: Encryption | None) -> None:
        self._sock = sock
        self._encryption = encryption
        self._guard = threading.Lock()
        # A client's handshake.
        self.send(b"")

    def lines(self) -> Iterator[bytes]:
        rest = b""
        while data := self._sock.recv(_CHUNK):
            *lines, rest = (rest + self._decrypted(data)).split(b"\n")
            for line in lines:
                yield line + b"\n"

    def send(self, data: bytes) -> None:
        with self._guard:
            self._sock.sendall(self._encryption.encrypt(data) if self._encryption else data)

    def end(self, *, is_reset: bool = False) -> None:
        with suppress(OSError):
            if is_reset:
                # Linger for no time: the other side gets RST.
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            else:
                self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _decrypted(self, data: bytes) -> bytes:
        if self._encryption is None:
            return data
        with self._guard:
            data = self._encryption.decrypt(data)
            self._sock.sendall(self._encryption.encrypt(b""))
        return data


class _Way:
    """One connection through the gate."""

    def __init__(self, task: _End, hub: _End) -> None:
        self.task, self.hub = task, hub
        self.is_silent = False

    def end(self, *, is_reset: bool = False) -> None:
        for each in (self.task, self.hub):
            each.end(is_reset=is_reset)


class HubGate(Closing):
    """A way to the hub, with faults that come one after the other; open inside ``with``."""

    def __init__(self, hub: HubAddress, faults: Iterable[At] = ()) -> None:
        self._hub = hub
        self._certificate = HubCertificate.new() if hub.fingerprint else None
        self._guard = threading.Lock()
        self.faults = deque(faults)
        """Faults that are still to come."""
        self.connections = 0
        """Connections made so far."""
        self._ways: list[_Way] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        fingerprint = b"" if self._certificate is None else self._certificate.fingerprint
        self.address = HubAddress("127.0.0.1", self._listener.getsockname()[1], hub.key, fingerprint)
        """Address with which tasks connect."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="hub-gate", daemon=True).start()
        return self

    def close(self) -> None:
        """End all connections and refuse new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.break_connections()

    def break_connections(self) -> None:
        """End all connections that are open."""
        with self._guard:
            for way in self._ways:
                way.end()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                way = self._way(self._listener.accept()[0])
                with self._guard:
                    self._ways.append(way)
                    self.connections += 1
                for source, target in ((way.task, way.hub), (way.hub, way.task)):
                    arguments = (way, source, target)
                    threading.Thread(
                        target=self._pass_on, args=arguments, name="hub-gate", daemon=True
                    ).start()

    def _way(self, task: socket.socket) -> _Way:
        hub = socket.create_connection((self._hub.host, self._hub.port))
        if self._certificate is None:
            return _Way(_End(task, None), _End(hub, None))
        return _Way(
            _End(task, Encryption.of_hub("task", self._certificate)),
            _End(hub, Encryption.of_client("hub", self._hub.fingerprint)),
        )

    def _pass_on(self, way: _Way, source: _End, target: _End) -> None:
        with suppress(OSError):
            for line in source.lines():
                if not self._pass_line(way, line, target):
                    return
        if not way.is_silent:
            way.end()

    def _pass_line(self, way: _Way, line: bytes, target: _End) -> bool:
        """Pass a line on; return False once the connection is ended."""
        fault = self._fault_at(line)
        if fault is Fault.STALL:
            way.is_silent = True
        if way.is_silent:
            return True
        if fault in {None, Fault.CUT}:
            target.send(line)
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
