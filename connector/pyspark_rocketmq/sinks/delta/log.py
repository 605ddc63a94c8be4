"""A sink table's log as one thread of the driver sees it: watermarks, RESTOREs, commits, merges.

On disks of this machine, this module makes the commits that add files, and follows commits of others one by
one.  delta-rs would need more time for both, the more commits and files there are
(:mod:`pyspark_rocketmq.delta.log`).  delta-rs opens the table, and opens it again whenever a commit may have
changed more than files.  It also merges, and it does everything on other storage.

Rows to be merged pass through the driver, because delta-rs merges there.  This is made for micro-batches, not
for a backfill of millions at once.
"""

from __future__ import annotations

import errno
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from pyspark_rocketmq.delta.commit import ONLY_COMMIT, CommitNote, FileCommit, commit_files
from pyspark_rocketmq.delta.files import NULL_PARTITION, WrittenFile, is_folder_name
from pyspark_rocketmq.delta.log import LogFiles, Transactions
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions, filesystem_of
from pyspark_rocketmq.delta.table import (
    SURELY_KEPT_S,
    CommitLog,
    LogHandle,
    TableForm,
    open_table,
    read_form,
)
from pyspark_rocketmq.errors import OffsetError, SchemaError
from pyspark_rocketmq.sinks.delta.restores import SeenCommits, look_back
from pyspark_rocketmq.sinks.delta.rules import (
    CHANGED_SINCE,
    SinkCommit,
    features_of_every_commit,
    forgets_transactions,
    group_app_id,
    is_replacement,
    own_metadata,
    restored_to,
)

logger = logging.getLogger(__name__)

_POSITION = ("topic", "brokerName", "queueId", "queueOffset")
_ROW = "__row"


def newest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the newest row of each key: the one with the highest queue offset.

    If one message has several rows of a key, the one emitted last is the newest. Messages with the same key
    belong in one queue. There is no order between queues; the queue that sorts last wins. A key that
    contains a null equals no other key, so all its rows are kept.
    """
    for name in keys:
        index = rows.schema.get_field_index(name)
        if pa.types.is_floating(rows.schema.field(index).type):
            # -0.0 and 0.0 are different keys for Arrow, and the same key for delta-rs.
            plain = pc.if_else(pc.equal(rows.column(index), 0.0), 0.0, rows.column(index))
            rows = rows.set_column(index, rows.schema.field(index), plain.cast(rows.schema.field(index).type))
    in_order = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _POSITION]))
    numbered = in_order.select(list(keys)).append_column(_ROW, pa.array(np.arange(len(rows))))
    whole = numbered.drop_null()
    last = whole.group_by(list(keys)).aggregate([(_ROW, "max")])[f"{_ROW}_max"].combine_chunks()
    without_key = pc.invert(pc.is_in(numbered[_ROW], value_set=whole[_ROW].combine_chunks()))
    # Combine the chunks: if there are none, indices_nonzero of Arrow before 26 crashes the process.
    without_key = without_key.combine_chunks()
    return in_order.take(pa.concat_arrays([last, pc.indices_nonzero(without_key).cast(pa.int64())]).sort())


def with_blanks(rows: pa.Table, columns: Iterable[str]) -> tuple[pa.Table, list[str]]:
    """Replace texts that the table stores as null in partition columns by ""; return rows and such columns.

    Delta cannot store an empty text as a partition value, and delta-rs cannot store the text that names the
    folder of null.
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
        SchemaError: If there is one; it names column and value.
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
    """Return the condition for rows with the same key.

    A key that contains a null equals no other key, so its rows are always added. In the columns ``blank`` the
    source has "" for what is null in the target.
    """
    return " AND ".join(
        f"coalesce({target}.{quoted(name)}, '') = {source}.{quoted(name)}"
        if name in blank
        else f"{target}.{quoted(name)} = {source}.{quoted(name)}"
        for name in keys
    )


