"""``PushConsumer``: takes the user's configuration under RocketMQ's own names and starts the query.

A group that starts again continues at its progress in the offset store or, if the store has lost it, at the
progress of its sink.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.commit.pipeline import BatchListener
from pyspark_rocketmq.consumer.batch import is_within_batch_of
from pyspark_rocketmq.consumer.batch_function import (
    CommitterParts,
    ServerFunction,
    check_over_connect,
    driver_control,
    storage_secrets_of,
)
from pyspark_rocketmq.consumer.change_listener import ChangeListener
from pyspark_rocketmq.consumer.engine import state
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.consumer.engine.direct import DirectEngine
from pyspark_rocketmq.consumer.engine.keyed import KeyedRangeConsumer
from pyspark_rocketmq.consumer.engine.landing import LandingEngine
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import listener_schema, sink_schema, spark_can_parse
from pyspark_rocketmq.consumer.engine.pickling import PickledOnce, why_not_picklable
from pyspark_rocketmq.consumer.engine.task import Engine
from pyspark_rocketmq.consumer.live_checks import FreeSlots, argument_problems, check_live
from pyspark_rocketmq.consumer.message_columns import PROPERTIES, MessageColumns
from pyspark_rocketmq.consumer.message_table import Decode, MessageTable
from pyspark_rocketmq.consumer.preparation import (
    check_and_prepare,
    check_commits_groups,
    log_unused_start,
    use_session,
)
from pyspark_rocketmq.consumer.settings import (
    REAL_TIME,
    ConsumerSettings,
    member_of,
    start_problems,
    suggesting,
    warn_of_long_name,
)
from pyspark_rocketmq.consumer.tables_listener import TablesListener
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.format import register
from pyspark_rocketmq.group.broker_offsets import open_group_store
from pyspark_rocketmq.group.join import offset_key
from pyspark_rocketmq.hub.driver_end import DriverControl
from pyspark_rocketmq.hub.state import Slots
from pyspark_rocketmq.listeners.context import ConsumeHooks, ConsumeMessageHook
from pyspark_rocketmq.listeners.forms import form_of, named
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    DEFAULT_MESSAGE_COLUMNS,
    BodyType,
    ConsumeFromWhere,
    MessageModel,
    OrderlyBy,
    OrderlyEngineKind,
    UndecodableMessages,
)
from pyspark_rocketmq.offsets.store import OffsetKey, OffsetStore, OpensAgain
from pyspark_rocketmq.options.consumer import CONSUMER_DEFAULTS, real_time_ms
from pyspark_rocketmq.options.read import READ_DEFAULTS, ReadOptions
from pyspark_rocketmq.options.store_spec import StoreKind
from pyspark_rocketmq.sinks.base import RoutesChanges, Sink, TakesChanges
from pyspark_rocketmq.sinks.multi import Route, as_single_sink
from pyspark_rocketmq.source.checkpoint import check_checkpoint, clear_unwritten_plan
from pyspark_rocketmq.source.ranges import tickets_alone
from pyspark_rocketmq.spark.session import (
    BatchFunction,
    calls_end_s,
    check_session,
    check_speculation,
    driver_address,
    encrypts_network,
    is_active,
    is_classic,
    lives,
    stoppable,
)
from pyspark_rocketmq.spark.version import SPARK_PASSES_TRIGGER, arrow_schema

logger = masking_logger(__name__)

_QUERY_ID_TIMEOUT_S: Final = 60.0


class _StartRequest(NamedTuple):
    """The query that a call of :meth:`PushConsumer.start` asks for."""

    sink: Sink | None
    checkpoint: str
    trigger: Mapping[str, Any]
    query_name: str | None

    @property
    def drains(self) -> bool:
        """Whether the query ends once all present messages are consumed (``availableNow``)."""
        return "availableNow" in self.trigger

    @property
    def trigger_of_spark(self) -> Mapping[str, Any]:
        """Arguments of ``DataStreamWriter.trigger``; in real time 0 s, so batches follow immediately."""
        return {"processingTime": "0 seconds"} if REAL_TIME in self.trigger else self.trigger


class PushConsumer:
    """A consumer of one topic or several; configure, subscribe, register a listener, start.

    Args:
        consumer_group: The group, in RocketMQ's sense.
        name_servers: ``host:port``, several separated by ``;``.
        offset_store: Where the group's offsets are kept: a store, or a value of option ``offsetStore``.
        message_model: A ``MessageModel`` or its name. CLUSTERING shares the queues among the group's members.
            With BROADCASTING every query reads all queues, and keeps its own progress under
            ``instance_name``.
        consume_from_where: Where a group without stored offsets begins: a ``ConsumeFromWhere`` or its name.
        consume_timestamp: The time for CONSUME_FROM_TIMESTAMP; half an hour ago by default. Either
            ``yyyyMMddHHmmss``, perhaps with a zone (``…Z``, ``…+08:00``), or ISO 8601. Without a zone, the
            first form is local time of the driver's machine, as in Java, and ISO 8601 is UTC.
        consume_message_batch_max_size: Maximum number of messages per listener call, 1..1024. A
            ``ChangeTable`` reads several messages together even with the default, 1.
        max_reconsume_times: How often a message that fails is delivered again before it goes to the group's
            dead letters (``%DLQ%GROUP``); -1 means no limit, or 16 with a concurrent listener.
        suspend_current_queue_time_millis: Pause of a queue after the listener gave messages back, clamped to
            10..30000 ms; the context of a call may set another one.
        consume_thread_max: Maximum number of calls of the listener at the same time in one task, 1..1000.
            Calls of an orderly listener overlap only if they are slow, and only for different queues, or keys
            (``orderly_by``).
        consume_timeout_s: Duration from which on a listener's call counts as TIME_OUT; a concurrent
            listener's messages are then sent back, or dropped with BROADCASTING.
        max_offsets_per_trigger: Maximum number of messages of one micro-batch.
        allocate_message_queue_strategy: How the members share the queues; the same for all of them.
        instance_name: Name of this member; a killed query that restarts under the same name gets its queues
            back immediately.
        commit_interval: How often a batch commits what it has consumed so far, such as ``"500ms"`` or
            ``"1 second"``, 50 ms or more. None: once, at the batch's end; in real time every 500 ms.
        mirror_offsets: Send each committed offset to the brokers too, for mqadmin, dashboards and Java
            members of the group. CLUSTERING only.
        orderly_by: Order of an orderly listener's messages. ``queue``: all messages of a queue one after the
            other. ``sharding_key``: only those of a queue with the same sharding key (property
            ``__SHARDINGKEY``), with calls for different keys at the same time.
        orderly_engine: How Spark runs an orderly listener; ``direct`` or ``state``. Both keep the same
            promises, and ``direct`` is several times as fast. A query whose engine changes needs a new
            checkpoint.
        undecodable_messages: What to do with a message whose body cannot be decompressed or whose bytes are
            not a message: an ``UndecodableMessages`` or its name. ``fail`` ends the query when all messages
            before it are consumed. ``keep`` gives the listener the stored bytes, and the reason in property
            ``UNDECODABLE``.
        options: Further options of the source, such as ``{"pullBatchSize": "32"}``, including those of access
            control, TLS and the namespace; options that a parameter sets are refused.
    """

    @suggesting
    def __init__(
        self,
        *,
        consumer_group: str,
        name_servers: str,
        offset_store: OffsetStore | str,
        message_model: MessageModel | str = READ_DEFAULTS.message_model,
        consume_from_where: ConsumeFromWhere | str = CONSUMER_DEFAULTS.consume_from_where,
        consume_timestamp: str | None = CONSUMER_DEFAULTS.consume_timestamp,
        consume_message_batch_max_size: int = CONSUMER_DEFAULTS.consume_message_batch_max_size,
        max_reconsume_times: int = CONSUMER_DEFAULTS.max_reconsume_times,
        suspend_current_queue_time_millis: int = CONSUMER_DEFAULTS.suspend_current_queue_time_millis,
        consume_thread_max: int = CONSUMER_DEFAULTS.consume_thread_max,
        consume_timeout_s: float = CONSUMER_DEFAULTS.consume_timeout_s,
        max_offsets_per_trigger: int = CONSUMER_DEFAULTS.max_offsets_per_trigger,
        allocate_message_queue_strategy: str = READ_DEFAULTS.allocate_message_queue_strategy,
        instance_name: str | None = READ_DEFAULTS.instance_name,
        commit_interval: str | None = CONSUMER_DEFAULTS.commit_interval,
        mirror_offsets: bool = CONSUMER_DEFAULTS.mirror_offsets,
        orderly_by: OrderlyBy | str = CONSUMER_DEFAULTS.orderly_by,
        orderly_engine: OrderlyEngineKind | str = CONSUMER_DEFAULTS.orderly_engine,
        undecodable_messages: UndecodableMessages | str = READ_DEFAULTS.undecodable_messages,
        options: Mapping[str, str] | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name != "self"}
        self._settings = ConsumerSettings.of(arguments)
        self._subscriptions: dict[str, str | dict[str, str]] = {}
        self._listener: Any = None
        self._table: MessageTable | None = None
        self._columns: MessageColumns | None = None
        self._is_orderly = True
        self._output_schema: StructType | str | None = None
        self._batch_listeners: list[BatchListener] = []
        self._hooks: list[ConsumeMessageHook] = []
        self._hubs: dict[str, DriverControl] = {}
        """For each running query, by run id: the server to which its planner and tasks connect (hub)."""

    def subscribe(self, topic: str, expression: str = "*", *, sql: str | None = None) -> None:
        """Subscribe to the messages of ``topic`` whose tag matches, such as ``created || paid``.

        Call it once for each topic; a second call for a topic replaces the first. All members of the group
        must have the same subscriptions.

        Args:
            topic: The topic.
            expression: Tags, or ``*`` for all.
            sql: An SQL92 condition on the messages' properties instead of tags (``MessageSelector.bySql``);
                the brokers filter, and must have ``enablePropertyFilter=true``.
        """
        self._subscriptions[topic] = expression if sql is None else {"sql": sql}

    def register_message_listener(
        self, listener: object, *, orderly: bool = True, output_schema: str | StructType
    ) -> None:
        """Set the listener, which is pickled to the executors.

        A listener that needs connections makes them in its method ``open``, on the executor.

        Args:
            listener: Called with messages of one queue and a context: a function, a generator function, an
                ``ArrowListener`` or ``PandasListener``, a class or an object with ``consume_message``, or
                the ``module:name`` of any of these; a concurrent one may also be an ``async def``.
            orderly: True: messages in order, one call at a time per queue, or per key (``orderly_by``).
                False: messages in any order, many calls at the same time; failed messages come again through
                the group's retry topic, or are dropped with BROADCASTING.
            output_schema: Columns of the rows that the listener emits, such as
                ``"order_id string, step string"``.

        Raises:
            OptionError: If the listener has none of these forms.
            SchemaError: If the schema cannot be used. Without a Spark session, a schema given as a string is
                checked only at :meth:`start`.
        """
        # A schema given as text can be parsed only with a session; start() has one.
        can_check = spark_can_parse() or isinstance(output_schema, StructType)
        self._output_schema = listener_schema(output_schema) if can_check else output_schema
        form_of(listener, orderly=orderly)
        self._listener = listener
        self._is_orderly = orderly

    def register_message_table(
        self, decode: Decode, *, message_columns: Sequence[str] = (), bad_record_column: str = "badRecord"
    ) -> None:
        """Write every message as a row, instead of calling a listener.

        Args:
            decode: Turns the column of bodies into a struct whose fields become columns:
                ``json_body("order_id string")``, or a function with Spark's own ``from_avro``,
                ``from_protobuf`` … in a mode that returns null for bodies that cannot be decoded.
            message_columns: Columns of the source to keep besides the position, such as ``keys`` and
                ``properties``.
            bad_record_column: Name of the binary column with the bodies that could not be decoded, or have no
                value in any field.
        """
        self._table = MessageTable(
            decode=decode, message_columns=tuple(message_columns), bad_record_column=bad_record_column
        )

    def register_message_columns(
        self,
        columns: Sequence[str] = DEFAULT_MESSAGE_COLUMNS,
        *,
        body: BodyType | str = BodyType.BINARY,
        bad_record_column: str = "badRecord",
    ) -> None:
        """Write every message as a row with columns of the source as they are, instead of calling a listener.

        No object is made for a message or a row, so this is the fastest way into a table.

        Args:
            columns: Columns of the source to keep besides the position.
            body: Type of the column ``body``, a member or its name: ``binary`` or ``string``.
            bad_record_column: Name of the binary column with the bodies that are not UTF-8, which are null in
                ``body``. The column exists only if ``body`` is a string.

        Raises:
            SchemaError: If a column is unknown or named twice, if none is named, or if
                ``bad_record_column`` is the name of another column.
            OptionError: If the type of the body is unknown.
        """
        wanted = MessageColumns(
            names=tuple(columns),
            body_type=member_of("body", body, BodyType),
            bad_record_column=bad_record_column,
        )
        wanted.check()
        self._columns = wanted

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Have ``hook`` called on the executors before and after each call of the listener.

        See row D10 of ``docs/semantics.md``.
        """
        self._hooks.append(hook)

    def register_batch_listener(self, listener: BatchListener) -> None:
        """Have ``listener`` called on the driver with a report of each commit, for example for metrics.

        A micro-batch may have several commits, for example with ``commit_interval``. A commit without
        progress is reported only if offsets were refused.
        """
        self._batch_listeners.append(listener)

    def source_options(self) -> dict[str, str]:
        """Return the options with which the query reads, secrets included; :meth:`start` adds more.

        The listener may still be missing: with a ``ChangeTable``, :meth:`start` registers it.

        Raises:
            OptionError: With all problems of the configuration, except a missing listener.
        """
        return self._source_options(needs_listener=False)

    def start(
        self,
        spark: SparkSession,
        *,
        sink: Sink | Route | Sequence[Sink | Route] | None = None,
        checkpoint: str | Path,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Start consuming.

        Args:
            spark: A classic session, or one of Spark Connect, where this process makes and checks the tables,
                and a process of the server writes them.
            sink: Where emitted rows go: a ``DeltaSink``, a ``DatabaseSink``, or several, each with the rows
                that its ``Route`` selects; None if only the listener's side effects are wanted.
            checkpoint: Folder of Spark's checkpoint. It may be lost: the offset store holds the progress.
            trigger: Arguments of ``DataStreamWriter.trigger``: ``processingTime`` or ``availableNow``; every
                second by default. Or ``{"realTime": "5 minutes"}``: the listener gets each message when it
                arrives, and results are committed every ``commit_interval``; the duration is that of a batch,
                during which its tasks hold their slots.
            query_name: Name in Spark's UI, unique in the session; by default ``GROUP``, or ``GROUP@INSTANCE``
                for a member with an instance name, and ``GROUP (2)`` for a second one in the session.

        Raises:
            OptionError: With all problems of the configuration.
            SchemaError: If the output schema cannot be used, or the sink's table does not fit it.
            StorageNotShared: If an executor has another folder at the path of a table.
            TopicNotFound: If a topic does not exist. In this case no table or folder was made.
            RocketMQError: If the query cannot start for another reason, for example because the cluster does
                not answer, or the executors' Python lacks this package.
        """
        problems = [*start_problems(sink, checkpoint, trigger), *self._listen_for(sink)]
        if sink is None and self._columns is not None:
            problems.append("register_message_columns() needs a sink, such as DeltaSink, for its rows")
        if isinstance(trigger, Mapping) and REAL_TIME in trigger:
            problems += self._real_time_problems(spark)
        options = self._source_options(sink, problems)
        check_session(spark, "A PushConsumer")
        check_speculation(spark)
        register(spark)
        if sink is not None:
            sink = as_single_sink(sink)
            use_session(sink, spark)
        every_second = {"processingTime": "1 second"}
        wanted = _StartRequest(
            sink, str(checkpoint), every_second if trigger is None else trigger, query_name
        )
        if REAL_TIME in wanted.trigger:
            options["realTime"] = f"{real_time_ms(wanted.trigger[REAL_TIME])}ms"
        store = self._store(ReadOptions.parse(options))
        if storage := storage_secrets_of(store):
            options |= {"storageSecrets": json.dumps(storage)}
        if is_classic(spark):
            return self._start_here(spark, options, store, wanted)
        return self._start_at_server(spark, options, store, wanted)

    def _start_here(
        self, spark: SparkSession, options: dict[str, str], store: OffsetStore, wanted: _StartRequest
    ) -> StreamingQuery:
        """Start a query whose batches are committed by this process."""
        parsed = ReadOptions.parse(options)
        check_checkpoint(spark, wanted.checkpoint)
        is_live = parsed.real_time_ms is not None
        # Some sinks need a slot for Spark in real time. Leave one free until the prepared sink shows this.
        slots = FreeSlots(spark, 1 if is_live and wanted.sink is not None else 0)
        hub = self._hub(spark, parsed, store, slots, has_sink=wanted.sink is not None)
        if hub is not None:
            options |= {"hubSecret": hub.secret}
        query_id: Future[str] = Future()
        trigger = wanted.trigger_of_spark
        if wanted.drains and not SPARK_PASSES_TRIGGER:
            options, trigger = _drained_by(hub, options)
        try:
            messages = spark.readStream.format("rocketmq").options(**options).load()
            rows, engine, schema = self._rows(messages, parsed)
            states = state.places(spark, wanted.checkpoint) if self._uses_state else {}
            self._prepare(spark, parsed, store, wanted.sink, schema, states=states)
            if parsed.real_time_ms is not None:
                slots.left = check_live(
                    spark,
                    wanted.sink,
                    offset_key(parsed),
                    None if hub is None else hub.secret,
                    parsed.real_time_ms / 1000,
                )
            clear_unwritten_plan(spark, wanted.checkpoint)
            parts = self._parts(parsed, store, wanted.sink, engine, drains=wanted.drains)
            committer = parts.committer(store, partial(_await_query_id, query_id), hub)
            name = wanted.query_name or self._free_name(spark)
            query = (
                _written_by(stoppable(committer), rows, name, wanted.checkpoint).trigger(**trigger).start()
            )
        except BaseException:
            if hub is not None:
                hub.close()
            raise
        query_id.set_result(str(query.id))
        if hub is not None:
            self._keep(hub, query, spark)
        return query

    def _keep(self, hub: DriverControl, query: StreamingQuery, spark: SparkSession) -> None:
        """Keep the hub (the server to which planner and tasks connect) until it ends, soon after its query.

        :meth:`stop` needs the hub.
        """
        run_id = str(query.runId)

        def stop() -> None:
            try:
                query.stop()
            finally:
                self._hubs.pop(run_id, None)

        self._hubs[run_id] = hub
        hub.lives_with(partial(lives, query, spark), stop)

    def _start_at_server(
        self, spark: SparkSession, options: dict[str, str], store: OffsetStore, wanted: _StartRequest
    ) -> StreamingQuery:
        """Start a query of Spark Connect, whose batches are committed by a process of the server."""
        parsed = ReadOptions.parse(options)
        messages = spark.readStream.format("rocketmq").options(**options).load()
        rows, engine, schema = self._rows(messages, parsed)
        parts = self._parts(parsed, store, wanted.sink, engine, drains=wanted.drains)
        check_over_connect(parts, [state.NOT_OVER_CONNECT] if self._uses_state else [])
        self._prepare(spark, parsed, store, wanted.sink, schema)
        name = wanted.query_name or self._free_name(spark)
        function = ServerFunction(parts, arrow_schema(schema), name)
        return _written_by(function, rows, name, wanted.checkpoint).trigger(**wanted.trigger).start()

    def stop(self, query: StreamingQuery, within_s: float = 30.0) -> bool:
        """Stop a query of this consumer after the listener's running calls, and commit its batch.

        Without this, ``query.stop()`` aborts the batch, so that its messages are consumed again. Do not call
        this in a batch listener of the query, or in its sink: set a flag there, and call this in another
        thread, such as the main thread.

        Args:
            query: Return value of :meth:`start`.
            within_s: How long to wait before the query is stopped in any case.

        Returns:
            Whether the batch was committed in time; False if it has failed. A batch of engine ``state`` or
            of a message table, or one whose tasks cannot connect to the driver, must end by itself in that
            time. In three cases the result is False without waiting: over Spark Connect, which has no
            connection to the process that commits; if the driver could not open a port; and if the query had
            already ended.

        Raises:
            RocketMQError: If the calling thread runs or commits a batch of the query, as in a batch listener.
                Nothing is stopped: the batch would wait for this call, and this call for the batch.
        """
        if is_within_batch_of(str(query.id)):
            raise RocketMQError(
                "PushConsumer.stop() was called within a batch of the query that it is to stop, in thread "
                f"{threading.current_thread().name!r}, which a batch listener or a sink must not do: it "
                "would wait for the end of this batch, and the batch for it. Set a flag there, such as a "
                "threading.Event, and call stop() from another thread, such as the main thread, once the "
                "flag is set."
            )
        hub = self._hubs.pop(str(query.runId), None)
        is_committed = hub is not None and is_active(query) and hub.stop_tasks(within_s)
        query.stop()
        if hub is not None:
            hub.close()
        return is_committed

    def _prepare(
        self,
        spark: SparkSession,
        options: ReadOptions,
        store: OffsetStore,
        sink: Sink | None,
        schema: StructType,
        *,
        states: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Check cluster, tables, offsets and sinks before the query starts; create tables that are missing.

        See :func:`check_and_prepare`.
        """
        check_and_prepare(spark, options, store, sink, schema, is_orderly=self._is_orderly, states=states)
        makes_groups = self._settings.own.commit_interval is not None and options.real_time_ms is None
        if sink is not None and makes_groups:
            check_commits_groups(sink, offset_key(options))
        if sink is not None and self._columns is not None:
            check_commits_groups(sink, offset_key(options), what="register_message_columns()")
        log_unused_start(store, offset_key(options), self._settings.own.consume_from_where)
        has_letters = self._has_listener and self._settings.makes_dead_letters(orderly=self._is_orderly)
        warn_of_long_name(self._settings.consumer_group, options.namespace, has_letters=has_letters)

    def _free_name(self, spark: SparkSession) -> str:
        """Return a name that no active query of the session has: the group's, with a number if necessary."""
        name = str(OffsetKey("", self._settings.consumer_group, self._settings.instance_name))
        taken = {query.name for query in spark.streams.active}
        numbered = (f"{name} ({number})" for number in itertools.count(2))
        return next(one for one in itertools.chain([name], numbered) if one not in taken)

    @property
    def _has_listener(self) -> bool:
        """Whether messages go to a listener."""
        return self._table is None and self._columns is None

    @property
    def _uses_state(self) -> bool:
        """Whether messages reach the listener through a shuffle of Spark (``orderly_engine='state'``)."""
        return self._has_listener and not self._settings.reads_in_engine(orderly=self._is_orderly)

    def _rows(self, messages: DataFrame, options: ReadOptions) -> tuple[DataFrame, Engine | None, StructType]:
        """Return the stream for ``foreachBatch``, the engine that makes rows from it, and the sink's columns.

        The engine is None if the stream already has the sink's rows.
        """
        if options.hand_over_ranges:
            messages = tickets_alone(messages)
        if self._table is not None:
            rows = self._table.rows(messages)
            return rows, None, StructType(rows.schema.fields[:-1])
        if self._columns is not None:
            return messages, PickledOnce(LandingEngine(self._columns)), sink_schema(self._columns.schema)
        assert self._output_schema is not None
        schema = listener_schema(self._output_schema)
        rows, engine = self._engine(messages, schema, options)
        return rows, None if engine is None else PickledOnce(engine), sink_schema(schema)

    def _engine(
        self, messages: DataFrame, schema: StructType, options: ReadOptions
    ) -> tuple[DataFrame, Engine | None]:
        """Return the stream for ``foreachBatch``, and the engine that makes rows from it.

        The engine is None if the stream already has the rows (``orderly_engine='state'``).
        """
        listener = form_of(self._listener, self._settings.consumer_group, orderly=self._is_orderly)
        hooks = ConsumeHooks(
            self._hooks, consumer_group=self._settings.consumer_group, namespace=options.namespace
        )
        send_back = SendBackSettings.of(options)
        if not self._is_orderly:
            return messages, ConcurrentEngine(
                listener, schema, self._settings.concurrent(), send_back, hooks=hooks
            )
        orderly = self._settings.orderly()
        is_default = (
            orderly.consume_message_batch_max_size == CONSUMER_DEFAULTS.consume_message_batch_max_size
        )
        if isinstance(self._listener, ChangeListener) and is_default:
            # The sink gets the same rows whatever the size of a call, and larger calls take less time.
            orderly = replace(orderly, consume_message_batch_max_size=self._listener.messages_per_call)
        if self._settings.reads_in_engine(orderly=True):
            make = KeyedRangeConsumer if self._settings.is_by_key else RangeConsumer
            consumer = make(listener, OutputColumns.of(schema), orderly, send_back, hooks)
            return messages, DirectEngine(consumer)
        return state.consume_orderly(
            messages, listener, schema, orderly, send_back=send_back, hooks=hooks
        ), None

    def _store(self, options: ReadOptions) -> OffsetStore:
        store = self._settings.offset_store
        if isinstance(store, str):
            return open_group_store(options)
        if isinstance(store, OpensAgain):
            # The store may be open since an earlier query, and its table may have been deleted since.
            store.open_anew()
        return store

    def _parts(
        self,
        options: ReadOptions,
        store: OffsetStore,
        sink: Sink | None,
        engine: Engine | None,
        *,
        drains: bool,
    ) -> CommitterParts:
        settings = self._settings
        return CommitterParts(
            options=options,
            # A store given by name is opened where it is used.
            store=None if isinstance(settings.offset_store, str) else store,
            sink=sink,
            engine=engine,
            listeners=tuple(self._batch_listeners),
            is_mirrored=settings.own.mirror_offsets and settings.message_model is MessageModel.CLUSTERING,
            tries_for_ever=not settings.gives_up(orderly=self._is_orderly),
            drains=drains,
            commit_interval_s=settings.commit_interval_s(in_real_time=options.real_time_ms is not None),
        )

    def _hub(
        self,
        spark: SparkSession,
        options: ReadOptions,
        store: OffsetStore,
        slots: Callable[[], Slots],
        *,
        has_sink: bool,
    ) -> DriverControl | None:
        """Start the server to which planner and tasks connect, and return it.

        If it cannot open its port or encrypt, log a warning and return None.
        """
        host, bind_host, is_local = driver_address(spark)
        has_engine = options.hand_over_ranges and self._table is None
        is_live = options.real_time_ms is not None
        try:
            return driver_control(
                options,
                store,
                host,
                bind_host,
                must_ask=has_engine and (is_local or is_live),
                # With more tasks than slots, a task with a suspended queue must end to free its slot.
                slots=slots if has_engine and (self._is_orderly or is_live) else Slots,
                calls_end_s=calls_end_s(spark),
                commit_interval_s=self._settings.commit_interval_s(in_real_time=is_live),
                has_sink=has_sink,
                is_encrypted=encrypts_network(spark),
            )
        except OSError as error:
            logger.warning(
                "the driver cannot accept connections of planner and tasks at %s (spark.driver.bindAddress), "
                "so queues change hands and offsets are committed only between two batches group=%s: %s",
                bind_host,
                offset_key(options),
                error,
            )
            return None

    def _listen_for(self, sink: object) -> list[str]:
        """Register the listener of a sink that takes changes of databases; return problems that prevent it.

        For any other sink nothing is registered, and the result is empty.
        """
        given = sink if isinstance(sink, Sequence) else (sink,)
        takes = [
            each for each in given if isinstance(getattr(each, "sink", each), TakesChanges | RoutesChanges)
        ]
        if not takes:
            return []
        if not isinstance(sink, TakesChanges | RoutesChanges):
            return [
                "a ChangeTable gets changes instead of rows, so it must be the only sink, without a Route"
            ]
        is_free = isinstance(self._listener, ChangeListener | TablesListener | None)
        if not (self._has_listener and is_free):
            return [
                "a ChangeTable reads the messages itself; register neither a listener nor a table of messages"
            ]
        listener = ChangeListener(sink) if isinstance(sink, TakesChanges) else TablesListener(sink)
        self.register_message_listener(listener, output_schema=listener.schema)
        return []

    def _source_options(
        self, sink: object = None, problems: Sequence[str] = (), *, needs_listener: bool = True
    ) -> dict[str, str]:
        options = self._settings.source_options(
            self._subscriptions,
            self._listener,
            orderly=self._is_orderly,
            problems=[*self._problems(sink, needs_listener=needs_listener), *problems],
        )
        # A table of messages needs no shuffle, unlike some orderly listeners.
        return options if self._has_listener else options | {"handOverRanges": "true"}

    def _problems(self, sink: object, *, needs_listener: bool) -> list[str]:
        """Return the problems of listener, hooks and sink."""
        problems = []
        registered = [each for each in (self._listener, self._table, self._columns) if each is not None]
        if needs_listener and not registered:
            problems.append(
                "no listener is registered; call register_message_listener(), register_message_table() or "
                "register_message_columns() first"
            )
        if len(registered) > 1:
            problems.append(
                "more than one of a listener, a table of messages and columns of messages is registered; "
                "register only one of them"
            )
        if self._columns is not None:
            problems += self._column_problems(self._columns)
        if self._settings.own.orderly_engine == OrderlyEngineKind.STATE and (
            problem := state.spark_problem()
        ):
            problems.append(problem)
        if self._settings.own.commit_interval is not None:
            problems += self._commit_interval_problems()
        if self._settings.is_by_key:
            problems += self._sharding_key_problems()
        if sink is not None and self._settings.store_kind is StoreKind.BROKER:
            problems.append(
                "offset_store is 'broker:', which accepts commits of a member that has lost its queue, so "
                "the sink could not have each row exactly once; use a DeltaOffsetStore, or no sink"
            )
        sent = [("listener", self._listener), *(("hook", hook) for hook in self._hooks)]
        return problems + [
            f"the {what} {named(one)} cannot be sent to the executors: {reason}; create that object in "
            "the open() of a listener class or at its first use, or register 'module:name'"
            for what, one in sent
            if (reason := why_not_picklable(one)) is not None
        ]

    def _column_problems(self, columns: MessageColumns) -> list[str]:
        """Return why messages cannot be written with only these columns."""
        problems = []
        keeps = self._settings.undecodable_messages is UndecodableMessages.KEEP
        if keeps and PROPERTIES not in columns.names:
            problems.append(
                "undecodable_messages='keep' marks a message that cannot be decoded in its properties, which "
                "register_message_columns() leaves out. Add 'properties' to its columns, or use 'fail'"
            )
        return problems

    def _real_time_problems(self, spark: object) -> list[str]:
        return argument_problems(
            has_listener=self._table is None,
            is_engine_state=self._settings.own.orderly_engine == OrderlyEngineKind.STATE,
            # An object that is no session is reported elsewhere.
            is_classic=spark is None or is_classic(spark),
        )

    def _commit_interval_problems(self) -> list[str]:
        """Return why parts of a micro-batch cannot be committed while it runs."""
        problems = []
        if self._settings.own.orderly_engine == OrderlyEngineKind.STATE:
            problems.append(
                "commit_interval cannot be used with orderly_engine 'state': there rows reach the sink only "
                "at the end of a micro-batch. Leave out one of the two"
            )
        if self._table is not None:
            problems.append(
                "commit_interval cannot be used with register_message_table(): Spark computes such a table, "
                "and its rows reach the sink only at the end of a micro-batch. Use a shorter trigger"
            )
        return problems

    def _sharding_key_problems(self) -> list[str]:
        """Return why messages cannot be consumed in order of their sharding keys."""
        needs = "orderly_by='sharding_key' needs"
        problems = []
        if not self._has_listener:
            registered = "table" if self._columns is None else "columns"
            problems.append(
                f"{needs} a listener, and register_message_{registered}() has none. Leave out orderly_by"
            )
        elif not self._is_orderly:
            problems.append(
                f"{needs} an orderly listener, and this one is concurrent: it gets messages in any order. "
                "Register it with orderly=True, or leave out orderly_by"
            )
        elif self._settings.own.orderly_engine == OrderlyEngineKind.STATE:
            problems.append(
                f"{needs} orderly_engine 'direct': with 'state' the calls for one queue never overlap. Leave "
                "out orderly_engine"
            )
        return problems


def _written_by(function: BatchFunction, rows: DataFrame, name: str, checkpoint: str) -> DataStreamWriter:
    return rows.writeStream.foreachBatch(function).queryName(name).option("checkpointLocation", checkpoint)


def _drained_by(
    hub: DriverControl | None, options: Mapping[str, str]
) -> tuple[dict[str, str], Mapping[str, Any]]:
    """Return the options and the trigger that stand for ``availableNow`` before Spark 4.2.

    Earlier releases of Spark would run only one micro-batch. So here batches follow each other, and when
    everything is consumed, the planner reports this to the driver, which stops the query.

    Raises:
        RocketMQError: If the planner has no connection to the driver.
    """
    if hub is None:
        raise RocketMQError(
            "The trigger availableNow cannot be used: with Spark before 4.2 it needs a connection from the "
            "planner to the driver, and the driver could not open a port. The driver's log has the reason. "
            "Correct spark.driver.bindAddress, or install OpenSSL if Spark encrypts its network; or use a "
            "processingTime trigger, or Spark 4.2 or newer."
        )
    return {**options, "drains": "true"}, {"processingTime": "100 milliseconds"}


def _await_query_id(query_id: Future[str]) -> str:
    """Wait for the query's id, and return it: the first batch may run before ``start()`` has returned.

    Raises:
        RocketMQError: If the id does not come in time.
    """
    try:
        return query_id.result(_QUERY_ID_TIMEOUT_S)
    except TimeoutError:
        raise RocketMQError(
            f"The query did not report its id within {_QUERY_ID_TIMEOUT_S:g} s of its start. Look in the "
            "driver's log for what held up its start, and start it again."
        ) from None
