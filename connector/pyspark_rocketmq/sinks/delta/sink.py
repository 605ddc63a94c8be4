"""Exactly once into a Delta table: every commit contains the rows and a watermark for each queue.

A replayed batch may end elsewhere than its first run, because a listener may fail the second time. So marking
a batch id as done would lose or repeat rows. Instead the table's transaction ids hold a *watermark* per queue
(``rocketmq:GROUP:TOPIC:BROKER:QUEUE`` → next offset). Rows below their queue's watermark are dropped; rows
and new watermarks are committed together. This works for any listener, after a kill at any point, and with a
lost checkpoint.

* When a queue's offsets start again, a new *generation* of the queue begins, without a watermark. The id then
  ends with the number of the generation (``…:QUEUE.1``).
* Two consumers that write the same queue conflict, since both commits have the queue's id: the second is
  refused.
* A group that was moved back reads messages whose rows are in the table. The new rows are dropped. To have
  them written, delete the old ones and call :meth:`DeltaSink.rewind`.
* RESTORE removes rows but keeps the watermarks. So each batch looks for one when it begins and before it
  commits; see :meth:`DeltaSink.follow_restore`.

This module is only for the driver. Tasks get a ``TaskWriter``, and no module that they import may import this
one.

:mod:`pyspark_rocketmq.sinks.delta.batch` commits a batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_rocketmq.delta.commit import commit_on_top
from pyspark_rocketmq.delta.paths import TableName, table_uri
from pyspark_rocketmq.delta.storage_options import GivenOptions, StorageOptions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, read_with_retry
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OffsetError, OptionError, SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.recorded_positions import move_to_recorded, position_of_sink
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.sinks.against_offsets import SinkStanding, with_newest
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.delta.appenders import MergeAppender
from pyspark_rocketmq.sinks.delta.batch import DeltaBatch
from pyspark_rocketmq.sinks.delta.catalog import CatalogHome
from pyspark_rocketmq.sinks.delta.rules import (
    NEWER_ROWS_ONLY,
    SinkCommit,
    app_id,
    merges_changes,
    rows_condition,
    superseded,
)
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.table import MANY_COMMITS, PathHome, SinkTable
from pyspark_rocketmq.sinks.delta.task_files import TaskWriter
from pyspark_rocketmq.sinks.delta.watermarks import (
    NO_PROGRESS,
    app_ids,
    by_generation,
    last_known_progress,
    read_progress,
    read_queues,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


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
        storage_options: GivenOptions | StorageOptions | None = None,
        staging: str | Path | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set the table and how rows are added to it.

        Args:
            path: Folder or storage URI of the table; or its name in a catalog, ``SCHEMA.TABLE`` or
                ``CATALOG.SCHEMA.TABLE``. With a name, Spark writes the table (row J5 of
                ``docs/semantics.md``). ``prepare`` creates the table if it is missing.
            partition_by: Partition columns of a new table; an existing one keeps its own.
            merge_keys: Columns of a business key: the table keeps the newest row of each key (row H6 of
                ``docs/semantics.md``). A row whose key contains a null is always added. If Spark writes the
                table, it merges the rows; else they pass through the driver's memory.
            schema_evolution: Whether to add columns that the rows have and the table lacks, like Delta's
                ``mergeSchema``; columns that only the table has are then null in new rows. Types and
                partitioning never change.
            compaction: Whether to compact small files from time to time, in a background thread of this
                process. Tables that Spark writes are not compacted.
            storage_options: Options of delta-rs for an object store (``aws_access_key_id``, ``allow_http``
                …), or a callable that returns them and is called at each batch. Logs hide secret values.
            staging: Only for a table by name: folder or storage URI where tasks put rows until Spark has
                added them, if they may not write to the table's own folder.
            sleep: Function that waits between the tries of a commit.

        Raises:
            OptionError: If ``path`` could be both a folder and a name, or if settings exclude each other.
        """
        self._sleep = sleep
        self._staging = staging
        name = TableName.of(path)
        if name is None and staging is not None:
            problem = (
                "staging is only for a table that is named as in a catalog (CATALOG.SCHEMA.TABLE); leave it "
                "out for a path"
            )
            raise OptionError((problem,), where="Delta sink")
        storage = StorageOptions.of(storage_options)
        keys = tuple(merge_keys)
        self._table = SinkTable(
            self._path_home(path, storage, keys)
            if name is None
            else CatalogHome(name, storage, staging, keys),
            partition_by=tuple(partition_by),
            merge_keys=keys,
            schema_evolution=schema_evolution,
            compaction=compaction,
            has_positions=self._rows_have_positions,
        )

    _rows_have_positions: ClassVar[bool] = True

    def _path_home(self, path: str | Path, storage: StorageOptions, keys: tuple[str, ...]) -> PathHome:
        merges = partial(MergeAppender, keys=keys) if keys else None
        return PathHome(table_uri(path), storage, merges, keys)

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
        """Paths and URIs that tasks write to.

        Empty before :meth:`prepare` for a table by name without ``staging``.
        """
        return (self._table.home.rows_uri,) if self._table.home.rows_uri else ()

    @property
    def place(self) -> str:
        """A value that identifies the table; two sinks with the same place cannot serve one query.

        It is the table's id, and before ``prepare`` the path or name.
        """
        return self._table.table_id or self._table.home.place

    def use_session(self, spark: SparkSession) -> None:
        """Use this session, while it runs, for tables that Spark reads or writes.

        If this is not called, or after the session was stopped, the thread's active session is used, or else
        the process's session.
        """
        self._table.home.session.use(spark)

    def expect_many_commits(self) -> None:
        """Make ``prepare`` give a new table properties that keep its log short.

        If the table exists and lacks one of these properties, ``prepare`` logs a warning. Where watermarks
        may be only in the log, the log's retention is not shortened: see ``SinkTable.properties_for``.
        """
        self._table.properties = MANY_COMMITS

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table if it is missing, else check that rows of ``schema`` can be added to it.

        Raises:
            SchemaError: If columns, types or partitioning differ, if the columns lack the message's position,
                or if Delta forbids a name.
            OptionError: If the table cannot be created, if neither this process nor Spark can write it, or if
                a column cannot be a partition column or a merge key.
            OffsetError: If the storage does not answer.
        """
        self._read(f"The Delta table {self.path}", lambda: self._table.prepare(schema))

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> DeltaBatch:
        """Begin a batch: read the table's newest version, and the group's watermark of each queue.

        ``queues`` has the generation of each queue, a number that grows when the queue's offsets start again.

        Raises:
            SinkConflict: If a RESTORE removed rows since the group's last commit, or if the log no longer has
                the group's progress.
            SinkMoved: If the table has progress of the group in a later generation of a queue.
            SchemaError: If ``prepare`` was not called, or if the table was altered since or is gone.
            OptionError: If the table has got features since then with which it cannot be written.
            OffsetError: If the table cannot be read.
        """
        what = f"The progress of group {consumer_group} in {self.path}"
        return self._read(what, lambda: self._begin(consumer_group, queues))

    def _read(self, what: str, read: Callable[[], T]) -> T:
        """Return the result of ``read``, which is repeated if it fails on remote storage.

        ``what`` is the beginning of the error's text: it names the thing that cannot be read.

        Raises:
            OffsetError: If reading keeps failing.
        """
        storage = self._table.storage
        try:
            return read_with_retry(what, self.path, storage, read, self._sleep)
        except STORAGE_ERRORS as error:
            raise OffsetError(
                f"{what} could not be read: {storage.describe_error(error)} "
                "Check that this process can reach the storage and read the table."
            ) from error

    def _begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> DeltaBatch:
        table = self._table
        table.storage.renew()
        handle = table.newest()
        log = handle.log
        form = log.table.form()
        reasons = table.check_unaltered(form)
        before = read_progress(log, consumer_group, queues.items())
        ids = app_ids(consumer_group, queues)
        watermarks = {queue: before.watermarks.get(name, 0) for queue, name in ids.items()}
        table.check_not_restored(log, consumer_group)
        unknown = {queue: name for queue, name in ids.items() if name not in before.watermarks}
        if unknown and (later := superseded(unknown, before.watermarks)):
            raise _later_generation_error(self.path, consumer_group, later)
        return DeltaBatch(
            table=table,
            handle=handle,
            consumer_group=consumer_group,
            writer=self._writer(log, watermarks, is_by_spark=bool(reasons)),
            before=before,
            generations=dict(queues),
            ids=ids,
            is_by_spark=bool(reasons),
            sleep=self._sleep,
            standings=(self._standing(log, watermarks, frozenset()),),
            version=log.version,
            form=form,
        )

    def _writer(
        self, log: SinkLog, watermarks: Mapping[MessageQueue, int], *, is_by_spark: bool
    ) -> TaskWriter:
        table = self._table
        rows_uri = table.home.rows_uri
        return TaskWriter(
            table_uri=rows_uri,
            # If Spark commits, it reads the rows back and converts them to the table's columns.
            schema=table.schema if is_by_spark else log.table.arrow_schema,
            # Merged files are read back; in a partition column an empty string would come back as null.
            partition_by=() if is_by_spark or table.merge_keys else log.table.form().partition_by,
            watermarks=watermarks,
            fills_missing=table.schema_evolution and not is_by_spark,
            storage=table.storage.for_tasks(rows_uri),
        )

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> tuple[SinkStanding, ...]:
        """Return, as the only element, the table's id and its watermarks of the group's ``queues``.

        ``queues`` has the generation of each queue, a number that grows when the queue's offsets start again.
        If there is no table, the id is None.

        Raises:
            SinkConflict: If the log no longer contains the group's progress.
            OffsetError: If the table cannot be read.
        """
        what = f"The progress of group {consumer_group} in {self.path}"
        return (self._read(what, lambda: self._standing_now(consumer_group, queues)),)

    def _standing_now(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkStanding:
        handle = self._table.home.open()
        if handle is None:
            name = masked(self._table.home.place)
            return SinkStanding(name, None, {}, masked(self._table.home.command_path))
        known = read_queues(handle.log, consumer_group, queues)
        watermarks = {queue: known.watermarks.get(queue, 0) for queue in queues}
        return with_newest(self._standing(handle.log, watermarks, known.later), known.newest)

    def _standing(
        self, log: SinkLog, watermarks: Mapping[MessageQueue, int], later: frozenset[MessageQueue]
    ) -> SinkStanding:
        name, path = masked(self._table.home.place), masked(self._table.home.command_path)
        merges = merges_changes(column.name for column in log.table.form().columns)
        return SinkStanding(name, log.table.table_id, watermarks, path, later=later, merges_changes=merges)

    def count_rows(self, from_offsets: Mapping[MessageQueue, int]) -> int | None:
        """Count the rows of these queues, from each queue's offset on; return None for a table by name.

        Return 0 for a change table: its rows cannot be added twice.

        Raises:
            OffsetError: If the table cannot be read.
        """
        if not self._table.home.command_path:
            return None
        where = " OR ".join(rows_condition(queue, begin) for queue, begin in sorted(from_offsets.items()))
        return self._read(f"Rows of {self.path}", lambda: self._table.count_rows(where))

    def watermarks(self, consumer_group: str) -> dict[QueueGeneration, int]:
        """Return the watermark (next offset without rows) of each queue of which the group ever wrote rows.

        Each key is a queue with its newest generation in the table, a number that grows when the queue's
        offsets start again.

        Raises:
            SchemaError: If there is no table.
            SinkConflict: If the log no longer contains the group's progress.
            OffsetError: If its log cannot be read.
        """
        return self._watermarks(consumer_group)

    def _watermarks(self, consumer_group: str, log: SinkLog | None = None) -> dict[QueueGeneration, int]:
        """Return the group's watermarks as of ``log``; None reads the table's newest version."""
        try:
            log = log or self._table.newest().log
            return by_generation(consumer_group, read_progress(log, consumer_group))
        except STORAGE_ERRORS as exc:
            raise OffsetError(
                f"The watermarks of group {consumer_group} in {self.path} could not be read: "
                f"{self._table.storage.describe_error(exc)} Check that "
                "the table's folder _delta_log can be read and has all files since its last checkpoint."
            ) from exc

    def follow_restore(self, consumer_group: str, store: OffsetStore) -> dict[MessageQueue, int]:
        """After a RESTORE, move the group back so that messages whose rows are gone are consumed again.

        Stop the query before you call this. The group's offsets in ``store`` and then the watermarks move to
        the values that the restored version had. Return the queues' next offsets. If the process is killed
        halfway, queries still refuse the table, and this may be called again.

        If the table was replaced (REPLACE TABLE), offsets and watermarks move to 0. Before you call this,
        remove the group's rows from the new table.

        A queue may have a new log, because its topic was created again. If the group has not noticed this
        yet, the query reports it when it starts. If the group has noticed it, and the restored table has no
        rows of the new log, the queue is consumed from where that log begins.

        Raises:
            OffsetError: If no RESTORE came after the group's last commit, or if the group has added rows
                after the RESTORE. If the log does not show which version was restored, or no longer has that
                version. If a queue was claimed or moved meanwhile; such a queue is not moved.
            SinkConflict: If the log no longer has the group's progress.
            OffsetStoreUnavailable, OffsetCommitConflict: If the offsets could not be moved.
            DeltaError: If the table could not be written.
        """
        log = self._table.newest().log
        generations = self._watermarks(consumer_group, log).keys()
        try:
            then = log.before_restores(consumer_group)
            before = NO_PROGRESS if then is None else read_queues(then, consumer_group, dict(generations))
        except (*STORAGE_ERRORS, ValueError) as exc:
            raise OffsetError(
                f"Cannot read from the log of {self.path} how far group {consumer_group} had got in the "
                f"restored version: {self._table.storage.describe_error(exc)} "
                "Stop the query, find the highest queueOffset of each queue in the rows, and pass {queue: "
                "highest queueOffset + 1} first to the offset store's reset(), then to DeltaSink.rewind(). "
                f"{NEWER_ROWS_ONLY}"
            ) from exc
        if then is log:
            raise OffsetError(
                f"There is nothing to follow: no RESTORE of {self.path} came after the last commit of group "
                f"{consumer_group}. Start the query."
            )
        rows = store.read(consumer_group)
        records = {key.queue: before.record_of(*key) for key in generations}
        positions = {queue: position_of_sink(rows.get(queue), record) for queue, record in records.items()}
        moved = move_to_recorded(store, consumer_group, positions, rows)
        missed = sorted(positions.keys() - moved.keys())
        if missed:
            raise OffsetError(
                f"Group {consumer_group} was not moved in {'; '.join(map(str, missed))}: somebody claimed or "
                "moved these queues meanwhile. Stop every query of the group, and call follow_restore again."
            )
        self.rewind(consumer_group, {queue: record.next_offset for queue, record in records.items()})
        logger.warning(
            "restored sink followed path=%s group=%s queues=%d",
            masked(self.path),
            consumer_group,
            len(positions),
        )
        return {queue: position.next_offset for queue, position in positions.items()}

    def rewind(self, consumer_group: str, next_offsets: Mapping[MessageQueue, int]) -> int:
        """Set watermarks, after a RESTORE or to have rows written again; return the table's new version.

        ``next_offsets`` are the new watermarks. If it is empty, nothing is committed, and the present version
        is returned. Each watermark is set in the queue's newest generation of which the table has progress. A
        new generation begins when the queue's offsets start again.

        Stop the query before you call this. Delete rows at or above the new watermarks first: otherwise they
        would be written a second time. If a queue's offsets began again, delete only its newer rows, chosen
        by another column such as ``storeTimestamp``: earlier ones have the same offsets. No offset of the
        group may stay above its queue's watermark.

        Raises:
            OffsetError: If a next offset is negative.
            SinkConflict: If :meth:`rewind_problem` describes a problem.
            OptionError: If only Spark can set watermarks of this table, but no Spark session of this process
                can read it, or Spark's commits could overwrite those of others.
            SchemaError: If there is no table.
            DeltaError, OSError, PySparkException: If the table could not be written.
        """
        what = f"watermarks of group {consumer_group} path={masked(self.path)}"
        return commit_on_top(what, lambda _: partial(self._rewind, consumer_group, next_offsets))

    def _rewind(self, consumer_group: str, next_offsets: Mapping[MessageQueue, int]) -> int:
        negative = [f"{queue} to {offset}" for queue, offset in next_offsets.items() if offset < 0]
        if negative:
            raise OffsetError(
                f"Watermarks of {self.path} cannot be negative: {'; '.join(negative)}. Nothing was changed. "
                "Pass offsets of 0 or above."
            )
        handle = self._table.newest()
        log = handle.log
        if not next_offsets:
            # An empty commit of the group would hide a RESTORE before it.
            return log.version
        problem = self._rewind_problem(log, consumer_group, next_offsets)
        if problem is not None:
            raise SinkConflict(problem)
        before = last_known_progress(log, consumer_group)
        newest = by_generation(consumer_group, before)
        generations = {key.queue: key.number for key in newest}
        watermarks = {
            app_id(consumer_group, queue, generations.get(queue, 0)): offset
            for queue, offset in next_offsets.items()
        }
        return self._table.rewind(handle, before, SinkCommit.of(consumer_group, watermarks))

    def rewind_problem(self, consumer_group: str, queues: Iterable[MessageQueue]) -> str | None:
        """Return why :meth:`rewind` must not set the watermarks of only these queues; None if it may.

        After a RESTORE, the watermarks of all queues of the group must be set in one commit. A commit for
        some queues would hide the RESTORE, which may have removed rows of the other queues too.

        Raises:
            OptionError: If only Spark can set watermarks of this table, but no Spark session of this process
                can read it, or Spark's commits could overwrite those of others.
            SchemaError: If there is no table.
        """
        handle = self._table.newest()
        self._table.check_rewind(handle)
        return self._rewind_problem(handle.log, consumer_group, queues)

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
            "queues of the group together."
        )


def _later_generation_error(path: str, consumer_group: str, queues: Iterable[MessageQueue]) -> SinkMoved:
    return SinkMoved(
        f"The offsets of {'; '.join(map(str, sorted(queues)))} began again with other messages, and the "
        f"Delta table {path} already has progress of group {consumer_group} in these. This batch has only "
        "older messages: nothing was added. Start the query again to consume the new messages, too."
    )
