"""The order of a micro-batch on the driver, with the Spark job,
the sink and the store played by one recorder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pyspark_rocketmq.commit.pipeline import BatchListener, BatchReport, Mirror
from pyspark_rocketmq.consume.metrics import ConsumeMetrics, status_of
from pyspark_rocketmq.consume.part import Part, QueueAck
from pyspark_rocketmq.consumer import batch as module
from pyspark_rocketmq.consumer.batch import BatchRunner, Job
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.errors import (
    OffsetCommitConflict,
    OffsetError,
    SchemaError,
    SinkConflict,
    SinkMoved,
    SinkSetBack,
)
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import CommitResult, LastSkipped, OffsetRow, QueueCommit
from pyspark_rocketmq.sinks.against_offsets import SinkStanding
from tests.helpers import stored_texts
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import QUEUE

GROUP = "order-etl"
FILE = WrittenFile(path="a.parquet", size=10, num_records=7, stats_json="{}", partition_values={})
ACK = QueueAck(
    queue=QUEUE,
    state=QueueState(
        7, 1, reconsume_times=2, suspended_until_s=1_500.0, retry_counts=stored_texts.retries("[[7,9,2]]")
    ),
    start=0,
    consumed=7,
    failed=1,
    finished="SUSPENDED",
    metrics=ConsumeMetrics(7, 1, 4, 80.0, 7, 2, 3.0),
)


class RecordingStore(MemoryOffsetStore):
    def __init__(self, done: list[str]) -> None:
        super().__init__("committer-test", clock=FakeClock())
        self._done = done
        self.commits: list[QueueCommit] = []
        self.claim(GROUP, "me", {QUEUE: 0})

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        self._done.append("offsets")
        self.commits += commits
        return super().commit(consumer_group, commits, query_id=query_id, batch_id=batch_id)

    @property
    def row(self) -> OffsetRow:
        return self.read(GROUP)[QUEUE]


class PlayedSink:
    """The sink's side of a batch that is played."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.begin = batch.begin

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> tuple[SinkStanding, ...]:
        newest = {QUEUE: self._batch.newest} if self._batch.newest else {}
        return tuple(each._replace(newest=newest) for each in self._batch.standings)


class Batch:
    """Plays the batch's job and the sink; ``done`` is what happened, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *acks: QueueAck) -> None:
        self.done: list[str] = []
        self.reports: list[BatchReport] = []
        self.mirrored: list[QueueCommit] = []
        self.store = RecordingStore(self.done)
        self.sink_error: Exception | None = None
        self.begin_error: Exception | None = None
        self.watermark = 0
        self.newest = ""
        self._part = Part(id="part", acks=acks, written=(FILE.to_dict(),), emitted=9, left_out=2)
        monkeypatch.setattr(module, "run_job", lambda batch, writer, engine, terms=None: self.run())

    def run(self) -> Job:
        self.done.append("evaluate")
        return Job([self._part], None)

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Batch:
        assert list(queues) == [QUEUE]
        if self.begin_error is not None:
            raise self.begin_error
        return self

    @property
    def standings(self) -> tuple[SinkStanding, ...]:
        return (SinkStanding("/lake/orders", "table-1", {QUEUE: self.watermark}),)

    def task_writer(self) -> Batch:
        return self

    def written(self, facts: Mapping[str, Any]) -> WrittenFile:
        return WrittenFile(**facts)

    def commit(self, files: Sequence[WrittenFile], acked: Mapping[MessageQueue, int]) -> int:
        if self.sink_error is not None:
            raise self.sink_error
        assert (files, acked) == ((FILE,), {QUEUE: 7})
        self.done.append("data")
        return 4

    def listen(self, report: BatchReport) -> None:
        self.done.append("listener")
        self.reports.append(report)

    def show(self, accepted: Sequence[QueueCommit]) -> None:
        self.done.append("mirror")
        self.mirrored += accepted

    def await_shown(self, accepted: Sequence[QueueCommit], timeout_s: float) -> bool:
        return True

    def arrived(self, queue: MessageQueue) -> int | None:
        return 6

    def commit_it(self, *others: BatchListener, with_sink: bool = True, mirror: Mirror | None = None) -> None:
        self.committer = BatchRunner(
            consumer_group=GROUP,
            store=self.store,
            sink=PlayedSink(self) if with_sink else None,  # type: ignore[arg-type]
            query_id=lambda: "query",
            listeners=[*others, self.listen],
            mirror=mirror,
        )
        self.committer(None, 3)  # type: ignore[arg-type]


def test_data_come_before_offsets_and_listeners_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: killed in between, the batch runs again and the sink drops what it has.

    D11: metrics go with the offsets.
    """
    batch = Batch(monkeypatch, ACK)

    batch.commit_it()

    assert batch.done == ["evaluate", "data", "offsets", "listener"]
    row = batch.store.row
    assert (row.next_offset, row.state.reconsume_times, row.state.suspended_until_s) == (7, 2, 1_500.0)
    assert row.state.retry_counts.to_text() == "[[7,9,2]]"
    status = status_of([row.statistics], time.time())
    assert (status.consume_rt, status.pull_rt, status.consume_failed_msgs) == (20.0, 1.5, 1)
    assert status.consume_ok_tps == pytest.approx(0.7)
    assert (row.query_id, row.batch_id) == ("query", 3)
    [report] = batch.reports
    assert (report.acks, report.rows, report.sink_version, report.refused) == ((ACK,), 7, 4, ())


