"""What a batch brings for a merge: its newest row of each key.

The batch's rows pass through the driver, for delta-rs merges there: made for micro-batches, not for a backfill of
millions at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pyspark_rocketmq.streaming.delta_files import WrittenFile

logger = logging.getLogger(__name__)

_POSITION = ("topic", "brokerName", "queueId", "queueOffset")
_ROW = "__row"


def newest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key: of one queue the one of the highest queue offset, and of a message the one emitted last.

    Messages of one key belong into one queue; between queues there is no order, and the one that sorts last wins.
    """
    in_order = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _POSITION]))
    numbered = in_order.select(list(keys)).append_column(_ROW, pa.array(np.arange(len(rows))))
    last = numbered.group_by(list(keys)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    return in_order.take(last.sort())


def predicate(keys: Iterable[str], source: str, target: str) -> str:
    """Rows of one key; a key with a null in it is equal to none, and its rows are always added."""
    return " AND ".join(f"{target}.{quoted(name)} = {source}.{quoted(name)}" for name in keys)


def quoted(name: str) -> str:
    """A column's name in an expression."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def read_rows(
    files: Iterable[WrittenFile], schema: pa.Schema, filesystem: pafs.FileSystem, folder: str
) -> pa.Table:
    """The rows of the files, with the columns of ``schema``; partition columns are in the files' names only."""
    return pa.concat_tables(
        [schema.empty_table(), *(_read_file(file, schema, filesystem, folder) for file in files)]
    )


def remove_files(files: Iterable[WrittenFile], filesystem: pafs.FileSystem, folder: str) -> None:
    """Remove what tasks wrote and the table does not have; VACUUM finds what cannot be removed now."""
    for file in files:
        try:
            filesystem.delete_file(f"{folder}/{file.path}")
        except OSError:
            logger.info("file of a merged batch left for VACUUM path=%s", file.path, exc_info=True)


def _read_file(file: WrittenFile, schema: pa.Schema, filesystem: pafs.FileSystem, folder: str) -> pa.Table:
    stored = pq.read_table(f"{folder}/{file.path}", filesystem=filesystem, partitioning=None)
    columns = [
        pa.repeat(pa.scalar(file.partition_values[field.name], pa.string()).cast(field.type), len(stored))
        if field.name in file.partition_values
        else stored[field.name].cast(field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
