"""Delayed messages, by delay level (``ScheduleMessageService``) or timer (``TimerMessageStore``).

Until their time they are in the broker's own topic. A delivered message keeps its producer's delay
properties, and REAL_TOPIC and REAL_QID, as recorded from a real broker (golden fact 3).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from broker_sim.layout import MessageRun
from broker_sim.replies import Refused
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.wire.codes import ResponseCode

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"

_TIMER_PRECISION_MS = 1000
_LONG = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_TIMER_PROPERTIES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
"""Properties of timers, in the order in which the broker checks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponement:
    """The queue where a delayed message waits, how long it waits, and its properties meanwhile."""

    topic: str
    queue_id: int
    wait_s: float
    properties: dict[str, str]
    timer_out_ms: int | None = None
    """Value of a timer's property TIMER_OUT_MS, in milliseconds since the epoch: the last whole second before
    its delivery time. None for a delay level."""


def delay_level(properties: Mapping[str, str], levels: int) -> int:
    """Return the delay level that a producer requested in property DELAY.

    Return 0 without a valid number, and ``levels``, the highest level, for any number above it.
    """
    text = properties.get("DELAY", "0")
    return min(int(text), levels) if text.isdecimal() else 0


def postponement(
    topic: str, queue_id: int, properties: Mapping[str, str], *, settings: BrokerSettings, now_ms: int
) -> Postponement | None:
    """Return the postponement of a message for this queue; None if it is stored there immediately.

    Raises:
        Refused: the timer is switched off, too far away, or not a number.

    Source: ``HookUtils.handleScheduleMessage``.
    """
    origin = {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
    level = delay_level(properties, len(settings.delay_levels_s))
    if level:
        kept = {name: value for name, value in properties.items() if name not in _TIMER_PROPERTIES}
        return Postponement(
            topic=SCHEDULE_TOPIC,
            queue_id=level - 1,
            wait_s=settings.delay_levels_s[level - 1],
            properties={**kept, "DELAY": str(level), **origin},
        )
    deliver_ms = None if "TIMER_OUT_MS" in properties else _timer(properties, settings, now_ms)
    if deliver_ms is None or deliver_ms <= now_ms:
        return None
    out_ms = (deliver_ms - 1) // _TIMER_PRECISION_MS * _TIMER_PRECISION_MS
    return Postponement(
        topic=TIMER_TOPIC,
        queue_id=0,
        wait_s=(out_ms + _TIMER_PRECISION_MS - now_ms) / 1000,
        properties={**properties, "TIMER_OUT_MS": str(out_ms), **origin},
        timer_out_ms=out_ms,
    )


def _timer(properties: Mapping[str, str], settings: BrokerSettings, now_ms: int) -> int | None:
    """Return the requested delivery time, in milliseconds since the epoch; None if there is none.

    Raises:
        Refused: If timers are switched off, or the time is too far away or not a number.
    """
    name = next((each for each in _TIMER_PROPERTIES if each in properties), None)
    if name is None:
        return None
    if not settings.timer_wheel_enable:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
        )
    longest_ms = settings.timer_max_delay_s * 1000
    text = properties[name]
    # A text that is not a number is refused like a time too far away.
    number = int(text) if _LONG.fullmatch(text) else now_ms + longest_ms + 1
    offset_ms = {"TIMER_DELAY_SEC": now_ms + number * 1000, "TIMER_DELAY_MS": now_ms + number}
    deliver_ms = offset_ms.get(name, number)
    if deliver_ms - now_ms > longest_ms:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{longest_ms}ms; or if set del msg, the delay time should be bigger than the current time",
        )
    return deliver_ms


class DelayedMessages:
    """Messages that wait for their time of delivery; those with the same time keep their order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, MessageRun]] = []
        self._numbers = count()

    def put(self, due_s: float, run: MessageRun) -> None:
        """Keep ``run`` until it is due at the monotonic time ``due_s``."""
        heapq.heappush(self._waiting, (due_s, next(self._numbers), run))

    def take_due(self, now_s: float) -> list[MessageRun]:
        """Remove and return the due messages, the earliest first."""
        due = []
        while self._waiting and self._waiting[0][0] <= now_s:
            due.append(heapq.heappop(self._waiting)[2])
        return due

    def next_due_s(self) -> float | None:
        """Return the monotonic time at which the next message is due; None if none waits."""
        return self._waiting[0][0] if self._waiting else None
