"""Where the bytes of one connection are received, so that message bodies can be used where they arrived.

A body is handed on as a view of the buffer. As long as anybody has such a view its buffer is not written again:
another one is taken, which costs nothing but memory. Who has used up what he got says so (``turn_over``), and the few
bodies that he still waits for are moved (``keep``): then two buffers are enough for ever, and both stay in the
processor's cache.
"""

from __future__ import annotations

from typing import Final

from pyspark_rocketmq.model import PulledBody

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
