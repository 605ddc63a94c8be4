"""RESTOREs are noticed as by a reader of the whole log, whoever committed what,
and commits of others cost nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.errors import SinkConflict
from pyspark_rocketmq.sinks.delta.appenders import FileAppender
from pyspark_rocketmq.sinks.delta.restores import LogSummary, summarize_log
from pyspark_rocketmq.sinks.delta.rules import SinkCommit
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.sink_log import log_of, opened_log
from tests.helpers.sink_rows import GROUP, Q0, Q1, run_batch
from tests.sinks.sink_conformance import SCHEMA, rows

OTHER = "another"


def entry_of(version: int, group: str | None = None, operation: str = "WRITE", **more: Any) -> dict[str, Any]:
    own = SinkCommit(group, {}, f"id-{version}").metadata(**more) if group is not None else {}
    return {"operation": operation, "version": version, **own}


def restored_since(entries: Mapping[int, Mapping[str, Any]], group: str) -> int | None:
    """What a reader of these entries finds: the last RESTORE, if no commit behind it knew of it."""
    restored = [version for version, entry in entries.items() if entry["operation"] == "RESTORE"]
    for version in range(max(restored, default=max(entries)) + 1, max(entries) + 1):
        own = json.loads(entries[version].get("userMetadata", "{}"))
        # A commit of an older release does not say what its writer had seen.
        if own.get("consumerGroup") == group and own.get("seen", {"last": version})["last"] >= max(restored):
            return None
    return max(restored, default=None)


class Log:
    """A log in memory; it counts what is read of it."""

    def __init__(self) -> None:
        self.all: dict[int, Mapping[str, Any]] = {0: entry_of(0, operation="CREATE TABLE")}
        self.left = dict(self.all)
        self.reads = 0

    @property
    def version(self) -> int:
        return max(self.all)

    def add(self, group: str | None = None, operation: str = "WRITE", **more: Any) -> None:
        version = self.version + 1
        self.all[version] = self.left[version] = entry_of(version, group, operation, **more)

    def below(self, version: int) -> Iterator[Mapping[str, Any]]:
        for one in range(version - 1, -1, -1):
            if one not in self.left:
                return
            self.reads += 1
            yield self.left[one]

    def clean_up(self, before: int) -> None:
        self.left = {version: entry for version, entry in self.left.items() if version >= before}


class Member:
    """One query of a group, with what it has seen of the log."""

    def __init__(self, log: Log, group: str) -> None:
        self.log, self.group = log, group
        self.seen = LogSummary.empty(log.version)

    def look(self) -> int | None:
        self.seen = summarize_log(
            self.log.version, self.seen, self.log.below, lambda seen: seen.covers(self.group)
        )
        return self.seen.restored_since(self.group)

    def commit(self, meanwhile: int = 0, *, restores: bool = False) -> None:
        """After a RESTORE this is the operator's; ``meanwhile`` come commits that do not conflict.

        With ``restores`` there is a RESTORE among them.
        """
        self.seen = summarize_log(
            self.log.version, self.seen, self.log.below, lambda seen: seen.last >= seen.first
        )
        said = self.seen.to_metadata()
        for number in range(meanwhile):
            self.log.add(operation="RESTORE" if restores and number == meanwhile // 2 else "WRITE")
        self.log.add(self.group, seen=said)


class World:
    """A log and who commits to it; each method is a step of a history."""

    def __init__(self) -> None:
        self.log = Log()
        self.members = [Member(self.log, group) for group in GROUPS]

    def play(self, step: tuple[Any, ...]) -> None:
        name, *arguments = step
        getattr(self, name)(*arguments)

    def commit(self, number: int, meanwhile: int, looks: bool) -> None:
        if looks:
            self.members[number].look()
        self.members[number].commit(meanwhile)

    def commit_past_a_restore(self, number: int, meanwhile: int) -> None:
        self.members[number].commit(meanwhile, restores=True)

    def look(self, number: int) -> None:
        self.members[number].look()

    def start_again(self, number: int) -> None:
        self.members[number] = Member(self.log, GROUPS[number])

    def others(self, count: int) -> None:
        for _ in range(count):
            self.log.add(operation="OPTIMIZE")

    def commit_of_an_older_release(self, number: int) -> None:
        self.log.add(GROUPS[number])

    def restore(self) -> None:
        self.log.add(operation="RESTORE")

    def clean_up(self, part: float) -> None:
        self.log.clean_up(int(self.log.version * part))


GROUPS = ("a", "a", "b")
_NUMBERS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("commit"), _NUMBERS, st.one_of(st.just(0), st.integers(0, 40)), st.booleans()),
    st.tuples(st.just("commit_past_a_restore"), _NUMBERS, st.integers(1, 40)),
    st.tuples(st.sampled_from(["look", "start_again", "commit_of_an_older_release"]), _NUMBERS),
    st.tuples(st.just("others"), st.integers(1, 30)),
    st.just(("restore",)),
)


@given(st.lists(STEPS, max_size=40))
def test_a_restore_is_noticed_as_by_a_reader_of_the_whole_log(steps: list[tuple[Any, ...]]) -> None:
    """H7: by members that kept running, by members that start, after commits of every kind."""
    world = World()
    for step in steps:
        world.play(step)
        for group in set(GROUPS):
            assert Member(world.log, group).look() == restored_since(world.log.all, group)
    for member in world.members:
        assert member.look() == restored_since(world.log.all, member.group)


@given(st.lists(st.one_of(STEPS, st.tuples(st.just("clean_up"), st.floats(0, 1))), max_size=40))
def test_of_a_log_that_was_cleaned_up_nothing_is_made_up(steps: list[tuple[Any, ...]]) -> None:
    """What the rest of the log shows is noticed; what is noticed, the whole log would have shown."""
    world = World()
    for step in steps:
        world.play(step)
        for member in [*world.members, *(Member(world.log, group) for group in set(GROUPS))]:
            noticed = member.look()
            truth = restored_since(world.log.all, member.group)
            assert noticed in (truth, None)
            if restored_since(world.log.left, member.group) is not None:
                assert noticed == truth


@pytest.mark.parametrize("restores", [False, True])
def test_commits_of_another_group_remember_what_is_cleaned_up(restores: bool) -> None:
    """H7: a group that stood still for longer than the log is kept."""
    log = Log()
    idle, busy = Member(log, "a"), Member(log, "b")
    idle.commit()
    busy.commit()
    if restores:
        log.add(operation="RESTORE")
    for _ in range(50):
        busy.look()
        busy.commit()
    log.clean_up(40)

    assert Member(log, "a").look() == (3 if restores else None)
    assert Member(log, "b").look() is None


@pytest.mark.parametrize("meanwhile", [1, 50])
def test_a_commit_that_slipped_past_a_restore_does_not_hide_it(meanwhile: int) -> None:
    """H1, H7: not from its own group and not from what others remember of it, until one comes that knew."""
    log = Log()
    slipped, busy = Member(log, "a"), Member(log, "b")
    slipped.commit()
    busy.commit()
    slipped.commit(meanwhile, restores=True)
    restored = 3 + meanwhile // 2
    assert slipped.look() == Member(log, "a").look() == restored

    for _ in range(50):
        busy.look()
        busy.commit()
    log.clean_up(log.version)

    assert slipped.look() == Member(log, "a").look() == restored
    assert busy.look() is None
    Member(log, "a").commit(meanwhile)
    assert slipped.look() is Member(log, "a").look() is None


def test_what_came_between_a_look_and_its_commit_is_not_reported_for_ever() -> None:
    """A commit says it of another one only while a RESTORE may be between."""
    log = Log()
    slow, busy = Member(log, "a"), Member(log, "b")
    slow.commit(meanwhile=3)
    busy.commit()
    assert "knew" not in log.all[log.version]["userMetadata"]
    busy.commit(meanwhile=2)

    Member(log, "b").commit()

    told = json.loads(log.all[log.version]["userMetadata"])["seen"]
    assert "knew" not in told


def test_commits_of_another_group_are_not_read() -> None:
    """One commit, the newest, says all: at a start, and in a batch of a member that ran all along."""
    log = Log()
    idle, busy = Member(log, "a"), Member(log, "b")
    idle.commit()
    for number in range(1_001):
        busy.look()
        busy.commit(meanwhile=number % 3)
    log.reads = 0

    # The last commit of the other group and the one that came between.
    assert (idle.look(), log.reads) == (None, 2)
    assert (Member(log, "a").look(), log.reads) == (None, 4)


def test_a_log_that_says_nothing_is_read_as_far_as_needed() -> None:
    """Commits of an older release, and of other jobs, above a group's last one and below."""
    log = Log()
    for _ in range(200):
        log.add("a")
    log.add(operation="OPTIMIZE")
    member = Member(log, "a")

    assert (member.look(), log.reads) == (None, 2)
    assert (member.look(), log.reads) == (None, 2)
    log.add()
    assert (member.look(), log.reads) == (None, 3)


