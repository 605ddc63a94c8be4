"""Latencies of a range's messages: from the moments of their stores and deliveries, as runs note them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.latencies import LONGEST_MS, LatencyHistogram
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consumer.engine.call_pool import CallPool
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentRun
from pyspark_rocketmq.consumer.engine.delivery_times import DeliveryTimes, EachDeliveryTimes, histogram_of
from pyspark_rocketmq.consumer.engine.keyed import KeyedRun
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun
from pyspark_rocketmq.listeners.calls import workers_for
from pyspark_rocketmq.listeners.messages import ArrowMessages
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageExt, QueueRange
from pyspark_rocketmq.source.schema import Arrival, RangeEnd
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import QUEUE, message_at

OUTPUT = OutputColumns.of(StructType().add("step", "long"))
WALL_S = 1_700_000_000.0
AHEAD_S = WALL_S - 50.0
"""Lead of the brokers' clock over that of the runs."""


def stored(offset: int, at_s: float) -> MessageExt:
    """A message stored ``at_s`` seconds of the runs' clock."""
    return message_at(offset)._replace(store_timestamp=round((at_s + AHEAD_S) * 1000))


@given(st.lists(st.integers(-10, 2 * LONGEST_MS), min_size=1))
def test_latencies_are_counted_in_columns_as_one_by_one(latencies: list[int]) -> None:
    """D11"""
    assert histogram_of(np.array(latencies, np.int64)) == LatencyHistogram.of(latencies)


def test_a_delivery_stands_for_those_right_after_it_and_acks_divide_messages() -> None:
    """D11: a message stored by a clock that is ahead counts as 0; in rows and as objects."""
    messages = [stored(offset, 50.0 + offset) for offset in range(6)]
    times = DeliveryTimes([ArrowMessages.of(messages[:3]).batch, messages[3:5]])
    times.began(0, 50.5)
    times.began(3, 53.25)
    times.extend([messages[5:]])

    first = times.take(2, now_s=60.0, wall_s=WALL_S + 10.0)
    rest = times.take(6, now_s=60.5, wall_s=WALL_S + 10.5)

    assert first.to_listener == LatencyHistogram.of([500, 0])
    assert first.ages == LatencyHistogram.of([10_000, 9_000])
    assert rest.to_listener == LatencyHistogram.of([0, 250, 0, 0])
    assert rest.ages == LatencyHistogram.of([8_500, 7_500, 6_500, 5_500])
    assert not times.take(6, now_s=61.0, wall_s=WALL_S + 11.0).ages.counts


def test_a_message_without_a_known_moment_does_not_count() -> None:
    """D11: passed before its first delivery here, or decoded without a store time."""
    messages = [stored(0, 50.0), stored(1, 50.0), stored(2, 50.0)._replace(store_timestamp=0)]
    times = DeliveryTimes([messages])
    times.began(1, 50.003)

    found = times.take(3, now_s=51.0, wall_s=WALL_S + 1.0)

    assert (found.to_listener, found.ages) == (LatencyHistogram.of([3]), LatencyHistogram.of([1_000]))
    assert EachDeliveryTimes([messages]).take(3, now_s=51.0, wall_s=WALL_S + 1.0).facts == []


def run_of(kind: type[OrderlyRun], count: int, listener: Any, clock: FakeClock) -> OrderlyRun:
    planned = QueueRange.between(QUEUE, 0, count)
    run = kind(
        planned,
        [],
        listener=listener,
        output=OUTPUT,
        settings=OrderlySettings(suspend_current_queue_time_millis=1_000),
        now_s=clock.monotonic_s,
        wall_s=lambda: clock.monotonic_s() + AHEAD_S,
        arrivals=deque(),
    )
    for offset in range(count):
        run.extend(Arrival(planned, [[stored(offset, clock.monotonic_s() + offset)]]))
    run.extend(Arrival(planned, end=RangeEnd(planned=planned, rows=0)))
    return run


@pytest.mark.parametrize("kind", [OrderlyRun, KeyedRun])
def test_a_message_counts_once_with_the_delivery_that_passed_it(
    kind: type[OrderlyRun], clock: FakeClock
) -> None:
    """D3, D11: calls last 3 s, messages are stored each second, and the third is given back once."""
    given_back: list[int] = []

    def listener(messages: Sequence[MessageExt], _: object) -> ConsumeOrderlyStatus:
        clock.advance(3.0)
        if messages[0].queue_offset == 2 and not given_back:
            given_back.append(2)
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    run = run_of(kind, 4, listener, clock)
    run.consume()
    cut = run.cut()
    assert cut is not None
    clock.advance(run.pause_left_s())
    run.consume()
    last = run.last()

    assert cut.ack.latencies.to_listener == LatencyHistogram.of([0, 2_000])
    assert cut.ack.latencies.ages == LatencyHistogram.of([9_000, 8_000])
    assert last.ack.latencies.to_listener == LatencyHistogram.of([8_000, 10_000])
    assert last.ack.latencies.ages == LatencyHistogram.of([14_000, 13_000])


def test_concurrent_deliveries_have_latencies_too(clock: FakeClock) -> None:
    """D11, E1"""
    planned = QueueRange.between(QUEUE, 0, 3)
    began_s = clock.monotonic_s()
    ahead_s = clock.now_s() - began_s
    messages = [
        message_at(offset)._replace(store_timestamp=round((began_s + ahead_s) * 1000) - 7 * offset)
        for offset in range(3)
    ]

    def listener(*_: object) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    pool = CallPool(2)
    with closing(pool), closing(workers_for(listener, pool.threads)) as workers:
        run = ConcurrentRun(
            planned, messages, listener=listener, output=OUTPUT, settings=ConcurrentSettings(),
            workers=workers, pool=pool, send_back=lambda *_: None, clock=clock,
        )  # fmt: skip
        run.consume()
        clock.advance(1.0)
        ack = run.last(RangeEnd(planned=planned, rows=3)).ack

    assert ack.consumed == 3
    assert ack.latencies.to_listener == LatencyHistogram.of([0, 7, 14])
    assert ack.latencies.ages == LatencyHistogram.of([1_000, 1_007, 1_014])
