"""A sink table's log as one thread of the driver sees it: watermarks, RESTOREs, commits, merges.

On disks of this machine a commit that adds files is made here, and commits of others are followed one by one:
delta-rs takes the longer for them the more commits and files there are (:mod:`pyspark_rocketmq.delta.log`).
It opens the table, and again whenever a commit may have changed more than files.  It also merges, and does
all on other storage.

Rows to be merged pass through the driver, for delta-rs merges there: made for micro-batches, not for a
backfill of millions at once.
"""

from __future__ import annotations

import errno
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pyspark_rocketmq import __version__
from pyspark_rocketmq.delta.log import LogFiles, Transactions, transaction_line
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions, filesystem_of
from pyspark_rocketmq.delta.table import (
    ONLY_COMMIT,
    SURELY_KEPT_S,
    CommitLog,
    LogHandle,
    TableForm,
    open_table,
    read_form,
)
from pyspark_rocketmq.errors import OffsetError, SchemaError
from pyspark_rocketmq.sinks.delta_files import NULL_PARTITION, WrittenFile, is_folder_name
from pyspark_rocketmq.sinks.delta_rules import (
    CHANGED_SINCE,
    SinkCommit,
    features_of_every_commit,
    forgets_transactions,
    group_app_id,
    is_replacement,
    own_metadata,
    restored_to,
)
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
    # In one piece: of none at all, indices_nonzero of Arrow before 26 crashes the process.
    without_key = without_key.combine_chunks()
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


def commit_info(
    now_ms: int, operation: str, parameters: Mapping[str, str], *, is_blind_append: bool, **more: str
) -> dict[str, Any]:
    """What a commit of this package says of itself, in the words of delta-rs and Spark."""
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": f"pyspark-rocketmq/{__version__}",
            "isBlindAppend": is_blind_append,
            **more,
        }
    }


def add_by_delta_rs(file: WrittenFile, now_ms: int, *, data_change: bool = True) -> AddAction:
    """What delta-rs is told of a file it is to add."""
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition_values,
        modification_time=now_ms,
        data_change=data_change,
        stats=file.stats_json,
    )


def add_action(file: WrittenFile, now_ms: int, *, data_change: bool = True) -> dict[str, Any]:
    """What a commit says of a file it adds."""
    return {
        "add": {
            "path": quote(file.path, safe="/="),
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            "modificationTime": now_ms,
            "dataChange": data_change,
            "stats": file.stats_json,
        }
    }


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


