"""``PushConsumer``: RocketMQ's consumer, whose engine is a streaming query.

Collects what the user configures under RocketMQ's own names, reports every problem at once, and starts the query:
source in consumer mode, orderly engine, committer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.send_back import SendBackSettings
from pyspark_rocketmq.consume.allocation_names import allocation_strategy
from pyspark_rocketmq.consume.concurrent import DEFAULT_MAX_RECONSUME_TIMES, ConcurrentSettings
from pyspark_rocketmq.consume.orderly import UNLIMITED, OrderlySettings
from pyspark_rocketmq.datasource.format import register
from pyspark_rocketmq.datasource.group_at_brokers import open_group_store
from pyspark_rocketmq.datasource.group_member import progress_name
from pyspark_rocketmq.errors import OptionError, RocketMQError
from pyspark_rocketmq.model import ConsumeFromWhere, MessageModel, OrderlyEngineKind
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore
from pyspark_rocketmq.offsets.progress_name import ProgressName
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.streaming.batch_task import ArrowEngine
from pyspark_rocketmq.streaming.committer import BatchCommitter, BatchListener
from pyspark_rocketmq.streaming.concurrent_engine import consume_concurrently
from pyspark_rocketmq.streaming.consume_hooks import ConsumeHooks, ConsumeMessageHook
from pyspark_rocketmq.streaming.delta_sink import DeltaSink
from pyspark_rocketmq.streaming.direct_engine import DirectEngine
from pyspark_rocketmq.streaming.emitted_values import OutputColumns
from pyspark_rocketmq.streaming.listener_forms import form_of, named
from pyspark_rocketmq.streaming.offset_mirror import OffsetMirror
from pyspark_rocketmq.streaming.orderly_engine import consume_orderly
from pyspark_rocketmq.streaming.output_schema import listener_schema, sink_schema
from pyspark_rocketmq.streaming.pickling import why_not_picklable
from pyspark_rocketmq.streaming.range_consumer import RangeConsumer
from pyspark_rocketmq.streaming.speculation import check_speculation
from pyspark_rocketmq.streaming.worker_python import check_worker_python

_DEFAULT_MAX_OFFSETS_PER_TRIGGER = 100_000
"""A backlog of millions must not become one micro-batch: a queue's share is sorted in memory."""
_DEFAULT_LOOK_BACK = timedelta(minutes=30)
"""``DefaultMQPushConsumer.consumeTimestamp``: now - 30 min."""
_QUERY_ID_TIMEOUT_S = 60.0
_SET_BY = {
    "nameServers": "parameter name_servers",
    "topic": "subscribe()",
    "topics": "subscribe()",
    "subscription": "subscribe()",
    "subscriptions": "subscribe()",
    "sqlFilter": "subscribe(sql=…)",
    "consumerGroup": "parameter consumer_group",
    "offsetStore": "parameter offset_store",
    "startingOffsets": "parameter consume_from_where",
    "startingTimestamp": "parameters consume_from_where and consume_timestamp",
    "maxOffsetsPerTrigger": "parameter max_offsets_per_trigger",
    "messageModel": "parameter message_model",
    "consumeOrderly": "parameter orderly of register_message_listener()",
    "listener": "register_message_listener()",
    "allocateMessageQueueStrategy": "parameter allocate_message_queue_strategy",
    "instanceName": "parameter instance_name",
}
"""Options of the source that this consumer sets itself, and from what."""
_SETTER_OF = {key.lower(): setter for key, setter in _SET_BY.items()}
"""By the key in lower case: Spark matches keys without regard to case."""


