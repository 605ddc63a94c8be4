"""Offset store of a concurrent consumer that uses the offsets which the group's brokers keep.

Like Java's ``RemoteBrokerOffsetStore``: one number per queue, and the last writer wins. Consequences:

* *Nothing is fenced.* A member that lost a queue still stores its offset. A commit that is under way when an
  operator resets the group may overwrite the reset. A member that was notified of the reset stores the
  reset's offset again with its next plan.
* A member reads the stored offset and writes only a higher one. If another member writes a still higher one
  between the two steps, that one is lost, and messages come twice.
* *No attempts, no suspension.* So it cannot serve orderly consumers, or a sink that needs each row exactly
  once. The planner remembers which queues stand still.
* A broker that crashes loses, by default, the offsets of its last five seconds.
* Brokers may lose the group, such as by ``mqadmin deleteSubGroup -r true``. A commit goes on from the last
  offset that this process has seen there.
* A broker that is away stores nothing. A commit keeps its offsets in memory until the broker answers. If the
  process ends before, their messages come again.
* Every read costs one request per queue. A broker before 5.0 is also asked for all its offsets if it answers
  0 for a queue that is not known to have this offset.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import OffsetError, RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.recorded_sinks import RecordedSinks
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

logger = logging.getLogger(__name__)

_ONLY_EPOCH = 1
"""Epoch of every row. Brokers have no epochs, so it never becomes outdated."""

Answers = Mapping[MessageQueue, int | RocketMQError | None]
"""Each queue's offset, None if its broker has none, or the error of a broker that failed."""


class GroupAtBrokers(Protocol):
    """One group's offsets at the brokers of its topics' queues."""

    @property
    def consumer_group(self) -> str:
        """Name under which the group's progress is stored."""
        ...

    def read(self, queues: Collection[MessageQueue] | None = None) -> Answers:
        """Return the brokers' answers for ``queues``; by default for all queues whose broker has a master.

        Raises:
            BrokerOffsetUnavailable: If the name servers did not answer.
            NoPermission: If the group's offsets may not be read.
        """
        ...

    def write(self, next_offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, RocketMQError]:
        """Store offsets, even lower ones; a broker that does not know the group stores nothing.

        Return the queues of brokers that failed, and why; some of their offsets may be stored.

        Raises:
            BrokerOffsetUnavailable: If the name servers did not answer.
            NoPermission: If the group's offsets may not be written.
        """
        ...


