"""Which pulls of one range are in flight, their answers back in queue order; which replica is asked.

Which pulls of one queue range are in flight, and their answers back in queue order.

A range ``[start, end)`` is cut into *segments*. Every open segment has one pull under way; the answer moves
the segment on to ``nextBeginOffset``, until it has reached its end. What this rests on:

1. An answer may hold fewer messages than asked for (64 asked, 32 or 8 given) or none at all (a filter). Only
   ``nextBeginOffset`` says how far the broker got; a short answer never means the end of the queue.
2. A filtered pull may scan far beyond the segment, and an inner batch may begin before the offset asked for.
   Hence every piece carries the two offsets between which its messages count; the others belong to a
   neighbour.
3. Answers come in any order, pieces leave in queue order.

The machine knows neither sockets nor time: the shell sends what ``requests()`` returns and reports the
result.

Which broker of a name the next pulls of one queue go to: its master, or a replica the master suggests.

A master whose backlog no longer fits its memory may suggest a replica (``slaveReadEnable``).  A replica may
lag, and it answers other codes than its master for an offset it does not have.  Hence:

1. Only a broker of the name whose address is known is followed, and only the suggestion of the broker now
   pulled from.
2. From a replica only messages count.  Whatever else it answers (19, 20, 21, an error, silence), the same
   pull goes to the master, whose word alone is final, and the replica is left alone for a while.
3. A replica that is preferred is pulled from without a suggestion, from the start and again after that while.

Source: ``PullMessageProcessor.composeResponseHeader``, ``PullAPIWrapper.updatePullFromWhichNode``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

from pyspark_rocketmq.model import PulledBody

MASTER_ID: Final = 0
AVOIDED_S: Final = 10.0
"""How long suggestions of a replica are not followed after it failed; a master would suggest it with every
answer."""


class PullFrom:
    """The choice for one queue; begins at the master, or at a preferred replica."""

    __slots__ = ("_avoided_until_s", "_broker_id", "_home_id", "_replica_ids")

    def __init__(self, replica_ids: Iterable[int], *, prefers_replica: bool = False) -> None:
        """Follow suggestions of ``replica_ids``, the others are not known; or prefer the first of them."""
        self._replica_ids = frozenset(replica_ids) - {MASTER_ID}
        self._home_id = min(self._replica_ids, default=MASTER_ID) if prefers_replica else MASTER_ID
        self._broker_id = self._home_id
        self._avoided_until_s = float("-inf")

    @property
    def broker_id(self) -> int:
        """Id of the broker to pull from now."""
        return self._broker_id

    @property
    def is_away(self) -> bool:
        """Whether a replica is preferred and the master is pulled from."""
        return self._home_id not in (self._broker_id, MASTER_ID)

    def suggested(self, by: int, broker_id: int, now_s: float) -> None:
        """An answer of broker ``by`` that brought the queue forward suggests ``broker_id``."""
        if self._home_id != MASTER_ID:
            if now_s >= self._avoided_until_s:
                self._broker_id = self._home_id
            return
        if by != self._broker_id or broker_id == by:
            return
        if broker_id == MASTER_ID:
            self._broker_id = MASTER_ID
        elif broker_id in self._replica_ids and now_s >= self._avoided_until_s:
            self._broker_id = broker_id

    def disappointed(self, by: int, now_s: float) -> bool:
        """Broker ``by`` did not bring the queue forward; whether it is a replica, so that the master is to be asked."""
        if by == MASTER_ID:
            return False
        self._broker_id = MASTER_ID
        self._avoided_until_s = now_s + AVOIDED_S
        return True


class PullStep(NamedTuple):
    """One pull to send now."""

    segment_id: int
    queue_offset: int
    max_msg_nums: int


class Piece(NamedTuple):
    """One answer's undecoded messages; those outside ``[start, limit)`` must be dropped."""

    body: PulledBody
    limit: int
    """End of the segment: messages at or past it come again with a later piece."""
    start: int
    """Queue offset asked for: an inner batch may begin earlier."""


