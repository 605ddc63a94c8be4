"""The sink that keeps many Delta tables equal to the tables of a database.

Each task writes the changes of all tables into the same files (:func:`~.columns.routed_columns`). The driver
splits them by table, and commits in this order:

1. the changes of each table, as a :class:`~.sink.ChangeTable` without watermarks;
2. the watermarks, once, in a table of their own in the folder;
3. the offsets.

A change that is applied a second time changes nothing. So after a kill between any two of these commits, the
whole batch can be repeated.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.change_data.change import Envelope
from pyspark_rocketmq.change_data.envelopes import EnvelopeOptions
from pyspark_rocketmq.change_data.routes import (
    SEVERAL,
    SHADOW_TABLES,
    Router,
    TableRoute,
    pattern_problem,
    route_problems,
)
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.paths import TableName, table_uri
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.storage_options import GivenOptions, StorageOptions
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError, SchemaError, SinkConflict
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.change_table.batch_changes import FINAL, bad_changes_error, keep_properties
from pyspark_rocketmq.sinks.change_table.change_files import FileChanges
from pyspark_rocketmq.sinks.change_table.columns import ONLY_COLUMN, PROBLEM, SCHEMA, routed_columns
from pyspark_rocketmq.sinks.change_table.compaction import OPERATION
from pyspark_rocketmq.sinks.change_table.new_columns import columns_to_add, fields_of
from pyspark_rocketmq.sinks.change_table.side_tables import BAD_CHANGES, BadChanges
from pyspark_rocketmq.sinks.change_table.sink import (
    ChangeTable,
    check_order,
    choice_problems,
    given_envelope,
    utc_today,
)
from pyspark_rocketmq.sinks.change_table.split import TargetChanges, split_by_target
from pyspark_rocketmq.sinks.delta.appenders import FileAppender, with_record
from pyspark_rocketmq.sinks.delta.batch import DeltaBatch
from pyspark_rocketmq.sinks.delta.rules import SinkCommit
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.table import PathHome
from pyspark_rocketmq.sinks.delta.task_files import TaskWriter
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS

_WHERE: Final = "change tables"
_WATERMARKS: Final = "_changes"
"""Folder of the table with the watermarks, where tasks write their files too."""
_KEYS: Final = "rocketmq.keys"
"""Property of a table with the columns of its key."""
_SOURCE: Final = "rocketmq.source"
"""Property of a table with the source of its rows (``Routed.source``).

A user may set it to a JSON list of several sources: the names that a renamed table had.
"""
_FOLDERS: Final = "rocketmq.folders"
"""Property of the table with the watermarks: how many folders below the sink's folder each table is."""
_TABLE: Final = "rocketmq.table."
"""Prefix of properties of the table with the watermarks. The rest of a property's name is a table's folder.

The property's value is the table's id. It is stored after the table is made, but before the table gets its
first changes.
"""
_COLUMNS: Final = pa.schema([pa.field(ONLY_COLUMN, pa.string())])
"""Columns of the table with the watermarks, which has no rows."""
_MOST_OPEN: Final = 500
"""Maximum number of tables that are kept open."""


