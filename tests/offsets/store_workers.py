"""What concurrent writers do in the stores' tests; a module of its own, so that spawned processes find it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pyspark_rocketmq.errors import OffsetCommitConflict
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetRow, OffsetStore, QueueCommit

T = TypeVar("T")

_TRIES = 20


def claim_and_commit(
    place: OffsetStore | str,
    consumer_group: str,
    owner: str,
    commits: int,
    claim_every: int,
    *,
    shares_group: bool = False,
) -> int:
    """Move one queue by single steps, taking it over now and then; return the steps that were accepted.

    Whoever shares the group with other writers tries again what met too many of theirs.
    """
    queue = MessageQueue("orders", "broker-a", 0)
    store = open_offset_store(place) if isinstance(place, str) else place
    tries = _TRIES if shares_group else 1

    def claim() -> OffsetRow:
        return _done(lambda: store.claim(consumer_group, owner, {queue: 0}), tries)[queue]

    row = claim()
    next_offset, accepted = row.next_offset, 0
    for batch_id in range(commits):
        commit = QueueCommit(queue=queue, state=QueueState(next_offset + 1, row.epoch))
        step = partial(store.commit, consumer_group, [commit], query_id=owner, batch_id=batch_id)
        result = _done(step, tries)
        if result.accepted:
            accepted += 1
            next_offset += 1
        if result.refused or batch_id % claim_every == claim_every - 1:
            row = claim()
            next_offset = row.next_offset
    return accepted


def _done(change: Callable[[], T], tries: int) -> T:
    for _ in range(tries - 1):
        try:
            return change()
        except OffsetCommitConflict:
            continue
    return change()
