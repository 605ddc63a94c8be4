"""Tables beside a change table, in folders that its VACUUM ignores: deletions, and bad changes.

A deletion is a fact of the source, whoever reads it and how often. So it is recorded before the commit that
applies it, in a table that only grows: a batch that is killed in between, or repeated, records it again and
changes nothing. A reader takes the highest one of each key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from pyspark_rocketmq.change_data.effects import LOWEST, Order
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.delta.table import create_table, open_table
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.sinks.change_table.columns import BODY, PROBLEM
from pyspark_rocketmq.sinks.change_table.compaction import POSITION, Key, keys_of
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS

logger = logging.getLogger(__name__)

_DAY: Final = "__day"
_COMPACT_EVERY: Final = 50
"""Versions between two compactions of the table of deletions."""
_HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
_PROPERTIES: Final = {"delta.logRetentionDuration": "interval 1 day"}
DELETIONS: Final = "_deletions"
"""Folder of the deletions, below the table's."""
BAD_CHANGES: Final = "_bad_changes"
"""Folder of the changes that could not be applied."""


@dataclass(frozen=True, kw_only=True)
class Deletions:
    """The deletions of the last days, one row each; a row without a key is a truncation."""

    uri: str
    keys: pa.Schema
    """Columns of the key."""
    storage: StorageOptions
    kept_days: int
    """Days after which a deletion is forgotten; an older change that comes later makes the row again."""
    today: Callable[[], date]

    def record(self, deletions: Mapping[Key, Order], truncated_at: Order = LOWEST) -> None:
        """Record deletions and a truncation.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        rows = dict(deletions)
        if truncated_at:
            rows[(None,) * len(self.keys)] = truncated_at
        if not rows:
            return
        table = self._opened() or create_table(
            self.uri, self._schema, [_DAY], self.storage, configuration=dict(_PROPERTIES)
        )
        write_deltalake(table, self._rows(rows), mode="append", post_commithook_properties=_HOOKS)
        self._maintain(table.version())

    def of_keys(self, keys: Sequence[Key]) -> tuple[dict[Key, Order], Order]:
        """Return the highest deletion of each of these keys, and the highest truncation.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        table = self._opened()
        if table is None:
            return {}, LOWEST
        first = ds.field(self.keys.names[0])
        values = pa.array([key[0] for key in keys], self.keys.field(0).type)
        wanted = table.to_pyarrow_dataset().scanner(
            columns=[*self.keys.names, POSITION], filter=first.isin(values) | first.is_null()
        )
        asked, found, truncated_at = set(keys), dict[Key, Order](), LOWEST
        for batch in wanted.to_batches():
            rows = pa.Table.from_batches([batch])
            places = rows[POSITION].to_pylist()
            for key, at in zip(keys_of(rows, self.keys.names), places, strict=True):
                if key in asked:
                    found[key] = max(at, found.get(key, LOWEST))
                elif key[0] is None:
                    truncated_at = max(at, truncated_at)
        return found, truncated_at

    @property
    def _schema(self) -> pa.Schema:
        nullable = [pa.field(field.name, field.type) for field in self.keys]
        return pa.schema([*nullable, pa.field(POSITION, pa.string()), pa.field(_DAY, pa.date32())])

    def _rows(self, deletions: Mapping[Key, Order]) -> pa.Table:
        columns = [
            pa.array(values, field.type)
            for values, field in zip(zip(*deletions, strict=True), self.keys, strict=True)
        ]
        places = pa.array(deletions.values(), pa.string())
        days = pa.repeat(pa.scalar(self.today(), pa.date32()), len(deletions))
        return pa.Table.from_arrays([*columns, places, days], schema=self._schema)

    def _opened(self) -> DeltaTable | None:
        try:
            return open_table(self.uri, self.storage)
        except TableNotFoundError:
            return None

    def _maintain(self, version: int) -> None:
        """Join small files from time to time, and forget old deletions; another writer may do it as well."""
        if version % _COMPACT_EVERY:
            return
        try:
            table = open_table(self.uri, self.storage)
            table.delete(f"{_DAY} < '{self.today() - timedelta(days=self.kept_days)}'")
            table.optimize.compact()
            table.vacuum(dry_run=False)
            table.cleanup_metadata()
        except (DeltaError, OSError):
            logger.info("deletions are compacted later path=%s", masked(self.uri), exc_info=True)


@dataclass(frozen=True, kw_only=True)
class BadChanges:
    """Changes that could not be applied, with the position of their message; one may be there twice."""

    uri: str
    storage: StorageOptions

    def record(self, changes: Iterable[pa.Table]) -> None:
        """Add changes.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        schema = pa.schema(
            [*POSITION_FIELDS, pa.field("problem", pa.string()), pa.field("body", pa.binary())]
        )
        for rows in changes:
            chosen = rows.select([*(field.name for field in POSITION_FIELDS), PROBLEM, BODY])
            write_deltalake(
                self.uri,
                chosen.rename_columns(schema.names).cast(schema),
                mode="append",
                storage_options=self.storage.values_for(self.uri),
                post_commithook_properties=_HOOKS,
            )