class ChangeTables(DeltaSink):
    """Delta tables in one folder that follow a database's tables, by the changes in the group's topics.

    A batch that runs again applies no change twice.

    A consumer with this sink needs no listener. A table is created when its first change comes.
    """

    _rows_have_positions: ClassVar[bool] = False

    def __init__(
        self,
        folder: str | Path,
        *,
        envelope: str | Envelope,
        routes: Sequence[TableRoute] = (TableRoute(),),
        ignored_tables: str | None = SHADOW_TABLES,
        mask_salt: str = "",
        order: str = "source",
        deletes: str = "delete",
        truncates: str = "apply",
        bad_changes: str = "stop",
        schema_changes: str = "lenient",
        keep_deletions_days: int = 7,
        compaction: bool = True,
        storage_options: GivenOptions | StorageOptions | None = None,
        today: Callable[[], date] = utc_today,
        sleep: Callable[[float], None] = time.sleep,
        **envelope_options: Unpack[EnvelopeOptions],
    ) -> None:
        """Set the folder, the tables in it, and how changes are applied to them.

        Args:
            folder: Folder or storage URI below which the tables are.
            envelope: Form of the messages, or an object that reads them: see ``ChangeTable``.
            routes: Routes that give tables of the source a folder and columns. The first one that matches a
                table counts. Changes of a table without a route are ignored.
            ignored_tables: Pattern for names of tables whose changes are ignored, whatever the routes are; by
                default the temporary tables of gh-ost and pt-online-schema-change. None: no table is ignored
                by its name.
            mask_salt: Secret that goes into the hashes of masked values.
            order: Order in which changes count, that of the ``source`` or of the ``queue``: see
                ``ChangeTable``.
            deletes: Treatment of deleted rows: see ``ChangeTable``.
            truncates: Treatment of truncations: see ``ChangeTable``. A truncation cannot be applied to a
                table into which several are merged.
            bad_changes: Treatment of changes that cannot be applied: see ``ChangeTable``.
            schema_changes: Treatment of changes of the source's schema: see ``ChangeTable``. A new table has
                all columns of its first changes.
            keep_deletions_days: Minimum days for which a deletion is remembered: see ``ChangeTable``.
            compaction: Whether small files are compacted from time to time: see ``DeltaSink``.
            storage_options: Options of delta-rs for an object store: see ``DeltaSink``.
            today: Function that returns the date in UTC.
            sleep: Function that waits between the tries of a commit.
            envelope_options: Options of the envelope: ``keys`` by table, ``source_time_zone`` …

        Raises:
            OptionError: If these settings exclude each other, or an option of the envelope is missing or
                wrong.
        """
        self._chosen = {
            "order": order,
            "deletes": deletes,
            "truncates": truncates,
            "bad_changes": bad_changes,
            "schema_changes": schema_changes,
        }
        problems = [*choice_problems(self._chosen), *route_problems(routes, mask_salt)]
        unfit = None if ignored_tables is None else pattern_problem("ignored_tables", ignored_tables)
        problems += [] if unfit is None else [unfit]
        if TableName.of(folder) is not None:
            problems.append(f"{folder} is a table's name, but change tables need a folder: give its path")
        if problems:
            raise OptionError(tuple(problems), where=_WHERE)
        self._folder = table_uri(folder).rstrip("/")
        self._routes = tuple(routes)
        self._ignored = ignored_tables
        self._salt = mask_salt
        self._keep_days = keep_deletions_days
        self._compaction = compaction
        self._named_envelope = envelope
        self._envelope_options: dict[str, Any] = {**envelope_options}
        self._envelope = given_envelope(envelope, self._envelope_options)
        self._today = today
        self._opened = OrderedDict[str, _Opened]()
        self._gets_many_commits = False
        self._checked_logs: set[str] = set()
        """Paths of existing tables that were checked for properties that keep their logs short."""
        super().__init__(
            f"{self._folder}/{_WATERMARKS}",
            merge_keys=_COLUMNS.names,
            compaction=False,
            storage_options=storage_options,
            sleep=sleep,
        )

    def __reduce__(self) -> tuple[object, ...]:
        secret = {"mask_salt": self._salt, "storage_options": self._table.storage}
        made = partial(ChangeTables, self._folder, **(self._settings() | secret))
        return (partial(_for_many_commits, made) if self._gets_many_commits else made), ()

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings().items())
        return f"ChangeTables({masked(self._folder)!r}, {settings})"

    def _settings(self) -> dict[str, Any]:
        return {
            "envelope": self._named_envelope,
            **self._envelope_options,
            "routes": self._routes,
            "ignored_tables": self._ignored,
            **self._chosen,
            "keep_deletions_days": self._keep_days,
            "compaction": self._compaction,
        }

    def _path_home(self, path: str | Path, storage: StorageOptions, keys: tuple[str, ...]) -> PathHome:  # noqa: ARG002 - the tables have keys
        return PathHome(table_uri(path), storage, partial(TablesAppender, tables=self))

    @property
    def tables_folder(self) -> str:
        """Folder or URI that contains the tables."""
        return self._folder

    @property
    def envelope(self) -> Envelope:
        """The envelope: the object that reads the changes in a message."""
        return self._envelope

    @property
    def router(self) -> Router:
        """The router, which finds the folder and the columns for each table of the source."""
        return Router(self._routes, self._ignored, self._salt)

    def setting(self, name: str) -> str:
        """Return ``order``, ``deletes``, ``truncates``, ``bad_changes`` or ``schema_changes`` as chosen."""
        return self._chosen[name]

    def expect_many_commits(self) -> None:
        """Give new tables, also those that are created later, properties that keep their logs short.

        For each table that exists and lacks one of these properties, a warning is logged when it is opened.
        """
        super().expect_many_commits()
        self._gets_many_commits = True

    def prepare(self, schema: pa.Schema) -> None:  # noqa: ARG002 - tables have columns of their own
        """Create the table with the watermarks if it is missing, and check it.

        The other tables are created when their first change comes.
        """
        super().prepare(_COLUMNS)

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> DeltaBatch:
        """Begin a micro-batch: read the group's watermark of each queue.

        ``queues`` has the generation of each queue. A generation above 0 means that the queue's offsets have
        begun again. Raises the errors of ``DeltaSink.begin``, and this one:

        Raises:
            SinkConflict: If a queue's offsets have begun again, and ``order`` is ``queue``.
        """
        check_order(self._chosen["order"], queues, self._folder)
        return super().begin(consumer_group, queues)

    def count_rows(self, from_offsets: Mapping[MessageQueue, int]) -> int:  # noqa: ARG002 - of a protocol
        """Return 0: no row can be added twice, since a change that is applied again changes nothing."""
        return 0

    def _writer(
        self,
        log: SinkLog,  # noqa: ARG002 - rows are not those of its table
        watermarks: Mapping[MessageQueue, int],
        *,
        is_by_spark: bool,  # noqa: ARG002 - refused for merges
    ) -> TaskWriter:
        rows_uri = self._table.home.rows_uri
        return TaskWriter(
            table_uri=rows_uri,
            schema=pa.schema([*POSITION_FIELDS, *routed_columns()]),
            partition_by=(),
            watermarks=watermarks,
            fills_missing=True,
            storage=self._table.storage.for_tasks(rows_uri),
        )

    def apply(self, changes: FileChanges, watermarks: TableSnapshot) -> None:
        """Apply changes to their tables, one after the other; those of a table in one commit.

        Args:
            changes: Changes of all tables.
            watermarks: The table with the watermarks. Its properties store how many folders below the sink's
                folder every table is, and the ids of the tables.

        Raises:
            SinkConflict: For the reasons of ``ChangeTable.apply``; or if a table is gone or another one, if
                its key is unknown or has changed, if rows of two tables of the source would replace each
                other, or if a table would lie within another one.
            FileExistsError: If another commit to ``watermarks`` came first.
            DeltaError, OSError: If the storage does not answer.
        """
        bad = BadChanges(uri=f"{self._folder}/{BAD_CHANGES}", storage=self._table.storage)
        bad.record(self._bad_changes(changes))
        with tempfile.TemporaryDirectory() as spool:
            own_rows = (rows.filter(_is_of_target(rows)) for rows in changes.tables())
            split = split_by_target(own_rows, f"{spool}/changes.arrow")
            ids = _ids_in(watermarks)
            split = {target: own for target, own in split.items() if own.has_rows or self._has(target, ids)}
            folders = {_FOLDERS: self._folders_below(split, watermarks)}
            keep = partial(keep_properties, watermarks, folders)
            targets = list(split)
            for first in range(0, len(targets), _MOST_OPEN):
                some = targets[first : first + _MOST_OPEN]
                opened = {target: self._table_of(target, split[target], keep, ids) for target in some}
                keep_properties(watermarks, {_TABLE + target: each.id for target, each in opened.items()})
                for target, each in opened.items():
                    each.table.apply(split[target])

    def _folders_below(self, targets: Collection[str], watermarks: TableSnapshot) -> str:
        """Return how many folders below the sink's folder its tables are, as text; empty without tables.

        Raises:
            SinkConflict: If the number differs among ``targets`` and the tables of earlier batches. Then one
                table could lie within another, whose VACUUM would remove it.
        """
        depths = {target: str(target.count("/") + 1) for target in targets}
        kept = watermarks.form().configuration.get(_FOLDERS, min(depths.values(), default=""))
        for target, folders in depths.items():
            if folders != kept:
                raise SinkConflict(
                    f"Table {target} would be {folders} folder(s) below {masked(self._folder)}, but the "
                    f"other tables are {kept} below. One table could then lie within another, whose VACUUM "
                    "would remove the inner one. Nothing of this batch was added. Give the route a target "
                    f"with {kept} folders, or start the query with another folder."
                )
        return kept

    def _bad_changes(self, changes: FileChanges) -> Iterator[pa.Table]:
        for rows in changes.tables():
            bad = rows.filter(pc.invert(_is_of_target(rows)))
            stops = self._chosen["bad_changes"] == "stop"
            if len(bad) and (stops or not FINAL.isdisjoint(bad[OPERATION].to_pylist())):
                raise bad_changes_error(self._folder, bad)
            if len(bad):
                yield bad

    def _has(self, target: str, ids: Mapping[str, str]) -> bool:
        """Return whether a table has had changes; if not, it has no columns that a statement could drop."""
        if target in self._opened or target in ids:
            return True
        _, stored = self._table_with(f"{self._folder}/{target}", ["id"]).stored()
        return _KEYS in stored

    def _table_of(
        self, target: str, changes: TargetChanges, keep: Callable[[], object], ids: Mapping[str, str]
    ) -> _Opened:
        opened = self._opened.pop(target, None)
        if opened is None:
            opened = self._open(target, changes, keep, ids.get(target))
        opened.check(changes)
        self._opened[target] = opened
        while len(self._opened) > _MOST_OPEN:
            self._opened.popitem(last=False)
        return opened

    def _check_id(self, target: str, known: str, found: str | None) -> None:
        """Refuse to go on if a table was replaced, or is gone.

        ``known`` is the id of the table that has the earlier changes. ``found`` is the id of the table that
        is there now; None if there is none.
        """
        if found != known:
            now = "no table there" if found is None else f"another table there, with the id {found}"
            raise SinkConflict(
                f"The changes consumed so far went into the Delta table {masked(f'{self._folder}/{target}')} "
                f"with the id {known}, but now there is {now}. Put the table back. Or go on without its "
                f"earlier rows: remove the property '{_TABLE}{target}' of Delta table {masked(self.path)} "
                "(ALTER TABLE ... UNSET TBLPROPERTIES, or set it to ''), start the query, and let the "
                "source send all rows of its table again (a snapshot). Or start the query with another "
                "folder, and consume all messages again."
            )

    def _open(
        self, target: str, changes: TargetChanges, keep: Callable[[], object], known: str | None
    ) -> _Opened:
        """Open a table, or create it with the columns of its first changes.

        ``keep`` stores the depth of the tables' folders; it is called before the table is created. ``known``
        is the id of the table that has earlier changes; None if none has any.

        Raises:
            SinkConflict: If the table ``known`` is gone, or if there is another one. Also if the key is not
                known, or if ``changes`` are of another table or have another key.
        """
        path = f"{self._folder}/{target}"
        found, stored = self._table_with(path, ["id"]).stored()
        if known is not None:
            self._check_id(target, known, found)
        keys = tuple(json.loads(stored[_KEYS])) if _KEYS in stored else next(iter(changes.keys), ())
        if not keys:
            raise SinkConflict(
                f"The source has truncated a table before the first change of a row for {masked(path)} came, "
                f"so the table's key is not known. Create the table with property {_KEYS}: the names of its "
                "key's columns, such as '[\"id\"]'. If no queue has older changes of the table, you may "
                "start the query with truncates='ignore' instead."
            )
        source = stored.get(_SOURCE, min(changes.sources))
        # Check first: of changes with two keys or sources, a new table would take one key and source.
        _Opened(self._table_with(path, keys), source, "").check(changes)
        keep()
        wanted = {_KEYS: json.dumps(keys), _SOURCE: source}
        table = self._made(path, keys, wanted, changes)
        # Prepared, so it has its id.
        table_id = table.place
        kept = table.keep_properties(wanted)
        if kept[_KEYS] != wanted[_KEYS]:
            # Another member has created the table meanwhile, with another key.
            table = self._table_with(path, json.loads(kept[_KEYS]))
        return _Opened(table, kept[_SOURCE], table_id)

    def _made(
        self, path: str, keys: Sequence[str], properties: Mapping[str, str], changes: TargetChanges
    ) -> ChangeTable:
        table = self._table_with(path, keys)
        if table.exists():
            if self._gets_many_commits and path not in self._checked_logs:
                self._checked_logs.add(path)
                table.expect_many_commits()
            table.create({})
            return table
        columns = columns_to_add(changes.carrying(), (), keys)
        made = self._table_with(path, keys, fields_of(columns))
        if self._gets_many_commits:
            made.expect_many_commits()
        try:
            made.create(properties)
        except SchemaError:
            # Another member has created the table meanwhile, with other columns.
            table.create({})
            return table
        return made

    def _table_with(self, path: str, keys: Sequence[str], columns: pa.Schema | None = None) -> ChangeTable:
        return ChangeTable(
            path,
            keys=keys,
            envelope=self._envelope,
            columns=columns,
            order=self._chosen["order"],
            deletes=self._chosen["deletes"],
            truncates=self._chosen["truncates"],
            bad_changes=self._chosen["bad_changes"],
            schema_changes=self._chosen["schema_changes"],
            keep_deletions_days=self._keep_days,
            compaction=self._compaction,
            storage_options=self._table.storage,
            today=self._today,
            sleep=self._sleep,
        )