def test_a_group_of_very_many_is_found_by_itself() -> None:
    log = Log()
    Member(log, "first").commit()
    for number in range(250):
        member = Member(log, f"group {number}")
        member.commit()
    log.add(operation="RESTORE")
    for number in range(250, 400):
        Member(log, f"group {number}").commit()

    restored = 252
    for group in ("first", "group 0", "group 249"):
        assert Member(log, group).look() == restored
    for group in ("group 250", "group 399"):
        assert Member(log, group).look() is None
    assert len(log.all[log.version]["userMetadata"]) < 4_000


@pytest.mark.parametrize(
    "seen",
    [
        "all",
        {},
        {"first": 0, "last": 5, "restored": None, "commits": {"a": 1}},
        {"first": 0, "last": 4, "restored": 5, "commits": {}},
        {"first": 2, "last": 4, "restored": None, "commits": {"a": 1}},
        {"first": 0, "last": 4, "restored": None, "commits": ["a"]},
        {"first": -1, "last": 4, "restored": None, "commits": {}},
        {"first": False, "last": 4, "restored": None, "commits": {}},
        {"first": 0, "last": 4, "restored": "3", "commits": {}},
        {"first": 0, "last": 4, "restored": None, "commits": {"a": 3}, "knew": ["a"]},
        {"first": 0, "last": 4, "restored": None, "commits": {"a": 3}, "knew": {"a": "1"}},
        {"first": 0, "last": 4, "restored": None, "commits": {"a": 3}, "knew": {"b": 1}},
        {"first": 0, "last": 4, "restored": None, "commits": {"a": 3}, "knew": {"a": 3}},
    ],
)
def test_invalid_versions_in_a_commit_are_ignored(seen: object) -> None:
    """H9: the commit is read like one of others."""
    assert LogSummary.recorded_in(entry_of(5, "a", seen=seen)) is None


