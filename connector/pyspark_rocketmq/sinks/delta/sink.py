"""Exactly once into a Delta table: every commit contains the rows and a watermark for each queue.

A replayed batch may end elsewhere than its first run, because a listener may fail the second time. So marking
a batch id as done would lose or repeat rows. Instead the table's transaction ids hold a *watermark* per queue
(``rocketmq:GROUP:TOPIC:BROKER:QUEUE`` → next offset). Rows below it are dropped; rows and new watermarks are
committed together. This works for any listener, after a kill at any point, and with a lost checkpoint.

* When a queue's offsets start again, the id names the generation (``…:QUEUE.1``), which begins without a
  watermark.
* Two consumers that write the same queue conflict, since both commits have its id: the second is refused.
* A group that was moved back reads messages whose rows are in the table; these rows are dropped. To have them
  written again, delete the rows and call :meth:`DeltaSink.rewind`.
* RESTORE removes rows but keeps the watermarks, so it is looked for before each batch and before its commit;
  see :meth:`DeltaSink.follow_restore`.

Only for the driver: tasks get a ``TaskWriter``, and nothing that they import may import this module.

If a commit lost against another change of the table, or if its outcome is unknown, the log is searched for it
before it is tried again, because it may have been stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_rocketmq.delta.commit import commit_on_top
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.paths import TableName, table_uri
from pyspark_rocketmq.delta.storage_options import Given, StorageOptions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, TableForm, ask_patiently
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OffsetError, OptionError, SinkConflict, SinkMoved, StorageNotShared
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.sinks.base import QueueGeneration, generation_of, moved_by, newest_generations
from pyspark_rocketmq.sinks.delta.catalog_table import CatalogTable
from pyspark_rocketmq.sinks.delta.log import SinkLog
from pyspark_rocketmq.sinks.delta.rules import (
    SinkCommit,
    app_id,
    form_changes,
    message_text,
    rows_condition,
    superseded,
)
from pyspark_rocketmq.sinks.delta.table import SinkTable
from pyspark_rocketmq.sinks.delta.task_files import TaskWriter
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit
from pyspark_rocketmq.sinks.standing import SinkStanding, with_newest

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSES_S = (0.0, 0.01, 0.05, 0.2, 0.5)
"""Pauses before further tries of a commit that lost against a change of other rows (DELETE, MERGE, ALTER)."""
_UNKNOWN = (*STORAGE_ERRORS, PySparkException, Py4JError)
"""Errors after which it is unknown whether a commit was made."""
_PAUSES_OF_STORAGE_S = (0.1, 0.5, 2.0, 0.0)
"""Pauses after each look for files, which a mount may show late."""
_SHOWN_FILES = 3


@dataclass(kw_only=True)
class DeltaBatch:
    """One micro-batch on its way into the table; made by ``DeltaSink.begin``."""

    table: SinkTable
    log: SinkLog
    consumer_group: str
    writer: TaskWriter
    before: GroupCommit
    """The group's progress in the table at the last look."""
    generations: Mapping[MessageQueue, int]
    ids: Mapping[MessageQueue, str]
    """Application ids of the watermarks, in these generations."""
    is_by_spark: bool
    sleep: Callable[[float], None]
    standings: tuple[SinkStanding, ...]
    """See ``SinkBatch.standings``."""
    version: int
    """Version of the table when the batch began."""
    form: TableForm
    """Columns, partitioning and properties of that version, for which tasks write files."""
    newest: Mapping[MessageQueue, str] = field(default_factory=dict)
    """See :meth:`note_newest`."""

    @property
    def watermarks(self) -> Mapping[MessageQueue, int]:
        """Next offset of each queue; rows below it are already in the table. 0 if there are none."""
        return self.writer.watermarks

    def task_writer(self) -> TaskWriter:
        """Return the writer for tasks, which drops rows below the watermarks."""
        return self.writer

    def note_newest(self, newest: Mapping[MessageQueue, str]) -> None:
        """See ``RemembersMessages.note_newest``."""
        self.newest = newest

    def commit(self, files: Sequence[WrittenFile], acked: Mapping[MessageQueue, int]) -> int | None:
        """Add the files and move the watermarks to ``acked`` (next offsets), in one commit.

        Returns:
            The table's new version; None if no watermark grows, so that there is nothing to do.

        Raises:
            SinkMoved: If another consumer wrote one of the queues since ``begin``. Nothing was added.
            SinkConflict: If a RESTORE removed rows, or if other changes of the table kept winning. Nothing
                was added; the batch may run again.
            OffsetError: If a queue was not passed to ``begin``, or if there are files although no watermark
                grows.
            StorageNotShared: If the driver does not see the files as the tasks wrote them. Nothing was added.
        """
        grown = moved_by(
            self.watermarks,
            acked,
            rows=sum(file.num_records for file in files),
            consumer_group=self.consumer_group,
            place=f"the table {self.table.path}",
        )
        if not grown:
            return None
        path, storage = self.table.path, self.table.storage
        try:
            ask_patiently(f"files for {path}", path, storage, lambda: self._look_at(files), self.sleep)
        except STORAGE_ERRORS as error:
            raise SinkConflict(
                f"What tasks wrote for {path} could not be looked at: {storage.describe_error(error)} "
                "Nothing of this batch was added; it may run again."
            ) from error
        return self._commit(files, grown)

    def _look_at(self, files: Sequence[WrittenFile]) -> None:
        # The batch may have taken longer than its credentials are valid.
        self.log.renew()
        self._check_seen(files)

    def _check_seen(self, files: Sequence[WrittenFile]) -> None:
        """Refuse files that the driver does not see where readers of the table will look for them."""
        unseen: list[str] = []
        for pause_s in _PAUSES_OF_STORAGE_S:
            unseen = self.log.unseen(files)
            if not unseen:
                return
            self.sleep(pause_s)
        # If the table was dropped, its files are gone, too.
        self._check_still_there()
        raise StorageNotShared(
            f"{len(unseen)} of {len(files)} files that tasks wrote for {self.table.path} are not there for "
            f"the driver: {'; '.join(unseen[:_SHOWN_FILES])}. Nothing of this batch was added, and no offset "
            "was moved. Driver and executors see different folders under this path, or something removes "
            "files there: put the table on storage that all machines share (an object store, HDFS, a mount), "
            "and start the query again."
        )

    def _commit(self, files: Sequence[WrittenFile], grown: Mapping[MessageQueue, int]) -> int:
        """Commit on a version with the watermarks of ``begin``; try until it is known to be stored."""
        watermarks = {self.ids[queue]: offset for queue, offset in grown.items()}
        newest = {self.ids[queue]: self.newest.get(queue, "") for queue in grown}
        commit = SinkCommit.of(self.consumer_group, watermarks, newest)
        tried_at: int | None = None

        def follow(failure: Exception | None) -> Callable[[], int]:
            nonlocal tried_at
            self._check_still_there()
            # Spark adds to the newest version, and would not conflict with commits made since.
            if failure is not None or (self.is_by_spark and self.log.may_have_newer()):
                self.log.refresh()
            if self.log.version != self.version:
                done_at = None if tried_at is None else self.log.find_commit(commit, tried_at)
                if done_at is not None:
                    return partial(self._found, done_at, files)
                self._check_changes(grown)
            tried_at = self.log.version if tried_at is None else tried_at
            return partial(self._write, files, commit)

        try:
            what = f"sink commit path={masked(self.table.path)}"
            return commit_on_top(what, follow, pauses_s=_PAUSES_S, sleep=self.sleep, unknown=_UNKNOWN)
        except _UNKNOWN as error:
            raise SinkConflict(
                f"{len(files)} files of group {self.consumer_group} could not be committed to "
                f"{self.table.path} in {len(_PAUSES_S) + 1} tries; the last error was: "
                f"{self.table.storage.describe_error(error)} Check what "
                "else changes this table; the batch may run again."
            ) from error

    def _found(self, version: int, files: Sequence[WrittenFile]) -> int:
        """Return the version of this batch's commit, which an earlier try has made."""
        if self.is_by_spark:
            self.log.remove(files)
        return version

    def _check_still_there(self) -> None:
        if not self.log.is_still_there():
            raise self._another_table()

    def _another_table(self) -> SinkMoved:
        return SinkMoved(
            f"The Delta table {self.table.path} was deleted, made anew or put back to an earlier state "
            "while this batch ran. Nothing of this batch was added."
        )

    def _write(self, files: Sequence[WrittenFile], commit: SinkCommit) -> int:
        """Make the commit and return its version."""
        if self.is_by_spark:
            made_at = self.table.append_by_spark(
                self.log, files, self.before, commit, schema=self.writer.schema
            )
            self.log.remove(files)
            return made_at
        commit = commit._replace(
            # From this commit on the transaction ids count, including those of queues that stood still.
            watermarks={**self.before.not_in_ids, **commit.watermarks},
            record=self.before.record_of_files(commit, time.time_ns() // 1_000_000),
        )
        if self.table.merge_keys:
            made_at = self.log.merge(files, self.table.merge_keys, self.table.columns, commit)
        else:
            made_at = self.log.add(files, commit)
        self.table.look_after(self.log)
        return made_at

    def _check_changes(self, grown: Mapping[MessageQueue, int]) -> None:
        """Check that the commits of others since ``begin`` allow this one."""
        group, path = self.consumer_group, self.table.path
        if self.log.table_id != self.standings[0].identity:
            # CREATE OR REPLACE keeps the log of the previous table.
            raise self._another_table()
        self.table.check_not_restored(self.log, group)
        # This commit builds on what other members of the group have committed for their queues.
        self.before = self.table.group_commit(self.log, group, self.generations.items())
        found = {queue: self.before.watermarks.get(self.ids[queue], 0) for queue in grown}
        moved = [
            f"{queue} from {self.watermarks[queue]} to {now}"
            for queue, now in found.items()
            if now != self.watermarks[queue]
        ]
        if moved:
            raise SinkMoved(
                f"Another consumer of group {group} wrote rows into {path} while this batch ran, and moved "
                f"{'; '.join(moved)}. Nothing of this batch was added. Run the batch again: rows that are "
                "there by now are left out. If it happens often, two queries own the same queues: check that "
                "each queue is locked at the broker, or that the queries use different groups."
            )
        if bool(self.table.check_unaltered(self.log.form())) != self.is_by_spark:
            raise SinkMoved(
                f"The Delta table {path} was given features, or lost some, that decide how rows are written, "
                "while this batch ran. Nothing of this batch was added. Run the batch again."
            )
        # Spark's writer checks the rows against the table's form at that time.
        changes = () if self.is_by_spark else form_changes(self.form, self.log.form())
        if changes:
            raise SinkMoved(
                f"The Delta table {path} was altered while this batch ran: {'; '.join(changes)}. The batch's "
                "files were written for the table before. Nothing of this batch was added. Run the batch "
                "again."
            )


class DeltaSink:
    """A Delta table to which rows are added exactly once.

    Can be pickled as configuration; ``prepare`` and all other methods are for the driver.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        partition_by: Sequence[str] = (),
        merge_keys: Sequence[str] = (),
        schema_evolution: bool = False,
        compaction: bool = True,
        storage_options: Given | StorageOptions | None = None,
        staging: str | Path | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set the table and how rows are added to it.

        Args:
            path: Folder or storage URI of the table; or its name, ``SCHEMA.TABLE`` or
                ``CATALOG.SCHEMA.TABLE``, by which Spark then writes it (row J5). ``prepare`` creates the
                table if it is missing.
            partition_by: Partition columns of a new table; an existing one keeps its own.
            merge_keys: Columns of a business key: the table keeps the newest row of each key (row H6). A row
                whose key contains a null is always added. The batch's rows pass through the driver.
            schema_evolution: Add columns that the rows have and the table lacks, like Delta's
                ``mergeSchema``; columns that only the table has are null in new rows. Types and partitioning
                never change.
            compaction: Compact small files from time to time, in a thread of this process beside the batches.
                Tables that Spark writes are not compacted.
            storage_options: Options of delta-rs for an object store (``aws_access_key_id``, ``allow_http``
                …), or a callable that returns them and is called at each batch. Their values are never shown.
            staging: Only for a table by name: folder or storage URI where tasks put rows until Spark has
                added them, if they may not write to the table's own folder.
            sleep: Function that waits between the tries of a commit.

        Raises:
            OptionError: If ``path`` could be a folder or a name, or if these settings exclude each other.
        """
        self._sleep = sleep
        self._staging = staging
        name = TableName.of(path)
        if name is None and staging is not None:
            problem = "staging is for a table that is named by its catalog; leave it out for a path"
            raise OptionError((problem,), where="Delta sink")
        settings: dict[str, Any] = {
            "partition_by": tuple(partition_by),
            "merge_keys": tuple(merge_keys),
            "schema_evolution": schema_evolution,
            "compaction": compaction,
            "storage": StorageOptions.of(storage_options),
        }
        self._table = (
            SinkTable(table_uri(path), **settings)
            if name is None
            else CatalogTable(name, staging=staging, **settings)
        )

    def __reduce__(self) -> tuple[object, ...]:
        return partial(DeltaSink, self.path, storage_options=self._table.storage, **self._settings()), ()

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings().items())
        return f"DeltaSink({masked(self.path)!r}, {settings})"

    def _settings(self) -> dict[str, Any]:
        names = ("partition_by", "merge_keys", "schema_evolution", "compaction")
        more = {} if self._staging is None else {"staging": str(self._staging)}
        return {name: getattr(self._table, name) for name in names} | more

    @property
    def path(self) -> str:
        """The table's storage URI, absolute path, or name."""
        return self._table.path

    @property
    def folders(self) -> tuple[str, ...]:
        """Paths and URIs that tasks write to; for a table by name, known once it is prepared."""
        return (self._table.rows_uri,) if self._table.rows_uri else ()

    @property
    def place(self) -> str:
        """See ``Sink.place``: once prepared, the table's id, which is the same by any name of its folder."""
        return self._table.table_id or self._table.place

    def use_session(self, spark: SparkSession) -> None:
        """Use this session, while it runs, for tables that Spark reads or writes.

        Without it, or after it was stopped, the thread's active session is used, else the process's.
        """
        self._table.use_session(spark)

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table if it is missing, else check that rows of ``schema`` can be added to it.

        Raises:
            SchemaError: If columns, types or partitioning differ, or if the columns lack the message's
                position.
            OptionError: If the table has features that forbid adding files, if a column cannot be a partition
                column, or if a merge key is not a column.
            OffsetError: If the storage does not answer.
        """
        self._ask(f"The Delta table {self.path}", lambda: self._table.prepare(schema))

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> DeltaBatch:
        """Read the newest version and the group's watermark of each queue, in the generation given.

        Raises:
            SinkConflict: If a RESTORE removed rows since the group's last commit.
            SchemaError: If ``prepare`` was not called, or the table was altered since.
            OptionError: If the table has got features since that forbid adding files.
            OffsetError: If the table cannot be read.
        """
        what = f"How far group {consumer_group} has come in {self.path}"
        return self._ask(what, lambda: self._begin(consumer_group, queues))

    def _ask(self, what: str, ask: Callable[[], T]) -> T:
        """Return ``ask_patiently``; raise OffsetError if the storage does not answer."""
        storage = self._table.storage
        try:
            return ask_patiently(what, self.path, storage, ask, self._sleep)
        except STORAGE_ERRORS as error:
            raise OffsetError(
                f"{what} could not be read: {storage.describe_error(error)} "
                "Check that the storage can be reached and "
                "the table read."
            ) from error

    def _begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> DeltaBatch:
        self._table.storage.renew()
        log = self._table.newest_log()
        form = log.form()
        refused = self._table.check_unaltered(form)
        before = self._table.group_commit(log, consumer_group, queues.items())
        ids = _ids(consumer_group, queues)
        watermarks = _watermarks_by(ids, before)
        self._table.check_not_restored(log, consumer_group)
        unknown = {queue: name for queue, name in ids.items() if name not in before.watermarks}
        if unknown and (later := superseded(unknown, before.watermarks)):
            raise _begun_again(self.path, consumer_group, later)
        writer = TaskWriter(
            table_uri=self._table.rows_uri,
            # Spark reads the rows back and converts them to the table's form.
            schema=self._table.schema if refused else log.arrow_schema,
            # Merged files are read back; in a partition column an empty text would come back as null.
            partition_by=() if refused or self._table.merge_keys else form.partition_by,
            watermarks=watermarks,
            fills_missing=self._table.schema_evolution and not refused,
            storage=self._table.storage.as_of_now(self._table.rows_uri),
        )
        return DeltaBatch(
            table=self._table,
            log=log,
            consumer_group=consumer_group,
            writer=writer,
            before=before,
            generations=dict(queues),
            ids=ids,
            is_by_spark=bool(refused),
            sleep=self._sleep,
            standings=(self._standing(log, watermarks, frozenset()),),
            version=log.version,
            form=form,
        )

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> tuple[SinkStanding, ...]:
        """See ``Sink.standings``.

        Raises:
            SinkConflict: If the log no longer contains the group's progress.
            OffsetError: If the table cannot be read.
        """
        what = f"How far group {consumer_group} has come in {self.path}"
        return (self._ask(what, lambda: self._standing_now(consumer_group, queues)),)

    def _standing_now(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkStanding:
        log = self._table.open()
        if log is None:
            return SinkStanding(masked(self._table.place), None, {}, self._path_for_commands)
        before = self._table.group_commit(log, consumer_group, queues.items())
        ids = _ids(consumer_group, queues)
        watermarks = _watermarks_by(ids, before)
        known = before.newest
        newest = {queue: message_text(known[name]) for queue, name in ids.items() if name in known}
        return with_newest(self._standing(log, watermarks, superseded(ids, before.watermarks)), newest)

    def _standing(
        self, log: SinkLog, watermarks: Mapping[MessageQueue, int], later: frozenset[MessageQueue]
    ) -> SinkStanding:
        name = masked(self._table.place)
        return SinkStanding(name, log.table_id, watermarks, self._path_for_commands, later=later)

    @property
    def _path_for_commands(self) -> str:
        return "" if isinstance(self._table, CatalogTable) else masked(self.path)

    def count_rows(self, from_offsets: Mapping[MessageQueue, int]) -> int:
        """Count the rows of these queues from their offsets on; only for a table by path.

        Raises:
            OffsetError: If the table cannot be read.
        """
        where = " OR ".join(rows_condition(queue, begin) for queue, begin in sorted(from_offsets.items()))
        return self._ask(f"Rows of {self.path}", lambda: self._table.count_rows(where))

    def watermarks(self, consumer_group: str) -> dict[QueueGeneration, int]:
        """Return the next offset, in its last generation, of each queue that the group ever wrote rows of.

        Raises:
            SchemaError: If there is no table.
            OffsetError: If its log cannot be read.
        """
        return self._watermarks(consumer_group)

    def _watermarks(self, consumer_group: str, log: SinkLog | None = None) -> dict[QueueGeneration, int]:
        """Return the watermarks as of ``log``, or of the newest version."""
        try:
            log = log or self._table.newest_log()
            return _last_generations(consumer_group, self._table.group_commit(log, consumer_group, ()))
        except STORAGE_ERRORS as exc:
            raise OffsetError(
                f"What group {consumer_group} has written to {self.path} could not be read: "
                f"{self._table.storage.describe_error(exc)} Check that "
                "the table's folder _delta_log can be read and has all files since its last checkpoint."
            ) from exc

    def follow_restore(self, consumer_group: str, store: OffsetStore) -> dict[MessageQueue, int]:
        """Let the group consume again what the last RESTORE removed; return the queues' next offsets.

        First the group's offsets in ``store``, then the watermarks, go back to those of the restored version.
        If the table was replaced, they go back to 0; remove the group's rows from the new table before. Stop
        the query first. If this is killed halfway, the table is still refused, and this may be called again.

        Raises:
            OffsetError: If no RESTORE came after the group's last commit, or if the log does not show which
                version was restored, or no longer has it.
            OffsetStoreUnavailable, OffsetCommitConflict: If the offsets could not be moved.
            DeltaError: If the table could not be written.
        """
        log = self._table.newest_log()
        generations = self._watermarks(consumer_group, log).keys()
        try:
            then = log.before_restores(consumer_group)
            before = (
                {} if then is None else self._table.group_commit(then, consumer_group, generations).watermarks
            )
            targets = {key.queue: before.get(app_id(consumer_group, *key), 0) for key in generations}
        except (*STORAGE_ERRORS, ValueError) as exc:
            raise OffsetError(
                f"How far group {consumer_group} was in the version to which {self.path} was restored cannot "
                f"be told from the table's log: {self._table.storage.describe_error(exc)} "
                "Look it up in the rows, "
                "stop the query, and give it both to the offset store's reset and to DeltaSink.rewind, in "
                "this order: group, {queue: highest queueOffset + 1}."
            ) from exc
        if then is log:
            raise OffsetError(
                f"There is nothing to follow: no RESTORE of {self.path} came after the last commit of group "
                f"{consumer_group}. Start the query."
            )
        store.reset(consumer_group, targets)
        self.rewind(consumer_group, targets)
        logger.warning(
            "restored sink followed path=%s group=%s queues=%d",
            masked(self.path),
            consumer_group,
            len(targets),
        )
        return targets

    def rewind(self, consumer_group: str, next_offsets: Mapping[MessageQueue, int]) -> int:
        """Set watermarks as an operator, after a RESTORE or to have rows written again; return the version.

        The watermark is set for the last generation of each queue of which the table has rows.

        Rows at or above the new watermark that are still in the table would be doubled: delete them first.
        Stop the query before, and leave no offset of the group above its queue's watermark.

        Raises:
            OffsetError: If a next offset is negative.
            SinkConflict: If there is a :meth:`rewind_problem`.
            DeltaError, OSError: If the table could not be written.
        """
        what = f"watermarks of group {consumer_group} path={masked(self.path)}"
        return commit_on_top(what, lambda _: partial(self._rewind, consumer_group, next_offsets))

    def _rewind(self, consumer_group: str, next_offsets: Mapping[MessageQueue, int]) -> int:
        negative = [f"{queue} to {offset}" for queue, offset in next_offsets.items() if offset < 0]
        if negative:
            raise OffsetError(f"Watermarks of {self.path} cannot be negative: {'; '.join(negative)}.")
        log = self._table.newest_log()
        if not next_offsets:
            # An empty commit of the group would hide a RESTORE before it.
            return log.version
        problem = self._rewind_problem(log, consumer_group, next_offsets)
        if problem is not None:
            raise SinkConflict(problem)
        before = self._table.last_known_commit(log, consumer_group)
        newest = _last_generations(consumer_group, before)
        generations = {key.queue: key.number for key in newest}
        watermarks = {
            app_id(consumer_group, queue, generations.get(queue, 0)): offset
            for queue, offset in next_offsets.items()
        }
        return self._table.rewind(log, before, SinkCommit.of(consumer_group, watermarks))

    def rewind_problem(self, consumer_group: str, queues: Iterable[MessageQueue]) -> str | None:
        """Describe why the watermarks of only these queues cannot be set; None if they can.

        After a RESTORE, all queues of the group must be set together: the group's commit would hide the
        RESTORE, which may have removed rows of the other queues, too.

        Raises:
            OptionError: If only Spark can set watermarks of this table, and no session can.
        """
        log = self._table.newest_log()
        self._table.check_rewind(log)
        return self._rewind_problem(log, consumer_group, queues)

    def _rewind_problem(
        self, log: SinkLog, consumer_group: str, queues: Iterable[MessageQueue]
    ) -> str | None:
        restored_at = log.restored_since_last_commit(consumer_group)
        if restored_at is None:
            return None
        try:
            others = sorted({key.queue for key in self._watermarks(consumer_group, log)}.difference(queues))
        except SinkConflict:
            # The old watermarks are no longer in the log, so any value is acceptable.
            return None
        if not others:
            return None
        return (
            f"The Delta table {self.path} was restored at version {restored_at}, after group "
            f"{consumer_group} wrote to it last, and rows of {'; '.join(map(str, others))} may be gone, "
            f"too. Run DeltaSink({self.path!r}).follow_restore({consumer_group!r}, STORE), or rewind all "
            "queues of the group at once."
        )


def _begun_again(path: str, consumer_group: str, queues: Iterable[MessageQueue]) -> SinkMoved:
    return SinkMoved(
        f"The Delta table {path} has rows of later generations of {'; '.join(map(str, sorted(queues)))} than "
        f"group {consumer_group} was to write: their offsets began again, and another consumer has followed "
        "them. Nothing was added."
    )


def _last_generations(consumer_group: str, commit: GroupCommit) -> dict[QueueGeneration, int]:
    generations = {generation_of(name, consumer_group): at for name, at in commit.watermarks.items()}
    return newest_generations({key: at for key, at in generations.items() if key is not None})


def _ids(consumer_group: str, queues: Mapping[MessageQueue, int]) -> dict[MessageQueue, str]:
    """Return the application id of each queue in its generation."""
    return {queue: app_id(consumer_group, queue, generation) for queue, generation in queues.items()}


def _watermarks_by(ids: Mapping[MessageQueue, str], commit: GroupCommit) -> dict[MessageQueue, int]:
    """Return the watermark of each queue, or 0."""
    known = commit.watermarks
    return {queue: known.get(name, 0) for queue, name in ids.items()}
