"""A sink's table by its name in a catalog: Spark reads and writes it, and commits hold the watermarks.

A catalog may deny access to its tables' folders, and may make their commits itself.  So a sink reads by the
table's name: the commits with ``DESCRIBE HISTORY``, the table's id and place with ``DESCRIBE DETAIL``.

SQL cannot read transaction ids, where other sinks' tables store watermarks.  So each commit records the
progress of the whole group.  It sets only one transaction id, which counts the group's commits: of two
writers that begin at the same count, only one can commit.  A group may have committed to the same table by
its path before. The watermarks of these commits are transaction ids, which are read from the table's folder.

Tasks put their rows into the table's folder or, if they may not write there, into a folder for staging.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, TableNotFoundError
from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_rocketmq.delta.ddl import columns_ddl
from pyspark_rocketmq.delta.history import CatalogHistory
from pyspark_rocketmq.delta.paths import TableName, local_path, quoted_name, table_uri
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.storage_options import StorageOptions, filesystem_of
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, TableForm, open_table, parse_columns
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError, SchemaError
from pyspark_rocketmq.sinks.delta.appenders import SinkHandle
from pyspark_rocketmq.sinks.delta.rules import NEWER_ROWS_ONLY, cannot_take_files
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.spark_writer import (
    NameTarget,
    Session,
    SparkWriter,
    log_store_problem,
    plain_path,
)
from pyspark_rocketmq.sinks.delta.task_files import TaskFolder
from pyspark_rocketmq.spark.version import HAS_DELTA, arrow_schema

_MISSING_TABLE: Final = frozenset(
    {
        "TABLE_OR_VIEW_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_PATH_DOES_NOT_EXIST",
        "DELTA_TABLE_ONLY_OPERATION",
        "DELTA_MISSING_DELTA_TABLE",
    }
)
"""Spark's error conditions for a missing table, or one whose folder is gone."""
_NO_TABLES: Final = ("`DETAIL`", "`HISTORY`")
_HISTORY_COLUMNS: Final = ("version", "timestamp", "operation", "operationParameters", "userMetadata")
_ROW_OPERATIONS: Final = frozenset({"DELETE", "UPDATE", "MERGE", "OPTIMIZE", "STREAMING UPDATE"})
"""Operations of commits that keep a table's partitioning, properties and features.

After such a commit, partitioning, properties and features need not be read again.
"""
_COMPUTED_BY: Final = frozenset({"generatedColumns", "identityColumns"})
"""Features of tables with columns that Delta computes."""
_STAGED: Final = "rocketmq-staged"
"""Name of a folder within the staging folder, to which only this package writes."""
_LEFTOVER_AGE_S: Final = 7 * 86_400
"""Age above which a file counts as left by a killed task; it is also the default of Delta's VACUUM."""
_ERRORS: Final = (PySparkException, Py4JError)
_REASONS: Final = ("its name in a catalog",)
"""Reasons for which Spark must write a table in a catalog, for log and error texts."""
_SKIPPED: Final = (
    " Spark skips a commit of a group if the table has a later commit of the group already. If the table's "
    "history no longer shows the later commit, set the sink's offsets with DeltaSink.rewind(consumer_group, "
    f"{{queue: highest queueOffset + 1}}) for every queue. {NEWER_ROWS_ONLY}"
)