@pytest.mark.parametrize("metadata", ["not json", "[1]", '{"consumerGroup": "a"}', '{"rocketmqCommit": "x"}'])
def test_commits_of_others_are_no_group_s(metadata: str) -> None:
    assert LogSummary.of({**entry_of(5), "userMetadata": metadata}) == LogSummary(5, 5)


# ------------------------------------------------------------------------------------------ in a table


class Table:
    """A table with two groups; each of ``STEPS`` is one step of its history."""

    STEPS = ("batch",) * 4 + ("start_again",) * 2 + ("others", "restore", "clean_up")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sinks = {group: prepared(path) for group in (GROUP, OTHER)}
        self.ends = dict.fromkeys(self.sinks, 0)
        self.restored: dict[str, int | None] = dict.fromkeys(self.sinks)
        self.oldest = 0
        """The first version that can still be restored."""

    def batch(self, group: str, _: random.Random) -> None:
        """After a RESTORE, what the operator does instead."""
        sink = self.sinks[group]
        if self.restored[group] is not None:
            self.restored[group] = None
            sink.rewind(group, {Q0: self.ends[group]})
            return
        end = self.ends[group] = self.ends[group] + 1
        run_batch(sink, {Q0: end}, rows(Q0, end - 1, end), group=group)

    def start_again(self, group: str, _: random.Random) -> None:
        self.sinks[group] = prepared(self.path)

    def others(self, *_: object) -> None:
        write_deltalake(self.path, pa.table(rows(Q1, 0, 1)), mode="append")

    def restore(self, _: str, chance: random.Random) -> None:
        self.others()
        table = DeltaTable(self.path)
        table.restore(chance.randint(self.oldest, table.version() - 1))
        self.restored = {group: table.version() if end else None for group, end in self.ends.items()}

    def clean_up(self, *_: object) -> None:
        """As far as no RESTORE is forgotten that nobody has dealt with."""
        table = DeltaTable(self.path)
        table.create_checkpoint()
        self.oldest = table.version()
        restored = [version for version in self.restored.values() if version is not None]
        for version in range(min([table.version(), *restored])):
            (self.path / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)

    def check(self) -> None:
        """By sinks that run and by those that start."""
        for group, running in self.sinks.items():
            for sink in (running, prepared(self.path)):
                if (version := self.restored[group]) is None:
                    assert sink.begin(group, {Q0: 0}).watermarks == {Q0: self.ends[group]}
                    continue
                with pytest.raises(SinkConflict, match=f"restored at version {version},"):
                    sink.begin(group, {Q0: 0})


