"""Exactly once by a watermark per queue."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import QueueGeneration, advance, generation_of, newest_generations
from pyspark_rocketmq.sinks.delta.rules import app_id

QUEUES = tuple(MessageQueue("orders", "broker-a", i) for i in range(3))


class Sink:
    """A table whose rows and watermarks change in one commit."""

    def __init__(self) -> None:
        self.rows: list[tuple[MessageQueue, int]] = []
        self.watermarks: dict[MessageQueue, int] = {}

    def write(self, planned_from: dict[MessageQueue, int], acked: dict[MessageQueue, int]) -> None:
        new = [
            (queue, queue_offset)
            for queue, next_offset in acked.items()
            for queue_offset in range(planned_from[queue], next_offset)
            if queue_offset >= self.watermarks.get(queue, 0)
        ]
        self.rows += new
        self.watermarks |= advance(self.watermarks, acked)


def test_the_app_id_names_group_queue_and_generation() -> None:
    """H1, F4: that of a queue's first generation is what it was before there were several."""
    assert app_id("order-etl", QUEUES[2]) == "rocketmq:order-etl:orders:broker-a:2"
    assert app_id("order-etl", QUEUES[2], 3) == "rocketmq:order-etl:orders:broker-a:2.3"


def test_of_a_queue_the_last_generation_counts() -> None:
    """F4"""
    found = {
        QueueGeneration(QUEUES[0], 0): 90,
        QueueGeneration(QUEUES[0], 10): 5,
        QueueGeneration(QUEUES[0], 9): 70,
        QueueGeneration(QUEUES[1], 0): 3,
    }

    assert newest_generations(found) == {QueueGeneration(QUEUES[0], 10): 5, QueueGeneration(QUEUES[1], 0): 3}


@given(
    st.from_regex(r"[\w%@-]+", fullmatch=True),
    st.builds(
        MessageQueue,
        st.from_regex(r"[\w%-]+", fullmatch=True),
        st.text(min_size=1),
        st.integers(min_value=0, max_value=2**31 - 1),
    ),
    st.integers(min_value=0, max_value=2**31 - 1),
)
def test_only_its_own_group_reads_a_generation_from_an_app_id(
    group: str, queue: MessageQueue, generation: int
) -> None:
    found = app_id(group, queue, generation)

    assert generation_of(found, group) == QueueGeneration(queue, generation)
    assert generation_of(found, f"{group}2") is None
    assert generation_of(f"offsets:{group}", group) is None
    assert generation_of(f"rocketmq:{group}:orders", group) is None
    assert generation_of(f"{app_id(group, queue)}.0", group) is None


def test_only_watermarks_that_grow_are_committed() -> None:
    """H1."""
    stored = {QUEUES[0]: 10, QUEUES[1]: 10}
    acked = {QUEUES[0]: 10, QUEUES[1]: 11, QUEUES[2]: 0}

    assert advance(stored, acked) == {QUEUES[1]: 11}
    assert advance({}, {QUEUES[2]: 1}) == {QUEUES[2]: 1}


def test_a_replay_that_gets_farther_adds_only_the_rest() -> None:
    """H1: run 1 wrote up to 4 and was killed before its offsets were stored; run 2 gets to 7."""
    sink = Sink()
    sink.write({QUEUES[0]: 0}, {QUEUES[0]: 4})
    sink.write({QUEUES[0]: 0}, {QUEUES[0]: 7})

    assert [queue_offset for _, queue_offset in sink.rows] == list(range(7))


def test_a_replay_that_gets_less_far_adds_nothing_and_loses_nothing() -> None:
    """H1, H2: the offset store says 2 then, and the rows from 2 on come again."""
    sink = Sink()
    sink.write({QUEUES[0]: 0}, {QUEUES[0]: 4})
    sink.write({QUEUES[0]: 0}, {QUEUES[0]: 2})
    sink.write({QUEUES[0]: 2}, {QUEUES[0]: 6})

    assert [queue_offset for _, queue_offset in sink.rows] == list(range(6))


_BATCH = st.tuples(
    st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 5), min_size=1),
    st.sampled_from(["before the sink", "before the offsets", "not at all", "not at all"]),
)


@given(st.lists(_BATCH, max_size=30))
def test_any_crashes_and_replays_give_each_row_once_and_in_queue_order(
    batches: list[tuple[dict[MessageQueue, int], str]],
) -> None:
    """H1, H2: killed between any two steps; each attempt acknowledges as much as its listener likes."""
    sink = Sink()
    store = dict.fromkeys(QUEUES, 0)
    for acknowledged, killed in batches:
        planned_from = {queue: store[queue] for queue in acknowledged}
        acked = {queue: planned_from[queue] + count for queue, count in acknowledged.items()}
        if killed == "before the sink":
            continue
        sink.write(planned_from, acked)
        if killed == "before the offsets":
            continue
        store |= acked

        assert all(store[queue] <= sink.watermarks.get(queue, 0) for queue in QUEUES)
    assert max(Counter(sink.rows).values(), default=1) == 1
    for queue in QUEUES:
        assert [offset for of, offset in sink.rows if of == queue] == list(
            range(sink.watermarks.get(queue, 0))
        )
