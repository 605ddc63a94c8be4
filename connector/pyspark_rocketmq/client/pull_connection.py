"""A connection on which one thread has many pulls in flight; its receive buffer; a cache of connections.

Why this is not a channel: a channel's reader thread wakes once per answer and then competes for Python's lock
with the thread that decodes messages. Here one thread sends the next pulls in one piece, receives everything
that has arrived in one piece, and decodes in between while the broker works. This takes half the processor
time, also at the broker, which receives many requests in one piece.

Rule 1: one thread. Rule 2: close the connection after any error. Rule 3: silence is measured only while
waiting, not while the caller is busy or the process is suspended, because answers may have arrived meanwhile.
A broker may hold a pull until there are messages; its silence about that pull is measured only from the time
at which it must have answered.
Rule 4: a pull that is not answered while others are is given up, and the connection goes on; a broker may
drop an answer that it cannot write (``DefaultPullMessageResultHandler.channelIsWritable``). Rule 5: if the
caller names the broker, no pull is sent before the server's name is checked, because a broker reports a reset
only once, with the next pull. Rule 6, about bodies, is in :class:`ReceiveBuffer`. Rule 7: a pull with an
SQL92 condition is sent only after the server has accepted the condition on this connection; meanwhile other
pulls go on (:mod:`~pyspark_rocketmq.client.filter_checks`).
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from pyspark_rocketmq.client.filter_checks import FilterCheck, FilterChecks
from pyspark_rocketmq.client.identity import UNKNOWN, WHO, check_name, name_in, warn_of_unknown
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.transport import RECEIVE_TICK_S, Connect, Transport, renew_in_children
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import ChannelClosed, RequestTimeout, RocketMQError
from pyspark_rocketmq.model import PulledBody
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.framing import Outgoing, Signer
from pyspark_rocketmq.wire.requests.pull import PullResponseDecoder, PullResult, pull_result
from pyspark_rocketmq.wire.requests.responses import describe_request, error_of

logger = logging.getLogger(__name__)


class Pull(Outgoing, Protocol):
    """A pull that has no request number (``opaque``) yet, such as a ``PullRequest``."""

    @property
    def longest_hold_s(self) -> float:
        """Seconds for which the broker may keep the pull before it answers; 0 if it answers immediately.

        The broker's silence about this pull counts only after these seconds.
        """
        ...

    @property
    def filter_check(self) -> RemotingCommand | None:
        """Request that the server must have accepted before the pull is sent; None without a condition."""
        ...


PullT = TypeVar("PullT", bound=Pull)
_LENGTH_WORD: Final = 4
_FIRST_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 8 << 20
"""Usual maximum size of a buffer: twice the bytes decoded in one step. A longer frame gets a larger one."""
_LEAST_ROOM: Final = 256 << 10
"""Minimum room for receiving: a receive from TLS must be able to take a whole record."""
_MOST_SPARES: Final = 3
_AWAITED_SHARE: Final = 0.9
"""A wait lasts until this share of the expected bytes has arrived, or a smaller one. Answers differ a little
in size, and a wait for more bytes than arrive would last too long."""
_MOST_AWAITED_BYTES: Final = 1 << 20
"""Maximum number of bytes to wait for; the socket's buffer in the system has room for as many."""

T = TypeVar("T")

_OPAQUE_MASK: Final = 0x7FFFFFFF
_PLAIN: Final = ConnectionSettings()
_KEPT_S: Final = 60.0
"""How long an idle connection is kept; a broker ends it after 120 s (``serverChannelMaxIdleTimeSeconds``)."""
_idle: dict[tuple[str, str, ConnectionSettings], list[tuple[float, PullConnection[Any]]]] = {}
"""Idle connections, each with the monotonic second of its release, by address, broker name and settings.

Settings are part of the key because a connection has one user's credentials.
"""


