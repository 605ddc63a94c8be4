"""What every sink promises; each kind of sink runs all of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import OffsetError, SchemaError, SinkMoved, SinkSetBack
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.sinks.against_offsets import check_has_all, recorded_sinks
from pyspark_rocketmq.sinks.base import QueueGeneration, Sink, SinkBatch, note_newest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import GROUP, POSITION, Q0, Q1, TaskRows, batch_of, write_rows

SCHEMA = pa.schema([*POSITION, ("step", pa.string())])


def rows(queue: MessageQueue, start: int, end: int, step: str = "created") -> pa.RecordBatch:
    """One row for each offset."""
    return batch_of(SCHEMA, ((queue, queue_offset, step) for queue_offset in range(start, end)))


Stored = Callable[[], list[tuple[Any, ...]]]
"""Gives (queue id, queue offset, step), sorted."""


def written_by(batch: SinkBatch, *batches: pa.RecordBatch) -> Sequence[Any]:
    """What a task has written, as the driver gets it."""
    return task_rows(batch, *batches).written


def task_rows(batch: SinkBatch, *batches: pa.RecordBatch) -> TaskRows:
    """What became of a task's rows, as the driver gets it."""
    writer = batch.task_writer()
    done = write_rows(pickle.loads(pickle.dumps(writer)), iter(batches))
    return done._replace(
        written=[writer.written(json.loads(json.dumps(one.to_dict()))) for one in done.written]
    )


def run(
    sink: Sink,
    acked: dict[MessageQueue, int],
    *batches: pa.RecordBatch,
    group: str = GROUP,
    generations: Mapping[MessageQueue, int] = MappingProxyType({Q0: 0, Q1: 0}),
) -> int:
    """One whole micro-batch; how many of its rows were new."""
    batch = sink.begin(group, generations)
    done = task_rows(batch, *batches)
    batch.commit(done.written, acked)
    given: int = sum(rows.num_rows for rows in batches)
    return given - done.left_out