class PushConsumer:
    """A consumer of one topic or several; configure, subscribe, register a listener, start.

    Args:
        consumer_group: The group whose offsets are used.
        name_servers: ``host:port``, several separated by ``;``.
        offset_store: Where the group's offsets are kept: a store, or what option ``offsetStore`` takes.
        message_model: CLUSTERING shares the queues among the group's members; BROADCASTING reads all of them in every
            query, with progress of its own under ``instance_name``.
        consume_from_where: Where a group without stored offsets begins.
        consume_timestamp: ``yyyyMMddHHmmss`` in UTC for CONSUME_FROM_TIMESTAMP; half an hour ago by default.
        consume_message_batch_max_size: Most messages per listener call, 1..1024.
        max_reconsume_times: How often a message that fails is delivered again before it goes to the group's dead letters
            (``%DLQ%GROUP``) and its queue goes on; -1, no limit, or 16 with a concurrent listener.
        suspend_current_queue_time_millis: Pause of a queue after SUSPEND, clamped to 10..30000 ms.
        consume_thread_max: Most calls of a concurrent listener at the same time in one task, 1..1000.
        consume_timeout_s: Longest call of a concurrent listener; its messages are sent back then.
        max_offsets_per_trigger: Most messages of one micro-batch.
        allocate_message_queue_strategy: How the members share the queues; the same for all of them.
        instance_name: Names this member; with one that stays, a query that was killed has its queues back at once.
        mirror_offsets: Show each committed offset to the brokers too, for mqadmin, dashboards and Java members of the
            group. CLUSTERING only.
        orderly_engine: How Spark runs an orderly listener; ``state`` or ``direct``. Both keep the same promises; what a
            listener without auto_commit has emitted and not committed is bounded to a megabyte per queue with
            ``direct``. A query whose engine is changed needs a new checkpoint.
        options: Further options of the source, such as ``{"pullBatchSize": "32"}``, those of access control, TLS and
            the namespace among them; none that a parameter sets.
    """

    def __init__(
        self,
        *,
        consumer_group: str,
        name_servers: str,
        offset_store: OffsetStore | str,
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp: str | None = None,
        consume_message_batch_max_size: int = 1,
        max_reconsume_times: int = -1,
        suspend_current_queue_time_millis: int = 1000,
        consume_thread_max: int = 20,
        consume_timeout_s: float = 900.0,
        max_offsets_per_trigger: int = _DEFAULT_MAX_OFFSETS_PER_TRIGGER,
        allocate_message_queue_strategy: str = "averagely",
        instance_name: str | None = None,
        mirror_offsets: bool = True,
        orderly_engine: OrderlyEngineKind | str = OrderlyEngineKind.STATE,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._group = consumer_group
        self._name_servers = name_servers
        self._store = offset_store
        self._message_model = message_model
        self._consume_from_where = consume_from_where
        self._consume_timestamp = consume_timestamp
        self._batch_max_size = consume_message_batch_max_size
        self._max_reconsume_times = max_reconsume_times
        self._suspend_millis = suspend_current_queue_time_millis
        self._thread_max = consume_thread_max
        self._timeout_s = consume_timeout_s
        self._max_offsets_per_trigger = max_offsets_per_trigger
        self._strategy = allocate_message_queue_strategy
        self._instance_name = instance_name
        self._mirror_offsets = mirror_offsets
        self._orderly_engine = orderly_engine
        self._options = dict(options or {})
        self._subscriptions: dict[str, str | dict[str, str]] = {}
        self._listener: Any = None
        self._is_orderly = True
        self._output_schema: StructType | str | None = None
        self._batch_listeners: list[BatchListener] = []
        self._hooks: list[ConsumeMessageHook] = []

    def subscribe(self, topic: str, expression: str = "*", *, sql: str | None = None) -> None:
        """Subscribe to the messages of ``topic`` whose tag matches, such as ``created || paid``.

        Once for each topic; all members of the group must subscribe to the same.

        Args:
            topic: Where they are.
            expression: Tags, or ``*`` for all.
            sql: An SQL92 condition on their properties in the place of tags (``MessageSelector.bySql``); the brokers
                filter, and must have ``enablePropertyFilter=true``.
        """
        self._subscriptions[topic] = expression if sql is None else {"sql": sql}

    def register_message_listener(
        self, listener: object, *, orderly: bool = True, output_schema: str | StructType
    ) -> None:
        """Set the listener. It is pickled to the executors; one that holds connections has an ``open``.

        Args:
            listener: Called with messages of one queue and a context. An orderly one may be a function, a generator
                function, a ``PandasListener``, a class with ``consume_message``, or the ``module:name`` of any of these; a
                concurrent one a function, also an ``async def``.
            orderly: True: in order, one call at a time per queue. False: in any order, many calls at the same time;
                what fails comes again through the group's retry topic.
            output_schema: Columns of the rows it emits, such as ``"order_id string, step string"``.

        Raises:
            OptionError: If an orderly listener has none of these forms.
            SchemaError: If the schema cannot be used.
        """
        # A schema given as text can be parsed only where there is a session; start() has one.
        can_parse = SparkSession.getActiveSession() is not None or isinstance(output_schema, StructType)
        self._output_schema = listener_schema(output_schema) if can_parse else output_schema
        if orderly:
            form_of(listener)
        self._listener = listener
        self._is_orderly = orderly

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Have ``hook`` called on the executors before and after each call of an orderly listener (row D10)."""
        self._hooks.append(hook)

    def register_batch_listener(self, listener: BatchListener) -> None:
        """Have ``listener`` called on the driver after each micro-batch is committed, for progress and metrics."""
        self._batch_listeners.append(listener)

    def start(
        self,
        spark: SparkSession,
        *,
        sink: DeltaSink | None = None,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
    ) -> StreamingQuery:
        """Start consuming.

        Args:
            spark: A classic session (foreachBatch runs in this process).
            sink: Where emitted rows go; None when the listener's side effects are all that is wanted.
            checkpoint: Folder of Spark's checkpoint. It may be lost: the offset store holds the progress.
            trigger: As ``DataStreamWriter.trigger``'s arguments; every second by default.
            query_name: Name in Spark's UI, unique in the session; by default ``GROUP``, or ``GROUP@INSTANCE`` for a member
                with an instance name.

        Raises:
            OptionError: With everything that is wrong with the configuration.
            SchemaError: If the sink's table does not fit the listener's output.
            RocketMQError: If the executors' Python lacks this package.
        """
        options, settings = self._checked(sink)
        assert self._listener is not None
        assert self._output_schema is not None
        schema = listener_schema(self._output_schema)
        check_speculation(spark)
        check_worker_python(spark)
        register(spark)
        if sink is not None:
            sink.prepare(to_arrow_schema(sink_schema(schema), timezone="UTC"))
        messages = spark.readStream.format("rocketmq").options(**options).load()
        parsed = ReadOptions.parse(options)
        send_back = SendBackSettings.of(parsed)
        engine = None
        if isinstance(settings, ConcurrentSettings):
            rows = consume_concurrently(messages, self._listener, schema, settings, send_back=send_back)
        elif self._orderly_engine == OrderlyEngineKind.DIRECT:
            consumer = RangeConsumer(
                form_of(self._listener, self._group),
                OutputColumns.of(schema),
                settings,
                send_back,
                self._consume_hooks(parsed),
            )
            rows, engine = messages, DirectEngine(consumer, schema)
        else:
            rows = consume_orderly(
                messages,
                form_of(self._listener, self._group),
                schema,
                settings,
                send_back=send_back,
                hooks=self._consume_hooks(parsed),
            )
        started = _Started()
        committer = self._committer(parsed, sink, started.query_id, engine)
        query = (
            rows.writeStream.foreachBatch(committer)
            .queryName(query_name or str(ProgressName("", self._group, self._instance_name)))
            .option("checkpointLocation", checkpoint)
            .trigger(**(dict(trigger) if trigger is not None else {"processingTime": "1 second"}))
            .start()
        )
        started.set(str(query.id))
        return query

    def _consume_hooks(self, options: ReadOptions) -> ConsumeHooks:
        return ConsumeHooks(self._hooks, consumer_group=self._group, namespace=options.namespace)

    def _committer(
        self,
        options: ReadOptions,
        sink: DeltaSink | None,
        query_id: Callable[[], str],
        engine: ArrowEngine | None,
    ) -> BatchCommitter:
        name = progress_name(options)
        store = open_group_store(options) if isinstance(self._store, str) else self._store
        is_shown = (
            self._mirror_offsets
            and self._message_model is MessageModel.CLUSTERING
            and not isinstance(store, BrokerOffsetStore)
        )
        return BatchCommitter(
            consumer_group=name,
            store=store,
            sink=sink,
            query_id=query_id,
            listeners=list(self._batch_listeners),
            mirror=OffsetMirror(options, store, name).show if is_shown else None,
            engine=engine,
        )

    @property
    def _store_spec(self) -> str:
        return self._store if isinstance(self._store, str) else self._store.spec

    def _checked(
        self, sink: DeltaSink | None = None
    ) -> tuple[dict[str, str], OrderlySettings | ConcurrentSettings]:
        """The source's options and the engine's settings, or every problem at once."""
        problems = self._own_problems(sink) + self._overridden() + self._unpicklable()
        options = {
            "nameServers": self._name_servers,
            "consumerGroup": self._group,
            "offsetStore": self._store_spec,
            "maxOffsetsPerTrigger": str(self._max_offsets_per_trigger),
            "messageModel": self._message_model.value,
            "consumeOrderly": str(self._is_orderly).lower(),
            "allocateMessageQueueStrategy": self._strategy,
            **({"listener": self._listener} if self._is_orderly and isinstance(self._listener, str) else {}),
            **({} if self._instance_name is None else {"instanceName": self._instance_name}),
            **({"subscriptions": json.dumps(self._subscriptions)} if self._subscriptions else {}),
            **self._start_option(problems),
            **{key: text for key, text in self._options.items() if key.lower() not in _SETTER_OF},
        }
        for check in (lambda: ReadOptions.parse(options), lambda: allocation_strategy(self._strategy)):
            try:
                check()
            except OptionError as error:
                problems += error.problems
        if problems:
            raise OptionError(tuple(problems), where=f"configuration of consumer group '{self._group}'")
        return options, self._orderly_settings() if self._is_orderly else self._concurrent_settings()

    def _orderly_settings(self) -> OrderlySettings:
        return OrderlySettings(
            consume_message_batch_max_size=self._batch_max_size,
            suspend_current_queue_time_millis=self._suspend_millis,
            max_reconsume_times=self._max_reconsume_times,
        )

    def _concurrent_settings(self) -> ConcurrentSettings:
        is_default = self._max_reconsume_times == UNLIMITED
        return ConcurrentSettings(
            consume_message_batch_max_size=self._batch_max_size,
            consume_thread_max=self._thread_max,
            max_reconsume_times=DEFAULT_MAX_RECONSUME_TIMES if is_default else self._max_reconsume_times,
            consume_timeout_s=self._timeout_s,
            message_model=self._message_model,
        )

    def _own_problems(self, sink: DeltaSink | None) -> list[str]:
        checks = (
            (self._listener is None, "no listener is registered; call register_message_listener() first"),
            (
                bool(self._hooks) and not self._is_orderly,
                "hooks are called around an orderly listener's calls only, and this listener is concurrent",
            ),
            (
                self._store_spec.startswith("broker:") and sink is not None,
                (
                    "offset_store is 'broker:', which fences nobody, so the sink could not have each row exactly once; "
                    "use a DeltaOffsetStore, or no sink"
                ),
            ),
            (
                self._store_spec.startswith("memory:"),
                (
                    f"offset_store is '{self._store_spec}': progress kept in this process cannot be seen by Spark's "
                    "planner process; use DeltaOffsetStore"
                ),
            ),
            (
                self._orderly_engine not in tuple(OrderlyEngineKind),
                f"orderly_engine='{self._orderly_engine}' is none of {', '.join(OrderlyEngineKind)}",
            ),
            (
                not 1 <= self._batch_max_size <= 1024,
                f"consume_message_batch_max_size={self._batch_max_size} is not between 1 and 1024",
            ),
            (
                not 1 <= self._thread_max <= 1000,
                f"consume_thread_max={self._thread_max} is not between 1 and 1000",
            ),
            (
                self._timeout_s <= 0,
                f"consume_timeout_s={self._timeout_s} must be more than 0",
            ),
            (
                self._max_reconsume_times < UNLIMITED,
                f"max_reconsume_times={self._max_reconsume_times} must be -1 (no limit), 0 or more",
            ),
        )
        return [sentence for is_wrong, sentence in checks if is_wrong]

    def _unpicklable(self) -> list[str]:
        sent = [("listener", self._listener), *(("hook", hook) for hook in self._hooks)]
        return [
            f"the {what} {named(one)} cannot be sent to the executors: {reason}; make it in the open() of a listener class "
            "or when it is first needed, or register 'module:name'"
            for what, one in sent
            if (reason := why_not_picklable(one)) is not None
        ]

    def _overridden(self) -> list[str]:
        return [
            f"options={{'{key}': …}} would override what this consumer sets itself; use {_SETTER_OF[key.lower()]}"
            for key in self._options
            if key.lower() in _SETTER_OF
        ]

    def _start_option(self, problems: list[str]) -> dict[str, str]:
        match self._consume_from_where:
            case ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
                return {"startingOffsets": "earliest"}
            case ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
                return {"startingOffsets": "latest"}
            case ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
                return {"startingTimestamp": str(self._timestamp_ms(problems))}

    def _timestamp_ms(self, problems: list[str]) -> int:
        at = datetime.now(UTC) - _DEFAULT_LOOK_BACK
        if self._consume_timestamp is not None:
            try:
                at = datetime.strptime(self._consume_timestamp, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
            except ValueError:
                problems.append(
                    f"consume_timestamp='{self._consume_timestamp}' is not a time written as yyyyMMddHHmmss"
                )
        return int(at.timestamp() * 1000)


class _Started:
    """Hands the query's id to the committer, whose first batch may run before ``start()`` has returned."""

    def __init__(self) -> None:
        self._is_known = threading.Event()
        self._query_id = ""

    def set(self, query_id: str) -> None:
        self._query_id = query_id
        self._is_known.set()

    def query_id(self) -> str:
        if not self._is_known.wait(_QUERY_ID_TIMEOUT_S):
            raise RocketMQError(
                f"The query did not tell its id within {_QUERY_ID_TIMEOUT_S:g} s of its start."
            )
        return self._query_id
