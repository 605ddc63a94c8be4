"""Exactly once into a Delta table: every commit carries the rows and, per queue, how far the table has come.

A replayed batch may end elsewhere than its first run, because a listener may fail the second time; so "this
batch id is done" would lose or repeat rows. Instead the table's own transaction ids hold a *watermark* per queue
(``rocketmq:GROUP:TOPIC:BROKER:QUEUE`` → next offset): rows below it are dropped, rows and new watermarks are
committed together. That holds for any listener, after a kill at any point, and with a lost checkpoint.

* Two consumers that write one queue conflict, since both carry its id: the second one is refused.
* Moving a group back makes it read messages whose rows are in the table; they are dropped. To have them written
  again, delete the rows and call :meth:`DeltaSink.rewind`.
* RESTORE takes rows away and leaves the watermarks, so it is looked for before each batch; :meth:`DeltaSink.follow_restore`.

Driver side only: tasks get a ``TaskWriter``, and nothing they import may import this module.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import Schema
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_rocketmq.consume.watermark import advance, app_id, queue_of
from pyspark_rocketmq.errors import OffsetError, OptionError, SchemaError, SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.offsets.table_form import TableForm, parse_columns
from pyspark_rocketmq.offsets.table_reading import STORAGE_ERRORS, table_uri
from pyspark_rocketmq.streaming.delta_files import TaskWriter, WrittenFile
from pyspark_rocketmq.streaming.delta_log import TableLog, create_table, open_log
from pyspark_rocketmq.streaming.spark_delta import (
    GroupCommit,
    SparkWriter,
    add_columns,
    group_app_id,
    writes_delta,
)
from pyspark_rocketmq.streaming.table_protocol import (
    cannot_take_files,
    check_columns,
    check_wanted,
    given_columns,
    is_commit_of,
    refused_features,
)

logger = logging.getLogger(__name__)

_PAUSES_S = (0.0, 0.01, 0.05, 0.2, 0.5)
"""Before each further try of a commit that lost against a change of other rows (DELETE, MERGE, ALTER)."""


class DeltaSink:
    """A Delta table that rows are added to exactly once.

    Picklable as configuration; ``prepare`` and what follows is for the driver.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        partition_by: Sequence[str] = (),
        merge_keys: Sequence[str] = (),
        schema_evolution: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Name the table.

        Args:
            path: Folder or storage URI of the table; made by ``prepare`` when missing.
            partition_by: Partition columns of a new table; an existing one keeps its own.
            merge_keys: Columns of a business key: the table keeps one row of each, the newest (row H6). A row whose
                key has a null is always added. The batch's rows pass through the driver.
            schema_evolution: Add columns that the rows have and the table has not, as Delta's ``mergeSchema``; columns
                that only the table has are null in new rows. Types and partitioning never change.
            sleep: How to wait between the tries of a commit.
        """
        self._path = table_uri(path)
        self._partition_by = tuple(partition_by)
        self.merge_keys = tuple(merge_keys)
        """Empty: rows are added, never updated."""
        self.schema_evolution = schema_evolution
        """Whether rows and table may differ in columns that may be null."""
        self.sleep = sleep
        self._wanted: TableForm | None = None
        self._schema = pa.schema([])
        self._spark: SparkSession | None = None
        self._thread = threading.local()

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_sink, (self._path, self._partition_by, self.merge_keys, self.schema_evolution)

    def __repr__(self) -> str:
        return (
            f"DeltaSink({self._path!r}, partition_by={self._partition_by!r}, merge_keys={self.merge_keys!r}, "
            f"schema_evolution={self.schema_evolution!r})"
        )

    @property
    def path(self) -> str:
        """Where the table is: a storage URI or an absolute path."""
        return self._path

    place = path
    """See ``Sink.place``."""

    def prepare(self, schema: pa.Schema) -> None:
        """Make the table if it is missing, else check that rows of ``schema`` can be added to it.

        Raises:
            SchemaError: If columns, types or partitioning differ, or the message's position is not among them.
            OptionError: If the table has features that forbid adding files, partition columns cannot be such, or a
                merge key is no column.
        """
        _check_keys(self.merge_keys, schema.names)
        wanted = TableForm(
            columns=parse_columns(Schema.from_arrow(schema).to_json()),
            partition_by=self._partition_by,
            configuration={},
            features=frozenset(),
        )
        check_wanted(self._path, wanted)
        log = open_log(self._path)
        if log is None:
            log = create_table(self._path, schema, self._partition_by)
            logger.info("sink table created path=%s", self._path)
        elif self.schema_evolution:
            self._add_missing_columns(log, schema)
        form = log.form()
        check_columns(self._path, form, wanted, may_differ=self.schema_evolution)
        check_wanted(self._path, replace(wanted, partition_by=form.partition_by))
        self._wanted, self._schema = wanted, schema
        self._thread.log = log
        refused = self._refused(form)
        logger.info(
            "sink writes files and commits by %s path=%s version=%d",
            f"Spark because of {', '.join(refused)}" if refused else "delta-rs",
            self._path,
            log.version,
        )

    def begin(self, consumer_group: str, queues: Collection[MessageQueue]) -> DeltaBatch:
        """Take a fresh snapshot and the group's watermark of each queue.

        Raises:
            SinkConflict: If a RESTORE took rows away since the group's last commit.
            SchemaError: If ``prepare`` was not called, or the table was altered since.
            OptionError: If the table got features since that forbid adding files.
        """
        log = self._newest_log()
        form = log.form()
        refused = self.check_unaltered(form)
        before = self.group_commit(log, consumer_group, queues)
        watermarks = {queue: before.watermarks.get(app_id(consumer_group, queue), 0) for queue in queues}
        if any(watermarks.values()):
            _check_not_restored(self._path, consumer_group, log.restore_after_last_commit(consumer_group))
        writer = TaskWriter(
            table_uri=self._path,
            # Spark reads the rows again, and brings them into the table's own form.
            schema=self._schema if refused else log.arrow_schema,
            partition_by=() if refused else form.partition_by,
            watermarks=watermarks,
            fills_missing=self.schema_evolution and not refused,
        )
        return DeltaBatch(self, log, consumer_group, writer, before, by_spark=bool(refused))

    def group_commit(
        self, log: TableLog, consumer_group: str, queues: Collection[MessageQueue]
    ) -> GroupCommit:
        """How far the table has come with the group, in these queues and in all that Spark's writer knew of.

        Raises:
            SinkConflict: If that cannot be told any more.
        """
        number = log.transaction_version(group_app_id(consumer_group)) or 0
        newest = log.newest_commit(consumer_group) if number else None
        if number and newest is None:
            raise SinkConflict(
                f"The Delta table {self._path} has rows of group {consumer_group}, but the log entry that tells how far "
                "they go has been cleaned up. Say it with DeltaSink.rewind(consumer_group, {queue: highest queueOffset + "
                "1}) for every queue, and start the query again; and keep the log longer than the group may stand "
                "still (delta.logRetentionDuration)."
            )
        made = GroupCommit.of(newest) if newest is not None else None
        watermarks = dict(made.watermarks) if made is not None else {}
        for one in (app_id(consumer_group, queue) for queue in queues):
            # Where Spark's commit says nothing, the queue's last rows came by files.
            if one not in watermarks and (at := log.transaction_version(one)) is not None:
                watermarks[one] = at
        return GroupCommit(watermarks=watermarks, number=number, is_by_spark=made is not None)

    def watermarks(self, consumer_group: str) -> dict[MessageQueue, int]:
        """How far the table has come, in each queue that the group ever wrote rows of (next offsets).

        Raises:
            SchemaError: If there is no table.
            OffsetError: If its log cannot be read.
        """
        try:
            log = self._newest_log()
            found = {**log.all_transactions(), **self.group_commit(log, consumer_group, ()).watermarks}
        except STORAGE_ERRORS as exc:
            raise OffsetError(
                f"What group {consumer_group} has written to {self._path} could not be read: {exc} "
                "Check that the table's folder _delta_log can be read and has all files since its last checkpoint."
            ) from exc
        queues = {queue_of(name, consumer_group): version for name, version in found.items()}
        return {queue: version for queue, version in queues.items() if queue is not None}

    def follow_restore(self, consumer_group: str, store: OffsetStore) -> dict[MessageQueue, int]:
        """Have the group consume again what the table's last RESTORE took away; where each queue goes on.

        The group's offsets in ``store`` go back to where the restored version was, then the watermarks. Stop the query
        before. Stopped in between, the table is refused as before, and this may be called again.

        Raises:
            OffsetError: If no RESTORE came after the group's last commit, or if the log does not say or have the
                restored version.
            OffsetStoreUnavailable, OffsetCommitConflict: If the offsets could not be moved.
            DeltaError: If the table could not be written.
        """
        log = self._newest_log()
        queues = self.watermarks(consumer_group)
        try:
            then = log.before_restores(consumer_group)
            before = self.group_commit(then, consumer_group, list(queues)).watermarks
            targets = {queue: before.get(app_id(consumer_group, queue), 0) for queue in queues}
        except (*STORAGE_ERRORS, ValueError) as exc:
            raise OffsetError(
                f"How far group {consumer_group} was in the version to which {self._path} was restored cannot be told "
                f"from the table's log: {exc} Look it up in the rows, stop the query, and give it both to the offset "
                "store's reset and to DeltaSink.rewind, in this order: group, {queue: highest queueOffset + 1}."
            ) from exc
        if then is log:
            raise OffsetError(
                f"There is nothing to follow: no RESTORE of {self._path} came after the last commit of group "
                f"{consumer_group}. Start the query."
            )
        store.reset(consumer_group, targets)
        self.rewind(consumer_group, targets)
        logger.warning(
            "restored sink followed path=%s group=%s queues=%d", self._path, consumer_group, len(targets)
        )
        return targets

    def rewind(self, consumer_group: str, next_offsets: Mapping[MessageQueue, int]) -> int:
        """Set watermarks as an operator, after a RESTORE or to have rows written again; return the version.

        Rows at or above the new watermark that are still in the table will be there twice: delete them first.
        Stop the query before, and leave no offset of the group above its queue's watermark.

        Raises:
            OffsetError: If a next offset is negative.
            SinkConflict: As :meth:`rewind_problem` says.
            DeltaError: If the table could not be written.
        """
        negative = [f"{queue} to {offset}" for queue, offset in next_offsets.items() if offset < 0]
        if negative:
            raise OffsetError(f"Watermarks of {self._path} cannot be negative: {'; '.join(negative)}.")
        versions = {app_id(consumer_group, queue): offset for queue, offset in next_offsets.items()}
        log, commit_id = self._newest_log(), str(uuid.uuid4())
        if not versions:
            # A commit of the group would hide the RESTORE before it.
            return log.version
        problem = self.rewind_problem(consumer_group, next_offsets)
        if problem is not None:
            raise SinkConflict(problem)
        try:
            before = self.group_commit(log, consumer_group, ())
        except SinkConflict:
            # What cannot be told any more is what the operator says.
            before = GroupCommit(number=log.transaction_version(group_app_id(consumer_group)) or 0)
        form = log.form()
        if not self._refused(form):
            return log.add(
                (), {**before.watermarks, **versions}, consumer_group=consumer_group, commit_id=commit_id
            )
        begun_at = log.version
        given = given_columns(form)
        schema = pa.schema([field for field in log.arrow_schema if field.name in given])
        self.spark_writer.append(
            (), schema, before, versions, consumer_group=consumer_group, commit_id=commit_id
        )
        log.refresh()
        own = (entry for entry in log.history_since(begun_at) if is_commit_of(entry, commit_id=commit_id))
        return int(next(own)["version"])

    def rewind_problem(self, consumer_group: str, queues: Iterable[MessageQueue]) -> str | None:
        """Why the watermarks of these queues cannot be set without those of others; None if they can.

        The group's commit would hide a RESTORE before it, which has taken away rows of the other queues, too.
        """
        restored_at = self._newest_log().restore_after_last_commit(consumer_group)
        if restored_at is None:
            return None
        try:
            left_out = sorted(self.watermarks(consumer_group).keys() - set(queues))
        except SinkConflict:
            # What they were cannot be told any more: they are what the operator says.
            return None
        if not left_out:
            return None
        return (
            f"The Delta table {self._path} was restored at version {restored_at}, after group {consumer_group} wrote to it "
            f"last, and rows of {'; '.join(map(str, left_out))} may be gone, too. Run DeltaSink({self._path!r})"
            f".follow_restore({consumer_group!r}, STORE), or rewind all queues of the group at once."
        )

    @property
    def spark_writer(self) -> SparkWriter:
        """What commits to a table that is left to Spark's writer."""
        assert self._spark is not None
        return SparkWriter(self._spark, self._path)

    def _refused(self, form: TableForm) -> tuple[str, ...]:
        """What leaves the table to Spark's writer.

        Raises:
            OptionError: If that cannot be used.
        """
        refused = refused_features(form)
        if not refused:
            return ()
        if self.merge_keys:
            raise cannot_take_files(self._path, refused, "rows are to be merged (merge_keys)")
        self._spark = self._spark or SparkSession.getActiveSession()
        if not writes_delta(self._spark):
            raise cannot_take_files(
                self._path, refused, "there is no Spark session with Delta's extension (delta-spark) here"
            )
        return refused

    def _add_missing_columns(self, log: TableLog, schema: pa.Schema) -> None:
        known = {column.name for column in log.form().columns}
        missing = pa.schema([field for field in schema if field.name not in known])
        if not len(missing):
            return
        if self._refused(log.form()):
            assert self._spark is not None
            add_columns(self._spark, self._path, missing)
            log.refresh()
        else:
            log.add_columns(missing)

    def _newest_log(self) -> TableLog:
        """This thread's handle, moved to the newest version."""
        log: TableLog | None = getattr(self._thread, "log", None)
        if log is not None:
            try:
                log.refresh()
            except STORAGE_ERRORS:
                # An idle handle needs log files that were cleaned up since: begin again from a checkpoint.
                logger.info("sink table to be opened again path=%s", self._path, exc_info=True)
            else:
                return log
        log = open_log(self._path)
        if log is None:
            raise SchemaError(
                f"There is no Delta table at {self._path}. Start the query again to have it made, "
                "or call prepare with the columns it shall have."
            )
        self._thread.log = log
        return log

    def check_unaltered(self, form: TableForm) -> tuple[str, ...]:
        """Refuse a table that rows as prepared can no longer be added to; what leaves it to Spark's writer."""
        if self._wanted is None:
            raise SchemaError(
                f"The sink {self._path} does not know its rows' columns yet. Call prepare with their schema first."
            )
        check_columns(self._path, form, self._wanted, may_differ=self.schema_evolution)
        return self._refused(form)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the rows; known once it is prepared."""
        return tuple(column.name for column in self._wanted.columns) if self._wanted else ()


class DeltaBatch:
    """One micro-batch on its way into the table; made by :meth:`DeltaSink.begin`."""

    def __init__(
        self,
        sink: DeltaSink,
        log: TableLog,
        consumer_group: str,
        writer: TaskWriter,
        before: GroupCommit,
        *,
        by_spark: bool,
    ) -> None:
        self._sink = sink
        self._before = before
        self._is_by_spark = by_spark
        self._log = log
        self._version = log.version
        self._consumer_group = consumer_group
        self._writer = writer

    @property
    def watermarks(self) -> Mapping[MessageQueue, int]:
        """Next offset of each queue: rows below it are in the table already; 0 when none is."""
        return self._writer.watermarks

    def task_writer(self) -> TaskWriter:
        """What tasks write the batch's rows with; it drops rows below the watermarks."""
        return self._writer

    def commit(self, files: Sequence[WrittenFile], acked: Mapping[MessageQueue, int]) -> int | None:
        """Add the files and move the watermarks to ``acked`` (next offsets), in one commit.

        Returns:
            The table version made; None when no watermark grows, so that there is nothing to do.

        Raises:
            SinkMoved: If another consumer wrote one of the queues since ``begin``. Nothing was added.
            SinkConflict: If a RESTORE took rows away, or if other changes of the table kept winning. Nothing was
                added; the batch may run again.
            OffsetError: If a queue was not named to ``begin``, or if there are files although no queue grew.
        """
        unknown = [str(queue) for queue in acked if queue not in self.watermarks]
        if unknown:
            raise OffsetError(
                f"{'; '.join(unknown)}: acknowledged, but not named when the batch began, so what the table "
                f"{self._sink.path} holds of it is not known. Nothing was added. Name every queue at the beginning."
            )
        grown = advance(self.watermarks, acked)
        if not grown and files:
            raise OffsetError(
                f"Group {self._consumer_group}: {sum(file.num_records for file in files)} rows for "
                f"{self._sink.path} come without progress of any queue. Nothing was added. Rows of messages that were "
                "not acknowledged must not be written."
            )
        return self._commit(files, grown) if grown else None

    def _commit(self, files: Sequence[WrittenFile], grown: Mapping[MessageQueue, int]) -> int:
        """Commit against a snapshot whose watermarks are those of ``begin``, until it is known to hold."""
        commit_id = str(uuid.uuid4())
        versions = {app_id(self._consumer_group, queue): offset for queue, offset in grown.items()}
        failure: Exception | None = None
        for pause_s in (None, *_PAUSES_S):
            try:
                if pause_s is not None:
                    self._sink.sleep(pause_s)
                    self._log.refresh()
                if self._log.version != self._version:
                    done_at = self._look_at_changes(commit_id, grown)
                    if done_at is not None:
                        if self._is_by_spark:
                            self._log.remove(files)
                        return done_at
                made_at = self._write(files, versions, commit_id)
                if made_at is not None:
                    return made_at
            except (*STORAGE_ERRORS, PySparkException, Py4JError) as exc:
                # The outcome is unknown (delta-rs#2279): the next round looks for the commit before it tries again.
                logger.info("sink commit to be tried again path=%s: %s", self._sink.path, exc)
                failure = exc
        raise SinkConflict(
            f"{len(files)} files of group {self._consumer_group} could not be committed to {self._sink.path} in "
            f"{len(_PAUSES_S) + 1} tries; the last error was: {failure} Check what else changes this table; "
            "the batch may run again."
        ) from failure

    def _write(self, files: Sequence[WrittenFile], versions: Mapping[str, int], commit_id: str) -> int | None:
        """The version of the commit; None if the log is to be looked at for it."""
        group, keys = self._consumer_group, self._sink.merge_keys
        if self._is_by_spark:
            self._sink.spark_writer.append(
                files,
                self._writer.schema,
                self._before,
                versions,
                consumer_group=group,
                commit_id=commit_id,
            )
            return None
        if keys:
            return self._log.merge(
                files, keys, self._sink.columns, versions, consumer_group=group, commit_id=commit_id
            )
        # Transaction ids count from here on, those of the queues that stood still, too.
        carried = self._before.watermarks if self._before.is_by_spark else {}
        return self._log.add(files, {**carried, **versions}, consumer_group=group, commit_id=commit_id)

    def _look_at_changes(self, commit_id: str, grown: Mapping[MessageQueue, int]) -> int | None:
        """Judge what was committed since ``begin``; return the version if it was this very commit."""
        for entry in self._log.history_since(self._version):
            if is_commit_of(entry, commit_id=commit_id):
                return int(entry["version"])
        group, path = self._consumer_group, self._sink.path
        _check_not_restored(path, group, self._log.restore_after_last_commit(group))
        # What other members of the group have done with their queues is what this commit goes on from.
        self._before = self._sink.group_commit(self._log, group, list(self.watermarks))
        found = {queue: self._before.watermarks.get(app_id(group, queue), 0) for queue in grown}
        moved = [
            f"{queue} from {self.watermarks[queue]} to {now}"
            for queue, now in found.items()
            if now != self.watermarks[queue]
        ]
        if moved:
            raise SinkMoved(
                f"Another consumer of group {group} wrote rows into {path} while this batch ran, and moved "
                f"{'; '.join(moved)}. Nothing of this batch was added. Run the batch again: rows that are there by "
                "now are left out. If it happens often, two queries own the same queues: check that each queue is "
                "locked at the broker, or that the queries use different groups."
            )
        if bool(self._sink.check_unaltered(self._log.form())) != self._is_by_spark:
            raise SinkMoved(
                f"The Delta table {path} was given features, or lost some, that decide how rows are written, while this "
                "batch ran. Nothing of this batch was added. Run the batch again."
            )
        return None


