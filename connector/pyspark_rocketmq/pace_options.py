"""The options of the source that say how much is read at once, from whom and how soon, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark_rocketmq.option_parsers import duration_ms, int_between, one_of
from pyspark_rocketmq.option_set import read_option, stream_option
from pyspark_rocketmq.position_options import PositionOptions

DEFAULT_IN_FLIGHT_BYTES: Final = 64 << 20
_DEFAULT_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000


class ReadFrom(StrEnum):
    """Which machines of a broker name messages are pulled from."""

    SUGGESTED = "suggested"
    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PaceOptions(PositionOptions):
    """How much is read at once, from whom and how soon."""

    max_offsets_per_trigger: int | None = stream_option(
        "maxOffsetsPerTrigger",
        parse=int_between(1, 2**62),
        default=None,
        unit="messages",
        doc="Upper bound of one micro-batch, shared among the queues in proportion to their backlog; "
        "every queue with a backlog gets at least one.",
    )
    max_bytes_per_trigger: int | None = stream_option(
        "maxBytesPerTrigger",
        parse=int_between(1, 2**62),
        default=None,
        unit="bytes",
        doc="About so many bytes, as stored, in one micro-batch, shared as `maxOffsetsPerTrigger` is; every queue with a "
        "backlog gets at least one message. Sizes are estimated from a pull per topic and broker at each plan, so that a "
        "batch may be larger or smaller. Not with `consumerGroup`, which has `pullThresholdSizeForQueue`.",
    )
    min_offsets_per_trigger: int | None = stream_option(
        "minOffsetsPerTrigger",
        parse=int_between(1, 2**62),
        default=None,
        unit="messages",
        doc="Wait with the next micro-batch until there are so many, but no longer than `maxTriggerDelay`. The first "
        "micro-batch after a start does not wait, and none of `availableNow`. Not with `consumerGroup`, whose retries must "
        "not wait.",
    )
    max_trigger_delay_ms: int | None = stream_option(
        "maxTriggerDelay",
        parse=duration_ms,
        default=None,
        default_text="15m",
        doc="How long `minOffsetsPerTrigger` may wait after the last micro-batch was planned, such as `30s`, `500ms`, `15m`.",
    )
    min_partitions: int | None = read_option(
        "minPartitions",
        parse=int_between(1, 1_000_000),
        default=None,
        default_text="one per queue",
        unit="tasks",
        doc="About how many tasks read at least: the ranges of long queues are split, in proportion to their length, so "
        "that one queue too is read by many tasks. Not with `consumerGroup`, which reads a queue in order.",
    )
    max_records_per_partition: int | None = read_option(
        "maxRecordsPerPartition",
        parse=int_between(1, 2**62),
        default=None,
        unit="messages",
        doc="Offsets that one task reads at most; longer ranges are split. Not with `consumerGroup`.",
    )
    pull_batch_size: int = read_option(
        "pullBatchSize",
        parse=int_between(1, 1024),
        default=32,
        unit="messages",
        doc="Messages asked for in one pull. A broker gives at most 32 unless "
        "`maxTransferCountOnMessageInMemory` was raised there.",
    )
    pulls_in_flight: int = read_option(
        "pullsInFlight",
        parse=int_between(1, 256),
        default=16,
        unit="requests",
        doc="Pulls under way at once on a task's connection to its broker.",
    )
    max_in_flight_bytes: int = read_option(
        "maxInFlightBytes",
        parse=int_between(1 << 20, 1 << 40),
        default=DEFAULT_IN_FLIGHT_BYTES,
        unit="bytes",
        doc="Stored bytes that a task asks for or holds before they are decoded, over all its pulls; one pull always may be "
        "out, however large its answer.",
    )
    read_from: ReadFrom = read_option(  # noqa: RUF009 - declares the field
        "readFrom",
        parse=one_of(ReadFrom),
        default=ReadFrom.SUGGESTED,
        default_text="suggested",
        doc="Whom messages are pulled from: `suggested`, the master until it suggests a slave, as Java's consumers; `master` "
        "alone; `slave`, if there is one, to spare the master. What a slave does not have yet is read from the master. Where "
        "the queues begin and end is always asked of the master.",
    )
    route_refresh_ms: int = stream_option(
        "routeRefreshMs",
        parse=int_between(1, 3_600_000),
        default=30_000,
        unit="ms",
        doc="How long it may take until new queues, brokers and, with `topicPattern`, topics are found; Java's "
        "`pollNameServerInterval`.",
    )

    def trigger_delay_ms(self) -> int:
        """How long a plan may wait for ``minOffsetsPerTrigger``."""
        return _DEFAULT_TRIGGER_DELAY_MS if self.max_trigger_delay_ms is None else self.max_trigger_delay_ms

    def pace_problems(self) -> list[str]:
        """Bounds that contradict each other."""
        problems = []
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            problems.append(
                f"option 'minOffsetsPerTrigger' is {least}, above 'maxOffsetsPerTrigger', which is {most}"
            )
        if least is None and self.max_trigger_delay_ms is not None:
            problems.append("option 'maxTriggerDelay' needs 'minOffsetsPerTrigger': nothing else waits")
        return problems
