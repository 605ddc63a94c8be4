"""A store that was put back to an earlier state is distinguished from every change that the rules allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore, describe_setbacks
from pyspark_rocketmq.offsets.store import QueueCommit
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import GROUP, Q0, Q1


def store_at(offset: int) -> MemoryOffsetStore:
    """A claimed queue, moved to ``offset`` by a batch."""
    store = MemoryOffsetStore("set-back", clock=FakeClock())
    row = store.claim(GROUP, "me", {Q0: 0})[Q0]
    store.commit(
        GROUP, [QueueCommit(queue=Q0, state=QueueState(offset, row.epoch))], query_id="q", batch_id=1
    )
    return store


def test_an_offset_that_went_back_within_its_epoch_is_reported() -> None:
    """H2"""
    [words] = describe_setbacks(store_at(9).read(GROUP), store_at(4).read(GROUP))

    assert words == f"{Q0} was at 9 and is at 4, both in epoch 1"


def test_an_epoch_that_went_back_is_found_wherever_the_offset_is() -> None:
    """H2: an epoch that comes twice fences nobody."""
    before = store_at(4)
    before.reset(GROUP, {Q0: 2})

    [words] = describe_setbacks(before.read(GROUP), store_at(9).read(GROUP))

    assert words == f"{Q0} was at 2 in epoch 2 and is at 9 in epoch 1"


def test_a_queue_that_no_longer_exists_is_reported() -> None:
    """H2"""
    before = store_at(4)
    before.claim(GROUP, "me", {Q1: 7})

    assert describe_setbacks(before.read(GROUP), store_at(4).read(GROUP)) == (
        f"{Q1} was at 7 and is missing now",
    )


changes = st.lists(
    st.tuples(st.sampled_from(["claim", "reset", "commit"]), st.sampled_from([Q0, Q1]), st.integers(0, 9))
)


@given(changes)
def test_no_change_that_the_rules_allow_is_taken_for_that(made: list[tuple[str, MessageQueue, int]]) -> None:
    """F5: an operator may move a queue anywhere."""
    store = store_at(3)
    for kind, queue, offset in made:
        before = store.read(GROUP)
        if kind == "claim":
            store.claim(GROUP, "other", {queue: offset})
        elif kind == "reset":
            store.reset(GROUP, {queue: offset})
        elif queue in before:
            row = before[queue]
            forward = QueueCommit(queue=row.queue, state=QueueState(row.next_offset + offset, row.epoch))
            store.commit(GROUP, [forward], query_id="q", batch_id=offset)
        assert describe_setbacks(before, store.read(GROUP)) == ()