def quoted(name: str) -> str:
    """Return a column's name, quoted for an expression."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


_SOURCE, _TARGET = "source", "target"


class SinkLog(LogHandle):
    """A sink's view of a table's log, kept in files or by a catalog, and of the files that tasks write."""

    table_id: str
    """Id that distinguishes this table from every other one, except copies of its folder."""

    def __init__(self, log: CommitLog, version: int, rows_uri: str) -> None:
        """Start at ``version``; tasks write files to ``rows_uri``."""
        super().__init__(log, version)
        self._open_rows(rows_uri)
        self._seen = SeenCommits.empty(self.version)
        """Summary of the part of the log that was read."""
        self._newest_commits: dict[str, Mapping[str, Any]] = {}
        """Entry of the newest commit of each group, as of the last look."""
        self._whole_record: Mapping[str, Any] | None = None
        """The entry that :meth:`whole_record_of` returned last."""
        self._said: tuple[SinkCommit, Mapping[str, Any]] | None = None
        """The last commit, and what it records of the log before it."""

    def _open_rows(self, rows_uri: str) -> None:
        self._rows_uri = rows_uri
        self._rows_place: tuple[pafs.FileSystem, str] | None = None

    @property
    def _filesystem(self) -> pafs.FileSystem:
        """File system of the files that tasks write."""
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
        """Name of what makes commits that add files, for the log."""
        raise NotImplementedError

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table's columns as Delta writes them into Parquet."""
        raise NotImplementedError

    def form(self) -> TableForm:
        """Return the table's columns, partitioning, properties and features."""
        raise NotImplementedError

    def as_of(self, version: int) -> SinkLog:
        """Return the table as of a version; raise DeltaError if the log no longer has that version."""
        raise NotImplementedError

    def all_transactions(self) -> Mapping[str, int]:
        """Return transaction ids with their versions, as far as the log contains them."""
        raise NotImplementedError

    def transaction_versions(self, app_ids: Iterable[str]) -> dict[str, int]:
        """Return the stored versions of these transaction ids, without those that the table lacks."""
        raise NotImplementedError

    def group_transactions(self, consumer_group: str, app_ids: Iterable[str]) -> dict[str, int]:
        """Return the group's transaction ids with their versions; at least those of ``app_ids``.

        Raises:
            OSError, ValueError, KeyError: If ids can only be read by their names, and ``app_ids`` is empty.
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
        """Whether the look for a commit reached the table's first commit; for use if it was not found."""
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
        """Commit files and watermarks together on top of this object's version; return the new version."""
        raise NotImplementedError

    def merge(
        self, files: Sequence[WrittenFile], keys: Sequence[str], columns: Sequence[str], commit: SinkCommit
    ) -> int:
        """Commit like :meth:`add`; a row whose key the table has updates the ``columns`` of that row."""
        raise NotImplementedError

    def unseen(self, files: Sequence[WrittenFile]) -> list[str]:
        """Describe those ``files`` that this machine sees not at all, or with another size."""
        found = self._filesystem.get_file_info([f"{self._folder}/{file.path}" for file in files])
        return [
            f"{file.path} ({'not there' if seen.size is None else f'{seen.size} bytes'} "
            f"instead of {file.size} bytes)"
            for file, seen in zip(files, found, strict=True)
            if seen.size != file.size
        ]

    def find_commit(self, commit: SinkCommit, since: int) -> int | None:
        """Look for a commit after version ``since``; return its version, or None if it was not made."""
        later = takewhile(
            lambda entry: entry["version"] > since, self.log.commit_infos_below(self.version + 1)
        )
        return next((entry["version"] for entry in later if commit.is_in(entry)), None)

    def version_of(self, commit: SinkCommit, since: int) -> int:
        """Return :meth:`find_commit` of a commit that was made.

        Raises:
            DeltaError: If the commit is not there.
        """
        version = self.find_commit(commit, since)
        if version is None:
            raise DeltaError(
                f"The commit {commit.commit_id} was made after version {since} and is not in the log."
            )
        return version

    def restored_since_last_commit(self, consumer_group: str) -> int | None:
        """Return the version of the last RESTORE if no commit of the group knew it; else None."""
        return self._look_back(lambda seen: seen.tells_of(consumer_group)).restored_since(consumer_group)

    def was_replaced_at(self, version: int) -> bool:
        """Whether a commit returned by :meth:`restored_since_last_commit` has replaced the table."""
        entry = self.log.commit_info(version)
        return entry is not None and is_replacement(entry)

    def came_past_restore(self, consumer_group: str) -> int | None:
        """Return the version of the group's commit during which that RESTORE came; else None."""
        return self._look_back(lambda seen: seen.tells_of(consumer_group)).came_past(consumer_group)

    def newest_commit(self, consumer_group: str) -> Mapping[str, Any] | None:
        """Return the history's entry of the group's newest commit; None if the history has none."""
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
        """Return the history's entry of the commit with all queues to which ``entry`` refers; else None."""
        version = None if entry is None else own_metadata(entry).get(CHANGED_SINCE)
        if not isinstance(version, int):
            return None
        if self._whole_record is None or self._whole_record["version"] != version:
            found = self.log.commit_info(version)
            # Keep it parsed, because it is long.
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
        """Return the log as of the version that a RESTORE after the group's last commit brought back.

        Return this object if there was no RESTORE, and None if the table was replaced, so that it has rows of
        no earlier version.

        Raises:
            DeltaError: If the log no longer has that version.
            ValueError: If the log does not show which version it was.
            OffsetError: If the group's rows after the RESTORE must be removed first.
        """
        log: SinkLog = self
        # The restored version may itself come after a RESTORE, and each one kept the watermarks.
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
        """Remove files whose rows are in other files by now; VACUUM removes those that are left."""
        for file in files:
            try:
                self._filesystem.delete_file(f"{self._folder}/{file.path}")
            except OSError:
                logger.info("file of a merged batch left for VACUUM path=%s", file.path, exc_info=True)

    def _note_commit(self, commit: SinkCommit) -> None:
        """Note that this object's version is that of ``commit``."""
        own_commit = SeenCommits(self.version, self.version, commits={commit.consumer_group: self.version})
        self._seen = own_commit.after(self._seen)
        if self._said is not None and self._said[0] is commit:
            # Kept for the next commit, which then need not read it.
            own = commit.own(**self._said[1])
            self._newest_commits[commit.consumer_group] = {"version": self.version, "userMetadata": own}

    def before(self, commit: SinkCommit) -> dict[str, Any]:
        """Return the record for a commit: what its writer has seen of the log, and the group's progress."""
        seen = self._look_back(lambda seen: seen.last >= seen.first).to_metadata()
        self._said = (commit, {"seen": seen, **commit.record})
        return dict(self._said[1])


