"""Which broker of a name is pulled from, and what may be read from a slave while its master is down. Pure.

A master whose backlog no longer fits its memory may suggest a replica (``slaveReadEnable``). A replica may
lag, and it answers other codes than its master for an offset it does not have. Hence:

1. Only a suggestion of the broker now pulled from is followed, and only to a broker with a known address.
2. From a replica only messages count, and that a filter matched none. After any other answer (19, 20, 21, an
   error, silence) the same pull goes to the master, whose word alone is final, and the replica is left alone
   for a while.
3. A preferred replica is pulled from without a suggestion, from the start and again after that while.
4. Where the reader allows it, a replica is read in place of a master that does not answer; its suggestion of
   the master is followed again after a while. What neither has is trouble that may pass.

A slave may lag behind the end of its master's log, and one that was set up late lacks the beginning. So
neither of its bounds is the queue's. While its master is down:

5. A queue goes on at the slave only from within the slave's bounds; else it waits for the master. No offset
   is corrected by what a slave has, and no log counts as cut off by it.
6. Where a stream or a group begins is asked of masters alone, for that is remembered.
7. A batch read's ``earliest`` and ``latest`` are the slave's. What it wants by offset or time is read only
   where the slave shows that it has all of it.

Source: ``PullMessageProcessor.composeResponseHeader``, ``PullAPIWrapper.updatePullFromWhichNode``,
    ``MQClientInstance.findBrokerAddressInSubscribe``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.options.positions import EARLIEST_OFFSET, LATEST_OFFSET, QueuePositions

MASTER_ID: Final = 0
AVOIDED_S: Final = 10.0
"""How long a broker that failed is not suggested again: the other one suggests it with every answer."""

_WORDS = (EARLIEST_OFFSET, LATEST_OFFSET)


def has_range(bounds: QueueBounds, planned: QueueRange) -> bool:
    """Whether a slave has all of a range that was planned, by whatever bounds."""
    return bounds.allow(planned.start) and planned.end <= bounds.max_offset


def offsets_in_doubt(
    wanted: QueuePositions, bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[MessageQueue, ...]:
    """Queues where an offset is wanted that the slave does not have: its master may."""
    return tuple(
        queue
        for queue in sorted(bounds)
        if wanted.wanted(queue) not in _WORDS and not bounds[queue].allow(wanted.wanted(queue))
    )


def starts_in_doubt(
    times: QueuePositions, found: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[MessageQueue, ...]:
    """Queues that begin at a time (``found``) with the slave's first message; its master may have more."""
    return tuple(
        queue
        for queue in sorted(bounds)
        if times.wanted(queue) not in _WORDS and 0 < bounds[queue].min_offset >= found[queue]
    )


def ends_in_doubt(
    times: QueuePositions, found: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[MessageQueue, ...]:
    """Queues that end at a time (``found``) after the slave's last message: its master may have later ones.

    A slave copies its master's log in order, so one message of any queue that is as late shows that nothing
    earlier is missing.
    """
    newest: dict[str, int] = {}
    for queue, each in bounds.items():
        newest[queue.broker_name] = max(newest.get(queue.broker_name, 0), each.last_update_timestamp)
    return tuple(
        queue
        for queue in sorted(bounds)
        if times.wanted(queue) not in _WORDS
        and found[queue] >= bounds[queue].max_offset
        and times.wanted(queue) > newest[queue.broker_name]
    )


class ReplicaSelector:
    """The choice for one queue; begins at the master, or at a preferred replica."""

    def __init__(
        self, replica_ids: Iterable[int], *, prefers_replica: bool = False, replaces_master: bool = False
    ) -> None:
        """Choose between the master and the replicas with a known address.

        Args:
            replica_ids: Those replicas; the first is the one to prefer or to replace the master by.
            prefers_replica: Whether to pull from it without a suggestion.
            replaces_master: Whether to pull from it when the master does not answer.
        """
        self._replaces_master = replaces_master
        self._replica_ids = frozenset(replica_ids) - {MASTER_ID}
        self._home_id = min(self._replica_ids, default=MASTER_ID) if prefers_replica else MASTER_ID
        self.broker_id = self._home_id
        """Id of the broker to pull from now."""
        self._avoided_until_s = self._master_avoided_until_s = float("-inf")

    @property
    def is_away(self) -> bool:
        """Whether a replica is preferred and the master is pulled from."""
        return self._home_id not in (self.broker_id, MASTER_ID)

    def suggested(self, by: int, broker_id: int, now_s: float) -> None:
        """An answer of broker ``by`` that brought the queue forward suggests ``broker_id``."""
        if self._home_id != MASTER_ID:
            if now_s >= self._avoided_until_s:
                self.broker_id = self._home_id
            return
        if by != self.broker_id or broker_id == by:
            return
        if broker_id == MASTER_ID:
            if now_s >= self._master_avoided_until_s:
                self.broker_id = MASTER_ID
        elif broker_id in self._replica_ids and now_s >= self._avoided_until_s:
            self.broker_id = broker_id

    def disappointed(self, by: int, now_s: float) -> bool:
        """Broker ``by`` did not bring the queue forward; True if it is a replica, so the master is asked."""
        if by == MASTER_ID:
            return False
        self.broker_id = MASTER_ID
        self._avoided_until_s = now_s + AVOIDED_S
        return True

    def master_failed(self, now_s: float) -> bool:
        """The master did not answer; whether a replica is to be asked in its place."""
        if not self._replaces_master or not self._replica_ids:
            return False
        if self.broker_id == MASTER_ID:
            if now_s < self._avoided_until_s:
                return False
            self.broker_id = min(self._replica_ids)
        self._master_avoided_until_s = now_s + AVOIDED_S
        return True
