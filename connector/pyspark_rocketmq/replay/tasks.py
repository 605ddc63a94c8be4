"""The tasks of a replay: each reads one range and returns it as rows or sends it to the target topic.

The functions contain the ranges, and run in ``mapInArrow`` over one number for each task. So Spark reads
exactly the planned ranges, even if it evaluates a step several times or the topic has changed since.
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
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.errors import (
    BatchRefused,
    ConnectFailed,
    RocketMQError,
    TransportError,
    without_frames,
)
from pyspark_rocketmq.model import MAX_MESSAGE_BYTES, QUEUE_OFFSET, Message, SendStatus, TopicRoute
from pyspark_rocketmq.publish.sender import is_too_large
from pyspark_rocketmq.replay.ranges import REPLAYED_BY, REPLAYED_FROM, Sending, batches_of, resent_message
from pyspark_rocketmq.replay.target import read_tail
from pyspark_rocketmq.retry import UNTIL_DEADLINE, call_with_retry
from pyspark_rocketmq.source.ranges import QueuePartition, brokers_of
from pyspark_rocketmq.source.reader import read_queue
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.compression import MAX_BODY_BYTES
from pyspark_rocketmq.wire.messages import BATCH_MEMBER_OVERHEAD, decode_stored_messages, encode_batch
from pyspark_rocketmq.wire.properties import MAX_MEMBER_PROPERTIES_BYTES, encode_properties
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import EncodedBatch, SendResult

_STOOD_STILL_S: Final = 10.0
"""Seconds without sending after which the target is read again: Spark may have started another attempt. Spark
waits longer than this for a silent executor (``spark.network.timeout``)."""

Row = tuple[int, Message]
"""Source offset and the message to send."""

_COMPRESSION: Final = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK)
RESEND_COLUMNS = (QUEUE_OFFSET, "body", "properties", "flag")
SENT_SCHEMA = "task bigint, sent bigint"


class QueueSender:
    """Sends the messages of one range to a target queue, each message once.

    After a request with an unknown outcome, the sender waits, so that a request still on its way can arrive,
    and reads the target before it sends again. It also reads the target after a long pause, for example if
    the machine was suspended: Spark may have started another attempt meanwhile. If that attempt has sent
    more, this one ends.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Message]], None],
        stored_until: Callable[[], int],
        clock: Clock,
        sleep: Callable[[float], object],
        *,
        what: str,
        is_repeated: bool,
        settle_s: float,
        retry_timeout_s: float,
    ) -> None:
        """Send nothing yet.

        Args:
            send: Stores messages, or raises: ``ConnectFailed`` if it sent nothing, another error if some
                messages may be stored.
            stored_until: Reads the target; returns the first source offset that is not stored there.
            clock: Clock for retries and pauses.
            sleep: Waits for a number of seconds.
            what: Names range and target for errors.
            is_repeated: Whether an earlier attempt of the task may have sent a part of the range.
            settle_s: Seconds for which a request may still be on its way after its time-out.
            retry_timeout_s: Seconds for which one batch is tried again.
        """
        self._send = send
        self._read_stored_until = stored_until
        self._clock = clock
        self._sleep = sleep
        self._settle_s = settle_s
        self._retry_timeout_s = retry_timeout_s
        self._what = what
        self._stored_until = 0
        """First source offset that is not stored, as last read from the target."""
        self._own_until: int | None = None
        """End of the messages that this sender has stored or found; None before its first messages."""
        self._can_be_own = 0
        """Offset up to which messages in the target may come from this sender."""
        self._seen_s = self._now_s()
        self._is_unsure = self._is_on_its_way = is_repeated
        """``_is_unsure``: whether the target may have messages of this range that this sender does not count
        as stored. ``_is_on_its_way``: whether a request that is still on its way may store such messages."""

    def _now_s(self) -> tuple[float, float]:
        # The monotonic clock stops while the machine sleeps.
        return self._clock.monotonic_s(), self._clock.now_s()

    def put(self, rows: Sequence[Row]) -> None:
        """Send the next messages of the range, few enough for a batch; when it returns, they are stored.

        Raises:
            RocketMQError: If the messages are not stored, or if it cannot be found out whether they are.
        """
        end = rows[-1][0] + 1
        stood_still_s = max(now - seen for seen, now in zip(self._seen_s, self._now_s(), strict=True))
        if stood_still_s >= _STOOD_STILL_S and self._own_until is not None:
            self._is_unsure, self._can_be_own = True, self._own_until
        else:
            self._can_be_own = end
        deadline = Deadline.after(self._clock, self._retry_timeout_s)
        call_with_retry(lambda: self._attempt(rows), UNTIL_DEADLINE, deadline, self._sleep)
        self._own_until = max(end, self._stored_until)
        self._seen_s = self._now_s()

    def _attempt(self, rows: Sequence[Row]) -> None:
        if self._is_on_its_way:
            self._sleep(self._settle_s)
            self._is_on_its_way = False
        if self._is_unsure:
            self._stored_until = self._read_stored_until()
            if self._own_until is not None and self._stored_until > self._can_be_own:
                raise RocketMQError(
                    f"Another attempt of this task has sent offsets up to {self._stored_until} of "
                    f"{self._what}, while this attempt was paused at {self._own_until}. This attempt ends, "
                    "so that nothing is sent twice. If the replay ends with this error, run it again."
                )
            self._is_unsure, self._can_be_own = False, rows[-1][0] + 1
        missing = [message for queue_offset, message in rows if queue_offset >= self._stored_until]
        if not missing:
            return
        try:
            self._send(missing)
        except RocketMQError as error:
            # Without a connection nothing was sent, and a broker that answered has finished the request.
            self._is_unsure = self._is_unsure or not isinstance(error, ConnectFailed)
            self._is_on_its_way = isinstance(error, TransportError) and self._is_unsure
            raise


