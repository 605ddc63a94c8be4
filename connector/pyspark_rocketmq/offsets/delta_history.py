"""Keeps an offset table small and its history readable.

The history is a second Delta table in the folder ``_history`` of the offset table. Its first columns are the
version, time and action of the change that wrote a row; the others are those of the offset table. It is
partitioned by day, so that a day can be deleted without rewriting another. Anybody may read it: one query
returns a group's progress over days.

The upkeep runs every hundred versions on a background thread. It copies the versions worth keeping into the
history table, writes a checkpoint of the log, and deletes old log entries. Each tenth upkeep also removes
files that are no longer used.

Rule 1: a version that is worth keeping, and can be read, is removed only after the history contains it.
Rule 2: the upkeep may be interrupted after any step; the next one continues from there, in any process.
Rule 3: an upkeep that fails is harmless: the failure is logged, and the next upkeep does the work.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.maintenance import Maintenance
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, create_table, open_table, query_rows, sql_literal
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta_rows import SCHEMA, rows_from_table, rows_to_table
from pyspark_rocketmq.offsets.history import Moment, StoredChange, worth_keeping
from pyspark_rocketmq.offsets.store import OffsetRow

logger = logging.getLogger(__name__)

HISTORY_DAYS: Final = 7
"""Days for which a group's offsets are kept at least, to reset the group to them or to draw them."""
_FOLDER: Final = "_history"
_TRANSACTION: Final = "offsets"
_CHANGE_COLUMNS = pa.schema(
    [
        pa.field("day", pa.date32()),
        pa.field("version", pa.int64()),
        pa.field("changed_at", pa.timestamp("us", "UTC")),
        pa.field("action", pa.string()),
    ]
)
_COMPACT_ABOVE: Final = 64
"""Number of files of the history table above which it is compacted; most hold one append each."""
_TABLE_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 1 hour",
    "delta.logRetentionDuration": "interval 1 hour",
}

_SCHEMA = pa.schema([*_CHANGE_COLUMNS, *SCHEMA])
EVERY: Final = 100
"""Number of versions of the offset table from one upkeep to the next."""
KEPT_COMMITS: Final = 200
"""Number of newest versions that stay in the log, so that each can be restored; older ones are thinned out.
Each version in the log makes every commit a little slower, because the log's listing is longer."""
_FILES_KEPT_S: Final = 3600.0
"""Minimum time for which a snapshot of the table stays readable."""
_REMOVE_FILES_EVERY: Final = 10
"""Number of upkeeps from one removal of data files to the next; a removal adds two versions to the table."""
ReadRows = Callable[[DeltaTable, str], Mapping[MessageQueue, OffsetRow]]


class HistoryTable:
    """The history of the offset table at ``table_uri``; the first ``append`` creates it."""

    def __init__(self, table_uri: str, storage: StorageOptions = NO_OPTIONS) -> None:
        self.path: Final = f"{table_uri.rstrip('/')}/{_FOLDER}"
        self._storage = storage
        self._recorded: DeltaTable | None = None
        """The history table as read by the last ``recorded_up_to``; None if it did not exist."""

    def recorded_up_to(self) -> int:
        """Return the version of the offset table up to which the history is written; -1 if it is empty."""
        self._recorded = self._opened()
        recorded = None if self._recorded is None else self._recorded.transaction_version(_TRANSACTION)
        return -1 if recorded is None else recorded

    def append(self, moments: Sequence[Moment], up_to: int) -> None:
        """Add ``moments`` and record that the history is complete up to version ``up_to``.

        Raises:
            DeltaError, OSError: If another process has appended since ``recorded_up_to``, or storage fails.
        """
        table = self._recorded or self._created()
        write_deltalake(
            table,
            pa.concat_tables([_to_table(moment) for moment in moments]),
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(app_transactions=[Transaction(_TRANSACTION, up_to)]),
        )

    def changes(self, consumer_group: str, before_version: int) -> list[StoredChange]:
        """Return the group's recorded changes before a version of the offset table, oldest first."""
        found = self._query(
            "SELECT DISTINCT version, changed_at, action FROM rows "  # noqa: S608 - quoted literals
            f"WHERE consumer_group = {sql_literal(consumer_group)} AND version < {before_version} ORDER BY "
            "version"
        )
        return [
            StoredChange(row["version"], row["changed_at"].timestamp(), consumer_group, row["action"])
            for row in found.to_pylist()
        ]

    def rows_of(
        self, consumer_group: str, versions: Iterable[int]
    ) -> dict[int, dict[MessageQueue, OffsetRow]]:
        """Return the group's rows by version of the offset table, for the versions that are recorded."""
        wanted = ", ".join(str(version) for version in sorted(versions)) or "NULL"
        found = self._query(
            "SELECT * FROM rows "  # noqa: S608 - quoted literals
            f"WHERE consumer_group = {sql_literal(consumer_group)} AND version IN ({wanted})"
        )
        split: dict[int, dict[MessageQueue, OffsetRow]] = {}
        for version in found.column("version").unique().to_pylist():
            part = found.filter(pa.compute.equal(found.column("version"), version))
            split[version] = rows_from_table(consumer_group, part)
        return split

    def expire_and_compact(self, now_s: float) -> None:
        """Delete days older than ``HISTORY_DAYS`` and compact the table, both only if it has many files."""
        table = self._opened()
        if table is None:
            return
        oldest = (datetime.fromtimestamp(now_s, UTC) - timedelta(days=HISTORY_DAYS)).date()
        if len(table.file_uris()) > _COMPACT_ABOVE:
            table.delete(f"day < DATE '{oldest.isoformat()}'")
            table.optimize.compact()
            table.vacuum(1, dry_run=False, enforce_retention_duration=False, full=True)

    def _query(self, sql: str) -> pa.Table:
        table = self._opened()
        if table is None:
            return _SCHEMA.empty_table()
        found = query_rows(table, sql)
        # DataFusion returns view types, which some of Arrow's own functions do not accept.
        known = [name for name in found.column_names if name in _SCHEMA.names]
        return found.select(known).cast(pa.schema([_SCHEMA.field(name) for name in known]))

    def _opened(self) -> DeltaTable | None:
        try:
            return open_table(self.path, self._storage)
        except TableNotFoundError:
            return None

    def _created(self) -> DeltaTable:
        return create_table(
            self.path,
            _SCHEMA,
            ["day"],
            self._storage,
            description="Progress of RocketMQ consumer groups over the days",
            configuration=_TABLE_PROPERTIES,
        )