_MOST_FOLLOWED: Final = 1_000
"""Most commits that are followed; opening the table takes about as long as reading this many."""


class TableLog(SinkLog):
    """A handle on the newest version of a sink's table, read from its files."""

    log: LogFiles

    def __init__(
        self, table: DeltaTable, storage: StorageOptions = NO_OPTIONS, *, merges: bool = False
    ) -> None:
        """Start at the version of ``table``; to merge rows (``merges``), delta-rs must know every file."""
        log = LogFiles(table.table_uri, storage)
        super().__init__(log, int(table.version()), log.table_uri)
        self._commits_itself = log.takes_commits and not merges
        self._table: DeltaTable | None = None
        """The table at this object's version, if delta-rs makes the commits."""
        self._take(table)
        self._transactions: Transactions | None = None
        """Transaction ids as of the last query for them, or the last commit of this object."""

    @property
    def commits_by(self) -> str:
        """See :meth:`SinkLog.commits_by`."""
        return "itself" if self._commits_itself else "delta-rs"

    @property
    def records_without_spark(self) -> bool:
        """Whether this object may make a commit without rows in a table that Spark writes."""
        return self._commits_itself and not features_of_every_commit(self._form)

    def _take(self, table: DeltaTable) -> int:
        """Store what stays the same until a commit changes more than files; return the version."""
        self._form = read_form(table)
        self._schema = table.schema()
        self._arrow_schema = pa.schema(self._schema.to_arrow()).remove_metadata()
        self.table_id = str(table.metadata().id)
        # Kept only if needed, because it has the names of all files in memory.
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
        """See :meth:`SinkLog.form`."""
        return self._form

    def all_transactions(self) -> Mapping[str, int]:
        """Return all transaction ids with their versions; for errors see :meth:`LogFiles.transactions`."""
        self._transactions = self.log.transactions(self.version, self._transactions)
        return self._transactions.by_app_id

    def transaction_versions(self, app_ids: Iterable[str]) -> dict[str, int]:
        """See :meth:`SinkLog.transaction_versions`."""
        known: Mapping[str, int | None]
        try:
            known = self.all_transactions()
        except (OSError, ValueError, KeyError):
            # The log has the form of a later protocol, or a checkpoint of a later version: ask delta-rs.
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
            DeltaError: If they could not be added, and no other writer has added them meanwhile.
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
        """Commit files and watermarks together on top of this object's version; return the new version.

        Raises:
            FileExistsError: If another commit came first; the caller must check it before the next try.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        begun_at, partition_by = self.version, self._form.partition_by
        if self._table is None:
            if self.may_have_newer():
                raise FileExistsError(errno.EEXIST, f"There may be a commit after version {begun_at}")
            self._looked_s = self._clock.monotonic_s()
        parameters = {"mode": "Append", "partitionBy": json.dumps(partition_by, separators=(",", ":"))}
        append = FileCommit(operation="WRITE", parameters=parameters, added=files, note=self._note(commit))
        commit_files(self.log, self._table, begun_at, append)
        if self._table is None:
            self._tip = self.log.commit_file(begun_at + 1)
        else:
            self.refresh()
        return self._made(begun_at, commit)

    def merge(
        self, files: Sequence[WrittenFile], keys: Sequence[str], columns: Sequence[str], commit: SinkCommit
    ) -> int:
        """See :meth:`SinkLog.merge`."""
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
            commit_properties=self._note(commit).properties(time.time_ns() // 1_000_000),
            post_commithook_properties=ONLY_COMMIT,
        )
        merger.when_matched_update(values).when_not_matched_insert(values).execute()
        self.refresh()
        version = self._made(begun_at, commit)
        self.remove(files)
        return version

    def _made(self, begun_at: int, commit: SinkCommit) -> int:
        """Return the version of the commit just made, and note it."""
        if self.version != begun_at + 1:
            return self.version_of(commit, begun_at)
        if self._transactions is not None and self._transactions.table_version == begun_at:
            self._transactions = Transactions(
                self.version, {**self._transactions.by_app_id, **commit.watermarks}
            )
        self._note_commit(commit)
        return self.version

    def _note(self, commit: SinkCommit) -> CommitNote:
        return CommitNote(
            metadata=commit.metadata(**self.before(commit)), transactions=dict(commit.watermarks)
        )


def open_log(path: str, storage: StorageOptions = NO_OPTIONS, *, merges: bool = False) -> TableLog | None:
    """Open the table at its newest version, with renewed storage options; return None without a table."""
    storage.renew()
    try:
        return TableLog(open_table(path, storage), storage, merges=merges)
    except TableNotFoundError:
        return None