def test_the_report_says_where_all_queues_of_this_member_are_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B5, H5: those with a part in the batch after it, a suspended one as it was."""
    waiting, foreign = (QUEUE._replace(queue_id=number) for number in (4, 5))
    batch = Batch(monkeypatch, ACK)
    batch.store.claim(GROUP, "me", {waiting: 3})
    batch.store.claim(GROUP, "somebody else", {foreign: 9})

    batch.commit_it(with_sink=False)

    [report] = batch.reports
    assert [(row.queue, row.next_offset, row.state.reconsume_times) for row in report.offsets] == [
        (QUEUE, 7, 2),
        (waiting, 3, 0),
    ]
    assert report.offsets[0].state.suspended_until_s == 1_500.0


def test_without_a_sink_only_offsets_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(monkeypatch, ACK)

    batch.commit_it(with_sink=False)

    assert batch.done == ["evaluate", "offsets", "listener"]
    assert batch.reports[0].sink_version is None


def test_offsets_are_mirrored_after_the_store_accepted_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: data, offsets, mirror; the mirror is never ahead of the store."""
    batch = Batch(monkeypatch, ACK)

    batch.commit_it(mirror=batch)

    assert batch.done == ["evaluate", "data", "offsets", "mirror", "listener"]
    assert [(each.queue, each.state.epoch, each.state.next_offset) for each in batch.mirrored] == [
        (QUEUE, 1, 7)
    ]
    assert [(each.is_shown, each.arrived) for each in batch.mirrored] == [(True, 6)], (
        "remembered before it is sent"
    )


def test_offsets_that_the_store_refused_are_not_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """C5, F1: the queue is somebody else's."""
    batch = Batch(monkeypatch, ACK)
    batch.store.claim(GROUP, "somebody else", {QUEUE: 0})

    batch.commit_it(with_sink=False, mirror=batch)

    assert batch.mirrored == []


def test_a_mirror_that_fails_is_logged_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F1: it never fails a batch."""
    batch = Batch(monkeypatch, ACK)

    def fail(accepted: Sequence[QueueCommit]) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(batch, "show", fail)
    with caplog.at_level(logging.ERROR):
        batch.commit_it(mirror=batch)

    assert batch.done == ["evaluate", "data", "offsets", "listener"]
    assert "can't start new thread" in caplog.text


def test_a_reset_that_the_broker_reported_is_made_after_the_batch_is_committed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: the next plan begins there, under an epoch that fences off this batch."""
    batch = Batch(monkeypatch, replace(ACK, reset_to=2))

    with caplog.at_level(logging.WARNING):
        batch.commit_it(mirror=batch)

    assert batch.done == ["evaluate", "data", "offsets", "mirror", "listener"]
    row = batch.store.row
    assert (row.next_offset, row.epoch, row.state.suspended_until_s, row.was_reset) == (2, 2, None, True)
    # The planner reports the reset to the broker; the batch's offset would undo it.
    assert batch.mirrored == []
    assert f"offset reset by an operator group={GROUP} {QUEUE} target=2" in caplog.text


def test_a_queue_where_a_task_met_another_log_is_looked_at_before_more_of_it_is_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F4: it stays where it is, under an epoch at which planners look; no operator has moved it."""
    batch = Batch(monkeypatch, replace(ACK, is_another_log=True))

    with caplog.at_level(logging.WARNING):
        batch.commit_it(mirror=batch)

    row = batch.store.row
    assert (row.next_offset, row.epoch, row.was_reset_by_operator) == (7, 2, False)
    assert [each.is_shown for each in batch.store.commits] == [False]
    assert f"the planner checks the queue before more of it is read group={GROUP} {QUEUE}" in caplog.text


def test_a_queue_with_another_log_that_is_somebody_elses_by_now_is_theirs_to_look_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F4, C5"""
    batch = Batch(monkeypatch, replace(ACK, is_another_log=True))
    batch.store.claim(GROUP, "somebody else", {QUEUE: 0})

    batch.commit_it(with_sink=False)

    assert batch.store.row.epoch == 2


