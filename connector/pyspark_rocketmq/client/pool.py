"""One channel per address, made when first needed and made anew when it died.

Decides under its lock; connects, waits and closes outside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from pyspark_rocketmq.client.after_fork import renew_in_children
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.closing import Closing
from pyspark_rocketmq.client.dispatcher import RequestHandler
from pyspark_rocketmq.client.outgoing import Signer
from pyspark_rocketmq.client.transport import Connect, TcpTransport
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import ChannelClosed, ConnectFailed

HandlerFor = Callable[[str], RequestHandler]
"""What answers the requests of the server at an address."""


class ChannelPool(Closing):
    """Channels by address, shared by any number of threads.

    Like the Java client it keeps one connection per server for everything: pulls, commits, heartbeats, sends.
    """

    def __init__(
        self,
        clock: Clock,
        connect_timeout_s: float = 3.0,
        handler_for: HandlerFor | None = None,
        *,
        connect: Connect = TcpTransport.connect,
        signer: Signer | None = None,
    ) -> None:
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._handler_for = handler_for
        self._connect = connect
        self._signer = signer
        self._lock = threading.Lock()
        self._channels: dict[str, Future[Channel]] = {}
        """Done: the channel. Not done: somebody is connecting."""
        self._leaving: list[Channel] = []
        """Replaced because the server wants its clients gone, but with answers still to come."""
        self._is_closed = False
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: begin without connections; the parent's are given back without ending them."""
        self._lock = threading.Lock()
        self._channels = {}
        self._leaving = []

    def get(self, address: str, deadline: Deadline) -> Channel:
        """An open channel to ``address``; one caller connects, others who ask meanwhile wait for it.

        Raises:
            ConnectFailed: If no connection could be made before ``deadline`` or within the connect time-out.
            ChannelClosed: If the pool is closed.
        """
        with self._lock:
            if self._is_closed:
                raise ChannelClosed(address, "its pool was closed on this side")
            found = self._channels.get(address)
            is_ours = found is None or _is_dead(found)
            if is_ours:
                self._leaving = [*(one for one in self._leaving if not one.has_ended), *_channel_in(found)]
                found = self._channels[address] = Future()
        assert found is not None
        if is_ours:
            return self._fill(found, address, deadline)
        try:
            return found.result(deadline.remaining_s())
        except FutureTimeout:
            raise ConnectFailed(address, "another thread is still connecting") from None
        except ConnectFailed as error:
            raise type(error)(address, error.detail) from error

    def close(self) -> None:
        """Close all channels; requests under way fail with ``ChannelClosed``. Idempotent."""
        with self._lock:
            self._is_closed = True
            channels, self._channels = self._channels, {}
            leaving, self._leaving = self._leaving, []
        # One still connecting is closed by the thread that connects it.
        for channel in [*leaving, *(one for place in channels.values() for one in _channel_in(place))]:
            channel.close()

    def _fill(self, place: Future[Channel], address: str, deadline: Deadline) -> Channel:
        try:
            transport = self._connect(address, min(self._connect_timeout_s, deadline.remaining_s()))
            handler = None if self._handler_for is None else self._handler_for(address)
            channel = Channel(transport, self._clock, request_handler=handler, signer=self._signer)
        except BaseException as error:
            with self._lock:
                if self._channels.get(address) is place:
                    del self._channels[address]
            place.set_exception(error)
            raise
        place.set_result(channel)
        with self._lock:
            is_closed = self._is_closed
        if is_closed:
            channel.close()
            raise ChannelClosed(address, "its pool was closed on this side")
        return channel


def _is_dead(place: Future[Channel]) -> bool:
    return place.done() and (place.exception() is not None or not place.result().is_open)


def _channel_in(place: Future[Channel] | None) -> list[Channel]:
    if place is None or not place.done() or place.exception() is not None:
        return []
    return [place.result()]
