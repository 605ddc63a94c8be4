"""The interface of an offset store, its values, and the keys of groups.

Rule 1: a commit names the epoch under which it was planned, and changes a row only if this is still the row's
epoch.  Claims and resets raise the epoch.  So a consumer that lost a queue can no longer move it; a broker's
queue lock would not prevent that.
Rule 2: ``next_offset`` follows RocketMQ: the last consumed queue offset + 1. It is never negative: the
protocol's -1 means "not found" and must not become a position.

A queue's next *generation* begins when its offsets start again with other messages: its topic was created
again, or its broker lost the end of its log. A sink's *watermark* in a queue is the next offset whose rows
the sink lacks.

This module does not depend on any storage.  The rules are in :mod:`pyspark_rocketmq.offsets.rules`.

A group's key is ``GROUP`` or, with a namespace, ``NAMESPACE%GROUP``. So groups with the same name in two
namespaces may share a store. In a broadcasting group each instance has its own key, ``GROUP@INSTANCE``. A
namespace ends at the first ``%``, as in RocketMQ. Names of groups and instances contain no ``@``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self, runtime_checkable

from pyspark_rocketmq.consume.generations import NO_BOUNDARIES, Boundaries
from pyspark_rocketmq.consume.metrics import NO_METRICS, MetricsSnapshot
from pyspark_rocketmq.consume.positions import NEVER_SHOWN, ShownOffsets
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.recorded_sinks import NO_SINKS, RecordedSinks
from pyspark_rocketmq.stored_values import RememberedMessages, RetryCounts, StoredValue
from pyspark_rocketmq.wire.namespace import with_namespace

_BEFORE_INSTANCE = "@"
_AFTER_NAMESPACE = "%"
_BEFORE_RUN = "~"

StoredKind = type[StoredValue[Any]]

RESET = -1
"""``batch_id`` of a row that no batch has moved since an operator created or reset it."""
CLAIMED = -2
"""``batch_id`` of a row that no batch has moved since a claim created it."""
FOLLOWED = -3
"""``batch_id`` of a row whose offset was taken from the queue's broker, where another member of the group or
an operator had stored it. No batch has moved the row since."""
SKIPPED = -4
"""``batch_id`` of a row that a member or a command moved; no batch has moved it since.

A member moves it, such as beyond lost messages or to the queue's next generation. A command moves it to a
recorded offset, or back to a sink's watermark. A row with ``RESET`` or ``FOLLOWED`` gets this value when a
sink is found to be ahead of it."""
NOTED = -5
"""``batch_id`` of a row changed because a sink was ahead of it, and moved by no batch since.

Either a row with ``CLAIMED`` remembers the sink's newest message now, or a row was moved to the sink's later
generation."""
FIRST_GENERATIONS: Final[Mapping[MessageQueue, int]] = MappingProxyType({})
"""Empty mapping from queues to generations: each queue is in its first generation (0)."""
NO_ROWS: Final[Mapping[MessageQueue, OffsetRow]] = MappingProxyType({})
"""Empty mapping, for a group whose rows were not read."""


class OffsetKey(NamedTuple):
    """Identifies the consumer whose progress is stored."""

    namespace: str
    """Namespace of the group; empty without one."""
    group: str
    """Name of the group, without the namespace."""
    instance: str | None = None
    """Instance of a broadcasting group; None for a shared group."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key for a stored name: ``GROUP``, with or without ``NAMESPACE%`` and ``@INSTANCE``."""
        name, at, instance = text.partition(_BEFORE_INSTANCE)
        namespace, percent, group = name.partition(_AFTER_NAMESPACE)
        namespace, group = (namespace, group) if percent else ("", name)
        return cls(namespace, group, instance if at else None)

    def __str__(self) -> str:
        name = with_namespace(self.namespace, self.group)
        return name if self.instance is None else f"{name}{_BEFORE_INSTANCE}{self.instance}"


