from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.reconcile import go_on_at

OFFSETS = st.integers(0, 9)


@pytest.mark.parametrize(
    ("stored", "at_broker", "was_reset", "expected"),
    [
        (None, None, False, None),
        (None, 7, False, 7),
        (5, None, False, 5),
        (5, 7, False, 7),
        (7, 5, False, 7),
        (5, 7, True, 5),
        (7, 5, True, 7),
        (7, None, True, 7),
    ],
)
def test_where_a_claimed_queue_goes_on(
    stored: int | None, at_broker: int | None, was_reset: bool, expected: int | None
) -> None:
    """C3, F5: whoever consumed last came farthest, unless an operator has spoken."""
    assert go_on_at(stored, at_broker, was_reset=was_reset) == expected


@given(
    passed=OFFSETS,
    handovers=st.lists(st.tuples(st.sampled_from(["spark", "java"]), OFFSETS, st.booleans()), max_size=8),
)
def test_no_handover_skips_a_message_that_nobody_consumed(
    passed: int, handovers: list[tuple[str, int, bool]]
) -> None:
    """B5: members take turns and consume; the last word of each may be lost on its way to the broker."""
    stored: int | None = None
    at_broker: int | None = passed
    consumed_to = passed
    for member, count, is_told in handovers:
        begins_at = go_on_at(stored, at_broker, was_reset=False) if member == "spark" else at_broker
        assert begins_at is not None
        assert begins_at <= consumed_to
        reached = begins_at + count
        consumed_to = max(consumed_to, reached)
        if member == "spark":
            stored = reached
        if is_told:
            at_broker = reached
