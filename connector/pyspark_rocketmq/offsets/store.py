"""The values and the promise of an offset store; under which key it knows a group.

Rule 1: a row is changed only under its epoch.  A claim and a reset raise the epoch; a commit must name the
epoch it was planned under, so a consumer that lost a queue cannot move it any more.  A broker's queue lock
fences nothing; this does.
Rule 2: ``next_offset`` is RocketMQ's convention, the last consumed queue offset + 1, and never negative: the
protocol's -1 means "not found" and must not become a position.

This module knows no storage.  Its rules are in :mod:`pyspark_rocketmq.offsets.rules`.

``GROUP``, ``NAMESPACE%GROUP``, and for each instance of a broadcasting group ``GROUP@INSTANCE``: groups of
one name in two namespaces may share a store, and broadcasting instances have nothing in common but the
group's name. A namespace ends at the first ``%``, as RocketMQ has it; neither names of groups nor of
instances hold an ``@``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, Self

from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.wire.namespace import with_namespace

_BEFORE_INSTANCE = "@"
_AFTER_NAMESPACE = "%"


class OffsetKey(NamedTuple):
    """Whose progress it is."""

    namespace: str
    """Empty for none."""
    group: str
    """As its members name it, without the namespace."""
    instance: str | None = None
    """Of a broadcasting group."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The parts of a stored name."""
        name, at, instance = text.partition(_BEFORE_INSTANCE)
        namespace, percent, group = name.partition(_AFTER_NAMESPACE)
        namespace, group = (namespace, group) if percent else ("", name)
        return cls(namespace, group, instance if at else None)

    def __str__(self) -> str:
        name = with_namespace(self.namespace, self.group)
        return name if self.instance is None else f"{name}{_BEFORE_INSTANCE}{self.instance}"


RESET = -1
"""``batch_id`` of a row that no batch has moved since an operator made or reset it."""
CLAIMED = -2
"""``batch_id`` of a row that no batch has moved since a claim has made it."""
FOLLOWED = -3
"""``batch_id`` of a row that no batch has moved since it was taken from its queue's broker, where another
member of the group, or an operator, has put it."""
SKIPPED = -4
"""``batch_id`` of a row that no batch has moved since a member moved it on, past messages that were gone or
to the beginning of the queue's next generation; or since a command put it where a record says."""
NOTED = -5
"""``batch_id`` of a row that no batch has moved since a claim, and that remembers a message of a sink."""
FIRST_GENERATIONS: Final[Mapping[MessageQueue, int]] = MappingProxyType({})
"""Generations where none has begun again."""


class OffsetRow(NamedTuple):
    """What is known of one queue of one group."""

    consumer_group: str
    queue: MessageQueue
    state: QueueState
    """Its epoch is 1 at the first claim, then + 1 with every claim and every reset."""
    owner: str
    """Client id that made the last claim; empty when an operator's reset made the row."""
    query_id: str
    """Query whose batch moved the row last; empty after a reset or before the first commit."""
    batch_id: int
    """Batch that moved the row last; ``RESET`` after a reset, ``CLAIMED`` when only a claim has set it,
    ``FOLLOWED`` when another one has put it at its broker, ``SKIPPED`` when a member has moved it on,
    ``NOTED`` when a sink has set it."""
    updated_at_s: float
    """Wall-clock seconds; like all seconds of a row, whole microseconds."""
    statistics: str = ""
    """How fast the owner has been lately, as ``consume.metrics`` writes it; JSON. A claim forgets it."""
    generation: int = 0
    """Of which generation the offsets are, from 0; grows when offsets begin again, and never else."""
    shown: str = ""
    """What the queue's broker may have of the group by this side, as ``consume.positions`` writes it; empty
    when that was never looked at."""
    sinks: str = ""
    """The sinks of the batch that moved the row last, as ``sinks.standing`` writes them; JSON. Empty without
    sinks, and once a reset or another member of the group has moved it."""

    @property
    def next_offset(self) -> int:
        """Next queue offset to consume."""
        return self.state.next_offset

    @property
    def epoch(self) -> int:
        """Fencing token."""
        return self.state.epoch

    @property
    def was_reset(self) -> bool:
        """Whether an operator, or a member that skipped something, moved the row last."""
        return self.batch_id in {RESET, SKIPPED}

    @property
    def was_reset_by_operator(self) -> bool:
        """Whether an operator moved the row last, and no batch has begun there."""
        return self.batch_id == RESET

    @property
    def was_followed(self) -> bool:
        """Whether another one moved the group at the queue's broker last, and no batch has begun there."""
        return self.batch_id == FOLLOWED

    @property
    def may_be_followed(self) -> bool:
        """The same, or of an earlier release: that marked such a row as a claimed one.

        A claimed row remembers no message, or the one before its position.
        """
        return self.batch_id in {FOLLOWED, CLAIMED}

    @property
    def was_moved(self) -> bool:
        """Whether no batch has moved the row last."""
        return self.batch_id < 0


