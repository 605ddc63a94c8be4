"""A change of a row, in the form that every envelope (the reader of one program's messages) returns.

The *source* is the database whose changes the messages have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

_MOST_DIGITS: Final = 38
"""Maximum precision of Spark's decimals."""


class Operation(StrEnum):
    """Effect of a change on its row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    """Deletes all rows of the table that have a lower position. It has no key."""
    SNAPSHOT = "snapshot"
    """The row as a snapshot of the table has read it. It never replaces a change with a higher position."""


class Kind(StrEnum):
    """The kind of a column's values, as Spark names its type, but without precision and element type."""

    BOOLEAN = "boolean"
    BYTE = "tinyint"
    SHORT = "smallint"
    INT = "int"
    LONG = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    """A ``str``. Times of day, intervals, JSON and all types that Spark lacks are of this kind, too."""
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    """A ``datetime`` with a zone."""
    TIMESTAMP_NTZ = "timestamp_ntz"
    """A ``datetime`` without a zone."""
    ARRAY = "array"
    """A ``tuple``."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """The table in the source database to which a change belongs."""

    database: str
    schema: str | None
    """None where databases have no schemas (MySQL)."""
    name: str

    def __str__(self) -> str:
        return ".".join(part for part in (self.database, self.schema, self.name) if part)


@dataclass(frozen=True, slots=True)
class SourceType:
    """The type of a column in the source, as the message gives it; a type is never guessed from a value."""

    text: str
    """The type as the source names it: ``bigint(20) unsigned``, ``io.debezium.time.MicroTimestamp``."""
    kind: Kind
    precision: int | None = None
    """Number of digits of a decimal; None for a decimal without a maximum, and for other kinds."""
    scale: int | None = None
    """Number of a decimal's digits behind the point; None as for ``precision``."""
    element: SourceType | None = None
    """Type of an array's elements; None if it is unknown, and for other kinds."""

    @property
    def spark(self) -> str:
        """The Spark type that holds every value of this type, as DDL names it.

        A decimal that no Spark type can hold (more than 38 digits, or no maximum) is a string.
        """
        if self.kind is Kind.DECIMAL:
            if self.precision is None or self.scale is None:
                return "string"
            # PostgreSQL has numeric(2,-3), whole thousands, and numeric(3,5), thousandths at most.
            scale = max(self.scale, 0)
            precision = max(self.precision - min(self.scale, 0), scale)
            return f"decimal({precision},{scale})" if precision <= _MOST_DIGITS else "string"
        if self.kind is Kind.ARRAY and self.element is not None:
            return f"array<{self.element.spark}>"
        return self.kind.value


Position: TypeAlias = tuple[int, ...]
"""Place of a change in the change log of its source.

Positions of one table are compared as tuples. The module of the envelope documents the parts of a position;
all positions of a source have the same number of parts. Of changes with equal positions, rows of a snapshot
come first. The others are in the order of the queue: by their messages, and within a message by their number.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of one row, or a truncation.

    Values are exact: ``int``, ``Decimal``, ``float``, ``str``, ``bytes``, ``bool``, ``date``, ``datetime``
    (with a zone: a moment; without: what the clock showed), a ``tuple`` for an array, None for SQL's NULL.

    An update that changes the key is two changes: the delete of the old key, then an insert of the new one
    with the whole row, at the same position or a higher one. Either may reach a reader first, so a reader
    orders the changes of each key by position. If the source leaves out columns (``absent``), as MySQL does
    with MINIMAL row images, the insert lacks their values: only the stored row of the old key has them.
    """

    table: SourceTable
    operation: Operation
    key: Mapping[str, Any] = field(default_factory=dict)
    """Values of the key's columns, by name; empty for a truncation, and if the messages name no key."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The row after the change, with the columns that are known; empty for a delete and a truncation."""
    before: Mapping[str, Any] | None = None
    """The row before the change, with the columns that the source logs; None if there is none."""
    position: Position | None = None
    """Position in the source's log. None if the message has none.

    Changes without a position have only the order of their queue (``ChangeTable(order="queue")``). But a row
    of a snapshot without a position comes before all changes with a position.
    """
    absent: frozenset[str] = frozenset()
    """Columns of the table that the source has left out of ``row``: they keep their stored values.

    A source may leave out columns without naming them. So a column of the sink's table that is neither in
    ``row`` nor here keeps its stored value, too.
    """
    types: Mapping[str, SourceType] = field(default_factory=dict)
    """Types of the columns in the source, by name; empty if the messages have no types."""
    source_time: datetime | None = None
    """Time of the change in the source in UTC; None if unknown.

    It may be in whole seconds, so it gives no order.
    """

    def __post_init__(self) -> None:
        if self.operation is Operation.TRUNCATE and (self.key or self.row):
            raise ValueError(
                f"this Change for a truncation of {self.table} was created with a key or a row, but "
                "a truncation has no key and no row: leave both out"
            )
        if self.operation is Operation.DELETE and self.row:
            raise ValueError(
                f"this Change for a delete in {self.table} was created with a row, but there is no row "
                "after it: pass the old row as before"
            )
        both = self.absent & self.row.keys()
        if both:
            raise ValueError(
                f"column(s) {', '.join(sorted(both))} of {self.table} are in the row and absent; "
                "give each column in only one of the two"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A statement of the source that changes a schema.

    When the statement reaches a reader, older rows of other queues may still be unread, and newer ones may be
    read already.
    """

    table: SourceTable | None
    """The table that the statement is about. None if the envelope names none, as for a whole database."""
    statement: str
    """The statement's text; empty if the envelope has none."""
    kind: str = ""
    """The envelope's name of the kind of statement, in lower case: ``alter``, ``rename``, ``create`` …"""
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A message of a known kind that changes nothing: a heartbeat, a tombstone, the mark of a transaction."""

    reason: str
    """A short constant text."""


@dataclass(frozen=True, slots=True)
class BadChange:
    """A message, or a row in a message, that cannot be applied."""

    reason: str
    """The fault and its remedy. The caller adds the message's topic, queue and offset."""
    table: SourceTable | None = None


Decoded: TypeAlias = Change | SchemaChange | PassedOver | BadChange


@dataclass(frozen=True, slots=True)
class ChangeMessage:
    """The parts of a RocketMQ message that envelopes read."""

    body: bytes
    keys: str = ""
    """The message's KEYS: Debezium Server writes the row's key there."""
    properties: Mapping[str, str] = field(default_factory=dict)


class Envelope(Protocol):
    """Reads the messages of one program, such as Canal, without state: equal messages give equal changes."""

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        """Return the changes and other contents of a message, in their order; the result is never empty.

        A part that cannot be read becomes a :class:`BadChange`; no error is raised.
        """
        ...
