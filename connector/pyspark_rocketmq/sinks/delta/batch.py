"""One micro-batch on its way into a Delta table: checks of its files and of other commits, and its commits.

If another commit seems to have come first, or if a commit's outcome is unknown, this module searches the log
for the batch's own commit before it tries again.  That commit may have been made all the same. For example, a
mount may send a request twice: the first request makes the commit, and the second one finds it and fails.

A batch makes several commits, one for each *group* of tasks' results.  The first commit builds on the version
that the batch began with.  Each later one builds on a newer version. Before it, the same checks are made as
after another writer's commit: whether the table, its watermarks, columns and features are still the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pyspark_rocketmq.delta.commit import commit_on_top
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, TableForm, read_with_retry
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import SinkConflict, SinkMoved, StorageNotShared
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.against_offsets import SinkStanding
from pyspark_rocketmq.sinks.base import Span, check_follows, check_includes, moved_by
from pyspark_rocketmq.sinks.delta.appenders import SinkHandle
from pyspark_rocketmq.sinks.delta.rules import SinkCommit
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.table import SinkTable
from pyspark_rocketmq.sinks.delta.task_files import TaskWriter
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit, read_progress

T = TypeVar("T")

_PAUSES_S = (0.0, 0.01, 0.05, 0.2, 0.5)
"""Seconds before each further try of a commit, after another commit came first or the storage failed."""
_UNKNOWN = (*STORAGE_ERRORS, PySparkException, Py4JError)
"""Errors after which it is unknown whether a commit was made."""
_FILE_CHECK_PAUSES_S = (0.1, 0.5, 2.0, 0.0)
"""Seconds after each check for files of tasks, because a mount may show new files late."""
_SHOWN_FILES = 3


class _GroupCommit(NamedTuple):
    """The commit of a group of tasks' results."""

    commit: SinkCommit
    moved_to: Mapping[MessageQueue, int]
    """New watermarks of the queues that the commit moves."""


@dataclass(slots=True)
class _Tried:
    """The newest group (results of tasks that are committed together) whose commit was tried."""

    group_id: str
    since: int
    """Version of the table before the first try."""
    commits: list[_GroupCommit]
    """The commits that were tried for the group; at most one of them is made.

    A later one may have fewer queues, because the sink has refused some.
    """
    made_at: int | None = None
    """Version of the commit that was made; None as long as none is known."""


