"""Decides where a group begins in queues without an offset, and which of these queues must wait. Pure.

Such a queue waits while a broker is away or has yet to register, and while a broker does not report the
group's offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, is_retry_topic


class Beginnings(NamedTuple):
    """Claimed queues for which the group has no offset, divided by where the group begins in them."""

    at_first: frozenset[MessageQueue]
    """Queues that begin with their first message."""
    by_option: frozenset[MessageQueue]
    """Queues that begin at the position in the query's options."""
    waiting: Mapping[MessageQueue, RocketMQError]
    """Queues that must wait before they begin by the options, each with the error that is the reason."""


def begin_new_queues(
    without_offset: Collection[MessageQueue],
    *,
    begun: Collection[str],
    begun_in_part: Collection[MessageQueue],
    not_reported: Mapping[MessageQueue, RocketMQError],
    away: RocketMQError | None,
) -> Beginnings:
    """Decide where the group begins in each queue of ``without_offset``, and which of these queues wait.

    A topic begins at the position in the options, in all of its queues at the same time.  A queue without an
    offset in a topic that has begun was created later, and begins with its first message.  So a topic that
    has not begun waits while any broker is away, or may not have registered yet: otherwise that broker's
    queues would later count as created later.  Such a topic also waits while a broker does not report the
    group's offsets in it, because the group may have begun at that broker.

    A retry topic is read from its first message, whatever the options say: each of its messages has failed in
    this group (``RebalancePushImpl.computePullFromWhereWithException``).  With CONSUME_FROM_TIMESTAMP, Java
    begins at the end of such a topic, and loses the messages that were given back before.

    Args:
        without_offset: Queues for which neither the offset store nor a broker has an offset of the group.
        begun: Topics in which the offset store or a broker has an offset of the group.
        begun_in_part: Queues whose start by the options could not be written to all brokers of their topic.
            They still begin by the options, although their topic may count as begun.
        not_reported: Queues whose brokers did not report the group's offset, and why.
        away: Why a broker is away, or may be missing from the routes; None if all brokers are there.
    """
    by_option = {
        queue
        for queue in without_offset
        if queue in begun_in_part or (queue.topic not in begun and not is_retry_topic(queue.topic))
    }
    reasons = {queue.topic: error for queue, error in not_reported.items()}
    waiting = {queue: error for queue in by_option if (error := reasons.get(queue.topic, away)) is not None}
    return Beginnings(
        at_first=frozenset(without_offset) - by_option,
        by_option=frozenset(by_option) - waiting.keys(),
        waiting=waiting,
    )
