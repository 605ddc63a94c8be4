"""How often something that happens again and again is told: in full at first, then as a count, at growing intervals."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0
MOST_KEYS: Final = 100
"""Different things remembered; of more, the one that has not happened for longest is forgotten, and told anew."""


@dataclass(slots=True)
class _Told:
    at_s: float
    pause_s: float
    since: int = 0
    """How often it has happened since it was told."""


class Repeated:
    """Remembers what was told; times are monotonic seconds. Not thread-safe."""

    def __init__(self) -> None:
        self._told: OrderedDict[Hashable, _Told] = OrderedDict()

    def happened(self, key: Hashable, now_s: float) -> int | None:
        """Whether to tell it now.

        Returns:
            0: in full, it is new. A positive number: that it has happened so often since it was last told. None: not now.
        """
        told = self._told.get(key)
        if told is None:
            self._told[key] = _Told(now_s, FIRST_PAUSE_S)
            if len(self._told) > MOST_KEYS:
                self._told.popitem(last=False)
            return 0
        self._told.move_to_end(key)
        told.since += 1
        if now_s - told.at_s < told.pause_s:
            return None
        count, told.since = told.since, 0
        told.at_s, told.pause_s = now_s, min(2 * told.pause_s, LONGEST_PAUSE_S)
        return count
