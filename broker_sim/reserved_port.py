"""A port that stays ours while nobody listens on it: whoever connects meanwhile is refused, and nobody else gets it."""

from __future__ import annotations

import socket


class ReservedPort:
    """A port of the loopback interface, held by a socket that is bound and never listens.

    A port that is merely closed may be given to any other process, even to the connection of a client who looks whether
    somebody is back. Listeners bind to a port that is held with ``SO_REUSEADDR``, as asyncio's and Java's do.
    """

    def __init__(self, ip: str, port: int = 0) -> None:
        """Take ``port``, or with 0 a free one.

        Raises:
            OSError: If somebody listens there.
        """
        self._holder = socket.socket()
        try:
            self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._holder.bind((ip, port))
        except OSError:
            self._holder.close()
            raise
        self.ip = ip
        self.port = int(self._holder.getsockname()[1])

    def listener(self, backlog: int = 128) -> socket.socket:
        """A socket that listens on it."""
        return socket.create_server((self.ip, self.port), backlog=backlog)

    def release(self) -> None:
        """Give the port back. Idempotent."""
        self._holder.close()
