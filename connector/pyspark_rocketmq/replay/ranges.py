"""Decides which ranges a replay still has to read, in which steps, and how much of a range is stored. Pure.

A range is a span of one source queue's offsets. A *step* is a set of ranges that are written together, by one
Spark job; a *run* is one call of a replay, which writes step after step. One task sends a range to one queue
of the target topic, in order, and each batch of messages only after the previous one is stored. So the stored
part of a range is always its beginning, up to the highest source offset that the target has.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from pyspark_rocketmq.consume.generations import shows_another_log
from pyspark_rocketmq.errors import DataLoss, LocalProtocolError, OptionError, RocketMQError, TargetQueueAway
from pyspark_rocketmq.model import OF_ONE_DELIVERY, Message, MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire.properties import UNIQ_KEY, encode_properties
from pyspark_rocketmq.wire.requests.send import select_by_hash, split_batch

logger = logging.getLogger(__name__)

REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Property of a replayed message: ``topic/brokerName/queueId/queueOffset`` of the original, with which a
reader can drop duplicates."""
REPLAYED_BY: Final = "REPLAYED_BY"
"""Property of a replayed message: the run that sent it, with which a later run finds the stored messages."""
KEPT_AS: Final = "REPLAYED_BY_BEFORE"
"""Property of a replayed message: the ``REPLAYED_BY`` that its original had."""
_LEFT_OUT: Final = OF_ONE_DELIVERY - {UNIQ_KEY}
"""Properties that are not copied. The msgId is kept, as when Java forwards a consumed message
(``MessageClientIDSetter.setUniqID``)."""
MAX_STEPS: Final = 1_000_000
"""Maximum number of steps: each costs a Spark job, and a broker might report an absurdly large offset."""


def origin_of(origin: MessageQueue, queue_offset: int | str) -> str:
    """Return ``topic/brokerName/queueId/queueOffset``, the value of property ``REPLAYED_FROM``."""
    return "/".join((*map(str, origin), str(queue_offset)))


def resent_message(
    topic: str, original: Message, origin: MessageQueue, queue_offset: int, run: str
) -> Message:
    """Create the message for ``topic`` with the original's body, flag and properties.

    Properties that brokers wrote about the first delivery are left out. ``REPLAYED_FROM`` (the original's
    position) and ``REPLAYED_BY`` (``run``) are added.
    """
    kept = {name: value for name, value in original.properties.items() if name not in _LEFT_OUT}
    if before := kept.get(REPLAYED_BY):
        kept[KEPT_AS] = before
    kept[REPLAYED_FROM] = origin_of(origin, queue_offset)
    kept[REPLAYED_BY] = run
    return replace(original, topic=topic, properties=kept)


