"""Arguments of a ``PushConsumer`` and of ``pyspark-rocketmq consume`` that the source lacks.

The source has ``maxOffsetsPerTrigger``, too, but with another default.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from numbers import Integral, Real
from typing import Final

from pyspark_rocketmq.model import ConsumeFromWhere, OrderlyBy, OrderlyEngineKind
from pyspark_rocketmq.options.declare import OptionSet, OptionSpec, option
from pyspark_rocketmq.options.parsers import (
    ArgumentRule,
    boolean,
    duration_ms,
    int_between,
    iso_time,
    one_of,
    parses,
)

UNLIMITED: Final = -1
"""``maxReconsumeTimes`` of an orderly consumer that never gives a message up."""
DEFAULT_MAX_RECONSUME_TIMES: Final = 16
"""Limit of a concurrent consumer that sets none (``DefaultMQPushConsumerImpl.getMaxReconsumeTimes``)."""

_SHORTEST_COMMIT_INTERVAL_MS: Final = 50
_SHORTEST_REAL_TIME_MS: Final = 5_000


def consume_time(text: str) -> datetime:
    """Parse a ``consumeTimestamp``, in ISO 8601 or as ``yyyyMMddHHmmss``.

    Without a zone, a time in ISO 8601 is in UTC, and one as ``yyyyMMddHHmmss`` is in this machine's zone.

    Raises:
        ValueError: If it is no such time; the message is the end of a sentence.

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
    """Parser of the strings that :func:`consume_time` reads; returns the string without outer blanks."""
    consume_time(text)
    return text.strip()


def commit_interval_ms(text: str) -> int:
    """Parse a ``commitInterval``; return it in milliseconds.

    Raises:
        ValueError: If it is not a duration, or below 50 ms; the message is the end of a sentence.
    """
    interval_ms = duration_ms(text)
    if interval_ms < _SHORTEST_COMMIT_INTERVAL_MS:
        raise ValueError(
            f"is shorter than {_SHORTEST_COMMIT_INTERVAL_MS} ms; each commit makes a new version of the sink "
            "and of the offset store"
        )
    return interval_ms


def real_time_ms(text: str) -> int:
    """Parse the length of one batch of the trigger ``realTime``; return it in milliseconds.

    Raises:
        ValueError: If it is not a duration, or below 5 s; the message is the end of a sentence.
    """
    lasts_ms = duration_ms(text)
    if lasts_ms < _SHORTEST_REAL_TIME_MS:
        raise ValueError(
            f"is shorter than {_SHORTEST_REAL_TIME_MS // 1000} s; this is the length of a batch, and between "
            "two batches nothing is consumed for a moment. Results are committed within a batch, at every "
            "commit_interval"
        )
    return lasts_ms


