"""Options of each command."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from pyspark_rocketmq.cli.settings import (
    GROUP_DOC,
    OFFSET_STORE_DOC,
    STORAGE_DOC,
    ClusterAccess,
    like_consumer,
    like_source,
    like_stored_group,
    like_writer,
    parse_location,
    parse_location_of_spark,
    parse_table,
)
from pyspark_rocketmq.consumer.settings import REAL_TIME, SET_BY
from pyspark_rocketmq.delta.paths import TableName
from pyspark_rocketmq.model import (
    DEFAULT_MESSAGE_COLUMNS,
    BodyType,
    ConsumeFromWhere,
    MessageModel,
    OrderlyBy,
    OrderlyEngineKind,
    UndecodableMessages,
)
from pyspark_rocketmq.options.consumer import real_time_ms
from pyspark_rocketmq.options.declare import OptionSet, option
from pyspark_rocketmq.options.parsers import (
    MAX_TOPIC_LENGTH,
    boolean,
    int_between,
    list_of,
    one_of,
    parses,
    resource_name,
    text_value,
)
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.subscription import Subscription, subscriptions_of, topic_problems
from pyspark_rocketmq.options.write import BodyCompression, WriteOptions

_REAL_TIME: Final = "5 minutes"
"""Default length of a batch in real time."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplaySettings(ReadOptions):
    """Options of command ``replay``: those of a batch read, and the target of the messages."""

    to_table: str | None = option("toTable", parse_table, None).doc(
        "The Delta table to which the messages that it lacks are added: path, URI or CATALOG.SCHEMA.TABLE; "
        "created if missing."
    )
    to_topic: str | None = option("toTopic", resource_name("topic", MAX_TOPIC_LENGTH), None).doc(
        "The topic to which the messages are sent, in place of toTable."
    )
    record: str | None = option("record", parse_location, None).doc(
        "With toTopic: the Delta table that records which messages were replayed, so that a later run does "
        "not send them again: path or URI; created if missing."
    )
    offsets_per_step: int = option("offsetsPerStep", int_between(1, 2**31 - 1), 200_000, unit="offsets").doc(
        "Approximate number of offsets read between two commits."
    )

    def cross_field_problems(self) -> list[str]:
        """Return a sentence for each problem of options that depend on others.

        The options must suit a batch read. Exactly one of ``toTable`` and ``toTopic`` must be given, and
        ``record`` must be given if ``toTopic`` is, and only then.
        """
        problems = ReadOptions.cross_field_problems(self) + self.problems_of_batch()
        if (self.to_table is None) == (self.to_topic is None):
            problems.append("give one of the options 'toTable' and 'toTopic'")
        if (self.to_topic is None) != (self.record is None):
            problems.append(
                "options 'toTopic' and 'record' go together: a topic does not record what was replayed into "
                "it"
            )
        return problems


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TablesCompactSettings(OptionSet):
    """Options of command ``tables compact``."""

    table: str = option("table", parse_table).doc("The Delta table: path or URI.")
    storage_secrets: str | None = like_source("storage_secrets", doc=STORAGE_DOC)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OffsetsShowSettings(ClusterAccess):
    """Options of command ``offsets show``."""

    offset_store: str = like_source("offset_store", required=True, doc=OFFSET_STORE_DOC)
    storage_secrets: str | None = like_source("storage_secrets", doc=STORAGE_DOC)
    consumer_group: str | None = like_stored_group(
        default_text="all groups", doc="The consumer group to show."
    )
    name_servers: tuple[str, ...] | None = like_source(
        "name_servers", default=None, default_text="none: without the broker's bounds and the lag"
    )
    request_timeout_ms: int = like_source("request_timeout_ms")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OffsetsHistorySettings(ClusterAccess):
    """Options of commands ``offsets history`` and ``offsets diff``.

    Only ``namespace`` of the cluster's options counts, given or implied by ``nameServers``. The others are
    accepted so that one ``--conf`` file serves all ``offsets`` commands.
    """

    offset_store: str = like_source("offset_store", required=True, doc=OFFSET_STORE_DOC)
    storage_secrets: str | None = like_source("storage_secrets", doc=STORAGE_DOC)
    consumer_group: str = like_stored_group(required=True, doc=GROUP_DOC)
    name_servers: tuple[str, ...] | None = like_source(
        "name_servers", default=None, default_text="none", doc="Not used: the store has all the facts."
    )
    request_timeout_ms: int = like_source("request_timeout_ms")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OffsetsChangeSettings(ClusterAccess):
    """Options of the commands that move a group: ``offsets reset``, ``skip``, ``clone``, ``accept-gap``."""

    offset_store: str = like_source("offset_store", required=True, doc=OFFSET_STORE_DOC)
    storage_secrets: str | None = like_source("storage_secrets", doc=STORAGE_DOC)
    consumer_group: str = like_stored_group(required=True, doc="The consumer group to move.")
    name_servers: tuple[str, ...] | None = like_source(
        "name_servers", default=None, default_text="none: without bounds, times, and who is consuming"
    )
    request_timeout_ms: int = like_source("request_timeout_ms")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OffsetsLagSettings(ClusterAccess):
    """Options of command ``offsets lag``."""

    offset_store: str = like_source("offset_store", required=True, doc=OFFSET_STORE_DOC)
    storage_secrets: str | None = like_source("storage_secrets", doc=STORAGE_DOC)
    name_servers: tuple[str, ...] = like_source("name_servers")
    consumer_group: str | None = like_stored_group(
        default_text="all groups", doc="The consumer group to look at."
    )
    request_timeout_ms: int = like_source(
        "request_timeout_ms",
        default=1_500,
        doc="How long one request to a name server, a broker or a member of the group may take. Without an "
        "answer in that time, columns stay empty.",
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PublishSettings(ClusterAccess):
    """Options of command ``publish``: the rows, and the sink's options that are no columns of ``select``."""

    name_servers: tuple[str, ...] = like_writer("name_servers")
    topic: str = like_writer("topic", required=True, doc="The topic the messages go to.")
    input: str = option("input", parse_location_of_spark).doc(
        "The rows to publish: path or URI of a table or of files."
    )
    input_format: str = option("inputFormat", text_value, "delta").doc(
        "The format of the rows in input, as Spark names it: delta, parquet, json, orc."
    )
    select: str = option("select", text_value, "to_json(struct(*)) AS body").doc(
        "The columns of the messages as SQL: body, keys, tags, shardingKey, delayLevel, properties … "
        "(docs/how-to/writing.md), such as 'to_json(struct(*)) AS body, id AS keys, id AS shardingKey'."
    )
    where: str | None = option("where", text_value, None, default_text="all rows").doc("Which rows, as SQL.")
    order_by: str | None = option("orderBy", text_value, None, default_text="the input's order").doc(
        "The order in which the rows of each sharding key are sent, as SQL."
    )
    tasks: int | None = option("tasks", int_between(1, 10_000), None, default_text="the session's cores").doc(
        "Number of tasks that send, if there is a column shardingKey."
    )
    producer_group: str = like_writer("producer_group")
    batch_size: int = like_writer("batch_size")
    batch_bytes: int = like_writer("batch_bytes")
    batch_send: bool = like_writer("batch_send")
    max_message_size: int = like_writer("max_message_size")
    max_in_flight_bytes: int = like_writer("max_in_flight_bytes")
    compression_type: str = like_writer("compression_type", default=BodyCompression.NONE.value)
    compress_over_bytes: int = like_writer("compress_over_bytes")
    properties: tuple[tuple[str, str], ...] = like_writer("properties")
    require_send_ok: bool = like_writer("require_send_ok")
    send_latency_fault_enable: bool = like_writer("send_latency_fault_enable")
    check_sharding_keys: bool = like_writer("check_sharding_keys")
    write_id: str | None = like_writer("write_id", default_text="a new one")
    request_timeout_ms: int = like_writer("request_timeout_ms")
    retry_timeout_ms: int = like_writer("retry_timeout_ms")

    def sink_options(self) -> dict[str, str]:
        """Return the options of the write with format ``rocketmq``, as strings by key."""
        return self.options_for(WriteOptions)


@dataclass(frozen=True, slots=True)
class Trigger:
    """Trigger of a consumer's query: an interval, real time, or (if neither is given) ``availableNow``."""

    interval: str | None = None
    """Time between two micro-batches."""
    real_time: str | None = None
    """Length of a batch in real time.

    If neither this nor ``interval`` is given, the query ends when it has consumed all messages that were
    there at its start.
    """

    def keywords(self) -> dict[str, Any]:
        """Return the trigger in the form of argument ``trigger`` of ``PushConsumer.start``."""
        if self.real_time is not None:
            return {REAL_TIME: self.real_time}
        return {"availableNow": True} if self.interval is None else {"processingTime": self.interval}


@parses("`availableNow`, interval, or `realTime`, which the length of a batch may follow")
def parse_trigger(text: str) -> Trigger:
    """Parser of ``availableNow``, an interval, and ``realTime`` as in ``realTime 5 minutes``."""
    value = text.strip()
    if value.lower() == "availablenow":
        return Trigger()
    word, _, length = value.partition(" ")
    if word.lower() == REAL_TIME.lower():
        lasts = length.strip() or _REAL_TIME
        real_time_ms(lasts)
        return Trigger(real_time=lasts)
    if re.fullmatch(r"\d+ (millisecond|second|minute|hour)s?", value):
        return Trigger(value)
    raise ValueError(
        "is not a trigger; write availableNow, an interval such as '1 second', or realTime, which may be "
        "followed by the length of a batch ('realTime 5 minutes')"
    )


@parses("list of strings")
def parse_locations(text: str) -> tuple[str, ...]:
    """Parser of paths and URIs that Spark reads, separated by commas."""
    return tuple(parse_location_of_spark(part) for part in text.split(",") if part.strip())


@parses("string")
def parse_listener_name(text: str) -> str:
    """Parser of ``module:function``."""
    value = text.strip()
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
        raise ValueError("is not module:function, such as order_jobs:on_order")
    return value


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumeSettings(ClusterAccess):
    """Options of command ``consume``."""

    name_servers: tuple[str, ...] = like_source("name_servers")
    topic: str | None = like_source("topic")
    topics: tuple[str, ...] = like_source("topics")
    subscription: str = like_source("subscription")
    sql_filter: str | None = like_source("sql_filter")
    subscriptions: tuple[Subscription, ...] = like_source("subscriptions")
    consumer_group: str = like_source("consumer_group", required=True, doc=GROUP_DOC)
    listener: str | None = option("listener", parse_listener_name, instead=("bodySchema", "raw")).doc(
        "The message listener, in any of its forms, as module:name. The module is in pyFiles, on PYTHONPATH "
        "or in the current directory."
    )
    output_schema: str | None = option("outputSchema", text_value, instead=("bodySchema", "raw")).doc(
        "Columns the listener emits, as DDL such as 'order_id string, step string'."
    )
    body_schema: str | None = option("bodySchema", text_value, None).doc(
        "In place of a listener, for bodies of JSON: the columns of the row that each message becomes, as "
        "DDL."
    )
    raw: bool = option("raw", boolean, False).doc(
        "In place of a listener: each message becomes a row as it is, with the columns messageColumns."
    )
    message_columns: tuple[str, ...] = option(
        "messageColumns",
        list_of(text_value),
        (),
        default_text=f"none; with raw: {','.join(DEFAULT_MESSAGE_COLUMNS)}",
    ).doc(
        "With bodySchema or raw: columns of the message to keep besides its position, such as "
        "'keys,tags,properties'."
    )
    body_type: BodyType = option("bodyType", one_of(BodyType), BodyType.BINARY).doc(
        "With raw: type of the column body."
    )
    bad_record_column: str = option("badRecordColumn", text_value, "badRecord").doc(
        "With bodySchema: the column for bodies that are not such JSON. With raw and bodyType=string: the "
        "column for bodies that are not UTF-8."
    )
    sink: str = option("sink", parse_table).doc(
        "The Delta table for the emitted rows: path, URI or CATALOG.SCHEMA.TABLE."
    )
    sink_staging: str | None = option("sinkStaging", parse_location, None).doc(
        "For a sink that is given by its name in a catalog: folder or URI where tasks write rows until Spark "
        "adds them to the table. Needed if tasks may not write beside the table."
    )
    partition_by: tuple[str, ...] = option("partitionBy", list_of(text_value), ()).doc(
        "Partition columns of the sink, such as 'topic,day'. A sink that exists keeps its own."
    )
    merge_keys: tuple[str, ...] = option("mergeKeys", list_of(text_value), ()).doc(
        "Columns of a business key: the sink keeps only the newest row of each key."
    )
    schema_evolution: bool = option("schemaEvolution", boolean, False).doc(
        "Add to the sink the columns that it lacks. Columns that the rows lack become null."
    )
    compaction: bool = option("compaction", boolean, True).doc(
        "Compact the sink's small files now and then, beside the batches."
    )
    offset_store: str = like_source("offset_store", required=True, doc=OFFSET_STORE_DOC)
    storage_secrets: str | None = like_source("storage_secrets", doc=STORAGE_DOC)
    checkpoint: str = option("checkpoint", parse_location_of_spark).doc("Folder of Spark's own checkpoint.")
    trigger: Trigger = option("trigger", parse_trigger, Trigger("1 second"), default_text="1 second").doc(
        "availableNow: consume what is there, and end. An interval such as '5 seconds': run until stopped, "
        "with a micro-batch in each interval. realTime: run until stopped, and consume each message when it "
        "arrives ([real time](how-to/real-time.md))."
    )
    py_files: tuple[str, ...] = option("pyFiles", parse_locations, ()).doc(
        "Python files and zip archives the listener needs, separated by commas."
    )
    consume_from_where: ConsumeFromWhere = like_consumer("consume_from_where")
    consume_timestamp: str | None = like_consumer("consume_timestamp")
    consume_message_batch_max_size: int = like_consumer("consume_message_batch_max_size")
    max_reconsume_times: int = like_consumer("max_reconsume_times")
    consume_orderly: bool = like_source(
        "consume_orderly",
        doc="true: the listener is orderly. false: it is concurrent, and many of its calls run at the same "
        "time.",
    )
    consume_thread_max: int = like_consumer("consume_thread_max")
    consume_timeout_s: int = like_consumer("consume_timeout_s")
    suspend_current_queue_time_millis: int = like_consumer("suspend_current_queue_time_millis")
    message_model: MessageModel = like_source("message_model")
    allocate_message_queue_strategy: str = like_source("allocate_message_queue_strategy")
    instance_name: str | None = like_source("instance_name")
    commit_interval: str | None = like_consumer("commit_interval")
    mirror_offsets: bool = like_consumer("mirror_offsets")
    orderly_by: OrderlyBy = like_consumer("orderly_by")
    orderly_engine: OrderlyEngineKind = like_consumer("orderly_engine")
    metrics_port: int | None = option("metricsPort", int_between(1, 65_535), None).doc(
        "Serve the query's metrics to Prometheus, at http://metricsHost:metricsPort/metrics."
    )
    metrics_host: str = option("metricsHost", text_value, "127.0.0.1").doc(
        "Address of this machine at which metricsPort listens; 0.0.0.0 means all addresses."
    )
    max_offsets_per_trigger: int = like_consumer("max_offsets_per_trigger")
    fail_on_data_loss: bool = like_source("fail_on_data_loss")
    undecodable_messages: UndecodableMessages = like_source("undecodable_messages")
    pull_batch_size: int = like_source("pull_batch_size")
    pulls_in_flight: int = like_source("pulls_in_flight")
    request_timeout_ms: int = like_source("request_timeout_ms")
    retry_timeout_ms: int = like_source("retry_timeout_ms")

    def cross_field_problems(self) -> list[str]:
        """Return a sentence for each problem of options that depend on others.

        Without this check, some of these problems would stay unnoticed; others would end the command only
        after Spark's start.
        """
        problems = topic_problems(self) + ClusterAccess.cross_field_problems(self)
        problems += self._listener_problems()
        wanted = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        if self.consume_timestamp is not None and self.consume_from_where is not wanted:
            problems.append(f"option 'consumeTimestamp' needs consumeFromWhere={wanted}")
        is_named = TableName.of(self.sink) is not None
        if not is_named and self.sink_staging is not None:
            problems.append(
                "option 'sinkStaging' is only for a sink that is named as in a catalog "
                "(CATALOG.SCHEMA.TABLE); leave it out for a path"
            )
        if self.message_model is MessageModel.BROADCASTING and self.instance_name is None:
            problems.append(
                "option 'messageModel=BROADCASTING' needs 'instanceName', under which this query's progress "
                "is kept"
            )
        return problems

    def _listener_problems(self) -> list[str]:
        ways = {"bodySchema": self.body_schema is not None, "raw": self.raw}
        chosen = [key for key, is_given in ways.items() if is_given]
        if len(chosen) > 1:
            return ["options 'bodySchema' and 'raw' exclude each other: bodies are decoded or kept"]
        if not chosen and (self.listener is None or self.output_schema is None):
            # Such as raw=true in the file and --option raw=false: ``raw`` is then given, but chooses nothing.
            return ["give the options 'listener' and 'outputSchema', or 'bodySchema', or 'raw=true'"]
        return [
            f"options '{way}' and '{key}' exclude each other: a message goes to a listener or becomes a row"
            for way in chosen
            for key, value in (("listener", self.listener), ("outputSchema", self.output_schema))
            if value is not None
        ]

    def subscribed(self) -> tuple[Subscription, ...]:
        """Return the consumer's subscriptions: option ``subscriptions``, or the topics with one filter."""
        topics = self.topics if self.topic is None else (self.topic,)
        return self.subscriptions or subscriptions_of(topics, self.subscription, self.sql_filter)

    def source_options(self) -> dict[str, str]:
        """Return the options that the data source gets unchanged, as strings by key.

        Options that ``PushConsumer`` sets itself are left out.
        """
        return self.options_for(ReadOptions, but=SET_BY)
