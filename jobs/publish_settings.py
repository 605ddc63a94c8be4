"""The options of job ``publish``."""

from __future__ import annotations

import json
from dataclasses import dataclass

from jobs.option_set import like_sink
from jobs.settings import ClusterAccess, parse_location
from pyspark_rocketmq.options.declare import option
from pyspark_rocketmq.options.parsers import int_between, text_value
from pyspark_rocketmq.options.write import SINK_GROUP, BodyCompression


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PublishSettings(ClusterAccess):
    """Options of job ``publish``: the sink's, but for those that ``select`` says row by row, such as ``'paid' AS tags``."""

    name_servers: tuple[str, ...] = like_sink("name_servers")
    topic: str = like_sink("topic", doc="The topic the messages go to.")
    input: str = option(
        "input", parse=parse_location, doc="The rows to publish: path or URI of a table or of files."
    )
    input_format: str = option(
        "inputFormat",
        parse=text_value,
        default="delta",
        doc="How they are stored: a format of Spark's, such as delta, parquet, json, orc.",
    )
    select: str = option(
        "select",
        parse=text_value,
        default="to_json(struct(*)) AS body",
        doc="The columns of the messages as SQL: body, keys, tags, shardingKey, delayLevel, properties … (docs/sink.md), such as "
        "'to_json(struct(*)) AS body, id AS keys, id AS shardingKey'.",
    )
    where: str | None = option(
        "where", parse=text_value, default=None, default_text="all rows", doc="Which rows, as SQL."
    )
    order_by: str | None = option(
        "orderBy",
        parse=text_value,
        default=None,
        default_text="the input's order",
        doc="The order in which the rows of each sharding key are sent, as SQL.",
    )
    tasks: int | None = option(
        "tasks",
        parse=int_between(1, 10_000),
        default=None,
        default_text="the session's cores",
        doc="Tasks that send, if there is a column shardingKey.",
    )
    producer_group: str = like_sink("producer_group", default=SINK_GROUP)
    batch_size: int = like_sink("batch_size", default=256)
    batch_bytes: int = like_sink("batch_bytes", default=1024 * 1024)
    max_message_size: int = like_sink("max_message_size", default=4 * 1024 * 1024)
    max_in_flight_bytes: int = like_sink("max_in_flight_bytes", default=32 * 1024 * 1024)
    compression_type: str = like_sink("compression_type", default=BodyCompression.NONE.value)
    compress_over_bytes: int = like_sink("compress_over_bytes", default=4096)
    properties: tuple[tuple[str, str], ...] = like_sink("properties", default=(), default_text="none")
    require_send_ok: bool = like_sink("require_send_ok", default=True)
    send_latency_fault_enable: bool = like_sink("send_latency_fault_enable", default=False)
    check_sharding_keys: bool = like_sink("check_sharding_keys", default=True)
    write_id: str | None = like_sink("write_id", default=None, default_text="a new one")
    request_timeout_ms: int = like_sink("request_timeout_ms", default=5_000)
    retry_timeout_ms: int = like_sink("retry_timeout_ms", default=120_000)

    def sink_options(self) -> dict[str, str]:
        """What goes to the data source as it is."""
        named = {"writeId": self.write_id} if self.write_id is not None else {}
        return {
            "nameServers": ";".join(self.name_servers),
            "topic": self.topic,
            "producerGroup": self.producer_group,
            "batchSize": str(self.batch_size),
            "batchBytes": str(self.batch_bytes),
            "maxMessageSize": str(self.max_message_size),
            "maxInFlightBytes": str(self.max_in_flight_bytes),
            "compressionType": self.compression_type,
            "compressOverBytes": str(self.compress_over_bytes),
            "properties": json.dumps(dict(self.properties)),
            "requireSendOk": str(self.require_send_ok).lower(),
            "sendLatencyFaultEnable": str(self.send_latency_fault_enable).lower(),
            "checkShardingKeys": str(self.check_sharding_keys).lower(),
            "requestTimeoutMs": str(self.request_timeout_ms),
            "retryTimeoutMs": str(self.retry_timeout_ms),
            **named,
            **self.access_options(),
        }
