"""Both engines, on real and simulated brokers and in both modes, do what Java's consumer was recorded to do.

Reader, engines and send-backs are those of a query. In place of Spark and the planner a loop reads closed
ranges of the queues of the topic and of the retry topic, each from where its last ack has come. In real time
it cuts one task with open ranges, until everything has come.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.consumer.engine.direct import DirectEngine
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed, CutTogether
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.consumer.engine.task import Engine
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    OPEN_END,
    Message,
    MessageExt,
    MessageQueue,
    QueueRange,
    QueueState,
    dlq_topic,
    retry_topic,
)
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.range_arrivals import RangeArrivals, closed_arrivals
from pyspark_rocketmq.source.ranges import QueuePartition, partitions_of
from pyspark_rocketmq.stored_values import NO_MESSAGES
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.send import SendSettings
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.modes import Mode
from tests.helpers.wait import wait_until
from tests.java.traces import (
    CONCURRENT,
    ORDERLY,
    Scenario,
    StoredTrace,
    assert_waits_as_recorded,
    script_of,
    without_ids,
)

_OUTPUT = StructType().add("key", "string")
_BROKER = "broker-a"
_OF_MODE = {Mode.MICRO_BATCH: "Our", Mode.REAL_TIME: "Live"}
"""Prefixes of names: Java's clients and the other mode do the same on the same brokers."""
_ACKNOWLEDGED = ("CONSUME_SUCCESS", "SUCCESS", "COMMIT")
Seen = dict[str, list[tuple[Any, ...]]]


