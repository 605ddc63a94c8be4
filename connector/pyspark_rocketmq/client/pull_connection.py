"""A connection on which one thread pulls, its receive buffer, and the cache of idle ones.

A connection that one thread pulls on, many pulls at a time: the fast way to read a queue's range.

Why not a channel: its reader thread wakes once per answer and then contends with the thread that decodes
messages for Python's lock.  Here one thread sends the next pulls in one piece, takes everything that has come
in one piece, and decodes in between while the broker works; that costs half the processor time, on the
broker's side too, which sees bursts instead of single requests.

Rule 1: one thread.  Rule 2: after any error the line is of no use: close it.  Rule 3: silence is measured
while waiting, never while the caller was busy with something else or the whole process stood still: the
answers may have come meanwhile.  Rule 4: a pull that stays without an answer while others get theirs is given
up alone; a broker may drop one that it cannot write (``DefaultPullMessageResultHandler.channelIsWritable``).

Answers to pulls out of received bytes: the one place where the client reads headers by the ten thousand.

A broker writes the headers of its found pulls all alike, but for a few numbers.  So the first one is read by
the full decoder, and its text becomes a pattern in which those numbers alone are free.  A header that matches
the pattern means what the full decoder would find in it; every other one goes to the full decoder.

Where the bytes of one connection are received, so that message bodies can be used where they arrived.

A body is handed on as a view of the buffer. As long as anybody has such a view its buffer is not written
again: another one is taken, which costs nothing but memory. Who has used up what he got says so
(``turn_over``), and the few bodies that he still waits for are moved (``keep``): then two buffers are enough
for ever, and both stay in the processor's cache.

Pull lines that a process keeps between the tasks that use them, such as a Spark Python worker.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from pyspark_rocketmq.client.lifetime import renew_in_children
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.transport import RECEIVE_TICK_S, Connect, Transport
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import ChannelClosed, RequestTimeout, RocketMQError
from pyspark_rocketmq.model import PulledBody
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH, RemotingCommand, SerializeType, decode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder, Outgoing, PlainRequest, Signer
from pyspark_rocketmq.wire.requests.pull import PullResult, PullStatus, pull_result
from pyspark_rocketmq.wire.requests.responses import describe_request

LENGTH_WORD: Final = 4
_FIRST_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 8 << 20
"""Twice what is decoded at once. A longer frame gets a buffer of its own size."""
_LEAST_ROOM: Final = 256 << 10
"""Who receives from TLS must be able to take a whole record."""
_MOST_SPARES: Final = 3


class ReceiveBuffer:
    """The bytes from ``at`` to ``filled`` of ``view`` are received and not decoded."""

    __slots__ = ("_bytes", "_limit", "_spares", "at", "filled", "view")

    def __init__(self) -> None:
        self._spares: list[bytearray] = []
        """Used before; some of them may still be looked into."""
        self.at = self.filled = self._limit = 0
        self._use(bytearray(_FIRST_BYTES))

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._limit - self.filled < _LEAST_ROOM:
            self._move_on(min(2 * len(self._bytes), _MOST_BYTES))
        return self.view[self.filled : self._limit]

    def turn_over(self) -> None:
        """Go on at the front of another buffer; the bodies handed out so far are used up, or kept by ``keep``."""
        if self.at:
            self._move_on(len(self._bytes))

    def keep(self, body: PulledBody) -> PulledBody:
        """The same body where it does not hold up a buffer used before; itself if it is not in one of this connection."""
        if not isinstance(body, memoryview) or not any(body.obj is spare for spare in self._spares):
            return body
        end = self._limit
        begin = end - len(body)
        if begin - self.filled < _LEAST_ROOM:
            return bytes(body)
        self._limit = begin
        self.view[begin:end] = body
        return self.view[begin:end]

    def _use(self, buffer: bytearray) -> None:
        self._bytes, self.view = buffer, memoryview(buffer)
        self._limit = len(buffer)
        self.at = self.filled = 0

    def _move_on(self, size: int) -> None:
        """Move the beginning of a frame to the front of another buffer that has at least so many bytes and room for it."""
        rest = self.view[self.at : self.filled]
        if len(rest) >= LENGTH_WORD:
            # The decoder has refused a length beyond the limit.
            size = max(size, LENGTH_WORD + int.from_bytes(rest[:LENGTH_WORD], "big") + _LEAST_ROOM)
        used = self._bytes
        self._use(self._spare(size) or bytearray(size))
        self.view[: len(rest)] = rest
        self.filled = len(rest)
        if len(used) <= _MOST_BYTES:
            self._spares = [*self._spares, used][-_MOST_SPARES:]

    def _spare(self, size: int) -> bytearray | None:
        for spare in self._spares:
            if len(spare) >= size and _is_free(spare):
                self._spares.remove(spare)
                return spare
        return None


def _is_free(buffer: bytearray) -> bool:
    """Whether nobody looks into it: Python resizes no bytearray that somebody looks into."""
    try:
        # Shorter first: to append to a full one moves it.
        del buffer[-1]
    except BufferError:
        return False
    buffer.append(0)
    return True


_WORDS: Final = struct.Struct(">II")
"""Length word, then serialize type and header length."""
_PREFIX: Final = _WORDS.size
_JSON_LIMIT: Final = int(SerializeType.JSON) + 1 << 24
"""A second word below it announces a JSON header, and is its length."""
_MOST_PATTERNS: Final = 8
"""Learnt by one connection; a peer whose headers differ every time is read by the full decoder."""

_FREE: Final = re.compile(
    rb'"(?P<field>nextBeginOffset|minOffset|maxOffset|suggestWhichBrokerId)":"(?P<text>[0-9]+)"'
    rb'|"(?P<opaque>opaque)":(?P<number>[0-9]+)'
)
_ANY_NUMBER: Final = rb"(0|[1-9][0-9]{0,17})"
_ANY_OPAQUE: Final = rb"(0|[1-9][0-9]{0,8})"


class PullAnswers:
    """Decoder of one connection's bytes.

    Obligations of the caller: receive into ``buffer.room()``, tell ``take_in`` how much came, and close the
    connection after an error.
    """

    def __init__(self) -> None:
        self.buffer = ReceiveBuffer()
        """The bodies of found pulls are views of it."""
        self._pattern: FoundPattern | None = None
        self._learnt = 0

    def take_in(self, count: int) -> Iterator[tuple[int, PullResult | RemotingCommand]]:
        """Decode the frames that ``count`` more bytes complete, each with its opaque; must be run to its end.

        An answer with code 0 whose header is as expected comes as a result.

        Raises:
            RemoteProtocolError: As ``FrameDecoder.feed``.
        """
        buffer = self.buffer
        buffer.filled += count
        view, filled, start = buffer.view, buffer.filled, buffer.at
        while filled - start >= _PREFIX:
            length, header_length = _WORDS.unpack_from(view, start)
            end = start + LENGTH_WORD + length
            if not LENGTH_WORD <= length <= MAX_FRAME_LENGTH - LENGTH_WORD:
                # Refused before memory is taken for it, in the words of the one who knows.
                FrameDecoder().feed(view[start : start + _PREFIX])
            if end > filled:
                return
            buffer.at = end
            header_at = start + _PREFIX
            body_at = header_at + header_length
            found = None
            if self._pattern is not None and header_length < _JSON_LIMIT and body_at <= end:
                found = self._pattern.read(view, header_at, body_at, end)
            yield found or self._decoded(view, start, body_at, end)
            start = end

    def _decoded(self, view: memoryview, start: int, body_at: int, end: int) -> tuple[int, RemotingCommand]:
        command = decode_frame(view[start + LENGTH_WORD : end])
        if self._learnt < _MOST_PATTERNS and command.code == ResponseCode.SUCCESS and command.is_response:
            self._learnt += 1
            header = bytes(view[start + _PREFIX : body_at])
            self._pattern = FoundPattern.of(header, command) or self._pattern
        return command.opaque, command


class FoundPattern:
    """The text of a found pull's header with its numbers free."""

    __slots__ = ("_match", "_places")

    def __init__(self, text: bytes, order: Mapping[str, int]) -> None:
        self._match = re.compile(text, re.DOTALL).fullmatch
        self._places = tuple(
            order[name]
            for name in ("opaque", "nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")
        )

    @classmethod
    def of(cls, header: bytes, command: RemotingCommand) -> FoundPattern | None:
        """The pattern of ``header``, which is that of ``command``; None if its numbers are not where expected.

        Each number must be there once, spelt as itself and without a chance of being inside of another text.
        """
        if b"\\" in header:
            return None
        parts: list[bytes] = []
        order: dict[str, int] = {}
        values: dict[str, str] = {"opaque": str(command.opaque), **command.ext_fields}
        at = 0
        for found in _FREE.finditer(header):
            name = (found["field"] or found["opaque"]).decode()
            digits = "text" if found["field"] else "number"
            if name in order or values.get(name) != found[digits].decode():
                return None
            order[name] = len(order) + 1
            parts += [
                re.escape(header[at : found.start(digits)]),
                _ANY_NUMBER if digits == "text" else _ANY_OPAQUE,
            ]
            at = found.end(digits)
        if len(order) != 5:
            return None
        return cls(b"".join([*parts, re.escape(header[at:])]), order)

    def read(self, view: memoryview, header_at: int, body_at: int, end: int) -> tuple[int, PullResult] | None:
        """Opaque and result of the answer whose header and body are there; None if the header is another one."""
        match = self._match(view, header_at, body_at)
        if match is None:
            return None
        opaque, next_begin_offset, min_offset, max_offset, suggested = match.group(*self._places)
        return int(opaque), PullResult(
            PullStatus.FOUND,
            int(next_begin_offset),
            int(min_offset),
            int(max_offset),
            int(suggested),
            view[body_at:end],
        )


