"""Topics of the simulator with known messages, read through the data source without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.source.ranges import QueuePartition
from tests.helpers.batch_read import planned_batch, read_batch
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.stream_read import StreamUnderTest
from tests.helpers.wait import PATIENCE_S

PATIENT = {"requestTimeoutMs": f"{PATIENCE_S * 1000:.0f}"}
"""Else a query whose machine stands still for 5 s goes on without what it has asked for."""


class Topics:
    """Makes topics on ``broker-a`` and reads them."""

    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        self._names = ClusterUnderTest(sim, "sim")

    def make(self, *counts: int, topic: str | None = None) -> str:
        """A topic with so many messages in each of its queues."""
        name = topic or self._names.unique_name("source")
        self.sim.create_topic(name, queues=len(counts), brokers=["broker-a"])
        for queue_id, count in enumerate(counts):
            self.put(name, queue_id, count)
        return name

    def put(self, topic: str, queue_id: int, count: int) -> None:
        """Add messages whose body, property ``number`` and tag contain their queue offset."""
        queue = MessageQueue(topic, "broker-a", queue_id)
        first = self.sim.bounds(queue).max_offset
        self.sim.put(queue, [message(topic, number) for number in range(first, first + count)])

    def planned(self, topic: str, **options: str) -> list[QueuePartition]:
        """The tasks of a batch read."""
        return planned_batch(**self._options(topic, options))

    def read(self, topic: str, **options: str) -> pa.Table:
        """What a batch reads."""
        return read_batch(**self._options(topic, options))

    def _options(self, topic: str, options: Mapping[str, str]) -> dict[str, str]:
        given = {} if "topicPattern" in options else {"topic": topic}
        return {"nameServers": self.sim.name_servers} | PATIENT | given | dict(options)

    def stream(self, topic: str | None, **options: str) -> StreamUnderTest:
        """A stream from the earliest offset, unless set otherwise."""
        given = {} if topic is None else {"topic": topic}
        begin = {} if any(key.startswith("starting") for key in options) else {"startingOffsets": "earliest"}
        return StreamUnderTest(nameServers=self.sim.name_servers, **PATIENT | given | begin | options)

    def offsets(self, topic: str, **options: str) -> dict[int, list[int]]:
        """What a batch reads, as queue offsets by queue id; the order is that of the rows."""
        found: dict[int, list[int]] = {}
        for row in self.read(topic, **options).select(["queueId", "queueOffset"]).to_pylist():
            found.setdefault(row["queueId"], []).append(row["queueOffset"])
        return found


def message(topic: str, number: int) -> Message:
    """One of the messages of :meth:`Topics.put`."""
    tag = "odd" if number % 2 else "even"
    return Message(topic=topic, body=b"%d" % number, properties={"TAGS": tag, "number": str(number)})


@pytest.fixture
def given_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long everything was given that has a deadline: what a slow machine makes of that says nothing."""
    given: list[float] = []
    after = Deadline.after
    # Of other tests: one that looks for its driver goes on with that.
    others = set(threading.enumerate()) - {threading.current_thread()}

    def noted(_: type[Deadline], clock: Clock, timeout_s: float) -> Deadline:
        if threading.current_thread() not in others:
            given.append(timeout_s)
        return after(clock, timeout_s)

    monkeypatch.setattr(Deadline, "after", classmethod(noted))
    return given


@pytest.fixture
def topics(sim_cluster: SimCluster) -> Iterator[Topics]:
    """Topics on the simulator of the run."""
    yield Topics(sim_cluster)
    close_idle_connections()
