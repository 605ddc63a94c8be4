"""Speed at which the orderly engines call a listener, next to identities of the same rows and to
Java's orderly push consumer.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from bench.cluster import QUEUES
from bench.identity import arrow_identity, identity
from bench.measure import Result, Spread, Target, load_average
from bench.pull_peers import OrderlyPush
from bench.session import CORES
from bench.streams import Backlog, drain, real_backlog, start_into_noop
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt, OrderlyEngineKind
from pyspark_rocketmq.wire.properties import KEYS, TAGS

_TOPIC = "backlog"
_BODY_BYTES = 1024
_LISTENER_BATCH = 32
_SKIPPED = 1
"""First micro-batches of a run: they start processes and compile."""
_STATE = "state engine"
_STATE_PEER = "identity applyInPandasWithState"
_DIRECT = "direct engine"
_DIRECT_PEER = "identity mapInArrow"
_JAVA = "Java orderly push"
_TARGETS = ((_STATE, _STATE_PEER, 0.9), (_DIRECT, _DIRECT_PEER, 0.8), (_DIRECT, _JAVA, 1.0))

_METHOD = """\
{messages:,} messages of 1 KiB with KEYS and TAGS in {queues} queues of one real broker, all of it in the page cache. Each of
{rounds} rounds, after one for warming up, takes the whole backlog in turn through:

* *{state}*, *{direct}*: `PushConsumer` with a listener that answers SUCCESS and does nothing else, {listener_batch} messages a call,
  Delta offset store, no sink; `availableNow`, `local[{cores}]`, micro-batches of {per_trigger:,} messages.
* *{state_peer}*, *{direct_peer}*: the same {columns} columns of `format("rocketmq")` as a plain stream through functions that
  give them back as they came, into `noop`; the first groups by queue, gathers and updates its state. No offsets stored.
* *{java}*: `DefaultMQPushConsumer` with the same listener and batch, `pullBatchSize` 32, a new group in a new JVM (1 GiB heap);
  from its first listener call to the last, so that its start and its first rebalance do not count.

Rates of the queries are messages of a micro-batch by the median of `triggerExecution` over a run's micro-batches without the
first {skipped}: planning, both logs and the commit of the offsets count. Ratios are taken round by round."""


def run(*, per_trigger: int = 100_000, batches: int = 4, rounds: int = 3) -> Result:
    """Measure ``rounds`` rounds."""
    before = load_average()
    with real_backlog(_TOPIC, _Messages().message, per_trigger=per_trigger, batches=batches) as backlog:
        contest = Contest(backlog)
        contest.round()
        figures = [contest.round() for _ in range(rounds)]
    ratios = {(who, peer): Spread.of(each[who] / each[peer] for each in figures) for who, peer, _ in _TARGETS}
    return Result(
        name="consume",
        title="Orderly consumption",
        method=_METHOD.format(
            messages=per_trigger * batches,
            queues=QUEUES,
            rounds=rounds,
            listener_batch=_LISTENER_BATCH,
            cores=CORES,
            per_trigger=per_trigger,
            columns=contest.columns,
            skipped=_SKIPPED,
            state=_STATE,
            state_peer=_STATE_PEER,
            direct=_DIRECT,
            direct_peer=_DIRECT_PEER,
            java=_JAVA,
        ),
        columns=("messages/s", "min", "median", "max"),
        rows=(
            *((who, *Spread.of(each[who] for each in figures).cells(",.0f")) for who in figures[0]),
            *((f"{who} / {peer}", *spread.cells(".2f")) for (who, peer), spread in ratios.items()),
        ),
        targets=tuple(
            Target(what=f"{who} / {peer}", seen=ratios[who, peer], bound=bound, at_most=False)
            for who, peer, bound in _TARGETS
        ),
        load=(before, load_average()),
    )


def do_nothing(
    messages: Sequence[MessageExt],  # noqa: ARG001 - a listener's signature
    context: ConsumeOrderlyContext,  # noqa: ARG001
) -> ConsumeOrderlyStatus:
    """The trivial listener."""
    return ConsumeOrderlyStatus.SUCCESS


class Contest:
    """All contestants on one topic; every run has a new group and a new checkpoint."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._java = OrderlyPush(backlog.work)
        self._numbers = itertools.count()
        self._plain = backlog.plain_rows()

    @property
    def columns(self) -> int:
        """Number of columns of a row."""
        return len(self._plain.columns)

    def round(self) -> dict[str, float]:
        """Return the messages per second of each contestant."""
        folder = self._backlog.work / f"round-{next(self._numbers)}"
        rates = {
            _STATE: self._rate(lambda: self.start(folder / "state", OrderlyEngineKind.STATE)),
            _STATE_PEER: self._rate(lambda: start_into_noop(identity(self._plain), folder / "grouped")),
            _DIRECT: self._rate(lambda: self.start(folder / "direct", OrderlyEngineKind.DIRECT)),
            _DIRECT_PEER: self._rate(lambda: start_into_noop(arrow_identity(self._plain), folder / "mapped")),
            _JAVA: self._java_rate(),
        }
        shown = "  ".join(f"{who} {rate:,.0f}" for who, rate in rates.items())
        print(f"  {folder.name}: {shown}  load {load_average()}", flush=True)
        return rates

    def start(self, folder: Path, engine: OrderlyEngineKind) -> StreamingQuery:
        """The consumer."""
        consumer = self._backlog.consumer(
            folder, consume_message_batch_max_size=_LISTENER_BATCH, orderly_engine=engine
        )
        consumer.register_message_listener(do_nothing, orderly=True, output_schema="step string")
        return self._backlog.start(consumer, folder)

    def _rate(self, start: Callable[[], StreamingQuery]) -> float:
        steady = drain(start, batches=self._backlog.batches, skipped=_SKIPPED)
        return self._backlog.per_trigger * 1000 / steady["triggerExecution"]

    def _java_rate(self) -> float:
        count = self._backlog.per_trigger * self._backlog.batches
        read = self._java.read(self._backlog.name_servers, _TOPIC, count, listener_batch=_LISTENER_BATCH)
        return read.messages / read.seconds_after_first


class _Messages:
    def __init__(self) -> None:
        self._body = random.Random(7).randbytes(_BODY_BYTES)

    def message(self, number: int) -> Message:
        return Message(
            topic=_TOPIC,
            body=b"%016d" % number + self._body[16:],
            properties={KEYS: f"key-{number}", TAGS: "created"},
        )
