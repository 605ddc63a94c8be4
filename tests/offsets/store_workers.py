"""What concurrent writers do in the stores' tests; a module of its own, so that spawned processes find it."""

from __future__ import annotations

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.registry import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetStore, QueueCommit


def claim_and_commit(
    place: OffsetStore | str, consumer_group: str, owner: str, commits: int, claim_every: int
) -> int:
    """Move one queue by single steps, taking it over now and then; return the steps that were accepted."""
    queue = MessageQueue("orders", "broker-a", 0)
    store = open_offset_store(place) if isinstance(place, str) else place
    row = store.claim(consumer_group, owner, {queue: 0})[queue]
    next_offset, accepted = row.next_offset, 0
    for batch_id in range(commits):
        commit = QueueCommit(queue=queue, epoch=row.epoch, next_offset=next_offset + 1)
        result = store.commit(consumer_group, [commit], query_id=owner, batch_id=batch_id)
        if result.accepted:
            accepted += 1
            next_offset += 1
        if result.refused or batch_id % claim_every == claim_every - 1:
            row = store.claim(consumer_group, owner, {queue: 0})[queue]
            next_offset = row.next_offset
    return accepted
