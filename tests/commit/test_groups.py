"""Several groups of one batch in each kind of sink, with a driver that dies or loses answers in between.

A driver that dies leaves what it has committed; the next one is another sink object with another committer.
"""

from __future__ import annotations

import json
import logging
import random
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.commit.pipeline import BatchReport, BatchUnderCommit, GroupResult, PartCommitter
from pyspark_rocketmq.commit.recovery import note_sink_ahead
from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.part import Group, Part, QueueAck, not_begun
from pyspark_rocketmq.consumer.engine.parts import GrowingPart
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.errors import OffsetStoreUnavailable, RocketMQError, SinkConflict
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import CommitResult, QueueCommit
from pyspark_rocketmq.sinks.base import CommitsInTask, RowWriter, Sink, TaskCommits
from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import MultiSink
from pyspark_rocketmq.stored_values import RememberedMessages
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import GROUP, Q0, Q1, write_rows
from tests.sinks.sink_conformance import SCHEMA, rows, run, steps_of

QUEUES = (Q0, Q1)
KINDS = ("link", "delta-rs", "merge", "database", "in task", "several")
ON_THE_DRIVER = [kind for kind in KINDS if kind != "in task"]
"""Kinds whose rows are in the sink only if the driver commits their part."""
_DATABASES = {"database", "in task"}


class Killed(BaseException):
    """The end of a driver."""


class Place:
    """A sink's storage, which outlives drivers."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._table = folder / "orders"
        self._database = folder / "orders.db"
        if kind in {*_DATABASES, "several"}:
            with closing(sqlite3.connect(self._database)) as connection:
                connection.execute("CREATE TABLE orders (queue_id INTEGER, queue_offset BIGINT, step TEXT)")

    def open(self) -> Sink:
        """Open the sink as a new driver does."""
        delta = DeltaSink(
            self._table, merge_keys=["queueId", "queueOffset"] * (self._kind == "merge"), sleep=lambda _: None
        )
        database = partial(
            DatabaseSink, lambda: sqlite3.connect(self._database), _insert, sleep=lambda _: None
        )
        kinds: Mapping[str, Sink] = {
            "database": database(),
            "in task": database(commit_in_task=True),
            "several": MultiSink([delta, database()]),
        }
        sink = kinds.get(self._kind, delta)
        sink.prepare(SCHEMA)
        return sink

    def stored(self) -> dict[MessageQueue, list[int]]:
        """Return the sorted offsets of each queue's rows; those of several sinks are the same."""
        found = []
        if self._kind not in _DATABASES:
            found.append(steps_of(DeltaTable(self._table).to_pyarrow_table()))
        if self._kind in {*_DATABASES, "several"}:
            with closing(sqlite3.connect(self._database)) as connection:
                found.append(sorted(connection.execute("SELECT * FROM orders").fetchall()))
        assert all(each == found[0] for each in found)
        return {queue: [at for number, at, _ in found[0] if number == queue.queue_id] for queue in QUEUES}


def _insert(cursor: Any, new: pa.Table) -> None:
    columns = [new.column(name).to_pylist() for name in ("queueId", "queueOffset", "step")]
    cursor.executemany("INSERT INTO orders VALUES (?, ?, ?)", list(zip(*columns, strict=True)))


class Store(MemoryOffsetStore):
    """An offset store that fails, or whose caller dies, before or after a commit."""

    def __init__(self) -> None:
        super().__init__("groups-test", clock=FakeClock())
        self.failures: list[tuple[bool, BaseException] | None] = []
        """For each commit to come: whether it is made, and what its caller gets; None for a good one."""

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None and not failure[0]:
            raise failure[1]
        result = super().commit(consumer_group, commits, query_id=query_id, batch_id=batch_id)
        if failure is not None:
            raise failure[1]
        return result

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        return {queue: row.next_offset for queue, row in self.read(GROUP).items()}