class SinkLog(LogHandle):
    """What a sink asks of a table's log, whoever keeps it, and of the files that tasks have written."""

    table_id: str
    """What tells this table from every other one; a copy of its folder has it, too."""

    def __init__(self, log: CommitLog, version: int, rows_uri: str) -> None:
        """``rows_uri`` is where tasks write."""
        super().__init__(log, version)
        self._open_rows(rows_uri)
        self._seen = SeenCommits.empty(self.version)
        """What of the log was looked at."""
        self._newest_commits: dict[str, Mapping[str, Any]] = {}
        """By group: what its newest commit says, as of the last look."""
        self._whole_record: Mapping[str, Any] | None = None
        """The entry that :meth:`whole_record_of` returned last."""
        self._said: tuple[SinkCommit, Mapping[str, Any]] | None = None
        """The commit made last, and what it says of what was there before."""

    def _open_rows(self, rows_uri: str) -> None:
        self._rows_uri = rows_uri
        self._rows_place: tuple[pafs.FileSystem, str] | None = None

    @property
    def _filesystem(self) -> pafs.FileSystem:
        """Of the files that tasks write."""
        return self._place_of_rows()[0]

    @property
    def _folder(self) -> str:
        return self._place_of_rows()[1]

    def _place_of_rows(self) -> tuple[pafs.FileSystem, str]:
        if self._rows_place is None:
            self._rows_place = filesystem_of(self._rows_uri, self.log.storage)
        return self._rows_place

    @property
    def commits_by(self) -> str:
        """Who makes commits that add files, for the log."""
        raise NotImplementedError

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table's columns as Delta writes them into Parquet."""
        raise NotImplementedError

    def form(self) -> TableForm:
        """Columns, properties and features."""
        raise NotImplementedError

    def as_of(self, version: int) -> SinkLog:
        """The same table as it was; raises DeltaError if the log does not have that version any more."""
        raise NotImplementedError

    def all_transactions(self) -> Mapping[str, int]:
        """Transaction ids with their versions, as far as the log tells them."""
        raise NotImplementedError

    def transaction_versions(self, app_ids: Iterable[str]) -> dict[str, int]:
        """Stored versions of those of these transaction ids that the table has."""
        raise NotImplementedError

    def group_transactions(self, consumer_group: str, app_ids: Iterable[str]) -> dict[str, int]:
        """Return the group's transaction ids with their versions; at least those of ``app_ids``.

        Raises:
            OSError, ValueError, KeyError: If only ids that are named can be read, and none are.
        """
        group = group_app_id(consumer_group)
        of_queues = f"{group}:"
        try:
            known = self.all_transactions()
        except (OSError, ValueError, KeyError):
            if not (named := list(app_ids)):
                raise
            return self.transaction_versions([group, *named])
        return {name: at for name, at in known.items() if name.startswith(of_queues) or name == group}

    @property
    def begins_at_first_commit(self) -> bool:
        """Whether all commits have been looked at, after a look for one that was not found."""
        return self._seen.first == 0

    def shows_restores_since(self, consumer_group: str) -> bool:
        """Whether the log reaches back to the group's newest commit, or to the table's first one."""
        seen = self._look_back(lambda seen: seen.tells_of(consumer_group))
        return seen.first == 0 or seen.tells_of(consumer_group)

    def knows(self, consumer_group: str) -> bool:
        """Whether the group has ever committed rows."""
        return self.newest_commit(consumer_group) is not None

    @property
    def records_without_spark(self) -> bool:
        """Whether this object may make a commit without rows in a table that Spark writes."""
        return False

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns."""
        raise NotImplementedError

    def add(self, files: Sequence[WrittenFile], commit: SinkCommit) -> int:
        """Commit files and watermarks together, against this object's version; return the new version."""
        raise NotImplementedError

    def merge(
        self, files: Sequence[WrittenFile], keys: Sequence[str], columns: Sequence[str], commit: SinkCommit
    ) -> int:
        """As :meth:`add`, but rows with a key that the table has update that row's ``columns``."""
        raise NotImplementedError

    def unseen(self, files: Sequence[WrittenFile]) -> list[str]:
        """Which of ``files`` this machine does not see in the table's folder, or with another size."""
        found = self._filesystem.get_file_info([f"{self._folder}/{file.path}" for file in files])
        return [
            f"{file.path} ({'not there' if seen.size is None else f'{seen.size} bytes'} "
            f"instead of {file.size} bytes)"
            for file, seen in zip(files, found, strict=True)
            if seen.size != file.size
        ]

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
        """The version of the log's last RESTORE if no commit of the group knew it; None without one."""
        return self._look_back(lambda seen: seen.tells_of(consumer_group)).restored_since(consumer_group)

    def was_replaced_at(self, version: int) -> bool:
        """Whether that commit, which :meth:`restored_since_last_commit` named, made the table anew."""
        entry = self.log.commit_info(version)
        return entry is not None and is_replacement(entry)

    def came_past_restore(self, consumer_group: str) -> int | None:
        """The version of the group's commit behind that RESTORE, which came while it was made; or None."""
        return self._look_back(lambda seen: seen.tells_of(consumer_group)).came_past(consumer_group)

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

    def whole_record_of(self, entry: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the history's entry of the commit that a group's commit goes on from; None without one."""
        version = None if entry is None else own_metadata(entry).get(CHANGED_SINCE)
        if not isinstance(version, int):
            return None
        if self._whole_record is None or self._whole_record["version"] != version:
            found = self.log.commit_info(version)
            # Parsed once: it is long.
            self._whole_record = None if found is None else {**found, "userMetadata": own_metadata(found)}
        return self._whole_record

    def _look_back(self, is_enough: Callable[[SeenCommits], bool]) -> SeenCommits:
        if self._seen.first <= self._seen.last == self.version and is_enough(self._seen):
            return self._seen
        seen = look_back(self.version, self._seen, self.log.commit_infos_below, is_enough)
        if seen.last < seen.first and self.log.commit_info(self.version) is None:
            raise DeltaError(
                f"The log of {self.log.table_uri} lacks the commit of version {self.version}, where its "
                "reader stands, so whether a RESTORE took rows away cannot be told."
            )
        self._seen = seen
        return seen

    def before_restores(self, consumer_group: str) -> SinkLog | None:
        """The version that a RESTORE after the group's last commit brought back; this object without one.

        None if the table was replaced, so that nothing of any version is in it.

        Raises:
            DeltaError: If the log does not have it any more.
            ValueError: If the log does not say which one it was.
            OffsetError: If the group's rows behind the RESTORE are to be removed first.
        """
        log: SinkLog = self
        # What was restored may have been restored itself, and the watermarks stayed each time.
        while (restored_at := log.restored_since_last_commit(consumer_group)) is not None:
            came_past = log.came_past_restore(consumer_group)
            if came_past is not None:
                raise OffsetError(
                    f"While {self.log.table_uri} was restored at version {restored_at}, rows of group "
                    f"{consumer_group} were being added, which are in version {came_past}. They are consumed "
                    f"again, too, and would be there twice: restore version {came_past - 1} first, and call "
                    "this again."
                )
            entry = log.log.commit_info(restored_at)
            if entry is None:
                raise ValueError(f"The RESTORE of version {restored_at} is not in the log any more.")
            if is_replacement(entry):
                return None
            log = log.as_of(restored_to(entry))
        return log

    def remove(self, files: Sequence[WrittenFile]) -> None:
        """Remove files whose rows are in others by now; VACUUM finds what cannot be removed now."""
        for file in files:
            try:
                self._filesystem.delete_file(f"{self._folder}/{file.path}")
            except OSError:
                logger.info("file of a merged batch left for VACUUM path=%s", file.path, exc_info=True)

    def _note_commit(self, commit: SinkCommit) -> None:
        """This object's version is that commit's."""
        own_commit = SeenCommits(self.version, self.version, commits={commit.consumer_group: self.version})
        self._seen = own_commit.after(self._seen)
        if self._said is not None and self._said[0] is commit:
            # The next commit goes on from it, and need not read it.
            own = commit.own(**self._said[1])
            self._newest_commits[commit.consumer_group] = {"version": self.version, "userMetadata": own}

    def before(self, commit: SinkCommit) -> dict[str, Any]:
        """Return what a commit records: what its writer has seen of the log, and how far the group is."""
        seen = self._look_back(lambda seen: seen.last >= seen.first).to_metadata()
        self._said = (commit, {"seen": seen, **commit.record})
        return dict(self._said[1])


_MOST_FOLLOWED: Final = 1_000
"""Commits; opening the table takes about as long as reading so many."""


class TableLog(SinkLog):
    """A handle on the newest version of a sink's table, with the watermarks that are stored in it."""

    log: LogFiles

    def __init__(
        self, table: DeltaTable, storage: StorageOptions = NO_OPTIONS, *, merges: bool = False
    ) -> None:
        """``merges`` says whether rows are to be merged, for which delta-rs needs to know every file."""
        log = LogFiles(table.table_uri, storage)
        super().__init__(log, int(table.version()), log.table_uri)
        self._commits_itself = log.takes_commits and not merges
        self._table: DeltaTable | None = None
        """At this object's version, if commits are left to delta-rs."""
        self._take(table)
        self._transactions: Transactions | None = None
        """As of the last time they were asked for, or this object committed."""

    @property
    def commits_by(self) -> str:
        """Who makes commits that add files, for the log."""
        return "itself" if self._commits_itself else "delta-rs"

    @property
    def records_without_spark(self) -> bool:
        """Whether this object may make a commit without rows in a table that Spark writes."""
        return self._commits_itself and not features_of_every_commit(self._form)

    def _take(self, table: DeltaTable) -> int:
        """Remember what is the same in all versions until a commit changes more than files; the version."""
        self._form = read_form(table)
        self._schema = table.schema()
        self._arrow_schema = pa.schema(self._schema.to_arrow()).remove_metadata()
        self.table_id = str(table.metadata().id)
        # It holds the names of all files.
        self._table = None if self._commits_itself else table
        return int(table.version())

    def _newest_version(self, age_s: float) -> int:
        if self._table is not None:
            self._table.update_incremental()
            return self._take(self._table)
        version = self.version if age_s <= SURELY_KEPT_S else self._opened_anew()
        for _ in range(_MOST_FOLLOWED):
            keeps_form = self.log.keeps_form(version + 1)
            if keeps_form:
                version += 1
            elif keeps_form is None and not self._may_lack_commits_after(version):
                return version
            else:
                version = self._opened_anew()
        return self._opened_anew()

    def _opened_anew(self) -> int:
        self._checkpoint = self.log.last_checkpoint_file()
        return self._take(self._at(None))

    def _open_again(self) -> None:
        self.log = LogFiles(self.log.table_uri, self.log.storage)
        self._open_rows(self.log.table_uri)
        if self._table is not None:
            self._table = self._at(self.version)

    def as_of(self, version: int) -> TableLog:
        """See :meth:`SinkLog.as_of`."""
        return TableLog(self._at(version), self.log.storage)

    def _at(self, version: int | None) -> DeltaTable:
        return open_table(self.log.table_uri, self.log.storage, version=version)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table's columns as Delta writes them into Parquet."""
        return self._arrow_schema

    def form(self) -> TableForm:
        """Columns, properties and features."""
        return self._form

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
            table = self._table or self._at(self.version)
            known = {app_id: table.transaction_version(app_id) for app_id in app_ids}
        versions = ((app_id, known.get(app_id)) for app_id in app_ids)
        return {app_id: version for app_id, version in versions if version is not None}

    def knows(self, consumer_group: str) -> bool:
        """See :meth:`SinkLog.knows`."""
        try:
            known = self.all_transactions()
        except (OSError, ValueError, KeyError):
            return super().knows(consumer_group)
        group = group_app_id(consumer_group)
        has_id = any(each == group or each.startswith(f"{group}:") for each in known)
        return has_id or (forgets_transactions(self._form) and super().knows(consumer_group))

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns.

        Raises:
            DeltaError: If they could not be added, and nobody else has done it meanwhile.
        """
        try:
            self._at(None).alter.add_columns(Schema.from_arrow(schema).fields)
        except DeltaError:
            self.refresh()
            if not set(schema.names) <= self._form.column_types.keys():
                raise
        else:
            self.refresh()

    def add(self, files: Sequence[WrittenFile], commit: SinkCommit) -> int:
        """Commit files and watermarks together, against this object's version; return the new version.

        Raises:
            FileExistsError: If another commit came first, which is to be looked at before the next try.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        begun_at, now_ms = self.version, time.time_ns() // 1_000_000
        if self._table is None:
            if self.may_have_newer():
                raise FileExistsError(errno.EEXIST, f"There may be a commit after version {begun_at}")
            self._looked_s = self._clock.monotonic_s()
            self.log.put(begun_at + 1, self._actions(files, commit, now_ms))
            self._tip = self.log.commit_file(begun_at + 1)
            return self._made(begun_at, commit)
        actions: list[AddAction | RemoveAction] = [add_by_delta_rs(file, now_ms) for file in files]
        self._table.create_write_transaction(
            actions,
            mode="append",
            schema=self._schema,
            partition_by=list(self._form.partition_by),
            commit_properties=self._properties(commit, now_ms),
            post_commithook_properties=ONLY_COMMIT,
        )
        self.refresh()
        return self._made(begun_at, commit)

    def _actions(
        self, files: Sequence[WrittenFile], commit: SinkCommit, now_ms: int
    ) -> Iterator[dict[str, Any] | str]:
        """An append as a table takes it that :func:`refused_features` refuses nothing of.

        What it says of itself is what delta-rs and Spark say of theirs, for ``DESCRIBE HISTORY``.
        """
        parameters = {
            "mode": "Append",
            "partitionBy": json.dumps(self._form.partition_by, separators=(",", ":")),
        }
        yield commit_info(now_ms, "WRITE", parameters, is_blind_append=True, **self._metadata(commit))
        yield from (add_action(file, now_ms) for file in files)
        yield from (transaction_line(name, at, now_ms) for name, at in commit.watermarks.items())

    def merge(
        self, files: Sequence[WrittenFile], keys: Sequence[str], columns: Sequence[str], commit: SinkCommit
    ) -> int:
        """As :meth:`add`, but rows with a key that the table has update that row's ``columns``."""
        if not files:
            return self.add((), commit)
        assert self._table is not None, "not opened to merge"
        begun_at = self.version
        schema = self.arrow_schema
        stored = (
            pq.read_table(f"{self._folder}/{file.path}", filesystem=self._filesystem, partitioning=None)
            for file in files
        )
        rows = pa.concat_tables(
            [schema.empty_table(), *(table.select(schema.names).cast(schema) for table in stored)]
        )
        partitions = self._form.partition_by
        if isinstance(self._filesystem, pafs.LocalFileSystem):
            check_folders(rows, partitions)
        rows, blank = with_blanks(rows, [name for name in keys if name in partitions])
        values = {quoted(name): f"{_SOURCE}.{quoted(name)}" for name in columns}
        merger = self._table.merge(
            newest_rows(rows, keys).select(list(columns)),
            predicate(keys, _SOURCE, _TARGET, blank),
            source_alias=_SOURCE,
            target_alias=_TARGET,
            commit_properties=self._properties(commit, time.time_ns() // 1_000_000),
            post_commithook_properties=ONLY_COMMIT,
        )
        merger.when_matched_update(values).when_not_matched_insert(values).execute()
        self.refresh()
        version = self._made(begun_at, commit)
        self.remove(files)
        return version

    def _made(self, begun_at: int, commit: SinkCommit) -> int:
        """The version of the commit just made."""
        if self.version != begun_at + 1:
            return self.version_of(commit, begun_at)
        if self._transactions is not None and self._transactions.table_version == begun_at:
            self._transactions = Transactions(
                self.version, {**self._transactions.by_app_id, **commit.watermarks}
            )
        self._note_commit(commit)
        return self.version

    def _properties(self, commit: SinkCommit, now_ms: int) -> CommitProperties:
        return CommitProperties(
            custom_metadata=self._metadata(commit),
            app_transactions=[
                Transaction(app_id, version, now_ms) for app_id, version in commit.watermarks.items()
            ],
        )

    def _metadata(self, commit: SinkCommit) -> dict[str, str]:
        return commit.metadata(**self.before(commit))


def open_log(path: str, storage: StorageOptions = NO_OPTIONS, *, merges: bool = False) -> TableLog | None:
    """Open the table at its newest version, with renewed storage options; None when there is none."""
    storage.renew()
    try:
        return TableLog(open_table(path, storage), storage, merges=merges)
    except TableNotFoundError:
        return None
