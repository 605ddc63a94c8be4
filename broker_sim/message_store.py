"""Messages of one broker: commit log, consume queues and the index by key (``DefaultMessageStore``).

The log is one growing store of bytes, cut into segments so that the oldest can be dropped. An offset never
changes its meaning; dropping only raises ``min_offset``. One append lies in one segment. The segment being
written is never dropped, so one large append may exceed ``retention_bytes``.

A consume queue indexes the log (``ConsumeQueue``). The index by key (``IndexService``) has the words of KEYS
and UNIQ_KEY. Each query first adds the messages stored since the last one; most runs have no query.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from broker_sim.layout import (
    EncodedRun,
    Host,
    MessageRun,
    Placement,
    StoredParts,
    StoredRun,
    encode_run,
    read_stored,
    store_timestamp_of,
)
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.wire.messages import MIN_STORED_BYTES

_SEGMENTS_PER_LOG = 8
_LARGEST_SEGMENT = 16 << 20
_SMALLEST_SEGMENT = 256

_SIZE_FIELD = 4
_MOST_RESULTS = 64
"""Maximum number of messages that a query by key returns (maxMsgsNumBatch)."""
_SIZE_AND_OFFSET = struct.Struct(">i24xq")
"""Fields of a stored message: its length, and further on its own commit log offset."""


class CommitLog:
    """All messages as append-only bytes; an offset counts from the first byte ever written."""

    def __init__(self, retention_bytes: int | None = None) -> None:
        """Create an empty log that keeps about its newest ``retention_bytes``; None keeps everything."""
        self._retention_bytes = retention_bytes
        bound = retention_bytes or _LARGEST_SEGMENT * _SEGMENTS_PER_LOG
        self._segment_bytes = min(max(bound // _SEGMENTS_PER_LOG, _SMALLEST_SEGMENT), _LARGEST_SEGMENT)
        self._bases = [0]
        self._segments: list[bytearray] = [bytearray()]
        self._floor = 0

    @property
    def min_offset(self) -> int:
        """Commit log offset of the oldest byte still held."""
        return max(self._bases[0], self._floor)

    @property
    def end_offset(self) -> int:
        """Commit log offset the next append gets."""
        return self._bases[-1] + len(self._segments[-1])

    def append(self, data: bytes) -> int:
        """Add ``data`` and return its commit log offset; the oldest data may be dropped for it."""
        if len(self._segments[-1]) >= self._segment_bytes:
            self._bases.append(self.end_offset)
            self._segments.append(bytearray())
        offset = self.end_offset
        self._segments[-1] += data
        self._drop_oldest()
        return offset

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, all of which the log must still have."""
        index = bisect_right(self._bases, offset) - 1
        start = offset - self._bases[index]
        found = _copy(self._segments[index], start, size)
        while len(found) < size:
            index += 1
            found += _copy(self._segments[index], 0, size - len(found))
        return found

    def drop_before(self, offset: int) -> None:
        """Drop everything below ``offset``; memory is freed by whole segments."""
        self._floor = max(self._floor, min(offset, self.end_offset))
        while len(self._segments) > 1 and self._bases[1] <= self._floor:
            del self._bases[0]
            del self._segments[0]

    def _drop_oldest(self) -> None:
        if self._retention_bytes is None:
            return
        while len(self._segments) > 1 and self.end_offset - self.min_offset > self._retention_bytes:
            del self._bases[0]
            del self._segments[0]


def _copy(segment: bytearray, start: int, size: int) -> bytes:
    with memoryview(segment) as view:
        return bytes(view[start : start + size])


class IndexEntry(NamedTuple):
    """Place, store time and size of a message, as the index by key stores them."""

    commit_log_offset: int
    store_timestamp: int
    size: int


class KeyMatches(NamedTuple):
    """The result of a query by key."""

    entries: list[IndexEntry]
    """Messages in the order of storage; the newest ones if there are more than requested."""
    last_indexed: IndexEntry | None
    """The newest message with any key."""


