"""Speed and lag of a consumer: sums over the last minute and hour, as Java's clients keep them.

Java samples counters every 10 s and every 10 min, and subtracts the oldest of seven samples from the newest.
Here sums are kept for each 10 s and each 10 min, which gives the same numbers without a timer. See row D11 of
``docs/semantics.md``.

The metrics are stored in the rows of the offset store: the code that commits batches writes them there, and
the group's member, which RocketMQ's tools ask for them, runs in another process.

Source: RocketMQ 5.3.3 ``ConsumerStatsManager``, ``common/stats/StatsItem``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import reduce
from math import inf
from operator import add, sub
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pyspark_rocketmq.errors import DamagedOffsets
from pyspark_rocketmq.stored_values import StoredValue, compact_json, read_json
from pyspark_rocketmq.wire.requests.client_info import ConsumeStatus

KeyT = TypeVar("KeyT", bound=Hashable)

_MINUTE_BUCKET_S: Final = 10.0
_HOUR_BUCKET_S: Final = 600.0
_FULL_BUCKETS: Final = 6
"""Number of full buckets before the one that is being filled."""


class QueueLag(NamedTuple):
    """Next offset of a queue, compared with the end of the queue at its broker."""

    next_offset: int
    """Next queue offset to consume."""
    max_offset: int | None
    """The queue's end, exclusive; None if the broker did not answer or does not have the queue."""
    next_stored_at_s: float | None = None
    """Wall-clock second at which the message at ``next_offset`` was stored; None if no such message is
    stored yet, or if the broker was not asked for this time."""

    @property
    def messages(self) -> int | None:
        """Number of messages stored and not yet consumed; None if the queue's end is not known.

        Offsets without a message, as after a filter, count too.
        """
        return None if self.max_offset is None else max(0, self.max_offset - self.next_offset)

    @property
    def beyond_end(self) -> int | None:
        """Number of offsets by which ``next_offset`` is beyond the queue's end; 0 if it is not beyond it.

        None if the end is not known.
        """
        return None if self.max_offset is None else max(0, self.next_offset - self.max_offset)

    @property
    def note(self) -> str | None:
        """Remark if the next offset is beyond the end, which a lag of 0 would hide; else None."""
        return f"beyond the end by {self.beyond_end}" if self.beyond_end else None

    def seconds(self, now_s: float) -> float | None:
        """Return how many seconds ago the next message to consume was stored; None if that is not known.

        Return 0 if no message waits, or if the broker's clock is ahead.
        """
        if self.messages == 0:
            return 0.0
        return None if self.next_stored_at_s is None else max(0.0, now_s - self.next_stored_at_s)


class ConsumeMetrics(NamedTuple):
    """Numbers of messages, listener calls and pulls, and the total durations of these calls and pulls."""

    ok: int = 0
    """Messages the listener acknowledged."""
    failed: int = 0
    """Messages the listener gave back; a message counts each time."""
    calls: int = 0
    call_ms: float = 0.0
    pulled: int = 0
    """Messages read from brokers."""
    pulls: int = 0
    pull_ms: float = 0.0

    def plus(self, other: ConsumeMetrics) -> ConsumeMetrics:
        """Return the sum of these metrics and ``other``, field by field."""
        return ConsumeMetrics(*map(add, self, other))

    def minus(self, earlier: ConsumeMetrics) -> ConsumeMetrics:
        """Return these metrics minus ``earlier``, field by field: the work done since then."""
        return ConsumeMetrics(*map(sub, self, earlier))


class RecentSums(NamedTuple):
    """Metrics summed over the last minute and over the last hour, as of one moment."""

    minute: ConsumeMetrics
    hour: ConsumeMetrics
    minute_s: float
    """Seconds from the beginning of ``minute`` to that moment, at least ten; rates are sums divided by it."""


class Watched(NamedTuple):
    """Content of a :class:`MetricsSnapshot`: sums, and the times for which they were gathered."""

    at: float
    """Wall-clock second at which the sums were computed."""
    seconds: tuple[float, float]
    """Seconds over which ``minute`` (60 to 70) and ``hour`` (3600 to 4200) were gathered; fewer if the query
    began later."""
    minute: ConsumeMetrics
    hour: ConsumeMetrics


_NOTHING: Final = Watched(-inf, (0.0, 0.0), ConsumeMetrics(), ConsumeMetrics())


