"""The sink that keeps a Delta table equal to a table of a database.

The sink gets one row for each change (:mod:`~pyspark_rocketmq.sinks.change_table.columns`). A commit contains
the effect of these changes, and the watermarks of the queues, as in every sink.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Unpack

import pyarrow as pa
from pyspark.errors import ParseException, PySparkTypeError, PySparkValueError
from pyspark.sql.types import StructType

from pyspark_rocketmq.change_data.change import Envelope
from pyspark_rocketmq.change_data.envelopes import TableOptions, envelope_of
from pyspark_rocketmq.delta.commit import CommitNote, commit_on_top
from pyspark_rocketmq.delta.paths import TableName, table_uri
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.storage_options import GivenOptions, StorageOptions
from pyspark_rocketmq.delta.table import open_table, unread_features
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError, SchemaError, SinkConflict
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.change_table.appender import ChangeAppender, Merge, RowMerge
from pyspark_rocketmq.sinks.change_table.batch_changes import (
    BatchChanges,
    ChangeRules,
    keep_properties,
)
from pyspark_rocketmq.sinks.change_table.change_files import ChangeRows
from pyspark_rocketmq.sinks.change_table.columns import HIDDEN, change_schema, is_reserved
from pyspark_rocketmq.sinks.change_table.compaction import POSITION, TableColumns
from pyspark_rocketmq.sinks.change_table.version_merge import VersionMerge
from pyspark_rocketmq.sinks.change_table.versions import HISTORY_FIELDS, START_AT
from pyspark_rocketmq.sinks.delta.appenders import SinkHandle
from pyspark_rocketmq.sinks.delta.batch import DeltaBatch
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.table import PathHome
from pyspark_rocketmq.sinks.delta.task_files import TaskWriter
from pyspark_rocketmq.spark.version import arrow_schema

_WHERE: Final = "change table"
_WITH_STATISTICS: Final = 32
"""Number of columns of which Delta has statistics by default."""
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "order": ("source", "queue"),
    "deletes": ("delete", "soft", "ignore"),
    "truncates": ("apply", "ignore", "stop"),
    "bad_changes": ("stop", "keep"),
    "schema_changes": ("lenient", "evolve", "try_evolve", "ignore", "exception"),
}


def utc_today() -> date:
    """Return the date in UTC."""
    return datetime.now(UTC).date()


class ChangeTable(DeltaSink):
    """A Delta table that is kept equal to a table of a database, by the changes in a topic, exactly once.

    A consumer with this sink needs no listener.
    """

    _rows_have_positions: ClassVar[bool] = False

    def __init__(
        self,
        path: str | Path,
        *,
        keys: Sequence[str],
        envelope: str | Envelope,
        columns: str | StructType | pa.Schema | None = None,
        source_table: str | None = None,
        order: str = "source",
        deletes: str = "delete",
        truncates: str = "apply",
        bad_changes: str = "stop",
        schema_changes: str = "lenient",
        keep_deletions_days: int = 7,
        stored_as_scd_type: int | str = 1,
        track_history_column_list: Sequence[str] | None = None,
        compaction: bool = True,
        storage_options: GivenOptions | StorageOptions | None = None,
        today: Callable[[], date] = utc_today,
        sleep: Callable[[float], None] = time.sleep,
        **envelope_options: Unpack[TableOptions],
    ) -> None:
        """Set the table, and how changes are applied to it.

        Args:
            path: Folder or storage URI of the table.
            keys: Columns of the key: those of the source's primary key.
            envelope: Form of the messages: ``canal``, ``canal-protobuf``, ``debezium`` or ``maxwell``; or an
                object that reads them, with a method ``decode``.
            columns: Columns of the source's table, such as ``"id bigint, note string"``. A new table gets
                these; an existing one gets those that it lacks. None: the columns that the table has. For
                further columns of the source see ``schema_changes``.
            source_table: Name of the source's table, ``DATABASE.TABLE`` or ``DATABASE.SCHEMA.TABLE``; changes
                of others are passed over. None if the topic has only changes of this table.
            order: Order in which changes count. ``source``: by the positions in the source's log, whatever
                order the queues have. ``queue``: by the queue, for an envelope without positions; this is
                correct only if all changes of a key are in one queue in their order, so keys must not change.
            deletes: Treatment of deleted rows: ``delete`` removes them; ``soft`` keeps them with
                ``__deleted`` true; ``ignore`` keeps them as they are.
            truncates: Treatment of a truncation: ``apply`` removes the rows whose last change is older than
                it; ``ignore`` passes it over; ``stop`` ends the query.
            bad_changes: Treatment of a change that cannot be applied: ``stop`` ends the query, ``keep`` puts
                the change into the table ``_bad_changes`` in the folder of this one. A truncation, or a
                change of the schema, that cannot be applied ends the query in any case.
            schema_changes: Treatment of changes of the source's schema. ``lenient`` adds columns that the
                table lacks; a renamed column becomes a new one, and a dropped one stays, without values in
                new rows. ``evolve`` does the same, but ends the query at a statement that drops or renames a
                column which the table still has; ``try_evolve`` goes on there. ``ignore`` leaves out columns
                that the table lacks. ``exception`` ends the query at each of these changes.
            keep_deletions_days: Minimum days for which a deletion is remembered. A change from before the
                deletion that comes still later may create the row again.
            stored_as_scd_type: 1: the table has each row as it is now; 2: all its versions, with the times
                ``__START_AT`` and ``__END_AT`` (null: the current one). With 2, a deletion or a truncation
                ends a version and keeps it.
            track_history_column_list: Columns whose change opens a new version. A change of only other
                columns is written into the existing version. None: all columns.
            compaction: Whether small files are compacted from time to time: see ``DeltaSink``.
            storage_options: Options of delta-rs for an object store: see ``DeltaSink``.
            today: Function that returns the date in UTC.
            sleep: Function that waits between the tries of a commit.
            envelope_options: Options of the envelope, as for ``change_columns``: ``source_time_zone`` …

        Raises:
            OptionError: If a setting or an option of the envelope is missing or wrong, or if settings exclude
                each other: ``truncates="apply"`` excludes ``deletes="soft"`` and ``order="queue"``.
        """
        chosen = {
            "order": order,
            "deletes": deletes,
            "truncates": truncates,
            "bad_changes": bad_changes,
            "schema_changes": schema_changes,
        }
        has_history = str(stored_as_scd_type) == "2"
        _check(path, keys, chosen)
        _check_history(stored_as_scd_type, track_history_column_list, deletes)
        self._chosen: Final = chosen
        self._has_history: Final = has_history
        tracked = track_history_column_list
        self._tracked: Final = None if tracked is None else tuple(tracked)
        self._keep_days = keep_deletions_days
        self._named_envelope = envelope
        self._envelope_options: dict[str, Any] = {**envelope_options}
        key_columns = keys if source_table is None else {source_table: keys}
        of_name = {"keys": key_columns} if isinstance(envelope, str) else {}
        self._envelope = given_envelope(envelope, of_name | self._envelope_options)
        self._source_table = source_table
        self._given = columns
        self._prepared: frozenset[str] = frozenset()
        """The columns that the table had when the query started; only these are in the rows of tasks."""
        self._rules = ChangeRules(
            keys=tuple(keys),
            keeps_deleted=deletes == "soft",
            stops_at_bad_changes=bad_changes == "stop",
            kept_days=keep_deletions_days,
            today=today,
            schema_changes=schema_changes,
        )
        super().__init__(
            path,
            merge_keys=keys,
            schema_evolution=True,
            compaction=compaction,
            storage_options=storage_options,
            sleep=sleep,
        )

    def __reduce__(self) -> tuple[object, ...]:
        settings = self._settings() | {"columns": self._given, "storage_options": self._table.storage}
        return partial(ChangeTable, self.path, **settings), ()

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings().items())
        return f"ChangeTable({masked(self.path)!r}, {settings})"

    def _settings(self) -> dict[str, Any]:
        return {
            "keys": self._rules.keys,
            "envelope": self._named_envelope,
            **self._envelope_options,
            "source_table": self._source_table,
            **self._chosen,
            "keep_deletions_days": self._keep_days,
            "stored_as_scd_type": 2 if self._has_history else 1,
            "track_history_column_list": self._tracked,
            "compaction": self._table.compaction,
        }

    def _path_home(self, path: str | Path, storage: StorageOptions, keys: tuple[str, ...]) -> PathHome:  # noqa: ARG002 - the rules have the keys
        made_for: Callable[[TableSnapshot, BatchChanges], Merge] = RowMerge
        if self._has_history:
            tracked = None if self._tracked is None else frozenset(self._tracked)
            made_for = partial(VersionMerge, tracked=tracked)
        appender = partial(ChangeAppender, rules=self._rules, made_for=made_for, unmerged=set())
        return PathHome(table_uri(path), storage, appender)

    @property
    def envelope(self) -> Envelope:
        """The envelope: the object that reads the changes in a message."""
        return self._envelope

    @property
    def source_table(self) -> str | None:
        """Name of the source's table whose changes count; None if the messages are about only one table."""
        return self._source_table

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key's columns."""
        return self._rules.keys

    def setting(self, name: str) -> str:
        """Return ``order``, ``deletes``, ``truncates``, ``bad_changes`` or ``schema_changes`` as chosen."""
        return self._chosen[name]

    def table_columns(self) -> pa.Schema:
        """Return the columns of the source's table: those given, then those that only the table has.

        Raises:
            SchemaError: If there is no table and no columns are given, if ``columns`` cannot be read as
                columns, or if a column has a name that change tables use themselves.
            OffsetError: If the storage does not answer.
        """
        return self._read(f"The columns of {self.path}", self._table_columns)

    def _table_columns(self) -> pa.Schema:
        handle = self._table.home.open()
        if handle is None and self._given is None:
            raise SchemaError(
                f"There is no Delta table at {self.path}, so the columns are unknown. Create the table, or "
                "give the columns of the source's table: ChangeTable(columns=…)."
            )
        given = list(_schema_of(self._given))
        known = {field.name for field in given} | HIDDEN
        stored = () if handle is None else handle.log.table.arrow_schema
        fields = [*given, *(field for field in stored if field.name not in known)]
        # The hidden columns of a change table were left out above: another reserved name is the source's.
        clashes = sorted({field.name for field in fields if is_reserved(field.name)})
        if clashes:
            raise SchemaError(
                f"{self.path} cannot have the column(s) {', '.join(clashes)} of the source: a change table "
                "has columns of its own with these names. Leave the source's columns out, or rename them."
            )
        return pa.schema([pa.field(field.name, field.type) for field in fields])

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table if it is missing, or add the columns that it lacks.

        Args:
            schema: Columns of the changes: :func:`change_schema` of :meth:`table_columns`.

        Raises:
            SchemaError: If the columns do not fit the table.
            OptionError: If a key or a tracked column is not a column, if the table cannot hold a key's values
                exactly or was kept with the other ``stored_as_scd_type``, or if it has features with which
                its rows cannot be merged or read.
            OffsetError: If the storage does not answer.
        """
        table = self.table_columns()
        if set(schema.names) != set(change_schema(table).names):
            raise SchemaError(
                f"The columns of {self.path} were altered while the query was starting. Start the query "
                "again."
            )
        _check_keys(self.keys, table, self._read(f"The partitions of {self.path}", self._partition_columns))
        _check_tracked(self._tracked or (), table)
        self._read(f"The columns of {self.path}", self._check_stored_type)
        self._read(f"The features of {self.path}", self._check_features)
        keys = TableColumns(keys=self.keys, others=(), keeps_deleted=self._rules.keeps_deleted)
        hidden = HISTORY_FIELDS if self._has_history else keys.hidden
        # Only the first 32 columns have statistics, by which files without older values are left out.
        is_wide = len(table) + len(hidden) > _WITH_STATISTICS
        super().prepare(pa.schema([*hidden, *table] if is_wide else [*table, *hidden]))
        self._prepared = frozenset(table.names)

    def _check_stored_type(self) -> None:
        """Refuse a change table that was kept with the other ``stored_as_scd_type``.

        Raises:
            OptionError: If the table was kept with the other type.
        """
        handle = self._table.home.open()
        stored = () if handle is None else handle.log.table.arrow_schema.names
        if POSITION in stored and (START_AT in stored) != self._has_history:
            kept, asked = ("2", "1") if START_AT in stored else ("1", "2")
            problem = (
                f"{self.path} was written with stored_as_scd_type={kept}, which cannot become {asked}; give "
                f"stored_as_scd_type={kept}, or load the source's table into a new change table"
            )
            raise OptionError((problem,), where=_WHERE)

    def _check_features(self) -> None:
        """Refuse a table with features that keep delta-rs from reading its rows back.

        Raises:
            OptionError: If the table has such features.
        """
        handle = self._table.home.open()
        unread = () if handle is None else unread_features(open_table(self._table.path, self._table.storage))
        if unread:
            problem = (
                f"{self.path} has {', '.join(unread)}, with which its rows cannot be read back. Remove these "
                "features in Spark (ALTER TABLE ... DROP FEATURE), or load the source's table into a new "
                "change table"
            )
            raise OptionError((problem,), where=_WHERE)

    def _partition_columns(self) -> Sequence[str]:
        handle = self._table.home.open()
        return () if handle is None else handle.log.table.form().partition_by

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> DeltaBatch:
        """Begin a micro-batch: read the table's newest version, and the group's watermark of each queue.

        ``queues`` has the generation of each queue. A generation above 0 means that the queue's offsets have
        begun again. Raises the errors of :meth:`DeltaSink.begin`, and this one:

        Raises:
            SinkConflict: If a queue's offsets have begun again, and ``order`` is ``queue``.
        """
        check_order(self._chosen["order"], queues, self.path)
        return super().begin(consumer_group, queues)

    def stored(self) -> tuple[str | None, Mapping[str, str]]:
        """Return the id and the properties of the table; None and an empty mapping if there is no table.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        handle = self._table.home.open()
        if handle is None:
            return None, {}
        return handle.log.table.table_id, handle.log.table.form().configuration

    def keep_properties(self, wanted: Mapping[str, str]) -> Mapping[str, str]:
        """Give the table those of the ``wanted`` properties that it lacks; return all its properties.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """

        def follow(_: Exception | None) -> Callable[[], Mapping[str, str]]:
            appender = self._table.newest().appender
            assert isinstance(appender, ChangeAppender)
            return partial(keep_properties, appender.table, wanted)

        return commit_on_top(f"properties path={masked(self.path)}", follow, sleep=self._sleep)

    def exists(self) -> bool:
        """Return whether there is a table.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        return self._table.home.open() is not None

    def create(self, properties: Mapping[str, str]) -> None:
        """Create the table with these properties if it is missing; otherwise add columns that it lacks.

        A new table also gets the properties of :meth:`expect_many_commits` if that was called.

        Raises:
            RocketMQError: For the reasons of :meth:`prepare`.
            DeltaError, OSError: If the storage does not answer.
        """
        expected = self._table.properties
        if not self.exists():
            self._table.properties = {**expected, **properties}
        try:
            self.prepare(change_schema(self.table_columns()))
        finally:
            self._table.properties = expected

    def apply(self, changes: ChangeRows) -> None:
        """Commit the effect of changes, without watermarks: if they are applied again, nothing changes.

        Raises:
            SinkConflict: If changes cannot be applied and ``bad_changes`` stops at them, if the positions in
                the source's log cannot be compared with the table's, if a row would have null where its
                column forbids it, or if the table is another one than when it was opened.
            SchemaError: If there is no table.
            DeltaError, OSError: If the storage does not answer.
        """

        def follow(_: Exception | None) -> Callable[[], None]:
            handle = self._table.newest()
            return partial(self._apply, changes, handle)

        commit_on_top(f"changes path={masked(self.path)}", follow, sleep=self._sleep)

    def _apply(self, changes: ChangeRows, handle: SinkHandle) -> None:
        if self._table.table_id not in (None, handle.log.table.table_id):
            raise SinkConflict(
                f"The Delta table {self.path} was replaced by another one while the query was running, and "
                "its earlier changes may be missing. Nothing was added. Put the former table back, and start "
                "the query again."
            )
        appender = handle.appender
        assert isinstance(appender, ChangeAppender)
        appender.add_new_columns(changes)
        appender.merge(changes, CommitNote())
        self._table.start_maintenance(handle.log)

    def count_rows(self, from_offsets: Mapping[MessageQueue, int]) -> int:  # noqa: ARG002 - of a protocol
        """Return 0: no row can be added twice, since a change that is applied again changes nothing."""
        return 0

    def _writer(
        self,
        log: SinkLog,
        watermarks: Mapping[MessageQueue, int],
        *,
        is_by_spark: bool,  # noqa: ARG002 - refused for merges
    ) -> TaskWriter:
        rows_uri = self._table.home.rows_uri
        # Without columns that were added since: an update that lacks these must not set them to null.
        listened = [field for field in log.table.arrow_schema if field.name in self._prepared]
        return TaskWriter(
            table_uri=rows_uri,
            schema=change_schema(listened),
            partition_by=(),
            watermarks=watermarks,
            fills_missing=True,
            storage=self._table.storage.for_tasks(rows_uri),
        )


def check_order(order: str, queues: Mapping[MessageQueue, int], path: str) -> None:
    """Refuse queues whose offsets have begun again, if the offsets give the order of changes.

    Raises:
        SinkConflict: If offsets of a queue have begun again, and ``order`` is ``queue``.
    """
    again = sorted(queue for queue, generation in queues.items() if generation)
    if again and order == "queue":
        raise SinkConflict(
            f"The offsets of {'; '.join(map(str, again))} have begun again, so with order='queue' new "
            f"changes would count as older than those that {path} has. Load the source's tables "
            "into a new folder, and start the query with that."
        )


def given_envelope(envelope: str | Envelope, options: Mapping[str, Any]) -> Envelope:
    """Return the envelope that has this name, with these options; an object is returned as it is.

    Raises:
        OptionError: If the name is unknown, if an option is missing or wrong, or if an object has options.
    """
    if isinstance(envelope, str):
        return envelope_of(envelope, options)
    if options:
        problem = (
            f"{', '.join(options)} are only for an envelope that is given by its name, and an object was "
            "given: leave them out, or name the envelope, such as envelope='debezium'"
        )
        raise OptionError((problem,), where=_WHERE)
    return envelope


def _schema_of(columns: str | StructType | pa.Schema | None) -> pa.Schema:
    """Return the columns as a schema; for None, an empty one. A text is parsed by a Spark session."""
    if columns is None or isinstance(columns, pa.Schema):
        return pa.schema([]) if columns is None else columns
    try:
        parsed = StructType.fromDDL(columns) if isinstance(columns, str) else columns
        if isinstance(parsed, StructType):
            return arrow_schema(parsed)
        problem = "this is one type, and not a list of columns"
    except (ParseException, PySparkTypeError, PySparkValueError) as error:
        # Spark's error repeats the text on further lines.
        problem = str(error).strip().partition("\n")[0].rstrip(".")
    raise SchemaError(
        f"columns={columns!r} cannot be used: {problem}. Give the columns of the source's table as a text "
        "such as 'id bigint, note string', a StructType or a pyarrow schema."
    )


def _check_keys(keys: Sequence[str], table: pa.Schema, partition_by: Sequence[str]) -> None:
    """Refuse keys that are no columns of the table, or whose values the table does not keep exactly.

    These are floating-point numbers, and text in a partition column, where Delta stores an empty text as
    null.

    Raises:
        OptionError: If there is a problem; it names all of them.
    """
    problems = [
        f"keys names {name}, but the table has {', '.join(table.names)}; name the source's primary key"
        for name in keys
        if name not in table.names
    ]
    problems += [
        f"key {name} is {table.field(name).type}, and floating-point numbers are not exact; make the column "
        "a decimal"
        for name in keys
        if name in table.names and pa.types.is_floating(table.field(name).type)
    ]
    problems += [
        f"key {name} is a partition column, where Delta stores an empty text as null; create the table with "
        "other partitions, or none"
        for name in keys
        if name in partition_by and pa.types.is_string(table.field(name).type)
    ]
    if problems:
        raise OptionError(tuple(problems), where=_WHERE)


def _check_tracked(tracked: Sequence[str], table: pa.Schema) -> None:
    """Refuse tracked columns that the table lacks.

    Raises:
        OptionError: If the table lacks a tracked column.
    """
    missing = [name for name in tracked if name not in table.names]
    if missing:
        problem = (
            f"track_history_column_list names {', '.join(missing)}, but the table has "
            f"{', '.join(table.names)}; name columns of the source's table"
        )
        raise OptionError((problem,), where=_WHERE)


def _check_history(stored_as_scd_type: int | str, tracked: Sequence[str] | None, deletes: str) -> None:
    """Refuse wrong or contradictory settings for the history of rows (``stored_as_scd_type=2``).

    Raises:
        OptionError: If there is a problem; it names all of them.
    """
    problems = []
    if stored_as_scd_type not in (1, 2, "1", "2"):
        problems.append(f"stored_as_scd_type={stored_as_scd_type!r} is neither 1 nor 2")
    has_history = str(stored_as_scd_type) == "2"
    if tracked is not None and not has_history:
        problems.append(
            "track_history_column_list is about versions: add stored_as_scd_type=2, or leave out the list"
        )
    if isinstance(tracked, str) or (tracked is not None and not tracked):
        problems.append(f"track_history_column_list={tracked!r} names no columns; give some, or None for all")
    if has_history and deletes == "soft":
        problems.append(
            "deletes='soft' marks the one row of a key, but with stored_as_scd_type=2 a deletion ends its "
            "version and keeps it: leave deletes out"
        )
    if problems:
        raise OptionError(tuple(problems), where=_WHERE)


def _check(path: str | Path, keys: Sequence[str], chosen: Mapping[str, str]) -> None:
    """Refuse settings that are wrong or exclude each other.

    Raises:
        OptionError: If there is a problem; it names all of them.
    """
    problems = choice_problems(chosen)
    if TableName.of(path) is not None:
        problems.append(f"{path} is a table's name, but a change table needs a path: name its folder")
    if isinstance(keys, str) or not keys:
        problems.append(f"keys={keys!r} names no columns; give the source's primary key, such as keys=['id']")
    if problems:
        raise OptionError(tuple(problems), where=_WHERE)


def choice_problems(chosen: Mapping[str, str]) -> list[str]:
    """Return what is wrong with settings whose values are words, such as ``order``; empty if nothing is."""
    problems = [
        f"{name}={value!r} is none of {', '.join(map(repr, _CHOICES[name]))}"
        for name, value in chosen.items()
        if value not in _CHOICES[name]
    ]
    if chosen["truncates"] == "apply" and "soft" in chosen["deletes"]:
        problems.append(
            "deletes='soft' cannot keep the rows that a truncation removes: add truncates='ignore' or 'stop'"
        )
    if chosen["truncates"] == "apply" and chosen["order"] == "queue":
        problems.append(
            "order='queue' has no order between queues, which a truncation needs: add truncates='ignore' or "
            "'stop'"
        )
    return problems
