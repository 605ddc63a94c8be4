"""Which planned ranges share a task.

A task costs some tens of milliseconds of a core whatever it does: Spark schedules it, and two Python processes take it up. A queue with a
few messages, or one on trial after a suspension, is done in less.  So:

1. A task is not expected to last longer than the longest range alone does, give or take a quarter, or than 25 ms if that is
   more: with any number of cores the micro-batch takes no longer, and with few it takes less.
2. A range of which nothing is known has a task of its own.
3. If that makes more tasks than can run at the same time, and their number is known, there are as many as that, each
   with its share of the work. A task that waits for a core could do nothing for its queues, and one that has
   a suspended queue left would have to end for it (D3).
4. Neighbours in a task that take no longer than 25 ms together are read at once: pulled by one burst and decoded in one go, which
   takes a few short ranges as long as one. None of them waits longer to be given up than the call of a slow listener lasts.

How a task goes about its ranges is said in :mod:`~pyspark_rocketmq.consume.turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import inf
from typing import Final, NamedTuple

READ_MS: Final = 0.01
"""To pull and decode a message, about."""
WORTH_A_TASK_MS: Final = 25.0
"""Ranges that take less together are done by one task."""
_READ_TOGETHER: Final = 1024
"""Offsets of ranges that are read at once, at most: their messages are in memory together."""
_LONGER: Final = 1.25


class Expected(NamedTuple):
    """What is expected of a range."""

    offsets: int
    """How many it has."""
    listener_ms: float | None
    """The listener's time for a message; None if unknown."""

    @property
    def ms(self) -> float:
        """How long the range will take; infinite if that is unknown."""
        return inf if self.listener_ms is None else self.offsets * (READ_MS + self.listener_ms)


def shared_tasks(ranges: Sequence[Expected], slots: int = 0) -> list[list[int]]:
    """The indexes of ``ranges`` by task; each index once, ascending within a task.

    Args:
        ranges: Those of one micro-batch.
        slots: How many tasks can run at the same time; 0 if that is not known.
    """
    tasks = _as_long_as_the_longest([each.ms for each in ranges])
    if 0 < slots < len(tasks):
        tasks = _spread(ranges, slots)
    return sorted(map(sorted, tasks))


def read_together(ranges: Sequence[Expected]) -> list[range]:
    """The indexes of one task's ``ranges`` by what is read at once; ascending, each index once."""
    together: list[range] = []
    offsets, lasts_ms = 0, 0.0
    for index, each in enumerate(ranges):
        offsets, lasts_ms = offsets + each.offsets, lasts_ms + each.ms
        if together and offsets <= _READ_TOGETHER and lasts_ms <= WORTH_A_TASK_MS:
            together[-1] = range(together[-1].start, index + 1)
        else:
            together.append(range(index, index + 1))
            offsets, lasts_ms = each.offsets, each.ms
    return together


def _as_long_as_the_longest(expected_ms: Sequence[float]) -> list[list[int]]:
    longest_ms = max([WORTH_A_TASK_MS, *(each * _LONGER for each in expected_ms if each < inf)])
    tasks: list[list[int]] = []
    lasts_ms: list[float] = []
    for index in sorted(range(len(expected_ms)), key=lambda index: -expected_ms[index]):
        # From the last one: those before it are full, as ranges come from the longest to the shortest.
        if lasts_ms and lasts_ms[-1] + expected_ms[index] <= longest_ms:
            tasks[-1].append(index)
            lasts_ms[-1] += expected_ms[index]
        else:
            tasks.append([index])
            lasts_ms.append(expected_ms[index])
    return tasks


def _spread(ranges: Sequence[Expected], slots: int) -> list[list[int]]:
    """As many tasks as ``slots``, about equally long: each range, from the longest to the shortest, to who has the least."""
    known = [each for each in ranges if each.listener_ms is not None]
    known_ms, messages = sum(each.ms for each in known), sum(each.offsets for each in known)
    # What nothing is known of takes what the others take.
    message_ms = known_ms / messages if messages else READ_MS
    takes_ms = [each.offsets * message_ms if each.listener_ms is None else each.ms for each in ranges]
    tasks: list[tuple[float, int, list[int]]] = [(0.0, number, []) for number in range(slots)]
    heapify(tasks)
    for index in sorted(range(len(ranges)), key=lambda index: -takes_ms[index]):
        has_ms, number, task = tasks[0]
        task.append(index)
        heapreplace(tasks, (has_ms + takes_ms[index], number, task))
    return [task for _, _, task in tasks]
