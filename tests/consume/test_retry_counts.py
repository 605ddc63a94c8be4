from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.retry_counts import from_offset, spans_of, times_by_index
from pyspark_rocketmq.model import QueueState
from pyspark_rocketmq.stored_values import MOST_SPANS, RetryCounts, RetrySpan

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
    text = RetryCounts.of(spans_of(times, offsets.__getitem__), offsets[0], first).to_text()
    state = QueueState(offsets[0], reconsume_times=first, retry_counts=RetryCounts.from_text(text))

    assert times_by_index(state.retry_spans, lambda offset: bisect_left(offsets, offset)) == times


def test_a_batch_put_back_together_is_one_span() -> None:
    """D6: also where a filter or a transaction left offsets without a message."""
    assert spans_of({0: 2, 1: 2, 2: 2, 4: 2}, [10, 11, 15, 16, 17].__getitem__) == (
        RetrySpan(10, 16, 2),
        RetrySpan(17, 18, 2),
    )


def test_a_count_of_only_the_next_message_needs_no_text() -> None:
    """D6: the row has a column for it."""
    assert RetryCounts.of((), 10, 0).to_text() == ""
    assert RetryCounts.of((RetrySpan(10, 11, 2),), 10, 2).to_text() == ""
    assert RetryCounts.of((RetrySpan(10, 12, 2),), 10, 2).to_text() == "[[10,12,2]]"
    assert QueueState(10, reconsume_times=2).retry_spans == (RetrySpan(10, 11, 2),)


def test_a_text_of_counts_is_bounded() -> None:
    """D6: the messages next in turn keep theirs."""
    spans = tuple(RetrySpan(at, at + 1, at % 2 + 1) for at in range(2 * MOST_SPANS))

    counts = RetryCounts.from_text(RetryCounts.of(spans, 0, 1).to_text())

    assert QueueState(0, reconsume_times=1, retry_counts=counts).retry_spans == spans[:MOST_SPANS]


def test_spans_can_be_cut_at_an_offset() -> None:
    spans = (RetrySpan(10, 20, 1), RetrySpan(20, 25, 2))

    assert from_offset(spans, 20) == (RetrySpan(20, 25, 2),)
    assert from_offset(spans, 12) == (RetrySpan(12, 20, 1), RetrySpan(20, 25, 2))
    assert from_offset(spans, 25) == ()
