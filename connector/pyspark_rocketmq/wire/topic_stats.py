"""The statistics of a topic: what a broker holds of each of its queues, asked for at every plan.

A topic may have a thousand queues, so the body is written by hand, and read by one regular expression in the form
in which Java writes it. Whatever is written otherwise goes to the JSON reader: the two never differ.

Source: RocketMQ 5.3.3 ``remoting/protocol/admin/TopicStatsTable``, ``TopicOffset``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.wire.bodies import queue_from_json
from pyspark_rocketmq.wire.brief import brief
from pyspark_rocketmq.wire.json_fields import checked_int64, read_object
from pyspark_rocketmq.wire.json_quirks import dumps_java
from pyspark_rocketmq.wire.json_size import check_json_size

_WHERE: Final = "TopicStatsTable.offsetTable"
_NAME: Final = r'"([^"\\\x00-\x1f\x7f-\U0010ffff]*)"'
# As many digits as every value of the type may have, so that no conversion needs a check.
_INT32: Final = r"(0|-?[1-9][0-9]{0,8})"
_INT64: Final = r"(0|-?[1-9][0-9]{0,17})"
_ENTRY: Final = re.compile(
    rf'\{{"brokerName":{_NAME},"queueId":{_INT32},"topic":{_NAME}\}}:'
    rf'\{{"lastUpdateTimestamp":{_INT64},"maxOffset":{_INT64},"minOffset":{_INT64}\}}'
)
_GROUPS: Final = _ENTRY.groups
_BEFORE: Final = '{"offsetTable":{'
_BEHIND: Final = re.compile(r'\},"topicPutTps":[0-9]+\.[0-9]+\}')


def encode_topic_stats(stats: Mapping[MessageQueue, QueueBounds]) -> bytes:
    """Write the body of the answer to 202 GET_TOPIC_STATS_INFO."""
    names = {name: dumps_java(name).decode() for queue in stats for name in queue[:2]}
    entries = (
        f'{{"brokerName":{names[broker_name]},"queueId":{queue_id:d},"topic":{names[topic]}}}:'
        f'{{"lastUpdateTimestamp":{bounds.last_update_timestamp:d},"maxOffset":{bounds.max_offset:d},'
        f'"minOffset":{bounds.min_offset:d}}}'
        for (topic, broker_name, queue_id), bounds in stats.items()
    )
    return f'{_BEFORE}{",".join(entries)}}},"topicPutTps":0.0}}'.encode()


def decode_topic_stats(body: bytes) -> dict[MessageQueue, QueueBounds]:
    """Read what a broker holds of each of a topic's queues.

    Raises:
        RemoteProtocolError: If the body is not a topic's statistics.
    """
    check_json_size(body)
    stats = _decode_as_java_writes(body)
    return _decode_any_form(body) if stats is None else stats


def _decode_as_java_writes(body: bytes) -> dict[MessageQueue, QueueBounds] | None:
    """The statistics, or None if anything but Java's own form is in the body."""
    if not body.isascii():
        return None
    # Text between the entries, then the groups of an entry, and so on; text at the end.
    parts = _ENTRY.split(body.decode())
    between = parts[:: _GROUPS + 1]
    is_expected = between[0] == _BEFORE and _BEHIND.fullmatch(between[-1]) and set(between[1:-1]) <= {","}
    if len(between) == 1 or not is_expected:
        return None
    broker_names, queue_ids, topics, updated, maximum, minimum = (
        parts[group :: _GROUPS + 1] for group in range(1, _GROUPS + 1)
    )
    queues = map(MessageQueue, topics, broker_names, map(int, queue_ids))
    bounds = map(QueueBounds, map(int, minimum), map(int, maximum), map(int, updated))
    return dict(zip(queues, bounds, strict=True))


def _decode_any_form(body: bytes) -> dict[MessageQueue, QueueBounds]:
    return {
        queue_from_json(key, _WHERE): _bounds_from_json(value)
        for key, value in read_object(body, "TopicStatsTable").pairs("offsetTable")
    }


def _bounds_from_json(value: Any) -> QueueBounds:
    try:
        minimum, maximum = value["minOffset"], value["maxOffset"]
        updated = value.get("lastUpdateTimestamp", 0)
    except (KeyError, TypeError, AttributeError) as exc:
        raise RemoteProtocolError(
            f"{_WHERE} holds something that is no TopicOffset: {brief(value)}."
        ) from exc
    return QueueBounds(
        min_offset=checked_int64(minimum, _WHERE),
        max_offset=checked_int64(maximum, _WHERE),
        last_update_timestamp=checked_int64(updated, _WHERE),
    )
