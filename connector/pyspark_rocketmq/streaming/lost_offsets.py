"""Where a group goes on that is started again: at its progress in the offset store, or, if the store has lost that, in the sink."""

from __future__ import annotations

import logging

from pyspark_rocketmq.model import ConsumeFromWhere
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.streaming.sink import Sink

logger = logging.getLogger(__name__)


def go_on_where_the_sink_is(store: OffsetStore, sink: Sink, consumer_group: str) -> None:
    """Give a group without any row in the store the sink's watermarks; nothing for a group that is new to both.

    Beginning where the options say would pass over messages, or consume all of them again. The watermarks are what the
    store knew, or one batch more. A group of Java and Spark members goes on where its brokers say, if that is farther.

    Raises:
        OffsetError: If the sink's log cannot be read.
        OffsetStoreUnavailable, OffsetCommitConflict: If the store cannot be read or written.
    """
    if store.read(consumer_group):
        return
    watermarks = sink.watermarks(consumer_group)
    if not watermarks:
        return
    # A claim by nobody: the members' own claims follow.
    starts = {life.queue: offset for life, offset in watermarks.items()}
    store.claim(consumer_group, "", starts, {life.queue: life.generation for life in watermarks})
    logger.warning(
        "the offset store has nothing of group %s, whose rows are in the sink: going on where the sink is, not where "
        "consume_from_where says; to consume messages again, reset the group store=%r sink=%s %s",
        consumer_group,
        store,
        sink,
        " ".join(f"{queue}={offset}" for queue, offset in sorted(starts.items())),
    )


def tell_where_it_goes_on(store: OffsetStore, consumer_group: str, where: ConsumeFromWhere) -> None:
    """Log that ``where`` is not used since the group has progress: users give it to begin anew, and see nothing come.

    Nothing with the default, CONSUME_FROM_LAST_OFFSET, which nobody had to give.

    Raises:
        OffsetStoreUnavailable: If the store cannot be read.
    """
    if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
        return
    rows = store.read(consumer_group)
    if rows:
        logger.info(
            "group %s goes on where it was: %r has its progress in %d queues, so consume_from_where=%s is not used. To "
            "consume messages again, stop the query and reset the group's offsets (offsets reset)",
            consumer_group,
            store,
            len(rows),
            where,
        )