class ReceiveBuffer:
    """Owns the memory into which one connection receives, and where callers use message bodies in place.

    A body is a view of the buffer. The rule: when the next bodies are asked for, no view may be kept. The
    reader decodes a body into other memory in the call that takes it. The fetcher moves bodies that still
    wait for their turn (``swap``, then ``retain`` for each). Others copy them.

    A view that is kept in spite of the rule costs memory, but never damages a message: a buffer with a view
    is not written again, and another one is used. With the rule two buffers are enough, and both stay in the
    processor's cache.
    """

    __slots__ = ("_at", "_bytes", "_filled", "_limit", "_spares", "_view")

    def __init__(self) -> None:
        self._spares: list[bytearray] = []
        """Buffers used before; some of them may still have views."""
        self._at = self._filled = 0
        """Begin and end of the bytes that are received and not decoded."""
        self._limit = 0
        """End of the room for receiving; behind it are bodies that were moved."""
        self._use(bytearray(_FIRST_BYTES))

    @property
    def used(self) -> int:
        """Number of bytes that are decoded, from the buffer's beginning."""
        return self._at

    def room(self) -> memoryview:
        """Return the part of the buffer for the next bytes; never empty."""
        if self._limit - self._filled < _LEAST_ROOM:
            self._move_on(min(2 * len(self._bytes), _MOST_BYTES))
        return self._view[self._filled : self._limit]

    def take_in(self, count: int, decode: Callable[[memoryview, int, int], tuple[list[T], int]]) -> list[T]:
        """Decode the received bytes that are not decoded yet, and return the values.

        Args:
            count: Number of bytes that were just received into ``room()``.
            decode: Decodes the bytes. It gets a view of the buffer, and where in it these bytes begin and
                end. It returns the values, and where the bytes that it has not decoded begin. If it raises,
                close the connection.
        """
        self._filled += count
        decoded, self._at = decode(self._view, self._at, self._filled)
        return decoded

    def swap(self) -> None:
        """Receive into another buffer from now on, if this one has decoded bytes.

        The caller has used all bodies so far, or moves them by ``retain``.
        """
        if self._at:
            self._move_on(len(self._bytes))

    def retain(self, body: PulledBody) -> PulledBody:
        """Return the body, moved if it is in an earlier buffer, so that this buffer can be used again.

        A view of an earlier buffer is copied to the end of the current buffer or, without room there, into
        ``bytes``. Any other body is returned as it is.
        """
        if not isinstance(body, memoryview) or not any(body.obj is spare for spare in self._spares):
            return body
        end = self._limit
        begin = end - len(body)
        if begin - self._filled < _LEAST_ROOM:
            return bytes(body)
        self._limit = begin
        self._view[begin:end] = body
        return self._view[begin:end]

    def _use(self, buffer: bytearray) -> None:
        self._bytes, self._view = buffer, memoryview(buffer)
        self._at, self._filled, self._limit = 0, 0, len(buffer)

    def _move_on(self, size: int) -> None:
        """Move the beginning of a frame to another buffer of ``size`` bytes, or more for a long frame."""
        rest = self._view[self._at : self._filled]
        if len(rest) >= _LENGTH_WORD:
            # The decoder has already refused lengths beyond the limit.
            size = max(size, _LENGTH_WORD + int.from_bytes(rest[:_LENGTH_WORD], "big") + _LEAST_ROOM)
        used = self._bytes
        self._use(self._spare(size) or bytearray(size))
        self._view[: len(rest)] = rest
        self._filled = len(rest)
        if len(used) <= _MOST_BYTES:
            self._spares = [*self._spares, used][-_MOST_SPARES:]

    def _spare(self, size: int) -> bytearray | None:
        for spare in self._spares:
            if len(spare) >= size and _is_free(spare):
                self._spares.remove(spare)
                return spare
        return None


def _is_free(buffer: bytearray) -> bool:
    """Return whether no view of the buffer is left: Python does not resize a bytearray that has one."""
    try:
        # Shorten it first, because appending to a full bytearray would move it.
        del buffer[-1]
    except BufferError:
        return False
    buffer.append(0)
    return True


