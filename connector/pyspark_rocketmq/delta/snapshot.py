"""A Delta table as one thread sees it: its newest version, and commits on top of that version.

A snapshot is at one version and moves to newer ones when asked.  A commit is checked against the version that
the snapshot is at, so threads must not share one (:class:`HandlePerThread`).

On disks of this machine, a snapshot can commit files, and follow commits of others one by one, without
delta-rs.  The more commits and files a table has, the longer delta-rs would take for both
(:mod:`pyspark_rocketmq.delta.log`).  Such a snapshot uses delta-rs only to open the table again after a
commit that may have changed more than files.  On other storage delta-rs does everything.  It also
does everything except compaction if rows are merged, replaced by a condition or queried
(``needs_delta_rs``).
"""

from __future__ import annotations

import errno
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.delta.commit import CommitNote, FileCommit, commit_files
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.log import LogFiles, Transactions
from pyspark_rocketmq.delta.merge import merge_rows
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, TableForm, arrow_columns, open_table, read_form
from pyspark_rocketmq.display import masked, masking_logger

logger = masking_logger(__name__)

MAX_AGE_S: Final = 3600.0
"""Longest time since the last look for newer commits, in seconds, at which these are still read one by one.

After a longer time the table is opened again, because commits may have been cleaned up. By default Delta
keeps commits for 30 days.
"""
_MAX_FOLLOWED: Final = 1_000
"""Maximum number of commits that are read one by one.

Opening the table takes about as long as reading so many.
"""


class CommitLog(Protocol):
    """A table's commits, read from its files or from a catalog; see ``LogFiles``."""

    @property
    def table_uri(self) -> str:
        """The table's URI, or its name in a catalog."""
        ...

    @property
    def storage(self) -> StorageOptions:
        """Options to reach the table's storage."""
        ...

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """Return a commit's information, with its version; None if the commit is no longer kept.

        It is the log's ``commitInfo``, or the entry in the catalog's history.
        """
        ...

    def commit_infos_below(self, version: int) -> Iterator[dict[str, Any]]:
        """Yield :meth:`commit_info` of versions below ``version``, newest first, as far as they are kept."""
        ...


class TableView(Protocol):
    """A table as of one version; :meth:`refresh` moves it to the newest one."""

    @property
    def log(self) -> CommitLog:
        """The table's commits."""
        ...

    def use_renewed_options(self) -> None:
        """Use the storage options as they were last renewed.

        Raises:
            DeltaError: If the storage does not answer.
        """
        ...

    def is_still_there(self) -> bool:
        """Return whether the log still has the commit that was the newest one at the last look.

        This is False if the table was deleted, created again or put back to an earlier state, or if that
        commit was cleaned up.
        """
        ...

    def may_have_newer(self) -> bool:
        """Return whether there may be a newer commit; call this only if :meth:`is_still_there` is True."""
        ...

    def refresh(self) -> None:
        """Move to the newest version."""
        ...


class Handle(Protocol):
    """An opened table, which one thread keeps; other threads must not use it."""

    @property
    def snapshot(self) -> TableView:
        """The table as of the version that this handle is at."""
        ...


class Snapshot(TableView, Protocol):
    """A table at one version, read from its files or from a catalog."""

    @property
    def version(self) -> int:
        """The version of the table that this object is at."""
        ...

    @property
    def table_id(self) -> str:
        """Id of this table, which no other table has except copies of its folder."""
        ...

    @property
    def location(self) -> str:
        """The table's folder; empty if the catalog does not show it."""
        ...

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table's columns as Delta writes them into Parquet."""
        ...

    @property
    def shows_transactions(self) -> bool:
        """Whether :meth:`all_transactions` has the ids of every commit.

        False for a table in a catalog: its folder, from which ids are read, may lack commits made through the
        catalog.
        """
        ...

    def form(self) -> TableForm:
        """Return the table's columns, partitioning, properties and features."""
        ...

    def as_of(self, version: int) -> Snapshot:
        """Return the table as of a version; raise DeltaError if the log no longer has that version."""
        ...

    def all_transactions(self) -> Mapping[str, int]:
        """Return the transaction ids in the log with their versions."""
        ...

    def transaction_versions(self, app_ids: Iterable[str]) -> dict[str, int]:
        """Return the stored versions of these transaction ids, without those that the table lacks."""
        ...


