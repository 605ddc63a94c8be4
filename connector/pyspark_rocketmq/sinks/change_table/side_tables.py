"""Tables beside a change table, in folders that its VACUUM ignores: deletions, past and bad changes.

They hold what the change table itself does not show. For example, once a row is deleted, an older insert of
it may still come, and must not create the row again.

A deletion has happened in the source, even if the batch fails. So it is recorded before the commit that
applies it, in a table whose rows are removed only when they are old. A batch that is repeated records its
deletions again. This does no harm, because a reader takes the highest deletion of each key. A change that no
version of its row shows (``change_data/history.py``) is recorded in the same way; a reader takes all such
changes.

A *place* is where a change comes in the order of its table's changes (``effects.Order``).
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from pyspark_rocketmq.change_data.change import Operation
from pyspark_rocketmq.change_data.effects import LOWEST, Order
from pyspark_rocketmq.delta.file_choice import (
    ANY_ROW,
    MayHave,
    has_null,
    has_value,
    is_at_least,
    rows_of_files,
)
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.delta.table import (
    arrow_columns,
    create_table,
    open_table,
    parse_columns,
    read_form,
)
from pyspark_rocketmq.display import masked, masking_logger
from pyspark_rocketmq.sinks.change_table.columns import BODY, DAY, PROBLEM
from pyspark_rocketmq.sinks.change_table.compaction import OPERATION, POSITION, Key, has_keys_of, keys_of
from pyspark_rocketmq.sinks.change_table.key_files import may_have_keys, may_have_keys_of
from pyspark_rocketmq.sinks.change_table.versions import TIME, Truncations
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS

logger = masking_logger(__name__)

_COMPACT_EVERY: Final = 50
"""Versions between two compactions of a table of deletions or past changes."""
_HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
_PROPERTIES: Final = {"delta.logRetentionDuration": "interval 1 day"}
DELETIONS: Final = "_deletions"
"""Folder of the deletions, below the table's."""
PAST_CHANGES: Final = "_past_changes"
"""Folder of the changes that no version of a row shows; only for a table with all versions of its rows."""
BAD_CHANGES: Final = "_bad_changes"
"""Folder of the changes that could not be applied."""