class Driver:
    """A query of the group, in a batch that has begun."""

    def __init__(self, place: Place, store: Store, *, keeps_others: bool = False, batch_id: int = 1) -> None:
        self.store = store
        self.reports: list[BatchReport] = []
        self.epochs = {
            queue: row.epoch for queue, row in store.claim(GROUP, "me", dict.fromkeys(QUEUES, 0)).items()
        }
        self.committer = PartCommitter(
            consumer_group=GROUP,
            store=store,
            sink=place.open(),
            listeners=[self.reports.append],
            mirror=None,
            clock=FakeClock(),
            keeps_others=keeps_others,
        )
        self.batch: BatchUnderCommit = self.committer.begin("query", batch_id)
        self._numbers = count()
        self._task = self.batch.writer.begin_task() if isinstance(self.batch.writer, CommitsInTask) else None

    def part(self, *spans: tuple[MessageQueue, int, int], step: str = "created") -> Part:
        """Return a part of a task, with all rows in one file, as its writer leaves them."""
        writer = self.batch.writer
        assert writer is not None
        if self._task is not None:
            return _committed_part(self._task, spans, self.epochs, step)
        return _part(writer, spans, self.epochs, f"part {id(self)} {next(self._numbers)}", step)

    def not_begun(self, queue: MessageQueue, start: int) -> Part:
        """Return the part of a task that has not begun a queue's range."""
        writer = self._task or self.batch.writer
        growing = GrowingPart(writer)
        growing.add((), [not_begun(QueueRange.between(queue, start, 9, epoch=self.epochs[queue]), 0.0)])
        return growing.finish()

    def commit(self, *parts: Part, without: frozenset[MessageQueue] = frozenset()) -> GroupResult:
        return self.committer.commit_group(Group(parts, without), self.batch)

    def commit_rows(self, *parts: Part) -> GroupResult:
        """Commit a group whose offsets wait."""
        return self.committer.commit_group(Group(parts), self.batch, stores_offsets=False)

    def store_offsets(self) -> GroupResult:
        return self.committer.store_offsets(self.batch)


def _part(
    writer: RowWriter,
    spans: Sequence[tuple[MessageQueue, int, int]],
    epochs: Mapping[MessageQueue, int],
    part_id: str,
    step: str,
) -> Part:
    done = write_rows(writer, iter([rows(*span, step) for span in spans]))
    acks = _acks(spans, epochs)
    return Part(
        id=part_id,
        acks=acks,
        written=tuple(json.loads(json.dumps(each.to_dict())) for each in done.written),
        emitted=sum(ack.consumed for ack in acks),
        left_out=done.left_out,
    )


def _committed_part(
    task: TaskCommits,
    spans: Sequence[tuple[MessageQueue, int, int]],
    epochs: Mapping[MessageQueue, int],
    step: str,
) -> Part:
    """Return a part whose rows its task has committed."""
    growing = GrowingPart(task)
    growing.add([rows(*span, step) for span in spans], _acks(spans, epochs))
    part = Part.from_facts(json.loads(json.dumps(growing.finish().facts)))
    task.close()
    return part


def _acks(
    spans: Sequence[tuple[MessageQueue, int, int]], epochs: Mapping[MessageQueue, int]
) -> tuple[QueueAck, ...]:
    return tuple(
        QueueAck(
            queue=queue,
            start=start,
            state=QueueState(end, epochs[queue], last_message=_message_before(end)),
            consumed=end - start,
            failed=0,
            finished="EXHAUSTED",
            metrics=ConsumeMetrics(ok=end - start),
        )
        for queue, start, end in spans
    )


def _message_before(end: int) -> RememberedMessages:
    """Return the message with this end, as brokers have it."""
    return RememberedMessages.from_text(f"[{end - 1},{1_000 + end},{64 * end}]")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "delta-rs":
        # Then delta-rs makes the commits, as on storage of other machines.
        monkeypatch.setattr(LogFiles, "takes_commits", False)
    return Place(request.param, tmp_path)


