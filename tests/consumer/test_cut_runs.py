"""Runs that are cut while they go on, against the same runs without a cut; what can vary is drawn.

``CUT_SEED`` repeats an earlier run; a failure names its seed.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.orderly import OrderlyFinish, OrderlySettings
from pyspark_rocketmq.consume.part import QueueAck, joined
from pyspark_rocketmq.consumer.engine.call_pool import CallPool
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentRun
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.calls import workers_for
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from pyspark_rocketmq.listeners.row_buffer import batches_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageExt,
    QueueRange,
    QueueState,
)
from pyspark_rocketmq.source.schema import EndReason, RangeEnd
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.wait import PATIENCE_S

SEED = int(os.environ.get("CUT_SEED", random.SystemRandom().getrandbits(32)))
SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
DONE = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
OUTPUT = OutputColumns.of(StructType().add("step", "long"))


class Result(NamedTuple):
    calls: list[tuple[int, ...]]
    dead: list[int]
    rows: list[dict[str, Any]]
    ack: QueueAck


class Schedule:
    """An orderly range whose listener answers the same whether it is cut or not."""

    def __init__(self, seed: int, may_cut: Callable[[], bool]) -> None:
        self.draw = random.Random(seed)
        self.may_cut = may_cut
        self.now_s = 1_000.0
        self.calls: list[tuple[int, ...]] = []
        self.dead: list[int] = []
        self.taken: list[Consumed] = []
        end = self.draw.randint(1, 30)
        offsets = sorted(self.draw.sample(range(end), self.draw.randint(0, end)))
        self.planned = QueueRange(QUEUE, QueueState(0, epoch=1, reconsume_times=self.draw.randint(0, 2)), end)
        self.failures = self.draw.choice([0.0, 0.2, 0.6])
        self.ended = self.draw.choice([EndReason.WHOLE, EndReason.FULL])
        self.run = OrderlyRun(
            self.planned,
            [message_at(offset) for offset in offsets],
            listener=self.listener,
            output=OUTPUT,
            settings=OrderlySettings(
                consume_message_batch_max_size=self.draw.randint(1, 4),
                max_reconsume_times=self.draw.choice([-1, 0, 1, 3]),
            ),
            ended=self.ended,
            now_s=lambda: self.now_s,
            dead_letters=self.send,
        )

    def cut(self) -> None:
        if self.may_cut() and (taken := self.run.cut()) is not None:
            self.taken.append(taken)

    def listener(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        self.cut()
        self.calls.append(tuple(message.queue_offset for message in messages))
        self.calls.append(tuple(message.reconsume_times for message in messages))
        for _ in messages:
            context.emit(step=len(self.calls))
        self.cut()
        self.now_s += self.draw.choice([0.25, 0.5, 31.0])
        context.auto_commit = self.draw.random() < 0.5
        context.suspend_current_queue_time_millis = 250
        if self.draw.random() < self.failures:
            answer = self.draw.choice([SUSPEND, ConsumeOrderlyStatus.ROLLBACK, None, ValueError("no")])
        else:
            answer = self.draw.choice([SUCCESS, SUCCESS, ConsumeOrderlyStatus.COMMIT])
        self.cut()
        if isinstance(answer, ValueError):
            raise answer
        return answer

    def send(self, message: MessageExt) -> None:
        self.cut()
        if self.draw.random() < 0.2:
            raise RocketMQError("no broker takes it")
        self.dead.append(message.queue_offset)

    def result(self) -> Result:
        run = self.run
        for _ in range(self.draw.randint(1, 40)):
            run.consume(self.draw.choice([0.0, 1.0, 1e9]))
            self.cut()
            if run.finished not in {None, OrderlyFinish.SUSPENDED}:
                break
            self.now_s += run.pause_s()
        run.stop()
        self.cut()
        last = run.last(RangeEnd(planned=self.planned, rows=0))
        assert run.cut() is None, "a cut after the end"
        return Result(self.calls, self.dead, rows_of([*self.taken, last]), joined_ack([*self.taken, last]))


def rows_of(taken: Sequence[Consumed]) -> list[dict[str, Any]]:
    return [
        row for each in taken for batch in batches_of(each.rows, OUTPUT.rows) for row in batch.to_pylist()
    ]


def joined_ack(taken: Sequence[Consumed]) -> QueueAck:
    for before, after in pairwise(taken):
        assert (before.ack.state.next_offset, before.ack.state.epoch) == (
            after.ack.start,
            after.ack.state.epoch,
        )
    for each in taken[:-1]:
        assert each.ack.counts, "a cut without anything to commit"
    for each in taken:
        offsets = [row["queueOffset"] for row in rows_of([each])]
        assert all(each.ack.start <= offset < each.ack.state.next_offset for offset in offsets)
    return reduce(joined, (each.ack for each in taken))


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_an_orderly_run_that_is_cut_gives_what_it_gives_without_cuts(count: int) -> None:
    """D1-D7, H1: the same calls, rows and end; also when cut while the listener or a broker is called."""
    cuts = 0
    for seed in range(SEED, SEED + count):
        whole = Schedule(seed, lambda: False).result()
        draw = random.Random(seed)
        share = draw.choice([0.05, 0.3, 1.0])
        schedule = Schedule(seed, lambda: draw.random() < share)  # noqa: B023 - used within the round
        result = schedule.result()
        cuts += len(schedule.taken)
        assert result.calls == whole.calls, f"CUT_SEED={seed}"
        assert result == whole, f"CUT_SEED={seed}"
    assert cuts > count


@pytest.mark.parametrize("delay", [False, True])
def test_a_queue_that_stands_still_may_go_on_at_once_after_a_cut(delay: bool) -> None:
    """D4: only at the end of its range it is known that the listener waits for more before it commits."""
    draw = iter([SUSPEND, SUCCESS])
    taken: list[Consumed | None] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        taken.append(run.cut())
        context.auto_commit = False
        return next(draw)

    now_s = 50.0
    planned = QueueRange.between(QUEUE, 0, 1)
    run = OrderlyRun(
        planned,
        [message_at(0)],
        listener=listener,
        output=OUTPUT,
        settings=OrderlySettings(),
        now_s=lambda: now_s,
        wall_s=lambda: now_s + 100.0,
    )
    run.consume()
    now_s = 51.0 + delay
    run.consume()
    [first, second] = taken
    assert first is None
    assert second is not None
    assert (second.ack.failed, second.ack.state.suspended_until_s) == (1, now_s + 100.0)
    assert run.cut() is None
    assert run.last(RangeEnd(planned=planned, rows=1)).ack.state.suspended_until_s is None


def test_a_suspended_run_is_cut_with_its_suspension() -> None:
    """D3, D4"""
    planned = QueueRange.between(QUEUE, 0, 2)
    run = OrderlyRun(
        planned,
        [message_at(0), message_at(1)],
        listener=lambda messages, _: SUSPEND if messages[0].queue_offset else SUCCESS,
        output=OUTPUT,
        settings=OrderlySettings(suspend_current_queue_time_millis=2_000),
        now_s=lambda: 50.0,
        wall_s=lambda: 150.0,
    )
    run.consume()
    taken = run.cut()

    assert taken is not None
    state = taken.ack.state
    assert (taken.ack.finished, state.next_offset, state.reconsume_times, state.suspended_until_s) == (
        "SUSPENDED",
        1,
        1,
        152.0,
    )


class Concurrent:
    """A concurrent range whose listener is called by several threads, and which another thread cuts."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        end = draw.randint(1, 60)
        offsets = sorted(draw.sample(range(end), draw.randint(0, end)))
        self.failing = {offset for offset in offsets if draw.random() < 0.2}
        self.refused = {offset for offset in self.failing if draw.random() < 0.1}
        self.offsets, self.planned = offsets, QueueRange.between(QUEUE, 0, end, epoch=1)
        self.settings = ConcurrentSettings(
            consume_message_batch_max_size=draw.randint(1, 3), consume_thread_max=4
        )
        self.sent: set[int] = set()
        self.taken: list[Consumed] = []
        self.cutting = threading.Lock()

    def listener(self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        for message in messages:
            context.emit(step=message.queue_offset)
        self.cut()
        context.ack_index = (
            next(
                (at for at, message in enumerate(messages) if message.queue_offset in self.failing),
                len(messages),
            )
            - 1
        )
        return DONE

    def send(self, message: MessageExt, _: int) -> None:
        if message.queue_offset in self.refused:
            self.refused.discard(message.queue_offset)
            raise RocketMQError("no broker takes it")
        self.sent.add(message.queue_offset)

    def cut(self) -> None:
        # One thread at a time, as in a task.
        if self.cutting.acquire(blocking=False):
            try:
                if (taken := self.run.cut()) is not None:
                    self.taken.append(taken)
            finally:
                self.cutting.release()

    def consume(self) -> None:
        pool = CallPool(4)
        with closing(pool), closing(workers_for(self.listener, pool.threads)) as workers:
            self.run = run = ConcurrentRun(
                self.planned,
                [message_at(offset) for offset in self.offsets],
                listener=self.listener,
                output=OUTPUT,
                settings=self.settings,
                workers=workers,
                pool=pool,
                send_back=self.send,
                clock=SystemClock(),
            )
            run.consume()
            self.taken.append(run.last(RangeEnd(planned=self.planned, rows=0)))


@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(10 * PATIENCE_S)
def test_a_concurrent_run_that_is_cut_gives_each_row_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E1-E6, H1"""
    monkeypatch.setattr("pyspark_rocketmq.consume.concurrent.SEND_BACK_PAUSE_S", 0.01)
    cuts = 0
    for seed in range(SEED, SEED + 200):
        one = Concurrent(seed)
        one.consume()
        ack, rows = joined_ack(one.taken), rows_of(one.taken)
        done = [offset for offset in one.offsets if offset not in one.sent]
        assert [row["queueOffset"] for row in rows] == done, f"CUT_SEED={seed}"
        assert (ack.start, ack.state.next_offset, ack.finished) == (0, one.planned.end, "EXHAUSTED")
        assert (ack.consumed, ack.read, ack.sent_back) == (
            len(one.offsets),
            len(one.offsets),
            len(one.sent),
        ), f"CUT_SEED={seed}"
        cuts += len(one.taken) - 1
    assert cuts > 200
