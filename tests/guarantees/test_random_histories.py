"""Random lives of a queue, its broker and its group: every message that must reach the sink is there once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.helpers.queue_history import run_histories


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """Switch logging off: it takes longer than the decisions."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("first", "count", "steps"), [(0, 1_000, 8), (5_000_000, 200, 40)])
def test_in_random_histories_each_message_reaches_the_sink_once(
    first: int, count: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4, F5, H1, H10: short ones show their fault, long ones have more to get wrong."""
    assert run_histories(range(first, first + count), monkeypatch, steps=steps) == count * steps


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_in_a_million_random_steps_each_message_reaches_the_sink_once(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4, F5, H1, H10"""
    first = 100_000 * (part + 1)
    seeds = 2_000 if part % 2 else 1_000
    steps = 25 if part % 2 else 50
    assert run_histories(range(first, first + seeds), monkeypatch, steps=steps) == 50_000
