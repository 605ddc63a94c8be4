"""Repeats the recorded runs of scripted listeners by Java's push consumer against any cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.errors import OffsetNotFound, TopicNotFound
from pyspark_rocketmq.model import MessageQueue, dlq_topic, retry_topic
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest
from tests.both.support import ANSWER_S
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.golden import golden
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients

Scenario = Mapping[str, Any]

ORDERLY: tuple[Scenario, ...] = tuple(golden("orderly_trace.json")["scenarios"])
CONCURRENT: tuple[Scenario, ...] = tuple(golden("concurrent_trace.json")["scenarios"])

_BROKER = "broker-a"
MOST_S = 150.0
"""Time limit for a scenario on a busy machine."""
_DELAY_LEVEL_MS = 1000
"""Delay of every level, at the recorded broker and those of the tests."""
_ROUNDING_MS = 150
"""Rounding of the recording's times, which are in tenths of a second."""
_CONTEXT_SUSPENDS = {"context suspend time per call": [" suspend 100", " suspend 2000", " suspend 1"]}
"""Set in the listener's context, which the recording mentions in words only."""
_OF_THE_RUN = ("ORIGIN_MESSAGE_ID", "UNIQ_KEY")
"""Ids; their presence is compared, not their value."""


class StoredTrace:
    """One scenario in a topic and a group, named as in the recording or otherwise: its messages,
    as sent and as stored.
    """

    def __init__(
        self,
        scenario: Scenario,
        cluster: ClusterUnderTest,
        *,
        topic: str | None = None,
        group: str | None = None,
    ) -> None:
        self.scenario = scenario
        self._cluster = cluster
        self.config = scenario["config"]
        self.topic = topic or self.topic_of(scenario)
        self.group = group or self.topic.removesuffix("T")

    @staticmethod
    def topic_of(scenario: Scenario) -> str:
        """Return the topic it was recorded with; the group's name is the topic's without the last letter."""
        return str(scenario["events"][0]["messages"][0]["topic"])

    @property
    def address(self) -> str:
        """Where its broker is."""
        return self._cluster.broker_addresses[_BROKER]

    def prepare(self) -> None:
        """Create the topics and send the messages."""
        self._cluster.create_topic(self.topic, self.config["queues"], brokers=[_BROKER])
        self.prepare_group()
        for sent in self.config["sent (key@queue)"]:
            key, queue_id = sent.split("@")
            self.send(key, int(queue_id))

    def prepare_group(self) -> None:
        """Create the group's retry topic where it was there before the recording."""
        if self.config.get("retry topic created beforehand", True):
            self._cluster.create_topic(retry_topic(self.group), 1, brokers=[_BROKER])

    def send(self, key: str, queue_id: int) -> None:
        """Send the message of one key, with the key as its body."""
        raise NotImplementedError

    def content(self, client: BrokerClient, topic: str) -> list[Any]:
        """Return the messages in the first queue of a topic, ids blanked."""
        queue = MessageQueue(topic, _BROKER, 0)
        end = client.max_offset(self.address, queue)
        body, at = b"", 0
        try:
            while at < max(end, 1):
                request = PullRequest(consumer_group="trace-reader", queue=queue, queue_offset=at)
                result = client.pull(self.address, request)
                body, at = body + result.body, max(result.next_begin_offset, at + 1)
        except TopicNotFound:
            return ["topic does not exist"]
        return without_ids(
            {
                "queueId": message.queue_id,
                "queueOffset": message.queue_offset,
                "key": message.keys,
                "reconsumeTimes": message.reconsume_times,
                "properties": dict(message.properties),
            }
            for message in decode_messages(body, _BROKER)
        )