def batches_of(messages: Sequence[Message], target: MessageQueue) -> list[Sequence[Message]]:
    """Split messages for ``target``, created by :func:`resent_message`, into batches, in order.

    Raises:
        RocketMQError: If properties cannot be sent; it names the first such message. Some producers send a
            value that contains a separator, and a copy's properties may be too long.
    """
    try:
        return list(split_batch(messages))
    except LocalProtocolError:
        for message in messages:
            try:
                encode_properties(message.properties)
            except LocalProtocolError as error:
                origin = message.properties[REPLAYED_FROM]
                raise RocketMQError(
                    f"Message {origin} (topic/broker/queue/offset) cannot be sent to {target}: {error} To go "
                    "on, leave the message out of the replay: end before it (endingOffsets), then replay "
                    "what follows it (startingOffsets)."
                ) from error
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A range of a source queue that a run of a replay was about to send to a target queue."""

    run: str
    """``REPLAYED_BY`` of its messages."""
    source: QueueRange
    target: MessageQueue
    target_offset: int
    """Offset at the end of the target queue before the first message of the range was sent."""
    last: LastMessage | None = None
    """The message at the end of the source range before anything was sent, by which a later run recognises
    the source's log. None if the broker did not show it, and in records of earlier releases."""
    sent: int | None = None
    """Least number of messages that were stored in the target. None if it is unknown: before the range was
    sent, and in records of earlier releases."""

    def offset_of(self, replayed_by: str | None, replayed_from: str | None) -> int | None:
        """Return the source offset of a message in the target; None if it is not of this run and range.

        The arguments are the message's properties ``REPLAYED_BY`` and ``REPLAYED_FROM``, if it has them.
        """
        if replayed_by != self.run or replayed_from is None:
            return None
        prefix = origin_of(self.source.queue, "")
        text = replayed_from.removeprefix(prefix)
        if len(text) == len(replayed_from) or not text.isdecimal():
            return None
        return int(text) if self.source.start <= int(text) < self.source.end else None

    def stored_until(self, highest: int | None, bounds: QueueBounds, *, fail_on_data_loss: bool) -> int:
        """Return the first source offset of the range that is not stored in the target.

        Args:
            highest: The highest source offset found in the target from ``target_offset`` on; None if there
                is none.
            bounds: Bounds of the target when it was read.
            fail_on_data_loss: Whether to fail if the target has deleted messages that may be from this range.

        Raises:
            DataLoss: If the target lost the messages that would show what is stored.
        """
        name = str(self.target)
        self.check_target(bounds)
        if highest is not None:
            return highest + 1
        if bounds.min_offset > self.target_offset:
            gone = f"offsets from {bounds.min_offset}"
            if fail_on_data_loss:
                raise DataLoss(
                    name,
                    self.target_offset,
                    gone,
                    "The target has deleted messages since the last replay, so it no longer shows which "
                    f"messages of {self.source} it had. Set failOnDataLoss=false to send all of them, "
                    "some perhaps again.",
                )
            logger.warning(
                "replay of a range begins again, because its target has only %s: %s", gone, self.source
            )
        return self.source.start

    def check_target(self, bounds: QueueBounds) -> None:
        """Check that the target queue, whose bounds now are ``bounds``, may still have what was sent.

        Raises:
            DataLoss: If the queue ends before the last message that was sent: its topic was created again, or
                it has lost messages.
        """
        end = self.target_offset + (self.sent or 0)
        if bounds.max_offset < end:
            raise DataLoss(
                str(self.target),
                end,
                f"offsets below {bounds.max_offset} only",
                "The topic was created again or has lost its latest messages, so the record of what was "
                "replayed into it no longer matches it: replay with a new record. If the topic still has "
                "some of the messages, leave these out by startingOffsets.",
            )


def last_of(recorded: Iterable[Sending]) -> LastMessage:
    """Return the last message of recorded ranges of one queue; only its offset if no more is recorded."""
    known = [one.last for one in recorded if one.last is not None]
    return max(known) if known else LastMessage.unknown(max(one.source.end for one in recorded) - 1)


def check_same_log(recorded: Sequence[Sending], found: LastMessage | None, bounds: QueueBounds) -> None:
    """Check that a source queue still has the log whose ranges are recorded as replayed.

    The check compares the last recorded message with the message that is now at its offset. If that message
    has expired, or its broker does not show it, the log counts as the same.

    Args:
        recorded: Recorded ranges of one queue, at least one.
        found: The message now at the offset of ``last_of(recorded)``; None if none was found there.
        bounds: The queue's bounds now, as its master has them.

    Raises:
        DataLoss: If the queue has another log, or ends before a recorded range does.
    """
    last, end = last_of(recorded), max(one.source.end for one in recorded)
    has_ended = end > bounds.max_offset
    if has_ended or (last.is_known and shows_another_log(last, found, bounds)):
        raise DataLoss(
            str(recorded[0].source.queue),
            end - 1 if has_ended else last.queue_offset,
            f"offsets below {bounds.max_offset} only" if has_ended else "another message there",
            "The topic was created again or has lost its latest messages, so the record of what was replayed "
            "from it no longer matches it: replay with a new record. If the target has some of the messages, "
            "leave these out by startingOffsets.",
        )


