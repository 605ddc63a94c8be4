"""Commits of a sink by Spark's own writer, for tables that delta-rs must not write, and for tables by name.

Spark's writer keeps constraints, generated and identity columns, column mapping, row tracking and clustering.
It stores one transaction id per commit, but a sink needs a watermark for each queue. So a commit by Spark
has the watermarks of the whole group in its ``userMetadata``. Its only transaction id, ``rocketmq:GROUP``,
counts the commits that Spark has made for the group. If two commits start from the same count, Delta refuses
or skips the second one. Then this module raises FileExistsError, as for every other commit that lost a race.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_rocketmq.delta.ddl import columns_ddl
from pyspark_rocketmq.delta.features import writable_columns
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.delta.paths import TableName, quoted_name
from pyspark_rocketmq.display import masked, masking_logger
from pyspark_rocketmq.model import POSITION_COLUMNS
from pyspark_rocketmq.sinks.delta.rules import SinkCommit, group_app_id
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.spark_merge import merge_rows, merging_session
from pyspark_rocketmq.sinks.delta.watermarks import WHOLE, GroupCommit
from pyspark_rocketmq.spark.session import living_session

logger = masking_logger(__name__)

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
"""Setting that only sessions on Databricks have.

A service of Databricks keeps Databricks' own writers from overwriting each other's commits.
"""
_LOST_RACE = re.compile(
    r"\bConcurrent(Append|DeleteDelete|DeleteRead|Transaction|Write)Exception\b|\bDELTA_CONCURRENT_"
)
"""Names of Delta's errors for a commit that was refused because another one changed rows first.

If the other commit changed columns, properties or features, Delta raises other errors.
"""


class Session:
    """Holds the Spark session that a table uses. If that session was stopped, another running one is used."""

    def __init__(self) -> None:
        self._spark: SparkSession | None = None

    def use(self, spark: SparkSession) -> None:
        """Use the session ``spark`` as long as it runs."""
        self._spark = spark

    def living(self) -> SparkSession | None:
        """Return the session; if it was stopped, another running session; None if none runs."""
        return living_session(self._spark)

    def take(self) -> SparkSession | None:
        """Return the session of :meth:`living`, and use it from now on."""
        self._spark = self.living()
        return self._spark

    @property
    def spark(self) -> SparkSession:
        """The session that was last taken."""
        assert self._spark is not None, "take() comes first"
        return self._spark

    def setting(self, name: str) -> str | None:
        """Return a setting of the session that was last taken; None if it is not set."""
        return self.spark.conf.get(name, None)


def spark_address(spark: SparkSession | None, path: str) -> str | None:
    """Return the address by which ``spark`` can load the Delta table at a path; None if it cannot.

    This is found by loading the table: Databricks does not show ``spark.sql.extensions``, and only
    some platforms support ``s3://``.
    """
    if spark is None:
        return None
    for address in addresses(path):
        try:
            _ = spark.read.format("delta").load(address).schema
        except (PySparkException, Py4JError):
            logger.info("not a Delta table to this Spark session path=%s", masked(address), exc_info=True)
        else:
            return address
    return None


def addresses(path: str) -> tuple[str, ...]:
    """Return the addresses by which a Spark session may find a path; for ``s3://`` also ``s3a://``."""
    return (path, f"s3a{path[2:]}") if path.startswith("s3://") else (path,)


