"""What the tasks of a replay run: a range each, given on as rows or sent to the target topic in order.

The functions go to ``mapInArrow`` over one number for each task, and hold the ranges: what was planned is
what is read, however often Spark evaluates the step and whatever has happened to the topic since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.pool import process_pool
from pyspark_rocketmq.client.producer.attempts import next_outcome
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import UNTIL_DEADLINE, Clock, Deadline, SystemClock, call_with_retry
from pyspark_rocketmq.errors import BrokerError, ConnectFailed, RocketMQError, TransportError
from pyspark_rocketmq.model import MAX_MESSAGE_BYTES, Message, MessageQueue, SendStatus, TopicRoute
from pyspark_rocketmq.replay.ranges import REPLAYED_BY, REPLAYED_FROM, Sending, resent_message
from pyspark_rocketmq.replay.target import TargetTail, brokers_of
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.reader import read_queue
from pyspark_rocketmq.wire.codes import MessageSysFlag, ResponseCode
from pyspark_rocketmq.wire.compression import MAX_BODY_BYTES
from pyspark_rocketmq.wire.messages import decode_stored_messages, encode_batch
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import EncodedBatch, SendResult, split_batch

Row = tuple[int, Message]
"""Source offset and what is sent."""


class QueueSender:
    """For one range.

    After a request of which it is not known whether it was stored, the queue is looked at before anything is
    sent again; before that a moment passes, in which a request that was still on its way can arrive.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Message]], None],
        stored_until: Callable[[], int],
        clock: Clock,
        sleep: Callable[[float], object],
        *,
        is_repeated: bool,
        settle_s: float,
        retry_timeout_s: float,
    ) -> None:
        """Send nothing yet.

        Args:
            send: Stores messages, all or none, or raises.
            stored_until: Looks at the target: the first source offset that is not stored there.
            clock: For the time a batch is tried.
            sleep: Waits so many seconds.
            is_repeated: Whether somebody may have sent a part of the range before.
            settle_s: How long a request may be on its way whose sender has given it up.
            retry_timeout_s: For how long a batch is tried.
        """
        self._send = send
        self._look = stored_until
        self._clock = clock
        self._sleep = sleep
        self._settle_s = settle_s
        self._retry_timeout_s = retry_timeout_s
        self._stored_until = 0
        self._is_unsure = self._is_on_its_way = is_repeated

    def put(self, rows: Sequence[Row]) -> None:
        """Send the next messages of the range, few enough for a batch; they are stored when it returns.

        Raises:
            RocketMQError: If that is not so, or cannot be told.
        """
        deadline = Deadline.after(self._clock, self._retry_timeout_s)
        call_with_retry(lambda: self._attempt(rows), UNTIL_DEADLINE, deadline, self._sleep)

    def _attempt(self, rows: Sequence[Row]) -> None:
        if self._is_on_its_way:
            self._sleep(self._settle_s)
            self._is_on_its_way = False
        if self._is_unsure:
            self._stored_until = self._look()
            self._is_unsure = False
        missing = [message for queue_offset, message in rows if queue_offset >= self._stored_until]
        if not missing:
            return
        try:
            self._send(missing)
        except RocketMQError as error:
            # Where no connection could be made nothing was sent; a broker that answers has nothing left to
            # do.
            self._is_unsure = self._is_unsure or not isinstance(error, ConnectFailed)
            self._is_on_its_way = isinstance(error, TransportError) and self._is_unsure
            raise


_COMPRESSION: Final = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK)
RESEND_COLUMNS = ("queueOffset", "body", "properties", "flag")
SENT_SCHEMA = "task bigint, sent bigint"
FOUND_SCHEMA = "task bigint, sending bigint, highest bigint, minOffset bigint, maxOffset bigint"