def without(planned: Iterable[QueueRange], done: Iterable[QueueRange]) -> list[QueueRange]:
    """Return ``planned`` without the ranges ``done``, which may overlap; in order."""
    done_of = defaultdict(list)
    for done_range in done:
        done_of[done_range.queue].append((done_range.start, done_range.end))
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
    """Cut the ranges into steps of about ``most`` offsets each, with every queue's ranges in order.

    A step has at most one range of each queue. Every step has a share of each queue's first range until the
    first ranges are done; then come the second ranges, and so on.

    Raises:
        OptionError: If there are more than ``MAX_STEPS`` times ``most`` offsets; this is checked before any
            step is made.
    """
    total = sum(part.count for part in ranges)
    if total > most * MAX_STEPS:
        problem = (
            f"offsets_per_step={most} would need more than {MAX_STEPS} steps for {total} offsets; raise "
            "it, or replay fewer messages"
        )
        raise OptionError((problem,), where="replay")
    by_queue = defaultdict(list)
    for part in ranges:
        by_queue[part.queue].append(part)
    steps: list[list[QueueRange]] = []
    for layer in zip_longest(*by_queue.values()):
        parts = [part for part in layer if part is not None and part.count]
        count = -(-sum(part.count for part in parts) // most)
        for number in range(count):
            cut = (
                replace(
                    part.starting_at(part.start + part.count * number // count),
                    end=part.start + part.count * (number + 1) // count,
                )
                for part in parts
            )
            # Leave out empty steps: shares of small ranges are rounded, and may all be in other steps.
            if step := [part for part in cut if part.count]:
                steps.append(step)
    return steps


def target_queue(source: MessageQueue, targets: Sequence[MessageQueue]) -> MessageQueue:
    """Return the one target queue for all messages of ``source``, so that they keep their order.

    It is the queue of the same broker and id, otherwise one chosen by hash. The choice depends on the queues
    that the target topic has now, so it counts only for the first messages: see :func:`recorded_targets`.
    """
    for target in targets:
        if (target.broker_name, target.queue_id) == (source.broker_name, source.queue_id):
            return target
    ordered = sorted(targets)
    return ordered[select_by_hash(f"{source.broker_name}/{source.queue_id}", len(ordered))]


def recorded_targets(recorded: Iterable[Sending]) -> dict[MessageQueue, MessageQueue]:
    """Return the target queue of the newest messages that were sent from each source queue.

    The next messages must go there, too. In another queue they could overtake messages of their sharding key,
    for example if the target's queues are others now only because a broker has no master.

    Ranges of which no message was sent do not count. Their target queues may never have existed, since
    brokers create a topic when they get its first message.

    Args:
        recorded: Recorded ranges, oldest first.
    """
    return {one.source.queue: one.target for one in recorded if one.sent != 0}


def check_recorded_targets(
    planned: Iterable[QueueRange],
    starts: Mapping[MessageQueue, int],
    recorded: Sequence[Sending],
    writable: Collection[MessageQueue],
) -> None:
    """Check that messages which are left to send can go to the queues that got the messages before them.

    Args:
        planned: Ranges of the run, including those that are recorded.
        starts: Where the run begins in every queue that it reads.
        recorded: Recorded ranges, oldest first.
        writable: Queues of the target that can be written to now.

    Raises:
        TargetQueueAway: If such a queue cannot be written to now.
    """
    targets = recorded_targets(recorded)
    for part in without(planned, (one.source for one in recorded)):
        target = targets.get(part.queue)
        if target is not None and target not in writable:
            raise away_error(part.queue, target, starts, recorded)


def away_error(
    source: MessageQueue,
    target: MessageQueue,
    starts: Mapping[MessageQueue, int],
    recorded: Iterable[Sending],
) -> TargetQueueAway:
    """Return the error that the replay of ``source`` cannot go on in ``target``.

    Its starting offsets are, of each queue in ``starts``, the first offset from the run's start on that the
    record lacks. If ranges behind a gap are recorded, a new record begins at the gap: messages may come
    twice, but none is left out. A queue with nothing to replay is named, too, since a new record would
    otherwise begin with its earliest message. Recorded queues that are not in ``starts`` are not named: the
    run reads another topic, or they no longer exist, so a start in them would be refused.
    """
    done_of = defaultdict(list)
    for one in recorded:
        done_of[one.source.queue].append((one.source.start, one.source.end))
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue, start in sorted(starts.items()):
        at = start
        for done_start, done_end in sorted(done_of[queue]):
            if done_start > at:
                break
            at = max(at, done_end)
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = at
    return TargetQueueAway(str(source), str(target), json.dumps(tree) if tree else "")
