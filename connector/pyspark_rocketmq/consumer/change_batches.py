"""Makes one record batch of the changes in many messages, which is faster than a row for each change.

The batch has exactly the rows that :class:`~pyspark_rocketmq.consumer.change_listener.ChangeListener` emits
for the messages one by one. If changes have anything unusual, such as a value that does not fit its column,
no batch is made, and the listener takes the messages one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.change_data.change import Operation
from pyspark_rocketmq.change_data.columnar import ChangeColumns
from pyspark_rocketmq.change_data.effects import order_of
from pyspark_rocketmq.change_data.times import MALFORMED, moment
from pyspark_rocketmq.consumer.fitted_values import FittedColumns
from pyspark_rocketmq.errors import OffsetError, SchemaError
from pyspark_rocketmq.listeners.row_validation import RowColumns
from pyspark_rocketmq.model import QUEUE_OFFSET, MessageExt
from pyspark_rocketmq.sinks.change_table.carried import carried
from pyspark_rocketmq.sinks.change_table.columns import MORE
from pyspark_rocketmq.sinks.change_table.compaction import OPERATION, POSITION
from pyspark_rocketmq.sinks.change_table.new_columns import name_problem
from pyspark_rocketmq.sinks.change_table.versions import MOMENT, TIME

_UNUSUAL: Final = (*MALFORMED, OffsetError, SchemaError, TypeError, pa.ArrowException)
"""Errors that show that a change is unusual, so that the listener has to take the messages one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBatches:
    """Makes rows of one table from changes that were read as columns; picklable."""

    rows: RowColumns
    """Columns of the batches."""
    fits: FittedColumns
    """Columns of the table, with the conversion of values to their types."""
    keys: Sequence[str]
    """Key columns of the table."""
    by_queue: bool
    """Whether changes are ordered only by their places in the queue, not by the source's log."""
    ignores_deletes: bool
    """Whether deletes in the source are not applied to the table."""
    schema_changes: str
    """Treatment of columns that the table did not have when the query started: see ``ChangeTable``."""

    def batch(self, changes: ChangeColumns, messages: Sequence[MessageExt]) -> pa.RecordBatch | None:
        """Return the rows of ``changes``, which were read from ``messages``, with their queue offsets.

        Return None if the messages have to be taken one by one.
        """
        new = set() if self.schema_changes == "ignore" else changes.columns.keys() - self.fits.columns.keys()
        try:
            return self._batch(changes, messages, new) if self._are_usual(changes, new) else None
        except _UNUSUAL:
            return None

    def _are_usual(self, changes: ChangeColumns, new: set[str]) -> bool:
        return (
            changes.columns.keys() >= self.fits.columns.keys()
            and (self.schema_changes != "exception" or not new)
            and all(name_problem(name, tuple(self.fits.columns)) is None for name in new)
            and not (self.ignores_deletes and Operation.DELETE in changes.operations)
            and (self.by_queue or None not in changes.positions)
        )

    def _batch(
        self, changes: ChangeColumns, messages: Sequence[MessageExt], new: set[str]
    ) -> pa.RecordBatch | None:
        """Return the rows; ``new`` are the columns that the table did not have when the query started."""
        changes.check_old_values()
        # Also where they are ignored: a row with an unreadable value is a bad change.
        others = {name: changes.values(name) for name in changes.columns.keys() - self.fits.columns.keys()}
        deleted = [operation is Operation.DELETE for operation in changes.operations]
        is_deleted = pa.array(deleted) if any(deleted) else None
        columns: dict[str, Any] = {}
        for name, column in self.fits.columns.items():
            values = self._values(name, changes)
            if name in self.keys:
                if values.null_count:
                    return None
            elif is_deleted is not None:
                values = pc.if_else(is_deleted, pa.scalar(None, values.type), values)
            columns[column] = values
        offsets = [messages[number].queue_offset for number in changes.messages]
        columns[QUEUE_OFFSET] = pa.array(offsets, pa.int64())
        columns[POSITION] = [
            order_of(None if self.by_queue else position, offset, number)
            for position, offset, number in zip(changes.positions, offsets, changes.numbers, strict=True)
        ]
        columns[OPERATION] = [operation.value for operation in changes.operations]
        times = [
            time or moment(messages[number].store_timestamp * 1000)
            for time, number in zip(changes.source_times, changes.messages, strict=True)
        ]
        columns[TIME] = pa.array(times, MOMENT)
        if new:
            columns[MORE] = _carried(changes, others)
        return self.rows.to_batch({**dict.fromkeys(self.rows.schema.names), **columns}, len(offsets))

    def _values(self, name: str, changes: ChangeColumns) -> pa.Array:
        column = changes.columns[name]
        if column.reads_plain_texts and column.type.spark == self.fits.types[name].simpleString():
            values = self.fits.array_of_texts(name, changes.texts(name))
            if values is not None:
                return values
        return self.fits.array(name, changes.values(name))


def _carried(changes: ChangeColumns, values: Mapping[str, Sequence[Any]]) -> list[str | None]:
    """Return, for each change, a text with the values of the columns that the table lacks; None for deletes.

    Raises:
        ValueError: If the text cannot hold a value.
    """
    types = {name: column.type for name, column in changes.columns.items()}
    return [
        None
        if operation is Operation.DELETE
        else carried({name: values[name][at] for name in row if name in values}, types)
        for at, (row, operation) in enumerate(zip(changes.rows, changes.operations, strict=True))
    ]
