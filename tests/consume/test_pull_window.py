"""The pull window: everything of the range, in order, once, under any broker behaviour."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.fetch_window import AnswerOutcome, Piece, PullStep, PullWindow


def window(start: int, end: int, *, segment: int = 4, depth: int = 2, max_ahead_bytes: int = 1 << 20):
    return PullWindow(start, end, segment=segment, depth=depth, max_ahead_bytes=max_ahead_bytes)


def body(*offsets: int) -> bytes:
    return b"".join(offset.to_bytes(4, "big") for offset in offsets)


def offsets_of(pieces: list[Piece]) -> list[int]:
    """Decode as the shell does: drop what lies outside the piece's own bounds."""
    return [
        offset
        for piece in pieces
        for at in range(0, len(piece.body), 4)
        if piece.start <= (offset := int.from_bytes(piece.body[at : at + 4], "big")) < piece.limit
    ]


def is_done(pulls: PullWindow) -> bool:
    """Whether the range is read and every piece taken."""
    return pulls.is_pulled and not pulls.buffered_bytes


def test_an_empty_range_is_done_and_asks_for_nothing() -> None:
    empty = window(7, 7)

    assert is_done(empty)
    assert empty.requests() == []


def test_each_open_segment_has_one_pull_and_no_more_than_depth_are_open() -> None:
    pulls = window(0, 100, segment=32, depth=2)

    assert pulls.requests() == [PullStep(0, 0, 32), PullStep(1, 32, 32)]
    assert pulls.requests() == []


def test_a_pull_never_asks_for_more_than_its_segment_has_left() -> None:
    pulls = window(10, 13, segment=32, depth=4)

    assert pulls.requests() == [PullStep(0, 10, 3)]


def test_a_short_answer_is_asked_further_and_never_taken_for_the_end() -> None:
    """A4: a broker may answer 8 messages, or none, where 32 were asked for."""
    pulls = window(0, 32, segment=32, depth=1)
    pulls.requests()

    assert pulls.answered(0, 8, body(*range(8))) is AnswerOutcome.ADVANCED
    assert pulls.requests() == [PullStep(0, 8, 24)]
    assert pulls.answered(0, 30, b"") is AnswerOutcome.ADVANCED
    assert not is_done(pulls)
    assert pulls.requests() == [PullStep(0, 30, 2)]
    assert pulls.answered(0, 32, body(31)) is AnswerOutcome.COMPLETED
    assert offsets_of(pulls.take()) == [*range(8), 31]
    assert is_done(pulls)


def test_a_later_segment_waits_for_the_earlier_ones() -> None:
    pulls = window(0, 8)
    pulls.requests()
    pulls.answered(1, 8, body(4, 5, 6, 7))

    assert pulls.take() == []
    pulls.answered(0, 2, body(0, 1))
    assert offsets_of(pulls.take()) == [0, 1]
    pulls.requests()
    pulls.answered(0, 4, body(2, 3))
    assert offsets_of(pulls.take()) == [2, 3, 4, 5, 6, 7]
    assert is_done(pulls)


def test_surplus_past_a_segments_end_is_cut_by_the_limit() -> None:
    pulls = window(0, 8)
    pulls.requests()
    pulls.answered(0, 6, body(3, 4, 5))
    pulls.answered(1, 8, body(4, 5, 7))

    assert offsets_of(pulls.take()) == [3, 4, 5, 7]


def test_an_inner_batch_that_begins_before_the_offset_asked_for_is_cut_by_the_start() -> None:
    pulls = window(0, 8)
    pulls.requests()
    pulls.answered(0, 6, body(0, 1, 2, 3, 4, 5))
    pulls.answered(1, 8, body(2, 3, 4, 5, 6, 7))

    assert offsets_of(pulls.take()) == list(range(8))


def test_a_failed_pull_is_given_out_again() -> None:
    pulls = window(0, 8)
    pulls.requests()
    pulls.failed(0)

    assert pulls.requests() == [PullStep(0, 0, 4)]


@pytest.mark.parametrize(("next_begin_offset", "answer"), [(4, b""), (0, b""), (4, body(4))])
def test_an_answer_without_progress_is_told_apart_and_its_step_comes_again(
    next_begin_offset: int, answer: bytes
) -> None:
    pulls = window(4, 8)
    pulls.requests()

    assert pulls.answered(0, next_begin_offset, answer) is AnswerOutcome.NO_PROGRESS
    assert pulls.take() == []
    assert pulls.requests() == [PullStep(0, 4, 4)]