class _TableFacts(NamedTuple):
    """The part of a table's state that changes only when a commit changes more than files."""

    form: TableForm
    arrow_schema: pa.Schema
    table_id: str

    @classmethod
    def of(cls, table: DeltaTable) -> _TableFacts:
        return cls(read_form(table), arrow_columns(table), str(table.metadata().id))


class TableSnapshot:
    """A table read from its files, at its newest version unless :meth:`as_of` made it.

    Implements :class:`Snapshot`.
    """

    def __init__(
        self,
        table: DeltaTable,
        storage: StorageOptions = NO_OPTIONS,
        *,
        needs_delta_rs: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Start at the version of ``table``, which was just opened with the storage options ``storage``.

        Set ``needs_delta_rs`` if rows will be merged, replaced or queried. delta-rs does this, and for it
        keeps the names of all files in memory.
        """
        self._log = LogFiles(table.table_uri, storage)
        self._values = storage.values
        self._clock = clock or SystemClock()
        self._refreshed_s = self._clock.monotonic_s()
        """Time of the last look for newer commits, monotonic."""
        self._tip = self._log.commit_file(int(table.version()))
        self._checkpoint = self._last_checkpoint_file()
        """Size and time, at the last look, of the file that names the newest checkpoint.

        None on remote storage.
        """
        self.commits_itself: Final = self._log.takes_commits and not needs_delta_rs
        """Whether this object makes commits of files, by a link in the log; otherwise delta-rs makes them."""
        self._table: DeltaTable | None = None
        """The table at this version, if delta-rs makes the commits; None if this object makes them."""
        self._facts: _TableFacts | None = None
        self._use(table)
        self._transactions: Transactions | None = None
        """Transaction ids as of the last query for them, or this object's last commit; None before that."""

    @property
    def log(self) -> LogFiles:
        """The table's log."""
        return self._log

    @property
    def version(self) -> int:
        """The version of the table that this object is at."""
        return self._tip.version

    @property
    def snapshot(self) -> TableSnapshot:
        """This object; see :class:`Handle`."""
        return self

    @property
    def table(self) -> DeltaTable:
        """The table at this version, for delta-rs. If :attr:`commits_itself`, each access opens it again."""
        return self._open_version(self.version) if self._table is None else self._table

    @property
    def table_id(self) -> str:
        """The id in the table's metadata; only copies of the table's folder have the same one."""
        return self._current_facts().table_id

    @property
    def location(self) -> str:
        """The path or URI of the table's folder."""
        return self._log.table_uri

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table's columns as Delta writes them into Parquet."""
        return self._current_facts().arrow_schema

    @property
    def shows_transactions(self) -> bool:
        """True: the log, from which transaction ids are read, has all commits."""
        return True

    def form(self) -> TableForm:
        """Return the table's columns, partitioning, properties and features.

        If :attr:`commits_itself`, the object is the same until a commit may have changed the form; else each
        refresh makes a new one.
        """
        return self._current_facts().form

    def _current_facts(self) -> _TableFacts:
        if self._facts is None:
            self._facts = _TableFacts.of(self.table)
        return self._facts

    def _use(self, table: DeltaTable) -> int:
        """Note the state of a table that was opened or refreshed; return its version."""
        # Keep the table only if delta-rs commits: it has the names of all files in memory.
        self._table, self._facts = (None, _TableFacts.of(table)) if self.commits_itself else (table, None)
        return int(table.version())

    def use_renewed_options(self) -> None:
        """Use the storage options as they were last renewed."""
        storage = self._log.storage
        if storage.values is self._values:
            return
        self._values = storage.values
        self._log = LogFiles(self._log.table_uri, storage)
        if self._table is not None:
            self._table = self._open_version(self.version)

    def is_still_there(self) -> bool:
        """Return whether the log still has the commit that was the newest one at the last look.

        delta-rs does not notice if another table with as many commits was put here, and would commit to it.
        """
        return self._log.commit_file(self._tip.version) == self._tip

    def may_have_newer(self) -> bool:
        """Return whether there may be a commit after the version that this object is at.

        There may be one if the log has the next commit, or if the next commit may have been cleaned up after
        a checkpoint of a later version.  On remote storage, and after :data:`MAX_AGE_S` without a look, only
        delta-rs can find out, so the answer is True.
        """
        if not self._log.is_local or self._age_s() > MAX_AGE_S:
            return True
        version = self._tip.version
        return self._log.commit_file(version + 1).size is not None or self._may_lack_commits_after(version)

    def refresh(self) -> None:
        """Move to the newest version of the table."""
        refreshed_s, age_s = self._clock.monotonic_s(), self._age_s()
        # If this raises, the next look does a full refresh.
        self._refreshed_s = -math.inf
        checkpoint = self._last_checkpoint_file()
        version = self._newest_version(age_s)
        self._refreshed_s, self._checkpoint = refreshed_s, checkpoint
        if version != self._tip.version:
            self._tip = self._log.commit_file(version)

    def _newest_version(self, age_s: float) -> int:
        """Return the newest version; the last look was ``age_s`` seconds ago."""
        if self._table is not None:
            self._table.update_incremental()
            return self._use(self._table)
        version = self.version if age_s <= MAX_AGE_S else self._reopen()
        for _ in range(_MAX_FOLLOWED):
            keeps_form = self._log.keeps_form(version + 1)
            if keeps_form:
                version += 1
            elif keeps_form is None and not self._may_lack_commits_after(version):
                return version
            else:
                version = self._reopen()
        return self._reopen()

    def _reopen(self) -> int:
        self._checkpoint = self._log.last_checkpoint_file()
        return self._use(self._open_version(None))

    def _open_version(self, version: int | None) -> DeltaTable:
        return open_table(self._log.table_uri, self._log.storage, version=version)

    def _last_checkpoint_file(self) -> tuple[int | None, int | None] | None:
        # Only used for local tables; for remote ones it would take two requests.
        return self._log.last_checkpoint_file() if self._log.is_local else None

    def _may_lack_commits_after(self, version: int) -> bool:
        # A checkpoint that the last look has seen is not read again.
        is_known = self._log.last_checkpoint_file() == self._checkpoint
        return not is_known and self._log.may_lack_commits_after(version)

    def _age_s(self) -> float:
        return self._clock.monotonic_s() - self._refreshed_s

    def as_of(self, version: int) -> TableSnapshot:
        """Return the table as of ``version``, only for reading; raise DeltaError if that version is gone."""
        return TableSnapshot(
            self._open_version(version), self._log.storage, needs_delta_rs=False, clock=self._clock
        )

    def all_transactions(self) -> Mapping[str, int]:
        """Return all transaction ids with their versions; for errors see :meth:`LogFiles.transactions`."""
        self._transactions = self._log.transactions(self.version, self._transactions)
        return self._transactions.by_app_id

    def transaction_versions(self, app_ids: Iterable[str]) -> dict[str, int]:
        """Return the stored versions of these transaction ids, without those that the table lacks."""
        known: Mapping[str, int | None]
        try:
            known = self.all_transactions()
        except (OSError, ValueError, KeyError):
            # The log has the form of a later protocol, or a checkpoint of a later version: ask delta-rs.
            app_ids = list(app_ids)
            table = self.table
            known = {app_id: table.transaction_version(app_id) for app_id in app_ids}
        versions = ((app_id, known.get(app_id)) for app_id in app_ids)
        return {app_id: version for app_id, version in versions if version is not None}

    def add_columns(self, schema: pa.Schema) -> None:
        """Add the columns of ``schema`` to the table, and move to the newest version.

        Raises:
            DeltaError: If the columns could not be added, and no other writer has added them meanwhile.
        """
        try:
            self._open_version(None).alter.add_columns(Schema.from_arrow(schema).fields)
        except DeltaError:
            self.refresh()
            if not set(schema.names) <= self.form().column_types.keys():
                raise
        else:
            self.refresh()

    def append(self, files: Sequence[WrittenFile], note: CommitNote) -> None:
        """Add files to the table in one commit, and move to it; raise the errors of :meth:`commit`."""
        partition_by = json.dumps(self.form().partition_by, separators=(",", ":"))
        parameters = {"mode": "Append", "partitionBy": partition_by}
        self.commit(FileCommit(operation="WRITE", parameters=parameters, added=files, note=note))

    def commit(self, commit: FileCommit) -> None:
        """Commit files on top of this version, and move to a version with that commit.

        Raises:
            FileExistsError: If another commit came first, or may have come first. Before the next try, the
                caller must check for it.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        begun_at = self.version
        if self._table is None:
            if self.may_have_newer():
                raise FileExistsError(errno.EEXIST, f"There may be a commit after version {begun_at}")
            self._refreshed_s = self._clock.monotonic_s()
        with self._noticing_others():
            made = commit_files(self._log, self._table, begun_at, commit)
        if made is None:
            self.refresh()
        else:
            self._tip = made
        self._note_commit(begun_at, commit.note)

    def merge(
        self,
        rows: pa.Table,
        keys: Sequence[str],
        columns: Sequence[str],
        note: CommitNote,
        *,
        order: Sequence[str],
    ) -> None:
        """Commit rows by :func:`merge_rows` on top of this version, and move to the newest version.

        Raises:
            SchemaError: If a partition value is too long for the name of a local folder.
            FileExistsError: If another commit came first, and delta-rs does not find it compatible.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        begun_at, partition_by = self.version, self.form().partition_by
        now_ms = time.time_ns() // 1_000_000
        with self._noticing_others():
            merge_rows(
                self.table,
                rows,
                keys,
                columns,
                order=order,
                partition_by=partition_by,
                is_local=self._log.is_local,
                properties=note.properties(now_ms),
            )
        self.refresh()
        self._note_commit(begun_at, note)

    def write_next(self, write: Callable[[DeltaTable, CommitProperties], object], note: CommitNote) -> None:
        """Let delta-rs write exactly the next version, and move to the newest version.

        ``write`` gets the table at this object's version, and the properties of the commit that it must make.
        If it makes no commit, because no row changes, an empty commit is made to store ``note``.

        Raises:
            FileExistsError: If another commit came first: ``write`` used the state before that commit.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        begun_at, table = self.version, self.table
        with self._noticing_others():
            write(table, note.properties(time.time_ns() // 1_000_000, max_retries=0))
            if table.version() == begun_at:
                nothing = FileCommit(operation="WRITE", parameters={"mode": "Append"}, added=(), note=note)
                commit_files(self._log, table, begun_at, nothing, only_next=True)
        self.refresh()
        self._note_commit(begun_at, note)

    @contextmanager
    def _noticing_others(self) -> Iterator[None]:
        """Raise FileExistsError if delta-rs refuses a commit because there is a newer version.

        If there is no newer version, the table itself forbids the commit. Then the error of delta-rs is
        raised.
        """
        begun_at = self.version
        try:
            yield
        except CommitFailedError as error:
            self.refresh()
            if self.version == begun_at:
                raise
            raise FileExistsError(errno.EEXIST, f"There is a commit after version {begun_at}") from error

    def _note_commit(self, begun_at: int, note: CommitNote) -> None:
        """Add the transaction ids of the commit just made to the known ones.

        Do nothing if another commit came between ``begun_at`` and this one.
        """
        known = self._transactions
        if self.version == begun_at + 1 and known is not None and known.table_version == begun_at:
            self._transactions = Transactions(self.version, {**known.by_app_id, **note.transactions})


HandleT = TypeVar("HandleT", bound=Handle)


class HandlePerThread(Generic[HandleT]):
    """Keeps one handle (an opened table) for each thread; ``open_handle`` opens a new one."""

    def __init__(self, open_handle: Callable[[], HandleT]) -> None:
        self._open = open_handle
        self._local = threading.local()

    def newest(self) -> HandleT:
        """Return this thread's handle, moved to the newest version; raise the errors of ``open_handle``."""
        handle: HandleT | None = getattr(self._local, "handle", None)
        if handle is not None:
            table = handle.snapshot
            try:
                table.use_renewed_options()
                if table.is_still_there():
                    if table.may_have_newer():
                        table.refresh()
                    return handle
                # Not worth a warning: if many commits follow the last look, it was cleaned up.
                logger.info(
                    "the commit of the last look is no longer in the log, opening the table again: %s",
                    masked(table.log.table_uri),
                )
            except STORAGE_ERRORS as error:
                # An idle handle may need log files that were cleaned up since: open again from a checkpoint.
                table.log.storage.describe_error(error)
                logger.info("opening table again: %s", masked(table.log.table_uri), exc_info=True)
        return self.keep(self._open())

    def keep(self, handle: HandleT) -> HandleT:
        """Make ``handle`` this thread's handle."""
        self._local.handle = handle
        return handle

    def forget(self) -> None:
        """Drop the handles of all threads, so that each opens the table again at its next use."""
        self._local = threading.local()
