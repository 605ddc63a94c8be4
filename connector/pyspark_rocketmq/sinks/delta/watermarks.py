"""Reads a group's watermarks in a Delta table, for sinks, offset stores and commands. It needs no Spark.

Watermarks are in two places: in the table's transaction ids, and in the record within the group's newest
commit.  A transaction id is an *application id*, here the name of one generation of a queue, and a version,
here the watermark.  Each place may lack some watermarks, so both are read:

* With ``delta.setTransactionRetentionDuration`` a checkpoint drops the ids of queues that have not moved for
  that time, and all ids that older releases wrote. The record has the watermarks of all queues, also after
  the property was removed.
* By default the log keeps commits, and so records, for 30 days (``delta.logRetentionDuration``). Ids stay.
* Spark's writer stores only one id, which counts its commits. So the records of these commits are newer than
  the ids of queues.
* delta-rs may put a commit of files after another member's commit that the writer of the files had not read.
  Then the ids are newer than the record. This package forbids such a commit where ids are dropped.

If the table is named by a catalog, only its commits can be read, and not the ids. So each commit records the
progress of the whole group. A commit that was made while the table was named by its path lacks this record:
if it is the group's newest one, the ids are read from the table's folder.

If neither place has a watermark any more, that is an error: with 0 in its place, rows would be doubled.

A commit records only the last generation of each queue, since nothing is written to earlier ones any more.
If very many queues are idle (of deleted topics, for example), most commits of files record only what has
changed since an earlier commit that has all queues, and name that commit. The earlier commit is at most 15
minutes older. Logs are cleaned up by age, so the log keeps the earlier commit almost as long as the later
one.

The record's newest message of a queue is valid only if the record's watermark is also the queue's watermark.
Otherwise the queue was moved since then, either by a member that stores no messages, or by one whose commit
the record's writer had not seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pyspark_rocketmq.delta.features import TRANSACTION_RETENTION, expires_transactions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS
from pyspark_rocketmq.display import masked, masking_logger
from pyspark_rocketmq.errors import RocketMQError, SinkConflict
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import SinkRecord
from pyspark_rocketmq.sinks.base import QueueGeneration, generation_of, newest_generations
from pyspark_rocketmq.sinks.delta.rules import (
    CHANGED_SINCE,
    NEWER_ROWS_ONLY,
    NEWEST,
    NUMBER,
    REACHED,
    WATERMARKS,
    WHOLE_AT,
    SinkCommit,
    app_id,
    group_app_id,
    last_generations,
    message_text,
    own_metadata,
    superseded,
)
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.stored_values import RememberedMessages

logger = masking_logger(__name__)

WHOLE: Final = "whole"
"""Field that is true in a commit that records the watermarks of all queues that the group ever wrote."""
_MAX_IDLE_RECORDED: Final = 64
"""Number of idle queues above which commits leave these out; a commit records about 100 bytes per queue."""
_LONGEST_SINCE_MS: Final = 15 * 60 * 1_000
"""Maximum age, in milliseconds, of a commit with all queues to which later commits refer."""


class RecordedProgress(NamedTuple):
    """A group's progress as one of its commits records it; the keys of the maps are application ids."""

    watermarks: Mapping[str, int]
    newest: Mapping[str, Any]
    """Newest message of each queue, by application id: a list of numbers as in ``RememberedMessages``."""
    whole: WholeRecord | None = None
    """The commit that records all queues: this one, or an earlier one to which this one refers.

    None for a group with few queues, which needs no such commit, and if the earlier commit is missing.
    """
    is_whole: bool = True
    """Whether the watermarks are complete.

    False if nothing is recorded, or if this commit refers to an earlier one that is missing.
    """


class WholeRecord(NamedTuple):
    """The record of one commit with the progress in all queues of a group with very many queues.

    For a while, later commits of the group record only changes since this commit, and refer to it.
    """

    version: int
    at_ms: int
    """Time of the commit, in milliseconds."""
    watermarks: Mapping[str, int]
    newest: Mapping[str, Any]


