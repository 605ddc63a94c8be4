"""Columns of the source, and the end of a range that was read.

``topic``, ``brokerName``, ``queueId`` and ``queueOffset`` name the physical queue in every row.  A message
that the group has given back is read from the group's retry topic. Then column ``originTopic`` has the topic
to which the message was first sent, and the listener gets the message under that topic. In all other rows
this column is null.

Consumer mode (option ``consumerGroup``) ends every planned range with its :class:`RangeEnd`, because a tag
filter may leave no message at all and the range must still be acknowledged. Where rows cross Spark, the range
end is a row: see :mod:`~pyspark_rocketmq.source.marker_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.model import (
    OPEN_END,
    ORIGIN_TOPIC,
    MessageExt,
    MessageQueue,
    QueueRange,
    QueueState,
    is_retry_topic,
)
from pyspark_rocketmq.offsets.store import PLAN_FIELDS
from pyspark_rocketmq.wire.columnar.decode import projected_schema
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA
from pyspark_rocketmq.wire.namespace import without_namespace
from pyspark_rocketmq.wire.properties import MAX_OFFSET, MIN_OFFSET, RETRY_TOPIC

KIND: Final = "kind"
"""Column that is null in messages' rows, and ``"end"`` in the row that marks the end of a range."""
PLANNED_RANGE: Final = "plannedRange"
_CONSUMER_FIELDS = tuple(pa.field(name, pa.string()) for name in (ORIGIN_TOPIC, KIND, PLANNED_RANGE))
CONSUMER_SCHEMA = pa.schema([*MESSAGE_SCHEMA, *_CONSUMER_FIELDS])
ReadPiece: TypeAlias = "pa.RecordBatch | RangeEnd"
"""A batch of messages of a range, or the range's end, which follows all of them."""


class EndReason(StrEnum):
    """Why a range ends where it does."""

    WHOLE = "whole"
    """The range was read to its planned end."""
    EARLY = "early"
    """The broker was away or had no more messages, or an operator has reset the group."""
    REFUSED = "refused"
    """The broker refuses pulls for now; the queue is not asked again for 3 s."""
    FULL = "full"
    """The range has reached its largest size. See row D13 of ``docs/semantics.md``."""
    UNDECODABLE = "undecodable"
    """The next message cannot be decoded."""
    ANOTHER_LOG = "another log"
    """A consumed message's place has another message: the topic was created again, or a broker lost the end
    of its log."""
    STOPPED = "stopped"
    """The task ended before it had read the range to its end."""


def spark_schema(
    *, consumer_mode: bool, columns: Sequence[str] | None = None, property_columns: Sequence[str] = ()
) -> StructType:
    """Return the source's schema as a Spark type.

    In consumer mode it is fixed; otherwise it has ``columns`` (by default all), then ``property_columns``.
    """
    # Not from DDL text: that needs a SparkContext, which the planner's process does not have.
    return from_arrow_schema(
        CONSUMER_SCHEMA if consumer_mode else projected_schema(columns, property_columns)
    )


def range_to_json(planned: QueueRange) -> dict[str, int | float | str]:
    """Return a planned range, without its queue, in the form that plans and marker rows contain.

    For an open range this form has no end. Fields of the queue's state that are 0 or empty are left out.
    """
    state = planned.state
    known = {
        field.in_plan: field.to_plain(value) for field in PLAN_FIELDS if (value := getattr(state, field.name))
    }
    end = {} if planned.has_open_end else {"to": planned.end}
    return {"from": planned.start, **end, **known}