logger = logging.getLogger(__name__)

PullT = TypeVar("PullT", bound=Outgoing)

_OPAQUE_MASK: Final = 0x7FFFFFFF


class PullLine(Generic[PullT]):
    """Pulls in flight on one connection; the caller gets each back with its answer.

    No suspended pulls: a broker that holds one is silent, and silence is taken for failure.
    """

    def __init__(self, transport: Transport, clock: Clock, *, signer: Signer | None = None) -> None:
        self._transport = transport
        self._clock = clock
        self._signer = signer
        self._answers = PullAnswers()
        self._opaques = itertools.count()
        self._waiting: dict[int, tuple[PullT, float]] = {}
        """By opaque, in the order of sending: pulls and when they were sent, by the line's own time, which
        passes only while it waits for bytes."""
        self._listened_s = 0.0
        self._next_look_s = 0.0
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: give the connection back without ending it; it is the parent's."""
        self._transport.close()

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return self._transport.address

    @property
    def in_flight(self) -> int:
        """Pulls sent and not answered."""
        return len(self._waiting)

    def fileno(self) -> int:
        """Number of the connection's socket."""
        return self._transport.fileno()

    def send(self, pulls: Iterable[PullT]) -> None:
        """Send pulls, all in one piece.

        Raises:
            ChannelClosed: If the connection is gone; the pulls count as in flight all the same.
        """
        frames = []
        waiting, opaques, now_s = self._waiting, self._opaques, self._listened_s
        for pull in pulls:
            opaque = next(opaques) & _OPAQUE_MASK
            waiting[opaque] = pull, now_s
            frames.append(pull.encode(opaque) if self._signer is None else self._signed(pull, opaque))
        if frames:
            self._transport.sendall(b"".join(frames))

    def receive(self, silence_s: float) -> list[tuple[PullT, PullResult | RocketMQError]]:
        """Wait for answers and return what has come, perhaps nothing yet; errors are those of single pulls.

        A pull without an answer after ``silence_s`` of waiting gets ``RequestTimeout``.

        Raises:
            RequestTimeout: If not a byte came for ``silence_s`` seconds, give or take one.
            ChannelClosed: If the connection ended.
            RemoteProtocolError: If what came is not the protocol.
        """
        count = self._await_bytes(silence_s)
        answers: list[tuple[PullT, PullResult | RocketMQError]] = []
        for opaque, answer in self._answers.take_in(count):
            if isinstance(answer, RemotingCommand):
                self._take_in(answer, answers)
            elif (found := self._waiting.pop(opaque, None)) is not None:
                answers.append((found[0], answer))
        if self._listened_s >= self._next_look_s:
            answers += self._overdue(silence_s)
        return answers

    def turn_over(self) -> None:
        """Receive elsewhere from now on; the bodies given so far are used up, or kept by ``keep``."""
        self._answers.buffer.turn_over()

    def keep(self, body: PulledBody) -> PulledBody:
        """The same body, out of the way of what is to be received; itself if it is none of this line."""
        return self._answers.buffer.keep(body)

    def pass_time(self, waited_s: float, silence_s: float) -> list[tuple[PullT, PullResult | RocketMQError]]:
        """Count time in which somebody waited for this line among others, and nothing came on it.

        Returns:
            The pulls that are given up now, as by ``receive``.
        """
        self._listened_s += waited_s
        return self._overdue(silence_s) if self._listened_s >= self._next_look_s else []

    def close(self) -> list[PullT]:
        """End the connection; the pulls that were not answered."""
        self._transport.shutdown()
        self._transport.close()
        unanswered = [pull for pull, _ in self._waiting.values()]
        self._waiting.clear()
        return unanswered

    def _signed(self, pull: PullT, opaque: int) -> bytes:
        assert self._signer is not None
        return PlainRequest(self._signer(pull.command())).encode(opaque)

    def _take_in(
        self, command: RemotingCommand, answers: list[tuple[PullT, PullResult | RocketMQError]]
    ) -> None:
        # Brokers ask only clients that sent heartbeats; whatever comes unasked is not for this line.
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
            count = self._transport.recv_into(self._answers.buffer.room())
            # What it took longer, nobody listened.
            waited_s += min(self._clock.monotonic_s() - began_s, RECEIVE_TICK_S)
            if count:
                self._listened_s += waited_s
                return count
            if count == 0:
                raise ChannelClosed(self.address, "the server ended it")
            if waited_s >= silence_s:
                oldest, _ = next(iter(self._waiting.values()), (None, 0.0))
                raise self._timeout(oldest, waited_s)

    def _overdue(self, silence_s: float) -> list[tuple[PullT, PullResult | RocketMQError]]:
        """Give up the pulls that were passed over; looked for now and then, oldest first."""
        self._next_look_s = self._listened_s + silence_s / 4
        overdue: list[tuple[PullT, PullResult | RocketMQError]] = []
        for opaque, (pull, sent_at_s) in list(self._waiting.items()):
            waited_s = self._listened_s - sent_at_s
            if waited_s < silence_s:
                break
            del self._waiting[opaque]
            overdue.append((pull, self._timeout(pull, waited_s)))
        return overdue

    def _timeout(self, pull: PullT | None, waited_s: float) -> RequestTimeout:
        asked = "anything" if pull is None else describe_request(pull.command())
        return RequestTimeout(self.address, asked, waited_s)


