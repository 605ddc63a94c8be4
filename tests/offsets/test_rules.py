"""Properties of the rules over any sequence of claims, commits and resets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from pyspark_rocketmq.errors import OffsetRegressed
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.rules import Change, apply_claim, apply_commit, apply_reset
from pyspark_rocketmq.offsets.store import OffsetRow, QueueCommit

GROUP = "g"
QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(3)]
offsets = st.integers(0, 20)
targets = st.dictionaries(st.sampled_from(QUEUES), offsets, max_size=3)


@st.composite
def commits(draw: st.DrawFn) -> list[QueueCommit]:
    return [
        QueueCommit(
            queue=queue,
            state=QueueState(
                draw(offsets),
                draw(st.integers(0, 4)),
                reconsume_times=draw(st.integers(0, 2)),
                suspended_until_s=draw(st.none() | st.integers(0, 9).map(float)),
            ),
        )
        for queue in draw(st.lists(st.sampled_from(QUEUES), max_size=3, unique=True))
    ]


class OffsetRules(RuleBasedStateMachine):
    """Drives the rules as a store does and compares each step with what it may have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[MessageQueue, OffsetRow] = {}
        self.now_s = 0.0

    def _step(self, change: Change[Any], touched: Collection[MessageQueue]) -> None:
        for queue, row in self.rows.items():
            if queue not in touched:
                assert change.rows[queue] is row
            assert change.rows[queue].epoch >= row.epoch
        assert set(change.rows) <= set(self.rows) | set(touched)
        self.rows = change.rows
        self.now_s += 1

    @rule(owner=st.sampled_from(["a", "b"]), starts=targets)
    def claim(self, owner: str, starts: dict[MessageQueue, int]) -> None:
        before = self.rows
        change = apply_claim(before, GROUP, owner, starts, now_s=self.now_s)
        self._step(change, starts)
        for queue, start in starts.items():
            row = self.rows[queue]
            assert row.owner == owner
            assert row.epoch == (before[queue].epoch if queue in before else 0) + 1
            assert row.next_offset == (before[queue].next_offset if queue in before else start)

    @rule(wanted=targets)
    def reset(self, wanted: dict[MessageQueue, int]) -> None:
        before = self.rows
        self._step(apply_reset(before, GROUP, wanted, self.now_s), wanted)
        for queue, target in wanted.items():
            assert self.rows[queue].next_offset == target
            assert self.rows[queue].epoch == (before[queue].epoch if queue in before else 0) + 1

    @precondition(lambda self: self.rows)
    @rule(batch=commits(), query_id=st.sampled_from(["q", "r"]), batch_id=st.integers(0, 3))
    def commit(self, batch: list[QueueCommit], query_id: str, batch_id: int) -> None:
        before = self.rows
        by_batch: dict[str, Any] = {"query_id": query_id, "batch_id": batch_id}
        try:
            change = apply_commit(before, GROUP, batch, **by_batch, now_s=self.now_s)
        except OffsetRegressed:
            assert any(_goes_back(before, commit, query_id, batch_id) for commit in batch)
            return
        assert {*change.result.accepted, *change.result.refused} == set(batch)
        for commit in change.result.refused:
            assert commit.queue not in before or before[commit.queue].epoch != commit.state.epoch
        for commit in change.result.accepted:
            assert before[commit.queue].epoch == commit.state.epoch
            row = change.rows[commit.queue]
            assert row.next_offset == max(commit.state.next_offset, before[commit.queue].next_offset)
        again = apply_commit(change.rows, GROUP, batch, **by_batch, now_s=self.now_s + 50)
        assert again.result == change.result
        self._step(change, {commit.queue for commit in change.result.accepted})


def _goes_back(
    rows: dict[MessageQueue, OffsetRow], commit: QueueCommit, query_id: str, batch_id: int
) -> bool:
    row = rows.get(commit.queue)
    return (
        row is not None
        and row.epoch == commit.state.epoch
        and commit.state.next_offset < row.next_offset
        and (row.query_id, row.batch_id) != (query_id, batch_id)
    )


TestOffsetRules = OffsetRules.TestCase


@given(batch=commits(), start=offsets)
def test_storing_a_batch_twice_changes_nothing_the_second_time(batch: list[QueueCommit], start: int) -> None:
    """H1: an unknown outcome is resolved by reading and deciding again."""
    claimed = apply_claim({}, GROUP, "a", dict.fromkeys(QUEUES, start), now_s=0.0).rows
    usable = [commit for commit in batch if commit.state.next_offset >= start]
    once = apply_commit(claimed, GROUP, usable, query_id="q", batch_id=1, now_s=1.0)

    twice = apply_commit(once.rows, GROUP, usable, query_id="q", batch_id=1, now_s=2.0)

    assert twice.rows == once.rows
