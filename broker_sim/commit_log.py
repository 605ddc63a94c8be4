"""The broker's one growing store of bytes, cut into segments so that the oldest can be dropped.

Rule 1: an offset never changes its meaning; dropping only raises ``min_offset``.  Rule 2: one append lies in
one segment.  Rule 3: the segment being written is never dropped to keep the bound, which is exceeded by one large
append at most.
"""

from __future__ import annotations

from bisect import bisect_right

_SEGMENTS_PER_LOG = 8
_LARGEST_SEGMENT = 16 << 20
_SMALLEST_SEGMENT = 256


class CommitLog:
    """Append-only bytes, addressed by a commit log offset that counts from the first byte ever written."""

    def __init__(self, retention_bytes: int | None = None) -> None:
        """Keep at most ``retention_bytes``; None keeps everything."""
        self._retention_bytes = retention_bytes
        bound = retention_bytes or _LARGEST_SEGMENT * _SEGMENTS_PER_LOG
        self._segment_bytes = min(max(bound // _SEGMENTS_PER_LOG, _SMALLEST_SEGMENT), _LARGEST_SEGMENT)
        self._bases = [0]
        self._segments: list[bytearray] = [bytearray()]
        self._floor = 0

    @property
    def min_offset(self) -> int:
        """Commit log offset of the oldest byte still held."""
        return max(self._bases[0], self._floor)

    @property
    def end_offset(self) -> int:
        """Commit log offset the next append gets."""
        return self._bases[-1] + len(self._segments[-1])

    def append(self, data: bytes) -> int:
        """Add ``data`` and return its commit log offset; the oldest segments may go."""
        if len(self._segments[-1]) >= self._segment_bytes:
            self._bases.append(self.end_offset)
            self._segments.append(bytearray())
        offset = self.end_offset
        self._segments[-1] += data
        self._drop_oldest()
        return offset

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on; both must lie within what is held."""
        index = bisect_right(self._bases, offset) - 1
        start = offset - self._bases[index]
        found = _copy(self._segments[index], start, size)
        while len(found) < size:
            index += 1
            found += _copy(self._segments[index], 0, size - len(found))
        return found

    def drop_before(self, offset: int) -> None:
        """Let go of what lies below ``offset``; memory goes by whole segments."""
        self._floor = max(self._floor, min(offset, self.end_offset))
        while len(self._segments) > 1 and self._bases[1] <= self._floor:
            del self._bases[0]
            del self._segments[0]

    def _drop_oldest(self) -> None:
        if self._retention_bytes is None:
            return
        while len(self._segments) > 1 and self.end_offset - self.min_offset > self._retention_bytes:
            del self._bases[0]
            del self._segments[0]


def _copy(segment: bytearray, start: int, size: int) -> bytes:
    with memoryview(segment) as view:
        return bytes(view[start : start + size])