def _check_not_restored(path: str, consumer_group: str, restored_at: int | None) -> None:
    if restored_at is not None:
        raise SinkConflict(
            f"The Delta table {path} was restored at version {restored_at}, after group {consumer_group} wrote to "
            "it last: rows may be gone, while the watermarks still say that they are there and would keep them from "
            "being written again. To have the messages consumed again whose rows are gone, stop every query of the "
            f"group, run DeltaSink({path!r}).follow_restore({consumer_group!r}, STORE) with the group's offset store, "
            "for example DeltaOffsetStore(path), and start the query again. If the RESTORE was a mistake, restore the "
            "version before it first: then nothing is consumed again."
        )


def _check_keys(keys: Sequence[str], columns: Sequence[str]) -> None:
    unknown = [name for name in keys if name not in columns]
    if unknown:
        problem = (
            f"mergeKeys names {', '.join(unknown)}, which the rows do not have; they have {', '.join(columns)}. Add "
            "the column to the listener's output schema, or name another."
        )
        raise OptionError((problem,), where="Delta sink")


def _rebuild_sink(
    path: str, partition_by: tuple[str, ...], merge_keys: tuple[str, ...], schema_evolution: bool
) -> DeltaSink:
    return DeltaSink(
        path, partition_by=partition_by, merge_keys=merge_keys, schema_evolution=schema_evolution
    )