class MessageIndex:
    """Index of the commit log's messages by topic and key; it is brought up to date by each query."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._read_to = 0
        self._entries: dict[tuple[str, str], list[IndexEntry]] = {}
        self._last: IndexEntry | None = None

    def find(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Find the topic's messages with the key that were stored between the two times, inclusive.

        At most the newest ``most``, and never more than 64, are returned.
        """
        self._read_on()
        found = self._entries.get((topic, key), [])
        in_time = [each for each in found if begin_ms <= each.store_timestamp <= end_ms]
        count = min(most, _MOST_RESULTS)
        return KeyMatches(in_time[-count:] if count > 0 else [], self._last)

    def _read_on(self) -> None:
        self._forget_dropped()
        at = max(self._read_to, self._log.min_offset)
        while at < self._log.end_offset:
            size = int.from_bytes(self._log.read(at, _SIZE_FIELD), "big")
            message = read_stored(self._log.read(at, size))
            entry = IndexEntry(at, message.store_timestamp, size)
            for key in _keys(message):
                self._entries.setdefault((message.run.topic, key), []).append(entry)
                self._last = entry
            at += size
        self._read_to = at

    def _forget_dropped(self) -> None:
        """Remove the entries of messages that the commit log no longer has."""
        oldest = self._log.min_offset
        for name, entries in list(self._entries.items()):
            kept = [each for each in entries if each.commit_log_offset >= oldest]
            if kept:
                self._entries[name] = kept
            else:
                del self._entries[name]


def _keys(message: StoredParts) -> Iterator[str]:
    properties = message.properties
    if "UNIQ_KEY" in properties:
        yield properties["UNIQ_KEY"]
    yield from filter(None, properties.get("KEYS", "").split(" "))


class Entry(NamedTuple):
    """Commit log offset, size in bytes and tag hash code of one message of a queue."""

    commit_log_offset: int
    size: int
    tag_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullLimits:
    """Bounds of one pull (``MessageStoreConfig``); every message counts as being in memory."""

    messages: int = 32
    """Maximum number of messages (maxTransferCountOnMessageInMemory)."""
    total_bytes: int = 262144
    """Maximum size of all messages (maxTransferBytesOnMessageInMemory).

    The first message is returned whatever its size."""
    scanned_entries: int = 800
    """Maximum number of messages that one pull examines, matching or not (maxFilterMessageSize / 20).

    A pull that requests more messages than that examines as many as it requests."""


class Run(NamedTuple):
    """Place and size of consecutive bytes of the commit log: one message or more."""

    commit_log_offset: int
    size: int


class Scan(NamedTuple):
    """Result of selecting messages for a pull: their places, their number, and the next offset to scan."""

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
        """Queue offset of the oldest message held; equals ``max_offset`` if there is none."""
        return self._base + self._gone

    @property
    def max_offset(self) -> int:
        """Queue offset that the next message gets."""
        return self._base + len(self._sizes)

    def extend(self, offsets: Sequence[int], sizes: Sequence[int], tag_hashes: Sequence[int]) -> None:
        """Index messages that were just appended to the commit log."""
        self._commit_log_offsets.extend(offsets)
        self._sizes.extend(sizes)
        self._tag_hashes.extend(tag_hashes)

    def entry(self, queue_offset: int) -> Entry:
        """Return the place of the message at ``queue_offset``, which the queue must still have."""
        at = queue_offset - self._base
        return Entry(self._commit_log_offsets[at], self._sizes[at], self._tag_hashes[at])

    def drop_before(self, commit_log_offset: int) -> None:
        """Forget the messages below ``commit_log_offset``, which the commit log no longer has."""
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
        """Choose messages for a pull from queue offset ``start`` on, which the queue must still have.

        Args:
            start: first queue offset to scan.
            max_messages: number that the consumer requested; 0 still returns one.
            limits: the broker's limits. They are checked before each message after the first one, even if
                the message does not pass the filter.
            wanted: tag hash codes that the consumer accepts, or None for all.
            accepts: gets commit log offset and size of each message with a wanted hash code; returns whether
                to take the message. None takes all.

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


class GetMessageStatus(Enum):
    """Outcome of a search for messages in a queue; its name is the remark of the answer to the pull."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    OFFSET_TOO_SMALL = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_RESET = auto()
    """An operator reset the group's offset; the store itself never returns this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMessageResult:
    """Messages of one queue, or the reason why there are none."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    message_count: int = 0


