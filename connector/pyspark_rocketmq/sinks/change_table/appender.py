"""The commits of a change table: a MERGE with a batch's changes and the new watermarks.

If the batch has new columns, a commit that adds them comes before the MERGE. The changes are compacted to one
row per key. A large batch is divided by its keys into *shares*, which are compacted one after the other.
Before the MERGE the batch's deletions are recorded (``side_tables.Deletions``), unless deleted rows stay in
the table.

The MERGE must be the next commit after the version of the table from which its rows were decided. Two members
of a group may have changes of one key: the deletion in one queue, an older insert in another. Each member
reads the table's version, then the deletions, and commits only directly after that version. So the member
that commits second has seen what the first one has recorded and merged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable

from pyspark_rocketmq.change_data.effects import LOWEST
from pyspark_rocketmq.delta.commit import CommitNote
from pyspark_rocketmq.delta.file_choice import has_counted, has_value, rows_of_files
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.merge import SOURCE, TARGET, begin_merge, predicate, quoted
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.table import sql_literal
from pyspark_rocketmq.sinks.change_table.batch_changes import (
    BatchChanges,
    ChangeRules,
    add_new_columns,
)
from pyspark_rocketmq.sinks.change_table.change_files import ChangeRows, FileChanges
from pyspark_rocketmq.sinks.change_table.columns import HIDDEN
from pyspark_rocketmq.sinks.change_table.compaction import (
    EFFECT,
    OLDER,
    POSITION,
    DividedChanges,
    Effect,
    Key,
    KeyedChanges,
    has_keys_of,
    keys_of,
    merge_source,
    whole_source,
)
from pyspark_rocketmq.sinks.change_table.key_files import may_have_keys, may_have_keys_of
from pyspark_rocketmq.sinks.change_table.side_tables import DELETIONS, Deletions
from pyspark_rocketmq.sinks.delta.appenders import FileAppender
from pyspark_rocketmq.sinks.delta.rules import SinkCommit
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit

logger = logging.getLogger(__name__)


class Merge(Protocol):
    """Makes the MERGE of one batch for one version of the table: first the MERGE's rows, then its commit."""

    def of_share(self, number: int) -> pa.Table:
        """Return the MERGE's rows for one share of the batch's keys; ``number`` counts from 0.

        A large batch is divided by its keys into shares. Those changes of the share that the table will not
        show, such as deletions, are recorded before this method returns.
        """
        ...

    def merge(
        self,
        source: pa.RecordBatchReader,
        keys_between: str,
        table: DeltaTable,
        properties: CommitProperties,
    ) -> None:
        """Commit the MERGE of the rows in ``source``.

        ``keys_between`` is a condition that the keys of all these rows meet. It is appended to the MERGE's
        condition, so it begins with a space and ``AND``. It is empty if there is no such condition.
        """
        ...


