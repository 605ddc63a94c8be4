"""An offset the broker does not have: what was wanted, what is there, where to go on."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_rocketmq.errors import DataLoss, LogTailLost, MessagesExpired
from pyspark_rocketmq.model import MessageQueue, QueueBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetGap:
    """A queue whose next offset lies outside what its broker holds (PULL_OFFSET_MOVED, found before pulling).

    Whoever goes on at ``corrected`` must store it as the queue's progress at once: an offset beyond the end is
    measured against the end of *that* moment, so a later plan would correct it past messages that came meanwhile.
    """

    queue: MessageQueue
    wanted: int
    min_offset: int
    max_offset: int
    """Exclusive."""
    corrected: int
    """The nearest offset the broker can serve: ``min_offset`` or ``max_offset``."""

    @classmethod
    def between(cls, queue: MessageQueue, wanted: int, bounds: QueueBounds) -> OffsetGap | None:
        """The gap of ``wanted`` outside ``[min_offset, max_offset]``, or None inside."""
        if bounds.min_offset <= wanted <= bounds.max_offset:
            return None
        corrected = bounds.min_offset if wanted < bounds.min_offset else bounds.max_offset
        return cls(
            queue=queue,
            wanted=wanted,
            min_offset=bounds.min_offset,
            max_offset=bounds.max_offset,
            corrected=corrected,
        )

    def to_error(self) -> DataLoss:
        """The error of ``failOnDataLoss=true``: queue, wanted, available and the remedy."""
        kind = MessagesExpired if self.wanted < self.min_offset else LogTailLost
        return kind(str(self.queue), self.wanted, f"offsets {self.min_offset} to {self.max_offset}")

    def __str__(self) -> str:
        return (
            f"{self.queue}: offset {self.wanted} is outside the broker's {self.min_offset} to {self.max_offset}; "
            f"it continues at {self.corrected}."
        )
