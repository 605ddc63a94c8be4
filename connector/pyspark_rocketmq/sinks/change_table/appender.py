"""Makes a change table's commits: one MERGE with a batch's changes and the new watermarks.

The changes are compacted to one row per key, share by share of the keys, so a large batch is never in memory
as a whole. First the batch's deletions are recorded (``side_tables.Deletions``).

The MERGE must build on the version that the decisions were made by. Two members of a group may have changes
of one key: the deletion in one queue, an older insert in another. Each reads the table's version, then the
deletions, and commits only directly after that version. So whoever commits second has seen what the first
one has recorded and merged.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable

from pyspark_rocketmq.change_data.change import Operation
from pyspark_rocketmq.change_data.effects import LOWEST, Order
from pyspark_rocketmq.delta.commit import NO_POST_COMMIT_HOOKS, CommitNote
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.merge import predicate, quoted
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.table import sql_literal
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import SinkConflict
from pyspark_rocketmq.model import POSITION_COLUMNS, MessageQueue
from pyspark_rocketmq.sinks.change_table.columns import HIDDEN, PROBLEM, keyed_rows
from pyspark_rocketmq.sinks.change_table.compaction import (
    EFFECT,
    OLDER,
    OPERATION,
    POSITION,
    Effect,
    KeyedChanges,
    TableColumns,
    keys_of,
    merge_source,
    share_of,
)
from pyspark_rocketmq.sinks.change_table.side_tables import BAD_CHANGES, DELETIONS, BadChanges, Deletions
from pyspark_rocketmq.sinks.delta.appenders import FileAppender
from pyspark_rocketmq.sinks.delta.rules import SinkCommit
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit

logger = logging.getLogger(__name__)

_ROWS_OF_A_SHARE: Final = 250_000
"""Maximum number of changes, approximately, that are in memory at the same time."""
_SHOWN: Final = 3
_TRUNCATE: Final = Operation.TRUNCATE.value
_SOURCE, _TARGET = "source", "target"


@dataclass(frozen=True, kw_only=True)
class ChangeRules:
    """Settings of a change table."""

    keys: tuple[str, ...]
    keeps_deleted: bool
    """Whether deleted rows stay, marked."""
    stops_at_bad_changes: bool
    kept_days: int
    """See ``Deletions.kept_days``."""
    today: Callable[[], date]
    rows_of_a_share: int = _ROWS_OF_A_SHARE

    def columns_of(self, schema: pa.Schema) -> TableColumns:
        """Return the columns of a table."""
        others = tuple(name for name in schema.names if name not in HIDDEN and name not in self.keys)
        return TableColumns(keys=self.keys, others=others, keeps_deleted=self.keeps_deleted)


@dataclass(frozen=True)
class ChangeAppender:
    """Merges the changes that tasks wrote into the table; implements ``Appender``."""

    table: TableSnapshot
    """The table of the log that is passed to the methods."""
    rules: ChangeRules

    @property
    def commits_by(self) -> str:
        """See :meth:`Appender.commits_by`."""
        return "delta-rs"

    def append(
        self,
        log: SinkLog,
        files: Sequence[WrittenFile],
        before: GroupCommit,
        commit: SinkCommit,
        columns: pa.Schema,  # noqa: ARG002 - a change has those of the table
    ) -> int:
        """See :meth:`Appender.append`.

        Raises:
            SinkConflict: If a change cannot be applied, and the rules stop there.
        """

        def merge(note: CommitNote) -> None:
            with ExitStack() as spools:
                batch = _Batch(self, log, files)
                batch.check()
                source, keys_between = batch.source(spools)
                self.table.write_next(partial(self._merge, source, batch, keys_between), note)

        return FileAppender(self.table).append_merged(log, files, before, commit, merge)

    def set_watermarks(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """See :meth:`Appender.set_watermarks`."""
        return FileAppender(self.table).set_watermarks(log, before, commit)

    def add_columns(self, log: SinkLog, columns: pa.Schema) -> None:  # noqa: ARG002 - it has the same table
        """See :meth:`Appender.add_columns`."""
        self.table.add_columns(columns)

    def _merge(
        self,
        source: pa.RecordBatchReader,
        batch: _Batch,
        keys_between: str,
        table: DeltaTable,
        properties: CommitProperties,
    ) -> None:
        names = [name for name in source.schema.names if name != EFFECT]
        values = {quoted(name): f"{_SOURCE}.{quoted(name)}" for name in names}
        # A row that the table had before it was a change table has no position.
        old, new = f"coalesce({_TARGET}.{quoted(POSITION)}, '')", f"{_SOURCE}.{quoted(POSITION)}"
        effect = f"{_SOURCE}.{quoted(EFFECT)}"
        merger = (
            table.merge(
                source,
                predicate(self.rules.keys, _SOURCE, _TARGET) + keys_between,
                source_alias=_SOURCE,
                target_alias=_TARGET,
                commit_properties=properties,
                post_commithook_properties=NO_POST_COMMIT_HOOKS,
            )
            .when_matched_delete(f"{effect} = '{Effect.DELETE}' AND {old} <= {new}")
            .when_matched_update(
                values, f"{effect} = '{Effect.FINAL}' OR ({effect} = '{Effect.ROW}' AND {new} > {old})"
            )
            .when_not_matched_insert(values, f"{effect} <> '{Effect.DELETE}'")
        )
        if batch.truncated_at:
            merger = merger.when_not_matched_by_source_delete(f"{old} < {sql_literal(batch.truncated_at)}")
        logger.debug("changes merged metrics=%s", merger.execute())


class _Batch:
    """The changes of a batch, as files of tasks, and what is made of them for one version of the table."""

    def __init__(self, appender: ChangeAppender, log: SinkLog, files: Sequence[WrittenFile]) -> None:
        self._table = appender.table
        self._folder = appender.table.location.rstrip("/")
        self._rules = appender.rules
        self._log = log
        self._files = files
        self._columns = appender.rules.columns_of(appender.table.arrow_schema)
        self._schema = appender.table.arrow_schema
        self._shares = 1 + sum(file.num_records for file in files) // appender.rules.rows_of_a_share
        self._deletions = Deletions(
            uri=f"{self._folder}/{DELETIONS}",
            keys=pa.schema([self._schema.field(name) for name in self._columns.keys]),
            storage=log.log.storage,
            kept_days=appender.rules.kept_days,
            today=appender.rules.today,
        )
        self.truncated_at: Order = LOWEST
        """The batch's highest truncation."""

    def check(self) -> None:
        """Find truncations, and changes that cannot be applied."""
        bad = BadChanges(uri=f"{self._folder}/{BAD_CHANGES}", storage=self._log.log.storage)
        bad.record(self._bad_changes())

    def _bad_changes(self) -> Iterator[pa.Table]:
        for rows in self._log.files.stream(self._files):
            is_bad, is_truncation = pc.is_valid(rows[PROBLEM]), pc.equal(rows[OPERATION], _TRUNCATE)
            truncations = rows.filter(pc.and_not(is_truncation, is_bad))
            self.truncated_at = max([self.truncated_at, *truncations[POSITION].to_pylist()])
            bad = rows.filter(is_bad)
            # Only the table's owner can decide what it is to have after a truncation.
            is_final = self._rules.stops_at_bad_changes or _TRUNCATE in bad[OPERATION].to_pylist()
            if len(bad) and is_final:
                raise _bad_changes_error(self._folder, bad)
            if len(bad):
                yield bad

    def source(self, spools: ExitStack) -> tuple[pa.RecordBatchReader, str]:
        """Return the source of the MERGE, and a condition on the keys that are in it."""
        first, *others = range(self._shares)
        one = self._share(first)
        if not others:
            return one.to_reader(), self._between([one])
        spool = spools.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the caller closes it
        with pa.ipc.new_stream(spool, one.schema) as stream:
            stream.write_table(one)
            for number in others:
                stream.write_table(self._share(number))
        spool.seek(0)
        return pa.ipc.open_stream(spool), ""

    def _share(self, number: int) -> pa.Table:
        """Record the deletions of a share of the keys, and return its part of the source."""
        changes = KeyedChanges(self._columns, pa.concat_tables(self._rows_of_share(number)))
        if not self._columns.keeps_deleted:
            self._deletions.record(changes.deletions, LOWEST if number else self.truncated_at)
        stored = self._stored(changes, number)
        keys = [*changes.facts, *keys_of(stored, self._columns.keys)]
        deletions, truncated_at = self._deletions.of_keys(keys)
        source = merge_source(changes, stored, deletions, max(truncated_at, self.truncated_at))
        wanted = pa.schema([*(self._schema.field(name) for name in source.column_names if name != EFFECT)])
        return source.select([*wanted.names, EFFECT]).cast(wanted.append(pa.field(EFFECT, pa.string())))

    def _rows_of_share(self, number: int) -> Iterator[pa.Table]:
        names = [*self._columns.keys, *self._columns.others]
        for rows in self._log.files.stream(self._files):
            is_keyed = pc.and_(pc.is_null(rows[PROBLEM]), pc.not_equal(rows[OPERATION], _TRUNCATE))
            keyed = keyed_rows(rows.filter(is_keyed), names)
            yield keyed.filter(self._in_share(keyed, number))

    def _in_share(self, rows: pa.Table, number: int) -> pa.Array:
        if self._shares == 1:
            return pa.repeat(pa.scalar(True), len(rows))
        keys = keys_of(rows, self._columns.keys)
        return pa.array([share_of(key, self._shares) == number for key in keys], pa.bool_())

    def _stored(self, changes: KeyedChanges, number: int) -> pa.Table:
        """Return the rows of the table without which the changes' effects cannot be decided."""
        schema = pa.schema([field for field in self._schema if field.name not in HIDDEN])
        schema = pa.schema([*schema, *(self._schema.field(each.name) for each in self._columns.hidden)])
        unfinished = set(changes.unfinished)
        first = self._columns.keys[0]
        is_older = ds.field(OLDER).is_valid()
        if not self.truncated_at:
            is_older = is_older & ds.field(first).isin(self._values(changes.facts))
        wanted = ds.field(first).isin(self._values(unfinished)) | is_older if unfinished else is_older
        scanner = self._table.table.to_pyarrow_dataset().scanner(columns=schema.names, filter=wanted)
        found = [schema.empty_table()]
        for batch in scanner.to_batches():
            rows = pa.Table.from_batches([batch]).cast(schema)
            keys = keys_of(rows, self._columns.keys)
            is_wanted = [
                key in unfinished or (older is not None and (bool(self.truncated_at) or key in changes.facts))
                for key, older in zip(keys, rows[OLDER].to_pylist(), strict=True)
            ]
            rows = rows.filter(pa.array(is_wanted, pa.bool_()))
            found.append(rows.filter(self._in_share(rows, number)))
        return pa.concat_tables(found)

    def _values(self, keys: Any) -> pa.Array:
        return pa.array([key[0] for key in keys], self._schema.field(self._columns.keys[0]).type)

    def _between(self, parts: Sequence[pa.Table]) -> str:
        """Return a condition with the least and the greatest key, by which files are left out."""
        [rows] = parts
        if self.truncated_at or not len(rows):
            return ""
        conditions = []
        for name in self._columns.keys:
            type_ = rows.schema.field(name).type
            if not (pa.types.is_integer(type_) or pa.types.is_string(type_)):
                continue
            bounds = pc.min_max(rows[name]).as_py()
            low, high = (
                sql_literal(value) if isinstance(value, str) else str(value) for value in bounds.values()
            )
            conditions.append(f" AND {_TARGET}.{quoted(name)} BETWEEN {low} AND {high}")
        return "".join(conditions)


def _bad_changes_error(place: str, bad: pa.Table) -> SinkConflict:
    rows = bad.select([*POSITION_COLUMNS, PROBLEM]).slice(0, _SHOWN).to_pylist()
    shown = "; ".join(
        f"{MessageQueue(*queue)} at offset {offset}: {problem.rstrip('.')}"
        for *queue, offset, problem in (row.values() for row in rows)
    )
    return SinkConflict(
        f"{len(bad)} changes cannot be applied to {masked(place)}: {shown}. Nothing of this batch was added. "
        "Correct the settings and start the query again, or have such changes put aside into "
        f"{masked(place)}/{BAD_CHANGES}: ChangeTable(bad_changes='keep')."
    )
