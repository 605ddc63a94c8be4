"""What keeps an offset table small and quick, whoever writes it and however often.

Every hundred versions, on a thread beside the commits: the past goes into the history table, the log gets a
checkpoint and loses what is too old, and files that nothing names any more are removed.

Rule 1: nothing is removed before the history has it.
Rule 2: each step may be the last one that is done; the next upkeep goes on from there, in whichever process.
Rule 3: an upkeep that fails harms nobody: it is logged, and done by the next.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from deltalake import DeltaTable

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.masked import masked
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.history import Moment, StoredChange, worth_keeping
from pyspark_rocketmq.offsets.history_table import HistoryTable
from pyspark_rocketmq.offsets.log_files import LogFiles
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.offsets.table_reading import STORAGE_ERRORS

logger = logging.getLogger(__name__)

EVERY: Final = 100
"""Versions from one upkeep to the next."""
KEPT_COMMITS: Final = 200
"""How many of the newest versions can be gone back to exactly; each makes every commit a little slower, by listing."""
_FILES_KEPT_S: Final = 3600.0
"""For how long a reader may look at a snapshot of the table, at least."""
_FORGET_EVERY: Final = 10
"""Upkeeps from one removal of data files to the next: each makes two versions of its own."""

RowsOf = Callable[[DeltaTable, str], Mapping[MessageQueue, OffsetRow]]


class Upkeep:
    """Sees to one table, at most once at a time in this process."""

    def __init__(self, table_uri: str, clock: Clock, rows_of: RowsOf) -> None:
        self._table_uri = table_uri
        self._clock = clock
        self._rows_of = rows_of
        self._guard = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._seen: int | None = None

    def written(self, before: int) -> None:
        """A commit was made on ``before``; returns at once."""
        with self._guard:
            last, self._seen = self._seen, before + 1
            is_due = (before if last is None else last) // EVERY < (before + 1) // EVERY
            if not is_due or (self._running is not None and not self._running.done()):
                return
            if self._thread is None:
                # Its end is waited for when the process ends in good order.
                self._thread = ThreadPoolExecutor(1, "rocketmq-offset-upkeep")
            self._running = self._thread.submit(self._run_logged, (before + 1) // EVERY)

    def wait(self, timeout_s: float) -> None:
        """Until what was begun is done."""
        with self._guard:
            running = self._running
        if running is not None:
            running.result(timeout_s)

    def run(self, *, forget_files: bool) -> None:
        """Do all of it once, here and now.

        Raises:
            DeltaError: If a step failed; those before it are done.
        """
        table = DeltaTable(self._table_uri)
        version = table.version()
        history = HistoryTable(self._table_uri)
        log = LogFiles(self._table_uri)
        self._record(history, log, version)
        table.create_checkpoint()
        removed = log.forget_before(version - KEPT_COMMITS)
        if forget_files:
            self._forget_files(table, log)
            history.forget_and_compact(self._clock.now_s())
        logger.info(
            "offset table looked after path=%s version=%d log_files=-%d",
            masked(self._table_uri),
            version,
            removed,
        )

    def _run_logged(self, number: int) -> None:
        try:
            self.run(forget_files=number % _FORGET_EVERY == 0)
        except STORAGE_ERRORS as error:
            logger.warning(
                "offset table not looked after, to be done later path=%s: %s",
                masked(self._table_uri),
                masked(str(error)),
            )
        except Exception:
            # Nobody watches this thread, and commits do not depend on it.
            logger.exception("offset table not looked after path=%s", masked(self._table_uri))

    def _record(self, history: HistoryTable, log: LogFiles, version: int) -> None:
        recorded = history.recorded_up_to()
        readable = log.readable_versions()
        if recorded > version:
            # Another table was here before; what is told of it is not this one's past.
            recorded = -1
        found = (
            StoredChange.of_commit(each, log.commit_info(each))
            for each in range(max(recorded + 1, readable.start), version + 1)
        )
        changes = worth_keeping([change for change in found if change is not None])
        moments = [moment for change in changes for moment in self._moments(change)]
        if moments:
            history.append(moments, version)

    def _moments(self, change: StoredChange) -> list[Moment]:
        table = DeltaTable(self._table_uri, version=change.version)
        if change.consumer_group is not None:
            groups: Collection[str] = (change.consumer_group,)
        else:
            groups = {partition["consumer_group"] for partition in table.partitions()}
        return [Moment(change, rows) for group in sorted(groups) if (rows := self._rows_of(table, group))]

    def _forget_files(self, table: DeltaTable, log: LogFiles) -> None:
        """Remove data files that no version of the log names, and those that a killed writer left."""
        kept_s = _FILES_KEPT_S
        readable = log.readable_versions()
        oldest = next((info for version in readable if (info := log.commit_info(version)) is not None), None)
        if oldest is not None:
            kept_s = max(kept_s, self._clock.now_s() - oldest["timestamp"] / 1000)
        table.update_incremental()
        # Full: a checkpoint forgets which files were removed long ago.
        table.vacuum(math.ceil(kept_s / 3600), dry_run=False, enforce_retention_duration=False, full=True)
