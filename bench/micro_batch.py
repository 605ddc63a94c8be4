"""A steady orderly micro-batch, next to an identity
``applyInPandasWithState`` on the same rows in the same run.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from bench.cluster import QUEUES, fill, real_cluster
from bench.identity import identity
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES, bench_session
from bench.streams import STAGES, Backlog, drain, start_into_noop
from broker_sim.cluster import SimCluster
from pyspark_rocketmq.cli.demo.orders import (
    OUTPUT_SCHEMA,
    STEPS,
    OrderEvent,
    event_to_message,
    injected_failure,
    on_order,
    order_ids,
)
from pyspark_rocketmq.model import Message
from tests.helpers.cluster import ClusterUnderTest

_TOPIC = "orders"
_LISTENER_BATCH = 32
"""The demo's default."""
_SKIPPED = 2
"""First micro-batches of a run: they start processes and compile."""
_TARGET = 1.3
_METHOD = """\
{messages:,} order events (bodies of about 65 B) in {queues} queues of one {backend} broker, drained in micro-batches of
{per_trigger:,} messages (`availableNow`, `local[{cores}]`, 2 shuffle partitions):

* *ours*: `PushConsumer` with the demo's listener (JSON parsed, one row emitted per message, {listener_batch} messages a
  call, no failures), `DeltaSink`, Delta offset store: exactly once.
* *identity*: the same 19 columns of `format("rocketmq")`, grouped by queue, through an `applyInPandasWithState` that
  gathers its chunks, updates its state and gives the chunks back as they came; `foreachBatch` writes them to `noop`. It
  reads as a plain stream (the two marker columns are null) and stores no offsets and no rows. It gives 19 columns back
  where the listener emits 8, and keeps nothing where ours commits twice.

The time is `triggerExecution` of Spark's progress, the median of a run's micro-batches without the first {skipped}. Runs
take turns in one session: {rounds} rounds after one for warming up; the ratio is taken round by round."""


def run(*, per_trigger: int = 40_000, batches: int = 10, rounds: int = 3, backend: str = "real") -> Result:
    """Measure ``rounds`` pairs of runs."""
    before = load_average()
    messages = per_trigger * batches
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, _cluster(backend) as name_servers:
        events = _events(messages)
        fill(
            name_servers,
            _TOPIC,
            queues=QUEUES,
            per_queue=messages // QUEUES,
            message=lambda _: next(events),
        )
        with bench_session(Path(folder)) as spark:
            backlog = Backlog(
                spark=spark,
                name_servers=name_servers,
                topic=_TOPIC,
                work=Path(folder),
                per_trigger=per_trigger,
                batches=batches,
            )
            contest = Contest(backlog)
            contest.round()
            figures = [contest.round() for _ in range(rounds)]
    ratio = Spread.of(ours["triggerExecution"] / peer["triggerExecution"] for ours, peer in figures)
    return Result(
        name="micro_batch",
        title="Orderly micro-batch",
        method=_METHOD.format(
            messages=messages,
            queues=QUEUES,
            backend=backend,
            per_trigger=per_trigger,
            cores=CORES,
            listener_batch=_LISTENER_BATCH,
            skipped=_SKIPPED,
            rounds=rounds,
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            *(
                (f"{who}: {stage}, ms", *Spread.of(each[place][stage] for each in figures).cells(",.0f"))
                for place, who in enumerate(("ours", "identity"))
                for stage in STAGES
            ),
            ("ours / identity", *ratio.cells(".2f")),
        ),
        targets=(Target(what="ours / identity", seen=ratio, bound=_TARGET, at_most=True),),
        load=(before, load_average()),
    )


class Contest:
    """Both queries on one topic; every run has a new group, a new table and a new checkpoint."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._numbers = itertools.count()

    def round(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return milliseconds by stage, of our run and of the identity's."""
        folder = self._backlog.work / f"round-{next(self._numbers)}"
        ours = self._drain(lambda: self.start_ours(folder))
        peer = self._drain(lambda: self.start_identity(folder))
        print(
            f"  {folder.name}: ours {ours['triggerExecution']:,.0f} ms  identity "
            f"{peer['triggerExecution']:,.0f} ms  ratio "
            f"{ours['triggerExecution'] / peer['triggerExecution']:.2f}  load {load_average()}",
            flush=True,
        )
        return ours, peer

    def start_ours(self, folder: Path) -> StreamingQuery:
        """The consumer."""
        consumer = self._backlog.consumer(folder, consume_message_batch_max_size=_LISTENER_BATCH)
        consumer.register_message_listener(on_order, orderly=True, output_schema=OUTPUT_SCHEMA)
        return self._backlog.start(consumer, folder, with_sink=True)

    def start_identity(self, folder: Path) -> StreamingQuery:
        """The peer; its progress is in its checkpoint."""
        return start_into_noop(identity(self._backlog.plain_rows()), folder / "identity")

    def _drain(self, start: Callable[[], StreamingQuery]) -> dict[str, float]:
        return drain(start, batches=self._backlog.batches, skipped=_SKIPPED)


@contextmanager
def _cluster(backend: str) -> Iterator[str]:
    """Start a cluster of one broker with the topic; yield its name server's address."""
    if backend == "real":
        with real_cluster() as cluster:
            cluster.create_topic(_TOPIC, QUEUES)
            yield cluster.name_servers
    else:
        with SimCluster(brokers=1) as simulator:
            ClusterUnderTest(simulator, "sim").create_topic(_TOPIC, QUEUES)
            yield simulator.name_servers


def _events(count: int) -> Iterator[Message]:
    """Events of orders that the demo's listener does not fail."""
    healthy = (
        order_id
        for order_id in order_ids(count)
        if not any(injected_failure(order_id, sequence) for sequence in range(len(STEPS)))
    )
    events = (
        event_to_message(OrderEvent(order_id=order_id, sequence=sequence), _TOPIC)
        for order_id in healthy
        for sequence in range(len(STEPS))
    )
    return itertools.islice(events, count)
