"""A part: a task's files and acknowledgements, from the engine to the offset store.

A part is the same value everywhere. A task makes it (``consumer.engine.parts``), the job or the hub carries
it to the driver as JSON, and the driver commits it, with others or without (``commit.pipeline``). Shape::

    {"id": "…", "written": [{…}], "acks": [{"queue": ["T", "broker-a", 0], …}], "emitted": 9, "left_out": 2}
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, Self

from pyspark_rocketmq.consume.latencies import NO_LATENCIES, StoreLatencies
from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState

GOING_ON: Final = "GOING_ON"
"""Value of :attr:`QueueAck.finished` while the range goes on: the ack then has its results so far (a cut)."""
NOT_BEGUN: Final = "NOT_BEGUN"
"""Value of :attr:`QueueAck.finished` if the task has not begun the range (:func:`not_begun`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAck:
    """A task's report on one queue: its progress in a micro-batch, or since the task's last report."""

    queue: MessageQueue
    start: int
    """Queue offset at which this progress begins: the range's first one, or the end of the previous ack."""
    state: QueueState
    """State of the queue to store, with which its next range begins.

    In an ack without progress, ``suspended_until_s`` is the time of the ack or later; it is None only if the
    listener waits for more messages before it commits.
    """
    consumed: int
    """Number of messages done since ``start``, dead letters included; ``state.next_offset`` is past them."""
    failed: int
    """Number of deliveries that the listener gave back."""
    finished: str
    """Why the engine stopped: EXHAUSTED (the listener has had all messages), SUSPENDED, SLICE_USED (the time
    is over), GIVEN_UP (the queue goes elsewhere or the query stops) or, for a concurrent listener,
    THREADS_LOST (calls that hang hold all threads). GOING_ON if the range goes on, NOT_BEGUN if the task has
    not begun it."""
    read: int = 0
    """Number of messages that were read since the previous ack, whether the listener got them or not."""
    reset_to: int | None = None
    """Offset to which an operator has reset the queue, as the broker reported while the range was read; None
    without a reset."""
    is_another_log: bool = False
    """Whether another message now has the offset of a consumed one, because the topic was created again or
    the broker lost messages. The queue must then be checked."""
    dead_letters: int = 0
    """Number of messages sent as dead letters; if the batch runs again, they are sent again."""
    sent_back: int = 0
    """Number of messages that a concurrent listener gave back and that a broker has stored, to deliver them
    again or as dead letters. If the batch runs again, they are sent again."""
    last_error: str = ""
    """The last error, in one short line; empty if there was none."""
    refused_letter: str = ""
    """Error with which brokers refuse a message that is to be sent back or to become a dead letter, so that
    the message's queue waits; empty if no message is refused."""
    metrics: ConsumeMetrics = field(default_factory=ConsumeMetrics)
    """Metrics of reading and consuming the range."""
    latencies: StoreLatencies = field(default=NO_LATENCIES, compare=False)
    """How long the messages done since ``start`` had been stored: at their delivery, and at the task's own
    commit. If the task does not commit, the time of the ack counts as the commit."""

    @property
    def counts(self) -> bool:
        """Whether there is anything to commit: progress, failed calls, sent messages, a reset, a new log."""
        return bool(
            self.consumed or self.failed or self.dead_letters or self.sent_back
            or self.state.next_offset != self.start or self.reset_to is not None or self.is_another_log
        )  # fmt: skip

    def to_json(self) -> str:
        """Return the ack as one line of JSON; floats keep all their digits."""
        return json.dumps(self.facts, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read an ack from the text that :meth:`to_json` returned."""
        return cls.from_facts(json.loads(text))

    @property
    def facts(self) -> dict[str, Any]:
        """The ack in a form that JSON can hold."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        return facts | {"state": self.state.facts, "latencies": self.latencies.facts}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Build an ack from its :attr:`facts`, whether they went through JSON or not."""
        values = {
            "queue": MessageQueue(*facts["queue"]),
            "state": QueueState.from_facts(facts["state"]),
            "metrics": ConsumeMetrics(*facts["metrics"]),
            "latencies": StoreLatencies.from_facts(facts["latencies"]),
        }
        return cls(**{**facts, **values})


def not_begun(planned: QueueRange, now_s: float) -> QueueAck:
    """Return the ack of a closed range that its task has not begun: its queue may go on immediately.

    Without an ack the planner would assume that the listener has had the range and waits for more messages
    before it commits. ``now_s`` is wall-clock time.
    """
    return QueueAck(
        queue=planned.queue,
        start=planned.start,
        state=planned.state._replace(suspended_until_s=now_s),
        consumed=0,
        failed=0,
        finished=NOT_BEGUN,
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """A task's results for some of its queues: written rows, and an ack for each queue.

    A part is committed or dropped as a whole, unless the sink can remove the rows of some queues from it.
    """

    id: str
    """Unique id."""
    acks: tuple[QueueAck, ...]
    written: tuple[Mapping[str, Any], ...] = ()
    """Descriptions of the data that the task wrote for the sink, such as files, as values that JSON can hold:
    one mapping for each value of ``RowWriter.written``, which the sink's writer rebuilds from it."""
    emitted: int = 0
    """Number of data rows, those left out included."""
    left_out: int = 0
    """Number of data rows not written, because the sink has them already."""

    @cached_property
    def queues(self) -> frozenset[MessageQueue]:
        """Queues that have an ack in the part."""
        return frozenset(ack.queue for ack in self.acks)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The part as values that JSON can hold. Do not modify the dict: it is kept."""
        return {
            "id": self.id,
            "written": list(self.written),
            "acks": [ack.facts for ack in self.acks],
            "emitted": self.emitted,
            "left_out": self.left_out,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Build a part from its :attr:`facts`, whether they went through JSON or not."""
        return cls(
            id=str(facts["id"]),
            written=tuple(facts["written"]),
            acks=tuple(map(QueueAck.from_facts, facts["acks"])),
            emitted=int(facts["emitted"]),
            left_out=int(facts["left_out"]),
        )


@dataclass(frozen=True)
class Group:
    """Parts that are committed together, in the order in which they came."""

    parts: tuple[Part, ...]
    without: frozenset[MessageQueue] = frozenset()
    """Queues of which neither rows nor acks may be committed, although parts have some."""

    @property
    def id(self) -> str:
        """Unique id, the same each time that the group is tried."""
        return self.parts[0].id

    @cached_property
    def acks(self) -> tuple[QueueAck, ...]:
        """One ack for each committed queue, joined from the acks of all parts; sorted by queue."""
        acks: dict[MessageQueue, QueueAck] = {}
        for part in self.parts:
            for ack in part.acks:
                if ack.queue not in self.without:
                    before = acks.get(ack.queue)
                    acks[ack.queue] = ack if before is None else joined(before, ack)
        return tuple(acks[queue] for queue in sorted(acks))

    @cached_property
    def queues(self) -> frozenset[MessageQueue]:
        """Queues that are committed."""
        return frozenset(queue for part in self.parts for queue in part.queues) - self.without

    @property
    def written(self) -> tuple[Mapping[str, Any], ...]:
        """Descriptions of the data that tasks wrote for the sink, such as files: ``written`` of all parts.

        Data of the queues in ``without`` are included.
        """
        return tuple(facts for part in self.parts for facts in part.written)

    @property
    def emitted(self) -> int:
        """Number of data rows, those left out included."""
        return sum(part.emitted for part in self.parts)

    @property
    def left_out(self) -> int:
        """Number of data rows not written, because the sink has them already."""
        return sum(part.left_out for part in self.parts)


def check_chains(parts: Iterable[Part]) -> None:
    """Check that each ack of a queue begins where the queue's ack before it ends, in the order of ``parts``.

    Raises:
        RocketMQError: If they do not; usually the rows of a queue were copied on the way to the engine.
    """
    last: dict[MessageQueue, QueueAck] = {}
    for ack in (ack for part in parts for ack in part.acks):
        one = last.get(ack.queue)
        if one is not None and one.state.next_offset != ack.start:
            raise RocketMQError(
                f"{ack.queue}: two ranges of one batch were consumed, {one.start} to "
                f"{one.state.next_offset} and {ack.start} to {ack.state.next_offset}. The second does not "
                "begin where the first ends; neither is committed. Do not copy or union the rows of "
                "format('rocketmq') before they are consumed."
            )
        last[ack.queue] = ack


def parts_without(
    parts: Iterable[Part], queues: Collection[MessageQueue]
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Divide parts into those that can be committed without these queues, and all others.

    The others are each part with one of these queues, and each later part that shares any queue with one of
    the others: it continues where the earlier part has ended, so it must not be committed without that part.
    """
    gone = set(queues)
    kept: list[Part] = []
    others: list[Part] = []
    for part in parts:
        if part.queues.isdisjoint(gone):
            kept.append(part)
        else:
            others.append(part)
            gone |= part.queues
    return tuple(kept), tuple(others)


def continued(parts: Sequence[Part]) -> Part:
    """Join the parts of one task, at least one, to a single part with the id of the last part.

    If several parts have an ack of the same queue, these acks must follow each other without a gap.
    """
    return Part(
        id=parts[-1].id,
        written=tuple(facts for part in parts for facts in part.written),
        acks=Group(tuple(parts)).acks,
        emitted=sum(part.emitted for part in parts),
        left_out=sum(part.left_out for part in parts),
    )


def reset_after(ack: QueueAck, reset_to: int) -> QueueAck:
    """Return an ack that follows ``ack``, has no progress, and reports a reset to offset ``reset_to``."""
    return replace(
        ack,
        start=ack.state.next_offset,
        consumed=0,
        failed=0,
        read=0,
        reset_to=reset_to,
        is_another_log=False,
        dead_letters=0,
        sent_back=0,
        metrics=ConsumeMetrics(),
        latencies=NO_LATENCIES,
    )


def joined(earlier: QueueAck, later: QueueAck) -> QueueAck:
    """Join two acks of a queue, of which the later one begins where the earlier one ends.

    Counts, metrics and latencies are added. ``start`` is the earlier ack's, and everything else the later
    one's. The earlier ack's newest message, last error or reset is kept if the later one has none, and
    ``is_another_log`` is true if it is in one of them.
    """
    last_message = later.state.last_message or earlier.state.last_message
    return replace(
        later,
        start=earlier.start,
        state=later.state._replace(last_message=last_message),
        consumed=earlier.consumed + later.consumed,
        failed=earlier.failed + later.failed,
        read=earlier.read + later.read,
        reset_to=earlier.reset_to if later.reset_to is None else later.reset_to,
        is_another_log=earlier.is_another_log or later.is_another_log,
        dead_letters=earlier.dead_letters + later.dead_letters,
        sent_back=earlier.sent_back + later.sent_back,
        last_error=later.last_error or earlier.last_error,
        metrics=earlier.metrics.plus(later.metrics),
        latencies=earlier.latencies.plus(later.latencies),
    )