class MessageStore:
    """All messages of a broker: appends and reads them. A stored message never changes."""

    def __init__(self, clock: Clock, *, retention_bytes: int | None = None) -> None:
        self._clock = clock
        self._log = CommitLog(retention_bytes)
        self._index = MessageIndex(self._log)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    def append(self, run: MessageRun, store_host: Host) -> StoredRun:
        """Store the messages of ``run`` in order, with the present time; return their places."""
        queue = self._queues.setdefault((run.topic, run.queue_id), ConsumeQueue())
        now_ms = int(self._clock.now_s() * 1000)
        first = queue.max_offset
        encoded = encode_run(run, Placement(self._log.end_offset, first, now_ms, store_host))
        self._write(queue, encoded)
        return StoredRun(first, encoded.commit_log_offsets, encoded.tag_hashes)

    def append_copy(
        self, message: bytes, *, topic: str, queue_id: int, queue_offset: int, tag_hash: int
    ) -> None:
        """Store a copy of a message that another broker has at the same commit log offset.

        If ``queue_offset`` is below the queue's end, the topic was deleted there and created again, and the
        queue begins again here, too.
        """
        queue = self._queues.setdefault((topic, queue_id), ConsumeQueue())
        if queue_offset < queue.max_offset:
            queue = self._queues[topic, queue_id] = ConsumeQueue()
        self._write(queue, EncodedRun(message, [self._log.end_offset], [len(message)], [tag_hash]))

    @property
    def end_offset(self) -> int:
        """Commit log offset the next message gets."""
        return self._log.end_offset

    def bytes_behind(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the number of bytes from the beginning of a message to the log's end.

        The queue must have the message, at ``queue_offset``.
        """
        return self._log.end_offset - self._queues[topic, queue_id].entry(queue_offset).commit_log_offset

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        *,
        limits: PullLimits,
        wanted: frozenset[int] | None,
        accepts: Callable[[bytes], bool] | None = None,
    ) -> GetMessageResult:
        """Return messages from ``queue_offset`` on that have a ``wanted`` tag hash and pass ``accepts``.

        None for one of these accepts all. If the queue has no message at that offset, the result has the
        reason and the offset at which to go on.
        """
        queue = self._queues.get((topic, queue_id))
        lowest, highest = (queue.min_offset, queue.max_offset) if queue else (0, 0)
        correction = _correct(queue_offset, lowest, highest)
        if queue is None or correction is not None:
            status, following = correction or (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)
            return GetMessageResult(
                status=status, next_begin_offset=following, min_offset=lowest, max_offset=highest
            )
        scan = queue.scan(queue_offset, max_messages, limits, wanted, accepts and self._read_by(accepts))
        return GetMessageResult(
            status=GetMessageStatus.FOUND if scan.message_count else GetMessageStatus.NO_MATCHED_MESSAGE,
            next_begin_offset=scan.next_begin_offset,
            min_offset=lowest,
            max_offset=highest,
            body=b"".join([self._log.read(offset, size) for offset, size in scan.runs]),
            message_count=scan.message_count,
        )

    def drop_stored_before(self, timestamp_ms: int) -> None:
        """Drop the oldest messages, up to the first one that was stored at ``timestamp_ms`` or later."""
        at = self._log.min_offset
        while (message := self.message_at(at)) is not None and store_timestamp_of(message) < timestamp_ms:
            at += len(message)
        if at != self._log.min_offset:
            self._log.drop_before(at)
            self._drop_from_queues()

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of the topic; if the topic is created again, they begin at offset 0."""
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]

    def delete_emptied_queues(self, *, is_kept: Callable[[str], bool]) -> None:
        """Delete the queues whose messages are all gone, except those of topics that ``is_kept`` accepts."""
        for (topic, queue_id), queue in list(self._queues.items()):
            if queue.max_offset and queue.min_offset == queue.max_offset and not is_kept(topic):
                del self._queues[topic, queue_id]

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the offsets, sizes and tags of one queue, for reading only; None if it was never written."""
        return self._queues.get((topic, queue_id))

    def find_by_key(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Find the topic's messages with this key that were stored between two times; the newest ``most``."""
        return self._index.find(topic, key, most, begin_ms, end_ms)

    @property
    def oldest_offset(self) -> int:
        """Commit log offset of the oldest byte held."""
        return self._log.min_offset

    def earliest_timestamp(self) -> int:
        """Return the store time of the oldest message held, in milliseconds; -1 if there is none."""
        oldest = self.message_at(self._log.min_offset)
        return -1 if oldest is None else store_timestamp_of(oldest)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue's oldest offset that is still stored; 0 for a queue never written."""
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue's last offset + 1; 0 for a queue never written."""
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the message's store time in milliseconds; -1 if there is no such message."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        entry = queue.entry(queue_offset)
        return store_timestamp_of(self._log.read(entry.commit_log_offset, entry.size))

    def first_at_or_after(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at ``timestamp_ms`` or later, else the queue's end.

        This is boundary LOWER of requests.
        """
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        while low < high:
            middle = (low + high) // 2
            if self.store_timestamp(topic, queue_id, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def last_at_or_before(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the last message stored at ``timestamp_ms`` or earlier, else 0.

        This is boundary UPPER of requests.
        """
        following = self.first_at_or_after(topic, queue_id, timestamp_ms + 1)
        return following - 1 if following > self.min_offset(topic, queue_id) else 0

    def message_at(self, commit_log_offset: int) -> bytes | None:
        """Return the stored message that begins at ``commit_log_offset``; None if none begins there."""
        last = self._log.end_offset - MIN_STORED_BYTES
        if not self._log.min_offset <= commit_log_offset <= last:
            return None
        # A client may request any offset, even within a body; a stored message contains its own offset.
        size, own_offset = _SIZE_AND_OFFSET.unpack(self._log.read(commit_log_offset, _SIZE_AND_OFFSET.size))
        if (
            own_offset != commit_log_offset
            or not MIN_STORED_BYTES <= size <= self._log.end_offset - commit_log_offset
        ):
            return None
        return self._log.read(commit_log_offset, size)

    def _write(self, queue: ConsumeQueue, encoded: EncodedRun) -> None:
        oldest = self._log.min_offset
        self._log.append(encoded.data)
        queue.extend(encoded.commit_log_offsets, encoded.sizes, encoded.tag_hashes)
        if self._log.min_offset != oldest:
            self._drop_from_queues()

    def _drop_from_queues(self) -> None:
        for queue in self._queues.values():
            queue.drop_before(self._log.min_offset)

    def _read_by(self, accepts: Callable[[bytes], bool]) -> Callable[[int, int], bool]:
        return lambda offset, size: accepts(self._log.read(offset, size))


def _correct(queue_offset: int, lowest: int, highest: int) -> tuple[GetMessageStatus, int] | None:
    """Return status and next offset if a queue from ``lowest`` to ``highest`` (exclusive) lacks the offset.

    None if it has a message there.
    """
    if highest == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if queue_offset < lowest:
        return GetMessageStatus.OFFSET_TOO_SMALL, lowest
    if queue_offset == highest:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, queue_offset
    if queue_offset > highest:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, highest
    return None
