"""Where a group goes on that is started again: at its progress in the offset store, or, if the store has lost that, in the sink."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark_rocketmq.model import ConsumeFromWhere, MessageQueue
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.streaming.several_sinks import Route, one_sink
from pyspark_rocketmq.streaming.sink import Sink
from pyspark_rocketmq.streaming.sink_standing import check_has_all, forgotten_by, lost_by, strangers

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


def check_sink(store: OffsetStore, sink: Sink, consumer_group: str) -> None:
    """See, before a sink is prepared, that it has all rows that the group's offsets say it has.

    Raises:
        SinkSetBack: If it lacks some: it was deleted, replaced, restored to an earlier state, or failed over.
        OffsetStoreUnavailable: If the store cannot be read.
    """
    rows = store.read(consumer_group)
    if not rows:
        return
    standings = sink.standings(consumer_group, {queue: row.generation for queue, row in rows.items()})
    check_has_all(consumer_group, rows, standings, store=store.spec)
    forgotten = forgotten_by(rows, standings)
    if forgotten:
        logger.warning(
            "the offsets of group %s are behind its sink in %d queues: %d messages are consumed again, whose rows the sink leaves out. So "
            "it is after a kill, by a micro-batch at most; else the offset store was put back to an earlier state store=%r",
            consumer_group,
            len(forgotten),
            sum(forgotten.values()),
            store,
        )
    for name in strangers(rows, standings):
        logger.warning(
            "the sink %s is new to group %s, which wrote into others before: it gets what is consumed from now on. If it "
            "shall have what came before, stop the query and reset the group's offsets (offsets reset)",
            name,
            consumer_group,
        )


def reset_to_sink(
    store: OffsetStore, sink: Sink | Route | Sequence[Sink | Route], consumer_group: str
) -> dict[MessageQueue, int]:
    """Move a group's offsets back to where its sink is, so that what the sink lost is consumed again; where each queue goes on.

    For a sink that was restored to an earlier state or failed over. Stop the query before. What brokers have deleted
    since then is a gap, as ``failOnDataLoss`` says. Queues of which the sink lacks nothing stay where they are.

    Raises:
        OffsetStoreUnavailable, OffsetCommitConflict: If the store cannot be read or written.
    """
    rows = store.read(consumer_group)
    sink = one_sink(sink)
    standings = sink.standings(consumer_group, {queue: row.generation for queue, row in rows.items()})
    targets: dict[MessageQueue, int] = {}
    for lost in lost_by(rows, standings):
        for queue, target in lost.targets.items():
            targets[queue] = min(target, targets.get(queue, target))
    if targets:
        store.reset(consumer_group, targets)
    return targets


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
