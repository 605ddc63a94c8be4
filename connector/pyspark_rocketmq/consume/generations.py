"""Decides where a queue's next generation begins: when its log is not the one that was consumed.  Pure.

A *generation* is one of the logs that a queue has had. It ends when the queue's topic is deleted and created
again, or when the queue's broker loses the end of its log: other messages then have the same offsets. The
queue's bounds do not show this, because the new log may have grown past the old offsets. So the queue's row
in the offset store remembers the newest message consumed, and a few before it: the queue offset of each, its
place in the broker's log, and its store time. Master and replicas share these numbers, and no other message
at this offset has them. If a group begins at, or is set to, an offset after stored messages, the row
remembers the last message that the group skipped. The sink also keeps the newest message consumed, because
the sink may be ahead of the row.

**Where the logs differ** (:func:`find_change`) depends only on the log:

1. If the newest remembered message still exists, or has expired and cannot be checked, this is the same log.
2. Otherwise the logs are the same up to the newest remembered message that is still there, and differ at the
   oldest remembered message that is gone, or earlier. Between these two a message is new if its place in the
   broker's log *or* its store time is larger than that of the missing message. A topic created again comes
   after everything in its broker's log, whatever time the clock showed. A promoted slave writes to the places
   that it lacked, at a later time.
3. Where neither number separates old from new, everything counts as new: repeated messages cost less than
   lost ones.

**Where the group goes on** (:func:`next_generation`) depends on the group's position, too. If the position is
below the change, the old generation goes on up to the change. If the position is at or above the change, the
next generation begins: at the change, or where an operator or another client has put the group since. The
next generation also begins at the change if another client has put the group below the change.

A planner checks a queue after a claim or a reset, and when its bounds look suspicious. A log may also change
unnoticed: between two plans, or between a plan and its pulls. So a task compares the last consumed message
(:func:`witnesses`): it pulls this message again with the range after it, or looks it up first where such a
pull would not show it (``ReadRange.looked_up``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from pyspark_rocketmq.model import QueueBounds
from pyspark_rocketmq.stored_values import (
    LastMessage,
    RememberedMessages,
    StoredValue,
    compact_json,
    read_json,
)

MOST_PULLED_AGAIN: Final = 800
"""Maximum number of offsets before a range that are pulled again."""


class Witnesses(NamedTuple):
    """Messages consumed in a queue's generation; with them a task checks that the log is still the same."""

    before: LastMessage | None = None
    """The nearest message before the task's range; None if unknown."""
    ahead: LastMessage | None = None
    """The newest message, if it is at or after the range's start, because the group was set back or its sink
    is ahead; otherwise None."""


NO_WITNESSES: Final = Witnesses()


def shows_another_log(consumed: LastMessage, found: LastMessage | None, bounds: QueueBounds) -> bool:
    """Return whether the message ``consumed`` is gone: replaced by another, or after the queue's end.

    ``found`` is the message now at the offset of ``consumed``. It is None if no message could be read there,
    which shows nothing.
    """
    return consumed.queue_offset >= bounds.max_offset or found not in {None, consumed}


class NewestStored(NamedTuple):
    """The last message of a queue when a batch read was planned."""

    queue_offset: int
    stored_at_ms: int
    """When it was stored, in milliseconds since the epoch."""

    @classmethod
    def of(cls, bounds: QueueBounds) -> NewestStored | None:
        """Return the last message within ``bounds``; None if there is none, or its time is not known."""
        is_known = bounds.max_offset > bounds.min_offset and bounds.last_update_timestamp > 0
        return cls(bounds.max_offset - 1, bounds.last_update_timestamp) if is_known else None


def shows_later_log(newest: NewestStored, found: LastMessage | None, bounds: QueueBounds) -> bool:
    """Return whether the queue has another log than when ``newest`` was its last message.

    ``found`` is the message now at the offset of ``newest``; None if no message could be read there. The
    result is true if ``found`` was stored later than ``newest``, or if the queue ends before that offset.
    """
    is_later = found is not None and found.store_timestamp > newest.stored_at_ms
    return is_later or newest.queue_offset >= bounds.max_offset


def witnesses(
    messages: Iterable[LastMessage], start: int, *, first: int, end: int | None = None
) -> Witnesses:
    """Return the consumed messages with which a task checks that a range still belongs to the same log.

    Args:
        messages: The messages that the queue's row in the offset store remembers.
        start: Where the range begins.
        first: The queue's smallest offset.
        end: Where the generation ends, if that is known: offsets from there on now have other messages.
    """
    known = [
        each
        for each in messages
        if each.is_known and first <= each.queue_offset and (end is None or each.queue_offset < end)
    ]
    before = max((each for each in known if each.queue_offset < start), default=None)
    newest = max(known, default=None)
    return Witnesses(before, newest if newest is not None and newest.queue_offset >= start else None)


