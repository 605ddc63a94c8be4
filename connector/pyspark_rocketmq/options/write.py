"""Every option of writing with ``format("rocketmq")``, declared once, like those of reading in ``read``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark_rocketmq.model import MAX_MESSAGE_BYTES, OF_ONE_DELIVERY
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
    """Compression of message bodies; ``NONE`` leaves them as they are."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


@parses("JSON")
def parse_properties(text: str) -> tuple[tuple[str, str], ...]:
    """Parser of a JSON object of strings that are not empty; returns its names and values as pairs.

    Properties that clients and brokers write for one delivery are refused: brokers act upon some of them in
    single messages, but not in batches. In a row's column ``properties``, such properties are left out
    instead.
    """
    found = json_texts(text, '{"source": "lake"}')
    empty = [name for name, value in found.items() if not name or not value]
    if empty:
        raise ValueError(f"has an empty name or value at {empty[0]!r}, which every consumer would drop")
    if not OF_ONE_DELIVERY.isdisjoint(found):
        name = min(OF_ONE_DELIVERY.intersection(found))
        raise ValueError(
            f"has the property {name!r}, which clients and brokers write for one delivery; leave it out. To "
            "delay messages, use option 'delayLevel' or a column 'deliverTimestamp'"
        )
    return tuple(found.items())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WriteOptions(ConnectionOptions):
    """Options of the sink, for batch and for streams."""

    topic: str | None = write_option(
        "topic", resource_name("topic", MAX_TOPIC_LENGTH), None, default_text="the column `topic`"
    ).doc("The topic of all messages; a column `topic` is then ignored, as with Kafka.")
    tags: str | None = write_option("tags", text_value, None, default_text="the column `tags`").doc(
        "The tag of all messages."
    )
    keys: str | None = write_option("keys", text_value, None, default_text="the column `keys`").doc(
        "The keys of all messages, separated by blanks; brokers find messages by them."
    )
    sharding_key: str | None = write_option(
        "shardingKey", text_value, None, default_text="the column `shardingKey`"
    ).doc(
        "The sharding key of all messages, which therefore go to one queue. Messages without a sharding key "
        "and without a queue go to the queues in turn, one batch to each."
    )
    queue_id: int | None = write_option(
        "queueId", int_between(0, 65_535), None, default_text="the column `queueId`"
    ).doc(
        "The queue of all messages. If several brokers have a queue of this number, a column `brokerName` "
        "must name one of them."
    )
    delay_level: int | None = write_option(
        "delayLevel", int_between(0, UNBOUNDED), None, default_text="the column `delayLevel`"
    ).doc(
        "The delay level of all messages. By default a broker delivers them after 1 s (level 1) to 2 h "
        "(level 18; its `messageDelayLevel`), and treats higher levels as the last one. 0 means no delay. A "
        "column `deliverTimestamp` gives a time instead."
    )
    properties: tuple[tuple[str, str], ...] = write_option("properties", parse_properties, ()).doc(
        'Properties that all messages get, as JSON: `{"source": "lake"}`. If the column `properties` has one '
        "of the same name, that one is used. Those that clients and brokers write (`UNIQ_KEY`, `DELAY` …) "
        "are refused."
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
        "Whether one request has several messages (SEND_BATCH_MESSAGE). Use `false` for clusters that refuse "
        "such requests, and for topics of one message type. Then messages are sent in the same order, one at "
        "a time to each queue, and a sharding key also becomes their property `__SHARDINGKEY`, the message "
        "group of RocketMQ 5."
    )
    max_message_size: int = write_option(
        "maxMessageSize", int_between(1, MOST_MESSAGE_BYTES), MAX_MESSAGE_BYTES, unit="bytes"
    ).doc(
        "Maximum size of a row's body before compression, as in Java's producer, and of a request. Raise it "
        "if the brokers' `maxMessageSize` is larger, or if bodies are compressed. Readers of this package "
        "accept 128 MiB."
    )
    max_in_flight_bytes: int = write_option(
        "maxInFlightBytes", int_between(1, 2**40), 32 * 1024 * 1024, unit="bytes"
    ).doc(
        "Maximum number of bytes that a task is sending or has waiting for their queue; at this limit it "
        "takes no more rows. To keep the order, a task sends one request at a time to each queue."
    )
    compression_type: BodyCompression = write_option(
        "compressionType", one_of(BodyCompression), BodyCompression.NONE
    ).doc(
        "How bodies of at least `compressOverBytes` are compressed: `zlib`, which every client reads; `lz4` "
        "or `zstd`, which Java clients read from 5.0 on; `none`, as in Java's batches."
    )
    compress_over_bytes: int = write_option(
        "compressOverBytes", int_between(0, 2**31 - 1), 4096, unit="bytes"
    ).doc(
        "Minimum size of a body that is compressed (Java's `compressMsgBodyOverHowmuch`); needs "
        "`compressionType`. Smaller bodies are compressed if they are in a batch with such a body."
    )
    require_send_ok: bool = write_option("requireSendOk", boolean, True).doc(
        "Fail if a broker stores messages less durably than it is configured to (FLUSH_DISK_TIMEOUT, "
        "FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE). With `false` such messages count as sent."
    )
    send_latency_fault_enable: bool = write_option("sendLatencyFaultEnable", boolean, False).doc(
        "Whether rows without a sharding key and a queue avoid a broker for 2 to 30 s after it failed or "
        "took 550 ms or longer, as Java's producers can."
    )
    check_sharding_keys: bool = write_option("checkShardingKeys", boolean, True).doc(
        "Fail a batch write in which two tasks sent rows of one sharding key: the order of these rows then "
        "depends on the tasks. To avoid this, arrange the rows by `by_sharding_key`. The check follows the "
        "last task. A stream only warns in the driver's log: the rows are stored, and a restart would send "
        "them again."
    )
    write_id: str | None = write_option(
        "writeId", text_value, None, default_text="stream: the query's id; batch: a new one"
    ).doc(
        "Name of this write. A message's UNIQ_KEY (`msgId`) is made from it, from the numbers of batch, "
        "partition and row, and from the columns of all rows of its record batch. If the same rows in the "
        "same order and partitions are written again under the same `writeId`, they get the same keys, and "
        "readers recognise them. Use another `writeId` for other rows. Micro-batches have different numbers, "
        "also within `foreachBatch`, but not over Spark Connect or in a thread of your own: put the number "
        "into `writeId` there."
    )

    def cross_field_problems(self) -> list[str]:
        """Return the problems of the connection, of names, and of two options that choose a queue."""
        problems = self.connection_problems()
        if self.queue_id is not None and self.sharding_key is not None:
            problems.append(
                "options 'queueId' and 'shardingKey' exclude each other: both choose the queue; give one"
            )
        if self.topic is not None:
            problems += self.name_problems([("topic", self.topic, MAX_TOPIC_LENGTH)])
        return problems + self.name_problems([("producerGroup", self.producer_group, 255)])