def plain_path(path: str) -> str:
    """Escape a path for Spark, which would read some characters as a pattern for several paths."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


def log_store_problem(
    address: str, conf: Callable[[str], str | None], *, beside_delta_rs: bool = False
) -> str | None:
    """Describe why a session with these settings could overwrite commits of others; None if it cannot.

    Source: ``io.delta.storage.S3SingleDriverLogStore``, delta-spark's default for S3. It checks whether a
    commit exists and then writes it, so only commits of one driver exclude each other.

    Args:
        address: The table's address.
        conf: Returns a setting of the session.
        beside_delta_rs: Whether delta-rs makes the other commits. delta-rs does not use the service by which
            Databricks coordinates its writers.
    """
    scheme = address.partition("://")[0]
    if scheme not in ("s3", "s3a", "s3n"):
        return None
    what = "its commits on S3 could overwrite those of other writers:"
    if conf(_ON_DATABRICKS):
        return (
            f"{what} Databricks coordinates only its own writers. Let it write while the table's sinks are "
            "stopped, or name the table as the catalog does, so that Spark makes the sinks' commits"
            if beside_delta_rs
            else None
        )
    chosen = (f"spark.delta.logStore.{scheme}.impl", "spark.delta.logStore.class")
    if any(map(conf, chosen)):
        return None
    return (
        f"{what} delta-spark's default log store there coordinates only its own driver. Set {chosen[0]} "
        "to a log store for several writers, or, if this driver is the table's only writer, to "
        "io.delta.storage.S3SingleDriverLogStore, its default"
    )


def is_lost_race(error: Exception) -> bool:
    """Return whether Delta refused a commit because another one, which changed only rows, came first."""
    # Only some sessions translate Java's class into one of Python.
    return _LOST_RACE.search(f"{type(error).__name__}: {error}") is not None


def _later_commit(version: int) -> FileExistsError:
    return FileExistsError(errno.EEXIST, f"There is a commit after version {version}")


class SparkTarget(Protocol):
    """A table as Spark's writer addresses it: by path or by name."""

    record: Mapping[str, Any]
    """Fields that each commit records in addition to the group's progress."""
    files_address: str
    """Address by which Spark finds the folder that tasks write to."""

    @property
    def sql_name(self) -> str:
        """Name of the table in a statement."""
        ...

    def append(self, rows: DataFrame, options: Mapping[str, Any]) -> None:
        """Add rows in one commit, with these options of the write."""
        ...

    def columns_without_rows(self, log: SinkLog) -> pa.Schema:
        """Return the columns of the empty DataFrame by which Spark makes a commit without rows."""
        ...


class PathTarget:
    """A table that Spark addresses by its path; implements :class:`SparkTarget`."""

    record: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, path: str, session: Session) -> None:
        self._path = path
        self._session = session
        self._asked: SparkSession | None = None
        """The session that was last asked for the address."""
        self.files_address = ""
        """Address by which Spark finds the table's folder; empty until :meth:`find` has found it."""

    def find(self) -> str:
        """Return the address by which a running session finds the table; empty if none does."""
        spark = self._session.take()
        if spark is not self._asked:
            self._asked, self.files_address = spark, ""
        self.files_address = self.files_address or spark_address(spark, self._path) or ""
        return self.files_address

    @property
    def sql_name(self) -> str:
        """Name of the table in a statement: ``delta`` and its quoted address."""
        return f"delta.{quoted_name(self.files_address)}"

    def append(self, rows: DataFrame, options: Mapping[str, Any]) -> None:
        """Add rows to the table in one commit, with these options of the write."""
        rows.write.format("delta").mode("append").options(**options).save(self.files_address)

    def columns_without_rows(self, log: SinkLog) -> pa.Schema:
        """Return the columns for Spark's commits without rows: all except those that Delta computes."""
        given = writable_columns(log.table.form())
        return pa.schema([field for field in log.table.arrow_schema if field.name in given])


class NameTarget:
    """A table that Spark addresses by its name in a catalog; implements :class:`SparkTarget`."""

    record: Mapping[str, Any] = MappingProxyType({WHOLE: True})

    def __init__(self, name: TableName) -> None:
        self.name = name
        self.files_address = ""
        """Address by which Spark finds the folder that tasks write to; empty until the table is prepared."""

    @property
    def sql_name(self) -> str:
        """Name of the table in a statement, each part quoted."""
        return self.name.sql

    def append(self, rows: DataFrame, options: Mapping[str, Any]) -> None:
        """Add rows to the table in one commit, with these options of the write."""
        # saveAsTable would create the table if it is missing.
        rows.writeTo(self.sql_name).options(**options).append()

    def columns_without_rows(self, log: SinkLog) -> pa.Schema:
        """Return the columns for Spark's commits without rows: those not nullable, and those of the position.

        Delta fills the other columns.
        """
        kept = (
            field for field in log.table.arrow_schema if not field.nullable or field.name in POSITION_COLUMNS
        )
        return pa.schema(list(kept))


