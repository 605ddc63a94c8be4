"""Offset store in a Delta table: readable by anyone, with history and time travel.

One row per group and queue, partitioned by ``consumer_group``. A change reads the group's rows from the
newest snapshot, applies a pure rule to them, and overwrites the group's partition in one commit.

Rule 1: Delta must check a commit against the same snapshot from which its rows were read. Refreshing a table
handle changes its snapshot, so threads never share a handle.
Rule 2: two writers of one group must always conflict; then the later one reads the newer rows and decides
again. On a disk of this machine any two commits conflict. Elsewhere delta-rs commits: the transaction id
``offsets:GROUP`` in each commit makes writers of one group conflict, and the literal partition predicate
keeps writers of different groups from conflicting.
Rule 3: a commit may be stored although it ended with an error (delta-rs#2279). So after an error the rows are
read again, and the rule decides again.
Rule 4: the cost of a commit does not depend on the number of earlier ones. Whatever grows with that number is
cleaned up in the background by :mod:`pyspark_rocketmq.offsets.delta_history`.

A commit takes about 3 ms on a disk, where it is a file and a link, and 8 ms more where delta-rs makes it. It
needs no Spark job, so the planner process can make it. Modules that an executor imports must not import this
one: it loads delta-rs, which must not be used in a process that forks later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.exceptions import TableNotFoundError
from deltalake.schema import PrimitiveType

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.delta.commit import CommitNote, commit_on_top
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.partition import Files, Partition, rows_of_files
from pyspark_rocketmq.delta.paths import TableName, check_exclusive_create, table_uri
from pyspark_rocketmq.delta.snapshot import HandlePerThread, TableSnapshot
from pyspark_rocketmq.delta.storage_options import GivenOptions, StorageOptions
from pyspark_rocketmq.delta.table import (
    STORAGE_ERRORS,
    TableForm,
    column_differences,
    create_table,
    open_table,
    read_form,
    read_with_retry,
)
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import (
    OffsetCommitConflict,
    OffsetError,
    OffsetStoreUnavailable,
    OptionError,
    SchemaError,
)
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta_history import HistoryTable, Upkeep
from pyspark_rocketmq.offsets.delta_rows import (
    COLUMN_TYPES,
    DROPPED,
    NEWEST_VERSION,
    SCHEMA,
    VERSION_PROPERTY,
    check_version,
    columns_of_version,
    rows_from_table,
    rows_to_table,
)
from pyspark_rocketmq.offsets.history import ACTION_KEY, GROUP_KEY, StoredChange, action_text
from pyspark_rocketmq.offsets.rules import Change, ResultT, RowOffsetStore, Rows
from pyspark_rocketmq.offsets.store import OffsetRow

logger = logging.getLogger(__name__)

_PARTITION_BY = ("consumer_group",)
_ALLOWED_FEATURES = frozenset({"appendOnly", "invariants"})
"""Features of reader version 1 and writer version 2, the default of delta-rs and delta-spark. Both libraries
support all of these features."""
_TABLE_PROPERTIES: Mapping[str, str | None] = {
    # Every checkpoint lists removed files for this long. Changes older than the log are in the history
    # table.
    "delta.deletedFileRetentionDuration": "interval 1 hour",
    # delta-spark refuses a log retention below the file retention.
    "delta.logRetentionDuration": "interval 1 hour",
    "delta.checkpointInterval": "100",
}
_PAUSES_S = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0)
"""Pauses before the retries, in seconds. One writer wins in each conflict, so a few retries are enough."""


class DeltaOffsetStore(RowOffsetStore):
    """Implements ``OffsetStore`` on one Delta table, which is created on first use.

    An existing table must have exactly the columns of this release or of an earlier one, and only features of
    reader version 1 and writer version 2. Other tables are refused with SchemaError or OptionError. Any
    number of processes may write the table at the same time.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        storage_options: GivenOptions | StorageOptions | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the table's path or URI, without opening it.

        ``storage_options`` are options of delta-rs for remote storage, as in :class:`DeltaSink`.

        Raises:
            OptionError: If ``path`` is the name of a table in a catalog.
        """
        if TableName.is_name(path):
            problem = (
                f"{path} is the name of a table in a catalog, but delta-rs writes the offset table and needs "
                f"its path or URI; for a folder of that name write './{path}'"
            )
            raise OptionError((problem,), where="offset store")
        self._path = table_uri(path)
        self.storage: Final = StorageOptions.of(storage_options)
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._cached: dict[str, _CachedRows] = {}
        """Newest rows read or written of each group, valid while the table version is the same."""
        self._upkeep = Upkeep(self._path, self._clock, _read_rows, self.storage)
        self._handles = HandlePerThread(self._opened)
        self._table_id: str | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return partial(DeltaOffsetStore, self._path, storage_options=self.storage), ()

    def __repr__(self) -> str:
        return f"DeltaOffsetStore({masked(self._path)!r})"

    @property
    def spec(self) -> str:
        """The text ``delta:PATH``, by which another process opens the same store."""
        return f"delta:{self._path}"

    @property
    def has_renewable_storage(self) -> bool:
        """Whether the storage options come from a callable, which only this process has."""
        return self.storage.is_renewable

    def renew_storage(self) -> dict[str, str]:
        """Renew the options for remote storage; return those with which another process reaches the table."""
        self.storage.renew()
        return self.storage.values_for(self._path)

    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups that have rows, sorted; empty if there is no table.

        Raises:
            SchemaError, OptionError: If the table is not an offset table, or has other features.
            OffsetStoreUnavailable: If the storage does not answer.
        """
        with self._raising_unavailable("The names of groups"):
            self.storage.renew()
            try:
                table = open_table(self._path, self.storage)
            except TableNotFoundError:
                return ()
            _check_form(self._path, read_form(table))
            return tuple(sorted(partition["consumer_group"] for partition in table.partitions()))

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows in the newest table version.

        Raises:
            OffsetError: If the table is gone, or another table has its place since it was opened.
            SchemaError, OptionError: If the table is not an offset table, or has other features.
            OffsetStoreUnavailable: If the storage does not answer.
        """
        what = f"The offsets of group {consumer_group}"
        with self._raising_unavailable(what):
            return read_with_retry(
                what, self._path, self.storage, lambda: self._newest_rows(consumer_group), self._sleep
            )

    def _newest_rows(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        with self._forgetting_handles():
            return dict(self._rows(self._handles.newest(), consumer_group).rows)

    @contextmanager
    def _raising_unavailable(self, what: str) -> Iterator[None]:
        """Raise OffsetStoreUnavailable if the storage does not answer within the block."""
        try:
            yield
        except STORAGE_ERRORS as error:
            self._handles.forget()
            raise OffsetStoreUnavailable(
                f"{what} could not be read from {self._path}: "
                f"{self.storage.describe_error(error)} "
                "Check that this process can reach the storage and read the table."
            ) from error

    def changes(self, consumer_group: str) -> list[StoredChange]:
        """Return the group's changes that can be restored, oldest first, from the log and the history table.

        A change by another program is included, since it may have changed any group.
        """
        log = LogFiles(self._path, self.storage)
        readable = log.readable_versions()
        found = (StoredChange.of_commit(version, log.row_change_info(version)) for version in readable)
        recent = [change for change in found if change is not None]
        older = HistoryTable(self._path, self.storage).changes(consumer_group, readable.start)
        return older + [change for change in recent if change.consumer_group in (consumer_group, None)]

    def newest_version(self) -> int:
        """Return the newest version of the offset table; -1 if there is no table."""
        return LogFiles(self._path, self.storage).readable_versions().stop - 1

    def rows_of(self, consumer_group: str, change: StoredChange) -> Mapping[MessageQueue, OffsetRow]:
        """Return the group's rows right after ``change``.

        Raises:
            OffsetError: If they are no longer kept.
        """
        found = self.rows_of_all(consumer_group, [change])
        if change.version not in found:
            raise OffsetError(
                f"Version {change.version} of the offset table {self._path} is no longer kept for group "
                f"{consumer_group}. `pyspark-rocketmq offsets history --conf FILE` lists the versions to "
                "choose from."
            )
        return found[change.version]

    def rows_of_all(
        self, consumer_group: str, changes: Sequence[StoredChange]
    ) -> Mapping[int, Mapping[MessageQueue, OffsetRow]]:
        """Return the group's rows after each of ``changes``, by version; leave out those no longer kept."""
        found: dict[int, Mapping[MessageQueue, OffsetRow]] = {}
        for version in sorted({change.version for change in changes}, reverse=True):
            try:
                found[version] = _read_rows(self._open_version(version), consumer_group)
            except STORAGE_ERRORS:
                # The log does not reach back so far; older versions can only be in the history.
                break
        older = {change.version for change in changes} - found.keys()
        return (
            {**HistoryTable(self._path, self.storage).rows_of(consumer_group, older), **found}
            if older
            else found
        )

    def _open_version(self, version: int) -> DeltaTable:
        return open_table(self._path, self.storage, version=version)

    def open_anew(self) -> None:
        """Forget the opened table, so that the next use takes the table that exists then.

        Called when a query starts: the table may have been deleted and created again since an earlier query.
        """
        self._handles.forget()
        self._cached.clear()
        self._table_id = None

    def wait_for_upkeep(self, timeout_s: float) -> None:
        """Wait until a clean-up of the table that is running in the background has ended.

        Raises:
            TimeoutError: If it has not ended after ``timeout_s``.
        """
        self._upkeep.wait(timeout_s)

    def _change(self, consumer_group: str, decide: Callable[[Rows], Change[ResultT]], action: str) -> ResultT:
        """Apply ``decide`` to the newest rows and store the outcome; return its result.

        Read, decide and write again until the write is known to be stored, or the retries are used up.

        Raises:
            OffsetCommitConflict: If all tries failed.
        """

        def follow(_: Exception | None) -> Callable[[], ResultT]:
            # The current rows show whether an earlier try was stored, so no try needs the last error.
            with self._forgetting_handles():
                newest = self._handles.newest()
                _upgrade(self._path, newest)
                before = self._rows(newest, consumer_group)
                change = decide(before.rows)
            if change.rows == before.rows:
                return lambda: change.result
            return partial(self._store, newest, consumer_group, before, change, action)

        try:
            what = f"offsets of group {consumer_group} ({action})"
            return commit_on_top(what, follow, pauses_s=_PAUSES_S, sleep=self._sleep)
        except STORAGE_ERRORS as error:
            raise OffsetCommitConflict(
                f"Offsets of group {consumer_group} could not be stored in {self._path} in "
                f"{len(_PAUSES_S) + 1} tries ({action}); the last error was: "
                f"{self.storage.describe_error(error)} Check that the table can be written, and that nothing "
                "else writes it all the time; then try again."
            ) from error

    def _rows(self, newest: TableSnapshot, consumer_group: str) -> _CachedRows:
        # A table version never changes, and looking up the newest one is cheaper than reading rows.
        known = self._cached.get(consumer_group)
        if known is None or known.version != newest.version:
            known = _followed(newest, consumer_group, known) or _read(newest, consumer_group)
            self._cached[consumer_group] = known
        return known

    @contextmanager
    def _forgetting_handles(self) -> Iterator[None]:
        """Forget the opened table if the storage fails in the block, so that the next use opens it again.

        A handle keeps its state even after the table was deleted. If only another commit came first
        (FileExistsError), the table stays open.
        """
        try:
            yield
        except FileExistsError:
            # Another commit came first.
            raise
        except STORAGE_ERRORS:
            self._handles.forget()
            raise

    def _store(
        self,
        newest: TableSnapshot,
        consumer_group: str,
        before: _CachedRows,
        change: Change[ResultT],
        action: str,
    ) -> ResultT:
        rows = change.rows
        with self._forgetting_handles():
            transaction = before.transaction
            transaction_id = _transaction_id(consumer_group)
            if transaction is None:
                transaction = newest.transaction_versions([transaction_id]).get(transaction_id, 0)
            transaction += 1
            note = CommitNote(
                metadata={ACTION_KEY: action_text(consumer_group, action), GROUP_KEY: consumer_group},
                transactions={transaction_id: transaction},
            )
            stored = _with_dropped_columns(rows_to_table(rows.values()), newest.form())
            files = _partition(consumer_group).replace(newest, stored, before.files, note)
        # If another group's commit came in between, the stored version is higher than the one noted here.
        # Then the next read finds a newer table version than that of these rows, and follows the log.
        if files is None and newest.commits_itself:
            # delta-rs replaced files outside the folder.  Its commit shows the new files to the next reader;
            # as long as they are unknown, delta-rs would have to make every commit.
            self._cached.pop(consumer_group, None)
        else:
            self._cached[consumer_group] = _CachedRows(before.version + 1, rows, files, transaction)
        self._upkeep.after_commit(before.version)
        return change.result

    def _opened(self) -> TableSnapshot:
        # If the table was restored to an older state, its next versions have other content than before.
        self._cached.clear()
        self.storage.renew()
        try:
            table = open_table(self._path, self.storage)
            check_exclusive_create(self._path)
        except TableNotFoundError as error:
            if self._table_id is not None:
                raise OffsetError(
                    f"The offset table {self._path} is gone: deleted, or its storage is not mounted. Nothing "
                    "was stored. Put the table back and start the query again. A query that starts without "
                    "the table continues at the offsets of its sink's table, or, without a sink, at the "
                    "group's offsets at the brokers."
                ) from error
            table = create_table(
                self._path,
                SCHEMA,
                _PARTITION_BY,
                self.storage,
                description="Progress of RocketMQ consumer groups",
                configuration=_TABLE_PROPERTIES,
            )
        _check_form(self._path, read_form(table))
        table_id = str(table.metadata().id)
        if self._table_id not in (None, table_id):
            raise OffsetError(
                f"The offset table {self._path} was replaced, or deleted and created again, while this query "
                "ran. Nothing was stored in the new table. Put the former table back and start the query "
                "again. A query that starts with the new table continues at that table's offsets. A group "
                "that the new table lacks continues at the offsets of its sink's table, or, without a sink, "
                "at the group's offsets at the brokers."
            )
        self._table_id = table_id
        return TableSnapshot(table, self.storage, needs_delta_rs=False, clock=self._clock)