def read_record(
    entry: Mapping[str, Any] | None, whole_entry: Mapping[str, Any] | None = None
) -> RecordedProgress:
    """Return the progress that a group's commit records.

    The watermarks in a record of Spark's form (``WATERMARKS``) are left out; :meth:`GroupCommit.combined`
    reads them.

    Args:
        entry: The commit's entry in the log; None if there is no commit.
        whole_entry: The entry of the commit that ``entry`` names as the one with all queues.
    """
    own = {} if entry is None else own_metadata(entry)
    watermarks, newest = _mapping(own, REACHED), _mapping(own, NEWEST)
    if CHANGED_SINCE in own:
        whole = _whole(whole_entry)
        if whole is None:
            return RecordedProgress(watermarks, _without_nulls(newest), None, is_whole=False)
        newest = {**whole.newest, **newest}
        return RecordedProgress({**whole.watermarks, **watermarks}, _without_nulls(newest), whole)
    return RecordedProgress(watermarks, newest, _whole(entry), is_whole=REACHED in own)


def _whole(entry: Mapping[str, Any] | None) -> WholeRecord | None:
    own = {} if entry is None else own_metadata(entry)
    if entry is None or not isinstance(own.get(WHOLE_AT), int):
        return None
    return WholeRecord(int(entry["version"]), own[WHOLE_AT], _mapping(own, REACHED), _mapping(own, NEWEST))


