"""The segments of a range: every offset pulled and handed out once, in queue order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.segments import PullChunk, SegmentPull, Segments


def pulls(
    segments: Segments, *, at_most: int = 99, most_open: int = 99, has_room: bool = True
) -> list[SegmentPull]:
    return segments.pulls(at_most, most_open=most_open, has_room=has_room)


def test_a_range_is_cut_into_segments_of_equal_size() -> None:
    assert pulls(Segments(3, 10, 4)) == [(0, 3, 7), (1, 7, 10)]


def test_an_empty_range_is_complete_and_has_no_pulls() -> None:
    segments = Segments(7, 7, 4)

    assert segments.is_complete
    assert pulls(segments) == []


def test_no_more_segments_are_open_than_allowed() -> None:
    segments = Segments(0, 100, 10)

    assert pulls(segments, most_open=2) == [(0, 0, 10), (1, 10, 20)]
    assert pulls(segments, most_open=2) == []
    assert segments.in_flight == 2


def test_chunks_of_a_later_segment_wait_for_the_earlier_one() -> None:
    segments = Segments(0, 8, 4)
    pulls(segments)
    segments.answered(1, 4, 8, b"later")
    assert (segments.takeable_bytes, segments.take()) == (0, [])

    segments.answered(0, 0, 4, b"first")

    assert segments.takeable_bytes == segments.buffered_bytes == 10
    assert segments.take() == [PullChunk(b"first", 4, 0), PullChunk(b"later", 8, 4)]
    assert segments.is_complete
    assert segments.takeable_bytes == segments.buffered_bytes == 0


def test_an_answer_short_of_the_end_is_followed_by_another_pull() -> None:
    segments = Segments(0, 8, 8)
    pulls(segments)
    segments.answered(0, 0, 3, b"abc")

    assert segments.take() == [PullChunk(b"abc", 8, 0)]
    assert pulls(segments) == [(0, 3, 8)]


def test_a_lost_pull_is_given_out_again() -> None:
    segments = Segments(0, 8, 4)
    pulls(segments)
    segments.lost(1)

    assert segments.in_flight == 1
    assert pulls(segments) == [(1, 4, 8)]


def test_without_room_only_the_first_open_segment_is_pulled() -> None:
    segments = Segments(0, 12, 4)
    pulls(segments)
    segments.lost(2)
    segments.lost(0)

    assert pulls(segments, has_room=False) == [(0, 0, 4)]


@pytest.mark.parametrize(
    "report", [lambda segments: segments.lost(0), lambda segments: segments.answered(0, 0, 4, b"")]
)
def test_a_second_report_of_a_pull_is_refused(report: Callable[[Segments], None]) -> None:
    segments = Segments(0, 8, 4)
    pulls(segments)
    report(segments)

    with pytest.raises(ValueError, match="no pull in flight"):
        report(segments)


def test_moved_bodies_keep_their_places() -> None:
    segments = Segments(0, 8, 4)
    pulls(segments)
    segments.answered(1, 4, 8, memoryview(b"later"))
    segments.move(bytes)
    segments.answered(0, 0, 4, b"")

    assert segments.take() == [PullChunk(b"later", 8, 4)]


@given(
    count=st.integers(0, 40), size=st.integers(1, 9), most_open=st.integers(1, 5), seed=st.integers(0, 10**6)
)
def test_every_offset_leaves_once_in_order_whatever_comes_first(
    count: int, size: int, most_open: int, seed: int
) -> None:
    segments, chosen = Segments(5, 5 + count, size), random.Random(seed)
    waiting: list[SegmentPull] = []
    taken: list[int] = []
    while not segments.is_complete:
        waiting += pulls(segments, most_open=most_open, has_room=chosen.random() < 0.8)
        segment_id, start, end = waiting.pop(chosen.randrange(len(waiting)))
        if chosen.random() < 0.2:
            segments.lost(segment_id)
        else:
            # A broker may answer beyond the segment's end.
            last = chosen.randint(start + 1, end + 2)
            segments.answered(segment_id, start, last, bytes(range(start, last)))
        taken += [
            offset
            for chunk in segments.take()
            for offset in chunk.body
            if chunk.start <= offset < chunk.limit
        ]

    assert taken == list(range(5, 5 + count))
    assert segments.in_flight == len(waiting) == 0
