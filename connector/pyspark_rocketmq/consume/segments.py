"""The segments of one range: which part of the range each pull reads, and the answers in order. No I/O.

A range ``[start, end)`` is cut into segments, each with at most one pull in flight. An answer moves its
segment on to ``nextBeginOffset``, until the segment has reached its end and is *complete*. From its first
pull until then a segment is *open*. Answers arrive in any order; *chunks*, each with one answer's messages,
leave in queue order.

In real time a range has no planned end: ``end`` is then the newest known end of its queue, and moves. When a
range has reached that end, it makes only one pull, which waits at the broker for more messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark_rocketmq.model import PulledBody


class PullChunk(NamedTuple):
    """One answer's undecoded messages; those outside ``[start, limit)`` must be dropped."""

    body: PulledBody
    limit: int
    """End of the segment: messages at or after it come again with a later chunk."""
    start: int
    """Requested queue offset. The answer may begin with earlier messages of the same inner batch."""


SegmentPull = tuple[int, int, int]
"""The part of a range that the next pull of one segment reads: the segment's id, start, and end (exclusive).

A plain tuple, because making a NamedTuple takes as long as the rest of such a pull here.
"""


class _Segment:
    __slots__ = ("body_bytes", "chunks", "end", "is_pulled", "next_offset")

    def __init__(self, start: int, end: int) -> None:
        self.next_offset = start
        self.end = end
        self.is_pulled = True
        self.chunks: list[PullChunk] = []
        self.body_bytes = 0