class _CachedRows(NamedTuple):
    version: int
    rows: Rows
    files: Files | None
    """The group's files; None if they are not known, or if only delta-rs may replace them."""
    transaction: int | None = None
    """Transaction version of the group's last commit; None if it was not read yet."""


def _followed(newest: TableSnapshot, consumer_group: str, known: _CachedRows | None) -> _CachedRows | None:
    """Return the group's newest rows, from the ``known`` rows and the log of the commits since.

    None if there are no known rows, or the log does not show the group's files.
    """
    if known is None or known.files is None or known.version > newest.version:
        return None
    since = range(known.version + 1, newest.version + 1)
    files = _partition(consumer_group).files_after(newest.log, known.files, since, mark=GROUP_KEY)
    if files is None:
        return None
    if files == known.files:
        return known._replace(version=newest.version)
    return _read_files(newest, consumer_group, files)


def _read_files(newest: TableSnapshot, consumer_group: str, files: Files) -> _CachedRows:
    rows = rows_from_table(consumer_group, rows_of_files(newest.log, files))
    return _CachedRows(newest.version, rows, files)


def _read(newest: TableSnapshot, consumer_group: str) -> _CachedRows:
    """Read the group's newest rows from the files of its newest commit, or by a query of delta-rs.

    The query is avoided if possible: it takes memory for each file that a checkpoint lists as removed.
    """
    if newest.commits_itself:
        files = _partition(consumer_group).files_at(newest.log, newest.version, mark=GROUP_KEY)
        if files:
            return _read_files(newest, consumer_group, files)
    table = newest.table
    files = _partition(consumer_group).files_in(table) if newest.commits_itself else None
    return _CachedRows(newest.version, _read_rows(table, consumer_group), files)