def _for_many_commits(made: Callable[[], ChangeTables]) -> ChangeTables:
    tables = made()
    tables.expect_many_commits()
    return tables


@dataclass(frozen=True)
class _Opened:
    """A change table that is kept open, and the source's table whose rows it has."""

    table: ChangeTable
    source: str
    """The property ``rocketmq.source``, with ``*`` if several tables are merged into this one."""
    id: str
    """The Delta table's id; empty before it is made."""

    def check(self, changes: TargetChanges) -> None:
        """Refuse changes of another table of the source, or with another key.

        Raises:
            SinkConflict: If one of the changes is of another table or has another key.
        """
        path, keys = masked(self.table.path), changes.keys
        known = _names_in(self.source)
        others = sorted(changes.sources - known)
        if others:
            found, names = ", ".join(map(_shown, others)), {*known, *others}
            renamed = ""
            if SEVERAL not in names:
                renamed = (
                    " If the source's table has only been renamed, set the property "
                    f"{_SOURCE} of the table to '[{', '.join(sorted(names))}]', or create the table with it."
                )
            raise SinkConflict(
                f"{path} has the rows of {_shown(self.source)}, but changes of {found} have the same target: "
                "rows with one key would replace each other. Give the tables different targets, or merge "
                f"them in a new table: TableRoute(merges=True).{renamed}"
            )
        if keys not in ([], [self.table.keys]):
            found = " and ".join(map(str, keys))
            raise SinkConflict(
                f"The key of {path} is {self.table.keys}, but changes have {found}. Name one key for the "
                "table (keys=…), or load the source's table into a new one: a route with another target."
            )