class OffsetRow(NamedTuple):
    """Stored progress of one consumer group in one queue; its next offset is in ``state``.

    ``shown``: the group's offsets that Spark queries sent to the queue's broker, or found stored there.
    ``sinks``: the sinks of the batch that last moved the row, with their tables' ids. ``boundaries``: offsets
    from which on the queue has had other messages than before, such as after its topic was created again.
    """

    consumer_group: str
    queue: MessageQueue
    state: QueueState
    """State of the queue. Its epoch is 1 after the first claim or reset. Every later one adds 1, and so do
    a new generation and a sink's record that fences (``OffsetStore.note_sinks``)."""
    owner: str
    """Run of a query that claimed last (:func:`new_owner`); empty before the first one, if a reset or
    a sink's watermark created the row."""
    query_id: str
    """Query whose batch last moved the row; empty before the first commit, or if something else moved it."""
    batch_id: int
    """Batch that last moved the row. Negative if something else did: ``RESET``, ``CLAIMED``, ``FOLLOWED``,
    ``SKIPPED`` or ``NOTED``."""
    updated_at_s: float
    """Wall-clock second of the last claim, commit, move or sink's record; like all times of a row, rounded to
    microseconds."""
    statistics: MetricsSnapshot = NO_METRICS
    """Statistics of consuming the queue in the last minute and hour; a claim clears them."""
    generation: int = 0
    """Generation of the queue's offsets, from 0; incremented only when they start again."""
    shown: ShownOffsets = NEVER_SHOWN
    """Offsets that Spark queries sent to the queue's broker, or found stored there; empty without any."""
    sinks: RecordedSinks = NO_SINKS
    """Sinks of the batch that last moved the row. Empty without sinks, after a reset, and after the row
    followed an offset at the broker."""
    boundaries: Boundaries = NO_BOUNDARIES
    """Offsets at which generations of the queue begin; empty if there is none to remember.

    The starts of the row's generation and earlier ones are kept until a message of the row's generation is
    consumed. The start of the next one is kept if the row was set back below it.
    """

    @property
    def next_offset(self) -> int:
        """Next queue offset to consume."""
        return self.state.next_offset

    @property
    def epoch(self) -> int:
        """Fencing token of the queue: a commit that was planned under another epoch is refused."""
        return self.state.epoch

    @property
    def owner_id(self) -> str:
        """Client id of the owner. Members with one instance name on one machine have the same client id."""
        return client_id_of(self.owner)

    @property
    def was_reset(self) -> bool:
        """Whether an operator, a command or a member last moved the row (``RESET``, ``SKIPPED``)."""
        return self.batch_id in {RESET, SKIPPED}

    @property
    def was_reset_by_operator(self) -> bool:
        """Whether an operator last moved the row; False again once a batch has changed the row."""
        return self.batch_id == RESET

    @property
    def was_followed(self) -> bool:
        """Whether the row was last moved to an offset that somebody else stored at the queue's broker.

        False again once a batch has changed the row.
        """
        return self.batch_id == FOLLOWED

    @property
    def may_be_followed(self) -> bool:
        """Whether the row may have been moved to an offset that somebody else stored at the broker.

        True for ``FOLLOWED``, and for ``CLAIMED``, since an earlier release marked such rows with it. A row
        with ``CLAIMED`` remembers at most one message: the one before its position.
        """
        return self.batch_id in {FOLLOWED, CLAIMED}

    @property
    def was_moved(self) -> bool:
        """Whether something other than a batch last moved the row."""
        return self.batch_id < 0


def new_owner(client_id: str) -> str:
    """Return a new name under which one run of a query claims queues: ``CLIENT_ID~RUN``.

    The part after the client id is unique. So each run can recognise the claims of another one, even if both
    have the same client id: a claim and a reset both raise the epoch, but a reset keeps the owner.
    """
    return f"{client_id}{_BEFORE_RUN}{uuid.uuid4().hex[:12]}"


def client_id_of(owner: str) -> str:
    """Return the client id of an owner; earlier releases stored only this id."""
    client_id, mark, _ = owner.rpartition(_BEFORE_RUN)
    return client_id if mark else owner


class StoredField(NamedTuple):
    """How a field of an offset row, or of its state, is stored."""

    name: str
    """Name in Python."""
    column: str
    """Column of the Delta table; the file store uses the same name in camel case."""
    type: str
    """Delta's name of the type."""
    default: str | float | None = None
    """Value for a null in the column."""
    since: int = 1
    """Version of the Delta table that added the column; columns added later than version 1 may be null."""
    in_plan: str = ""
    """Key in Spark's offsets and in marker rows; empty if the field is not part of them."""
    kind: StoredKind | None = None
    """Class that turns the value into text and back; None for a value that is stored as it is."""

    def to_plain(self, value: Any) -> Any:
        """Return the text or number that stores ``value``."""
        return value if self.kind is None else value.to_text()

    def from_plain(self, plain: Any) -> Any:
        """Return the value stored as ``plain``."""
        return plain if self.kind is None else self.kind.from_text(plain)


