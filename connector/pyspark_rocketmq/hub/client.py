"""The other end of a connection to a query's hub: what planner and tasks have of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import ConnectFailed, RemoteProtocolError
from pyspark_rocketmq.hub.address import HubAddress
from pyspark_rocketmq.hub.line_loop import LineLoop, Link
from pyspark_rocketmq.hub.session import Message


class HubClient:
    """One connection; a new one is made when it is lost."""

    def __init__(
        self,
        address: HubAddress,
        *,
        received: Callable[[Message], None],
        lost: Callable[[], None],
        clock: Clock,
        timeout_s: float,
    ) -> None:
        """Connect, and prove to each other that both know the key.

        Args:
            address: The hub's.
            received: Called with each message, by the connection's thread; must not wait.
            lost: Called by it once the connection is no more.
            clock: The system's, but in tests.
            timeout_s: How long all of that may take.

        Raises:
            ConnectFailed: If there is no connection then.
        """
        self._received = received
        self._lost = lost
        self._link: Link | None = None
        self._is_lost = False
        self._is_decided = threading.Event()
        deadline = Deadline.after(clock, timeout_s)
        place = f"{address.host}:{address.port}"
        try:
            sock = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise ConnectFailed(place, str(error)) from error
        self._loop = LineLoop("rocketmq-hub-line", self, clock)
        self._loop.introduce(sock, place, address.key)
        self._loop.start()
        self._is_decided.wait(deadline.remaining_s())
        if not self.is_open:
            self._loop.close()
            raise ConnectFailed(place, "whoever listens there did not prove to be the query's driver in time")

    @property
    def is_open(self) -> bool:
        """Whether the connection is there, as far as anybody knows."""
        return self._link is not None and not self._is_lost

    def send(self, message: Mapping[str, Any]) -> None:
        """Send; returns at once, and from any thread."""

        def send() -> None:
            if self._link is not None:
                self._loop.send(self._link, message)

        self._loop.call(send)

    def close(self) -> None:
        """End the connection, soon."""
        self._loop.close()

    # --- the connection's thread ---------------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """See ``Handler``."""
        self._link = link
        self._is_decided.set()

    def received(self, link: Link, message: Message) -> None:  # noqa: ARG002 - there is one
        """See ``Handler``."""
        try:
            self._received(message)
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"The driver said {message.get('is')!r} and not all of it: {error!r}."
            ) from error

    def lost(self, link: Link) -> None:
        """See ``Handler``."""
        is_opened = link.session is not None
        self._is_lost = True
        self._is_decided.set()
        self._loop.close()
        if is_opened:
            self._lost()

    def tick(self, now_s: float) -> None:
        """See ``Handler``."""
