"""Comparison of sinks with a group's offsets: does each sink have all rows below the offsets?  No I/O.

A batch commits rows to its sinks before it stores offsets, so no sink is behind these offsets.  If one is
found behind, rows are gone: its table was deleted, replaced or restored from a backup, or a replica took over
that lacked the last commits.

To find this, each *offset row* (the progress of one queue in the offset store) names the sinks of the batch
that moved it last, with an id for each table.  The row names no sinks if an operator has reset it, or if it
was moved to the offset that another member of the group had stored at the broker.  Then the sinks may lack
rows below the offset, which is intended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from pyspark_rocketmq.display import counted
from pyspark_rocketmq.errors import SinkSetBack
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.recorded_sinks import RecordedSinks, name_beside
from pyspark_rocketmq.offsets.store import OffsetRow, SinkRecord
from pyspark_rocketmq.stored_values import NO_MESSAGES, LastMessage, RememberedMessages

_SHOWN_QUEUES = 5
_ACCEPT_GAP = "`pyspark-rocketmq offsets accept-gap --conf FILE`"
_KILLED_WITHIN_S = 120.0
"""Time within which a query stores the offsets of written rows, or fails; it allows for differing clocks."""


class SinkStanding(NamedTuple):
    """Progress of one sink with the rows of a consumer group, and the id of the sink's table."""

    name: str
    """Name of the sink, from the path or name of its table; the same in the next run of a query."""
    identity: str | None
    """Id that distinguishes the table from all others that ever were at this place.

    Empty if the sink has no such id, or its id is lost; None if there is no table, and so no rows.
    """
    watermarks: Mapping[MessageQueue, int]
    """Watermark of each queue: the next offset whose rows the sink does not have; 0 or missing without rows.

    Only rows of the queue's generation that the caller named count. The generation is a number that grows
    when the queue's offsets start again.
    """
    path: str = ""
    """Path by which commands in error texts name the sink; only a Delta table with a path has one."""
    newest: Mapping[MessageQueue, str] = MappingProxyType({})
    """The newest message below each queue's watermark, as text of ``RememberedMessages``.

    A queue is missing if the sink stores no message of it. May be empty in the standings of a ``SinkBatch``.
    """
    later: frozenset[MessageQueue] = frozenset()
    """Queues of which the sink has rows of a later generation than the caller named.

    The sink counts as having all rows of the named generation of these queues.
    """
    merges_changes: bool = False
    """Whether the sink merges changes by their positions in the source's log.

    Then no row is doubled if messages are consumed again.
    """


def with_newest(standing: SinkStanding, newest: Mapping[MessageQueue, str]) -> SinkStanding:
    """Return ``standing`` with the newest message of each queue that the sink stores.

    ``newest`` has the messages as texts of ``RememberedMessages``. A message at or above its queue's
    watermark is left out: the watermark was set back after the sink stored the message.
    """
    below = {
        queue: text
        for queue, text in newest.items()
        if (message := RememberedMessages.from_text(text).newest) is not None
        and message.queue_offset < standing.watermarks.get(queue, 0)
    }
    return standing._replace(newest=below)


def _has_another_id(standing: SinkStanding, remembered: str) -> bool:
    """Return whether a sink's table has another id than ``remembered``, or has lost its id.

    False without a remembered id, and if there is no table.
    """
    return bool(remembered) and standing.identity is not None and standing.identity != remembered


