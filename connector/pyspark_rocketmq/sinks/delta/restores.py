"""Search for RESTOREs since a group's last commit. Summaries in commits save reading most of the log.

RESTORE removes rows but keeps the watermarks, so the rows would never be written again.  REPLACE TABLE, in
all its forms, keeps the watermarks too, and counts as a RESTORE.

A version in the log never changes.  So each commit of a sink records a summary of the log that its writer has
read: a range of versions without a gap, the last RESTORE among them and the last commit of each group.  A
reader goes through the log from its newest version down, and reads commits without a summary one by one.
When it comes to a commit with a summary, it continues below the summary's range.

If Spark makes the commit, a RESTORE may come after the writer has last read the log, and before the commit.
So a commit counts as later than a RESTORE only if the commit's writer had seen the RESTORE.

No I/O: this takes the information in the commits as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from pyspark_rocketmq.sinks.delta.rules import is_restore_or_replacement, own_metadata

_MAX_GROUPS = 100
"""Maximum number of groups in a summary that a commit records."""
_NEAR_COMMITS = 20
"""Maximum number of commits that are read only to close the gap to the range of an earlier summary."""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A summary of the commits from version ``first`` to ``last``; empty if ``last`` is below ``first``."""

    first: int
    last: int
    restored: int | None = None
    """Version of the last RESTORE in the range; None if there is none."""
    commits: Mapping[str, int] = field(default_factory=dict)
    """Version of each group's last commit in the range."""
    known_up_to: Mapping[str, int] = field(default_factory=dict)
    """Version up to which each group's writers had read the log when they committed.

    Contains only groups for which a RESTORE may lie between that version and the group's last commit.
    """

    @classmethod
    def empty(cls, version: int) -> LogSummary:
        """Return a summary without commits, to which that of ``version`` and then lower ones can be added."""
        return cls(version + 1, version)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> LogSummary:
        """Return the summary of a single commit; ``entry`` is the commit's entry in the log."""
        version = int(entry["version"])
        own = own_metadata(entry)
        group = own.get("consumerGroup")
        if is_restore_or_replacement(entry):
            return cls(version, version, version)
        if "rocketmqCommit" not in own or not isinstance(group, str):
            return cls(version, version)
        seen = cls.recorded_in(entry)
        # Commits of older releases do not record which versions their writer had read.
        known_up_to = {} if seen is None or seen.last == version - 1 else {group: seen.last}
        return cls(version, version, None, {group: version}, known_up_to)

    @classmethod
    def recorded_in(cls, entry: Mapping[str, Any]) -> LogSummary | None:
        """Return the summary that a commit records; None if it records none, or one that cannot be right."""
        seen = own_metadata(entry).get("seen")
        if not isinstance(seen, dict):
            return None
        first, last, restored, commits = map(seen.get, ("first", "last", "restored", "commits"))
        if not (_is_version(first) and _is_version(last) and isinstance(commits, dict)):
            return None
        versions = [*commits.values(), *([] if restored is None else [restored])]
        are_within = all(_is_version(version) and first <= version <= last for version in versions)
        if last >= entry["version"] or not are_within:
            return None
        known_up_to = seen.get("knew", {})
        if not isinstance(known_up_to, dict) or not all(
            _is_version(version) and version < commits.get(group, 0) for group, version in known_up_to.items()
        ):
            return None
        return cls(first, last, restored, commits, known_up_to)

    def to_metadata(self) -> dict[str, Any]:
        """Return the summary in the form in which a commit records it, for :meth:`recorded_in`.

        With very many groups, the summary is shortened to a range that begins later and has fewer groups.
        """
        newest_first = sorted(self.commits.items(), key=lambda commit: -commit[1])
        named, unnamed = newest_first[:_MAX_GROUPS], newest_first[_MAX_GROUPS:]
        first = unnamed[0][1] + 1 if unnamed else self.first
        restored = self.restored if self.restored is not None and self.restored >= first else None
        known_up_to = {group: self.known_up_to[group] for group, _ in named if group in self.known_up_to}
        summary = {"first": first, "last": self.last, "restored": restored, "commits": dict(named)}
        return {**summary, "knew": known_up_to} if known_up_to else summary

    def after(self, earlier: LogSummary) -> LogSummary:
        """Join this summary with ``earlier``, which begins at a lower version; there must be no gap."""
        restores = [version for version in (earlier.restored, self.restored) if version is not None]
        restored = max(restores, default=None)
        commits = dict(earlier.commits)
        for group, version in self.commits.items():
            commits[group] = max(version, commits.get(group, version))
        known_up_to = {
            group: max(self._known_up_to(group), earlier._known_up_to(group))
            for group in {**earlier.known_up_to, **self.known_up_to}
        }
        known_up_to = {
            group: known
            for group, known in known_up_to.items()
            if known + 1 < commits[group]
            and (known + 1 < earlier.first or (restored is not None and restored > known))
        }
        return LogSummary(earlier.first, max(earlier.last, self.last), restored, commits, known_up_to)

    def _known_up_to(self, consumer_group: str) -> int:
        """Return the version up to which the group has seen every RESTORE; -1 if it has no commit here."""
        return self.known_up_to.get(consumer_group, self.commits.get(consumer_group, -1))

    def covers(self, consumer_group: str) -> bool:
        """Return whether the summary goes back far enough for a right :meth:`restored_since` of the group."""
        if self.restored is not None:
            return True
        return consumer_group in self.commits and self.first <= self._known_up_to(consumer_group) + 1

    def restored_since(self, consumer_group: str) -> int | None:
        """Return the version of the last RESTORE that no writer of the group had seen; None without one."""
        if self.restored is None or self._known_up_to(consumer_group) >= self.restored:
            return None
        return self.restored

    def commit_after_restore(self, consumer_group: str) -> int | None:
        """Return the version of the group's last commit if its writer missed a RESTORE that came before it.

        Otherwise return None.
        """
        restored, last = self.restored_since(consumer_group), self.commits.get(consumer_group, -1)
        return last if restored is not None and last > restored else None


def summarize_log(
    version: int,
    known: LogSummary,
    entries_below: Callable[[int], Iterable[Mapping[str, Any]]],
    is_enough: Callable[[LogSummary], bool],
) -> LogSummary:
    """Summarize the commits up to ``version``, back to where ``is_enough`` holds or the log begins.

    Args:
        version: The last version of the result.
        known: An earlier summary, which does not go beyond ``version``; it is part of the result.
        entries_below: Yields the information in the commits below a version, the newest first, until the log
            begins.
        is_enough: Returns whether a summary goes back far enough.
    """
    result = LogSummary.empty(version)
    # Summaries of earlier parts of the log; there may be a gap between them and the result.
    summaries = [known]
    entries = iter(entries_below(result.first))
    while True:
        adjacent = [summary for summary in summaries if summary.first < result.first <= summary.last + 1]
        if adjacent:
            result = result.after(min(adjacent, key=lambda summary: summary.first))
            entries = iter(entries_below(result.first))
            continue
        summaries = [summary for summary in summaries if summary.first < result.first]
        is_near = any(result.first - summary.last <= _NEAR_COMMITS for summary in summaries)
        if result.first <= known.first and is_enough(result) and not is_near:
            return result
        entry = next(entries, None)
        if entry is None:
            return result
        result = result.after(LogSummary.of(entry))
        recorded = LogSummary.recorded_in(entry)
        if recorded is not None:
            summaries.append(recorded)


def _is_version(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
