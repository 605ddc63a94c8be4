"""The commits that a sink makes without Spark: rows with watermarks, only watermarks, or new columns.

A commit has a *record*: fields in its ``userMetadata`` with the progress of the whole consumer group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pyspark_rocketmq.delta.commit import CommitNote
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.snapshot import Snapshot, TableSnapshot
from pyspark_rocketmq.model import POSITION_COLUMNS
from pyspark_rocketmq.sinks.delta.rules import SinkCommit, group_app_id
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit


class Appender(Protocol):
    """Commits a batch's rows and watermarks to the table.

    One implementation adds the tasks' files as they are, others merge their rows or let Spark write them.
    """

    @property
    def commits_by(self) -> str:
        """Name of the writer that makes the commits, for log messages.

        It is ``Spark``, ``delta-rs``, or ``itself`` if this package writes the commits.
        """
        ...

    def append(
        self,
        log: SinkLog,
        files: Sequence[WrittenFile],
        before: GroupCommit,
        commit: SinkCommit,
        columns: pa.Schema,
    ) -> int:
        """Commit files and watermarks together on top of the log's version; return the new version.

        Args:
            log: The table's log, at the version that was checked.
            files: Files that tasks wrote.
            before: The group's progress at that version.
            commit: The commit to make, with the watermarks that it moves.
            columns: The rows' columns.

        Raises:
            FileExistsError: If another commit came first, or may have come first. Before the next try, the
                caller must look for the other commit.
            DeltaError, OSError, PySparkException: If the commit failed, or if its outcome is unknown.
        """
        ...

    def set_watermarks(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """Make a commit without rows that sets watermarks, for an operator; return the new version."""
        ...

    def add_columns(self, log: SinkLog, columns: pa.Schema) -> None:
        """Add columns to the table."""
        ...


@dataclass(frozen=True)
class FileAppender:
    """Adds the tasks' files to the table as they are; implements :class:`Appender`."""

    table: TableSnapshot
    """The same table as ``log.table`` of the log that is passed to the methods."""

    @property
    def commits_by(self) -> str:
        """Name of the writer that makes the commits, for log messages.

        It is ``itself`` if this package writes the commits, else ``delta-rs``.
        """
        return "itself" if self.table.commits_itself else "delta-rs"

    def append(
        self,
        log: SinkLog,
        files: Sequence[WrittenFile],
        before: GroupCommit,
        commit: SinkCommit,
        columns: pa.Schema,  # noqa: ARG002 - files have them
    ) -> int:
        """Commit files and watermarks together on top of the log's version; return the new version.

        Raises:
            FileExistsError: If another commit came first, or may have.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        return self.put(log, files, with_record(before, commit))

    def set_watermarks(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """Make a commit without rows that sets watermarks, for an operator; return the new version."""
        record = before.record_of_files(commit, time.time_ns() // 1_000_000)
        watermarks = {**before.watermarks, **commit.watermarks}
        return self.put(log, (), commit._replace(watermarks=watermarks, record=record))

    def set_watermarks_as_spark(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """Make a commit without rows that sets watermarks in the form of Spark's commits; return the version.

        In this form, one transaction id counts the group's commits by Spark, and the watermarks are only in
        the commit's record.
        """
        counter = {group_app_id(commit.consumer_group): before.number + 1}
        record = before.record_by_spark(commit)
        return self.put(log, (), commit._replace(watermarks=counter, record=record))

    def add_columns(self, log: SinkLog, columns: pa.Schema) -> None:  # noqa: ARG002 - it has the same table
        """Add columns to the table, and move to the newest version."""
        self.table.add_columns(columns)

    def put(self, log: SinkLog, files: Sequence[WrittenFile], commit: SinkCommit) -> int:
        """Commit ``files`` with the watermarks and the record of ``commit``; return the new version.

        Raises the errors of :meth:`append`.
        """
        begun_at = self.table.version
        self.table.append(files, log.note_of(commit))
        return log.note_made(begun_at, commit)

    def append_merged(
        self,
        log: SinkLog,
        files: Sequence[WrittenFile],
        before: GroupCommit,
        commit: SinkCommit,
        merge: Callable[[CommitNote], None],
    ) -> int:
        """Commit the rows of the tasks' files by ``merge``, then remove the files; return the new version.

        ``merge`` makes the commit; its argument has the fields and transaction ids to store with it. If there
        are no files, commit only watermarks and record, without ``merge``. Raises the errors of
        :meth:`Appender.append`.
        """
        commit = with_record(before, commit)
        if not files:
            return self.put(log, files, commit)
        begun_at = self.table.version
        merge(log.note_of(commit))
        version = log.note_made(begun_at, commit)
        log.files.remove(files)
        return version


@dataclass(frozen=True)
class MergeAppender:
    """Reads the tasks' files back and merges their rows into the table by key; an :class:`Appender`."""

    table: TableSnapshot
    """The same table as ``log.table`` of the log that is passed to the methods."""
    keys: Sequence[str]

    @property
    def commits_by(self) -> str:
        """Name of the writer that makes the commits, for log messages: always ``delta-rs``, which merges."""
        return "delta-rs"

    def append(
        self,
        log: SinkLog,
        files: Sequence[WrittenFile],
        before: GroupCommit,
        commit: SinkCommit,
        columns: pa.Schema,
    ) -> int:
        """Merge the rows of ``files`` by key and move watermarks, in one commit; return the new version.

        If the table has a row with the key, the row's ``columns`` are updated; else the new row is added.

        If there are several new rows of a key, the newest one is used: the one with the highest queue offset,
        and of one message's rows the one emitted last.  Messages with the same key should be in one queue,
        since queues have no order among themselves. If they are in several, the row of the queue that sorts
        last is used.
        """

        def merge(note: CommitNote) -> None:
            rows = log.files.read(files, self.table.arrow_schema)
            self.table.merge(rows, self.keys, columns.names, note, order=POSITION_COLUMNS)

        return FileAppender(self.table).append_merged(log, files, before, commit, merge)

    def set_watermarks(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """Make a commit without rows that sets watermarks, for an operator; return the new version."""
        return FileAppender(self.table).set_watermarks(log, before, commit)

    def add_columns(self, log: SinkLog, columns: pa.Schema) -> None:  # noqa: ARG002 - it has the same table
        """Add columns to the table, and move to the newest version."""
        self.table.add_columns(columns)


def with_record(before: GroupCommit, commit: SinkCommit) -> SinkCommit:
    """Return ``commit`` with a record: the group's progress after the commit.

    ``before`` is the progress before the commit. The returned commit also sets those watermarks of ``before``
    that the table's transaction ids lack.
    """
    return commit._replace(
        # After this commit readers use the transaction ids, so add those that are missing for other queues.
        watermarks={**before.not_in_ids, **commit.watermarks},
        record=before.record_of_files(commit, time.time_ns() // 1_000_000),
    )


@dataclass(frozen=True)
class SinkHandle:
    """A sink's opened table, for one thread of the driver, with the objects that commit to it."""

    log: SinkLog
    appender: Appender
    """Makes the commits, unless Spark must write the table; for a table in a catalog it is Spark's writer."""
    recorder: FileAppender | None
    """Makes commits without rows in a table whose rows Spark writes; None if only Spark can."""

    @property
    def snapshot(self) -> Snapshot:
        """The table at its newest version."""
        return self.log.table
