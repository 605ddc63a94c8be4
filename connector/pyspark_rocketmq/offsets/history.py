"""History of an offset store, and the choice of what to keep of it. Pure.

Each change of a group's rows makes a version of the store. All recent versions are kept. Of the older ones,
each group's last version in a minute is kept, and its newest one. A reset is also kept, with the group's
version before the reset, so that a mistake can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetRow

RESET_ACTION: Final = "reset"
"""Prefix of the action of a reset: by an operator, or by a member that skips messages or repairs offsets."""
GROUP_KEY: Final = "consumerGroup"
ACTION_KEY: Final = "userMetadata"
"""Key of the action in a commit's information.

Spark's ``DESCRIBE HISTORY`` shows its value, but not that of ``GROUP_KEY``.
"""
_APART_S: Final = 60.0


class StoredChange(NamedTuple):
    """A change that made one version of the store: its group, its time, and a description."""

    version: int
    at_s: float
    """Wall-clock seconds, rounded to milliseconds."""
    consumer_group: str | None
    """Group whose rows changed; None if another program wrote the version and may have changed any group."""
    action: str
    """Description of the change, without the group's name."""

    @classmethod
    def of_commit(cls, version: int, info: Mapping[str, Any] | None) -> StoredChange | None:
        """Return the change that a commit's information ``info`` describes; None if ``info`` is None."""
        if info is None:
            return None
        consumer_group = info.get(GROUP_KEY)
        action = info.get(ACTION_KEY) or info.get("operation", "unknown")
        return cls(
            version=version,
            at_s=info["timestamp"] / 1000,
            consumer_group=consumer_group,
            action=action if consumer_group is None else action.removeprefix(action_text(consumer_group, "")),
        )

    @property
    def is_reset(self) -> bool:
        """Whether the change is a reset, by an operator or by a member."""
        return self.action.startswith(RESET_ACTION)


def action_text(consumer_group: str, action: str) -> str:
    """Return ``action`` with the group's name before it, as :data:`ACTION_KEY` stores it.

    ``DESCRIBE HISTORY`` does not show the group's own key, :data:`GROUP_KEY`.
    """
    return f"group {consumer_group}: {action}"


class Moment(NamedTuple):
    """The rows of one group right after a change."""

    change: StoredChange
    rows: Mapping[MessageQueue, OffsetRow]


@runtime_checkable
class OffsetHistory(Protocol):
    """An offset store that keeps its history."""

    def changes(self, consumer_group: str) -> Sequence[StoredChange]:
        """Return the changes of the group that can be restored, oldest first.

        A change by another program is included, since it may have changed any group.
        """
        ...

    def newest_version(self) -> int:
        """Return the current version of the store."""
        ...

    def rows_of(self, consumer_group: str, change: StoredChange) -> Mapping[MessageQueue, OffsetRow]:
        """Return the group's rows right after ``change``.

        Raises:
            OffsetError: If they are no longer kept.
        """
        ...

    def rows_of_all(
        self, consumer_group: str, changes: Sequence[StoredChange]
    ) -> Mapping[int, Mapping[MessageQueue, OffsetRow]]:
        """Return the group's rows after each of ``changes``, by version; leave out those no longer kept."""
        ...


def worth_keeping(changes: Sequence[StoredChange]) -> list[StoredChange]:
    """Return those of ``changes`` (oldest first) that are kept when the others are deleted.

    For each group these are the last change in each minute, the newest change, each reset, and the change
    before a reset.
    """
    kept: dict[int, StoredChange] = {}
    newest: dict[str | None, StoredChange] = {}
    for change in changes:
        before = newest.get(change.consumer_group)
        if before is not None and (_minute(before) != _minute(change) or change.is_reset):
            kept[before.version] = before
        if change.is_reset:
            kept[change.version] = change
        newest[change.consumer_group] = change
    kept |= {change.version: change for change in newest.values()}
    return [kept[version] for version in sorted(kept)]


def change_at(changes: Iterable[StoredChange], consumer_group: str, at_s: float) -> StoredChange:
    """Return the last of the group's ``changes`` at or before ``at_s``.

    Raises:
        OffsetError: If nothing that old is kept.
    """
    return _newest(changes, lambda change: change.at_s <= at_s, consumer_group, "at that time")


def change_of_version(changes: Iterable[StoredChange], consumer_group: str, version: int) -> StoredChange:
    """Return the last of the group's ``changes`` up to ``version`` of the table.

    For versions later than the newest one, this is the newest change.

    Raises:
        OffsetError: If nothing that old is kept.
    """
    return _newest(changes, lambda change: change.version <= version, consumer_group, f"at version {version}")


def _newest(
    changes: Iterable[StoredChange], is_meant: Callable[[StoredChange], bool], consumer_group: str, what: str
) -> StoredChange:
    known = list(changes)
    meant = [change for change in known if is_meant(change)]
    if meant:
        return meant[-1]
    there = (
        f"the group's oldest kept change is version {known[0].version}, the newest is version "
        f"{known[-1].version}"
        if known
        else "no change of this group is kept"
    )
    raise OffsetError(
        f"The offset store has no offsets of group {consumer_group} {what}: {there}. "
        "`pyspark-rocketmq offsets history --conf FILE` lists the versions to choose from."
    )


def _minute(change: StoredChange) -> int:
    return int(change.at_s // _APART_S)