class Segments:
    """The segments of one range, in queue order.

    Guarantee: the chunks of ``take()``, each cut to its ``[start, limit)``, hold exactly the messages of
    ``[start, end)`` that the broker returned, ascending and once, whatever the order of answers and failures.
    """

    def __init__(self, start: int, end: int, size: int, *, has_open_end: bool = False) -> None:
        """Begin without segments; :meth:`pulls` opens them.

        Args:
            start: First offset of the range.
            end: Its end, exclusive; the range is complete immediately if that is not past ``start``.
            size: Offsets per segment, at least 1.
            has_open_end: Whether ``end`` is only the queue's end for now, so that the range is never
                complete.
        """
        self.in_flight = 0
        """Number of pulls that were returned to be sent, and whose answer or failure is not reported yet."""
        self.buffered_bytes = 0
        """Bytes received and not yet taken."""
        self.takeable_bytes = 0
        """Bytes that ``take()`` would return now."""
        self._next_start = start
        self.end = end
        """End of the range; with an open end, the newest known end of the queue."""
        self._has_open_end = has_open_end
        self._size = size
        self._segments: dict[int, _Segment] = {}
        """Segments not yet taken completely, in queue order; ids count up."""
        self._idle: list[int] = []
        """Open segments without a pull in flight."""
        self._next_id = 0
        self._open_count = 0
        """Number of segments begun and not complete."""
        self._first_open = 0
        """Smallest id of an incomplete segment; ``_next_id`` when none is open."""
        self._taken_id = 0
        self.is_complete = not has_open_end and start >= end
        """Whether answers cover every offset of the range, even if the last chunks are not taken yet."""

    @property
    def reached(self) -> int:
        """Lowest offset without an answer; ``take()`` returns all messages below it."""
        return self._segments[self._first_open].next_offset if self._open_count else self._next_start

    def pulls(self, at_most: int, *, most_open: int, has_room: bool) -> list[SegmentPull]:
        """Return the pulls to send now, ascending.

        A segment has no further pull before :meth:`answered` or :meth:`lost` has reported the earlier one.

        Args:
            at_most: Maximum number of pulls to return.
            most_open: Maximum number of segments that may be open, at least 1.
            has_room: Whether later segments may run ahead; otherwise only the first open one is pulled.
        """
        pulls = self._idle_pulls(at_most, has_room) if self._idle else []
        while (
            len(pulls) < at_most
            and self._open_count < most_open
            and self._next_start < self.end
            and (has_room or not self._open_count)
        ):
            pulls.append(self._open_segment())
        self.in_flight += len(pulls)
        return pulls

    def pull_at_end(self) -> SegmentPull | None:
        """Return the pull that waits for more messages at an open end, to be sent now.

        Return None if the range's end is not open or not reached, or while pulls are in flight.
        """
        if self.in_flight or not self._has_open_end or self.reached < self.end:
            return None
        self.in_flight = 1
        if not self._open_count:
            return self._open_segment()
        segment = self._segments[self._first_open]
        if segment.end == self._next_start:
            # Extend the last segment, so that this pull may bring as many messages as any other one.
            segment.end = self._next_start = segment.next_offset + self._size
        self._idle.remove(self._first_open)
        return self._pull_again(self._first_open)

    def _idle_pulls(self, at_most: int, has_room: bool) -> list[SegmentPull]:
        self._idle.sort()
        sendable = [
            i
            for i in self._idle
            if (has_room or i == self._first_open) and self._segments[i].next_offset < self.end
        ][:at_most]
        self._idle = [i for i in self._idle if i not in sendable]
        return list(map(self._pull_again, sendable))

    def _pull_again(self, segment_id: int) -> SegmentPull:
        segment = self._segments[segment_id]
        segment.is_pulled = True
        return segment_id, segment.next_offset, segment.end

    def _open_segment(self) -> SegmentPull:
        start, segment_id = self._next_start, self._next_id
        end = start + self._size
        segment = _Segment(start, end if self._has_open_end else min(end, self.end))
        self._segments[segment_id] = segment
        self._next_start = segment.end
        self._next_id = segment_id + 1
        self._open_count += 1
        return segment_id, start, segment.end

    def answered(self, segment_id: int, asked: int, next_offset: int, body: PulledBody) -> None:
        """Move a segment on to ``next_offset`` with the messages that a pull from ``asked`` brought.

        Raises:
            ValueError: If the segment has no pull in flight.
        """
        segment = self._end_pull(segment_id)
        segment.next_offset = next_offset
        if body:
            segment.chunks.append(PullChunk(body, segment.end, asked))
            body_bytes = len(body)
            segment.body_bytes += body_bytes
            self.buffered_bytes += body_bytes
            if segment_id == self._first_open:
                self.takeable_bytes += body_bytes
        if next_offset < segment.end:
            self._idle.append(segment_id)
            return
        self._open_count -= 1
        if not self._open_count and self._next_start >= self.end and not self._has_open_end:
            self.is_complete = True
        if segment_id == self._first_open:
            self._find_first_open()

    def lost(self, segment_id: int) -> None:
        """Note that a pull failed: it is to be sent again.

        Raises:
            ValueError: If the segment has no pull in flight.
        """
        self._end_pull(segment_id)
        self._idle.append(segment_id)

    def _end_pull(self, segment_id: int) -> _Segment:
        segment = self._segments.get(segment_id)
        if segment is None or not segment.is_pulled:
            raise ValueError(f"Segment {segment_id} has no pull in flight; its answer was reported already.")
        segment.is_pulled = False
        self.in_flight -= 1
        return segment

    def _find_first_open(self) -> None:
        """Find the next open segment; segments in between were completed while the first was still open."""
        segments, candidate = self._segments, self._first_open
        while True:
            if not segments[candidate].chunks:
                # A filter may leave thousands of them empty.
                del segments[candidate]
            candidate += 1
            if candidate == self._next_id:
                break
            segment = segments[candidate]
            self.takeable_bytes += segment.body_bytes
            if segment.next_offset < segment.end:
                break
        self._first_open = candidate

    def take(self) -> list[PullChunk]:
        """Remove and return the next chunks in queue order.

        These are the chunks of the complete segments at the front, and those that the first incomplete
        segment has so far.
        """
        taken: list[PullChunk] = []
        segments = self._segments
        while self._taken_id < self._first_open:
            segment = segments.pop(self._taken_id, None)
            if segment is not None:
                taken += segment.chunks
            self._taken_id += 1
        first_open = segments.get(self._taken_id)
        if first_open is not None and first_open.chunks:
            taken += first_open.chunks
            first_open.chunks, first_open.body_bytes = [], 0
        self.buffered_bytes -= self.takeable_bytes
        self.takeable_bytes = 0
        return taken

    def move(self, keep: Callable[[PulledBody], PulledBody]) -> None:
        """Replace each buffered body by ``keep(body)``: the same bytes, perhaps in other memory."""
        if self.buffered_bytes:
            for segment in self._segments.values():
                segment.chunks = [chunk._replace(body=keep(chunk.body)) for chunk in segment.chunks]