class PullConnection(Generic[PullT]):
    """One connection with many pulls in flight, for one thread; ``receive`` returns each with its answer."""

    def __init__(
        self, transport: Transport, clock: Clock, *, signer: Signer | None = None, broker_name: str = ""
    ) -> None:
        """Take over a connection; its server's name is checked first, unless ``broker_name`` is empty."""
        self.broker_name = broker_name
        self._is_confirmed = not broker_name
        self._who: int | None = None
        """Number (``opaque``) of the request for the broker's name; None before it is sent."""
        self._held: list[bytes] = []
        """Frames to be sent when the name is confirmed."""
        self._checks = FilterChecks()
        self._released: list[bytes] = []
        """Frames of pulls whose condition was just accepted, to be sent now."""
        self._failure: RocketMQError | None = None
        """Error of sending within ``receive``, raised by the next call, because ``receive`` had answers."""
        self._transport = transport
        self._clock = clock
        self._signer = signer
        self.buffer = ReceiveBuffer()
        self._decoder = PullResponseDecoder()
        self._opaques = itertools.count()
        self._waiting: dict[int, tuple[PullT, float]] = {}
        """Unanswered pulls by opaque, in the order of sending, each with the time at which its silence
        begins. This time is counted in seconds that the connection has waited for bytes; it is infinite while
        the pull waits for the server to accept its condition."""
        self._listened_s = 0.0
        self._heard_s = 0.0
        """Seconds for which the connection had waited for bytes when the last ones arrived."""
        self._next_look_s = 0.0
        self._answer_bytes = 0
        """Mean size of the answers that were received last; 0 before the first ones."""
        self._awaited_share = _AWAITED_SHARE
        """Share of the expected bytes that the next wait is for; smaller after waits that got fewer bytes."""
        self._has_waited_in_vain = False
        """Whether the last wait ended before this connection had the number of bytes that was waited for."""
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: release the connection without ending it, because it is the parent's."""
        self._transport.close()

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return self._transport.address

    @property
    def is_confirmed(self) -> bool:
        """Whether the server's name is checked, or need not be; before that, no pull is sent."""
        return self._is_confirmed

    @property
    def in_flight(self) -> int:
        """Number of pulls sent and not answered."""
        return len(self._waiting)

    def fileno(self) -> int:
        """Return the file descriptor of the connection's socket."""
        return self._transport.fileno()

    def send(self, pulls: Iterable[PullT]) -> None:
        """Send pulls, all in one piece, or keep them until the server's name and the condition are checked.

        Raises:
            ChannelClosed, TlsFailed: If the connection is gone; the pulls count as in flight nevertheless.
        """
        frames: list[bytes] = []
        waiting, opaques, now_s = self._waiting, self._opaques, self._listened_s
        for pull in pulls:
            opaque = next(opaques) & _OPAQUE_MASK
            waiting[opaque] = pull, now_s + pull.longest_hold_s
            frame = pull.encode(opaque) if self._signer is None else self._frame(pull, opaque)
            check = pull.filter_check
            if check is None or self._checks.are_passed(check):
                frames.append(frame)
            else:
                waiting[opaque] = pull, math.inf
                frames += self._hold_back(check, opaque, frame)
        if not self._is_confirmed:
            self._held += frames
            self._ask_who()
        elif frames:
            self._transport.sendall(b"".join(frames))

    def await_answers(self, count: int) -> bool:
        """Let the next wait for this connection end when about ``count`` answers have arrived.

        Each end of a wait takes processor time and Python's lock, so one for several answers is better. The
        number of bytes is estimated from the answers received last. If a wait ends before that many bytes
        have arrived, the next wait ends with the first byte. The waits after it are for half of the estimated
        number, which then slowly grows again.

        Returns:
            Whether the wait may last until more than one byte has arrived. If True, limit the wait to a few
            milliseconds, because the answers may be shorter than the last ones.
        """
        is_any = count <= 1 or self._has_waited_in_vain
        size = 1 if is_any else int(count * self._answer_bytes * self._awaited_share)
        return self._transport.await_bytes(min(max(1, size), _MOST_AWAITED_BYTES))

    def receive(
        self, silence_s: float, *, waited_s: float = 0.0
    ) -> list[tuple[PullT, PullResult | RocketMQError]]:
        """Wait for bytes; return the pulls that are complete now, each with its answer or its error.

        The list may be empty: the bytes may be only part of an answer. A pull without an answer after about
        ``silence_s`` seconds of waiting gets ``RequestTimeout``. If the broker may hold the pull, these
        seconds begin when it must have answered.

        Args:
            silence_s: Seconds without an answer after which a pull is given up.
            waited_s: Seconds that the caller has already waited for this connection.

        Raises:
            RequestTimeout: If no byte came for about ``silence_s`` seconds (to within one second), and a pull
                has waited as long or none is in flight.
            ChannelClosed: If the connection ended.
            TlsFailed: If the server refused this client's certificate.
            RemoteProtocolError: If the received bytes violate the protocol.
            WrongBroker: If the server is another broker.
            BrokerError: If the server is too busy to give its name, or is shutting down.
        """
        self._raise_failure()
        self._listened_s += waited_s
        count = self._await_bytes(silence_s)
        answers: list[tuple[PullT, PullResult | RocketMQError]] = []
        for opaque, answer in self.buffer.take_in(count, self._decoder.decode):
            if isinstance(answer, RemotingCommand):
                self._take_in(answer, answers)
            elif (found := self._waiting.pop(opaque, None)) is not None:
                answers.append((found[0], answer))
        if not self._has_waited_in_vain:
            self._awaited_share = min(_AWAITED_SHARE, self._awaited_share * 1.1)
        self._has_waited_in_vain = False
        if answers:
            self._answer_bytes = count // len(answers)
        if self._listened_s >= self._next_look_s:
            answers += self._overdue(silence_s)
        if self._released:
            self._send_released(has_answers=bool(answers))
        return answers

    def pass_time(self, waited_s: float, silence_s: float) -> list[tuple[PullT, PullResult | RocketMQError]]:
        """Count ``waited_s`` seconds in which the caller waited for this connection and others.

        Call this if the system did not report this connection readable when the wait ended.

        Returns:
            The pulls that are given up now, with their errors, as from ``receive``.

        Raises:
            RequestTimeout: If nothing came for ``silence_s`` seconds, and a pull has waited as long or none
                is in flight.
        """
        self._raise_failure()
        self._listened_s += waited_s
        if waited_s > 0 and not self._has_waited_in_vain:
            self._has_waited_in_vain = True
            self._awaited_share /= 2
        if self._listened_s < self._next_look_s:
            return []
        if self._listened_s - self._heard_s >= silence_s:
            self._check_silence(silence_s, self._listened_s)
        return self._overdue(silence_s)

    def drop_held_back(self) -> None:
        """Forget the pulls that were not sent, because the server has not accepted their condition yet."""
        for check in self._checks.give_up(math.inf):
            for opaque in check.frames:
                del self._waiting[opaque]

    def close(self) -> list[PullT]:
        """End the connection; return the pulls that were not answered."""
        if self._waiting:
            # A pull that arrives later would take an operator's reset with it, which is reported once.
            self._transport.discard_unsent()
        self._transport.shutdown()
        self._transport.close()
        unanswered = [pull for pull, _ in self._waiting.values()]
        self._waiting.clear()
        return unanswered

    def _frame(self, request: Outgoing, opaque: int) -> bytes:
        if self._signer is None:
            return request.encode(opaque)
        return self._signer(request.command()).encode(opaque)

    def _hold_back(self, check: RemotingCommand, opaque: int, frame: bytes) -> list[bytes]:
        """Keep a pull's frame until the server accepts ``check``; return the frame of a new check."""
        if self._checks.hold(check, opaque, frame):
            return []
        number = next(self._opaques) & _OPAQUE_MASK
        self._checks.asked(number, FilterCheck(check, self._listened_s, {opaque: frame}))
        return [self._frame(check, number)]

    def _judge(
        self,
        check: FilterCheck,
        answer: RemotingCommand,
        answers: list[tuple[PullT, PullResult | RocketMQError]],
    ) -> None:
        """Release the pulls that waited for the answer to a check, or fail them if the server refuses."""
        if answer.code == ResponseCode.SUCCESS:
            self._released += check.frames.values()
            for opaque in check.frames:
                pull, _ = self._waiting[opaque]
                self._waiting[opaque] = pull, self._listened_s + pull.longest_hold_s
        else:
            answers += self._failed(check, error_of(check.request, answer, self.address))

    def _failed(self, check: FilterCheck, error: RocketMQError) -> list[tuple[PullT, RocketMQError]]:
        return [(self._waiting.pop(opaque)[0], error) for opaque in check.frames]

    def _send_released(self, *, has_answers: bool) -> None:
        frames, self._released = self._released, []
        try:
            self._transport.sendall(b"".join(frames))
        except RocketMQError as error:
            if not has_answers:
                raise
            # The answers must not be lost. The pulls of these frames are in flight, so another call follows.
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _ask_who(self) -> None:
        if self._who is None:
            self._who = next(self._opaques) & _OPAQUE_MASK
            self._transport.sendall(self._frame(WHO, self._who))

    def _confirm(self, answer: RemotingCommand) -> None:
        name = name_in(answer, self.address)
        if name == UNKNOWN:
            warn_of_unknown(self.address, self.broker_name, answer)
        check_name(self.address, name, self.broker_name)
        self._is_confirmed = True
        frames, self._held = self._held, []
        self._transport.sendall(b"".join(frames))

    def _take_in(
        self, command: RemotingCommand, answers: list[tuple[PullT, PullResult | RocketMQError]]
    ) -> None:
        if not self._is_confirmed and command.is_response and command.opaque == self._who:
            self._confirm(command)
            return
        is_accepted = command.code == ResponseCode.SUCCESS
        if command.is_response and (check := self._checks.answered(command.opaque, is_accepted=is_accepted)):
            self._judge(check, command, answers)
            return
        # Brokers send requests only to clients that sent heartbeats, and this connection sends none.
        found = self._waiting.pop(command.opaque, None) if command.is_response else None
        if found is None:
            logger.debug("! unexpected frame ignored code=%d address=%s", command.code, self.address)
        else:
            pull, _ = found
            answers.append((pull, pull_result(pull, command, self.address)))

    def _await_bytes(self, silence_s: float) -> int:
        waited_s = 0.0
        while True:
            began_s = self._clock.monotonic_s()
            count = self._transport.recv_into(self.buffer.room())
            # Time beyond the timeout means this process was suspended; it does not count as silence.
            waited_s += min(self._clock.monotonic_s() - began_s, RECEIVE_TICK_S)
            if count:
                self._listened_s += waited_s
                self._heard_s = self._listened_s
                return count
            if count == 0:
                raise ChannelClosed(self.address, "the server ended it")
            if waited_s >= silence_s:
                self._check_silence(silence_s, self._listened_s + waited_s)

    def _check_silence(self, silence_s: float, now_s: float) -> None:
        """Raise ``RequestTimeout`` if a pull has waited ``silence_s`` or none is in flight.

        Call this only when no byte has come for ``silence_s``.
        """
        for pull, from_s in self._waiting.values():
            if now_s - from_s >= silence_s:
                raise self._timeout(pull.command(), now_s - from_s + pull.longest_hold_s)
        for check in self._checks.asked_until(now_s - silence_s):
            raise self._timeout(check.request, now_s - check.asked_s)
        if not self._waiting:
            raise self._timeout(None, now_s - self._heard_s)

    def _overdue(self, silence_s: float) -> list[tuple[PullT, PullResult | RocketMQError]]:
        """Give up pulls without an answer for ``silence_s``, and return them with errors, oldest first.

        Callers wait a quarter of ``silence_s`` between two calls.
        """
        self._next_look_s = self._listened_s + silence_s / 4
        overdue: list[tuple[PullT, PullResult | RocketMQError]] = []
        for opaque, (pull, from_s) in list(self._waiting.items()):
            waited_s = self._listened_s - from_s
            if waited_s >= silence_s:
                del self._waiting[opaque]
                overdue.append((pull, self._timeout(pull.command(), waited_s + pull.longest_hold_s)))
        for check in self._checks.give_up(self._listened_s - silence_s):
            overdue += self._failed(check, self._timeout(check.request, self._listened_s - check.asked_s))
        return overdue

    def _timeout(self, request: RemotingCommand | None, waited_s: float) -> RequestTimeout:
        asked = "anything" if request is None else describe_request(request)
        return RequestTimeout(self.address, asked, waited_s)