@dataclass(frozen=True, kw_only=True)
class RecentRows:
    """A table with the rows of the last days: rows are added, and removed only by whole days."""

    uri: str
    storage: StorageOptions
    kept_days: int
    """Minimum days for which a row is kept; after that, a compaction removes it."""
    today: Callable[[], date]

    def append(self, rows: pa.Table) -> None:
        """Add rows. The table gets columns that it lacks; a column of another type gets the type in the rows.

        Raises:
            FileExistsError: If the table gets new types, and another commit came first.
            ArrowInvalid: If a stored value does not fit its new type.
            DeltaError, OSError: If the storage does not answer.
        """
        if not len(rows):
            return
        days = pa.repeat(pa.scalar(self.today(), pa.date32()), len(rows))
        rows = rows.append_column(DAY, days)
        table = self.opened() or create_table(
            self.uri, _nullable(rows.schema), [DAY], self.storage, configuration=dict(_PROPERTIES)
        )
        self._give_types(table, rows.schema)
        write_deltalake(table, rows, mode="append", schema_mode="merge", post_commithook_properties=_HOOKS)
        self._maintain(table.version())

    def _give_types(self, table: DeltaTable, columns: pa.Schema) -> None:
        """Rewrite all stored rows in the types of ``columns``, unless they have these types already.

        The types differ if the change table was rewritten with other types.

        Raises:
            FileExistsError: If another commit came first.
            ArrowInvalid: If a stored value does not fit its new type.
            DeltaError, OSError: If the storage does not answer.
        """
        wanted = {each.name: each.type for each in parse_columns(Schema.from_arrow(columns).to_json())}
        stored, types = arrow_columns(table), read_form(table).column_types
        schema = pa.schema(
            [
                columns.field(field.name) if wanted.get(field.name, type_) != type_ else field
                for field, type_ in zip(stored, types.values(), strict=True)
            ]
        )
        if schema == stored:
            return
        # delta-rs cannot read a file while it writes one.
        with tempfile.TemporaryFile() as spool:
            with pa.ipc.new_stream(spool, schema) as stream:
                for some in rows_of_files(table, stored.names, ANY_ROW):
                    stream.write_table(some.cast(schema))
            spool.seek(0)
            _overwrite(table, pa.ipc.open_stream(spool))
        logger.info("recent rows rewritten with new types path=%s columns=%s", masked(self.uri), schema.names)

    def opened(self) -> DeltaTable | None:
        """Return the table at its newest version; None if nothing was recorded yet.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        try:
            return open_table(self.uri, self.storage)
        except TableNotFoundError:
            return None

    def _maintain(self, version: int) -> None:
        """Join small files from time to time, and remove old rows; another writer may do so, too."""
        if version % _COMPACT_EVERY:
            return
        try:
            table = open_table(self.uri, self.storage)
            table.delete(f"{DAY} < '{self.today() - timedelta(days=self.kept_days)}'")
            table.optimize.compact()
            table.vacuum(dry_run=False)
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            self.storage.describe_error(error)
            logger.info("recent rows are compacted later path=%s", masked(self.uri), exc_info=True)


def _overwrite(table: DeltaTable, rows: pa.RecordBatchReader) -> None:
    version = table.version()
    try:
        write_deltalake(
            table,
            rows,
            mode="overwrite",
            schema_mode="overwrite",
            # A second try of delta-rs would keep rows that others have added meanwhile with the old types.
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=_HOOKS,
        )
    except CommitFailedError as error:
        table.update_incremental()
        if table.version() == version:
            raise
        raise FileExistsError(errno.EEXIST, f"There is a commit after version {version}") from error


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])


@dataclass(frozen=True, kw_only=True)
class Deletions:
    """The deletions of the last days. A deletion may be there twice; a row without a key is a truncation."""

    recent: RecentRows
    keys: pa.Schema
    """Columns of the key."""

    def record(self, deletions: Mapping[Key, Order], truncated_at: Order = LOWEST) -> None:
        """Record the place of each key's last deletion, and of a truncation.

        ``truncated_at`` is the truncation's place; ``LOWEST`` if there was none.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        rows = dict(deletions)
        if truncated_at:
            rows[(None,) * len(self.keys)] = truncated_at
        if rows:
            self.recent.append(self._rows(rows))

    def of_keys(self, keys: pa.Table) -> tuple[dict[Key, Order], Order]:
        """Return the place of the highest deletion of each of these keys, and of the highest truncation.

        A key without a deletion is left out, and other keys may be among the result: see
        :func:`has_keys_of`. The second value is ``LOWEST`` if there is no truncation.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        table = self.recent.opened()
        found, truncated_at = dict[Key, Order](), LOWEST
        if table is None:
            return found, truncated_at
        first = self.keys.names[0]
        schema = pa.schema([*_nullable(self.keys), pa.field(POSITION, pa.string())])
        keys = keys.cast(_nullable(self.keys))
        may_have = may_have_keys_of(keys, self.keys, arrow_columns(table)) | has_null(first)
        for some in rows_of_files(table, schema.names, may_have):
            whole = some.cast(schema)
            rows = whole.filter(pc.or_(has_keys_of(whole, keys), pc.is_null(whole[first])))
            places = rows[POSITION].to_pylist()
            for key, at in zip(keys_of(rows, self.keys.names), places, strict=True):
                if key[0] is None:
                    truncated_at = max(at, truncated_at)
                else:
                    found[key] = max(at, found.get(key, LOWEST))
        return found, truncated_at

    def keys_in(self, deletions: Mapping[Key, Order]) -> pa.Table:
        """Return the keys of ``deletions`` as a table with the key's columns."""
        return self._rows(deletions).select(self.keys.names)

    def _rows(self, deletions: Mapping[Key, Order]) -> pa.Table:
        columns = [
            pa.array([key[place] for key in deletions], field.type) for place, field in enumerate(self.keys)
        ]
        places = pa.array(deletions.values(), pa.string())
        schema = pa.schema([*_nullable(self.keys), pa.field(POSITION, pa.string())])
        return pa.Table.from_arrays([*columns, places], schema=schema)


