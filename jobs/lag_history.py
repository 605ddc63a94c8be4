"""How far behind a group was, moment by moment: what the picture of ``offsets lag`` shows. Pure.

A queue's backlog at a time is the offset up to which messages were stored by then, which its broker tells at any later
time, minus the offset that the store had then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.history import Moment

SUSPENDED: Final = "suspended"
RETRIED: Final = "tried again"

Ends = Mapping[MessageQueue, int]
"""Offset up to which each queue was filled at one time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagHistory:
    """Samples of one group, in order of time."""

    group: str
    times_s: tuple[float, ...]
    """Wall-clock seconds of the samples."""
    moments: tuple[Moment | None, ...]
    """What the store had at each; None before its first change."""
    ends: tuple[Ends, ...]
    dead_letters: tuple[int, ...]
    """Of the whole group, up to each time."""
    resets_s: tuple[float, ...]
    """When an operator moved the group."""

    def queue_records(self) -> list[dict[str, Any]]:
        """One record per queue and sample, times in milliseconds; ``backlog`` and ``rate`` are None where unknown."""
        queues = sorted({queue for moment in self.moments if moment is not None for queue in moment.rows})
        return [
            record
            for queue in queues
            for index in range(len(self.times_s))
            if (record := self._record(queue, index))
        ]

    def dead_letter_records(self) -> list[dict[str, Any]]:
        """One record per sample that has new dead letters."""
        steps = zip(self.times_s[1:], self.dead_letters, self.dead_letters[1:], strict=False)
        return [
            {"at": _ms(at_s), "deadLetters": after - before}
            for at_s, before, after in steps
            if after > before
        ]

    def reset_records(self) -> list[dict[str, Any]]:
        """One record per reset."""
        return [{"at": _ms(at_s)} for at_s in self.resets_s]

    def _record(self, queue: MessageQueue, index: int) -> dict[str, Any] | None:
        moment = self.moments[index]
        row = None if moment is None else moment.rows.get(queue)
        if row is None:
            return None
        at_s, end = self.times_s[index], self.ends[index].get(queue)
        state = None
        if row.suspended_until_s is not None and row.suspended_until_s > row.updated_at_s:
            state = SUSPENDED
        elif row.reconsume_times:
            state = RETRIED
        return {
            "at": _ms(at_s),
            "queue": peer_text(f"{queue.topic} {queue.broker_name}:{queue.queue_id}"),
            "nextOffset": row.next_offset,
            "backlog": None if end is None else max(0, end - row.next_offset),
            "rate": self._rate(queue, index),
            "state": state,
            "reconsumeTimes": row.reconsume_times,
        }

    def _rate(self, queue: MessageQueue, index: int) -> float | None:
        """Messages a second since the sample before; None where an operator moved the queue in between."""
        before = self.moments[index - 1] if index else None
        here = self.moments[index]
        assert here is not None
        if before is None or queue not in before.rows:
            return None
        span_s = self.times_s[index] - self.times_s[index - 1]
        consumed = here.rows[queue].next_offset - before.rows[queue].next_offset
        is_moved = any(self.times_s[index - 1] < at_s <= self.times_s[index] for at_s in self.resets_s)
        return None if consumed < 0 or is_moved else round(consumed / span_s, 3)


def sample_times(since_s: float, until_s: float, count: int) -> tuple[float, ...]:
    """``count`` times at equal distances, both ends among them."""
    step_s = (until_s - since_s) / (count - 1)
    return tuple(since_s + number * step_s for number in range(count))


def moments_at(times_s: Sequence[float], moments: Sequence[Moment]) -> tuple[Moment | None, ...]:
    """The last of ``moments`` (oldest first) at each time."""
    found: list[Moment | None] = []
    index = -1
    for at_s in times_s:
        while index + 1 < len(moments) and moments[index + 1].change.at_s <= at_s:
            index += 1
        found.append(moments[index] if index >= 0 else None)
    return tuple(found)


def _ms(at_s: float) -> int:
    return round(at_s * 1000)
