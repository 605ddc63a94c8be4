"""What a queue that stays suspended costs the other queues of its consumer."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from bench.cluster import QUEUES
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES
from bench.streams import Backlog, real_backlog
from pyspark_rocketmq.client.producer import Producer
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.streaming.committer import BatchReport
from pyspark_rocketmq.streaming.listener import ConsumeOrderlyContext
from tests.helpers.wait import wait_until

_TOPIC = "backlog"
_STUCK = 0
"""Queue id."""
_BODY = b"." * 1024
_LISTENER_BATCH = 32
_BOUND_PERCENT = 2.0
_TIMEOUT_S = 300.0

_METHOD = """\
{messages:,} messages of 1 KiB in {queues} queues of one real broker; an orderly `PushConsumer` that emits nothing, {listener_batch} messages a
call, Delta offset store, `local[{cores}]`, micro-batches of at most {per_trigger:,} messages, one right after the other.

* *suspended*: the listener answers SUSPEND to every message of one queue, which is tried again each second, and SUCCESS to all others.
* *without it*: the group's offset of that queue is at its end from the beginning, so that there is nothing to read.

The rate is that of the other {others} queues' messages from the end of the first micro-batch to the end of the one that finishes
them. {rounds} rounds after one for warming up, both in turn; the cost is that of the round."""


def run(*, per_trigger: int = 70_000, batches: int = 12, rounds: int = 5) -> Result:
    """Measure ``rounds`` pairs of runs."""
    before = load_average()
    message = Message(topic=_TOPIC, body=_BODY)
    with real_backlog(_TOPIC, lambda _: message, per_trigger=per_trigger, batches=batches) as backlog:
        contest = _Contest(backlog)
        contest.round()
        figures = [contest.round() for _ in range(rounds)]
    cost = Spread.of(100 * (1 - suspended / without) for suspended, without in figures)
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
            rounds=rounds,
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            ("suspended, messages/s", *Spread.of(each[0] for each in figures).cells(",.0f")),
            ("without it, messages/s", *Spread.of(each[1] for each in figures).cells(",.0f")),
            ("cost, %", *cost.cells(".1f")),
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
    """Nothing is done with the messages."""
    if messages[0].queue_id == _STUCK:
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    return ConsumeOrderlyStatus.SUCCESS


class _Contest:
    """Both on one topic; every run is a new group and a new checkpoint."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._per_queue = backlog.per_trigger * backlog.batches // QUEUES
        self._others = self._per_queue * (QUEUES - 1)
        with Producer(backlog.name_servers, producer_group="bench-producer") as producer:
            self._stuck = next(one for one in producer.queues(_TOPIC) if one.queue_id == _STUCK)
        self._numbers = itertools.count()

    def round(self) -> tuple[float, float]:
        """Messages per second of the other queues: beside a suspended one, and without it."""
        number = next(self._numbers)
        rates = (
            self._rate(f"suspended-{number}", is_passed=False),
            self._rate(f"without-{number}", is_passed=True),
        )
        print(f"  suspended {rates[0]:,.0f}/s  without {rates[1]:,.0f}/s  load {load_average()}", flush=True)
        return rates

    def _rate(self, name: str, *, is_passed: bool) -> float:
        folder = self._backlog.work / name
        ends: list[tuple[float, int]] = []

        def note(report: BatchReport) -> None:
            done = sum(ack.consumed for ack in report.acks if ack.queue_id != _STUCK)
            ends.append((time.monotonic(), done))

        consumer = self._backlog.consumer(folder, consume_message_batch_max_size=_LISTENER_BATCH)
        if is_passed:
            DeltaOffsetStore(folder / "offsets").reset(name, {self._stuck: self._per_queue})
        consumer.register_message_listener(suspend_one_queue, orderly=True, output_schema="step string")
        consumer.register_batch_listener(note)
        query = consumer.start(
            self._backlog.spark,
            checkpoint=str(folder / "checkpoint"),
            trigger={"processingTime": "0 seconds"},
        )
        try:
            wait_until(
                lambda: sum(done for _, done in ends) >= self._others,
                _TIMEOUT_S,
                reason=f"Consuming all but queue {_STUCK} in {name}",
            )
        finally:
            query.stop()
        last = max(at for at, (_, done) in enumerate(ends) if done)
        return sum(done for _, done in ends[1 : last + 1]) / (ends[last][0] - ends[0][0])
