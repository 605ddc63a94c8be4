"""A sink's table by its name in a catalog: only Spark reads and writes it, and commits hold the watermarks.

A catalog may deny access to its tables' folders, and may make their commits itself.  So a sink reads all it
needs by the table's name: the commits with ``DESCRIBE HISTORY``, the table's id and place with ``DESCRIBE
DETAIL``.  Each commit records the progress of the whole group.  Transaction ids only fence, since SQL cannot
read them.

Tasks put their rows beside the table or, if they may not write there, into a folder for staging.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, TableNotFoundError
from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_rocketmq.delta.ddl import columns_ddl
from pyspark_rocketmq.delta.log import CommitFile
from pyspark_rocketmq.delta.paths import TableName, local_path, quoted_name, table_uri
from pyspark_rocketmq.delta.storage_options import StorageOptions, filesystem_of
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, TableForm, open_table, parse_columns
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError, RocketMQError, SchemaError, SinkConflict
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import POSITION_COLUMNS, generation_of
from pyspark_rocketmq.sinks.delta.log import SinkLog, TableLog
from pyspark_rocketmq.sinks.delta.rules import (
    SinkCommit,
    cannot_take_files,
    check_columns,
    forgets_transactions,
    group_app_id,
    own_metadata,
)
from pyspark_rocketmq.sinks.delta.table import SinkTable, log_store_problem, plain_path
from pyspark_rocketmq.sinks.delta.watermarks import GroupCommit, forgotten, records_progress, unknown
from pyspark_rocketmq.spark.version import HAS_DELTA, arrow_schema

logger = logging.getLogger(__name__)

_GONE: Final = frozenset(
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
_PAGES: Final = (20, 200, 2_000, None)
"""Numbers of commits to read, one after another until they are enough; each takes 0.2 s on a local disk."""
_TOLD: Final = ("version", "timestamp", "operation", "operationParameters", "userMetadata")
_ROW_OPERATIONS: Final = frozenset({"DELETE", "UPDATE", "MERGE", "OPTIMIZE", "STREAMING UPDATE"})
"""Operations that do not change partitioning, properties or features, which Spark takes a second to read."""
_WHOLE: Final = "whole"
"""Field of a commit whose watermarks are those of every queue that the group ever wrote."""
_COMPUTED_BY: Final = frozenset({"generatedColumns", "identityColumns"})
_STAGED: Final = "rocketmq-staged"
"""Folder within a staging folder that only this package writes to."""
_LEFT_FOR_S: Final = 7 * 86_400
"""Age above which a file was left by a killed task; Delta's VACUUM has the same limit."""
_ERRORS: Final = (PySparkException, Py4JError)


