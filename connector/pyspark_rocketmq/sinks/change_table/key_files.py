"""Conditions on files, by which a reader of certain keys leaves out files that have none of these keys."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pyarrow as pa

from pyspark_rocketmq.delta.file_choice import ANY_ROW, MayHave, is_one_of
from pyspark_rocketmq.sinks.change_table.compaction import Key


def may_have_keys(keys: Collection[Key], columns: pa.Schema, stored: pa.Schema | None = None) -> MayHave:
    """Return a condition for ``rows_of_files`` that holds for each file with one of these keys.

    The condition tests the first column of the key for which files have exact bounds. If there is none, it
    holds for all files.

    Args:
        keys: Values of the key's columns.
        columns: The key's columns.
        stored: Columns of the files. A column that has another type there is not tested. None if all types
            are those of ``columns``.
    """
    return _may_have(lambda place, type_: pa.array([key[place] for key in keys], type_), columns, stored)


def may_have_keys_of(rows: pa.Table, columns: pa.Schema, stored: pa.Schema | None = None) -> MayHave:
    """Return a condition for ``rows_of_files`` that holds for each file with one of the keys in ``rows``.

    For the arguments see :func:`may_have_keys`.
    """
    return _may_have(
        lambda place, type_: rows[columns.names[place]].cast(type_).combine_chunks(), columns, stored
    )


def _may_have(
    values: Callable[[int, pa.DataType], pa.Array], columns: pa.Schema, stored: pa.Schema | None
) -> MayHave:
    for place, field in enumerate(columns):
        if _has_exact_bounds(field.type) and (stored is None or stored.field(field.name).type == field.type):
            return is_one_of(field.name, values(place, field.type))
    return ANY_ROW


def _has_exact_bounds(type_: pa.DataType) -> bool:
    """Return whether delta-rs reads the bounds of a file's values of this type exactly.

    False for floats and decimals: delta-rs reads the bounds of decimals as floats, or as 64-bit integers, and
    rounds or cuts off digits.
    """
    return not (pa.types.is_decimal(type_) or pa.types.is_floating(type_))
