"""Assigns each row of a task to a queue and to a request (a batch), and keeps the rows' order. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pyspark_rocketmq.client.producer.attempts import select_message_queue_by_hash
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import RocketMQError, RowNotSent
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.options.write import BodyCompression, WriteOptions
from pyspark_rocketmq.publish.keys import KeySampler
from pyspark_rocketmq.publish.rows import SinkRow
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.messages import BATCH_MEMBER_OVERHEAD, batch_member
from pyspark_rocketmq.wire.properties import KEYS, UNIQ_KEY, decode_properties
from pyspark_rocketmq.wire.requests.send import ShardingKey

logger = logging.getLogger(__name__)

_STORED_OVERHEAD: Final = 320
"""Bytes that a broker adds to each message of a batch in its log: head, hosts, topic and its own properties.
They count, because a whole batch must not be larger in the log than one message may be."""
_PIECES: Final = 4
"""Number of byte strings that encode one message of a batch (:func:`batch_member`)."""
_MOST_KNOWN_KEYS: Final = 100_000

Destination = MessageQueue | str
"""A queue; or a topic, for a row that may go to any of the topic's queues."""


def compression_of(options: WriteOptions) -> CompressionType | None:
    """Return the compression of large bodies; None if they are not compressed."""
    wanted = options.compression_type
    return None if wanted is BodyCompression.NONE else CompressionType[wanted.name]


@dataclass(slots=True)
class SendBatch:
    """The messages of one request, in order."""

    destination: Destination
    sys_flag: int
    first: SinkRow
    last: SinkRow
    numbers: list[int] = field(default_factory=list)
    """Numbers of the rows in their task. The rows are not kept, since they hold the uncompressed bodies."""
    parts: list[bytes] = field(default_factory=list)
    """Encoded messages of the batch, four pieces each: the second is the body, the last the properties."""
    size: int = 0
    """Size as stored, in bytes."""
    single: Message | None = None
    """The message of a request that is no batch; ``parts`` is empty then. Brokers accept no batch of delayed
    messages, and a batch has no room for the largest messages."""

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.numbers)

    def shown(self) -> str:
        """Return a description of the rows for an error's text."""
        if self.count == 1:
            return self.first.shown
        return f"{self.first.shown} to {self.last.shown}, {self.count} messages"

    def halves(self) -> tuple[SendBatch, SendBatch]:
        """Split this request of at least two messages into two requests, in order."""
        middle = self.count // 2
        return self._part(0, middle), self._part(middle, self.count)

    def _part(self, begin: int, end: int) -> SendBatch:
        parts = self.parts[begin * _PIECES : end * _PIECES]
        size = sum(map(len, parts)) + (end - begin) * _STORED_OVERHEAD
        first, last = self._row(begin), self._row(end - 1)
        if end - begin == 1 and not self.sys_flag:
            return _single(first, self.destination, size)
        return SendBatch(self.destination, self.sys_flag, first, last, self.numbers[begin:end], parts, size)

    def _row(self, at: int) -> SinkRow:
        """Return the row at this index; a row between the first and the last lacks its sharding key."""
        if at in {0, self.count - 1}:
            return self.last if at else self.first
        _, body, _, data = self.parts[at * _PIECES : (at + 1) * _PIECES]
        own = decode_properties(data)
        return self.first._replace(
            number=self.numbers[at],
            body=body,
            properties_data=data,
            sharding_key=None,
            keys=own.get(KEYS),
            msg_id=own.get(UNIQ_KEY),
        )


