"""The value of option startingOffsets: ``earliest``, ``latest`` or offsets per queue as JSON.

JSON shape: ``{"topic": {"brokerName": {"queueId": offset}}}`` with -2 for earliest and -1 for latest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.option_parsers import unique_members

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1

_SHAPE = '{"topic": {"brokerName": {"queueId": offset}}}'
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """Where queues without stored progress begin."""

    default: int = EARLIEST_OFFSET
    """For queues not named: EARLIEST_OFFSET or LATEST_OFFSET."""
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)
    """Queue offset, EARLIEST_OFFSET or LATEST_OFFSET."""

    @classmethod
    def earliest(cls) -> StartingOffsets:
        """Every queue at its first message."""
        return cls(EARLIEST_OFFSET)

    @classmethod
    def latest(cls) -> StartingOffsets:
        """Every queue behind its last message."""
        return cls(LATEST_OFFSET)

    def wanted(self, queue: MessageQueue) -> int:
        """What is asked for ``queue``: a queue offset, EARLIEST_OFFSET or LATEST_OFFSET."""
        return self.by_queue.get(queue, self.default)


def parse_starting_offsets(text: str) -> StartingOffsets:
    """Parse ``earliest``, ``latest`` (in any case) or JSON; queues the JSON does not name start at earliest.

    Raises:
        ValueError: With the end of the sentence ``startingOffsets='…' …``, naming the wrong part and the right form.
    """
    word = text.strip().lower()
    if word == "earliest":
        return StartingOffsets.earliest()
    if word == "latest":
        return StartingOffsets.latest()
    return StartingOffsets(EARLIEST_OFFSET, _parse_json(text))


def _parse_json(text: str) -> dict[MessageQueue, int]:
    try:
        topics = json.loads(text, object_pairs_hook=unique_members)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"is neither earliest nor latest nor JSON of the shape {_SHAPE}; reading it as JSON failed at character "
            f"{error.pos}: {error.msg}"
        ) from error
    except RecursionError:
        raise ValueError(f"is nested too deeply; the shape is {_SHAPE}") from None
    return {
        MessageQueue(topic, broker_name, _parse_queue_id(queue_id, broker_name)): _parse_offset(
            offset, f"{topic} / {broker_name} / {queue_id}"
        )
        for topic, brokers in _members(topics, "the JSON")
        for broker_name, queues in _members(brokers, f"the value of topic {topic!r}")
        for queue_id, offset in _members(queues, f"the value of broker {broker_name!r}")
    }


def _members(value: object, where: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"is of another shape than {_SHAPE}: {where} must be a non-empty JSON object")
    return list(value.items())


def _parse_queue_id(text: str, broker_name: str) -> int:
    if not _QUEUE_ID.fullmatch(text):
        raise ValueError(
            f'has queue id {text!r} for broker {broker_name!r}, which must be a whole number such as "0"'
        )
    return int(text)


def _parse_offset(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST_OFFSET <= value < 2**63:
        raise ValueError(
            f"has an offset for {where} that must be a whole number from 0 on, or -2 (earliest) or -1 (latest), "
            f"not {json.dumps(value)}"
        )
    return value
