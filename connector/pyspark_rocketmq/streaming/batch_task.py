"""What runs in each task of a micro-batch's one job: data rows to the sink's writer, its outcome and acks to the driver.

Imports nothing that loads delta-rs: executors fork their workers, and delta-rs must not be in a process that forks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from pyspark_rocketmq.consume.range_orders import NO_ORDERS, RangeOrders
from pyspark_rocketmq.datasource.queue_reader import read_ranges
from pyspark_rocketmq.datasource.range_tickets import Ticket, tickets_in
from pyspark_rocketmq.datasource.worker_memory import settle_modules
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub.task_line import HubTerms, TaskOrders, ask_driver
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.sink import RowWriter, Written
from pyspark_rocketmq.streaming.task_parts import TaskParts

_RESULT_SCHEMA = pa.schema([("parts", pa.string()), ("could_ask", pa.bool_())])
_RESULT_COLUMNS = "parts string, could_ask boolean"


class ArrowEngine(Protocol):
    """Takes the rows of the ranges that a task reads, gives the engine's: one batch for each range, its ack row at the end."""

    def __call__(
        self, batches: Iterable[pa.RecordBatch], orders: RangeOrders = NO_ORDERS
    ) -> Iterator[pa.RecordBatch]:
        """Consume a task's ranges, each until ``orders`` say otherwise."""
        ...


class Evaluated(NamedTuple):
    """What tasks have brought: all of a micro-batch, or a part of one."""

    written: tuple[Written, ...]
    """What was written for the sink; it has none of it yet."""
    acks: tuple[QueueAck, ...]
    """By queue."""
    emitted: int
    """Data rows, those left out included."""
    left_out: int
    """Data rows that the sink has already, so that they were not written."""


class Job(NamedTuple):
    """What one evaluation of a micro-batch brought."""

    parts: Mapping[str, Evaluated]
    """By their ids: each can be committed or dropped without the others."""
    could_ask: bool | None
    """Whether all tasks could reach the driver; None if none had to."""


def evaluated_of(writer: RowWriter | None, part: Mapping[str, Any]) -> Evaluated:
    """A part as a task has sent it."""
    acks = sorted(map(QueueAck.from_json, part["acks"]), key=lambda ack: ack.queue)
    written = () if writer is None else tuple(map(writer.written, part["written"]))
    return Evaluated(written, tuple(acks), part["emitted"], part["left_out"])


def together(parts: Sequence[Evaluated]) -> Evaluated:
    """Several parts as one.

    Raises:
        RocketMQError: If a queue was consumed twice: its rows were copied on the way to the engine.
    """
    acks = sorted((ack for part in parts for ack in part.acks), key=lambda ack: ack.queue)
    for one, other in pairwise(acks):
        if one.queue == other.queue:
            raise RocketMQError(
                f"{one.queue}: two ranges of one batch were consumed, {one.start} to {one.next_offset} and "
                f"{other.start} to {other.next_offset}; nothing of the batch is committed. Do not copy or union the "
                "rows of format('rocketmq') before they are consumed."
            )
    return Evaluated(
        tuple(each for part in parts for each in part.written),
        tuple(acks),
        sum(part.emitted for part in parts),
        sum(part.left_out for part in parts),
    )


class BatchTask:
    """The function given to ``mapInArrow``.

    Without a writer the listener's side effects are all that is wanted. With an engine the batch holds planned ranges
    (:mod:`~pyspark_rocketmq.datasource.range_tickets`), and reading them and the engine happen here too: a message is in
    one Python process from the socket to the sink's file. With ``terms`` such a task asks the driver before it begins with a range,
    and gives up what it is told to.
    """

    def __init__(
        self, writer: RowWriter | None, engine: ArrowEngine | None = None, terms: HubTerms | None = None
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._terms = terms

    def run(self, batch: DataFrame) -> Job:
        """Evaluate ``batch`` in one job."""
        parts: dict[str, Evaluated] = {}
        asked: list[bool] = []
        for row in batch.mapInArrow(self, _RESULT_COLUMNS).collect():
            for part in json.loads(row["parts"]):
                parts[part["id"]] = evaluated_of(self._writer, part)
            if row["could_ask"] is not None:
                asked.append(row["could_ask"])
        return Job(parts, all(asked) if asked else None)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row with the parts of the task's result."""
        could_ask: bool | None = None
        if self._engine is None:
            finished = self._written(batches, None)
        else:
            tickets = list(tickets_in(batches))
            orders = self._ask(tickets)
            could_ask = orders is not None if tickets and self._terms is not None else None
            is_held_back = could_ask is False and self._terms is not None and self._terms.must_ask
            rows = self._engine(_rows_of(() if is_held_back else tickets, orders), orders or NO_ORDERS)
            finished = self._written(rows, orders)
        settle_modules()
        result = {"parts": json.dumps(finished), "could_ask": could_ask}
        yield pa.RecordBatch.from_pylist([result], schema=_RESULT_SCHEMA)

    def _ask(self, tickets: Sequence[Ticket]) -> TaskOrders | None:
        if self._terms is None or not tickets:
            return None
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        planned = [each.planned for ticket in tickets for each in ticket.partitions]
        epochs = {each.queue: each.epoch for each in planned}
        return ask_driver(self._terms, partition, epochs, tasks=tickets[0].tasks)

    def _written(self, rows: Iterable[pa.RecordBatch], orders: TaskOrders | None) -> list[dict[str, Any]]:
        parts = TaskParts(self._writer, orders)
        try:
            for batch in rows:
                parts.add(batch)
            return parts.finish()
        except BaseException:
            parts.abandon()
            raise


def _rows_of(tickets: Iterable[Ticket], orders: TaskOrders | None) -> Iterator[pa.RecordBatch]:
    """The rows of the tickets' ranges, one after the other, without those that are given up by then."""
    for ticket in tickets:
        begun = [each for each in ticket.partitions if orders is None or orders.begins(each.planned.queue)]
        yield from read_ranges(begun)
