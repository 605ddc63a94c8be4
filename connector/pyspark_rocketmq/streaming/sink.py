"""What a query needs of a place for its rows: the promise that makes rows arrive exactly once.

A sink keeps a *watermark* per group and life of a queue, the next offset whose rows it does not have, and moves it in the
transaction that adds rows.  A micro-batch goes through it in three steps: ``begin`` reads the watermarks, tasks write
what is not below them, ``commit`` makes their work and the new watermarks visible together, or neither.  Whatever is
killed, run again or run twice in between, each row is there once (``consume.watermark``).

Tasks get a :class:`RowWriter`, pickled; nothing that its module imports may load delta-rs, which does not survive a fork.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from pyspark_rocketmq.consume.watermark import Life
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.streaming.sink_standing import SinkStanding


class Written(Protocol):
    """What a task has written, on its way to the driver."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        ...


class Writing(Protocol):
    """One task's writing."""

    def add(self, rows: pa.RecordBatch) -> int:
        """Take rows of the listener in their order; how many of them were left out, for the sink has them."""
        ...

    def finish(self) -> Sequence[Written]:
        """End it; nobody sees anything of it before the driver commits."""
        ...

    def abandon(self) -> None:
        """Undo it as far as that is possible: what stays is no worse than after a kill."""
        ...


class RowWriter(Protocol):
    """Writes a task's rows; picklable."""

    def open(self) -> Writing:
        """Begin, in the task."""
        ...

    def written(self, facts: Mapping[str, Any]) -> Written:
        """The reverse of ``Written.to_dict``, on the driver."""
        ...


class SinkBatch(Protocol):
    """One micro-batch on its way into a sink."""

    @property
    def standings(self) -> Sequence[SinkStanding]:
        """As ``Sink.standings`` when the batch began."""
        ...

    def task_writer(self) -> RowWriter:
        """What tasks write with."""
        ...

    def commit(self, written: Sequence[Any], acked: Mapping[MessageQueue, int]) -> int | None:
        """Make what was written visible and move the watermarks to ``acked`` (next offsets), all or nothing.

        Returns:
            The version of a table that has versions; None without one, or when there was nothing to do.

        Raises:
            SinkMoved: If another consumer moved one of the watermarks since the batch began. Nothing was added.
        """
        ...


class Sink(Protocol):
    """A place for rows; used by one thread of the driver at a time."""

    @property
    def place(self) -> Hashable:
        """Where its watermarks are: two sinks of one place cannot serve one query. Known for sure when it is prepared."""
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Make sure, before the query starts, that rows of ``schema`` can be added.

        Raises:
            SchemaError: If they do not fit.
        """
        ...

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Sequence[SinkStanding]:
        """How far it has come in these queues, each in the life of this generation; makes nothing, and may come before ``prepare``.

        One, or of several sinks in one each of them. What they lack of the group's offsets is found out by
        :mod:`~pyspark_rocketmq.streaming.sink_standing`, before a query starts and before each batch.
        """
        ...

    def watermarks(self, consumer_group: str) -> Mapping[Life, int]:
        """How far it has come, in the last life of each queue that the group ever wrote rows of (next offsets)."""
        ...

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkBatch:
        """Begin a micro-batch of no other than these queues, each in the life of this generation.

        A generation grows where a queue's offsets begin again (``consume.watermark``). The sink has nothing of a life
        whose rows it never got, whatever it has of the one before it.
        """
        ...


class TaskRows(NamedTuple):
    """What became of a task's rows."""

    written: Sequence[Written]
    left_out: int
    """Rows that the sink, or one of several, has already."""


def write_rows(writer: RowWriter, batches: Iterator[pa.RecordBatch]) -> TaskRows:
    """Write a task's rows; nothing is left of them when ``batches`` or the writing fails."""
    writing = writer.open()
    try:
        left_out = sum(writing.add(batch) for batch in batches)
        return TaskRows(writing.finish(), left_out)
    except BaseException:
        writing.abandon()
        raise
