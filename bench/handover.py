"""How long a queue stands still while it changes hands, and how long a query in real time takes to stop."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
from pyspark.sql import SparkSession

from bench.cluster import real_cluster
from bench.contenders import JavaPush, OurConsumer, OurQuery
from bench.feeder import Feeder
from bench.histogram import Latencies
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES, bench_session
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import wait_until

_QUEUES: Final = 4
_PER_SECOND: Final = 400
_COMMIT_INTERVAL: Final = "500 milliseconds"
_SETTLING_S: Final = 10.0
_SHARING_S: Final = 15.0
_TIMEOUT_S: Final = 60.0
_TARGET_S: Final = 1.0

_METHOD: Final = """\
{rate} messages of 1 KiB a second are sent to {queues} queues of one real broker, {rounds} rounds. An orderly `PushConsumer` in real time (`local[{cores}]`,
`commit_interval` {interval}, `DeltaSink`) has all of them, until a Java push consumer joins its group and gets half. *To Java*: the longest time from
store to listener of Java's messages, except those that were stored before it was started; it contains Java's own wait for the lock. *Meanwhile*: the same of our messages.
*Stop*: `consumer.stop(query)` under the same load, from the call to its return; nothing that was delivered may be without its row."""


def run(*, rounds: int = 5) -> Result:
    """Measure ``rounds`` handovers to Java, and as many stops."""
    before = load_average()
    to_java: list[float] = []
    meanwhile: list[float] = []
    stops: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        real_cluster() as cluster,
        bench_session(Path(folder)) as spark,
    ):
        race = _Race(cluster, spark, Path(folder))
        for number in range(rounds):
            ours_s, java_s, stop_s = race.round(number)
            print(
                f"  to Java {java_s:.2f} s, meanwhile {ours_s:.2f} s, stop {stop_s:.2f} s  load {load_average()}",
                flush=True,
            )
            to_java.append(java_s)
            meanwhile.append(ours_s)
            stops.append(stop_s)
    figures = {"handover to Java": to_java, "meanwhile, our queues": meanwhile, "stop": stops}
    return Result(
        name="handover",
        title="Handover and stop",
        method=_METHOD.format(
            rate=_PER_SECOND, queues=_QUEUES, rounds=rounds, cores=CORES, interval=_COMMIT_INTERVAL
        ),
        columns=("what", "min, s", "median, s", "max, s"),
        rows=tuple((what, *Spread.of(each).cells(".2f")) for what, each in figures.items()),
        targets=tuple(
            Target(what=f"{what}, s", seen=Spread.of(each), bound=_TARGET_S, at_most=True)
            for what, each in figures.items()
            if each is not meanwhile
        ),
        load=(before, load_average()),
    )


class _Race:
    def __init__(self, cluster: ClusterUnderTest, spark: SparkSession, work: Path) -> None:
        self._servers = cluster.name_servers
        self._cluster = cluster
        self._work = work
        self._java = JavaPush()
        self._ours = OurConsumer(
            "real time", spark, {"realTime": "5 minutes"}, commit_interval=_COMMIT_INTERVAL
        )

    def round(self, number: int) -> tuple[float, float, float]:
        """Return the longest waits of our messages and of Java's, and how long the stop took, in seconds."""
        group = f"handover-{number}"
        topic = self._cluster.create_topic(group, _QUEUES)
        with (
            self._ours.running(self._servers, topic, self._work / group) as ours,
            Feeder.running(self._servers, topic, _PER_SECOND) as feeder,
        ):
            wait_until(lambda: ours.consumed() > 0, _TIMEOUT_S, reason="The first row")
            time.sleep(_SETTLING_S)
            began_ms = time.time() * 1000
            with self._java.running(self._servers, topic, self._work / "java" / group) as java:
                wait_until(lambda: java.consumed() > 0, _TIMEOUT_S, reason="Java's first message")
                time.sleep(_SHARING_S)
                ended_ms = time.time() * 1000
                stop_s = _seconds_to_stop(ours)
                feeder.end()
                heard_by_java = java.end().between(began_ms, ended_ms).to_listener()
            heard_by_us = ours.end().between(began_ms, ended_ms).to_listener()
        return _longest_s(heard_by_us), _longest_s(heard_by_java), stop_s


def _seconds_to_stop(query: OurQuery) -> float:
    began_s = time.monotonic()
    query.stop()
    return time.monotonic() - began_s


def _longest_s(latencies: Latencies) -> float:
    return float(np.max(latencies)) / 1000
