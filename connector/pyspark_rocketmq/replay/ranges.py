"""Which ranges of queues are replayed, in which steps, and where their messages go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.wire.hashing import select_by_hash

MAX_STEPS: Final = 1_000_000
"""A broker may tell any offset; each step costs a job of Spark's."""
Stretch = tuple[int, int]
"""First queue offset, and exclusive end."""


def without(
    planned: Iterable[QueueRange], done: Mapping[MessageQueue, Iterable[Stretch]]
) -> list[QueueRange]:
    """What is left of ``planned`` once the stretches of ``done`` are taken out, in order; they may overlap."""
    left: list[QueueRange] = []
    for whole in planned:
        start = whole.start
        for done_start, done_end in sorted(done.get(whole.queue, ())):
            if done_start >= whole.end:
                break
            if done_start > start:
                left.append(replace(whole, start=start, end=done_start))
            start = max(start, done_end)
        if start < whole.end:
            left.append(replace(whole, start=start))
    return left


def steps_of(ranges: Sequence[QueueRange], most: int) -> list[list[QueueRange]]:
    """The ranges cut into steps of about ``most`` offsets each, every queue's in order.

    A step has at most one stretch of each queue, and queues move together: they end with the last step.

    Raises:
        OptionError: If there would be more than ``MAX_STEPS``; none of them is made then.
    """
    total = sum(one.count for one in ranges)
    if total > most * MAX_STEPS:
        problem = (
            f"offsets_per_step={most} would make more than {MAX_STEPS} steps of {total} offsets; raise it, or replay less "
            "at once"
        )
        raise OptionError((problem,), where="replay")
    by_queue: dict[MessageQueue, list[QueueRange]] = {}
    for one in ranges:
        by_queue.setdefault(one.queue, []).append(one)
    steps: list[list[QueueRange]] = []
    for layer in zip_longest(*by_queue.values()):
        parts = [one for one in layer if one is not None and one.count]
        count = -(-sum(one.count for one in parts) // most)
        for number in range(count):
            cut = (
                replace(
                    one,
                    start=one.start + one.count * number // count,
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

    The same at every run as long as the target topic has the same queues.
    """
    for target in targets:
        if (target.broker_name, target.queue_id) == (source.broker_name, source.queue_id):
            return target
    ordered = sorted(targets)
    return ordered[select_by_hash(f"{source.broker_name}/{source.queue_id}", len(ordered))]
