"""Cost of a permanently suspended queue for the other queues of its consumer."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.cluster import QUEUES
from bench.measure import Result, Spread, Target, load_average
from bench.processor_time import processor_s_by_process, spent_since_s
from bench.session import CORES
from bench.streams import Backlog, real_backlog
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore

_TOPIC = "backlog"
_STUCK = 0
"""Queue id."""
_BODY = b"." * 1024
_LISTENER_BATCH = 32
_BOUND_PERCENT = 2.0
_TIMEOUT_S = 120.0
_SKIPPED = 2
"""Micro-batches of a run that do not count: the first, which starts processes, and the last,
which is smaller.
"""
_SUSPENDED = "suspended"
_WITHOUT = "without it"

_METHOD = """\
{messages:,} messages of 1 KiB in {queues} queues of one real broker; an orderly `PushConsumer` that emits nothing, {listener_batch} messages a
call, Delta offset store, `local[{cores}]`, micro-batches of at most {per_trigger:,} messages.

* *suspended*: the listener answers SUSPEND to every message of one queue and SUCCESS to all others.
* *without it*: the group's offset of that queue is at its end from the beginning, so that there is nothing to read.

Both queries run in one session and take turns: one micro-batch of one, then one of the other, while its peer waits in its batch
listener. A turn is all that a micro-batch takes, its planning and what commits it included. Its peer's turn and the rest of
its own last longer than the suspension of a second, so nearly every micro-batch of the first tries the queue again.
The rate is that of the other {others} queues' messages, the median of a run's {turns} turns, which follow its first
micro-batch. *µs* is processor time, of Spark, its Python workers, the broker and the driver, by message of the others. {rounds} rounds
after one for warming up; the cost is that of the round."""


def run(*, per_trigger: int = 70_000, batches: int = 12, rounds: int = 7) -> Result:
    """Measure ``rounds`` pairs of runs."""
    before = load_average()
    message = Message(topic=_TOPIC, body=_BODY)
    with real_backlog(_TOPIC, lambda _: message, per_trigger=per_trigger, batches=batches) as backlog:
        contest = _Contest(backlog)
        contest.round()
        figures = [contest.round() for _ in range(rounds)]
    cost = Spread.of(100 * (1 - each[_SUSPENDED].rate / each[_WITHOUT].rate) for each in figures)
    extra = Spread.of(100 * (each[_SUSPENDED].spent_us / each[_WITHOUT].spent_us - 1) for each in figures)
    return Result(
        name="suspended",
        title="One suspended queue",
        method=_METHOD.format(
            messages=per_trigger * batches,
            queues=QUEUES,
            others=QUEUES - 1,
            listener_batch=_LISTENER_BATCH,
            cores=CORES,
            per_trigger=per_trigger,
            turns=contest.turns,
            rounds=rounds,
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            *(
                (f"{who}, messages/s", *Spread.of(each[who].rate for each in figures).cells(",.0f"))
                for who in figures[0]
            ),
            ("cost, %", *cost.cells(".1f")),
            *(
                (f"{who}, µs a message", *Spread.of(each[who].spent_us for each in figures).cells(".2f"))
                for who in figures[0]
            ),
            ("more µs, %", *extra.cells(".1f")),
        ),
        targets=(
            Target(
                what="cost of a suspended queue to the others",
                seen=cost,
                bound=_BOUND_PERCENT,
                at_most=True,
                unit="%",
            ),
        ),
        load=(before, load_average()),
    )


def suspend_one_queue(
    messages: Sequence[MessageExt],
    context: ConsumeOrderlyContext,  # noqa: ARG001 - a listener's signature
) -> ConsumeOrderlyStatus:
    """Suspend one queue; do nothing with the other messages."""
    if messages[0].queue_id == _STUCK:
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    return ConsumeOrderlyStatus.SUCCESS


class _Figures(NamedTuple):
    """Figures of one run."""

    rate: float
    """Messages of the other queues per second."""
    spent_us: float
    """Processor time per message of the other queues, in microseconds."""


class _Contest:
    """Both contestants on one topic; every run has a new group and a new checkpoint."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._per_queue = backlog.per_trigger * backlog.batches // QUEUES
        # Less than the backlog has: without the suspended queue the others fill each micro-batch themselves.
        self.turns = self._per_queue * (QUEUES - 1) // backlog.per_trigger - _SKIPPED
        with Producer(backlog.name_servers, producer_group="bench-producer") as producer:
            self._stuck = next(one for one in producer.queues(_TOPIC) if one.queue_id == _STUCK)
        self._numbers = itertools.count()

    def round(self) -> dict[str, _Figures]:
        """Return the figures of each contestant."""
        folder = self._backlog.work / f"round-{next(self._numbers)}"
        with (
            self._playing(folder / "suspended") as suspended,
            self._playing(folder / "without", passed=self._stuck) as without,
        ):
            for _ in range(self.turns):
                suspended.take_turn()
                without.take_turn()
            figures = {_SUSPENDED: suspended.figures(), _WITHOUT: without.figures()}
        shown = "  ".join(f"{who} {each.rate:,.0f}/s {each.spent_us:.2f} µs" for who, each in figures.items())
        print(f"  {shown}  load {load_average()}", flush=True)
        return figures

    @contextmanager
    def _playing(self, folder: Path, *, passed: MessageQueue | None = None) -> Iterator[_Player]:
        """A consumer that has run its first micro-batch; stopped at the end."""
        consumer = self._backlog.consumer(folder, consume_message_batch_max_size=_LISTENER_BATCH)
        player = _Player()
        consumer.register_message_listener(suspend_one_queue, orderly=True, output_schema="step string")
        consumer.register_batch_listener(player.wait_for_turn)
        if passed is not None:
            group = consumer.source_options()["consumerGroup"]
            DeltaOffsetStore(folder / "offsets").reset(group, {passed: self._per_queue})
        query = consumer.start(
            self._backlog.spark,
            checkpoint=str(folder / "checkpoint"),
            trigger={"processingTime": "0 seconds"},
        )
        try:
            player.await_batch()
            yield player
        finally:
            player.leave()
            query.stop()


class _Player:
    """A query whose micro-batches run on command."""

    def __init__(self) -> None:
        self._reports: queue.SimpleQueue[BatchReport] = queue.SimpleQueue()
        self._turn = threading.Semaphore(0)
        self._has_left = False
        self._turns: list[_Figures] = []

    def wait_for_turn(self, report: BatchReport) -> None:
        """Wait at the end of each batch, as the batch listener."""
        self._reports.put(report)
        if not self._has_left:
            self._turn.acquire(timeout=_TIMEOUT_S)

    def leave(self) -> None:
        """Let the query continue until it is stopped."""
        self._has_left = True
        self._turn.release()

    def await_batch(self) -> int:
        """Return how many messages of the other queues the next micro-batch has consumed."""
        report = self._reports.get(timeout=_TIMEOUT_S)
        return sum(ack.consumed for ack in report.acks if ack.queue.queue_id != _STUCK)

    def take_turn(self) -> None:
        """Run one micro-batch with nothing else running."""
        spent = processor_s_by_process()
        began_s = time.perf_counter()
        self._turn.release()
        done = self.await_batch()
        lasted_s = time.perf_counter() - began_s
        self._turns.append(_Figures(done / lasted_s, spent_since_s(spent) * 1e6 / done))

    def figures(self) -> _Figures:
        """Return the medians of a turn's figures."""
        return _Figures(*map(median, zip(*self._turns, strict=True)))
