"""Values that stores keep as strings: the messages that a queue's progress remembers, and retry counts.

A *generation* of a queue is a period in which each offset stands for only one message.

Each value has one codec. Only the code that stores a value, or sends it to another process, calls the codec;
all other code uses the value.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from pyspark_rocketmq.errors import DamagedOffsets

FactsT = TypeVar("FactsT")

_MOST_REMEMBERED: Final = 3
"""Maximum number of messages that are remembered of a queue."""
_FAR: Final = 64
"""Factor that decides which of two old messages is forgotten: the oldest one, if its distance from the newest
message is more than this many times the distance of the second oldest."""
MOST_SPANS: Final = 1000
"""Maximum number of spans that :class:`RetryCounts` stores, since every commit writes them again.

A few are usual, because the messages of a batch are given back together."""


class StoredValue(ABC, Generic[FactsT]):
    """Base of the values that stores keep as a string; the string is decoded at the value's first use.

    A store reads a thousand rows for a micro-batch, and most of their values are never used. A string that
    another program has damaged causes an error only where its value is needed. Elsewhere it is stored again
    as it was.

    Values with equal strings are equal. A value with an empty string is false. Values do not change.
    """

    __slots__ = ("_facts", "_text")

    def __init__(self, facts: FactsT | None = None, text: str | None = None) -> None:
        """Create the value of ``facts`` (its content) or of ``text`` (its stored form); by default empty."""
        self._facts = facts
        self._text = "" if facts is None and text is None else text

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Create the value that :meth:`to_text` has written; the string is read at the first use."""
        return cls(None, text)

    def to_text(self) -> str:
        """Return the text that stores keep; empty for an empty value."""
        text = self._text
        if text is None:
            text = self._text = self._encode(self._read())
        return text

    def _read(self) -> FactsT:
        facts = self._facts
        if facts is None:
            facts = self._facts = self._decode(self._text or "")
        return facts

    @staticmethod
    @abstractmethod
    def _encode(facts: Any) -> str:
        """Return the text of ``facts``."""

    @staticmethod
    @abstractmethod
    def _decode(text: str) -> Any:
        """Return the facts (the value's content) in a string.

        Raises:
            DamagedOffsets: If the text cannot be read.
        """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self is other or self.to_text() == other.to_text()

    def __hash__(self) -> int:
        return hash(self.to_text())

    def __bool__(self) -> bool:
        return self.to_text() != ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.from_text({self.to_text()!r})"

    def __reduce__(self) -> tuple[Callable[[str], Self], tuple[str]]:
        return self.from_text, (self.to_text(),)


def read_json(text: str, column: str, read: Callable[[Any], FactsT]) -> FactsT:
    """Parse the JSON text of a ``column`` of offset rows, and return what ``read`` makes of the content.

    Raises:
        DamagedOffsets: If the text is no JSON, or ``read`` refuses its content.
    """
    try:
        return read(json.loads(text))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise DamagedOffsets(column, text) from None


compact_json: Final = json.JSONEncoder(separators=(",", ":")).encode
"""Returns a value as JSON without spaces; ``json.dumps`` would create an encoder with each call."""


def integers_text(numbers: Iterable[int]) -> str:
    """Return integers as a JSON list without spaces, in a fraction of the encoder's time."""
    return f"[{','.join(map(str, numbers))}]"


class LastMessage(NamedTuple):
    """A message by offset, store time and place in the broker's log.

    A group remembers a message that it consumed or skipped in this form. Later this is compared with the
    message that the broker has at that offset by then. A difference shows that the queue's offsets have begun
    again, for example because the topic was created again.
    """

    queue_offset: int
    store_timestamp: int
    """Milliseconds since the epoch, by the clock of the broker that stored the message.

    0 if it is not known; -1 if the message is known to be lost."""
    commit_log_offset: int
    """Where the message begins in its broker's log; -1 if only the queue offset is known."""

    @classmethod
    def unknown(cls, queue_offset: int) -> Self:
        """Return a message of which only the offset is known, for a sink that does not store the message."""
        return cls(queue_offset, 0, -1)

    @classmethod
    def lost(cls, queue_offset: int) -> Self:
        """Return a message, known only by its offset, that was found to be beyond the queue's end.

        The loss is remembered because the queue may grow past that offset again, which hides it.
        """
        return cls(queue_offset, -1, -1)

    @property
    def is_known(self) -> bool:
        """Whether enough is known to distinguish the message from another one at its offset."""
        return self.commit_log_offset >= 0

    @property
    def is_lost(self) -> bool:
        """Whether the broker has lost this message: its queue was found to end before the message's offset.

        The message stays lost even if the queue has grown past that offset since.
        """
        return self.store_timestamp < 0


