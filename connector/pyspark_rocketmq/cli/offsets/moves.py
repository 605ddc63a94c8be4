"""Decides where an operator's command moves each queue, and parses its positions and times. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from pyspark_rocketmq.display import counted, peer_text
from pyspark_rocketmq.model import OPEN_END, MessageQueue, QueueBounds, is_retry_topic, queue_columns
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.options.parsers import iso_time

_FORMS: Final = "a time such as 2026-11-20T10:00 (UTC if it has no zone) nor a version such as v120"

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
SINK: Final = "sink"


@dataclass(frozen=True, slots=True)
class AtTime:
    """A time, in wall-clock seconds."""

    at_s: float


@dataclass(frozen=True, slots=True)
class AtVersion:
    """A version of the offset table."""

    version: int


def parse_moment(text: str) -> AtTime | AtVersion:
    """Parse a version of the offset table, such as ``v120``, or a time in ISO 8601 (UTC without a zone).

    Raises:
        ValueError: If that fails; the message completes a sentence that begins with ``text``.
    """
    version = re.fullmatch(r"[vV](\d+)", text.strip())
    if version:
        return AtVersion(int(version[1]))
    try:
        return AtTime(parse_time(text))
    except ValueError:
        raise ValueError(f"is neither {_FORMS}") from None


def parse_time(text: str) -> float:
    """Parse a time in ISO 8601 (UTC if it has no zone); return wall-clock seconds.

    Raises:
        ValueError: If it is not a time.
    """
    return iso_time(text).timestamp()


@dataclass(frozen=True, slots=True)
class ToOffset:
    """The same queue offset for every chosen queue."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class ToTime:
    """The first message stored at or after this wall-clock second."""

    at_s: float


@dataclass(frozen=True, slots=True)
class ToBound:
    """The earliest or latest offset that the broker has."""

    end: str


@dataclass(frozen=True, slots=True)
class ToSink:
    """The offset up to which the sink has all rows, for each queue of which it has lost rows."""


Position = ToOffset | ToTime | ToBound
Target = Position | ToSink


def parse_target(text: str) -> Target:
    """Parse ``earliest``, ``latest``, ``sink``, a queue offset, or the time from which to consume.

    Raises:
        ValueError: If that fails; the message completes a sentence that begins with ``text``.
    """
    value = text.strip().lower()
    if value in (EARLIEST, LATEST):
        return ToBound(value)
    if value == SINK:
        return ToSink()
    if re.fullmatch(r"\d+", value):
        # Python refuses to read thousands of digits.
        if len(value) > len(str(OPEN_END)) or int(value) > OPEN_END:
            raise ValueError(f"is above {OPEN_END}, the highest offset that a queue can have")
        at = _time_in_digits(value)
        if at is not None:
            raise ValueError(
                f"looks like a time, but a number is a queue offset here; for the time write {at}"
            )
        return ToOffset(int(value))
    try:
        return ToTime(parse_time(text))
    except ValueError:
        raise ValueError(
            "is not earliest, latest, sink, a queue offset, or a time such as 2026-11-20T10:00 (UTC "
            "if it has no zone)"
        ) from None


def _time_in_digits(digits: str) -> str | None:
    """Return advice on how to write the time that the digits mean, for an error; None if they mean none.

    ``consumeTimestamp`` and ``mqadmin`` write times as 14 digits (``yyyyMMddHHmmss``) or 13 (milliseconds).
    Such digits cannot be an offset: no queue has that many messages.
    """
    if len(digits) == 13:
        return datetime.fromtimestamp(int(digits) / 1000, UTC).isoformat(timespec="milliseconds")
    try:
        at = datetime.strptime(digits, "%Y%m%d%H%M%S") if len(digits) == 14 else None  # noqa: DTZ007
    except ValueError:
        return None
    return None if at is None else f"{at.isoformat()} for UTC, or with a zone, as {at.isoformat()}+08:00"


