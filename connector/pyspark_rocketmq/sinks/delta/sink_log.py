"""A table's log as sinks read it: commits of consumer groups with their records, and RESTOREs between them.

A commit's *record* is the part of its ``userMetadata`` that a sink writes: the progress of the whole group.
Nothing here uses Spark, so that commands can read tables without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.delta.commit import CommitNote
from pyspark_rocketmq.delta.features import expires_transactions
from pyspark_rocketmq.delta.snapshot import CommitLog, Snapshot, TableSnapshot
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.sinks.delta.restores import LogSummary, summarize_log
from pyspark_rocketmq.sinks.delta.rules import (
    CHANGED_SINCE,
    SinkCommit,
    is_replacement,
    own_metadata,
    restored_to,
)
from pyspark_rocketmq.sinks.delta.task_files import TaskFolder


class SinkLog:
    """A table's log at one version; finds in it the commits of consumer groups, and RESTOREs.

    Methods that search the log raise DeltaError if the log no longer has the commit of this version.
    """

    def __init__(self, table: Snapshot, files: TaskFolder, lost_hint: str = "") -> None:
        """Start at the version of ``table``; ``files`` is the folder that tasks write to.

        ``lost_hint`` ends the error for a commit that was made but is not in the log, with advice.
        """
        self.table = table
        self.files = files
        self._lost_hint = lost_hint
        self._seen = LogSummary.empty(table.version)
        """Summary of the part of the log that was read."""
        self._newest_commits: dict[str, Mapping[str, Any]] = {}
        """Log entry of the newest commit of each group, as it was last read."""
        self._whole_record: Mapping[str, Any] | None = None
        """The entry that :meth:`whole_record_of` returned last."""
        self._recorded: tuple[SinkCommit, Mapping[str, Any]] | None = None
        """The commit for which :meth:`record_for` last made a record, and that record."""

    @property
    def log(self) -> CommitLog:
        """The table's commits."""
        return self.table.log

    @property
    def version(self) -> int:
        """The version of the table that this object is at."""
        return self.table.version

    def has_commit_of(self, consumer_group: str) -> bool:
        """Return whether the log shows that the group has committed.

        Each commit of a sink records a summary of the log before it. So any commit whose summary names the
        group is enough, even if the log no longer has the group's own commit. In that case
        :meth:`newest_commit` returns None.
        """
        return consumer_group in self._summary(lambda seen: consumer_group in seen.commits).commits

    def shows_no_commit_of(self, consumer_group: str) -> bool:
        """Return whether the log goes back to the table's first commit and has no commit of the group."""
        return not self.has_commit_of(consumer_group) and self._seen.first == 0

    def shows_restores_since(self, consumer_group: str) -> bool:
        """Return whether the log reaches back far enough to show a RESTORE since the group's newest commit.

        It must reach back to that commit, to any RESTORE, or to the table's first commit.
        """
        seen = self._summary(lambda seen: seen.covers(consumer_group))
        return seen.first == 0 or seen.covers(consumer_group)

    def find_commit(self, commit: SinkCommit, since: int) -> int | None:
        """Look for a commit after version ``since``; return its version, or None if it was not made."""
        later = takewhile(
            lambda entry: entry["version"] > since, self.log.commit_infos_below(self.version + 1)
        )
        return next((entry["version"] for entry in later if commit.is_in(entry)), None)

    def version_of(self, commit: SinkCommit, since: int) -> int:
        """Return the version of a commit that was made after version ``since``.

        Raises:
            DeltaError: If the commit is not in the log.
        """
        version = self.find_commit(commit, since)
        if version is None:
            raise DeltaError(
                f"Commit {commit.commit_id} was made after version {since}, but is not in the table's log."
                f"{self._lost_hint}"
            )
        return version

    def restored_since_last_commit(self, consumer_group: str) -> int | None:
        """Return the version of the last RESTORE if the group has made no commit since; otherwise None.

        A commit of the group counts only if its writer had seen the RESTORE in the log. A statement that
        replaces the table counts as a RESTORE.
        """
        return self._summary(lambda seen: seen.covers(consumer_group)).restored_since(consumer_group)

    def was_replaced_at(self, version: int) -> bool:
        """Return whether the commit of ``version`` replaced the table; False also if the log lacks it."""
        entry = self.log.commit_info(version)
        return entry is not None and is_replacement(entry)

    def commit_after_restore(self, consumer_group: str) -> int | None:
        """Return the version of the group's last commit if its writer missed a RESTORE that came before it.

        Otherwise return None.
        """
        return self._summary(lambda seen: seen.covers(consumer_group)).commit_after_restore(consumer_group)

    def newest_commit(self, consumer_group: str) -> Mapping[str, Any] | None:
        """Return the log entry of the group's newest commit; None if the log has none."""
        version = self._summary(lambda seen: consumer_group in seen.commits).commits.get(consumer_group)
        if version is None:
            return None
        entry = self._newest_commits.get(consumer_group)
        if entry is None or entry["version"] != version:
            entry = self.log.commit_info(version)
        if entry is not None:
            self._newest_commits[consumer_group] = entry
        return entry

    def whole_record_of(self, entry: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the log entry of the earlier commit to which ``entry``, the group's newest commit, refers.

        If a group has very many queues, most of its commits record only changes since an earlier commit that
        records all queues. Return None if ``entry`` refers to no such commit, or if the log no longer has it.
        """
        version = None if entry is None else own_metadata(entry).get(CHANGED_SINCE)
        if not isinstance(version, int):
            return None
        if self._whole_record is None or self._whole_record["version"] != version:
            found = self.log.commit_info(version)
            # Keep it parsed, because it is long.
            self._whole_record = None if found is None else {**found, "userMetadata": own_metadata(found)}
        return self._whole_record

    def _summary(self, is_enough: Callable[[LogSummary], bool]) -> LogSummary:
        if self._seen.first <= self._seen.last == self.version and is_enough(self._seen):
            return self._seen
        seen = summarize_log(self.version, self._seen, self.log.commit_infos_below, is_enough)
        if seen.last < seen.first and self.log.commit_info(self.version) is None:
            raise DeltaError(
                f"The log of {self.log.table_uri} no longer has the commit of version {self.version}, so it "
                "cannot be checked whether a RESTORE removed rows. Files of _delta_log were removed, or the "
                "table was put back, while this process had it open. Start the query again; if this happens "
                "again, put the missing files of _delta_log back."
            )
        self._seen = seen
        return seen

    def before_restores(self, consumer_group: str) -> SinkLog | None:
        """Return the log as of the version that a RESTORE after the group's last commit has brought back.

        Return this object if there was no such RESTORE. Return None if the table was replaced: then it has no
        rows of an earlier version.

        Raises:
            DeltaError: If the log no longer has that version.
            ValueError: If the log does not show which version it was.
            OffsetError: If the group's rows after the RESTORE must be removed first.
        """
        log: SinkLog = self
        # The restored version may itself come after a RESTORE, and each one kept the watermarks.
        while (restored_at := log.restored_since_last_commit(consumer_group)) is not None:
            commit_after = log.commit_after_restore(consumer_group)
            if commit_after is not None:
                raise OffsetError(
                    f"Group {consumer_group} added rows to {self.log.table_uri} in version {commit_after}, "
                    f"and had not seen the RESTORE in version {restored_at}. If it went back now, their "
                    "messages would be consumed again, and the rows would be there twice. Nothing was "
                    f"changed. Restore version {commit_after - 1} first, which also removes what others have "
                    "added after it; then call follow_restore again."
                )
            entry = log.log.commit_info(restored_at)
            if entry is None:
                raise ValueError(
                    f"The log no longer has version {restored_at}, the RESTORE's own commit, which names the "
                    "restored version."
                )
            if is_replacement(entry):
                return None
            log = SinkLog(log.table.as_of(restored_to(entry)), self.files, self._lost_hint)
        return log

    def record_for(self, commit: SinkCommit) -> dict[str, Any]:
        """Return the record for a commit: a summary of the log before it, and the group's progress."""
        seen = self._summary(lambda seen: seen.last >= seen.first).to_metadata()
        self._recorded = (commit, {"seen": seen, **commit.record})
        return dict(self._recorded[1])

    def note_of(self, commit: SinkCommit) -> CommitNote:
        """Return what ``commit`` stores besides its rows, if it follows this object's version."""
        return CommitNote(
            metadata=commit.metadata(**self.record_for(commit)),
            transactions=dict(commit.watermarks),
            # Where ids are deleted, later readers have only the record: it must include all commits before.
            only_next=expires_transactions(self.table.form()),
        )

    def note_made(self, begun_at: int, commit: SinkCommit) -> int:
        """Remember a commit that was just made after version ``begun_at``; return the commit's version.

        Raises:
            DeltaError: If the commit is not in the log.
        """
        if self.version != begun_at + 1:
            return self.version_of(commit, begun_at)
        own_commit = LogSummary(self.version, self.version, commits={commit.consumer_group: self.version})
        self._seen = own_commit.after(self._seen)
        if self._recorded is not None and self._recorded[0] is commit:
            # Keep the entry, so that the next commit need not read it from the log.
            own = commit.own(**self._recorded[1])
            self._newest_commits[commit.consumer_group] = {"version": self.version, "userMetadata": own}
        return self.version


def log_of(table: TableSnapshot) -> SinkLog:
    """Return the sink's log of a table, where tasks write their files into the table's own folder."""
    return SinkLog(table, TaskFolder(table.log.table_uri, table.log.storage))


def opened_log(table: DeltaTable, storage: StorageOptions = NO_OPTIONS) -> SinkLog:
    """Return the sink's log of a table just opened with these storage options; only for reading."""
    return log_of(TableSnapshot(table, storage, needs_delta_rs=False))
