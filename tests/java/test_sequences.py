"""Which requests Java's clients make of the simulator, in which order, is what was recorded on a real broker.

Left out of the comparison is what timers and other clients of the recording put between: route updates, and offsets
except at a shutdown; also pulls refused for a while because a heartbeat under way kept the client from sending one
with its newer subscription. A pull that is held and one that was held in vain are the same thing at another moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.bodies import decode_heartbeat
from pyspark_rocketmq.wire.codes import ResponseCode
from tests.both.support import ANSWER_S
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.golden import golden
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients, JavaError
from tests.java.push import PushConsumer, await_shares
from tests.java.request_log import NO_REPLY, ONEWAY, RequestLog, Seen

pytestmark = [pytest.mark.sim, pytest.mark.java]

SEQUENCES = {
    name: rows for name, rows in golden("sequences.json").items() if name not in ("made_by", "columns")
}
Row = tuple[str, str, str | None, int | str]

_PRODUCER = "FrProducer"
_NOISE = frozenset({"GET_ROUTEINFO_BY_TOPIC", "UPDATE_CONSUMER_OFFSET"})
_PULLS = frozenset({"PULL_MESSAGE", "LITE_PULL_MESSAGE"})
_HELD = "held"
_OF_RETRIES = frozenset({"%RETRY%FrOrderG", "GET_ROUTEINFO_BY_TOPIC"})
"""The retry topic has an offset only once a pull of it was held for its whole time."""


def recorded(scenario: str) -> list[Row]:
    """The rows of a scenario."""
    return [_row(path, request, topic, answer) for _, path, request, topic, answer, _ in SEQUENCES[scenario]]


def observed(requests: Iterable[Seen]) -> list[Row]:
    """The same of what the simulator saw."""
    return [
        _row(seen.path, seen.request, seen.topic, seen.answer)
        for seen in requests
        if seen.answer != ResponseCode.SUBSCRIPTION_NOT_LATEST and not _is_of_producers(seen)
    ]


def _is_of_producers(seen: Seen) -> bool:
    """Whether it is the heartbeat of a client that consumes nothing: the tests' producer has one every 30 s."""
    return seen.request == "HEART_BEAT" and not decode_heartbeat(seen.command.body).consumers


def _row(path: str, request: str, topic: str | None, answer: int | str) -> Row:
    is_held = request in _PULLS and answer in (19, NO_REPLY)
    return path, request, topic, _HELD if is_held else answer


def facts(rows: Iterable[Row], without: frozenset[str] = _NOISE) -> set[Row]:
    """What was asked about which topic with which answer, once each; ``without`` has requests or topics."""
    return {row for row in rows if row[1] not in without and row[2] not in without}


def order(rows: Iterable[Row], of: Sequence[str]) -> list[str]:
    """These requests in the order in which each was made first."""
    return list(dict.fromkeys(request for _, request, _, _ in rows if request in of))


class Stage:
    """One broker, one JVM, and everything they said to each other."""

    def __init__(self, cluster: SimCluster, java: JavaClients) -> None:
        self.cluster = cluster
        self.java = java
        self.log = RequestLog(cluster)
        self.view = ClusterUnderTest(cluster, "sim")

    def send(self, how: str, topic: str = "FrA", count: int = 1, **message: object) -> None:
        messages = [{"topic": topic, "body": "sync", "tags": "TagA", "keys": "k", **message}] * count
        arguments: dict[str, Any] = {"arg": "order-1", "queue": _queue(topic)}
        self.java.call("producer.send", group=_PRODUCER, how=how, messages=messages, **arguments)

    def put(self, topic: str, queue_id: int = 0, count: int = 1, **properties: str) -> None:
        message = Message(topic=topic, body=b"x", properties={"TAGS": "TagA", **properties})
        self.cluster.put(MessageQueue(topic, "broker-a", queue_id), [message] * count)

    def push(self, name: str, group: str, topic: str, **how: object) -> PushConsumer:
        return PushConsumer(self.java, name, group, topic, **how)

    def await_rows(self, scenario: str, without: frozenset[str] = _NOISE) -> list[Row]:
        """The rows since the last time, once all facts of the recording are among them."""
        wanted = facts(recorded(scenario), without)

        def missing() -> set[Row]:
            return wanted - facts(observed(self.log.so_far()), without)

        wait_until(
            lambda: not missing(), 2 * ANSWER_S, reason=f"All requests of {scenario}, but for {missing()},"
        )
        return observed(self.log.taken())


def _queue(topic: str) -> dict[str, object]:
    return {"topic": topic, "brokerName": "broker-a", "queueId": 0}


