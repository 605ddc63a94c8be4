"""Options for the start and the end of reading, and their values.

Shapes: ``{"topic": "latest"}`` and ``{"topic": {"brokerName": {"queueId": 17}}}``. A number is an offset (-2
means earliest, -1 latest) or, in the options by timestamp, milliseconds since the epoch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.options.connection import ConnectionOptions
from pyspark_rocketmq.options.declare import Use, batch_option, read_option
from pyspark_rocketmq.options.parsers import (
    Parser,
    closest,
    one_of,
    parses,
    resource_name,
    time_ms,
    unique_members,
)

COMMITTED_OFFSET: Final = -3
"""Number that means a group's committed offset; it takes the place of an offset or a time."""
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

_OFFSET_WORDS: Final = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
_QUEUE_ID: Final = re.compile(r"0|[1-9][0-9]{0,8}")

ParseValue = Callable[[object, str], int]
"""Function that turns a JSON value into a number; its string names the value in the text of a ValueError."""


@dataclass(frozen=True, slots=True)
class QueuePositions:
    """A start or an end for every queue: the queue's own number, else its topic's number, else ``default``.

    Numbers are offsets, or times in ms. -2 stands for the earliest offset, -1 for the latest one, and -3 for
    a group's committed offset.
    """

    default: int = EARLIEST_OFFSET
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)
    by_topic: Mapping[str, int] = field(default_factory=dict)

    def wanted(self, queue: MessageQueue) -> int:
        """Return the number for ``queue``."""
        known = self.by_queue.get(queue)
        return self.by_topic.get(queue.topic, self.default) if known is None else known

    @property
    def topics(self) -> set[str]:
        """Topics that have a number of their own, or have a queue with one."""
        return {queue.topic for queue in self.by_queue} | self.by_topic.keys()


EARLIEST: Final = QueuePositions(EARLIEST_OFFSET)
LATEST: Final = QueuePositions(LATEST_OFFSET)
COMMITTED: Final = QueuePositions(COMMITTED_OFFSET)


class _PositionsForm(NamedTuple):
    """The form of the JSON in which one option gives offsets or times for topics and queues."""

    shape: str
    parse_value: ParseValue
    words: tuple[str, ...] = ()
    """Words allowed instead of the JSON, and instead of a topic's value."""

    def parse(self, text: str, default: int) -> QueuePositions:
        """Parse the JSON; queues that it does not name get ``default``.

        Raises:
            ValueError: With the end of a sentence that names the wrong part and the right form.
        """
        by_queue: dict[MessageQueue, int] = {}
        by_topic: dict[str, int] = {}
        for topic, named in self._members(self._loaded(text), "the JSON"):
            if isinstance(named, dict):
                by_queue |= self._queues(topic, named)
            elif isinstance(named, str) and named.strip().lower() in self.words:
                by_topic[topic] = _OFFSET_WORDS[named.strip().lower()]
            else:
                by_topic[topic] = self.parse_value(named, f"topic {topic}")
        return QueuePositions(default, by_queue, by_topic)

    def _loaded(self, text: str) -> object:
        try:
            return json.loads(text, object_pairs_hook=unique_members)
        except json.JSONDecodeError as error:
            allowed = f"neither {' nor '.join(self.words)} nor" if self.words else "not"
            close = closest(text, self.words)
            hint = (
                f"did you mean '{close}'?"
                if close
                else f"reading it as JSON failed at character {error.pos}: {error.msg}"
            )
            raise ValueError(f"is {allowed} JSON of the shape {self.shape}; {hint}") from error
        except RecursionError:
            raise ValueError(f"is nested too deeply; the shape is {self.shape}") from None

    def _queues(self, topic: str, brokers: object) -> dict[MessageQueue, int]:
        return {
            MessageQueue(topic, broker_name, _parse_queue_id(queue_id, broker_name)): self.parse_value(
                value, f"{topic} / {broker_name} / {queue_id}"
            )
            for broker_name, queues in self._members(brokers, f"the value of topic {topic!r}")
            for queue_id, value in self._members(queues, f"the value of broker {broker_name!r}")
        }

    def _members(self, value: object, where: str) -> list[tuple[str, object]]:
        if not isinstance(value, dict) or not value:
            raise ValueError(
                f"is of another shape than {self.shape}: {where} must be a non-empty JSON object"
            )
        return list(value.items())


def _parse_queue_id(text: str, broker_name: str) -> int:
    if not _QUEUE_ID.fullmatch(text):
        raise ValueError(
            f'has queue id {text!r} for broker {broker_name!r}, which must be a whole number such as "0"'
        )
    return int(text)


