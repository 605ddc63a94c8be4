"""Which planned ranges share a task.

A task costs some tens of milliseconds of a core whatever it does: Spark schedules it, and two Python processes take it up. A queue with a
few messages, or one on trial after a suspension, is done in less.  So:

1. A task is not expected to last longer than the longest range alone does, give or take a quarter, or than 25 ms if that is
   more: with any number of cores the micro-batch takes no longer, and with few it takes less.
2. A range of which nothing is known has a task of its own.
3. A task has its ranges one after the other, each whole; which one comes first does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

READ_MS: Final = 0.01
"""To pull and decode a message, about."""
WORTH_A_TASK_MS: Final = 25.0
"""Ranges that take less together are done by one task."""
_LONGER: Final = 1.25


def expected_ms(count: int, listener_ms: float | None) -> float:
    """How long a range of ``count`` offsets will take; ``listener_ms`` is the listener's time for a message, None if unknown."""
    return inf if listener_ms is None else count * (READ_MS + listener_ms)


def shared_tasks(expected: Sequence[float]) -> list[list[int]]:
    """The indexes of ranges that last so many milliseconds, by task; each index once, ascending within a task."""
    known = [each for each in expected if each < inf]
    longest_ms = max([WORTH_A_TASK_MS, *(each * _LONGER for each in known)])
    tasks: list[list[int]] = []
    lasts_ms: list[float] = []
    for index in sorted(range(len(expected)), key=lambda index: -expected[index]):
        # From the last one: those before it are full, as ranges come from the longest to the shortest.
        if lasts_ms and lasts_ms[-1] + expected[index] <= longest_ms:
            tasks[-1].append(index)
            lasts_ms[-1] += expected[index]
        else:
            tasks.append([index])
            lasts_ms.append(expected[index])
    return sorted(map(sorted, tasks))
