"""What a query needs of a place for its rows, so that they arrive there exactly once.

A replayed batch need not equal the first attempt: a listener may fail the second time, or get farther. So a
batch id cannot tell what a sink holds; only a position per queue can.  A sink keeps that position, the
*watermark*, which is the next offset whose rows it does not have, in the same transaction as the rows. A
micro-batch goes through it in three steps:

1. ``begin`` reads the watermarks;
2. tasks write the rows that are not below their queue's watermark: an earlier attempt wrote the others;
3. ``commit`` makes the rows and the watermarks that grow visible together, or neither.

Whatever was killed, replayed or run twice in between, the sink then holds the rows of exactly the messages
below its watermarks. Offsets are committed after that, so the offset store is never ahead of the sink.

A watermark speaks of one *generation* of its queue. Where offsets begin again, because a topic was made
anew or a broker lost the end of its log, other messages come under offsets that were there before: that is
the next generation, which begins without a watermark.

Tasks get a :class:`RowWriter`, pickled; nothing that its module imports may load delta-rs, which does not
survive a fork.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.errors import OffsetError, SchemaError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.standing import SinkStanding

POSITION_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset")
_QUEUE_COLUMNS = POSITION_COLUMNS[:3]


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
            is_below = pc.less(batch.column("queueOffset"), watermarks[queue])
            for name, value in zip(_QUEUE_COLUMNS, queue, strict=True):
                is_below = pc.and_(is_below, pc.equal(batch.column(name), value))
            batch = batch.filter(pc.invert(is_below))
    return batch


class QueueGeneration(NamedTuple):
    """One generation of a queue: the time in which an offset means one message."""

    queue: MessageQueue
    number: int
    """0 is the first."""


def generation_of(transaction_id: str, consumer_group: str) -> QueueGeneration | None:
    """The generation whose watermark has this id (``delta_rules.app_id``); None if it is anything else."""
    prefix = f"rocketmq:{consumer_group}:"
    topic, _, rest = transaction_id.removeprefix(prefix).partition(":")
    broker_name, _, last = rest.rpartition(":")
    queue_id, dot, generation = last.partition(".")
    is_first = not dot and queue_id.isdecimal()
    is_later = queue_id.isdecimal() and generation.isdecimal() and int(generation) > 0
    if not transaction_id.startswith(prefix) or not (topic and broker_name and (is_first or is_later)):
        return None
    return QueueGeneration(MessageQueue(topic, broker_name, int(queue_id)), int(generation or 0))


def newest_generations(watermarks: Mapping[QueueGeneration, int]) -> dict[QueueGeneration, int]:
    """Of each queue the watermark of its last generation."""
    newest: dict[MessageQueue, int] = {}
    for queue, generation in watermarks:
        newest[queue] = max(generation, newest.get(queue, 0))
    return {key: watermark for key, watermark in watermarks.items() if newest[key.queue] == key.number}


def advance(stored: Mapping[MessageQueue, int], acked: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """The watermarks to commit: those of ``acked`` (next offsets) that are beyond what is stored.

    A queue that stood still, or that a replay brought less far than before, is not in the result.
    """
    return {queue: next_offset for queue, next_offset in acked.items() if next_offset > stored.get(queue, 0)}


def moved_by(
    watermarks: Mapping[MessageQueue, int],
    acked: Mapping[MessageQueue, int],
    *,
    rows: int,
    consumer_group: str,
    place: str,
) -> dict[MessageQueue, int]:
    """The watermarks that a batch with so many rows moves; see :func:`advance`.

    Raises:
        OffsetError: If a queue was not named to ``begin``, or if there are rows although no queue grew.
    """
    unknown = [str(queue) for queue in acked if queue not in watermarks]
    if unknown:
        raise OffsetError(
            f"{'; '.join(unknown)}: acknowledged, but not named when the batch began, so what {place} holds "
            "of it is not known. Nothing was added. Name every queue at the beginning."
        )
    grown = advance(watermarks, acked)
    if rows and not grown:
        raise OffsetError(
            f"Group {consumer_group}: {rows} rows for {place} come without progress of any queue. Nothing "
            "was added. Rows of messages that were not acknowledged must not be written."
        )
    return grown


class Written(Protocol):
    """What a task has written, on its way to the driver."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        ...


class Writing(Protocol):
    """One task's writing."""

    def add(self, rows: pa.RecordBatch) -> int:
        """Take rows of the listener in their order; how many of them the sink has already."""
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


@runtime_checkable
class RemembersMessages(Protocol):
    """A batch of a sink that keeps, beside each watermark, the newest message below it.

    So it is noticed when a broker loses messages that only the sink has, because the query was killed before
    their offsets were stored.  A sink without this misses that.
    """

    def note_newest(self, newest: Mapping[MessageQueue, str]) -> None:
        """Take the newest message of each queue, as text; called before ``commit``, which stores them."""
        ...


def note_newest(batch: SinkBatch, newest: Mapping[MessageQueue, str]) -> None:
    """Hand the newest messages to a batch that keeps them."""
    if isinstance(batch, RemembersMessages):
        batch.note_newest(newest)


@runtime_checkable
class CountsRows(Protocol):
    """A sink that can be asked for a group's rows, whatever its watermarks show."""

    def count_rows(self, from_offsets: Mapping[MessageQueue, int]) -> int:
        """Count the rows of these queues from their offsets on."""
        ...


class Sink(Protocol):
    """A place for rows; used by one thread of the driver at a time."""

    @property
    def place(self) -> Hashable:
        """Where its watermarks are, for sure once prepared: two sinks of one place cannot serve one query."""
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Make sure, before the query starts, that rows of ``schema`` can be added.

        Raises:
            SchemaError: If they do not fit.
        """
        ...

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Sequence[SinkStanding]:
        """How far each sink in this one has come in these generations; may be called before ``prepare``."""
        ...

    def watermarks(self, consumer_group: str) -> Mapping[QueueGeneration, int]:
        """Next offsets of the last generation of each queue that the group wrote rows of."""
        ...

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkBatch:
        """Begin a micro-batch of no other than these queues, each in this generation.

        The sink has nothing of a generation whose rows it never got, whatever it has of the one before it.
        """
        ...
