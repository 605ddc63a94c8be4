"""How long a queue stands still while it changes hands, and how long a query in real time takes to stop."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from pyspark.sql import SparkSession

from bench.cluster import real_cluster
from bench.contenders import JavaPush, OurConsumer, OurQuery
from bench.feeder import Feeder
from bench.histogram import Latencies
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES, bench_session
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.model import MessageQueue, retry_topic
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import wait_until

_QUEUES: Final = 4
_PER_SECOND: Final = 400
_COMMIT_INTERVAL: Final = "500 milliseconds"
_SETTLING_S: Final = 10.0
_SHARING_S: Final = 15.0
_TIMEOUT_S: Final = 60.0
_TARGET_S: Final = 1.0
_FIRST_BY_NAME: Final = "0.0.0.0@rival"
"""Client id that comes before every other, so that its share is the first half of the queues."""

_METHOD: Final = """\
{rate} messages of 1 KiB a second are sent to {queues} queues of one real broker, {rounds} rounds. An orderly `PushConsumer` in real time (`local[{cores}]`,
`commit_interval` {interval}, `DeltaSink`) has all of them, until a Java push consumer joins its group and gets half. *To Java*: the longest time from
store to listener of Java's messages, except those that were stored before it was started. *From Java to Java*: the same where the group's only member before was Java, too.
Both contain Java's own pauses: it tries a lock that was not free again after 0.5 s, and pulls from a new queue 0.5 s after it got it (`RebalanceImpl`).
*Free*: from the first heartbeat of a member that does not pause to its lock on the last of its queues. *Meanwhile*: the same of our messages.
*Stop*: `consumer.stop(query)` under the same load, from the call to its return; nothing that was delivered may be without its row."""


def run(*, rounds: int = 5) -> Result:
    """Measure ``rounds`` handovers to Java, and as many stops."""
    before = load_average()
    seen: list[_Round] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        real_cluster() as cluster,
        bench_session(Path(folder)) as spark,
    ):
        race = _Race(cluster, spark, Path(folder))
        for number in range(rounds):
            seen.append(race.round(number))
            shown = ", ".join(f"{what} {each_s:.2f} s" for what, each_s in seen[-1]._asdict().items())
            print(f"  {shown}  load {load_average()}", flush=True)
    figures = {
        "free": [each.free for each in seen],
        "handover to Java": [each.to_java for each in seen],
        "from Java to Java": [each.from_java_to_java for each in seen],
        "meanwhile, our queues": [each.meanwhile for each in seen],
        "stop": [each.stop for each in seen],
    }
    return Result(
        name="handover",
        title="Handover and stop",
        method=_METHOD.format(
            rate=_PER_SECOND, queues=_QUEUES, rounds=rounds, cores=CORES, interval=_COMMIT_INTERVAL
        ),
        columns=("what", "min, s", "median, s", "max, s"),
        rows=tuple((what, *Spread.of(each).cells(".2f")) for what, each in figures.items()),
        targets=tuple(
            Target(what=f"{what}, s", seen=Spread.of(figures[what]), bound=_TARGET_S, at_most=True)
            for what in ("free", "handover to Java", "stop")
        ),
        load=(before, load_average()),
    )


class _Round(NamedTuple):
    """Seconds of one round."""

    free: float
    to_java: float
    from_java_to_java: float
    meanwhile: float
    stop: float


class _Race:
    def __init__(self, cluster: ClusterUnderTest, spark: SparkSession, work: Path) -> None:
        self._servers = cluster.name_servers
        self._cluster = cluster
        self._work = work
        self._java = JavaPush()
        self._ours = OurConsumer(
            "real time", spark, {"realTime": "5 minutes"}, commit_interval=_COMMIT_INTERVAL
        )

    def round(self, number: int) -> _Round:
        """Return the longest waits of messages, and how long the stop took."""
        between_java_s = self._from_java_to_java(f"handover-java-{number}")
        free_s = self._until_free(f"handover-free-{number}")
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
        return _Round(free_s, _longest_s(heard_by_java), between_java_s, _longest_s(heard_by_us), stop_s)

    def _until_free(self, group: str) -> float:
        """Return how long our queues stay locked after another member has joined."""
        topic = self._cluster.create_topic(group, _QUEUES)
        with (
            self._ours.running(self._servers, topic, self._work / group) as ours,
            Feeder.running(self._servers, topic, _PER_SECOND) as feeder,
        ):
            wait_until(lambda: ours.consumed() > 0, _TIMEOUT_S, reason="The first row")
            time.sleep(_SETTLING_S)
            free_s = self._seconds_until_locked(topic, group)
            ours.stop()
            feeder.end()
        return free_s

    def _seconds_until_locked(self, topic: str, group: str) -> float:
        """Join the group and ask for all locks until half of them are granted; return how long that took."""
        [(name, address)] = self._cluster.broker_addresses.items()
        queues = [MessageQueue(topic, name, number) for number in range(_QUEUES)]
        subscribed = tuple(
            build_subscription(each, "*", sub_version=1) for each in (topic, retry_topic(group))
        )
        member = ConsumerData(group_name=group, subscriptions=subscribed)
        with ChannelPool(SystemClock()) as pool:
            brokers = BrokerClient(pool, SystemClock())
            began_s = time.monotonic()
            brokers.heartbeat(address, HeartbeatData(client_id=_FIRST_BY_NAME, consumers=(member,)))
            wait_until(
                lambda: len(brokers.lock_batch(address, group, _FIRST_BY_NAME, queues)) >= _QUEUES // 2,
                _TIMEOUT_S,
                reason="Half of the locks",
            )
            return time.monotonic() - began_s

    def _from_java_to_java(self, group: str) -> float:
        """Return the longest wait of the messages that a second Java member got."""
        topic = self._cluster.create_topic(group, _QUEUES)
        with (
            self._java.running(self._servers, topic, self._work / "first" / group) as first,
            Feeder.running(self._servers, topic, _PER_SECOND) as feeder,
        ):
            wait_until(lambda: first.consumed() > 0, _TIMEOUT_S, reason="The first Java's message")
            time.sleep(_SETTLING_S)
            began_ms = time.time() * 1000
            with self._java.running(self._servers, topic, self._work / "second" / group) as second:
                wait_until(lambda: second.consumed() > 0, _TIMEOUT_S, reason="The second Java's message")
                time.sleep(_SHARING_S)
                ended_ms = time.time() * 1000
                feeder.end()
                return _longest_s(second.end().between(began_ms, ended_ms).to_listener())


def _seconds_to_stop(query: OurQuery) -> float:
    began_s = time.monotonic()
    query.stop()
    return time.monotonic() - began_s


def _longest_s(latencies: Latencies) -> float:
    return float(np.max(latencies)) / 1000
