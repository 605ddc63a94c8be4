"""The concurrent engine, on real and simulated brokers, does what Java's consumer was recorded to do.

Reader, engine and send-backs are those of a query. In place of Spark and the planner a loop reads the queues
of the topic and of the retry topic, each from where its last ack has come.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue, QueueRange, dlq_topic, retry_topic
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.ranges import partitions_of
from pyspark_rocketmq.source.reader import read_arrivals
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.send import SendSettings
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.wait import wait_until
from tests.java.traces import (
    CONCURRENT,
    Scenario,
    StoredTrace,
    assert_waits_as_recorded,
    script_of,
    without_ids,
)

_OUTPUT = StructType().add("key", "string")
_BROKER = "broker-a"
_SCENARIOS: tuple[Scenario, ...] = tuple(
    json.loads(json.dumps(recorded).replace("TrC", "OurC")) for recorded in CONCURRENT
)
"""Under names of their own: Java's clients do the same on the same brokers."""
Seen = dict[str, list[tuple[Any, ...]]]


class ScriptedListener:
    """Answers as a scenario was recorded, and notes what it was given."""

    def __init__(self, scenario: Scenario) -> None:
        self._answers = script_of(scenario)
        self._lock = threading.Lock()
        self._clock = SystemClock()
        self.events: list[dict[str, Any]] = []

    def __call__(self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> str | None:
        with self._lock:
            # How many messages of a retry topic arrive together is a matter of milliseconds.
            answers = self._answers.get(str(messages[0].keys)) or ["CONSUME_SUCCESS"]
            answer = answers.pop(0)
            self.events.append(
                {
                    "ms": self._clock.monotonic_s() * 1000,
                    "result": answer,
                    "messages": [_shown(message) for message in messages],
                }
            )
        context.emit(messages[0], key=messages[0].keys)
        if answer == "throws":
            raise ValueError("as recorded")
        status, _, change = answer.partition(" ")
        if change.startswith("ackIndex "):
            context.ack_index = int(change.split()[1])
        elif change.startswith("delayLevel "):
            context.delay_level_when_next_consume = int(change.split()[1])
        return None if status == "null" else status


def _shown(message: MessageExt) -> dict[str, Any]:
    shown = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "key": message.keys,
        "reconsumeTimes": message.reconsume_times,
    }
    of_retry = ("DELAY", "REAL_TOPIC")
    return shown | {name: message.properties[name] for name in of_retry if name in message.properties}


class OurRun(StoredTrace):
    """One scenario in its own topic and group, named as in the recording."""

    def __init__(self, scenario: Scenario, cluster: ClusterUnderTest, client: BrokerClient) -> None:
        super().__init__(scenario, cluster)
        self._client = client
        self.listener = ScriptedListener(scenario)
        self.next_offsets: dict[MessageQueue, int] = defaultdict(int)
        self.rows: list[str] = []
        self.kept: tuple[list[Any], list[Any]] = ([], [])
        """What the retry topic and the dead-letter topic held at the end."""
        self._options = ReadOptions.parse(
            {
                "nameServers": cluster.name_servers,
                "topic": self.topic,
                "consumerGroup": self.group,
                "offsetStore": "delta:/unused",
            }
        )
        self._engine = ConcurrentEngine(
            form_of(self.listener, self.group, orderly=False),
            _OUTPUT,
            ConcurrentSettings(
                consume_message_batch_max_size=self.config["consumeMessageBatchMaxSize"],
                max_reconsume_times=self.config["maxReconsumeTimes"],
            ),
            # Who gives a slow broker up sends the message in another way.
            replace(SendBackSettings.of(self._options), back_timeout_s=ANSWER_S, send_timeout_s=ANSWER_S),
        )

    def send(self, key: str, queue_id: int) -> None:
        """As the recording's producer did."""
        queue = MessageQueue(self.topic, _BROKER, queue_id)
        properties = {
            "KEYS": key,
            "TAGS": "T",
            "WAIT": "true",
            "UNIQ_KEY": f"{self.topic}{key}".ljust(32, "0"),
        }
        message = Message(topic=self.topic, body=key.encode(), properties=properties)
        end = (
            self._client.send(self.address, message, queue, SendSettings(producer_group="P")).queue_offset + 1
        )
        await_readable(self._client, self.address, queue, end)

    def show(self) -> None:
        """Register the group at the broker, as a member does; it makes the retry topic."""
        subscriptions = tuple(
            build_subscription(topic, "*", sub_version=1) for topic in (self.topic, retry_topic(self.group))
        )
        consumer = ConsumerData(group_name=self.group, subscriptions=subscriptions)
        self._client.heartbeat(self.address, HeartbeatData(client_id=self.group, consumers=(consumer,)))

    def consume(self) -> None:
        """Read and consume until every recorded delivery was made and its effects are there."""
        wanted = sum(len(event["messages"]) for event in self.scenario["events"])
        dead = without_ids(self.scenario["dlq_content"])

        def is_over() -> bool:
            for queue in self.queues():
                self._consume_queue(queue)
            seen = sum(len(event["messages"]) for event in self.listener.events)
            return seen >= wanted and self.content(self._client, dlq_topic(self.group)) == dead

        wait_until(is_over, 6 * ANSWER_S, reason=f"{self.topic} as recorded")

    def queues(self) -> Iterator[MessageQueue]:
        for queue_id in range(self.config["queues"]):
            yield MessageQueue(self.topic, _BROKER, queue_id)
        yield MessageQueue(retry_topic(self.group), _BROKER, 0)

    def _consume_queue(self, queue: MessageQueue) -> None:
        start, end = self.next_offsets[queue], self._client.max_offset(self.address, queue)
        if start >= end:
            return
        planned = QueueRange.between(queue, start, end, epoch=1)
        (partition,) = partitions_of([planned], self._options, {_BROKER: self.address}, {})  # type: ignore[dict-item]
        for consumed in self._engine(ClosedSource(read_arrivals([partition]))):
            self.rows += [key for rows in consumed.batches() for key in rows.column("key").to_pylist()]
            self.next_offsets[queue] = consumed.ack.state.next_offset