@pytest.mark.parametrize("with_sink", [True, False])
def test_a_reset_of_somebody_elses_queue_is_reported_and_not_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, with_sink: bool
) -> None:
    """F5, C5: it was meant for the position of before."""
    batch = Batch(monkeypatch, replace(ACK, reset_to=2))
    batch.store.claim(GROUP, "somebody else", {QUEUE: 0})

    with caplog.at_level(logging.WARNING):
        batch.commit_it(with_sink=with_sink)

    assert batch.store.row.epoch == 2
    assert "reset not followed" in caplog.text


def test_a_reset_is_made_although_another_queue_has_moved_and_the_batch_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F5: the broker reports it once."""
    other = QUEUE._replace(queue_id=QUEUE.queue_id + 1)
    batch = Batch(monkeypatch, ACK, replace(ACK, queue=other, reset_to=2))
    batch.store.claim(GROUP, "me", {other: 5})
    batch.store.claim(GROUP, "somebody else", {QUEUE: 0})
    monkeypatch.setattr(batch, "begin", lambda consumer_group, queues: batch)

    batch.commit_it()

    assert batch.done == ["evaluate"]
    assert batch.store.read(GROUP)[other].next_offset == 2


@pytest.mark.parametrize("failing", ["commit", "reset"])
def test_a_failed_batch_reports_the_reset_that_is_lost_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    """F5: the broker reports it once, so that the next run of the batch knows nothing of it."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OffsetCommitConflict("another writer")

    batch = Batch(monkeypatch, replace(ACK, reset_to=2))
    monkeypatch.setattr(batch.store, failing, fail)

    with pytest.raises(OffsetCommitConflict):
        batch.commit_it()

    assert (
        f"reset may not have been followed, the batch failed; reset it again if still wanted group={GROUP} "
        f"{QUEUE} target=2" in caplog.text
    )


def test_an_empty_batch_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(monkeypatch)

    batch.commit_it()

    assert batch.done == ["evaluate"]


def test_a_sink_that_fails_does_not_change_the_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: the offsets are never ahead of the data."""
    batch = Batch(monkeypatch, ACK)
    batch.sink_error = SinkConflict("another consumer")

    with pytest.raises(SinkConflict):
        batch.commit_it()

    assert batch.done == ["evaluate"]
    assert batch.store.row.next_offset == 0


def test_a_batch_whose_rows_another_consumer_wrote_is_dropped_and_the_query_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C5, H5: a former owner held up before its commit must not end the query of the owner,
    nor the other way round.
    """
    batch = Batch(monkeypatch, ACK)
    batch.sink_error = SinkMoved("another consumer wrote these rows")

    with caplog.at_level(logging.WARNING):
        batch.commit_it()

    assert batch.done == ["evaluate"]
    assert batch.store.row.next_offset == 0
    assert f"batch dropped group={GROUP}: another consumer wrote these rows" in caplog.text


def test_a_batch_whose_rows_another_consumer_wrote_is_planned_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H4, H10: under another epoch. Else a drain would end, and a query rest for a minute, as for a listener
    that commits nothing; and nobody has looked at the messages that the other one wrote.
    """
    batch = Batch(monkeypatch, ACK)
    epoch = batch.store.row.epoch

    def moved(*_: object) -> int:
        batch.watermark, batch.newest = 7, "[6,1006,384]"
        raise SinkMoved("another consumer wrote these rows")

    monkeypatch.setattr(batch, "commit", moved)
    batch.commit_it()

    assert batch.done == ["evaluate"]
    assert (batch.store.row.next_offset, batch.store.row.epoch) == (0, epoch + 1)
    assert batch.store.row.state.last_message.to_text() == "[6,1006,384]"


@pytest.mark.parametrize("newest", ["[6,1006,384]", ""], ids=["known", "of an earlier release"])
def test_a_batch_is_dropped_whose_sink_has_messages_that_nobody_looked_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, newest: str
) -> None:
    """F4, H10: another member was killed between data and offsets; the planner looks at them first."""
    batch = Batch(monkeypatch, ACK)
    batch.watermark, batch.newest = 7, newest
    epoch = batch.store.row.epoch

    with caplog.at_level(logging.INFO):
        batch.commit_it()

    assert batch.done == ["evaluate"]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == [], "ordinary after a kill"
    assert (batch.store.row.next_offset, batch.store.row.epoch) == (0, epoch + 1)
    assert batch.store.row.state.last_message.to_text() == (newest or "[6,0,-1]")
    assert "the sink is ahead of the offsets" in caplog.text


def test_a_batch_is_committed_when_the_newest_message_of_the_sink_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F4, H10: the rows that the sink has are left out."""
    batch = Batch(monkeypatch, ACK)
    batch.watermark, batch.newest = 6, "[5,1005,320]"
    batch.store.note_passed(
        GROUP, {QUEUE: LastSkipped(batch.store.row.epoch, stored_texts.messages(batch.newest))}
    )

    batch.commit_it()

    assert batch.done == ["evaluate", "data", "offsets", "listener"]


