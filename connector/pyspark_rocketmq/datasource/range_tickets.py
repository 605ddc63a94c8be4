"""A planned range handed on unread: whoever consumes its messages reads them where it consumes them.

A consumer that takes the source's rows in the very next operator would have every message decoded in one Python
process, made into Spark's rows, and into Arrow again for the other.  With option ``handOverRanges`` a range travels in
the place of its messages, and is read once it has arrived.

The first row is a *ticket*, the pickled partitions of ranges that are read at once.  The others, as many as these ranges have offsets,
are null: Spark counts a stream's rows as its input (``numInputRows``), and users watch that. Once counted they are dropped, where that
costs least. Short ranges share a task, and a ticket (:mod:`~pyspark_rocketmq.consume.shared_tasks`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.datasource import InputPartition

from pyspark_rocketmq.consume.shared_tasks import Expected, read_together, shared_tasks
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.queue_reader import read_ranges
from pyspark_rocketmq.model import MessageQueue

MOST_COUNTED = 10_000_000
"""Rows of a ticket at most, which take 40 MB: no listener gets as many messages in a micro-batch, but a plan may say any number."""
TICKET_SCHEMA = pa.schema([("plannedRange", pa.binary())])


class Ticket(NamedTuple):
    """What travels in the place of messages."""

    partitions: tuple[QueuePartition, ...]
    """Of the ranges that are read at once; at least one."""
    tasks: int = 1
    """How many the batch has."""


@dataclass(frozen=True)
class SharedTask(InputPartition):
    """What a task gets that hands ranges over."""

    tickets: tuple[Ticket, ...]


def tasks_of(
    ranges: Sequence[QueuePartition], listener_ms: Callable[[MessageQueue], float | None], slots: int = 0
) -> list[SharedTask]:
    """The tasks that hand ``ranges`` over.

    Args:
        ranges: Those of one micro-batch.
        listener_ms: How long the listener has a message of a queue, about.
        slots: How many tasks can run at the same time; 0 if that is not known.
    """
    expected = [Expected(each.planned.count, listener_ms(each.planned.queue)) for each in ranges]
    tasks = shared_tasks(expected, slots)
    return [
        SharedTask(
            tuple(
                Ticket(tuple(ranges[task[place]] for place in together), len(tasks))
                for together in read_together([expected[index] for index in task])
            )
        )
        for task in tasks
    ]


def ticket_rows(ticket: Ticket) -> pa.RecordBatch:
    """The rows of a ticket: at least one."""
    offsets = sum(max(1, each.planned.count) for each in ticket.partitions)
    row = pa.array([pickle.dumps(ticket)], pa.binary())
    counted = pa.nulls(min(offsets, MOST_COUNTED) - 1, pa.binary())
    return pa.RecordBatch.from_arrays([pa.concat_arrays([row, counted])], schema=TICKET_SCHEMA)


def tickets_alone(rows: DataFrame) -> DataFrame:
    """Of a stream's rows those that say something: the others have been counted when they left the source."""
    return rows.where(sf.col("plannedRange").isNotNull())


def read_tickets(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the ranges whose tickets are among ``batches``, one range after the other, each as of ``read_queue``."""
    for ticket in tickets_in(batches):
        yield from read_ranges(ticket.partitions)


def tickets_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Ticket]:
    """The tickets among ``batches``, their ranges unread."""
    for batch in batches:
        for ticket in batch.column(0).drop_null().to_pylist():
            yield pickle.loads(ticket)  # noqa: S301 - written by the source of this query