def _rows(spark: SparkSession, sql: str) -> list[Row]:
    """Return the rows of a statement.

    Raises:
        TableNotFoundError: If there is no table.
        DeltaError: If Spark cannot run the statement.
    """
    try:
        return spark.sql(sql).collect()
    except _ERRORS as error:
        if isinstance(error, PySparkException) and error.getCondition() in _GONE:
            if (error.getMessageParameters() or {}).get("relationName") in _NO_TABLES:
                # Without Delta, Spark reads it as DESCRIBE of a column in a table named DETAIL or HISTORY.
                raise _NoDelta from error
            raise TableNotFoundError(f"There is no Delta table for {sql}.") from error
        raise DeltaError(f"Spark could not run {sql}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """Return the most informative line of an error; Py4J puts a line before it."""
    lines = str(error).strip().splitlines()
    said = lines[1:2] if isinstance(error, Py4JError) and len(lines) > 1 else lines[:1]
    return masked("".join(said).lstrip(": "))


class _NoDelta(DeltaError):
    """The session does not support Delta's statements."""


class CatalogHistory:
    """The commits of a table as ``DESCRIBE HISTORY`` returns them; see ``CommitLog``."""

    is_local: Final = False

    def __init__(
        self, spark: SparkSession, name: TableName, storage: StorageOptions, *, last: int | None = None
    ) -> None:
        """Set the table; ``last`` is the newest version to show, None for the table's newest."""
        self.table_uri: Final = str(name)
        self.storage: Final = storage
        self._spark = spark
        self._name = name
        self._last = last
        self._pages = iter(_PAGES)
        self._entries: list[dict[str, Any]] = []
        """Commits as of the last look, the newest first, without a gap."""
        self._is_whole = False

    def as_of(self, version: int) -> CatalogHistory:
        """Return the history as of a version."""
        return CatalogHistory(self._spark, self._name, self.storage, last=version)

    def look(self) -> int:
        """Look for newer commits; return the newest version.

        Raises:
            DeltaError: If the history cannot be read, or has no commits any more.
        """
        self._pages, self._is_whole, self._entries = iter(_PAGES), False, []
        while not self._entries and not self._is_whole:
            self._read_more()
        if not self._entries:
            raise DeltaError(f"The history of {self.table_uri} tells no commit any more.")
        return self.newest

    @property
    def newest(self) -> int:
        """The newest version at the last look."""
        return int(self._entries[0]["version"])

    def _read_more(self) -> None:
        limit = next(self._pages)
        rows = _rows(
            self._spark,
            f"DESCRIBE HISTORY {self._name.sql}" + ("" if limit is None else f" LIMIT {limit}"),
        )
        entries = [_entry(row) for row in rows]
        self._entries = [each for each in entries if self._last is None or each["version"] <= self._last]
        self._is_whole = limit is None or len(rows) < limit

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """See ``LogFiles.commit_info``."""
        found = next(self.commit_infos_below(version + 1), None)
        return found if found is not None and found["version"] == version else None

    def commit_infos_below(self, version: int) -> Iterator[dict[str, Any]]:
        """See ``LogFiles.commit_infos_below``."""
        while True:
            for entry in self._entries:
                if entry["version"] < version:
                    version = entry["version"]
                    yield entry
            if self._is_whole:
                return
            self._read_more()

    def commit_file(self, version: int) -> CommitFile:
        """Return a mark that distinguishes a commit from another table's, as of the last look."""
        entry = self.commit_info(version)
        if entry is None:
            return CommitFile(version, None, None)
        said = json.dumps({key: each for key, each in entry.items() if key != "timestamp"}, sort_keys=True)
        return CommitFile(version, zlib.crc32(said.encode()), entry["timestamp"])

    def last_checkpoint_file(self) -> tuple[int | None, int | None]:
        """Return nothing: Spark manages checkpoints."""
        return None, None

    def may_lack_commits_after(self, version: int) -> bool:  # noqa: ARG002 - of a protocol
        """Return False: Spark manages checkpoints."""
        return False


def _entry(row: Row) -> dict[str, Any]:
    told = {key: row[key] for key in _TOLD}
    time_ns = int(told["timestamp"].timestamp() * 1_000) * 1_000_000
    return {**told, "timestamp": time_ns, "operationParameters": dict(told["operationParameters"] or {})}


class CatalogLog(SinkLog):
    """A handle on the newest version of a table in a catalog; Spark makes the commits."""

    log: CatalogHistory

    def __init__(
        self, spark: SparkSession, name: TableName, history: CatalogHistory, detail: Row, rows_uri: str
    ) -> None:
        """Start at the newest version; ``detail`` is its ``DESCRIBE DETAIL``."""
        self._spark = spark
        self._name = name
        super().__init__(history, history.look(), rows_uri)
        self._detail = detail
        self.table_id = str(detail["id"])
        self._schema = self._columns()

    @property
    def commits_by(self) -> str:
        """See :meth:`SinkLog.commits_by`."""
        return "Spark"

    @property
    def location(self) -> str:
        """The table's folder; empty if the catalog does not show it."""
        return self._detail["location"] or ""

    @property
    def arrow_schema(self) -> pa.Schema:
        """See :meth:`SinkLog.arrow_schema`."""
        return arrow_schema(self._schema)

    def form(self) -> TableForm:
        """See :meth:`SinkLog.form`."""
        return TableForm(
            columns=parse_columns(self._schema.json()),
            partition_by=tuple(self._detail["partitionColumns"] or ()),
            configuration=dict(self._detail["properties"] or {}),
            features=frozenset(self._detail["tableFeatures"] or ()),
        )

    def is_still_there(self) -> bool:
        """Whether the table is the same one, and was not put back to an earlier state."""
        try:
            newest = self.log.look()
            # REPLACE TABLE keeps the history of the previous table.
            if self.log.commit_file(self.version) == self._tip and self._keep_form_up_to(newest):
                return True
            return newest >= self.version and self._described()["id"] == self.table_id
        except TableNotFoundError:
            return False

    def _keep_form_up_to(self, newest: int) -> bool:
        """Whether all newer commits changed only rows and columns."""
        later = takewhile(
            lambda entry: entry["version"] > self.version, self.log.commit_infos_below(newest + 1)
        )
        return all(map(_keeps_form, later))

    def _described(self) -> Row:
        [detail] = _rows(self._spark, f"DESCRIBE DETAIL {self._name.sql}")
        return detail

    def may_have_newer(self) -> bool:
        """Whether there is a newer commit as of the last look, which :meth:`is_still_there` takes."""
        return self.log.newest != self.version

    def _newest_version(self, age_s: float) -> int:  # noqa: ARG002 - Spark always looks
        version = self.log.look()
        if version != self.version:
            if not self._keep_form_up_to(version):
                self._detail = self._described()
                self.table_id = str(self._detail["id"])
            self._schema = self._columns()
        return version

    def _columns(self) -> StructType:
        try:
            return self._spark.table(self._name.sql).schema
        except _ERRORS as error:
            raise DeltaError(
                f"The columns of {self._name} could not be read: {_first_line(error)}"
            ) from error

    def _open_again(self) -> None:
        self._open_rows(self._rows_uri)

    def as_of(self, version: int) -> CatalogLog:
        """See :meth:`SinkLog.as_of`."""
        history = self.log.as_of(version)
        log = CatalogLog(self._spark, self._name, history, self._detail, self._rows_uri)
        if log.version != version:
            raise DeltaError(f"The history of {self._name} does not have version {version} any more.")
        return log

    def all_transactions(self) -> Mapping[str, int]:
        """Return nothing: watermarks are in the commits."""
        return {}

    def transaction_versions(self, app_ids: Iterable[str]) -> dict[str, int]:  # noqa: ARG002
        """Return nothing: watermarks are in the commits."""
        return {}

    def version_of(self, commit: SinkCommit, since: int) -> int:
        """See :meth:`SinkLog.version_of`."""
        try:
            return super().version_of(commit, since)
        except DeltaError as error:
            raise DeltaError(
                f"{error} Spark leaves out a commit of a group of which the table knows a later one. If its "
                "history does not tell that one any more, say how far the rows go with "
                "DeltaSink.rewind(consumer_group, {queue: highest queueOffset + 1}) for every queue."
            ) from error


def _keeps_form(entry: Mapping[str, Any]) -> bool:
    """Whether a commit leaves partitioning, properties and features as they are, by its operation."""
    operation = entry["operation"]
    return operation in _ROW_OPERATIONS or (
        operation == "WRITE" and entry["operationParameters"].get("mode") == "Append"
    )


class CatalogTable(SinkTable):
    """A table in a catalog, and the columns of the rows to be added to it; only for the driver."""

    _more_metadata = MappingProxyType({_WHOLE: True})

    def __init__(self, name: TableName, *, staging: str | Path | None, **settings: Any) -> None:
        """Set the table's name and staging folder; the other arguments are those of ``SinkTable``.

        Raises:
            OptionError: If rows are to be merged.
        """
        if settings["merge_keys"]:
            problem = (
                f"merge_keys cannot be used for {name}, which Spark writes; name the table by its path, or "
                "merge its rows in Spark"
            )
            raise OptionError((problem,), where="Delta sink")
        super().__init__(str(name), **settings)
        self._name = name
        self._staging = None if staging is None else str(staging).rstrip("/") + f"/{_STAGED}"
        self._rows_uri = "" if self._staging is None else table_uri(self._staging)
        self._location = ""
        """The table's folder; known once the table is open."""

    @property
    def place(self) -> str:
        """The table's name; it includes the catalog once a session was used."""
        return str(self._name)

    @property
    def rows_uri(self) -> str:
        """See :meth:`SinkTable.rows_uri`."""
        return self._rows_uri

    @property
    def _sql_name(self) -> str:
        return self._name.sql

    def open(self) -> CatalogLog | None:
        """See :meth:`SinkTable.open`.

        Raises:
            OptionError: If it is not a Delta table, or if Spark does not understand the name.
            DeltaError: If the catalog does not answer.
        """
        self.storage.renew()
        self._find_session()
        try:
            [detail] = _rows(self._session, f"DESCRIBE DETAIL {self._sql_name}")
        except TableNotFoundError:
            return None
        except _NoDelta as error:
            problem = f"{self._name} is the name of a table, and this Spark session has no Delta Lake, " + (
                "whose extension and catalog it needs"
                if HAS_DELTA
                else "which has no release for its Spark; use Spark 4.2, 4.1 or 4.0, or name a path"
            )
            raise OptionError((problem,), where="Delta sink") from error
        except DeltaError as error:
            if isinstance(error.__cause__, AnalysisException):
                problem = (
                    f"{self._name} cannot be a sink: {_first_line(error.__cause__)} Name a Delta table that "
                    "this Spark session knows, which needs delta-spark with its extension and its catalog"
                )
                raise OptionError((problem,), where="Delta sink") from error
            raise
        if str(detail["format"]).lower() != "delta":
            problem = f"{self._name} is a table of format {detail['format']}, not of Delta"
            raise OptionError((problem,), where="Delta sink")
        self._location = detail["location"] or ""
        if self._staging is None:
            with suppress(OptionError):
                self._rows_uri = table_uri(self._location)
        history = CatalogHistory(self._session, self._name, self.storage)
        return CatalogLog(self._session, self._name, history, detail, self._rows_uri)

    def newest_log(self) -> SinkLog:
        """See :meth:`SinkTable.newest_log`; the log is opened again if its session was stopped."""
        self._take_session()
        return super().newest_log()

    def _find_session(self) -> None:
        self._take_session()
        if self._spark is None:
            problem = f"{self._name} is the name of a table, for which a running Spark session is needed"
            raise OptionError((problem,), where="Delta sink")
        if len(self._name.parts) == 2:
            # Add the catalog, so that a later USE does not change which table the name means.
            self._name = TableName((self._spark.catalog.currentCatalog(), *self._name.parts))

    def _forget_session(self) -> None:
        """Discard the handles, which use the session that opened them; the place of rows stays the same."""
        self._handles.forget()

    def _no_place_for_rows(self, folder: str, why: str) -> OptionError:
        problem = (
            f"rows for {self._name} cannot be put into {masked(folder)} until Spark adds them: {why} Name a "
            "folder or a URI where driver, executors and Spark can write, such as a volume, with "
            "DeltaSink(staging=…), option sinkStaging of `pyspark-rocketmq consume`, and storage_options for "
            "it"
        )
        return OptionError((problem,), where="Delta sink")

    def prepare(self, schema: pa.Schema) -> None:
        """See :meth:`SinkTable.prepare`; also check that rows can be put where Spark reads them."""
        super().prepare(schema)
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
            self._spark_address = self._address_of(name)
        finally:
            filesystem.delete_file(f"{folder}/{name}")
        if self._staging is not None:
            _remove_left(filesystem, folder, time.time())

    def _address_of(self, name: str) -> str:
        """Return the address by which Spark finds the folder that tasks write to."""
        given = self._location if self._staging is None else self._staging
        # Spark looks for a path without a scheme in its default file system, which may be another one.
        addresses = [given if ":" in given or given.startswith("/") else self._rows_uri]
        if given.startswith("s3://"):
            # Open-source Spark has another scheme for it.
            addresses.append(f"s3a{given[2:]}")
        for address in addresses[:-1]:
            with suppress(*_ERRORS):
                _ = self._session.read.parquet(plain_path(f"{address}/{name}")).schema
                return address
        _ = self._session.read.parquet(plain_path(f"{addresses[-1]}/{name}")).schema
        return addresses[-1]

    def _created(self, schema: pa.Schema) -> SinkLog:
        columns = columns_ddl(from_arrow_schema(schema, prefer_timestamp_ntz=True).json())
        partitions = ", ".join(map(quoted_name, self.partition_by))
        sql = f"CREATE TABLE IF NOT EXISTS {self._sql_name} ({columns}) USING delta" + (
            f" PARTITIONED BY ({partitions})" if partitions else ""
        )
        try:
            self._session.sql(sql)
        except _ERRORS as error:
            problem = (
                f"there is no table {self._name}, and Spark could not make it: {_first_line(error)} Make its "
                f"schema, or the table itself as its catalog wants it, such as: {sql}"
            )
            raise OptionError((problem,), where="Delta sink") from error
        log = self.open()
        if log is None:
            raise SchemaError(
                f"The catalog knows the table {self._name}, but its folder has no Delta table any more. Put "
                "it back, or drop the table, and start the query again."
            )
        return log

    def _check_place(self) -> None:
        """Check nothing here: Spark's commits exclude each other, or :meth:`refused` raises."""

    def refused(self, form: TableForm) -> tuple[str, ...]:
        """Return why Spark writes: the table is in a catalog.  For errors see :meth:`SinkTable.refused`."""
        why = ("its name in a catalog",)
        if "catalogManaged" not in form.features:
            problem = log_store_problem(self._location, lambda name: self._session.conf.get(name, None))
            if problem is not None:
                raise cannot_take_files(self.path, why, problem)
        return why

    def _check_columns(self, form: TableForm, wanted: TableForm) -> None:
        if _COMPUTED_BY & form.features:
            # Delta does not show here which columns are computed.
            known = {column.name for column in wanted.columns}
            form = replace(form, columns=tuple(each for each in form.columns if each.name in known))
        check_columns(self.path, form, wanted, may_differ=self.schema_evolution)

    def rewind(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """See :meth:`SinkTable.rewind`; here Spark makes all commits."""
        self.refused(log.form())
        before = before.set_by(commit)
        return self.append_by_spark(log, (), before, commit, schema=self.schema_without_rows(log))

    def schema_without_rows(self, log: SinkLog) -> pa.Schema:
        """Return the columns that every commit must have; Delta fills the others."""
        kept = [field for field in log.arrow_schema if not field.nullable or field.name in POSITION_COLUMNS]
        return pa.schema(kept)

    def _append(self, rows: DataFrame, options: Mapping[str, Any]) -> None:
        # saveAsTable would create the table if it is missing.
        rows.writeTo(self._sql_name).options(**options).append()

    def group_commit(
        self,
        log: SinkLog,
        consumer_group: str,
        generations: Iterable[tuple[MessageQueue, int]],  # noqa: ARG002 - all queues are read at once
    ) -> GroupCommit:
        """See :meth:`SinkTable.group_commit`; includes rows that were written by the table's path before.

        Raises:
            SinkConflict: If the progress cannot be read.
        """
        assert isinstance(log, CatalogLog)
        newest = log.newest_commit(consumer_group)
        if newest is None and log.begins_at_first_commit:
            return GroupCommit()
        if newest is not None and own_metadata(newest).get(_WHOLE):
            return GroupCommit.judged({}, newest)
        stored = self._stored_by_path(log, consumer_group)
        forgets = forgets_transactions(log.form())
        whole = log.whole_record_of(newest)
        if forgets and (newest is None or not records_progress(newest, whole)):
            raise unknown(log, consumer_group)
        if stored is None:
            if newest is None:
                return GroupCommit()
            raise SinkConflict(
                f"The Delta table {self.path} has rows of group {consumer_group} that came by its path, and "
                f"how far they go cannot be read from its folder {masked(log.location)}. Write by the path "
                "as before, give DeltaSink the storage_options for that folder, or say it with "
                "DeltaSink.rewind(consumer_group, {queue: highest queueOffset + 1}) for every queue."
            )
        number = stored.pop(group_app_id(consumer_group), 0)
        if newest is None and number:
            raise forgotten(log, consumer_group)
        return GroupCommit.judged(stored, newest, whole, number=number)

    def _stored_by_path(self, log: CatalogLog, consumer_group: str) -> dict[str, int] | None:
        """Return the group's transaction ids from the table's folder; None if it cannot be read as a table.

        They are those of commits that were made by the table's path.
        """
        try:
            folder = table_uri(log.location)
            by_path = TableLog(open_table(folder, self.storage, version=log.version), self.storage)
            if by_path.table_id != log.table_id:
                return None
            found = by_path.all_transactions()
        except (*STORAGE_ERRORS, RocketMQError, ValueError, KeyError):
            logger.info("folder of table %s cannot be read", self._name, exc_info=True)
            return None
        counter = group_app_id(consumer_group)
        return {
            app_id: version
            for app_id, version in found.items()
            if app_id == counter or generation_of(app_id, consumer_group) is not None
        }

    def last_known_commit(self, log: SinkLog, consumer_group: str) -> GroupCommit:
        """See :meth:`SinkTable.last_known_commit`."""
        assert isinstance(log, CatalogLog)
        try:
            known = self.group_commit(log, consumer_group, ())
        except SinkConflict:
            known = GroupCommit()
        if known.number or log.begins_at_first_commit:
            return known
        # A number above any count of commits so far.
        return replace(known, number=int(time.time()))


def _remove_left(filesystem: fs.FileSystem, folder: str, now_s: float) -> None:
    """Remove the files that killed tasks have left."""
    for file in filesystem.get_file_info(fs.FileSelector(folder or "/", allow_not_found=True)):
        if file.mtime_ns is not None and now_s - file.mtime_ns / 1e9 > _LEFT_FOR_S:
            with suppress(OSError):
                filesystem.delete_file(file.path)