def _read_rows(table: DeltaTable, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
    return rows_from_table(consumer_group, _partition(consumer_group).rows_in(table))


def _partition(consumer_group: str) -> Partition:
    [column] = _PARTITION_BY
    return Partition(column, consumer_group)


def _with_dropped_columns(rows: pa.Table, form: TableForm) -> pa.Table:
    """Return ``rows`` with nulls in the columns that only tables of earlier releases have."""
    for column in form.columns:
        if column.name in DROPPED:
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, pa.string()))
    return rows


def _transaction_id(consumer_group: str) -> str:
    return f"offsets:{consumer_group}"


def _upgrade(path: str, newest: TableSnapshot) -> None:
    """Upgrade a table of an earlier release to the newest version; do nothing if it has that version.

    If an upgrade is interrupted, the next change completes it.
    """
    form = newest.form()
    if check_version(path, form.configuration) == NEWEST_VERSION:
        return
    table, known = newest.table, form.column_types
    missing = [name for name in COLUMN_TYPES if name not in known]
    if missing:
        table.alter.add_columns([Field(name, PrimitiveType(COLUMN_TYPES[name])) for name in missing])
        logger.info(
            "offset table upgraded path=%s to=%d added=%s", masked(path), NEWEST_VERSION, ",".join(missing)
        )
    # New tables come here too: delta-rs creates tables only with properties that it knows.
    table.alter.set_table_properties({VERSION_PROPERTY: str(NEWEST_VERSION)}, raise_if_not_exists=False)
    newest.refresh()


def _check_form(path: str, form: TableForm) -> None:
    version = check_version(path, form.configuration)
    found = form.column_types
    differences = list(
        column_differences(columns_of_version(version, COLUMN_TYPES, found), found, "the table")
    )
    if form.partition_by != _PARTITION_BY:
        differences.append(f"partitioned by ({', '.join(form.partition_by)}) instead of (consumer_group)")
    if differences:
        raise SchemaError(
            f"The table at {path} is not an offset table: {'; '.join(differences)}. "
            "Name another path for the offset store; a missing table is created automatically."
        )
    refused = sorted(form.features - _ALLOWED_FEATURES)
    if form.configuration.get("delta.appendOnly", "false").lower() == "true":
        refused.append("delta.appendOnly=true")
    if refused:
        problem = (
            f"The offset table at {path} has {', '.join(refused)}, with which the connector cannot write it "
            "safely. Remove each of them (ALTER TABLE ... DROP FEATURE; for delta.appendOnly ALTER TABLE ... "
            "SET TBLPROPERTIES ('delta.appendOnly' = 'false')), or copy the rows into a new table with "
            "reader version 1 and writer version 2."
        )
        raise OptionError((problem,), where="offset table")
