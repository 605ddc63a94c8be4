"""One connection: send requests, match answers, and handle the server's own requests on other threads.

A channel owns one reader thread. Only this thread receives and decodes; callers only send. One table has the
requests under way, by their numbers (``opaque``). *The thread that takes a request out of the table calls its
callback*, so every callback is called exactly once. Normally this is the reader, with the answer. After a
request's deadline it is the reader, which checks deadlines about once a second, or the caller's own thread;
both give up the request (``RequestTimeout``). At the end of the channel it is the thread that ends the
channel, with the reason.

Rule 1: ``_lock`` guards only the table, the reason for the end, and the record of sends and arrivals
(``silence``). Rule 2: ``_send_lock`` is held only to send or to close the transport. With a stuck peer,
sending ends by the transport's own time-out or the sender's deadline; a thread that waits for the lock gives
up at its own deadline. Rule 3: a thread that holds one of these locks does not take the second one, wait, or
call back.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from pyspark_rocketmq.client.silence import Sent, Silence
from pyspark_rocketmq.client.transport import RECEIVE_TICK_S, Transport, await_readable, renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import (
    ChannelClosed,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeout,
    RocketMQError,
    TlsFailed,
)
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import ONEWAY_FLAG, RemotingCommand, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder, Outgoing, Signer
from pyspark_rocketmq.wire.requests.responses import describe_request

logger = masking_logger(__name__)

RequestHandler = Callable[[RemotingCommand], RemotingCommand | None]
"""Answers a server's request; returns None if the request is oneway or not one that it handles."""

_JOIN_DISPATCHER_S = 5.0
MOST_REQUESTS: Final = 1_000
"""Maximum number of a server's requests that wait for one handler thread, including the one being handled."""
MOST_BYTES: Final = 32 << 20
"""Maximum memory of a server's requests that wait for one handler thread, in bytes: twice the longest frame.
A request of any size may wait if no other one does."""
_BUSY: Final = "[OVERLOAD]the client has too many requests to answer, try again"

OnResponse = Callable[[RemotingCommand | RocketMQError], object]
"""Takes the answer, or the error if there is none. Must not block: it normally runs on the reader thread."""
_RECEIVE_BUFFER_BYTES: Final = 512 * 1024
_OPAQUE_MASK: Final = 0x7FFFFFFF
_JOIN_S: Final = 5.0


class RequestDispatcher:
    """Passes a server's requests to the handler, on two threads of this object.

    One thread handles requests that run a listener; the second one handles all others, such as notices of
    members and resets, which must not wait for a listener. Each thread takes its requests in order from its
    own queue. Both queues are bounded in number and memory; a request that does not fit is answered with
    SYSTEM_BUSY. Only one thread (the channel's reader) may call ``dispatch`` and ``stop``.

    Source: ``NettyRemotingAbstract.processRequestCommand``, which also refuses requests when its executor's
    queue is full.
    """

    def __init__(
        self, handler: RequestHandler | None, answer: Callable[[RemotingCommand], None], name: str
    ) -> None:
        self._handler = handler
        self._answer = answer
        self._quick = _RequestQueue(self._serve, name)
        self._slow = _RequestQueue(self._serve, f"{name} listener")

    def dispatch(self, request: RemotingCommand) -> None:
        """Queue ``request`` for the handler; if the queue is full, answer SYSTEM_BUSY (oneway: drop it)."""
        queue = self._slow if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY else self._quick
        if not queue.put(request) and not request.is_oneway:
            self._answer(request.response(ResponseCode.SYSTEM_BUSY, remark=_BUSY))

    def stop(self) -> None:
        """Let each thread end after the requests that are in its queue; do not wait for that."""
        self._quick.stop()
        self._slow.stop()

    def join(self) -> None:
        """Wait at most 5 s for each thread to end, except for the calling thread; call ``stop`` first."""
        self._quick.join()
        self._slow.join()

    def _serve(self, request: RemotingCommand) -> None:
        answer = self._answer_to(request)
        if request.is_oneway:
            return
        try:
            self._answer(answer)
        except LocalProtocolError as error:
            # It may repeat a string of the request that JSON can carry but UTF-8 cannot.
            logger.warning(
                "answer to a request of the server cannot be sent code=%d: %s", request.code, error
            )
            self._answer(
                request.response(ResponseCode.SYSTEM_ERROR, remark="The client's answer cannot be sent.")
            )

    def _answer_to(self, request: RemotingCommand) -> RemotingCommand:
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


