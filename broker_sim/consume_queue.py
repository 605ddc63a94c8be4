"""One queue's index into the commit log (``ConsumeQueue``), and the scan that chooses what a pull returns."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Entry(NamedTuple):
    """Where a queue's message lies."""

    commit_log_offset: int
    size: int
    tag_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullLimits:
    """Bounds of one pull (``MessageStoreConfig``); every message counts as being in memory."""

    messages: int = 32
    """maxTransferCountOnMessageInMemory."""
    total_bytes: int = 262144
    """maxTransferBytesOnMessageInMemory; the first message is returned whatever its size."""
    scanned_entries: int = 800
    """maxFilterMessageSize / 20: entries looked at when most do not match."""


class Run(NamedTuple):
    """Bytes that lie together in the commit log."""

    commit_log_offset: int
    size: int


class Scan(NamedTuple):
    """What a pull takes."""

    runs: list[Run]
    message_count: int
    next_begin_offset: int


class ConsumeQueue:
    """Offsets, sizes and tag hashes of the messages of one queue, in queue order."""

    def __init__(self) -> None:
        self._base = 0  # queue offset of the arrays' first element
        self._gone = 0  # leading elements whose messages were dropped, not cut off yet
        self._commit_log_offsets = array("q")
        self._sizes = array("i")
        self._tag_hashes = array("i")

    @property
    def min_offset(self) -> int:
        """Queue offset of the oldest message held; equals ``max_offset`` when none is."""
        return self._base + self._gone

    @property
    def max_offset(self) -> int:
        """Queue offset the next message gets."""
        return self._base + len(self._sizes)

    def extend(self, offsets: Sequence[int], sizes: Sequence[int], tag_hashes: Sequence[int]) -> None:
        """Note messages just appended to the commit log."""
        self._commit_log_offsets.extend(offsets)
        self._sizes.extend(sizes)
        self._tag_hashes.extend(tag_hashes)

    def entry(self, queue_offset: int) -> Entry:
        """Where the message at ``queue_offset`` lies; it must be held."""
        at = queue_offset - self._base
        return Entry(self._commit_log_offsets[at], self._sizes[at], self._tag_hashes[at])

    def drop_before(self, commit_log_offset: int) -> None:
        """Forget the messages the commit log no longer holds."""
        self._gone = bisect_left(self._commit_log_offsets, commit_log_offset)
        if self._gone * 2 > len(self._sizes):  # each element is moved once on average
            for column in (self._commit_log_offsets, self._sizes, self._tag_hashes):
                del column[: self._gone]
            self._base += self._gone
            self._gone = 0

    def scan(
        self,
        start: int,
        max_messages: int,
        limits: PullLimits,
        wanted: frozenset[int] | None,
        accepts: Callable[[int, int], bool] | None = None,
    ) -> Scan:
        """Choose messages from queue offset ``start`` on, which must be held.

        Args:
            start: first queue offset looked at.
            max_messages: what the consumer asked for; 0 still returns one.
            limits: the broker's bounds; a bound is checked before a message is added, and before the filter.
            wanted: tag hash codes the consumer takes, or None for all.
            accepts: looks at the message at a commit log offset, of a size, whose hash code is wanted.

        Source: ``DefaultMessageStore.getMessage`` and ``isTheBatchFull``.
        """
        at = start - self._base
        end = min(len(self._sizes), at + max(limits.scanned_entries, max_messages))
        most = min(max_messages, limits.messages)
        runs: list[Run] = []
        count = total = run_start = run_end = 0
        while at < end:
            offset, size = self._commit_log_offsets[at], self._sizes[at]
            if count and (count >= most or total + size > limits.total_bytes):
                break
            if (wanted is None or self._tag_hashes[at] in wanted) and (
                accepts is None or accepts(offset, size)
            ):
                if offset != run_end:
                    if run_end:
                        runs.append(Run(run_start, run_end - run_start))
                    run_start = offset
                run_end = offset + size
                count += 1
                total += size
            at += 1
        if run_end:
            runs.append(Run(run_start, run_end - run_start))
        return Scan(runs, count, self._base + at)
