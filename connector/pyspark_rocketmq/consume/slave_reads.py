"""Decides whether to pull from a master or a replica, and what a slave may serve for its master. No I/O.

A master and its replicas (slaves) have one broker name. A master whose backlog no longer fits its memory may
suggest that a client reads from a replica (``slaveReadEnable``). A replica may lag, and for an offset that it
does not have it answers other codes than its master. Hence:

1. Only a suggestion of the broker now pulled from is followed, and only to a broker with a known address.
2. Two answers of a replica count: messages, and that it has searched its messages and a filter matched none.
   After anything else (another code, an error, silence) the same pull goes to the master, because only the
   master's answer is final. The replica is then avoided for 10 s.
3. A preferred replica is pulled from without a suggestion: from the start, and again after those 10 s.
4. If the reader allows it, a replica is read in place of a master that does not answer. For 10 s no
   suggestion of the replica to go back to the master is followed. If neither serves a pull, the pull's error
   is retryable.

A slave may lag behind the end of its master's log, and a slave that was set up late lacks the beginning. So
the slave's smallest offset and end need not be those of the queue. While the master is down:

5. A queue goes on at the slave only from within the slave's bounds; otherwise it waits for the master. A
   slave's bounds never correct an offset, and never prove that a log was cut off.
6. Only masters are asked where a stream or a group begins, because the answer is remembered.
7. A batch read's ``earliest`` and ``latest`` are the slave's. A range given by offset or time is read only if
   the slave shows that it has all of it.

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
"""How long suggestions to read from a broker that failed are ignored, in seconds: the other broker repeats
them in every answer."""

_WORDS = (EARLIEST_OFFSET, LATEST_OFFSET)


def has_range(bounds: QueueBounds, planned: QueueRange) -> bool:
    """Return whether a slave has all messages of a planned range, whatever bounds the plan was made from.

    For an open range, which has no end, this is true if the slave has the range's start.
    """
    return bounds.allow(planned.start) and (planned.has_open_end or planned.end <= bounds.max_offset)


def offsets_in_doubt(
    wanted: QueuePositions, bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[MessageQueue, ...]:
    """Return the queues whose wanted offset is outside the slave's ``bounds``: the master may have it."""
    return tuple(
        queue
        for queue in sorted(bounds)
        if wanted.wanted(queue) not in _WORDS and not bounds[queue].allow(wanted.wanted(queue))
    )


def starts_in_doubt(
    times: QueuePositions, found: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[MessageQueue, ...]:
    """Return the queues of which a slave may lack messages from the wanted start, a time, on.

    These are the queues whose start (``found``) is the slave's first message, if its offset is above 0: the
    master may have earlier messages of that time.
    """
    return tuple(
        queue
        for queue in sorted(bounds)
        if times.wanted(queue) not in _WORDS and 0 < bounds[queue].min_offset >= found[queue]
    )


def ends_in_doubt(
    times: QueuePositions, found: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[MessageQueue, ...]:
    """Return the queues of which a slave may lack messages before the wanted end, a time.

    These are the queues whose end (``found``) is after all messages of the slave: the master may have more.
    A slave copies its master's log in order. So a message of any queue of the broker, stored at that time or
    later, shows that nothing earlier is missing; queues of such a broker are not returned.
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
    """Chooses the broker for one queue; begins with the master, or with a preferred replica."""

    def __init__(
        self, replica_ids: Iterable[int], *, prefers_replica: bool = False, replaces_master: bool = False
    ) -> None:
        """Choose between the master and the replicas with a known address.

        Args:
            replica_ids: Ids of those replicas; the smallest one is preferred, or replaces the master.
            prefers_replica: Whether to pull from that smallest one without a suggestion.
            replaces_master: Whether to pull from that smallest one when the master does not answer.
        """
        self._replaces_master = replaces_master
        self._replica_ids = frozenset(replica_ids) - {MASTER_ID}
        self._home_id = min(self._replica_ids, default=MASTER_ID) if prefers_replica else MASTER_ID
        self.broker_id = self._home_id
        """Id of the broker to pull from now."""
        self.served_by: int | None = None
        """Id of the replica that has sent messages last; None before that. The caller sets it."""
        self._avoided_until_s = self._master_avoided_until_s = float("-inf")
        self._away_until_s = float("-inf")
        """Time until which a preferred replica is not pulled from, because it had no more messages."""

    def suggested(self, by: int, broker_id: int, now_s: float) -> None:
        """Note that broker ``by`` suggests ``broker_id``, in an answer after which the next offset is higher.

        Follow the suggestion if ``by`` is the broker now pulled from, and ``broker_id`` has a known address
        and is not avoided. If a replica is preferred, ignore the suggestion, and go back to that replica
        unless it is avoided or has just had no more messages.
        """
        if self._home_id != MASTER_ID:
            if now_s >= max(self._avoided_until_s, self._away_until_s):
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
        """Note that broker ``by`` gave no answer that counts (rule 2); return whether it is a replica.

        If it is a replica, the same pull then goes to the master, and replicas are avoided for 10 s.
        """
        if by == MASTER_ID:
            return False
        self.broker_id = MASTER_ID
        self._avoided_until_s = now_s + AVOIDED_S
        return True

    def ended(self, now_s: float) -> bool:
        """Note that a replica has no more messages; return whether to pull from its master now.

        After a switch to the master even a preferred replica is pulled from again only after 10 s. If the
        master has lately not answered, the pulls stay at the replica.
        """
        if now_s < self._master_avoided_until_s:
            return False
        self.broker_id = MASTER_ID
        self._away_until_s = now_s + AVOIDED_S
        return True

    def master_failed(self, now_s: float) -> bool:
        """Note that the master did not answer; return whether to ask a replica (``broker_id``) instead."""
        if not self._replaces_master or not self._replica_ids:
            return False
        if self.broker_id == MASTER_ID:
            if now_s < self._avoided_until_s:
                return False
            self.broker_id = min(self._replica_ids)
        self._master_avoided_until_s = now_s + AVOIDED_S
        return True
