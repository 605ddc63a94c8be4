"""Every option of writing with ``format("rocketmq")``, declared once, like those of reading in ``read``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark_rocketmq.model import MAX_MESSAGE_BYTES
from pyspark_rocketmq.options.connection import ConnectionOptions
from pyspark_rocketmq.options.declare import write_option
from pyspark_rocketmq.options.parsers import (
    MAX_TOPIC_LENGTH,
    UNBOUNDED,
    boolean,
    int_between,
    json_texts,
    one_of,
    parses,
    resource_name,
    text_value,
)

SINK_GROUP: Final = "pyspark-rocketmq-sink"
"""Default producer group of a sink."""
MOST_MESSAGE_BYTES: Final = 128 * 1024 * 1024
"""Maximum size of a body that decoders accept (``wire.compression.MAX_BODY_BYTES``)."""


class BodyCompression(StrEnum):
    """How message bodies are compressed; ``NONE`` leaves them as they are."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


@parses("JSON")
def parse_properties(text: str) -> tuple[tuple[str, str], ...]:
    """Parser of a JSON object of strings."""
    found = json_texts(text, '{"source": "lake"}')
    empty = [name for name, value in found.items() if not name or not value]
    if empty:
        raise ValueError(f"has an empty name or value at {empty[0]!r}, which every consumer would drop")
    return tuple(found.items())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WriteOptions(ConnectionOptions):
    """Options of the sink, for batch and for streams."""

    topic: str | None = write_option(
        "topic", resource_name("topic", MAX_TOPIC_LENGTH), None, default_text="the column `topic`"
    ).doc("The topic of all messages; a column `topic` is then not looked at, as with Kafka.")
    tags: str | None = write_option("tags", text_value, None, default_text="the column `tags`").doc(
        "The tag of all messages."
    )
    keys: str | None = write_option("keys", text_value, None, default_text="the column `keys`").doc(
        "The keys of all messages, separated by blanks; brokers find messages by them."
    )
    sharding_key: str | None = write_option(
        "shardingKey", text_value, None, default_text="the column `shardingKey`"
    ).doc(
        "The sharding key of all messages, which go to one queue. With neither option nor column, nor a "
        "queue, batches of messages take turns over the queues."
    )
    queue_id: int | None = write_option(
        "queueId", int_between(0, 65_535), None, default_text="the column `queueId`"
    ).doc(
        "The queue of all messages. On a topic of several brokers that have it, a column `brokerName` "
        "must say which."
    )
    delay_level: int | None = write_option(
        "delayLevel", int_between(0, UNBOUNDED), None, default_text="the column `delayLevel`"
    ).doc(
        "How long brokers keep all messages back: the level, 1 to 18 by a broker's defaults (1 s to 2 h; its "
        "`messageDelayLevel`), which takes its last level for any beyond; 0: not. A column "
        "`deliverTimestamp` gives a moment in its place."
    )
    properties: tuple[tuple[str, str], ...] = write_option("properties", parse_properties, ()).doc(
        'Properties that all messages get, as JSON: `{"source": "lake"}`; one of the column `properties` '
        "of the same name wins."
    )
    producer_group: str = write_option("producerGroup", resource_name("producer group", 255), SINK_GROUP).doc(
        "The producer group that brokers see."
    )
    batch_size: int = write_option("batchSize", int_between(1, 65_535), 256, unit="messages").doc(
        "Maximum number of messages in one request; fewer if `batchBytes` is reached. Messages that are "
        "delayed go one by one."
    )
    batch_bytes: int = write_option(
        "batchBytes", int_between(1, 4 * 1024 * 1024), 1024 * 1024, unit="bytes"
    ).doc(
        "Maximum number of bytes in one request, as stored; brokers take 4 MiB (`maxMessageSize`). A larger "
        "message is sent by itself."
    )
    batch_send: bool = write_option("batchSend", boolean, True).doc(
        "Whether several messages go in one request (SEND_BATCH_MESSAGE). `false` for clusters that take "
        "none, and for topics of one message type: messages go one by one, in the same order, one under way "
        "at each queue, and a sharding key is their property `__SHARDINGKEY`, too, the message group of "
        "RocketMQ 5."
    )
    max_message_size: int = write_option(
        "maxMessageSize", int_between(1, MOST_MESSAGE_BYTES), MAX_MESSAGE_BYTES, unit="bytes"
    ).doc(
        "The largest body that a row may have, before it is compressed, as of Java's producer; a request "
        "takes no more either. Raise it where the brokers' own `maxMessageSize` is larger, or where "
        "bodies are compressed. Readers of this package take 128 MiB."
    )
    max_in_flight_bytes: int = write_option(
        "maxInFlightBytes", int_between(1, 2**40), 32 * 1024 * 1024, unit="bytes"
    ).doc(
        "Maximum number of bytes of a task that are sent or wait for their queue's turn; more rows are then "
        "not taken. At each queue one request of a task is under way at a time, which keeps the order."
    )
    compression_type: BodyCompression = write_option(
        "compressionType", one_of(BodyCompression), BodyCompression.NONE
    ).doc(
        "How bodies of at least `compressOverBytes` are compressed: `zlib`, which every client reads, "
        "`lz4` or `zstd` (Java clients from 5.0 on), or `none`, as Java's batches are."
    )
    compress_over_bytes: int = write_option(
        "compressOverBytes", int_between(0, 2**31 - 1), 4096, unit="bytes"
    ).doc(
        "The smallest body that is compressed (Java's `compressMsgBodyOverHowmuch`); needs "
        "`compressionType`. Shorter ones are, too, where they join a batch that is compressed."
    )
    require_send_ok: bool = write_option("requireSendOk", boolean, True).doc(
        "Fail when a broker stores messages less durably than it is set up for (FLUSH_DISK_TIMEOUT, "
        "FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE); `false` takes them as sent."
    )
    send_latency_fault_enable: bool = write_option("sendLatencyFaultEnable", boolean, False).doc(
        "Whether rows with neither sharding key nor queue avoid brokers that were slow (from 550 ms on) "
        "or failed for a while, 2 to 30 s, as Java's producers do."
    )
    check_sharding_keys: bool = write_option("checkShardingKeys", boolean, True).doc(
        "Fail a write, when its tasks are done, of which two tasks sent rows of one sharding key: their "
        "order is then that of the tasks. `by_sharding_key` arranges the rows. A stream warns of such a "
        "batch in the driver's log and goes on: its rows are stored, and a restart would send them again."
    )
    write_id: str | None = write_option(
        "writeId", text_value, None, default_text="stream: the query's id; batch: a new one"
    ).doc(
        "What the messages' UNIQ_KEY (`msgId`) is made of, with batch, partition and row. The same rows, "
        "in the same partitions, written again under the same `writeId` have the same ones, so that "
        "readers recognise them. Different rows must not share one; those of different micro-batches, within "
        "`foreachBatch`, too, do not."
    )

    def cross_field_problems(self) -> list[str]:
        """Return the problems of connection and names, and of a queue that is specified twice."""
        problems = self.connection_problems()
        if self.queue_id is not None and self.sharding_key is not None:
            problems.append(
                "options 'queueId' and 'shardingKey' exclude each other: both choose the queue; give one"
            )
        if self.topic is not None:
            problems += self.name_problems([("topic", self.topic, MAX_TOPIC_LENGTH)])
        return problems + self.name_problems([("producerGroup", self.producer_group, 255)])