def _ids_in(watermarks: TableSnapshot) -> dict[str, str]:
    """Return the stored ids of tables, by target. Ids that an operator has made empty are left out."""
    stored = watermarks.form().configuration.items()
    return {name.removeprefix(_TABLE): each for name, each in stored if name.startswith(_TABLE) and each}


def _is_of_target(rows: pa.Table) -> pa.ChunkedArray:
    """Return for each row whether the row's own table gets it, and not the table of bad changes.

    The own table gets changes that can be applied, and changes of the source's schema.
    """
    return pc.or_(pc.is_null(rows[PROBLEM]), pc.equal(rows[OPERATION], SCHEMA))


def _names_in(source: str) -> frozenset[str]:
    """Return the sources (``Routed.source``) that the property ``rocketmq.source`` names."""
    try:
        names = json.loads(source)
    except ValueError:
        names = None
    if not isinstance(names, list):
        return frozenset([source])
    several = names if all(isinstance(each, list) for each in names) else [names]
    return frozenset(json.dumps(each, ensure_ascii=False) for each in several)


def _shown(source: str) -> str:
    return "several merged tables" if source == SEVERAL else f"the source's table {source}"


@dataclass(frozen=True)
class TablesAppender:
    """Applies changes to their tables, then commits the watermarks; implements ``Appender``."""

    table: TableSnapshot
    """The table with the watermarks."""
    tables: ChangeTables

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
        columns: pa.Schema,  # noqa: ARG002 - each table has its own
    ) -> int:
        """Apply the changes in ``files`` to their tables, then commit the watermarks and remove the files.

        Return the new version of the table with the watermarks. See :meth:`Appender.append`.

        Raises:
            SinkConflict: For the reasons of :meth:`ChangeTables.apply`.
            FileExistsError: If another commit to the table with the watermarks came first.
            DeltaError, OSError: If a commit failed, or if its outcome is unknown.
        """
        if files:
            self.tables.apply(FileChanges(log.files, files), self.table)
        version = FileAppender(self.table).put(log, (), with_record(before, commit))
        log.files.remove(files)
        return version

    def set_watermarks(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """Make a commit without changes that sets watermarks, for an operator; return the new version."""
        return FileAppender(self.table).set_watermarks(log, before, commit)

    def add_columns(self, log: SinkLog, columns: pa.Schema) -> None:  # noqa: ARG002 - it has the same table
        """Add columns to the watermarks' table, and move to its newest version."""
        self.table.add_columns(columns)
