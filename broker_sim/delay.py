"""Delayed messages (``ScheduleMessageService``): kept in a topic of their own until their level's time is over.

A delivered message keeps DELAY, REAL_TOPIC and REAL_QID among its properties (golden fact 3).
"""

from __future__ import annotations

import heapq
from itertools import count

from broker_sim.layout import MessageRun

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def delay_level(properties: dict[str, str], levels: int) -> int:
    """Level a producer asked for: 0 for none, the highest for anything above it."""
    text = properties.get("DELAY", "0")
    return min(int(text), levels) if text.isdecimal() else 0


class DelayedMessages:
    """What is to be delivered, by time; messages of one level keep their order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, MessageRun]] = []
        self._numbers = count()

    def put(self, due_s: float, run: MessageRun) -> None:
        """Deliver ``run`` at the monotonic time ``due_s``."""
        heapq.heappush(self._waiting, (due_s, next(self._numbers), run))

    def take_due(self, now_s: float) -> list[MessageRun]:
        """Hand out what is due, the earliest first."""
        due = []
        while self._waiting and self._waiting[0][0] <= now_s:
            due.append(heapq.heappop(self._waiting)[2])
        return due

    def next_due_s(self) -> float | None:
        """When :meth:`take_due` next has something."""
        return self._waiting[0][0] if self._waiting else None
