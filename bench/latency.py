"""From the broker's store to the listener and to a committed row, at steady rates: ours in real time and in
micro-batches, beside Java's push consumer.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from pyspark.sql import SparkSession

from bench.cluster import fill, real_cluster
from bench.contenders import LISTENER_BATCH, Contender, JavaPush, OurConsumer, Running, Times
from bench.feeder import BODY, Feeder, Sent
from bench.histogram import Latencies, histogram, percentile
from bench.into_postgres import OurConsumerIntoPostgres
from bench.measure import Result, load_average, markdown_table
from bench.processor_time import machine_s, processor_s, processor_s_by_process, spent_since_s
from bench.rate_source import Contest
from bench.session import CORES, bench_session
from pyspark_rocketmq.model import Message
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import wait_until

_Contest = Contest
"""Name by which :mod:`bench.against` finds it in older trees."""
_QUEUES: Final = 4
_WARM_UP_S: Final = 8.0
_IDLE_S: Final = 30.0
_TIMEOUT_S: Final = 120.0
_BACKLOG: Final = 200_000
_COMMIT_INTERVAL: Final = "500 milliseconds"
_LATE_MS: Final = 20.0
"""Lateness of one send in a hundred from which a run's rate was not steady."""
_TO_LISTENER: Final = (50, 95, 99, 99.9, 100)
_TO_ROW: Final = (50, 90, 99)
_REAL_TIME: Final = "real time"
_INTO_POSTGRES: Final = "real time, PostgreSQL"
_JAVA: Final = JavaPush.name
WITHOUT_CONTENDER: Final = ("backlog", "idle")
"""Names for ``--only`` of the measurements that follow those at steady rates."""
CONTENDERS: Final = {
    "real-time": _REAL_TIME,
    "postgres": _INTO_POSTGRES,
    "java": _JAVA,
    "trigger-0": "trigger 0 s",
    "trigger-1": "trigger 1 s",
}
"""Names of the contenders, in ``--only`` and in the tables."""

_METHOD: Final = """\
A separate process sends messages of 1 KiB to {queues} queues of one real broker, in 100 requests a second (at 10,000 messages a
second in 200 requests of 50 messages). Messages stored in the first {warm_up:g} s do not count, those of the next {seconds:g} s do.
In each of {rounds} rounds the contenders run one after the other; percentiles are those of all rounds' messages.

* *{real_time}*: orderly `PushConsumer` with `trigger={{"realTime": "5 minutes"}}`, `commit_interval` {interval}, `DeltaSink`,
  Delta offset store, `local[{cores}]`, at most {listener_batch} messages a call; the listener emits a row for each message.
* *{into_postgres}*: the same with `DatabaseSink(commit_in_task=True)` into a PostgreSQL with durable commits on this machine.
* *trigger 0 s, trigger 1 s*: the same in micro-batches, `processingTime` 0 and 1 second.
* *{java}*: Java's `DefaultMQPushConsumer` with an orderly listener that notes the times and writes nothing.

*Store → listener*: the time of the listener's call minus the message's store time, both in whole milliseconds. *Store → row*:
`commitInfo.timestamp` of the Delta version that added the row, or PostgreSQL's commit timestamp, minus the store time. *Cores*: processor seconds per second of all
processes of the consumer (driver's Python, JVM, planner's and workers' Python; for Java its JVM). *Others*: the same of programs
that do not belong to the benchmark; compare only rows where it is about 0. *Backlog*: rate for {backlog:,} waiting messages, from
the first listener call to the commit of the last row. *Idle*: cores used in {idle:g} s without a message."""


class _Run(NamedTuple):
    """Result of one contender at one rate, in one round."""

    times: Times
    used: _Used
    sent: Sent


