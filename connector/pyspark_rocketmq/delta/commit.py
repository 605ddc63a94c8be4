"""Commits of a Delta table: their actions, two ways to make one, and a loop that retries after conflicts.

On disks of this machine, this package commits whole files by itself: a commit is a file of JSON lines that
gets its name by a link (:meth:`LogFiles.put`).  delta-rs makes the other commits of this package. In tables
whose rows are merged, delta-rs makes all commits except those of compaction. Spark's own writer, by which
sinks write some tables, is not part of this package.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from pyspark_rocketmq import __version__
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.log import CommitFile, LogFiles, transaction_line
from pyspark_rocketmq.delta.table import STORAGE_ERRORS
from pyspark_rocketmq.retry import Errors, commit_with_retry

T = TypeVar("T")

NO_POST_COMMIT_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Options for delta-rs to make a commit without a checkpoint and without removing expired log files.

delta-rs would look for expired files at each commit, which takes seconds in a log of 100,000 files.
:mod:`pyspark_rocketmq.delta.maintenance` does both from time to time.
"""
_MAX_CONFLICTS: Final = 100
"""How often another writer's commit may come first in one try; on a local disk each takes 0.1 ms."""

Partition = tuple[tuple[str, str | None], ...]
"""Pairs of partition column and text of its value, in the columns' order."""


class StoredFile(NamedTuple):
    """A data file of one version of a table."""

    path: str
    """Path as the log has it: URL-encoded."""
    size: int
    """Size in bytes."""
    partition: Partition


def is_below(path: str) -> bool:
    """Return whether a data file is below the table's folder, by its path in the log.

    False for absolute paths and URIs: a shallow clone has them for the files of the original table.
    """
    return "://" not in path and not path.startswith("/")


