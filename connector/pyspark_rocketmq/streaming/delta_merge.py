"""What a batch brings for a merge: its newest row of each key.

The batch's rows pass through the driver, for delta-rs merges there: made for micro-batches, not for a backfill of
millions at once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.streaming.delta_files import NULL_PARTITION, WrittenFile, is_folder_name

logger = logging.getLogger(__name__)

_POSITION = ("topic", "brokerName", "queueId", "queueOffset")
_ROW = "__row"


def newest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key: of one queue the one of the highest queue offset, and of a message the one emitted last.

    Messages of one key belong into one queue; between queues there is no order, and the one that sorts last wins. A key
    with a null in it is equal to none, so all its rows stay.
    """
    for name in keys:
        index = rows.schema.get_field_index(name)
        if pa.types.is_floating(rows.schema.field(index).type):
            # Arrow has -0.0 for another key than 0.0, and delta-rs for the same one.
            plain = pc.if_else(pc.equal(rows.column(index), 0.0), 0.0, rows.column(index))
            rows = rows.set_column(index, rows.schema.field(index), plain.cast(rows.schema.field(index).type))
    in_order = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _POSITION]))
    numbered = in_order.select(list(keys)).append_column(_ROW, pa.array(np.arange(len(rows))))
    whole = numbered.drop_null()
    last = whole.group_by(list(keys)).aggregate([(_ROW, "max")])[f"{_ROW}_max"].combine_chunks()
    without_key = pc.invert(pc.is_in(numbered[_ROW], value_set=whole[_ROW].combine_chunks()))
    return in_order.take(pa.concat_arrays([last, pc.indices_nonzero(without_key).cast(pa.int64())]).sort())


def with_blanks(rows: pa.Table, columns: Iterable[str]) -> tuple[pa.Table, list[str]]:
    """The rows with "" where one of these partition columns has a text that the table keeps as null; columns that have such.

    Delta has no empty text as a partition's value, and delta-rs none that is the name of the folder of rows without one.
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
    """Refuse partition values that are too long for the name of a folder here.

    Raises:
        SchemaError: Naming column and value.
    """
    for name in partition_by:
        for value in rows.column(name).cast(pa.string()).unique().to_pylist():
            if value is not None and not is_folder_name(f"{name}={quote(value, safe='')}"):
                raise SchemaError(
                    f"A row has {value[:40]!r}… ({len(value)} characters) in partition column {name!r}, which is too long for the name "
                    "of a folder: local file systems take 255 bytes, URL-encoded. A merge cannot write it; partition the table by "
                    "another column, or shorten the value."
                )


def predicate(keys: Iterable[str], source: str, target: str, blank: Collection[str] = ()) -> str:
    """Rows of one key; a key with a null in it is equal to none, and its rows are always added.

    In the columns ``blank`` the source has "" for what is null in the target.
    """
    return " AND ".join(
        f"coalesce({target}.{quoted(name)}, '') = {source}.{quoted(name)}"
        if name in blank
        else f"{target}.{quoted(name)} = {source}.{quoted(name)}"
        for name in keys
    )


def quoted(name: str) -> str:
    """A column's name in an expression."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def read_rows(
    files: Iterable[WrittenFile], schema: pa.Schema, filesystem: pafs.FileSystem, folder: str
) -> pa.Table:
    """The rows of files without partitions, with the columns of ``schema``."""
    stored = [
        pq.read_table(f"{folder}/{file.path}", filesystem=filesystem, partitioning=None) for file in files
    ]
    return pa.concat_tables(
        [schema.empty_table(), *(table.select(schema.names).cast(schema) for table in stored)]
    )


def remove_files(files: Iterable[WrittenFile], filesystem: pafs.FileSystem, folder: str) -> None:
    """Remove what tasks wrote and the table does not have; VACUUM finds what cannot be removed now."""
    for file in files:
        try:
            filesystem.delete_file(f"{folder}/{file.path}")
        except OSError:
            logger.info("file of a merged batch left for VACUUM path=%s", file.path, exc_info=True)