def run_tasks(
    spark: SparkSession,
    function: ReadRanges | LookForRanges | ResendRanges,
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
class LookForRanges:
    """Looks through a target queue for what is stored of ranges whose run has ended."""

    groups: Sequence[tuple[TargetTail, Sequence[Sending]]]
    """One for each task."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A row for each sending, of :data:`FOUND_SCHEMA`.

        Raises:
            RocketMQError: If the queue cannot be read.
        """
        for batch in batches:
            for number in batch.column(0).to_pylist():
                tail, sendings = self.groups[number]
                found = tail.look(sendings, min(one.target_offset for one in sendings))
                count = len(sendings)
                yield pa.RecordBatch.from_pydict(
                    {
                        "task": pa.array([number] * count, pa.int64()),
                        "sending": pa.array(range(count), pa.int64()),
                        "highest": pa.array(found.highest, pa.int64()),
                        "minOffset": pa.array([found.bounds.min_offset] * count, pa.int64()),
                        "maxOffset": pa.array([found.bounds.max_offset] * count, pa.int64()),
                    }
                )


@dataclass(frozen=True, kw_only=True)
class Resending:
    """One range of a step."""

    partition: QueuePartition
    """Of the columns :data:`RESEND_COLUMNS`."""
    sending: Sending
    tail: TargetTail

    def as_stored(self, message: Message) -> tuple[Message, int]:
        """``message`` with its stored body and the compression bits of its sysFlag.

        What expands beyond the limit of a message was stored, and is stored again, compressed.

        Raises:
            RocketMQError: If the broker does not answer.
        """
        if len(message.body) <= MAX_MESSAGE_BYTES:
            return message, 0
        how, properties = self.partition, message.properties
        queue_offset = self.sending.offset_of(properties[REPLAYED_BY], properties[REPLAYED_FROM])
        assert queue_offset is not None
        pull = PullRequest(
            consumer_group=how.consumer_group,
            queue=how.planned.queue,
            queue_offset=queue_offset,
            max_msg_nums=1,
        )
        for stored in decode_stored_messages(brokers_of(how).pull(how.address, pull).body):
            # An inner batch holds more than this message; a body that could not be decoded was given on as it
            # is.
            whole = stored.queue_offset == queue_offset and not stored.sys_flag & MessageSysFlag.INNER_BATCH
            if whole and stored.sys_flag & MessageSysFlag.COMPRESSED and stored.body != message.body:
                return replace(message, body=stored.body), stored.sys_flag & _COMPRESSION
        return message, 0


@dataclass(frozen=True, kw_only=True)
class ResendRanges:
    """Sends the range's messages to one queue, batch after batch, each message once.

    A batch is tried for ``retryTimeoutMs``. A task that is run again goes on where the target says that the
    one before has come.
    """

    parts: Sequence[Resending]
    name_servers: tuple[str, ...]
    send_timeout_s: float
    route: TopicRoute
    """Of the target topic, as the driver has seen it."""
    messages_at_once: int = 1024
    """Of one batch at most; it has a body of 4 MiB at most besides."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """How many are stored, a row for each task.

        Raises:
            RocketMQError: If a message could not be read or sent, or was stored less durably than its broker
                is set up for.
        """
        context = TaskContext.get()
        is_repeated = context is not None and context.attemptNumber() > 0
        for batch in batches:
            for number in batch.column(0).to_pylist():
                sent = self._resend(self.parts[number], is_repeated=is_repeated)
                yield pa.RecordBatch.from_pydict({"task": [number], "sent": [sent]})

    def _resend(self, part: Resending, *, is_repeated: bool) -> int:
        partition, origin = part.partition, part.sending.source.queue
        producer = Producer(
            self.name_servers,
            f"{partition.consumer_group}-replay",
            pool=process_pool(partition.connection),
            send_timeout_s=self.send_timeout_s,
            # A broker has stored each message; whether another one does is for it to say.
            max_message_size=MAX_BODY_BYTES,
            namespace=partition.namespace,
        )
        producer.know(part.sending.target.topic, self.route)
        target = _Target(self, producer, part)
        sender = QueueSender(
            target.send,
            target.stored_until,
            SystemClock(),
            time.sleep,
            is_repeated=is_repeated,
            settle_s=self.send_timeout_s,
            retry_timeout_s=partition.retry_timeout_s,
        )
        sent = 0
        for rows in read_queue(partition):
            for start in range(0, rows.num_rows, self.messages_at_once):
                cut = rows.slice(start, self.messages_at_once)
                messages = _messages(cut, origin, part.sending)
                offsets = iter(cut.column("queueOffset").to_pylist())
                for together in split_batch(messages):
                    sender.put([(next(offsets), message) for message in together])
                sent += len(messages)
        return sent

    def store(self, producer: Producer, messages: Sequence[Message], part: Resending) -> SendResult:
        """Send a batch with its UNIQ_KEYs; a message too large for a batch goes alone, as stored."""
        body = encode_batch(messages)
        target = part.sending.target
        outcomes: SimpleQueue[SendResult | RocketMQError] = SimpleQueue()
        if len(messages) == 1 and len(body) > MAX_MESSAGE_BYTES:
            alone, sys_flag = part.as_stored(messages[0])
            producer.send_as_stored(alone, target, sys_flag, outcomes.put)
        else:
            producer.send_encoded(EncodedBatch(queue=target, body=body), outcomes.put)
        outcome = next_outcome(outcomes, self.send_timeout_s)
        if isinstance(outcome, BrokerError) and outcome.code == ResponseCode.MESSAGE_ILLEGAL:
            origins = ", ".join(message.properties[REPLAYED_FROM] for message in (messages[0], messages[-1]))
            raise RocketMQError(
                f"{target} takes no message such as {origins} (topic/broker/queue/offset; the first and the "
                "last of the request): "
                f"{outcome} Raise maxMessageSize at the brokers of the target, or replay without it."
            ) from outcome
        if isinstance(outcome, RocketMQError):
            raise outcome
        return outcome


class _Target:
    """The target queue as the sender of one range sees it."""

    def __init__(self, resend: ResendRanges, producer: Producer, part: Resending) -> None:
        self._resend = resend
        self._producer = producer
        self._part = part
        self._tail = part.tail
        self._sending = part.sending
        self._fail_on_data_loss = part.partition.fail_on_data_loss

    def send(self, messages: Sequence[Message]) -> None:
        result = self._resend.store(self._producer, messages, self._part)
        if result.status is not SendStatus.SEND_OK:
            raise RocketMQError(
                f"{self._tail.queue}: {len(messages)} messages were stored with status {result.status.name}, "
                "less durably than the broker is set up for. See to its disk or its replica and replay "
                "again: what is stored then is not sent twice."
            )
        # What comes next is looked for from here on.
        self._sending = replace(self._sending, target_offset=result.queue_offset)

    def stored_until(self) -> int:
        found = self._tail.look([self._sending], self._sending.target_offset)
        return self._sending.stored_until(
            found.highest[0], found.bounds, fail_on_data_loss=self._fail_on_data_loss
        )


def _messages(rows: pa.RecordBatch, origin: MessageQueue, sending: Sending) -> list[Message]:
    topic = sending.target.topic
    offsets, bodies, properties, flags = (rows.column(name).to_pylist() for name in RESEND_COLUMNS)
    return [
        resent_message(
            topic,
            Message(topic=origin.topic, body=body, properties=dict(pairs), flag=flag),
            origin,
            queue_offset,
            sending.run,
        )
        for queue_offset, body, pairs, flag in zip(offsets, bodies, properties, flags, strict=True)
    ]