def test_with_too_many_bytes_waiting_only_the_first_open_segment_goes_on() -> None:
    pulls = window(0, 100, segment=4, depth=3, max_ahead_bytes=16)
    pulls.requests()
    pulls.answered(1, 6, body(4, 5))
    pulls.answered(2, 12, body(8, 9))
    assert pulls.buffered_bytes == 16

    assert pulls.requests() == []
    pulls.answered(0, 2, b"")
    assert pulls.requests() == [PullStep(0, 2, 2)]
    pulls.answered(0, 4, b"")
    assert pulls.requests() == [PullStep(1, 6, 2)]
    assert offsets_of(pulls.take()) == [4, 5]
    assert pulls.requests() == [PullStep(3, 12, 4), PullStep(4, 16, 4)]


def test_with_too_many_bytes_waiting_and_nothing_open_one_segment_is_opened() -> None:
    pulls = window(0, 100, segment=4, depth=3, max_ahead_bytes=4)
    for segment_id, *_ in pulls.requests():
        pulls.answered(segment_id, segment_id * 4 + 4, body(segment_id))

    assert pulls.requests() == [PullStep(3, 12, 4)]


@pytest.mark.parametrize("report", [lambda pulls: pulls.answered(0, 4, b""), lambda pulls: pulls.failed(0)])
def test_a_second_report_of_one_pull_is_refused(report: Callable[..., Any]) -> None:
    pulls = window(0, 8)
    pulls.requests()
    pulls.answered(0, 4, b"")

    with pytest.raises(ValueError, match="Segment 0 has no pull under way"):
        report(pulls)


@pytest.mark.parametrize("sizes", [{"segment": 0}, {"depth": 0}])
def test_sizes_below_one_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        window(0, 8, **sizes)


class ModelBroker:
    """A queue with a filter that gives fewer messages than asked and scans beyond them, as brokers may."""

    def __init__(self, matching: set[int], end: int, rng: random.Random) -> None:
        self.matching = matching
        self.end = end
        self.rng = rng

    def pull(self, step: PullStep) -> tuple[int, bytes]:
        most = self.rng.randint(0, step.max_msg_nums)
        scan_end = min(self.end, step.queue_offset + self.rng.randint(0, 20))
        found = [o for o in range(step.queue_offset, scan_end) if o in self.matching]
        if len(found) > most:
            return found[most], body(*found[:most])
        return scan_end, body(*found)


@given(
    start=st.integers(0, 40),
    length=st.integers(0, 60),
    beyond=st.integers(0, 20),
    segment=st.integers(1, 25),
    depth=st.integers(1, 6),
    max_msg_nums=st.integers(1, 10),
    max_ahead_bytes=st.integers(0, 80),
    share=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 1 << 32),
)
def test_any_broker_gives_exactly_the_messages_of_the_range_in_order_once(
    *,
    start: int,
    length: int,
    beyond: int,
    segment: int,
    depth: int,
    max_msg_nums: int,
    max_ahead_bytes: int,
    share: float,
    seed: int,
) -> None:
    """A4, D1: random batch limits, filters, answer order and failures."""
    rng = random.Random(seed)
    end = start + length
    matching = {o for o in range(end + beyond) if rng.random() < share}
    broker = ModelBroker(matching, end + beyond, rng)
    pulls = PullWindow(
        start, end, segment=segment, depth=depth, max_msg_nums=max_msg_nums, max_ahead_bytes=max_ahead_bytes
    )
    in_flight: list[PullStep] = []
    received: list[int] = []
    while not is_done(pulls):
        in_flight += pulls.requests()
        assert len(in_flight) <= depth
        assert len({step.segment_id for step in in_flight}) == len(in_flight)
        if in_flight:
            step = in_flight.pop(rng.randrange(len(in_flight)))
            if rng.random() < 0.2:
                pulls.failed(step.segment_id)
            else:
                pulls.answered(step.segment_id, *broker.pull(step))
        if not in_flight or rng.random() < 0.5:
            received += offsets_of(pulls.take())

    assert received == sorted(o for o in matching if start <= o < end)