@pytest.fixture(
    scope="module",
    params=[pytest.param("sim", marks=pytest.mark.sim), pytest.param("real", marks=pytest.mark.real)],
)
def finished(request: pytest.FixtureRequest) -> Iterator[Mapping[str, OurRun | BaseException]]:
    """Every scenario by its topic, all consumed at the same time."""
    if request.param == "real":
        yield _consume_all(request.getfixturevalue("real_cluster"), "real")
        return
    # The real brokers of the harness have 18 levels of a second, too.
    with SimCluster(brokers=2, settings=BrokerSettings(delay_levels_s=(1.0,) * 18)) as sim:
        yield _consume_all(sim, "sim")


def _consume_all(backend: Backend, kind: str) -> Mapping[str, OurRun | BaseException]:
    cluster = ClusterUnderTest(backend, kind)
    with ChannelPool(SystemClock()) as pool, ThreadPoolExecutor(len(_SCENARIOS)) as threads:
        client = BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)
        runs = [OurRun(scenario, cluster, client) for scenario in _SCENARIOS]
        for run in runs:
            run.prepare()
            run.show()
        futures = {run: threads.submit(run.consume) for run in runs}
        outcomes = {run.topic: future.exception() or run for run, future in futures.items()}
        for run in runs:
            run.kept = (
                run.content(client, retry_topic(run.group)),
                run.content(client, dlq_topic(run.group)),
            )
        return outcomes


@pytest.mark.parametrize("scenario", _SCENARIOS, ids=lambda scenario: scenario["scenario"])
def test_a_listener_sees_and_leaves_what_java_s_was_recorded_to(
    scenario: Scenario, finished: Mapping[str, OurRun | BaseException]
) -> None:
    """E1-E4, E6, E8: each offset, reconsumeTimes, delay level and answer; retry topic,
    dead letters, offsets.
    """
    run = finished[StoredTrace.topic_of(scenario)]
    if isinstance(run, BaseException):
        raise run

    assert by_queue(run.listener.events) == by_queue(scenario["events"])
    retried, dead = run.kept
    assert retried == without_ids(scenario["retry_topic_content"])
    assert dead == without_ids(scenario["dlq_content"])
    *committed, committed_retry = [run.next_offsets[queue] for queue in run.queues()]
    assert committed == scenario["committed_after_shutdown"]
    assert [committed_retry or None] == scenario["committed_retry_topic"]
    acknowledged = [event for event in run.listener.events if event["result"].startswith("CONSUME_SUCCESS")]
    assert sorted(run.rows) == sorted(event["messages"][0]["key"] for event in acknowledged)
    assert_waits_as_recorded(run.listener.events, scenario)


def by_queue(events: Sequence[Mapping[str, Any]]) -> Seen:
    """What was delivered from each queue, with the answer each message got, by offset."""
    queues: Seen = defaultdict(list)
    for event in events:
        for message in event["messages"]:
            facts = [message.get(name) for name in ("queueOffset", "reconsumeTimes", "topic", "key", "DELAY")]
            queue = f"{message.get('REAL_TOPIC', message['topic'])}:{message['queueId']}"
            queues[queue].append((*facts, event["result"]))
    return {queue: sorted(deliveries, key=lambda each: each[:2]) for queue, deliveries in queues.items()}
