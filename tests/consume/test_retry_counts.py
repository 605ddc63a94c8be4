from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.retry_counts import (
    MOST_SPANS,
    RetrySpan,
    from_offset,
    spans_from,
    spans_of,
    times_by_index,
    to_text,
)
from pyspark_rocketmq.model import QueueState

_OFFSETS = st.lists(st.integers(0, 60), unique=True, min_size=1).map(sorted)


@given(offsets=_OFFSETS, data=st.data())
def test_spans_give_each_message_its_count_back(offsets: list[int], data: st.DataObject) -> None:
    """D6: written as text and read again, whatever messages lie between."""
    times = data.draw(
        st.dictionaries(st.integers(0, len(offsets) - 1), st.integers(1, 3)).map(
            lambda drawn: dict(sorted(drawn.items()))
        )
    )

    first = times.get(0, 0)
    text = to_text(spans_of(times, offsets.__getitem__), offsets[0], first)
    spans = spans_from(QueueState(offsets[0], reconsume_times=first, retry_counts=text))

    assert times_by_index(spans, lambda offset: bisect_left(offsets, offset)) == times


def test_a_batch_put_back_together_is_one_span() -> None:
    """D6: also where a filter or a transaction left offsets without a message."""
    assert spans_of({0: 2, 1: 2, 2: 2, 4: 2}, [10, 11, 15, 16, 17].__getitem__) == (
        RetrySpan(10, 16, 2),
        RetrySpan(17, 18, 2),
    )


def test_a_count_of_only_the_next_message_needs_no_text() -> None:
    """D6: the row has a column for it."""
    assert to_text((), 10, 0) == ""
    assert to_text((RetrySpan(10, 11, 2),), 10, 2) == ""
    assert to_text((RetrySpan(10, 12, 2),), 10, 2) == "[[10,12,2]]"
    assert spans_from(QueueState(10, reconsume_times=2)) == (RetrySpan(10, 11, 2),)


def test_a_text_of_counts_is_bounded() -> None:
    """D6: the messages next in turn keep theirs."""
    spans = tuple(RetrySpan(at, at + 1, at % 2 + 1) for at in range(2 * MOST_SPANS))

    text = to_text(spans, 0, 1)

    assert spans_from(QueueState(0, reconsume_times=1, retry_counts=text)) == spans[:MOST_SPANS]


def test_spans_can_be_cut_at_an_offset() -> None:
    spans = (RetrySpan(10, 20, 1), RetrySpan(20, 25, 2))

    assert from_offset(spans, 20) == (RetrySpan(20, 25, 2),)
    assert from_offset(spans, 12) == (RetrySpan(12, 20, 1), RetrySpan(20, 25, 2))
    assert from_offset(spans, 25) == ()
