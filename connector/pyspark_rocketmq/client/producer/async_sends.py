"""Asynchronous sends with a future each, bounded in number and bytes.

A future is done within two seconds after the producer's send time-out. One thread begins the repeated
attempts of all sends. If an attempt waits there for those of other sends, its future may take twice as long.
Callbacks (``add_done_callback``) must not block: they run on the thread that completes the future. This is
usually the thread that reads the broker's answers and gives up overdue requests, or the one that repeats the
producer's attempts.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Final

from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.client.transport import renew_in_children
from pyspark_rocketmq.errors import RocketMQError, TooManySends
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.requests.send import SendResult, ShardingKey

MOST_SENDS: Final = 10_000
"""Maximum number of messages under way (``DefaultMQProducer.backPressureForAsyncSendNum``)."""
MOST_BYTES: Final = 100 * 1024 * 1024
"""Maximum size of the messages under way (``DefaultMQProducer.backPressureForAsyncSendSize``)."""


class _SendFuture(Future[SendResult]):
    _done_callbacks: list[Any]
    """The base class's list; there is no public way to remove callbacks."""

    def __init__(self) -> None:
        super().__init__()
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: fail, and call no callbacks, because only the parent gets the outcome."""
        self._condition = threading.Condition()
        if not self.done():
            self._done_callbacks.clear()
            self.set_exception(
                RocketMQError(
                    "The process was forked while this message was sent: only the parent process gets the "
                    "outcome. Wait for it there."
                )
            )


class AsyncSends:
    """Sends messages of one producer by :meth:`Producer.send_async`. Shared by any number of threads.

    Two messages under way for one queue may be stored in either order. To keep an order, use
    :meth:`Producer.send_ordered` or the data source's sink.

    Source: RocketMQ 5.3.3 ``DefaultMQProducerImpl.send(…, SendCallback)``, ``executeAsyncMessageSend``.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        max_sends: int = MOST_SENDS,
        max_bytes: int = MOST_BYTES,
        wait_s: float = 3.0,
    ) -> None:
        """Prepare to send.

        Args:
            producer: Sends the messages; it is not closed here.
            max_sends: Maximum number of messages under way.
            max_bytes: Maximum number of bytes of their bodies; a larger message is sent by itself.
            wait_s: How long :meth:`send` may wait for the answers of other sends.
        """
        self._producer = producer
        self._max_sends = max_sends
        self._max_bytes = max_bytes
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._sends = 0
        self._bytes = 0
        self._undone = 0
        """Number of futures not done. A send frees its room for others a moment before its future is done."""
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: begin without sends under way."""
        self._changed = threading.Condition()
        self._sends = self._bytes = self._undone = 0

    def send(
        self, message: Message, *, sharding_key: ShardingKey | None = None, queue: MessageQueue | None = None
    ) -> Future[SendResult]:
        """Begin to send one message; return a future with the result or the error.

        Raises:
            TooManySends: If too much was under way for ``wait_s``; nothing was sent.
            RocketMQError: If the message is too large, or has no queue or master to go to; nothing was sent.
        """
        size = len(message.body)
        self._enter(size)
        future = _SendFuture()
        future.set_running_or_notify_cancel()

        def done(outcome: SendResult | RocketMQError) -> None:
            self._change(-1, -size)
            try:
                if isinstance(outcome, RocketMQError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
            finally:
                self._change(undone=-1)

        try:
            self._producer.send_async(message, done, sharding_key=sharding_key, queue=queue)
        except BaseException:
            self._change(-1, -size, undone=-1)
            raise
        return future

    def drain(self, timeout_s: float) -> bool:
        """Wait until every future is done; return False if that takes longer than ``timeout_s``.

        Do not call this from a future's callback: it would wait for that future until the time is over.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._undone == 0, timeout_s)

    def _enter(self, size: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_room(size), self._wait_s):
                raise TooManySends(self._sends, self._bytes, self._wait_s)
            self._sends += 1
            self._bytes += size
            self._undone += 1

    def _has_room(self, size: int) -> bool:
        return self._sends == 0 or (self._sends < self._max_sends and self._bytes + size <= self._max_bytes)

    def _change(self, sends: int = 0, size: int = 0, *, undone: int = 0) -> None:
        with self._changed:
            self._sends += sends
            self._bytes += size
            self._undone += undone
            self._changed.notify_all()
