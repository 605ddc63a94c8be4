"""A way to a server that a test can close, open again, make silent or point elsewhere, for any server."""

from __future__ import annotations

import socket
import threading
import weakref
from contextlib import suppress
from typing import Self

from broker_sim.server import ReservedPort
from pyspark_rocketmq.client.transport import Closing
from tests.helpers.wait import PATIENCE_S

_CHUNK = 1 << 16


class Relay(Closing):
    """Passes bytes between its own port and ``target``; open inside ``with``."""

    def __init__(self, target: str) -> None:
        self.target = target
        """``host:port`` where new connections lead; may be changed."""
        self.connections = 0
        """Connections made so far."""
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._port = ReservedPort("127.0.0.1")
        weakref.finalize(self, self._port.release)

    def __enter__(self) -> Self:
        self.open()
        return self

    @property
    def address(self) -> str:
        """``host:port`` to connect to; the same after it was closed and opened again."""
        return f"127.0.0.1:{self._port.port}"

    def open(self) -> None:
        """Take connections."""
        listener = self._port.listener()
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="relay", daemon=True).start()

    def close(self) -> None:
        """End all connections and refuse new ones."""
        if self._listener is not None:
            # Closing does not wake the thread that accepts.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.cut()

    def cut(self) -> None:
        """End all connections; new ones are taken."""
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def fall_silent(self) -> None:
        """Keep all connections and accept their bytes, but pass nothing on, not even their end; new ones
        work.

        So does a proxy or a tunnel whose other end went away without a word.
        """
        with self._lock:
            self._silent |= self._sockets

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                host, _, port = self.target.rpartition(":")
                try:
                    far = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
                except OSError:
                    # Nobody is there for now.
                    near.close()
                    continue
                far.settimeout(None)
                with self._lock:
                    self._sockets |= {near, far}
                    self.connections += 1
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._pass, args=(source, sink), name="relay", daemon=True
                    ).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if source not in self._silent:
                    sink.sendall(data)
        with self._lock:
            is_silent = source in self._silent
            self._sockets.discard(source)
            self._silent.discard(source)
        if not is_silent:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
        source.close()