NO_ROWS: Final[Mapping[MessageQueue, OffsetRow]] = MappingProxyType({})
"""Where no row was read."""


class StoredField(NamedTuple):
    """How a field of an offset row, or of its state, is stored."""

    name: str
    """In Python."""
    column: str
    """Of the Delta table; the file store has the same name in camel case."""
    type: str
    """Delta's name of it."""
    default: str | float | None = None
    """Stands for a null of the column."""
    since: int = 1
    """The version of the Delta table that brought the column; newer ones may be null."""
    in_plan: str = ""
    """Key in Spark's offsets and in marker rows, where it is there."""


STORED_FIELDS: Final = (
    StoredField("next_offset", "next_offset", "long", in_plan="from"),
    StoredField("epoch", "epoch", "long", in_plan="epoch"),
    StoredField("owner", "owner", "string", ""),
    StoredField("reconsume_times", "reconsume_times", "integer", 0, in_plan="times"),
    StoredField("suspended_until_s", "suspended_until", "timestamp"),
    StoredField("query_id", "query_id", "string", ""),
    StoredField("batch_id", "batch_id", "long", RESET),
    StoredField("updated_at_s", "updated_at", "timestamp", 0.0),
    StoredField("retry_counts", "put_back", "string", "", since=3, in_plan="putBack"),
    StoredField("statistics", "statistics", "string", "", since=3),
    StoredField("generation", "generation", "integer", 0, since=4),
    StoredField("last_message", "last_message", "string", "", since=4),
    StoredField("shown", "shown", "string", "", since=4),
    StoredField("sinks", "sinks", "string", "", since=4),
)
"""In the order of the Delta table's columns, behind those of group and queue."""
PLAN_KEYS: Final = {field.name: field.in_plan for field in STORED_FIELDS if field.in_plan}
"""What of a queue's state a plan holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCommit:
    """What one micro-batch achieved in one queue."""

    queue: MessageQueue
    state: QueueState
    """For the next range, whoever consumes it; the epoch is the one that the batch was planned under."""
    statistics: str = ""
    """As of this batch; a commit that changes nothing else does not store it."""
    is_shown: bool = False
    """Whether ``next_offset`` will be written to the queue's broker."""
    arrived: int | None = None
    """The last offset that the queue's broker is known to have."""
    sinks: str = ""
    """Those that have the batch's rows; see ``OffsetRow.sinks``."""


class NewGeneration(NamedTuple):
    """Where a queue's offsets begin again."""

    epoch: int
    """The stored one, as of the look at the queue: whoever claims or resets it meanwhile looks himself."""
    next_offset: int


class SinkRecord(NamedTuple):
    """How far a sink is ahead of a queue's row."""

    generation: int
    """The queue's, in the sink."""
    next_offset: int
    """The sink's watermark."""
    last_message: str
    """The newest message below it, as ``consume.generations`` writes it; empty if the sink keeps none."""


