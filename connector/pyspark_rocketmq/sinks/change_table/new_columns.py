"""Columns that a source's table gets while a query runs, and how changes get all columns of the sink's table.

Columns are matched by name in each message. If a message has columns that the query did not have when it
started, the task writes their values into one column of text
(:mod:`~pyspark_rocketmq.sinks.change_table.carried`). So a batch may have rows with and without the new
columns; the table gets the same values whichever of these rows come first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pyspark_rocketmq.change_data.change import Operation
from pyspark_rocketmq.sinks.change_table.carried import arrow_type, carried_values, common_type, fitted
from pyspark_rocketmq.sinks.change_table.columns import (
    HIDDEN,
    MORE,
    PROBLEM,
    SCHEMA,
    is_reserved,
    value_column,
)
from pyspark_rocketmq.sinks.change_table.compaction import ABSENT, OPERATION

LENIENT, IGNORE, EXCEPTION = "lenient", "ignore", "exception"
"""Some of the values of the setting ``schema_changes``."""
KEEPING_COLUMNS: Final = frozenset({IGNORE, EXCEPTION})
"""Values of the setting ``schema_changes`` with which a table gets no new columns."""
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
"""Characters that Delta forbids in names."""


def name_problem(name: str, known: Iterable[str]) -> str | None:
    """Return why a table with the columns ``known`` cannot have a column of this name; None if it can."""
    if is_reserved(name):
        return (
            f"Column {name} has the name of a column that the change table adds itself. Rename column {name} "
            "in the source."
        )
    if _FORBIDDEN & set(name) or not name:
        return (
            f"Delta forbids the column's name {name!r}: a name must have a character, and none of spaces, "
            "tabs, line ends and ,;{}()=. Rename the column in the source."
        )
    other = next((each for each in known if each.lower() == name.lower() and each != name), None)
    if other is not None:
        return (
            f"Columns {other} and {name} differ only in case, which Delta does not distinguish. Rename the "
            "column of the change table, or that of the source."
        )
    return None


def columns_to_add(
    changes: Iterable[pa.Table], known: Sequence[str], keys: Collection[str] = ()
) -> dict[str, str]:
    """Return the columns that changes have and a table lacks: the type of each in Spark's DDL, by name.

    Columns with a :func:`name_problem` are left out.

    Args:
        changes: Changes as tasks wrote them.
        known: The columns of the table.
        keys: Columns of the key of a new table. A column whose name differs from one of these only in upper
            and lower case is left out.
    """
    types: dict[str, set[str]] = {}
    for rows in changes:
        for values in _carried_by(rows):
            for name, (type_, _) in values.items():
                if name not in known:
                    types.setdefault(name, set()).add(type_)
    added: dict[str, str] = {}
    for name in sorted(types, key=lambda each: (each not in keys, each)):
        if name_problem(name, [*known, *added]) is None:
            added[name] = common_type(types[name])
    return added


def fields_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema of columns, given by name with their types in Spark's DDL: ``{"size": "int"}``."""
    return pa.schema([pa.field(name, arrow_type(type_)) for name, type_ in columns.items()])


def _carried_by(rows: pa.Table) -> list[dict[str, tuple[str, Any]]]:
    """Return the type and value by column that each change has in ``MORE``; an empty list if all are null."""
    if MORE not in rows.column_names or rows[MORE].null_count == len(rows):
        return []
    return [{} if text is None else carried_values(text) for text in rows[MORE].to_pylist()]


