"""The changes of a batch, which tasks have written into files: they are checked, then read by key.

A large batch is divided by its keys into *shares*; only one share is in memory at a time. The rows for the
MERGE are then in a temporary file, so they are not in memory as a whole, either.

A *place* is where a change comes in the order of its table's changes (``effects.Order``). It contains the
change's *position* in the source's log, a list of numbers, if the message has one.
"""

from __future__ import annotations

import errno
import logging
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from operator import and_
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.change_data.change import Operation
from pyspark_rocketmq.change_data.effects import LOWEST, Order, parts_in
from pyspark_rocketmq.change_data.routes import SOURCE_DATABASE, SOURCE_TABLE
from pyspark_rocketmq.delta.commit import NO_POST_COMMIT_HOOKS, CommitNote
from pyspark_rocketmq.delta.ddl import type_ddl
from pyspark_rocketmq.delta.file_choice import is_one_of, rows_of_files
from pyspark_rocketmq.delta.merge import TARGET, quoted
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.table import highest_text, sql_literal
from pyspark_rocketmq.display import counted, masked
from pyspark_rocketmq.errors import SinkConflict
from pyspark_rocketmq.model import POSITION_COLUMNS, MessageQueue
from pyspark_rocketmq.sinks.change_table.change_files import ChangeRows
from pyspark_rocketmq.sinks.change_table.columns import HIDDEN, PROBLEM, SCHEMA, keyed_rows
from pyspark_rocketmq.sinks.change_table.compaction import (
    ABSENT,
    OPERATION,
    POSITION,
    Key,
    TableColumns,
    keys_of,
    share_of,
)
from pyspark_rocketmq.sinks.change_table.new_columns import (
    KEEPING_COLUMNS,
    LENIENT,
    WholeChanges,
    columns_to_add,
    fields_of,
)
from pyspark_rocketmq.sinks.change_table.side_tables import BAD_CHANGES, BadChanges, RecentRows
from pyspark_rocketmq.sinks.change_table.versions import TIME

logger = logging.getLogger(__name__)

_ROWS_OF_A_SHARE: Final = 250_000
"""Maximum number of changes, approximately, that are in memory at the same time."""
_BYTES_OF_A_SHARE: Final = 512 << 20
"""Maximum size of these changes, approximately. A column must stay below 2 GiB, or Arrow does not sort it."""
_SHOWN: Final = 3
_INVALID: Final = "failed validation check"
"""Part of delta-rs' error for rows with null in a column that cannot be null."""
_TRUNCATE: Final = Operation.TRUNCATE.value
_SNAPSHOT: Final = Operation.SNAPSHOT.value
_ROWS: Final = frozenset({Operation.INSERT.value, Operation.UPDATE.value, _SNAPSHOT})
"""Operations whose changes have the columns of a row."""
_SOURCES: Final = (SOURCE_DATABASE, SOURCE_TABLE)
FINAL: Final = frozenset({_TRUNCATE, SCHEMA})
"""Operations that end the query if they cannot be applied, even with ``bad_changes="keep"``."""
_COLUMNS, _FROM_FIRST_ROW = "rocketmq.columns", "first row"
"""Property, and its value, of a table whose first row had no columns besides the key's.

Without the property, a table with only these columns counts as one that has had no row yet.
"""


@dataclass(frozen=True, kw_only=True)
class ChangeRules:
    """Settings of a change table, as the commits of its changes need them."""

    keys: tuple[str, ...]
    keeps_deleted: bool
    """Whether deleted rows stay in the table, with a mark."""
    stops_at_bad_changes: bool
    """Whether the query ends at a change that cannot be applied."""
    kept_days: int
    """Minimum days for which deletions, and changes that no version of their row shows, stay recorded."""
    today: Callable[[], date]
    schema_changes: str = LENIENT
    """Treatment of columns that the table lacks: see ``ChangeTable``."""
    rows_of_a_share: int = _ROWS_OF_A_SHARE
    bytes_of_a_share: int = _BYTES_OF_A_SHARE

    def columns_of(self, schema: pa.Schema) -> TableColumns:
        """Return a table's columns: those of the key and the others, without the sink's own columns."""
        others = tuple(name for name in schema.names if name not in HIDDEN and name not in self.keys)
        return TableColumns(keys=self.keys, others=others, keeps_deleted=self.keeps_deleted)


