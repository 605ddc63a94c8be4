"""Decides when a task reports that it has results to commit, and when it sends them.

The driver's side is in :mod:`pyspark_rocketmq.consume.cuts`.

A batch may commit several times while its tasks run. For each commit the driver asks all tasks for a *cut*:
to send what is *settled*, that is, messages that are done, with their rows. What a task sends is a *part*. A
task that has settled something since its last cut is *dirty*, and reports this, so that the driver asks only
when there is something to commit. Two state machines::

    settled:    CLEAN --something is settled--> DIRTY --a cut begins--> CLEAN
    each part:  SENT --the driver has it--> TAKEN --committed or dropped--> over

Rule 1 (once): a task reports once per cut that it is dirty. The task becomes clean before the cut takes its
rows, so what is settled during the cut makes the task dirty again and is reported.
Rule 2 (two parts): while two parts of a task are not committed, the task makes no cut, and its rows wait in
the task. When one of the two parts is committed, the task reports again if it is dirty.
Rule 3 (ends): a part that ends queues is sent at any time, without a cut. It counts as one of the two parts.
Rule 4 (rows): some sinks get their rows inside the parts, not in files. Then a task begins a cut by itself
when the rows that no cut has taken reach a limit, and delivers no message until that cut has taken the rows.
This bounds the size of most parts, and the memory of rows that wait while two parts are not committed. If
many messages are settled together, a part may still be too large for the connection. Such a part comes with
the job's result, and the batch ends for this reason.
Rule 5 (resumed): when a task connects to the driver again, the driver has forgotten that it is dirty, so it
reports this again. The driver's answer shows which parts have arrived.

No I/O, no clock. Not thread-safe; no method waits.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

_MOST_OPEN: Final = 2
"""Number of uncommitted parts with which a task makes no further cut."""


class CutTimes:
    """Decides when one task reports results to commit, and when it sends them.

    A *cut* sends what is *settled* (done, with its rows) as a *part*. A task that has settled something since
    its last cut is *dirty*.
    """

    def __init__(self) -> None:
        self._is_dirty = False
        self._is_reported = False
        """True if the task has reported since the last cut that it is dirty."""
        self._most_row_bytes = inf
        self._row_bytes = 0
        """Size of the rows that no cut has taken yet, in bytes."""
        self._row_bytes_being_taken = 0
        """Size of the rows that a cut, or a commit by the task itself, is taking, in bytes."""
        self._is_cutting = False
        """Whether a cut has begun and not taken the rows yet."""
        self._is_own_cut_wanted = False
        """Whether the task was to begin a cut by itself (rule 4), which has not taken the rows yet."""
        self._open: set[str] = set()
        """Ids of parts that are neither committed nor dropped."""
        self._in_doubt: dict[str, None] = {}
        """Ids of parts that were sent and may not have arrived, in order of sending."""

    @property
    def in_doubt(self) -> Collection[str]:
        """Ids of parts that were sent and are not confirmed by the driver, in order of sending."""
        return self._in_doubt.keys()

    @property
    def is_held(self) -> bool:
        """Whether the rows that wait have reached their limit.

        Then no message may be delivered before a cut takes them, or a commit by the task itself.
        """
        return self._row_bytes >= self._most_row_bytes

    def limit_rows(self, nbytes: int) -> None:
        """Set the size of gathered rows, in bytes, at which the task sends or commits them unasked."""
        self._most_row_bytes = nbytes

    def rows_grew(self, nbytes: int) -> None:
        """Add the size of new rows, in bytes, which the next cut will take."""
        self._row_bytes += nbytes

    def cuts_itself(self) -> bool:
        """Return whether the task must now begin a cut, or a commit of its own: its rows reached their limit.

        Call this after each new row and each commit. The answer is False while two parts that the task has
        sent are not committed. After one True the answer is False until a cut, or a commit by the task, has
        taken the rows.
        """
        is_due = self.is_held and not (self._is_full or self._is_cutting or self._is_own_cut_wanted)
        self._is_own_cut_wanted |= is_due
        return is_due

    def settled(self) -> bool:
        """Note that messages were settled (done, with their rows); return whether the task must report this.

        It reports once until the next cut, and not while two parts that it has sent are not committed.
        """
        self._is_dirty = True
        return self._reports()

    def cut_wanted(self) -> bool:
        """Note that the driver asks for a cut (what is settled so far); return whether to begin the cut.

        The result is False if nothing is settled since the last cut, or if two parts that the task has sent
        are not committed.
        """
        self._is_reported = False
        return self._is_dirty and not self._is_full

    def cut_begins(self) -> bool:
        """Begin a cut, which takes what is settled; return whether it has begun.

        It has not if two parts that the task has sent are neither committed nor dropped. Its rows are taken
        between :meth:`taking_begins` and :meth:`rows_are_taken`.
        """
        if self._is_full:
            self._is_own_cut_wanted = False
            return False
        self._is_dirty, self._is_cutting = False, True
        return True

    def taking_begins(self) -> None:
        """Note that a cut, or a commit by the task itself, now takes the rows."""
        self._row_bytes_being_taken = self._row_bytes

    def rows_are_taken(self) -> None:
        """Note that a cut, or a commit by the task itself, has taken the rows.

        Rows that came meanwhile still count, because they may be in the next part. A task whose rows have
        reached the limit is held until this call; otherwise one part could get rows for two.
        """
        self._is_own_cut_wanted = self._is_cutting = False
        self._row_bytes -= self._row_bytes_being_taken
        self._row_bytes_being_taken = 0

    def sent(self, part_id: str) -> None:
        """Note that a part is on its way to the driver."""
        self._open.add(part_id)
        self._in_doubt[part_id] = None

    def taken(self, part_id: str) -> None:
        """Note that the driver has a part."""
        self._in_doubt.pop(part_id, None)

    def over(self, part_ids: Collection[str]) -> bool:
        """Note that parts were committed or dropped; return whether the task must report that it is dirty.

        The task must report this if it is dirty and has not reported it since its last cut, and if fewer than
        two of its parts are uncommitted.
        """
        self._open.difference_update(part_ids)
        return self._reports()

    def resumed(self, known: Collection[str], uncommitted: Collection[str]) -> bool:
        """Take the driver's answer to a task that is connected again.

        Return whether the task must report again that it is dirty (has settled something since its last cut).

        Args:
            known: Ids of unconfirmed parts that have arrived at the driver; the others are sent again.
            uncommitted: Ids of all parts that have arrived and are neither committed nor dropped yet.
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
