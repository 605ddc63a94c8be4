from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.datasource.plan_offset import offset_to_plan, plan_to_offset
from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import MessageQueue, QueueRange

QUEUES = st.builds(
    MessageQueue, st.sampled_from(["orders", "%RETRY%g"]), st.sampled_from(["a", "b"]), st.integers(0, 20)
)
RANGES = st.dictionaries(
    QUEUES,
    st.tuples(
        st.integers(0, 2**60),
        st.integers(0, 1000),
        st.integers(0, 9),
        st.integers(0, 9),
        st.sampled_from(["", "[[5,9,1]]"]),
    ),
    max_size=8,
).map(
    lambda plan: tuple(
        QueueRange(
            queue=queue,
            start=start,
            end=start + count,
            epoch=epoch,
            reconsume_times=times,
            put_back=put_back,
        )
        for queue, (start, count, epoch, times, put_back) in sorted(plan.items())
    )
)


@given(seq=st.integers(0, 2**40), ranges=RANGES)
def test_a_plan_survives_the_checkpoint(seq: int, ranges: tuple[QueueRange, ...]) -> None:
    stored = json.dumps(plan_to_offset(seq, ranges))

    assert offset_to_plan(json.loads(stored)) == (seq, ranges)


@given(ranges=RANGES)
def test_equal_plans_are_equal_texts(ranges: tuple[QueueRange, ...]) -> None:
    """Spark compares offsets as JSON text."""
    assert json.dumps(plan_to_offset(1, ranges)) == json.dumps(plan_to_offset(1, reversed(ranges)))


def test_what_earlier_releases_kept_in_a_plan_is_passed_over() -> None:
    """D4: messages that a listener had consumed without a commit; they are delivered again."""
    entry = {"from": 3, "to": 9, "epoch": 2, "uncommitted": "no JSON, no Arrow"}
    stored = {"v": 1, "seq": 4, "plan": {"orders": {"broker-a": {"0": entry}}}}

    (planned,) = offset_to_plan(stored)[1]

    assert planned == QueueRange(queue=MessageQueue("orders", "broker-a", 0), start=3, end=9, epoch=2)


def test_a_checkpoint_of_a_newer_version_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        OffsetError, match=r"version 2; this release reads version 1\. Use the release that wrote it"
    ):
        offset_to_plan({"v": 2, "seq": 1, "plan": {}})


@pytest.mark.parametrize(
    "changes",
    [
        {"from": "3"},
        {"from": -1},
        {"from": 3.0},
        {"from": True},
        {"to": 2},
        {"to": 1 << 63},
        {"to": None},
        {"to": {"a": 1}},
        {"epoch": "x"},
        {"times": []},
        {"putBack": [[3, 4, 1]]},
    ],
    ids=str,
)
def test_a_plan_of_what_are_no_offsets_is_damaged(changes: dict[str, object]) -> None:
    """H9: whoever may write a checkpoint gets an error, not a planner that works with it."""
    entry = {"from": 3, "to": 9, "epoch": 2} | changes

    with pytest.raises(OffsetError, match=r"checkpoint's offset is damaged .* Use a new checkpoint location"):
        offset_to_plan({"v": 1, "seq": 4, "plan": {"orders": {"broker-a": {"0": entry}}}})
