"""Turns a row in a message of Canal or Maxwell into changes.

These programs send old values only of the columns that an update has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pyspark_rocketmq.change_data.change import Change, Operation, Position, SourceTable, SourceType
from pyspark_rocketmq.change_data.rules import HIDDEN_KEYS
from pyspark_rocketmq.change_data.times import Unreadable


class RowImage(NamedTuple):
    """One row of a message, decoded."""

    table: SourceTable
    operation: Operation
    key_columns: Sequence[str]
    row: Mapping[str, Any]
    """The row after the change or, for a delete, the row before it."""
    old: Mapping[str, Any]
    """Values before an update: at least those of the columns that it has changed."""
    position: Position | None
    absent: frozenset[str]
    types: Mapping[str, SourceType]
    source_time: datetime | None
    left_at: Position | None = None
    """Position of the delete of the old key if an update changes the key; None if it is ``position``."""

    def changes(self) -> Iterator[Change]:
        """Yield the change of the row; if an update changes the key, yield a delete and an insert.

        Raises:
            ValueError: If the row lacks a column of the key.
        """
        new_key = self._key(self.row)
        if self.operation is Operation.DELETE:
            yield self._change(Operation.DELETE, new_key, {}, self.row)
            return
        if self.operation is not Operation.UPDATE:
            yield self._change(self.operation, new_key, self.row, None)
            return
        old_key = {name: self.old.get(name, value) for name, value in new_key.items()}
        before = {**old_key, **self.old}
        if old_key != new_key:
            yield self._change(Operation.DELETE, old_key, {}, before, self.left_at)
            yield self._change(Operation.INSERT, new_key, self.row, None)
        else:
            yield self._change(self.operation, new_key, self.row, before)

    def _key(self, row: Mapping[str, Any]) -> dict[str, Any]:
        missing = [name for name in self.key_columns if name not in row]
        if missing:
            raise Unreadable(
                f"the row lacks {', '.join(missing)} of the key: set MySQL's binlog_row_image=FULL, or "
                "correct keys if the table has no such column"
            )
        return {name: row[name] for name in self.key_columns}

    def _change(
        self,
        operation: Operation,
        key: Mapping[str, Any],
        row: Mapping[str, Any],
        before: Mapping[str, Any] | None,
        position: Position | None = None,
    ) -> Change:
        return Change(
            table=self.table,
            operation=operation,
            key=key,
            row=_shown(row),
            before=None if before is None else _shown(before),
            position=self.position if position is None else position,
            absent=frozenset() if operation is Operation.DELETE else self.absent,
            types=self.types,
            source_time=self.source_time,
        )


def _shown(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if HIDDEN_KEYS.isdisjoint(row):
        return row
    return {name: value for name, value in row.items() if name not in HIDDEN_KEYS}


def key_columns(named: Sequence[str] | None, own: Sequence[str], row: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the key's columns: ``named``, else ``own``, else a hidden column of the row.

    ``named`` are the columns that the user has named; None if there are none. ``own`` are those that the
    message names. RDS and PolarDB-X add a hidden column to a table without a key. Without such a column,
    return no name.
    """
    if named is not None:
        return named
    return own or [name for name in row if name in HIDDEN_KEYS]
