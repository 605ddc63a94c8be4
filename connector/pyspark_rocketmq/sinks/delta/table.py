"""A sink's table: creation, checks, new columns, and maintenance.

A table is at a path, or has a name in a catalog. Everything that depends on this is in the implementations of
:class:`TableHome`. A *handle* is the table as one thread has opened it; a table's *form* is its columns,
partitioning, properties and features.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from pyspark_rocketmq.delta.compaction import Compactor
from pyspark_rocketmq.delta.features import (
    expires_transactions,
    features_of_every_commit,
    form_changes,
    refused_features,
    uncompacted_features,
    without_additions,
)
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.maintenance import Maintenance
from pyspark_rocketmq.delta.paths import check_exclusive_create, local_path
from pyspark_rocketmq.delta.snapshot import HandlePerThread, TableSnapshot
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.delta.table import (
    STORAGE_ERRORS,
    TableForm,
    as_nullable,
    create_table,
    open_table,
    parse_columns,
    query_rows,
    read_form,
)
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError, SchemaError, SinkConflict
from pyspark_rocketmq.sinks.delta.appenders import Appender, FileAppender, SinkHandle
from pyspark_rocketmq.sinks.delta.rules import (
    NEWER_ROWS_ONLY,
    SinkCommit,
    cannot_merge,
    cannot_take_files,
    check_characters,
    check_columns,
    check_wanted,
    merges_changes,
)
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog, log_of
from pyspark_rocketmq.sinks.delta.spark_writer import (
    PathTarget,
    Session,
    SparkWriter,
    addresses,
    log_store_problem,
)
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit, has_rows_of
from pyspark_rocketmq.sinks.shared_storage import normal_place

logger = logging.getLogger(__name__)

_CHECKPOINT_EVERY = 100
"""Versions between checkpoints if the table's properties set none; delta-rs has the same default."""
_COMPACT_EVERY = 100
"""Least number of versions between two checks of the sizes of all files, which may start a compaction."""
_CLEAN_UP_EVERY = 1_000
"""Least number of versions between two removals of expired log files; each checks all files of the log."""


_LOG_RETENTION: Final = "delta.logRetentionDuration"
MANY_COMMITS: Final[Mapping[str, str]] = {
    # Every checkpoint lists the files that compaction has removed within this time.
    "delta.deletedFileRetentionDuration": "interval 1 day",
    _LOG_RETENTION: "interval 1 day",
    # A checkpoint of a large table takes seconds.
    "delta.checkpointInterval": "1000",
}
"""Properties of a table that gets two commits a second; see :meth:`SinkTable.properties_for`."""


class TableHome(Protocol):
    """Opens, creates and checks a sink's table, in the way that a path or a name in a catalog needs."""

    storage: StorageOptions
    session: Session
    """Session for a table that Spark reads or writes."""
    spark: SparkWriter
    """Makes the commits that only Spark may make."""

    @property
    def path(self) -> str:
        """The table's storage URI, absolute path, or name."""
        ...

    @property
    def place(self) -> str:
        """Path with links followed, URI, or name in a catalog: the same in every run of a query."""
        ...

    @property
    def rows_uri(self) -> str:
        """Path or URI of the folder that tasks write their rows to; empty until it is known."""
        ...

    @property
    def command_path(self) -> str:
        """Path by which commands in error messages name the table; empty if it has only a name."""
        ...

    def session_of_handles(self) -> SparkSession | None:
        """Return the running Spark session by which the handles (opened tables) work from now on.

        Return None if the handles need no session, or if none runs.
        """
        ...

    def open(self) -> SinkHandle | None:
        """Open the table at its newest version, with renewed storage options; None if there is no table.

        Raises:
            OptionError: If the table cannot be a sink.
            DeltaError, OSError: If the storage or the catalog does not answer.
        """
        ...

    def create(
        self, schema: pa.Schema, partition_by: tuple[str, ...], properties: Mapping[str, str]
    ) -> SinkHandle:
        """Create the table, or open the one that another process created.

        Raises:
            OptionError: If the table cannot be created.
            SchemaError: If the catalog has a table of that name without a folder.
            DeltaError, OSError: If the storage or the catalog does not answer.
        """
        ...

    def check_place(self) -> None:
        """Refuse a place in which commits could overwrite each other.

        Raises:
            OptionError: If commits could overwrite each other there.
        """
        ...

    def check_rows_place(self, schema: pa.Schema) -> None:
        """Check that a file can be written to :attr:`rows_uri`, and that Spark can read it there.

        Raises:
            OptionError: If no file can be written there, or if Spark cannot read it.
        """
        ...

    def comparable(self, form: TableForm, wanted: TableForm) -> TableForm:
        """Return the table's ``form`` without columns that Delta may compute, to compare it with ``wanted``.

        This matters only if the table has computed columns and ``form`` does not show which these are. Then
        each column that ``wanted`` lacks may be one of them. Otherwise return ``form`` as it is.
        """
        ...

    def reasons_for_spark(self, form: TableForm) -> tuple[str, ...]:
        """Return the reasons why Spark must write the table; empty if there are none."""
        ...

    def check_spark(self, form: TableForm, reasons: tuple[str, ...]) -> None:
        """Check that Spark can write this table safely.

        ``reasons`` say why only Spark can write the table; the error names them.

        Raises:
            OptionError: If no session can read the table in the folder, or if Spark's commits could overwrite
                those of others.
        """
        ...


