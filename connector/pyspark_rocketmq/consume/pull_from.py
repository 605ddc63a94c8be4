"""Which broker of a name the next pulls of one queue go to: its master, or a replica the master suggests.

A master whose backlog no longer fits its memory may suggest a replica (``slaveReadEnable``).  A replica may lag, and it
answers other codes than its master for an offset it does not have.  Hence:

1. Only a broker of the name whose address is known is followed, and only the suggestion of the broker now pulled from.
2. From a replica only messages count.  Whatever else it answers (19, 20, 21, an error, silence), the same pull goes to
   the master, whose word alone is final, and the replica is left alone for a while.
3. A replica that is preferred is pulled from without a suggestion, from the start and again after that while.

Source: ``PullMessageProcessor.composeResponseHeader``, ``PullAPIWrapper.updatePullFromWhichNode``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MASTER_ID: Final = 0
AVOIDED_S: Final = 10.0
"""How long suggestions of a replica are not followed after it failed; a master would suggest it with every answer."""


class PullFrom:
    """The choice for one queue; begins at the master, or at a preferred replica."""

    __slots__ = ("_avoided_until_s", "_broker_id", "_home_id", "_replica_ids")

    def __init__(self, replica_ids: Iterable[int], *, prefers_replica: bool = False) -> None:
        """Follow suggestions of ``replica_ids``, the others are not known; or prefer the first of them."""
        self._replica_ids = frozenset(replica_ids) - {MASTER_ID}
        self._home_id = min(self._replica_ids, default=MASTER_ID) if prefers_replica else MASTER_ID
        self._broker_id = self._home_id
        self._avoided_until_s = float("-inf")

    @property
    def broker_id(self) -> int:
        """Id of the broker to pull from now."""
        return self._broker_id

    @property
    def is_away(self) -> bool:
        """Whether a replica is preferred and the master is pulled from."""
        return self._home_id not in (self._broker_id, MASTER_ID)

    def suggested(self, by: int, broker_id: int, now_s: float) -> None:
        """An answer of broker ``by`` that brought the queue forward suggests ``broker_id``."""
        if self._home_id != MASTER_ID:
            if now_s >= self._avoided_until_s:
                self._broker_id = self._home_id
            return
        if by != self._broker_id or broker_id == by:
            return
        if broker_id == MASTER_ID:
            self._broker_id = MASTER_ID
        elif broker_id in self._replica_ids and now_s >= self._avoided_until_s:
            self._broker_id = broker_id

    def disappointed(self, by: int, now_s: float) -> bool:
        """Broker ``by`` did not bring the queue forward; whether it is a replica, so that the master is to be asked."""
        if by == MASTER_ID:
            return False
        self._broker_id = MASTER_ID
        self._avoided_until_s = now_s + AVOIDED_S
        return True
