"""Reads ranges on an executor as rows: for streams, for batches, and for a group's tickets (pickled ranges).

:mod:`~pyspark_rocketmq.source.range_arrivals` reads the ranges; some engines use that module directly.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast

import pyarrow as pa
from pyspark import TaskContext

from pyspark_rocketmq.errors import without_frames
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source.marker_rows import spark_rows
from pyspark_rocketmq.source.range_arrivals import closed_arrivals
from pyspark_rocketmq.source.ranges import QueuePartition, Ticket
from pyspark_rocketmq.source.schema import RangeEnd, ReadPiece
from pyspark_rocketmq.spark.version import keep_archives

T = TypeVar("T")

_is_frozen = False
"""Whether this process has frozen its objects. A call of ``gc.get_freeze_count()`` would show it, too, but
takes as long as a collection."""


def read_queue(partition: QueuePartition) -> Iterator[pa.RecordBatch]:
    """Yield the range's messages in ascending queue offset, each once; then its marker row in consumer mode.

    In consumer mode a range may end early. Its marker row shows where and why; the reasons are in
    :class:`~pyspark_rocketmq.source.schema.EndReason`. The rest of the range is planned again; after an
    operator's reset, the queue is planned from the reset's target.

    Raises:
        DataLoss: If ``failOnDataLoss`` is true, and either offsets of the range are gone or a batch read
            finds at its end that the queue has another log than planned.
        UndecodableMessage: If a message cannot be decoded and ``undecodableMessages`` is not ``keep``; with a
            group, only if it is the range's first message.
        RocketMQError: If the broker refuses for good, or, without a group, cannot be reached for
            ``retryTimeoutMs``.
    """
    for _, batch in read_queues([partition]):
        yield batch


def read_ranges(partitions: Sequence[QueuePartition]) -> Iterator[ReadPiece]:
    """Yield the messages and then the end of each range of a group, one range after the other.

    The ranges are pulled and decoded together. Several ranges share one range's limit in bytes. Each may
    have at least 8 MiB, or the whole limit if that is less. A range that reaches its share ends early.

    Raises:
        RocketMQError: For the same reasons as ``read_queue``, for the first range that fails.
    """
    unfinished: dict[MessageQueue, list[pa.RecordBatch]] = {}
    for partition, piece in _read(partitions):
        if len(partitions) == 1:
            yield piece
        elif isinstance(piece, RangeEnd):
            yield from unfinished.pop(partition.planned.queue, ())
            yield piece
        else:
            unfinished.setdefault(partition.planned.queue, []).append(piece)


def read_queues(partitions: Sequence[QueuePartition]) -> Iterator[tuple[QueuePartition, pa.RecordBatch]]:
    """Read several ranges together, over one connection per broker; yield batches as they arrive.

    Each item is a partition and a batch of its range: messages or, in consumer mode, the marker row of the
    range's end. Batches of different ranges may alternate; those of one range are in order.
    """
    for partition, piece in _read(partitions):
        yield partition, spark_rows(piece) if partition.settings.is_group_read else piece


def _read(partitions: Sequence[QueuePartition]) -> Iterator[tuple[QueuePartition, ReadPiece]]:
    by_queue = {partition.planned.queue: partition for partition in partitions}
    for together in closed_arrivals(partitions):
        for arrival in together:
            for messages in arrival.messages:
                yield by_queue[arrival.queue], cast("pa.RecordBatch", messages)
                # Nothing here keeps messages while the next ones are decoded: their memory is used again.
                del messages
            if arrival.end is not None:
                yield by_queue[arrival.queue], arrival.end
            del arrival
        del together


def read_tickets(batches: Iterable[pa.RecordBatch]) -> Iterator[ReadPiece]:
    """Read the ranges of the tickets in ``batches`` by ``read_ranges``, one ticket after the other."""
    for ticket in tickets_in(batches):
        yield from read_ranges(ticket.partitions)


def tickets_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Ticket]:
    """Yield the tickets in ``batches`` without reading their ranges."""
    for batch in batches:
        for ticket in batch.column(0).drop_null().to_pylist():
            yield pickle.loads(ticket)  # noqa: S301 - written by the source of this query


def freeze_modules() -> None:
    """Exempt the objects that a worker's first task leaves, mostly modules, from garbage collection.

    Spark collects garbage in a worker after every task, which takes 20 to 50 ms of a core. Reference counting
    still frees frozen objects. Also calls :func:`keep_archives`, which saves time before each task. Does
    nothing outside a task.
    """
    global _is_frozen  # noqa: PLW0603 - one per process is the point
    if TaskContext.get() is None:
        return
    keep_archives()
    if not _is_frozen:
        _is_frozen = True
        gc.collect()
        gc.freeze()


@without_frames
def freeze_gc_after(rows: Iterator[T]) -> Iterator[T]:
    """Yield ``rows``, and call :func:`freeze_modules` after the last one."""
    yield from rows
    freeze_modules()