class BatchChanges:
    """The changes of a batch, for one version of the table."""

    def __init__(
        self, table: TableSnapshot, rules: ChangeRules, changes: ChangeRows, new: Collection[str] = ()
    ) -> None:
        """Set the table at the version to build on, its rules, and the changes that tasks wrote.

        ``new`` are columns that the table has only because of these changes, if the rules allow new ones.
        """
        self._table = table
        self._rules = rules
        self._new = new
        self._storage = table.log.storage
        self._changes = changes
        types = {name: type_ddl(type_) for name, type_ in table.form().column_types.items()}
        self._whole = WholeChanges(table.arrow_schema, types, rules.schema_changes)
        self._kept: list[pa.Table] | None = None
        """The batch's changes, kept by :meth:`check` if the keys are a single share; otherwise None."""
        self.folder: Final = table.location.rstrip("/")
        self.schema: Final = table.arrow_schema
        self.columns: Final = rules.columns_of(self.schema)
        self.shares = 1
        """Number of shares (parts) into which the batch's keys are divided, so that one fits in memory.

        Set by :meth:`check`, which reads all changes.
        """
        self._sources: Final = [name for name in _SOURCES if name in rules.keys]
        """Key columns that name the source's table; empty unless several tables are merged into this one."""
        self._highest: dict[Key, Order] = {}
        """The highest place of each source's changes, except rows of snapshots; set by :meth:`check`."""
        self.truncations: dict[Order, datetime | None] = {}
        """Times of the batch's truncations by their places, None if unknown; set by :meth:`check`."""

    @property
    def keys(self) -> pa.Schema:
        """The columns of the key, with their types in the table."""
        return pa.schema([self.schema.field(name) for name in self.columns.keys])

    @property
    def truncated_at(self) -> Order:
        """Place of the batch's last truncation in the order of changes; ``LOWEST`` if it has none."""
        return max(self.truncations, default=LOWEST)

    def recent(self, folder: str) -> RecentRows:
        """Return the table in this folder of the change table, such as the table of its deletions."""
        return RecentRows(
            uri=f"{self.folder}/{folder}",
            storage=self._storage,
            kept_days=self._rules.kept_days,
            today=self._rules.today,
        )

    def check(self) -> None:
        """Check all changes, before they are merged; note the batch's truncations and number of shares.

        Changes that cannot be applied are written into a table beside the change table.

        Raises:
            SinkConflict: If a change cannot be applied, and the rules stop at such changes or its operation
                is one of ``FINAL``. Also if positions cannot be compared: see :meth:`_check_positions`.
            DeltaError, OSError: If the storage does not answer.
        """
        bad = BadChanges(uri=f"{self.folder}/{BAD_CHANGES}", storage=self._storage)
        bad.record(self._bad_changes())
        self._check_positions()

    def _check_positions(self) -> None:
        """Refuse positions in the source's log that cannot be compared with the table's.

        A position is a list of numbers. If all of the batch's positions are lower than the table's highest
        one, and have more or fewer numbers, the envelope or the source has changed. Then all changes would
        count as old. In a table with the rows of several sources, each source has a log of its own, so the
        positions are compared for each source separately.

        Raises:
            SinkConflict: If positions cannot be compared.
        """
        stored = highest_text(self._table.table, POSITION) if self._highest else None
        if stored is None or parts_in(stored) is None:
            return
        lower = {source: at for source, at in self._highest.items() if _is_refuted(at, stored)}
        if not lower:
            return
        # In a table of one source, its highest place is that source's.
        refuting = self._refuting_rows(lower) if self._sources else ((source, stored) for source in lower)
        for source, had in refuting:
            of = f" of {'.'.join(source)}" if source else ""
            raise SinkConflict(
                f"The changes{of} have positions of {parts_in(lower[source])} numbers in the source's log, "
                f"but {masked(self.folder)} already has a higher position, of {parts_in(had)} numbers, so "
                "all changes would count as older. The envelope, the order or the source was changed. "
                "Nothing of this batch was added. Set envelope, order and source as they were before, or "
                "start the query with a new folder and load the source's table into that folder."
            )

    def _refuting_rows(self, lower: Mapping[Key, Order]) -> Iterator[tuple[Key, Order]]:
        """Yield each source whose positions cannot be compared with the table's, and the table's position.

        For such a source, the table has a higher position with another number of parts. ``lower`` has the
        sources to look at, each with the highest place of the batch's changes. A source need not be looked at
        any more once the table has shown a position with as many parts as the batch's.
        """
        undecided = dict(lower)
        names = [*self._sources, POSITION]
        schema = pa.schema([pa.field(name, pa.string()) for name in names])
        may_have = [
            is_one_of(name, pa.array([source[place] for source in undecided], pa.string()))
            for place, name in enumerate(self._sources)
        ]
        for rows in rows_of_files(self._table.table, names, reduce(and_, may_have)):
            for source, at in _highest_of(rows.cast(schema), self._sources).items():
                if source not in undecided:
                    continue
                if _is_refuted(undecided[source], at):
                    yield source, at
                if parts_in(undecided[source]) == parts_in(at):
                    del undecided[source]
            if not undecided:
                return

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the changes piece by piece, completed to all columns of the table."""
        return map(self._whole.of, self._changes.tables()) if self._kept is None else iter(self._kept)

    def _measured(self) -> Iterator[pa.Table]:
        """Yield the changes; then set the number of shares, and keep the changes if they are a single one."""
        kept, nbytes = list[pa.Table](), 0
        rules = self._rules
        shares = 1 + self._changes.count // rules.rows_of_a_share
        for rows in self._tables():
            nbytes += rows.nbytes
            shares = max(shares, 1 + nbytes // rules.bytes_of_a_share)
            if shares == 1:
                kept.append(rows)
            else:
                kept.clear()
            yield rows
        self.shares = shares
        self._kept = kept if shares == 1 else None

    def _bad_changes(self) -> Iterator[pa.Table]:
        for rows in self._measured():
            is_bad, is_truncation = pc.is_valid(rows[PROBLEM]), pc.equal(rows[OPERATION], _TRUNCATE)
            truncations = rows.filter(pc.and_not(is_truncation, is_bad))
            times = truncations[TIME].to_pylist()
            self.truncations |= dict(zip(truncations[POSITION].to_pylist(), times, strict=True))
            is_placed = pc.and_not(pc.not_equal(rows[OPERATION], _SNAPSHOT), is_bad)
            placed = keyed_rows(rows.filter(is_placed), self._sources)
            for source, at in _highest_of(placed, self._sources).items():
                self._highest[source] = max(at, self._highest.get(source, LOWEST))
            bad = self._counting(rows.filter(is_bad))
            # After one of these operations only the table's owner can decide how to go on.
            is_final = self._rules.stops_at_bad_changes or not FINAL.isdisjoint(bad[OPERATION].to_pylist())
            if len(bad) and is_final:
                raise bad_changes_error(self.folder, bad)
            if len(bad):
                yield bad

    def _counting(self, bad: pa.Table) -> pa.Table:
        """Return ``bad`` without statements that only remove columns which the table lacks anyway.

        Upper and lower case make no difference. A column that the table has only because of this batch counts
        as lacking. It may be one that the user had removed, and that a row from before the statement has
        added again.
        """
        names = {name.lower() for name in (*self.columns.keys, *self.columns.others)}
        names -= {name.lower() for name in self._new}
        counts = [
            operation != SCHEMA or removed is None or not names.isdisjoint(map(str.lower, removed))
            for operation, removed in zip(bad[OPERATION].to_pylist(), bad[ABSENT].to_pylist(), strict=True)
        ]
        return bad.filter(pa.array(counts, pa.bool_()))

    def share(self, number: int) -> pa.Table:
        """Return the changes of one share of the batch's keys; ``number`` counts from 0.

        Truncations and changes that cannot be applied are left out.
        """
        return pa.concat_tables(self._rows_of_share(number))

    def _rows_of_share(self, number: int) -> Iterator[pa.Table]:
        names = [*self.columns.keys, *self.columns.others]
        for rows in self._tables():
            is_keyed = pc.and_(pc.is_null(rows[PROBLEM]), pc.not_equal(rows[OPERATION], _TRUNCATE))
            keyed = keyed_rows(rows.filter(is_keyed), names)
            yield keyed.filter(self.in_share(keyed, number))

    def in_share(self, rows: pa.Table, number: int) -> pa.Array:
        """Return for each row whether its key is in the share with this number."""
        if self.shares == 1:
            return pa.repeat(pa.scalar(True), len(rows))
        keys = keys_of(rows, self.columns.keys)
        return pa.array([share_of(key, self.shares) == number for key in keys], pa.bool_())

    def first_values(self, keys: Iterable[Key]) -> pa.Array:
        """Return the value that each key has in the first column of the key."""
        return pa.array([key[0] for key in keys], self.schema.field(self.columns.keys[0]).type)

    def spooled(
        self, source_of: Callable[[int], pa.Table], spools: ExitStack
    ) -> tuple[pa.RecordBatchReader, str]:
        """Return the rows for the MERGE, and a condition on their keys, by which the MERGE reads fewer files.

        If there are several shares, a temporary file holds the rows. The condition is then an empty text, as
        it is if the batch allows no condition (:meth:`_between`).

        Args:
            source_of: Function that returns the MERGE's rows for the share with a number.
            spools: Closes the temporary file.
        """
        first, *others = range(self.shares)
        one = source_of(first)
        if not others:
            return one.to_reader(), self._between([one])
        spool = spools.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the caller closes it
        with pa.ipc.new_stream(spool, one.schema) as stream:
            stream.write_table(one)
            for number in others:
                stream.write_table(source_of(number))
        spool.seek(0)
        return pa.ipc.open_stream(spool), ""

    def commit(self, merge: Callable[[DeltaTable, CommitProperties], object], note: CommitNote) -> None:
        """Let ``merge`` make its commit directly after the version of the table that the batch is for.

        Raises:
            SinkConflict: If a row would have null in a column that cannot be null.
            FileExistsError: If another commit came first.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        try:
            self._table.write_next(merge, note)
        except DeltaError as error:
            whole = [field.name for field in self.schema if not field.nullable]
            if _INVALID not in str(error) or not whole:
                raise
            raise SinkConflict(
                f"A row of {masked(self.folder)} would have null in one of its columns that cannot be null: "
                f"{', '.join(whole)}. A change came before the row that it changes, or lacks a value. "
                "Nothing of this batch was added. Allow null (ALTER TABLE ... ALTER COLUMN ... DROP NOT "
                "NULL), and start the query again."
            ) from error

    def _between(self, parts: Sequence[pa.Table]) -> str:
        """Return a condition by which delta-rs leaves out files: bounds of each integer or text key column.

        Empty if the batch has a truncation, no row or no such column.
        """
        [rows] = parts
        if self.truncations or not len(rows):
            return ""
        conditions = []
        for name in self.columns.keys:
            type_ = rows.schema.field(name).type
            if not (pa.types.is_integer(type_) or pa.types.is_string(type_)):
                continue
            bounds = pc.min_max(rows[name]).as_py()
            low, high = (
                sql_literal(value) if isinstance(value, str) else str(value) for value in bounds.values()
            )
            conditions.append(f" AND {TARGET}.{quoted(name)} BETWEEN {low} AND {high}")
        return "".join(conditions)


