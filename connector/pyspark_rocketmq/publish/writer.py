"""The writers of ``format("rocketmq")``: the work of each task, and of the driver.

Order. A task sends its rows in the order in which it gets them: rows of one sharding key go to one queue, one
request after another. There is no order between tasks, and a Python sink cannot request a distribution from
Spark: all rows of a key reach one task only if the DataFrame is arranged that way (``by_sharding_key``),
which is checked afterwards.

Delivery. At least once: a task ends when all its messages are acknowledged, and a task, batch or query that
runs again sends its rows again. A row that has the same content at the same place then has the same UNIQ_KEY,
and another row at this place has another one. A batch write that is started again keeps the keys only with
option ``writeId``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_rocketmq.client.broker import OnSend
from pyspark_rocketmq.client.cluster import Cluster, PatientLookup
from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.client.producer.attempts import FaultTable
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import KeysOutOfOrder, RocketMQError, without_frames
from pyspark_rocketmq.model import MessageQueue, TopicRoute
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.publish.batches import BatchBuilder, QueueSelector, SendBatch, compression_of
from pyspark_rocketmq.publish.keys import KeySample, KeySampler, keys_of_several_tasks
from pyspark_rocketmq.publish.rows import QUEUE_ID, SHARDING_KEY, RowKeys, RowReader, fixed_values
from pyspark_rocketmq.publish.sender import Sender
from pyspark_rocketmq.spark.version import DataSourceStreamArrowWriter
from pyspark_rocketmq.wire.requests.send import EncodedBatch

logger = logging.getLogger(__name__)

SeenRoutes = Mapping[str, TopicRoute]
"""Routes by topic."""

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Spark's name of the number of a micro-batch, among the local properties of a stream's tasks.

Source: ``StreamExecution``, ``MicroBatchExecution``."""


def seen_routes(options: WriteOptions) -> SeenRoutes:
    """Look up the route of option ``topic`` in the driver, for all tasks; return it by topic.

    All tasks of a write, including repeated ones, then distribute sharding keys over the same queues, even if
    brokers restart meanwhile. If topics are in a column, or the cluster does not answer now, the result is
    empty, and each task looks its topics up.
    """
    if options.topic is None:
        return {}
    clock = SystemClock()
    try:
        cluster = Cluster.of(options, clock)
        deadline = Deadline.after(clock, cluster.timeout_s)
        name_server = cluster.name_server()
        return {options.topic: name_server.route(options.topic, deadline)}
    except RocketMQError as error:
        # Tasks try again for longer, and from their own machines.
        logger.warning(
            "the driver could not look up the topic, its tasks try again topic=%s: %s", options.topic, error
        )
        return {}


def send_rows(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    positions: Mapping[str, int],
    row_keys: RowKeys,
    seen: SeenRoutes | None = None,
    *,
    has_worked: bool = False,
) -> tuple[int, KeySample]:
    """Send all rows and wait until they are acknowledged; return their number and a sample of sharding keys.

    ``has_worked`` shows that the query has written before, so that its name servers are waited for.

    Raises:
        RocketMQError: If a row is not a valid message or cannot be sent; rows before it may be stored.
    """
    clock = SystemClock()
    with Producer(
        options.name_servers,
        options.producer_group,
        send_timeout_s=options.request_timeout_ms / 1000,
        # The sender retries, and keeps the order while it does.
        retry_times_when_send_async_failed=0,
        compress_over_bytes=options.compress_over_bytes,
        compression_type=compression_of(options),
        max_message_size=options.max_message_size,
        pool=process_pool(ConnectionSettings.of(options)),
        clock=clock,
        namespace=options.namespace or "",
    ) as producer:
        sampler = KeySampler()
        routes = seen or {}
        for topic, route in routes.items():
            # Only for the brokers' addresses: the route expires, perhaps before the task's first row.
            producer.know(topic, route)
        has_keys = not {SHARDING_KEY, QUEUE_ID}.isdisjoint({*positions, *fixed_values(options)})
        lookup = PatientLookup(
            producer, clock, options.retry_timeout_ms / 1000, has_keys=has_keys, has_worked=has_worked
        )
        selector = QueueSelector(
            lookup.queues,
            sampler if options.check_sharding_keys else None,
            lambda topic: producer.queues(topic, may_create=False, afresh=True),
            {topic: route.publish_queues(topic) for topic, route in routes.items()},
        )
        builder = BatchBuilder(options)
        sender = Sender(
            partial(_begin_send, producer),
            clock,
            options,
            faults=FaultTable(clock) if options.send_latency_fault_enable else None,
            instead_of=selector.instead_of,
            too_large=builder.lower,
        )
        reader = RowReader(options=options, positions=positions, row_keys=row_keys)
        for send_batch in _send_batches(batches, reader, builder, selector):
            destination = send_batch.destination
            sender.put(send_batch, selector.any_of(destination) if isinstance(destination, str) else ())
        sender.finish()
        return sender.messages, sampler.sample()


