"""The data source ``rocketmq``: checks its options, and creates its readers and writers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_rocketmq.errors import OptionError, RocketMQError, without_frames
from pyspark_rocketmq.group.requests import ConsumeOne
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.store_spec import StoreKind, StoreSpec
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.publish.rows import column_positions
from pyspark_rocketmq.publish.writer import RocketMQStreamWriter, RocketMQWriter, seen_routes
from pyspark_rocketmq.requirements import check_packages
from pyspark_rocketmq.source.ranges import TICKET_SCHEMA
from pyspark_rocketmq.source.readers import RocketMQBatchReader, RocketMQStreamReader
from pyspark_rocketmq.source.schema import spark_schema
from pyspark_rocketmq.spark.session import check_session, check_worker_python, is_classic, is_speculative

logger = logging.getLogger(__name__)

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark itself adds to those of a stream's sink, in lower case (``DataStreamWriter``)."""

_EXISTS: Final = "DATA_SOURCE_ALREADY_EXISTS"
"""Spark's error class for a name that is already registered."""

_TABLE_OPTION = "option."
"""Prefix of the options of a table in Spark's catalog."""


class DefaultSource(DataSource):
    """Format ``rocketmq`` of ``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream``."""

    @classmethod
    def name(cls) -> str:
        """Return the short name of the format."""
        return "rocketmq"

    @without_frames
    def schema(self) -> StructType:
        """Return the columns of the rows that are read, as the options choose them: by default, a message's.

        With ``consumerGroup`` there are more columns, for an extra row after the messages of each queue. With
        ``handOverRanges``, which ``PushConsumer`` sets for some engines, each row has ranges of offsets to
        read instead of a message.

        Raises:
            OptionError: With every problem of the options. Spark calls this method first, so users see
                problems at ``load()``.
        """
        options = self._read_options()
        if options.hand_over_ranges:
            return from_arrow_schema(TICKET_SCHEMA)
        return spark_schema(
            consumer_mode=options.consumer_group is not None,
            columns=options.columns(),
            property_columns=options.property_columns,
        )

    @without_frames
    def reader(self, schema: StructType) -> RocketMQBatchReader:
        """Create the reader of a batch read: ``spark.read.format("rocketmq")``.

        Raises:
            OptionError: With every problem of the options, or if the user's columns differ from ours.
        """
        options = self._read_options()
        _refuse([*options.problems_of_batch(), *self._schema_problems(schema)])
        return RocketMQBatchReader(options)

    @without_frames
    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802 - Spark's signature
        """Create the reader of a stream: ``spark.readStream.format("rocketmq")``.

        Raises:
            OptionError: With every problem of the options, or if the user's columns differ from ours.
        """
        options = self._read_options()
        _refuse([*options.problems_of_stream(), *self._schema_problems(schema)])
        if (
            options.offset_store is not None
            and StoreSpec.parse(options.offset_store).kind is StoreKind.MEMORY
        ):
            problem = (
                f"offsetStore={options.offset_store!r} keeps offsets within one process, but a query needs "
                "them in two, to plan and to commit. Use the path of a Delta table"
            )
            _refuse([problem])
        return RocketMQStreamReader(options, _open_listener(options))

    @without_frames
    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:
        """Create the writer of a bounded write: ``df.write.format("rocketmq").mode("append")``.

        Raises:
            OptionError: With every problem of the options, or if the mode is ``overwrite``.
            SchemaError: With every problem of the columns.
        """
        if overwrite:
            raise OptionError(
                ("mode 'overwrite' is not possible: messages cannot be taken back. Use mode('append')",)
            )
        options = self._write_options("save")
        return RocketMQWriter(options, column_positions(schema, options), seen_routes(options))

    @without_frames
    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: ARG002, N802
        """Create the writer of an unbounded write, in output mode ``append`` or ``update``.

        Raises:
            OptionError: With every problem of the options.
            SchemaError: With every problem of the columns.
        """
        options = self._write_options("start")
        return RocketMQStreamWriter(options, column_positions(schema, options), seen_routes(options))

    def _schema_problems(self, schema: StructType) -> list[str]:
        """Return a sentence if a user's ``.schema(…)`` differs from our columns, else an empty list.

        Spark passes our columns if the user gave none.
        """
        given, ours = (
            [(field.name, field.dataType.simpleString()) for field in each]
            for each in (schema, self.schema())
        )
        if given == ours:
            return []
        names = ",".join(schema.fieldNames())
        problem = (
            "the columns of format('rocketmq') are fixed, and .schema(…) names others; leave it out. To read "
            "only some columns, write "
            f".option('includeColumns', '{names}'), and decode bodies by from_json(body.cast('string'), …)"
        )
        return [problem]

    def _write_options(self, method: str) -> WriteOptions:
        self._refuse_path(method)
        return WriteOptions.parse(_without_sparks_own(self.options))

    def _read_options(self) -> ReadOptions:
        if any(key.startswith(_TABLE_OPTION) for key in self.options):
            problem = (
                "rocketmq cannot be a table of Spark's catalog: Spark gives a Python data source none of the "
                "table's options when it is read. Use CREATE TEMPORARY VIEW … USING rocketmq OPTIONS (…)"
            )
            raise OptionError((problem,), where="CREATE TABLE … USING rocketmq")
        self._refuse_path("load")
        return ReadOptions.parse(dict(self.options))

    def _refuse_path(self, method: str) -> None:
        if "path" in self.options:
            topic = self.options["path"]
            _refuse([f"{method}() takes no path; write .option('topic', '{topic}').{method}()"])