@dataclass(frozen=True, slots=True)
class QueueChoice:
    """Choice of the queues that a command is about. An empty field excludes no queue."""

    topics: frozenset[str] = frozenset()
    queues: frozenset[tuple[str, int]] = frozenset()
    """Broker name and queue id."""

    def takes(self, queue: MessageQueue) -> bool:
        """Return whether ``queue`` is chosen. Queues of the retry topic are chosen only if it is named."""
        is_named = queue.topic in self.topics
        return self.takes_retries_too(queue) and (is_named or not is_retry_topic(queue.topic))

    def takes_topic(self, queue: MessageQueue) -> bool:
        """Return whether the topic of ``queue`` is chosen, or all topics are."""
        return not self.topics or queue.topic in self.topics

    def takes_retries_too(self, queue: MessageQueue) -> bool:
        """Return whether ``queue`` is chosen. A choice without topics includes queues of the retry topic."""
        return self.takes_topic(queue) and (
            not self.queues or (queue.broker_name, queue.queue_id) in self.queues
        )


def not_chosen(choice: QueueChoice, queues: Collection[MessageQueue]) -> str | None:
    """Return a sentence about a topic or queue in ``choice`` that is not in ``queues``; None if all are."""
    topics = {queue.topic for queue in queues}
    for topic in sorted(choice.topics - topics):
        near = difflib.get_close_matches(topic, topics, n=1)
        hint = (
            f"did you mean '{near[0]}'?" if near else f"its topics are {', '.join(sorted(topics)) or 'none'}."
        )
        return f"The group has no topic '{topic}'; {hint}"
    there = {(queue.broker_name, queue.queue_id) for queue in queues if choice.takes_topic(queue)}
    within = " in the chosen topics" if choice.topics else ""
    for broker_name, queue_id in sorted(choice.queues - there):
        known = ", ".join(f"{name}:{number}" for name, number in sorted(there))
        return (
            f"The group has no queue '{broker_name}:{queue_id}'{within}; its queues are "
            f"{peer_text(known) or 'none'}."
        )
    return None


