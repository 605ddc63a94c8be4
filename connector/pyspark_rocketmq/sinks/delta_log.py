"""The table's log as the driver sees it: watermarks, history, commits, merges.

A sink table's log as one thread of the driver sees it: newest snapshot, watermarks, history, commits.

Rule 1: watermarks read at a table version stay true for that version. One read of an id costs delta-rs about
a millisecond, so ids that are known are carried on by the ``txn`` actions of the commits in between.
Rule 2: not shared between threads, because a commit is checked against the snapshot this object stands at.

What a batch brings for a merge: its newest row of each key.

The batch's rows pass through the driver, for delta-rs merges there: made for micro-batches, not for a
backfill of millions at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from pyspark_rocketmq.delta.log import LogFiles, all_transactions, read_commit_info, transactions_of
from pyspark_rocketmq.delta.table import TableForm, read_form
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.sinks.delta_files import NULL_PARTITION, WrittenFile, filesystem_of, is_folder_name
from pyspark_rocketmq.sinks.delta_rules import (
    commit_metadata,
    is_commit_of,
    restored_to,
)
from pyspark_rocketmq.sinks.restores import Stretch, look_back

logger = logging.getLogger(__name__)

_POSITION = ("topic", "brokerName", "queueId", "queueOffset")
_ROW = "__row"
_Read = TypeVar("_Read")


def newest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key: of one queue the one of the highest queue offset, and of a message the one emitted last.

    Messages of one key belong into one queue; between queues there is no order, and the one that sorts last
    wins. A key with a null in it is equal to none, so all its rows stay.
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

    Delta has no empty text as a partition's value, and delta-rs none that is the name of the folder of rows
    without one.
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
                    f"A row has {value[:40]!r}… ({len(value)} characters) in partition column {name!r}, "
                    "which is too long for the name "
                    "of a folder: local file systems take 255 bytes, URL-encoded. A merge cannot write it; "
                    "partition the table by "
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


def read_ahead(read: Callable[[int], _Read], versions: Sequence[int]) -> Iterator[_Read]:
    """What ``read`` gives for each version; the further it goes, the more are read at once.

    Mostly the first one is enough; an object store takes some 20 ms for each.
    """
    yield from map(read, versions[:1])
    begin, at_once = 1, 2
    with ThreadPoolExecutor(_READS_AT_ONCE, "rocketmq-sink-log") as threads:
        while begin < len(versions):
            yield from threads.map(read, versions[begin : begin + at_once])
            begin, at_once = begin + at_once, min(2 * at_once, _READS_AT_ONCE)


_SOURCE, _TARGET = "source", "target"
_READS_AT_ONCE = 32
_NOTHING_ELSE = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""What a commit does besides: delta-rs looks for expired files of the log with each one, which takes seconds in
a log of 100,000."""
_ASKED_ONE_BY_ONE = 32
"""Of more ids than that, delta-rs' look-ups, each of which goes through the log, take longer than to read all
ids at once."""
_FOLLOWED_COMMITS = 20
"""After more commits than that, reading the ids anew is quicker than reading the commits."""