@contextmanager
def _new_stage(home: Path) -> Iterator[Stage]:
    settings = BrokerSettings(delay_levels_s=(1.0,) * 18, enable_property_filter=True)
    with SimCluster(brokers=1, settings=settings) as cluster:
        view = ClusterUnderTest(cluster, "sim")
        for topic in ("FrA", "FrOrder", "FrConc", "FrBcast", "FrSql", "FrReset"):
            view.create_topic(topic, queues=2)
        for group in ("FrOrderG", "FrConcG"):
            view.create_topic(f"%RETRY%{group}", queues=1)
        with JavaClients(cluster.name_servers, home) as java:
            yield Stage(cluster, java)


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory, reset_story: Future[tuple[list[Row], list[Row]]]
) -> Iterator[Stage]:
    """Where one scenario follows the other; the reset goes on beside it."""
    with _new_stage(tmp_path_factory.mktemp("sequences")) as stage:
        yield stage


@pytest.fixture(scope="module")
def reset_story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[tuple[list[Row], list[Row]]]]:
    """The requests of a reset told to the next pull, and of one told to the members, in a cluster of its own.

    Java waits ten seconds between hearing of a reset and obeying it.
    """
    home = tmp_path_factory.mktemp("reset")
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(_live_through_resets, home)


def _live_through_resets(home: Path) -> tuple[list[Row], list[Row]]:
    with _new_stage(home) as stage:
        for queue_id in (0, 1):
            stage.put("FrReset", queue_id, 3, KEYS="k")
        address = stage.cluster.broker_addresses["broker-a"]
        consumer = stage.push("reset", "FrResetG", "FrReset", isOrderly=True)
        consumer.delivered(6)
        consumer.persist()
        at_first = stage.log.taken()
        stage.java.mqadmin("resetOffsetByTime", "-g", "FrResetG", "-t", "FrReset", "-s", "0")
        for queue_id in (0, 1):
            stage.put("FrReset", queue_id, KEYS="k")  # ends the held pull
        consumer.delivered(6 + 8, timeout_s=4 * ANSWER_S)
        later = stage.log.taken()
        pulls_until_then = [row for row in observed(at_first) if row[1] == "PULL_MESSAGE"]
        server_side = pulls_until_then + observed(later)

        stage.java.mqadmin(
            "updateBrokerConfig", "-b", address, "-k", "useServerSideResetOffset", "-v", "false"
        )
        stage.java.mqadmin("resetOffsetByTime", "-g", "FrResetG", "-t", "FrReset", "-s", "0")
        consumer.delivered(6 + 8 + 8, timeout_s=4 * ANSWER_S)
        return server_side, observed(stage.log.taken())


_SENDS: dict[str, Callable[[Stage], None]] = {
    "send_sync": lambda stage: stage.send("sync"),
    "send_oneway": lambda stage: stage.send("oneway"),
    "send_async": lambda stage: stage.send("async"),
    "send_batch": lambda stage: stage.send("batch", count=3),
    "send_selector": lambda stage: stage.send("hash"),
    "send_delay": lambda stage: stage.send("sync", delayLevel=1),
    "send_timer": lambda stage: stage.send("sync", delayMillis=1000),
    "send_compressed": lambda stage: stage.send("sync", body="x" * 10_000),
    "send_autocreate_topic": lambda stage: stage.send("sync", topic="FrAutoCreated"),
    "send_to_queue": lambda stage: stage.send("queue"),
}


def _without_timers(rows: Iterable[Row]) -> list[Row]:
    """Without heartbeats, and without a route that is asked for again right after the same was answered."""
    told = [row for row in rows if row[1] != "HEART_BEAT"]
    return [
        row
        for before, row in pairwise([None, *told])
        if row is not None and not (row == before and row[1] == "GET_ROUTEINFO_BY_TOPIC")
    ]


@pytest.mark.parametrize("scenario", _SENDS)
def test_a_producer_sends_as_recorded(scenario: str, stage: Stage):
    """G1, G2: the route is asked for once, and twice for a topic that is to be created."""
    without = frozenset({"HEART_BEAT"})
    stage.log.taken()

    _SENDS[scenario](stage)
    rows = stage.await_rows(scenario, without)

    assert facts(rows, without) == facts(recorded(scenario), without)
    assert _without_timers(rows) == _without_timers(recorded(scenario))


def test_a_producer_asks_as_recorded(stage: Stage):
    """F5, G1: bounds, times, messages by key, a new topic."""
    stage.log.taken()
    asked = stage.java.call(
        "producer.ask", group=_PRODUCER, queue=_queue("FrA"), key="k", newTopic="FrCreated"
    )
    rows = stage.await_rows("producer_admin_calls")

    assert asked["minOffset"] == asked["searchOffset"] == 0
    assert asked["found"]
    assert facts(rows, _NOISE | {"HEART_BEAT"}) == facts(recorded("producer_admin_calls"))
    assert ("client->namesrv", "GET_ROUTEINFO_BY_TOPIC", "TBW102", 0) in rows