@pytest.fixture
def separable(tmp_path: Path) -> Place:
    return Place("several", tmp_path)


def test_each_group_is_a_commit_of_data_and_of_offsets(place: Place) -> None:
    """H1"""
    driver = Driver(place, Store())
    assert driver.batch.commits_groups

    first = driver.commit(driver.part((Q0, 0, 2)))
    assert (place.stored(), driver.store.offsets) == ({Q0: [0, 1], Q1: []}, {Q0: 2, Q1: 0})
    driver.commit(driver.part((Q0, 2, 3), (Q1, 0, 1)), driver.part((Q0, 3, 4)))
    last = driver.commit(driver.part((Q1, 1, 3)))

    assert place.stored() == {Q0: [0, 1, 2, 3], Q1: [0, 1, 2]}
    assert driver.store.offsets == {Q0: 4, Q1: 3}
    assert [[each.queue for each in result.stored] for result in (first, last)] == [[Q0], [Q1]]
    assert (first.refused, last.refused) == (frozenset(), frozenset())
    assert [report.rows for report in driver.reports] == [2, 3, 2]
    [middle] = [report for report in driver.reports if len(report.acks) == 2]
    assert [(ack.queue, ack.start, ack.state.next_offset) for ack in middle.acks] == [(Q0, 2, 4), (Q1, 0, 1)]


def test_a_range_that_was_not_begun_leaves_sink_and_offsets_together(place: Place) -> None:
    """D4, H1: also where the group was moved beyond the rows that the sink has."""
    store = Store()
    store.reset(GROUP, {Q1: 5})
    driver = Driver(place, store)

    result = driver.commit(driver.part((Q0, 0, 2)), driver.not_begun(Q1, 5))
    again = Driver(place, store, batch_id=2)
    again.commit(again.part((Q1, 5, 7)))

    assert result.refused == frozenset()
    assert (place.stored(), store.offsets) == ({Q0: [0, 1], Q1: [5, 6]}, {Q0: 2, Q1: 7})


@pytest.mark.parametrize("is_stored", [False, True], ids=["offsets not stored", "offsets stored"])
def test_a_group_whose_offsets_failed_is_committed_again_without_its_data(
    place: Place, is_stored: bool
) -> None:
    """H1: it comes as it was."""
    driver = Driver(place, Store())
    driver.commit(driver.part((Q0, 0, 2)))
    part = driver.part((Q0, 2, 4), (Q1, 0, 1))
    failure = is_stored, OffsetStoreUnavailable("away")
    driver.store.failures += [failure, failure]

    for _ in range(2):
        with pytest.raises(OffsetStoreUnavailable):
            driver.commit(part)
    result = driver.commit(part)
    driver.commit(driver.part((Q0, 4, 5)))

    assert {each.queue for each in result.stored} == {Q0, Q1}
    assert place.stored() == {Q0: [0, 1, 2, 3, 4], Q1: [0]}
    assert driver.store.offsets == {Q0: 5, Q1: 1}
    row = driver.store.read(GROUP)[Q0]
    assert row.statistics.as_of(0.0).minute.ok == 5, "counted once"


def test_offsets_that_wait_are_stored_with_a_later_group_or_without_one(place: Place) -> None:
    """H1: each group is reported when its rows are committed."""
    driver = Driver(place, Store())

    first = driver.commit_rows(driver.part((Q0, 0, 2)))
    driver.commit_rows(driver.part((Q0, 2, 3), (Q1, 0, 1)))
    assert first == GroupResult()
    assert (place.stored(), driver.store.offsets) == ({Q0: [0, 1, 2], Q1: [0]}, {Q0: 0, Q1: 0})
    last = driver.commit(driver.part((Q1, 1, 3)))
    assert driver.store.offsets == {Q0: 3, Q1: 3}
    driver.commit_rows(driver.part((Q0, 3, 5)))
    alone = driver.store_offsets()

    assert driver.store.offsets == {Q0: 5, Q1: 3}
    assert [[each.queue for each in result.stored] for result in (last, alone)] == [[Q0, Q1], [Q0]]
    assert driver.store_offsets() == GroupResult()
    assert [report.rows for report in driver.reports] == [2, 2, 2, 2]
    assert [[row.next_offset for row in report.offsets] for report in driver.reports] == [
        [2, 0],
        [3, 1],
        [3, 3],
        [5, 3],
    ]
    assert driver.store.read(GROUP)[Q0].statistics.as_of(0.0).minute.ok == 5