def _to_table(moment: Moment) -> pa.Table:
    rows = rows_to_table(moment.rows.values())
    at = datetime.fromtimestamp(moment.change.at_s, UTC)
    added = (at.date(), moment.change.version, at, moment.change.action)
    columns = [
        pa.repeat(pa.scalar(value, field.type), len(rows))
        for value, field in zip(added, _CHANGE_COLUMNS, strict=True)
    ]
    return pa.table([*columns, *rows.columns], schema=_SCHEMA)


class Upkeep:
    """Keeps one offset table small, in the background: copies old versions to the history and cleans up."""

    def __init__(
        self, table_uri: str, clock: Clock, read_rows: ReadRows, storage: StorageOptions = NO_OPTIONS
    ) -> None:
        self._table_uri = table_uri
        self._storage = storage
        self._clock = clock
        self._read_rows = read_rows
        self._thread = Maintenance("offset", table_uri, storage)

    def after_commit(self, before: int) -> None:
        """Note a commit on top of version ``before``, and begin an upkeep if due; return immediately."""
        self._thread.after_commit(
            before, EVERY, lambda run: self.run(removes_files=run % _REMOVE_FILES_EVERY == 0)
        )

    def wait(self, timeout_s: float) -> None:
        """Wait until a running upkeep has ended.

        Raises:
            TimeoutError: If that takes longer than ``timeout_s``.
        """
        self._thread.wait(timeout_s)

    def run(self, *, removes_files: bool) -> None:
        """Record old versions in the history, write a checkpoint, and delete old log entries, on this thread.

        With ``removes_files``, also remove files that are no longer used, and old days of the history.

        Raises:
            DeltaError, OSError: If a step failed; the steps before it are done.
        """
        self._storage.renew()
        table = open_table(self._table_uri, self._storage)
        version = table.version()
        history = HistoryTable(self._table_uri, self._storage)
        log = LogFiles(self._table_uri, self._storage)
        self._record(history, log, version)
        table.create_checkpoint()
        removed = log.remove_before(version - KEPT_COMMITS)
        if removes_files:
            log.remove_unfinished()
            self._remove_files(table, log)
            history.expire_and_compact(self._clock.now_s())
        logger.info(
            "offset table maintained path=%s version=%d log_files=-%d",
            masked(self._table_uri),
            version,
            removed,
        )

    def _record(self, history: HistoryTable, log: LogFiles, version: int) -> None:
        recorded = history.recorded_up_to()
        readable = log.readable_versions()
        if recorded > version:
            # Another table was here before; its history does not belong to this one.
            recorded = -1
        found = (
            StoredChange.of_commit(commit, log.row_change_info(commit))
            for commit in range(max(recorded + 1, readable.start), version + 1)
        )
        changes = worth_keeping([change for change in found if change is not None])
        kept: list[list[Moment]] = []
        for change in reversed(changes):
            try:
                kept.append(self._moments(change))
            except STORAGE_ERRORS as error:
                if not kept:
                    # If even the newest rows cannot be read, the storage does not answer at all.
                    raise
                logger.warning(
                    "an old state of offsets is not kept, since one of its files is gone or damaged path=%s "
                    "version=%d: %s",
                    masked(self._table_uri),
                    change.version,
                    self._storage.describe_error(error),
                )
        moments = [moment for moments_then in reversed(kept) for moment in moments_then]
        if moments:
            history.append(moments, version)

    def _moments(self, change: StoredChange) -> list[Moment]:
        table = open_table(self._table_uri, self._storage, version=change.version)
        if change.consumer_group is not None:
            groups: Collection[str] = (change.consumer_group,)
        else:
            groups = {partition["consumer_group"] for partition in table.partitions()}
        return [Moment(change, rows) for group in sorted(groups) if (rows := self._read_rows(table, group))]

    def _remove_files(self, table: DeltaTable, log: LogFiles) -> None:
        """Remove data files that no version of the log refers to, including those left by a killed writer."""
        kept_s = _FILES_KEPT_S
        readable = log.readable_versions()
        oldest = next(
            (info for version in readable if (info := log.row_change_info(version)) is not None), None
        )
        if oldest is not None:
            kept_s = max(kept_s, self._clock.now_s() - oldest["timestamp"] / 1000)
        table.update_incremental()
        # A full vacuum, since checkpoints no longer list files that were removed long ago.
        table.vacuum(math.ceil(kept_s / 3600), dry_run=False, enforce_retention_duration=False, full=True)
