"""A sink's table: creation, checks, new columns, and commits by Spark where delta-rs must not write.

Spark's writer keeps constraints, generated and identity columns, column mapping, row tracking and clustering.
It stores one transaction id per commit, but a sink needs a watermark for each queue. So a commit by Spark
has the watermarks of the whole group in its ``userMetadata``. Its id ``rocketmq:GROUP`` counts the commits
that Spark has made for the group, and fences: if two commits start from the same count, the second one
conflicts or is skipped, and this module checks for that.

:mod:`pyspark_rocketmq.sinks.delta.watermarks` reads a group's progress.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from deltalake import Schema
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_rocketmq.delta.compaction import Compactor
from pyspark_rocketmq.delta.ddl import columns_ddl
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.maintenance import Maintenance
from pyspark_rocketmq.delta.paths import check_exclusive_create, local_path, quoted_name
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.delta.table import (
    STORAGE_ERRORS,
    HandlePerThread,
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
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.delta.log import SinkLog, TableLog, open_log
from pyspark_rocketmq.sinks.delta.rules import (
    SinkCommit,
    cannot_take_files,
    check_characters,
    check_columns,
    check_wanted,
    given_columns,
    group_app_id,
    refused_features,
    uncompacted_features,
)
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit, group_commit, last_known_commit
from pyspark_rocketmq.sinks.shared_storage import normal_place
from pyspark_rocketmq.spark.session import living_session

logger = logging.getLogger(__name__)

_CHECKPOINT_EVERY = 100
"""Versions between checkpoints if the table's properties set none; delta-rs has the same default."""
_COMPACT_EVERY = 100
"""Versions, at least, between two checks of the sizes of all files."""
_CLEAN_UP_EVERY = 1_000
"""Versions, at least, between two removals of expired files of the log; each checks all files of the log."""
_READ_ALL: Final[Mapping[str, bool | str]] = MappingProxyType(
    {
        "ignoreMissingFiles": False,
        "ignoreCorruptFiles": False,
        "datetimeRebaseMode": "CORRECTED",
        "int96RebaseMode": "CORRECTED",
    }
)
"""Options for Spark to read all rows of tasks with their exact dates, whatever the session's settings."""
_ON_DATABRICKS = "spark.databricks.clusterUsageTags.sparkVersion"
"""Setting that only sessions on Databricks have; there a service makes Databricks' own commits exclusive."""


def spark_address(spark: SparkSession | None, path: str) -> str | None:
    """Return the address by which a session finds the table; None if it does not, or has no Delta Lake.

    This tries to load the table: Databricks shows no ``spark.sql.extensions``, and only some platforms
    support ``s3://``.
    """
    if spark is None:
        return None
    for address in _addresses(path):
        try:
            _ = spark.read.format("delta").load(address).schema
        except (PySparkException, Py4JError):
            logger.info("not a Delta table to this Spark session path=%s", masked(address), exc_info=True)
        else:
            return address
    return None


def _addresses(path: str) -> tuple[str, ...]:
    return (path, f"s3a{path[2:]}") if path.startswith("s3://") else (path,)


