"""Rows that are merged into a Delta table by a key, through delta-rs.

The rows pass through the memory of this process.  This is meant for micro-batches, not for a backfill of
millions at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.table import TableMerger

from pyspark_rocketmq.delta.commit import NO_POST_COMMIT_HOOKS
from pyspark_rocketmq.delta.files import NULL_PARTITION, is_folder_name
from pyspark_rocketmq.errors import SchemaError

_ROW = "__row"
SOURCE: Final = "source"
"""Name of the merged rows in the SQL of a MERGE."""
TARGET: Final = "target"
"""Name of the table in the SQL of a MERGE."""


def merge_rows(
    table: DeltaTable,
    rows: pa.Table,
    keys: Sequence[str],
    columns: Sequence[str],
    *,
    order: Sequence[str],
    partition_by: Sequence[str],
    is_local: bool,
    properties: CommitProperties,
) -> None:
    """Merge the newest row of each key into the table, on top of the version that ``table`` is at.

    If the table has a row with the key, the ``columns`` of that row are updated; otherwise a row with these
    ``columns`` is added.  A key that contains a null equals no other key, so its rows are always added.  For
    ``order`` see :func:`newest_rows`.

    Raises:
        SchemaError: If a partition value is too long for the name of a local folder.
        DeltaError, OSError: If the commit failed, or if its outcome is unknown.
    """
    if is_local:
        check_folders(rows, partition_by)
    rows, blank = with_blanks(rows, [name for name in keys if name in partition_by])
    newest = newest_rows(rows, keys, order).select(list(columns))
    merger, values = begin_merge(table, newest, columns, predicate(keys, blank), properties)
    merger.when_matched_update(values).when_not_matched_insert(values).execute()


def begin_merge(
    table: DeltaTable,
    source: pa.Table | pa.RecordBatchReader,
    columns: Iterable[str],
    condition: str,
    properties: CommitProperties,
) -> tuple[TableMerger, dict[str, str]]:
    """Begin a MERGE, in whose SQL the merged rows are ``SOURCE`` and the table is ``TARGET``.

    Args:
        table: The table, at the version on which the MERGE is based.
        source: The rows to merge.
        columns: The columns of ``source`` that the table gets.
        condition: SQL that is true for a merged row and the row of the table that belongs to it.
        properties: Metadata of the commit.

    Returns:
        The MERGE, to which the caller adds actions (update, insert, delete), and the SQL of each column's new
        value for these.
    """
    merger = table.merge(
        source,
        condition,
        source_alias=SOURCE,
        target_alias=TARGET,
        commit_properties=properties,
        post_commithook_properties=NO_POST_COMMIT_HOOKS,
    )
    return merger, {quoted(name): f"{SOURCE}.{quoted(name)}" for name in columns}


def newest_rows(rows: pa.Table, keys: Sequence[str], order: Sequence[str]) -> pa.Table:
    """Return the newest row of each key: the last one when rows are sorted by the columns ``order``.

    Of rows that are equal in the columns ``order``, the last one in ``rows`` is the newest. A key that
    contains a null equals no other key, so all its rows are kept.
    """
    for name in keys:
        index = rows.schema.get_field_index(name)
        if pa.types.is_floating(rows.schema.field(index).type):
            # -0.0 and 0.0 are different keys for Arrow, and the same key for delta-rs.
            plain = pc.if_else(pc.equal(rows.column(index), 0.0), 0.0, rows.column(index))
            rows = rows.set_column(index, rows.schema.field(index), plain.cast(rows.schema.field(index).type))
    # Only these columns are sorted: Arrow cannot take() from a column of more than 2 GiB.
    places = pc.sort_indices(rows.select(list(order)), sort_keys=[(name, "ascending") for name in order])
    numbered = rows.select(list(keys)).take(places).append_column(_ROW, pa.array(np.arange(len(rows))))
    whole = numbered.drop_null()
    last = whole.group_by(list(keys)).aggregate([(_ROW, "max")])[f"{_ROW}_max"].combine_chunks()
    without_key = pc.invert(pc.is_in(numbered[_ROW], value_set=whole[_ROW].combine_chunks()))
    # Combine the chunks: if there are none, indices_nonzero of Arrow before 26 crashes the process.
    without_key = without_key.combine_chunks()
    newest = places.take(pa.concat_arrays([last, pc.indices_nonzero(without_key).cast(pa.int64())]))
    is_newest = np.zeros(len(rows), np.bool_)
    is_newest[newest.to_numpy(zero_copy_only=False)] = True
    return rows.filter(pa.array(is_newest))


def with_blanks(rows: pa.Table, columns: Iterable[str]) -> tuple[pa.Table, list[str]]:
    """Replace ``__HIVE_DEFAULT_PARTITION__`` in partition columns by ""; the table stores both as null.

    Return the rows, and the columns that had ``__HIVE_DEFAULT_PARTITION__`` or an empty string, for
    :func:`predicate`.

    Delta cannot store an empty string as a partition value. delta-rs cannot store
    ``__HIVE_DEFAULT_PARTITION__``, because that is also the name of the folder for null.
    """
    blank = []
    for name in columns:
        index = rows.schema.get_field_index(name)
        column = rows.column(index)
        if not pa.types.is_string(column.type):
            continue
        is_blank = pc.is_in(column, value_set=pa.array(["", NULL_PARTITION]))
        if pc.any(is_blank).as_py():
            blank.append(name)
            rows = rows.set_column(index, rows.schema.field(index), pc.if_else(is_blank, "", column))
    return rows, blank


def check_folders(rows: pa.Table, partition_by: Iterable[str]) -> None:
    """Refuse partition values that are too long for the name of a local folder.

    Raises:
        SchemaError: If a value is too long; the error names column and value.
    """
    for name in partition_by:
        for value in rows.column(name).cast(pa.string()).unique().to_pylist():
            if value is not None and not is_folder_name(f"{name}={quote(value, safe='')}"):
                raise SchemaError(
                    f"A row has {value[:40]!r}… ({len(value)} characters) in partition column {name!r}, "
                    "which is too long for the name of a folder: local file systems take 255 bytes, "
                    "URL-encoded. A merge cannot write it; partition the table by another column, or shorten "
                    "the value."
                )


def predicate(keys: Iterable[str], blank: Collection[str] = ()) -> str:
    """Return the condition of a MERGE for rows with the same key.

    A key that contains a null equals no other key, so its rows are always added. In the columns ``blank``, a
    null in the table matches "" in the merged rows.
    """
    return " AND ".join(
        f"coalesce({TARGET}.{quoted(name)}, '') = {SOURCE}.{quoted(name)}"
        if name in blank
        else f"{TARGET}.{quoted(name)} = {SOURCE}.{quoted(name)}"
        for name in keys
    )


def quoted(name: str) -> str:
    """Return a column's name in double quotes, for delta-rs' SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
