"""Memory of the planner: which queues stand still although they are read.

With autoCommit=false a listener may answer SUCCESS for a whole range and commit nothing; the next plan then
begins at the same offset, and only a longer range brings the messages after which the listener commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark_rocketmq.consume.plan import QueueProgress
from pyspark_rocketmq.model import MessageQueue, QueueRange


class StallCounter:
    """Counts, per queue, the plans in a row after which the next offset stood still without a suspension.

    Call ``counts()`` with fresh progress before each plan and ``planned()`` with its ranges after it. A
    suspension keeps a count, for what was accumulated stays accumulated; any move or a new epoch forgets it.
    """

    def __init__(self) -> None:
        self._last_plan: dict[MessageQueue, QueueRange] = {}
        self._counts: dict[MessageQueue, int] = {}

    def counts(self, progress: Mapping[MessageQueue, QueueProgress]) -> Mapping[MessageQueue, int]:
        """What to hand to ``plan_ranges`` as ``stalled``; queues that moved are not in it."""
        for queue, planned in self._last_plan.items():
            stored = progress.get(queue)
            if stored is None or (stored.next_offset, stored.epoch) != (planned.start, planned.epoch):
                self._counts.pop(queue, None)
            elif stored.suspended_until_s is None:
                self._counts[queue] = self._counts.get(queue, 0) + 1
        self._last_plan = {}
        return dict(self._counts)

    def planned(self, ranges: Iterable[QueueRange]) -> None:
        """Remember what was planned, to compare with the progress it brings."""
        self._last_plan = {planned.queue: planned for planned in ranges}
