"""Reads ranges and yields their messages as they arrive, whether the ranges have an end or are open.

One thread iterates over the arrivals; it pulls and decodes. Other threads may hold a queue, let it go on, and
end everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source.fetcher import Fetcher
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.reader import DecodedChunks, RangeReader, decode_chunks, share_of
from pyspark_rocketmq.source.schema import Arrival


class RangeArrivals:
    """Reads a group's ranges together, over one connection per broker; engines use it as their ``Source``.

    Each offset is yielded once, and every gap is reported, as by :mod:`~pyspark_rocketmq.source.reader`.
    """

    def __init__(
        self,
        partitions: Sequence[QueuePartition],
        *,
        few_as_objects: bool = True,
        clock: Clock | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """Prepare to read ``partitions``, each of another queue; nothing is connected yet.

        If several ranges have an end, they share the bytes that one range may have, as in ``read_ranges``.

        Args:
            partitions: The ranges, which share one query's options.
            few_as_objects: Whether messages may be yielded as objects if they are few; otherwise all are in
                columns.
            clock: The clock of pauses and time-outs.
            sleep: Called instead of waiting for the end of a pause; for tests.
        """
        self._partitions = [share_of(partition, len(partitions)) for partition in partitions]
        """The range that each window of the fetcher reads."""
        self._readers = [RangeReader(partition) for partition in self._partitions]
        """The reader of each window."""
        self._few_as_objects = few_as_objects
        self._fetcher = Fetcher(self._partitions, clock=clock, sleep=sleep)
        for reader, window in zip(self._readers, self._fetcher.ranges, strict=True):
            reader.begin(window)
        self._left: set[MessageQueue] = set()
        """Queues of which nothing more is yielded."""

    @property
    def is_open(self) -> bool:
        """Whether the ranges are open, so that they have no end."""
        return self._readers[0].partition.planned.has_open_end

    def hold(self, queue: MessageQueue) -> None:
        """Send no more pulls for the queue until ``go_on``; messages of pulls under way are still yielded."""
        self._fetcher.hold(queue)

    def go_on(self, queue: MessageQueue) -> None:
        """Send pulls for the queue again."""
        self._fetcher.go_on(queue)

    def leave(self, queue: MessageQueue) -> None:
        """Read and yield nothing more of the queue, not even the end of its range."""
        self._left.add(queue)
        self._fetcher.leave(queue)

    def end(self) -> None:
        """End ``arrivals`` immediately; its last list contains the ends of all ranges that were not over."""
        self._fetcher.end()

    def arrivals(self, within_s: float = math.inf) -> Generator[list[Arrival]]:
        """Yield what has arrived as soon as it arrives; at least every ``within_s`` seconds, perhaps nothing.

        The first list has an arrival without messages for each open range.

        Raises:
            DataLoss: If offsets of a range are gone and ``failOnDataLoss`` is true.
            UndecodableMessage: If a range's first message cannot be decoded, and is not to be kept.
            RocketMQError: If a broker refuses in a way that does not pass.
        """
        unread = list(self._compared_ahead())
        begun = [reader.arrival() for reader in self._readers if self.is_open and not reader.is_done]
        if unread or begun:
            yield unread + begun
        fetched = self._fetcher.arrivals(within_s)
        try:
            # map() decodes them, so that no variable here keeps a view of a receive buffer.
            for together in map(
                partial(decode_chunks, self._partitions, few_as_objects=self._few_as_objects), fetched
            ):
                unfinished = [
                    chunks for chunks in together if self._goes_on(self._readers[chunks.range_index])
                ]
                yield [arrival for chunks in unfinished for arrival in self._arrived(chunks)]
        finally:
            # Not left to the garbage collector: a connection with unread answers must not be kept.
            fetched.close()
        unended = [reader for reader in dict.fromkeys(self._readers) if self._goes_on(reader)]
        stopped = [reader.arrival([reader.stopped()]) for reader in unended]
        if stopped:
            yield stopped

    def _compared_ahead(self) -> Iterator[Arrival]:
        """Yield the ends of ranges that must not be read, because their log may be another one."""
        for reader, window in zip(self._readers, self._fetcher.ranges, strict=True):
            for end in reader.compare_ahead():
                window.stop()
                yield reader.arrival([end])

    def _goes_on(self, reader: RangeReader) -> bool:
        return not reader.is_done and reader.partition.planned.queue not in self._left

    def _arrived(self, chunks: DecodedChunks) -> Iterator[Arrival]:
        reader = self._readers[chunks.range_index]
        if not self._goes_on(reader):
            return
        reached = reader.reached
        pieces = list(reader.pieces(chunks))
        if pieces or reader.reached > reached:
            yield reader.arrival(pieces)
        if chunks.is_last and not reader.is_done:
            # After an undecodable message it is unknown where the next one begins, so pull again from there.
            left = reader.left()
            self._partitions.append(left)
            self._readers.append(reader)
            reader.begin(self._fetcher.add(left))