@dataclass(frozen=True)
class WholeChanges:
    """Gives changes all columns of a table; in the files of tasks, they have only some of the columns."""

    schema: pa.Schema
    """The table's columns in Arrow's types."""
    types: Mapping[str, str]
    """Type of each of these columns, as Spark's DDL names it, by the column's name."""
    schema_changes: str = LENIENT
    """Treatment of values without a column in the table: see ``ChangeTable``."""

    def of(self, rows: pa.Table) -> pa.Table:
        """Return changes with all columns.

        If the table lacks a value's column, or the value does not fit the column, the change gets the reason
        in ``PROBLEM``. But with ``schema_changes='ignore'``, values without a column are dropped. Columns of
        which an update has no value are added to the update's ``ABSENT``, so the row keeps its values there.
        """
        missing = [
            field
            for field in self.schema
            if field.name not in HIDDEN and value_column(field.name) not in rows.column_names
        ]
        carried = _carried_by(rows)
        if not missing and not carried:
            return rows
        return self._completed(rows, missing, carried or [{}] * len(rows))

    def _completed(
        self, rows: pa.Table, missing: Sequence[pa.Field], carried: Sequence[Mapping[str, tuple[str, Any]]]
    ) -> pa.Table:
        values: dict[str, list[Any]] = {field.name: [None] * len(rows) for field in missing}
        # NaN is carried, too, although the rows have its column.
        own = {value_column(name): name for row in carried for name in row}
        values |= {own[column]: rows[column].to_pylist() for column in own.keys() & set(rows.column_names)}
        problems, absent, operations = (rows[name].to_pylist() for name in (PROBLEM, ABSENT, OPERATION))
        for number, row in enumerate(carried):
            problem = self._put_row(values, number, row)
            if problem is not None and problems[number] is None:
                problems[number] = problem
                if self.schema_changes == EXCEPTION:
                    operations[number], absent[number] = SCHEMA, None
            lacking = [field.name for field in missing if field.name not in row]
            if lacking and operations[number] == Operation.UPDATE:
                absent[number] = [*(absent[number] or ()), *lacking]
        for name, column in ((PROBLEM, problems), (ABSENT, absent), (OPERATION, operations)):
            rows = _with_column(rows, name, pa.array(column, rows.field(name).type))
        for name, column in values.items():
            rows = _with_column(rows, value_column(name), pa.array(column, self.schema.field(name).type))
        return rows

    def _put_row(
        self, values: Mapping[str, list[Any]], number: int, row: Mapping[str, tuple[str, Any]]
    ) -> str | None:
        """Put the values of a row into their columns; return why a value cannot be there, None if all can."""
        found = None
        for name, (type_, value) in row.items():
            if name in values or self.schema_changes != IGNORE:
                try:
                    self._put(values, number, name, type_, value)
                except ValueError as problem:
                    found = found or str(problem)
        return found

    def _put(self, values: Mapping[str, list[Any]], number: int, name: str, type_: str, value: Any) -> None:
        if name not in values:
            raise ValueError(name_problem(name, self.types) or self._lacks(name, type_))
        wanted = self.types[name]
        try:
            values[name][number] = value if type_ == wanted else fitted(value, wanted)
        except ValueError as error:
            raise ValueError(unfit(name, wanted, value, type_)) from error

    def _lacks(self, name: str, type_: str) -> str:
        if self.schema_changes == EXCEPTION:
            return unknown_column(name, type_)
        return f"The change table no longer has the column {name}."


def _with_column(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Return ``rows`` with these values in a column, which is added if it is not there."""
    if name not in rows.column_names:
        return rows.append_column(name, values)
    place = rows.column_names.index(name)
    return rows.set_column(place, name, values)


def unknown_column(name: str, type_: str) -> str:
    """Return the reason why the query ends at a column that the table lacks, with the remedy."""
    return (
        f"The source's table has the column {name} ({type_}), which the change table lacks. Add the column "
        "(ALTER TABLE ... ADD COLUMN), or have it added: schema_changes='lenient'"
    )


def unfit(name: str, column: str, value: Any, source: str | None) -> str:
    """Return why a column of a table cannot have a value, with the remedy."""
    now = f" The source's type is {source}." if source is not None and source != column else ""
    return (
        f"Column {name} is {column} and cannot hold {value!r:.80} ({type(value).__name__}) exactly.{now} "
        "Give the column another type: stop the query and rewrite the change table with the column cast to a "
        "wider type (in Spark: mode overwrite with overwriteSchema=true)."
    )
