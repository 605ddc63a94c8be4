"""The options of job ``publish``."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.option_set import like_sink
from jobs.settings import ClusterAccess, parse_location
from pyspark_rocketmq.option_parsers import int_between, text_value
from pyspark_rocketmq.option_set import option
from pyspark_rocketmq.write_options import SINK_GROUP, BodyCompression


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PublishSettings(ClusterAccess):
    """Options of job ``publish``."""

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
    compression_type: str = like_sink("compression_type", default=BodyCompression.NONE.value)
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
            "compressionType": self.compression_type,
            "requestTimeoutMs": str(self.request_timeout_ms),
            "retryTimeoutMs": str(self.retry_timeout_ms),
            **named,
            **self.access_options(),
        }