def _whole_number(least: int, meaning: str) -> ParseValue:
    """Return a function that accepts whole numbers from ``least`` on; ``meaning`` names them in errors."""

    def parse(value: object, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            raise ValueError(f"has a value for {where} that must be {meaning}, not {json.dumps(value)}")
        return value

    return parse


def _time(value: object, where: str) -> int:
    text = value if isinstance(value, str) else str(_milliseconds(value, where))
    try:
        return time_ms(text)
    except ValueError as problem:
        raise ValueError(f"has a value for {where} that {problem}") from None


_milliseconds = _whole_number(0, "a whole number of milliseconds since the epoch")
_STARTS: Final = _PositionsForm(
    '{"topic": {"brokerName": {"queueId": offset}}} or {"topic": "earliest"}',
    _whole_number(EARLIEST_OFFSET, "a whole number from 0 on, or -2 (earliest) or -1 (latest)"),
    ("earliest", "latest"),
)
_ENDS: Final = _PositionsForm(
    '{"topic": {"brokerName": {"queueId": offset}}} or {"topic": "latest"}',
    _whole_number(LATEST_OFFSET, "a whole number from 0 on, or -1 (latest)"),
    ("latest",),
)
_TIMES: Final = _PositionsForm('{"topic": time} or {"topic": {"brokerName": {"queueId": time}}}', _time)


def _positions(
    type_name: str, form: _PositionsForm, default: QueuePositions, words: Mapping[str, QueuePositions]
) -> Parser[QueuePositions]:
    """Return a parser of ``words`` and of JSON; queues that the JSON does not name get ``default``."""

    @parses(type_name)
    def parse(text: str) -> QueuePositions:
        return words.get(text.strip().lower()) or form.parse(text, default.default)

    return parse


_START_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST, "group": COMMITTED}
parse_starting_offsets = _positions("`earliest`, `latest`, `group` or JSON", _STARTS, EARLIEST, _START_WORDS)
parse_ending_offsets = _positions(
    "`latest`, `group` or JSON", _ENDS, LATEST, {"latest": LATEST, "group": COMMITTED}
)
parse_starting_times = _positions("JSON", _TIMES, EARLIEST, {})
parse_ending_times = _positions("JSON", _TIMES, LATEST, {})