@parses("duration, 50 ms or more")
def parse_commit_interval(text: str) -> str:
    """Parser of strings that :func:`commit_interval_ms` reads; returns the string without outer blanks."""
    commit_interval_ms(text)
    return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumerOptions(OptionSet):
    """Options of a consumer: its start, its listener's calls, failed messages, commits and engine.

    The arguments of ``PushConsumer``, the settings of the engines and the options of commands take their
    defaults and bounds from here.
    """

    consume_from_where: ConsumeFromWhere = option(
        "consumeFromWhere", one_of(ConsumeFromWhere), ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    ).doc("Where a group without stored progress begins.")
    consume_timestamp: str | None = option(
        "consumeTimestamp", parse_consume_timestamp, None, default_text="half an hour ago"
    ).doc(
        "The time for CONSUME_FROM_TIMESTAMP. A time without a zone is local time of the driver's machine, "
        "as in Java; in ISO form it is UTC."
    )
    consume_message_batch_max_size: int = option(
        "consumeMessageBatchMaxSize", int_between(1, 1024), 1, unit="messages"
    ).doc("Maximum number of messages in one call of the listener.")
    max_reconsume_times: int = option(
        "maxReconsumeTimes",
        int_between(UNLIMITED, 2**31 - 1),
        UNLIMITED,
        default_text=f"-1: no limit, or {DEFAULT_MAX_RECONSUME_TIMES} for a concurrent listener",
        argument=ArgumentRule(
            (Integral,), lambda times: bool(times >= UNLIMITED), "must be -1 (no limit), 0 or more"
        ),
    ).doc("How often a message that fails is delivered again before it goes to the group's dead letters.")
    suspend_current_queue_time_millis: int = option(
        "suspendCurrentQueueTimeMillis",
        int_between(10, 30_000),
        1_000,
        unit="ms",
        # As in Java, a value outside the bounds counts as the nearest one inside.
        argument=ArgumentRule((Integral,)),
    ).doc("Pause of a queue after the listener gave its messages back.")
    consume_thread_max: int = option("consumeThreadMax", int_between(1, 1000), 20, unit="calls").doc(
        "Maximum number of listener calls at the same time in one task. Calls of an orderly listener overlap "
        "only for different queues, or for different keys with `orderlyBy=sharding_key`."
    )
    consume_timeout_s: float = option(
        "consumeTimeoutS",
        int_between(1, 86_400),
        900,
        unit="s",
        argument=ArgumentRule((Real,), lambda seconds: bool(seconds > 0), "must be more than 0"),
    ).doc(
        "A listener call that has lasted this long counts as TIME_OUT for hooks. If the listener is "
        "concurrent, the messages of the call are then sent back to the broker, to be consumed again."
    )
    # The default bounds the memory of a task, which holds a queue's share of the micro-batch.
    max_offsets_per_trigger: int = option(
        "maxOffsetsPerTrigger",
        int_between(1, 2**62),
        100_000,
        unit="messages",
        # The option of the source checks its bounds.
        argument=ArgumentRule((Integral,)),
    ).doc("Maximum number of messages in a micro-batch; see [memory](how-to/tuning.md#memory).")
    orderly_by: OrderlyBy = option(
        "orderlyBy",
        one_of(OrderlyBy),
        OrderlyBy.QUEUE,
        argument=ArgumentRule(
            (str,), lambda kind: kind in tuple(OrderlyBy), f"is none of {', '.join(OrderlyBy)}"
        ),
    ).doc(
        "Order in which an orderly listener gets messages. `queue`: all messages of a queue one after the "
        "other. `sharding_key`: only messages of a queue that have the same sharding key; calls for "
        "different keys overlap ([tuning](how-to/tuning.md#order-by-sharding-key))."
    )
    commit_interval: str | None = option("commitInterval", parse_commit_interval, None).doc(
        "How often a running batch commits what it has consumed so far, such as `500ms` or `1 second`. By "
        "default a micro-batch commits once, at its end, and a batch in real time every 500 ms. If Spark "
        "writes the sink's table, each commit needs a free task slot. "
        "See [tuning](how-to/tuning.md#commits-within-a-micro-batch)."
    )
    mirror_offsets: bool = option("mirrorOffsets", boolean, True).doc(
        "Show each committed offset to the brokers too, for mqadmin, dashboards and Java members of the "
        "group."
    )
    orderly_engine: OrderlyEngineKind = option(
        "orderlyEngine",
        one_of(OrderlyEngineKind),
        OrderlyEngineKind.DIRECT,
        argument=ArgumentRule(
            (str,),
            lambda kind: kind in tuple(OrderlyEngineKind),
            f"is none of {', '.join(OrderlyEngineKind)}",
        ),
    ).doc(
        "Where Spark calls an orderly listener: `direct`, in the task that reads the queue; `state`, after a "
        "shuffle by queue, with Spark's state."
    )


CONSUMER_DEFAULTS: Final = ConsumerOptions()
"""The declared default of each option."""


def consumer_bounds(name: str) -> tuple[int, int]:
    """Return the least and the largest value of the option in field ``name``."""
    spec: OptionSpec = next(field.metadata["spec"] for field in fields(ConsumerOptions) if field.name == name)
    assert spec.parse.bounds is not None
    return spec.parse.bounds


def check_bounds(settings: object, *names: str) -> None:
    """Check fields of an engine's settings by the bounds of the options that have the same ``names``.

    Raises:
        ValueError: If a field's value is out of the option's bounds.
    """
    for name in names:
        (low, high), value = consumer_bounds(name), getattr(settings, name)
        if not low <= value <= high:
            first, *others = name.split("_")
            key = "".join([first, *map(str.capitalize, others)])
            raise ValueError(f"{key} must be from {low} to {high}, not {value}.")
