"""The values of the options that say where reading begins and ends: words, numbers, or JSON per topic or queue.

Shapes: ``{"topic": "latest"}`` and ``{"topic": {"brokerName": {"queueId": 17}}}``; offsets with -2 for earliest and -1
for latest, times in milliseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_rocketmq.option_parsers import check_milliseconds, parses, time_ms
from pyspark_rocketmq.queue_positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    PositionsForm,
    QueuePositions,
    whole_number,
)

COMMITTED_OFFSET: Final = -3
"""Where a group's committed offset says."""

AT_A_GROUP: Final = QueuePositions(COMMITTED_OFFSET)
"""Every queue ends where a group stands."""

_STARTS = PositionsForm(
    '{"topic": {"brokerName": {"queueId": offset}}} or {"topic": "earliest"}',
    whole_number(EARLIEST_OFFSET, "a whole number from 0 on, or -2 (earliest) or -1 (latest)"),
    ("earliest", "latest"),
)
_ENDS = PositionsForm(
    '{"topic": {"brokerName": {"queueId": offset}}} or {"topic": "latest"}',
    whole_number(LATEST_OFFSET, "a whole number from 0 on, or -1 (latest)"),
    ("latest",),
)
_milliseconds = whole_number(0, "a whole number of milliseconds since the epoch")


def _time(value: object, where: str) -> int:
    if isinstance(value, str):
        try:
            return time_ms(value)
        except ValueError as problem:
            raise ValueError(f"has a value for {where} that {problem}") from None
    time = _milliseconds(value, where)
    try:
        check_milliseconds(time)
    except ValueError as problem:
        raise ValueError(f"has a value for {where} that {problem}") from None
    return time


_TIMES = PositionsForm(
    '{"topic": time} or {"topic": {"brokerName": {"queueId": time}}}',
    _time,
)


@dataclass(frozen=True, slots=True)
class StartingOffsets(QueuePositions):
    """Where queues without stored progress begin; the default is EARLIEST_OFFSET, LATEST_OFFSET or COMMITTED_OFFSET."""

    @classmethod
    def earliest(cls) -> StartingOffsets:
        """Every queue at its first message."""
        return cls(EARLIEST_OFFSET)

    @classmethod
    def latest(cls) -> StartingOffsets:
        """Every queue behind its last message."""
        return cls(LATEST_OFFSET)

    @classmethod
    def committed(cls) -> StartingOffsets:
        """Every queue where a group stands."""
        return cls(COMMITTED_OFFSET)


@parses("`earliest`, `latest`, `group` or JSON")
def parse_starting_offsets(text: str) -> StartingOffsets:
    """Parse ``earliest``, ``latest``, ``group`` (in any case) or JSON; queues the JSON does not name start at earliest.

    Raises:
        ValueError: With the end of the sentence ``startingOffsets='…' …``, naming the wrong part and the right form.
    """
    words = {
        "earliest": StartingOffsets.earliest(),
        "latest": StartingOffsets.latest(),
        "group": StartingOffsets.committed(),
    }
    if (word := text.strip().lower()) in words:
        return words[word]
    named = _STARTS.parse(text, EARLIEST_OFFSET)
    return StartingOffsets(EARLIEST_OFFSET, named.by_queue, named.by_topic)


@parses("`latest`, `group` or JSON")
def parse_ending_offsets(text: str) -> QueuePositions:
    """Parse ``latest``, ``group`` (in any case) or JSON; queues the JSON does not name end at latest.

    Raises:
        ValueError: As :func:`parse_starting_offsets`.
    """
    words = {"latest": QueuePositions(LATEST_OFFSET), "group": AT_A_GROUP}
    if (word := text.strip().lower()) in words:
        return words[word]
    return _ENDS.parse(text, LATEST_OFFSET)


@parses("JSON")
def parse_starting_times(text: str) -> QueuePositions:
    """Parse times as JSON; queues it does not name start at earliest.

    Raises:
        ValueError: As :func:`parse_starting_offsets`.
    """
    return _TIMES.parse(text, EARLIEST_OFFSET)


@parses("JSON")
def parse_ending_times(text: str) -> QueuePositions:
    """Parse times as JSON; queues it does not name end at latest.

    Raises:
        ValueError: As :func:`parse_starting_offsets`.
    """
    return _TIMES.parse(text, LATEST_OFFSET)
