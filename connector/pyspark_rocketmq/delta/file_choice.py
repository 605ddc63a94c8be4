"""Chooses the files of a table that may have certain rows, by the statistics in its log, and reads them.

A file's statistics are its number of rows, and the number of nulls and the bounds of its columns. delta-rs
returns the statistics as columns of Arrow, so a condition is tested for all files at the same time. delta-rs'
own data set is slower: it first makes an expression for each file, which takes seconds for some thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from pyspark_rocketmq.delta.commit import is_below
from pyspark_rocketmq.delta.paths import local_path

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_READ_FEATURES: Final = frozenset({"timestampNtz"})
"""Reader features that a table may have; with any other, delta-rs' data set reads all its files."""
_TIME_UNIT_US: Final = 1_000
"""Unit, in microseconds, to which writers round down the bounds of times, even upper bounds."""
_COLUMNS_WITH_STATISTICS: Final = 32
"""Number of a table's first columns for which every writer has statistics by default.

Each column within a struct counts as one; see :func:`_width`.
"""
_CHOICE_OF_COLUMNS: Final = "delta.dataSkipping"
"""Beginning of the names of properties that choose the columns with statistics; not all writers obey them."""


@dataclass(frozen=True, slots=True)
class MayHave:
    """A condition on rows that is tested for whole files: may a file have a row that meets it?"""

    test: Callable[[ListedFiles], pa.Array]
    """Function that returns the answer for each file; null if the file's statistics do not show it."""

    def __and__(self, other: MayHave) -> MayHave:
        return MayHave(lambda files: pc.and_kleene(self.test(files), other.test(files)))

    def __or__(self, other: MayHave) -> MayHave:
        return MayHave(lambda files: pc.or_kleene(self.test(files), other.test(files)))


ANY_ROW: Final = MayHave(lambda files: pa.nulls(len(files), pa.bool_()))
"""The condition that each row meets."""


def has_null(name: str) -> MayHave:
    """Return the condition that a column is null."""
    return MayHave(lambda files: pc.greater(files.null_counts(name), 0))


def has_value(name: str) -> MayHave:
    """Return the condition that a column is not null."""
    return MayHave(lambda files: pc.less(files.null_counts(name), files.row_counts))


def has_counted(name: str) -> MayHave:
    """Return the condition that a row's file has the column ``name``.

    A file that was written before the column was added lacks it. Such a file has statistics, but no count of
    the column's nulls. A missing count proves this only if every file that has both the column and statistics
    counts the nulls (:meth:`ListedFiles.count_nulls_of`). Otherwise any file may have the column.
    """

    def test(files: ListedFiles) -> pa.Array:
        is_older = pc.and_(pc.is_valid(files.row_counts), pc.is_null(files.null_counts(name)))
        return pc.if_else(pc.and_(is_older, files.count_nulls_of(name)), False, None)

    return MayHave(test)


def is_at_least(name: str, value: Any) -> MayHave:
    """Return the condition that a column's value is ``value`` or higher."""

    def test(files: ListedFiles) -> pa.Array:
        _, highest = files.bounds(name)
        if pa.types.is_null(highest.type):
            return highest.cast(pa.bool_())
        return pc.greater_equal(highest, pa.scalar(value, highest.type))

    return has_value(name) & MayHave(test)


def is_one_of(name: str, values: pa.Array) -> MayHave:
    """Return the condition that a column has one of these values; null equals null."""
    ordered = _ordered(values)
    among = has_value(name) & MayHave(lambda files: _any_within(ordered, values.type, *files.bounds(name)))
    return among | has_null(name) if values.null_count else among


def _ordered(values: pa.Array) -> np.ndarray[Any, Any]:
    return np.sort(values.drop_null().to_numpy(zero_copy_only=False))