def _rows(spark: SparkSession, sql: str) -> list[Row]:
    """Return the rows of a statement.

    Raises:
        TableNotFoundError: If there is no table.
        DeltaError: If Spark cannot run the statement.
    """
    try:
        return spark.sql(sql).collect()
    except _ERRORS as error:
        if isinstance(error, PySparkException) and error.getCondition() in _MISSING_TABLE:
            if (error.getMessageParameters() or {}).get("relationName") in _NO_TABLES:
                # Without Delta, Spark reads it as DESCRIBE of a column in a table named DETAIL or HISTORY.
                raise _NoDelta from error
            raise TableNotFoundError(f"There is no Delta table for {sql}.") from error
        raise DeltaError(f"Spark could not run {sql}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text; for a Py4J error the second, since the first says little."""
    lines = str(error).strip().splitlines()
    shown = lines[1:2] if isinstance(error, Py4JError) and len(lines) > 1 else lines[:1]
    return masked("".join(shown).lstrip(": "))


class _NoDelta(DeltaError):
    """Raised if the session does not support Delta's statements."""


def _read_commits(spark: SparkSession, name: TableName, limit: int | None) -> list[dict[str, Any]]:
    sql = f"DESCRIBE HISTORY {name.sql}" + ("" if limit is None else f" LIMIT {limit}")
    return [_entry(row) for row in _rows(spark, sql)]


def _entry(row: Row) -> dict[str, Any]:
    columns = {name: row[name] for name in _HISTORY_COLUMNS}
    time_ns = int(columns["timestamp"].timestamp() * 1_000) * 1_000_000
    parameters = dict(columns["operationParameters"] or {})
    return {**columns, "timestamp": time_ns, "operationParameters": parameters}


class CatalogSnapshot:
    """A table in a catalog, as Spark showed it at the last refresh; implements ``Snapshot``."""

    def __init__(self, spark: SparkSession, name: TableName, history: CatalogHistory, detail: Row) -> None:
        """Start at the newest version in ``history``; ``detail`` is the row of ``DESCRIBE DETAIL``."""
        self._spark = spark
        self._name = name
        self.log: Final = history
        self._tip = history.commit_file(history.refresh())
        self._detail = detail
        self._schema = self._columns()

    @property
    def version(self) -> int:
        """The version of the table that this object is at."""
        return self._tip.version

    @property
    def table_id(self) -> str:
        """Id of this table, which no other table has except copies of its folder."""
        return str(self._detail["id"])

    @property
    def location(self) -> str:
        """The table's folder; empty if the catalog does not show it."""
        return self._detail["location"] or ""

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table's columns as Arrow types."""
        return arrow_schema(self._schema)

    @property
    def shows_transactions(self) -> bool:
        """Always False: :meth:`all_transactions` may lack the ids of commits made through the catalog."""
        return False

    def form(self) -> TableForm:
        """Return the table's columns, partitioning, properties and features."""
        return TableForm(
            columns=parse_columns(self._schema.json()),
            partition_by=tuple(self._detail["partitionColumns"] or ()),
            configuration=dict(self._detail["properties"] or {}),
            features=frozenset(self._detail["tableFeatures"] or ()),
        )

    def use_renewed_options(self) -> None:
        """Do nothing, because Spark reaches the storage with its own options."""

    def is_still_there(self) -> bool:
        """Read the newest commits, and return whether the history still has the commit at this version.

        False if the table was deleted, created again, put back to an earlier state or replaced.
        """
        try:
            newest = self.log.refresh()
            # A folder that was put back keeps the table's id, and others may have committed to it since.
            if self.log.commit_file(self.version) != self._tip:
                return False
            # REPLACE TABLE keeps the history of the previous table.
            return self._keep_form_up_to(newest) or self._read_detail()["id"] == self.table_id
        except TableNotFoundError:
            return False

    def _keep_form_up_to(self, newest: int) -> bool:
        """Return whether all commits after this version, up to ``newest``, changed only rows and columns."""
        later = takewhile(
            lambda entry: entry["version"] > self.version, self.log.commit_infos_below(newest + 1)
        )
        return all(map(_keeps_form, later))

    def _read_detail(self) -> Row:
        [detail] = _rows(self._spark, f"DESCRIBE DETAIL {self._name.sql}")
        return detail

    def may_have_newer(self) -> bool:
        """Return whether there was a newer commit when :meth:`is_still_there` was last called."""
        return self.log.newest != self.version

    def refresh(self) -> None:
        """Move to the newest version."""
        version = self.log.refresh()
        if version == self.version:
            return
        if not self._keep_form_up_to(version):
            self._detail = self._read_detail()
        self._schema = self._columns()
        self._tip = self.log.commit_file(version)

    def _columns(self) -> StructType:
        try:
            return self._spark.table(self._name.sql).schema
        except _ERRORS as error:
            raise DeltaError(
                f"The columns of {self._name} could not be read: {_first_line(error)}"
            ) from error

    def as_of(self, version: int) -> CatalogSnapshot:
        """Return the table with its history up to ``version``, but with its present columns and properties.

        Raises:
            DeltaError: If the history no longer has that version.
        """
        table = CatalogSnapshot(self._spark, self._name, self.log.as_of(version), self._detail)
        if table.version != version:
            raise DeltaError(f"The history of {self._name} does not have version {version} any more.")
        return table

    def all_transactions(self) -> Mapping[str, int]:
        """Return all transaction ids with their versions, read from the table's folder without the catalog.

        Raises:
            DeltaError, OSError, OptionError, ValueError, KeyError: If the folder cannot be read as this
                table.
        """
        storage = self.log.storage
        opened = open_table(table_uri(self.location), storage, version=self.version)
        by_path = TableSnapshot(opened, storage, needs_delta_rs=False)
        if by_path.table_id != self.table_id:
            raise DeltaError(f"The folder {masked(self.location)} has another table than {self._name}.")
        return by_path.all_transactions()

    def transaction_versions(self, app_ids: Iterable[str]) -> dict[str, int]:
        """Return the versions of these transaction ids, without those that the table lacks.

        Raises the errors of :meth:`all_transactions`.
        """
        known = self.all_transactions()
        return {app_id: known[app_id] for app_id in app_ids if app_id in known}


def _keeps_form(entry: Mapping[str, Any]) -> bool:
    """Return whether a commit keeps partitioning, properties and features, as its operation shows."""
    operation = entry["operation"]
    return operation in _ROW_OPERATIONS or (
        operation == "WRITE" and entry["operationParameters"].get("mode") == "Append"
    )


class CatalogHome:
    """A table in a catalog; implements ``TableHome``."""

    def __init__(
        self, name: TableName, storage: StorageOptions, staging: str | Path | None, keys: Sequence[str]
    ) -> None:
        """Set the table's name, the options for its folders, the staging folder, and the merge keys.

        Without ``staging``, tasks put their rows into the table's own folder.
        """
        self.path: Final = str(name)
        self.storage = storage
        self.session = Session()
        self._target = NameTarget(name)
        self.spark = SparkWriter(self.session, self._target, keys)
        self._staging = None if staging is None else str(staging).rstrip("/") + f"/{_STAGED}"
        self._rows_uri = "" if self._staging is None else table_uri(self._staging)
        self._location = ""
        """The table's folder; known once the table is open."""

    @property
    def _name(self) -> TableName:
        return self._target.name

    @property
    def place(self) -> str:
        """The table's name; after the first use of a session it includes the catalog."""
        return str(self._name)

    @property
    def rows_uri(self) -> str:
        """Path or URI of the folder that tasks write their rows to; empty until it is known."""
        return self._rows_uri

    @property
    def command_path(self) -> str:
        """An empty string: commands find tables only by path."""
        return ""

    def session_of_handles(self) -> SparkSession | None:
        """Return the running Spark session through which the table is used from now on; None without one."""
        return self.session.take()

    def open(self) -> SinkHandle | None:
        """Open the table at its newest version; return None if the catalog has no such table.

        Raises:
            OptionError: If it is no Delta table, if Spark does not understand the name, or if there is no
                Spark session with Delta.
            DeltaError: If the catalog does not answer.
        """
        self.storage.renew()
        spark = self._require_session()
        try:
            [detail] = _rows(spark, f"DESCRIBE DETAIL {self._name.sql}")
        except TableNotFoundError:
            return None
        except _NoDelta as error:
            problem = f"{self._name} is the name of a table, and this Spark session has no Delta Lake; " + (
                "create the session with Delta's extension and catalog"
                if HAS_DELTA
                else "Delta Lake has no release for this Spark: use Spark 4.2, 4.1 or 4.0, or name a path"
            )
            raise OptionError((problem,), where="Delta sink") from error
        except DeltaError as error:
            if isinstance(error.__cause__, AnalysisException):
                problem = (
                    f"{self._name} cannot be a sink: {_first_line(error.__cause__)} Name a Delta table that "
                    "this Spark session knows; the session needs delta-spark with its extension and catalog"
                )
                raise OptionError((problem,), where="Delta sink") from error
            raise
        if str(detail["format"]).lower() != "delta":
            problem = (
                f"{self._name} is a table of format {detail['format']}, not of Delta; name a Delta table"
            )
            raise OptionError((problem,), where="Delta sink")
        self._location = detail["location"] or ""
        if self._staging is None:
            with suppress(OptionError):
                self._rows_uri = table_uri(self._location)
        history = CatalogHistory(str(self._name), self.storage, partial(_read_commits, spark, self._name))
        table = CatalogSnapshot(spark, self._name, history, detail)
        log = SinkLog(table, TaskFolder(self._rows_uri, self.storage), lost_hint=_SKIPPED)
        return SinkHandle(log, self.spark, None)

    def _require_session(self) -> SparkSession:
        spark = self.session.take()
        if spark is None:
            problem = (
                f"{self._name} is the name of a table, which needs a Spark session; create the session first"
            )
            raise OptionError((problem,), where="Delta sink")
        if len(self._name.parts) == 2:
            # Add the catalog, so that a later USE does not change which table the name means.
            self._target.name = TableName((spark.catalog.currentCatalog(), *self._name.parts))
        return spark

    def _no_place_for_rows(self, folder: str, why: str) -> OptionError:
        problem = (
            f"tasks cannot put rows for {self._name} into {masked(folder)}, from where Spark would add them: "
            f"{why} Name a folder or a URI where driver, executors and Spark can write, such as a volume: "
            "DeltaSink(staging=…), or option sinkStaging of `pyspark-rocketmq consume`, with storage options "
            "for that place"
        )
        return OptionError((problem,), where="Delta sink")

    def check_rows_place(self, schema: pa.Schema) -> None:
        """Check the folder for tasks' rows: write a file there, and let Spark read it.

        In a folder for staging, also remove old files that killed tasks have left.

        Raises:
            OptionError: If the folder is not known or cannot be written, or if Spark cannot read it.
        """
        try:
            self._check_rows_place(schema)
        except (*STORAGE_ERRORS, *_ERRORS) as error:
            why = (
                self.storage.describe_error(error)
                if isinstance(error, STORAGE_ERRORS)
                else _first_line(error)
            )
            raise self._no_place_for_rows(self._rows_uri, why) from error

    def _check_rows_place(self, schema: pa.Schema) -> None:
        if not self._rows_uri:
            raise self._no_place_for_rows(self._location or "its folder", "tasks cannot write there.")
        filesystem, folder = filesystem_of(self._rows_uri, self.storage)
        if local_path(self._rows_uri) is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        name = f"rocketmq-probe-{uuid.uuid4()}.parquet"
        with filesystem.open_output_stream(f"{folder}/{name}") as stream:
            pq.write_table(schema.empty_table(), stream)
        try:
            self._target.files_address = self._address_of(name)
        finally:
            filesystem.delete_file(f"{folder}/{name}")
        if self._staging is not None:
            _remove_leftovers(filesystem, folder, time.time())

    def _address_of(self, name: str) -> str:
        """Return the address by which Spark finds the folder that tasks write to.

        ``name`` is a file in that folder, which Spark must be able to read there.
        """
        given = self._location if self._staging is None else self._staging
        # Spark would look for a relative path in its default file system, which may be another one.
        addresses = [given if ":" in given or given.startswith("/") else self._rows_uri]
        if given.startswith("s3://"):
            # Open-source Spark finds S3 under s3a://.
            addresses.append(f"s3a{given[2:]}")
        for address in addresses[:-1]:
            with suppress(*_ERRORS):
                _ = self.session.spark.read.parquet(plain_path(f"{address}/{name}")).schema
                return address
        _ = self.session.spark.read.parquet(plain_path(f"{addresses[-1]}/{name}")).schema
        return addresses[-1]

    def create(
        self, schema: pa.Schema, partition_by: tuple[str, ...], properties: Mapping[str, str]
    ) -> SinkHandle:
        """Let Spark create the table if it is missing, and open it.

        Raises:
            OptionError: If the table cannot be created, or cannot be a sink.
            SchemaError: If the catalog has a table of that name without a folder.
            DeltaError: If the catalog does not answer.
        """
        columns = columns_ddl(from_arrow_schema(schema, prefer_timestamp_ntz=True).json())
        partitions = ", ".join(map(quoted_name, partition_by))
        sql = f"CREATE TABLE IF NOT EXISTS {self._name.sql} ({columns}) USING delta" + (
            f" PARTITIONED BY ({partitions})" if partitions else ""
        )
        if properties:
            listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
            sql += f" TBLPROPERTIES ({listed})"
        try:
            self.session.spark.sql(sql)
        except _ERRORS as error:
            problem = (
                f"there is no table {self._name}, and Spark could not create it: {_first_line(error)} Create "
                f"the schema, or create the table yourself, for example: {sql}"
            )
            raise OptionError((problem,), where="Delta sink") from error
        handle = self.open()
        if handle is None:
            raise SchemaError(
                f"The catalog lists the table {self._name}, but its folder has no Delta table any more. Put "
                "the folder back, or drop the table, and start the query again."
            )
        return handle

    def check_place(self) -> None:
        """Do nothing: :meth:`check_spark` refuses a place in which commits could overwrite each other."""

    def comparable(self, form: TableForm, wanted: TableForm) -> TableForm:
        """Return ``form`` without columns that Delta may compute, to compare it with ``wanted``.

        The form of a table in a catalog does not show which columns Delta computes. So if the table has such
        columns, leave out all columns that ``wanted`` lacks. Otherwise return ``form`` as it is.
        """
        if not _COMPUTED_BY & form.features:
            return form
        # The form of a table in a catalog does not show which columns are computed.
        known = {column.name for column in wanted.columns}
        return replace(form, columns=tuple(column for column in form.columns if column.name in known))

    def reasons_for_spark(self, form: TableForm) -> tuple[str, ...]:  # noqa: ARG002 - of a protocol
        """Return the reason why Spark writes: the table is in a catalog."""
        return _REASONS

    def check_spark(self, form: TableForm, reasons: tuple[str, ...]) -> None:
        """Refuse a table on S3 if this session's commits could overwrite those of others.

        If the catalog itself makes the table's commits, nothing is checked.

        Raises:
            OptionError: If commits could be overwritten.
        """
        if "catalogManaged" not in form.features:
            problem = log_store_problem(self._location, self.session.setting)
            if problem is not None:
                raise cannot_take_files(self.path, reasons, problem)


def _remove_leftovers(filesystem: fs.FileSystem, folder: str, now_s: float) -> None:
    """Remove files of ``folder`` that are older than seven days, which killed tasks have left."""
    for file in filesystem.get_file_info(fs.FileSelector(folder or "/", allow_not_found=True)):
        if file.mtime_ns is not None and now_s - file.mtime_ns / 1e9 > _LEFTOVER_AGE_S:
            with suppress(OSError):
                filesystem.delete_file(file.path)
