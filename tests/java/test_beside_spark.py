"""Java's push consumer and a query of ours, two groups on the same topic, with the same scripted listener."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from tests.both.support import ANSWER_S
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.modes import Mode
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients
from tests.java.conftest import REAL
from tests.java.spark_run import Script, SparkConsumer
from tests.java.traces import MOST_S, ORDERLY, Scenario, TraceRun, by_queue, script_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("backend", [REAL], indirect=True, scope="package"),
]

_UNLIMITED = "maxReconsumeTimes default (-1)"
"""Scenario that repeats one delivery twenty times, recorded to show that there is no limit."""
_AT_ONCE = {Mode.MICRO_BATCH: 3, Mode.REAL_TIME: 1}
"""Scenarios at the same time; a query in real time holds the session's slots."""
_ADDED_BY_JAVA = {"MIN_OFFSET", "MAX_OFFSET"}
"""Properties that Java's pulls add to every message, and so to one that becomes a dead letter."""


class Pair:
    """One scenario, on one topic, in two groups."""

    def __init__(self, scenario: Scenario, java: JavaClients, cluster: ClusterUnderTest, mode: Mode) -> None:
        self.scenario = scenario
        self.cluster = cluster
        self.mode = mode
        topic = cluster.unique_name("beside")
        self.java = TraceRun(scenario, java, cluster, topic=topic, group=f"{topic}-java")
        self.spark_group = f"{topic}-spark"
        self.ours = TraceRun(scenario, java, cluster, topic=topic, group=self.spark_group)
        self.java.prepare()
        self.ours.prepare_group()
        self._auto_commit = not scenario["scenario"].startswith("autoCommit=false")

    def run(self, spark: SparkSession, folder: Path, client: BrokerClient) -> dict[str, tuple[Any, Any]]:
        """Return pairs of Java's results and ours, by kind of result."""
        self.java.begin().result(MOST_S + ANSWER_S)
        self.java.await_effects(client)
        self.java.end().result(2 * ANSWER_S)
        java = self._left(self.java, client)
        calls = self.java.all_calls()
        wanted = sum(len(event["messages"]) for event in calls)
        with self._consumer(spark, folder) as consumer:
            wait_until(
                lambda: consumer.delivered() >= wanted, 9 * ANSWER_S, reason=f"{wanted} messages delivered"
            )
            wait_until(
                lambda: self._left(self.ours, client) == java, 3 * ANSWER_S, reason=f"what Java left, {java},"
            )
        java["calls"] = _sequences(calls)
        ours = {**self._left(self.ours, client), "calls": self._as_in_one_process(consumer, java["calls"])}
        return {name: (value, ours[name]) for name, value in java.items()}

    def _as_in_one_process(
        self, consumer: SparkConsumer, java: Mapping[str, list[Any]]
    ) -> dict[str, list[Any]]:
        """Return our calls without repetitions of messages that were never committed:
        each micro-batch delivers those again, as a restart does.
        """
        ours = _sequences(consumer.script.events())
        if self._auto_commit:
            return ours
        for queue, calls in ours.items():
            again = calls[len(java[queue]) :]
            assert all(call == java[queue][-1] for call in again), again
        return {queue: calls[: len(java[queue])] for queue, calls in ours.items()}

    def _consumer(self, spark: SparkSession, folder: Path) -> SparkConsumer:
        config = self.scenario["config"]
        folder.mkdir()
        return SparkConsumer(
            spark,
            folder,
            Script(script_of(self.scenario), str(folder), self._auto_commit),
            name_servers=self.cluster.name_servers,
            group=self.spark_group,
            topic=self.java.topic,
            mode=self.mode,
            max_reconsume_times=config["maxReconsumeTimes"],
            consume_message_batch_max_size=config["consumeMessageBatchMaxSize"],
            suspend_current_queue_time_millis=config["suspendCurrentQueueTimeMillis"],
        )

    @staticmethod
    def _left(run: TraceRun, client: BrokerClient) -> dict[str, Any]:
        return {
            "committed": run.committed(client),
            "retry topic": _as_sent(run.retries(client)),
            "dead letters": _as_sent(run.dead_letters(client)),
        }


def _as_sent(stored: Iterable[Any]) -> list[Any]:
    """Return messages without the properties that differ between two groups of one topic."""
    return [
        {**message, "properties": _without(message["properties"])} if isinstance(message, dict) else message
        for message in stored
    ]


def _without(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in properties.items() if name not in _ADDED_BY_JAVA}


def _sequences(events: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the deliveries by queue: offset, key, reconsumeTimes and the answer."""
    return {
        queue: [(seen["queueOffset"], seen["key"], seen["reconsumeTimes"], result) for seen, result in calls]
        for queue, calls in by_queue(events, is_ordered=True).items()
    }


@pytest.fixture(
    scope="module", params=[Mode.MICRO_BATCH, pytest.param(Mode.REAL_TIME, marks=pytest.mark.long)]
)
def outcomes(
    request: pytest.FixtureRequest,
    java: JavaClients,
    backend: tuple[str, Backend],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Return the results of each scenario; several run at the same time."""
    kind, running = backend
    spark = request.getfixturevalue("spark")
    folder = tmp_path_factory.mktemp(f"beside-{request.param}")
    cluster = ClusterUnderTest(running, kind)
    pairs = [
        Pair(scenario, java, cluster, request.param)
        for scenario in ORDERLY
        if scenario["scenario"] != _UNLIMITED
    ]
    with ThreadPoolExecutor(_AT_ONCE[request.param]) as threads, _client() as client:
        futures = {
            pair.scenario["scenario"]: threads.submit(pair.run, spark, folder / str(number), client)
            for number, pair in enumerate(pairs)
        }
        return {name: future.exception() or future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", [each["scenario"] for each in ORDERLY if each["scenario"] != _UNLIMITED])
def test_an_orderly_listener_of_ours_sees_and_leaves_what_java_s_does(
    name: str, outcomes: dict[str, Any]
) -> None:
    """D1-D6, F1: each queue's offsets, reconsumeTimes and answers in their order;
    what is left at the broker.
    """
    outcome = outcomes[name]
    if isinstance(outcome, BaseException):
        raise outcome
    for what, (java, ours) in outcome.items():
        assert ours == java, what


@contextmanager
def _client() -> Iterator[BrokerClient]:
    with ChannelPool(SystemClock()) as pool:
        yield BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)