class SinkConformance:
    """Subclasses have the fixtures ``sink``, prepared for ``SCHEMA``, and ``stored``,
    which shows what it holds.
    """

    @pytest.fixture
    def sink(self) -> Sink:
        raise NotImplementedError

    @pytest.fixture
    def stored(self) -> Stored:
        """Gives a list of (queue id, queue offset, step), sorted."""
        raise NotImplementedError

    def test_rows_arrive(self, sink: Sink, stored: Stored) -> None:
        """H1"""
        assert run(sink, {Q0: 2, Q1: 1}, rows(Q0, 0, 2), rows(Q1, 0, 1)) == 3

        assert stored() == [(0, 0, "created"), (0, 1, "created"), (1, 0, "created")]

    def test_a_replay_that_gets_farther_adds_only_what_is_beyond(self, sink: Sink, stored: Stored) -> None:
        """H1: the listener may answer differently the second time."""
        run(sink, {Q0: 2}, rows(Q0, 0, 2, "first"))

        assert run(sink, {Q0: 4}, rows(Q0, 0, 4, "second")) == 2

        assert [step for *_, step in stored()] == ["first", "first", "second", "second"]

    def test_a_replay_that_gets_less_far_changes_nothing(self, sink: Sink, stored: Stored) -> None:
        """H1"""
        run(sink, {Q0: 4}, rows(Q0, 0, 4))

        assert run(sink, {Q0: 2}, rows(Q0, 0, 2, "again")) == 0
        assert run(sink, {Q0: 5}, rows(Q0, 4, 5, "next")) == 1

        assert [step for *_, step in stored()] == ["created"] * 4 + ["next"]

    def test_progress_without_rows_is_kept(self, sink: Sink, stored: Stored) -> None:
        """H1, A4: a filter may leave nothing, and a replay may emit where nothing was emitted before."""
        run(sink, {Q0: 3})

        run(sink, {Q0: 4}, rows(Q0, 0, 4))

        assert stored() == [(0, 3, "created")]

    def test_uncommitted_rows_are_not_in_the_table(self, sink: Sink, stored: Stored) -> None:
        """H1: the driver was killed in between."""
        written_by(sink.begin(GROUP, {Q0: 0}), rows(Q0, 0, 3))

        assert stored() == []
        run(sink, {Q0: 3}, rows(Q0, 0, 3))
        assert len(stored()) == 3

    def test_only_one_attempt_of_a_task_is_committed(self, sink: Sink, stored: Stored) -> None:
        """H1"""
        batch = sink.begin(GROUP, {Q0: 0})
        written_by(batch, rows(Q0, 0, 3))

        batch.commit(written_by(batch, rows(Q0, 0, 3)), {Q0: 3})

        assert len(stored()) == 3

    def test_watermarks_are_returned_by_queue(self, sink: Sink) -> None:
        """H2: of queues that the group wrote, with rows or without, and of no others."""
        assert sink.watermarks(GROUP) == {}

        run(sink, {Q0: 2}, rows(Q0, 0, 2))

        assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 0): 2}
        assert sink.watermarks("audit") == {}

    def test_groups_do_not_disturb_each_other(self, sink: Sink, stored: Stored) -> None:
        """H5"""
        run(sink, {Q0: 2}, rows(Q0, 0, 2, "one"))
        run(sink, {Q0: 2}, rows(Q0, 0, 2, "other"), group="audit")

        assert [step for *_, step in stored()] == ["one", "other", "one", "other"]

    def test_the_second_of_two_writers_is_refused_and_leaves_nothing(
        self, sink: Sink, stored: Stored
    ) -> None:
        """H5, C5: a query that was believed dead."""
        slow = sink.begin(GROUP, {Q0: 0, Q1: 0})
        written = written_by(slow, rows(Q0, 0, 9, "slow"), rows(Q1, 0, 1, "slow"))
        run(sink, {Q0: 2}, rows(Q0, 0, 2))

        with pytest.raises(SinkMoved, match=f"Another consumer of group {GROUP}"):
            slow.commit(written, {Q0: 9, Q1: 1})

        assert stored() == [(0, 0, "created"), (0, 1, "created")]
        assert run(sink, {Q1: 1}, rows(Q1, 0, 1)) == 1, "nor has it moved the other queue"

    def test_the_second_of_two_writers_is_refused_in_a_later_batch_too(
        self, sink: Sink, stored: Stored
    ) -> None:
        """H5: where there was a watermark already."""
        run(sink, {Q0: 1}, rows(Q0, 0, 1))
        slow = sink.begin(GROUP, {Q0: 0})
        written = written_by(slow, rows(Q0, 1, 9, "slow"))
        run(sink, {Q0: 2}, rows(Q0, 1, 2))

        with pytest.raises(SinkMoved):
            slow.commit(written, {Q0: 9})

        assert len(stored()) == 2

    def test_members_of_a_group_with_queues_of_their_own_do_not_disturb_each_other(
        self, sink: Sink, stored: Stored
    ) -> None:
        """H5: begun together; neither moves the other's watermark back."""
        run(sink, {Q0: 1, Q1: 1}, rows(Q0, 0, 1), rows(Q1, 0, 1))
        one, other = sink.begin(GROUP, {Q0: 0, Q1: 0}), sink.begin(GROUP, {Q0: 0, Q1: 0})

        other.commit(written_by(other, rows(Q1, 1, 3)), {Q1: 3})
        one.commit(written_by(one, rows(Q0, 1, 2)), {Q0: 2})

        assert run(sink, {Q0: 2, Q1: 3}, rows(Q0, 0, 2, "again"), rows(Q1, 0, 3, "again")) == 0
        assert [row[:2] for row in stored()] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]

    def test_it_is_known_how_it_stands_before_a_query_and_with_every_batch(self, sink: Sink) -> None:
        """H7: of a queue without rows, too, and of the generation that is asked about only;
        the same in every run.
        """
        [*before] = sink.standings(GROUP, {Q0: 0})
        run(sink, {Q0: 2, Q1: 3}, rows(Q0, 0, 2))

        now = sink.standings(GROUP, {Q0: 0, Q1: 0})

        assert [each[:2] for each in now] == [each[:2] for each in before]
        assert all(each.identity is not None for each in now)
        assert [each.watermarks for each in now] == [{Q0: 2, Q1: 3}] * len(now)
        assert list(sink.begin(GROUP, {Q0: 0, Q1: 0}).standings) == list(now)
        for each in sink.standings(GROUP, {Q0: 1}):
            assert not each.watermarks.get(Q0)

    @pytest.mark.parametrize("queue", [Q0, Q1], ids=["behind", "absent"])
    def test_offsets_ahead_of_the_watermarks_are_reported(self, sink: Sink, queue: MessageQueue) -> None:
        """H7: it was set back, restored, or failed over to a replica;
        what a reset has passed is not meant.
        """
        run(sink, {Q0: 2}, rows(Q0, 0, 2))
        standings = sink.begin(GROUP, {Q0: 0, Q1: 0}).standings
        store = MemoryOffsetStore("ahead", clock=FakeClock())
        [row] = store.claim(GROUP, "me", {queue: 0}).values()
        passed = QueueCommit(queue=queue, state=QueueState(9, row.epoch), sinks=recorded_sinks(standings))
        store.commit(GROUP, [passed], query_id="q", batch_id=1)

        with pytest.raises(SinkSetBack, match=f"the sink is at {2 if queue == Q0 else 0}, the group at 9"):
            check_has_all(GROUP, store.read(GROUP), standings, store="delta:/lake/_offsets")

        store.reset(GROUP, {queue: 9})
        check_has_all(GROUP, store.read(GROUP), standings, store="delta:/lake/_offsets")

    @pytest.mark.parametrize("acked", [{}, {Q0: 0}])
    def test_rows_without_progress_are_refused(
        self, sink: Sink, stored: Stored, acked: dict[MessageQueue, int]
    ) -> None:
        """H1: they would be written again."""
        batch = sink.begin(GROUP, {Q0: 0})
        written = written_by(batch, rows(Q0, 0, 3))

        with pytest.raises(OffsetError, match="already has the rows of all acknowledged messages"):
            batch.commit(written, acked)
        assert stored() == []

    def test_rows_of_a_queue_that_was_not_named_are_refused(self, sink: Sink) -> None:
        """H1: whether they are there is not known."""
        with pytest.raises(SchemaError, match="the queue is not part of this batch"):
            written_by(sink.begin(GROUP, {Q0: 0}), rows(Q1, 0, 1))

    def test_acknowledging_a_queue_that_was_not_named_is_refused(self, sink: Sink) -> None:
        """H1"""
        with pytest.raises(OffsetError, match="not named when the batch"):
            sink.begin(GROUP, {Q0: 0}).commit([], {Q1: 4})

    def test_rows_of_offsets_that_begin_again_are_written(self, sink: Sink, stored: Stored) -> None:
        """F4, H1: a topic made again has other messages under the same offsets."""
        run(sink, {Q0: 4, Q1: 2}, rows(Q0, 0, 4, "old"), rows(Q1, 0, 2))

        assert run(sink, {Q0: 2}, rows(Q0, 0, 2, "new"), generations={Q0: 1, Q1: 0}) == 2
        assert (
            run(sink, {Q0: 3, Q1: 2}, rows(Q0, 0, 3, "new"), rows(Q1, 0, 2), generations={Q0: 1, Q1: 0}) == 1
        )

        steps = [step for queue_id, _, step in stored() if queue_id == 0]
        assert (steps.count("old"), steps.count("new")) == (4, 3)
        assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 1): 3, QueueGeneration(Q1, 0): 2}

    def test_the_newest_message_of_each_queue_is_kept_beside_its_watermark(self, sink: Sink) -> None:
        """H10: each commit carries on those of queues that stood still, and of ranges without a message."""
        with_newest(sink, {Q0: 2, Q1: 5}, {Q0: "[1,1001,64]", Q1: "[4,1004,900]"})
        with_newest(sink, {Q0: 3}, {Q0: "[2,1002,128]"})
        with_newest(sink, {Q0: 4}, {Q0: ""})

        assert newest_in(sink, {Q0: 0, Q1: 0}) == {Q0: "[2,1002,128]", Q1: "[4,1004,900]"}
        assert newest_in(sink, {Q0: 1, Q1: 0}).get(Q0) is None

    def test_a_queue_that_begins_again_has_no_message_of_the_generation_before(self, sink: Sink) -> None:
        """H10"""
        with_newest(sink, {Q0: 2, Q1: 1}, {Q0: "[1,1001,64]", Q1: "[0,1000,32]"})
        again = {Q0: 1, Q1: 0}
        with_newest(sink, {Q0: 1}, {Q0: ""}, again)
        assert newest_in(sink, again) == {Q1: "[0,1000,32]"}
        with_newest(sink, {Q0: 2}, {Q0: "[1,2001,512]"}, again)

        assert newest_in(sink, again) == {Q0: "[1,2001,512]", Q1: "[0,1000,32]"}


def with_newest(
    sink: Sink,
    acked: dict[MessageQueue, int],
    newest: Mapping[MessageQueue, str],
    generations: Mapping[MessageQueue, int] = MappingProxyType({Q0: 0, Q1: 0}),
) -> None:
    """One micro-batch without rows, and the newest message of each queue."""
    batch = sink.begin(GROUP, generations)
    note_newest(batch, newest)
    batch.commit((), acked)


def newest_in(sink: Sink, generations: Mapping[MessageQueue, int]) -> dict[MessageQueue, str]:
    """Return the value that all sinks in ``sink`` have in common."""
    first, *others = (dict(standing.newest) for standing in sink.standings(GROUP, generations))
    assert all(each == first for each in others)
    return first


def steps_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """As the fixture ``stored`` gives them."""
    columns: Sequence[list[Any]] = [
        table.column(name).to_pylist() for name in ("queueId", "queueOffset", "step")
    ]
    return sorted(zip(*columns, strict=True))
