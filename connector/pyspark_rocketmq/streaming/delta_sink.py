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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import Schema

from pyspark_rocketmq.consume.watermark import advance, app_id, queue_of
from pyspark_rocketmq.errors import OffsetError, OptionError, SchemaError, SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.offsets.table_form import TableForm, parse_columns
from pyspark_rocketmq.offsets.table_reading import STORAGE_ERRORS, table_uri
from pyspark_rocketmq.streaming.delta_files import TaskWriter, WrittenFile
from pyspark_rocketmq.streaming.delta_log import TableLog, create_table, open_log
from pyspark_rocketmq.streaming.table_protocol import (
    check_sink_table,
    check_wanted,
    is_commit_of,
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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Name the table.

        Args:
            path: Folder or storage URI of the table; made by ``prepare`` when missing.
            partition_by: Partition columns of a new table; an existing one keeps its own.
            merge_keys: Columns of a business key: the table keeps one row of each, the newest (row H6). A row whose
                key has a null is always added. The batch's rows pass through the driver.
            sleep: How to wait between the tries of a commit.
        """
        self._path = table_uri(path)
        self._partition_by = tuple(partition_by)
        self.merge_keys = tuple(merge_keys)
        """Empty: rows are added, never updated."""
        self.sleep = sleep
        self._wanted: TableForm | None = None
        self._thread = threading.local()

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_sink, (self._path, self._partition_by, self.merge_keys)

    def __repr__(self) -> str:
        return (
            f"DeltaSink({self._path!r}, partition_by={self._partition_by!r}, merge_keys={self.merge_keys!r})"
        )

    @property
    def path(self) -> str:
        """Where the table is: a storage URI or an absolute path."""
        return self._path

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
        form = log.form()
        check_sink_table(self._path, form, wanted)
        check_wanted(self._path, replace(wanted, partition_by=form.partition_by))
        self._wanted = wanted
        self._thread.log = log
        logger.info("sink writes files and commits by delta-rs path=%s version=%d", self._path, log.version)

    def begin(self, consumer_group: str, queues: Iterable[MessageQueue]) -> SinkBatch:
        """Take a fresh snapshot and the group's watermark of each queue.

        Raises:
            SinkConflict: If a RESTORE took rows away since the group's last commit.
            SchemaError: If ``prepare`` was not called, or the table was altered since.
            OptionError: If the table got features since that forbid adding files.
        """
        log = self._newest_log()
        form = log.form()
        self.check_unaltered(form)
        watermarks = {queue: log.transaction_version(app_id(consumer_group, queue)) or 0 for queue in queues}
        if any(watermarks.values()):
            _check_not_restored(self._path, consumer_group, log.restore_after_last_commit(consumer_group))
        writer = TaskWriter(
            table_uri=self._path,
            schema=log.arrow_schema,
            partition_by=form.partition_by,
            watermarks=watermarks,
        )
        return SinkBatch(self, log, consumer_group, writer)

    def watermarks(self, consumer_group: str) -> dict[MessageQueue, int]:
        """How far the table has come, in each queue that the group ever wrote rows of (next offsets).

        Raises:
            SchemaError: If there is no table.
            OffsetError: If its log cannot be read.
        """
        try:
            found = self._newest_log().all_transactions()
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
            targets = {
                queue: then.transaction_version(app_id(consumer_group, queue)) or 0 for queue in queues
            }
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
            DeltaError: If the table could not be written.
        """
        negative = [f"{queue} to {offset}" for queue, offset in next_offsets.items() if offset < 0]
        if negative:
            raise OffsetError(f"Watermarks of {self._path} cannot be negative: {'; '.join(negative)}.")
        versions = {app_id(consumer_group, queue): offset for queue, offset in next_offsets.items()}
        log = self._newest_log()
        if not versions:
            # A commit of the group would hide the RESTORE before it.
            return log.version
        return log.add((), versions, consumer_group=consumer_group, commit_id=str(uuid.uuid4()))

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

    def check_unaltered(self, form: TableForm) -> None:
        """Refuse a table that rows as prepared can no longer be added to; errors as of ``begin``."""
        if self._wanted is None:
            raise SchemaError(
                f"The sink {self._path} does not know its rows' columns yet. Call prepare with their schema first."
            )
        check_sink_table(self._path, form, self._wanted)


class SinkBatch:
    """One micro-batch on its way into the table; made by :meth:`DeltaSink.begin`."""

    def __init__(self, sink: DeltaSink, log: TableLog, consumer_group: str, writer: TaskWriter) -> None:
        self._sink = sink
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
                f"{self._sink.path} come without progress of any queue. Nothing was added. Rows of messages that "
                "were not acknowledged must not be written."
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
                        return done_at
                return self._write(files, versions, commit_id)
            except STORAGE_ERRORS as exc:
                # The outcome is unknown (delta-rs#2279): the next round looks for the commit before it tries again.
                logger.info("sink commit to be tried again path=%s: %s", self._sink.path, exc)
                failure = exc
        raise SinkConflict(
            f"{len(files)} files of group {self._consumer_group} could not be committed to {self._sink.path} in "
            f"{len(_PAUSES_S) + 1} tries; the last error was: {failure} Check what else changes this table; "
            "the batch may run again."
        ) from failure

    def _write(self, files: Sequence[WrittenFile], versions: Mapping[str, int], commit_id: str) -> int:
        group, keys = self._consumer_group, self._sink.merge_keys
        if keys:
            return self._log.merge(files, keys, versions, consumer_group=group, commit_id=commit_id)
        return self._log.add(files, versions, consumer_group=group, commit_id=commit_id)

    def _look_at_changes(self, commit_id: str, grown: Mapping[MessageQueue, int]) -> int | None:
        """Judge what was committed since ``begin``; return the version if it was this very commit."""
        for entry in self._log.history_since(self._version):
            if is_commit_of(entry, commit_id=commit_id):
                return int(entry["version"])
        group, path = self._consumer_group, self._sink.path
        _check_not_restored(path, group, self._log.restore_after_last_commit(group))
        found = {queue: self._log.transaction_version(app_id(group, queue)) or 0 for queue in grown}
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
        self._sink.check_unaltered(self._log.form())
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


def _rebuild_sink(path: str, partition_by: tuple[str, ...], merge_keys: tuple[str, ...]) -> DeltaSink:
    return DeltaSink(path, partition_by=partition_by, merge_keys=merge_keys)
