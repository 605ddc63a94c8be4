"""The fetcher with one range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.segments import PullChunk
from pyspark_rocketmq.source.fetcher import Fetcher
from pyspark_rocketmq.source.ranges import QueuePartition


class RangeFetcher:
    """The messages of one range, undecoded; survives trouble as ``RangeWindow`` does."""

    def __init__(
        self,
        partition: QueuePartition,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._fetcher = Fetcher([partition], clock=clock, sleep=sleep)

    @property
    def skipped(self) -> range:
        """Offsets that were passed over and reported because the broker no longer has them;
        empty without such a gap.
        """
        return self._fetcher.ranges[0].skipped

    def chunks(self) -> Iterator[list[PullChunk]]:
        """Answers in queue order, gathered to about 4 MiB.

        Before an error that another reader may survive, everything that is next in queue order is yielded.

        Raises:
            DataLoss: If the broker no longer has the requested messages and ``failOnDataLoss`` is true.
            TailLost: In consumer mode, if the broker's queue ends before the range and ``failOnDataLoss`` is
            false. RocketMQError: If the broker refuses, or does not answer for ``retry_timeout_s``.
        """
        # Closed with this generator, so that a reader that stops half way gives the connection back.
        fetched = self._fetcher.arrivals()
        try:
            for each in chain.from_iterable(fetched):
                if each.chunks:
                    yield each.chunks
                if each.failure is not None:
                    raise each.failure
        finally:
            fetched.close()
