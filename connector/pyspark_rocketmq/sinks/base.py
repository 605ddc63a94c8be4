"""What a query needs of a place for its rows: the promise that makes rows arrive exactly once.

A sink keeps a *watermark* per group and life of a queue, the next offset whose rows it does not have, and
moves it in the transaction that adds rows.  A micro-batch goes through it in three steps: ``begin`` reads the
watermarks, tasks write what is not below them, ``commit`` makes their work and the new watermarks visible
together, or neither.  Whatever is killed, run again or run twice in between, each row is there once.

Tasks get a :class:`RowWriter`, pickled; nothing that its module imports may load delta-rs, which does not
survive a fork.

A replayed batch need not equal the first attempt: a listener may fail the second time, or get farther. So a
batch id cannot tell what the sink holds; only a position per queue can. The sink keeps that position, the
*watermark*, in the same transaction as the rows, and every commit goes through three steps:

1. read the watermarks the sink holds;
2. drop rows whose ``queueOffset`` is below their queue's watermark: an earlier attempt wrote them;
3. commit the remaining rows and the watermarks that grow, together.

Whatever was acknowledged, replayed or lost in between, the sink then holds the rows of exactly the messages
below its watermark. Offsets are committed after that, so the offset store is never ahead of the sink.

A watermark speaks of one *life* of its queue. Where offsets begin again, because a topic was deleted and made
anew or a broker lost the end of its log, other messages come under offsets that were there before: that is
the next life, which has a watermark of its own and begins without one, so that all its rows are written.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.standing import SinkStanding

POSITION_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset")


_WRITING = pa.ipc.IpcWriteOptions(compression="zstd")


def rows_to_text(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> str:
    """The rows of ``batches``, all of ``schema``."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_WRITING) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return b64encode(sink.getvalue()).decode("ascii")


def text_to_rows(text: str) -> pa.Table:
    """The reverse, with the schema it was written with."""
    with pa.ipc.open_stream(b64decode(text)) as reader:
        return reader.read_all()


_QUEUE_COLUMNS = ("topic", "brokerName", "queueId")


def drop_committed(batch: pa.RecordBatch, watermarks: Mapping[MessageQueue, int]) -> pa.RecordBatch:
    """Return the rows at or above their queue's watermark.

    Raises:
        SchemaError: If a row's queue is not in ``watermarks``: whether it is in the table is not known.
    """
    lowest = pa.table(batch).group_by(list(_QUEUE_COLUMNS)).aggregate([("queueOffset", "min")])
    for *queue_fields, lowest_offset in zip(
        *(lowest.column(name).to_pylist() for name in (*_QUEUE_COLUMNS, "queueOffset_min")), strict=True
    ):
        queue = MessageQueue(*queue_fields)
        if queue not in watermarks:
            raise SchemaError(
                f"A row of {queue} at offset {lowest_offset} cannot be written: the queue is not part of "
                "this batch. Output rows must carry the position of the message that produced them."
            )
        if lowest_offset < watermarks[queue]:
            batch = batch.filter(pc.invert(_is_below(batch, queue, watermarks[queue])))
    return batch


def _is_below(batch: pa.RecordBatch, queue: MessageQueue, watermark: int) -> pa.Array:
    mask = pc.less(batch.column("queueOffset"), watermark)
    for name, value in zip(_QUEUE_COLUMNS, queue, strict=True):
        mask = pc.and_(mask, pc.equal(batch.column(name), value))
    return mask


class Life(NamedTuple):
    """One life of a queue: the time in which an offset means one message."""

    queue: MessageQueue
    generation: int
    """0 is the first."""


def life_of(transaction_id: str, consumer_group: str) -> Life | None:
    """The life whose watermark of this group has the id :func:`app_id`; None if it is anything else."""
    prefix = f"rocketmq:{consumer_group}:"
    topic, _, rest = transaction_id.removeprefix(prefix).partition(":")
    broker_name, _, last = rest.rpartition(":")
    queue_id, dot, generation = last.partition(".")
    is_first = not dot and queue_id.isdecimal()
    is_later = queue_id.isdecimal() and generation.isdecimal() and int(generation) > 0
    if not transaction_id.startswith(prefix) or not (topic and broker_name and (is_first or is_later)):
        return None
    return Life(MessageQueue(topic, broker_name, int(queue_id)), int(generation or 0))


def newest_lives(watermarks: Mapping[Life, int]) -> dict[Life, int]:
    """Of each queue the watermark of its last life."""
    newest: dict[MessageQueue, int] = {}
    for queue, generation in watermarks:
        newest[queue] = max(generation, newest.get(queue, 0))
    return {
        life: watermark for life, watermark in watermarks.items() if newest[life.queue] == life.generation
    }


def advance(stored: Mapping[MessageQueue, int], acked: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """The watermarks to commit: those of ``acked`` (next offsets) that are beyond what is stored.

    A queue that stood still, or that a replay brought less far than before, is not in the result.
    """
    return {queue: next_offset for queue, next_offset in acked.items() if next_offset > stored.get(queue, 0)}


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
            SinkMoved: If another consumer moved one of the watermarks since the batch began. Nothing was
                added.
        """
        ...


class Sink(Protocol):
    """A place for rows; used by one thread of the driver at a time."""

    @property
    def place(self) -> Hashable:
        """Where its watermarks are: two sinks of one place cannot serve one query.

        Known for sure when it is prepared.
        """
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Make sure, before the query starts, that rows of ``schema`` can be added.

        Raises:
            SchemaError: If they do not fit.
        """
        ...

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Sequence[SinkStanding]:
        """How far it has come in these lives of queues; makes nothing, and may come before ``prepare``.

        One, or of several sinks in one each of them. What they lack of the group's offsets is found out by
        :mod:`~pyspark_rocketmq.sinks.standing`, before a query starts and before each batch.
        """
        ...

    def watermarks(self, consumer_group: str) -> Mapping[Life, int]:
        """Next offsets of the last life of each queue that the group wrote rows of."""
        ...

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkBatch:
        """Begin a micro-batch of no other than these queues, each in the life of this generation.

        A generation grows where a queue's offsets begin again. The sink has nothing
        of a life whose rows it never got, whatever it has of the one before it.
        """
        ...
