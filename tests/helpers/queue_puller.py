"""The pulls of one queue range: the pipeline with one range."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.fetch_window import Piece
from pyspark_rocketmq.source.fetcher import PullPipeline
from pyspark_rocketmq.source.ranges import QueuePartition


class QueuePuller:
    """The messages of one range, undecoded; survives trouble as ``RangePull`` does."""

    def __init__(
        self,
        partition: QueuePartition,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pipeline = PullPipeline([partition], clock=clock, sleep=sleep)

    @property
    def skipped(self) -> range:
        """The offsets passed over, and told of, because the broker no longer has them; empty without such a gap."""
        return self._pipeline.ranges[0].skipped

    def pieces(self) -> Iterator[list[Piece]]:
        """Answers in queue order, gathered to about 4 MiB.

        Before an error that another reader may survive, everything that is next in queue order is given out.

        Raises:
            DataLoss: If the broker no longer has what was asked for and ``failOnDataLoss`` is true.
            TailLost: In consumer mode, if the broker's queue ends before the range and ``failOnDataLoss`` is false.
            RocketMQError: If the broker refuses, or does not answer for ``retry_timeout_s``.
        """
        # Closed with this generator, so that a reader that stops half way gives the connection back.
        arrivals = self._pipeline.arrivals()
        try:
            for arrival in chain.from_iterable(arrivals):
                if arrival.pieces:
                    yield arrival.pieces
                if arrival.failure is not None:
                    raise arrival.failure
        finally:
            arrivals.close()