@dataclass(kw_only=True)
class DeltaBatch:
    """One micro-batch on its way into the table; made by ``DeltaSink.begin``."""

    table: SinkTable
    handle: SinkHandle
    consumer_group: str
    writer: TaskWriter
    before: GroupCommit
    """The consumer group's progress in the table when it was last read."""
    generations: Mapping[MessageQueue, int]
    ids: Mapping[MessageQueue, str]
    """Id under which the table stores each queue's watermark, in the queue's generation."""
    is_by_spark: bool
    """Whether Spark's writer makes the batch's commits."""
    sleep: Callable[[float], None]
    standings: tuple[SinkStanding, ...]
    """The table's id and the group's watermarks when the batch began, as the only element."""
    version: int
    """Version of the table when the batch began."""
    form: TableForm
    """Columns, partitioning and properties of that version, for which tasks write files."""
    newest: Mapping[MessageQueue, str] = field(default_factory=dict)
    """Newest message of each queue, as text, which commits store; set by :meth:`note_newest`."""
    _reached: dict[MessageQueue, int] = field(init=False)
    """Watermark of each queue after the batch's commits so far."""
    _tried: _Tried | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._reached = dict(self.watermarks)

    @property
    def log(self) -> SinkLog:
        """The table's log."""
        return self.handle.log

    @property
    def watermarks(self) -> Mapping[MessageQueue, int]:
        """Next offset of each queue when the batch began, or 0; tasks leave out rows below it."""
        return self.writer.watermarks

    def task_writer(self) -> TaskWriter:
        """Return the writer for tasks, which drops rows below the watermarks."""
        return self.writer

    def note_newest(self, newest: Mapping[MessageQueue, str]) -> None:
        """Set the newest message of each queue, as text, for :meth:`commit` to store with the watermarks."""
        self.newest = newest

    def commit(self, files: Sequence[WrittenFile], acked: Mapping[MessageQueue, int]) -> int | None:
        """Add the files and move the watermarks to ``acked`` (next offsets), in one commit.

        For the result and the errors see :meth:`commit_group`. A queue that an earlier commit of this batch
        has moved is refused with ``SinkMoved``.
        """
        spans = {queue: Span(self.watermarks.get(queue, 0), at) for queue, at in acked.items()}
        return self.commit_group(files, spans, str(uuid.uuid4()))

    def commit_group(
        self, files: Sequence[WrittenFile], spans: Mapping[MessageQueue, Span], group_id: str
    ) -> int | None:
        """Add the files of a group of tasks' results, and move the watermarks, in one commit.

        Watermarks move to the ends of ``spans``, the messages from which the rows come. If a commit of this
        group was tried before, look for it in the log first, so that it is not made twice.

        Returns:
            The version of the group's commit, which an earlier call may have made; None if no watermark
            grows, so that there is nothing to do.

        Raises:
            SinkMoved: If another consumer wrote rows of one of the queues since ``begin``, if the table was
                replaced or altered, if rows do not follow those of the batch's earlier commits, or if an
                earlier try of the group was committed without one of these queues. This call added nothing.
            SinkConflict: If a RESTORE removed rows, or if other changes of the table or errors of the storage
                prevented the commit. The batch can be repeated.
            SchemaError, OptionError: If the table was altered so that the rows cannot be added.
            OffsetError: If a queue was not passed to ``begin``, or if there are files although no watermark
                grows.
            StorageNotShared: If the driver does not see the files as the tasks wrote them. Nothing was added.
        """
        acked = {queue: span.next_offset for queue, span in spans.items()}
        place = f"the table {self.table.path}"
        made_at = self._made_before(group_id, files)
        if made_at is not None:
            check_includes(self._reached, spans, place=place)
            return made_at
        check_follows(self.watermarks, self._reached, spans, place=place)
        grown = moved_by(
            self._reached,
            acked,
            rows=_rows_in(files),
            consumer_group=self.consumer_group,
            place=place,
        )
        if not grown:
            return None
        self._read(f"the files that tasks wrote for {self.table.path}", lambda: self._check_files(files))
        version = self._commit(files, grown, group_id)
        check_includes(self._reached, spans, place=place)
        return version

    def without(
        self, files: Sequence[WrittenFile], queues: Collection[MessageQueue]
    ) -> tuple[list[WrittenFile], int]:
        """Return files without the rows of these queues, and the number of rows left out.

        A file with rows of these queues is written again without the rows. VACUUM removes the old file.

        Raises:
            SinkConflict: If the files cannot be read or written.
        """

        def rest_of(file: WrittenFile) -> WrittenFile | None:
            schema = pa.schema(
                [each for each in self.writer.schema if each.name not in file.partition_values]
            )
            return self.log.files.without(file, schema, queues)

        def rest() -> list[WrittenFile]:
            self.table.storage.renew()
            self.log.table.use_renewed_options()
            return [kept for file in files if (kept := rest_of(file)) is not None]

        kept = self._read(f"the files that tasks wrote for {self.table.path}", rest)
        return kept, _rows_in(files) - _rows_in(kept)

    def _made_before(self, group_id: str, files: Sequence[WrittenFile]) -> int | None:
        """Return the version of a group's commit if an earlier call has made it; else None."""
        tried = self._tried_of(group_id)
        if tried is None:
            return None
        if tried.made_at is not None:
            return tried.made_at

        def look() -> int | None:
            self._check_still_there()
            self.log.table.refresh()
            return self._look_for(tried, files)

        return self._read(f"the log of {self.table.path}", look)

    def _look_for(self, tried: _Tried, files: Sequence[WrittenFile]) -> int | None:
        """Look for a group's commit in the log; if it is there, note and return its version, else None."""
        for each in tried.commits:
            version = self.log.find_commit(each.commit, tried.since)
            if version is not None:
                if self.is_by_spark:
                    self.log.files.remove(files)
                return self._made(tried, version, each)
        return None

    def _made(self, tried: _Tried, version: int, made: _GroupCommit) -> int:
        """Note that a group's commit is made, and how far it moved the watermarks; return its version."""
        tried.made_at = version
        self._reached.update(made.moved_to)
        return version

    def _read(self, what: str, ask: Callable[[], T]) -> T:
        path, storage = self.table.path, self.table.storage
        try:
            return read_with_retry(what, path, storage, ask, self.sleep)
        except STORAGE_ERRORS as error:
            raise SinkConflict(
                f"Access to {what} failed: {storage.describe_error(error)} Check the storage and start "
                "the query again: it repeats the batch, and leaves out rows that the table has already."
            ) from error

    def _check_files(self, files: Sequence[WrittenFile]) -> None:
        # The batch may have taken longer than its credentials are valid.
        self.table.storage.renew()
        self.log.table.use_renewed_options()
        self._check_seen(files)

    def _check_seen(self, files: Sequence[WrittenFile]) -> None:
        """Refuse files that the driver does not see at the paths where readers will look for them.

        Raises:
            StorageNotShared: If files are missing, or have another size, after several looks.
            SinkMoved: If files are missing because the table was deleted or replaced.
        """
        unseen: list[str] = []
        for pause_s in _FILE_CHECK_PAUSES_S:
            unseen = self.log.files.unseen(files)
            if not unseen:
                return
            self.sleep(pause_s)
        # If the table was dropped, its files are gone, too.
        self._check_still_there()
        raise StorageNotShared(
            f"The driver cannot find {len(unseen)} of {len(files)} files that tasks wrote for "
            f"{self.table.path}: {'; '.join(unseen[:_SHOWN_FILES])}. Nothing of this batch was added, and no "
            "offset was moved. Driver and executors see different folders under this path, or something "
            "removes files there. Put the table on storage that all machines share (an object store, HDFS, a "
            "mount), and start the query again."
        )

    def _commit(self, files: Sequence[WrittenFile], grown: Mapping[MessageQueue, int], group_id: str) -> int:
        """Commit on top of a version with the watermarks that the batch has reached; return the new version.

        A failed commit is tried again a few times, unless the log shows that it was made.
        """
        mine = self._commit_of(grown, group_id)

        def follow(failure: Exception | None) -> Callable[[], int]:
            tried = self._tried_of(group_id)
            self._check_still_there()
            # Spark adds to the newest version whatever it is, so look for commits since the last check.
            if failure is not None or (self.is_by_spark and self.log.table.may_have_newer()):
                self.log.table.refresh()
            if self.log.version != self.version:
                made_at = None if tried is None else self._look_for(tried, files)
                if made_at is not None:
                    return lambda: made_at
                self._check_changes(grown)
            if tried is None:
                tried = self._tried = _Tried(group_id, self.log.version, [])
            if mine not in tried.commits:
                tried.commits.append(mine)
            return partial(self._write, files, tried, mine)

        try:
            what = f"sink commit path={masked(self.table.path)}"
            return commit_on_top(what, follow, pauses_s=_PAUSES_S, sleep=self.sleep, unknown=_UNKNOWN)
        except _UNKNOWN as error:
            raise SinkConflict(
                f"{len(files)} files of group {self.consumer_group} could not be committed to "
                f"{self.table.path} in {len(_PAUSES_S) + 1} tries; the last error was: "
                f"{self.table.storage.describe_error(error)} Check the storage and what else changes this "
                "table, and start the query again, which repeats the batch."
            ) from error

    def _tried_of(self, group_id: str) -> _Tried | None:
        return self._tried if self._tried is not None and self._tried.group_id == group_id else None

    def _commit_of(self, grown: Mapping[MessageQueue, int], group_id: str) -> _GroupCommit:
        """Return the commit that moves these watermarks: one that was tried already, or else a new one."""
        tried = self._tried_of(group_id)
        for each in () if tried is None else tried.commits:
            if each.moved_to == grown:
                return each
        watermarks = {self.ids[queue]: offset for queue, offset in grown.items()}
        newest = {self.ids[queue]: self.newest.get(queue, "") for queue in grown}
        return _GroupCommit(SinkCommit.of(self.consumer_group, watermarks, newest), grown)

    def _check_still_there(self) -> None:
        if not self.log.table.is_still_there():
            raise self._replaced_error()

    def _replaced_error(self) -> SinkMoved:
        return SinkMoved(
            f"The Delta table {self.table.path} was deleted, created again or put back to an earlier state "
            "while this batch ran. Nothing of this batch was added; its messages are consumed again."
        )

    def _write(self, files: Sequence[WrittenFile], tried: _Tried, mine: _GroupCommit) -> int:
        """Make the commit and return its version."""
        appender = self.table.appender(self.handle, by_spark=self.is_by_spark)
        made_at = appender.append(self.log, files, self.before, mine.commit, self.table.schema)
        if self.is_by_spark:
            self.log.files.remove(files)
        else:
            self.table.start_maintenance(self.log)
        return self._made(tried, made_at, mine)

    def _check_changes(self, grown: Mapping[MessageQueue, int]) -> None:
        """Check that the commits since ``begin`` allow one that moves the watermarks in ``grown``.

        The group's progress is read again, so that the commit's record includes that of other members.

        Raises:
            SinkMoved: If the table was replaced or altered, or if another consumer moved a watermark.
            SinkConflict: If a RESTORE removed rows.
            SchemaError, OptionError: If the rows no longer fit the table.
        """
        group, path = self.consumer_group, self.table.path
        if self.log.table.table_id != self.standings[0].identity:
            # CREATE OR REPLACE keeps the log of the previous table.
            raise self._replaced_error()
        self.table.check_not_restored(self.log, group)
        # This commit builds on the other members' commits for their queues.
        self.before = read_progress(self.log, group, self.generations.items())
        found = {queue: self.before.watermarks.get(self.ids[queue], 0) for queue in grown}
        moved = {
            queue: f"{queue} from {self._reached[queue]} to {now}"
            for queue, now in found.items()
            if now != self._reached[queue]
        }
        if moved:
            raise SinkMoved(
                f"Another consumer of group {group} wrote rows into {path} while this batch ran, and moved "
                f"the watermark of {'; '.join(moved.values())}. Nothing of this batch was added; its "
                "messages are consumed again, without rows that are already there. If this happens often, "
                "two queries consume the same queues: check that all queries of the group use the same "
                "offsetStore and nameServers.",
                moved,
            )
        if bool(self.table.check_unaltered(self.log.table.form())) != self.is_by_spark:
            raise SinkMoved(
                f"Features of the Delta table {path} that decide how rows are written were added or removed "
                "while this batch ran. Nothing of this batch was added; its messages are consumed again."
            )
        # Spark's writer itself checks the rows against the form that the table has when it commits.
        changes = () if self.is_by_spark else self.table.changes_since(self.form, self.log.table.form())
        if changes:
            raise SinkMoved(
                f"The Delta table {path} was altered while this batch ran: {'; '.join(changes)}. The batch's "
                "files were written for the table as it was before. Nothing of this batch was added; its "
                "messages are consumed again."
            )


def _rows_in(files: Iterable[WrittenFile]) -> int:
    return sum(file.num_records for file in files)
