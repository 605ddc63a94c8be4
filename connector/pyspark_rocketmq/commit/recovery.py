"""Compares a group's offsets with its sink before a query starts, and corrects offsets that were lost.

Data is committed before offsets, so after a kill the sink may be a batch or some seconds ahead of the
offsets. If one of the two was lost or restored, either may be far behind the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark_rocketmq.errors import OffsetError, SinkConflict
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import CLAIMED, OffsetRow, OffsetStore, is_at_brokers
from pyspark_rocketmq.sinks.against_offsets import (
    SinkGap,
    ahead_of,
    check_has_all,
    find_gaps,
    is_behind_since_a_kill,
    left_out_sinks,
    records_of,
    replayed_messages,
    rows_there_text,
    sinks_with_all_below,
)
from pyspark_rocketmq.sinks.base import CountsRows, Sink
from pyspark_rocketmq.sinks.multi import Route, as_single_sink, single_sinks

logger = logging.getLogger(__name__)


def seed_offsets_from_sink(store: OffsetStore, sink: Sink, consumer_group: str) -> None:
    """Let queues whose offsets were lost start at the watermarks of the sink.

    A member claims a queue in the offset store before the sink gets a watermark of that queue. So if the sink
    has a watermark and the store has no row, the store was lost or put back to an earlier state. Without this
    function the queue would start at the position in the options, and the group would skip messages or
    consume all of them again. The watermarks are the offsets that the store had, or a batch or some seconds
    further. If the brokers' offsets are still further, a group of Java and Spark members continues there.

    Queues without a watermark, for example those of a new group, are left out. Do nothing if brokers keep the
    offsets and the store has rows: such a store leaves out queues whose brokers are away.

    Raises:
        OffsetError: If the sink's log cannot be read.
        OffsetStoreUnavailable, OffsetCommitConflict: If the store cannot be read or written.
    """
    watermarks = sink.watermarks(consumer_group)
    # Read the rows after the watermarks: a running member may claim a queue and write to the sink in between.
    rows = store.read(consumer_group)
    lost = {key: offset for key, offset in watermarks.items() if key.queue not in rows}
    if not lost or (rows and is_at_brokers(store)):
        return
    # The rows get no owner: members claim them later.
    starts = {key.queue: offset for key, offset in lost.items()}
    generations = {key.queue: key.number for key in lost}
    store.claim(consumer_group, "", starts, generations)
    # The broker may no longer have the messages before these offsets, so have planners check that.
    note_sink_ahead(store, sink, consumer_group)
    logger.warning(
        "the offset store has no offset of group %s in %d queues, but the sink has its rows: there the group "
        "goes on where the sink ends, whatever consume_from_where is; to consume messages again, stop the "
        "query and reset the group (`pyspark-rocketmq offsets reset --to POSITION --conf FILE`) store=%r "
        "sink=%s %s",
        consumer_group,
        len(starts),
        store,
        sink,
        " ".join(f"{queue}={offset}" for queue, offset in sorted(starts.items())),
    )


def check_sink(store: OffsetStore, sink: Sink, consumer_group: str) -> None:
    """Check, before a sink is prepared, that it lacks no rows that the group's offsets count as written.

    Two other cases are only logged. In the first, the sink is ahead of the offsets, so that messages are
    consumed again. In the second, messages were consumed while the sink was not in the query, so that it
    lacks their rows.

    Raises:
        SinkSetBack: If the sink lacks rows: it was deleted, replaced, restored to an earlier state, or failed
            over.
        OffsetError: If the sink cannot be read.
        OffsetStoreUnavailable: If the store cannot be read.
    """
    rows = store.read(consumer_group)
    if not rows:
        return
    standings = sink.standings(consumer_group, {queue: row.generation for queue, row in rows.items()})
    check_has_all(consumer_group, rows, standings, store=store.spec)
    forgotten = replayed_messages(rows, standings)
    if forgotten:
        logger.log(
            logging.INFO if is_behind_since_a_kill(forgotten, rows, standings) else logging.WARNING,
            "the offsets of group %s are behind its sink in %d queues: %d messages are consumed again, and "
            "the sink leaves out their rows. After a kill this is normal, for a micro-batch or, with "
            "commit_interval, five seconds; otherwise the offset store was put back to an earlier state "
            "store=%r",
            consumer_group,
            len(forgotten),
            sum(forgotten.values()),
            store,
        )
    for left_out in left_out_sinks(rows, standings):
        logger.warning(
            "the sink %s lacks rows of group %s in %d queues, because it was not a sink of the query when "
            "their messages were consumed: it gets only messages that are consumed from now on. To give it "
            "earlier ones too, stop the query now and reset the group's offsets there "
            "(`pyspark-rocketmq offsets reset --to POSITION --conf FILE`); a queue that has moved is not "
            "reported again %s",
            left_out.standing.name,
            consumer_group,
            len(left_out.behind),
            left_out,
        )


def reset_to_sink(
    store: OffsetStore,
    sink: Sink | Route | Sequence[Sink | Route],
    consumer_group: str,
    *,
    beside_rows: bool = False,
) -> dict[MessageQueue, int]:
    """Move a group's offsets back to the watermarks of its sink; return the next offset of each moved queue.

    Use it for a sink that was restored to an earlier state or failed over. Stop the query first. If brokers
    have deleted messages since then, ``failOnDataLoss`` decides how to treat the gap. A queue of which the
    sink lacks no rows is not moved.

    Args:
        store: The store with the group's offsets.
        sink: Every sink of the query.
        consumer_group: The group.
        beside_rows: Whether to move offsets back to 0 even if a sink without watermarks of the group has rows
            of the queues, or cannot count its rows. Set this only if the group has written no rows into that
            sink.

    Raises:
        SinkConflict: If there is such a sink, and ``beside_rows`` is not set: the sink might get rows twice.
        OffsetError: If a sink cannot be read, or if a queue was claimed or moved meanwhile; such a queue is
            not moved.
        OffsetStoreUnavailable, OffsetCommitConflict: If the store cannot be read or written.
    """
    rows = store.read(consumer_group)
    generations = {queue: row.generation for queue, row in rows.items()}
    targets: dict[MessageQueue, int] = {}
    standings = [
        (single, standing)
        for single in single_sinks(as_single_sink(sink))
        for standing in single.standings(consumer_group, generations)
    ]
    every = [standing for _, standing in standings]
    for gap in find_gaps(rows, every):
        single = next(single for single, standing in standings if standing is gap.standing)
        problem = None if beside_rows else rows_problem(single, consumer_group, gap)
        if problem is not None:
            raise SinkConflict(problem)
        for queue, target in gap.targets.items():
            targets[queue] = min(target, targets.get(queue, target))
    if not targets:
        return {}
    # A sink that goes back once more is then noticed, too.
    sinks = {queue: sinks_with_all_below(queue, target, every) for queue, target in targets.items()}
    # The offset rows still remember messages of the broker's log, so that a loss there is still noticed.
    epochs = {queue: rows[queue].epoch for queue in targets}
    moved = store.reset(consumer_group, targets, under=epochs, sinks=sinks)
    missed = sorted(targets.keys() - moved.keys())
    if missed:
        raise OffsetError(
            f"Offsets of group {consumer_group} were not moved in {'; '.join(map(str, missed))}: somebody "
            "claimed or moved these queues meanwhile. Stop every query of the group, and call reset_to_sink "
            "again."
        )
    return targets


def rows_problem(sink: Sink, consumer_group: str, gap: SinkGap) -> str | None:
    """Return the reason why a group's offsets must not go back to the watermarks of a sink; None if they may.

    They must not if the sink has no watermarks of the queues, but has rows of them, or cannot count its rows:
    the sink might get these rows twice. A queue is left out of this check if the sink proves that it has only
    rows from before the queue's offsets began again.

    Raises:
        OffsetError: If the sink cannot be read.
    """
    if not gap.may_be_forgotten:
        return None
    earlier = _with_earlier_rows_only(sink, consumer_group, gap) if gap.begun_again else frozenset()
    queues = [queue for queue in gap.behind if queue not in earlier]
    if not queues:
        return None
    count = sink.count_rows(dict.fromkeys(queues, 0)) if isinstance(sink, CountsRows) else None
    begun_again = [queue for queue in gap.begun_again if queue not in earlier]
    return None if count == 0 else rows_there_text(consumer_group, gap, count, begun_again)


def _with_earlier_rows_only(sink: Sink, consumer_group: str, gap: SinkGap) -> frozenset[MessageQueue]:
    """Return the queues of which a sink has the group's rows only from before their offsets began again.

    The proof is that the sink remembers a newest message below its earlier watermark, because only a batch of
    the group stores such a message. A watermark without a message proves nothing: an operator may have set it
    after a later watermark was lost.
    """
    earlier = {
        key.queue: key.number
        for key in sink.watermarks(consumer_group)
        if key.queue in gap.behind and key.number < gap.behind[key.queue].generation
    }
    standings = sink.standings(consumer_group, earlier) if earlier else ()
    return frozenset(queue for standing in standings for queue in standing.newest)


def note_sink_ahead(store: OffsetStore, sink: Sink, consumer_group: str) -> None:
    """Store the newest messages of a sink that is ahead of the group's offsets, so that planners check them.

    A sink is ahead in three cases: the query was killed between its data commit and its offset commit, the
    offset store was restored to an earlier state, or the offsets were created from the sink. The broker may
    have lost these messages since, and other messages may have their offsets. The next member that claims a
    queue has them checked.

    In real time the sink of a query that still runs is also ahead, for some seconds. That query must still be
    able to commit, so this does not raise epochs, except where the sink has a later generation of the queue.

    Raises:
        OffsetError: If the sink's log cannot be read.
        OffsetStoreUnavailable, OffsetCommitConflict: If the store cannot be read or written.
    """
    rows = store.read(consumer_group)
    generations = {queue: row.generation for queue, row in rows.items()}
    later = {
        key: offset
        for key, offset in sink.watermarks(consumer_group).items()
        if key.queue in rows and key.number > rows[key.queue].generation
    }
    generations |= {key.queue: key.number for key in later}
    standings = sink.standings(consumer_group, generations)
    begun_again = {key.queue: offset for key, offset in later.items()}
    # seed_offsets_from_sink may have been killed before it noted the messages of the rows that it made.
    made_from_sink = {queue: row.next_offset for queue, row in rows.items() if _is_made_from_sink(row)}
    records = records_of(generations, made_from_sink, standings) | ahead_of(rows, standings)
    records |= records_of(generations, begun_again, standings)
    noted = store.note_sinks(consumer_group, records, is_fenced=False) if records else {}
    if not noted:
        return
    logger.info(
        "the sink is ahead of the offsets: planners check the messages before its watermarks group=%s %s",
        consumer_group,
        " ".join(f"{queue}={records[queue].next_offset}" for queue in sorted(noted)),
    )


def _is_made_from_sink(row: OffsetRow) -> bool:
    """Return whether :func:`seed_offsets_from_sink` created a row, and no member has claimed it since."""
    return not row.owner and row.batch_id == CLAIMED