class _RequestQueue:
    """A queue of one server's requests, and the thread that handles them (started by the first request)."""

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
        """Queue the request for the thread; return False if the queue is full, by number or by memory.

        An empty queue takes a request of any size.
        """
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
        thread.join(_JOIN_DISPATCHER_S)
        if thread.is_alive():
            logger.warning(
                "request handler still running after %g s thread=%s", _JOIN_DISPATCHER_S, self._name
            )

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
    """Return the approximate memory of a request, in bytes."""
    fields = request.ext_fields
    texts = (request.remark, *fields, *fields.values())
    return sum(map(sys.getsizeof, texts)) + sys.getsizeof(fields) + sys.getsizeof(request.body)


class _Waiting(NamedTuple):
    request: Outgoing
    on_response: OnResponse
    sent: Sent
    deadline: Deadline | None


class Channel:
    """A connection to one server, shared by any number of threads.

    Requests leave in the order in which one thread calls ``submit``. An answer to a request that was given up
    is ignored. A server's requests are handled on other threads, so that answers do not wait for them. A
    server that answers GO_AWAY gets no new request from the pool, and the channel ends after the last awaited
    answer.

    If a peer, proxy or tunnel vanishes silently, its connection stays open for ever, while new ones work.
    Therefore a request that is given up ends the channel if nothing has arrived since it was sent (see
    ``silence``).

    Source: RocketMQ 5.3.3 ``NettyRemotingClient.invokeSync`` with ``clientCloseSocketIfTimeout``.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        *,
        request_handler: RequestHandler | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.address = transport.address
        self.broker_name: str | None = None
        """The server's broker name; empty if the server does not give one, None until it was asked for."""
        self.is_asked_again_s = math.inf
        """Monotonic second from which a server that gave no name is asked again; infinity for never."""
        self.accepted_filters: set[bytes] = set()
        """Bodies of the check requests (CHECK_CLIENT_CONFIG) that the server has accepted."""
        self._transport = transport
        self._clock = clock
        self._signer = signer
        self._opaques = itertools.count()
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._ended: RocketMQError | None = None
        self._silence = Silence()
        """Record of sends and arrivals.

        Only the reader notes arrivals; other changes are made under ``_lock``.
        """
        self._is_leaving = False
        self._dispatcher = RequestDispatcher(
            request_handler, self._answer, f"rocketmq-requests {self.address}"
        )
        self._reader = threading.Thread(
            target=self._read, name=f"rocketmq-reader {self.address}", daemon=True
        )
        self._reader.start()
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: end the channel here, because the connection is the parent's."""
        self._lock, self._send_lock = threading.Lock(), threading.Lock()
        self._ended = ChannelClosed(
            self.address, "this process was forked, and only its parent may use the connection"
        )
        self._waiting = {}
        self._transport.close()

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent here.

        False for good once the channel has ended or its server has asked clients to leave (GO_AWAY).
        """
        return self._ended is None and not self._is_leaving

    @property
    def has_ended(self) -> bool:
        """Whether the connection is over and no answer is awaited any more."""
        return self._ended is not None

    def request(self, request: Outgoing, deadline: Deadline) -> RemotingCommand:
        """Send a request and wait for its answer, whatever its response code.

        Raises:
            RequestTimeout: If no answer came before ``deadline``; a later one is ignored.
            ChannelClosed: If the connection ended first.
            TlsFailed: If the server refused this client's certificate.
            RemoteProtocolError: If the server sent something that is not an answer.
            LocalProtocolError: If the request cannot be written.
        """
        outcomes: SimpleQueue[RemotingCommand | RocketMQError] = SimpleQueue()
        opaque = self.submit(request, outcomes.put, deadline)
        try:
            outcome = outcomes.get(timeout=min(deadline.remaining_s(), threading.TIMEOUT_MAX))
        except Empty:
            waiting = self._take(opaque)
            if waiting is not None:
                self._end_if_silent((waiting,))
                raise self._timeout(waiting) from None
            outcome = outcomes.get()  # another thread has just taken it out of the table and calls back
        if isinstance(outcome, RocketMQError):
            raise outcome
        return outcome

    def submit(self, request: Outgoing, on_response: OnResponse, deadline: Deadline | None = None) -> int:
        """Send a request without waiting for its answer; return the request's number (``opaque``).

        ``on_response`` is called exactly once. It gets the answer, or one of these errors: ``RequestTimeout``
        at most two seconds after ``deadline``, the error with which the channel ended, or
        ``LocalProtocolError`` if the request cannot be written. It runs on the reader thread, or on the
        thread that noticed the error, which may be the calling one. Without a ``deadline`` the request waits
        for its answer until the channel ends.
        """
        opaque = next(self._opaques) & _OPAQUE_MASK
        sent = Sent(self._clock.monotonic_s(), self._silence.received)
        waiting = _Waiting(request, on_response, sent, deadline)
        try:
            frame = self._signed(request).encode(opaque)
        except LocalProtocolError as error:
            self._call_back(waiting, error)
            return opaque
        with self._lock:
            refused = self._ended
            if refused is None:
                self._waiting[opaque] = waiting
                self._silence.sent(sent)
        if refused is not None:
            self._call_back(waiting, _reason_for(self.address, refused, request))
            return opaque
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "> %s opaque=%d address=%s", describe_request(request.command()), opaque, self.address
            )
        if not self._send(frame, deadline) and (given_up := self._take(opaque)) is not None:
            self._call_back(given_up, self._timeout(given_up))
        return opaque

    def oneway(self, command: RemotingCommand) -> None:
        """Send a request that the server does not answer, not even with an error.

        Raises:
            ChannelClosed, TlsFailed, RemoteProtocolError: If it could not be sent, because the channel has
                ended for this reason.
            LocalProtocolError: If it cannot be written.
        """
        outgoing = self._signed(replace(command, flag=command.flag | ONEWAY_FLAG))
        self._send(outgoing.encode(next(self._opaques) & _OPAQUE_MASK))
        if self._ended is not None:
            raise _reason_for(self.address, self._ended, outgoing)

    def expire_overdue(self) -> None:
        """Give up the requests whose deadline has passed: call them back with ``RequestTimeout``.

        Then end the channel if nothing has arrived since one of them was sent, and this silence has lasted
        long enough (see :class:`Silence`). The reader calls this about once a second.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            overdue = [
                opaque
                for opaque, waiting in self._waiting.items()
                if waiting.deadline is not None and waiting.deadline.at_s <= now_s
            ]
            given_up = [self._waiting.pop(opaque) for opaque in overdue]
        for waiting in given_up:
            self._call_back(waiting, self._timeout(waiting))
        self._end_if_silent(given_up)

    def answered_after(self, took_s: float) -> None:
        """Note that the server took ``took_s`` seconds for an answer that costs it no work.

        From now on, only a silence of at least ``took_s`` ends this channel; more than 2.5 s count as 2.5 s.
        """
        with self._lock:
            self._silence.answered_after(took_s)

    def close(self) -> None:
        """End the connection, fail the requests under way, and wait at most 5 s for each of its threads.

        If one of these threads calls this, it waits only for the others.
        """
        self._end(ChannelClosed(self.address, "this client closed it"), is_orderly=True)
        if threading.current_thread() is not self._reader:
            self._reader.join(_JOIN_S)
        self._dispatcher.join()

    def _signed(self, request: Outgoing) -> Outgoing:
        return request if self._signer is None else self._signer(request.command())

    def _send(self, frame: bytes, deadline: Deadline | None = None) -> bool:
        """Send a frame; return False if the deadline passed before any part of it was sent, else True.

        If sending fails, the channel ends with the error, and the result is also True.
        """
        if not self._send_lock.acquire(timeout=_seconds_left(deadline, threading.TIMEOUT_MAX)):
            return False
        try:
            self._transport.sendall(frame, _seconds_left(deadline, math.inf))
        except (ChannelClosed, TlsFailed) as error:
            failure: RocketMQError = error
        else:
            return True
        finally:
            self._send_lock.release()
        # Part of the frame may have been sent: the peer would take the next frame for its rest.
        self._end(failure)
        return True

    def _answer(self, answer: RemotingCommand) -> None:
        self._send(encode_frame(answer))

    def _read(self) -> None:
        try:
            self._receive_until_the_end()
        except RocketMQError as error:
            self._end(error if self._silence.received else _with_tls_hint(error))
        except Exception as error:
            # Whatever the error, a channel without a reader must not look open.
            logger.exception("reader failed address=%s", self.address)
            self._end(ChannelClosed(self.address, f"the reader failed: {error!r}"))
        finally:
            self._dispatcher.stop()
            with self._send_lock:
                self._transport.close()

    def _receive_until_the_end(self) -> None:
        buffer = memoryview(bytearray(_RECEIVE_BUFFER_BYTES))
        decoder = FrameDecoder()
        next_sweep_s = self._clock.monotonic_s() + RECEIVE_TICK_S
        while (count := self._transport.recv_into(buffer)) != 0:
            if count is not None:
                self._silence.came()
                for command in decoder.feed(buffer[:count]):
                    self._take_in(command)
            now_s = self._clock.monotonic_s()
            if now_s >= next_sweep_s:
                next_sweep_s = now_s + RECEIVE_TICK_S
                self.expire_overdue()
        if decoder.pending:
            detail = f"the server ended it after {decoder.pending} bytes of an unfinished message"
        else:
            detail = "the server ended it"
        raise ChannelClosed(self.address, detail)

    def _take_in(self, command: RemotingCommand) -> None:
        # Each side numbers its own requests, so an opaque may occur twice: the flag marks an answer.
        if not command.is_response:
            logger.debug("< request code=%d opaque=%d address=%s", command.code, command.opaque, self.address)
            self._dispatcher.dispatch(command)
            return
        waiting = self._take(command.opaque)
        if waiting is None:
            logger.debug("! late answer ignored opaque=%d address=%s", command.opaque, self.address)
            return
        logger.debug("< answer code=%d opaque=%d address=%s", command.code, command.opaque, self.address)
        if command.code == ResponseCode.GO_AWAY:
            self._is_leaving = True
        self._call_back(waiting, command)
        if self._is_leaving and not self._waiting:
            self._end(
                ChannelClosed(self.address, "the server is about to stop and asked its clients to leave"),
                is_orderly=True,
            )

    def _take(self, opaque: int) -> _Waiting | None:
        with self._lock:
            return self._waiting.pop(opaque, None)

    def _call_back(self, waiting: _Waiting, outcome: RemotingCommand | RocketMQError) -> None:
        try:
            waiting.on_response(outcome)
        except Exception:
            logger.exception(
                "response callback failed request=%s", describe_request(waiting.request.command())
            )

    def _timeout(self, waiting: _Waiting) -> RequestTimeout:
        waited_s = self._clock.monotonic_s() - waiting.sent.at_s
        return RequestTimeout(self.address, describe_request(waiting.request.command()), waited_s)

    def _end_if_silent(self, given_up: Iterable[_Waiting]) -> None:
        """End the channel if nothing has come for too long (``silence``) since one of these was sent."""
        now_s = self._clock.monotonic_s()
        if not self._silence.is_suspicious([each.sent for each in given_up], now_s) or self._has_unread():
            return
        with self._lock:
            silent_s = self._silence.over_after_s(now_s, has_others=bool(self._waiting))
        if silent_s is not None:
            self._end(ChannelClosed(self.address, f"the server sent nothing for {silent_s:.3g} s"))

    def _has_unread(self) -> bool:
        """Return whether bytes wait in the socket for the reader, as when the process has been suspended."""
        try:
            return bool(await_readable((self._transport,), 0.0))
        except ValueError:
            return False  # it was closed meanwhile

    def _end(self, reason: RocketMQError, *, is_orderly: bool = False) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = reason
            failed, self._waiting = self._waiting, {}
        if not is_orderly:
            # The callers send failed requests again on another connection, and none may arrive after that.
            self._transport.discard_unsent()
        self._transport.shutdown()
        logger.debug("= channel ended address=%s reason=%s", self.address, reason)
        for waiting in failed.values():
            self._call_back(waiting, _reason_for(self.address, reason, waiting.request))


def _seconds_left(deadline: Deadline | None, without: float) -> float:
    return without if deadline is None else min(deadline.remaining_s(), without)


def _with_tls_hint(reason: RocketMQError) -> RocketMQError:
    if not isinstance(reason, ChannelClosed):
        return reason
    hint = (
        "before it sent a byte. A server does this if it requires TLS and useTls is false, or if it has TLS "
        "switched off and useTls is true: check option useTls"
    )
    return ChannelClosed(reason.address, f"{reason.detail}, {hint}")


def _reason_for(address: str, reason: RocketMQError, request: Outgoing) -> RocketMQError:
    """Return the error for one request of a channel that ended with ``reason``; the error names the request.

    Each request gets a new error, because one exception raised in several threads would mix their tracebacks.
    """
    asked = describe_request(request.command())
    if isinstance(reason, (ChannelClosed, TlsFailed)):
        return type(reason)(
            reason.address, f"{reason.detail.removesuffix('.')}. The connection was needed for {asked}."
        )
    return RemoteProtocolError(
        f"{reason} {address} sent these bytes instead of the answer to {asked}. Check that the address "
        "is a RocketMQ server's remoting port."
    )
