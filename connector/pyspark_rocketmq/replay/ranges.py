"""What is left to replay, in which steps, how messages are marked, and how far a range came. Pure.

One sender sends a range to one queue, in order, and each batch after the one before is stored. So what is
stored of a range is always its beginning, up to the highest source offset that the target has.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from pyspark_rocketmq.errors import DataLoss, OptionError
from pyspark_rocketmq.model import Message, MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.wire.properties import OF_ONE_DELIVERY, UNIQ_KEY
from pyspark_rocketmq.wire.requests.send import select_by_hash

logger = logging.getLogger(__name__)

REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Property of a replayed message: ``topic/brokerName/queueId/queueOffset`` of the original, by which a reader
drops duplicates."""
REPLAYED_BY: Final = "REPLAYED_BY"
"""Property of a replayed message: the run that sent it, by which a later run finds what is stored."""
KEPT_AS: Final = "REPLAYED_BY_BEFORE"
"""Property of a replayed message: the ``REPLAYED_BY`` that its original had."""
_LEFT_OUT: Final = OF_ONE_DELIVERY - {UNIQ_KEY}
"""The msgId stays, as when Java sends a consumed message on (``MessageClientIDSetter.setUniqID``)."""
MAX_STEPS: Final = 1_000_000
"""A broker may claim any offset, and each step costs a Spark job."""


def origin_of(origin: MessageQueue, queue_offset: int | str) -> str:
    """The value of ``REPLAYED_FROM``."""
    return "/".join((*map(str, origin), str(queue_offset)))


def resent_message(
    topic: str, original: Message, origin: MessageQueue, queue_offset: int, run: str
) -> Message:
    """The message for ``topic`` with the original's body, properties and flag."""
    kept = {name: value for name, value in original.properties.items() if name not in _LEFT_OUT}
    if before := kept.get(REPLAYED_BY):
        kept[KEPT_AS] = before
    kept[REPLAYED_FROM] = origin_of(origin, queue_offset)
    kept[REPLAYED_BY] = run
    return replace(original, topic=topic, properties=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A range that a run was about to send."""

    run: str
    """``REPLAYED_BY`` of its messages."""
    source: QueueRange
    target: MessageQueue
    target_offset: int
    """Where the target ended before the first message was sent."""

    def offset_of(self, replayed_by: str | None, replayed_from: str | None) -> int | None:
        """The source offset of a message in the target, by its two properties; None if it is another's."""
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
            highest: The highest source offset found in the target from ``target_offset`` on.
            bounds: Those of the target when it was read.
            fail_on_data_loss: Whether to fail if the target has deleted messages that may be of this range.

        Raises:
            DataLoss: If the target lost the messages that would show it.
        """
        name = str(self.target)
        if bounds.max_offset < self.target_offset:
            raise DataLoss(
                name,
                self.target_offset,
                f"offsets below {bounds.max_offset} only",
                "The topic was made anew or has lost its latest messages, and the record of what was "
                "replayed into it does not hold any more: replay with another record.",
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
                    f"Whether messages of {self.source} were among those that the target has deleted since "
                    "cannot be told. Set failOnDataLoss=false to send them all, or replay with another "
                    "record.",
                )
            logger.warning("replay begins anew, its target has only %s: %s", gone, self.source)
        return self.source.start


def without(planned: Iterable[QueueRange], done: Iterable[QueueRange]) -> list[QueueRange]:
    """``planned`` without the ranges ``done``, which may overlap; in order."""
    done_of = defaultdict(list)
    for one in done:
        done_of[one.queue].append((one.start, one.end))
    left: list[QueueRange] = []
    for whole in planned:
        start = whole.start
        for done_start, done_end in sorted(done_of[whole.queue]):
            if done_start >= whole.end:
                break
            if done_start > start:
                left.append(replace(whole.starting_at(start), end=done_start))
            start = max(start, done_end)
        if start < whole.end:
            left.append(whole.starting_at(start))
    return left


def steps_of(ranges: Sequence[QueueRange], most: int) -> list[list[QueueRange]]:
    """The ranges cut into steps of about ``most`` offsets each, every queue's in order.

    A step has at most one range of each queue. All queues progress together and end with the last step.

    Raises:
        OptionError: If there would be more than ``MAX_STEPS``; none of them is made then.
    """
    total = sum(one.count for one in ranges)
    if total > most * MAX_STEPS:
        problem = (
            f"offsets_per_step={most} would make more than {MAX_STEPS} steps of {total} offsets; raise it, "
            "or replay less at once"
        )
        raise OptionError((problem,), where="replay")
    by_queue = defaultdict(list)
    for one in ranges:
        by_queue[one.queue].append(one)
    steps: list[list[QueueRange]] = []
    for layer in zip_longest(*by_queue.values()):
        parts = [one for one in layer if one is not None and one.count]
        count = -(-sum(one.count for one in parts) // most)
        for number in range(count):
            cut = (
                replace(
                    one.starting_at(one.start + one.count * number // count),
                    end=one.start + one.count * (number + 1) // count,
                )
                for one in parts
            )
            # Queues that are rounded alike may leave nothing for a step.
            if step := [one for one in cut if one.count]:
                steps.append(step)
    return steps


def target_queue(source: MessageQueue, targets: Sequence[MessageQueue]) -> MessageQueue:
    """The queue for all messages of ``source``, so that their order stays: its namesake, else one by hash.

    Every run chooses the same queue as long as the target topic has the same queues.
    """
    for target in targets:
        if (target.broker_name, target.queue_id) == (source.broker_name, source.queue_id):
            return target
    ordered = sorted(targets)
    return ordered[select_by_hash(f"{source.broker_name}/{source.queue_id}", len(ordered))]