def run_tasks(
    spark: SparkSession,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    count: int,
    schema: StructType | str,
) -> DataFrame:
    """Return a DataFrame of ``count`` tasks, each of which runs ``function`` for its number."""
    return spark.range(0, count, 1, count).mapInArrow(function, schema)


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


@dataclass(frozen=True)
class ReadRanges:
    """Function of reading tasks: each task returns the messages of the range that its number selects."""

    partitions: Sequence[QueuePartition]

    @without_frames
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the ranges whose numbers ``batches`` contains, with the source's columns."""
        for number in _numbers(batches):
            yield from read_queue(self.partitions[number])


@dataclass(frozen=True, kw_only=True)
class Resending:
    """One range of a replay to send, with its source queue and its target queue."""

    partition: QueuePartition
    """Partition that reads the range, with the columns :data:`RESEND_COLUMNS`."""
    sending: Sending
    target: QueuePartition
    """Partition that reads the target queue; its range is ignored."""


@dataclass(frozen=True, kw_only=True)
class ResendRanges:
    """Function of sending tasks: each sends its range to one queue, batch after batch, each message once.

    A batch is retried for ``retryTimeoutMs``. A repeated task reads the target, and continues where the
    previous attempt ended.
    """

    parts: Sequence[Resending]
    name_servers: tuple[str, ...]
    send_timeout_s: float
    route: TopicRoute
    """Route of the target topic, as looked up by the driver."""
    messages_at_once: int = 1024
    """Maximum number of messages in a batch, whose body is also limited to 4 MiB."""

    @without_frames
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the number of stored messages, one row per task.

        Raises:
            RocketMQError: If a message could not be read or sent, or was stored less durably than its broker
                is set up for.
        """
        context = TaskContext.get()
        is_repeated = context is not None and context.attemptNumber() > 0
        for number in _numbers(batches):
            sent = self._resend(self.parts[number], is_repeated=is_repeated)
            yield pa.RecordBatch.from_pydict({"task": [number], "sent": [sent]})

    def _resend(self, part: Resending, *, is_repeated: bool) -> int:
        partition = part.partition
        producer = Producer(
            self.name_servers,
            f"{partition.settings.consumer_group}-replay",
            pool=process_pool(partition.connection),
            send_timeout_s=self.send_timeout_s,
            # The source's broker accepted each message; the target's broker applies its own limits.
            max_message_size=MAX_BODY_BYTES,
            namespace=partition.settings.namespace,
        )
        producer.know(part.sending.target.topic, self.route)
        target = TargetQueue(part, producer, self.send_timeout_s)
        sender = QueueSender(
            target.send,
            target.stored_until,
            SystemClock(),
            time.sleep,
            what=f"{part.sending.source} into {part.sending.target}",
            is_repeated=is_repeated,
            settle_s=self.send_timeout_s,
            retry_timeout_s=partition.settings.retry_timeout_s,
        )
        sent = 0
        for rows in read_queue(partition):
            for start in range(0, rows.num_rows, self.messages_at_once):
                cut = rows.slice(start, self.messages_at_once)
                messages = _messages(cut, part.sending)
                offsets = iter(cut.column(QUEUE_OFFSET).to_pylist())
                for together in batches_of(messages, part.sending.target):
                    sender.put([(next(offsets), message) for message in together])
                sent += len(messages)
        return sent


class TargetQueue:
    """Sends one range of a replay to its target queue, and reads there which messages are stored already."""

    def __init__(self, part: Resending, producer: Producer, send_timeout_s: float) -> None:
        self._part = part
        self._sending = part.sending
        self._producer = producer
        self._send_timeout_s = send_timeout_s
        self._takes_batches = True
        """True until the queue has refused a batch."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages to the target queue; when this returns, they are stored.

        Raises:
            RocketMQError: If they are not stored, or less durably than the broker is set up for.
        """
        result = self.store(messages)
        if result.status is not SendStatus.SEND_OK:
            raise RocketMQError(
                f"{self._sending.target}: {len(messages)} messages were stored with status "
                f"{result.status.name}, less durably than the broker is set up for. Check its disk or its "
                "replica and replay again: stored messages are not sent twice."
            )
        # Search for the next messages from here on.
        self._sending = replace(self._sending, target_offset=result.queue_offset)

    def stored_until(self) -> int:
        """Read the target queue; return the first source offset of the range that is not stored there.

        Raises:
            DataLoss: If the target has deleted the messages that would show it, and ``failOnDataLoss`` is
                true; otherwise the range's start is returned.
        """
        bounds, [highest] = read_tail(self._part.target, [self._sending], self._sending.target_offset)
        fails = self._part.partition.settings.fail_on_data_loss
        return self._sending.stored_until(highest, bounds, fail_on_data_loss=fails)

    def store(self, messages: Sequence[Message]) -> SendResult:
        """Send messages as one batch; they keep their UNIQ_KEYs (message ids).

        A batch that the target refuses for its size is sent in halves. If the target accepts no batches,
        messages are sent one by one. A message that is too large for any batch is sent by itself, compressed
        if the source's broker stored it compressed. The result is that of the first message; if a message was
        stored less durably than it should be, the result has that message's status.
        """
        if len(messages) > 1 and not self._takes_batches:
            return self._store_in_turn([[message] for message in messages])
        target = self._sending.target
        outcome = self._outcome(messages)
        if isinstance(outcome, BatchRefused):
            self._takes_batches = False
            return self.store(messages)
        if len(messages) > 1 and isinstance(outcome, RocketMQError) and is_too_large(outcome):
            middle = len(messages) // 2
            return self._store_in_turn([messages[:middle], messages[middle:]])
        if isinstance(outcome, RocketMQError) and is_too_large(outcome):
            origin = messages[0].properties[REPLAYED_FROM]
            raise RocketMQError(
                f"The broker of {target} refuses message {origin} (topic/broker/queue/offset) as too large: "
                f"{outcome} Raise maxMessageSize at the brokers of the target, or leave the message out of "
                "the replay: end before it (endingOffsets), then replay what follows it (startingOffsets)."
            ) from outcome
        if isinstance(outcome, RocketMQError):
            raise outcome
        return outcome

    def _store_in_turn(self, parts: Sequence[Sequence[Message]]) -> SendResult:
        """Send the parts of a batch one after the other; return one result for all, as :meth:`store` does.

        Raises:
            RocketMQError: If a part is not stored. It is not ``ConnectFailed`` after a stored part, since
                that error means that nothing was sent.
        """
        results: list[SendResult] = []
        for part in parts:
            try:
                results.append(self.store(part))
            except ConnectFailed as error:
                if not results:
                    raise
                raise TransportError(
                    error.address,
                    f"{len(results)} of {len(parts)} parts of a batch were stored, then: {error.detail}. Run "
                    "the replay again: it does not send stored messages twice.",
                ) from error
        less_durable = (one.status for one in results if one.status is not SendStatus.SEND_OK)
        return replace(results[0], status=next(less_durable, SendStatus.SEND_OK))

    def _outcome(self, messages: Sequence[Message]) -> SendResult | RocketMQError:
        if len(messages) == 1 and not (self._takes_batches and _fits_batch(messages[0])):
            outcome = self._single_outcome(messages[0])
        else:
            outcomes: SimpleQueue[SendResult | RocketMQError] = SimpleQueue()
            batch = EncodedBatch(queue=self._sending.target, body=encode_batch(messages))
            self._producer.send_encoded(batch, outcomes.put)
            outcome = next_outcome(outcomes, self._send_timeout_s)
        if len(messages) == 1 and isinstance(outcome, RocketMQError) and is_too_large(outcome):
            # A batch of one message has no room for a broker's largest message, and neither it nor a plain
            # request has room for one that was compressed.
            return self._single_outcome(messages[0], most=0)
        return outcome

    def _single_outcome(
        self, message: Message, *, most: int = MAX_MESSAGE_BYTES
    ) -> SendResult | RocketMQError:
        outcomes: SimpleQueue[SendResult | RocketMQError] = SimpleQueue()
        stored, sys_flag = self._as_stored(message, most)
        self._producer.send_as_stored(stored, self._sending.target, sys_flag, outcomes.put)
        return next_outcome(outcomes, self._send_timeout_s)

    def _as_stored(self, message: Message, most: int) -> tuple[Message, int]:
        """Return the message to send, and the compression bits of its sysFlag; 0 if it is not compressed.

        If a body has more than ``most`` bytes and was stored compressed, the stored body is read and sent.
        """
        if len(message.body) <= most:
            return message, 0
        how, properties = self._part.partition, message.properties
        queue_offset = self._sending.offset_of(properties[REPLAYED_BY], properties[REPLAYED_FROM])
        assert queue_offset is not None
        pull = PullRequest(
            consumer_group=how.settings.consumer_group,
            queue=how.planned.queue,
            queue_offset=queue_offset,
            max_msg_nums=1,
        )
        for stored in decode_stored_messages(brokers_of(how).pull(how.address, pull).body):
            # An inner batch contains more than this message; an undecodable body was kept as it is.
            whole = stored.queue_offset == queue_offset and not stored.sys_flag & MessageSysFlag.INNER_BATCH
            if whole and stored.sys_flag & MessageSysFlag.COMPRESSED and stored.body != message.body:
                return replace(message, body=stored.body), stored.sys_flag & _COMPRESSION
        return message, 0


def _fits_batch(message: Message) -> bool:
    properties_bytes = len(encode_properties(message.properties))
    size = BATCH_MEMBER_OVERHEAD + len(message.body) + properties_bytes
    return properties_bytes <= MAX_MEMBER_PROPERTIES_BYTES and size <= MAX_MESSAGE_BYTES


def _messages(rows: pa.RecordBatch, sending: Sending) -> list[Message]:
    topic, origin = sending.target.topic, sending.source.queue
    columns = (rows.column(name).to_pylist() for name in RESEND_COLUMNS)
    return [
        resent_message(
            topic,
            Message(topic=origin.topic, body=body, properties=dict(pairs), flag=flag),
            origin,
            queue_offset,
            sending.run,
        )
        for queue_offset, body, pairs, flag in zip(*columns, strict=True)
    ]