@dataclass(frozen=True, kw_only=True)
class PastChanges:
    """Changes of the last days that no version of a row shows; those without a key are truncations.

    Only for a table with all versions of its rows (``stored_as_scd_type=2``). A change that comes late may
    split a version in two. For this, all changes from which the version was made are needed.
    """

    recent: RecentRows
    schema: pa.Schema
    """Columns of a change: those of the table, and :data:`~.versions.CHANGE_FIELDS`."""
    keys: tuple[str, ...]

    def record(self, changes: pa.Table, truncations: Truncations) -> None:
        """Record changes and truncations; the same ones may be there already.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        rows = [
            {POSITION: at, TIME: time, OPERATION: str(Operation.TRUNCATE)} for at, time in truncations.items()
        ]
        truncated = pa.Table.from_pylist(rows, self.schema)
        self.recent.append(pa.concat_tables([changes.select(self.schema.names).cast(self.schema), truncated]))

    def of_keys(self, keys: Collection[Key], since: Order) -> pa.Table:
        """Return the changes of these keys that come at or after a place in the order of changes.

        Changes of other keys with the same value in the key's first column may be among them.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        if self._begun is None:
            return self.schema.empty_table()
        columns = pa.schema([self.schema.field(name) for name in self.keys])
        may_have = may_have_keys(keys, columns, arrow_columns(self._begun))
        return self._read(since, may_have, pa.array([key[0] for key in keys], columns.field(0).type))

    def after(self, at: Order) -> pa.Table:
        """Return all changes with a key that come at or after a place in the order of changes.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        found = self._read(at, has_value(self.keys[0]))
        return found.filter(pc.is_valid(found[self.keys[0]]))

    def truncations(self, since: Order) -> dict[Order, datetime | None]:
        """Return the times of truncations at or after a place in the order of changes, by their places.

        A time is None if it is unknown. The result is empty if nothing was recorded.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        found = self._read(since, has_null(self.keys[0]))
        found = found.filter(pc.is_null(found[self.keys[0]]))
        return dict(zip(found[POSITION].to_pylist(), found[TIME].to_pylist(), strict=True))

    @cached_property
    def _begun(self) -> DeltaTable | None:
        """The table as it was when first read; None if it was missing.

        It is opened once and kept. What another member records after that is not needed: that member makes
        its MERGE still later. If its MERGE comes before this batch's MERGE, this batch's fails and begins
        again, and reads the new records.
        """
        return self.recent.opened()

    def _read(self, since: Order, may_have: MayHave, first_values: pa.Array | None = None) -> pa.Table:
        found = [self.schema.empty_table()]
        if self._begun is None:
            return found[0]
        stored = arrow_columns(self._begun).names
        names = [name for name in self.schema.names if name in stored]
        for some in rows_of_files(self._begun, names, may_have & is_at_least(POSITION, since)):
            rows = some.filter(pc.greater_equal(some[POSITION], since))
            if first_values is not None:
                rows = rows.filter(
                    pc.is_in(rows[self.keys[0]].cast(first_values.type), value_set=first_values)
                )
            columns = [
                rows[field.name].cast(field.type) if field.name in names else pa.nulls(len(rows), field.type)
                for field in self.schema
            ]
            found.append(pa.table(columns, schema=self.schema))
        return pa.concat_tables(found)


@dataclass(frozen=True, kw_only=True)
class BadChanges:
    """Changes that could not be applied, with their message's position; a change may be there twice.

    Of the changes with the same position, the first has the message's body, unless a route hides columns.
    A change whose value does not fit its column, found only when the batch is committed, has no body.
    """

    uri: str
    storage: StorageOptions

    def record(self, changes: Iterable[pa.Table]) -> None:
        """Append changes to the table, with position, problem and body; create the table if it is missing.

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
