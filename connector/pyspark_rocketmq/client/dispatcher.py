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
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand

logger = logging.getLogger(__name__)

RequestHandler = Callable[[RemotingCommand], RemotingCommand | None]
"""Answers a server's request; None when the request is oneway or not this handler's business."""

_JOIN_S = 5.0
MOST_REQUESTS: Final = 1_000
"""That wait for the handler or are in its hands, of one line of a connection."""
MOST_BYTES: Final = 32 << 20
"""Of memory that these take, twice the longest frame."""
_BUSY: Final = "[OVERLOAD]the client has too many requests to answer, try again"


class RequestDispatcher:
    """Hands requests to the handler on threads of its own: in the order of arrival, but for those that run a listener.

    These wait in a line of their own: the broker's news of members and resets must not wait for a listener.
    ``dispatch`` and ``stop`` belong to one thread (the channel's reader); a thread starts with the first request of
    its line, because most channels never see one.
    """

    def __init__(
        self, handler: RequestHandler | None, answer: Callable[[RemotingCommand], None], name: str
    ) -> None:
        self._handler = handler
        self._answer = answer
        self._quick = _Line(self._serve, name)
        self._slow = _Line(self._serve, f"{name} listener")

    def dispatch(self, request: RemotingCommand) -> None:
        """Queue ``request`` for the handler, or refuse it with SYSTEM_BUSY; a oneway request is then dropped."""
        line = self._slow if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY else self._quick
        if not line.put(request) and not request.is_oneway:
            self._answer(request.response(ResponseCode.SYSTEM_BUSY, remark=_BUSY))

    def stop(self) -> None:
        """Let the threads end after the requests they have; does not wait."""
        for line in (self._quick, self._slow):
            line.stop()

    def join(self) -> None:
        """Wait for the threads to end, but for this one; call ``stop`` first."""
        for line in (self._quick, self._slow):
            line.join()

    def _serve(self, request: RemotingCommand) -> None:
        answer = self._answer_to(request)
        if answer is not None and not request.is_oneway:
            self._send(request, answer)

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


class _Line:
    """Requests that are served one after another, by one thread; bounded."""

    def __init__(self, serve: Callable[[RemotingCommand], None], name: str) -> None:
        self._serve = serve
        self._name = name
        self._requests: SimpleQueue[RemotingCommand | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._undone = 0
        self._undone_bytes = 0
        self._has_refused = False

    def put(self, request: RemotingCommand) -> bool:
        """Have it served; False if too many wait."""
        if not self._admit(_size_of(request)):
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._requests.put(request)
        return True

    def stop(self) -> None:
        self._requests.put(None)

    def join(self) -> None:
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
            self._serve(request)
            self._done_with(_size_of(request))


def _size_of(request: RemotingCommand) -> int:
    """Bytes of memory, but for small change."""
    fields = request.ext_fields
    texts = (request.remark, *fields, *fields.values())
    return sum(map(sys.getsizeof, texts)) + sys.getsizeof(fields) + sys.getsizeof(request.body)