class Meetings(NamedTuple):
    """Content of :class:`Boundaries`: offsets where generations (successive logs) of a queue meet."""

    behind: tuple[tuple[int, RememberedMessages], ...] = ()
    """Pairs for the generation in the queue's offset row and for earlier ones, newest first. A pair has the
    offset at which the generation began, and the remembered messages of the generation before it."""
    ahead: int | None = None
    """Offset at which the next generation begins, if the position was set back below this offset; else None.
    """


class Boundaries(StoredValue[Meetings]):
    """Offsets at which the generation in a queue's offset row, and its neighbours, begin.

    A *generation* is one of the logs that a queue has had. If the position is set back below such an offset,
    it belongs to an earlier generation: the messages between the position and the offset were consumed in
    that generation, and sinks have their rows under its number. The offsets of earlier generations are kept
    until a message of the row's generation is consumed.

    Text: JSON ``[[[offset, text of the messages], …], ahead]``.

    Raises:
        DamagedOffsets: By every property and method, if the stored text cannot be read.
    """

    __slots__ = ()

    @property
    def behind(self) -> tuple[tuple[int, RememberedMessages], ...]:
        """Where the row's generation and earlier ones began, each with the messages of the generation before.

        The newest generation comes first; see :class:`Meetings`.
        """
        return self._read().behind

    @property
    def ahead(self) -> int | None:
        """Offset at which the next generation begins; None unless the position was set back below it."""
        return self._read().ahead

    def begun(self, at: int, messages: RememberedMessages) -> Boundaries:
        """Return the boundaries of the next generation, which begins at offset ``at``.

        ``messages`` are those that the row remembers of the generation that ends.
        """
        return Boundaries(Meetings(((at, messages), *self.behind)))

    def consumed_in(self) -> Boundaries:
        """Return the boundaries to keep after a message was consumed: only ``ahead``; ``behind`` is empty.

        From then on any lower position, too, belongs to the row's generation.
        """
        return Boundaries(self._read()._replace(behind=())) if self.behind else self

    def back_to(self, position: int) -> tuple[int, Boundaries, RememberedMessages | None]:
        """Return how many generations before the row's a position belongs to, and what the row must store.

        The row must store the returned boundaries, and remember the returned messages. If the position
        belongs to the row's generation, the number is 0 and the messages are None.
        """
        behind = self.behind
        passed = [at for at, _ in behind]
        count = next((number for number, at in enumerate(passed) if position >= at), len(passed))
        if not count:
            return 0, self, None
        ahead = min((*passed[:count], *([] if self.ahead is None else [self.ahead])))
        return count, Boundaries(Meetings(behind[count:], ahead)), behind[count - 1][1]

    @staticmethod
    def _encode(facts: Meetings) -> str:
        if facts == Meetings():
            return ""
        return compact_json([[(at, messages.to_text()) for at, messages in facts.behind], facts.ahead])

    @staticmethod
    def _decode(text: str) -> Meetings:
        return read_json(text, "boundaries", _meetings) if text else Meetings()


def _meetings(found: Any) -> Meetings:
    behind, ahead = found
    return Meetings(
        tuple((int(at), RememberedMessages.from_text(str(text))) for at, text in behind),
        None if ahead is None else int(ahead),
    )


NO_BOUNDARIES: Final = Boundaries()


class LogChange(NamedTuple):
    """Point from which on a queue's log differs from the one that was consumed."""

    offset: int
    """First offset of the other log; messages below it are the old ones."""
    is_certain: bool = True
    """False if it is known that messages are lost, but not from where on."""


Search = Generator[int, LastMessage | None, LogChange | None]
"""Generator that yields offsets, receives the message at each, and returns the change of the log.

It receives None if there is no message at the offset. It returns None if the log is the same.
"""


def find_change(messages: Sequence[LastMessage], bounds: QueueBounds) -> Search:
    """Return a ``Search`` for the offset from which on a queue's log differs from the consumed one.

    ``messages`` are those of the consumed log that the queue's row remembers, sorted newest first. ``bounds``
    are the queue's present bounds.
    """
    low, lost, there = bounds.min_offset, None, None
    for message in messages:
        if message.queue_offset < bounds.min_offset:
            break
        is_gone = message.queue_offset >= bounds.max_offset or message.is_lost
        found = None if is_gone else (yield message.queue_offset)
        if found == message:
            low = message.queue_offset + 1
            break
        # A message that cannot be decoded, or has only a known offset, proves something only if it is gone.
        shows = is_gone or (found is not None and message.is_known)
        if shows and (message.is_known or lost is None):
            lost, there = message, found
    if lost is None:
        return None
    if not lost.is_known:
        return LogChange(low, is_certain=False)
    return LogChange((yield from _first_new(lost, there, low, bounds)))


