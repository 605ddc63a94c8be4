"""What a user's orderly listener gets and gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt, MessageQueue


class ConsumeOrderlyContext:
    """One delivery's context (``ConsumeOrderlyContext`` of the Java client), made anew for each.

    Rows given to :meth:`emit` reach the sink only when the delivery that emitted them is acknowledged; they are
    dropped with it otherwise.
    """

    __slots__ = ("_column_set", "_columns", "_current", "_emitted", "auto_commit", "message_queue",
                 "suspend_current_queue_time_millis")  # fmt: skip

    def __init__(
        self,
        message_queue: MessageQueue,
        columns: Sequence[str],
        column_set: frozenset[str],
        first: MessageExt,
    ) -> None:
        self.message_queue = message_queue
        """The queue being consumed."""
        self.auto_commit = True
        """False: SUCCESS accumulates, COMMIT commits everything accumulated."""
        self.suspend_current_queue_time_millis = -1
        """Pause after SUSPEND or ROLLBACK, clamped to 10..30000 ms; -1 takes the consumer's default."""
        self._columns = columns
        self._column_set = column_set
        self._current = first
        self._emitted: list[tuple[Any, ...]] = []

    def emit(self, message: MessageExt | None = None, /, **columns: Any) -> None:
        """Add one output row; columns not given are null.

        The row belongs to ``message``; without it, to the message the listener's loop is at.

        Raises:
            SchemaError: If a column is not in the listener's output schema.
        """
        if not self._column_set.issuperset(columns):
            unknown = ", ".join(sorted(columns.keys() - self._column_set))
            raise SchemaError(
                f"emit() was given column(s) {unknown}, which the output schema does not have; "
                f"it has {', '.join(self._columns)}."
            )
        position = (self._current if message is None else message).queue_offset
        self._emitted.append((position, *map(columns.get, self._columns)))

    def take_emitted(self) -> list[tuple[Any, ...]]:
        """The engine's: rows of this delivery, each led by its message's queue offset."""
        emitted, self._emitted = self._emitted, []
        return emitted

    def follow(self, messages: Sequence[MessageExt]) -> Sequence[MessageExt]:
        """The engine's: ``messages`` as a sequence that tells this context which one a loop is at."""
        return messages if len(messages) == 1 else _Followed(messages, self)

    def at(self, message: MessageExt) -> None:
        """The engine's: be told which message a loop is at."""
        self._current = message


class _Followed(list[MessageExt]):
    """A list that tells the context which message a ``for`` loop is at."""

    def __init__(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> None:
        super().__init__(messages)
        self._context = context

    def __iter__(self) -> Iterator[MessageExt]:
        for message in super().__iter__():
            self._context.at(message)
            yield message


MessageListenerOrderly = Callable[[Sequence[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus | None]
"""Takes messages of one queue in ascending queue offset; None and an exception count as SUSPEND (row D5)."""