def test_a_lite_pull_consumer_lives_as_recorded(stage: Stage):
    """A1, F6: start, poll, commit, seek, shutdown."""
    java = stage.java
    for queue_id in (0, 1):
        stage.put("FrA", queue_id, 20)
    stage.log.taken()

    java.call("lite.start", name="lite", group="FrLiteG", topic="FrA", tags="*")
    java.call("lite.poll", name="lite", count=20, timeoutMillis=20_000)
    polled = stage.await_rows("litepull_poll", frozenset({"GET_ROUTEINFO_BY_TOPIC"}))
    essential = ["HEART_BEAT", "NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    essential += ["QUERY_CONSUMER_OFFSET", "LITE_PULL_MESSAGE"]
    assert order(polled, essential) == order(recorded("litepull_poll"), essential) == essential

    java.call("lite.seek", name="lite", queue=_queue("FrA"), to="begin")
    timestamp = java.call("lite.offsetForTimestamp", name="lite", queue=_queue("FrA"), timestamp=0)
    assert timestamp == 0
    sought = stage.await_rows("litepull_seek")
    assert facts(sought) - facts(polled) <= facts(recorded("litepull_seek")) | facts(polled)

    java.call("lite.commit", name="lite")
    java.call("lite.stop", name="lite")
    # Offsets are sent without waiting, so goodbye may overtake them.
    stopped = stage.await_rows("litepull_shutdown", _PULLS)
    assert facts(recorded("litepull_commit"), _PULLS) <= facts(stopped, _PULLS)


def test_an_orderly_group_lives_as_recorded(stage: Stage):
    """B1, B3, C1, C4, D1: start, second member, which leaves, shutdown."""
    for queue_id in (0, 1):
        stage.put("FrOrder", queue_id, 2, KEYS="k")
    stage.log.taken()

    first = stage.push("order-1", "FrOrderG", "FrOrder", isOrderly=True)
    started = stage.await_rows("orderly_start", _NOISE | {"SEND_MESSAGE_V2"})
    essential = ["HEART_BEAT", "NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    essential += ["LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET", "PULL_MESSAGE"]
    assert order(started, essential) == order(recorded("orderly_start"), essential) == essential
    assert facts(started) == facts(recorded("orderly_start"), _NOISE | {"SEND_MESSAGE_V2"})

    second = stage.push("order-2", "FrOrderG", "FrOrder", isOrderly=True)
    await_shares("FrOrder", {0, 1}, first, second, is_orderly=True)
    joined = stage.await_rows("orderly_second_member", frozenset({"GET_ROUTEINFO_BY_TOPIC"}))
    handed_over = ["NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    handed_over += ["UPDATE_CONSUMER_OFFSET", "UNLOCK_BATCH_MQ", "LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET"]
    assert order(joined, handed_over) == order(recorded("orderly_second_member"), handed_over) == handed_over

    second.stop().result(2 * ANSWER_S)
    await_shares("FrOrder", {0, 1}, first, is_orderly=True)
    left = stage.await_rows("orderly_second_member_leaves")
    taken_over = ["UNLOCK_BATCH_MQ", "UNREGISTER_CLIENT", "NOTIFY_CONSUMER_IDS_CHANGED"]
    taken_over += ["GET_CONSUMER_LIST_BY_GROUP", "LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET"]
    of_leaver = [row for row in left if row[1] in taken_over]
    assert order(of_leaver, taken_over) == order(recorded("orderly_second_member_leaves"), taken_over)
    (unlock,) = {row for row in left if row[1] == "UNLOCK_BATCH_MQ"}
    assert unlock[3] == 0  # at a shutdown it waits for the answer; a rebalance unlocks with a oneway

    first.persist()
    first.stop().result(2 * ANSWER_S)
    ended = stage.await_rows("orderly_shutdown")
    goodbye = ["UNLOCK_BATCH_MQ", "UNREGISTER_CLIENT"]
    assert order(ended, goodbye) == order(recorded("orderly_shutdown"), goodbye) == goodbye
    assert facts(ended, _OF_RETRIES | _PULLS) == facts(recorded("orderly_shutdown"), _OF_RETRIES)


def test_a_concurrent_group_lives_as_recorded(stage: Stage):
    """E1, E3: no locks; what fails is sent back, and comes again from the retry topic."""
    stage.put("FrConc", 0, KEYS="bad")
    stage.put("FrConc", 1, KEYS="good")
    stage.log.taken()

    consumer = stage.push(
        "conc",
        "FrConcG",
        "FrConc",
        answers={"bad": ["RECONSUME_LATER", "RECONSUME_LATER", "CONSUME_SUCCESS"]},
    )
    consumer.delivered(4)
    started = stage.await_rows("concurrent_start", _NOISE | {"SEND_MESSAGE_V2"})
    essential = ["HEART_BEAT", "NOTIFY_CONSUMER_IDS_CHANGED", "GET_CONSUMER_LIST_BY_GROUP"]
    essential += ["QUERY_CONSUMER_OFFSET", "PULL_MESSAGE", "CONSUMER_SEND_MSG_BACK"]
    assert order(started, essential) == order(recorded("concurrent_start"), essential) == essential
    assert facts(started) == facts(recorded("concurrent_start"), _NOISE | {"SEND_MESSAGE_V2"})

    stage.java.call("push.suspend", name="conc")
    stage.java.call("push.resume", name="conc")
    stage.await_rows("concurrent_suspend_resume")
    consumer.persist()
    stage.await_rows("concurrent_sendback_explicit", frozenset())
    consumer.stop().result(2 * ANSWER_S)
    ended = stage.await_rows("concurrent_shutdown", frozenset())
    assert facts(ended, _PULLS) == facts(recorded("concurrent_shutdown"), frozenset())


def test_a_broadcasting_member_lives_as_recorded(stage: Stage):
    """B7: no list of members, no offsets at the broker, one pull after the other."""
    stage.log.taken()
    consumer = stage.push("bcast", "FrBcastG", "FrBcast", isBroadcasting=True)
    wait_until(lambda: set(consumer.queues("FrBcast")) == {0, 1}, 2 * ANSWER_S)
    stage.put("FrBcast", 0)
    consumer.delivered(1)
    rows = observed(stage.log.taken())
    names = {row[1] for row in rows}

    assert names <= {row[1] for row in recorded("broadcast")} | {"NOTIFY_CONSUMER_IDS_CHANGED"}
    consumer.stop().result(2 * ANSWER_S)
    ended = stage.await_rows("broadcast_shutdown")
    assert facts(ended, _NOISE | _PULLS) == facts(recorded("broadcast_shutdown"))


def test_a_sql92_subscriber_lives_as_recorded(stage: Stage):
    """A4: the expression is checked before the first heartbeat; a bad one ends the start."""
    stage.put("FrSql", 0, color="red", n="1")
    stage.put("FrSql", 1, color="blue", n="7")
    stage.log.taken()
    consumer = stage.push("sql", "FrSqlG", "FrSql", sql="n > 5")
    consumer.delivered(1)
    consumer.persist()
    consumer.stop().result(2 * ANSWER_S)
    rows = stage.await_rows("sql92", _NOISE | {"SEND_MESSAGE_V2"})
    essential = [
        "CHECK_CLIENT_CONFIG",
        "HEART_BEAT",
        "NOTIFY_CONSUMER_IDS_CHANGED",
        "GET_CONSUMER_LIST_BY_GROUP",
    ]
    essential += ["QUERY_CONSUMER_OFFSET", "PULL_MESSAGE", "UNREGISTER_CLIENT"]
    assert order(rows, essential) == order(recorded("sql92"), essential) == essential

    with pytest.raises(JavaError, match="CODE: 23"):
        stage.push("sql-bad", "FrSqlG2", "FrSql", sql="n > > 5")
    bad = stage.await_rows("sql92_bad_expression", _NOISE | {"HEART_BEAT", "UNREGISTER_CLIENT"})
    assert ("client->broker", "CHECK_CLIENT_CONFIG", None, 23) in bad


def test_producers_say_goodbye_as_recorded(stage: Stage):
    """G1: the producer's group and the client's inner one are unregistered."""
    stage.send("sync")
    stage.log.taken()
    stage.java.call("producer.stop", group=_PRODUCER)
    rows = stage.await_rows("producer_shutdown")
    assert facts(rows) == facts(recorded("producer_shutdown"))


def test_a_reset_is_obeyed_as_recorded(reset_story: Future[tuple[list[Row], list[Row]]]):
    """F4: the broker answers the next pull with 21, or tells the members at once, as it is configured."""
    server_side, client_side = reset_story.result(8 * ANSWER_S)

    told = ["INVOKE_BROKER_TO_RESET_OFFSET", "UNLOCK_BATCH_MQ", "LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET"]
    of_reset = recorded("reset_server_side")
    start = next(at for at, row in enumerate(of_reset) if row[1] == told[0])
    assert order(server_side, told) == order(of_reset[start:], told) == told
    assert ("client->broker", "PULL_MESSAGE", "FrReset", 21) in server_side

    pushed = ["UPDATE_BROKER_CONFIG", "INVOKE_BROKER_TO_RESET_OFFSET", "RESET_CONSUMER_CLIENT_OFFSET"]
    assert order(client_side, pushed) == order(recorded("reset_client_side_push"), pushed) == pushed
    assert ("broker->client", "RESET_CONSUMER_CLIENT_OFFSET", "FrReset", ONEWAY) in client_side