class SinkGap(NamedTuple):
    """A sink that lacks rows of messages below a group's offsets, or that is now another table."""

    standing: SinkStanding
    remembered: str
    """The sink's identity as the offset rows store it."""
    behind: Mapping[MessageQueue, OffsetRow]
    """Offset rows that are ahead of the sink. If it is now another table: all offset rows that name it."""

    @property
    def is_another(self) -> bool:
        """Whether the sink is now another table than the one that the group wrote to, or its id is lost.

        False without ids, and if there is no table.
        """
        return _has_another_id(self.standing, self.remembered)

    @property
    def may_be_forgotten(self) -> bool:
        """Whether the sink may still have all rows, and only its watermarks are gone.

        True if the table exists, and has no watermark of any queue in ``behind``. For example, a table that
        was rewritten or copied has the rows, but a new id and no watermarks.
        """
        at = self.standing.watermarks
        return self.standing.identity is not None and not any(at.get(queue, 0) for queue in self.behind)

    @property
    def begun_again(self) -> list[MessageQueue]:
        """Queues in ``behind`` whose offsets have begun again.

        In the sink, rows of earlier messages of such a queue may have the same offsets as rows of new ones.
        """
        return sorted(queue for queue, row in self.behind.items() if row.generation)

    @property
    def is_one_of_several(self) -> bool:
        """Whether one of the offset rows in ``behind`` names other sinks, too."""
        return any(len(row.sinks.identities) > 1 for row in self.behind.values())

    @property
    def targets(self) -> dict[MessageQueue, int]:
        """Offset from which to consume each queue in ``behind`` again: the sink's watermark, or 0.

        The sink then gets all rows whose messages brokers still have.
        """
        return {queue: self.standing.watermarks.get(queue, 0) for queue in self.behind}


class LeftOutSink(NamedTuple):
    """A sink that was not in the query when the group consumed messages, and so lacks their rows."""

    standing: SinkStanding
    behind: Mapping[MessageQueue, OffsetRow]
    """Offset rows that name only other sinks, and are ahead of this one."""

    def __str__(self) -> str:
        at = self.standing.watermarks
        return " ".join(
            f"{queue}={at.get(queue, 0)}<{row.next_offset}" for queue, row in sorted(self.behind.items())
        )


def recorded_sinks(standings: Iterable[SinkStanding]) -> RecordedSinks:
    """Return the names and ids of a batch's sinks, in the form that offset rows store."""
    known: dict[str, str] = {}
    for standing in standings:
        identity = standing.identity or ""
        # Two databases may have tables with the same name.
        known[name_beside(standing.name, identity) if standing.name in known else standing.name] = identity
    return RecordedSinks(known)


def sinks_with_all_below(
    queue: MessageQueue, offset: int, standings: Iterable[SinkStanding]
) -> RecordedSinks:
    """Return those of the sinks that have the rows of all messages of a queue below ``offset``."""
    return recorded_sinks(
        each for each in standings if each.watermarks.get(queue, 0) >= offset or queue in each.later
    )


def check_has_all(
    consumer_group: str,
    rows: Mapping[MessageQueue, OffsetRow],
    standings: Sequence[SinkStanding],
    *,
    store: str,
) -> None:
    """Raise an error if a sink lacks rows of messages below the group's offsets, or is now another table.

    ``rows`` are the group's rows in the offset store; ``store`` is that store's ``spec``, for the error.

    Raises:
        SinkSetBack: If there is such a sink; it names the missing rows and the ways forward.
    """
    gaps = find_gaps(rows, standings)
    if gaps:
        raise SinkSetBack(gap_message(consumer_group, gaps, store=store))


def find_gaps(rows: Mapping[MessageQueue, OffsetRow], standings: Sequence[SinkStanding]) -> list[SinkGap]:
    """Find the sinks that lack rows of messages below the group's offsets, or are now another table.

    ``rows`` are the group's rows in the offset store. A sink is compared only with the rows that name it.
    ``standings`` are those of all sinks of the query.
    """
    found = []
    present = _identities(standings)
    for standing in standings:
        behind: dict[MessageQueue, OffsetRow] = {}
        remembered = ""
        for queue, row in rows.items():
            known = row.sinks.identity_of(standing.name, standing.identity, present)
            if known is None:
                continue
            is_behind = standing.watermarks.get(queue, 0) < row.next_offset and queue not in standing.later
            if _has_another_id(standing, known) or is_behind:
                behind[queue], remembered = row, known
        if behind:
            found.append(SinkGap(standing, remembered, behind))
    return found