def _any_within(
    values: np.ndarray[Any, Any], type_: pa.DataType, lowest: pa.Array, highest: pa.Array
) -> pa.Array:
    """Return for each pair of bounds whether one of the sorted ``values`` lies between them.

    The result for a pair is null if one of its bounds is unknown or of another type.
    """
    nothing = pa.nulls(len(lowest), pa.bool_())
    if lowest.type != type_:
        return nothing
    is_known = pc.and_(pc.is_valid(lowest), pc.is_valid(highest))
    low, high = (bound.filter(is_known).to_numpy(zero_copy_only=False) for bound in (lowest, highest))
    found = np.searchsorted(values, high, "right") > np.searchsorted(values, low, "left")
    return pc.replace_with_mask(nothing, is_known, pa.array(found, pa.bool_()))


class ListedFiles:
    """The files of one version of a table, with their statistics."""

    def __init__(self, table: DeltaTable) -> None:
        """List the files of the version that ``table`` is at."""
        # from_stream, because pa.table() loads pandas to see whether its argument is a DataFrame.
        rows = pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all().combine_chunks()
        self._rows = {name: _whole(rows[name]) for name in rows.column_names}
        self._count = len(rows)
        self.row_counts: Final = self._rows["num_records"]
        """Number of rows of each file; null if unknown."""
        self.paths: Final[Sequence[str]] = self._rows["path"].to_pylist()
        """Paths as the log has them: URL-encoded."""
        self.sizes: Final[Sequence[int]] = self._rows["size_bytes"].to_pylist()
        self._counted: Final = _counted_columns(table)

    def __len__(self) -> int:
        return self._count

    def null_counts(self, name: str) -> pa.Array:
        """Return the number of nulls in a column of each file; null if unknown."""
        partition = self._field("partition", name)
        if partition is not None:
            return pc.if_else(pc.is_null(partition), self.row_counts, 0)
        found = self._field("null_count", name)
        return pa.nulls(self._count, pa.int64()) if found is None else found

    def count_nulls_of(self, name: str) -> bool:
        """Return whether every file that has the column ``name`` and statistics counts the column's nulls.

        Return False if this is unknown.
        """
        is_partition = self._field("partition", name) is not None
        return is_partition or (name in self._counted and self._field("null_count", name) is not None)

    def bounds(self, name: str) -> tuple[pa.Array, pa.Array]:
        """Return a lower and an upper bound of a column's values for each file; null if unknown."""
        partition = self._field("partition", name)
        if partition is not None:
            return partition, partition
        lowest, highest = self._field("min", name), self._field("max", name)
        if lowest is None or highest is None:
            return (pa.nulls(self._count),) * 2
        return lowest, _above_cut(highest)

    def partition(self, number: int) -> dict[str, pa.Scalar]:
        """Return a file's partition values by column; ``number`` is its index in :attr:`paths`."""
        values = self._rows.get("partition")
        return {} if values is None else dict(values[number].items())

    def chosen(self, may_have: MayHave) -> Iterator[int]:
        """Yield the index in :attr:`paths` of each file that may have a row which meets a condition.

        A file whose statistics do not show this is yielded, too.
        """
        for number, is_chosen in enumerate(may_have.test(self).to_pylist()):
            if is_chosen is not False:
                yield number

    def _field(self, kind: str, name: str) -> pa.Array | None:
        struct = self._rows.get(kind)
        if struct is None or struct.type.get_field_index(name) < 0:
            return None
        return pc.struct_field(struct, [struct.type.get_field_index(name)])


def _counted_columns(table: DeltaTable) -> frozenset[str]:
    """Return the columns whose nulls every writer counts; none if a property chooses the columns."""
    metadata = table.metadata()
    if any(name.startswith(_CHOICE_OF_COLUMNS) for name in metadata.configuration):
        return frozenset()
    counted, place = set(), 0
    for field in pa.schema(table.schema().to_arrow()):
        if field.name not in metadata.partition_columns:
            place += _width(field.type)
            if place <= _COLUMNS_WITH_STATISTICS:
                counted.add(field.name)
    return frozenset(counted)


