"""The demo's message listener: passes orders on, and fails some of them at their first attempt."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Sequence
from enum import StrEnum

from jobs.demo.orders import STEPS
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt

OUTPUT_SCHEMA = "order_id string, step string, sequence int, reconsume_times int, delivered_ns bigint"
_ONE_IN = 5_000
_PAUSE_MS = 200


class InjectedFailure(StrEnum):
    """How the listener fails."""

    SUSPEND = "SUSPEND"
    EXCEPTION = "EXCEPTION"


class DemoFailure(Exception):
    """Raised on purpose."""


def injected_failure(order_id: str, sequence: int) -> InjectedFailure | None:
    """Which failure, if any, is injected into the first attempt of a step; the same on every machine.

    One order in 5,000 suspends its queue once and another raises once, each at one of its five steps.
    """
    turn, kind = divmod(zlib.crc32(order_id.encode()), _ONE_IN)
    if turn % len(STEPS) != sequence:
        return None
    return {0: InjectedFailure.SUSPEND, 1: InjectedFailure.EXCEPTION}.get(kind)


def on_order(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """Emit one row a message; a failure gives back the whole delivery, and its rows are dropped."""
    for message in messages:
        event = json.loads(message.body)
        if message.reconsume_times == 0:
            failure = injected_failure(event["order_id"], event["sequence"])
            if failure is InjectedFailure.EXCEPTION:
                raise DemoFailure(f"injected at the first attempt of {event['order_id']} {event['step']}")
            if failure is InjectedFailure.SUSPEND:
                context.suspend_current_queue_time_millis = _PAUSE_MS
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        context.emit(
            order_id=event["order_id"],
            step=event["step"],
            sequence=event["sequence"],
            reconsume_times=message.reconsume_times,
            delivered_ns=time.time_ns(),
        )
    return ConsumeOrderlyStatus.SUCCESS