def test_a_query_that_starts_while_offsets_wait_drops_nothing_of_the_running_one(place: Place) -> None:
    """B1, H5: the sink of a living member is ahead of its offsets for seconds; nothing is repeated."""
    driver = Driver(place, Store())
    driver.commit_rows(driver.part((Q0, 0, 3)))

    note_sink_ahead(driver.store, place.open(), GROUP)
    result = driver.commit(driver.part((Q0, 3, 5), (Q1, 0, 1)))

    assert result.refused == frozenset()
    assert (place.stored(), driver.store.offsets) == ({Q0: [0, 1, 2, 3, 4], Q1: [0]}, {Q0: 5, Q1: 1})
    assert driver.store.read(GROUP)[Q0].state.last_message.newest == _message_before(5).newest


def test_the_newest_message_of_a_group_whose_offsets_wait_is_remembered(separable: Place) -> None:
    """F4: a later group may have passed offsets without a message only."""
    driver = Driver(separable, Store())
    driver.commit_rows(driver.part((Q0, 0, 2)))
    [ack] = driver.part((Q0, 2, 3)).acks
    no_message = replace(ack, state=ack.state._replace(last_message=RememberedMessages()), consumed=0)
    driver.commit_rows(Part(id="a gap", acks=(no_message,)))

    driver.store_offsets()

    row = driver.store.read(GROUP)[Q0]
    assert (row.next_offset, row.state.last_message.newest) == (3, _message_before(2).newest)


def test_offsets_that_wait_go_on_waiting_while_the_store_is_away(place: Place) -> None:
    """H1"""
    driver = Driver(place, Store())
    driver.commit_rows(driver.part((Q0, 0, 2)))
    driver.store.failures = [(False, OffsetStoreUnavailable("away")), (True, OffsetStoreUnavailable("away"))]

    for _ in range(2):
        with pytest.raises(OffsetStoreUnavailable):
            driver.store_offsets()
    result = driver.store_offsets()

    assert [each.queue for each in result.stored] == [Q0]
    assert driver.store.offsets == {Q0: 2, Q1: 0}


@pytest.mark.parametrize("place", ON_THE_DRIVER, indirect=True)
@pytest.mark.parametrize("who", ["the sink", "the store"])
def test_a_queue_that_moved_while_its_offset_waited_is_refused(place: Place, who: str) -> None:
    """C5, H5: by the sink if its next owner has written rows, else by the store; no row is doubled."""
    driver = Driver(place, Store(), keeps_others=True)
    driver.commit_rows(driver.part((Q0, 0, 2), (Q1, 0, 2)))
    epoch = driver.store.claim(GROUP, "another", {Q0: 0})[Q0].epoch
    if who == "the sink":
        run(place.open(), {Q0: 3}, rows(Q0, 0, 3, "created"), generations=dict.fromkeys(QUEUES, 0))

    second = driver.commit_rows(driver.part((Q0, 2, 4), (Q1, 2, 3)))
    result = driver.store_offsets()

    assert second.refused == ({Q0} if who == "the sink" else frozenset())
    assert result.refused == {Q0}
    assert [each.queue for each in result.stored] == [Q1]
    assert place.stored() == {Q0: [0, 1, 2] if who == "the sink" else [0, 1, 2, 3], Q1: [0, 1, 2]}
    assert driver.store.offsets == {Q0: 0, Q1: 3}
    assert driver.store.read(GROUP)[Q0].epoch >= epoch