class BatchBuilder:
    """Builds the requests of one task. Each has rows of one destination, in their order, up to a size."""

    def __init__(self, options: WriteOptions) -> None:
        self._most_messages = options.batch_size
        # Without batches, treat every message as too large for one.
        self._most_bytes = min(options.batch_bytes, options.max_message_size) if options.batch_send else 0
        self._compress_over = options.compress_over_bytes
        self._compression = compression_of(options) if options.batch_send else None
        self._open: dict[Destination, SendBatch] = {}

    def add(self, row: SinkRow, destination: Destination) -> Sequence[SendBatch]:
        """Add the next row; return the batches that are now complete, in the order of sending."""
        batch = self._open.get(destination)
        body, sys_flag = row.body, 0
        if self._compression is not None and row.delay is None:
            is_compressed = batch is not None and batch.sys_flag != 0
            body, sys_flag = self._compressed(body, self._compression, into_compressed=is_compressed)
        size = len(body) + len(row.properties_data) + BATCH_MEMBER_OVERHEAD + _STORED_OVERHEAD
        if row.delay is not None or size > self._most_bytes:
            return [*self._ended(destination), _single(row, destination, size)]
        complete: list[SendBatch] = []
        # All members of a batch share its flags. Other flags begin a new batch, which keeps the order.
        if batch is not None and (batch.sys_flag != sys_flag or batch.size + size > self._most_bytes):
            complete += self._ended(destination)
            batch = None
        if batch is None:
            batch = self._open[destination] = SendBatch(destination, sys_flag, row, row)
        batch.parts += batch_member(body, row.properties_data)
        batch.last = row
        batch.numbers.append(row.number)
        batch.size += size
        if len(batch.numbers) >= self._most_messages or batch.size >= self._most_bytes:
            complete += self._ended(destination)
        return complete

    def _ended(self, destination: Destination) -> Sequence[SendBatch]:
        batch = self._open.pop(destination, None)
        return () if batch is None else (batch,)

    def lower(self, refused_bytes: int) -> None:
        """Make smaller batches from now on, since a broker refused one of ``refused_bytes`` for its size."""
        self._most_bytes = max(1, min(self._most_bytes, refused_bytes // 2))

    def _compressed(
        self, body: bytes, compression: CompressionType, *, into_compressed: bool
    ) -> tuple[bytes, int]:
        """Return the body as it goes into a batch, and its flags.

        All messages of a batch have the same flags. So a short body is compressed, too, if it joins a
        compressed batch; otherwise that batch would have to end before it. Single messages are compressed by
        the producer.
        """
        if len(body) < self._compress_over and not into_compressed:
            return body, 0
        return compress(body, compression)

    def rest(self) -> Iterator[SendBatch]:
        """Yield the incomplete batches, after the last row."""
        yield from self._open.values()
        self._open.clear()


def _single(row: SinkRow, destination: Destination, size: int) -> SendBatch:
    properties = decode_properties(row.properties_data)
    if row.delay is not None:
        name, text = row.delay
        properties[name] = text
    message = Message(topic=row.topic, body=row.body, properties=properties)
    return SendBatch(destination, 0, row, row, [row.number], size=size, single=message)


class QueueSelector:
    """Selects the queues of a task's rows; looks up a topic's queues once, so that a key keeps its queue."""

    def __init__(
        self,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        sampler: KeySampler | None = None,
        queues_now: Callable[[str], Sequence[MessageQueue]] = lambda _: (),
        seen: Mapping[str, Sequence[MessageQueue]] = MappingProxyType({}),
    ) -> None:
        """Set the look-ups.

        Args:
            queues_of: Returns the queues of a topic that is not in ``seen``; may use a cache.
            sampler: Gets the sharding keys; None if they are not checked.
            queues_now: Returns the queues of a topic; always asks the name server.
            seen: Queues that the driver has looked up for all tasks, by topic. They are used for the whole
                task, however late its first row comes. A topic without queues is looked up.
        """
        self._queues_of = queues_of
        self._queues_now = queues_now
        self._now: dict[str, Sequence[MessageQueue]] = {}
        self._queues = {topic: queues for topic, queues in seen.items() if queues}
        self._by_key: dict[tuple[str, ShardingKey], MessageQueue] = {}
        self._sampler = sampler

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the topic's queues, in the order in which a sharding key's hash selects from them.

        Raises:
            RocketMQError: If they cannot be looked up.
        """
        found = self._queues.get(topic)
        if found is None:
            found = self._queues[topic] = self._queues_of(topic)
        return found

    def any_of(self, topic: str) -> Sequence[MessageQueue]:
        """Return the topic's queues, as last looked up, for rows that have neither a key nor a queue.

        Raises:
            RocketMQError: If they cannot be looked up.
        """
        return self._now.get(topic) or self.queues(topic)

    def instead_of(self, queue: MessageQueue) -> Sequence[MessageQueue]:
        """Return the topic's current queues if ``queue`` is no longer one of them, else an empty sequence.

        Also return an empty sequence if the look-up fails. Only rows without a sharding key and a queue move
        to the current queues; other rows keep the queues of the first look-up.
        """
        try:
            now = self._queues_now(queue.topic)
        except RocketMQError as error:
            logger.warning(
                "could not look up the topic's queues again, keeping the known ones topic=%s: %s",
                queue.topic,
                error,
            )
            return ()
        if queue in now:
            return ()
        self._now[queue.topic] = now
        return now

    def of(self, row: SinkRow) -> Destination:
        """Return the queue that the row names or that its sharding key hashes to; otherwise its topic.

        Raises:
            RowNotSent: If the row has both a queue and a key, or its queue does not exist or is ambiguous.
            RocketMQError: If the topic's queues cannot be looked up.
        """
        if row.queue_id is not None:
            return self._named(row)
        if row.sharding_key is None:
            return row.topic
        key = (row.topic, row.sharding_key)
        queue = self._by_key.get(key)
        if queue is None:
            if len(self._by_key) >= _MOST_KNOWN_KEYS:
                self._by_key.clear()
            queue = select_message_queue_by_hash(self.queues(row.topic), row.sharding_key)
            self._by_key[key] = queue
            if self._sampler is not None:
                self._sampler.add(row.topic, str(row.sharding_key))
        return queue

    def _named(self, row: SinkRow) -> MessageQueue:
        if row.sharding_key is not None:
            raise RowNotSent(
                row.shown,
                "it has both a queueId and a shardingKey, and only one may choose the queue; leave the other "
                "null",
                is_no_message=True,
            )
        found = [
            queue
            for queue in self.queues(row.topic)
            if queue.queue_id == row.queue_id and row.broker_name in (None, queue.broker_name)
        ]
        if len(found) == 1:
            return found[0]
        wanted = f"queue {row.queue_id} of topic {row.topic}"
        if found:
            brokers = ", ".join(queue.broker_name for queue in found)
            problem = f"{wanted} exists on {peer_text(brokers)}: choose one in a column brokerName"
            raise RowNotSent(row.shown, problem, is_no_message=True)
        where = f" on {row.broker_name}" if row.broker_name else ""
        known = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in self.queues(row.topic))
        raise RowNotSent(
            row.shown,
            f"there is no {wanted}{where} to write to; choose one of the topic's queues: {peer_text(known)}",
        )