class _Kept(NamedTuple):
    """A committed offset that its queue's broker has not taken yet."""

    next_offset: int
    before: int | None
    """The offset that the broker had; None if that is not known."""

    def is_due(self, stored: int | None) -> bool:
        """Return whether to send the offset to its broker, which now has the offset ``stored`` (None: none).

        Send it if the broker has none, or still has the one from before the commit. Any other offset shows
        that somebody else has moved the group there since. If ``before`` is not known, send the offset if it
        is higher than the broker's.
        """
        if stored is None:
            return True
        return stored < self.next_offset if self.before is None else stored == self.before


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
        self._known: dict[MessageQueue, int] = {}
        """The offset of each queue that its broker had when it last answered."""
        self._kept: dict[MessageQueue, _Kept] = {}
        """Committed offsets for brokers that are away."""
        self._lost: set[MessageQueue] = set()
        """Claimed queues whose brokers have lost their offsets, as logged."""

    @property
    def spec(self) -> str:
        """The text ``broker:``; to open the store again, the group's cluster and topics are needed, too."""
        return "broker:"

    def groups(self) -> tuple[str, ...]:
        """Return the name of this store's group if it has an offset at a broker, else an empty tuple.

        Raises:
            BrokerOffsetUnavailable: If no broker has an offset, and one did not answer.
        """
        answers = self._read()
        if _offsets(answers):
            return (self._group.consumer_group,)
        _check(answers)
        return ()

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows; empty if it is not the group of this store.

        Queues whose broker did not answer are left out. A broker that answers again gets the offsets that
        this process has kept for it.

        Raises:
            BrokerOffsetUnavailable: If the name servers did not answer.
        """
        if consumer_group != self._group.consumer_group:
            return {}
        return self._rows(_offsets(self._read()))

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

        Raises:
            BrokerOffsetUnavailable: If a broker did not answer; others may have stored starts.
        """
        self._check_group(consumer_group)
        answers = self._read(starts)
        _check(answers)
        rows = self._rows(_offsets(answers))
        claimed = apply_claim(rows, consumer_group, owner, starts, now_s=0.0, generations=generations).result
        begun = {queue: row.next_offset for queue, row in claimed.items() if queue not in rows}
        self._write(begun)
        with self._guard:
            lost = begun.keys() & self._owners.keys()
            news = lost - self._lost
            self._lost |= lost
            self._owners |= dict.fromkeys(claimed, owner)
        for queue in sorted(news):
            logger.warning(
                "the broker has lost the group's offset, and the query stores next_offset there group=%s %s "
                "next_offset=%d",
                consumer_group,
                queue,
                begun[queue],
            )
        return {queue: self._row(queue, row.next_offset, owner) for queue, row in claimed.items()}

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Store each queue's offset unless the stored one is larger; the owner does not matter.

        A queue for which this process has never seen an offset is refused. If a broker has lost a queue's
        offset, it gets the new one. If a broker does not answer, its offsets are accepted and kept in memory.
        The next commit or read sends them again, but not over an offset that somebody else has stored
        meanwhile. Only one thread may commit at a time.

        Source: ``RemoteBrokerOffsetStore.updateOffset`` with ``increaseOnly``, as concurrent consumers call
        it; ``persistAll``, which goes on if a broker fails.
        """
        self._check_group(consumer_group)
        with self._guard:
            asked = {commit.queue for commit in commits} | self._kept.keys()
        answers = self._read(asked)
        rows = self._rows(self._before(answers))
        # Offsets below the stored ones count as accepted; the rules would refuse them as a regression.
        forward = [
            commit
            for commit in commits
            if not (commit.queue in rows and 0 <= commit.state.next_offset < rows[commit.queue].next_offset)
        ]
        result = apply_commit(
            rows, consumer_group, forward, query_id=query_id, batch_id=batch_id, now_s=0.0
        ).result
        moved = {
            commit.queue: commit.state.next_offset
            for commit in result.accepted
            if commit.state.next_offset > rows[commit.queue].next_offset or answers[commit.queue] is None
        }
        away = {queue: error for queue, error in answers.items() if isinstance(error, RocketMQError)}
        here = {queue: offset for queue, offset in moved.items() if queue not in away}
        away |= self._group.write(here) if here else {}
        self._keep({queue: offset for queue, offset in moved.items() if queue in away}, away)
        self._note({queue: offset for queue, offset in here.items() if queue not in away})
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
        sinks: Mapping[MessageQueue, RecordedSinks] | None = None,  # noqa: ARG002 - nor sinks
    ) -> dict[MessageQueue, OffsetRow]:
        """Store the offsets ``targets``, and return the rows; a commit under way may still replace them.

        Raises:
            BrokerOffsetUnavailable: If a broker did not answer; others may have stored offsets.
        """
        self._check_group(consumer_group)
        moved = apply_reset({}, consumer_group, targets, 0.0).result
        offsets = {queue: row.next_offset for queue, row in moved.items()}
        self._write(offsets)
        return self._rows(offsets)

    def _check_group(self, consumer_group: str) -> None:
        if consumer_group != self._group.consumer_group:
            raise OffsetError(
                f"This store has only the offsets of group {self._group.consumer_group} at its brokers, and "
                f"cannot store those of group {consumer_group}. Nothing was stored. Open a store "
                f"for group {consumer_group}."
            )

    def _read(self, queues: Collection[MessageQueue] | None = None) -> Answers:
        """Return the brokers' answers; first send the offsets kept for brokers that answer again.

        The answer for such a queue is the offset that was sent, or the error of a broker that failed again.
        """
        answers = dict(self._group.read(queues))
        answers |= self._send_kept(answers)
        stored = _offsets(answers)
        self._note(stored)
        with self._guard:
            self._lost -= stored.keys()
        return answers

    def _send_kept(self, answers: Answers) -> Answers:
        """Send the kept offsets of queues that ``answers`` has without an error.

        Return what their brokers have now, or the error of one that failed. An offset is dropped if somebody
        else has moved the group there meanwhile.
        """
        stored = _offsets(answers)
        with self._guard:
            kept = {
                queue: each
                for queue, each in self._kept.items()
                if queue in answers and not isinstance(answers[queue], RocketMQError)
            }
        due = {queue: each.next_offset for queue, each in kept.items() if each.is_due(stored.get(queue))}
        refused = self._group.write(due) if due else {}
        for queue, each in kept.items():
            if queue not in due and stored.get(queue) != each.next_offset:
                logger.info(
                    "kept offset dropped, the group was moved at the broker meanwhile group=%s %s "
                    "next_offset=%d broker_offset=%s",
                    self._group.consumer_group,
                    queue,
                    each.next_offset,
                    stored.get(queue),
                )
        with self._guard:
            for queue in kept.keys() - refused.keys():
                self._kept.pop(queue, None)
        return {**due, **refused}

    def _before(self, answers: Answers) -> dict[MessageQueue, int]:
        """Return the offset of each queue with which a commit is compared.

        If a broker does not answer or has lost an offset, this is the last offset known of the queue.
        """
        with self._guard:
            known = {queue: self._known[queue] for queue in answers if queue in self._known}
            kept = {queue: each.next_offset for queue, each in self._kept.items()}
        away = [queue for queue, answer in answers.items() if isinstance(answer, RocketMQError)]
        return {**dict.fromkeys(away, 0), **known, **kept, **_offsets(answers)}

    def _keep(
        self, next_offsets: Mapping[MessageQueue, int], errors: Mapping[MessageQueue, RocketMQError]
    ) -> None:
        """Keep offsets for brokers that are away; log each broker with the first ones."""
        with self._guard:
            logged = {queue.broker_name for queue in self._kept}
            for queue, offset in next_offsets.items():
                kept = self._kept.get(queue)
                before = self._known.get(queue) if kept is None else kept.before
                self._kept[queue] = _Kept(offset, before)
        news = {queue.broker_name: errors[queue] for queue in next_offsets}
        for name, error in sorted(news.items()):
            if name not in logged:
                logger.warning(
                    "the broker does not take the group's offsets; they are kept and sent again, and if the "
                    "query ends before, their messages come again group=%s broker=%s: %s",
                    self._group.consumer_group,
                    peer_text(name),
                    error,
                )

    def _write(self, next_offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets, and forget those kept for their queues."""
        _check(self._group.write(next_offsets) if next_offsets else {})
        self._note(next_offsets)
        with self._guard:
            for queue in next_offsets:
                self._kept.pop(queue, None)

    def _note(self, offsets: Mapping[MessageQueue, int]) -> None:
        with self._guard:
            self._known |= offsets

    def _rows(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, OffsetRow]:
        with self._guard:
            owners = dict(self._owners)
        return {queue: self._row(queue, offset, owners.get(queue, "")) for queue, offset in offsets.items()}

    def _row(self, queue: MessageQueue, next_offset: int, owner: str) -> OffsetRow:
        row = new_row(self._group.consumer_group, queue, next_offset)
        return row._replace(state=QueueState(next_offset, _ONLY_EPOCH), owner=owner)


def _offsets(answers: Answers) -> dict[MessageQueue, int]:
    return {queue: answer for queue, answer in answers.items() if isinstance(answer, int)}


def _check(answers: Answers) -> None:
    for answer in answers.values():
        if isinstance(answer, RocketMQError):
            raise answer