def _highest_of(rows: pa.Table, sources: Sequence[str]) -> dict[Key, Order]:
    """Return the highest place (``effects.Order``) in the rows of each source that has one."""
    highest = rows.group_by(list(sources)).aggregate([(POSITION, "max")])
    places = highest[f"{POSITION}_max"].to_pylist()
    keys = keys_of(highest, sources) if sources else iter([()])
    return {source: at for source, at in zip(keys, places, strict=True) if at is not None}


def _is_refuted(at: Order, stored: Order) -> bool:
    """Return whether place ``at`` is lower than ``stored``, and has a position of another number of parts."""
    return at < stored and parts_in(at) != parts_in(stored)


def bad_changes_error(place: str, bad: pa.Table) -> SinkConflict:
    """Return the error for changes that cannot be applied."""
    rows = bad.select([*POSITION_COLUMNS, PROBLEM]).slice(0, _SHOWN).to_pylist()
    shown = "; ".join(
        f"{MessageQueue(*queue)} at offset {offset}: {problem.rstrip('.')}"
        for *queue, offset, problem in (row.values() for row in rows)
    )
    aside = (
        f", or have such changes put aside into {masked(place)}/{BAD_CHANGES}: bad_changes='keep'"
        if FINAL.isdisjoint(bad[OPERATION].to_pylist())
        else ""
    )
    return SinkConflict(
        f"{counted(len(bad), 'change')} cannot be applied to {masked(place)}: {shown}. Nothing of this "
        f"batch was added. Correct the settings of the change table and start the query again{aside}."
    )


