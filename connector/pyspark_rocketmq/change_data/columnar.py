"""The changes of many messages together, as columns.

Columns save the objects for each change and each row. To make these objects is most of the cost of reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from pyspark_rocketmq.change_data.change import Decoded, Operation, Position, SourceTable
from pyspark_rocketmq.change_data.rules import Column
from pyspark_rocketmq.change_data.times import Unreadable

_TEXTS: Final = frozenset({str, type(None)})
"""Classes of the values that a column of texts may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumns:
    """Changes of consecutive messages to rows of one table, all with the same columns.

    Each change is an insert, a delete, or an update that keeps the row's key, and its message has the whole
    row. The lists have an item for each change, in the order of the messages and of the rows in a message.

    If a value turns out to be unreadable, the caller takes the changes from ``contents`` instead.
    """

    table: SourceTable
    columns: Mapping[str, Column[str]]
    """All columns of the rows, by name."""
    rows: Sequence[Mapping[str, Any]]
    """The row after each change or, for a delete, the row before it. Values are as the message has them."""
    old: Mapping[str, Sequence[Any]]
    """Values before updates, by column, not in the order of the rows. See :meth:`check_old_values`."""
    messages: Sequence[int]
    """Number of each change's message, from 0, among all messages that were passed to ``runs``."""
    numbers: Sequence[int]
    """Number of each change in its message, from 0."""
    operations: Sequence[Operation]
    positions: Sequence[Position | None]
    """Position of each change, as in ``Change``."""
    source_times: Sequence[datetime | None]
    """Time of each change in the source, as in ``Change``."""
    contents: Iterator[Sequence[Decoded]]
    """Contents of each message, as ``Envelope.decode`` returns them; each is decoded when it is taken."""

    def texts(self, name: str) -> list[str | None]:
        """Return the values of a column as they are in the messages.

        Raises:
            ValueError: If a value is neither a text nor null.
        """
        return _only_texts([row[name] for row in self.rows])

    def values(self, name: str) -> list[Any]:
        """Return the values of a column, decoded.

        Raises:
            ValueError, ArithmeticError: If a value cannot be decoded.
        """
        return _decoded(self.columns[name], self.texts(name))

    def check_old_values(self) -> None:
        """Check that the values before updates can be decoded.

        Raises:
            ValueError, ArithmeticError: If a value cannot be decoded.
        """
        for name, texts in self.old.items():
            _decoded(self.columns[name], _only_texts(texts))


Run: TypeAlias = "tuple[range, ChangeColumns | Sequence[Sequence[Decoded]]]"
"""Consecutive messages, by their numbers from 0, and their changes as columns.

If columns would save nothing, the second part is not columns but a list with the contents of each message, as
``Envelope.decode`` returns them.
"""


def _only_texts(values: Sequence[Any]) -> list[str | None]:
    if not _TEXTS.issuperset(map(type, values)):
        raise Unreadable("a value is neither a text nor null")
    return list(values)


def _decoded(column: Column[str], texts: Sequence[str | None]) -> list[Any]:
    decode = column.decode
    return [None if text is None else decode(text) for text in texts]
