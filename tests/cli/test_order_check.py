"""The judge of order must itself be right: it finds each kind of fault, and none where there is none."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.cli.demo.report import OrderReport, check_order

EXPECTED = {"o-1": ["created", "paid", "shipped"], "o-2": ["created", "paid"]}
ROWS = [
    ("orders", "broker-a", 0, 0, "o-1", "created"),
    ("orders", "broker-a", 0, 1, "o-2", "created"),
    ("orders", "broker-a", 0, 2, "o-1", "paid"),
    ("orders", "broker-a", 0, 5, "o-1", "shipped"),
    ("orders", "broker-a", 0, 6, "o-2", "paid"),
]


def counts(report: OrderReport) -> dict[str, int]:
    names = ("messages", "rows", "duplicates", "lost", "unexpected", "order_violations")
    return {name: getattr(report, name) for name in names if getattr(report, name)}


def test_everything_once_and_in_order_is_clean() -> None:
    """D1, H1: gaps in offsets are no fault, a filter makes them."""
    report = check_order(ROWS, EXPECTED)

    assert report.is_clean
    assert counts(report) == {"messages": 5, "rows": 5}
    assert str(report).startswith("in order: 5 messages in 5 rows, 0 duplicates")


def test_nothing_expected_and_nothing_come_is_clean() -> None:
    assert check_order([], {}).is_clean


def test_a_message_written_twice_is_a_duplicate_and_no_order_violation() -> None:
    """H1."""
    report = check_order([*ROWS, ROWS[0]], EXPECTED)

    assert not report.is_clean
    assert counts(report) == {"messages": 5, "rows": 6, "duplicates": 1}
    assert report.examples == ("topic=orders broker=broker-a queue=0 offset=0: o-1 created came again",)


def test_a_missing_step_is_lost() -> None:
    """H1."""
    report = check_order(ROWS[:-1], EXPECTED)

    assert counts(report) == {"messages": 4, "rows": 4, "lost": 1}
    assert report.examples == ("o-2 paid never came",)


def test_a_queue_going_back_is_an_order_violation() -> None:
    """D1."""
    swapped = [ROWS[1], ROWS[0], *ROWS[2:]]

    assert counts(check_order(swapped, EXPECTED)) == {"messages": 5, "rows": 5, "order_violations": 1}


def test_a_keys_steps_out_of_order_are_found_although_the_queue_is_in_order() -> None:
    """G1: wrong routing by the producer shows in ascending queues."""
    misrouted = [
        ("orders", "broker-a", 0, 0, "o-2", "paid"),
        ("orders", "broker-a", 1, 0, "o-2", "created"),
    ]

    report = check_order(misrouted, {"o-2": ["created", "paid"]})

    assert counts(report) == {"messages": 2, "rows": 2, "order_violations": 1}
    assert "o-2 created came after a later one" in str(report)


@pytest.mark.parametrize(("order_key", "step"), [("o-9", "created"), ("o-2", "refunded"), ("o-2", "paid")])
def test_a_message_that_was_never_sent_is_unexpected(order_key: str, step: str) -> None:
    report = check_order([*ROWS, ("orders", "broker-a", 0, 7, order_key, step)], EXPECTED)

    assert counts(report) == {"messages": 6, "rows": 6, "unexpected": 1}


def test_a_step_that_is_sent_twice_is_expected_twice() -> None:
    rows = [("orders", "broker-a", 0, i, "o-1", step) for i, step in enumerate(["paid", "failed", "paid"])]

    assert check_order(rows, {"o-1": ["paid", "failed", "paid"]}).is_clean
    assert check_order(rows[:2], {"o-1": ["paid", "failed", "paid"]}).lost == 1


def test_only_the_first_findings_are_listed() -> None:
    many = {f"o-{i}": ["created"] for i in range(100)}

    report = check_order([], many)

    assert report.lost == 100
    assert len(report.examples) == 5


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_any_interleaving_of_keys_is_clean_and_any_other_order_of_one_queue_is_not(
    lengths: list[int], rng: random.Random
) -> None:
    """D1, G1."""
    expected = {f"o-{i}": [f"s{n}" for n in range(length)] for i, length in enumerate(lengths)}
    keys = [key for key, steps in expected.items() for _ in steps]
    rng.shuffle(keys)
    steps = {key: iter(values) for key, values in expected.items()}
    rows = [("orders", "broker-a", 0, offset, key, next(steps[key])) for offset, key in enumerate(keys)]
    assert check_order(rows, expected).is_clean

    shuffled = rng.sample(rows, len(rows))
    report = check_order(shuffled, expected)

    assert (report.order_violations == 0) == (shuffled == rows)
    assert (report.lost, report.duplicates, report.unexpected) == (0, 0, 0)