STORED_FIELDS: Final = (
    StoredField("next_offset", "next_offset", "long", in_plan="from"),
    StoredField("epoch", "epoch", "long", in_plan="epoch"),
    StoredField("owner", "owner", "string", ""),
    StoredField("reconsume_times", "reconsume_times", "integer", 0, in_plan="times"),
    StoredField("suspended_until_s", "suspended_until", "timestamp", in_plan="until"),
    StoredField("query_id", "query_id", "string", ""),
    StoredField("batch_id", "batch_id", "long", RESET),
    StoredField("updated_at_s", "updated_at", "timestamp", 0.0),
    StoredField("retry_counts", "put_back", "string", "", since=3, in_plan="putBack", kind=RetryCounts),
    StoredField("statistics", "statistics", "string", "", since=3, kind=MetricsSnapshot),
    StoredField("generation", "generation", "integer", 0, since=4),
    StoredField("last_message", "last_message", "string", "", since=4, kind=RememberedMessages),
    StoredField("shown", "shown", "string", "", since=4, kind=ShownOffsets),
    StoredField("sinks", "sinks", "string", "", since=4, kind=RecordedSinks),
    StoredField("boundaries", "boundaries", "string", "", since=5, kind=Boundaries),
)
"""Stored fields in the order of the Delta table's columns, which follow those of group and queue."""
PLAN_FIELDS: Final = tuple(field for field in STORED_FIELDS if field.in_plan)
"""Fields of a queue's state that are part of a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCommit:
    """Result of one micro-batch in one queue."""

    queue: MessageQueue
    state: QueueState
    """State with which the next range begins. Its epoch is the one under which the batch was planned."""
    statistics: MetricsSnapshot = NO_METRICS
    """Statistics of the queue after this batch. If nothing else changes, they are not stored."""
    is_shown: bool = False
    """Whether ``next_offset`` will be written to the queue's broker."""
    arrived: int | None = None
    """Last offset that the queue's broker is known to have; None if it is not known."""
    sinks: RecordedSinks = NO_SINKS
    """Sinks that have the batch's rows; see ``OffsetRow.sinks``."""


class NewGeneration(NamedTuple):
    """Position at which a queue continues after its offsets began again with other messages."""

    epoch: int
    """Epoch stored when the queue was inspected. If it has risen since, nothing is changed: the new owner
    inspects the queue itself."""
    next_offset: int
    boundary: int | None = None
    """First offset at which the new log differs from the former one; None means ``next_offset``. If the group
    was moved beyond this offset, ``next_offset`` is higher."""


class SinkRecord(NamedTuple):
    """Progress of a sink that may be ahead of a queue's offset row."""

    generation: int
    """Generation of the queue in the sink."""
    next_offset: int
    """The sink's watermark: the next offset whose rows the sink lacks."""
    last_message: RememberedMessages
    """Newest message below the watermark; empty if the sink does not store it."""


class LastSkipped(NamedTuple):
    """Messages that a queue's row is to remember, besides those of the batches that moved the row.

    Planners later check whether the broker still has the remembered messages. Such a message is the last one
    before the position to which the queue was moved, the last one before the end of its generation, or one
    that the broker has lost.
    """

    epoch: int
    """Epoch stored when the queue was inspected; if it has changed since, nothing is remembered."""
    last_message: RememberedMessages


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """Results of queues that a store has accepted and refused in one commit."""

    accepted: tuple[QueueCommit, ...]
    """Results that are stored, by this commit or by an earlier run of the same batch."""
    refused: tuple[QueueCommit, ...]
    """Results planned under an epoch that is not the stored one, or of queues without a row: not stored."""


