"""Parts of one batch, committed one by one or many at once, without Spark and without a job."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from pyspark_rocketmq.commit.pipeline import BatchReport, BatchUnderCommit, GroupResult, PartCommitter
from pyspark_rocketmq.consume.part import Group, Part, QueueAck, not_begun
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.recorded_sinks import NO_SINKS
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.sinks.against_offsets import SinkStanding
from tests.helpers.fake_clock import FakeClock
from tests.helpers.offsets_at_brokers import OffsetsAtBrokers

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
GROUP = "order-etl"


class Lines:
    """Plays a sink, its batch and its writer; keeps what each commit has added."""

    def __init__(self) -> None:
        self.commits: list[tuple[list[str], dict[MessageQueue, int]]] = []

    @property
    def place(self) -> Hashable:
        return "lines"

    @property
    def standings(self) -> Sequence[SinkStanding]:
        return ()

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Lines:
        return self

    def task_writer(self) -> Lines:
        return self

    def written(self, facts: Mapping[str, Any]) -> str:
        return f"rebuilt {facts['line']}"

    def commit(self, written: Sequence[str], acked: Mapping[MessageQueue, int]) -> int:
        self.commits.append((list(written), dict(acked)))
        return len(self.commits)


class Query:
    """A query with three queues, in a batch that has begun."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.store = MemoryOffsetStore("pipeline-test", clock=clock)
        self.store.claim(GROUP, "me", dict.fromkeys((A, B, C), 0))
        self.sink = Lines()
        self.reports: list[BatchReport] = []
        self.committer = PartCommitter(
            consumer_group=GROUP,
            store=self.store,
            sink=self.sink,  # type: ignore[arg-type]
            listeners=[self.reports.append],
            mirror=None,
            clock=clock,
        )
        self.batch: BatchUnderCommit = self.committer.begin("query", 3)

    def offsets(self) -> dict[MessageQueue, int]:
        return {queue: row.next_offset for queue, row in self.store.read(GROUP).items()}


def part(line: str, *queues: MessageQueue, end: int = 7) -> Part:
    """A part with one written line, in which ``end`` messages of each queue were consumed."""
    acks = tuple(
        QueueAck(queue=queue, start=0, state=QueueState(end, 1), consumed=end, failed=0, finished="EXHAUSTED")
        for queue in queues
    )
    return Part(id=line, acks=acks, written=({"line": line},), emitted=end, left_out=1)


def test_parts_of_a_batch_are_one_commit_of_data_and_one_of_offsets() -> None:
    """H1"""
    query = Query()

    query.committer.commit_group(
        Group(
            (
                part("one", B),
                part("two", A, C),
            )
        ),
        query.batch,
    )

    assert query.sink.commits == [(["rebuilt one", "rebuilt two"], {A: 7, B: 7, C: 7})]
    assert query.offsets() == {A: 7, B: 7, C: 7}
    [report] = query.reports
    assert [ack.queue for ack in report.acks] == [A, B, C]
    assert (report.rows, report.left_out, report.sink_version) == (12, 2, 1)


def test_a_part_that_is_handed_over_is_committed_before_the_rest_of_its_batch() -> None:
    """B5, H1: each commit has its report."""
    query = Query()

    query.committer.commit_group(Group((part("ahead", B),)), query.batch)
    assert query.offsets() == {A: 0, B: 7, C: 0}
    query.committer.commit_group(Group((part("rest", A, C),)), query.batch)

    assert [lines for lines, _ in query.sink.commits] == [["rebuilt ahead"], ["rebuilt rest"]]
    assert query.offsets() == {A: 7, B: 7, C: 7}
    assert [report.sink_version for report in query.reports] == [1, 2]


