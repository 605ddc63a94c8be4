"""Offset store of a concurrent consumer that uses the offsets which the group's brokers keep.

Like Java's ``RemoteBrokerOffsetStore``: one number per queue, and the last writer wins. Consequences:

* *Nothing is fenced.* A member that lost a queue still stores its offset, and so does a batch that began
  before an operator's reset. A member reads an offset and stores only a higher one. If another member stores
  a still higher one between the two, that one is lost, and messages come twice.
* *No attempts, no suspension.* So it cannot serve orderly consumers, or a sink that needs each row exactly
  once.
* A broker that crashes loses, by default, the offsets of its last five seconds.
* Every read costs one request per queue. A broker before 5.0 is also asked for all its offsets if it answers
  0 for a queue that is not known to have this offset.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.rules import apply_claim, apply_commit, apply_reset, new_row
from pyspark_rocketmq.offsets.store import (
    FIRST_GENERATIONS,
    NO_ROWS,
    CommitResult,
    LastSkipped,
    NewGeneration,
    OffsetRow,
    QueueCommit,
    SinkRecord,
)

_ONLY_EPOCH = 1
"""Epoch of every row. Brokers have no epochs, so it never becomes outdated."""


class GroupAtBrokers(Protocol):
    """One group's offsets at the brokers of its topics' queues."""

    @property
    def consumer_group(self) -> str:
        """Name under which the group's progress is stored."""
        ...

    def read(self, queues: Collection[MessageQueue] | None = None) -> Mapping[MessageQueue, int]:
        """Return the offsets of ``queues`` that have one; by default of all queues whose broker is running.

        Raises:
            BrokerOffsetUnavailable: If a broker of the queues, or the name servers, did not answer.
        """
        ...

    def write(self, next_offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets, even lower ones; a broker that does not know the group stores nothing.

        Raises:
            BrokerOffsetUnavailable: If a broker did not store one; others may be stored.
        """
        ...


class BrokerOffsetStore:
    """An offset store for one group, whose offsets its brokers keep; it stores nothing but offsets.

    Source: ``RemoteBrokerOffsetStore``.
    """

    is_at_brokers: Final = True
    """Marks a store whose offsets the brokers keep: it has no epochs and refuses no outdated commit."""

    def __init__(self, group: GroupAtBrokers) -> None:
        self._group = group
        self._guard = threading.Lock()
        self._owners: dict[MessageQueue, str] = {}
        """Owners of the queues claimed through this object; brokers do not store them."""

    @property
    def spec(self) -> str:
        """The text ``broker:``; to open the store again, the group's cluster and topics are needed, too."""
        return "broker:"

    def groups(self) -> tuple[str, ...]:
        """Return the name of this store's group if it has an offset at a broker, else an empty tuple."""
        return (self._group.consumer_group,) if self._group.read() else ()

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows; empty if it is not the group of this store.

        Raises:
            BrokerOffsetUnavailable: If a broker did not answer.
        """
        if consumer_group != self._group.consumer_group:
            return {}
        return self._rows(self._group.read())

    def claim(
        self,
        consumer_group: str,
        owner: str,
        starts: Mapping[MessageQueue, int],
        generations: Mapping[MessageQueue, int] = FIRST_GENERATIONS,
        *,
        at_brokers: Mapping[MessageQueue, int] | None = None,  # noqa: ARG002 - they are its rows
        rows_before: Mapping[MessageQueue, OffsetRow] = NO_ROWS,  # noqa: ARG002 - likewise
    ) -> dict[MessageQueue, OffsetRow]:
        """Remember the owner in this process, and store the starts of queues that have no offset yet.

        Return the claimed queues' rows. No other member loses its claim, since brokers store no owner and no
        epoch. Generations are ignored.
        """
        rows = self._checked(consumer_group, starts)
        claimed = apply_claim(rows, consumer_group, owner, starts, now_s=0.0, generations=generations).result
        self._group.write({queue: row.next_offset for queue, row in claimed.items() if queue not in rows})
        with self._guard:
            self._owners |= dict.fromkeys(claimed, owner)
        return {queue: self._row(queue, row.next_offset, owner) for queue, row in claimed.items()}

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Store each queue's offset unless the stored one is larger; the owner does not matter.

        A queue without a stored offset is refused.

        Source: ``RemoteBrokerOffsetStore.updateOffset`` with ``increaseOnly``, as concurrent consumers call
        it.
        """
        rows = self._checked(consumer_group, [commit.queue for commit in commits])
        # Offsets below the stored ones count as accepted; the rules would refuse them as a regression.
        forward = [
            commit
            for commit in commits
            if not (commit.queue in rows and 0 <= commit.state.next_offset < rows[commit.queue].next_offset)
        ]
        result = apply_commit(
            rows, consumer_group, forward, query_id=query_id, batch_id=batch_id, now_s=0.0
        ).result
        self._group.write(
            {
                commit.queue: commit.state.next_offset
                for commit in result.accepted
                if commit.state.next_offset > rows[commit.queue].next_offset
            }
        )
        refused = frozenset(commit.queue for commit in result.refused)
        return CommitResult(
            accepted=tuple(commit for commit in commits if commit.queue not in refused),
            refused=result.refused,
        )

    def note_arrivals(self, consumer_group: str, arrived: Mapping[MessageQueue, int]) -> None:
        """Do nothing: the brokers are the store."""

    def note_passed(self, consumer_group: str, passed: Mapping[MessageQueue, LastSkipped]) -> None:
        """Do nothing: brokers remember no messages."""

    def note_sinks(
        self,
        consumer_group: str,  # noqa: ARG002
        records: Mapping[MessageQueue, SinkRecord],  # noqa: ARG002
        *,
        is_fenced: bool = True,  # noqa: ARG002
    ) -> dict[MessageQueue, OffsetRow]:
        """Do nothing: this store has no sinks."""
        return {}

    def begin_generations(
        self, consumer_group: str, generations: Mapping[MessageQueue, NewGeneration]
    ) -> dict[MessageQueue, OffsetRow]:
        """Store the next offsets in ``generations``, and return the rows; brokers store no generations."""
        return self.reset(consumer_group, {queue: new.next_offset for queue, new in generations.items()})

    def reset(
        self,
        consumer_group: str,
        targets: Mapping[MessageQueue, int],
        *,
        under: Mapping[MessageQueue, int] | None = None,  # noqa: ARG002 - brokers know no epochs
    ) -> dict[MessageQueue, OffsetRow]:
        """Store the offsets ``targets``, and return the rows; a running batch may still replace them."""
        moved = apply_reset(self._checked(consumer_group, ()), consumer_group, targets, 0.0).result
        self._group.write({queue: row.next_offset for queue, row in moved.items()})
        return {queue: self._row(queue, row.next_offset, row.owner) for queue, row in moved.items()}

    def _checked(
        self, consumer_group: str, queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, OffsetRow]:
        if consumer_group != self._group.consumer_group:
            raise OffsetError(
                f"This store has only the offsets of group {self._group.consumer_group} at its brokers, and "
                f"cannot store those of group {consumer_group}. Nothing was stored. Open a store for that "
                "group."
            )
        return self._rows(self._group.read(queues))

    def _rows(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, OffsetRow]:
        with self._guard:
            owners = dict(self._owners)
        return {queue: self._row(queue, offset, owners.get(queue, "")) for queue, offset in offsets.items()}

    def _row(self, queue: MessageQueue, next_offset: int, owner: str) -> OffsetRow:
        row = new_row(self._group.consumer_group, queue, next_offset)
        return row._replace(state=QueueState(next_offset, _ONLY_EPOCH), owner=owner)
