"""Finds the offsets missing from a queue's messages: without a filter every offset has one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def holes_before(offsets: npt.NDArray[np.int64], expected: int) -> list[tuple[int, int]]:
    """The holes ``[first missing, next there)`` from ``expected`` to the last of ``offsets``, ascending.

    Args:
        offsets: Strictly ascending queue offsets, at least one, none below ``expected``.
        expected: The queue offset that would come first without a hole.
    """
    last = int(offsets[-1])
    if last - expected + 1 == len(offsets):
        # Nearly always: as many offsets as there is room for.
        return []
    before = np.concatenate(([expected - 1], offsets[:-1]))
    at = np.flatnonzero(offsets - before > 1)
    return list(zip((before[at] + 1).tolist(), offsets[at].tolist(), strict=True))