def keep_properties(table: TableSnapshot, wanted: Mapping[str, str]) -> Mapping[str, str]:
    """Give a table those of the ``wanted`` properties that it lacks, and return all its properties.

    Properties that the table has already keep their values, unless these are empty.

    Raises:
        FileExistsError: If another commit came first, or may have.
        DeltaError, OSError: If the commit failed, or if its outcome is unknown.
    """
    stored = table.form().configuration
    lacking = {name: value for name, value in wanted.items() if not stored.get(name)}
    if not lacking:
        return stored
    begun_at = table.version
    table.write_next(
        lambda opened, by: opened.alter.set_table_properties(
            lacking,
            raise_if_not_exists=False,
            commit_properties=by,
            post_commithook_properties=NO_POST_COMMIT_HOOKS,
        ),
        CommitNote(),
    )
    _check_no_other(table, begun_at + 1)
    return table.form().configuration


def add_new_columns(table: TableSnapshot, changes: ChangeRows, rules: ChangeRules, names: set[str]) -> None:
    """Add the columns that changes have and a table lacks. If the batch is repeated, they are there already.

    If ``rules`` forbid new columns, a table gets only those of its first row. This is needed if a deletion
    came before the first row, and created the table with only the key's columns.

    The names of the added columns are put into ``names``, also if the outcome of the commit is unknown, but
    not if ``rules`` forbid new columns.

    Raises:
        FileExistsError: If another commit came first, or may have.
        DeltaError, OSError: If the commit failed, or if its outcome is unknown.
    """
    is_kept = rules.schema_changes in KEEPING_COLUMNS
    if is_kept and (_has_its_columns(table, rules) or not _has_row(changes)):
        return
    added = columns_to_add(changes.carrying(), table.arrow_schema.names)
    if not added:
        if is_kept:
            keep_properties(table, {_COLUMNS: _FROM_FIRST_ROW})
        return
    if not is_kept:
        names.update(added)
    fields = Schema.from_arrow(fields_of(added)).fields
    begun_at = table.version
    table.write_next(
        lambda opened, by: opened.alter.add_columns(
            fields, commit_properties=by, post_commithook_properties=NO_POST_COMMIT_HOOKS
        ),
        CommitNote(),
    )
    logger.info("columns added path=%s columns=%s", masked(table.location), added)
    _check_no_other(table, begun_at + 1)


def _check_no_other(table: TableSnapshot, version: int) -> None:
    """Check that ``version``, a commit of this query, is the table's newest one.

    Raises:
        FileExistsError: If another writer has committed since.
    """
    if table.version != version:
        raise FileExistsError(
            errno.EEXIST,
            f"another writer has committed to {masked(table.location)} after version {version}, in which "
            "this query changed the table's columns or properties",
        )


def _has_its_columns(table: TableSnapshot, rules: ChangeRules) -> bool:
    """Return whether the table already has the columns of its first row, even if these are only the key's."""
    return bool(rules.columns_of(table.arrow_schema).others) or _COLUMNS in table.form().configuration


def _has_row(changes: ChangeRows) -> bool:
    return any(
        operation in _ROWS for rows in changes.tables() for operation in rows[OPERATION].unique().to_pylist()
    )