def replayed_messages(
    rows: Mapping[MessageQueue, OffsetRow], standings: Sequence[SinkStanding]
) -> dict[MessageQueue, int]:
    """Return, by queue, how many messages the group would read again although a sink has their rows.

    The number is the distance from the queue's offset row to the highest watermark of the sinks that the row
    names. Queues whose offset row is not behind are left out. A row is behind if a query was killed before it
    stored the offsets, or if the offset store was restored from a backup. After a reset, the row names no
    sinks, so the queue is left out.
    """
    forgotten = {}
    present = _identities(standings)
    for queue, row in rows.items():
        known = (
            sink for sink in standings if row.sinks.identity_of(sink.name, sink.identity, present) is not None
        )
        farthest = max((sink.watermarks.get(queue, 0) for sink in known), default=0)
        if farthest > row.next_offset:
            forgotten[queue] = farthest - row.next_offset
    return forgotten


def is_behind_since_a_kill(
    queues: Iterable[MessageQueue], rows: Mapping[MessageQueue, OffsetRow], standings: Sequence[SinkStanding]
) -> bool:
    """Return whether a kill, and not a restored offset store, left the offset rows behind the sinks.

    A query stores offsets within seconds after their rows. So after a kill, the broker stored the sinks'
    newest messages of these queues at most two minutes after the offset rows were written. If the offset
    store was restored from a backup, the broker stored the messages much later. False also if the newest
    message of a queue is unknown, because the sink with the highest watermark does not store it.
    """
    for queue in queues:
        farthest = _farthest(queue, rows[queue].generation, standings)
        newest = None if farthest is None else farthest.last_message.newest
        stored_s = inf if newest is None or not newest.is_known else newest.store_timestamp / 1000
        if stored_s > rows[queue].updated_at_s + _KILLED_WITHIN_S:
            return False
    return True


def ahead_of(
    rows: Mapping[MessageQueue, OffsetRow], standings: Sequence[SinkStanding]
) -> dict[MessageQueue, SinkRecord]:
    """Return the progress of the sinks in those queues in which a sink is ahead of the group's offset row.

    ``rows`` are the group's rows in the offset store. Of several sinks, the one with the queue's highest
    watermark counts. The queue is left out if the newest message of this sink is no newer than the messages
    that the offset row stores.
    """
    records: dict[MessageQueue, SinkRecord] = {}
    for queue, row in rows.items():
        if all(sink.watermarks.get(queue, 0) <= row.next_offset for sink in standings):
            continue
        farthest = _farthest(queue, row.generation, standings)
        if farthest is None:
            continue
        newest = farthest.last_message or RememberedMessages.of(LastMessage.unknown(farthest.next_offset - 1))
        if row.state.last_message.is_behind(newest):
            records[queue] = farthest
    return records


def records_of(
    generations: Mapping[MessageQueue, int],
    watermarks: Mapping[MessageQueue, int],
    standings: Sequence[SinkStanding],
) -> dict[MessageQueue, SinkRecord]:
    """Return a record for each queue in ``watermarks``: its watermark, its generation and its newest message.

    The message is from the sink in ``standings`` with the queue's highest watermark; ``NO_MESSAGES`` if that
    sink stores no message of the queue, or no sink has a watermark of it.
    """
    records = {}
    for queue, offset in watermarks.items():
        farthest = _farthest(queue, generations[queue], standings)
        newest = NO_MESSAGES if farthest is None else farthest.last_message
        records[queue] = SinkRecord(generations[queue], offset, newest)
    return records


def _farthest(queue: MessageQueue, generation: int, standings: Sequence[SinkStanding]) -> SinkRecord | None:
    found = [
        SinkRecord(
            generation, sink.watermarks[queue], RememberedMessages.from_text(sink.newest.get(queue, ""))
        )
        for sink in standings
        if sink.watermarks.get(queue)
    ]
    return max(found, key=lambda record: (record.next_offset, bool(record.last_message)), default=None)


def left_out_sinks(
    rows: Mapping[MessageQueue, OffsetRow], standings: Sequence[SinkStanding]
) -> list[LeftOutSink]:
    """Find the sinks that lack rows because the group consumed messages while the query had only other sinks.

    Such a sink is new to the group, or was not in the query for a while. A queue's offset row shows this as
    long as it names the other sinks and not this one: until a batch with this sink moves the queue.
    """
    found = []
    present = _identities(standings)
    for standing in standings:
        behind = {
            queue: row
            for queue, row in rows.items()
            if row.sinks
            and row.sinks.identity_of(standing.name, standing.identity, present) is None
            and standing.watermarks.get(queue, 0) < row.next_offset
            and queue not in standing.later
        }
        if behind:
            found.append(LeftOutSink(standing, behind))
    return found