class ScriptedListener:
    """Answers as a scenario was recorded, and notes what it was given."""

    def __init__(self, scenario: Scenario) -> None:
        self._answers = script_of(scenario)
        self._is_auto_commit = not scenario["scenario"].startswith("autoCommit=false")
        self._lock = threading.Lock()
        self._clock = SystemClock()
        self.events: list[dict[str, Any]] = []

    def concurrent(self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> str | None:
        """A concurrent listener."""
        answer = self._answer(messages, "CONSUME_SUCCESS")
        context.emit(messages[0], key=messages[0].keys)
        status, _, change = answer.partition(" ")
        if change.startswith("ackIndex "):
            context.ack_index = int(change.split()[1])
        elif change.startswith("delayLevel "):
            context.delay_level_when_next_consume = int(change.split()[1])
        return self._status(status)

    def orderly(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> str | None:
        """An orderly listener."""
        answer = self._answer(messages, "SUCCESS")
        for message in messages:
            context.emit(key=message.keys)
        context.auto_commit = self._is_auto_commit
        status, _, suspend_millis = answer.partition(" suspend ")
        if suspend_millis:
            context.suspend_current_queue_time_millis = int(suspend_millis)
        return self._status(status)

    def _answer(self, messages: Sequence[MessageExt], otherwise: str) -> str:
        with self._lock:
            # How many messages of a retry topic arrive together is a matter of milliseconds.
            answers = self._answers.get(str(messages[0].keys)) or [otherwise]
            answer = answers.pop(0)
            self.events.append(
                {
                    "ms": self._clock.monotonic_s() * 1000,
                    "result": answer.partition(" suspend ")[0],
                    "messages": [_shown(message) for message in messages],
                }
            )
            return answer

    @staticmethod
    def _status(status: str) -> str | None:
        if status == "throws":
            raise ValueError("as recorded")
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


class Instructions(RangeInstructions):
    """Instructions to a task with open ranges, in place of a driver's."""

    def __init__(self) -> None:
        self._is_over = False
        self._changed: Callable[[], None] = lambda: None
        self.cut: Callable[[], RangeCuts] = RangeCuts

    def is_given_up(self, queue: MessageQueue) -> bool:
        return self._is_over

    def notifies(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def cut_with(self, cut: Callable[[], RangeCuts]) -> None:
        self.cut = cut

    def end(self) -> None:
        """Have the task give up all its queues."""
        self._is_over = True
        self._changed()


class OurRun(StoredTrace):
    """One scenario in its own topic and group, named as in the recording."""

    def __init__(
        self, recorded: Scenario, cluster: ClusterUnderTest, client: BrokerClient, mode: Mode
    ) -> None:
        prefix = f"{_OF_MODE[mode]}Tr"
        super().__init__(json.loads(re.sub(r"\bTr(?=[CO]\d)", prefix, json.dumps(recorded))), cluster)
        self._client = client
        self.listener = ScriptedListener(self.scenario)
        self.is_orderly = "suspendCurrentQueueTimeMillis" in self.config
        self.states = dict.fromkeys(self.queues(), QueueState(0, 1))
        self.rows: list[str] = []
        self.kept: tuple[list[Any], list[Any]] = ([], [])
        """The contents of the retry topic and the dead-letter topic at the end."""
        self._options = ReadOptions.parse(
            {
                "nameServers": cluster.name_servers,
                "topic": self.topic,
                "consumerGroup": self.group,
                "offsetStore": "delta:/unused",
            }
        )
        self._engine = self._made_engine()
        self.consume = self._in_micro_batches if mode is Mode.MICRO_BATCH else self._in_real_time

    def _made_engine(self) -> Engine:
        # Who gives a slow broker up sends the message in another way.
        send_back = replace(
            SendBackSettings.of(self._options), back_timeout_s=ANSWER_S, send_timeout_s=ANSWER_S
        )
        if self.is_orderly:
            settings = OrderlySettings(
                consume_message_batch_max_size=self.config["consumeMessageBatchMaxSize"],
                suspend_current_queue_time_millis=self.config["suspendCurrentQueueTimeMillis"],
                max_reconsume_times=self.config["maxReconsumeTimes"],
            )
            columns = OutputColumns.of(_OUTPUT)
            return DirectEngine(RangeConsumer(self.listener.orderly, columns, settings, send_back))
        return ConcurrentEngine(
            form_of(self.listener.concurrent, self.group, orderly=False),
            _OUTPUT,
            ConcurrentSettings(
                consume_message_batch_max_size=self.config["consumeMessageBatchMaxSize"],
                max_reconsume_times=self.config["maxReconsumeTimes"],
            ),
            send_back,
        )

    def send(self, key: str, queue_id: int) -> None:
        """Send the messages as the recording's producer did."""
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

    def _in_micro_batches(self) -> None:
        """Read and consume until every recorded delivery was made and its effects are there."""

        def is_over() -> bool:
            for queue in self.queues():
                self._consume_queue(queue)
            return self._is_as_recorded()

        wait_until(is_over, 6 * ANSWER_S, reason=f"{self.topic} as recorded")

    def _in_real_time(self) -> None:
        """Have one task consume all queues, and cut it, until the same is reached."""
        instructions = Instructions()
        source = RangeArrivals(
            self._partitions(QueueRange(queue, state, end=OPEN_END) for queue, state in self.states.items())
        )
        with ThreadPoolExecutor(1) as thread:
            task = thread.submit(lambda: list(self._engine(source, instructions)))

            def is_over() -> bool:
                cut = instructions.cut()
                self._take((*cut.ended, *cut.going_on))
                return task.done() or self._is_as_recorded()

            try:
                wait_until(is_over, 6 * ANSWER_S, reason=f"{self.topic} as recorded")
            finally:
                instructions.end()
            self._take(task.result(ANSWER_S))

    def _is_as_recorded(self) -> bool:
        wanted = sum(len(event["messages"]) for event in self.scenario["events"])
        seen = sum(len(event["messages"]) for event in self.listener.events)
        dead = without_ids(self.scenario["dlq_content"])
        return seen >= wanted and self.content(self._client, dlq_topic(self.group)) == dead

    def queues(self) -> Iterator[MessageQueue]:
        for queue_id in range(self.config["queues"]):
            yield MessageQueue(self.topic, _BROKER, queue_id)
        if not self.is_orderly:
            yield MessageQueue(retry_topic(self.group), _BROKER, 0)

    def _consume_queue(self, queue: MessageQueue) -> None:
        state, end = self.states[queue], self._client.max_offset(self.address, queue)
        if state.next_offset >= end or (state.suspended_until_s or 0.0) > time.time():
            return
        planned = QueueRange(queue, state._replace(suspended_until_s=None, last_message=NO_MESSAGES), end=end)
        self._take(self._engine(ClosedSource(closed_arrivals(self._partitions([planned])))))

    def _partitions(self, planned: Iterable[QueueRange]) -> list[QueuePartition]:
        return partitions_of(planned, self._options, {_BROKER: self.address}, {})  # type: ignore[dict-item]

    def _take(self, results: Iterable[Consumed | CutTogether]) -> None:
        for consumed in results:
            assert isinstance(consumed, Consumed)
            queue, ack = consumed.ack.queue, consumed.ack
            assert ack.start == self.states[queue].next_offset
            self.rows += [key for rows in consumed.batches() for key in rows.column("key").to_pylist()]
            self.states[queue] = ack.state

    def committed(self) -> list[int | None]:
        """Return the offsets that the group has reached: of its topic's queues, then of its retry topic."""
        retry = self.states.get(MessageQueue(retry_topic(self.group), _BROKER, 0))
        reached: list[int | None] = [
            self.states[MessageQueue(self.topic, _BROKER, at)].next_offset
            for at in range(self.config["queues"])
        ]
        return [*reached, None if retry is None else retry.next_offset or None]

    def keys_of_rows(self) -> list[str]:
        """Return the keys that rows must have: those of deliveries that count."""
        events = [each for each in self.listener.events if each["result"].startswith(_ACKNOWLEDGED)]
        if not self.is_orderly:
            return [event["messages"][0]["key"] for event in events]
        ends = self.scenario["committed_after_shutdown"]
        messages = [message for event in events for message in event["messages"]]
        return [each["key"] for each in messages if each["queueOffset"] < ends[each["queueId"]]]


_BACKENDS = [pytest.param("sim", marks=pytest.mark.sim), pytest.param("real", marks=pytest.mark.real)]


@pytest.fixture(scope="module", params=[Mode.MICRO_BATCH, Mode.REAL_TIME])
def mode(request: pytest.FixtureRequest) -> Mode:
    return Mode(request.param)


@pytest.fixture(scope="module", params=_BACKENDS)
def finished(request: pytest.FixtureRequest, mode: Mode) -> Iterator[Mapping[str, OurRun | BaseException]]:
    """Every scenario by its name, all consumed at the same time."""
    if request.param == "real":
        yield _consume_all(request.getfixturevalue("real_cluster"), "real", mode)
        return
    # The real brokers of the harness have 18 levels of a second, too.
    with SimCluster(brokers=2, settings=BrokerSettings(delay_levels_s=(1.0,) * 18)) as sim:
        yield _consume_all(sim, "sim", mode)


def _consume_all(backend: Backend, kind: str, mode: Mode) -> Mapping[str, OurRun | BaseException]:
    cluster, scenarios = ClusterUnderTest(backend, kind), (*ORDERLY, *CONCURRENT)
    with ChannelPool(SystemClock()) as pool, ThreadPoolExecutor(len(scenarios)) as threads:
        client = BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)
        runs = [OurRun(scenario, cluster, client, mode) for scenario in scenarios]
        for run in runs:
            run.prepare()
            run.show()
        futures = {run: threads.submit(run.consume) for run in runs}
        outcomes = {
            str(run.scenario["scenario"]): future.exception() or run for run, future in futures.items()
        }
        for run in runs:
            run.kept = (
                run.content(client, retry_topic(run.group)),
                run.content(client, dlq_topic(run.group)),
            )
    close_idle_connections()
    return outcomes


@pytest.mark.parametrize("scenario", [*ORDERLY, *CONCURRENT], ids=lambda scenario: scenario["scenario"])
def test_a_listener_sees_and_leaves_what_java_s_was_recorded_to(
    scenario: Scenario, finished: Mapping[str, OurRun | BaseException]
) -> None:
    """D1-D6, E1-E4, E6, E8: each offset, reconsumeTimes, delay level and answer; retry topic,
    dead letters, offsets; in micro-batches and in real time.
    """
    run = finished[scenario["scenario"]]
    if isinstance(run, BaseException):
        raise run

    recorded = run.scenario
    seen = by_queue(run.listener.events, is_ordered=run.is_orderly)
    assert seen == by_queue(recorded["events"], is_ordered=run.is_orderly)
    retried, dead = run.kept
    assert retried == without_ids(recorded["retry_topic_content"])
    assert dead == without_ids(recorded["dlq_content"])
    assert run.committed() == [*recorded["committed_after_shutdown"], *recorded["committed_retry_topic"]]
    assert sorted(run.rows) == sorted(run.keys_of_rows())
    assert_waits_as_recorded(run.listener.events, recorded)


def by_queue(events: Sequence[Mapping[str, Any]], *, is_ordered: bool) -> Seen:
    """The deliveries of each queue, with each message's answer; by offset unless ordered."""
    queues: Seen = defaultdict(list)
    for event in events:
        for message in event["messages"]:
            facts = [message.get(name) for name in ("queueOffset", "reconsumeTimes", "topic", "key", "DELAY")]
            queue = f"{message.get('REAL_TOPIC', message['topic'])}:{message['queueId']}"
            queues[queue].append((*facts, event["result"]))
    if is_ordered:
        return dict(queues)
    return {queue: sorted(deliveries, key=lambda each: each[:2]) for queue, deliveries in queues.items()}