_PLAIN: Final = ConnectionSettings()
_KEPT_S: Final = 60.0
"""A broker ends a connection that is silent for 120 s (``serverChannelMaxIdleTimeSeconds``)."""

_idle: dict[tuple[str, ConnectionSettings], list[tuple[float, PullLine[Any]]]] = {}
"""By address, and by settings, because a line speaks with one user's credentials; with the monotonic second
at which each was given back."""
# A child must not speak on its parent's connections.
os.register_at_fork(after_in_child=_idle.clear)


def take_line(
    address: str, clock: Clock, settings: ConnectionSettings = _PLAIN, *, connect: Connect | None = None
) -> PullLine[Any]:
    """A line to ``address`` that nobody else has: one that was given back lately, else a new connection.

    Raises:
        ConnectFailed: If no connection could be made within the settings' time-out.
        OptionError: If a certificate or key file cannot be used.
    """
    kept = _idle.get((address, settings), [])
    # Threads take and give back: who finds one here may find it gone.
    while (idle := _popped(kept)) is not None:
        since_s, line = idle
        if clock.monotonic_s() - since_s < _KEPT_S:
            return line
        line.close()
    transport = (connect or settings.connector())(address, settings.connect_timeout_s)
    return PullLine(transport, clock, signer=settings.signer())


def give_back_line(line: PullLine[Any], clock: Clock, settings: ConnectionSettings = _PLAIN) -> None:
    """Keep a line for the next taker with the same settings; one with pulls in flight is closed."""
    if line.in_flight:
        line.close()
        return
    key = (line.address, settings)
    if not _idle:
        atexit.register(close_idle_lines)
    _idle.setdefault(key, []).append((clock.monotonic_s(), line))


def _popped(kept: list[tuple[float, PullLine[Any]]]) -> tuple[float, PullLine[Any]] | None:
    try:
        return kept.pop()
    except IndexError:
        return None


def close_idle_lines() -> None:
    """Close the lines this process keeps."""
    for key in list(_idle):
        for _, line in _idle.pop(key):
            line.close()
