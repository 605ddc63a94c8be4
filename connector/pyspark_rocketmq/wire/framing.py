"""Cut a byte stream into frames, and define requests that become frames when they get a number (``opaque``).

Each byte of a body is copied once: directly from the chunk if the chunk has the whole frame, otherwise into a
buffer, which becomes the body. Only the buffer of a body of more than 256 KiB grows, by doubling.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Final, Protocol

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH, RemotingCommand, decode_frame, decode_parts

Signer = Callable[[RemotingCommand], RemotingCommand]
"""Adds ext fields to a request: its signature, or the instance of a managed cluster (``NAMESPACE``). The
request must not change afterwards."""

_LENGTH_WORD: Final = 4
_PREFIX: Final = 8
"""Length word and header-length word, which contain all sizes of the frame."""
_MIN_LENGTH: Final = 4
_TRUSTED_BYTES: Final = 256 * 1024
"""Maximum number of bytes reserved for a body before it arrives; a pull's answer has as many by default."""


class Outgoing(Protocol):
    """A request that gets its number (``opaque``) when it is encoded, such as a ``RemotingCommand``."""

    def encode(self, opaque: int) -> bytes:
        """Return the whole frame, length prefix included."""
        ...

    def command(self) -> RemotingCommand:
        """Return the same request as a command, for signing and for error messages."""
        ...


class FrameDecoder:
    """Turn received bytes into commands; each connection has one decoder per direction.

    The caller feeds every received byte once and in order. After an error it closes the connection, because
    it is unknown where the next frame begins. At the end of the stream a ``pending`` above zero means that
    the peer died in the middle of a frame. The time is linear in the bytes received, whatever the chunks. Not
    thread-safe.

    Source: ``NettyDecoder`` (a ``LengthFieldBasedFrameDecoder``).
    """

    __slots__ = ("_body", "_body_missing", "_body_room", "_head", "_head_wanted", "_max_frame_length")

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH) -> None:
        """Refuse frames of more than ``max_frame_length`` bytes, length word included."""
        self._max_frame_length = max_frame_length
        self._head = bytearray()
        self._head_wanted = _PREFIX
        self._body: BytesIO | None = None
        self._body_missing = 0
        self._body_room = 0

    @property
    def pending(self) -> int:
        """Number of bytes of an unfinished frame that this decoder holds."""
        return len(self._head) + (self._body.tell() if self._body is not None else 0)

    def feed(self, data: bytes | memoryview) -> list[RemotingCommand]:
        """Take the next bytes and return the commands they complete; ``data`` may be reused afterwards.

        Raises:
            RemoteProtocolError: If a frame is too long (refused as soon as its length word has arrived), too
                short for its header, or malformed.
        """
        view = memoryview(data)
        commands: list[RemotingCommand] = []
        at = 0
        while at < len(view):
            if not self._head:
                end = self._end_of_whole_frame(view, at)
                if end:
                    commands.append(decode_frame(view[at + _LENGTH_WORD : end]))
                    at = end
                    continue
            at += self._take(view[at:])
            if self._body is not None and not self._body_missing:
                commands.append(self._finish(self._body))
        return commands

    def _end_of_whole_frame(self, view: memoryview, at: int) -> int:
        """Return where the frame at ``at`` ends; 0 if it is incomplete."""
        if len(view) - at < _PREFIX:
            return 0
        end = at + _LENGTH_WORD + self._checked_length(view[at : at + _LENGTH_WORD])
        return end if end <= len(view) else 0

    def _checked_length(self, word: memoryview | bytearray) -> int:
        length = int.from_bytes(word, "big")
        if length + _LENGTH_WORD > self._max_frame_length:
            raise RemoteProtocolError(
                f"A frame of {length + _LENGTH_WORD} bytes was announced; at most {self._max_frame_length} "
                "are accepted. Either the peer is not a RocketMQ server or its frame limit was raised."
            )
        if length < _MIN_LENGTH:
            raise RemoteProtocolError(f"A frame of {length} bytes has no room for its header length.")
        return length

    def _take(self, view: memoryview) -> int:
        """Move bytes of the unfinished frame into its buffers; return how many."""
        if self._body is not None:
            piece = view[: self._body_missing]
            if self._body.tell() + len(piece) > self._body_room:
                self._make_room(self._body, len(piece))
            self._body.write(piece)
            self._body_missing -= len(piece)
            return len(piece)
        piece = view[: self._head_wanted - len(self._head)]
        before = len(self._head)
        self._head += piece
        if before < _LENGTH_WORD <= len(self._head):
            self._checked_length(self._head[:_LENGTH_WORD])
        if len(self._head) == self._head_wanted:
            self._open_next_part()
        return len(piece)

    def _open_next_part(self) -> None:
        """Go on to the header after the prefix is complete, or to the body after the header is complete."""
        length = int.from_bytes(self._head[:_LENGTH_WORD], "big")
        header_length = int.from_bytes(self._head[_LENGTH_WORD + 1 : _PREFIX], "big")
        if header_length > length - _MIN_LENGTH:
            raise RemoteProtocolError(
                f"The header length {header_length} exceeds the frame, which has {length} bytes."
            )
        if len(self._head) < _PREFIX + header_length:
            self._head_wanted = _PREFIX + header_length
            return
        self._body_missing = length - _MIN_LENGTH - header_length
        # A buffer of the final size: writes fill it in place and getvalue() returns it without a copy. The
        # buffer of a large body grows by doubling, because many peers may announce much and send little.
        self._body_room = min(self._body_missing, _TRUSTED_BYTES)
        self._body = BytesIO(bytes(self._body_room))

    def _make_room(self, body: BytesIO, wanted: int) -> None:
        at = body.tell()
        self._body_room = min(at + self._body_missing, max(2 * self._body_room, at + wanted))
        body.seek(self._body_room - 1)
        body.write(b"\0")
        body.seek(at)

    def _finish(self, body: BytesIO) -> RemotingCommand:
        mark = int.from_bytes(self._head[_LENGTH_WORD:_PREFIX], "big")
        header = bytes(memoryview(self._head)[_PREFIX:])  # one copy, of up to a whole frame
        self._head.clear()
        self._head_wanted = _PREFIX
        self._body = None
        return decode_parts(mark, header, body.getvalue())