def change_found(
    messages: Sequence[LastMessage], bounds: QueueBounds, message_at: Callable[[int], LastMessage | None]
) -> LogChange | None:
    """Run :func:`find_change`, and return the change that it finds; None if the log is the same.

    ``message_at`` returns the message that is now at an offset. Any error that it raises is raised here.
    """
    search = find_change(messages, bounds)
    try:
        place = next(search)
        while True:
            place = search.send(message_at(place))
    except StopIteration as end:
        change: LogChange | None = end.value
        return change


def _first_new(
    lost: LastMessage, there: LastMessage | None, low: int, bounds: QueueBounds
) -> Generator[int, LastMessage | None, int]:
    """Return the first offset from ``low`` on with a message that came after ``lost``.

    ``there`` is the message now at the offset of ``lost``; None if the queue ends before that offset.
    """
    high = min(lost.queue_offset, bounds.max_offset)
    if low >= high:
        return low
    if there is not None:
        if not _came_after(there, lost):
            return low
    else:
        newest = yield high - 1
        if newest is not None and not _came_after(newest, lost):
            return high
        high -= 1
    while low < high:
        middle = (low + high) // 2
        found = yield middle
        if found is None or _came_after(found, lost):
            high = middle
        else:
            low = middle + 1
    return low


def _came_after(message: LastMessage, other: LastMessage) -> bool:
    return (
        message.commit_log_offset > other.commit_log_offset or message.store_timestamp > other.store_timestamp
    )


class Standing(NamedTuple):
    """Position of a group in a queue, as the queue's row in the offset store has it."""

    next_offset: int
    messages: tuple[LastMessage, ...]
    """The messages that the row remembers, newest first."""
    was_reset: bool = False
    """Whether the last change of the row was an operator's."""
    was_followed: bool = False
    """Whether the position was taken from the queue's broker, where another client had stored it."""

    @property
    def last(self) -> LastMessage | None:
        """The newest message consumed in this generation, or the last one skipped at its beginning."""
        return self.messages[0] if self.messages else None

    @property
    def is_in_place(self) -> bool:
        """Whether the row remembers the message right before the position."""
        return any(message.queue_offset + 1 == self.next_offset for message in self.messages)

    def place_to_look_at(self) -> int:
        """Return the offset whose message shows whether the queue still has the log that was consumed.

        This is the offset of the newest remembered message. If no message is remembered, it is the offset
        before the position.
        """
        return max(0, self.next_offset - 1) if self.last is None else self.last.queue_offset


class NextGeneration(NamedTuple):
    """Continuation of a queue whose log has changed."""

    next_offset: int
    """Where the next generation begins."""
    is_later: bool = False
    """Whether the group has not reached this generation yet: until then the old one goes on."""
    is_wanted: bool = False
    """Whether somebody has moved the group to ``next_offset`` since the change, so that nothing is lost."""
    is_certain: bool = True
    """False if it is known that messages are lost, but not from where on."""
    boundary: int | None = None
    """Where the logs differ; None if no remembered message shows it."""


def next_generation(
    standing: Standing, bounds: QueueBounds, change: LogChange | None
) -> NextGeneration | None:
    """Return where the queue's next generation begins; None if no generation after the present one is known.

    A generation is one of the logs that a queue has had.

    Args:
        standing: Position in the stored row.
        bounds: The queue's bounds at its broker.
        change: Result of :func:`find_change`: where the log differs; None if no remembered message shows a
            difference.
    """
    position = standing.next_offset
    within = min(max(position, bounds.min_offset), bounds.max_offset)
    if change is None:
        if position <= bounds.max_offset or standing.was_reset:
            return None
        # A filter had passed over the messages that were lost.
        end = bounds.max_offset if standing.last is None else standing.last.queue_offset + 1
        return NextGeneration(min(max(end, bounds.min_offset), bounds.max_offset))
    start, is_certain = change
    if standing.was_followed:
        # A position beyond the change comes from a client that knows the new log; others are of the old log.
        is_after = start < position <= bounds.max_offset
        is_at_first = start == position == bounds.min_offset
        return NextGeneration(
            max(start, within) if is_after else start,
            is_wanted=is_after or is_at_first,
            is_certain=is_certain,
            boundary=start,
        )
    if position < start:
        return NextGeneration(start, is_later=True, is_certain=is_certain, boundary=start)
    if standing.was_reset:
        return NextGeneration(within, is_wanted=True, boundary=start)
    return NextGeneration(start, is_certain=is_certain, boundary=start)
