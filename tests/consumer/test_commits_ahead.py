"""A micro-batch on the driver whose tasks hand parts over while its job runs; hub and job are played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.latencies import LatencyHistogram, StoreLatencies
from pyspark_rocketmq.consume.part import Group, Part, QueueAck
from pyspark_rocketmq.consumer import batch as module
from pyspark_rocketmq.consumer.batch import BatchRunner, Job
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub.driver_end import BatchEnd, MakeCommit
from pyspark_rocketmq.hub.state import Commit
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from tests.helpers.fake_clock import FakeClock

GROUP = "order-etl"
A, B = (MessageQueue("T", "broker-a", number) for number in range(2))
NONE: frozenset[MessageQueue] = frozenset()


def part(queue: MessageQueue, start: int, stop: int, epoch: int = 1) -> Part:
    ack = QueueAck(
        queue=queue,
        start=start,
        state=QueueState(stop, epoch),
        consumed=stop - start,
        failed=0,
        finished="GOING_ON",
    )
    return Part(id=f"{queue.queue_id}-{start}", acks=(ack,))


class Played:
    """Plays hub, job and mirror."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.done: list[str] = []
        self.awaited: list[dict[MessageQueue, int]] = []
        self.reports: list[BatchReport] = []
        self.store = MemoryOffsetStore("commits-ahead", clock=FakeClock())
        self.store.claim(GROUP, "me", {A: 0, B: 0})
        self.failure: RocketMQError | None = None
        self.on_report: Callable[[], None] = lambda: None
        self.commit: MakeCommit | None = None
        self.job: Callable[[MakeCommit], Sequence[Part]] = lambda commit: []
        monkeypatch.setattr(module, "run_job", lambda batch, writer, engine, terms: self._run())
        self.runner = BatchRunner(
            consumer_group=GROUP,
            store=self.store,
            sink=None,
            query_id=lambda: "query",
            listeners=[self.reports.append, lambda _: self.on_report()],
            mirror=self,
            hub=self,  # type: ignore[arg-type]
            clock=self.clock,
        )

    def run(self, job: Callable[[MakeCommit], Sequence[Part]]) -> None:
        self.job = job
        self.runner(None, 3)  # type: ignore[arg-type]

    def _run(self) -> Job:
        assert self.commit is not None
        return Job(self.job(self.commit), could_ask=True, could_any_ask=True)

    # --- the hub --------------------------------------------------------------------------------------------

    def begin(self, batch_id: int, commit: MakeCommit) -> object:
        self.commit = commit
        return "terms"

    def end(self, parts: Sequence[Part], *, could_ask: bool | None, could_any_ask: bool) -> BatchEnd:
        self.done.append("end")
        return BatchEnd(7, Group(tuple(parts)) if parts else None, self.failure)

    def cut_short(self) -> None:
        self.done.append("cut short")

    def over(self, plan: int, is_shown: Callable[[], None]) -> None:
        self.done.append(f"over {plan}")
        is_shown()

    def failed(self) -> None:
        self.done.append("failed")

    # --- the mirror -----------------------------------------------------------------------------------------

    def show(self, accepted: Sequence[QueueCommit]) -> None:
        self.done.append("show")

    def await_shown(self, accepted: Sequence[QueueCommit], timeout_s: float) -> bool:
        self.awaited.append({commit.queue: commit.state.next_offset for commit in accepted})
        return True

    def arrived(self, queue: MessageQueue) -> int | None:
        return None

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        return {queue: row.next_offset for queue, row in self.store.read(GROUP).items()}


def test_groups_are_committed_while_the_job_runs_and_the_rest_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H1"""
    played = Played(monkeypatch)
    seen: list[dict[MessageQueue, int]] = []

    def job(commit: MakeCommit) -> list[Part]:
        for parts in ((part(A, 0, 3), part(B, 0, 4)), (part(A, 3, 5), part(A, 5, 6))):
            assert commit(Commit(Group(parts))).refused == NONE
            seen.append(played.offsets)
        return [part(B, 4, 9)]

    played.run(job)

    assert seen == [{A: 3, B: 4}, {A: 6, B: 4}]
    assert played.offsets == {A: 6, B: 9}
    assert [sorted(ack.start for ack in report.acks) for report in played.reports] == [[0, 0], [3], [4]]
    assert played.done == ["show", "show", "end", "show", "over 7"]


def test_an_error_for_which_the_query_ends_after_the_batch_leaves_nothing_uncommitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D1, H1: tasks that could not connect fail the query, but not those that could."""
    played = Played(monkeypatch)
    played.failure = RocketMQError("Tasks could not connect.")

    with pytest.raises(RocketMQError, match="could not connect"):
        played.run(lambda _: [part(A, 0, 3)])

    assert played.offsets == {A: 3, B: 0}
    assert played.done == ["end", "show", "over 7", "failed"]