class TableLog:
    """A handle on the newest version of a sink's table."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table
        self._filesystem, self._folder = filesystem_of(table.table_uri)
        self._versions: dict[str, int | None] = {}
        self._seen = Stretch.empty(self.version)
        """What of the log was looked at."""
        self._newest_commits: dict[str, Mapping[str, Any]] = {}
        """By group: the entry of its newest commit at the last look."""
        self._log_files = LogFiles(table.table_uri)
        self._tip = self._log_files.commit_file(self.version)

    @property
    def table_id(self) -> str:
        """What tells this table from every other one; a copy of its folder has it, too."""
        return str(self._table.metadata().id)

    def is_still_there(self) -> bool:
        """Whether the log has the very commit that was the newest one at the last look.

        It has not when the table was deleted, made anew or put back to an earlier state.  delta-rs does not
        notice when another table has as many commits, and would add a commit to the log of that one.
        """
        return self._log_files.commit_file(self._tip.version) == self._tip

    def unseen(self, files: Sequence[WrittenFile]) -> list[str]:
        """What of ``files`` is not in the table's folder, or not as long as its task said, as this machine sees it."""
        found = self._filesystem.get_file_info([f"{self._folder}/{file.path}" for file in files])
        pairs = zip(files, found, strict=True)
        return [
            f"{file.path} ({'not there' if info.size is None else f'{info.size} bytes'} instead of "
            f"{file.size} bytes)"
            for file, info in pairs
            if info.size != file.size
        ]

    @property
    def version(self) -> int:
        """Table version this object stands at."""
        return int(self._table.version())

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table's columns as Delta writes them into Parquet."""
        return pa.schema(self._table.schema().to_arrow()).remove_metadata()

    def form(self) -> TableForm:
        """Columns, properties and features."""
        return read_form(self._table)

    @property
    def configuration(self) -> Mapping[str, str]:
        """The table's properties."""
        return dict(self._table.metadata().configuration)

    def refresh(self) -> None:
        """Move to the newest version."""
        before = self.version
        self._table.update_incremental()
        if self.version != self._tip.version:
            self._tip = self._log_files.commit_file(self.version)
        if not self._versions or self.version == before:
            return
        changed = self._transactions_between(before, self.version)
        if changed is None:
            self._versions.clear()
        else:
            self._versions.update((app_id, changed[app_id]) for app_id in changed.keys() & self._versions)

    def transaction_version(self, app_id: str) -> int | None:
        """Return the stored version of a transaction id; None when the table does not have the id."""
        if app_id not in self._versions:
            self._versions[app_id] = self._table.transaction_version(app_id)
        return self._versions[app_id]

    def transaction_versions(self, app_ids: Collection[str]) -> dict[str, int]:
        """Stored versions of those of these transaction ids that the table has."""
        unknown = [app_id for app_id in app_ids if app_id not in self._versions]
        if len(unknown) > _ASKED_ONE_BY_ONE:
            try:
                found = self.all_transactions()
            except (OSError, ValueError, KeyError):
                # Of a form of a later protocol, or the log has a checkpoint of a later version: delta-rs
                # knows.
                found = None
            if found is not None:
                self._versions.update((app_id, found.get(app_id)) for app_id in unknown)
        versions = ((app_id, self.transaction_version(app_id)) for app_id in app_ids)
        return {app_id: version for app_id, version in versions if version is not None}

    def find_commit(self, commit_id: str, since: int) -> int | None:
        """The version of a commit of ours after version ``since``; None if it was not made."""
        later = takewhile(lambda entry: entry["version"] > since, self._entries_below(self.version + 1))
        return next((entry["version"] for entry in later if is_commit_of(entry, commit_id=commit_id)), None)

    def version_of(self, commit_id: str, since: int) -> int:
        """As :meth:`find_commit`, of a commit that was made.

        Raises:
            DeltaError: If it is not there.
        """
        version = self.find_commit(commit_id, since)
        if version is None:
            raise DeltaError(f"The commit {commit_id} was made after version {since} and is not in the log.")
        return version

    def restored_since_last_commit(self, consumer_group: str) -> int | None:
        """Return the version of a RESTORE after the group's last commit; None when there was none.

        Commits that are not in the log any more count as before all others.
        """
        return self._look_back(lambda seen: seen.tells_of(consumer_group)).restored_since(consumer_group)

    def newest_commit(self, consumer_group: str) -> Mapping[str, Any] | None:
        """The history's entry of the group's newest commit; None if the history has none."""
        version = self._look_back(lambda seen: consumer_group in seen.commits).commits.get(consumer_group)
        if version is None:
            return None
        entry = self._newest_commits.get(consumer_group)
        if entry is None or entry["version"] != version:
            entry = self._entry(version)
        if entry is None:
            return None
        self._newest_commits[consumer_group] = entry
        return entry

    def _look_back(self, is_enough: Callable[[Stretch], bool]) -> Stretch:
        seen = look_back(self.version, self._seen, self._entries_below, is_enough)
        if seen.last < seen.first and self._entry(self.version) is None:
            raise DeltaError(
                f"The log of {self._table.table_uri} lacks the commit of version {self.version}, where its "
                "reader stands, so whether a RESTORE took rows away cannot be told."
            )
        self._seen = seen
        return seen

    def _entries_below(self, version: int) -> Iterator[Mapping[str, Any]]:
        """What commits say of themselves, from the newest below ``version`` to the oldest of the log."""
        versions = range(version - 1, -1, -1)
        found = (
            map(self._entry, versions)
            if isinstance(self._filesystem, pafs.LocalFileSystem)
            else read_ahead(self._entry, versions)
        )
        return (entry for entry in takewhile(lambda entry: entry is not None, found) if entry is not None)

    def _entry(self, version: int) -> Mapping[str, Any] | None:
        """What a commit says of itself, with its version; None if it is not in the log any more."""
        info = read_commit_info(self._filesystem, f"{self._folder}/_delta_log/{version:020d}.json")
        return None if info is None else {**info, "version": version}

    def _transactions_between(self, begin: int, end: int) -> dict[str, int] | None:
        """Transaction ids of the commits after ``begin`` up to ``end``; None when the log has to be asked."""
        if not 0 < end - begin <= _FOLLOWED_COMMITS:
            return None
        found: dict[str, int] = {}
        for version in range(begin + 1, end + 1):
            try:
                found.update(transactions_of(self._filesystem, self._folder, version))
            except (OSError, ValueError, KeyError):
                # Cleaned up, or in a form of a later protocol: delta-rs knows.
                return None
        return found

    def all_transactions(self) -> dict[str, int]:
        """Every transaction id of the table; reads the newest checkpoint."""
        return all_transactions(self._filesystem, self._folder, self.version)

    def before_restores(self, consumer_group: str) -> TableLog:
        """The version whose rows a RESTORE after the group's last commit brought back; this object if there was none.

        Raises:
            DeltaError: If the log does not have it any more.
            ValueError: If the log does not say which one it was.
        """
        log = self
        # What was restored may have been restored itself, and the watermarks stayed each time.
        while (restored_at := log.restored_since_last_commit(consumer_group)) is not None:
            entry = log._entry(restored_at)
            if entry is None:
                raise ValueError(f"The RESTORE of version {restored_at} is not in the log any more.")
            table = DeltaTable(self._table.table_uri)
            table.load_as_version(restored_to(entry))
            log = TableLog(table)
        return log

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns.

        Raises:
            DeltaError: If they could not be added, and nobody else has done it meanwhile.
        """
        try:
            self._table.alter.add_columns(Schema.from_arrow(schema).fields)
        except DeltaError:
            self._table.update_incremental()
            if not set(schema.names) <= {column.name for column in self.form().columns}:
                raise

    def add(
        self,
        files: Sequence[WrittenFile],
        versions: Mapping[str, int],
        *,
        consumer_group: str,
        commit_id: str,
    ) -> int:
        """Commit files and transaction ids together, against this object's version; return the new version.

        Raises:
            DeltaError: If the commit failed, or if its outcome is unknown.
        """
        begun_at = self.version
        self._table.create_write_transaction(
            [_add_action(file) for file in files],
            mode="append",
            schema=self._table.schema(),
            partition_by=list(self._table.metadata().partition_columns),
            commit_properties=self._properties(versions, consumer_group, commit_id),
            post_commithook_properties=_NOTHING_ELSE,
        )
        return self._made(begun_at, consumer_group, commit_id)

    def merge(
        self,
        files: Sequence[WrittenFile],
        keys: Sequence[str],
        columns: Sequence[str],
        versions: Mapping[str, int],
        *,
        consumer_group: str,
        commit_id: str,
    ) -> int:
        """Update ``columns`` of the rows that have the keys of the files' rows, add the others; else as :meth:`add`."""
        if not files:
            return self.add((), versions, consumer_group=consumer_group, commit_id=commit_id)
        begun_at = self.version
        rows = read_rows(files, self.arrow_schema, self._filesystem, self._folder)
        partitions = self._table.metadata().partition_columns
        if isinstance(self._filesystem, pafs.LocalFileSystem):
            check_folders(rows, partitions)
        rows, blank = with_blanks(rows, [name for name in keys if name in partitions])
        values = {quoted(name): f"{_SOURCE}.{quoted(name)}" for name in columns}
        (
            self._table.merge(
                newest_rows(rows, keys).select(list(columns)),
                predicate(keys, _SOURCE, _TARGET, blank),
                source_alias=_SOURCE,
                target_alias=_TARGET,
                commit_properties=self._properties(versions, consumer_group, commit_id),
                post_commithook_properties=_NOTHING_ELSE,
            )
            .when_matched_update(values)
            .when_not_matched_insert(values)
            .execute()
        )
        # A merge, unlike an append, takes the handle along, so that a refresh would see no change.
        if self.version == begun_at + 1:
            self._versions.update(versions)
        else:
            self._versions.clear()
        version = self._made(begun_at, consumer_group, commit_id)
        self.remove(files)
        return version

    def remove(self, files: Sequence[WrittenFile]) -> None:
        """Remove files whose rows are in others by now."""
        remove_files(files, self._filesystem, self._folder)

    def _made(self, begun_at: int, consumer_group: str, commit_id: str) -> int:
        """The version of the commit just made."""
        # delta-rs leaves the handle at the version it had.
        self.refresh()
        if self.version != begun_at + 1:
            return self.version_of(commit_id, begun_at)
        own_commit = Stretch(self.version, self.version, commits={consumer_group: self.version})
        self._seen = own_commit.after(self._seen)
        return self.version

    def _properties(
        self, versions: Mapping[str, int], consumer_group: str, commit_id: str
    ) -> CommitProperties:
        return CommitProperties(
            custom_metadata=commit_metadata(consumer_group, commit_id, **self.seen()),
            app_transactions=[Transaction(app_id, version) for app_id, version in versions.items()],
        )

    def seen(self) -> dict[str, Any]:
        """What a commit is to say of the log before it."""
        return {"seen": self._look_back(lambda seen: seen.last >= seen.first).to_metadata()}


def open_log(path: str) -> TableLog | None:
    """Open the table at its newest version; None when there is none."""
    try:
        return TableLog(DeltaTable(path))
    except TableNotFoundError:
        return None


def create_table(path: str, schema: pa.Schema, partition_by: Sequence[str]) -> TableLog:
    """Make the table with delta-rs' default protocol (1/2); if another process is quicker, open that one."""
    if "://" not in path:
        Path(path).mkdir(parents=True, exist_ok=True)
    try:
        return TableLog(DeltaTable.create(path, schema=schema, partition_by=list(partition_by)))
    except DeltaError:
        return TableLog(DeltaTable(path))


def _add_action(file: WrittenFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition_values,
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=file.stats_json,
    )