class OffsetStore(Protocol):
    """Durable progress of consumer groups, safe against any number of concurrent writers.

    Every method is atomic for its group and sees all changes that were finished before it began. Groups do
    not affect each other. Usable from several threads.
    """

    @property
    def spec(self) -> str:
        """Text that ``open_offset_store`` turns into this store again, in another process too."""
        ...

    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups that have rows, sorted; do not create a missing store."""
        ...

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows; empty if the group is unknown."""
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

        A stored ``next_offset`` is kept, with its suspension, unless somebody else moved it at its broker.
        ``consume.positions`` decides that from the group's offsets ``at_brokers``. A queue without a row
        starts at ``starts[queue]``.

        Args:
            consumer_group: The group.
            owner: Who claims the queues, by :func:`new_owner`; stored unchanged.
            starts: The queues to claim, each with its start.
            generations: Generations of queues without a row; the first generation if not named.
            at_brokers: The group's offsets at the brokers; None if these were not queried.
            rows_before: Rows read before the brokers were queried. An offset in ``at_brokers`` that these
                rows record as sent was not stored by somebody else, even if the present rows no longer
                record it.

        Raises:
            OffsetError: If a start is negative, or above the highest one.
            OffsetCommitConflict: If other writers of the group kept coming first, or writing kept failing.
        """
        ...

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Store the results of a batch for the queues whose stored epoch is the planned one.

        Storing the same batch again never moves a queue back, even if the replay got less far than the first
        run.

        Raises:
            OffsetRegressed: If another batch of the same epoch would move a queue back. Nothing is stored.
            OffsetError: If a value is negative, or above the highest one. Nothing is stored.
            OffsetCommitConflict: If other writers of the group kept coming first, or writing kept failing.
        """
        ...

    def note_arrivals(self, consumer_group: str, arrived: Mapping[MessageQueue, int]) -> None:
        """Remember which of the offsets sent to queues' brokers have arrived at them; move no queue.

        Raises:
            OffsetCommitConflict: If other writers of the group kept coming first, or writing kept failing.
        """
        ...

    def note_passed(self, consumer_group: str, passed: Mapping[MessageQueue, LastSkipped]) -> None:
        """Remember messages that a queue has skipped or lost (``LastSkipped``); move no queue.

        A queue is left out if its stored epoch differs from that in ``passed``. If a batch has changed the
        queue's row since it was moved, messages are remembered only if the broker has lost one of them, or
        if all are older than the newest message that the row remembers.

        Raises:
            OffsetCommitConflict: If other writers of the group kept coming first, or writing kept failing.
        """
        ...

    def note_sinks(
        self, consumer_group: str, records: Mapping[MessageQueue, SinkRecord], *, is_fenced: bool = True
    ) -> dict[MessageQueue, OffsetRow]:
        """Remember the newest messages of sinks whose watermarks are above the rows' next offsets.

        Return the rows that changed. Their epochs grow, so that running batches cannot commit. Planners then
        check whether the broker still has the remembered messages. Without ``is_fenced`` the epochs stay and
        running batches go on; the messages are then checked after the queue's next claim. If a sink has a
        later generation of a queue, the row continues in that generation, always under a new epoch.

        Raises:
            OffsetCommitConflict: If other writers of the group kept coming first, or writing kept failing.
        """
        ...

    def begin_generations(
        self, consumer_group: str, generations: Mapping[MessageQueue, NewGeneration]
    ) -> dict[MessageQueue, OffsetRow]:
        """Begin the next generation of queues whose offsets started again, unless their epochs have changed.

        The epochs of the changed rows grow, which fences off running batches. Return these rows.

        Raises:
            OffsetError: If an offset is negative, or above the highest one.
            OffsetCommitConflict: If other writers of the group kept coming first, or writing kept failing.
        """
        ...

    def reset(
        self,
        consumer_group: str,
        targets: Mapping[MessageQueue, int],
        *,
        under: Mapping[MessageQueue, int] | None = None,
        sinks: Mapping[MessageQueue, RecordedSinks] | None = None,
    ) -> dict[MessageQueue, OffsetRow]:
        """Set the next offsets of queues to ``targets``; return the new rows of the queues that were moved.

        Their epochs grow, so that running batches can no longer commit. Their ``batch_id`` becomes ``RESET``.
        With ``under``, only queues whose stored epoch is the one given there are moved, and their
        ``batch_id`` becomes ``SKIPPED``. The new rows name the sinks in ``sinks``, which must have the rows
        of all messages below the target; without a sink there, a row names none.

        Raises:
            OffsetError: If a target is negative, or above the highest one.
            OffsetCommitConflict: If other writers of the group kept coming first, or writing kept failing.
        """
        ...


@runtime_checkable
class RenewsStorage(Protocol):
    """A store that reaches its storage with options that may expire, such as credentials."""

    @property
    def has_renewable_storage(self) -> bool:
        """Whether this process, and no other one, can renew the options; False if they never change."""
        ...

    def renew_storage(self) -> dict[str, str]:
        """Renew the options; return those that another process needs to reach the store."""
        ...


@runtime_checkable
class OpensAgain(Protocol):
    """A store that keeps its table open. The table may be deleted and created again between two queries."""

    def open_anew(self) -> None:
        """Forget the opened table, and use the one that exists now; called before a query starts."""
        ...


def is_at_brokers(store: OffsetStore) -> bool:
    """Return whether the brokers themselves keep the store's offsets (its attribute ``is_at_brokers``).

    Such a store has no epochs, so it refuses no commit. A store without this attribute has epochs, and the
    query sends the stored offsets to the brokers, too.
    """
    return bool(getattr(store, "is_at_brokers", False))