def _mapping(own: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = own.get(key)
    return found if isinstance(found, dict) else {}


def _without_nulls(newest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: numbers for name, numbers in newest.items() if numbers is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """A group's progress in a table."""

    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Watermarks by application id; the table has no rows of queues that are missing here."""
    number: int = 0
    """Number of the group's commits in Spark's form: those by Spark, and rewinds that this package made."""
    not_in_ids: Mapping[str, int] = field(default_factory=dict)
    """Watermarks that the transaction ids lack, or have with another value."""
    newest: Mapping[str, Any] = field(default_factory=dict)
    """Newest message below each watermark, by application id; missing if it is unknown.

    It is a list of numbers, as in the text of ``RememberedMessages``.
    """
    whole: WholeRecord | None = None
    """The record of the last commit with all queues, if the group has very many; else None."""

    @classmethod
    def combined(
        cls,
        stored: Mapping[str, int],
        entry: Mapping[str, Any] | None,
        whole_entry: Mapping[str, Any] | None = None,
        *,
        number: int = 0,
    ) -> GroupCommit:
        """Return a group's progress, from the table's transaction ids and the record of its last commit.

        Where ids and record differ, the ids are right. But if the record has the form of Spark's commits
        (``WATERMARKS``), the record is right.

        Args:
            stored: Watermarks that the transaction ids have, by application id.
            entry: Log entry of the group's newest commit; None if there is no commit.
            whole_entry: The entry of the commit that ``entry`` names as the one with all queues; None if it
                names none, or if that entry is missing.
            number: Number of commits that Spark has made for the group, as the ids show it.
        """
        own = {} if entry is None else own_metadata(entry)
        known = read_record(entry, whole_entry)
        if WATERMARKS in own:
            known = RecordedProgress(own[WATERMARKS], known.newest)
            # Commits by Spark store no ids of queues, so ids may be of earlier generations than the record.
            watermarks = last_generations({**stored, **own[WATERMARKS]})
            number = max(number, own[NUMBER])
        else:
            watermarks = {**known.watermarks, **stored}
        missing = (
            {}
            if watermarks == stored
            else {name: offset for name, offset in watermarks.items() if stored.get(name) != offset}
        )
        newest = known.newest
        if watermarks != known.watermarks:
            at = known.watermarks
            newest = {
                name: numbers for name, numbers in newest.items() if at.get(name) == watermarks.get(name)
            }
        return cls(watermarks=watermarks, number=number, not_in_ids=missing, newest=newest, whole=known.whole)

    def watermarks_after(self, commit: SinkCommit) -> Mapping[str, int]:
        """Return the watermarks after ``commit``, of each queue only that of its last generation."""
        return last_generations({**self.watermarks, **commit.watermarks})

    def record_of_files(self, commit: SinkCommit, now_ms: int) -> dict[str, Any]:
        """Return the group's progress after ``commit``, as a commit of files records it.

        If very many queues are idle, the result has only changes since the commit that :attr:`whole` is of.
        """
        reached, newest = self.watermarks_after(commit), commit.newest_after(self.newest)
        if len(reached) <= _MAX_IDLE_RECORDED:
            return _record(reached, newest)
        whole = self.whole
        if whole is not None and 0 <= now_ms - whole.at_ms <= _LONGEST_SINCE_MS:
            changed = {name: at for name, at in reached.items() if whole.watermarks.get(name) != at}
            if len(reached) - len(changed) > _MAX_IDLE_RECORDED:
                names = newest.keys() | whole.newest.keys()
                differs = {
                    name: newest.get(name) for name in names if newest.get(name) != whole.newest.get(name)
                }
                return {**_record(changed, differs), CHANGED_SINCE: whole.version}
        return {**_record(reached, newest), WHOLE_AT: now_ms}

    def record_by_spark(self, commit: SinkCommit) -> dict[str, Any]:
        """Return the group's progress after ``commit``, in the form that commits by Spark record."""
        newest = commit.newest_after(self.newest)
        kept = {NEWEST: newest} if newest else {}
        return {WATERMARKS: self.watermarks_after(commit), NUMBER: self.number + 1, **kept}

    def after_rewind(self, commit: SinkCommit) -> GroupCommit:
        """Return this progress without the newest messages of queues that ``commit``, a rewind, moves."""
        moved = {name for name, at in commit.watermarks.items() if self.watermarks.get(name) != at}
        kept = {name: numbers for name, numbers in self.newest.items() if name not in moved}
        return replace(self, newest=kept)


def _record(watermarks: Mapping[str, int], newest: Mapping[str, Any]) -> dict[str, Any]:
    return {REACHED: watermarks, **({NEWEST: newest} if newest else {})}


def records_progress(entry: Mapping[str, Any], whole_entry: Mapping[str, Any] | None = None) -> bool:
    """Return whether a commit records the progress of its whole group; commits of older releases do not.

    If the commit records only changes since an earlier one, ``whole_entry`` is the log entry of the earlier
    commit, or None if the log lacks it; then return False.
    """
    return WATERMARKS in own_metadata(entry) or read_record(entry, whole_entry).is_whole


def read_progress(
    log: SinkLog, consumer_group: str, generations: Iterable[tuple[MessageQueue, int]] = ()
) -> GroupCommit:
    """Return the group's progress in all its queues.

    Args:
        log: The table's log, at the version in question.
        consumer_group: The group.
        generations: Queues whose progress is needed, each with the number of its generation. They are used
            only if the table's transaction ids cannot be listed: then the ids of these queues are looked up
            one by one.

    Raises:
        SinkConflict: If the progress is no longer in the log, or cannot be read.
        DeltaError, OSError, ValueError, KeyError: If the log cannot be read.
    """
    if not log.table.shows_transactions:
        return _from_commits(log, consumer_group)
    stored = _stored_ids(log, consumer_group, generations)
    number = stored.pop(group_app_id(consumer_group), 0)
    newest = log.newest_commit(consumer_group)
    if newest is None and number:
        raise _lost_progress_error(log, consumer_group)
    whole = log.whole_record_of(newest)
    # A table without the property may have had it before: then it has no ids, but commits of the group.
    expires = expires_transactions(log.table.form())
    if newest is not None:
        is_known = bool(stored and not expires) or records_progress(newest, whole)
    elif expires:
        is_known = log.shows_no_commit_of(consumer_group)
    else:
        is_known = bool(stored) or not log.has_commit_of(consumer_group)
    if not is_known:
        raise _unknown_progress_error(log, consumer_group)
    return GroupCommit.combined(stored, newest, whole, number=number)


def _stored_ids(
    log: SinkLog, consumer_group: str, generations: Iterable[tuple[MessageQueue, int]]
) -> dict[str, int]:
    """Return the group's transaction ids with their versions (watermarks).

    If the ids cannot be listed, only those of ``generations`` are looked up, one by one.

    Raises:
        OSError, ValueError, KeyError: If the ids cannot be listed, and ``generations`` is empty.
    """
    group = group_app_id(consumer_group)
    queue_prefix = f"{group}:"
    try:
        known = log.table.all_transactions()
    except (OSError, ValueError, KeyError):
        ids = [app_id(consumer_group, queue, generation) for queue, generation in generations]
        if not ids:
            raise
        return log.table.transaction_versions([group, *ids])
    return {name: at for name, at in known.items() if name.startswith(queue_prefix) or name == group}


def _from_commits(log: SinkLog, consumer_group: str) -> GroupCommit:
    """Return the group's progress in a table named by a catalog.

    The group may have committed to the table by its path before; those watermarks are included.
    """
    newest = log.newest_commit(consumer_group)
    if log.shows_no_commit_of(consumer_group):
        return GroupCommit()
    if newest is not None and own_metadata(newest).get(WHOLE):
        return GroupCommit.combined({}, newest)
    stored = _ids_by_path(log, consumer_group)
    whole = log.whole_record_of(newest)
    ids_may_lack = expires_transactions(log.table.form()) or (newest is not None and stored == {})
    if ids_may_lack and (newest is None or not records_progress(newest, whole)):
        raise _unknown_progress_error(log, consumer_group)
    if newest is None and not stored and log.has_commit_of(consumer_group):
        raise _lost_progress_error(log, consumer_group)
    if stored is None:
        if newest is None:
            return GroupCommit()
        raise SinkConflict(
            f"Earlier rows of group {consumer_group} in the Delta table {log.log.table_uri} were written "
            "while DeltaSink named it by its path. Their watermarks are in its folder "
            f"{masked(log.table.location)}, which cannot be read. Name the table by this path again, give "
            "DeltaSink the storage_options for the folder, or set the watermarks with "
            "DeltaSink.rewind(consumer_group, {queue: highest queueOffset + 1}) for every queue. "
            f"{NEWER_ROWS_ONLY}"
        )
    number = stored.pop(group_app_id(consumer_group), 0)
    if newest is None and number:
        raise _lost_progress_error(log, consumer_group)
    return GroupCommit.combined(stored, newest, whole, number=number)


def _ids_by_path(log: SinkLog, consumer_group: str) -> dict[str, int] | None:
    """Return the group's ids from the table's folder; None if it cannot be read, or has another table."""
    try:
        found = log.table.all_transactions()
    except (*STORAGE_ERRORS, RocketMQError, ValueError, KeyError) as error:
        log.log.storage.describe_error(error)
        logger.info("folder of table %s cannot be read", log.log.table_uri, exc_info=True)
        return None
    counter = group_app_id(consumer_group)
    return {
        name: at
        for name, at in found.items()
        if name == counter or generation_of(name, consumer_group) is not None
    }


def last_known_progress(log: SinkLog, consumer_group: str) -> GroupCommit:
    """Return the group's progress for an operator who is about to set watermarks.

    Where :func:`read_progress` would raise SinkConflict, return the progress without the watermarks that are
    no longer in the log.
    """
    try:
        known = read_progress(log, consumer_group)
    except SinkConflict:
        known = _remaining_progress(log, consumer_group)
    if log.table.shows_transactions or known.number or log.shows_no_commit_of(consumer_group):
        return known
    # The count of commits is unknown: the time in seconds is above any count.
    return replace(known, number=int(time.time()))


def _remaining_progress(log: SinkLog, consumer_group: str) -> GroupCommit:
    if not log.table.shows_transactions:
        return GroupCommit()
    stored = _stored_ids(log, consumer_group, ())
    number = stored.pop(group_app_id(consumer_group), 0)
    newest = log.newest_commit(consumer_group)
    # In a table that Spark writes, the ids are older than the lost record.
    known = GroupCommit.combined({} if number else stored, newest, log.whole_record_of(newest))
    return replace(known, number=number)


def has_rows_of(log: SinkLog, consumer_group: str) -> bool:
    """Return whether the table's transaction ids, or its log, show a commit of the group."""
    known: Mapping[str, int] = {}
    if log.table.shows_transactions:
        with suppress(OSError, ValueError, KeyError):
            known = log.table.all_transactions()
    group = group_app_id(consumer_group)
    has_ids = any(name == group or name.startswith(f"{group}:") for name in known)
    return has_ids or log.has_commit_of(consumer_group)


class QueueProgress(NamedTuple):
    """A group's progress in queues that a caller names, each in one generation."""

    watermarks: Mapping[MessageQueue, int]
    """Next offset of each queue; missing where the table has no rows of it."""
    newest: Mapping[MessageQueue, str]
    """The newest message below each watermark, as text of ``RememberedMessages``; missing if unknown."""
    later: frozenset[MessageQueue]
    """Queues of which the table has progress in a later generation than the caller names."""

    def record_of(self, queue: MessageQueue, generation: int) -> SinkRecord:
        """Return the progress in one queue; its watermark is 0 if the table has no rows of the queue.

        ``generation`` must be the queue's generation for which this object was read.
        """
        newest = RememberedMessages.from_text(self.newest.get(queue, ""))
        return SinkRecord(generation, self.watermarks.get(queue, 0), newest)


NO_PROGRESS: Final = QueueProgress({}, {}, frozenset())
"""The progress in a table that has no rows of the group."""


def read_queues(log: SinkLog, consumer_group: str, queues: Mapping[MessageQueue, int]) -> QueueProgress:
    """Return the group's progress in these queues, in the given generation of each.

    Raises:
        SinkConflict: If the progress is no longer in the log, or cannot be read.
        DeltaError, OSError, ValueError, KeyError: If the log cannot be read.
    """
    known = read_progress(log, consumer_group, queues.items())
    ids = app_ids(consumer_group, queues)
    return QueueProgress(
        {queue: known.watermarks[name] for queue, name in ids.items() if name in known.watermarks},
        {queue: message_text(known.newest[name]) for queue, name in ids.items() if name in known.newest},
        superseded(ids, known.watermarks),
    )


def app_ids(consumer_group: str, queues: Mapping[MessageQueue, int]) -> dict[MessageQueue, str]:
    """Return the application id of each queue's watermark; ``queues`` has the generation of each."""
    return {queue: app_id(consumer_group, queue, generation) for queue, generation in queues.items()}


def by_generation(consumer_group: str, known: GroupCommit) -> dict[QueueGeneration, int]:
    """Return the watermarks in ``known`` of each queue's last generation, by queue and generation."""
    generations = {generation_of(name, consumer_group): at for name, at in known.watermarks.items()}
    return newest_generations({key: at for key, at in generations.items() if key is not None})


def _lost_progress_error(log: SinkLog, consumer_group: str) -> SinkConflict:
    """Return the error for a group whose progress was only in its newest commit, which is gone."""
    return SinkConflict(
        f"The Delta table {masked(log.log.table_uri)} has rows of group {consumer_group}, but the log entry "
        "that recorded their offsets has been cleaned up. Stop every query of the group, set the sink's "
        "offsets with DeltaSink.rewind(consumer_group, {queue: highest queueOffset + 1}) for every queue, "
        f"and start the query again. {NEWER_ROWS_ONLY} Keep the log longer than the group may be idle "
        "(delta.logRetentionDuration)."
    )


def _unknown_progress_error(log: SinkLog, consumer_group: str) -> SinkConflict:
    """Return the error for a table that may have dropped the group's watermarks."""
    return SinkConflict(
        f"Cannot determine up to which offset the Delta table {masked(log.log.table_uri)} has rows of group "
        f"{consumer_group}: while a table has the property {TRANSACTION_RETENTION}, writers delete old "
        "watermarks, and its log has no commit of the group that records them. Stop every query of the group "
        "and set the sink's offsets with DeltaSink.rewind(consumer_group, {queue: highest queueOffset + 1}) "
        f"for every queue, with 0 for a queue without rows. {NEWER_ROWS_ONLY} Then start the query again. "
        "After that, and not before, you may remove the property, so that no watermark is deleted any more: "
        f"ALTER TABLE ... UNSET TBLPROPERTIES ('{TRANSACTION_RETENTION}')."
    )
