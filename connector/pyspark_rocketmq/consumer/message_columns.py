"""Columns of a table that takes messages as they are, without a listener or a Python object per message.

See row K7 of ``docs/semantics.md``.

The body is binary or, if wanted, a string. A body that is not UTF-8 is then written as bytes into a separate
column: a bad record stops no queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.row_validation import OutputColumns, RowColumns
from pyspark_rocketmq.model import (
    DEFAULT_MESSAGE_COLUMNS,
    MESSAGE_COLUMNS,
    POSITION_COLUMNS,
    QUEUE_OFFSET,
    BodyType,
)
from pyspark_rocketmq.source.schema import spark_schema

BODY: Final = "body"
PROPERTIES: Final = "properties"
_ALWAYS_READ: Final = frozenset({"topic", QUEUE_OFFSET, "commitLogOffset", BODY, "storeTimestamp"})
"""Columns that the engine itself needs: to follow a range, limit its memory and remember its last message."""


@dataclass(frozen=True, kw_only=True)
class MessageColumns:
    """Columns of a table of messages, besides their position; picklable."""

    names: tuple[str, ...] = DEFAULT_MESSAGE_COLUMNS
    body_type: BodyType = BodyType.BINARY
    bad_record_column: str = "badRecord"
    """Name of the column with the bodies that are not UTF-8; the column exists only if :attr:`is_text`."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns to read, in the source's order: those of the table, and those that the engine needs."""
        return tuple(name for name in MESSAGE_COLUMNS if name in {*_ALWAYS_READ, *self.names})

    @property
    def is_text(self) -> bool:
        """Whether bodies become strings."""
        return self.body_type is BodyType.STRING and BODY in self.names

    @property
    def schema(self) -> StructType:
        """The columns as Spark's types."""
        source = spark_schema(consumer_mode=False, columns=self.names)
        if not self.is_text:
            return source
        fields = StructType()
        for field in source.fields:
            fields.add(field.name, StringType() if field.name == BODY else field.dataType)
        return fields.add(self.bad_record_column, BinaryType())

    @cached_property
    def row_columns(self) -> RowColumns:
        """Columns of the rows for the sink: the queue offset, then the columns of :attr:`schema`."""
        return OutputColumns.of(self.schema).rows

    def rows(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Return messages, which have the columns :attr:`needed`, as rows of :attr:`row_columns`."""
        columns = {name: messages.column(name) for name in (QUEUE_OFFSET, *self.names)}
        if self.is_text:
            columns[BODY], bad = texts_of(columns[BODY])
            columns[self.bad_record_column] = bad
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=self.row_columns.schema)

    def problems(self) -> list[str]:
        """Return the reasons why a table cannot have these columns; empty if it can."""
        known = [name for name in MESSAGE_COLUMNS if name not in POSITION_COLUMNS]
        problems = []
        unknown = [name for name in self.names if name not in known]
        if unknown:
            problems.append(
                f"columns names {', '.join(unknown)}, but a message has no such column. Choose from "
                f"{', '.join(known)}; every row has {', '.join(POSITION_COLUMNS)} anyway"
            )
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            problems.append(f"columns names {', '.join(twice)} twice; name each column once")
        if not self.names:
            problems.append("columns is empty; name one column or more, or leave it out for the default")
        if self.is_text and self.bad_record_column.lower() in _names_in_use(self.names):
            problems.append(
                f"bad_record_column is '{self.bad_record_column}', which is the name of another column; "
                "choose another name"
            )
        return problems

    def check(self) -> None:
        """Check that a table can have these columns.

        Raises:
            SchemaError: With all :meth:`problems`.
        """
        if problems := self.problems():
            raise SchemaError(f"register_message_columns(): {'; '.join(problems)}.")


def _names_in_use(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in (*names, *POSITION_COLUMNS, "ack")}


def texts_of(bodies: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return ``bodies`` as two columns: strings, for bodies that are UTF-8, and bytes, for all others.

    Each body is in one of the columns, and the other one has null there.
    """
    try:
        return bodies.cast(pa.string()), pa.nulls(len(bodies), pa.binary())
    except pa.ArrowInvalid:
        pairs = list(_each_text_of(bodies))
    texts, bad = zip(*pairs, strict=True)
    return pa.concat_arrays(texts), pa.concat_arrays(bad)


def _each_text_of(bodies: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield the results of :func:`texts_of` for slices of ``bodies``, in order.

    Call this only if at least one body is not UTF-8. Halving finds such bodies quickly: a half without any
    is converted as a whole.
    """
    if len(bodies) == 1:
        yield pa.nulls(1, pa.string()), bodies
        return
    middle = len(bodies) // 2
    yield texts_of(bodies[:middle])
    yield texts_of(bodies[middle:])
