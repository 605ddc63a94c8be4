"""One simulated broker, one JVM with Java's clients,
and the requests between them in the words of sequences.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.fastjson import decode_body
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData
from tests.both.support import ANSWER_S
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.golden import golden
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients
from tests.java.push import PushConsumer
from tests.java.request_log import NO_REPLY, RequestLog, Seen

SEQUENCES = {
    name: rows for name, rows in golden("sequences.json").items() if name not in ("made_by", "columns")
}
Row = tuple[str, str, str | None, int | str]

PRODUCER = "FrProducer"
NOISE = frozenset({"GET_ROUTEINFO_BY_TOPIC", "UPDATE_CONSUMER_OFFSET"})
"""Requests of timers."""
PULLS = frozenset({"PULL_MESSAGE", "LITE_PULL_MESSAGE"})
_BY_TIMERS = NOISE | {"HEART_BEAT", "GET_CONSUMER_LIST_BY_GROUP", "LOCK_BATCH_MQ"}
"""Requests of a member's timers, too, which may come at any time."""
_HELD = "held"


def recorded(scenario: str) -> list[Row]:
    """Return the rows of a scenario."""
    return [_row(path, request, topic, answer) for _, path, request, topic, answer, _ in SEQUENCES[scenario]]


def observed(requests: Iterable[Seen]) -> list[Row]:
    """Return the rows of the requests that the simulator got."""
    return [
        _row(seen.path, seen.request, seen.topic, seen.answer)
        for seen in requests
        if seen.answer != ResponseCode.SUBSCRIPTION_NOT_LATEST and not _is_of_producers(seen)
    ]


def _is_of_producers(seen: Seen) -> bool:
    """Return whether it is the heartbeat of a client that consumes nothing:
    the tests' producer has one every 30 s.
    """
    return seen.request == "HEART_BEAT" and not decode_body(HeartbeatData, seen.command.body).consumers


def _row(path: str, request: str, topic: str | None, answer: int | str) -> Row:
    is_held = request in PULLS and answer in (19, NO_REPLY)
    return path, request, topic, _HELD if is_held else answer


def facts(rows: Iterable[Row], without: frozenset[str] = NOISE) -> set[Row]:
    """Return the different requests, with topic and answer, leaving out requests or topics in ``without``."""
    return {row for row in rows if row[1] not in without and row[2] not in without}


def unlike(found: Set[Row], wanted: Set[Row]) -> set[Row]:
    """Return the missing rows of a recording, and additional rows that no timer explains."""
    return {row for row in found ^ wanted if row in wanted or row[1] not in _BY_TIMERS}


def in_turn(rows: Iterable[Row], wanted: Iterable[str]) -> list[str]:
    """Return how far these requests follow each other in this order;
    timers may have made any of them before its turn, too.
    """
    requests = (request for _, request, _, _ in rows)
    # ``in`` advances the iterator past the request, or to the end.
    return list(takewhile(lambda each: each in requests, wanted))


def order(rows: Iterable[Row], of: Sequence[str]) -> list[str]:
    """Return these requests in the order in which each was made first."""
    return list(dict.fromkeys(request for _, request, _, _ in rows if request in of))


class Stage:
    """One broker, one JVM, and all requests between them."""

    def __init__(self, cluster: SimCluster, java: JavaClients) -> None:
        self.cluster = cluster
        self.java = java
        self.log = RequestLog(cluster)
        self.view = ClusterUnderTest(cluster, "sim")

    def send(self, how: str, topic: str = "FrA", count: int = 1, **message: object) -> None:
        messages = [{"topic": topic, "body": "sync", "tags": "TagA", "keys": "k", **message}] * count
        arguments: dict[str, Any] = {"arg": "order-1", "queue": queue_of(topic)}
        self.java.call("producer.send", group=PRODUCER, how=how, messages=messages, **arguments)

    def put(self, topic: str, queue_id: int = 0, count: int = 1, **properties: str) -> None:
        message = Message(topic=topic, body=b"x", properties={"TAGS": "TagA", **properties})
        self.cluster.put(MessageQueue(topic, "broker-a", queue_id), [message] * count)

    def push(self, name: str, group: str, topic: str, **how: object) -> PushConsumer:
        return PushConsumer(self.java, name, group, topic, **how)

    def await_rows(self, scenario: str, without: frozenset[str] = NOISE) -> list[Row]:
        """Return the rows since the last call, once all facts of the recording are among them."""
        wanted = facts(recorded(scenario), without)

        def missing() -> set[Row]:
            return wanted - facts(observed(self.log.so_far()), without)

        wait_until(
            lambda: not missing(), 2 * ANSWER_S, reason=f"All requests of {scenario}, but for {missing()},"
        )
        return observed(self.log.taken())

    def heartbeats(self, group: str) -> list[HeartbeatData]:
        """Return the heartbeats with this group since the log was taken."""
        bodies = [seen.command.body for seen in self.log.so_far() if seen.request == "HEART_BEAT"]
        return [decode_body(HeartbeatData, body) for body in bodies if group.encode() in body]

    def await_goodbyes(self) -> None:
        """Wait until a client that shuts down has unregistered its own group and its inner producer's."""

        def goodbyes() -> int:
            return sum(seen.request == "UNREGISTER_CLIENT" for seen in self.log.so_far())

        wait_until(lambda: goodbyes() >= 2, 2 * ANSWER_S, reason="Both goodbyes of a client")


def queue_of(topic: str, queue_id: int = 0) -> dict[str, object]:
    """Return a queue as a call of Java's clients has it."""
    return {"topic": topic, "brokerName": "broker-a", "queueId": queue_id}


@contextmanager
def new_stage(home: Path) -> Iterator[Stage]:
    """Yield a stage with its own cluster and the topics of the recording."""
    settings = BrokerSettings(
        delay_levels_s=(1.0,) * 18,
        enable_property_filter=True,
        transaction_timeout_s=1.0,
        transaction_check_interval_s=1.0,
    )
    with SimCluster(brokers=1, settings=settings) as cluster:
        view = ClusterUnderTest(cluster, "sim")
        for topic in ("FrA", "FrOrder", "FrConc", "FrBcast", "FrSql", "FrReset", "FrTx"):
            view.create_topic(topic, queues=2)
        for group in ("FrOrderG", "FrConcG"):
            view.create_topic(f"%RETRY%{group}", queues=1)
        with JavaClients(cluster.name_servers, home) as java:
            yield Stage(cluster, java)