@pytest.mark.parametrize("has_group", [False, True], ids=["only offsets", "with a group that is dropped"])
def test_offsets_that_are_refused_without_rows_are_reported(separable: Place, has_group: bool) -> None:
    """C5: batch listeners forget the queue, and what they know of the other ones stays."""
    driver = Driver(separable, Store(), keeps_others=True)
    driver.commit_rows(driver.part((Q0, 0, 2), (Q1, 0, 2)))
    driver.store.claim(GROUP, "another", {Q0: 0})

    result = driver.commit(driver.part((Q0, 2, 3))) if has_group else driver.store_offsets()

    report = driver.reports[-1]
    assert result.refused == {refused.queue for refused in report.refused} == {Q0}
    assert (report.acks, report.rows, report.is_ahead) == ((), 0, False)
    assert [(row.queue, row.next_offset) for row in report.offsets] == [(Q1, 2)]


def test_offsets_that_are_stored_without_rows_are_not_reported(separable: Place) -> None:
    """H1: each group was reported when its rows were committed."""
    driver = Driver(separable, Store())
    driver.commit_rows(driver.part((Q0, 0, 2)))

    assert driver.store_offsets().stored

    assert len(driver.reports) == 1


@pytest.mark.parametrize("killed_at", range(3))
@pytest.mark.parametrize("is_stored", [False, True], ids=["before the offsets", "after the offsets"])
def test_killed_at_any_group_each_row_is_there_once(place: Place, killed_at: int, is_stored: bool) -> None:
    """H1: the second run cuts elsewhere, and gets farther."""
    store = Store()
    store.failures = [None] * killed_at + [(is_stored, Killed())]
    driver = Driver(place, store)
    spans = [[(Q0, 0, 2)], [(Q0, 2, 3), (Q1, 0, 2)], [(Q1, 2, 3)]]
    for group in spans[:killed_at]:
        driver.commit(driver.part(*group))
    with pytest.raises(Killed):
        driver.commit(driver.part(*spans[killed_at]))

    for batch_id in range(1, 9):
        again = Driver(place, store, batch_id=batch_id)
        at = dict(store.offsets)
        # The planner looks at the sink's newest message first, so the first batch may be dropped.
        first = again.commit(
            again.part((Q0, at[Q0], max(3, at[Q0])), (Q1, at[Q1], max(2, at[Q1])), step="again")
        )
        if not first.refused:
            again.commit(again.part((Q0, max(3, at[Q0]), 5), (Q1, max(2, at[Q1]), 4), step="again"))
            break

    assert place.stored() == {Q0: [0, 1, 2, 3, 4], Q1: [0, 1, 2, 3]}
    assert store.offsets == {Q0: 5, Q1: 4}


