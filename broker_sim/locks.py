"""Queue locks of consumer groups (``RebalanceLockManager``).

Rule 1: a lock lives 60 s, unless set otherwise, after it was last granted or refreshed.  Rule 2: only the client that holds a lock can
release it; neither a closed connection nor an unregistered client does.  Rule 3: topic and queue need not exist.
Rule 4: a lock fences nothing: pulls and commits are not checked against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.model import MessageQueue

LOCK_MAX_LIVE_TIME_S = 60.0


class _Lock(NamedTuple):
    client_id: str
    refreshed_at_s: float


class LockTable:
    """Which client holds which queue of which group."""

    def __init__(self, clock: Clock, max_live_s: float = LOCK_MAX_LIVE_TIME_S) -> None:
        self._clock = clock
        self._max_live_s = max_live_s
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock_batch(
        self, consumer_group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> frozenset[MessageQueue]:
        """Grant or refresh what can be; the queues that ``client_id`` holds now."""
        held = self._locks.setdefault(consumer_group, {})
        now_s = self._clock.monotonic_s()
        granted = frozenset(queue for queue in queues if self._is_free_for(client_id, held.get(queue), now_s))
        held.update((queue, _Lock(client_id, now_s)) for queue in granted)
        return granted

    def unlock_batch(self, consumer_group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of ``queues`` that ``client_id`` holds; ignore the others."""
        held = self._locks.get(consumer_group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]

    def has_live_lock(self, consumer_group: str) -> bool:
        """Whether any queue of the group is locked and not expired (``!isLockAllExpired``)."""
        now_s = self._clock.monotonic_s()
        return any(not self._is_expired(lock, now_s) for lock in self._locks.get(consumer_group, {}).values())

    def holder(self, consumer_group: str, queue: MessageQueue) -> str | None:
        """Client id that holds the queue now, or None."""
        lock = self._locks.get(consumer_group, {}).get(queue)
        return None if lock is None or self._is_expired(lock, self._clock.monotonic_s()) else lock.client_id

    def clear(self) -> None:
        """Lose everything, as a broker does when it restarts."""
        self._locks.clear()

    def _is_free_for(self, client_id: str, lock: _Lock | None, now_s: float) -> bool:
        return lock is None or lock.client_id == client_id or self._is_expired(lock, now_s)

    def _is_expired(self, lock: _Lock, now_s: float) -> bool:
        return now_s - lock.refreshed_at_s > self._max_live_s