def range_from_json(queue: MessageQueue, entry: Mapping[str, Any], *, is_open: bool = False) -> QueueRange:
    """Return the range in ``entry``, as written by :func:`range_to_json`; nothing is checked."""
    state = {
        field.name: field.from_plain(entry[field.in_plan]) for field in PLAN_FIELDS if field.in_plan in entry
    }
    return QueueRange(queue, QueueState(**state), OPEN_END if is_open else entry["to"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeEnd:
    """Where and why reading a range ended, perhaps before its planned end; follows the range's messages."""

    planned: QueueRange
    """The planned range, with the end that was reached."""
    rows: int
    """Number of messages read."""
    reason: EndReason = EndReason.WHOLE
    reset_to: int | None = None
    """Target of an operator's reset, the offset to consume from next; None without a reset."""
    bounds: tuple[int, int] | None = None
    """The queue's smallest offset and its end, from the newest answer; None before the first one."""
    pulls: int = 0
    """Number of answers that contained the messages."""
    pull_ms: float = 0.0
    """How long these answers took together, in milliseconds."""

    def moves(self, planned: QueueRange) -> bool:
        """Return whether messages of the range that still wait must not be delivered any more.

        This is so if ``planned``, the range as it was planned, is open, and its group continues at another
        offset: an operator has reset the group, or the queue has another log. The messages of a closed range
        that were read are delivered nevertheless.
        """
        is_elsewhere = self.reset_to is not None or self.reason is EndReason.ANOTHER_LOG
        return is_elsewhere and planned.has_open_end

    @property
    def metrics(self) -> ConsumeMetrics:
        """The statistics of reading the range."""
        return ConsumeMetrics(pulled=self.rows, pulls=self.pulls, pull_ms=self.pull_ms)

    @property
    def described_by_messages(self) -> dict[str, str]:
        """The properties that a consumer adds to each message of the range: the bounds of its queue."""
        return described_by(self.bounds)


NOTHING_READ: Final = ConsumeMetrics()


class Arrival(NamedTuple):
    """Arrived part of a range: its next messages, its end, or both; or only how far it has been read."""

    planned: QueueRange
    """The range as it was planned."""
    messages: Sequence[pa.RecordBatch | list[MessageExt]] = ()
    """The messages, in queue order: rows in columns or, if they are few, ``MessageExt`` objects."""
    end: RangeEnd | None = None
    """The end of the range; None if more of it follows."""
    reached: int | None = None
    """Queue offset below which everything has arrived; None if that is the offset after the last message."""
    bounds: tuple[int, int] | None = None
    """The queue's smallest offset and its end, from the newest answer; None before the first one. Unused if
    there is an ``end``."""
    nbytes: int = 0
    """Memory that the messages take, in bytes; 0 if they are read without a group."""
    reading: ConsumeMetrics = NOTHING_READ
    """Statistics of how a group has read the range until here; empty with an ``end``, which has its own."""

    @property
    def queue(self) -> MessageQueue:
        """The range's queue."""
        return self.planned.queue

    @property
    def is_end(self) -> bool:
        """Whether nothing of the range follows."""
        return self.end is not None

    @property
    def described_by_messages(self) -> dict[str, str]:
        """The properties that a consumer adds to each message made from rows: the bounds of its queue."""
        return self.end.described_by_messages if self.end is not None else described_by(self.bounds)


def described_by(bounds: tuple[int, int] | None) -> dict[str, str]:
    """Return the properties that a consumer adds to each message: the bounds of its queue, if they are known.

    Source: ``PullAPIWrapper.processPullResult``.
    """
    return {} if bounds is None else {MIN_OFFSET: str(bounds[0]), MAX_OFFSET: str(bounds[1])}


def shown_to_listener(
    messages: Sequence[MessageExt], queue: MessageQueue, namespace: str, described: Mapping[str, str]
) -> list[MessageExt]:
    """Return messages of ``queue`` in the form that a listener gets, with the properties ``described``.

    For messages in columns, :func:`with_origin_topics` and the creation of objects do the same.
    """
    is_retry = is_retry_topic(queue.topic)
    shown = []
    for message in messages:
        # Nobody else has the message yet.
        cast("dict[str, str]", message.properties).update(described)
        origin = message.properties.get(RETRY_TOPIC) if is_retry else None
        if message[: len(queue)] != queue:
            message = message._replace(**queue._asdict())  # noqa: PLW2901
        if origin is not None:
            message = message.restored(without_namespace(namespace, origin))  # noqa: PLW2901
        shown.append(message)
    return shown


def with_origin_topics(messages: pa.RecordBatch, namespace: str) -> pa.RecordBatch:
    """Return the messages of one queue; those of a retry topic get the column ``originTopic``.

    Args:
        messages: At least one.
        namespace: The consumer's; ``originTopic`` does not contain it, like every topic in a row.
    """
    if not is_retry_topic(messages.column("topic")[0].as_py()):
        return messages
    # A message without the property keeps the retry topic, as in Java.
    named = pc.map_lookup(messages.column("properties"), RETRY_TOPIC, "last").to_pylist()
    bare = [None if topic is None else without_namespace(namespace, topic) for topic in named]
    return messages.append_column(_CONSUMER_FIELDS[0], pa.array(bare, pa.string()))
