"""The offsets that the group's brokers keep, as the offset store of a concurrent consumer.

Java's ``RemoteBrokerOffsetStore``: one number per queue, written by whoever comes last. What that means:

* *Nothing is fenced.* A member that lost a queue, or a batch that an operator's reset overtook, still stores
  its offset. It never moves one back that it sees, but it does not see all: messages may come twice.
* *No attempts, no suspension.* So it is no store for orderly consumers, and none for a sink that wants each
  row once.
* A broker that crashes forgets the last five seconds.
* Every read costs a request per queue.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.rules import apply_claim, apply_commit, apply_reset, new_row
from pyspark_rocketmq.offsets.store import (
    FIRST_GENERATIONS,
    NO_ROWS,
    CommitResult,
    NewGeneration,
    OffsetRow,
    Passed,
    QueueCommit,
    SinkRecord,
)

_ONLY_EPOCH = 1
"""Of every row: brokers know no epochs, so none is ever outdated."""


class GroupAtBrokers(Protocol):
    """One group's offsets at the brokers of its topics' queues."""

    @property
    def consumer_group(self) -> str:
        """The name the group's progress goes by."""
        ...

    def read(self, queues: Collection[MessageQueue] | None = None) -> Mapping[MessageQueue, int]:
        """The offset of each of ``queues`` that has one, or of every queue whose broker is there.

        Raises:
            BrokerOffsetUnavailable: If a broker did not answer.
        """
        ...

    def write(self, next_offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets, lower ones too.

        Raises:
            BrokerOffsetUnavailable: If a broker did not take one; others may be stored.
        """
        ...


class BrokerOffsetStore:
    """Implements what of ``OffsetStore`` brokers can keep, for one group.

    Source: ``RemoteBrokerOffsetStore``.
    """

    def __init__(self, group: GroupAtBrokers) -> None:
        self._group = group
        self._guard = threading.Lock()
        self._owners: dict[MessageQueue, str] = {}
        """Who claimed what through this object; brokers do not know."""

    @property
    def spec(self) -> str:
        """``broker:``; needs the group's cluster and topics beside it."""
        return "broker:"

    def groups(self) -> tuple[str, ...]:
        """This one, once it has an offset."""
        return (self._group.consumer_group,) if self._group.read() else ()

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows; of other groups nothing is known.

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
        """Remember the owner in this process, store where unknown queues begin; there are no generations."""
        rows = self._checked(consumer_group, starts)
        claimed = apply_claim(rows, consumer_group, owner, starts, now_s=0.0, generations=generations).result
        self._group.write({queue: row.next_offset for queue, row in claimed.items() if queue not in rows})
        with self._guard:
            self._owners |= dict.fromkeys(claimed, owner)
        return {queue: self._row(queue, row.next_offset, owner) for queue, row in claimed.items()}

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Store the larger of each queue's offset and the stored one, whoever commits.

        Source: ``RemoteBrokerOffsetStore.updateOffset`` with ``increaseOnly``, as concurrent consumers call
        it.
        """
        rows = self._checked(consumer_group, [commit.queue for commit in commits])
        # Only what is behind is let pass without the rules: they would call it a regression.
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
        """Nothing: brokers have what they have."""

    def note_passed(self, consumer_group: str, passed: Mapping[MessageQueue, Passed]) -> None:
        """Nothing: brokers remember no message."""

    def note_sinks(
        self,
        consumer_group: str,  # noqa: ARG002
        records: Mapping[MessageQueue, SinkRecord],  # noqa: ARG002
    ) -> dict[MessageQueue, OffsetRow]:
        """Nothing: this store has no sinks."""
        return {}

    def begin_generations(
        self, consumer_group: str, generations: Mapping[MessageQueue, NewGeneration]
    ) -> dict[MessageQueue, OffsetRow]:
        """Go on at the offsets given; brokers know nothing of generations."""
        return self.reset(consumer_group, {queue: new.next_offset for queue, new in generations.items()})

    def reset(
        self,
        consumer_group: str,
        targets: Mapping[MessageQueue, int],
        *,
        under: Mapping[MessageQueue, int] | None = None,  # noqa: ARG002 - brokers know no epochs
    ) -> dict[MessageQueue, OffsetRow]:
        """Store other offsets; a batch under way may store its own after that."""
        moved = apply_reset(self._checked(consumer_group, ()), consumer_group, targets, 0.0).result
        self._group.write({queue: row.next_offset for queue, row in moved.items()})
        return {queue: self._row(queue, row.next_offset, row.owner) for queue, row in moved.items()}

    def _checked(
        self, consumer_group: str, queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, OffsetRow]:
        if consumer_group != self._group.consumer_group:
            raise OffsetError(
                f"The offset store of group {self._group.consumer_group} at its brokers was asked to store "
                f"offsets of group {consumer_group}. Nothing was stored: open that group's own."
            )
        return self._rows(self._group.read(queues))

    def _rows(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, OffsetRow]:
        with self._guard:
            owners = dict(self._owners)
        return {queue: self._row(queue, offset, owners.get(queue, "")) for queue, offset in offsets.items()}

    def _row(self, queue: MessageQueue, next_offset: int, owner: str) -> OffsetRow:
        row = new_row(self._group.consumer_group, queue, next_offset)
        return row._replace(state=QueueState(next_offset, _ONLY_EPOCH), owner=owner)
