"""Pulls that wait for a message (``PullRequestHoldService``).

A held pull is let go once: by a message of its queue that its filter takes, or when its time is over. The real
broker looks at the time only every 5 s; this one is exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from broker_sim.filters import MessageFilter
from broker_sim.layout import MessageRun
from broker_sim.peers import Peer
from pyspark_rocketmq.wire.command import RemotingCommand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldPull:
    """A pull request without an answer yet."""

    peer: Peer
    command: RemotingCommand
    topic: str
    queue_id: int
    wanted: MessageFilter
    """Which messages wake it."""
    deadline_s: float
    """Monotonic."""


class HeldPulls:
    """All held pulls of a broker."""

    def __init__(self) -> None:
        self._by_queue: dict[tuple[str, int], dict[int, HeldPull]] = {}
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return sum(len(pulls) for pulls in self._by_queue.values())

    def hold(self, pull: HeldPull) -> None:
        """Keep ``pull`` until something lets it go."""
        number = next(self._numbers)
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[number] = pull
        heapq.heappush(self._deadlines, (pull.deadline_s, number, pull))

    def arrived(self, run: MessageRun, tag_hashes: Sequence[int]) -> list[HeldPull]:
        """Let go what waits for one of the messages just stored."""
        pulls = self._by_queue.get((run.topic, run.queue_id))
        if not pulls:
            return []
        woken = [number for number, pull in pulls.items() if pull.wanted.takes_any(run, tag_hashes)]
        return [pulls.pop(number) for number in woken]

    def expired(self, now_s: float) -> list[HeldPull]:
        """Let go whose time is over, the longest waiting first."""
        gone = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number, pull = heapq.heappop(self._deadlines)
            if self._by_queue[pull.topic, pull.queue_id].pop(number, None) is not None:
                gone.append(pull)
        return gone

    def next_deadline_s(self) -> float | None:
        """When :meth:`expired` may next have something; early rather than late."""
        return self._deadlines[0][0] if self._deadlines else None

    def forget(self, peer: Peer) -> None:
        """Drop the pulls of a closed connection."""
        for pulls in self._by_queue.values():
            for number in [n for n, pull in pulls.items() if pull.peer == peer]:
                del pulls[number]

    def clear(self) -> None:
        """Drop everything, as a broker does when it stops."""
        self._by_queue.clear()
        self._deadlines.clear()
