"""Requests that a server sends to us, answered away from the reader thread.

A slow handler delays only the requests behind it, never the answers to our own requests.  How many wait for it is
bounded, in number and in memory: whoever asks more than that is told that this client is busy.

Source: ``NettyRemotingAbstract.processRequestCommand``, which refuses what its executor's queue has no room for.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from pyspark_rocketmq.errors import LocalProtocolError
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand

logger = logging.getLogger(__name__)

RequestHandler = Callable[[RemotingCommand], RemotingCommand | None]
"""Answers a server's request; None when the request is oneway or not this handler's business."""

_JOIN_S = 5.0
MOST_REQUESTS: Final = 1_000
"""That wait for the handler or are in its hands, of one connection."""
MOST_BYTES: Final = 32 << 20
"""Of memory that these take, twice the longest frame."""
_BUSY: Final = "[OVERLOAD]the client has too many requests to answer, try again"


class RequestDispatcher:
    """Hands requests to the handler one after another, in the order of arrival, on a thread of its own.

    ``dispatch`` and ``stop`` belong to one thread (the channel's reader); the thread starts with the first
    request, because most channels never see one.
    """

    def __init__(
        self, handler: RequestHandler | None, answer: Callable[[RemotingCommand], None], name: str
    ) -> None:
        self._handler = handler
        self._answer = answer
        self._name = name
        self._requests: SimpleQueue[RemotingCommand | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._undone = 0
        self._undone_bytes = 0
        self._has_refused = False

    def dispatch(self, request: RemotingCommand) -> None:
        """Queue ``request`` for the handler, or refuse it with SYSTEM_BUSY; a oneway request is then dropped."""
        if not self._admit(_size_of(request)):
            if not request.is_oneway:
                self._answer(request.response(ResponseCode.SYSTEM_BUSY, remark=_BUSY))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._requests.put(request)

    def stop(self) -> None:
        """Let the thread end after the requests it has; does not wait."""
        self._requests.put(None)

    def join(self) -> None:
        """Wait for the thread to end, unless this is the thread; call ``stop`` first."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_JOIN_S)
        if thread.is_alive():
            logger.warning("request handler still running after %g s thread=%s", _JOIN_S, self._name)

    def _admit(self, size: int) -> bool:
        with self._guard:
            has_room = self._undone < MOST_REQUESTS and self._undone_bytes + size <= MOST_BYTES
            if has_room or not self._undone:
                self._undone += 1
                self._undone_bytes += size
                return True
            is_news, self._has_refused = not self._has_refused, True
            undone, undone_bytes = self._undone, self._undone_bytes
        if is_news:
            logger.warning(
                "too many requests wait for a slow handler, refusing more requests=%d bytes=%d thread=%s",
                undone,
                undone_bytes,
                self._name,
            )
        return False

    def _done_with(self, size: int) -> None:
        with self._guard:
            self._undone -= 1
            self._undone_bytes -= size
            if not self._undone:
                self._has_refused = False

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            answer = self._answer_to(request)
            if answer is not None and not request.is_oneway:
                self._send(request, answer)
            self._done_with(_size_of(request))

    def _send(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        try:
            self._answer(answer)
        except LocalProtocolError as error:
            # A text of the request in it, perhaps, that JSON could carry and UTF-8 cannot: the next request counts.
            logger.warning("answer cannot be sent code=%d: %s", request.code, error)
            self._answer(
                request.response(ResponseCode.SYSTEM_ERROR, remark="The client's answer cannot be sent.")
            )

    def _answer_to(self, request: RemotingCommand) -> RemotingCommand | None:
        try:
            answer = self._handler(request) if self._handler is not None else None
        except Exception as error:
            logger.exception("request handler failed code=%d", request.code)
            return request.response(
                ResponseCode.SYSTEM_ERROR, remark=f"The client failed: {type(error).__name__}: {error}"
            )
        if answer is not None:
            return answer
        return request.response(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
        )


def _size_of(request: RemotingCommand) -> int:
    """Bytes of memory, but for small change."""
    fields = request.ext_fields
    texts = (request.remark, *fields, *fields.values())
    return sum(map(sys.getsizeof, texts)) + sys.getsizeof(fields) + sys.getsizeof(request.body)
