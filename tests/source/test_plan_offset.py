from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.positions import StoredThen
from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import OPEN_END, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.source.ranges import offset_to_plan, open_for_s_of, plan_to_offset, stored_then_of
from pyspark_rocketmq.stored_values import RetryCounts
from tests.helpers import stored_texts

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
            queue,
            QueueState(
                start, epoch=epoch, reconsume_times=times, retry_counts=RetryCounts.from_text(put_back)
            ),
            start + count,
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


def test_plan_fields_of_earlier_releases_are_ignored() -> None:
    """D4: messages that a listener had consumed without a commit; they are delivered again."""
    entry = {"from": 3, "to": 9, "epoch": 2, "uncommitted": "no JSON, no Arrow"}
    stored = {"v": 1, "seq": 4, "plan": {"orders": {"broker-a": {"0": entry}}}}

    (planned,) = offset_to_plan(stored)[1]

    assert planned == QueueRange.between(MessageQueue("orders", "broker-a", 0), 3, 9, epoch=2)


def test_a_checkpoint_of_a_newer_version_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        OffsetError, match=r"version 4; this release reads versions 1 to 3\. Use the release that wrote it"
    ):
        offset_to_plan({"v": 4, "seq": 1, "plan": {}})


@pytest.mark.parametrize(
    "changes",
    [
        {"from": "3"},
        {"from": -1},
        {"from": 3.0},
        {"from": True},
        {"to": 2},
        {"to": OPEN_END},
        {"to": OPEN_END + 1},
        {"to": None},
        {"to": {"a": 1}},
        {"until": "x"},
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


# --------------------------------------------------------------------------------------------------------- ma


def many(count: int, seed: int = 7) -> list[QueueRange]:
    """A hundred queues on each broker of a topic, all of them somewhere else,
    some with messages that were put back.
    """
    chance = random.Random(seed)
    return [
        QueueRange(
            MessageQueue(f"orders-{at // 1000}", f"broker-{at // 100 % 10}", at % 100),
            QueueState(
                (start := 10**9 + chance.randrange(10**6)),
                epoch=chance.randrange(1, 4),
                reconsume_times=(times := int(chance.random() < 0.01)),
                retry_counts=stored_texts.retries(f"[[{start},{start + 3},1]]" if times else ""),
            ),
            start + chance.randrange(1000),
        )
        for at in range(count)
    ]


def test_a_plan_of_many_queues_is_small() -> None:
    """H4: Spark keeps the offsets of a hundred micro-batches, and writes one for each trigger."""
    ranges = many(10_000)

    stored = json.dumps(plan_to_offset(3, reversed(ranges)))

    assert len(stored) <= 60_000
    assert offset_to_plan(json.loads(stored)) == (3, tuple(sorted(ranges, key=lambda each: each.queue)))
    assert stored == json.dumps(plan_to_offset(3, ranges))


@given(ranges=RANGES, more=st.integers(257, 300))
def test_whatever_is_in_a_packed_plan_survives_the_checkpoint(
    ranges: tuple[QueueRange, ...], more: int
) -> None:
    whole = sorted([*ranges, *many(more)], key=lambda each: each.queue)

    stored = json.loads(json.dumps(plan_to_offset(1, whole)))

    assert stored["v"] == 2
    assert offset_to_plan(stored) == (1, tuple(whole))


@pytest.mark.parametrize(
    "changes",
    [
        {"queues": 299},
        {"queues": 301},
        {"queues": -1},
        {"queues": 10**12},
        {"queues": "300"},
        {"packed": ""},
        {"packed": "no base 85: \\"},
        {"packed": None},
        {"packed": base64.b85encode(b"no zlib").decode()},
        {"packed": base64.b85encode(zlib.compress(b"{}")).decode()},
        {"packed": base64.b85encode(zlib.compress(b"[" * 100_000 + b"\n" + bytes(40 * 300))).decode()},
        {"packed": base64.b85encode(zlib.compress(bytes(1 << 26))).decode()},
        {"packed": base64.b85encode(zlib.compress(b'{"brokers": [["a", "b", 300]]}\n' + b"\xff" * 40 * 300)).decode()},
        {"packed": base64.b85encode(zlib.compress(b'{"brokers": [["a", "b", 299]], "putBack": {}}\n' + bytes(40 * 300))).decode()},
        {"packed": base64.b85encode(zlib.compress(b'{"brokers": 7, "putBack": {}}\n' + bytes(40 * 300))).decode()},
    ],
)  # fmt: skip
def test_a_packed_plan_that_is_damaged_is_refused(changes: dict[str, object]) -> None:
    """H9: whatever somebody has put there, with no more memory than a plan of so many queues takes."""
    with pytest.raises(
        OffsetError, match=r"The checkpoint's offset is damaged .*Use a new checkpoint location"
    ):
        offset_to_plan({**plan_to_offset(1, many(300)), **changes})


@pytest.mark.parametrize("count", [1, 256, 257, 300])
def test_what_followed_each_range_survives_the_checkpoint(count: int) -> None:
    """F4: packed with the plan of many queues."""
    ranges = many(count)
    then = StoredThen({"broker-a": 7}, {each.queue: at for at, each in enumerate(ranges, 5) if at % 3})

    stored = json.loads(json.dumps(plan_to_offset(1, ranges, then=then)))

    assert stored_then_of(stored, offset_to_plan(stored)[1]) == then


@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("damaged", [None, 7, [], [1], [1, -1, 1], ["1"] * 3, "", "x", "no base 85: \\"])
def test_what_followed_each_range_is_not_known_if_it_is_damaged(count: int, damaged: object) -> None:
    """H9"""
    ranges = many(count)
    stored = {**plan_to_offset(1, ranges, then=StoredThen({"broker-a": 7})), "unread": damaged}

    assert stored_then_of(stored, ranges) == StoredThen({"broker-a": 7}, {})


# -------------------------------------------------------------------------------------------------- open plans

DUE = st.none() | st.floats(1.0, 2e9)


def opened(ranges: Iterable[QueueRange], due: Iterable[float | None] = ()) -> tuple[QueueRange, ...]:
    """The same ranges without ends, some of them of suspended queues."""
    return tuple(
        replace(each, state=each.state._replace(suspended_until_s=due_s), end=OPEN_END)
        for each, due_s in zip_longest(ranges, due)
        if each is not None
    )


@given(
    seq=st.integers(0, 2**40), ranges=RANGES, due=st.lists(DUE, max_size=8), for_s=st.sampled_from([300, 0.5])
)
def test_an_open_plan_survives_the_checkpoint(
    seq: int, ranges: tuple[QueueRange, ...], due: list[float | None], for_s: float
) -> None:
    whole = opened(ranges, due)

    stored = json.loads(json.dumps(plan_to_offset(seq, reversed(whole), open_for_s=for_s)))

    assert offset_to_plan(stored) == (seq, whole)
    assert open_for_s_of(stored) == for_s


@given(ranges=RANGES, due=st.lists(DUE, max_size=8), more=st.integers(257, 300))
def test_an_open_plan_of_many_queues_survives_the_checkpoint(
    ranges: tuple[QueueRange, ...], due: list[float | None], more: int
) -> None:
    """H4: packed, as Spark keeps the offsets of a hundred batches."""
    whole = opened(sorted([*ranges, *many(more)], key=lambda each: each.queue), due)

    stored = json.loads(json.dumps(plan_to_offset(7, whole, open_for_s=300.0)))

    assert "live" not in stored
    assert offset_to_plan(stored) == (7, whole)
    assert open_for_s_of(stored) == 300.0


def test_an_open_plan_is_as_people_find_it_in_the_checkpoint() -> None:
    a0, a1 = (MessageQueue("orders", "broker-a", number) for number in range(2))
    suspended = QueueState(5, 2, 1, suspended_until_s=1234.5)
    ranges = [QueueRange(a0, QueueState(3, 4), OPEN_END), QueueRange(a1, suspended, OPEN_END)]

    assert plan_to_offset(9, ranges, open_for_s=300) == {
        "v": 3,
        "seq": 9,
        "for_s": 300,
        "live": {
            "orders": {
                "broker-a": {
                    "0": {"from": 3, "epoch": 4},
                    "1": {"from": 5, "epoch": 2, "times": 1, "until": 1234.5},
                }
            }
        },
    }


@pytest.mark.parametrize("count", [1, 300])
def test_releases_without_open_plans_refuse_one(count: int) -> None:
    """H9: they know versions 1 and 2, and would take an open range for one that ends."""
    stored = plan_to_offset(1, opened(many(count)), open_for_s=300)

    assert stored["v"] not in {1, 2}
    assert "plan" not in stored
    assert open_for_s_of(plan_to_offset(1, many(count))) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"for_s": 0},
        {"for_s": "300"},
        {"for_s": True},
        {"for_s": float("nan")},
        {"for_s": None},
        {"live": None},
        {"live": {"orders": {"broker-a": {"0": {"from": -1}}}}},
        {"live": {"orders": {"broker-a": {"0": {"from": 3, "until": "x"}}}}},
        {"live": {"orders": {"broker-a": {"0": {"from": 3, "until": -1.0}}}}},
        {"queues": 2, "packed": ""},
    ],
    ids=str,
)
def test_an_open_plan_that_is_damaged_is_refused(changes: dict[str, object]) -> None:
    """H9"""
    stored = plan_to_offset(1, opened(many(3)), open_for_s=300)

    with pytest.raises(OffsetError, match=r"checkpoint's offset is damaged .* Use a new checkpoint location"):
        offset_to_plan({**stored, **changes})