def _width(type_: pa.DataType) -> int:
    """Return 1 for a column; for a struct, the number of columns within it, also within its inner structs."""
    return sum(_width(field.type) for field in type_) if pa.types.is_struct(type_) else 1


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _above_cut(highest: pa.Array) -> pa.Array:
    """Return true upper bounds for the ``highest`` values in the statistics.

    For times the bound is 1 ms higher, because writers cut off the microseconds. It is null if that
    overflows.
    """
    if not pa.types.is_timestamp(highest.type):
        return highest
    unit = pa.scalar(_TIME_UNIT_US, pa.duration("us"))
    wider = pc.add(highest, unit)
    return pc.if_else(pc.less(wider, highest), pa.scalar(None, wider.type), wider)


def rows_of_files(table: DeltaTable, columns: Sequence[str], may_have: MayHave) -> Iterator[pa.Table]:
    """Yield all rows of those files that, by their statistics, may have rows which meet ``may_have``.

    The rows themselves are not filtered; the caller has to do it. Arrow's own filter cannot be used, because
    in files that delta-rs wrote in a MERGE strings have the type "view", which Arrow does not compare with
    ordinary strings.

    If the table has other features than this module supports, or files outside its folder, delta-rs' data set
    reads the rows of all files, or raises an error.

    Raises:
        DeltaError, OSError: If the storage does not answer.
    """
    fragments = _chosen_fragments(table, may_have) if _is_plain(table) else None
    schema = pa.schema(table.schema().to_arrow())
    for fragment in _all_fragments(table) if fragments is None else fragments:
        for batch in fragment.to_batches(schema=schema, columns=list(columns)):
            yield pa.Table.from_batches([batch])


def _is_plain(table: DeltaTable) -> bool:
    """Return whether the table's files hold its rows unchanged.

    They do if the table has no column mapping, and no reader features except those that this module knows.
    """
    is_mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    return not is_mapped and _READ_FEATURES.issuperset(table.protocol().reader_features or ())


def _all_fragments(table: DeltaTable) -> Iterator[ds.Fragment]:
    dataset = table.to_pyarrow_dataset(parquet_read_options=_parquet_options())
    yield from dataset.get_fragments()


def _parquet_options() -> ds.ParquetReadOptions:
    from pyarrow.dataset import ParquetReadOptions

    # In nanoseconds, which is Arrow's unit for Spark's INT96, there are no years after 2262.
    return ParquetReadOptions(coerce_int96_timestamp_unit="us")


def _chosen_fragments(table: DeltaTable, may_have: MayHave) -> list[ds.Fragment] | None:
    """Return the files that may have rows which meet a condition.

    Return None if any file of the table is outside the table's folder.
    """
    from pyarrow.dataset import ParquetFileFormat, ParquetFragmentScanOptions

    files = ListedFiles(table)
    if not all(map(is_below, files.paths)):
        return None
    chosen = [(number, unquote(files.paths[number])) for number in files.chosen(may_have)]
    if not chosen:
        return []
    format_ = ParquetFileFormat(
        read_options=_parquet_options(),
        default_fragment_scan_options=ParquetFragmentScanOptions(pre_buffer=True),
    )
    filesystem = _filesystem(table, {path: files.sizes[number] for number, path in chosen})
    return [
        format_.make_fragment(path, filesystem, _has_values(files.partition(number)))
        for number, path in chosen
    ]


def _filesystem(table: DeltaTable, sizes: dict[str, int]) -> fs.FileSystem:
    folder = local_path(table.table_uri)
    if folder is not None:
        return fs.SubTreeFileSystem(folder, fs.LocalFileSystem())
    # This is how delta-rs' own data set reaches the storage.
    handler = DeltaStorageHandler.from_table(table._table, table._storage_options, sizes)  # noqa: SLF001
    return fs.PyFileSystem(handler)


def _has_values(partition: dict[str, pa.Scalar]) -> ds.Expression | None:
    """Return an expression that is true for rows with these values of the partition columns.

    Files do not store partition columns, so Arrow takes their values from this expression. Return None if the
    table has no partition columns.
    """
    import pyarrow.dataset as ds

    terms = [
        ds.field(name) == value if value.is_valid else ds.field(name).is_null()
        for name, value in partition.items()
    ]
    return reduce(lambda one, other: one & other, terms) if terms else None