def plain_path(path: str) -> str:
    """Escape a path for Spark, which would read some characters as a pattern for several paths."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


def log_store_problem(
    address: str, conf: Callable[[str], str | None], *, beside_delta_rs: bool = False
) -> str | None:
    """Describe why, by its settings, this session could overwrite commits of others; None if it cannot.

    Source: ``io.delta.storage.S3SingleDriverLogStore``, delta-spark's default for S3. It checks whether a
    commit exists and then writes it, so only commits of one driver exclude each other.

    Args:
        address: The table's address.
        conf: Returns a setting of the session.
        beside_delta_rs: Whether delta-rs makes the other commits; it does not use Databricks' service.
    """
    scheme = address.partition("://")[0]
    if scheme not in ("s3", "s3a", "s3n"):
        return None
    what = "its commits on S3 could overwrite those of other writers:"
    if conf(_ON_DATABRICKS):
        return (
            f"{what} Databricks orders those of its own writers only. Let it write while the table's sinks "
            "stand still, or name the table as the catalog does, so that Spark makes the sinks' commits"
            if beside_delta_rs
            else None
        )
    chosen = (f"spark.delta.logStore.{scheme}.impl", "spark.delta.logStore.class")
    if any(map(conf, chosen)):
        return None
    return (
        f"{what} delta-spark's default log store there knows those of its own driver only. Set {chosen[0]} "
        "to a log store for several writers, or, if this driver is the table's only writer, to "
        "io.delta.storage.S3SingleDriverLogStore, its default"
    )


class SinkTable:
    """One table and the columns of the rows to be added to it; only for the driver."""

    def __init__(
        self,
        path: str,
        *,
        partition_by: tuple[str, ...],
        merge_keys: tuple[str, ...],
        schema_evolution: bool,
        compaction: bool = True,
        storage: StorageOptions = NO_OPTIONS,
    ) -> None:
        """Set the arguments of the sink."""
        self.path = path
        self.storage = storage
        self.partition_by = partition_by
        self.merge_keys = merge_keys
        self.schema_evolution = schema_evolution
        self.compaction = compaction
        self._compactor = Compactor()
        self._wanted: TableForm | None = None
        self._taken: TableForm | None = None
        """The last form of the table that files were found to fit; most commits do not change it."""
        self.schema = pa.schema([])
        """Columns of the rows; empty until the table is prepared."""
        self.table_id: str | None = None
        """The table's id; known once the table is prepared."""
        self._spark: SparkSession | None = None
        self._spark_address = ""
        """Address by which the session finds the table's folder; known once Spark is to write."""
        self._warned: set[str] = set()
        """Groups that were warned of a RESTORE that the log may no longer show."""
        self._handles: HandlePerThread[SinkLog] = HandlePerThread(self._opened)
        self._upkeep = Maintenance("sink", path, storage)
        self._compactions = Maintenance("sink", path, storage, heeds_process_ends=True)

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table if it is missing, else check it; see ``DeltaSink.prepare``."""
        _check_keys(self.merge_keys, schema)
        _check_names(self.path, schema.names)
        wanted = TableForm(
            columns=parse_columns(Schema.from_arrow(schema).to_json()),
            partition_by=self.partition_by,
            configuration={},
            features=frozenset(),
        )
        check_wanted(self.path, wanted)
        log = self.open()
        if log is None:
            check_characters(self.path, Schema.from_arrow(schema).to_json())
            log = self._created(schema)
            logger.info("sink table created path=%s", masked(self.path))
        else:
            self._check_place()
            # Check both, so that a name that differs only in case is not reported as missing.
            _check_names(self.path, [*(column.name for column in log.form().columns), *schema.names])
            if self.schema_evolution:
                self._add_missing_columns(log, schema)
        form = log.form()
        self._check_columns(form, wanted)
        check_wanted(self.path, replace(wanted, partition_by=form.partition_by))
        self._wanted, self._taken, self.schema = wanted, None, schema
        self._handles.keep(log)
        self.table_id = log.table_id
        refused = self.refused(form)
        if not refused:
            self._warn_of_spark()
        logger.info(
            "sink writes files and commits by %s path=%s version=%d",
            f"Spark because of {', '.join(refused)}" if refused else log.commits_by,
            masked(self.path),
            log.version,
        )

    def _warn_of_spark(self) -> None:
        """Log a warning if commits by Spark, such as other jobs', could overwrite those of this sink."""
        session = living_session(self._spark)

        def setting(name: str) -> str | None:
            return None if session is None else session.conf.get(name, None)

        problems = [
            log_store_problem(address, setting, beside_delta_rs=True) for address in _addresses(self.path)
        ]
        if all(problems):
            path = masked(self.path)
            logger.warning("where Spark writes path=%s, too, as by OPTIMIZE, %s", path, problems[-1])

    @property
    def place(self) -> str:
        """The table's name, the same in every run of a query."""
        return normal_place(self.path)

    @property
    def rows_uri(self) -> str:
        """Path or URI that tasks write their rows to; known once the table is prepared."""
        return self.path

    def open(self) -> SinkLog | None:
        """Open the log at its newest version; return None without a table."""
        return open_log(self.path, self.storage, merges=bool(self.merge_keys))

    def _created(self, schema: pa.Schema) -> SinkLog:
        try:
            table = create_table(self.path, schema, self.partition_by, self.storage)
        except STORAGE_ERRORS as error:
            if local_path(self.path) is None:
                raise
            problem = (
                f"The sink's folder {masked(self.path)} cannot be made: {self.storage.describe_error(error)} "
                "Name a "
                "folder that this process can make and write, or let it write there"
            )
            raise OptionError((problem,), where="Delta sink") from error
        return TableLog(table, self.storage, merges=bool(self.merge_keys))

    def _check_place(self) -> None:
        """Refuse a place in which commits could overwrite each other."""
        check_exclusive_create(self.path)

    def _check_columns(self, form: TableForm, wanted: TableForm) -> None:
        check_columns(self.path, form, wanted, may_differ=self.schema_evolution)

    def count_rows(self, where: str) -> int:
        """Count the rows that fulfil a condition."""
        self.storage.renew()
        sql = f"SELECT count(*) AS found FROM rows WHERE {where}"  # noqa: S608 - quoted literals
        [count] = query_rows(open_table(self.path, self.storage), sql).column("found").to_pylist()
        return int(count)

    def newest_log(self) -> SinkLog:
        """Return this thread's handle, moved to the newest version."""
        return self._handles.newest()

    def _opened(self) -> SinkLog:
        log = self.open()
        if log is None:
            raise SchemaError(
                f"There is no Delta table at {self.path}. Put it back if it was there before, and start the "
                "query again."
            )
        return log

    def look_after(self, log: SinkLog) -> None:
        """Start a checkpoint and a compaction if due, after a commit of files; return at once."""
        every = checkpoint_interval(log.form().configuration)
        self._upkeep.after_commit(
            log.version - 1,
            every,
            lambda number: self._look_after(cleans_up=number % max(1, _CLEAN_UP_EVERY // every) == 0),
        )
        if self.compaction:
            # On its own thread: for a large table it takes long, and checkpoints must not wait for it.
            self._compactions.after_commit(log.version - 1, _COMPACT_EVERY, lambda _: self._compact())

    def wait_for_upkeep(self, timeout_s: float) -> None:
        """Wait until the running maintenance is done.

        Raises:
            TimeoutError: If that takes longer than ``timeout_s``.
        """
        for thread in (self._upkeep, self._compactions):
            thread.wait(timeout_s)

    def _look_after(self, *, cleans_up: bool) -> None:
        self.storage.renew()
        table = open_table(self.path, self.storage)
        table.create_checkpoint()
        configuration = table.metadata().configuration
        if cleans_up and configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
            table.cleanup_metadata()
            LogFiles(self.path, self.storage).remove_unfinished()
        logger.info("sink table looked after path=%s version=%d", masked(self.path), table.version())

    def _compact(self) -> None:
        self.storage.renew()
        table = open_table(self.path, self.storage)
        if not uncompacted_features(read_form(table)):
            self._compactor.compact_if_worth_it(table, LogFiles(self.path, self.storage))

    def group_commit(
        self, log: SinkLog, consumer_group: str, generations: Iterable[tuple[MessageQueue, int]]
    ) -> GroupCommit:
        """Return the group's progress in all its queues; see :func:`watermarks.group_commit`."""
        return group_commit(log, consumer_group, generations)

    def last_known_commit(self, log: SinkLog, consumer_group: str) -> GroupCommit:
        """Return :meth:`group_commit`, but without watermarks that are no longer in the log.

        For an operator who is about to set them.
        """
        return last_known_commit(log, consumer_group)

    def check_not_restored(self, log: SinkLog, consumer_group: str) -> None:
        """Refuse a table after a RESTORE that the group's last commit did not know of.

        Raises:
            SinkConflict: If there was one; it may have removed rows.
        """
        # A group without rows in the table has lost none.
        if not log.knows(consumer_group):
            return
        restored_at = log.restored_since_last_commit(consumer_group)
        if restored_at is None:
            if not log.shows_restores_since(consumer_group):
                self._warn_of_restores(consumer_group)
            return
        came_past = log.came_past_restore(consumer_group)
        is_replaced = log.was_replaced_at(restored_at)
        when = (
            f"after group {consumer_group} wrote to it last"
            if came_past is None
            else f"while rows of group {consumer_group} were being added (version {came_past})"
        )
        first = "" if came_past is None else f"restore version {came_past - 1}, "
        undo = (
            f"If the {'replacement' if is_replaced else 'RESTORE'} was a mistake, restore the version before "
            "it first: then nothing is consumed again. "
        )
        given = "remove rows of the group that the new table was given, " if is_replaced else ""
        kept = ", or if the new table was given all rows" if is_replaced else ""
        raise SinkConflict(
            f"The Delta table {self.path} was {'replaced' if is_replaced else 'restored'} at version "
            f"{restored_at}, {when}: "
            "rows may be gone, while the watermarks still say that they "
            "are there and would keep them from being written again. To have the messages consumed again "
            f"whose rows are gone, stop every query of the group, {first}{given}run "
            f"DeltaSink({self.path!r}).follow_restore({consumer_group!r}, STORE) with the group's offset "
            "store, for example DeltaOffsetStore(path), and start the query again. "
            f"{undo if came_past is None else ''}To accept the "
            f"gap{kept}, stop them and run in Python: `from pyspark_rocketmq import DeltaSink; sink = "
            f"DeltaSink({self.path!r}); sink.rewind({consumer_group!r}, {{key.queue: offset for key, "
            f"offset in sink.watermarks({consumer_group!r}).items()}})`. To start over with an empty sink "
            "and all that brokers have, stop them, remove the table, and move the group by "
            "`pyspark-rocketmq offsets reset --to earliest`."
        )

    def _warn_of_restores(self, consumer_group: str) -> None:
        """Log once that there may have been a RESTORE that the log no longer shows."""
        if consumer_group in self._warned:
            return
        self._warned.add(consumer_group)
        logger.warning(
            "the log of the sink %s no longer reaches back to the last commit of group %s: if the table was "
            "restored or replaced since then, rows are missing that the group's watermarks count as there. "
            "Compare them, DeltaSink(path).watermarks(group), with the highest queueOffset of each queue, "
            "and see DeltaSink.rewind; keep the log longer than a group may stand still "
            "(delta.logRetentionDuration)",
            masked(self.path),
            consumer_group,
        )

    def check_unaltered(self, form: TableForm) -> tuple[str, ...]:
        """Refuse a table to which prepared rows can no longer be added; return why Spark must write."""
        if self._wanted is None:
            raise SchemaError(
                f"The sink {self.path} does not know its rows' columns yet. Call prepare with their schema "
                "first."
            )
        if form is self._taken:
            return ()
        self._check_columns(form, self._wanted)
        refused = self.refused(form)
        if not refused:
            self._taken = form
        return refused

    def refused(self, form: TableForm) -> tuple[str, ...]:
        """Return the reasons why Spark must write the table; empty if there are none.

        Raises:
            OptionError: If there are such reasons, but Spark's writer cannot be used.
        """
        refused = refused_features(form)
        if not refused:
            return ()
        if self.merge_keys:
            raise cannot_take_files(self.path, refused, "rows are to be merged (merge_keys)")
        self._take_session()
        self._spark_address = self._spark_address or spark_address(self._spark, self.path) or ""
        if not self._spark_address:
            why = "no Spark session here can read it (with delta-spark, its extension and its catalog)"
            raise cannot_take_files(self.path, refused, why)
        problem = log_store_problem(self._spark_address, lambda name: self._session.conf.get(name, None))
        if problem is not None:
            raise cannot_take_files(self.path, refused, problem)
        return refused

    def use_session(self, spark: SparkSession) -> None:
        """Use this session for Spark's part as long as it runs."""
        if spark is not self._spark:
            self._spark = spark
            self._forget_session()

    def _take_session(self) -> None:
        """Switch to another session if this one no longer runs."""
        before, self._spark = self._spark, living_session(self._spark)
        if before is not self._spark:
            self._forget_session()

    def _forget_session(self) -> None:
        """Discard what depends on the previous session."""
        self._spark_address = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the rows' columns; known once the table is prepared."""
        return tuple(column.name for column in self._wanted.columns) if self._wanted else ()

    def append_by_spark(
        self,
        log: SinkLog,
        files: Sequence[WrittenFile],
        before: GroupCommit,
        commit: SinkCommit,
        *,
        schema: pa.Schema,
    ) -> int:
        """Let Spark add the rows of ``files`` and move watermarks; return the new version.

        Raises:
            PySparkException: If the rows do not fit the table, or another commit of the group won.
            DeltaError: If Spark skipped the commit, because another one of the group came first.
        """
        begun_at, number = log.version, before.number + 1
        commit = commit._replace(record={**before.record_by_spark(commit), **self._more_metadata})
        metadata = commit.metadata(**log.before(commit))
        rows_schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        paths = [plain_path(f"{self._spark_address}/{file.path}") for file in files]
        rows = (
            self._session.read.schema(rows_schema).options(**_READ_ALL).parquet(*paths)
            if files
            else self._session.createDataFrame([], rows_schema)
        )
        self._append(
            rows, {**metadata, "txnAppId": group_app_id(commit.consumer_group), "txnVersion": number}
        )
        log.refresh()
        return log.version_of(commit, begun_at)

    _more_metadata: Mapping[str, Any] = MappingProxyType({})
    """Further fields in the record of commits by Spark."""

    def check_rewind(self, log: SinkLog) -> None:
        """Refuse a table whose watermarks cannot be set by this process.

        Raises:
            OptionError: If Spark would have to set them, and no session can.
        """
        if not log.records_without_spark:
            self.refused(log.form())

    def rewind(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """Make a commit without rows that sets watermarks; return the new version."""
        before = before.set_by(commit)
        if not refused_features(log.form()):
            record = before.record_of_files(commit, time.time_ns() // 1_000_000)
            watermarks = {**before.watermarks, **commit.watermarks}
            return log.add((), commit._replace(watermarks=watermarks, record=record))
        if log.records_without_spark:
            counter = {group_app_id(commit.consumer_group): before.number + 1}
            record = {**before.record_by_spark(commit), **self._more_metadata}
            return log.add((), commit._replace(watermarks=counter, record=record))
        self.refused(log.form())
        return self.append_by_spark(log, (), before, commit, schema=self.schema_without_rows(log))

    def _append(self, rows: DataFrame, options: Mapping[str, Any]) -> None:
        rows.write.format("delta").mode("append").options(**options).save(self._spark_address)

    @property
    def _sql_name(self) -> str:
        return f"delta.{quoted_name(self._spark_address)}"

    def schema_without_rows(self, log: SinkLog) -> pa.Schema:
        """Return the columns of a commit without rows."""
        given = given_columns(log.form())
        return pa.schema([field for field in log.arrow_schema if field.name in given])

    @property
    def _session(self) -> SparkSession:
        assert self._spark is not None, "refused() comes first"
        return self._spark

    def _add_missing_columns(self, log: SinkLog, schema: pa.Schema) -> None:
        known = {column.name for column in log.form().columns}
        missing = pa.schema([field for field in schema if field.name not in known])
        if not len(missing):
            return
        # Existing rows have no value in new columns, so these must be nullable.
        missing = pa.schema([as_nullable(field) for field in missing])
        if not log.form().has_column_mapping:
            check_characters(self.path, Schema.from_arrow(missing).to_json())
        if self.refused(log.form()):
            columns = columns_ddl(from_arrow_schema(missing, prefer_timestamp_ntz=True).json())
            self._session.sql(f"ALTER TABLE {self._sql_name} ADD COLUMNS ({columns})")
            log.refresh()
        else:
            log.add_columns(missing)


def checkpoint_interval(configuration: Mapping[str, str]) -> int:
    """Return the number of versions between checkpoints, by a table's properties."""
    wanted = configuration.get("delta.checkpointInterval", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else _CHECKPOINT_EVERY


def _check_names(path: str, names: Sequence[str]) -> None:
    """Refuse names that differ only in case, since Delta ignores case.

    Raises:
        SchemaError: If there are two such names.
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