class AnswerOutcome(Enum):
    """What an answer did to its segment."""

    ADVANCED = "ADVANCED"
    """The segment goes on from its new offset."""
    COMPLETED = "COMPLETED"
    """The segment has reached its end."""
    NO_PROGRESS = "NO_PROGRESS"
    """The broker stands where it stood: back off before sending the same step again."""


class _Segment:
    __slots__ = ("body_bytes", "end", "is_pulled", "next_offset", "pieces")

    def __init__(self, start: int, end: int) -> None:
        self.next_offset = start
        self.end = end
        self.is_pulled = True
        self.pieces: list[Piece] = []
        self.body_bytes = 0
        """Of the pieces."""


class PullWindow:
    """The pulls of one queue range: at most ``depth`` under way, answers handed out in queue order.

    Guarantee: the pieces of ``take()``, each cut to its ``[start, limit)``, hold exactly the messages of
    ``[start, end)`` that the broker returned, ascending and once, whatever the order of answers and failures.
    Not thread-safe.
    """

    __slots__ = (
        "_buffered_bytes",
        "_depth",
        "_end",
        "_first_open",
        "_idle",
        "_max_ahead_bytes",
        "_max_msg_nums",
        "_next_id",
        "_next_start",
        "_open_count",
        "_segment",
        "_segments",
        "_takeable_bytes",
        "_taken_id",
    )

    def __init__(
        self,
        start: int,
        end: int,
        *,
        segment: int,
        depth: int,
        max_msg_nums: int = 32,
        max_ahead_bytes: int,
    ) -> None:
        """Open nothing yet; ``requests()`` does.

        Args:
            start: First queue offset wanted.
            end: Exclusive end; ``end <= start`` is a range that is done.
            segment: Offsets per segment: the pull batch size without a filter, more (800) with one, because
                one filtered pull may scan that far.
            depth: Most pulls in flight.
            max_msg_nums: Most messages asked for by one pull.
            max_ahead_bytes: While this many bytes wait for ``take()``, only the first open segment goes on
                (without it nothing could ever be taken). Answers then in flight still add to it.
        """
        if segment < 1 or depth < 1 or max_msg_nums < 1:
            raise ValueError(
                "A pull window needs segment, depth and max_msg_nums of at least 1, "
                f"not segment={segment}, depth={depth}, max_msg_nums={max_msg_nums}."
            )
        self._end = end
        self._segment = segment
        self._depth = depth
        self._max_msg_nums = max_msg_nums
        self._max_ahead_bytes = max_ahead_bytes
        self._segments: dict[int, _Segment] = {}
        """Not yet taken wholly, in queue order; ids count up."""
        self._idle: list[int] = []
        """Open segments without a pull under way."""
        self._next_start = start
        self._next_id = 0
        self._open_count = 0
        """Segments begun and not complete."""
        self._first_open = 0
        """The smallest id not complete; ``_next_id`` when none is open."""
        self._taken_id = 0
        self._buffered_bytes = 0
        self._takeable_bytes = 0

    @property
    def is_pulled(self) -> bool:
        """Whether every answer of the range is here, taken or not."""
        return self._next_start >= self._end and not self._open_count

    @property
    def buffered_bytes(self) -> int:
        """Bytes answered and not yet taken."""
        return self._buffered_bytes

    @property
    def takeable_bytes(self) -> int:
        """Bytes that ``take()`` would give now."""
        return self._takeable_bytes

    def requests(self, at_most: int | None = None, *, may_run_ahead: bool = True) -> list[PullStep]:
        """The pulls to send now, ascending; each is given out once until it is answered or failed.

        Args:
            at_most: No more than so many; ``depth`` holds as well.
            may_run_ahead: False allows the first open segment only, as too many bytes ahead do.
        """
        has_room = may_run_ahead and self._buffered_bytes < self._max_ahead_bytes
        room = self._depth if at_most is None else at_most
        steps = self._idle_steps(has_room, room) if self._idle else []
        while (
            len(steps) < room
            and self._open_count < self._depth
            and self._next_start < self._end
            and (has_room or not self._open_count)
        ):
            steps.append(self._open_segment())
        return steps

    def answered(self, segment_id: int, next_begin_offset: int, body: PulledBody) -> AnswerOutcome:
        """Take the answer to the segment's pull; ``body`` is empty when no message matched.

        An answer whose ``next_begin_offset`` is not past the offset asked for is NO_PROGRESS; its body is not
        kept, for the same pull, which ``requests()`` gives out again, would bring it twice.

        Raises:
            ValueError: If the segment has no pull under way.
        """
        segment = self._end_pull(segment_id)
        asked = segment.next_offset
        if next_begin_offset <= asked:
            self._idle.append(segment_id)
            return AnswerOutcome.NO_PROGRESS
        segment.next_offset = next_begin_offset
        if body:
            segment.pieces.append(Piece(body, segment.end, asked))
            body_bytes = len(body)
            segment.body_bytes += body_bytes
            self._buffered_bytes += body_bytes
            if segment_id == self._first_open:
                self._takeable_bytes += body_bytes
        if next_begin_offset < segment.end:
            self._idle.append(segment_id)
            return AnswerOutcome.ADVANCED
        self._open_count -= 1
        if segment_id == self._first_open:
            self._find_first_open()
        return AnswerOutcome.COMPLETED

    def failed(self, segment_id: int) -> None:
        """The pull brought no answer: ``requests()`` gives the same step out again.

        Raises:
            ValueError: If the segment has no pull under way.
        """
        self._end_pull(segment_id)
        self._idle.append(segment_id)

    def take(self) -> list[Piece]:
        """All pieces that are next in queue order; a segment's only when all earlier ones are complete."""
        taken: list[Piece] = []
        segments = self._segments
        while self._taken_id < self._first_open:
            segment = segments.pop(self._taken_id, None)
            if segment is not None:
                taken += segment.pieces
            self._taken_id += 1
        first_open = segments.get(self._taken_id)
        if first_open is not None and first_open.pieces:
            taken += first_open.pieces
            first_open.pieces, first_open.body_bytes = [], 0
        self._buffered_bytes -= self._takeable_bytes
        self._takeable_bytes = 0
        return taken

    def move(self, keep: Callable[[PulledBody], PulledBody]) -> None:
        """Put ``keep(body)``, which has the same bytes, in the place of every body not taken."""
        if self._buffered_bytes:
            for segment in self._segments.values():
                segment.pieces = [piece._replace(body=keep(piece.body)) for piece in segment.pieces]

    def _idle_steps(self, has_room: bool, at_most: int) -> list[PullStep]:
        self._idle.sort()
        sendable = [i for i in self._idle if has_room or i == self._first_open][:at_most]
        self._idle = [i for i in self._idle if i not in sendable]
        steps = []
        for segment_id in sendable:
            segment = self._segments[segment_id]
            segment.is_pulled = True
            start = segment.next_offset
            steps.append(PullStep(segment_id, start, min(segment.end - start, self._max_msg_nums)))
        return steps

    def _open_segment(self) -> PullStep:
        segment_id = self._next_id
        start = self._next_start
        end = min(start + self._segment, self._end)
        self._next_start = end
        self._segments[segment_id] = _Segment(start, end)
        self._next_id = segment_id + 1
        self._open_count += 1
        return PullStep(segment_id, start, min(end - start, self._max_msg_nums))

    def _end_pull(self, segment_id: int) -> _Segment:
        segment = self._segments.get(segment_id)
        if segment is None or not segment.is_pulled:
            raise ValueError(f"Segment {segment_id} has no pull under way; its answer was reported already.")
        segment.is_pulled = False
        return segment

    def _find_first_open(self) -> None:
        """Move past the segments that were completed before the one in front of them."""
        candidate = self._first_open
        segments = self._segments
        while candidate < self._next_id:
            segment = segments[candidate]
            if candidate != self._first_open:
                self._takeable_bytes += segment.body_bytes
            if segment.next_offset < segment.end:
                break
            if not segment.pieces:
                # A filter may leave thousands of them empty.
                del segments[candidate]
            candidate += 1
        self._first_open = candidate