def test_another_attempt_of_a_task_adds_nothing_twice(place: Place) -> None:
    """H1: it wrote with the watermarks of the batch's beginning; what others wrote goes on."""
    driver = Driver(place, Store())
    driver.commit(driver.part((Q0, 0, 3)))

    result = driver.commit(driver.part((Q0, 0, 5), step="again"), driver.part((Q1, 0, 2)))

    assert result.refused == {Q0}
    assert [each.queue for each in result.stored] == [Q1]
    driver.commit(driver.part((Q1, 2, 3)))
    assert place.stored() == {Q0: [0, 1, 2], Q1: [0, 1, 2]}
    assert driver.store.offsets == {Q0: 3, Q1: 3}
    again = Driver(place, driver.store, batch_id=2)
    again.commit(again.part((Q0, 3, 5)))
    assert place.stored()[Q0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("place", ON_THE_DRIVER, indirect=True)
def test_parts_of_a_group_that_do_not_follow_each_other_are_refused(place: Place) -> None:
    """H1"""
    driver = Driver(place, Store())

    with pytest.raises(RocketMQError, match="two ranges of one batch were consumed, 0 to 2 and 1 to 3"):
        driver.commit(driver.part((Q0, 0, 2)), driver.part((Q0, 1, 3)))

    assert place.stored() == {Q0: [], Q1: []}


@pytest.mark.parametrize("place", ON_THE_DRIVER, indirect=True)
@pytest.mark.parametrize("keeps_others", [False, True])
@pytest.mark.parametrize("who", ["sink", "store"])
def test_a_queue_that_moved_between_two_groups_is_left_out(
    place: Place, who: str, keeps_others: bool
) -> None:
    """C5, H5: with its part, or with its rows; other parts are committed, and the batch goes on."""
    driver = Driver(place, Store(), keeps_others=keeps_others)
    driver.commit(driver.part((Q0, 0, 2)))
    if who == "sink":
        run(place.open(), {Q0: 3}, rows(Q0, 2, 3, "other"), generations=dict.fromkeys(QUEUES, 0))
    else:
        driver.store.claim(GROUP, "another", {Q0: 2})

    shared = driver.commit(driver.part((Q0, 2, 4), (Q1, 0, 2), step="late"))
    mixed = driver.commit(driver.part((Q0, 4, 5), step="late"), driver.part((Q1, 2 * keeps_others, 4)))

    assert shared.refused == ({Q0} if keeps_others else {Q0, Q1})
    assert mixed.refused == {Q0}
    assert [each.queue for each in mixed.stored] == [Q1]
    assert place.stored() == {Q0: [0, 1, 2][: 3 if who == "sink" else 2], Q1: [0, 1, 2, 3]}
    assert (driver.store.offsets[Q0], driver.store.offsets[Q1]) == (2, 4)
    assert sum(report.rows for report in driver.reports) == 6


@pytest.mark.parametrize("place", ON_THE_DRIVER, indirect=True)
@pytest.mark.parametrize("keeps_others", [False, True])
def test_queues_that_the_caller_leaves_out_are_not_committed(place: Place, keeps_others: bool) -> None:
    """C5: of a part that has them, nothing or the rest is committed."""
    driver = Driver(place, Store(), keeps_others=keeps_others)

    result = driver.commit(driver.part((Q0, 0, 2), (Q1, 0, 2)), without=frozenset({Q0}))

    assert result.refused == (frozenset() if keeps_others else {Q1})
    assert place.stored() == {Q0: [], Q1: [0, 1] * keeps_others}
    assert driver.store.offsets == {Q0: 0, Q1: 2 * keeps_others}


def test_of_several_sinks_the_ones_behind_get_a_group_again(
    separable: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: the first one has it when the second one fails."""
    driver = Driver(separable, Store())
    driver.commit(driver.part((Q0, 0, 2)))
    part = driver.part((Q0, 2, 4))
    with monkeypatch.context() as away:
        away.setattr(sqlite3, "connect", _away)
        with pytest.raises(SinkConflict):
            driver.commit(part)

    driver.commit(part)
    driver.commit(driver.part((Q0, 4, 5)))

    assert separable.stored()[Q0] == [0, 1, 2, 3, 4]


def _away(*_: object) -> Any:
    raise sqlite3.OperationalError("unable to open database file")


def test_a_sink_ahead_of_the_offsets_is_looked_at_before_the_first_group_only(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4, H10: groups after it are below the sink's watermark, too, and reading the sink takes a while."""
    store = Store()
    first = Driver(place, store)
    store.failures = [(False, Killed())]
    with pytest.raises(Killed):
        first.commit(first.part((Q0, 0, 6)))

    looking = Driver(place, store, batch_id=1)
    assert looking.commit(looking.part((Q0, 0, 2))).refused == {Q0}, "the planner looks"
    driver = Driver(place, store, batch_id=2)
    monkeypatch.setattr(driver.committer._sink, "standings", lambda *_: pytest.fail("the sink is read again"))
    for start in range(0, 8, 2):
        assert not driver.commit(driver.part((Q0, start, start + 2))).refused

    assert place.stored()[Q0] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert store.offsets[Q0] == 8


def test_the_lag_of_a_killed_query_alarms_nobody(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """H1, H2: it is ordinary that offsets are seconds behind; the sink leaves out the rows that it has."""
    store = Store()
    killed = Driver(place, store)
    killed.commit(killed.part((Q0, 0, 2)))
    killed.commit_rows(killed.part((Q0, 2, 6)))

    with caplog.at_level(logging.INFO):
        looking = Driver(place, store, batch_id=2)
        assert looking.commit(looking.part((Q0, 2, 4))).refused == {Q0}, "the planner looks"
        again = Driver(place, store, batch_id=3)
        again.commit(again.part((Q0, 2, 7)))

    assert place.stored()[Q0] == [0, 1, 2, 3, 4, 5, 6]
    assert again.reports[0].left_out == 4
    assert "the sink has them from an earlier run" in caplog.text
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.INFO] == []


def test_rows_left_out_after_a_reset_are_warned_of(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """F5: somebody may wait for them to be written again."""
    store = Store()
    first = Driver(place, store)
    first.commit(first.part((Q0, 0, 4)))
    store.reset(GROUP, {Q0: 1})
    again = Driver(place, store, batch_id=2)

    with caplog.at_level(logging.WARNING):
        again.commit(again.part((Q0, 1, 5)))

    assert "see DeltaSink.rewind" in caplog.text


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("keeps_others", [False, True])
def test_whatever_fails_each_row_is_there_once(place: Place, seed: int, keeps_others: bool) -> None:
    """H1: drivers die and stores fail at random, others claim queues, and tasks run twice."""
    chance = random.Random(seed)
    store = Store()
    goal = 12
    drivers = count()
    while any(store.offsets.get(queue, 0) < goal for queue in QUEUES):
        driver = Driver(place, store, keeps_others=keeps_others, batch_id=next(drivers))
        try:
            _play(driver, goal, chance)
        except Killed:
            continue
        for queue, at in place.stored().items():
            assert at == list(range(len(at))), "no gap, nothing twice"
            assert len(at) >= store.offsets[queue], "never behind the offsets"

    assert place.stored() == {queue: list(range(goal)) for queue in QUEUES}


def _play(driver: Driver, goal: int, chance: random.Random) -> None:
    """Run a batch: tasks cut where they like, and go on until their queues are refused or done."""
    begun = dict(driver.store.offsets)
    reached = dict(begun)
    poisoned: set[MessageQueue] = set()
    for _ in range(4):
        open_queues = [queue for queue in QUEUES if queue not in poisoned and reached[queue] < goal]
        if not open_queues:
            return
        spans = [
            (queue, reached[queue], min(goal, reached[queue] + chance.randint(1, 3))) for queue in open_queues
        ]
        if chance.random() < 0.2:
            spans[0] = (spans[0][0], begun[spans[0][0]], spans[0][2])
        parts = [driver.part(*spans)] if chance.random() < 0.5 else [driver.part(span) for span in spans]
        if chance.random() < 0.1:
            driver.store.claim(GROUP, "another", {open_queues[0]: 0})
        result = _committed(driver, parts, chance)
        if chance.random() < 0.3:
            poisoned |= _stored(driver).refused
        poisoned |= result.refused
        reached.update({queue: end for queue, _, end in spans})


def _committed(driver: Driver, parts: Sequence[Part], chance: random.Random) -> GroupResult:
    """Commit a group; try it again as it is while the store is away."""
    while True:
        if chance.random() < 0.3:
            error = Killed() if chance.random() < 0.5 else OffsetStoreUnavailable("away")
            driver.store.failures = [(chance.random() < 0.5, error)]
        try:
            return driver.commit_rows(*parts) if chance.random() < 0.4 else driver.commit(*parts)
        except OffsetStoreUnavailable:
            continue


def _stored(driver: Driver) -> GroupResult:
    while True:
        try:
            return driver.store_offsets()
        except OffsetStoreUnavailable:
            continue
