"""The servers of the simulation: queues with locks, tables that take rows, and the offset store.

They do what they promise and check what they are given: a gap, a doubled row, an offset ahead of its rows or
a reset that is undone raises :class:`Violation` at the step that makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.model import MessageQueue

LOCK_S = 60.0
"""How long a broker keeps the lock of a member that does not renew it (``REBALANCE_LOCK_MAX_LIVE_TIME``)."""
Span = tuple[int, int]


class Violation(AssertionError):
    """A promise that was broken."""


class Brokers:
    """Messages of the queues, and who has locked them."""

    def __init__(self, queues: Iterable[MessageQueue], messages: int) -> None:
        self.messages = messages
        self.stored = dict.fromkeys(queues, 0)
        """Messages that have arrived so far, by queue."""
        self._locks: dict[MessageQueue, tuple[str, float]] = {}

    def holder(self, queue: MessageQueue, now_s: float) -> str | None:
        """The member whose lock is valid."""
        member, until_s = self._locks.get(queue, ("", 0.0))
        return member if now_s < until_s else None

    def lock(self, queue: MessageQueue, member: str, now_s: float) -> bool:
        """Lock a queue, or renew its lock."""
        if self.holder(queue, now_s) not in {None, member}:
            return False
        self._locks[queue] = (member, now_s + LOCK_S)
        return True

    def unlock(self, queue: MessageQueue, member: str) -> None:
        if self._locks.get(queue, ("", 0.0))[0] == member:
            del self._locks[queue]


class Sink:
    """A table with a watermark per queue; its rows are the offsets of their messages."""

    def __init__(self, queues: Iterable[MessageQueue], skipped: Mapping[MessageQueue, set[int]]) -> None:
        self.rows: dict[MessageQueue, list[int]] = {queue: [] for queue in queues}
        self.marks = dict.fromkeys(self.rows, 0)
        self._skipped = skipped
        """Offsets that operators have skipped by resets."""
        self._made: set[str] = set()

    def commit(
        self,
        group_id: str,
        rows: Mapping[MessageQueue, list[Span]],
        ends: Mapping[MessageQueue, int],
        expected: Mapping[MessageQueue, int] | None,
    ) -> frozenset[MessageQueue]:
        """Add rows and move watermarks together, or return the queues that somebody else has moved.

        ``expected``: the watermarks that the writer knows; None to add without comparing.
        """
        if group_id in self._made:
            return frozenset()
        if expected is not None and (moved := {each for each in ends if self.marks[each] != expected[each]}):
            return frozenset(moved)
        self._made.add(group_id)
        for queue, end in ends.items():
            for start, stop in rows[queue]:
                self._add(queue, start, stop)
            self.marks[queue] = max(self.marks[queue], end)
        return frozenset()

    def _add(self, queue: MessageQueue, start: int, stop: int) -> None:
        has = self.rows[queue]
        follows = has[-1] + 1 if has else 0
        if start < follows:
            raise Violation(f"doubled: {queue} from {start}, the table has all below {follows}")
        if missing := set(range(follows, start)) - self._skipped[queue]:
            raise Violation(f"gap: {queue} from {start}, without {sorted(missing)}")
        has += range(start, stop)


class Row(NamedTuple):
    """Progress of a queue."""

    epoch: int = 0
    next_offset: int = 0
    owner: str = ""


class Store:
    """The offset store: epochs fence, and offsets are never ahead of the rows."""

    def __init__(
        self, sinks: Iterable[Sink], queues: Iterable[MessageQueue], skipped: Mapping[MessageQueue, set[int]]
    ) -> None:
        self.rows = dict.fromkeys(queues, Row())
        self._sinks = tuple(sinks)
        self._skipped = skipped
        self._resets: dict[MessageQueue, int] = {}
        """Epochs of the newest resets."""
        self.checks_epochs = True
        self.has_moved = False
        """Whether offsets have moved since the world last looked."""

    def place(self, queue: MessageQueue) -> Place:
        row = self.rows[queue]
        return Place(row.epoch, row.next_offset)

    def claim(self, queue: MessageQueue, owner: str) -> Row:
        row = self.rows[queue]
        self.rows[queue] = row = row._replace(epoch=row.epoch + 1, owner=owner)
        return row

    def reset(self, queue: MessageQueue, target: int) -> None:
        row = self.rows[queue]
        self._skipped[queue].update(range(row.next_offset, target))
        self.rows[queue] = row._replace(epoch=row.epoch + 1, next_offset=target)
        self.has_moved = True
        self._resets[queue] = row.epoch + 1

    def commit(self, queue: MessageQueue, epoch: int, next_offset: int) -> bool:
        """Store an offset if the epoch is still the stored one; return whether it is."""
        stored = self.rows[queue]
        if self.checks_epochs and stored.epoch != epoch:
            return False
        if epoch < self._resets.get(queue, 0):
            raise Violation(f"undone: a reset of {queue}, by a commit of epoch {epoch}")
        next_offset = max(stored.next_offset, next_offset)
        self.rows[queue] = stored._replace(next_offset=next_offset)
        self.has_moved = True
        for sink in self._sinks:
            if not self._skipped[queue].issuperset(range(sink.marks[queue], next_offset)):
                raise Violation(f"ahead: {queue} is stored at {next_offset}, rows end at {sink.marks[queue]}")
        return True