class TraceRun(StoredTrace):
    """A scenario done by a Java consumer."""

    def __init__(
        self,
        scenario: Scenario,
        java: JavaClients,
        cluster: ClusterUnderTest,
        *,
        topic: str | None = None,
        group: str | None = None,
    ) -> None:
        super().__init__(scenario, cluster, topic=topic, group=group)
        self._java = java
        self._is_orderly = "suspendCurrentQueueTimeMillis" in self.config

    def send(self, key: str, queue_id: int) -> None:
        """Have Java's producer send it."""
        self._java.call(
            "producer.send",
            group="trace-producer",
            how="queue",
            queue={"topic": self.topic, "brokerName": _BROKER, "queueId": queue_id},
            messages=[{"topic": self.topic, "body": key, "keys": key, "tags": "T"}],
        )

    def begin(self) -> Future[Any]:
        """Start the consumer; the future has the listener's calls once all
        recorded messages were delivered.
        """
        self._java.call(
            "push.start",
            name=self.group,
            group=self.group,
            topic=self.topic,
            tags="*",
            isOrderly=self._is_orderly,
            autoCommit=not self.scenario["scenario"].startswith("autoCommit=false"),
            answers=script_of(self.scenario),
            maxReconsumeTimes=self.config["maxReconsumeTimes"],
            heartbeatMillis=1000,
            batch=self.config["consumeMessageBatchMaxSize"],
            **({"suspendMillis": self.config["suspendCurrentQueueTimeMillis"]} if self._is_orderly else {}),
        )
        return self._java.submit(
            "push.events",
            name=self.group,
            count=sum(len(event["messages"]) for event in self.scenario["events"]),
            timeoutMillis=int(MOST_S * 1000),
        )

    def await_effects(self, client: BrokerClient) -> None:
        """Have the client send its offsets, and wait for the effects of the last listener call."""
        for name, of_broker in (
            ("dlq_content", self.dead_letters),
            ("committed_after_shutdown", self.committed),
            ("committed_retry_topic", self.committed_retry),
        ):
            recorded = [self._renamed(each) for each in without_ids(self.scenario[name])]
            wait_until(
                partial(lambda read, wanted: self._persisted(read, client) == wanted, of_broker, recorded),
                ANSWER_S,
                reason=f"{name} of {self.group} as recorded, {recorded},",
            )

    def end(self) -> Future[Any]:
        """Shut the consumer down; it unregisters and commits its offsets."""
        return self._java.submit("push.stop", name=self.group)

    def all_calls(self) -> list[dict[str, Any]]:
        """Return every call of the listener, including those after the recorded ones."""
        return list(self._java.call("push.events", name=self.group, count=0, timeoutMillis=0))

    def committed(self, client: BrokerClient) -> list[int | None]:
        """Return the committed offsets of the topic's queues."""
        return [self._committed(client, self.topic, at) for at in range(self.config["queues"])]

    def committed_retry(self, client: BrokerClient) -> list[int | None]:
        """Return the committed offset of the retry topic's queue."""
        return [self._committed(client, retry_topic(self.group), 0)]

    def retries(self, client: BrokerClient) -> list[Any]:
        """Return the content of the retry topic."""
        return self.content(client, retry_topic(self.group))

    def dead_letters(self, client: BrokerClient) -> list[Any]:
        """Return the content of the dead-letter topic."""
        return self.content(client, dlq_topic(self.group))

    def _renamed(self, stored: Any) -> Any:
        """Return a recorded message as it is with this run's topic."""
        if not isinstance(stored, dict) or "RETRY_TOPIC" not in stored["properties"]:
            return stored
        return {**stored, "properties": {**stored["properties"], "RETRY_TOPIC": self.topic}}

    def _persisted(self, of_broker: Callable[[BrokerClient], list[Any]], client: BrokerClient) -> list[Any]:
        self._java.call("push.persist", name=self.group)
        return of_broker(client)

    def _committed(self, client: BrokerClient, topic: str, queue_id: int) -> int | None:
        queue = MessageQueue(topic, _BROKER, queue_id)
        try:
            return client.query_consumer_offset(self.address, self.group, queue, set_zero_if_not_found=False)
        except OffsetNotFound:
            return None


def without_ids(messages: Iterable[Any]) -> list[Any]:
    """Stored messages with the ids of the run blanked; other entries as they are."""
    return [
        {**message, "properties": _without_ids(message["properties"])}
        if isinstance(message, dict)
        else message
        for message in messages
    ]


def by_queue(events: Iterable[Mapping[str, Any]], *, is_ordered: bool) -> dict[str, list[Any]]:
    """Return the deliveries from each queue, with the answer each message got.

    Concurrent calls of one queue overlap, so without ``is_ordered`` they are sorted by offset. Batches are
    taken apart: how many messages of a retry topic arrive together is a matter of milliseconds.
    """
    queues: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        for message in event["messages"]:
            topic = message.get("REAL_TOPIC", message["topic"])
            seen = _without_ids({name: value for name, value in message.items() if name != "MAX_OFFSET"})
            queues[f"{topic}:{message['queueId']}"].append((seen, event["result"]))
    if not is_ordered:
        for calls in queues.values():
            calls.sort(key=lambda call: (call[0]["queueOffset"], call[0]["reconsumeTimes"]))
    return dict(queues)


def waits_ms(events: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return milliseconds from each delivery to its next one, by message key."""
    moments: dict[str, list[int]] = defaultdict(list)
    for event in events:
        for message in event["messages"]:
            moments[message["key"]].append(event["ms"])
    return {key: [after - before for before, after in pairwise(times)] for key, times in moments.items()}


def assert_waits_as_recorded(events: Iterable[Mapping[str, Any]], scenario: Scenario) -> None:
    """Each message came again after the recorded pause, not before; how much later is up to the machine."""
    recorded = waits_ms(scenario["events"])
    for key, waits in waits_ms(events).items():
        for wait_ms, recorded_ms in zip(waits, recorded[key], strict=True):
            least_ms = recorded_ms
            if not scenario["config"].get("retry topic created beforehand", True):
                # The recorded member found its new retry topic with its next rebalance, 20 s later.
                least_ms = _DELAY_LEVEL_MS
            assert least_ms - _ROUNDING_MS <= wait_ms, (key, waits, recorded[key])


def script_of(scenario: Scenario) -> dict[str, list[str]]:
    """Return the listener's answers by the key of a batch's first message, in their order."""
    answers: dict[str, list[str]] = defaultdict(list)
    for event in scenario["events"]:
        answers[event["messages"][0]["key"]].append(event["result"])
    for at, suspend in enumerate(_CONTEXT_SUSPENDS.get(scenario["scenario"], [])):
        answers["a"][at] += suspend
    return dict(answers)


def _without_ids(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "(of the run)" if name in _OF_THE_RUN else value for name, value in properties.items()}