class Passed(NamedTuple):
    """The messages before a queue's position, where somebody has put it."""

    epoch: int
    """The stored one, as of the look at the queue."""
    last_message: str
    """Text, in the form that ``consume.generations`` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """Which parts of a commit hold; a refused queue belongs to somebody else by now."""

    accepted: tuple[QueueCommit, ...]
    """Stored, or already stored by an earlier run of the same batch."""
    refused: tuple[QueueCommit, ...]
    """Planned under an epoch that is no longer the stored one; their results must be dropped."""


class OffsetStore(Protocol):
    """Durable progress of consumer groups, safe against any number of concurrent writers.

    Every method is atomic for its group and sees all that was finished before it began. Groups do not disturb
    each other. Usable from several threads.
    """

    @property
    def spec(self) -> str:
        """Text that ``open_offset_store`` turns into this store again, in another process too."""
        ...

    def groups(self) -> tuple[str, ...]:
        """Names of the groups that have rows, sorted; makes nothing, so none where there is no store yet."""
        ...

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows; empty when the group is unknown."""
        ...

    def claim(
        self,
        consumer_group: str,
        owner: str,
        starts: Mapping[MessageQueue, int],
        generations: Mapping[MessageQueue, int] = FIRST_GENERATIONS,
        *,
        at_brokers: Mapping[MessageQueue, int] | None = None,
        rows_before: Mapping[MessageQueue, OffsetRow] = NO_ROWS,
    ) -> dict[MessageQueue, OffsetRow]:
        """Take queues over: raise each one's epoch and set its owner; return the claimed queues' rows.

        A stored ``next_offset`` is kept, with its suspension, unless ``consume.positions`` says of the
        group's offsets ``at_brokers`` (None where nobody looks there) that somebody else has moved the queue
        since. What this side had shown by ``rows_before``, read before the brokers were asked, is its own,
        however far another member has committed meanwhile. An unknown queue begins at ``starts[queue]``, in
        its first generation unless ``generations`` names another.

        Raises:
            OffsetError: If a start is negative.
            OffsetCommitConflict: If other writers of the group kept winning.
        """
        ...

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Store what a batch achieved, where the stored epoch is the planned one.

        Storing the same batch again never moves a queue back: a replay may get less far than the run before
        it.

        Raises:
            OffsetRegressed: If another batch of the same epoch would move a queue back. Nothing is stored.
            OffsetError: If a value is negative. Nothing is stored.
            OffsetCommitConflict: If other writers of the group kept winning.
        """
        ...

    def note_arrivals(self, consumer_group: str, arrived: Mapping[MessageQueue, int]) -> None:
        """Remember what queues' brokers have taken of what they were to be shown; moves nothing.

        Raises:
            OffsetCommitConflict: If other writers of the group kept winning.
        """
        ...

    def note_passed(self, consumer_group: str, passed: Mapping[MessageQueue, Passed]) -> None:
        """Remember the last message before queues that somebody has put there; moves nothing.

        A queue is left out if its stored epoch is another one, or if a batch has moved it since.

        Raises:
            OffsetCommitConflict: If other writers of the group kept winning.
        """
        ...

    def note_sinks(
        self, consumer_group: str, records: Mapping[MessageQueue, SinkRecord]
    ) -> dict[MessageQueue, OffsetRow]:
        """Remember the newest messages of sinks that are ahead of the rows; return the rows that changed.

        Their epochs grow: running batches are fenced off, and planners look at those messages. Where a sink
        has a later generation of a queue, the row goes on there.

        Raises:
            OffsetCommitConflict: If other writers of the group kept winning.
        """
        ...

    def begin_generations(
        self, consumer_group: str, generations: Mapping[MessageQueue, NewGeneration]
    ) -> dict[MessageQueue, OffsetRow]:
        """Begin the next generation of queues whose offsets began again, where the epoch is the stored one.

        Their epochs grow, which fences off running batches. Returns the rows of these queues.

        Raises:
            OffsetError: If an offset is negative.
            OffsetCommitConflict: If other writers of the group kept winning.
        """
        ...

    def reset(
        self,
        consumer_group: str,
        targets: Mapping[MessageQueue, int],
        *,
        under: Mapping[MessageQueue, int] | None = None,
    ) -> dict[MessageQueue, OffsetRow]:
        """Move queues anywhere, as an operator; running batches are fenced off.

        Return the moved queues' rows.

        With ``under``, only queues that still have the epoch given there, as a member does who moves on.

        Raises:
            OffsetError: If a target is negative.
            OffsetCommitConflict: If other writers of the group kept winning.
        """
        ...
