"""Memory of the planner: which queues stand still although they are read.

With autoCommit=false a listener may answer SUCCESS for a whole range and commit nothing.  The next plan then begins at
the same offset, and only a longer range brings the messages after which the listener commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark_rocketmq.consume.plan import Had, QueueProgress
from pyspark_rocketmq.model import MessageQueue, QueueRange

REST_S: Final = 60.0
"""How long a listener is left alone with messages that it did not commit while there are no more of them."""


class StallCounter:
    """Remembers, per queue, the range that its listener has had without a commit and without a suspension.

    Call ``had()`` with fresh progress before each plan and ``planned()`` with the ranges that are run after it. A
    suspension keeps what is known, for the listener still needs the messages; any move or a new epoch forgets it. Times
    are monotonic seconds.
    """

    def __init__(self) -> None:
        self._last_plan: dict[MessageQueue, QueueRange] = {}
        self._planned_at_s = 0.0
        self._had: dict[MessageQueue, tuple[QueueRange, float]] = {}
        """And when it was planned."""

    def had(self, progress: Mapping[MessageQueue, QueueProgress], now_s: float) -> Mapping[MessageQueue, Had]:
        """What queues' listeners have had in vain, from their next offsets on."""
        # A batch of which a queue was claimed or reset meanwhile is dropped whole, whatever its listeners answered.
        is_dropped = any(
            queue not in progress or progress[queue].epoch != planned.epoch
            for queue, planned in self._last_plan.items()
        )
        for queue, planned in () if is_dropped else self._last_plan.items():
            if progress[queue].suspended_until_s is None:
                self._had[queue] = planned, self._planned_at_s
        self._last_plan = {}
        self._had = {
            queue: (planned, at_s)
            for queue, (planned, at_s) in self._had.items()
            if _stands_at(planned, progress.get(queue))
        }
        return {
            queue: Had(planned.count, rests=now_s - at_s < REST_S)
            for queue, (planned, at_s) in self._had.items()
        }

    def planned(self, ranges: Iterable[QueueRange], now_s: float) -> None:
        """Remember what is run, to compare with the progress it brings."""
        self._last_plan = {planned.queue: planned for planned in ranges}
        self._planned_at_s = now_s


class DrainWatch:
    """Since when a drain has stood still: no queue has moved or come to its end. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._left: Mapping[MessageQueue, int] = {}
        self._moved_at_s = 0.0

    def stands_for_s(self, left: Mapping[MessageQueue, int], now_s: float) -> float:
        """For how long none of the queues ``left`` to be drained, with where each stands, has moved."""
        if not left or left != self._left:
            self._left, self._moved_at_s = dict(left), now_s
        return now_s - self._moved_at_s


def _stands_at(planned: QueueRange, stored: QueueProgress | None) -> bool:
    return stored is not None and (stored.next_offset, stored.epoch) == (planned.start, planned.epoch)
