"""An ownership for tests of planning: a group of one member, whose locks are granted without a call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pyspark_rocketmq.consume.recent_offsets import Outage
from pyspark_rocketmq.model import MessageQueue


class OneMember:
    """Holds all queues there are, except those taken away; implements ``group.member.QueueOwnership``."""

    def __init__(self, queues: Callable[[], Collection[MessageQueue]]) -> None:
        self._queues = queues
        self.taken: set[MessageQueue] = set()
        """Queues held by another member now; tests add and remove them."""
        self.claimed_elsewhere: list[MessageQueue] = []
        self.is_settled = True
        """Whether this member holds all queues allocated to it; then those taken are allocated to others."""
        self.unseen: set[str] = set()
        """Names of brokers that this member's route lacks, although the planner's has them."""
        self.has_to_look = False
        """Whether this member was to look up its route again."""
        self.meanwhile: list[Callable[[], None]] = []
        """Called one by one, after the queues of a plan were offered and before they are planned."""
        self.refusals = 0
        """Number of plans whose grants have ended while they were made."""
        self.waited_s: list[float] = []
        """Time-outs of waits for any queue."""
        self._terms: dict[MessageQueue, int] = {}
        self._planned: frozenset[MessageQueue] = frozenset()
        self.resets: dict[MessageQueue, int] = {}
        """Resets that tasks have found."""
        self.outages: dict[str, Outage] = {}
        """The last outages of brokers that this member has seen."""

    def begin_plan(self) -> Mapping[MessageQueue, int]:
        offered = self._held()
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return offered

    def _known(self) -> set[MessageQueue]:
        return {queue for queue in self._queues() if queue.broker_name not in self.unseen}

    def _held(self) -> dict[MessageQueue, int]:
        held = self._known() - self.taken
        return {queue: self._terms.setdefault(queue, 1) for queue in held}

    def left_to_others(self, _: Collection[MessageQueue]) -> Collection[MessageQueue]:
        return self._known() & self.taken if self.is_settled else ()

    def note_seen(self, queues: Collection[MessageQueue]) -> None:
        self.has_to_look |= not self._known().issuperset(queues)

    def planned(self, grants: Mapping[MessageQueue, int]) -> frozenset[MessageQueue]:
        is_refused = self.refusals > 0
        self.refusals -= is_refused
        self._planned = frozenset(queue for queue in grants if queue not in self.taken and not is_refused)
        return self._planned

    def holds(self, queue: MessageQueue) -> bool:
        return queue in self._planned and queue not in self.taken

    def claimed_by_other(self, queue: MessageQueue) -> None:
        self.claimed_elsewhere.append(queue)
        self.taken.add(queue)
        self.is_settled = False

    def take_resets(self) -> Mapping[MessageQueue, int]:
        resets, self.resets = self.resets, {}
        return resets

    def outage_of(self, broker_name: str) -> Outage | None:
        return self.outages.get(broker_name)

    def reclaim(self, queue: MessageQueue) -> None:
        self._terms[queue] += 1

    def give(self, queue: MessageQueue) -> None:
        """Return a taken queue to the member, under a new grant."""
        self.taken.discard(queue)
        self._terms[queue] = self._terms.get(queue, 0) + 1

    def await_settled(self, timeout_s: float) -> bool:
        return self.is_settled

    def await_held(self, timeout_s: float) -> bool:
        self.waited_s.append(timeout_s)
        return bool(set(self._queues()) - self.taken)
