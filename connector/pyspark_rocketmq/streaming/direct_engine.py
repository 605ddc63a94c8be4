"""The direct engine: each task takes the planned ranges it reads through the user's listener, without a shuffle.

Runs in ``mapInArrow`` right on the consumer-mode source, where a task reads one queue's range or several.  Nothing moves between
tasks and nothing is kept in Spark.  How a task goes about its ranges is said in
:mod:`~pyspark_rocketmq.streaming.orderly_task`.

Spark cuts a range into batches of any size, and puts several ranges into one task where partitions are coalesced; in
both cases it keeps the rows' order.  The engine relies on that and checks it: a range whose rows were shuffled,
lost or doubled is refused before anything of it is delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.consume.range_orders import NO_ORDERS, RangeOrders
from pyspark_rocketmq.datasource.schema import told_with_messages
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.streaming.arrived_range import ArrivedRange, pieces, whole_range, wrong_markers
from pyspark_rocketmq.streaming.message_columns import ArrivedMessages
from pyspark_rocketmq.streaming.orderly_task import OrderlyTask
from pyspark_rocketmq.streaming.output_rows import RowColumns
from pyspark_rocketmq.streaming.output_schema import QUEUE_COLUMNS, engine_schema
from pyspark_rocketmq.streaming.range_consumer import Consumed, RangeConsumer


class DirectEngine:
    """The function given to ``mapInArrow``; pickled with the listener."""

    def __init__(self, consumer: RangeConsumer, schema: StructType) -> None:
        """Run ``consumer``, whose listener emits the columns of ``schema``."""
        self._consumer = consumer
        self._rows = RowColumns(engine_schema(schema))

    def __call__(
        self, batches: Iterable[pa.RecordBatch], orders: RangeOrders = NO_ORDERS
    ) -> Iterator[pa.RecordBatch]:
        """Consume a task's ranges: of each one that has ended its data rows, then its ack row."""
        task = OrderlyTask(
            arrived_ranges(batches),
            self._consumer,
            orders,
            SystemClock(),
            give_away=lambda consumed: orders.take(self._batch(consumed)),
        )
        yield from map(self._batch, task.consumed())

    def _batch(self, consumed: Consumed) -> pa.RecordBatch:
        return self._consumer.batch(self._rows, consumed)


def arrived_ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[ArrivedRange]:
    """The ranges in a task's batches; each one as soon as its marker row has come.

    Raises:
        RocketMQError: If rows of a range were lost, doubled, moved, or mixed with another queue's.
    """
    gathering: _Gathering | None = None
    for batch in batches:
        for rows in pieces(batch):
            if gathering is None:
                gathering = _Gathering(_queue_of(rows))
            arrived = gathering.add(rows)
            if arrived is not None:
                yield arrived
                gathering = None
    if gathering is not None:
        raise wrong_markers(gathering.queue, "a task's rows ended without one")


class _Gathering:
    """One range on its way."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self._rows: list[pa.RecordBatch] = []
        self._offsets: list[npt.NDArray[np.int64]] = []

    def add(self, rows: pa.RecordBatch) -> ArrivedRange | None:
        """Take the next rows, of which only the last may be a marker; the range, if it is one."""
        for name, value in zip(QUEUE_COLUMNS, self.queue, strict=True):
            if not pc.all(pc.equal(rows.column(name), value)).as_py():
                other = _queue_of(rows.filter(pc.not_equal(rows.column(name), value)))
                raise wrong_markers(self.queue, f"rows of {other} came before it")
        self._offsets.append(rows.column("queueOffset").to_numpy())
        marker = rows.column("plannedRange")[-1].as_py()
        is_whole = rows.column("kind")[-1].is_valid
        if rows.num_rows > is_whole:
            self._rows.append(rows.slice(0, rows.num_rows - is_whole))
        if not is_whole:
            return None
        offsets = np.concatenate(self._offsets)
        messages = ArrivedMessages(self._rows, self.queue, offsets[:-1], told_with_messages(marker))
        arrived = whole_range(self.queue, messages, offsets, marker)
        return arrived._replace(nbytes=sum(rows.nbytes for rows in self._rows))


def _queue_of(rows: pa.RecordBatch) -> MessageQueue:
    return MessageQueue(*(rows.column(name)[0].as_py() for name in QUEUE_COLUMNS))