@dataclass(frozen=True)
class SparkWriter:
    """Lets Spark add or merge rows and move watermarks; implements ``Appender``."""

    session: Session
    target: SparkTarget
    keys: Sequence[str] = ()
    """Columns of the key by which rows are merged; empty if they are added."""

    @property
    def commits_by(self) -> str:
        """Name of the writer that makes the commits, for log messages: always ``Spark``."""
        return "Spark"

    def append(
        self,
        log: SinkLog,
        files: Sequence[WrittenFile],
        before: GroupCommit,
        commit: SinkCommit,
        columns: pa.Schema,
    ) -> int:
        """Let Spark add or merge the files' rows and move watermarks, in one commit; return its version.

        Raises:
            FileExistsError: If another commit came first, so that Spark refused this one, or skipped it.
            PySparkException, Py4JError: If the rows do not fit the table, or Spark failed.
            DeltaError: If the commit is not in the log, or the log cannot be read.
        """
        begun_at, number = log.version, before.number + 1
        commit = commit._replace(record={**before.record_by_spark(commit), **self.target.record})
        metadata = commit.metadata(**log.record_for(commit))
        schema = from_arrow_schema(columns, prefer_timestamp_ntz=True)
        fence = {"txnAppId": group_app_id(commit.consumer_group), "txnVersion": number}
        try:
            self._write(log, files, schema, {**metadata, **fence})
        except (PySparkException, Py4JError) as error:
            if is_lost_race(error):
                log.table.refresh()
                if log.version > begun_at:
                    raise _later_commit(begun_at) from error
            raise
        log.table.refresh()
        made_at = log.find_commit(commit, begun_at)
        if made_at is None:
            newest = log.newest_commit(commit.consumer_group)
            if newest is not None and newest["version"] > begun_at:
                raise _later_commit(begun_at)
        return log.version_of(commit, begun_at) if made_at is None else made_at

    def _write(
        self, log: SinkLog, files: Sequence[WrittenFile], schema: StructType, options: Mapping[str, Any]
    ) -> None:
        """Let Spark add or merge the rows of ``files``; ``options`` are those of Spark's write."""
        if not files:
            self.target.append(self.session.spark.createDataFrame([], schema), options)
        elif not self.keys:
            self.target.append(self._rows(self.session.spark, schema, files), options)
        else:
            rows = self._rows(merging_session(self.session.spark, options), schema, files)
            names = [file.path.rpartition("/")[2] for file in files]
            merge_rows(
                rows,
                self.target.sql_name,
                self.keys,
                partition_by=log.table.form().partition_by,
                order=POSITION_COLUMNS,
                files=names,
            )

    def _rows(self, spark: SparkSession, schema: StructType, files: Sequence[WrittenFile]) -> DataFrame:
        paths = [plain_path(f"{self.target.files_address}/{file.path}") for file in files]
        return spark.read.schema(schema).options(**_READ_ALL).parquet(*paths)

    def set_watermarks(self, log: SinkLog, before: GroupCommit, commit: SinkCommit) -> int:
        """Let Spark make a commit without rows that sets watermarks; return the new version."""
        return self.append(log, (), before, commit, self.target.columns_without_rows(log))

    def add_columns(self, log: SinkLog, columns: pa.Schema) -> None:
        """Let Spark add columns to the table, and move to the newest version."""
        ddl = columns_ddl(from_arrow_schema(columns, prefer_timestamp_ntz=True).json())
        self.session.spark.sql(f"ALTER TABLE {self.target.sql_name} ADD COLUMNS ({ddl})")
        log.table.refresh()