def _send_batches(
    batches: Iterator[pa.RecordBatch], reader: RowReader, builder: BatchBuilder, selector: QueueSelector
) -> Iterator[SendBatch]:
    first = 0
    for batch in batches:
        for row in reader.rows(batch, first):
            yield from builder.add(row, selector.of(row))
        first += batch.num_rows
    yield from builder.rest()


def _begin_send(producer: Producer, send_batch: SendBatch, queue: MessageQueue, on_result: OnSend) -> None:
    if send_batch.single is None:
        batch = EncodedBatch(queue=queue, body=b"".join(send_batch.parts), sys_flag=send_batch.sys_flag)
        producer.send_encoded(batch, on_result)
        return
    try:
        producer.send_async(send_batch.single, on_result, queue=queue)
    except RocketMQError as error:
        on_result(error)


@dataclass(frozen=True)
class SentMessage(WriterCommitMessage):
    """Result of one task, which Spark brings to the driver."""

    messages: int
    """Number of messages sent."""
    keys: KeySample
    """Sample of the task's sharding keys; empty with ``checkShardingKeys=false``."""


class _Writer:
    """Base of both writers; pickled to the tasks."""

    def __init__(
        self, options: WriteOptions, positions: Mapping[str, int], seen: SeenRoutes | None = None
    ) -> None:
        self._options = options
        self._positions = positions
        self._seen = seen

    def _send(self, batches: Iterator[pa.RecordBatch], write_id: str, batch_id: int) -> SentMessage:
        row_keys = RowKeys(write_id, batch_id, _task().partitionId())
        # Batch 0 of a stream may be its first contact with the cluster; the number of a batch write is 0.
        has_worked = batch_id > 0
        sent = send_rows(batches, self._options, self._positions, row_keys, self._seen, has_worked=has_worked)
        return SentMessage(*sent)

    @staticmethod
    def _out_of_order(messages: Sequence[WriterCommitMessage | None]) -> KeysOutOfOrder | None:
        """Return an error if the samples of two tasks share a sharding key.

        With ``checkShardingKeys=false`` the samples are empty.
        """
        sent = [one for one in messages if isinstance(one, SentMessage)]
        logger.info("rows sent messages=%d tasks=%d", sum(one.messages for one in sent), len(sent))
        twice = keys_of_several_tasks(one.keys for one in sent)
        return KeysOutOfOrder(twice) if twice else None


class RocketMQWriter(_Writer, DataSourceArrowWriter):
    """Writer of ``df.write.format("rocketmq")``: sends rows in the tasks, checks their keys in the driver."""

    def __init__(
        self, options: WriteOptions, positions: Mapping[str, int], seen: SeenRoutes | None = None
    ) -> None:
        super().__init__(options, positions, seen)
        self._write_id = options.write_id or uuid.uuid4().hex

    @without_frames
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessage:
        """Send the rows of one task; all are acknowledged when it returns.

        Raises:
            RowNotSent: If a row cannot be sent; rows before it may be stored.
        """
        # Within foreachBatch, each micro-batch is a separate write, even with writeId. Over Spark Connect and
        # in a plain thread nothing shows the micro-batch: there the writeId must contain its number.
        batch_id = _task().getLocalProperty(_BATCH_ID)
        return self._send(iterator, self._write_id, int(batch_id or 0))

    @without_frames
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check samples of the tasks' sharding keys, unless ``checkShardingKeys=false``.

        Raises:
            KeysOutOfOrder: If two tasks sent rows of one sharding key; all rows are stored.
        """
        wrong = self._out_of_order(messages)
        if wrong is not None:
            raise wrong

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: stored messages cannot be taken back."""


class RocketMQStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writer of ``df.writeStream.format("rocketmq")``: sends rows in the tasks, checks keys in the driver."""

    @without_frames
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessage:
        """Send one task's rows of a micro-batch; all are acknowledged when it returns.

        Raises:
            RowNotSent: If a row cannot be sent; rows before it may be stored.
        """
        query_id, batch_id = (_task().getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if query_id is None or batch_id is None:
            raise RocketMQError(
                "Spark does not report the number of this micro-batch, which is needed to recognise messages "
                "that are sent again. Write with foreachBatch and df.write instead."
            )
        return self._send(iterator, self._options.write_id or query_id, int(batch_id))

    @without_frames
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Warn if samples show that two tasks sent rows of one key, unless ``checkShardingKeys=false``.

        The batch is stored. An error here would make every restart of the query send the batch again, and
        fail again.
        """
        wrong = self._out_of_order(messages)
        if wrong is not None:
            logger.warning(
                "batch %d of the stream was stored out of order, and the stream goes on: %s", batchId, wrong
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: stored messages cannot be taken back."""


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer's write() runs in a task"
    return context
