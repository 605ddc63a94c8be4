"""A sink table's log as one thread of the driver sees it: watermarks, RESTOREs, commits, merges.

Rows to be merged pass through the driver, for delta-rs merges there: made for micro-batches, not for a
backfill of millions at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pyspark_rocketmq.delta.log import Transactions
from pyspark_rocketmq.delta.storage import filesystem_of
from pyspark_rocketmq.delta.table import ONLY_COMMIT, TableForm, TableHandle, read_form
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.sinks.delta_files import NULL_PARTITION, WrittenFile, is_folder_name
from pyspark_rocketmq.sinks.delta_rules import SinkCommit, restored_to
from pyspark_rocketmq.sinks.restores import SeenCommits, look_back

logger = logging.getLogger(__name__)

_POSITION = ("topic", "brokerName", "queueId", "queueOffset")
_ROW = "__row"


def newest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The newest row of each key: of the highest queue offset, and of one message the one emitted last.

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
    """The rows with "" for texts that the table keeps as null in partition columns; those columns.

    Delta has no empty text as a partition's value, and delta-rs none that names the folder of rows without
    one.
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
                    "which is too long for the name of a folder: local file systems take 255 bytes, "
                    "URL-encoded. A merge cannot write it; partition the table by another column, or shorten "
                    "the value."
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


_SOURCE, _TARGET = "source", "target"


