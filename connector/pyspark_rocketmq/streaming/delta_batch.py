"""One micro-batch's commit into a Delta table: its rows and how far its queues have come, or nothing.

A commit that lost against another change of the table, or whose outcome is not known, is looked for in the log before it
is tried again: it may have been stored.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pyspark_rocketmq.consume.watermark import advance, app_id
from pyspark_rocketmq.errors import OffsetError, SinkConflict, SinkMoved, StorageNotShared
from pyspark_rocketmq.masked import masked
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.table_reading import STORAGE_ERRORS
from pyspark_rocketmq.streaming.delta_files import TaskWriter, WrittenFile
from pyspark_rocketmq.streaming.delta_log import TableLog
from pyspark_rocketmq.streaming.sink_standing import SinkStanding
from pyspark_rocketmq.streaming.sink_table import SinkTable
from pyspark_rocketmq.streaming.spark_delta import GroupCommit
from pyspark_rocketmq.streaming.table_protocol import is_commit_of

logger = logging.getLogger(__name__)

_PAUSES_S = (0.0, 0.01, 0.05, 0.2, 0.5)
"""Before each further try of a commit that lost against a change of other rows (DELETE, MERGE, ALTER)."""


_PAUSES_OF_STORAGE_S = (0.1, 0.5, 2.0, 0.0)
"""After each look at files that a mount may show late."""
_SHOWN_FILES = 3


class DeltaBatch:
    """One micro-batch on its way into the table; made by ``DeltaSink.begin``."""

    def __init__(
        self,
        table: SinkTable,
        log: TableLog,
        consumer_group: str,
        writer: TaskWriter,
        before: GroupCommit,
        *,
        generations: Mapping[MessageQueue, int],
        standing: SinkStanding,
        by_spark: bool,
        sleep: Callable[[float], None],
    ) -> None:
        self._table = table
        self._sleep = sleep
        self._before = before
        self._generations = generations
        self.standings = (standing,)
        """See ``SinkBatch.standings``."""
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
            StorageNotShared: If the driver does not see the files as the tasks wrote them. Nothing was added.
        """
        unknown = [str(queue) for queue in acked if queue not in self.watermarks]
        if unknown:
            raise OffsetError(
                f"{'; '.join(unknown)}: acknowledged, but not named when the batch began, so what the table "
                f"{self._table.path} holds of it is not known. Nothing was added. Name every queue at the beginning."
            )
        grown = advance(self.watermarks, acked)
        if not grown and files:
            raise OffsetError(
                f"Group {self._consumer_group}: {sum(file.num_records for file in files)} rows for "
                f"{self._table.path} come without progress of any queue. Nothing was added. Rows of messages that were "
                "not acknowledged must not be written."
            )
        if not grown:
            return None
        self._check_seen(files)
        return self._commit(files, grown)

    def _check_seen(self, files: Sequence[WrittenFile]) -> None:
        """Refuse files that are not where the table's readers will look for them."""
        unseen: list[str] = []
        for pause_s in _PAUSES_OF_STORAGE_S:
            unseen = self._log.unseen(files)
            if not unseen:
                return
            self._sleep(pause_s)
        raise StorageNotShared(
            f"{len(unseen)} of {len(files)} files that tasks wrote for {self._table.path} are not there for the driver: "
            f"{'; '.join(unseen[:_SHOWN_FILES])}. Nothing of this batch was added, and no offset was moved. Driver and executors "
            "see different folders under this path, or something removes files there: put the table on storage that all "
            "machines share (an object store, HDFS, a mount), and start the query again."
        )

    def _commit(self, files: Sequence[WrittenFile], grown: Mapping[MessageQueue, int]) -> int:
        """Commit against a snapshot whose watermarks are those of ``begin``, until it is known to hold."""
        commit_id = str(uuid.uuid4())
        versions = {self._id_of(queue): offset for queue, offset in grown.items()}
        failure: Exception | None = None
        for pause_s in (None, *_PAUSES_S):
            try:
                self._look_again(pause_s)
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
                logger.info(
                    "sink commit to be tried again path=%s: %s", masked(self._table.path), masked(str(exc))
                )
                failure = exc
        raise SinkConflict(
            f"{len(files)} files of group {self._consumer_group} could not be committed to {self._table.path} in "
            f"{len(_PAUSES_S) + 1} tries; the last error was: {failure} Check what else changes this table; "
            "the batch may run again."
        ) from failure

    def _look_again(self, pause_s: float | None) -> None:
        """Before a try: move to the newest version, but for the first one."""
        if pause_s is not None:
            self._sleep(pause_s)
        if not self._log.is_still_there():
            raise SinkMoved(
                f"The Delta table {self._table.path} was deleted, made anew or put back to an earlier state while this batch "
                "ran. Nothing of this batch was added."
            )
        if pause_s is not None:
            self._log.refresh()

    def _id_of(self, queue: MessageQueue) -> str:
        return app_id(self._consumer_group, queue, self._generations[queue])

    def _write(self, files: Sequence[WrittenFile], versions: Mapping[str, int], commit_id: str) -> int | None:
        """The version of the commit; None if the log is to be looked at for it."""
        group, keys = self._consumer_group, self._table.merge_keys
        if self._is_by_spark:
            self._table.spark_writer.append(
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
                files, keys, self._table.columns, versions, consumer_group=group, commit_id=commit_id
            )
        # Transaction ids count from here on, those of the queues that stood still, too.
        carried = self._before.watermarks if self._before.is_by_spark else {}
        return self._log.add(files, {**carried, **versions}, consumer_group=group, commit_id=commit_id)

    def _look_at_changes(self, commit_id: str, grown: Mapping[MessageQueue, int]) -> int | None:
        """Judge what was committed since ``begin``; return the version if it was this very commit."""
        for entry in self._log.history_since(self._version):
            if is_commit_of(entry, commit_id=commit_id):
                return int(entry["version"])
        group, path = self._consumer_group, self._table.path
        self._table.check_not_restored(self._log, group)
        # What other members of the group have done with their queues is what this commit goes on from.
        self._before = self._table.group_commit(self._log, group, self._generations.items())
        found = {queue: self._before.watermarks.get(self._id_of(queue), 0) for queue in grown}
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
        if bool(self._table.check_unaltered(self._log.form())) != self._is_by_spark:
            raise SinkMoved(
                f"The Delta table {path} was given features, or lost some, that decide how rows are written, while this "
                "batch ran. Nothing of this batch was added. Run the batch again."
            )
        return None