def _identities(standings: Iterable[SinkStanding]) -> frozenset[str]:
    return frozenset(standing.identity for standing in standings if standing.identity)


def gap_message(consumer_group: str, gaps: Sequence[SinkGap], *, store: str) -> str:
    """Return an error's text: the rows that sinks lack, and the ways forward with their commands."""
    group = f"--option offsetStore={store} --option consumerGroup={consumer_group}"
    at_brokers = f"{group} --option nameServers=HOST:PORT"
    back = _way_back(gaps, at_brokers)
    given = ", also if the sink has all rows," if any(map(_may_have_all, gaps)) else ""
    return (
        " ".join(_what_is_missing(consumer_group, gap) for gap in gaps)
        + " Nothing was consumed since."
        + "".join(_if_rows_are_there(consumer_group, gap) for gap in gaps if gap.may_be_forgotten)
        + " If the sink can be put back as it was, do that and start the query again. Otherwise stop every "
        "query of the group and choose one of three ways. (1) Consume the messages that the sink lacks "
        f"again, as far as brokers still have them: {back}. (2) Start over with an empty sink and all "
        f"messages that brokers still have: {_emptying(gaps)}, and run "
        f"`pyspark-rocketmq offsets reset --to earliest {at_brokers}`. This also removes rows whose messages "
        f"brokers no longer have, and rows that others wrote into a removed table. (3) Accept the gap{given} "
        f"and go on from here: `pyspark-rocketmq offsets accept-gap {group}`."
    )


def _emptying(gaps: Sequence[SinkGap]) -> str:
    if all(gap.standing.path for gap in gaps):
        return "remove the sink's table"
    # The name of a database's sink is that of its table of watermarks, which other groups may share.
    return (
        "remove the sink's table if it is a Delta table; in a database, delete the rows that the group has "
        "written, and the group's rows in the table of watermarks"
    )


def _may_have_all(gap: SinkGap) -> bool:
    return gap.is_another or gap.may_be_forgotten


def _if_rows_are_there(consumer_group: str, gap: SinkGap) -> str:
    if gap.is_another and gap.standing.identity:
        why = "a table that was rewritten or copied has the rows, and no watermarks"
    elif gap.standing.path:
        why = (
            "if the table has or had the property delta.setTransactionRetentionDuration, writers delete old "
            "watermarks"
        )
    else:
        why = "perhaps only the sink's watermarks are gone"
    if gap.standing.merges_changes:
        return (
            f" If the rows are in {_place(gap)} after all ({why}), (1) changes nothing in them: changes are "
            "merged by their positions in the source's log."
        )
    check = f" First check whether the rows are in {_place(gap)} after all: {why}."
    if gap.begun_again:
        # A rewind would set the watermarks of an earlier generation.
        return (
            f"{check} {_same_offsets_text(gap.begun_again)} If there are rows of the messages that the sink "
            "lacks, choose (3): (1) would write them twice."
        )
    return (
        f"{check} If the rows are there, stop every query of the group, "
        f"{_steps_with_rows(consumer_group, gap, 'accept the gap by (3)')}, and start the query again. (1) "
        "would then write the rows twice."
    )


def _same_offsets_text(queues: Sequence[MessageQueue]) -> str:
    """Return advice, for an error, on how to look at rows of queues whose offsets have begun again."""
    shown = "; ".join(map(str, queues[:_SHOWN_QUEUES]))
    more = f"; and {len(queues) - _SHOWN_QUEUES} more queues" if len(queues) > _SHOWN_QUEUES else ""
    return (
        f"Offsets have begun again in {shown}{more}, so rows of earlier messages have the same offsets: "
        "distinguish them by another column, such as storeTimestamp."
    )


