"""Was an offset store put back to an earlier state?  The rows of two looks tell.

Nothing that the rules allow takes a row away, lowers its epoch, or moves it back within one.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore
from pyspark_rocketmq.offsets.store import OffsetRow, OffsetStore

_SHOWN_QUEUES = 5


def checked_rows(
    store: OffsetStore,
    consumer_group: str,
    rows: dict[MessageQueue, OffsetRow],
    *,
    seen: Mapping[MessageQueue, OffsetRow],
) -> dict[MessageQueue, OffsetRow]:
    """The rows that were read, unless the store was put back since those of ``seen``.

    What follows would look like the group's beginning, or fence nobody. Brokers as a store know no epochs, and show nothing
    while all of them are away.

    Raises:
        OffsetError: If it was.
    """
    if isinstance(store, BrokerOffsetStore) or not what_went_back(seen, rows):
        return rows
    # A file is gone for a moment while another takes its place; the content before is read then.
    rows = store.read(consumer_group)
    went_back = what_went_back(seen, rows)
    if not went_back:
        return rows
    what = (
        "was deleted or overwritten"
        if not rows
        else f"was restored to an earlier state or replaced: {'; '.join(went_back[:_SHOWN_QUEUES])}"
    )
    raise OffsetError(
        f"Offsets of group {consumer_group} are gone from {store!r}, which had {len(seen)} queues of it at the last look: it {what}. "
        "Nothing was consumed since. Put the newest state back and start the query again. Started without it, the query goes on where "
        "the store says: messages that it has passed since then are consumed again, and a sink leaves out the rows that it has. A "
        "group that the store knows nothing of goes on where its sink's table is, or, without a sink, where the brokers know the group "
        "to be."
    )


def what_went_back(
    before: Mapping[MessageQueue, OffsetRow], now: Mapping[MessageQueue, OffsetRow]
) -> tuple[str, ...]:
    """Words for each queue that stands, by an earlier look, where it cannot come to by any change; sorted by queue."""
    return tuple(words for queue, row in sorted(before.items()) if (words := _of_one(row, now.get(queue))))


def _of_one(before: OffsetRow, now: OffsetRow | None) -> str:
    if now is None:
        return f"{before.queue} was at {before.next_offset} and is not there"
    if now.epoch < before.epoch:
        return f"{before.queue} was at {before.next_offset} in epoch {before.epoch} and is at {now.next_offset} in epoch {now.epoch}"
    if now.epoch == before.epoch and now.next_offset < before.next_offset:
        return f"{before.queue} was at {before.next_offset} and is at {now.next_offset}, both in epoch {now.epoch}"
    return ""
