"""Answers to pulls out of received bytes: the one place where the client reads headers by the ten thousand.

A broker writes the headers of its found pulls all alike, but for a few numbers.  So the first one is read by the full
decoder, and its text becomes a pattern in which those numbers alone are free.  A header that matches the pattern means
what the full decoder would find in it; every other one goes to the full decoder.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from pyspark_rocketmq.client.pull import PullResult, PullStatus
from pyspark_rocketmq.client.receive_buffer import LENGTH_WORD, ReceiveBuffer
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH, RemotingCommand, SerializeType, decode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder

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

    Obligations of the caller: receive into ``buffer.room()``, tell ``take_in`` how much came, and close the connection
    after an error.
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
