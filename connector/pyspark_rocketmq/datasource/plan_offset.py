"""Spark's offset of one micro-batch: the plan itself, as JSON.

Shape: ``{"v": 1, "seq": 7, "plan": {topic: {brokerName: {queueId: {"from": 0, "to": 5, "epoch": 3, "times": 1}}}}}``
with ``epoch`` and ``times`` (prior reconsume times) left out when they are 0, and ``putBack`` when it is empty.  Of plans
of earlier releases ``uncommitted`` is passed over.  The ranges are explicit, so a replay reads the same messages; ``seq``
grows with every batch, because Spark compares offsets as text and a suspended queue may be planned twice with the same range.  Keys are written sorted: equal plans are equal texts.

A plan of more than 256 queues is packed, ten thousand of them into 60 KB where the JSON above has 600:
``{"v": 2, "seq": 7, "queues": 10000, "packed": text}``.  The text is zlib in base 85 of a line of JSON and, behind it, columns of whole numbers.
The line is ``{"brokers": [[topic, brokerName, queues], …], "putBack": {index: text}}``; the columns are the queue id, as a
difference to the one before, ``from``, ``to`` as a difference to ``from``, ``epoch`` and ``times``: of each the lowest bytes of all queues first, then
the next ones, up to eight, since most of these are 0.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import MessageQueue, QueueRange

_VERSION = 1
_PACKED_VERSION = 2
_MOST_IN_JSON: Final = 256
_MOST_QUEUES: Final = 1_000_000
_MOST_BYTES_A_QUEUE: Final = 4096
"""Unpacked: names and what was put back. More is not written, and not read."""
_COLUMNS: Final = 5
_INT64_BYTES: Final = 8
_SHOWN = 200
_HIGHEST = (1 << 63) - 1
_LOWEST = -(1 << 31)
"""Messages may be stored with any number of reconsumptions."""

Offset = dict[str, Any]
"""What Spark stores: a nested dict with str keys."""


def plan_to_offset(seq: int, ranges: Iterable[QueueRange]) -> Offset:
    """The offset that holds ``ranges``; empty ranges are kept, they carry a position."""
    in_order = sorted(ranges, key=attrgetter("queue"))
    if len(in_order) > _MOST_IN_JSON:
        return {"v": _PACKED_VERSION, "seq": seq, "queues": len(in_order), "packed": _packed(in_order)}
    plan: dict[str, dict[str, dict[str, dict[str, int | str]]]] = {}
    for planned in in_order:
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
    if offset["v"] not in {_VERSION, _PACKED_VERSION}:
        raise OffsetError(
            f"The checkpoint holds a RocketMQ offset of version {offset['v']!r}; this release reads versions "
            f"{_VERSION} and {_PACKED_VERSION}. Use the release that wrote it, or a new checkpoint location: a consumer group continues "
            "from its offset store."
        )
    try:
        is_packed = offset["v"] == _PACKED_VERSION
        ranges = (
            _unpacked(_text(offset["packed"]), _whole(offset["queues"], 0))
            if is_packed
            else _ranges_of(offset["plan"])
        )
        return _whole(offset["seq"], 0), tuple(sorted(ranges, key=attrgetter("queue")))
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        struct.error,
        zlib.error,
    ) as error:
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


def _packed(ranges: Sequence[QueueRange]) -> str:
    brokers: list[list[str | int]] = []
    ids: list[int] = []
    for (topic, broker_name), some in groupby(ranges, key=lambda planned: planned.queue[:2]):
        of_broker = [planned.queue.queue_id for planned in some]
        brokers.append([topic, broker_name, len(of_broker)])
        ids += [number - before for before, number in zip([0, *of_broker], of_broker, strict=False)]
    put_back = {str(at): planned.put_back for at, planned in enumerate(ranges) if planned.put_back}
    line = json.dumps({"brokers": brokers, "putBack": put_back})
    columns = (
        ids,
        [planned.start for planned in ranges],
        [planned.end - planned.start for planned in ranges],
        [planned.epoch for planned in ranges],
        [planned.reconsume_times for planned in ranges],
    )
    data = b"".join([line.encode(), b"\n", *map(_in_planes, columns)])
    return base64.b85encode(zlib.compress(data, 9)).decode()


def _unpacked(text: str, queues: int) -> Iterable[QueueRange]:
    if queues > _MOST_QUEUES:
        raise ValueError(f"{queues} queues are more than {_MOST_QUEUES}")
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(base64.b85decode(text), queues * _MOST_BYTES_A_QUEUE)
    line, _, numbers = data.partition(b"\n")
    size = queues * _INT64_BYTES
    if not unpacking.eof or unpacking.unused_data or len(numbers) != _COLUMNS * size:
        raise ValueError(f"what is packed is not {queues} queues")
    facts = json.loads(line)
    ids, starts, counts, epochs, times = (
        _from_planes(numbers[at : at + size]) for at in range(0, len(numbers), size or 1)
    )
    names = [(_text(topic), _text(name), _whole(count, 1)) for topic, name, count in facts["brokers"]]
    if sum(count for *_, count in names) != queues:
        raise ValueError(f"brokers have not {queues} queues together")
    at = 0
    for topic, broker_name, count in names:
        queue_id = 0
        for index in range(at, at + count):
            queue_id += ids[index]
            yield QueueRange(
                queue=MessageQueue(topic, broker_name, queue_id),
                start=_whole(starts[index], 0),
                end=_whole(starts[index] + counts[index], starts[index]),
                epoch=_whole(epochs[index], 0),
                reconsume_times=_whole(times[index], _LOWEST),
                put_back=_text(facts["putBack"].get(str(index), "")),
            )
        at += count


def _in_planes(numbers: Sequence[int]) -> bytes:
    data = struct.pack(f"<{len(numbers)}q", *numbers)
    return b"".join(data[plane::_INT64_BYTES] for plane in range(_INT64_BYTES))


def _from_planes(data: bytes) -> Sequence[int]:
    count = len(data) // _INT64_BYTES
    numbers = bytearray(len(data))
    for plane in range(_INT64_BYTES):
        numbers[plane::_INT64_BYTES] = data[plane * count : (plane + 1) * count]
    return struct.unpack(f"<{count}q", numbers)


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
