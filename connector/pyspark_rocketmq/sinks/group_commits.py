"""How far a Delta table has come with a group, for sinks, offset stores and command lines alike.

Two witnesses show it: the table's transaction ids, and what the group's newest commit records of itself. Each
of them may lose a part, so both are judged:

* With ``delta.setTransactionRetentionDuration`` the next checkpoint drops the ids of queues that stood still,
  and those of older releases at once. The commit has all of them.
* The log keeps commits for 30 days (``delta.logRetentionDuration``). Ids stay.
* Spark's writer takes one id for a commit, so what its commits record is newer than the ids of the queues.
* delta-rs may put a commit of files behind one of another member that its writer had not seen; then the ids
  are newer than the record.

Where neither is left the answer is unknown, which is refused: taken for nothing, it would double rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import SinkConflict
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.delta_log import SinkLog
from pyspark_rocketmq.sinks.delta_rules import (
    NUMBER,
    REACHED,
    TRANSACTION_RETENTION,
    WATERMARKS,
    app_id,
    forgets_transactions,
    group_app_id,
    own_metadata,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """How far a table has come with a group."""

    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Watermarks by application id; the table has no row of a queue that is missing here."""
    number: int = 0
    """How many commits Spark has made for the group."""
    not_in_ids: Mapping[str, int] = field(default_factory=dict)
    """Watermarks that the transaction ids lack, or have with another value."""

    @classmethod
    def judged(
        cls, stored: Mapping[str, int], entry: Mapping[str, Any] | None, *, number: int = 0
    ) -> GroupCommit:
        """Return what the ids in ``stored`` and the group's newest commit show together."""
        own = {} if entry is None else own_metadata(entry)
        if WATERMARKS in own:
            watermarks, number = {**stored, **own[WATERMARKS]}, max(number, own[NUMBER])
        else:
            watermarks = {**own.get(REACHED, {}), **stored}
        missing = (
            {}
            if watermarks == stored
            else {name: offset for name, offset in watermarks.items() if stored.get(name) != offset}
        )
        return cls(watermarks=watermarks, number=number, not_in_ids=missing)


def records_progress(entry: Mapping[str, Any]) -> bool:
    """Whether a commit of a group records how far the group has come; those of older releases do not."""
    return not {WATERMARKS, REACHED}.isdisjoint(own_metadata(entry))


def group_commit(
    log: SinkLog, consumer_group: str, generations: Iterable[tuple[MessageQueue, int]]
) -> GroupCommit:
    """Return how far the table has come with the group.

    Args:
        log: The table's log at the version that is asked about.
        consumer_group: The group.
        generations: Queues that are asked about anyway, in case a log's form shows ids only by their names.

    Raises:
        SinkConflict: If that cannot be told any more.
    """
    ids = (app_id(consumer_group, queue, generation) for queue, generation in generations)
    stored = log.group_transactions(consumer_group, ids)
    number = stored.pop(group_app_id(consumer_group), 0)
    forgets = forgets_transactions(log.form())
    newest = log.newest_commit(consumer_group) if stored or number or forgets else None
    if newest is None and number:
        raise forgotten(log, consumer_group)
    if forgets and (not log.begins_at_first_commit if newest is None else not records_progress(newest)):
        raise unknown(log, consumer_group)
    return GroupCommit.judged(stored, newest, number=number)


def forgotten(log: SinkLog, consumer_group: str) -> SinkConflict:
    """Return the error for a group whose newest commit was the only one to record how far it is."""
    return SinkConflict(
        f"The Delta table {masked(log.log.table_uri)} has rows of group {consumer_group}, but the log entry "
        "that tells how far they go has been cleaned up. Say it with DeltaSink.rewind(consumer_group, "
        "{queue: highest queueOffset + 1}) for every queue, and start the query again; and keep the log "
        "longer than the group may stand still (delta.logRetentionDuration)."
    )


def unknown(log: SinkLog, consumer_group: str) -> SinkConflict:
    """Return the error for a table that may have forgotten what it had of a group."""
    return SinkConflict(
        f"How far rows of group {consumer_group} go in the Delta table {masked(log.log.table_uri)}, if there "
        f"are any, cannot be told: by its property {TRANSACTION_RETENTION} writers forget that, and its log "
        "has no commit of the group that records it. Stop every query of the group and say it with "
        "DeltaSink.rewind(consumer_group, {queue: highest queueOffset + 1}) for every queue, with 0 for a "
        "queue without rows; then start the query again. Without the property nothing is forgotten: ALTER "
        f"TABLE ... UNSET TBLPROPERTIES ('{TRANSACTION_RETENTION}')."
    )


def last_known_commit(log: SinkLog, consumer_group: str) -> GroupCommit:
    """Return :func:`group_commit` without what the log no longer has: an operator is about to set it."""
    try:
        return group_commit(log, consumer_group, ())
    except SinkConflict:
        counter = group_app_id(consumer_group)
        stored = log.group_transactions(consumer_group, ())
        number = stored.pop(counter, 0)
        newest = log.newest_commit(consumer_group)
        # In a table that Spark writes, ids are older than what was forgotten.
        return replace(GroupCommit.judged({} if number else stored, newest), number=number)
