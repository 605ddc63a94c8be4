"""Columns of the rows that tasks write for a change table: one row for each change.

Tasks import this module; it must not load delta-rs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import pyarrow as pa

from pyspark_rocketmq.change_data.effects import OTHERS
from pyspark_rocketmq.sinks.change_table.compaction import ABSENT, DELETED, EFFECT, OLDER, OPERATION, POSITION
from pyspark_rocketmq.sinks.change_table.versions import HISTORY_FIELDS, MOMENT, TIME
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS

PROBLEM: Final = "__problem"
"""Column with the reason why a change cannot be applied; null for one that can."""
BODY: Final = "__body"
"""Column with the body of a message, in the row of its first change that cannot be applied; else null."""
MORE: Final = "__more"
"""Column for values that have no column in the row, as a text of ``carried.carried``; null for most changes.

They are the values of columns that the query did not have when it started. NaN is put here, too, since it
would become null in its own column.
"""
SCHEMA: Final = "schema"
"""Operation of a row that stands for a change of the source's schema, and ends the query.

``PROBLEM`` has the reason. If the row stands for an SQL statement that dropped or renamed columns, ``ABSENT``
has their names, and the query ends only if the table has one of these columns.
"""
TARGET: Final = "__target"
"""Column with the folder of the table that gets a change; empty if unknown. Only for ``ChangeTables``."""
KEYS: Final = "__keys"
"""Column with the names of the key's columns as a JSON list. Only for ``ChangeTables``.

Null for a truncation, and for a change that cannot be applied.
"""
DAY: Final = "__day"
"""Column with the day on which a row was recorded, in a table beside a change table."""
SOURCE: Final = "__source"
"""Column with the source's table, as a text of ``routes.Routed.source``. Only for ``ChangeTables``."""
HIDDEN: Final = frozenset({POSITION, OLDER, DELETED, *(field.name for field in HISTORY_FIELDS)})
"""Columns that a change table may have besides those of the source's table."""
_RESERVED: Final = frozenset(name.lower() for name in {*HIDDEN, OPERATION, ABSENT, TIME, EFFECT, DAY, OTHERS})
"""Names, in lower case, that no column of the source may have, since the sink uses them itself.

The sink adds columns with these names to a table, or to changes while they are applied. One of the names,
``effects.OTHERS``, stands for several columns in texts of ``OLDER``.
"""
_PREFIX: Final = "of_"
"""Prefix of the table's columns in rows of changes, so that their names differ from other columns' there."""
ONLY_COLUMN: Final = "target"
"""The only column of the table with the watermarks of ``ChangeTables``, which has no rows."""


def change_columns(table: Iterable[pa.Field]) -> list[pa.Field]:
    """Return the columns of a change's row, except those that identify its message.

    Args:
        table: Columns of the change table. Each of them that is not ``HIDDEN`` has a column with a prefix.
    """
    return [
        pa.field(POSITION, pa.string()),
        pa.field(OPERATION, pa.string()),
        pa.field(ABSENT, pa.list_(pa.string())),
        pa.field(TIME, MOMENT),
        pa.field(PROBLEM, pa.string()),
        pa.field(BODY, pa.binary()),
        pa.field(MORE, pa.string()),
        *(pa.field(value_column(field.name), field.type) for field in table if field.name not in HIDDEN),
    ]


def is_reserved(name: str) -> bool:
    """Return whether the sink itself uses this name, so that no column may have it.

    Upper and lower case count as equal.
    """
    return name.lower() in _RESERVED


def routed_columns() -> pa.Schema:
    """Return the columns of a change for ``ChangeTables``, besides its message's position."""
    more = [pa.field(name, pa.string()) for name in (TARGET, KEYS, SOURCE)]
    return pa.schema([*change_columns(()), *more])


def change_schema(table: Iterable[pa.Field]) -> pa.Schema:
    """Return all columns of a change, with its message's position; ``table`` has the table's columns."""
    return pa.schema([*POSITION_FIELDS, *change_columns(table)])


def value_column(name: str) -> str:
    """Return the name that a table's column has in rows of changes: ``of_`` followed by its own name."""
    return f"{_PREFIX}{name}"


def keyed_rows(changes: pa.Table, columns: Collection[str]) -> pa.Table:
    """Return changes with few columns: place, operation, absent columns, time, and those in ``columns``.

    The columns of the table get back their own names, without the prefix ``of_``.
    """
    chosen = changes.select([POSITION, OPERATION, ABSENT, TIME, *map(value_column, columns)])
    return chosen.rename_columns([POSITION, OPERATION, ABSENT, TIME, *columns])
