"""Arguments of a ``PushConsumer``, and of ``pyspark-rocketmq consume``, that the source does not have."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark_rocketmq.model import ConsumeFromWhere, OrderlyEngineKind
from pyspark_rocketmq.options.declare import OptionSet, option
from pyspark_rocketmq.options.parsers import boolean, int_between, iso_time, one_of, parses

MAX_BATCH_SIZE: Final = 1024
MAX_THREADS: Final = 1000
DEFAULT_MAX_OFFSETS_PER_TRIGGER: Final = 100_000
"""Default that bounds the memory of a task, which holds a queue's share of the micro-batch."""


def consume_time(text: str) -> datetime:
    """Parse a ``consumeTimestamp``: ISO 8601 is in UTC by default, other forms in this machine's zone.

    Raises:
        ValueError: With the end of a sentence.

    Source: RocketMQ 5.3.3 ``UtilAll.parseDate``, which reads the machine's zone; zones are this package's
    addition.
    """
    wrong = (
        "is not a time written as yyyyMMddHHmmss, perhaps with a zone (20261122180000+08:00, "
        "20261122100000Z), or as ISO (2026-11-22T10:00, UTC unless it says otherwise)"
    )
    with suppress(ValueError):
        return iso_time(text)
    found = re.fullmatch(r"([0-9]{14})(Z|[+-][0-9]{2}:?[0-9]{2})?", text.strip())
    if found is None:
        raise ValueError(wrong)
    digits, zone = found.groups()
    try:
        if zone is None:
            return datetime.strptime(digits, "%Y%m%d%H%M%S").astimezone()
        return datetime.strptime(digits + zone, "%Y%m%d%H%M%S%z")
    except (ValueError, OverflowError):
        raise ValueError(wrong) from None


@parses("`yyyyMMddHHmmss`, perhaps with a zone: `Z`, `+08:00`; or ISO time")
def parse_consume_timestamp(text: str) -> str:
    """Parser of the texts that :func:`consume_time` reads."""
    consume_time(text)
    return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumerOptions(OptionSet):
    """Options for a consumer's start, the calls of its listener, and the messages that fail."""

    consume_from_where: ConsumeFromWhere = option(
        "consumeFromWhere", one_of(ConsumeFromWhere), ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    ).doc("Where a group without stored progress begins.")
    consume_timestamp: str | None = option(
        "consumeTimestamp", parse_consume_timestamp, None, default_text="half an hour ago"
    ).doc(
        "The time for CONSUME_FROM_TIMESTAMP: local time of the driver's machine (as in Java) unless it "
        "names a zone; ISO: UTC."
    )
    consume_message_batch_max_size: int = option(
        "consumeMessageBatchMaxSize", int_between(1, MAX_BATCH_SIZE), 1, unit="messages"
    ).doc("Most messages the listener gets in one call.")
    max_reconsume_times: int = option(
        "maxReconsumeTimes",
        int_between(-1, 2**31 - 1),
        -1,
        default_text="-1: no limit, or 16 for a concurrent listener",
    ).doc("How often a message that fails is delivered again before it goes to the group's dead letters.")
    suspend_current_queue_time_millis: int = option(
        "suspendCurrentQueueTimeMillis", int_between(10, 30_000), 1_000, unit="ms"
    ).doc("Pause of a queue after the listener gave its messages back.")
    consume_thread_max: int = option("consumeThreadMax", int_between(1, MAX_THREADS), 20, unit="calls").doc(
        "Most calls of the listener at the same time in one task; of an orderly one for different queues."
    )
    consume_timeout_s: int = option("consumeTimeoutS", int_between(1, 86_400), 900, unit="s").doc(
        "From this duration on a listener's call counts as TIME_OUT for hooks; a concurrent one's "
        "messages are sent back then."
    )
    max_offsets_per_trigger: int = option(
        "maxOffsetsPerTrigger", int_between(1, 2**62), DEFAULT_MAX_OFFSETS_PER_TRIGGER, unit="messages"
    ).doc("Most messages of one micro-batch; see [memory](how-to/tuning.md#memory).")
    mirror_offsets: bool = option("mirrorOffsets", boolean, True).doc(
        "Show each committed offset to the brokers too, for mqadmin, dashboards and Java members of the "
        "group."
    )
    orderly_engine: OrderlyEngineKind = option(
        "orderlyEngine", one_of(OrderlyEngineKind), OrderlyEngineKind.DIRECT
    ).doc(
        "How Spark runs an orderly listener: direct, in the task that reads a queue; state, grouped by "
        "queue with Spark's state."
    )
