"""Latencies of messages as counts in fixed buckets, which any number of tasks and commits can add up.

A latency is a difference of two clocks in whole milliseconds: the broker's, which stored the message, and a
worker's. If the worker's clock is behind, the difference may be negative; it then counts as 0.

Buckets: each power of two of milliseconds is divided into eight buckets, so that a bucket is at most an
eighth as wide as its values. Below 16 ms each value has its own bucket. All latencies of an hour and more
share the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

LONGEST_MS: Final = 3_600_000
"""Latencies of this many milliseconds and more share one bucket."""
BITS: Final = 3
"""Binary logarithm of the number of buckets for each power of two: there are eight."""
_EACH: Final = 1 << BITS


def bucket_of(latency_ms: int) -> int:
    """Return the number of a latency's bucket: 0 for 0 and less; numbers grow with latencies."""
    if latency_ms <= 0:
        return 0
    ms = min(latency_ms, LONGEST_MS)
    exponent = ms.bit_length() - 1
    return 1 + _EACH * exponent + ((ms << BITS >> exponent) - _EACH)


def bounds_of(bucket: int) -> tuple[int, int]:
    """Return the smallest and the largest latency of a bucket, in milliseconds; the last one ends at an hour.

    Some buckets below 8 ms contain no whole number; their largest latency is less than their smallest.
    """
    if bucket <= 0:
        return 0, 0
    exponent, place = divmod(bucket - 1, _EACH)
    least = -(-((_EACH + place) << exponent) // _EACH)
    most = -(-((_EACH + place + 1) << exponent) // _EACH) - 1
    return least, min(most, LONGEST_MS)


class Percentiles(NamedTuple):
    """The usual percentiles of latencies, in milliseconds, rounded up by ``LatencyHistogram.percentile``."""

    messages: int
    p50: int
    p95: int
    p99: int
    p999: int
    longest: int
    """The longest latency, exactly."""

    def __str__(self) -> str:
        return (
            f"p50 {self.p50} ms · p95 {self.p95} ms · p99 {self.p99} ms · p99.9 {self.p999} ms · "
            f"longest {self.longest} ms ({self.messages} messages)"
        )


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Latencies of any number of messages, in milliseconds, as counts in fixed buckets.

    A key of ``counts`` is the number of a bucket, a small range of latencies (see ``bounds_of``); its value
    is the number of messages. Classes that have a histogram, such as ``StoreLatencies``, document which two
    moments a latency lies between. :meth:`plus` adds two histograms; :meth:`percentiles` summarises one.
    """

    counts: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Number of messages by the number of the bucket (``bucket_of``); empty buckets are left out."""
    total_ms: int = 0
    """Sum of all latencies."""
    longest_ms: int = 0
    """The longest latency, which may be longer than an hour."""

    @classmethod
    def of(cls, latencies_ms: Iterable[int]) -> LatencyHistogram:
        """Return the histogram of some latencies in milliseconds; a negative one counts as 0."""
        counts: dict[int, int] = {}
        total_ms = longest_ms = 0
        for each in latencies_ms:
            if each > 0:
                total_ms += each
                longest_ms = max(longest_ms, each)
            bucket = bucket_of(each)
            counts[bucket] = counts.get(bucket, 0) + 1
        return cls(counts, total_ms, longest_ms)

    @property
    def messages(self) -> int:
        """Number of messages whose latencies are counted."""
        return sum(self.counts.values())

    def plus(self, other: LatencyHistogram) -> LatencyHistogram:
        """Return a histogram of the messages of both histograms."""
        if not (self.counts and other.counts):
            return self if self.counts else other
        counts = dict(self.counts)
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        longest_ms = max(self.longest_ms, other.longest_ms)
        return LatencyHistogram(counts, self.total_ms + other.total_ms, longest_ms)

    def later_by(self, delay_ms: int) -> LatencyHistogram:
        """Return the histogram with each latency longer by ``delay_ms``; unchanged if that is 0 or less.

        A message of a bucket counts as if it had the bucket's largest latency.
        """
        if delay_ms <= 0 or not self.counts:
            return self
        counts: Counter[int] = Counter()
        for bucket, count in self.counts.items():
            counts[bucket_of(bounds_of(bucket)[1] + delay_ms)] += count
        total_ms = self.total_ms + delay_ms * self.messages
        return LatencyHistogram(counts, total_ms, self.longest_ms + delay_ms)

    def percentile(self, percent: float) -> int:
        """Return the latency that ``percent`` of the messages do not exceed; 0 without messages.

        The latency is rounded up to the largest one of its bucket, but not beyond ``longest_ms``. In the last
        bucket, which has no end, it is ``longest_ms``.
        """
        rank = max(1, ceil(self.messages * percent / 100))
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                # The last bucket has no end.
                return min(bounds_of(bucket)[1], self.longest_ms) if bucket < _LAST else self.longest_ms
        return 0

    def percentiles(self) -> Percentiles:
        """Return the percentiles 50, 95, 99 and 99.9, the number of messages, and the longest latency."""
        p50, p95, p99, p999 = map(self.percentile, (50, 95, 99, 99.9))
        return Percentiles(self.messages, p50, p95, p99, p999, self.longest_ms)

    def below(self, edges_ms: Sequence[int]) -> Iterator[int]:
        """Yield, for each of ``edges_ms``, how many latencies are below this edge.

        The edges ascend, and each one is the smallest latency of a bucket.
        """
        buckets = sorted(self.counts)
        seen = at = 0
        for edge in edges_ms:
            while at < len(buckets) and buckets[at] < bucket_of(edge):
                seen += self.counts[buckets[at]]
                at += 1
            yield seen

    @property
    def facts(self) -> list[Any]:
        """The histogram in a form that JSON can hold; empty without messages."""
        if not self.counts:
            return []
        return [self.total_ms, self.longest_ms, *(each for pair in self.counts.items() for each in pair)]

    @classmethod
    def from_facts(cls, facts: Sequence[int]) -> Self:
        """Build a histogram from its :attr:`facts`."""
        if not facts:
            return cls()
        total_ms, longest_ms, *pairs = facts
        return cls(dict(zip(pairs[::2], pairs[1::2], strict=True)), total_ms, longest_ms)


_LAST: Final = bucket_of(LONGEST_MS)
NONE_COUNTED: Final = LatencyHistogram()


class StoreLatencies(NamedTuple):
    """Ages of finished messages since their broker stored them: at their delivery, and at a later moment.

    Each message counts once, with the delivery that finished it. A message without a known delivery or store
    time does not count.
    """

    to_listener: LatencyHistogram = NONE_COUNTED
    """Times from a message's storage at its broker until its delivery began."""
    ages: LatencyHistogram = NONE_COUNTED
    """Times from a message's storage at its broker until ``at_ms``; without those in ``committed``."""
    at_ms: int = 0
    """Time up to which ``ages`` counts, in milliseconds since the epoch."""
    committed: LatencyHistogram = NONE_COUNTED
    """Times from a message's storage at its broker until its task committed it; other messages are in
    ``ages``."""

    def plus(self, other: StoreLatencies) -> StoreLatencies:
        """Return the latencies of the messages of both, with their ages at the later ``at_ms``."""
        at_ms = max(self.at_ms, other.at_ms)
        return StoreLatencies(
            self.to_listener.plus(other.to_listener),
            self._ages_at(at_ms).plus(other._ages_at(at_ms)),
            at_ms,
            self.committed.plus(other.committed),
        )

    def to_commit(self, at_ms: int) -> LatencyHistogram:
        """Return the ages of the messages at their commit.

        That is their task's commit or, for messages that their task has not committed, the moment ``at_ms``.
        """
        return self.committed.plus(self._ages_at(at_ms))

    def commit(self, at_ms: int) -> StoreLatencies:
        """Return the latencies after the task has committed all of the messages at ``at_ms``."""
        return StoreLatencies(self.to_listener, at_ms=at_ms, committed=self.to_commit(at_ms))

    def _ages_at(self, at_ms: int) -> LatencyHistogram:
        """Return the ages of the messages in ``ages`` at ``at_ms``, or at ``self.at_ms`` if that is later."""
        return self.ages.later_by(at_ms - self.at_ms)

    @property
    def facts(self) -> list[Any]:
        """The latencies in a form that JSON can hold; empty without messages."""
        if not self.to_listener.counts:
            return []
        return [self.to_listener.facts, self.ages.facts, self.at_ms, self.committed.facts]

    @classmethod
    def from_facts(cls, facts: Sequence[Any]) -> Self:
        """Build latencies from their :attr:`facts`."""
        if not facts:
            return cls()
        to_listener, ages, at_ms, committed = facts
        of = LatencyHistogram.from_facts
        return cls(of(to_listener), of(ages), at_ms, of(committed))


NO_LATENCIES: Final = StoreLatencies()