class TableLog(TableHandle):
    """A handle on the newest version of a sink's table, with the watermarks that are stored in it."""

    def __init__(self, table: DeltaTable) -> None:
        super().__init__(table)
        self._filesystem, self._folder = filesystem_of(table.table_uri)
        self._transactions: Transactions | None = None
        """As of the last time they were asked for, or this object committed."""
        self._seen = SeenCommits.empty(self.version)
        """What of the log was looked at."""
        self._newest_commits: dict[str, Mapping[str, Any]] = {}
        """By group: what its newest commit says, as of the last look."""

    @property
    def table_id(self) -> str:
        """What tells this table from every other one; a copy of its folder has it, too."""
        return str(self.table.metadata().id)

    def unseen(self, files: Sequence[WrittenFile]) -> list[str]:
        """Which of ``files`` this machine does not see in the table's folder, or with another size."""
        found = self._filesystem.get_file_info([f"{self._folder}/{file.path}" for file in files])
        return [
            f"{file.path} ({'not there' if seen.size is None else f'{seen.size} bytes'} "
            f"instead of {file.size} bytes)"
            for file, seen in zip(files, found, strict=True)
            if seen.size != file.size
        ]

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table's columns as Delta writes them into Parquet."""
        return pa.schema(self.table.schema().to_arrow()).remove_metadata()

    def form(self) -> TableForm:
        """Columns, properties and features."""
        return read_form(self.table)

    def all_transactions(self) -> Mapping[str, int]:
        """Every transaction id of the table with its version; raises as :meth:`LogFiles.transactions`."""
        self._transactions = self.log.transactions(self.version, self._transactions)
        return self._transactions.by_app_id

    def transaction_versions(self, app_ids: Iterable[str]) -> dict[str, int]:
        """Stored versions of those of these transaction ids that the table has."""
        known: Mapping[str, int | None]
        try:
            known = self.all_transactions()
        except (OSError, ValueError, KeyError):
            # Of a form of a later protocol, or the log has a checkpoint of a later version: delta-rs knows.
            app_ids = list(app_ids)
            known = {app_id: self.table.transaction_version(app_id) for app_id in app_ids}
        versions = ((app_id, known.get(app_id)) for app_id in app_ids)
        return {app_id: version for app_id, version in versions if version is not None}

    def find_commit(self, commit: SinkCommit, since: int) -> int | None:
        """The version of a commit after version ``since``; None if it was not made."""
        later = takewhile(
            lambda entry: entry["version"] > since, self.log.commit_infos_below(self.version + 1)
        )
        return next((entry["version"] for entry in later if commit.is_in(entry)), None)

    def version_of(self, commit: SinkCommit, since: int) -> int:
        """As :meth:`find_commit`, of a commit that was made.

        Raises:
            DeltaError: If it is not there.
        """
        version = self.find_commit(commit, since)
        if version is None:
            raise DeltaError(
                f"The commit {commit.commit_id} was made after version {since} and is not in the log."
            )
        return version

    def restored_since_last_commit(self, consumer_group: str) -> int | None:
        """The version of a RESTORE after the group's last commit that the log has; None without one."""
        return self._look_back(lambda seen: seen.tells_of(consumer_group)).restored_since(consumer_group)

    def newest_commit(self, consumer_group: str) -> Mapping[str, Any] | None:
        """The history's entry of the group's newest commit; None if the history has none."""
        version = self._look_back(lambda seen: consumer_group in seen.commits).commits.get(consumer_group)
        if version is None:
            return None
        entry = self._newest_commits.get(consumer_group)
        if entry is None or entry["version"] != version:
            entry = self.log.commit_info(version)
        if entry is not None:
            self._newest_commits[consumer_group] = entry
        return entry

    def _look_back(self, is_enough: Callable[[SeenCommits], bool]) -> SeenCommits:
        seen = look_back(self.version, self._seen, self.log.commit_infos_below, is_enough)
        if seen.last < seen.first and self.log.commit_info(self.version) is None:
            raise DeltaError(
                f"The log of {self.table.table_uri} lacks the commit of version {self.version}, where its "
                "reader stands, so whether a RESTORE took rows away cannot be told."
            )
        self._seen = seen
        return seen

    def before_restores(self, consumer_group: str) -> TableLog:
        """The version that a RESTORE after the group's last commit brought back; this object without one.

        Raises:
            DeltaError: If the log does not have it any more.
            ValueError: If the log does not say which one it was.
        """
        log = self
        # What was restored may have been restored itself, and the watermarks stayed each time.
        while (restored_at := log.restored_since_last_commit(consumer_group)) is not None:
            entry = log.log.commit_info(restored_at)
            if entry is None:
                raise ValueError(f"The RESTORE of version {restored_at} is not in the log any more.")
            table = DeltaTable(self.table.table_uri)
            table.load_as_version(restored_to(entry))
            log = TableLog(table)
        return log

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns.

        Raises:
            DeltaError: If they could not be added, and nobody else has done it meanwhile.
        """
        try:
            self.table.alter.add_columns(Schema.from_arrow(schema).fields)
        except DeltaError:
            self.table.update_incremental()
            if not set(schema.names) <= {column.name for column in self.form().columns}:
                raise

    def add(self, files: Sequence[WrittenFile], commit: SinkCommit) -> int:
        """Commit files and watermarks together, against this object's version; return the new version.

        Raises:
            DeltaError: If the commit failed, or if its outcome is unknown.
        """
        begun_at = self.version
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=file.partition_values,
                modification_time=time.time_ns() // 1_000_000,
                data_change=True,
                stats=file.stats_json,
            )
            for file in files
        ]
        self.table.create_write_transaction(
            actions,
            mode="append",
            schema=self.table.schema(),
            partition_by=list(self.table.metadata().partition_columns),
            commit_properties=self._properties(commit),
            post_commithook_properties=ONLY_COMMIT,
        )
        return self._made(begun_at, commit)

    def merge(
        self, files: Sequence[WrittenFile], keys: Sequence[str], columns: Sequence[str], commit: SinkCommit
    ) -> int:
        """As :meth:`add`, but rows with a key that the table has update that row's ``columns``."""
        if not files:
            return self.add((), commit)
        begun_at = self.version
        schema = self.arrow_schema
        stored = (
            pq.read_table(f"{self._folder}/{file.path}", filesystem=self._filesystem, partitioning=None)
            for file in files
        )
        rows = pa.concat_tables(
            [schema.empty_table(), *(table.select(schema.names).cast(schema) for table in stored)]
        )
        partitions = self.table.metadata().partition_columns
        if isinstance(self._filesystem, pafs.LocalFileSystem):
            check_folders(rows, partitions)
        rows, blank = with_blanks(rows, [name for name in keys if name in partitions])
        values = {quoted(name): f"{_SOURCE}.{quoted(name)}" for name in columns}
        merger = self.table.merge(
            newest_rows(rows, keys).select(list(columns)),
            predicate(keys, _SOURCE, _TARGET, blank),
            source_alias=_SOURCE,
            target_alias=_TARGET,
            commit_properties=self._properties(commit),
            post_commithook_properties=ONLY_COMMIT,
        )
        merger.when_matched_update(values).when_not_matched_insert(values).execute()
        version = self._made(begun_at, commit)
        self.remove(files)
        return version

    def remove(self, files: Sequence[WrittenFile]) -> None:
        """Remove files whose rows are in others by now; VACUUM finds what cannot be removed now."""
        for file in files:
            try:
                self._filesystem.delete_file(f"{self._folder}/{file.path}")
            except OSError:
                logger.info("file of a merged batch left for VACUUM path=%s", file.path, exc_info=True)

    def _made(self, begun_at: int, commit: SinkCommit) -> int:
        """The version of the commit just made."""
        # An append, unlike a merge, leaves the handle at the version it had.
        self.refresh()
        if self.version != begun_at + 1:
            return self.version_of(commit, begun_at)
        if self._transactions is not None and self._transactions.table_version == begun_at:
            self._transactions = Transactions(
                self.version, {**self._transactions.by_app_id, **commit.watermarks}
            )
        own_commit = SeenCommits(self.version, self.version, commits={commit.consumer_group: self.version})
        self._seen = own_commit.after(self._seen)
        return self.version

    def _properties(self, commit: SinkCommit) -> CommitProperties:
        return CommitProperties(
            custom_metadata=commit.metadata(**self.seen()),
            app_transactions=[Transaction(app_id, version) for app_id, version in commit.watermarks.items()],
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