class MetricsSnapshot(StoredValue[Watched]):
    """A queue's sums of the last minute and hour, as of the moment at which they were stored.

    Text: ``{"at": 1700000000.5, "seconds": [60.5, 1800.0], "minute": [12, 1, …], "hour": [640, 3, …]}``. A
    text that cannot be read counts as empty: the next batch writes a new one.
    """

    __slots__ = ()

    def as_of(self, now_s: float) -> RecentSums:
        """Return the stored sums as of ``now_s``: those that are too old become 0.

        The minute's sums are 0 if the snapshot is a minute old or older, the hour's sums if it is an hour old
        or older. Until then they are returned unchanged.
        """
        watched = self._read()
        if watched is _NOTHING:
            return RecentSums(watched.minute, watched.hour, _MINUTE_BUCKET_S)
        age_s = max(0.0, now_s - watched.at)
        return RecentSums(
            watched.minute if age_s < 60 else ConsumeMetrics(),
            watched.hour if age_s < 3600 else ConsumeMetrics(),
            max(_MINUTE_BUCKET_S, watched.seconds[0] + age_s),
        )

    @staticmethod
    def _encode(facts: Watched) -> str:
        return compact_json(facts._asdict())

    @staticmethod
    def _decode(text: str) -> Watched:
        try:
            return read_json(text, "statistics", _watched) if text else _NOTHING
        except DamagedOffsets:
            return _NOTHING


NO_METRICS: Final = MetricsSnapshot()


def _watched(found: Any) -> Watched:
    try:
        minute_s, hour_s = found["seconds"]
        at, *_ = numbers = (found["at"], minute_s, hour_s)
        minute, hour = ConsumeMetrics(*found["minute"]), ConsumeMetrics(*found["hour"])
    except LookupError as error:
        raise ValueError(str(error)) from None
    if not all(isinstance(number, int | float) for number in (*numbers, *minute, *hour)):
        raise TypeError(f"{found!r:.80} has something that is not a number")
    return Watched(at, (minute_s, hour_s), minute, hour)


class RecentMetrics(Generic[KeyT]):
    """Sums metrics over the last minute and the last hour, separately for each key, such as a queue.

    One object must receive all metrics of a key. The caller passes the time.
    """

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._windows: dict[KeyT, tuple[_Window, _Window]] = {}

    def add(self, key: KeyT, metrics: ConsumeMetrics, now_s: float) -> MetricsSnapshot:
        """Add ``metrics`` to those of ``key``; return the key's sums of the last minute and hour."""
        windows = self._windows.get(key)
        if windows is None:
            windows = self._windows[key] = _Window(_MINUTE_BUCKET_S), _Window(_HOUR_BUCKET_S)
        for window in windows:
            window.add(metrics, now_s)
        minute, hour = (
            ConsumeMetrics._make([round(number, 1) for number in window.total()]) for window in windows
        )
        minute_s, hour_s = (round(min(window.span_s(now_s), now_s - self._began_s), 1) for window in windows)
        return MetricsSnapshot(Watched(round(now_s, 3), (minute_s, hour_s), minute, hour))


def status_of(snapshots: Iterable[MetricsSnapshot], now_s: float) -> ConsumeStatus:
    """Return a topic's rates and mean durations, as RocketMQ reports them, from its queues' ``snapshots``.

    The numbers are the last minute's, with two exceptions. The number of failed messages is the last hour's.
    So is the mean duration of listener calls if there was no call in the last minute.

    Source: ``ConsumerStatsManager.consumeStatus``.
    """
    queues = [snapshot.as_of(now_s) for snapshot in snapshots]
    minute = _sum(each.minute for each in queues)
    hour = _sum(each.hour for each in queues)
    called = minute if minute.calls else hour
    return ConsumeStatus(
        pull_rt=_mean(minute.pull_ms, minute.pulls),
        pull_tps=sum(each.minute.pulled / each.minute_s for each in queues),
        consume_rt=_mean(called.call_ms, called.calls),
        consume_ok_tps=sum(each.minute.ok / each.minute_s for each in queues),
        consume_failed_tps=sum(each.minute.failed / each.minute_s for each in queues),
        consume_failed_msgs=hour.failed,
    )


class _Window:
    """Sums of the last seven buckets of time, the one that is being filled included."""

    def __init__(self, bucket_s: float) -> None:
        self._bucket_s = bucket_s
        self._sums: dict[int, ConsumeMetrics] = {}

    def add(self, metrics: ConsumeMetrics, now_s: float) -> None:
        now = int(now_s // self._bucket_s)
        self._sums[now] = self._sums.get(now, ConsumeMetrics()).plus(metrics)
        # Buckets of the future come from a clock that was put back.
        self._sums = {at: sums for at, sums in self._sums.items() if now - _FULL_BUCKETS <= at <= now}

    def total(self) -> ConsumeMetrics:
        return _sum(self._sums.values())

    def span_s(self, now_s: float) -> float:
        """Return the seconds that the buckets cover up to now."""
        return _FULL_BUCKETS * self._bucket_s + now_s % self._bucket_s


def _sum(all_metrics: Iterable[ConsumeMetrics]) -> ConsumeMetrics:
    return reduce(ConsumeMetrics.plus, all_metrics, ConsumeMetrics())


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0
