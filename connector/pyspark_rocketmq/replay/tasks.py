"""What the tasks of a replay run: a range each, read as a batch reads it; given on, or sent to the target topic in order.

The functions go to ``mapInArrow`` over one number for each task, and hold the ranges: what was planned is what is read, however
often Spark evaluates the step and whatever has happened to the topic since.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.producer import Producer
from pyspark_rocketmq.client.publishing import split_batch
from pyspark_rocketmq.client.retry import UNTIL_DEADLINE, call_with_retry
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.queue_reader import read_queue
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue, SendStatus
from pyspark_rocketmq.replay.resent_message import resent_message

RESEND_COLUMNS = ("queueOffset", "body", "properties", "flag")
SENT_SCHEMA = "task bigint, sent bigint"

_MESSAGES_AT_ONCE = 1024
"""Of one batch at most; it has a body of 4 MiB at most besides."""


def run_tasks(
    spark: SparkSession,
    function: ReadRanges | ResendRanges,
    count: int,
    schema: StructType | str,
) -> DataFrame:
    """A DataFrame of ``count`` tasks, each of which runs ``function`` for its number."""
    return spark.range(0, count, 1, count).mapInArrow(function, schema)


@dataclass(frozen=True)
class ReadRanges:
    """Gives the messages of the task's range."""

    partitions: Sequence[QueuePartition]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the source."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_queue(self.partitions[number])


@dataclass(frozen=True)
class ResendRanges:
    """Sends the messages of the task's range to one queue, each batch after the one before is stored.

    A batch is tried for ``retryTimeoutMs``; one whose answer was lost may come twice, one copy behind the other.
    """

    partitions: Sequence[QueuePartition]
    """Of the columns :data:`RESEND_COLUMNS`."""
    name_servers: tuple[str, ...]
    targets: Mapping[MessageQueue, MessageQueue]
    """By source queue."""
    send_timeout_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """How many were sent, a row for each task.

        Raises:
            RocketMQError: If a message could not be read or sent, or was stored less durably than its broker is set up for.
        """
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict(
                    {"task": [number], "sent": [self._resend(self.partitions[number])]}
                )

    def _resend(self, partition: QueuePartition) -> int:
        sent, clock = 0, SystemClock()
        target = self.targets[partition.planned.queue]
        producer = Producer(
            self.name_servers,
            f"{partition.consumer_group}-replay",
            pool=process_pool(partition.connection),
            clock=clock,
            send_timeout_s=self.send_timeout_s,
            namespace=partition.namespace,
        )
        for rows in read_queue(partition):
            for start in range(0, rows.num_rows, _MESSAGES_AT_ONCE):
                messages = _messages(
                    rows.slice(start, _MESSAGES_AT_ONCE), partition.planned.queue, target.topic
                )
                for together in split_batch(messages):
                    deadline = Deadline.after(clock, partition.retry_timeout_s)
                    send = partial(_send, producer, together, target)
                    call_with_retry(send, UNTIL_DEADLINE, deadline, time.sleep)
                sent += len(messages)
        return sent


def _messages(rows: pa.RecordBatch, origin: MessageQueue, topic: str) -> list[Message]:
    offsets, bodies, properties, flags = (rows.column(name).to_pylist() for name in RESEND_COLUMNS)
    return [
        resent_message(
            topic,
            Message(topic=origin.topic, body=body, properties=dict(pairs), flag=flag),
            origin,
            queue_offset,
        )
        for queue_offset, body, pairs, flag in zip(offsets, bodies, properties, flags, strict=True)
    ]


def _send(producer: Producer, messages: Sequence[Message], target: MessageQueue) -> None:
    result = producer.send_batch(messages, target)
    if result.status is not SendStatus.SEND_OK:
        raise RocketMQError(
            f"{target}: {len(messages)} messages were stored with status {result.status.name}, less durably than the broker is "
            "set up for. See to its disk or its replica and replay again; these messages will then come twice."
        )