def _open_listener(options: ReadOptions) -> Callable[[], ConsumeOne] | None:
    """Return a function that opens the listener in the planner process, which plans the batches.

    In this process the listener consumes only single messages that an administrator sends to it. Return None
    without a group, or if the listener was not registered by name, so that the planner cannot import it.
    """
    if options.listener is None or options.consumer_group is None:
        return None
    return partial(_consume_one, options.listener, options.consumer_group, is_orderly=options.consume_orderly)


def _consume_one(listener: str, consumer_group: str, *, is_orderly: bool) -> ConsumeOne:
    # Imported here, because a planner seldom needs it.
    from pyspark_rocketmq.listeners.direct_consume import DirectConsumer

    return DirectConsumer(listener, consumer_group, orderly=is_orderly).consume


def _refuse(problems: list[str]) -> None:
    if problems:
        raise OptionError(tuple(problems))


def _without_sparks_own(options: Mapping[str, str]) -> dict[str, str]:
    """Remove the query's name and checkpoint, which Spark adds to the options of a stream's sink."""
    return {key: value for key, value in options.items() if key.lower() not in _SPARKS_OWN}


def register(spark: SparkSession) -> None:
    """Register ``format("rocketmq")`` with ``spark``; harmless if it is registered already.

    Log a warning if ``spark.speculation`` is on, so that the session runs second copies of slow tasks.
    Reading is safe in such a session, but writing is not, and the writer cannot see this setting.

    Raises:
        RocketMQError: If the workers' Python cannot run this package, if a package that it needs is too old,
            if another data source of this name is on the JVM's class path, or if ``spark`` is None.
    """
    check_session(spark, "register")
    check_packages()
    if is_classic(spark):
        check_worker_python(spark)
    if is_speculative(spark):
        logger.warning(
            "spark.speculation is on: df.write and df.writeStream with format('rocketmq') would send the "
            "rows of slow tasks twice and out of their order; set it to false before writing"
        )
    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        if error.getCondition() != _EXISTS or not is_classic(spark):
            raise
        _register_as_active(spark)


def _register_as_active(spark: SparkSession) -> None:
    """Make ``spark`` the thread's active session, register the data source, and set the former session back.

    Before ``spark`` registers a source, Spark looks for its name in the thread's active session, even if that
    is another session. If that session has the source, registering would fail although ``spark`` lacks it.

    Raises:
        RocketMQError: If a jar on the JVM's class path has a data source of this name.
    """
    assert spark._jvm is not None  # noqa: SLF001 - there is no other way to the active session
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # noqa: SLF001
    active = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        if error.getCondition() != _EXISTS:
            raise
        known = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001
        if known.dataSourceExists(DefaultSource.name()):
            # Spark 4.0 has found the installed package itself and does not let it be replaced.
            return
        raise RocketMQError(
            f"A jar on Spark's class path has its own data source '{DefaultSource.name()}' (or one that "
            "cannot be loaded; Spark reports both in the same way). Start the session without that jar."
        ) from error
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()