class PathHome:
    """A table in a folder, on a disk or in an object store; implements :class:`TableHome`."""

    def __init__(
        self,
        path: str,
        storage: StorageOptions,
        merges: Callable[[TableSnapshot], Appender] | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        """Set the folder, and how rows are merged.

        ``merges`` makes the appender that merges rows; with None, the files of tasks are added as they are.
        If only Spark may write the table, Spark merges the rows by the columns ``keys``.
        """
        self.path: Final = path
        self.storage = storage
        self.session = Session()
        self._target = PathTarget(path, self.session)
        self.spark = SparkWriter(self.session, self._target, keys)
        self._merges = merges

    @property
    def place(self) -> str:
        """The table's URI, or its path with links followed."""
        return normal_place(self.path)

    @property
    def rows_uri(self) -> str:
        """The table's own folder, to which tasks write their rows."""
        return self.path

    @property
    def command_path(self) -> str:
        """The table's path, by which commands in error messages name it."""
        return self.path

    def session_of_handles(self) -> SparkSession | None:
        """Return None: a table by path is opened without a Spark session."""
        return None

    def open(self) -> SinkHandle | None:
        """Open the table at its newest version, with renewed storage options; None if there is no table.

        Raises:
            DeltaError, OSError: If the storage does not answer.
        """
        self.storage.renew()
        try:
            return self._handle(open_table(self.path, self.storage))
        except TableNotFoundError:
            return None

    def create(
        self, schema: pa.Schema, partition_by: tuple[str, ...], properties: Mapping[str, str]
    ) -> SinkHandle:
        """Create the table, or open the one that another process created.

        Raises:
            OptionError: If the table cannot be created in a local folder.
            DeltaError, OSError: If remote storage does not answer.
        """
        try:
            table = create_table(
                self.path, schema, partition_by, self.storage, configuration=dict(properties)
            )
        except STORAGE_ERRORS as error:
            if local_path(self.path) is None:
                raise
            problem = (
                f"The sink's folder {masked(self.path)} cannot be created: "
                f"{self.storage.describe_error(error)} Name a "
                "folder that this process can create and write, or let it write there"
            )
            raise OptionError((problem,), where="Delta sink") from error
        return self._handle(table)

    def _handle(self, opened: DeltaTable) -> SinkHandle:
        table = TableSnapshot(opened, self.storage, needs_delta_rs=self._merges is not None)
        files = FileAppender(table)
        return SinkHandle(
            log_of(table),
            files if self._merges is None else self._merges(table),
            files if table.commits_itself else None,
        )

    def check_place(self) -> None:
        """Refuse a local folder in which commits could overwrite each other.

        Raises:
            OptionError: If the folder is on a file system without hard links.
        """
        check_exclusive_create(self.path)

    def check_rows_place(self, schema: pa.Schema) -> None:
        """Do nothing: tasks write to the table's own folder, and each commit looks for their files there."""

    def comparable(self, form: TableForm, wanted: TableForm) -> TableForm:  # noqa: ARG002 - it shows them
        """Return ``form`` as it is: for a table by path, it shows which columns Delta computes."""
        return form

    def reasons_for_spark(self, form: TableForm) -> tuple[str, ...]:
        """Return the names of the features that forbid adding files to the table; empty if none does."""
        return refused_features(form)

    def check_spark(self, form: TableForm, reasons: tuple[str, ...]) -> None:  # noqa: ARG002 - of a protocol
        """Check that a Spark session can read the table, and that its commits could overwrite no others.

        Raises:
            OptionError: If no session can read it, or if commits could be overwritten. The error names
                ``reasons``: why Spark must write.
        """
        address = self._target.find()
        if not address:
            why = "no Spark session here can read it (with delta-spark, its extension and its catalog)"
            raise cannot_take_files(self.path, reasons, why)
        problem = log_store_problem(address, self.session.setting)
        if problem is not None:
            raise cannot_take_files(self.path, reasons, problem)


class SinkTable:
    """One table and the columns of the rows to be added to it; only for the driver."""

    def __init__(
        self,
        home: TableHome,
        *,
        partition_by: tuple[str, ...],
        merge_keys: tuple[str, ...],
        schema_evolution: bool,
        compaction: bool = True,
        has_positions: bool = True,
    ) -> None:
        """Set the table's home and the arguments of the sink.

        ``has_positions`` says whether rows have the columns of their message's position.
        """
        self.home = home
        self.path = home.path
        self.storage = home.storage
        self.partition_by = partition_by
        self.properties: Mapping[str, str] = {}
        """Properties for a table that :meth:`prepare` creates; see :meth:`properties_for`."""
        self.merge_keys = merge_keys
        self.schema_evolution = schema_evolution
        self.compaction = compaction
        self._has_positions = has_positions
        self._compactor = Compactor()
        self._wanted: TableForm | None = None
        self._checked_form: TableForm | None = None
        """The form for which :meth:`check_unaltered` last found that the rows fit and Spark is not needed.

        Most commits leave the form as it is, so the check need not be repeated.
        """
        self.schema = pa.schema([])
        """Columns of the rows; empty until the table is prepared."""
        self.table_id: str | None = None
        """The table's id; known once the table is prepared."""
        self._warned: set[str] = set()
        """Groups that were warned of a RESTORE that the log may no longer show."""
        self._handles: HandlePerThread[SinkHandle] = HandlePerThread(self._opened)
        self._session_of_handles: SparkSession | None = None
        self._upkeep = Maintenance("sink", self.path, self.storage)
        self._compactions = Maintenance("sink", self.path, self.storage, is_interruptible=True)

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table if it is missing, else check that rows of ``schema`` can be added to it.

        With ``schema_evolution``, columns that an existing table lacks are added first. For the errors see
        ``DeltaSink.prepare``.
        """
        _check_keys(self.merge_keys, schema)
        _check_names(self.path, schema.names)
        wanted = TableForm(
            columns=parse_columns(Schema.from_arrow(schema).to_json()),
            partition_by=self.partition_by,
            configuration={},
            features=frozenset(),
        )
        check_wanted(self.path, wanted, has_positions=self._has_positions)
        handle = self.home.open()
        if handle is None:
            check_characters(self.path, Schema.from_arrow(schema).to_json())
            handle = self.home.create(schema, self.partition_by, self.properties_for(wanted))
            logger.info("sink table created path=%s", masked(self.path))
        else:
            self.home.check_place()
            # Check both, so that a name that differs only in case is not reported as missing.
            known = [column.name for column in handle.log.table.form().columns]
            _check_names(self.path, [*known, *schema.names])
            if self.schema_evolution:
                self._add_missing_columns(handle, schema)
            self._warn_of_long_log(handle.log.table.form())
        reasons = self._check_form(handle.log.table.form(), wanted)
        self._wanted, self._checked_form, self.schema = wanted, None, schema
        self._forget_handles_of_another_session()
        self._handles.keep(handle)
        self.table_id = handle.log.table.table_id
        if not reasons:
            self._warn_of_spark()
        logger.info(
            "sink writes files and commits by %s path=%s version=%d",
            f"Spark because of {', '.join(reasons)}" if reasons else handle.appender.commits_by,
            masked(self.path),
            handle.log.version,
        )
        self.home.check_rows_place(schema)

    def properties_for(self, form: TableForm) -> dict[str, str]:
        """Return those of :attr:`properties` that a table of this form may have.

        If Spark writes the table, or if writers delete old transaction ids, watermarks may be only in the
        log. Then the log must be kept for longer than a group may be idle, so the property that shortens the
        log's retention is left out.
        """
        has_watermarks_in_log = bool(self.home.reasons_for_spark(form)) or expires_transactions(form)
        return {
            name: value
            for name, value in self.properties.items()
            if not (has_watermarks_in_log and name == _LOG_RETENTION)
        }

    def _warn_of_long_log(self, form: TableForm) -> None:
        """Log a warning if an existing table lacks properties of :meth:`properties_for`."""
        wished = self.properties_for(form)
        missing = {name: value for name, value in wished.items() if name not in form.configuration}
        if missing:
            wanted = ", ".join(f"'{name}' = '{value}'" for name, value in missing.items())
            logger.warning(
                "the table gets up to 172,800 commits a day, and its log keeps them for long path=%s: ALTER "
                "TABLE … SET TBLPROPERTIES (%s)",
                masked(self.path),
                wanted,
            )

    def _warn_of_spark(self) -> None:
        """Log a warning if other jobs' commits by Spark could overwrite those of this sink."""
        session = self.home.session.living()

        def setting(name: str) -> str | None:
            return None if session is None else session.conf.get(name, None)

        problems = [
            log_store_problem(address, setting, beside_delta_rs=True) for address in addresses(self.path)
        ]
        if all(problems):
            path = masked(self.path)
            logger.warning("if Spark also writes path=%s, for example by OPTIMIZE, %s", path, problems[-1])

    def _check_form(self, form: TableForm, wanted: TableForm) -> tuple[str, ...]:
        """Check that rows with the columns of ``wanted`` fit; return why Spark must write them."""
        comparable = self.home.comparable(form, wanted)
        check_columns(self.path, comparable, wanted, may_differ=self.schema_evolution)
        reasons = self.reasons_for_spark(form)
        if not reasons:
            # Spark itself finds the partition of each row, also by columns of other types or computed ones.
            by_table = replace(wanted, partition_by=form.partition_by)
            check_wanted(self.path, by_table, has_positions=self._has_positions)
        return reasons

    def count_rows(self, where: str) -> int:
        """Count the rows for which the SQL condition ``where`` is true; return 0 for a change table."""
        self.storage.renew()
        table = open_table(self.path, self.storage)
        if merges_changes(field.name for field in table.schema().fields):
            return 0
        sql = f"SELECT count(*) AS found FROM rows WHERE {where}"  # noqa: S608 - quoted literals
        [count] = query_rows(table, sql).column("found").to_pylist()
        return int(count)

    def newest(self) -> SinkHandle:
        """Return this thread's handle (its opened table), moved to the newest version.

        Raises:
            SchemaError: If there is no table.
        """
        self._forget_handles_of_another_session()
        return self._handles.newest()

    def _forget_handles_of_another_session(self) -> None:
        session = self.home.session_of_handles()
        if session is not self._session_of_handles:
            self._session_of_handles = session
            self._handles.forget()

    def _opened(self) -> SinkHandle:
        handle = self.home.open()
        if handle is None:
            raise SchemaError(
                f"There is no Delta table at {self.path}. Check the path. If the table was there before, put "
                "it back, and start the query again."
            )
        return handle

    def start_maintenance(self, log: SinkLog) -> None:
        """Start a checkpoint and a compaction if due, after a commit of files; return immediately."""
        every = checkpoint_interval(log.table.form().configuration)
        self._upkeep.after_commit(
            log.version - 1,
            every,
            lambda number: self._maintain(cleans_up=number % max(1, _CLEAN_UP_EVERY // every) == 0),
        )
        if self.compaction:
            # Compact on another thread: in a large table it takes long, and checkpoints must not wait.
            self._compactions.after_commit(log.version - 1, _COMPACT_EVERY, lambda _: self._compact())

    def wait_for_upkeep(self, timeout_s: float) -> None:
        """Wait until the running maintenance is done.

        Raises:
            TimeoutError: If the checkpoint takes longer than ``timeout_s``, or if the compaction takes longer
                than ``timeout_s`` after that. So the call may take twice that time.
        """
        for thread in (self._upkeep, self._compactions):
            thread.wait(timeout_s)

    def _maintain(self, *, cleans_up: bool) -> None:
        self.storage.renew()
        table = open_table(self.path, self.storage)
        table.create_checkpoint()
        configuration = table.metadata().configuration
        if cleans_up and configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
            table.cleanup_metadata()
            LogFiles(self.path, self.storage).remove_unfinished()
        logger.info("sink table maintained path=%s version=%d", masked(self.path), table.version())

    def _compact(self) -> None:
        self.storage.renew()
        table = open_table(self.path, self.storage)
        if not uncompacted_features(read_form(table)):
            self._compactor.compact_if_worth_it(table, LogFiles(self.path, self.storage))

    def check_not_restored(self, log: SinkLog, consumer_group: str) -> None:
        """Refuse a table if a RESTORE, or a statement that replaced it, may have removed rows of the group.

        A RESTORE counts if it came after the group's last commit, or if that commit's writer had not seen it.

        Raises:
            SinkConflict: If there was such a RESTORE or statement.
        """
        # A group that has never written rows cannot have lost any.
        if not has_rows_of(log, consumer_group):
            return
        restored_at = log.restored_since_last_commit(consumer_group)
        if restored_at is None:
            if not log.shows_restores_since(consumer_group):
                self._warn_of_restores(consumer_group)
            return
        commit_after = log.commit_after_restore(consumer_group)
        is_replaced = log.was_replaced_at(restored_at)
        when = (
            f"after group {consumer_group} wrote to it last"
            if commit_after is None
            else f"while rows of group {consumer_group} were being added (version {commit_after})"
        )
        first = "" if commit_after is None else f"restore version {commit_after - 1}, "
        undo = (
            f"If the {'replacement' if is_replaced else 'RESTORE'} was a mistake, restore the version before "
            "it before you go back: then nothing is consumed again. "
        )
        given = "remove rows of the group that the new table was given, " if is_replaced else ""
        kept = ", or if the new table was given all rows" if is_replaced else ""
        raise SinkConflict(
            f"The Delta table {self.path} was {'replaced' if is_replaced else 'restored'} at version "
            f"{restored_at}, {when}: "
            "rows may be gone, but the watermarks still count them as written, so they would not be written "
            "again. Stop every query of the group, and choose one of three ways. (1) To consume the messages "
            f"again whose rows are gone, {first}{given}run "
            f"DeltaSink({self.path!r}).follow_restore({consumer_group!r}, STORE) with the group's offset "
            "store, for example DeltaOffsetStore(path), and start the query again. "
            f"{undo if commit_after is None else ''}(2) To accept the "
            f"gap{kept}, run in Python: `from pyspark_rocketmq import DeltaSink; sink = "
            f"DeltaSink({self.path!r}); sink.rewind({consumer_group!r}, {{key.queue: offset for key, "
            f"offset in sink.watermarks({consumer_group!r}).items()}})`. (3) To start over with an empty "
            "sink and all messages that brokers still have, remove the table, and move the group by "
            "`pyspark-rocketmq offsets reset --to earliest --conf FILE`. This also removes rows that others "
            "wrote into the table, and rows whose messages brokers no longer have."
        )

    def _warn_of_restores(self, consumer_group: str) -> None:
        """Log a warning, once for each group, of a possible RESTORE that the table's log no longer shows."""
        if consumer_group in self._warned:
            return
        self._warned.add(consumer_group)
        logger.warning(
            "the log of the sink %s no longer reaches back to the last commit of group %s: if the table was "
            "restored or replaced since then, rows are missing that the group's watermarks count as written. "
            "Stop the group's queries, and compare DeltaSink(path).watermarks(group) with the highest "
            "queueOffset of each queue in the table. If rows are missing, lower the watermarks with "
            "DeltaSink.rewind and start a query: its error names the ways to get the rows. %s Keep the log "
            "longer than a group may be idle (delta.logRetentionDuration).",
            masked(self.path),
            consumer_group,
            NEWER_ROWS_ONLY,
        )

    def check_unaltered(self, form: TableForm) -> tuple[str, ...]:
        """Refuse a table to which the prepared rows can no longer be added.

        Return the reasons why Spark must write the table; empty if it need not.

        Raises:
            SchemaError: If the rows do not fit, or if the table was not prepared.
            OptionError: If Spark must write the table and cannot, or if a column cannot be a partition
                column.
        """
        if self._wanted is None:
            raise SchemaError(
                f"The columns of the rows for sink {self.path} are not known yet. Call DeltaSink.prepare "
                "with their schema first."
            )
        if form is self._checked_form:
            return ()
        reasons = self._check_form(form, self._wanted)
        if not reasons:
            self._checked_form = form
        return reasons

    def changes_since(self, before: TableForm, now: TableForm) -> tuple[str, ...]:
        """List the changes of the table's form that may forbid adding files written for ``before``."""
        # A change table reads its changes back from the files, and adds the columns that these lack.
        return form_changes(before, now if self._has_positions else without_additions(now, before))

    def reasons_for_spark(self, form: TableForm) -> tuple[str, ...]:
        """Return the reasons why Spark must write a table of this form; empty if there are none.

        Raises:
            OptionError: If Spark must write the table, but its writer cannot be used.
        """
        reasons = self.home.reasons_for_spark(form)
        if not reasons:
            return ()
        if self.merge_keys and not self.home.spark.keys:
            raise cannot_merge(self.path, reasons)
        self.home.check_spark(form, reasons)
        return reasons

    def check_rewind(self, handle: SinkHandle) -> None:
        """Refuse a table whose watermarks cannot be set by this process.

        Raises:
            OptionError: If only Spark could set them, and no session can write the table.
        """
        if self._recorder(handle) is None:
            self.reasons_for_spark(handle.log.table.form())

    def rewind(self, handle: SinkHandle, before: GroupCommit, commit: SinkCommit) -> int:
        """Make a commit without rows that sets the watermarks in ``commit``; return the new version.

        ``before`` is the group's progress in the table.

        Raises:
            OptionError: If only Spark can set the watermarks, and no session can write the table.
        """
        before = before.after_rewind(commit)
        form = handle.log.table.form()
        if not self.home.reasons_for_spark(form):
            return handle.appender.set_watermarks(handle.log, before, commit)
        recorder = self._recorder(handle)
        if recorder is not None:
            return recorder.set_watermarks_as_spark(handle.log, before, commit)
        self.reasons_for_spark(form)
        return self.home.spark.set_watermarks(handle.log, before, commit)

    def _recorder(self, handle: SinkHandle) -> FileAppender | None:
        """Return the appender for commits without rows; None if only Spark can make them."""
        return None if features_of_every_commit(handle.log.table.form()) else handle.recorder

    def appender(self, handle: SinkHandle, *, by_spark: bool) -> Appender:
        """Return the object that commits rows: Spark's writer, or the appender of the handle."""
        return self.home.spark if by_spark else handle.appender

    def _add_missing_columns(self, handle: SinkHandle, schema: pa.Schema) -> None:
        form = handle.log.table.form()
        known = {column.name for column in form.columns}
        missing = pa.schema([field for field in schema if field.name not in known])
        if not len(missing):
            return
        # Existing rows have no value in the new columns, so the columns must allow null.
        missing = pa.schema([as_nullable(field) for field in missing])
        if not form.has_column_mapping:
            check_characters(self.path, Schema.from_arrow(missing).to_json())
        by_spark = bool(self.reasons_for_spark(form))
        self.appender(handle, by_spark=by_spark).add_columns(handle.log, missing)


def checkpoint_interval(configuration: Mapping[str, str]) -> int:
    """Return the number of versions between checkpoints that a table's properties set; 100 by default."""
    wanted = configuration.get("delta.checkpointInterval", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else _CHECKPOINT_EVERY


def _check_names(path: str, names: Sequence[str]) -> None:
    """Refuse names that differ only in case, since Delta ignores case.

    Raises:
        SchemaError: If two names differ only in case.
    """
    by_lower: dict[str, str] = {}
    for name in names:
        other = by_lower.setdefault(name.lower(), name)
        if other != name:
            raise SchemaError(
                f"The Delta table {path} cannot have both columns {other!r} and {name!r}, which differ in "
                "case only. Rename one in the listener's output schema."
            )


def _check_keys(keys: Sequence[str], schema: pa.Schema) -> None:
    columns = schema.names
    problems = []
    unknown = [name for name in keys if name not in columns]
    if unknown:
        problems.append(
            f"mergeKeys names {', '.join(unknown)}, which the rows do not have; they have "
            f"{', '.join(columns)}. Add the column to the listener's output schema, or name another."
        )
    problems += [
        f"merge key '{name}' is {schema.field(name).type}; a list, struct or map cannot be a key. Name "
        "columns of single values."
        for name in keys
        if name in columns and pa.types.is_nested(schema.field(name).type)
    ]
    if problems:
        raise OptionError(tuple(problems), where="Delta sink")
