"""Reads ranges and yields their messages as they arrive, whether the ranges have an end or are open.

One thread iterates over the arrivals; it decodes, and pulls unless another thread pulls ahead. Other threads
may hold a queue, let it go on, and end everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark_rocketmq.client.cluster import outcomes_at_queues
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.consume.fetch_window import QueueReset
from pyspark_rocketmq.consume.read_range import PullThresholds
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source.fetcher import Fetcher, ResetFound
from pyspark_rocketmq.source.prefetch import prefetch
from pyspark_rocketmq.source.range_reader import DecodedChunks, Messages, RangeReader, decode_chunks
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.schema import Arrival, RangeEnd

_LOOK_UP_S: Final = 10.0
"""Time for busy brokers to answer the look-ups before a task's ranges are read, in seconds."""
_SHOWN_EVERY_S: Final = 5.0
"""Time without messages after which open ranges yield how far they were read, in seconds.

A filter may have passed over offsets. Java stores offsets as often (``persistConsumerOffsetInterval``).
"""
_SHARE_BYTES: Final = 8 << 20
"""Minimum share of each of several ranges that divide one limit, in bytes.

If the whole limit is lower, each range has all of it.
"""


class RangeArrivals:
    """Reads ranges together, over one connection per broker, and yields their messages as they arrive.

    Engines use it directly as their ``Source`` for open ranges. It yields each offset once and reports every
    gap; see :mod:`~pyspark_rocketmq.source.range_reader`.
    """

    def __init__(
        self,
        partitions: Sequence[QueuePartition],
        *,
        few_as_objects: bool = True,
        pulls_ahead: bool = False,
        reset_found: ResetFound | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """Prepare to read ``partitions``, each of another queue; nothing is connected yet.

        If several ranges have an end, they share the bytes that one range may have; see :func:`share_of`.

        Args:
            partitions: The ranges, which share one query's options.
            few_as_objects: Whether messages may be yielded as objects if they are few; otherwise all are in
                columns.
            pulls_ahead: Whether a thread pulls the next messages while the caller works on the newest ones;
                only for ranges that have an end.
            reset_found: Function that gets each operator's reset that the answer to a pull has reported,
                except those that were yielded as part of a range's end. It may be called until the last pulls
                are answered, on any thread.
            clock: The clock of pauses and time-outs.
            sleep: Called instead of waiting for the end of a pause; for tests.
        """
        self._partitions = [share_of(partition, len(partitions)) for partition in partitions]
        """The range that each window (state of pulling) of the fetcher reads."""
        self._thresholds = partitions[0].settings.thresholds if partitions else PullThresholds()
        self._readers = [RangeReader(partition) for partition in self._partitions]
        """The reader of each range, in the order of ``_partitions``."""
        self._decode = partial(decode_chunks, few_as_objects=few_as_objects)
        self._pulls_ahead = pulls_ahead
        self._again: list[RangeReader] = []
        """Readers that must pull again, which they do with a new fetcher, because a thread uses this one."""
        self._reset_found = reset_found
        self._made_fetcher = partial(Fetcher, reset_found=reset_found, clock=clock, sleep=sleep)
        self._fetcher = self._begun_fetcher()
        self._left: set[MessageQueue] = set()
        """Queues of which nothing more is yielded."""

    @property
    def is_open(self) -> bool:
        """Whether the ranges are open (have no planned end)."""
        return any(reader.partition.planned.has_open_end for reader in self._readers)

    @property
    def thresholds(self) -> PullThresholds:
        """How many messages of each queue may wait for a COMMIT, by the query's options."""
        return self._thresholds

    def hold(self, queue: MessageQueue) -> None:
        """Send no more pulls for the queue until ``go_on``; messages of pulls under way are still yielded."""
        self._fetcher.hold(queue)

    def go_on(self, queue: MessageQueue) -> None:
        """Send pulls for the queue again, after :meth:`hold`."""
        self._fetcher.go_on(queue)

    def leave(self, queue: MessageQueue) -> None:
        """Read and yield nothing more of the queue, not even the end of its range."""
        self._left.add(queue)
        self._fetcher.leave(queue)

    def end(self) -> None:
        """End ``arrivals`` immediately. Its last list has the end of each range that was not read to its end.

        Such a range ends after the messages that were yielded.
        """
        self._fetcher.end()

    def arrivals(self, within_s: float | None = None) -> Generator[list[Arrival]]:
        """Yield messages and ends of ranges as soon as they arrive, in lists.

        If nothing arrives for ``within_s`` seconds, yield a list that may be empty. The default is 5 s for
        open ranges, so that offsets without a matching message are committed, too; for other ranges there is
        no limit. With open ranges the first list has an arrival without messages for each of them.

        Raises:
            DataLoss: If ``failOnDataLoss`` is true, and either offsets of a range are gone or its queue has
                another log than when a batch read was planned.
            UndecodableMessage: If a message cannot be decoded, and is not to be kept; with a group, only if
                it is the range's first message.
            RocketMQError: If a broker refuses in a way that does not pass, or, without a group, cannot be
                reached for ``retryTimeoutMs``.
        """
        is_open = self.is_open
        if within_s is None:
            within_s = _SHOWN_EVERY_S if is_open else math.inf
        unread = self._of_other_logs()
        begun = [reader.arrival() for reader in self._readers if not reader.is_done] if is_open else []
        if unread or begun:
            yield unread + begun
        yield from self._fetched(within_s)
        while self._again:
            self._readers, self._again = self._again, []
            self._partitions = [reader.left() for reader in self._readers]
            self._fetcher = self._begun_fetcher()
            yield from self._fetched(within_s)
        unended = [reader for reader in dict.fromkeys(self._readers) if self._goes_on(reader)]
        stopped = [reader.arrival([reader.stopped()]) for reader in unended]
        if stopped:
            yield stopped

    def _begun_fetcher(self) -> Fetcher:
        fetcher = self._made_fetcher(self._partitions)
        for reader, window in zip(self._readers, fetcher.ranges, strict=True):
            reader.begin(window)
        return fetcher

    def _fetched(self, within_s: float) -> Generator[list[Arrival]]:
        fetched = self._fetcher.arrivals(within_s)
        if self._pulls_ahead:
            fetched = prefetch(fetched, name="rocketmq-pull-ahead")
        try:
            # map() decodes them, so that no variable here keeps a view of a receive buffer.
            for together in map(partial(self._decode, self._partitions), fetched):
                arrived: list[Arrival] = []
                error = self._take(together, arrived)
                # The memory of messages that the caller has used serves the next ones, and is in the cache.
                del together
                yield arrived
                del arrived
                if error is not None:
                    raise error
        finally:
            # Not left to the garbage collector: a connection with unread answers must not be kept.
            fetched.close()
            self._report_resets()

    def _of_other_logs(self) -> list[Arrival]:
        """Return an end for each range whose witness must be looked up and shows that it must not be read."""
        windows = {
            reader.partition.planned.queue: (reader, window)
            for reader, window in zip(self._readers, self._fetcher.ranges, strict=True)
            if reader.partition.looked_up is not None
        }
        if not windows:
            return []
        longest_s = min(self._partitions[0].settings.retry_timeout_s, _LOOK_UP_S)
        patience = Deadline.after(SystemClock(), longest_s)
        unread, errors = [], []
        for queue, found in outcomes_at_queues(
            windows, lambda each: windows[each][0].look_up(patience)
        ).items():
            reader, window = windows[queue]
            try:
                end = reader.judge(found)
            except RocketMQError as error:
                errors.append(error)
                continue
            if end is not None:
                window.stop()
                unread.append(reader.arrival([end]))
        if errors:
            self._keep_resets(unread)
            raise errors[0]
        return unread

    def _keep_resets(self, unread: Sequence[Arrival]) -> None:
        """Report the resets in ends that are not yielded: a broker reports each only once."""
        for arrival in unread:
            target = None if arrival.end is None else arrival.end.reset_to
            if target is not None and self._reset_found is not None:
                self._reset_found(arrival.queue, target)

    def _report_resets(self) -> None:
        """Report each reset that the answer to a pull has reported and that no yielded range end contains."""
        if self._reset_found is None:
            return
        for reader, window in zip(self._readers, self._fetcher.ranges, strict=True):
            if isinstance(window.failure, QueueReset) and not reader.is_done:
                self._reset_found(reader.partition.planned.queue, window.failure.target)

    def _goes_on(self, reader: RangeReader) -> bool:
        return not reader.is_done and reader.partition.planned.queue not in self._left

    def _take(self, together: Sequence[DecodedChunks], arrived: list[Arrival]) -> RocketMQError | None:
        """Add messages and ends to ``arrived``; return the error to raise after them, or None."""
        for chunks in together:
            reader = self._readers[chunks.range_index]
            if not self._goes_on(reader):
                continue
            reached = reader.reached
            pieces: list[Messages | RangeEnd] = []
            error = _add_pieces(reader, chunks, pieces)
            if pieces or reader.reached > reached:
                arrived.append(reader.arrival(pieces))
            if error is not None:
                return error
            if chunks.is_last and not reader.is_done:
                self._pull_again(reader)
        return None

    def _pull_again(self, reader: RangeReader) -> None:
        """Pull again after an undecodable message: where the next one begins in these bytes is unknown."""
        if self._pulls_ahead:
            self._again.append(reader)
            return
        left = reader.left()
        self._partitions.append(left)
        self._readers.append(reader)
        reader.begin(self._fetcher.add(left))


def _add_pieces(
    reader: RangeReader, chunks: DecodedChunks, pieces: list[Messages | RangeEnd]
) -> RocketMQError | None:
    """Add a range's messages and end to ``pieces``; return the error that comes after them, if any."""
    try:
        for piece in reader.pieces(chunks):
            pieces.append(piece)  # noqa: PERF402 - those before an error stay
    except RocketMQError as error:
        return error
    return None


def closed_arrivals(
    partitions: Sequence[QueuePartition], reset_found: ResetFound | None = None
) -> Iterator[list[Arrival]]:
    """Read ranges that have an end; yield a list of messages and ends for all that is decoded together.

    All messages are in columns. ``reset_found`` is as in :class:`RangeArrivals`.

    Raises:
        RocketMQError: See :meth:`RangeArrivals.arrivals`.
    """
    ranges = RangeArrivals(partitions, few_as_objects=False, pulls_ahead=True, reset_found=reset_found)
    return ranges.arrivals()


def share_of(partition: QueuePartition, count: int) -> QueuePartition:
    """Return the partition with a lower ``max_bytes``, for ``count`` ranges that are read together.

    ``max_bytes`` limits the message bodies of a range. Each may have ``max_bytes / count`` bytes, but at
    least 8 MiB, or all of ``max_bytes`` if this is less. Without a limit nothing changes.
    """
    limit = partition.settings.max_bytes
    if limit is None or count == 1:
        return partition
    share = max(limit // count, min(limit, _SHARE_BYTES))
    return replace(partition, settings=partition.settings._replace(max_bytes=share))
