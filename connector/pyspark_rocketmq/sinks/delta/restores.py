"""Search for RESTOREs since a group's last commit, without reading again what other commits summarize.

RESTORE removes rows but keeps the watermarks, so the rows would be missing for ever.  REPLACE TABLE, in all
its forms, keeps the watermarks too, and counts as a RESTORE.

A version in the log never changes.  So each commit of a sink records what its writer has seen of the log: a
range of versions without a gap, the last RESTORE among them and the last commit of each group.  A reader that
comes to such a commit continues below that range; commits of others are read one by one.

If Spark makes the commit, a RESTORE may come between the writer's last look and the commit.  So a commit
counts as later than a RESTORE only if its writer had seen the RESTORE.

No I/O: this takes the information in the commits as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from pyspark_rocketmq.sinks.delta.rules import is_restore_or_replacement, own_metadata

_MOST_GROUPS = 100
"""Most groups that a commit names."""
_NEAR = 20
"""Read up to this many more commits to reach a range that another commit records, even if not needed now."""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A summary of the commits from version ``first`` to ``last``; empty if ``last`` is below ``first``."""

    first: int
    last: int
    restored: int | None = None
    """Version of the last RESTORE among them."""
    commits: Mapping[str, int] = field(default_factory=dict)
    """Version of the last commit of each group among them."""
    knew: Mapping[str, int] = field(default_factory=dict)
    """Version up to which each group's commits had seen the log.

    Contains only groups for which a RESTORE may lie between that version and the last commit.
    """

    @classmethod
    def empty(cls, version: int) -> LogSummary:
        """Return an empty summary, to be extended downwards from ``version``."""
        return cls(version + 1, version)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> LogSummary:
        """Return the summary of one commit."""
        version = int(entry["version"])
        own = own_metadata(entry)
        group = own.get("consumerGroup")
        if is_restore_or_replacement(entry):
            return cls(version, version, version)
        if "rocketmqCommit" not in own or not isinstance(group, str):
            return cls(version, version)
        # Commits of older releases do not record it.
        told = cls.seen_by(entry)
        knew = version - 1 if told is None else told.last
        return cls(version, version, None, {group: version}, {} if knew == version - 1 else {group: knew})

    @classmethod
    def seen_by(cls, entry: Mapping[str, Any]) -> LogSummary | None:
        """Return what the writer of a commit had seen; None if that is not recorded, or not plausible."""
        seen = own_metadata(entry).get("seen")
        if not isinstance(seen, dict):
            return None
        first, last, restored, commits = map(seen.get, ("first", "last", "restored", "commits"))
        if not (_is_version(first) and _is_version(last) and isinstance(commits, dict)):
            return None
        told = [*commits.values(), *([] if restored is None else [restored])]
        if last >= entry["version"] or not all(_is_version(one) and first <= one <= last for one in told):
            return None
        knew = seen.get("knew", {})
        if not isinstance(knew, dict) or not all(
            _is_version(one) and one < commits.get(group, 0) for group, one in knew.items()
        ):
            return None
        return cls(first, last, restored, commits, knew)

    def to_metadata(self) -> dict[str, Any]:
        """Return the form in which a commit records this, for :meth:`seen_by`.

        With very many groups, the beginning of the range is left out.
        """
        newest_first = sorted(self.commits.items(), key=lambda commit: -commit[1])
        named, unnamed = newest_first[:_MOST_GROUPS], newest_first[_MOST_GROUPS:]
        first = unnamed[0][1] + 1 if unnamed else self.first
        restored = self.restored if self.restored is not None and self.restored >= first else None
        knew = {group: self.knew[group] for group, _ in named if group in self.knew}
        told = {"first": first, "last": self.last, "restored": restored, "commits": dict(named)}
        return {**told, "knew": knew} if knew else told

    def after(self, earlier: LogSummary) -> LogSummary:
        """Join this with ``earlier``, which begins below it; there must be no version between them."""
        found = [one.restored for one in (earlier, self) if one.restored is not None]
        restored = max(found, default=None)
        commits = dict(earlier.commits)
        for group, version in self.commits.items():
            commits[group] = max(version, commits.get(group, version))
        knew = {
            group: max(self._knew(group), earlier._knew(group)) for group in {**earlier.knew, **self.knew}
        }
        knew = {
            group: seen
            for group, seen in knew.items()
            if seen + 1 < commits[group]
            and (seen + 1 < earlier.first or (restored is not None and restored > seen))
        }
        return LogSummary(earlier.first, max(earlier.last, self.last), restored, commits, knew)

    def _knew(self, consumer_group: str) -> int:
        """Return the version up to which the group's commits knew of RESTOREs; -1 without a commit of it."""
        return self.knew.get(consumer_group, self.commits.get(consumer_group, -1))

    def covers(self, consumer_group: str) -> bool:
        """Whether :meth:`restored_since` returns the same as for the whole log."""
        if self.restored is not None:
            return True
        return consumer_group in self.commits and self.first <= self._knew(consumer_group) + 1

    def restored_since(self, consumer_group: str) -> int | None:
        """Return the last RESTORE, if no commit of the group knew it."""
        if self.restored is None or self._knew(consumer_group) >= self.restored:
            return None
        return self.restored

    def commit_after_restore(self, consumer_group: str) -> int | None:
        """Return the version of the group's commit after a RESTORE that it did not know; None without one."""
        restored, last = self.restored_since(consumer_group), self.commits.get(consumer_group, -1)
        return last if restored is not None and last > restored else None


def summarize_log(
    version: int,
    known: LogSummary,
    entries_below: Callable[[int], Iterable[Mapping[str, Any]]],
    is_enough: Callable[[LogSummary], bool],
) -> LogSummary:
    """Summarize the commits up to ``version``, as far back as is enough or as the log goes.

    Args:
        version: The last version of the result.
        known: An earlier summary, which does not go beyond ``version``; it is part of the result.
        entries_below: Yields the information in the commits below a version, the newest first; it ends where
            the log begins.
        is_enough: Whether a summary goes back far enough.
    """
    found = LogSummary.empty(version)
    seen = [known]
    entries = iter(entries_below(found.first))
    while True:
        if earlier := [one for one in seen if one.first < found.first <= one.last + 1]:
            found = found.after(min(earlier, key=lambda one: one.first))
            entries = iter(entries_below(found.first))
            continue
        seen = [one for one in seen if one.first < found.first]
        is_near = any(found.first - one.last <= _NEAR for one in seen)
        if found.first <= known.first and is_enough(found) and not is_near:
            return found
        entry = next(entries, None)
        if entry is None:
            return found
        found = found.after(LogSummary.of(entry))
        told = LogSummary.seen_by(entry)
        if told is not None:
            seen.append(told)


def _is_version(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