def rows_there_text(
    consumer_group: str, gap: SinkGap, count: int | None, begun_again: Sequence[MessageQueue] = ()
) -> str:
    """Return an error's text: the group is not moved back, because it would write rows a second time.

    The sink has no watermarks of the queues in ``gap``, but has ``count`` rows of them. ``count`` is None if
    the sink cannot count rows. In the queues ``begun_again``, the rows may be older than the queue's present
    offsets, which have begun again.
    """
    accept = f"then accept the gap ({_ACCEPT_GAP})"
    found, if_none = (
        (f"but has {counted(count, 'row')} of the group's queues, which the group would write", "If")
        if count is not None
        else (
            "and the sink's rows cannot be counted here: the group might write them",
            "If the sink has no rows of the group's queues, or if",
        )
    )
    found = (
        f"Nothing was changed: {_place(gap)} shows no watermark of group {consumer_group}, {found} a "
        "second time."
    )
    if begun_again:
        return (
            f"{found} {_same_offsets_text(begun_again)} If the group wrote rows other than those of earlier "
            f"messages, let the group continue where it is with {_ACCEPT_GAP}. If it wrote none, use "
            "pyspark_rocketmq.reset_to_sink(store, sink, consumer_group, beside_rows=True)."
        )
    return (
        f"{found} If the group wrote them and only the watermarks are gone (the table was rewritten, or "
        "has or had delta.setTransactionRetentionDuration), "
        f"{_steps_with_rows(consumer_group, gap, accept)}. {if_none} others wrote them, use "
        "pyspark_rocketmq.reset_to_sink(store, sink, consumer_group, beside_rows=True)."
    )


def _place(gap: SinkGap) -> str:
    return gap.standing.path or gap.standing.name


def _steps_with_rows(consumer_group: str, gap: SinkGap, accept: str) -> str:
    """Return the advice in an error for a sink that has its rows, but not the watermarks.

    ``accept`` is the text that says how to accept the gap.
    """
    path = gap.standing.path
    if not path:
        return (
            "set a Delta table's offsets with DeltaSink.rewind(consumer_group, {queue: highest queueOffset + "
            f"1}}) for every queue, {accept}"
        )
    rewind = (
        f"set the sink's offsets with DeltaSink({path!r}).rewind({consumer_group!r}, {{queue: highest "
        "queueOffset + 1}) for every queue"
    )
    # Rows name the table that they were written to, so another one stays a gap whatever its watermarks are.
    return f"{rewind}, {accept}" if gap.is_another else rewind


def _way_back(gaps: Sequence[SinkGap], options: str) -> str:
    """Return the command that moves the offsets back to the watermarks of all the query's sinks."""
    # A reset to only one of several sinks would forget what the others lack.
    if any(gap.is_one_of_several for gap in gaps):
        return "`pyspark_rocketmq.reset_to_sink(store, [every sink of the query], consumer_group)` in Python"
    standing = gaps[0].standing
    if standing.path and standing.identity is not None:
        return f"`pyspark-rocketmq offsets reset --to sink --sink {standing.path} {options}`"
    return "`pyspark_rocketmq.reset_to_sink(store, sink, consumer_group)` in Python"


def _what_is_missing(consumer_group: str, gap: SinkGap) -> str:
    standing = gap.standing
    queues = sorted(gap.behind)
    listed = "; ".join(
        f"{queue}: the sink is at {standing.watermarks.get(queue, 0)}, the group at "
        f"{gap.behind[queue].next_offset}"
        for queue in queues[:_SHOWN_QUEUES]
    )
    more = f"; and {len(queues) - _SHOWN_QUEUES} more queues" if len(queues) > _SHOWN_QUEUES else ""
    if standing.identity is None:
        why = "the sink is not there any more"
    elif gap.is_another and not standing.identity:
        why = f"the id of the sink's table, {gap.remembered} before, is lost, so the table may be another one"
    elif gap.is_another:
        why = (
            f"the sink is now another table (id {standing.identity}) than before (id {gap.remembered}), so "
            "it was replaced, or deleted and created again"
        )
    else:
        why = (
            "the sink was created again, restored to an earlier state, or failed over to a replica without "
            "its last commits"
        )
    lacks = "may lack" if _may_have_all(gap) else "lacks"
    return (
        f"The sink {standing.name} {lacks} rows of messages that group {consumer_group} has consumed: {why}. "
        f"{listed}{more}."
    )
