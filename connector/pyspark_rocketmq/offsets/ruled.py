"""What all stores that keep whole rows do alike: the rules decide, the store reads and writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.history import RESET
from pyspark_rocketmq.offsets.rules import (
    Change,
    ResultT,
    Rows,
    apply_arrivals,
    apply_begin_lives,
    apply_claim,
    apply_commit,
    apply_passed,
    apply_reset,
)
from pyspark_rocketmq.offsets.store import FIRST_LIVES, CommitResult, NewLife, OffsetRow, Passed, QueueCommit


class RuledOffsetStore(ABC):
    """The changes of ``OffsetStore``, each one call of ``_change``."""

    _clock: Clock

    @abstractmethod
    def _change(self, consumer_group: str, decide: Callable[[Rows], Change[ResultT]], action: str) -> ResultT:
        """Read the group's rows, have them decided on and store the outcome, as if nobody else did anything meanwhile.

        ``decide`` may be called again with newer rows; ``action`` is for the history.
        """

    def claim(
        self,
        consumer_group: str,
        owner: str,
        starts: Mapping[MessageQueue, int],
        generations: Mapping[MessageQueue, int] = FIRST_LIVES,
        *,
        at_brokers: Mapping[MessageQueue, int] | None = None,
    ) -> dict[MessageQueue, OffsetRow]:
        """Take queues over; see ``OffsetStore.claim``."""
        now_s = self._clock.now_s()
        return self._change(
            consumer_group,
            lambda rows: apply_claim(
                rows,
                consumer_group,
                owner,
                starts,
                now_s=now_s,
                generations=generations,
                at_brokers=at_brokers,
            ),
            f"claim by {owner}",
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
            f"commit of batch {batch_id} of query {query_id}",
        )

    def note_arrivals(self, consumer_group: str, arrived: Mapping[MessageQueue, int]) -> None:
        """Remember what brokers have taken; see ``OffsetStore.note_arrivals``."""
        self._change(
            consumer_group, lambda rows: apply_arrivals(rows, arrived), "offsets shown to the brokers"
        )

    def note_passed(self, consumer_group: str, passed: Mapping[MessageQueue, Passed]) -> None:
        """Remember the last message before a queue's beginning; see ``OffsetStore.note_passed``."""
        self._change(consumer_group, lambda rows: apply_passed(rows, passed), "messages passed over")

    def begin_lives(
        self, consumer_group: str, lives: Mapping[MessageQueue, NewLife]
    ) -> dict[MessageQueue, OffsetRow]:
        """Begin the next generation of queues; see ``OffsetStore.begin_lives``."""
        now_s = self._clock.now_s()
        return self._change(
            consumer_group,
            lambda rows: apply_begin_lives(rows, consumer_group, lives, now_s),
            "offsets begin again",
        )

    def reset(
        self,
        consumer_group: str,
        targets: Mapping[MessageQueue, int],
        *,
        under: Mapping[MessageQueue, int] | None = None,
    ) -> dict[MessageQueue, OffsetRow]:
        """Move queues anywhere; see ``OffsetStore.reset``."""
        now_s = self._clock.now_s()
        return self._change(
            consumer_group, lambda rows: apply_reset(rows, consumer_group, targets, now_s, under), RESET
        )
