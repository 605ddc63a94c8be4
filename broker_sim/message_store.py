"""Messages of one broker: a commit log and the consume queues over it (``DefaultMessageStore``)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from broker_sim.commit_log import CommitLog
from broker_sim.consume_queue import ConsumeQueue, PullLimits
from broker_sim.layout import (
    EncodedRun,
    Host,
    MessageRun,
    Placement,
    StoredRun,
    encode_run,
    store_timestamp_of,
)
from broker_sim.message_index import KeyMatches, MessageIndex
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.wire.messages import MIN_STORED_BYTES

_SIZE_AND_OFFSET = struct.Struct(">i24xq")
"""A stored message's length, and further on its own place in the log."""


class GetMessageStatus(Enum):
    """What looking for messages came to; the name is the remark of a pull's answer."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    OFFSET_TOO_SMALL = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_RESET = auto()
    """An operator reset the group's offset; the store itself never says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMessageResult:
    """Messages of one queue, or why there are none."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    message_count: int = 0


class MessageStore:
    """Append and read messages; nothing is ever changed in place."""

    def __init__(self, clock: Clock, *, retention_bytes: int | None = None) -> None:
        self._clock = clock
        self._log = CommitLog(retention_bytes)
        self._index = MessageIndex(self._log)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    def append(self, run: MessageRun, store_host: Host) -> StoredRun:
        """Store the messages of ``run`` one after the other and return their places."""
        queue = self._queues.setdefault((run.topic, run.queue_id), ConsumeQueue())
        now_ms = int(self._clock.now_s() * 1000)
        first = queue.max_offset
        encoded = encode_run(run, Placement(self._log.end_offset, first, now_ms, store_host))
        self._write(queue, encoded)
        return StoredRun(first, encoded.commit_log_offsets, encoded.tag_hashes)

    def append_copy(
        self, message: bytes, *, topic: str, queue_id: int, queue_offset: int, tag_hash: int
    ) -> None:
        """Store a message as it lies at this very offset of another broker's log.

        A queue offset that goes back means that the topic was deleted there and made again.
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
        """Bytes of the commit log from the message at ``queue_offset``, which must be held, to the end."""
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
        """Messages from ``queue_offset`` on whose tag hash is ``wanted`` (None: all) and that ``accepts`` takes."""
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
        """Let go of the messages stored before a moment; each is looked at once, when it goes."""
        at = self._log.min_offset
        while (message := self.message_at(at)) is not None and store_timestamp_of(message) < timestamp_ms:
            at += len(message)
        if at != self._log.min_offset:
            self._log.drop_before(at)
            self._drop_from_queues()

    def delete_topic(self, topic: str) -> None:
        """Forget the queues of the topic; made again, they begin at offset 0."""
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The index of one queue, to be read only; None for a queue never written."""
        return self._queues.get((topic, queue_id))

    def find_by_key(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Messages of the topic with this key, stored between two times; at most the newest ``most``."""
        return self._index.find(topic, key, most, begin_ms, end_ms)

    @property
    def oldest_offset(self) -> int:
        """Commit log offset of the oldest byte held."""
        return self._log.min_offset

    def earliest_timestamp(self) -> int:
        """When the oldest message held was stored, in milliseconds; -1 when none is."""
        oldest = self.message_at(self._log.min_offset)
        return -1 if oldest is None else store_timestamp_of(oldest)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Oldest queue offset held; 0 for a queue never written."""
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Last queue offset + 1; 0 for a queue never written."""
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When the message was stored, in milliseconds; -1 when it is not held."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        entry = queue.entry(queue_offset)
        return store_timestamp_of(self._log.read(entry.commit_log_offset, entry.size))

    def first_at_or_after(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """First queue offset stored at ``timestamp_ms`` or later, else the maximum (boundary LOWER)."""
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        while low < high:
            middle = (low + high) // 2
            if self.store_timestamp(topic, queue_id, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def last_at_or_before(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Last queue offset stored at ``timestamp_ms`` or earlier, else 0 (boundary UPPER)."""
        following = self.first_at_or_after(topic, queue_id, timestamp_ms + 1)
        return following - 1 if following > self.min_offset(topic, queue_id) else 0

    def message_at(self, commit_log_offset: int) -> bytes | None:
        """The stored message that begins at ``commit_log_offset``, or None when nothing is held there."""
        last = self._log.end_offset - MIN_STORED_BYTES
        if not self._log.min_offset <= commit_log_offset <= last:
            return None
        # A client may ask for any place, in the middle of a body too; a message tells its own.
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
    """Status and next offset for an offset that has no message, None when it has one."""
    if highest == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if queue_offset < lowest:
        return GetMessageStatus.OFFSET_TOO_SMALL, lowest
    if queue_offset == highest:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, queue_offset
    if queue_offset > highest:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, highest
    return None
