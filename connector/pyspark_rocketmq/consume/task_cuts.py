"""Decides when a task reports that it is dirty, and whether it answers a cut with a part.

The task's side of :mod:`pyspark_rocketmq.consume.cuts`. Two machines beside each other::

    settled:    CLEAN --something is settled--> DIRTY --a cut begins--> CLEAN
    each part:  SENT --the driver has it--> TAKEN --committed or dropped--> over

Rule 1 (once): a task reports once per cut that it is dirty. It is clean again before the cut takes anything,
so that nothing which is settled meanwhile goes unreported.
Rule 2 (two parts): while two of its parts are not committed, a task makes no cut. It reports that it is dirty
as soon as one is. Its rows wait where they would wait for their range's end.
Rule 3 (ends): a part that ends queues was not asked for, and is sent at any time; it counts as the others.
Rule 4 (rows): where rows travel within the parts, the task cuts without being asked once those that are in no
cut have a certain size, and delivers nothing more until the cut begins. So parts are bounded, and so are the
rows that wait while two parts are not committed.
Rule 5 (resumed): after another connection the driver has forgotten what the task has reported, and what it
has of the parts comes with its answer.

No I/O, no clock. Not thread-safe; no method waits.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

_MOST_OPEN: Final = 2
"""Number of parts that are not committed from which on a task makes no cut."""


class TaskCuts:
    """The cuts and parts of one task."""

    def __init__(self) -> None:
        self._is_dirty = False
        self._is_reported = False
        """True if the task has reported since the last cut that it is dirty."""
        self._most_row_bytes = inf
        self._row_bytes = 0
        """Size of the rows that are in no cut."""
        self._is_own_cut_wanted = False
        """Whether the task is about to begin a cut of its own."""
        self._open: set[str] = set()
        """Ids of parts that are neither committed nor dropped."""
        self._in_doubt: dict[str, None] = {}
        """Ids of parts that may not have arrived, in order."""

    @property
    def in_doubt(self) -> Collection[str]:
        """Ids of the parts of which it is not known whether the driver has them, in order."""
        return self._in_doubt.keys()

    @property
    def is_held(self) -> bool:
        """Whether nothing may be delivered before the next cut begins."""
        return self._row_bytes >= self._most_row_bytes

    def limit_rows(self, nbytes: int) -> None:
        """Bound the rows that are in no cut."""
        self._most_row_bytes = nbytes

    def rows_grew(self, nbytes: int) -> None:
        """Note rows that the next cut takes."""
        self._row_bytes += nbytes

    def cuts_itself(self) -> bool:
        """Return whether to begin a cut of the task's own; to be asked after rows and commits."""
        is_due = self.is_held and not self._is_full and not self._is_own_cut_wanted
        self._is_own_cut_wanted |= is_due
        return is_due

    def settled(self) -> bool:
        """Note that the task has something to commit that is in no cut, so that it is dirty.

        Return whether to report that to the driver now.
        """
        self._is_dirty = True
        return self._reports()

    def cut_wanted(self) -> bool:
        """Return whether to begin a cut; if not, there is nothing, or too much is under way."""
        self._is_reported = False
        return self._is_dirty and not self._is_full

    def cut_begins(self) -> bool:
        """Begin to take what is settled; return False if too many parts were sent meanwhile."""
        self._is_own_cut_wanted = False
        if self._is_full:
            return False
        self._is_dirty = False
        self._row_bytes = 0
        return True

    def sent(self, part_id: str) -> None:
        """Note that a part is on its way to the driver."""
        self._open.add(part_id)
        self._in_doubt[part_id] = None

    def taken(self, part_id: str) -> None:
        """Note that the driver has a part."""
        self._in_doubt.pop(part_id, None)

    def over(self, part_ids: Collection[str]) -> bool:
        """Note that parts are committed or dropped; return whether to report now that the task is dirty."""
        self._open.difference_update(part_ids)
        return self._reports()

    def resumed(self, known: Collection[str], uncommitted: Collection[str]) -> bool:
        """Note the driver's answer on another connection; return whether to report that the task is dirty.

        ``known`` are the parts in doubt that it has; the others are sent again. ``uncommitted`` are all that
        it has and that are neither committed nor dropped.
        """
        for part_id in known:
            self.taken(part_id)
        self._open = {*uncommitted, *self._in_doubt}
        self._is_reported = False
        return self._reports()

    @property
    def _is_full(self) -> bool:
        return len(self._open) >= _MOST_OPEN

    def _reports(self) -> bool:
        is_due = self._is_dirty and not self._is_reported and not self._is_full
        self._is_reported |= is_due
        return is_due