class RememberedMessages(StoredValue[tuple[LastMessage, ...]]):
    """The newest message that a group has consumed in a generation of a queue, and up to two earlier ones.

    A *generation* is a period in which each offset of the queue stands for only one message.

    Text: the three numbers of each :class:`LastMessage` in one JSON list, the newest message first.
    """

    __slots__ = ()

    @classmethod
    def of(cls, *messages: LastMessage | None) -> Self:
        """Create the value from ``messages``, the newest first; None is left out."""
        return cls(tuple(message for message in messages if message is not None))

    @property
    def messages(self) -> tuple[LastMessage, ...]:
        """The messages, newest first.

        Raises:
            DamagedOffsets: If the stored text cannot be read.
        """
        return self._read()

    @property
    def newest(self) -> LastMessage | None:
        """The newest message; None if there is none."""
        return next(iter(self.messages), None)

    @property
    def has_loss(self) -> bool:
        """Whether one of the messages is known to be lost: the queue was found to end before its offset."""
        return any(message.is_lost for message in self.messages)

    def is_behind(self, other: RememberedMessages) -> bool:
        """Return whether all of these messages are at lower offsets than the newest of ``other``.

        Return False if ``other`` is empty.
        """
        last, found = self.newest, other.newest
        return found is not None and (last is None or last.queue_offset < found.queue_offset)

    def with_newest_of(self, other: RememberedMessages) -> RememberedMessages:
        """Return these messages and the newest of ``other``, at most three, by descending offset.

        All must be of the same generation of the queue. An older message may be forgotten for the added one;
        the message with the highest offset is kept.
        """
        known, newest = self.messages, other.newest
        if newest is None or (known and newest == known[0]):
            return self
        if not known:
            return RememberedMessages((newest,))
        if newest.queue_offset < known[0].queue_offset:
            others = [each for each in known[1:] if each.queue_offset != newest.queue_offset]
            kept = sorted((newest, *others[: _MOST_REMEMBERED - 2]), reverse=True)
            return RememberedMessages((known[0], *kept))
        if newest.queue_offset == known[0].queue_offset:
            replaces = newest.is_known or newest.is_lost
            return RememberedMessages((newest, *known[1:])) if replaces else self
        return RememberedMessages(_thinned((newest, *known)))

    def with_passed(self, passed: RememberedMessages) -> RememberedMessages:
        """Return these messages with those of ``passed``, at most three, by descending offset.

        If there are more than three, the newest of all is kept, then those of ``passed``, then others of
        these messages. All must be of the same generation of the queue.

        Args:
            passed: Messages that a move of the group has passed: the one right before its new position, the
                last one before the generation's end, or both.
        """
        if passed.newest is None:
            return self
        known, found = self.messages, passed.messages
        if not known or found[0].queue_offset >= known[0].queue_offset:
            known, found = self.with_newest_of(passed).messages, found[1:]
        places = {each.queue_offset for each in found}
        others = [each for each in known[1:] if each.queue_offset not in places]
        kept = (*found, *others)[: _MOST_REMEMBERED - 1]
        return RememberedMessages((known[0], *sorted(kept, reverse=True)))

    @staticmethod
    def _encode(facts: tuple[LastMessage, ...]) -> str:
        return integers_text(chain.from_iterable(facts)) if facts else ""

    @staticmethod
    def _decode(text: str) -> tuple[LastMessage, ...]:
        if not text:
            return ()
        numbers = read_json(text, "last_message", lambda found: list(map(int, found)))
        if not numbers or len(numbers) % 3:
            raise DamagedOffsets("last_message", text)
        return tuple([LastMessage(*numbers[at : at + 3]) for at in range(0, len(numbers), 3)])


NO_MESSAGES: Final = RememberedMessages()


def _thinned(messages: tuple[LastMessage, ...]) -> tuple[LastMessage, ...]:
    """Return at most three messages: the newest two, and the oldest one unless it is too far back.

    In that case the third is the second oldest. An old message helps later, if the broker's log was replaced
    by another one, to find where the common part of both logs ends.
    """
    if len(messages) <= _MOST_REMEMBERED:
        return messages
    newest, before, next_one, oldest = messages
    distance = newest.queue_offset - next_one.queue_offset
    is_far = newest.queue_offset - oldest.queue_offset > _FAR * distance
    return newest, before, next_one if is_far else oldest


class RetrySpan(NamedTuple):
    """Consecutive messages of a queue that the listener gave back equally often."""

    start: int
    """First queue offset of the span."""
    end: int
    """End of the span, exclusive."""
    times: int


class RetryCounts(StoredValue[tuple[RetrySpan, ...]]):
    """How often the listener gave back messages of a queue, by spans of offsets.

    Text: a JSON list of ``[start, end, times]``. Only the value of :func:`trial_of` has a span with 0 times.
    """

    __slots__ = ()

    @classmethod
    def of(cls, spans: Iterable[RetrySpan], next_offset: int, times: int) -> Self:
        """Create the value for ``spans``; it is empty if only the message at ``next_offset`` was given back.

        In that case the number ``times``, which is stored beside this value, is enough, and the row stays
        short. If there are more than ``MOST_SPANS`` spans, the last ones are left out. Their messages are
        counted from 0 again, so they are delivered more often, and none becomes a dead letter early.

        Args:
            spans: Spans by ascending offset.
            next_offset: The queue's next offset.
            times: How often the message there was given back.
        """
        known = tuple(spans)
        return cls() if known == spans_of_first(next_offset, times) else cls(known[:MOST_SPANS])

    @property
    def spans(self) -> tuple[RetrySpan, ...]:
        """Spans by ascending offset.

        Raises:
            DamagedOffsets: If the stored text cannot be read.
        """
        return self._read()

    @staticmethod
    def _encode(facts: tuple[RetrySpan, ...]) -> str:
        return compact_json(facts)

    @staticmethod
    def _decode(text: str) -> tuple[RetrySpan, ...]:
        if not text:
            return ()
        return read_json(text, "put_back", lambda found: tuple(RetrySpan(*map(int, span)) for span in found))


NO_RETRIES: Final = RetryCounts()


def trial_of(next_offset: int) -> RetryCounts:
    """Return the value that marks a queue that stands still: its last range ended without progress.

    The reason is not known, so the message at ``next_offset`` counts as never given back. The queue's next
    range begins with only this message.
    """
    return RetryCounts((RetrySpan(next_offset, next_offset + 1, 0),))


def spans_of_first(next_offset: int, times: int) -> tuple[RetrySpan, ...]:
    """Return one span of only the message at ``next_offset``; none if ``times`` is 0."""
    return (RetrySpan(next_offset, next_offset + 1, times),) if times else ()
