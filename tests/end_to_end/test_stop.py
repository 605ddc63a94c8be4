"""Calls of a listener when its query ends, and the moment when others may have its queues."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageQueue
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.driver_process import ENVIRONMENT, REPO, running
from tests.helpers.lock_watch import CALL, FREE, LockWatch, called_in, events
from tests.helpers.orders import produce_orders
from tests.helpers.stopped_driver import noted_consumer
from tests.helpers.wait import wait_until

pytestmark = pytest.mark.spark

SOON_S = 240.0
KILLED_AFTER_S = 6.0
"""Spark kills the worker of a cancelled task within 4 s; one that lives on has ended its task."""


MICRO_BATCHES = {"processingTime": "100 milliseconds"}
REAL_TIME = {"realTime": "5 minutes"}


class Calls(NamedTuple):
    """Kind of the calls."""

    answer: object
    engine: str
    trigger: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.answer}-{self.engine}-{next(iter(self.trigger))}"


KINDS = [
    Calls(ConsumeOrderlyStatus.SUCCESS, "direct", MICRO_BATCHES),
    Calls(ConsumeOrderlyStatus.SUCCESS, "direct", REAL_TIME),
    Calls(ConsumeOrderlyStatus.SUCCESS, "state", MICRO_BATCHES),
    Calls(ConsumeConcurrentlyStatus.CONSUME_SUCCESS, "direct", MICRO_BATCHES),
    Calls(ConsumeConcurrentlyStatus.CONSUME_SUCCESS, "direct", REAL_TIME),
]


class Stage:
    """A topic with messages for some time, the watch on its queues, and what was seen."""

    def __init__(self, cluster: ClusterUnderTest, folder: Path) -> None:
        topic = cluster.create_topic(queues=2, brokers=["broker-a"])
        produce_orders(cluster.name_servers, topic, 400)
        self._folder = folder
        self._address = cluster.broker_addresses["broker-a"]
        self._queues = [MessageQueue(topic, "broker-a", number) for number in range(2)]
        self.config = {
            "folder": str(folder),
            "topic": topic,
            "group": cluster.unique_name("group"),
            "nameServers": cluster.name_servers,
        }

    def await_call(self) -> None:
        wait_until(lambda: called_in(self._folder), SOON_S, reason="A first call")

    def watch(self, *, needs_locks: bool = True) -> LockWatch:
        return LockWatch(
            self._folder, self._address, self.config["group"], self._queues, needs_locks=needs_locks
        )

    def calls_of_free_queues(self) -> int:
        """Calls of the listener once others could have its queues."""
        wait_until(lambda: FREE in events(self._folder), SOON_S, reason="Queues free for others")
        _await_ends(called_in(self._folder))
        seen = events(self._folder)
        return seen[seen.index(FREE) :].count(CALL)


def _await_ends(pids: Sequence[int]) -> None:
    """Wait until no task of a query that has ended runs in these processes."""
    with suppress(AssertionError):
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), KILLED_AFTER_S)


@SIM_ONLY
@pytest.mark.parametrize("calls", KINDS, ids=str)
@pytest.mark.parametrize("call_s", [0.03, 600.0])
def test_nobody_has_a_queue_of_a_stopped_query_before_the_last_call(
    calls: Calls, call_s: float, spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H11, B7, D1: Spark lets Python workers go on for seconds, and ends a call in hand by SIGKILL."""
    stage = Stage(cluster, tmp_path)
    consumer = noted_consumer(stage.config | {"engine": calls.engine}, call_s=call_s, answer=calls.answer)
    query = consumer.start(spark, checkpoint=str(tmp_path / "checkpoint"), trigger=calls.trigger)
    stage.await_call()

    with stage.watch(needs_locks=isinstance(calls.answer, ConsumeOrderlyStatus)):
        query.stop()
        assert stage.calls_of_free_queues() == 0


@SIM_ONLY
@pytest.mark.parametrize(
    ("end", "trigger"),
    [
        pytest.param("killed", MICRO_BATCHES, marks=pytest.mark.long),
        ("exits", MICRO_BATCHES),
        ("killed", REAL_TIME),
        pytest.param("exits", REAL_TIME, marks=pytest.mark.long),
    ],
    ids=["killed", "exits", "killed-realTime", "exits-realTime"],
)
def test_nobody_has_a_queue_of_a_driver_that_ends_before_the_last_call(
    end: str, trigger: Mapping[str, str], cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H11, B7, D1: nobody is left who could report it, so the planner goes by the clock."""
    stage = Stage(cluster, tmp_path)
    config = json.dumps(stage.config | {"trigger": trigger})
    command = [sys.executable, "-m", "tests.helpers.stopped_driver", config]
    with running(command, tmp_path / "log", folder=REPO, environment=ENVIRONMENT) as driver:
        stage.await_call()
        with stage.watch():
            if end == "killed":
                driver.kill()
            else:
                (tmp_path / "exit").touch()
            assert stage.calls_of_free_queues() == 0