def parse_queue(text: str) -> tuple[str, int]:
    """Parse ``BROKER:ID``; return broker name and queue id.

    Raises:
        ValueError: If that fails; the message completes a sentence that begins with ``text``.
    """
    broker_name, colon, queue_id = text.strip().rpartition(":")
    if not colon or not broker_name or not queue_id.isdecimal():
        raise ValueError("is not BROKER:ID, such as broker-a:0")
    return broker_name, int(queue_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMove:
    """Move of a group to another offset of one queue."""

    queue: MessageQueue
    row: OffsetRow | None
    """None for a queue that the group has not started to consume."""
    target: int
    bounds: QueueBounds | None
    held_by: str | None = None
    """Client id of the member that consumes the queue now; None if there is none."""
    watermark: int | None = None
    """The sink's watermark: the queue offset below which it has all rows, and drops rows that come again.
    None without a named sink, or if the sink has no watermark of the queue."""
    new_epoch: int | None = None
    """Epoch of the queue's row after the move; None while the move has not been made."""

    @property
    def moved(self) -> int | None:
        """Number of messages skipped; if negative, the number consumed again. None without a row."""
        return None if self.row is None else self.target - self.row.next_offset

    @property
    def is_below_watermark(self) -> bool:
        """Whether the sink would drop the rows of messages that are consumed again."""
        return self.watermark is not None and self.target < self.watermark

    @property
    def note(self) -> str:
        """Remarks for the operator about the new offset, separated by semicolons; empty if there are none."""
        notes = []
        if self.bounds is not None and self.target < self.bounds.min_offset:
            notes.append(f"the broker begins at {self.bounds.min_offset}")
        if self.bounds is not None and self.target > self.bounds.max_offset:
            beyond = self.target - self.bounds.max_offset
            notes.append(f"beyond the end by {beyond}: the broker ends at {self.bounds.max_offset}")
        if self.is_below_watermark:
            notes.append(f"the sink drops rows below {self.watermark}")
        if self.moved == 0 and self.row is not None and self.row.sinks:
            notes.append("stays; its sink is no longer checked for earlier rows")
        return "; ".join(notes)

    def columns(self) -> dict[str, Any]:
        """Return the values by column name, in display order."""
        return {
            **queue_columns(self.queue),
            "nextOffset": None if self.row is None else self.row.next_offset,
            "newOffset": self.target,
            "moved": self.moved,
            "brokerMinOffset": self.bounds.min_offset if self.bounds else None,
            "brokerMaxOffset": self.bounds.max_offset if self.bounds else None,
            "epoch": self.new_epoch or (None if self.row is None else self.row.epoch),
            "heldBy": self.held_by,
            "sinkWatermark": self.watermark,
            "note": self.note or None,
        }


def moves_to(
    targets: Mapping[MessageQueue, int],
    rows: Mapping[MessageQueue, OffsetRow],
    bounds: Mapping[MessageQueue, QueueBounds],
    *,
    watermarks: Mapping[MessageQueue, int] = MappingProxyType({}),
    rewinds_sink: bool = False,
    forgets_sinks: bool = False,
    staying: Collection[MessageQueue] = (),
) -> tuple[QueueMove, ...]:
    """Return one move per target, sorted by queue; leave out queues that are at their targets already.

    If the messages at a target are gone, the target is moved up to the first message that is left: below it
    the query would fail, or skip the gap.

    Args:
        targets: The offset to which each queue is to be moved.
        rows: The group's rows in the offset store.
        bounds: Minimum and maximum offsets of the queues, as far as the brokers answered.
        watermarks: The sink's watermarks; empty if the command does not look at a sink.
        rewinds_sink: Include a queue at its target if its watermark is above the target: the group may have
            been moved earlier without the sink.
        forgets_sinks: Include a queue at its target if its row records which sinks have its messages: a reset
            deletes that record.
        staying: Queues that keep their offsets. Their targets are not moved up, so that the query reports
            which messages the broker has lost.
    """
    moves = []
    for queue, wanted in sorted(targets.items()):
        row, bound = rows.get(queue), bounds.get(queue)
        target = wanted if bound is None or queue in staying else max(wanted, bound.min_offset)
        watermark = watermarks.get(queue)
        move = QueueMove(queue=queue, row=row, target=target, bounds=bound, watermark=watermark)
        forgets = forgets_sinks and row is not None and bool(row.sinks)
        if move.moved != 0 or forgets or (rewinds_sink and move.is_below_watermark):
            moves.append(move)
    return tuple(moves)


def skipped(
    rows: Mapping[MessageQueue, OffsetRow], bounds: Mapping[MessageQueue, QueueBounds], messages: int | None
) -> dict[MessageQueue, int]:
    """Return the offset at which each queue continues after ``messages`` messages are skipped in it.

    If ``messages`` is None, or if fewer messages are left, this is the queue's end.
    """
    return {
        queue: bounds[queue].max_offset
        if messages is None
        else min(row.next_offset + messages, bounds[queue].max_offset)
        for queue, row in rows.items()
    }


def accepted(rows: Mapping[MessageQueue, OffsetRow]) -> dict[MessageQueue, int]:
    """Return the next offset of each queue whose row has a record of its sinks.

    A reset to the same offset deletes this record. The queue then continues, although a sink may lack rows.
    """
    return {queue: row.next_offset for queue, row in rows.items() if row.sinks}


def beyond_the_broker(moves: Iterable[QueueMove]) -> list[QueueMove]:
    """Return the moves past the end of their queue, as far as the end is known.

    After such a move, nothing would be consumed until the queue has grown past the new offset.
    """
    return [move for move in moves if move.bounds is not None and move.target > move.bounds.max_offset]


def refusal(moves: Collection[QueueMove], *, rewinds_sink: bool = False) -> str | None:
    """Return a refusal of ``moves`` for the user if a member consumes one of their queues now, else None.

    The text advises to stop the query. Without ``rewinds_sink`` it also offers ``--force``.
    """
    held = [move for move in moves if move.held_by is not None]
    if not held:
        return None
    holders = peer_text(", ".join(sorted({move.held_by for move in held if move.held_by is not None})))
    remedy = (
        "Stop the query: a sink's watermarks cannot be set while it writes."
        if rewinds_sink
        else "Stop the query first, or add --force: the running batch is then dropped, and the query goes on "
        "from the new offsets with its next trigger."
    )
    return (
        f"{len(held)} of {counted(len(moves), 'queue')} {'is' if len(held) == 1 else 'are'} being consumed "
        f"by {holders}. Nothing was changed. {remedy}"
    )