def test_only_the_part_whose_queue_has_moved_is_dropped() -> None:
    """C5: its rows are in files of their own."""
    query = Query()
    query.store.claim(GROUP, "somebody else", {A: 0})

    query.committer.commit_group(
        Group(
            (
                part("one", A, B),
                part("two", C),
            )
        ),
        query.batch,
    )

    assert query.sink.commits == [(["rebuilt two"], {C: 7})]
    assert query.offsets() == {A: 0, B: 0, C: 7}


def test_without_parts_nothing_is_committed_or_reported() -> None:
    query = Query()

    assert query.committer.commit_group(Group(()), query.batch) == GroupResult()
    assert (query.sink.commits, query.reports) == ([], [])


def test_a_batch_without_a_sink_commits_only_offsets() -> None:
    query = Query()
    batch = BatchUnderCommit("query", 3, sink=None)

    query.committer.commit_group(Group((part("one", A),)), batch)

    assert query.sink.commits == []
    assert query.offsets() == {A: 7, B: 0, C: 0}
    assert query.reports[0].sink_version is None


class Shown:
    """Plays the copy of the offsets at the brokers."""

    def __init__(self) -> None:
        self.queues: list[MessageQueue] = []

    def show(self, accepted: Sequence[QueueCommit]) -> None:
        self.queues += [commit.queue for commit in accepted]

    def await_shown(self, accepted: Sequence[QueueCommit], timeout_s: float) -> bool:
        return True

    def arrived(self, queue: MessageQueue) -> int | None:
        return None


def test_a_range_that_was_not_begun_may_go_on_and_its_broker_gets_no_offset() -> None:
    """F1, D4: its task could not ask, so the queue may have gone to a Java member already."""
    query, shown = Query(), Shown()
    committer = PartCommitter(
        consumer_group=GROUP, store=query.store, sink=None, listeners=[], mirror=shown, clock=FakeClock()
    )
    untouched = Part(id="untouched", acks=(not_begun(QueueRange.between(B, 0, 7, epoch=1), 100.0),))

    committer.commit_group(Group((part("one", A), untouched)), committer.begin("query", 3))

    rows = query.store.read(GROUP)
    assert rows[B].state == QueueState(0, 1, suspended_until_s=100.0)
    assert (rows[A].shown.offsets, rows[B].shown.offsets) == ((7,), ())
    assert shown.queues == [A]


def test_a_range_that_was_not_begun_moves_no_watermark() -> None:
    """H7: a sink that is new to the group would count messages as its own that it has never had."""
    query = Query()
    untouched = Part(id="untouched", acks=(not_begun(QueueRange.between(B, 5, 7, epoch=1), 100.0),))

    query.committer.commit_group(Group((part("one", A), untouched)), query.batch)
    query.committer.commit_group(Group((untouched,)), query.batch)

    assert [acked for _, acked in query.sink.commits] == [{A: 7}]
    assert query.store.read(GROUP)[B].sinks == NO_SINKS


def test_a_broker_that_goes_away_under_a_batch_does_not_end_the_query() -> None:
    """A8, F1: without a sink, where brokers keep the offsets; the other broker has what was consumed there."""
    at_b = MessageQueue("T", "broker-b", 0)
    brokers = OffsetsAtBrokers(GROUP)
    brokers.offsets = {A: 0, at_b: 0}
    committer = PartCommitter(
        consumer_group=GROUP,
        store=BrokerOffsetStore(brokers),
        sink=None,
        listeners=[],
        mirror=None,
        clock=FakeClock(),
    )
    batch = committer.begin("query", 0)
    brokers.down = {"broker-b"}

    result = committer.commit_group(Group((part("one", A, at_b),)), batch)
    assert ({stored.queue for stored in result.stored}, result.refused) == ({A, at_b}, frozenset())
    assert brokers.offsets == {A: 7, at_b: 0}
    committer.commit_group(Group((part("two", A, end=9),)), committer.begin("query", 1))
    assert brokers.offsets == {A: 9, at_b: 0}
    brokers.down.clear()
    committer.begin("query", 2)
    assert brokers.offsets == {A: 9, at_b: 7}