@pytest.mark.parametrize("seed", range(6))
def test_restores_of_a_table_are_noticed(tmp_path: Path, seed: int) -> None:
    """H7: two groups, commits of others, checkpoints, logs that are cleaned up,
    sinks that start and that run.
    """
    chance = random.Random(seed)
    table = Table(tmp_path / "orders")
    for _ in range(25):
        getattr(table, chance.choice(table.STEPS))(chance.choice(list(table.sinks)), chance)
        table.check()


def prepared(path: Path) -> DeltaSink:
    sink = DeltaSink(path, sleep=lambda _: None)
    sink.prepare(SCHEMA)
    return sink


def test_a_group_that_stands_still_does_not_read_what_another_one_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start and in its next batch; a start reads the group's own commit, too."""
    path = tmp_path / "orders"
    idle, busy = prepared(path), prepared(path)
    run_batch(idle, {Q0: 1}, rows(Q0, 0, 1))
    for end in range(1, 60):
        run_batch(busy, {Q0: end}, rows(Q0, end - 1, end), group=OTHER)
    read: list[int] = []

    commit_info = LogFiles.commit_info

    def counted(log: LogFiles, version: int) -> dict[str, Any] | None:
        read.append(version)
        return commit_info(log, version)

    monkeypatch.setattr(LogFiles, "commit_info", counted)
    for sink, looked_at in ((idle, [60]), (prepared(path), [60, 1])):
        read.clear()
        assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 1}
        assert read == looked_at


@pytest.mark.parametrize("by_delta_rs", [False, True])
def test_an_append_does_not_slip_over_a_restore(
    tmp_path: Path, by_delta_rs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: it would look as if the group had known of it; to delta-rs Delta's RESTORE sets the table's
    metadata, which conflicts.
    """
    if by_delta_rs:
        monkeypatch.setattr(LogFiles, "takes_commits", False)
    path = tmp_path / "orders"
    run_batch(prepared(path), {Q0: 2}, rows(Q0, 0, 2))
    table = TableSnapshot(DeltaTable(path), needs_delta_rs=False)
    DeltaTable(path).restore(0)

    with pytest.raises(FileExistsError, match="a commit after version 1"):
        FileAppender(table).put(log_of(table), (), SinkCommit.of(GROUP, {"x": 1}))


def test_a_log_without_its_newest_commit_is_not_taken_for_one_without_a_restore(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    run_batch(prepared(path), {Q0: 2}, rows(Q0, 0, 2))
    DeltaTable(path).create_checkpoint()
    log = opened_log(DeltaTable(path))
    (path / "_delta_log" / f"{1:020d}.json").unlink()

    with pytest.raises(DeltaError, match="no longer has the commit of version 1"):
        log.restored_since_last_commit(GROUP)
