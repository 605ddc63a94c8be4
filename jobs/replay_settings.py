"""The options of job ``replay``."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.settings import parse_location
from pyspark_rocketmq.options.declare import option
from pyspark_rocketmq.options.parsers import MAX_TOPIC_LENGTH, int_between, resource_name
from pyspark_rocketmq.options.read import ReadOptions


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplaySettings(ReadOptions):
    """Options of job ``replay``: those of a batch read, and where the messages go."""

    to_table: str | None = option(
        "toTable",
        parse=parse_location,
        default=None,
        doc="The Delta table to add the messages to that it does not have yet: path or URI; made if missing.",
    )
    to_topic: str | None = option(
        "toTopic",
        parse=resource_name("topic", MAX_TOPIC_LENGTH),
        default=None,
        doc="The topic to send the messages to, in place of toTable.",
    )
    record: str | None = option(
        "record",
        parse=parse_location,
        default=None,
        doc="With toTopic: the Delta table of what was replayed, by which a later run leaves it out: path or URI; made if missing.",
    )
    offsets_per_step: int = option(
        "offsetsPerStep",
        parse=int_between(1, 2**31 - 1),
        default=200_000,
        unit="offsets",
        doc="About how many offsets are read between two commits.",
    )

    def cross_field_problems(self) -> list[str]:
        """One target, and a record for what keeps none itself; nothing that only streams have."""
        problems = ReadOptions.cross_field_problems(self) + self.problems_of_batch()
        if (self.to_table is None) == (self.to_topic is None):
            problems.append("give one of the options 'toTable' and 'toTopic'")
        if (self.to_topic is None) != (self.record is None):
            problems.append(
                "options 'toTopic' and 'record' go together: a topic does not tell what was replayed into it"
            )
        return problems
