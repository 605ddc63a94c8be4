"""Memory and latencies of one query in real time over an hour: both should stay as they are."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench.cluster import real_cluster
from bench.contenders import OurConsumer, Running, Times
from bench.feeder import Feeder
from bench.histogram import percentile
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES, bench_session
from tests.helpers.processes import resident_bytes
from tests.helpers.wait import wait_until

_QUEUES: Final = 4
_PER_SECOND: Final = 1_000
_WARM_UP_S: Final = 30.0
_SAMPLE_S: Final = 10.0
_TIMEOUT_S: Final = 120.0
_PERIODS: Final = 6
_MIB: Final = 1024 * 1024
_FLAT: Final = 1.1
"""Bound of both targets: memory and latencies of the last period, divided by those of the second or first."""
_COMMIT_INTERVAL: Final = "500 milliseconds"
_KINDS: Final = ("driver", "JVM", "planner", "workers")

_METHOD: Final = """\
{rate:,} messages of 1 KiB a second are sent to {queues} queues of one real broker for {seconds:,.0f} s. An orderly `PushConsumer` with
`trigger={{"realTime": "5 minutes"}}`, `commit_interval` {interval}, `DeltaSink` and Delta offset store on `local[{cores}]` emits a row for each. Every
{sample:g} s the resident memory of all its processes is read from `/proc`. Each row is a sixth of the time: the largest sum by kind of
process, and percentiles of the messages that were stored in it. The table that it writes to must hold each message once."""


class _Sample(NamedTuple):
    at_s: float
    mib: Mapping[str, float]
    """Resident memory by kind of process."""


def run(*, seconds: float = 3_600.0) -> Result:
    """Watch for ``seconds``."""
    before = load_average()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        real_cluster() as cluster,
        bench_session(Path(folder)) as spark,
    ):
        topic = cluster.create_topic("endurance", _QUEUES)
        settings = OurConsumer(
            "real time", spark, {"realTime": "5 minutes"}, commit_interval=_COMMIT_INTERVAL
        )
        with settings.running(cluster.name_servers, topic, Path(folder) / "endurance") as consumer:
            with Feeder.running(cluster.name_servers, topic, _PER_SECOND) as feeder:
                wait_until(lambda: consumer.consumed() > 0, _TIMEOUT_S, reason="The first row")
                time.sleep(_WARM_UP_S)
                first_ms = time.time() * 1000
                samples = _watch(consumer, seconds)
                sent = feeder.end()
            wait_until(lambda: consumer.consumed() >= sent.messages, _TIMEOUT_S, reason="Every message's row")
            times = consumer.end()
    periods = [
        _Period.of(samples, times, first_ms, number * seconds / _PERIODS, (number + 1) * seconds / _PERIODS)
        for number in range(_PERIODS)
    ]
    return Result(
        name="endurance",
        title="An hour in real time",
        method=_METHOD.format(
            rate=_PER_SECOND,
            queues=_QUEUES,
            seconds=seconds,
            interval=_COMMIT_INTERVAL,
            cores=CORES,
            sample=_SAMPLE_S,
        ),
        columns=(
            "minutes",
            *(f"{kind}, MiB" for kind in _KINDS),
            *(f"listener {name}, ms" for name in ("p50", "p99", "p99.9")),
            *(f"row {name}, ms" for name in ("p50", "p99")),
        ),
        rows=tuple(each.cells() for each in periods),
        targets=(
            *(
                _target(
                    f"memory of {kind}, last period / second", periods[-1].mib[kind], periods[1].mib[kind]
                )
                for kind in _KINDS
            ),
            _target("store → listener p50, last period / first", periods[-1].heard[0], periods[0].heard[0]),
            _target(
                "store → row p50, last period / first", periods[-1].committed[0], periods[0].committed[0]
            ),
        ),
        load=(before, load_average()),
    )


def _target(what: str, last: float, first: float) -> Target:
    return Target(what=what, seen=Spread.of([last / first]), bound=_FLAT, at_most=True)


def _watch(consumer: Running, seconds: float) -> list[_Sample]:
    """Take samples of the memory.

    Raises:
        RuntimeError: If the query fails.
    """
    began_s = time.monotonic()
    samples: list[_Sample] = []
    while (at_s := time.monotonic() - began_s) < seconds:
        consumer.consumed()
        mib = {kind: sum(map(resident_bytes, pids)) / _MIB for kind, pids in consumer.processes().items()}
        samples.append(_Sample(at_s, mib))
        shown = ", ".join(f"{kind} {each:,.0f}" for kind, each in mib.items())
        if len(samples) % 6 == 1:
            print(f"  {at_s:,.0f} s, MiB: {shown}  load {load_average()}", flush=True)
        time.sleep(_SAMPLE_S)
    return samples


class _Period(NamedTuple):
    from_s: float
    to_s: float
    mib: Mapping[str, float]
    """Largest resident memory, by kind of process."""
    heard: Sequence[float]
    """Percentiles of store to listener, in milliseconds."""
    committed: Sequence[float]
    """Percentiles of store to row, in milliseconds."""

    @classmethod
    def of(
        cls, samples: Sequence[_Sample], times: Times, began_ms: float, from_s: float, to_s: float
    ) -> _Period:
        """Return the figures of one period of the run that began at ``began_ms``."""
        inside = [each.mib for each in samples if from_s <= each.at_s < to_s]
        of_period = times.between(began_ms + from_s * 1000, began_ms + to_s * 1000)
        return cls(
            from_s,
            to_s,
            {kind: float(np.max([each[kind] for each in inside])) for kind in _KINDS},
            [percentile(of_period.to_listener(), each) for each in (50, 99, 99.9)],
            [percentile(of_period.to_row(), each) for each in (50, 99)],
        )

    def cells(self) -> tuple[str, ...]:
        figures = [*(self.mib[kind] for kind in _KINDS), *self.heard, *self.committed]
        return f"{self.from_s / 60:.0f} - {self.to_s / 60:.0f}", *(f"{each:,.0f}" for each in figures)
