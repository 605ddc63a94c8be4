"""Runs that are cut while they go on, and whose ranges arrive in pieces, against the same runs without
a cut and with their whole range; what can vary is drawn.

``CUT_SEED`` repeats an earlier run; a failure names its seed.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.latencies import LatencyHistogram
from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.orderly import OrderlyFinish, OrderlySettings
from pyspark_rocketmq.consume.part import QueueAck, joined
from pyspark_rocketmq.consume.turns import RangeInstructions
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
    OPEN_END,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageExt,
    QueueRange,
    QueueState,
)
from pyspark_rocketmq.source.schema import Arrival, EndReason, RangeEnd
from pyspark_rocketmq.stored_values import RetryCounts, RetrySpan
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.range_instructions import GivenUpWhen
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
    to_listener: LatencyHistogram


class Schedule:
    """An orderly range whose listener answers the same whether it is cut or not."""

    def __init__(
        self,
        seed: int,
        may_cut: Callable[[], bool],
        pieces: random.Random | None = None,
        *,
        may_be_dry: bool = False,
    ) -> None:
        """With ``pieces`` the range arrives in pieces; if it may be dry, no run lasts as long as 60 s."""
        self.draw = random.Random(seed)
        self.may_cut = may_cut
        self.pieces = pieces
        self.may_be_dry = may_be_dry
        self.now_s = 1_000.0
        self.calls: list[tuple[int, ...]] = []
        self.dead: list[int] = []
        self.taken: list[Consumed] = []
        end = self.draw.randint(1, 30)
        self.offsets = offsets = sorted(self.draw.sample(range(end), self.draw.randint(0, end)))
        self.planned = QueueRange(QUEUE, self.state(end), end)
        self.failures = self.draw.choice([0.0, 0.2, 0.6])
        self.ended = self.draw.choice([EndReason.WHOLE, EndReason.FULL])
        self.batch = self.draw.randint(1, 4)
        self.given_up_at = self.draw.choice([1_000, 1_000, self.draw.randint(0, 30)])
        self.messages = [message_at(offset)._replace(store_timestamp=1_000_000) for offset in offsets]
        self.coming = self.messages if pieces is not None else []
        self.arrived, self.needed = 0, self.batch
        """Numbers of messages that have arrived, and that must have for the running and the next delivery."""
        self.arrivals: deque[Arrival] | None = None if pieces is None else deque()
        self.has_ended = pieces is None
        self.run = OrderlyRun(
            self.planned,
            [] if pieces is not None else self.messages,
            listener=self.listener,
            output=OUTPUT,
            settings=OrderlySettings(
                consume_message_batch_max_size=self.batch,
                max_reconsume_times=self.draw.choice([-1, 0, 1, 3]),
            ),
            ended=self.ended,
            now_s=lambda: self.now_s,
            dead_letters=self.send,
            instructions=GivenUpWhen(lambda: len(self.calls) // 2 >= self.given_up_at),
            arrivals=self.arrivals,
        )

    def state(self, end: int) -> QueueState:
        first, times = self.draw.randint(0, end), self.draw.randint(0, 2)
        spans = (
            [RetrySpan(first, self.draw.randint(first + 1, end + 3), 1)] if self.draw.random() < 0.5 else []
        )
        if times and (not spans or first):
            spans.insert(0, RetrySpan(0, 1, times))
        elif spans and not first:
            times = 1
        return QueueState(0, 1, times, None, RetryCounts.of(spans, 0, times))

    def arrive(self) -> None:
        """Have any number of pieces arrive; enough for the next delivery if the run must not be dry."""
        if (pieces := self.pieces) is None:
            return
        while not self.has_ended and (
            (not self.may_be_dry and self.arrived < self.needed) or pieces.random() < 0.4
        ):
            self.arrive_once(pieces.randint(0, len(self.coming)), pieces.random() < 0.5)

    def arrive_once(self, size: int, may_end: bool) -> None:
        piece, self.coming = self.coming[:size], self.coming[size:]
        self.arrived += len(piece)
        self.has_ended = may_end and not self.coming
        end = RangeEnd(planned=self.planned, rows=0, reason=self.ended) if self.has_ended else None
        self.run.extend(Arrival(self.planned, [piece], end))

    def consume(self, for_s: float) -> None:
        """Consume as a task does that gets the range as a whole."""
        ends_s, calls = self.now_s + for_s, len(self.calls)
        self.run.consume(for_s)
        while self.run.is_dry and (len(self.calls) == calls or self.now_s < ends_s):
            self.arrive()
            self.run.consume(ends_s - self.now_s)

    def cut(self) -> None:
        if self.may_cut() and (taken := self.run.cut()) is not None:
            self.taken.append(taken)

    def listener(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        self.cut()
        self.calls.append(tuple(message.queue_offset for message in messages))
        self.calls.append(tuple(message.reconsume_times for message in messages))
        self.needed = max(self.needed, self.offsets.index(messages[0].queue_offset) + 2 * self.batch)
        for _ in messages:
            context.emit(step=len(self.calls))
        self.cut()
        self.arrive()
        self.now_s += self.draw.choice([0.25, 0.5, 0.75 if self.may_be_dry else 31.0])
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
            self.arrive()
            self.consume(self.draw.choice([0.0, 1.0, 1e9]))
            self.cut()
            if run.finished not in {None, OrderlyFinish.SUSPENDED}:
                break
            self.now_s += run.pause_left_s()
        while not self.has_ended:
            self.arrive_once(len(self.coming), True)
        run.stop()
        self.cut()
        last = run.last(None if self.pieces else RangeEnd(planned=self.planned, rows=0))
        assert run.cut() is None, "a cut after the end"
        ack = joined_ack([*self.taken, last])
        assert ack.latencies.ages.messages == ack.latencies.to_listener.messages <= ack.consumed
        return Result(self.calls, self.dead, rows_of([*self.taken, last]), ack, ack.latencies.to_listener)


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


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("may_be_dry", [False, True])
@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_an_orderly_run_that_arrives_in_pieces_gives_what_it_gives_as_a_whole(
    count: int, may_be_dry: bool
) -> None:
    """D1-D7, H1: the same calls, rows and end, cut or not; the 60 s begin again only after a dry moment."""
    for seed in range(SEED, SEED + count):
        whole = Schedule(seed, lambda: False, may_be_dry=may_be_dry).result()
        draw = random.Random(seed)
        share = draw.choice([0.0, 0.3])
        cut = Schedule(seed, lambda: draw.random() < share, draw, may_be_dry=may_be_dry)  # noqa: B023
        result = cut.result()
        assert result.calls == whole.calls, f"CUT_SEED={seed}"
        assert result == whole, f"CUT_SEED={seed}"


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


@pytest.mark.parametrize("is_early", [False, True])
def test_the_statistics_of_pulls_come_with_the_cuts(is_early: bool) -> None:
    """D11: a range that lasts for hours is pulled all the time; together they are those of its end."""
    planned = QueueRange.between(QUEUE, 0, 3)
    run = OrderlyRun(
        planned,
        [],
        listener=lambda *_: SUCCESS,
        output=OUTPUT,
        settings=OrderlySettings(),
        now_s=lambda: 50.0,
        arrivals=deque(),
    )
    whole = RangeEnd(planned=planned, rows=3, pulls=5, pull_ms=21.0)
    seen = []
    for offset, pulls, pull_ms in ((0, 1, 2.0), (1, 4, 20.0), (2, 5, 21.0)):
        reading = ConsumeMetrics(pulled=offset + 1, pulls=pulls, pull_ms=pull_ms)
        end = whole if offset == 2 and not is_early else None
        run.extend(Arrival(planned, [[message_at(offset)]], end, reading=reading))
        run.consume()
        if offset < 2 and (cut := run.cut()) is not None:
            seen.append(cut.ack)
    seen.append(run.last().ack)

    assert [ack.metrics[-3:] for ack in seen] == [(1, 1, 2.0), (1, 3, 18.0), (1, 1, 1.0)]
    assert reduce(joined, seen).metrics[-3:] == whole.metrics[-3:]


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

    def __init__(self, seed: int, *, in_pieces: bool = False) -> None:
        self.draw = draw = random.Random(seed)
        self.arrivals: deque[Arrival] | None = deque() if in_pieces else None
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
                [] if self.arrivals is not None else self.messages,
                listener=self.listener,
                output=OUTPUT,
                settings=self.settings,
                arrivals=self.arrivals,
                workers=workers,
                pool=pool,
                send_back=self.send,
                clock=SystemClock(),
            )
            pulling = threading.Thread(target=self.arrive)
            pulling.start()
            run.consume()
            pulling.join(PATIENCE_S)
            self.taken.append(run.last(RangeEnd(planned=self.planned, rows=0)))

    @property
    def messages(self) -> list[MessageExt]:
        return [message_at(offset) for offset in self.offsets]

    def arrive(self) -> None:
        if self.arrivals is None:
            return
        left = self.messages
        while left:
            size = self.draw.randint(0, len(left))
            self.run.extend(Arrival(self.planned, [left[:size]]))
            left = left[size:]
        self.run.extend(Arrival(self.planned, end=RangeEnd(planned=self.planned, rows=0)))


@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(10 * PATIENCE_S)
@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_concurrent_run_that_is_cut_gives_each_row_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch, in_pieces: bool
) -> None:
    """E1-E6, H1"""
    monkeypatch.setattr("pyspark_rocketmq.consume.concurrent.SEND_BACK_PAUSE_S", 0.01)
    cuts = 0
    for seed in range(SEED, SEED + 200):
        one = Concurrent(seed, in_pieces=in_pieces)
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


class Reports(RangeInstructions):
    """Counts the reports of something to commit."""

    def __init__(self) -> None:
        self.count = 0

    def settled(self) -> None:
        self.count += 1


def test_offsets_that_a_filter_passes_over_are_reported_and_cut() -> None:
    """A4: otherwise the group's lag grows until the batch ends."""
    planned, reports = QueueRange(QUEUE, QueueState(5, 1), OPEN_END), Reports()
    run = OrderlyRun(
        planned,
        [],
        listener=lambda messages, context: SUCCESS,
        output=OUTPUT,
        settings=OrderlySettings(),
        now_s=lambda: 1_000.0,
        instructions=reports,
        arrivals=deque(),
    )
    cuts = []
    for reached in (5, 10, 20, 30):
        run.extend(Arrival(planned, reached=reached))
        run.consume(1.0)
        if reached >= 20:
            cuts.append((reports.count, run.cut()))

    assert [count for count, _ in cuts] == [1, 2]
    acks = [taken.ack for _, taken in cuts if taken is not None]
    assert [(ack.start, ack.state.next_offset, ack.consumed) for ack in acks] == [(5, 20, 0), (20, 30, 0)]