# A child must not use its parent's connections.
os.register_at_fork(after_in_child=_idle.clear)


def acquire_connection(
    address: str,
    clock: Clock,
    settings: ConnectionSettings = _PLAIN,
    *,
    broker_name: str = "",
    connect: Connect | None = None,
) -> PullConnection[Any]:
    """Return a connection for the caller's use: one that was released lately, or else a new one.

    A new connection with a ``broker_name`` sends no pull before the server's name is checked.

    Raises:
        ConnectFailed: If no connection could be opened within the settings' time-out.
        OptionError: If a certificate or key file cannot be used.
    """
    kept = _idle.get((address, broker_name, settings), [])
    # Another thread may take the last connection first.
    with suppress(IndexError):
        while True:
            since_s, connection = kept.pop()
            if clock.monotonic_s() - since_s < _KEPT_S:
                return connection
            connection.close()
    transport = (connect or settings.connector())(address, settings.connect_timeout_s)
    return PullConnection(transport, clock, signer=settings.signer(), broker_name=broker_name)


def release_connection(
    connection: PullConnection[Any], clock: Clock, settings: ConnectionSettings = _PLAIN
) -> None:
    """Give a connection back: it is kept for the next caller, or closed if pulls are in flight on it."""
    if connection.in_flight:
        connection.close()
        return
    connection.await_answers(0)
    if not _idle:
        atexit.register(close_idle_connections)
    released = clock.monotonic_s(), connection
    key = connection.address, connection.broker_name, settings
    _idle.setdefault(key, []).append(released)


def close_idle_connections() -> None:
    """Close the idle connections of this process."""
    for key in list(_idle):
        for _, connection in _idle.pop(key):
            connection.close()
