"""The promises of a sink whose batches commit several groups of parts, one after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import CommitsGroups, LeavesOutQueues, Sink, Span, note_newest
from tests.helpers.sink_rows import GROUP, Q0, Q1
from tests.sinks.sink_conformance import SinkConformance, Stored, newest_in, rows, run, task_rows, written_by

BOTH = {Q0: 0, Q1: 0}


class Batch:
    """A batch that has begun, and the groups that it commits."""

    def __init__(self, sink: Sink) -> None:
        self.begun = sink.begin(GROUP, BOTH)

    def write(self, *batches: pa.RecordBatch) -> Sequence[Any]:
        """Return what a task has written; an attempt begins with the watermarks of the batch."""
        return written_by(self.begun, *batches)

    def commit(
        self, group_id: str, spans: dict[MessageQueue, tuple[int, int]], written: Sequence[Any]
    ) -> None:
        assert isinstance(self.begun, CommitsGroups)
        self.begun.commit_group(written, {queue: Span(*span) for queue, span in spans.items()}, group_id)

    def consume(self, queue: MessageQueue, start: int, end: int, step: str = "created") -> None:
        """Write and commit a row for each message."""
        self.commit(f"{queue} {end}", {queue: (start, end)}, self.write(rows(queue, start, end, step)))


def offsets_of(stored: Stored, queue: MessageQueue) -> list[int]:
    return [offset for queue_id, offset, _ in stored() if queue_id == queue.queue_id]


class GroupConformance(SinkConformance):
    """Subclasses have the fixtures of ``SinkConformance``."""

    def test_groups_are_added_one_after_the_other(self, sink: Sink, stored: Stored) -> None:
        """H1: each is visible when it is made, of the same queue and of others."""
        batch = Batch(sink)

        batch.consume(Q0, 0, 2)
        assert offsets_of(stored, Q0) == [0, 1]
        batch.commit("both", {Q0: (2, 5), Q1: (0, 1)}, batch.write(rows(Q0, 2, 5), rows(Q1, 0, 1)))
        batch.consume(Q0, 5, 6)

        assert (offsets_of(stored, Q0), offsets_of(stored, Q1)) == ([0, 1, 2, 3, 4, 5], [0])
        assert run(sink, {Q0: 7, Q1: 1}, rows(Q0, 0, 7), rows(Q1, 0, 1)) == 1, "the next batch goes on"

    def test_a_repeated_group_changes_nothing(self, sink: Sink, stored: Stored) -> None:
        """H1: its offsets could not be stored."""
        batch = Batch(sink)
        batch.consume(Q0, 0, 2)
        written = batch.write(rows(Q0, 2, 4))

        for _ in range(3):
            batch.commit("second", {Q0: (2, 4)}, written)
        batch.consume(Q0, 4, 5)

        assert offsets_of(stored, Q0) == [0, 1, 2, 3, 4]

    def test_rows_that_another_attempt_of_the_task_wrote_are_refused(
        self, sink: Sink, stored: Stored
    ) -> None:
        """H1: its writer knows the watermarks of the batch's beginning only."""
        batch = Batch(sink)
        batch.consume(Q0, 0, 3)
        again = batch.write(rows(Q0, 0, 5, "again"), rows(Q1, 0, 1))

        with pytest.raises(SinkMoved, match="from offset 0 on, after a commit up to 3") as refused:
            batch.commit("again", {Q0: (0, 5), Q1: (0, 1)}, again)
        assert refused.value.queues == {Q0}
        with pytest.raises(SinkMoved, match="do not follow"):
            batch.begun.commit(again, {Q0: 5, Q1: 1})

        assert [step for *_, step in stored()] == ["created"] * 3
        batch.consume(Q1, 0, 1)
        batch.consume(Q0, 3, 4)
        assert (offsets_of(stored, Q0), offsets_of(stored, Q1)) == ([0, 1, 2, 3], [0])

    def test_an_attempt_that_gets_less_far_is_refused(self, sink: Sink, stored: Stored) -> None:
        """H1"""
        batch = Batch(sink)
        batch.consume(Q0, 0, 3)

        with pytest.raises(SinkMoved, match="do not follow"):
            batch.commit("again", {Q0: (0, 2)}, batch.write(rows(Q0, 0, 2, "again")))
        batch.commit("nothing", {Q0: (0, 0), Q1: (0, 1)}, batch.write(rows(Q1, 0, 1)))

        assert (offsets_of(stored, Q0), offsets_of(stored, Q1)) == ([0, 1, 2], [0])

    def test_rows_behind_a_gap_are_refused(self, sink: Sink, stored: Stored) -> None:
        """H1: the part between them is lost, or still to come."""
        batch = Batch(sink)
        batch.consume(Q0, 0, 2)

        with pytest.raises(SinkMoved, match="from offset 4 on, after a commit up to 2"):
            batch.consume(Q0, 4, 6)

        assert offsets_of(stored, Q0) == [0, 1]

    def test_a_batch_may_begin_above_the_watermark_and_below_it(self, sink: Sink, stored: Stored) -> None:
        """F5, H1: after a reset; and where the sink is ahead of the offsets."""
        run(sink, {Q0: 4}, rows(Q0, 0, 4))
        batch = Batch(sink)

        batch.commit("one", {Q0: (0, 3), Q1: (7, 9)}, batch.write(rows(Q0, 0, 3, "again"), rows(Q1, 7, 9)))
        batch.commit("two", {Q0: (3, 6), Q1: (9, 10)}, batch.write(rows(Q0, 3, 6), rows(Q1, 9, 10)))
        batch.consume(Q0, 6, 7)

        assert (offsets_of(stored, Q0), offsets_of(stored, Q1)) == ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])
        assert {step for *_, step in stored()} == {"created"}

    def test_a_queue_that_another_consumer_moved_between_two_groups_is_named(
        self, sink: Sink, stored: Stored
    ) -> None:
        """C5, H5: and the group goes on without it, under its id."""
        batch = Batch(sink)
        batch.consume(Q0, 0, 2)
        run(sink, {Q0: 4}, rows(Q0, 2, 4, "other"))
        mine, moved = batch.write(rows(Q1, 0, 3)), batch.write(rows(Q0, 2, 3, "late"))

        with pytest.raises(SinkMoved, match="Another consumer of group") as refused:
            batch.commit("late", {Q0: (2, 3), Q1: (0, 3)}, [*mine, *moved])
        assert refused.value.queues == {Q0}
        assert offsets_of(stored, Q1) == []
        batch.commit("late", {Q1: (0, 3)}, mine)
        with pytest.raises(SinkMoved, match=r"was made without the rows of .* refused") as again:
            batch.commit("late", {Q0: (2, 5), Q1: (0, 3)}, [*mine, *moved])
        assert again.value.queues == {Q0}, "a repeated group is not reported as done with them"
        batch.consume(Q1, 3, 4)

        assert (offsets_of(stored, Q0), offsets_of(stored, Q1)) == ([0, 1, 2, 3], [0, 1, 2, 3])
        assert "late" not in {step for *_, step in stored()}

    def test_commits_of_other_members_between_two_groups_do_no_harm(self, sink: Sink, stored: Stored) -> None:
        """H5: of other queues, and of other groups."""
        batch = Batch(sink)
        batch.consume(Q0, 0, 2)
        run(sink, {Q1: 2}, rows(Q1, 0, 2))
        run(sink, {Q0: 1}, rows(Q0, 0, 1, "audit"), group="audit")
        batch.consume(Q0, 2, 4)
        batch.consume(Q0, 4, 5)

        assert [step for *_, step in stored()].count("created") == 7
        assert run(sink, {Q0: 5, Q1: 2}, rows(Q0, 0, 5), rows(Q1, 0, 2)) == 0

    def test_the_newest_message_is_that_of_the_last_group(self, sink: Sink) -> None:
        """H10"""
        batch = Batch(sink)
        for number, (end, newest) in enumerate([(2, "[1,1001,64]"), (3, ""), (5, "[4,1004,900]"), (6, "")]):
            note_newest(batch.begun, {Q0: newest})
            batch.commit(str(number), {Q0: (0 if number == 0 else (2, 3, 5)[number - 1], end)}, ())

        assert newest_in(sink, BOTH)[Q0] == "[4,1004,900]"

    def test_rows_of_a_queue_can_be_left_out(self, sink: Sink, stored: Stored) -> None:
        """C5: its task has put them into one file with others."""
        batch = Batch(sink)
        done = task_rows(batch.begun, rows(Q0, 0, 3), rows(Q1, 0, 2), rows(Q0, 3, 4))
        assert isinstance(batch.begun, LeavesOutQueues)

        _, none = batch.begun.without(done.written, ())
        kept, removed = batch.begun.without(done.written, {Q0})
        nothing, all_of_them = batch.begun.without(done.written, {Q0, Q1})

        assert (none, removed, all_of_them) == (0, 4, 6)
        assert list(nothing) == []
        assert json.loads(json.dumps([each.to_dict() for each in kept])) == [each.to_dict() for each in kept]
        batch.commit("kept", {Q1: (0, 2)}, kept)
        assert stored() == [(1, 0, "created"), (1, 1, "created")]
        batch.consume(Q0, 0, 1)
        assert offsets_of(stored, Q0) == [0]
