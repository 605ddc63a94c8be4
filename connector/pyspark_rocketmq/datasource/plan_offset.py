"""Spark's offset of one micro-batch: the plan itself, as JSON.

Shape: ``{"v": 1, "seq": 7, "plan": {topic: {brokerName: {queueId: {"from": 0, "to": 5, "epoch": 3, "times": 1}}}}}``
with ``epoch`` and ``times`` (prior reconsume times) left out when they are 0, and ``putBack`` when it is empty.  Of plans
of earlier releases ``uncommitted`` is passed over.  The ranges are explicit, so a replay reads the same messages; ``seq``
grows with every batch, because Spark compares offsets as text and a suspended queue may be planned twice with the same range.  Keys are written sorted: equal plans are equal texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import MessageQueue, QueueRange

_VERSION = 1
_SHOWN = 200
_HIGHEST = (1 << 63) - 1
_LOWEST = -(1 << 31)
"""Messages may be stored with any number of reconsumptions."""

Offset = dict[str, Any]
"""What Spark stores: a nested dict with str keys."""


def plan_to_offset(seq: int, ranges: Iterable[QueueRange]) -> Offset:
    """The offset that holds ``ranges``; empty ranges are kept, they carry a position."""
    plan: dict[str, dict[str, dict[str, dict[str, int | str]]]] = {}
    for planned in sorted(ranges, key=lambda planned: planned.queue):
        topic, broker_name, queue_id = planned.queue
        entry: dict[str, int | str] = {"from": planned.start, "to": planned.end}
        if planned.epoch:
            entry["epoch"] = planned.epoch
        if planned.reconsume_times:
            entry["times"] = planned.reconsume_times
        if planned.put_back:
            entry["putBack"] = planned.put_back
        plan.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = entry
    return {"v": _VERSION, "seq": seq, "plan": plan}


def offset_to_plan(offset: Mapping[str, Any]) -> tuple[int, tuple[QueueRange, ...]]:
    """The sequence number and the ranges, sorted by queue.

    Raises:
        OffsetError: If the checkpoint was written by a newer version, is not ours, or is damaged.
    """
    if "v" not in offset:
        raise OffsetError(
            f"The checkpoint holds no offset of a RocketMQ query but {_shortened(offset)}; it may be another source's. Use the "
            "checkpoint location of this query, or a new one."
        )
    if offset["v"] != _VERSION:
        raise OffsetError(
            f"The checkpoint holds a RocketMQ offset of version {offset['v']!r}; this release reads version "
            f"{_VERSION}. Use the release that wrote it, or a new checkpoint location: a consumer group continues "
            "from its offset store."
        )
    try:
        return _whole(offset["seq"], 0), tuple(
            sorted(_ranges_of(offset["plan"]), key=lambda planned: planned.queue)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OffsetError(
            f"The checkpoint's offset is damaged ({type(error).__name__}: {error}): {_shortened(offset)}. Use a new checkpoint "
            "location: a consumer group continues from its offset store, any other query where startingOffsets says."
        ) from error


def _ranges_of(plan: Mapping[str, Any]) -> Iterable[QueueRange]:
    return (
        QueueRange(
            queue=MessageQueue(topic, broker_name, int(queue_id)),
            start=_whole(entry["from"], 0),
            end=_whole(entry["to"], entry["from"]),
            epoch=_whole(entry.get("epoch", 0), 0),
            reconsume_times=_whole(entry.get("times", 0), _LOWEST),
            put_back=_text(entry.get("putBack", "")),
        )
        for topic, brokers in plan.items()
        for broker_name, queues in brokers.items()
        for queue_id, entry in queues.items()
    )


def _whole(value: object, at_least: int) -> int:
    if type(value) is not int or not at_least <= value <= _HIGHEST:
        raise ValueError(f"{value!r:.{_SHOWN}} is no number from {at_least} to {_HIGHEST}")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{type(value).__name__} in the place of a text")
    return value


def _shortened(offset: Mapping[str, Any]) -> str:
    text = str(dict(offset))
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
