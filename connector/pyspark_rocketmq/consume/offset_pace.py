"""Decides when a query stores its offsets, which need not follow each commit of its rows.

A sink's watermarks go with its rows. So a query that is killed before it has stored its offsets consumes some
messages again, and the sink leaves out their rows: that costs calls of the listener, but no row is missing or
doubled. A queue is *behind* while its rows are committed and its offset is not stored yet.

A *group* is a number of task results that are committed together.

Rule 1: without a sink the offset store is the only record, so offsets are stored with each group. With a sink
they are stored when their time has come (rule 2), with the next group or without one.
Rule 2: offsets are stored once a second. If storing takes long, they are stored less often, so that storing
takes at most one fiftieth of the time. But they are stored at least every five seconds, which is Java's
``persistConsumerOffsetInterval``. The first group after a pause is stored with its offsets.
Rule 3: some progress is stored immediately: suspensions and how often messages were tried, which no sink has;
a reset or another log, which the store is to follow; and offsets of queues that no task delivers any more,
since the next owner begins at the stored offset.

No I/O, no clock, no thread; methods take the monotonic time.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

from pyspark_rocketmq.consume.part import Group, QueueAck
from pyspark_rocketmq.model import MessageQueue

_SHORTEST_S: Final = 1.0
LONGEST_S: Final = 5.0
"""Longest time that offsets wait, in seconds: Java's ``persistConsumerOffsetInterval``."""
_SHARE: Final = 50
"""Storing offsets takes at most one second in this many, unless offsets have waited for ``LONGEST_S``."""


class OffsetPace:
    """Decides when one query stores its offsets. Not thread-safe."""

    def __init__(self, *, may_wait: bool) -> None:
        """Begin without offsets to store; with ``may_wait=False`` each commit of rows also stores offsets."""
        self._may_wait = may_wait
        self._stored_s = -inf
        """When offsets were last stored."""
        self._took_s = 0.0
        """How long storing them took, in seconds."""
        self._behind: set[MessageQueue] = set()

    @property
    def behind(self) -> frozenset[MessageQueue]:
        """Queues whose rows are committed and whose offsets are not stored yet."""
        return frozenset(self._behind)

    @property
    def due_s(self) -> float | None:
        """Monotonic time at which the offsets that wait are to be stored; None if none wait."""
        return self._next_s if self._behind else None

    def is_group_stored(self, group: Group, ended: Collection[MessageQueue], now_s: float) -> bool:
        """Return whether the commit of ``group`` is to store offsets: the group's own and all that wait.

        Offsets are stored in four cases: if they never wait; if their time has come; if a queue of ``ended``,
        which no task delivers any more, has an offset to store; and if the group has progress that is stored
        immediately (rule 3).
        """
        return (
            not self._may_wait
            or now_s >= self._next_s
            or self.is_any_wanted(ended, group.queues)
            or any(_is_for_store(ack) for part in group.parts for ack in part.acks)
        )

    def is_any_wanted(
        self, ended: Collection[MessageQueue], others: Collection[MessageQueue] = frozenset()
    ) -> bool:
        """Return whether an offset of one of the ``ended`` queues is still to be stored.

        That is so if the queue is behind, or if it is one of ``others``, the queues of a group that is about
        to be committed.
        """
        return any(queue in self._behind or queue in others for queue in ended)

    def rows_committed(self, queues: Collection[MessageQueue]) -> None:
        """Note that rows of ``queues`` were committed, and that their offsets are still to be stored."""
        self._behind |= set(queues)

    def stored(self, now_s: float, took_s: float) -> None:
        """Note that all offsets are stored, in ``took_s`` seconds; afterwards no queue is behind.

        This includes queues that the store has refused: their offsets wait no more.
        """
        self._stored_s, self._took_s = now_s, took_s
        self._behind.clear()

    def forget(self) -> None:
        """Note that the offsets that wait will not be stored."""
        self._behind.clear()

    @property
    def _next_s(self) -> float:
        """When offsets are to be stored next (rule 2)."""
        return self._stored_s + min(LONGEST_S, max(_SHORTEST_S, _SHARE * self._took_s))


def _is_for_store(ack: QueueAck) -> bool:
    """Return whether an ack has progress to store immediately (rule 3)."""
    state = ack.state
    is_tried = bool(state.reconsume_times or state.retry_counts) or state.suspended_until_s is not None
    return is_tried or ack.reset_to is not None or ack.is_another_log