def test_a_sink_behind_the_offsets_ends_the_query_before_anything_is_consumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H7: restored or failed over while the query runs."""
    batch = Batch(monkeypatch, ACK)
    batch.commit_it()
    assert batch.store.row.sinks.to_text() == '{"/lake/orders": "table-1"}'
    batch.watermark = 5

    with pytest.raises(SinkSetBack, match="the sink is at 5, the group at 7"):
        batch.commit_it()

    assert batch.done == ["evaluate", "data", "offsets", "listener"]


@pytest.mark.parametrize(("at", "said"), [(5, "the sink is at 5, the group at 7"), (7, "no table")])
def test_a_sink_in_which_no_batch_can_begin_is_looked_at_for_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, at: int, said: str
) -> None:
    """H7: its table was deleted or replaced under the query; the ways forward are named at once."""
    batch = Batch(monkeypatch, ACK)
    batch.commit_it()
    batch.watermark, batch.begin_error = at, SchemaError("no table")

    with pytest.raises((SinkSetBack, SchemaError), match=said):
        batch.commit_it()

    assert batch.done == ["evaluate", "data", "offsets", "listener"]


def test_a_store_that_is_put_back_between_two_batches_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """H2: to what the planner saw last, so that only who has stored since can know."""
    batch = Batch(monkeypatch, ACK)
    earlier = batch.store.read(GROUP)
    batch.commit_it()
    committer = batch.committer
    monkeypatch.setattr(batch.store, "read", lambda _: dict(earlier))

    with pytest.raises(OffsetError, match="was at 7 and is at 0, both in epoch 1"):
        committer(None, 4)  # type: ignore[arg-type]

    assert batch.done == ["evaluate", "data", "offsets", "listener"]


def test_without_a_sink_rows_remember_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """H7: a sink that is added later need not have what was consumed before."""
    batch = Batch(monkeypatch, ACK)

    batch.commit_it(with_sink=False)

    assert batch.store.row.sinks.to_text() == ""


def test_a_store_that_fails_is_the_batchs_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: Spark runs the batch again, and the sink knows its rows."""
    batch = Batch(monkeypatch, ACK)

    def fail(*_: Any, **__: Any) -> CommitResult:
        raise OffsetCommitConflict("others kept winning")

    monkeypatch.setattr(batch.store, "commit", fail)

    with pytest.raises(OffsetCommitConflict):
        batch.commit_it()
    assert batch.done == ["evaluate", "data"]


def test_a_refused_commit_is_reported_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C5: the queue was claimed by somebody else, and what this batch knows of it counts no more."""
    batch = Batch(monkeypatch, ACK)
    batch.store.claim(GROUP, "somebody else", {QUEUE: 0})

    with caplog.at_level(logging.WARNING):
        batch.commit_it(with_sink=False)

    [refused] = batch.reports[0].refused
    assert (refused.queue, refused.state.epoch) == (QUEUE, 1)
    assert "commit refused, the queue was claimed or reset by somebody else" in caplog.text
    assert f"{QUEUE} epoch=1 next_offset=7" in caplog.text
    assert batch.store.row.next_offset == 0


def test_a_batch_listener_that_raises_is_logged_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything is committed by then, and the other listeners are notified too."""
    batch = Batch(monkeypatch, ACK)

    def fail(report: BatchReport) -> None:
        raise ValueError("the dashboard is away")

    with caplog.at_level(logging.ERROR):
        batch.commit_it(fail)

    assert batch.done == ["evaluate", "data", "offsets", "listener"]
    assert batch.store.row.next_offset == 7
    assert "the dashboard is away" in caplog.text
    assert f"group={GROUP} batch=3" in caplog.text
