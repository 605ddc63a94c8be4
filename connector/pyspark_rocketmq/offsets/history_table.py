"""What an offset table was, beyond what its own log remembers: a second Delta table in its folder ``_history``.

The offset table's columns, and before them the version, time and action of the change they are the outcome of.
Partitioned by day, so that forgetting a day touches no other. Anybody may read it: a group's progress over the days
is one query away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.arrow_rows import SCHEMA, rows_from_table, rows_to_table
from pyspark_rocketmq.offsets.history import Moment, StoredChange
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.offsets.table_reading import query_rows, sql_literal

logger = logging.getLogger(__name__)

HISTORY_DAYS: Final = 7
"""How far back a group can be set or drawn."""
_FOLDER: Final = "_history"
_TRANSACTION: Final = "offsets"
_ADDED = pa.schema(
    [
        pa.field("day", pa.date32()),
        pa.field("version", pa.int64()),
        pa.field("changed_at", pa.timestamp("us", "UTC")),
        pa.field("action", pa.string()),
    ]
)
_COMPACT_ABOVE: Final = 64
"""Files of the table, most of them one append each."""
_TABLE_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 1 hour",
    "delta.logRetentionDuration": "interval 1 hour",
}


class HistoryTable:
    """The history of the offset table at ``table_uri``; made by the first ``append``."""

    def __init__(self, table_uri: str) -> None:
        self.path: Final = f"{table_uri.rstrip('/')}/{_FOLDER}"
        self._recorded: DeltaTable | None = None
        """As of the last look at what is recorded."""

    def recorded_up_to(self) -> int:
        """The version of the offset table up to which the history is written; -1 for nothing."""
        self._recorded = self._opened()
        recorded = None if self._recorded is None else self._recorded.transaction_version(_TRANSACTION)
        return -1 if recorded is None else recorded

    def append(self, moments: Sequence[Moment], up_to: int) -> None:
        """Add ``moments`` and remember ``up_to``; fails if another process has since ``recorded_up_to`` was asked.

        Raises:
            DeltaError: If it could not be stored.
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
        """The group's changes before a version of the offset table, oldest first."""
        found = self._query(
            "SELECT DISTINCT version, changed_at, action FROM rows "  # noqa: S608 - quoted literals
            f"WHERE consumer_group = {sql_literal(consumer_group)} AND version < {before_version} ORDER BY version"
        )
        return [
            StoredChange(row["version"], row["changed_at"].timestamp(), consumer_group, row["action"])
            for row in found.to_pylist()
        ]

    def rows_of(
        self, consumer_group: str, versions: Iterable[int]
    ) -> dict[int, dict[MessageQueue, OffsetRow]]:
        """The group's rows by version of the offset table; a version that is not there is left out."""
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

    def forget_and_compact(self, now_s: float) -> None:
        """Drop the days that are too old, and make few files of many."""
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
        # DataFusion answers in view types, which Arrow's own functions do not all take.
        known = [name for name in found.column_names if name in _SCHEMA.names]
        return found.select(known).cast(pa.schema([_SCHEMA.field(name) for name in known]))

    def _opened(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.path)
        except TableNotFoundError:
            return None

    def _created(self) -> DeltaTable:
        return DeltaTable.create(
            self.path,
            schema=_SCHEMA,
            mode="ignore",
            partition_by=["day"],
            description="Progress of RocketMQ consumer groups over the days",
            configuration=_TABLE_PROPERTIES,
        )


_SCHEMA = pa.schema([*_ADDED, *SCHEMA])


def _to_table(moment: Moment) -> pa.Table:
    rows = rows_to_table(moment.rows.values())
    at = datetime.fromtimestamp(moment.change.at_s, UTC)
    added = (at.date(), moment.change.version, at, moment.change.action)
    columns = [
        pa.repeat(pa.scalar(value, field.type), len(rows)) for value, field in zip(added, _ADDED, strict=True)
    ]
    return pa.table([*columns, *rows.columns], schema=_SCHEMA)
