"""An offset store in memory: for tests and for trying things out; gone with the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.rules import Change, ResultT, Rows, apply_claim, apply_commit, apply_reset
from pyspark_rocketmq.offsets.store import CommitResult, OffsetRow, QueueCommit


class MemoryOffsetStore:
    """Implements ``OffsetStore`` for the threads of one process."""

    def __init__(self, name: str, *, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = Lock()
        self._groups: dict[str, dict[MessageQueue, OffsetRow]] = {}

    @property
    def spec(self) -> str:
        """``memory:NAME``; means this store only within this process."""
        return f"memory:{self._name}"

    def groups(self) -> tuple[str, ...]:
        """See ``OffsetStore.groups``."""
        with self._lock:
            return tuple(sorted(self._groups))

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows."""
        with self._lock:
            return dict(self._groups.get(consumer_group, {}))

    def claim(
        self, consumer_group: str, owner: str, starts: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, OffsetRow]:
        """Take queues over; see ``OffsetStore.claim``."""
        now_s = self._clock.now_s()
        return self._change(
            consumer_group, lambda rows: apply_claim(rows, consumer_group, owner, starts, now_s)
        )

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Store what a batch achieved; see ``OffsetStore.commit``."""
        now_s = self._clock.now_s()
        return self._change(
            consumer_group,
            lambda rows: apply_commit(
                rows, consumer_group, commits, query_id=query_id, batch_id=batch_id, now_s=now_s
            ),
        )

    def reset(
        self, consumer_group: str, targets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, OffsetRow]:
        """Move queues anywhere; see ``OffsetStore.reset``."""
        now_s = self._clock.now_s()
        return self._change(consumer_group, lambda rows: apply_reset(rows, consumer_group, targets, now_s))

    def _change(self, consumer_group: str, decide: Callable[[Rows], Change[ResultT]]) -> ResultT:
        with self._lock:
            change = decide(self._groups.get(consumer_group, {}))
            if change.rows:
                self._groups[consumer_group] = change.rows
            return change.result
