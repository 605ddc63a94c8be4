"""Decides when a task itself commits what it has *settled*: messages that are done, with their rows.

Used only with sinks into which tasks commit rows themselves. See row I6 of ``docs/semantics.md``.

    CLEAN --settled--> WAITING (for 5 ms) --the time is over--> DUE --a commit begins--> CLEAN
                          |                                      ^
                          +---- the task has nothing to deliver -+

Rule 1 (dry): as soon as nothing is left to deliver, what is settled is committed: waiting longer would bring
no more rows into the transaction.
Rule 2 (busy): otherwise the first settled message waits for 5 ms. With an engine that does not report when it
has nothing to deliver, this wait always happens.
Rule 3 (one): one commit at a time. What is settled while a commit runs is in the next commit; its 5 ms begin
with the first message settled since.
Rule 4 (failures): the sink repeats a failed commit for a minute. What is settled meanwhile waits,
and so does the listener if the rows become many. Then the task fails, and whatever is in no commit is
consumed again.

No I/O, no clock. Not thread-safe; no method waits.
"""

from __future__ import annotations

from math import inf
from typing import Final

LONGEST_WAIT_S: Final = 0.005
"""How long the first settled message (done, with its rows) waits for others, in seconds."""


class CommitTimes:
    """Decides when one task begins its next commit.

    A commit takes what the task's ranges have *settled*: messages that are done, with their rows. This class
    keeps only the time.
    """

    def __init__(self) -> None:
        """Begin with nothing settled."""
        self._due_s = inf

    @property
    def due_s(self) -> float:
        """Monotonic time at which the next commit is to begin; infinite if nothing settled waits for one."""
        return self._due_s

    def settled(self, now_s: float) -> bool:
        """Note that messages are settled (done, with their rows); return whether :attr:`due_s` has changed.

        If nothing waited for a commit before, a commit is now due 5 ms later.
        """
        is_first = self._due_s == inf
        if is_first:
            self._due_s = now_s + LONGEST_WAIT_S
        return is_first

    def rests(self, now_s: float) -> bool:
        """Note that the task has nothing to deliver for now; return whether :attr:`due_s` has changed.

        If settled messages wait for a commit, the commit is due now.
        """
        is_earlier = now_s < self._due_s < inf
        if is_earlier:
            self._due_s = now_s
        return is_earlier

    def begins(self) -> None:
        """Note that a commit of all that is settled begins; to be called before it takes anything."""
        self._due_s = inf
