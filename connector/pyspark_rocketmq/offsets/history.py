"""The past of an offset store, and which of it is worth keeping. Pure.

Recent versions are all there; of older ones the last of each minute is, every operator's reset, and what was
before it, so that a mistake can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetRow

RESET_ACTION: Final = "reset"
"""How the action of an operator's change begins."""
GROUP_KEY: Final = "consumerGroup"
ACTION_KEY: Final = "userMetadata"
"""Keys of a commit's information; the second is the one Spark's ``DESCRIBE HISTORY`` shows."""
_APART_S: Final = 60.0


class StoredChange(NamedTuple):
    """One version of the store: who changed which group, and when."""

    version: int
    at_s: float
    """Wall-clock seconds, whole milliseconds."""
    consumer_group: str | None
    """None when it was written by another program and may concern every group."""
    action: str
    """What was done, without the group's name."""

    @classmethod
    def of_commit(cls, version: int, info: Mapping[str, Any] | None) -> StoredChange | None:
        """The change that a commit's information describes; None without one."""
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
        """Whether it was an operator's."""
        return self.action.startswith(RESET_ACTION)


def action_text(consumer_group: str, action: str) -> str:
    """What :data:`ACTION_KEY` says: ``DESCRIBE HISTORY`` shows it, and not :data:`GROUP_KEY`."""
    return f"group {consumer_group}: {action}"


class Moment(NamedTuple):
    """The rows of one group as they were from one version on."""

    change: StoredChange
    rows: Mapping[MessageQueue, OffsetRow]


class OffsetHistory(Protocol):
    """The past of an offset store."""

    def changes(self, consumer_group: str) -> Sequence[StoredChange]:
        """The changes of the group that can be gone back to, oldest first."""
        ...

    def newest_version(self) -> int:
        """The version that the store has now."""
        ...

    def rows_of(self, consumer_group: str, change: StoredChange) -> Mapping[MessageQueue, OffsetRow]:
        """The group's rows right after ``change``.

        Raises:
            OffsetError: If they are not kept any more.
        """
        ...

    def rows_of_all(
        self, consumer_group: str, changes: Sequence[StoredChange]
    ) -> Mapping[int, Mapping[MessageQueue, OffsetRow]]:
        """The same of several changes, by version; without those that are not kept any more."""
        ...


def worth_keeping(changes: Sequence[StoredChange]) -> list[StoredChange]:
    """Those of ``changes`` (oldest first) that are kept when the others go."""
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
    """The change whose rows were the group's at ``at_s``.

    Raises:
        OffsetError: If nothing that old is kept.
    """
    return _newest(changes, lambda change: change.at_s <= at_s, consumer_group, "of that time")


def change_of_version(changes: Iterable[StoredChange], consumer_group: str, version: int) -> StoredChange:
    """The change whose rows were the group's in ``version`` of the table; later versions are "now".

    Raises:
        OffsetError: If nothing that old is kept.
    """
    return _newest(changes, lambda change: change.version <= version, consumer_group, f"of version {version}")


def _newest(
    changes: Iterable[StoredChange], is_meant: Callable[[StoredChange], bool], consumer_group: str, what: str
) -> StoredChange:
    known = list(changes)
    meant = [change for change in known if is_meant(change)]
    if meant:
        return meant[-1]
    there = (
        f"the oldest is version {known[0].version}, the newest {known[-1].version}"
        if known
        else "there is none"
    )
    raise OffsetError(
        f"The offset store keeps nothing {what} for group {consumer_group}; of its changes {there}. "
        "`pyspark-rocketmq offsets history` lists what can be gone back to."
    )


def _minute(change: StoredChange) -> int:
    return int(change.at_s // _APART_S)