def stored_files(table: DeltaTable) -> Iterator[StoredFile]:
    """Yield the data files of the version that ``table`` is at, the oldest first by modification time."""
    files = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    files = files.sort_by("modification_time")
    names = table.metadata().partition_columns
    # Without partition_text: its comparison makes Arrow load pandas, which the source runner avoids.
    columns = (files[f"partition.{name}"].cast(pa.string()).to_pylist() for name in names)
    texts = [[text or None for text in column] for column in columns]
    partitions: Iterable[tuple[str | None, ...]] = zip(*texts, strict=True) if names else [()] * len(files)
    for path, size, values in zip(
        files["path"].to_pylist(), files["size_bytes"].to_pylist(), partitions, strict=True
    ):
        yield StoredFile(path, size, tuple(zip(names, values, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNote:
    """Fields and transaction ids that a commit stores besides its rows."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the commit's ``commitInfo``."""
    transactions: Mapping[str, int] = field(default_factory=dict)
    """Transaction ids that the commit sets, with their versions."""
    only_next: bool = False
    """Whether the commit must directly follow the version from which ``metadata`` was made.

    If False, delta-rs may put the commit after commits that other writers made since that version.
    """

    def properties(self, now_ms: int | None = None, *, max_retries: int | None = None) -> CommitProperties:
        """Return the note in delta-rs' form.

        ``now_ms`` is the time to store with the transaction ids; None stores no time.  ``max_retries`` limits
        how often delta-rs tries again after commits of others; None means its default. With
        :attr:`only_next`, it never tries again.
        """
        return CommitProperties(
            custom_metadata=dict(self.metadata),
            app_transactions=[Transaction(name, at, now_ms) for name, at in self.transactions.items()],
            max_commit_retries=0 if self.only_next else max_retries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommit:
    """A commit that adds and removes whole files."""

    operation: str
    parameters: Mapping[str, str]
    added: Sequence[WrittenFile]
    removed: Sequence[StoredFile] = ()
    changes_rows: bool = True
    """False if the added files hold the same rows as the removed ones."""
    note: CommitNote

    def actions(self, now_ms: int) -> Iterator[dict[str, Any] | str]:
        """Yield the commit's actions, first its ``commitInfo``; a string is a finished line of JSON.

        The ``commitInfo`` has the fields that delta-rs and Spark write, so ``DESCRIBE HISTORY`` shows them.
        """
        yield {
            "commitInfo": {
                "timestamp": now_ms,
                "operation": self.operation,
                "operationParameters": self.parameters,
                "engineInfo": f"pyspark-rocketmq/{__version__}",
                "isBlindAppend": self.parameters.get("mode") == "Append",
                **self.note.metadata,
            }
        }
        for file in self.removed:
            yield {
                "remove": {
                    "path": file.path,
                    "deletionTimestamp": now_ms,
                    "dataChange": self.changes_rows,
                    "extendedFileMetadata": True,
                    "partitionValues": dict(file.partition),
                    "size": file.size,
                }
            }
        for added in self.added:
            yield {
                "add": {
                    "path": added.log_path,
                    "partitionValues": dict(added.partition_values),
                    "size": added.size,
                    "modificationTime": now_ms,
                    "dataChange": self.changes_rows,
                    "stats": added.stats_json,
                }
            }
        yield from (transaction_line(name, at, now_ms) for name, at in self.note.transactions.items())

    def actions_of_delta_rs(self, now_ms: int) -> list[AddAction | RemoveAction]:
        """Return the removed and added files as actions of delta-rs, without the commit's note."""
        removed = (
            RemoveAction(
                unquote(file.path),
                self.changes_rows,
                now_ms,
                size=file.size,
                partition_values=dict(file.partition),
            )
            for file in self.removed
        )
        added = (
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=file.partition_values,
                modification_time=now_ms,
                data_change=self.changes_rows,
                stats=file.stats_json,
            )
            for file in self.added
        )
        return [*removed, *added]


def commit_files(
    log: LogFiles, table: DeltaTable | None, version: int, commit: FileCommit, *, only_next: bool = False
) -> CommitFile | None:
    """Commit files on top of a version: by a link in the log, or by delta-rs if a ``table`` is given.

    Return the commit's file; None if delta-rs made the commit.  With ``only_next``, the commit is made as the
    next version or not at all. Otherwise delta-rs may put it after other commits that it finds compatible.

    Raises:
        FileExistsError: If another commit came first; delta-rs raises DeltaError instead.  On a mount that
            sends requests twice, the other commit may be this very one.
        DeltaError, OSError: If the commit failed, or if its outcome is unknown.
    """
    now_ms = time.time_ns() // 1_000_000
    if table is None:
        return log.put(version + 1, commit.actions(now_ms))
    table.create_write_transaction(
        commit.actions_of_delta_rs(now_ms),
        mode="append",
        schema=table.schema(),
        partition_by=list(table.metadata().partition_columns),
        commit_properties=commit.note.properties(now_ms, max_retries=0 if only_next else None),
        post_commithook_properties=NO_POST_COMMIT_HOOKS,
    )
    return None


def commit_on_top(
    what: str,
    follow: Callable[[Exception | None], Callable[[], T]],
    *,
    pauses_s: Iterable[float] = (),
    sleep: Callable[[float], object] = time.sleep,
    unknown: Errors = STORAGE_ERRORS,
) -> T:
    """Commit on top of the commits of others; try until the commit is known to be stored.

    If another commit comes first, the commit is made on top of that one immediately, up to 100 times in one
    try. After 100 times, or after another error, there is a pause before the next try.

    Args:
        what: Name of the commit, for the log.
        follow: Called before each try, with the error of the try before, or None the first time.  It checks
            what other writers have committed since, and returns a function.  That function makes the commit
            on top of theirs and returns the result, or raises FileExistsError if another commit came first.
            If an earlier try has stored the commit, that function only returns the result.
        pauses_s: Pauses in seconds before further tries; when they are used up, the last error reaches the
            caller.
        sleep: Function that waits.
        unknown: Errors after which the commit may have been stored; all others reach the caller immediately.
    """

    def attempt(failure: Exception | None) -> T:
        conflicts = 0
        while True:
            commit = follow(failure)
            try:
                return commit()
            except FileExistsError as error:
                conflicts += 1
                if conflicts > _MAX_CONFLICTS:
                    raise
                failure = error

    return commit_with_retry(what, attempt, pauses_s, sleep, unknown=unknown)
