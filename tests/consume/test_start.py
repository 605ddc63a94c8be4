"""Where a queue without stored progress begins."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.consume.positions import starting_position, starting_positions, unknown_queue_problems
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.options.positions import EARLIEST, LATEST, QueuePositions

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)
BOUNDS = QueueBounds(min_offset=50, max_offset=90)


@pytest.mark.parametrize(
    ("spec", "queue_offset"),
    [
        (EARLIEST, 50),
        (LATEST, 90),
        (QueuePositions(by_queue={QUEUE: -2}), 50),
        (QueuePositions(by_queue={QUEUE: -1}), 90),
        (QueuePositions(by_queue={QUEUE: 60}), 60),
        (QueuePositions(by_queue={QUEUE: 50}), 50),
        (QueuePositions(by_queue={QUEUE: 90}), 90),
        (QueuePositions(by_queue={OTHER: 60}), 50),
    ],
)
def test_a_queue_begins_where_starting_offsets_says(spec: QueuePositions, queue_offset: int) -> None:
    """F2: startingOffsets earliest, latest, fixed; queues not named begin at earliest (A2)."""
    assert starting_position(spec, QUEUE, BOUNDS) == (queue_offset, None)


@pytest.mark.parametrize(("wanted", "corrected"), [(49, 50), (0, 50), (91, 90)])
def test_an_offset_outside_the_bounds_is_reported_and_corrected(wanted: int, corrected: int) -> None:
    """F4."""
    queue_offset, gap = starting_position(QueuePositions(by_queue={QUEUE: wanted}), QUEUE, BOUNDS)

    assert queue_offset == corrected
    assert gap is not None
    assert (gap.wanted, gap.corrected) == (wanted, corrected)


def test_all_queues_at_once_with_a_sentence_for_each_problem() -> None:
    spec = QueuePositions(by_queue={QUEUE: 10, OTHER: 70})

    positions, problems = starting_positions(spec, {OTHER: BOUNDS, QUEUE: BOUNDS})

    assert positions == {QUEUE: 50, OTHER: 70}
    assert problems == (
        (
            "startingOffsets asks for offset 10 of topic=orders broker=broker-a queue=0, but the broker has "
            "50 to 90; use an offset in this range, -2 (earliest) or -1 (latest)."
        ),
    )


def test_a_named_queue_that_does_not_exist_is_a_problem() -> None:
    """A mistyped broker name must not silently start its queues at earliest."""
    spec = QueuePositions(by_queue={QUEUE: 10, MessageQueue("orders", "broker-x", 0): 70})

    (problem,) = unknown_queue_problems(spec, [QUEUE, OTHER])

    assert "broker=broker-x" in problem
    assert unknown_queue_problems(LATEST, [QUEUE]) == ()