def test_a_query_that_is_stopped_from_within_its_own_batch_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B7: the stop would wait for the batch, and the batch for the stop; on both threads that commit."""
    played = Played(monkeypatch)
    consumer = PushConsumer(consumer_group=GROUP, name_servers="127.0.0.1:1", offset_store="memory:here")
    stops: list[object] = []
    errors: list[str] = []

    def query(name: str) -> Any:
        return SimpleNamespace(id=name, runId=name, isActive=True, stop=lambda: stops.append(name))

    def stop() -> None:
        assert not consumer.stop(query("another"))
        try:
            consumer.stop(query("query"))
        except RocketMQError as error:
            errors.append(str(error))

    def job(commit: MakeCommit) -> list[Part]:
        with ThreadPoolExecutor(1, "early") as other:
            other.submit(commit, Commit(Group((part(A, 0, 3),)))).result()
            # This thread has left the batch again.
            assert not other.submit(consumer.stop, query("query")).result()
        return [part(B, 0, 4)]

    hub: Any = SimpleNamespace(stop_tasks=lambda _: True, close=lambda: None)
    played.on_report = stop
    played.run(job)

    assert len(errors) == 2
    assert "early_0" in errors[0]
    assert all("from another thread" in error for error in errors)
    assert stops == ["another", "query", "another"]
    consumer._hubs["query"] = hub
    assert consumer.stop(query("query"))
    assert consumer._hubs == {}


def test_only_a_queue_that_leaves_waits_for_its_broker_and_all_do_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B5: its next owner may be a Java member."""
    played = Played(monkeypatch)

    def job(commit: MakeCommit) -> list[Part]:
        commit(Commit(Group((part(A, 0, 3), part(B, 0, 4)))))
        commit(Commit(Group((part(A, 3, 5), part(B, 4, 5))), frozenset({A})))
        return []

    played.run(job)

    assert played.awaited == [{A: 5}, {A: 5, B: 5}]


def test_positions_of_queues_that_have_left_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """B5: their offsets no longer move here, so their lag would seem to grow until the batch ends."""
    played = Played(monkeypatch)

    def job(commit: MakeCommit) -> list[Part]:
        commit(Commit(Group((part(A, 0, 3), part(B, 0, 4))), frozenset({A})))
        commit(Commit(Group((part(B, 4, 5),)), left=frozenset({A})))
        return [part(B, 5, 6)]

    def positions() -> list[dict[MessageQueue, int]]:
        return [{row.queue: row.next_offset for row in report.offsets} for report in played.reports]

    played.run(job)
    assert positions() == [{A: 3, B: 4}, {B: 5}, {B: 6}]

    played.reports.clear()
    played.run(lambda _: [part(B, 6, 7)])
    assert positions() == [{A: 3, B: 7}]


def test_the_hub_hears_which_queues_were_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: nothing more of them is committed in this batch."""
    played = Played(monkeypatch)
    refused: list[frozenset[MessageQueue]] = []

    def job(commit: MakeCommit) -> list[Part]:
        played.store.claim(GROUP, "somebody else", {A: 0})
        refused.append(commit(Commit(Group((part(A, 0, 3), part(B, 0, 4))))).refused)
        return []

    played.run(job)

    assert refused == [{A}]
    assert played.offsets == {A: 0, B: 4}


def test_a_job_that_fails_fails_the_batch_and_keeps_what_was_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H1"""
    played = Played(monkeypatch)

    def job(commit: MakeCommit) -> list[Part]:
        commit(Commit(Group((part(A, 0, 3),))))
        raise RocketMQError("a listener failed")

    with pytest.raises(RocketMQError, match="a listener failed"):
        played.run(job)

    assert played.offsets == {A: 3, B: 0}
    assert played.done == ["show", "cut short", "failed"]


def test_each_commit_reports_how_long_ago_its_messages_were_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """D11: to the begin of their deliveries, and until the commit, which comes after the task's cut."""
    played = Played(monkeypatch)

    def passed(queue: MessageQueue, start: int, stop: int, *ages_ms: int) -> Part:
        at_ms = int(played.clock.now_s() * 1000)
        ages = LatencyHistogram.of(ages_ms)
        latencies = StoreLatencies(LatencyHistogram.of(age // 2 for age in ages_ms), ages, at_ms)
        given = part(queue, start, stop)
        return Part.from_facts(replace(given, acks=(replace(given.acks[0], latencies=latencies),)).facts)

    def job(commit: MakeCommit) -> list[Part]:
        parts = passed(A, 0, 2, 4, 6), passed(B, 0, 1, 10)
        played.clock.advance(0.25)
        commit(Commit(Group(parts)))
        return [passed(A, 2, 3, 500)]

    played.run(job)

    ahead, rest = played.reports
    assert (ahead.is_ahead, rest.is_ahead) == (True, False)
    assert ahead.store_to_listener == LatencyHistogram.of([2, 3, 5])
    assert ahead.store_to_commit.percentiles() == (3, 260, 260, 260, 260, 260)
    assert (rest.store_to_listener, rest.store_to_commit.longest_ms) == (LatencyHistogram.of([250]), 500)
    both = ahead.with_later(rest)
    assert (both.store_to_listener.messages, both.store_to_commit.longest_ms) == (4, 500)
    assert not both.is_ahead
