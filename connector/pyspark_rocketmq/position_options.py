"""The options of the source that say where reading begins and ends, declared once; the others are in ``options``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pyspark_rocketmq.connection_options import ConnectionOptions
from pyspark_rocketmq.option_parsers import one_of, resource_name, time_ms
from pyspark_rocketmq.option_set import Use, batch_option, read_option, said_twice
from pyspark_rocketmq.queue_positions import LATEST_OFFSET, QueuePositions
from pyspark_rocketmq.starting_offsets import (
    AT_A_GROUP,
    StartingOffsets,
    parse_ending_offsets,
    parse_ending_times,
    parse_starting_offsets,
    parse_starting_times,
)


class NoMatchStrategy(StrEnum):
    """What to do with a queue that has no message stored at or after the time asked for."""

    LATEST = "latest"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PositionOptions(ConnectionOptions):
    """Where reading begins and ends."""

    starting_offsets: StartingOffsets | None = read_option(  # noqa: RUF009 - declares the field
        "startingOffsets",
        parse=parse_starting_offsets,
        default=None,
        default_text="latest (stream), earliest (batch)",
        doc="Where a new query, or a consumer group without a stored offset, begins: `earliest`, `latest` (streams), "
        '`group` (where the group `startingGroup` stands), or JSON per topic `{"topic": "latest"}` or per queue '
        '`{"topic": {"broker-a": {"0": 17, "1": -2}}}` (-2 earliest, -1 latest; queues not named: earliest). '
        "Queues that appear later begin at their earliest offset.",
    )
    starting_group: str | None = read_option(
        "startingGroup",
        parse=resource_name("consumer group", 255),
        default=None,
        doc="The group at whose committed offsets `startingOffsets=group` begins: as the brokers have them or, with "
        "`offsetStore`, as that table has them. Its offsets are read and never changed. Queues for which it has none "
        "begin at their earliest offset.",
    )
    starting_timestamp: int | None = read_option(
        "startingTimestamp",
        parse=time_ms,
        default=None,
        unit="ms since the epoch",
        doc="Begin at the first message stored at or after this time; not together with `startingOffsets`.",
    )
    starting_offsets_by_timestamp: QueuePositions | None = read_option(  # noqa: RUF009 - declares the field
        "startingOffsetsByTimestamp",
        parse=parse_starting_times,
        default=None,
        unit="ms since the epoch",
        doc='The same per topic, `{"topic": 1700000000000}`, or per queue, `{"topic": {"broker-a": {"0": '
        "1700000000000}}}`; queues not named begin at their earliest offset.",
    )
    starting_offsets_by_timestamp_strategy: NoMatchStrategy = read_option(  # noqa: RUF009 - declares the field
        "startingOffsetsByTimestampStrategy",
        parse=one_of(NoMatchStrategy),
        default=NoMatchStrategy.LATEST,
        default_text="latest",
        doc="What to do with a queue without a message stored at or after its starting time: `latest`, begin with the "
        "next one that comes, which is after that time, too, so that nothing is left out; or `error`, Kafka's default, "
        "which finds times that lie in the future.",
    )
    ending_offsets: QueuePositions | None = batch_option(  # noqa: RUF009 - declares the field
        "endingOffsets",
        parse=parse_ending_offsets,
        default=None,
        default_text="latest",
        doc="Where reading ends, exclusive: `latest`, as of planning, `group` (where the group `endingGroup` stands), or JSON per "
        "topic or queue as in `startingOffsets`, without -2; queues not named end at latest.",
    )
    ending_group: str | None = batch_option(
        "endingGroup",
        parse=resource_name("consumer group", 255),
        default=None,
        doc="The group at whose committed offsets `endingOffsets=group` ends: what it has consumed is read. As `startingGroup`, which "
        "may be another group; of queues for which it has no offset, or stands before the beginning, nothing is read.",
    )
    ending_timestamp: int | None = batch_option(
        "endingTimestamp",
        parse=time_ms,
        default=None,
        unit="ms since the epoch",
        doc="End before the first message stored at or after this time; a queue without one is read to its end.",
    )
    ending_offsets_by_timestamp: QueuePositions | None = batch_option(  # noqa: RUF009 - declares the field
        "endingOffsetsByTimestamp",
        parse=parse_ending_times,
        default=None,
        unit="ms since the epoch",
        doc="The same per topic or queue, as in `startingOffsetsByTimestamp`; queues not named end at latest.",
    )

    def starting_times(self) -> QueuePositions | None:
        """From which time each queue is read, in ms; below 0 as an offset. None if times do not matter."""
        if self.starting_timestamp is not None:
            return QueuePositions(self.starting_timestamp)
        return self.starting_offsets_by_timestamp

    def ending_times(self) -> QueuePositions | None:
        """The same for the end."""
        if self.ending_timestamp is not None:
            return QueuePositions(self.ending_timestamp)
        return self.ending_offsets_by_timestamp

    def ends_at_group(self) -> bool:
        """Whether a batch ends where a group stands."""
        return self.ending_offsets == AT_A_GROUP

    def problems_of_stream(self) -> list[str]:
        """Options that mean nothing to a stream."""
        return [
            f"option '{key}' is for batch reads: a stream has no end. Leave it out, and use "
            "trigger(availableNow=True) to read what is there now"
            for key in self.given_but_not_for(Use.STREAM)
        ]

    def problems_of_batch(self) -> list[str]:
        """Options that mean nothing to a batch."""
        problems = [
            f"option '{key}' is for streams: a batch read touches no group's offsets and is planned once. Leave it out"
            for key in self.given_but_not_for(Use.BATCH)
        ]
        starts = self.starting_offsets
        if starts is not None and LATEST_OFFSET in (
            starts.default, *starts.by_topic.values(), *starts.by_queue.values()
        ):  # fmt: skip
            problems.append(
                "option 'startingOffsets' says latest (-1), where a batch read finds nothing; say where it is to begin"
            )
        return problems

    def position_problems(
        self, is_read: Callable[[str], bool], what_is_read: str, *, reads_as_group: bool
    ) -> list[str]:
        """Where to begin and to end is said once, and of what is read."""
        starts = {
            "startingOffsets": self.starting_offsets is not None,
            "startingTimestamp": self.starting_timestamp is not None,
            "startingOffsetsByTimestamp": self.starting_offsets_by_timestamp is not None,
        }
        problems = said_twice(starts) + said_twice(self._ends()) + self._group_problems(reads_as_group)
        begin, end = self.starting_timestamp, self.ending_timestamp
        if begin is not None and end is not None and begin > end:
            problems.append(f"option 'startingTimestamp' is {begin}, after 'endingTimestamp', which is {end}")
        for key, named in (
            ("startingOffsets", self.starting_offsets),
            ("startingOffsetsByTimestamp", self.starting_offsets_by_timestamp),
            ("endingOffsets", self.ending_offsets),
            ("endingOffsetsByTimestamp", self.ending_offsets_by_timestamp),
        ):
            others = (
                [topic for topic in sorted(named.topics) if not is_read(topic)] if named is not None else []
            )
            problems += [
                f"option '{key}' names topic '{topic}', but this query reads {what_is_read or 'only topics of its pattern'}"
                for topic in others
            ]
        return problems

    def _ends(self) -> dict[str, bool]:
        """The options that say where to end, and whether they do."""
        return {
            "endingOffsets": self.ending_offsets is not None,
            "endingTimestamp": self.ending_timestamp is not None,
            "endingOffsetsByTimestamp": self.ending_offsets_by_timestamp is not None,
        }

    def _group_problems(self, reads_as_group: bool) -> list[str]:
        begins_at_group = self.starting_offsets == StartingOffsets.committed()
        problems = []
        if begins_at_group and reads_as_group:
            problems.append(
                "option 'startingOffsets=group' does not go with 'consumerGroup', which goes on at its own offsets"
            )
        for offsets, is_at_group, needs_key, key, group in (
            ("startingOffsets", begins_at_group, not reads_as_group, "startingGroup", self.starting_group),
            ("endingOffsets", self.ends_at_group(), True, "endingGroup", self.ending_group),
        ):
            if is_at_group and needs_key and group is None:
                problems.append(f"option '{offsets}=group' needs '{key}', whose offsets are to be used")
            if group is not None and not is_at_group:
                problems.append(f"option '{key}' needs '{offsets}=group'")
        return problems
