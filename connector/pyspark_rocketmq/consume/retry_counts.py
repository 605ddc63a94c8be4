"""Retry counts of messages, kept from one range of a queue to the next as a few spans of queue offsets.

Java's client keeps the count in each message, which stays in memory. Here a message that was given back is
read again, so its count is kept in the queue's state and the offset store. A whole batch is given back
together, so a few spans are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyspark_rocketmq.stored_values import RetrySpan


def times_by_index(spans: Iterable[RetrySpan], first_at: Callable[[int], int]) -> dict[int, int]:
    """Return how often messages of a range were given back, by index in the range; no entry means never.

    ``first_at`` returns the index of the first message at or after a queue offset.
    """
    return {index: span.times for span in spans for index in range(first_at(span.start), first_at(span.end))}


def spans_of(times: Mapping[int, int], offset_of: Callable[[int], int]) -> tuple[RetrySpan, ...]:
    """Return the spans for ``times`` by ascending index: the reverse of :func:`times_by_index`.

    ``offset_of`` gives the queue offset at an index. A span includes offsets without a message between those
    of its messages.
    """
    spans: list[RetrySpan] = []
    next_index = -1
    for index, count in times.items():
        offset = offset_of(index)
        if index == next_index and spans and spans[-1].times == count:
            spans[-1] = spans[-1]._replace(end=offset + 1)
        else:
            spans.append(RetrySpan(offset, offset + 1, count))
        next_index = index + 1
    return tuple(spans)


def from_offset(spans: Iterable[RetrySpan], queue_offset: int) -> tuple[RetrySpan, ...]:
    """Return the parts of ``spans`` at or after ``queue_offset``."""
    return tuple(
        span._replace(start=max(span.start, queue_offset)) for span in spans if span.end > queue_offset
    )
