"""A concurrent listener that waits, next to the ceiling of its threads if nothing else took time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

from deltalake import DeltaTable

from bench.cluster import QUEUES
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES
from bench.streams import Backlog, await_end, real_backlog
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, Message, MessageExt

_TOPIC = "calls"
_SLEEP_S = 0.005
_THREADS = 20
_BODY = b"." * 1024
_BARE_S = 2.0
_TARGET = 0.9
_KINDS = ("threads", "async def")

_METHOD = """\
{messages:,} messages of 1 KiB in {queues} queues of one real broker, consumed one per call by a listener that waits for
{sleep_ms:g} ms and emits one row, {threads} calls at the same time in each task, {cores} tasks at once (`local[{cores}]`), in
micro-batches of {per_trigger:,} messages (`availableNow`), `DeltaSink`, Delta offset store. Once the listener is a
function that sleeps in a thread, once an `async def` that sleeps on the task's event loop.

*Rate of a task* is a range's messages divided by the time from the listener's first call to the end of its last one, the median of a run's ranges without those of its first micro-batch; the ceiling is {threads} / {sleep_ms:g} ms. *Bare* is what
Python itself makes of it: {threads} threads that do nothing but sleep again and again, and as many coroutines on one event
loop, which rounds each sleep up to a millisecond; {cores} processes at once, nothing else running. {rounds} rounds, all in turn."""

Listener = Callable[[Sequence[MessageExt], ConsumeConcurrentlyContext], Any]


def wait_in_thread(_: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
    """Wait in a thread, like a call to a slow service."""
    context.emit(called_s=time.time())
    time.sleep(_SLEEP_S)
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


async def wait_on_loop(
    _: Sequence[MessageExt], context: ConsumeConcurrentlyContext
) -> ConsumeConcurrentlyStatus:
    """Wait on the event loop, like a call with an asynchronous client."""
    context.emit(called_s=time.time())
    await asyncio.sleep(_SLEEP_S)
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def run(*, per_trigger: int = 40_000, batches: int = 4, rounds: int = 3) -> Result:
    """Measure ``rounds`` runs of each kind."""
    before = load_average()
    message = Message(topic=_TOPIC, body=_BODY)
    with real_backlog(_TOPIC, lambda _: message, per_trigger=per_trigger, batches=batches) as backlog:
        contest = _Contest(backlog)
        figures = [contest.round() for _ in range(rounds)]
    ceiling = _THREADS / _SLEEP_S
    names = [*_KINDS, *(f"bare {kind}" for kind in _KINDS)]
    rates = {name: Spread.of(figure[name] for figure in figures) for name in names}
    return Result(
        name="consume_concurrent",
        title="Concurrent listener that waits",
        method=_METHOD.format(
            messages=per_trigger * batches,
            queues=QUEUES,
            sleep_ms=_SLEEP_S * 1000,
            threads=_THREADS,
            cores=CORES,
            per_trigger=per_trigger,
            rounds=rounds,
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            ("ceiling of a task, messages/s", *Spread.of([ceiling]).cells(",.0f")),
            *((f"{name}: rate of a task, messages/s", *rate.cells(",.0f")) for name, rate in rates.items()),
        ),
        targets=tuple(
            Target(what=f"{kind}: task / {what}", seen=Spread.of(ratios), bound=_TARGET, at_most=False)
            for kind in _KINDS
            for what, ratios in (
                ("ceiling", [figure[kind] / ceiling for figure in figures]),
                ("bare", [figure[kind] / figure[f"bare {kind}"] for figure in figures]),
            )
        ),
        load=(before, load_average()),
    )


class _Contest:
    """Both kinds on one topic; every run has a new group, a new table and a new checkpoint."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._numbers = itertools.count()

    def round(self) -> dict[str, float]:
        """Return a task's rate, by kind."""
        rates = dict(zip(_KINDS, map(self._drain, (wait_in_thread, wait_on_loop)), strict=True))
        rates |= {
            f"bare {kind}": _in_processes(bare)
            for kind, bare in zip(_KINDS, (_sleep_in_threads, _sleep_on_loop), strict=True)
        }
        print("  " + "  ".join(f"{kind} {rate:,.0f}/s" for kind, rate in rates.items()), flush=True)
        return rates

    def _drain(self, listener: Listener) -> float:
        folder = self._backlog.work / f"run-{next(self._numbers)}"
        reports: list[BatchReport] = []
        consumer = self._backlog.consumer(folder, consume_thread_max=_THREADS)
        consumer.register_message_listener(listener, orderly=False, output_schema="called_s double")
        consumer.register_batch_listener(reports.append)
        await_end(self._backlog.start(consumer, folder, with_sink=True))
        rows = DeltaTable(str(folder / "sink")).to_pyarrow_table().to_pandas()
        called_s = rows.set_index(["queueId", "queueOffset"])["called_s"].sort_index()
        rates = [
            ack.consumed / (times.max() - times.min() + _SLEEP_S)
            for report in reports[1:]
            for ack in report.acks
            if ack.consumed
            for times in [called_s.loc[ack.queue.queue_id].loc[ack.start : ack.state.next_offset - 1]]
        ]
        return Spread.of(rates).median


def _in_processes(bare: Callable[[], float]) -> float:
    """Return the mean rate of as many processes as tasks that run at once."""
    with get_context("spawn").Pool(CORES) as pool:
        return sum(each.get(_BARE_S * 10) for each in [pool.apply_async(bare) for _ in range(CORES)]) / CORES


def _sleep_in_threads() -> float:
    """Sleeps a second."""
    ends_s = time.monotonic() + _BARE_S

    def sleep_on(_: int) -> int:
        count = 0
        while time.monotonic() < ends_s:
            time.sleep(_SLEEP_S)
            count += 1
        return count

    with ThreadPoolExecutor(_THREADS) as threads:
        return sum(threads.map(sleep_on, range(_THREADS))) / _BARE_S


def _sleep_on_loop() -> float:
    """Sleeps a second."""

    async def sleep_on(ends_s: float) -> int:
        count = 0
        while time.monotonic() < ends_s:
            await asyncio.sleep(_SLEEP_S)
            count += 1
        return count

    async def all_of_them() -> int:
        ends_s = time.monotonic() + _BARE_S
        return sum(await asyncio.gather(*(sleep_on(ends_s) for _ in range(_THREADS))))

    return asyncio.run(all_of_them()) / _BARE_S