class NoMatchStrategy(StrEnum):
    """Ways to treat a queue that has no message stored at or after a time."""

    LATEST = "latest"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PositionOptions(ConnectionOptions):
    """Options for the start and the end of reading."""

    starting_offsets: QueuePositions | None = read_option(
        "startingOffsets", parse_starting_offsets, None, default_text="latest (stream), earliest (batch)"
    ).doc(
        "Where a new query, or a consumer group without a stored offset, begins: `earliest`; `latest` "
        "(streams); `group`, at the committed offsets of the group `startingGroup`; or JSON for each topic "
        '`{"topic": "latest"}` or queue `{"topic": {"broker-a": {"0": 17, "1": -2}}}`, where -2 means '
        "earliest and -1 latest. Queues that are not named, or appear later, begin at their earliest offset."
    )
    starting_group: str | None = read_option("startingGroup", resource_name("consumer group", 255), None).doc(
        "The group at whose committed offsets `startingOffsets=group` begins. The offsets are read from the "
        "brokers or, if `offsetStore` is given, from that table; they are never changed. A queue for which "
        "the group has no offset begins at its earliest one."
    )
    starting_timestamp: int | None = read_option(
        "startingTimestamp", time_ms, None, unit="ms since the epoch"
    ).doc("Begin at the first message stored at or after this time; not together with `startingOffsets`.")
    starting_offsets_by_timestamp: QueuePositions | None = read_option(
        "startingOffsetsByTimestamp", parse_starting_times, None, unit="ms since the epoch"
    ).doc(
        "Begin at the first message stored at or after a time that is given for each topic "
        '`{"topic": 1700000000000}` or queue `{"topic": {"broker-a": {"0": 1700000000000}}}`. Queues that '
        "are not named begin at their earliest offset."
    )
    starting_offsets_by_timestamp_strategy: NoMatchStrategy = read_option(
        "startingOffsetsByTimestampStrategy", one_of(NoMatchStrategy), NoMatchStrategy.LATEST
    ).doc(
        "Where to begin in a queue that has no message stored at or after its starting time: `latest` begins "
        "with the next message that comes, so that none is left out; `error`, Kafka's default, ends the "
        "query, so that a time in the future is noticed."
    )
    ending_offsets: QueuePositions | None = batch_option(
        "endingOffsets", parse_ending_offsets, None, default_text="latest"
    ).doc(
        "Where reading ends (the message at this offset is not read): `latest`, the end when the read is "
        "planned; `group`, the committed offsets of `endingGroup`; or JSON for each topic or queue as in "
        "`startingOffsets`, without -2. Queues that are not named end at latest."
    )
    ending_group: str | None = batch_option("endingGroup", resource_name("consumer group", 255), None).doc(
        "The group at whose committed offsets `endingOffsets=group` ends: only messages that it has consumed "
        "are read. Its offsets are found like those of `startingGroup`, which may be another group. A queue "
        "is not read if the group has no offset for it, or one before the beginning."
    )
    ending_timestamp: int | None = batch_option(
        "endingTimestamp", time_ms, None, unit="ms since the epoch"
    ).doc(
        "End before the first message stored at or after this time; a queue without one is read to its end."
    )
    ending_offsets_by_timestamp: QueuePositions | None = batch_option(
        "endingOffsetsByTimestamp", parse_ending_times, None, unit="ms since the epoch"
    ).doc(
        "End before the first message stored at or after a time that is given for each topic or queue, as in "
        "`startingOffsetsByTimestamp`. Queues that are not named end at latest."
    )

    def starting_times(self) -> QueuePositions | None:
        """Return each queue's starting time in ms; None if no option gives times.

        A queue that the option does not name has ``EARLIEST_OFFSET`` (-2) instead of a time.
        """
        if self.starting_timestamp is not None:
            return QueuePositions(self.starting_timestamp)
        return self.starting_offsets_by_timestamp

    def begins_at_first(self) -> bool:
        """Return whether ``startingOffsets`` is earliest, so that all queues begin with their first messages.

        Then it does not matter whether a queue is found when a query begins or later.
        """
        return self.starting_offsets == EARLIEST and self.starting_times() is None

    def ending_times(self) -> QueuePositions | None:
        """Return each queue's ending time in ms; None if no option gives times.

        A queue that the option does not name has ``LATEST_OFFSET`` (-1) instead of a time.
        """
        if self.ending_timestamp is not None:
            return QueuePositions(self.ending_timestamp)
        return self.ending_offsets_by_timestamp

    def ends_at_group(self) -> bool:
        """Return whether a batch ends at a group's committed offsets."""
        return self.ending_offsets == COMMITTED

    def problems_of_stream(self) -> list[str]:
        """Return a sentence for each given option that has no meaning for a stream."""
        return [
            f"option '{key}' is for batch reads: a stream has no end. Leave it out, and use "
            "trigger(availableNow=True) to read all present messages"
            for key in self.given_but_not_for(Use.STREAM)
        ]

    def problems_of_batch(self) -> list[str]:
        """Return a sentence for each given option that has no meaning for a batch read.

        Starting offsets that are latest (-1) are such a problem, too.
        """
        problems = [
            f"option '{key}' is for streams: a batch read touches no group's offsets and is planned once. "
            "Leave it out"
            for key in self.given_but_not_for(Use.BATCH)
        ]
        starts = self.starting_offsets
        if starts is not None and LATEST_OFFSET in (
            starts.default, *starts.by_topic.values(), *starts.by_queue.values()
        ):  # fmt: skip
            problems.append(
                "option 'startingOffsets' is latest (-1), where a batch read finds no messages; give an "
                "earlier position"
            )
        return problems

    def position_problems(
        self, is_read: Callable[[str], bool], what_is_read: str, *, reads_as_group: bool
    ) -> list[str]:
        """Return problems of starts and ends: duplicates, contradictions, topics that are not read.

        Args:
            is_read: Returns whether the query reads a topic.
            what_is_read: Names of the topics for errors; empty with a pattern.
            reads_as_group: Whether the query reads as a consumer group, with that group's offsets.
        """
        problems = self.said_twice("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
        problems += self.said_twice("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
        problems += self._committed_problems(reads_as_group)
        begin, end = self.starting_timestamp, self.ending_timestamp
        if begin is not None and end is not None and begin > end:
            problems.append(
                f"option 'startingTimestamp' is {begin}, later than 'endingTimestamp', which is {end}"
            )
        for key, named in (
            ("startingOffsets", self.starting_offsets),
            ("startingOffsetsByTimestamp", self.starting_offsets_by_timestamp),
            ("endingOffsets", self.ending_offsets),
            ("endingOffsetsByTimestamp", self.ending_offsets_by_timestamp),
        ):
            problems += [
                f"option '{key}' names topic '{topic}', but this query reads "
                f"{what_is_read or 'only topics of its pattern'}"
                for topic in sorted(set() if named is None else named.topics)
                if not is_read(topic)
            ]
        return problems

    def _committed_problems(self, reads_as_group: bool) -> list[str]:
        begins_at_group = self.starting_offsets == COMMITTED
        problems = []
        if begins_at_group and reads_as_group:
            problems.append(
                "option 'startingOffsets=group' cannot be used with 'consumerGroup', because that group "
                "continues at its own offsets; leave one out"
            )
        for offsets, is_at_group, needs_key, key, group in (
            ("startingOffsets", begins_at_group, not reads_as_group, "startingGroup", self.starting_group),
            ("endingOffsets", self.ends_at_group(), True, "endingGroup", self.ending_group),
        ):
            if is_at_group and needs_key and group is None:
                problems.append(f"option '{offsets}=group' needs '{key}', the group whose offsets are used")
            if group is not None and not is_at_group:
                problems.append(f"option '{key}' needs '{offsets}=group'")
        return problems