@dataclass(frozen=True)
class ChangeAppender:
    """Merges the changes that tasks wrote into the table; implements ``Appender``."""

    table: TableSnapshot
    """The same table as ``log.table`` of the log that is passed to the methods."""
    rules: ChangeRules
    made_for: Callable[[TableSnapshot, BatchChanges], Merge]
    """Returns the MERGE of a batch for one version of the table."""
    unmerged: set[str]
    """Columns that were added for changes which are not merged yet.

    If the merge is tried again, the table already has these columns. The appenders of a sink share this set.
    """

    @property
    def commits_by(self) -> str:
        """Name of the writer that makes the commits, for log messages: always ``delta-rs``."""
        return "delta-rs"

    def append(
        self,
        log: SinkLog,
        files: Sequence[WrittenFile],
        before: GroupCommit,
        commit: SinkCommit,
        columns: pa.Schema,  # noqa: ARG002 - a change has those of the table
    ) -> int:
        """Commit the effect of the changes in ``files``, and the watermarks; return the new version.

        If changes have new columns, a commit that adds these comes first. The files are removed at the end.
        See :meth:`Appender.append`.

        Raises:
            SinkConflict: For the reasons of :meth:`merge`.
            FileExistsError: If another commit came first.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        changes = FileChanges(log.files, files)
        self.add_new_columns(changes)
        return FileAppender(self.table).append_merged(
            log, files, before, commit, lambda note: self.merge(changes, note)
        )

    def add_new_columns(self, changes: ChangeRows) -> None:
        """Add the columns that changes have and the table lacks, if the rules allow it.

        Raises:
            FileExistsError: If another commit came first, or may have.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        add_new_columns(self.table, changes, self.rules, self.unmerged)

    def merge(self, changes: ChangeRows, note: CommitNote) -> None:
        """Commit the effect of changes, by a MERGE, directly after the version that the table is at.

        Raises:
            SinkConflict: If a change cannot be applied, and either the sink is set to stop at such changes,
                or the change is a truncation or one of the schema. Also if the changes' positions in the
                source's log cannot be compared with the table's, or if a row would have null where its column
                forbids it.
            FileExistsError: If another commit came first.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        with ExitStack() as spools:
            batch = BatchChanges(self.table, self.rules, changes, self.unmerged)
            batch.check()
            merge = self.made_for(self.table, batch)
            source, keys_between = batch.spooled(merge.of_share, spools)
            batch.commit(partial(merge.merge, source, keys_between), note)
        self.unmerged.clear()

    def set_watermarks(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """Make a commit without rows that sets watermarks, for an operator; return the new version."""
        return FileAppender(self.table).set_watermarks(log, before, commit)

    def add_columns(self, log: SinkLog, columns: pa.Schema) -> None:  # noqa: ARG002 - it has the same table
        """Add columns to the table, and move to the newest version."""
        self.table.add_columns(columns)


class RowMerge:
    """The MERGE for a table with one row per key, the newest one; implements :class:`Merge`."""

    def __init__(self, table: TableSnapshot, batch: BatchChanges) -> None:
        self._table = table
        self._batch = batch
        self._columns = batch.columns
        self._nullable = pa.schema([pa.field(field.name, field.type) for field in batch.schema])
        self._deletions = Deletions(
            recent=batch.recent(DELETIONS),
            keys=batch.keys,
        )

    def of_share(self, number: int) -> pa.Table:
        """Return the MERGE's rows for one share, a part of the batch's keys.

        First record the share's deletions, unless the table keeps deleted rows.
        """
        columns, rows = self._columns, self._batch.share(number)
        truncated_at = self._batch.truncated_at
        keys = rows.select(columns.keys).cast(pa.schema(map(self._nullable.field, columns.keys)))
        # For keys with only whole changes, nothing but older values and deletions is looked up.
        partly = DividedChanges.of(columns, rows, keys.slice(0, 0), truncated_at)
        changes = KeyedChanges(columns, partly.rows)
        if not columns.keeps_deleted:
            self._deletions.record(changes.deletions, LOWEST if number else truncated_at)
        stored = self._stored(keys, changes.unfinished, number)
        asked = pa.concat_tables([keys, stored.select(columns.keys)])
        deletions, truncated_before = self._deletions.of_keys(asked)
        floor = max(truncated_before, truncated_at)
        others = pa.concat_tables([stored.select(columns.keys), self._deletions.keys_in(deletions)])
        divided = DividedChanges.of(columns, rows, others, floor)
        if len(divided.rows) > len(partly.rows):
            changes = KeyedChanges(columns, divided.rows)
        one_by_one = merge_source(changes, stored, deletions, floor)
        source = pa.concat_tables([one_by_one, whole_source(columns, divided.whole)])
        wanted = pa.schema([*(self._nullable.field(name) for name in source.column_names if name != EFFECT)])
        return source.select([*wanted.names, EFFECT]).cast(wanted.append(pa.field(EFFECT, pa.string())))

    def _stored(self, changed: pa.Table, unfinished: Sequence[Key], number: int) -> pa.Table:
        """Return the rows of the table that are needed to decide the effects of a share's changes.

        A large batch is divided by its keys into shares; a small one is a single share.

        Args:
            changed: Keys of the share's changes.
            unfinished: See ``KeyedChanges.unfinished``.
            number: Number of the share, from 0.
        """
        # The rows are joined with changes, which may lack the value of a column that cannot be null.
        plain = [field for field in self._nullable if field.name not in HIDDEN]
        schema = pa.schema([*plain, *(self._nullable.field(each.name) for each in self._columns.hidden)])
        first, keys = self._columns.keys[0], self._batch.keys
        is_truncated, unfinished_keys = bool(self._batch.truncated_at), set(unfinished)
        unfinished_values = self._batch.first_values(unfinished)
        is_older = has_counted(OLDER) & has_value(OLDER)
        if not is_truncated:
            is_older = is_older & may_have_keys_of(changed, keys)
        may_have = may_have_keys(unfinished, keys) | is_older if unfinished else is_older
        found = [schema.empty_table()]
        for some in rows_of_files(self._table.table, schema.names, may_have):
            rows = some.cast(schema)
            # Few rows of a file are wanted: Arrow selects by single columns, then whole keys decide.
            has_older = pc.is_valid(rows[OLDER])
            if not is_truncated:
                has_older = pc.and_(has_older, has_keys_of(rows, changed))
            rows = rows.filter(pc.or_(has_older, pc.is_in(rows[first], unfinished_values)))
            is_wanted = [
                older is not None or key in unfinished_keys
                for key, older in zip(keys_of(rows, self._columns.keys), rows[OLDER].to_pylist(), strict=True)
            ]
            rows = rows.filter(pa.array(is_wanted, pa.bool_()))
            found.append(rows.filter(self._batch.in_share(rows, number)))
        return pa.concat_tables(found)

    def merge(
        self,
        source: pa.RecordBatchReader,
        keys_between: str,
        table: DeltaTable,
        properties: CommitProperties,
    ) -> None:
        """Commit the MERGE of ``source``: each row replaces, inserts or deletes a row, by its ``Effect``.

        If the batch has a truncation, rows of other keys that are older than it are deleted, too.
        """
        names = [name for name in source.schema.names if name != EFFECT]
        condition = predicate(self._columns.keys) + keys_between
        begun, values = begin_merge(table, source, names, condition, properties)
        # A row that the table had before it was a change table has no position.
        old, new = f"coalesce({TARGET}.{quoted(POSITION)}, '')", f"{SOURCE}.{quoted(POSITION)}"
        effect = f"{SOURCE}.{quoted(EFFECT)}"
        merger = (
            begun.when_matched_delete(f"{effect} = '{Effect.DELETE}' AND {old} <= {new}")
            .when_matched_update(
                values, f"{effect} = '{Effect.FINAL}' OR ({effect} = '{Effect.ROW}' AND {new} > {old})"
            )
            .when_not_matched_insert(values, f"{effect} <> '{Effect.DELETE}'")
        )
        batch = self._batch
        if batch.truncated_at:
            merger = merger.when_not_matched_by_source_delete(f"{old} < {sql_literal(batch.truncated_at)}")
        logger.debug("changes merged metrics=%s", merger.execute())