class _Figures(NamedTuple):
    """Result of one contender at one rate, in all rounds."""

    to_listener: Latencies
    to_row: Latencies
    cores: Mapping[str, float]
    others: float
    """Cores that other programs used; the largest value of all rounds."""
    late_p99_ms: float

    @classmethod
    def pooled(cls, runs: Sequence[_Run]) -> _Figures:
        """Join the runs' latencies."""
        return cls(
            np.concatenate([each.times.to_listener() for each in runs]),
            np.concatenate([each.times.to_row() for each in runs]),
            _mean([each.used.cores for each in runs]),
            max(each.used.others for each in runs),
            max(each.sent.late_p99_ms for each in runs),
        )

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a row: percentiles of both latencies, cores and their parts."""
        return (
            *(_shown(percentile(self.to_listener, percent)) for percent in _TO_LISTENER),
            *(_shown(percentile(self.to_row, percent)) for percent in _TO_ROW),
            *_cores_cells(self.cores),
            f"{self.others:.2f}",
        )


def run(
    *,
    rates: Sequence[int] = (100, 1000, 10_000),
    seconds: float = 30.0,
    only: Sequence[str] = (),
    rounds: int = 1,
) -> Result:
    """Measure ``rounds`` rounds of ``seconds`` for each contender and rate, then backlog and idle cost."""
    before = load_average()
    wanted = only or (*CONTENDERS, *WITHOUT_CONTENDER)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        real_cluster() as cluster,
        bench_session(Path(folder)) as spark,
    ):
        races = _Races(cluster, Path(folder), _contenders(spark))
        names = [CONTENDERS[name] for name in wanted if name in CONTENDERS]
        figures = races.at_rates(names, rates, seconds, rounds)
        backlog = races.backlog([_REAL_TIME, "trigger 0 s"], rounds) if "backlog" in wanted else {}
        idle = races.idle(list(CONTENDERS.values())) if "idle" in wanted else {}
    return Result(
        name="latency",
        title="Latency",
        method=_METHOD.format(
            queues=_QUEUES,
            warm_up=_WARM_UP_S,
            seconds=seconds,
            rounds=rounds,
            real_time=_REAL_TIME,
            into_postgres=_INTO_POSTGRES,
            java=_JAVA,
            interval=_COMMIT_INTERVAL,
            cores=CORES,
            listener_batch=LISTENER_BATCH,
            backlog=_BACKLOG,
            idle=_IDLE_S,
        ),
        columns=(),
        rows=(),
        targets=(),
        load=(before, load_average()),
        page="\n\n".join([*_tables(figures, backlog, idle), *_pictures(figures)]),
    )


def _contenders(spark: SparkSession) -> dict[str, Contender]:
    contenders: tuple[Contender, ...] = (
        OurConsumer(_REAL_TIME, spark, {"realTime": "5 minutes"}, commit_interval=_COMMIT_INTERVAL),
        OurConsumerIntoPostgres(_INTO_POSTGRES, spark, commit_interval=_COMMIT_INTERVAL),
        JavaPush(),
        *(
            OurConsumer(f"trigger {each} s", spark, {"processingTime": f"{each} seconds"})
            for each in range(2)
        ),
    )
    return {each.name: each for each in contenders}


class _Races:
    """Runs of the contenders; each has a new topic, group and folder."""

    def __init__(self, cluster: ClusterUnderTest, work: Path, contenders: Mapping[str, Contender]) -> None:
        self._cluster = cluster
        self._work = work
        self._contenders = contenders
        self._numbers = itertools.count()

    def at_rates(
        self, names: Sequence[str], rates: Sequence[int], seconds: float, rounds: int
    ) -> dict[tuple[int, str], _Figures]:
        """Return the figures by rate and contender."""
        runs: dict[tuple[int, str], list[_Run]] = {}
        for _, rate, name in itertools.product(range(rounds), rates, names):
            done = self._run(name, rate, seconds)
            runs.setdefault((rate, name), []).append(done)
            shown = " ".join(_Figures.pooled([done]).cells())
            print(f"  {rate:,}/s {name}: {shown}  sent {done.sent}  load {load_average()}", flush=True)
        return {(rate, name): _Figures.pooled(runs[rate, name]) for rate in rates for name in names if runs}

    def _run(self, name: str, per_second: int, seconds: float) -> _Run:
        topic, folder = self._place()
        self._fill(topic, 1)
        servers = self._cluster.name_servers
        with self._contenders[name].running(servers, topic, folder) as consumer:
            _await_consumed(consumer, _QUEUES)
            with Feeder.running(servers, topic, per_second) as feeder:
                time.sleep(_WARM_UP_S)
                first_ms = time.time() * 1000
                used = _used_during(consumer, seconds)
                last_ms = time.time() * 1000
                sent = feeder.end()
            _await_consumed(consumer, _QUEUES + sent.messages)
            return _Run(consumer.end().between(first_ms, last_ms), used, sent)

    def backlog(self, names: Iterable[str], rounds: int) -> dict[str, list[float]]:
        """Return the rows a second of each round, by contender."""
        topic, _ = self._place()
        self._fill(topic, _BACKLOG // _QUEUES)
        rates: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name in names:
                _, folder = self._place()
                with self._contenders[name].running(self._cluster.name_servers, topic, folder) as consumer:
                    _await_consumed(consumer, _BACKLOG)
                    times = consumer.end()
                assert times.committed is not None
                spent_ms = float(times.committed.max() - times.heard.min())
                rates.setdefault(name, []).append(_BACKLOG * 1000 / spent_ms)
                print(f"  backlog, {name}: {rates[name][-1]:,.0f}  load {load_average()}", flush=True)
        return rates

    def idle(self, names: Iterable[str]) -> dict[str, Mapping[str, float]]:
        """Return the cores that each contender uses without messages."""
        used: dict[str, Mapping[str, float]] = {}
        for name in names:
            topic, folder = self._place()
            self._fill(topic, 1)
            with self._contenders[name].running(self._cluster.name_servers, topic, folder) as consumer:
                _await_consumed(consumer, _QUEUES)
                time.sleep(_WARM_UP_S)
                used[name] = _used_during(consumer, _IDLE_S).cores
            print(f"  idle, {name}: {' '.join(_cores_cells(used[name]))}  load {load_average()}", flush=True)
        return used

    def _place(self) -> tuple[str, Path]:
        """Return a new topic and a new folder."""
        number = next(self._numbers)
        return self._cluster.create_topic(f"latency-{number}", _QUEUES), self._work / f"latency-{number}"

    def _fill(self, topic: str, per_queue: int) -> None:
        message = Message(topic=topic, body=BODY)
        fill(
            self._cluster.name_servers,
            topic,
            queues=_QUEUES,
            per_queue=per_queue,
            message=lambda _: message,
        )


def _await_consumed(consumer: Running, messages: int) -> None:
    wait_until(lambda: consumer.consumed() >= messages, _TIMEOUT_S, reason=f"{messages:,} messages consumed")


class _Used(NamedTuple):
    """Processor seconds a second."""

    cores: dict[str, float]
    """Cores of a consumer, by kind of process."""
    others: float
    """Cores of processes that this benchmark has not started."""


def _used_during(consumer: Running, seconds: float) -> _Used:
    """Sleep, and return the use of processors meanwhile."""
    pids = {pid: kind for kind, each in consumer.processes().items() for pid in each}
    before, of_tree, of_all, began_s = (
        _processor_s(pids),
        processor_s_by_process(),
        machine_s(),
        time.monotonic(),
    )
    time.sleep(seconds)
    lasted_s = time.monotonic() - began_s
    cores = dict.fromkeys(pids.values(), 0.0)
    for pid, after_s in _processor_s(pids).items():
        cores[pids[pid]] += (after_s - before.get(pid, after_s)) / lasted_s
    return _Used(cores, max(0.0, machine_s() - of_all - spent_since_s(of_tree)) / lasted_s)


def _processor_s(pids: Iterable[int]) -> dict[int, float]:
    spent: dict[int, float] = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            spent[pid] = processor_s(pid)
    return spent


def _mean(cores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {kind: sum(each[kind] for each in cores) / len(cores) for kind in cores[0]}


def _cores_cells(cores: Mapping[str, float]) -> tuple[str, str]:
    """Return all cores, and those by kind if there are several."""
    parts = ", ".join(f"{kind} {each:.2f}" for kind, each in cores.items()) if len(cores) > 1 else ""
    return f"{sum(cores.values()):.2f}", parts


def _shown(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds == milliseconds else ""  # noqa: PLR0124 - NaN


def _tables(
    figures: Mapping[tuple[int, str], _Figures],
    backlog: Mapping[str, Sequence[float]],
    idle: Mapping[str, Mapping[str, float]],
) -> list[str]:
    tables: list[str] = []
    if figures:
        columns = [
            "messages/s",
            "consumer",
            *(f"listener {_name(percent)}" for percent in _TO_LISTENER),
            *(f"row {_name(percent)}" for percent in _TO_ROW),
            "cores",
            "by process",
            "others",
        ]
        rows = [(f"{rate:,}", name, *each.cells()) for (rate, name), each in figures.items()]
        tables.append(markdown_table(columns, rows))
    late = [f"{name} at {rate:,}/s" for (rate, name), each in figures.items() if each.late_p99_ms > _LATE_MS]
    if late:
        tables.append(f"One send in a hundred was more than {_LATE_MS:g} ms late: {', '.join(late)}.")
    if backlog:
        rows_of = [(name, *(f"{each:,.0f}" for each in rates)) for name, rates in backlog.items()]
        rounds = [f"round {number}" for number in range(1, len(rows_of[0]))]
        tables.append(markdown_table(["backlog, rows/s", *rounds], rows_of))
    if idle:
        tables.append(
            markdown_table(
                ("idle", "cores", "by process"), ((name, *_cores_cells(each)) for name, each in idle.items())
            )
        )
    return tables


def _name(percent: float) -> str:
    return "max" if percent == 100 else f"p{percent:g}"


def _pictures(figures: Mapping[tuple[int, str], _Figures]) -> list[str]:
    """Return histograms of both latencies at each rate, as blocks of code."""
    pictures: list[str] = []
    for rate in dict.fromkeys(rate for rate, _ in figures):
        of_rate = {name: each for (each_rate, name), each in figures.items() if each_rate == rate}
        pictures += [
            histogram(
                f"{rate:,}/s, store → listener", {name: each.to_listener for name, each in of_rate.items()}
            ),
            histogram(f"{rate:,}/s, store → row", {name: each.to_row for name, each in of_rate.items()}),
        ]
    return [f"```\n{each}\n```" for each in pictures if each]
