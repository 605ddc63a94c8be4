"""A range on its way into a topic, and how far it has come if its run has ended: told by the target queue itself. Pure.

A range goes to one queue, in order, by one sender, each batch after the one before is stored.  So what is stored of it is
always its beginning, and the highest source offset found in the target tells how long that is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark_rocketmq.errors import DataLoss
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.replay.resent_message import origin_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What was about to be sent."""

    run: str
    """Which run: ``REPLAYED_BY`` of its messages."""
    source: QueueRange
    target: MessageQueue
    target_offset: int
    """Where the target ended before the first message was sent."""

    def offset_of(self, replayed_by: str | None, replayed_from: str | None) -> int | None:
        """The source offset of a message found in the target, by its two properties; None if it is none of these."""
        if replayed_by != self.run or replayed_from is None:
            return None
        prefix = origin_of(self.source.queue, "")
        text = replayed_from.removeprefix(prefix)
        if len(text) == len(replayed_from) or not text.isdecimal():
            return None
        return int(text) if self.source.start <= int(text) < self.source.end else None

    def stored_until(self, highest: int | None, bounds: QueueBounds, *, fail_on_data_loss: bool) -> int:
        """The first source offset that is not stored.

        Args:
            highest: Of the source offsets found in the target behind ``target_offset``.
            bounds: Of the target, as it was looked through.
            fail_on_data_loss: Whether messages that are gone may have been none of these.

        Raises:
            DataLoss: If the target lost what would tell.
        """
        name = str(self.target)
        if bounds.max_offset < self.target_offset:
            raise DataLoss(
                name,
                self.target_offset,
                f"offsets below {bounds.max_offset} only",
                "The topic was made anew or has lost its latest messages, and the record of what was replayed into it does "
                "not hold any more: replay with another record.",
            )
        if highest is not None:
            return highest + 1
        if bounds.min_offset > self.target_offset:
            gone = f"offsets from {bounds.min_offset}"
            if fail_on_data_loss:
                raise DataLoss(
                    name,
                    self.target_offset,
                    gone,
                    f"Whether messages of {self.source} were among those that the target has deleted since cannot be told. Set "
                    "failOnDataLoss=false to send them all, or replay with another record.",
                )
            logger.warning("replay begins anew, its target has only %s: %s", gone, self.source)
        return self.source.start
