"""The MERGE of a change table that keeps all versions of its rows. It matches versions by key and place.

Before the MERGE, the changes that the new versions do not show are recorded (``side_tables.PastChanges``),
because they are needed if a change comes late. As in :mod:`~pyspark_rocketmq.sinks.change_table.appender`,
the MERGE must be the next commit after the version of the table from which its rows were decided. A *place*
is where a change comes in the order of its table's changes (``effects.Order``). A *share* is a part of a
large batch, which is divided by its keys.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable

from pyspark_rocketmq.change_data.effects import Order
from pyspark_rocketmq.delta.file_choice import (
    MayHave,
    has_counted,
    has_value,
    is_at_least,
    rows_of_files,
)
from pyspark_rocketmq.delta.merge import SOURCE, TARGET, begin_merge, predicate, quoted
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.table import sql_literal
from pyspark_rocketmq.sinks.change_table.batch_changes import (
    BatchChanges,
)
from pyspark_rocketmq.sinks.change_table.compaction import (
    EFFECT,
    POSITION,
    UNPLACED,
    Effect,
    Key,
    keys_of,
)
from pyspark_rocketmq.sinks.change_table.key_files import may_have_keys
from pyspark_rocketmq.sinks.change_table.side_tables import PAST_CHANGES, PastChanges
from pyspark_rocketmq.sinks.change_table.versions import (
    CHANGE_FIELDS,
    END_AT,
    END_POSITION,
    HISTORY_FIELDS,
    PLACES,
    START_AT,
    Truncations,
    keys_after,
    known_of,
    outcome,
)

logger = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _literal(time: datetime | None) -> str:
    type_ = "'Timestamp(Microsecond, Some(\"UTC\"))'"
    micros = "NULL" if time is None else str((time - _EPOCH) // timedelta(microseconds=1))
    return f"arrow_cast({micros}, {type_})"


class VersionMerge:
    """The MERGE of the versions that a batch makes; implements ``Merge``."""

    def __init__(self, table: TableSnapshot, batch: BatchChanges, *, tracked: frozenset[str] | None) -> None:
        """Prepare the merge; ``tracked`` are the columns whose change opens a new version, None for all."""
        self._table = table
        self._batch = batch
        self._tracked = tracked
        self._columns = batch.columns
        keys = self._columns.keys
        plain = [batch.schema.field(name) for name in (*keys, *self._columns.others)]
        plain = [pa.field(field.name, field.type) for field in plain]
        self._stored_schema = pa.schema([*plain, *HISTORY_FIELDS])
        self._past = PastChanges(
            recent=batch.recent(PAST_CHANGES),
            # Only the first 32 columns have statistics.
            schema=pa.schema([*plain[: len(keys)], *CHANGE_FIELDS, *plain[len(keys) :]]),
            keys=keys,
        )

    def of_share(self, number: int) -> pa.Table:
        """Return the MERGE's rows for one share of the keys: the versions to write or to delete.

        First record those changes of the share that the table's versions will not show.
        """
        batch = self._batch
        facts = _FactsOfShare(self._table, self._past, batch, self._stored_schema, number)
        known = known_of(self._columns, batch.share(number), batch.truncations, facts)
        found = outcome(self._columns, self._tracked, known)
        self._past.record(found.lost, {} if number else batch.truncations)
        names = [field.name for field in batch.schema if field.name in self._stored_schema.names]
        schema = pa.schema([self._stored_schema.field(name) for name in names])
        return found.source.select([*names, EFFECT]).cast(schema.append(pa.field(EFFECT, pa.string())))

    def merge(
        self,
        source: pa.RecordBatchReader,
        keys_between: str,
        table: DeltaTable,
        properties: CommitProperties,
    ) -> None:
        """Commit the MERGE of ``source``: write and delete versions by key and place.

        Current versions of other keys end at the batch's truncations.
        """
        names = [name for name in source.schema.names if name != EFFECT]
        old = f"coalesce({TARGET}.{quoted(POSITION)}, {sql_literal(UNPLACED)})"
        is_version = f" AND {old} = {SOURCE}.{quoted(POSITION)}"
        condition = predicate(self._columns.keys) + keys_between + is_version
        begun, values = begin_merge(table, source, names, condition, properties)
        is_deleted = f"{SOURCE}.{quoted(EFFECT)} = '{Effect.DELETE}'"
        merger = (
            begun.when_matched_delete(is_deleted)
            .when_matched_update(values)
            .when_not_matched_insert(values, f"NOT ({is_deleted})")
        )
        # A version ends at the lowest truncation above it. If something of a key comes after a truncation,
        # this may be wrong, but then the source has all versions of the key.
        for at, time in sorted(self._batch.truncations.items()):
            is_ended = f"{TARGET}.{quoted(END_POSITION)} IS NULL AND {old} < {sql_literal(at)}"
            start, end = f"{TARGET}.{quoted(START_AT)}", _literal(time)
            not_before = f"CASE WHEN {start} > {end} THEN {start} ELSE {end} END"
            ends = {quoted(END_POSITION): sql_literal(at), quoted(END_AT): not_before}
            merger = merger.when_not_matched_by_source_update(ends, is_ended)
        logger.debug("versions merged metrics=%s", merger.execute())


@dataclass(frozen=True)
class _FactsOfShare:
    """Reads everything that is stored of one share of the keys; implements ``versions.Facts``."""

    table: TableSnapshot
    past_changes: PastChanges
    batch: BatchChanges
    schema: pa.Schema
    """Columns of versions."""
    number: int
    """Number of the share."""

    def versions(self, keys: Collection[Key], since: Order) -> pa.Table:
        """Return the versions of ``keys`` that end at place ``since`` or later, or have not ended."""
        first, values = self._key_names[0], self.batch.first_values(keys)
        found = [self.schema.empty_table()]
        for rows in self._stored(may_have_keys(keys, self.batch.keys)):
            end = rows[END_POSITION]
            is_wanted = pc.or_(pc.is_null(end), pc.fill_null(pc.greater_equal(end, since), False))
            found.append(self._of(keys, rows.filter(pc.and_(is_wanted, pc.is_in(rows[first], values)))))
        return pa.concat_tables(found)

    def past(self, keys: Collection[Key], since: Order) -> pa.Table:
        """Return the changes of ``keys`` at place ``since`` or later that are recorded beside the table."""
        return self._of(keys, self.past_changes.of_keys(keys, since))

    def truncations(self, since: Order) -> Truncations:
        """Return the truncations at place ``since`` or later that are recorded beside the table."""
        return self.past_changes.truncations(since)

    def keys_after(self, at: Order) -> set[Key]:
        """Return the share's keys of which a version or a recorded change is at place ``at`` or later."""
        found = set[Key]()
        may_be = has_counted(PLACES) & has_value(PLACES)
        for name in (POSITION, END_POSITION):
            may_be |= has_counted(name) & is_at_least(name, at)
        for some in self._stored(may_be):
            is_later = [
                pc.fill_null(pc.greater_equal(some[name], at), False) for name in (POSITION, END_POSITION)
            ]
            rows = some.filter(pc.or_(pc.or_(*is_later), pc.is_valid(some[PLACES])))
            found |= keys_after(self._in_share(rows), self._key_names, lambda _: at)
        return found.union(keys_of(self._in_share(self.past_changes.after(at)), self._key_names))

    @property
    def _key_names(self) -> tuple[str, ...]:
        return self.batch.columns.keys

    def _stored(self, may_have: MayHave) -> Iterator[pa.Table]:
        for rows in rows_of_files(self.table.table, self.schema.names, may_have):
            yield rows.cast(self.schema)

    def _in_share(self, rows: pa.Table) -> pa.Table:
        return rows.filter(self.batch.in_share(rows, self.number))

    def _of(self, keys: Collection[Key], rows: pa.Table) -> pa.Table:
        is_wanted = [key in keys for key in keys_of(rows, self._key_names)]
        return rows.filter(pa.array(is_wanted, pa.bool_()))
